"""The feasible set: every config that obeys the rules, for a GPU and a problem, as a finite set of points.

It is the product of independent factors, so it is counted and indexed without being written out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ..device import DeviceLimits
from ..errors import UsageError
from ..gemm import Gemm
from .config import PARAMETER, PARAMETERS, Value
from .rules import RULES, Rule

MAX_ROWS = 1 << 26  # of one factor of a space: more would take gigabytes
_JOIN_ROWS = 1 << 18  # rows joined at a time: more leave the processor's caches, fewer take more calls
_MAX_KINDS = 1 << 20  # numbers with gaps among them, at most: each stands for a combination that may occur

_LAUNCH_FACTOR = ("reduction", "split_k")
_WALK_FACTOR = ("raster", "group")
_ORDER_FACTOR = ("order",)


class _Columns:
    """Columns of configs under construction, read by rules through attributes."""

    def __init__(self, columns: dict[str, np.ndarray]) -> None:
        self.__dict__.update(columns)


@dataclass(frozen=True)
class Factor:
    """One independent part of a space: every row of `codes` may meet every row of other factors.

    `codes[i, j]` indexes `values[j]`, the values of parameter `names[j]`; shape (rows, parameters).
    """

    names: tuple[str, ...]
    values: tuple[tuple[Value, ...], ...]
    codes: np.ndarray  # uint8 (rows, parameters)

    def __len__(self) -> int:
        return len(self.codes)

    @cached_property
    def _sorted(self) -> tuple[np.ndarray, np.ndarray | None]:
        """Rows as byte strings in ascending order, and which row each is if `_join` did not sort them."""
        keys = np.ascontiguousarray(self.codes, dtype=np.uint8).view(f"S{len(self.names)}").ravel()
        if np.all(keys[:-1] <= keys[1:]):
            return keys, None
        order = np.argsort(keys, kind="stable")
        return keys[order], order

    @property
    def order(self) -> np.ndarray | None:
        """The rows in ascending order of their codes; None if they stand in it already, as ours do."""
        return self._sorted[1]

    def rows_of(self, codes: np.ndarray) -> np.ndarray:
        """Rows that hold these codes, -1 where none does; shapes (q, parameters) -> (q,)."""
        keys, rows = self._sorted
        if not len(keys):
            return np.full(len(codes), -1)
        wanted = np.ascontiguousarray(codes, dtype=np.uint8).view(keys.dtype).ravel()
        at = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
        return np.where(keys[at] == wanted, at if rows is None else rows[at], -1)


@dataclass(frozen=True)
class FeasibleSet:
    """A finite set of points: the Cartesian product of its factors' rows.

    A point is numbered 0 ... len - 1 in mixed radix, the last factor fastest. Samplers see a space
    only through this class, so any recorded space of other tools is searched in the same way.
    """

    factors: tuple[Factor, ...]

    def __len__(self) -> int:
        return int(np.prod([len(f) for f in self.factors], dtype=object)) if self.factors else 0

    @cached_property
    def names(self) -> tuple[str, ...]:
        return tuple(name for f in self.factors for name in f.names)

    @cached_property
    def values(self) -> tuple[tuple[Value, ...], ...]:
        return tuple(v for f in self.factors for v in f.values)

    def rows(self, index: int) -> tuple[int, ...]:
        """Row of each factor at this point."""
        rows = []
        for factor in reversed(self.factors):
            index, row = divmod(index, len(factor))
            rows.append(row)
        return tuple(reversed(rows))

    def index(self, rows: Sequence[int]) -> int:
        """Number of the point at these rows of the factors."""
        number = 0
        for factor, row in zip(self.factors, rows, strict=True):
            number = number * len(factor) + int(row)
        return number

    def codes(self, index: int) -> np.ndarray:
        """Codes of all parameters at this point, in the order of `names`."""
        rows = self.rows(index)
        return np.concatenate([f.codes[r] for f, r in zip(self.factors, rows, strict=True)])

    def point(self, index: int) -> dict[str, Value]:
        """Parameters by name at this point."""
        return {n: v[c] for n, v, c in zip(self.names, self.values, self.codes(index), strict=True)}

    def find(self, point: Mapping[str, Value]) -> int | None:
        """Number of a point, or None if it is not in the set."""
        rows = []
        for factor in self.factors:
            try:
                codes = [v.index(point[n]) for n, v in zip(factor.names, factor.values, strict=True)]
            except (KeyError, ValueError):
                return None
            row = int(factor.rows_of(np.array([codes], dtype=np.uint8))[0])
            if row < 0:
                return None
            rows.append(row)
        return self.index(rows)


def _join(names: Sequence[str], rules: Iterable[Rule], limits: DeviceLimits, gemm: Gemm) -> Factor:
    """All combinations of the parameters that obey the rules, one parameter joined at a time.

    A rule is applied as soon as the parameters it needs are there, which keeps the table small.
    """
    pending = list(rules)
    table = np.zeros((1, len(names)), dtype=np.uint8)  # columns are filled from the left
    for at in range(len(names)):
        known = names[: at + 1]
        ready = [r for r in pending if set(r.needs) <= set(known)]
        pending = [r for r in pending if r not in ready]
        parts = [table[start : start + _JOIN_ROWS] for start in range(0, max(1, len(table)), _JOIN_ROWS)]
        table = np.concatenate([_joined(part, known, ready, limits, gemm) for part in parts])
        if len(table) > MAX_ROWS:
            raise UsageError(
                f"{gemm} on {limits.name}: more than {MAX_ROWS:,} combinations of {', '.join(known)} are "
                "legal, too many to enumerate; leave out --all, or ask about one config with --explain"
            )
    return Factor(tuple(names), tuple(PARAMETER[n].values for n in names), table)


def _joined(
    table: np.ndarray, names: Sequence[str], rules: Sequence[Rule], limits: DeviceLimits, gemm: Gemm
) -> np.ndarray:
    """Every row with every code of one more parameter, the last of `names`, that obeys the rules.

    (rows, parameters) -> (at most rows * choices, parameters): that parameter's column is filled.
    """
    added = len(names) - 1
    choices = np.arange(len(PARAMETER[names[added]].values), dtype=np.uint32)
    legal = np.full(len(table), (1 << len(choices)) - 1, dtype=np.uint32)  # of each row: bit i, choice i
    for rule in rules:
        legal &= _verdicts(rule, table, names, limits, gemm)
    is_legal = (legal[:, None] >> choices & 1).astype(bool)
    joined = np.repeat(table, np.bitwise_count(legal), axis=0)
    joined[:, added] = np.flatnonzero(is_legal) % len(choices)
    return joined


def _verdicts(
    rule: Rule, table: np.ndarray, names: Sequence[str], limits: DeviceLimits, gemm: Gemm
) -> np.ndarray:
    """The choices of the last of `names` that a rule allows each row, as bits: uint32 (rows,).

    Rows are many, but few differ in what one rule reads of them: it judges a row of each kind. It sees only
    what the rules left of the parameters before.
    """
    needs = [names.index(name) for name in rule.needs if name != names[-1]]
    kinds, rows = _kinds(table[:, needs], [len(PARAMETER[names[at]].values) for at in needs])
    columns = {names[at]: np.array(PARAMETER[names[at]].values)[table[rows, at, None]] for at in needs}
    choices = columns[names[-1]] = np.array(PARAMETER[names[-1]].values)
    holds = np.broadcast_to(rule.holds(_Columns(columns), limits, gemm), (len(rows), len(choices)))
    bits = holds @ (np.uint32(1) << np.arange(len(choices), dtype=np.uint32))
    return np.asarray(bits[kinds])


def _kinds(codes: np.ndarray, counts: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
    """The kind of each row, and of each kind a row: those of a kind hold the same codes. Column i holds
    codes below `counts[i]`; shapes (rows, p) -> (rows,), (kinds,)."""
    kinds, num_kinds = np.zeros(len(codes), dtype=np.int32), 1
    for column, count in zip(codes.T, counts, strict=True):
        if num_kinds * count > _MAX_KINDS:
            kinds, rows = _without_gaps(kinds, num_kinds)
            num_kinds = len(rows)
        kinds = kinds * count + column
        num_kinds *= count
    return _without_gaps(kinds, num_kinds)


def _without_gaps(kinds: np.ndarray, num_kinds: int) -> tuple[np.ndarray, np.ndarray]:
    """The same kinds, numbered anew without those that no row is of, and a row of each."""
    rows = np.full(num_kinds, -1, dtype=np.int32)
    rows[kinds] = np.arange(len(kinds), dtype=np.int32)
    used = np.flatnonzero(rows >= 0)
    numbers = np.empty(num_kinds, dtype=np.int32)
    numbers[used] = np.arange(len(used), dtype=np.int32)
    return numbers[kinds], rows[used]


def feasible_set(limits: DeviceLimits, gemm: Gemm, *, is_wide: bool = False) -> FeasibleSet:
    """Every config that this device can run on this problem and that is worth a try.

    `is_wide` drops the rules of kind `worth`, and the set with it grows a thousandfold. Raises
    UsageError where it then becomes too large to enumerate.
    """
    rules = [r for r in RULES if not (is_wide and r.kind == "worth")]
    apart = (*_ORDER_FACTOR, *_WALK_FACTOR, *_LAUNCH_FACTOR)
    core = tuple(p.name for p in PARAMETERS if p.name not in apart)
    factors = []
    for names in (core, _ORDER_FACTOR, _WALK_FACTOR, _LAUNCH_FACTOR):
        own = [r for r in rules if set(r.needs) <= set(names)]
        factors.append(_join(names, own, limits, gemm))
    return FeasibleSet(tuple(factors))
