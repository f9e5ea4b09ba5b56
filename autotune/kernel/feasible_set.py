"""The feasible set: every config that obeys the rules, for a GPU and a problem, as a finite set of points.

It is a product of factors, independent but for the workspace (`Pairs`), so it can be counted and indexed
without listing it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from types import SimpleNamespace as Columns  # of configs under construction, which rules read
from typing import Any

import numpy as np

from ..facts.device import DeviceLimits
from ..facts.gemm import Gemm
from ..files.errors import UsageError
from ..files.words import counted, option
from .config import PARAMETER, PARAMETERS, Parameter, Value
from .launch import WORKSPACE_LIMIT
from .resources import workspaces
from .rules import RULE, RULES, Rule, rules_of
from .scaled_config import ON_TENSOR_CORES, OnTensorCores
from .summation_order import CONDITIONS, SummationOrder
from .tensor_config import TensorConfig
from .where import VALUES, Condition, Where

MAX_ROWS = 1 << 26  # of one factor of a space: more would take gigabytes
_JOIN_ROWS = 1 << 18  # rows whose choices are listed at a time: more leave the processor's caches

_LAUNCH_FACTOR = ("reduction", "split_k")
_WALK_FACTOR = ("raster", "group")
_ORDER_FACTOR = ("order",)


@dataclass(frozen=True)
class Factor:
    """One independent part of a space: every row of `codes` may meet every row of other factors. `codes[i,
    j]` indexes `values[j]`, the values of parameter `names[j]`; shape (rows, parameters)."""

    names: tuple[str, ...]
    values: tuple[tuple[Value, ...], ...]
    codes: np.ndarray  # uint8 (rows, parameters); uint16 where others' parameters have more values
    is_sorted: bool = False  # known to be in ascending order: checking takes a while

    def __len__(self) -> int:
        return len(self.codes)

    def reached(self, name: str) -> list[Value]:
        """The values of a parameter in these rows."""
        at = self.names.index(name)
        return [self.values[at][code] for code in np.unique(self.codes[:, at]).tolist()]

    def _keys(self, codes: np.ndarray) -> np.ndarray:
        """Rows as byte strings, which are in the order of their codes."""
        kind = np.dtype("u1" if self.codes.dtype == np.uint8 else ">u2")
        width = kind.itemsize * len(self.names)
        return np.ascontiguousarray(codes, dtype=kind).view(f"S{width}").ravel()

    @cached_property
    def _sorted(self) -> tuple[np.ndarray, np.ndarray | None]:
        """Rows as byte strings in ascending order, and the row of each if they were unsorted."""
        keys = self._keys(self.codes)
        if self.is_sorted or np.all(keys[:-1] <= keys[1:]):
            return keys, None
        order = np.argsort(keys, kind="stable")
        return keys[order], order

    @property
    def order(self) -> np.ndarray | None:
        """The rows in ascending order of their codes; None if they are already sorted, as ours are."""
        return self._sorted[1]

    def rows_of(self, codes: np.ndarray) -> np.ndarray:
        """Rows with these codes, -1 where there is none; shapes (q, parameters) -> (q,)."""
        keys, rows = self._sorted
        if not len(keys):
            return np.full(len(codes), -1)
        wanted = self._keys(codes)
        at = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
        return np.where(keys[at] == wanted, at if rows is None else rows[at], -1)


@dataclass(frozen=True)
class Pairs:
    """Which rows of two factors may meet: row i of the factor `first` those of the factor `second` for which
    `is_compatible[kinds[i]]` is true, at least one."""

    first: int
    second: int
    kinds: np.ndarray  # (rows of the first,)
    is_compatible: np.ndarray  # bool (kinds, rows of the second)

    @cached_property
    def num(self) -> int:
        counts = np.bincount(self.kinds, minlength=len(self.is_compatible))
        return int((counts @ self.is_compatible.sum(axis=1)).item())


@dataclass(frozen=True)
class FeasibleSet:
    """A finite set of points: the Cartesian product of its factors' rows. A point is numbered 0 ... len - 1
    in mixed radix, the last factor fastest. Samplers see a space only through this class, so any recorded
    space of other tools is searched in the same way. With `pairs`, some numbers are of no point."""

    factors: tuple[Factor, ...]
    pairs: Pairs | None = None

    def __repr__(self) -> str:
        names = [name for factor in self.factors for name in factor.names]
        return f"FeasibleSet({counted(self.num_points, 'point')} of {counted(len(names), 'parameter')})"

    def __len__(self) -> int:
        return int(np.prod([len(f) for f in self.factors], dtype=object)) if self.factors else 0

    @cached_property
    def num_points(self) -> int:
        """As many as there are numbers, unless some are of no point."""
        if self.pairs is None:
            return len(self)
        apart = (self.pairs.first, self.pairs.second)
        others = [len(factor) for at, factor in enumerate(self.factors) if at not in apart]
        return self.pairs.num * int(np.prod(others, dtype=object))

    def are_points(self, numbers: np.ndarray) -> np.ndarray:
        """Whether these numbers are of points; (q,) -> (q,)."""
        if self.pairs is None:
            return np.ones(len(numbers), dtype=bool)
        rows = np.unravel_index(numbers, [len(factor) for factor in self.factors])
        kinds = self.pairs.kinds[rows[self.pairs.first]]
        return np.asarray(self.pairs.is_compatible[kinds, rows[self.pairs.second]])

    @cached_property
    def names(self) -> tuple[str, ...]:
        return tuple(name for f in self.factors for name in f.names)

    @cached_property
    def is_autotune(self) -> bool:
        """Whether its points are configs of our kernel: a recording may be of another tool's."""
        return set(self.names) == set(PARAMETER)

    @cached_property
    def on_tensor_cores(self) -> type[OnTensorCores] | None:
        """The configs on tensor cores that they are, if they are."""
        own = set(self.names)
        return next((one for one in ON_TENSOR_CORES if own == set(one.parameters)), None)

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
        return self.find_all([point])[0]

    def find_all(self, points: Sequence[Mapping[str, Value]]) -> list[int | None]:
        """Numbers of points, None for each that is not in the set."""
        codes = [self._codes_of(point) for point in points]
        known = np.array([c for c in codes if c is not None], dtype=np.uint16).reshape(-1, len(self.names))
        ends = np.cumsum([len(factor.names) for factor in self.factors])
        parts = np.split(known, ends[:-1], axis=1)
        rows = [f.rows_of(part).tolist() for f, part in zip(self.factors, parts, strict=True)]
        found = (None if min(row, default=0) < 0 else self.index(row) for row in zip(*rows, strict=True))
        numbers = [None if c is None else next(found) for c in codes]
        if self.pairs is None:
            return numbers
        return [n if n is not None and self.are_points(np.array([n]))[0] else None for n in numbers]

    def where(self, where: Where, gemm: Gemm) -> FeasibleSet:
        """The points of this set, of this problem, that obey conditions, under other numbers. Raises
        UsageError for conditions on what no point has, and if none is left: it names the one that leaves
        none."""
        known = {} if self.on_tensor_cores else VALUES
        where.check({name: known.get(name, own) for name, own in zip(self.names, self.values, strict=True)})
        found = self
        for number, condition in enumerate(where.conditions):
            at = next(i for i, factor in enumerate(self.factors) if condition.name in factor.names)
            before, found = found, found._only(at, _holds(found.factors[at], condition))
            if len(before.factors[at]) and not len(found.factors[at]):
                is_single = not _holds(self.factors[at], condition).any()
                whole = (self if is_single else before).factors[at]
                reached = ", ".join(map(str, whole.reached(condition.name)))
                others = Where(where.conditions[:number])
                raise UsageError(
                    f"{gemm}: no config obeys {condition}: {condition.name} is {reached} in every config "
                    + ("that is searched here" if is_single else f"that obeys {others}")
                )
        return _within_workspace(_in_order(found, where, gemm), where, gemm)

    def _only(self, at: int, is_kept: np.ndarray) -> FeasibleSet:
        """The points with these rows of a factor; bool (rows,)."""
        factors = list(self.factors)
        factors[at] = replace(factors[at], codes=factors[at].codes[is_kept])
        found, pairs = FeasibleSet(tuple(factors)), self.pairs
        if pairs is None or at not in (pairs.first, pairs.second):
            return replace(found, pairs=pairs)
        if at == pairs.first:
            return _paired(found, replace(pairs, kinds=pairs.kinds[is_kept]))
        return _paired(found, replace(pairs, is_compatible=pairs.is_compatible[:, is_kept]))

    def _codes_of(self, point: Mapping[str, Value]) -> list[int] | None:
        """As `codes`, for a point that may be in the set; None if it has a value that no point there has."""
        try:
            return [codes[point[name]] for name, codes in self._codes]
        except (KeyError, TypeError):
            return None

    @cached_property
    def _codes(self) -> list[tuple[str, dict[Value, int]]]:
        """By parameter the code of each value."""
        return [
            (n, {one: code for code, one in enumerate(v)})
            for n, v in zip(self.names, self.values, strict=True)
        ]


def _paired(space: FeasibleSet, pairs: Pairs) -> FeasibleSet:
    """The points of a product of factors of which two meet so; rows that meet none are dropped."""
    factors, first, second = list(space.factors), pairs.first, pairs.second
    is_kept = np.asarray(pairs.is_compatible.any(axis=1))
    factors[first] = replace(factors[first], codes=factors[first].codes[is_kept[pairs.kinds]])
    if first == second:
        return FeasibleSet(tuple(factors))
    is_met = np.asarray(pairs.is_compatible[np.unique(pairs.kinds)].any(axis=0))
    factors[second] = replace(factors[second], codes=factors[second].codes[is_met])
    left = pairs.is_compatible[is_kept][:, is_met]
    number = np.cumsum(is_kept) - 1  # of each kind that is left
    kinds = number[pairs.kinds[is_kept[pairs.kinds]]]
    return FeasibleSet(tuple(factors), None if left.all() else Pairs(first, second, kinds, left))


def _linked(
    space: FeasibleSet, of_tiles: Sequence[str], holds: Callable[[Columns], np.ndarray]
) -> FeasibleSet:
    """The points of a set for whose parameters of tiles and splits this holds."""
    first, second = (
        next(at for at, factor in enumerate(space.factors) if name in factor.names)
        for name in (of_tiles[0], _OF_SPLITS[0])
    )
    is_one = first == second
    kinds, tiles = _kinds(space.factors[first], (*of_tiles, *_OF_SPLITS) if is_one else of_tiles)
    splits = {} if is_one else _kinds(space.factors[second], _OF_SPLITS, is_each=True)[1]
    is_compatible = holds(Columns(**{name: values[:, None] for name, values in tiles.items()}, **splits))
    if space.pairs is not None:
        both, kinds = np.unique(space.pairs.kinds * len(is_compatible) + kinds, return_inverse=True)
        before, now = np.divmod(both, len(is_compatible))
        is_compatible = np.logical_and(space.pairs.is_compatible[before], is_compatible[now])
    return _paired(space, Pairs(first, second, kinds, is_compatible))


# What a workspace depends on, by the factor that has it.
_OF_TILES = ("bm", "bn", "bk", "pack_a", "pack_b", "min_blocks", "flush_k")
_OF_SUMS = ("bm", "bn", "min_blocks")
_OF_SPLITS = ("reduction", "split_k")
_TENSOR_TILES = ("bm", "bn", "pack_a", "pack_b")


def _within_workspace(space: FeasibleSet, where: Where, gemm: Gemm) -> FeasibleSet:
    """The points of a set whose launches obey the limit on workspace. Raises UsageError if none is left."""
    if where.shape is None or where.max_workspace is None or not len(space):
        return space
    its = space.on_tensor_cores
    if not (its or {*_OF_TILES, *_OF_SPLITS} <= set(space.names)):
        raise UsageError(
            f"{option('max_workspace')}: {gemm} was recorded with another kernel, whose workspace is unknown"
        )
    (problem, limits), most = where.shape, where.max_workspace

    def fit(columns: Columns) -> np.ndarray:
        if its:
            return np.asarray(its.workspaces(columns, problem) <= most)
        return np.asarray(workspaces(columns, problem, limits) <= most)

    found = _linked(space, [n for n in _TENSOR_TILES if n in space.names] if its else _OF_TILES, fit)
    if not len(found):
        raise UsageError(
            f"{gemm}: no config obeys {option('max_workspace')} {where.max_workspace_mib:g}: each of those "
            "that obey the other conditions needs more"
        )
    return found


def _in_order(space: FeasibleSet, where: Where, gemm: Gemm) -> FeasibleSet:
    """The points of a set whose sums have the order that is asked for. Raises UsageError if none is left."""
    if where.order is None:
        return space
    for names, holds in CONDITIONS:
        at = next((at for at, factor in enumerate(space.factors) if set(names) <= set(factor.names)), None)
        if at is None:
            raise UsageError(f"{gemm} was recorded with another kernel, whose order of sums is unknown")
        factor = space.factors[at]
        codes = {name: factor.codes[:, factor.names.index(name)] for name in names}
        columns = {n: np.array(factor.values[factor.names.index(n)])[own] for n, own in codes.items()}
        space = space._only(at, np.asarray(holds(Columns(**columns), where.order, gemm.k)))
    if not len(space):
        raise UsageError(f"{gemm}: no config that is searched here sums in the order {where.order}")
    return space


def _kinds(
    factor: Factor, names: Sequence[str], *, is_each: bool = False
) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Rows by the values of these parameters: the kind of each row, and the values of each kind, or row."""
    places = [factor.names.index(name) for name in names]
    keys: np.ndarray = np.zeros(len(factor), dtype=np.int64)
    for at in places:
        keys = keys * len(factor.values[at]) + factor.codes[:, at]
    firsts, kinds = np.unique(keys, return_index=True, return_inverse=True)[1:]
    rows = np.arange(len(factor)) if is_each else firsts
    values = {
        n: np.array(factor.values[at])[factor.codes[rows, at]] for n, at in zip(names, places, strict=True)
    }
    return kinds, values


def _holds(factor: Factor, condition: Condition) -> np.ndarray:
    """Whether each row does; bool (rows,)."""
    at = factor.names.index(condition.name)
    is_allowed = np.array([condition.allows(value) for value in factor.values[at]], dtype=bool)
    return np.asarray(is_allowed[factor.codes[:, at]])


class _Tree:
    """Combinations under construction, of a few parameters first: level i holds those of the first i, and
    those of level i + 1 extend them. A rule on early parameters is judged where combinations are few, and
    holds for the many that extend them."""

    def __init__(
        self, names: Sequence[str], parameters: Mapping[str, Parameter], limits: DeviceLimits, gemm: Gemm
    ) -> None:
        self._names, self._limits, self._gemm = names, limits, gemm
        self._values = [parameters[name].values for name in names]
        # Of each level but the first, (rows,) each:
        self._codes: list[np.ndarray] = []  # of the parameter that it adds; uint8
        self._before: list[np.ndarray] = []  # the row of the level before that each goes on from

    def grow(self, rules: Sequence[Rule]) -> int:
        """Add one more parameter in all ways that these rules allow; returns the number of combinations then,
        and adds none if they are too many."""
        legal = self._legal(rules)
        nums = np.bitwise_count(legal)
        if (num_rows := int(nums.sum(dtype=np.int64))) <= MAX_ROWS:
            self._codes.append(_set_bits(legal))
            self._before.append(np.repeat(np.arange(len(legal)), nums))
        return num_rows

    def table(self) -> np.ndarray:
        """Codes of all combinations; uint8 (rows, parameters)."""
        table = np.zeros((1, len(self._codes)), dtype=np.uint8)
        for at, (codes, before) in enumerate(zip(self._codes, self._before, strict=True)):
            table = table.take(before, axis=0)
            table[:, at] = codes
        return table

    def _legal(self, rules: Sequence[Rule]) -> np.ndarray:
        """The choices of the next parameter that rules allow each row of the last level, as bits; (rows,)."""
        added = self._names[len(self._codes)]
        num_choices = len(self._values[len(self._codes)])
        legal: np.ndarray = np.full(
            1, (1 << num_choices) - 1, dtype=np.uint8 if num_choices <= 8 else np.uint32
        )
        needs = [
            [at for at, name in enumerate(self._names) if name in r.needs and name != added] for r in rules
        ]
        for level in range(len(self._codes) + 1):
            for rule, others in zip(rules, needs, strict=True):
                if max(others, default=-1) + 1 == level:
                    legal &= self._check_rule(rule, others, added, legal.dtype)
            if level < len(self._before):
                legal = legal[self._before[level]]
        return legal

    def _check_rule(self, rule: Rule, needs: Sequence[int], added: str, kind: np.dtype[Any]) -> np.ndarray:
        """As `_legal`, by one rule, for the level of the last parameter but `added` that it needs. Few rows
        differ in what one rule reads of them, so it judges each kind of row. It sees only the combinations
        that the earlier rules left."""
        kinds, number = np.zeros(1, dtype=np.int32), np.zeros(1, dtype=np.int32)  # by row; by kind
        found = np.zeros((1, 0), dtype=np.uint8)  # (numbers, needs)
        for at in range(max(needs, default=-1) + 1):
            kinds = kinds[self._before[at]] if len(found) > 1 else np.zeros(len(self._codes[at]), np.int32)
            if at in needs:
                count = len(self._values[at])
                kinds = number[kinds] * np.int32(count) + self._codes[at]
                is_used = np.zeros(len(found) * count, dtype=bool)
                is_used[kinds] = True
                number = np.cumsum(is_used, dtype=np.int32) - 1
                before, codes = np.divmod(np.flatnonzero(is_used), count)
                found = np.column_stack([found[before], codes.astype(np.uint8)])
        if not len(found):
            return np.zeros(len(kinds), kind)
        columns = {
            self._names[at]: np.array(self._values[at])[codes, None]
            for at, codes in zip(needs, found.T, strict=True)
        }
        choices = columns[added] = np.array(self._values[len(self._codes)])
        holds = rule.holds(Columns(**columns), self._limits, self._gemm)
        bits = np.broadcast_to(holds, (len(found), len(choices))) @ (1 << np.arange(len(choices)))
        return np.asarray(bits.astype(kind)[number][kinds])


def _set_bits(words: np.ndarray) -> np.ndarray:
    """The positions of the set bits in each of these, one word after another; uint8."""
    size = words.itemsize
    parts = [np.zeros(0, dtype=np.uint8)]
    for start in range(0, len(words), _JOIN_ROWS):
        as_bytes = words[start : start + _JOIN_ROWS].astype(f"<u{size}").view(np.uint8)
        is_set = np.unpackbits(as_bytes, bitorder="little").view(bool)
        parts.append((np.flatnonzero(is_set) & (8 * size - 1)).astype(np.uint8))
    return np.concatenate(parts)


def _joined(
    groups: Iterable[Sequence[str]], rules: Sequence[Rule], limits: DeviceLimits, gemm: Gemm,
    parameters: Mapping[str, Parameter],
) -> tuple[Factor, ...]:  # fmt: skip
    """A factor for each group of parameters: all their combinations that obey the rules, one parameter joined
    at a time. A rule is applied as soon as the parameters it needs are there, which keeps the table small."""
    factors = []
    for names in groups:
        pending, tree = (
            [r for r in rules if set(r.needs) <= set(names)],
            _Tree(names, parameters, limits, gemm),
        )
        for at in range(len(names)):
            known = names[: at + 1]
            ready = [r for r in pending if set(r.needs) <= set(known)]
            pending = [r for r in pending if r not in ready]
            if tree.grow(ready) > MAX_ROWS:
                raise UsageError(
                    f"{gemm} on {limits.name}: more than {MAX_ROWS:,} combinations of {', '.join(known)} are "
                    "legal, too many to enumerate; leave out --all, or ask about one config with --explain"
                )
        values = tuple(parameters[name].values for name in names)
        factors.append(Factor(tuple(names), values, tree.table(), is_sorted=True))
    return tuple(factors)


def feasible_set(
    limits: DeviceLimits, gemm: Gemm, *, is_wide: bool = False, order: SummationOrder | None = None
) -> FeasibleSet:
    """Every config that this device can run on this problem and that is worth a trial; whose sums have this
    order, if one is given. `is_wide` drops the rules of kind `worth`, which makes the set a thousand times
    larger. Raises UsageError if it then becomes too large to enumerate."""
    rules = [r for r in RULES if not (is_wide and r.kind == "worth" and r.id != "worth-chunks")]
    apart = (*_ORDER_FACTOR, *_WALK_FACTOR, *_LAUNCH_FACTOR)
    core = tuple(p.name for p in PARAMETERS if p.name not in apart)
    if order is not None:  # whether splits are chunks is decided with the tiles, whose memory depends on it
        rules = rules_of(order, rules)
        groups = [(*_LAUNCH_FACTOR, *core), _ORDER_FACTOR, _WALK_FACTOR]
    else:
        rules = [r if set(r.needs) <= set(_LAUNCH_FACTOR) else _given(r, reduction="none") for r in rules]
        groups = [core, _ORDER_FACTOR, _WALK_FACTOR, _LAUNCH_FACTOR]
    space = FeasibleSet(_joined(groups, rules, limits, gemm, PARAMETER))
    is_fit = order is not None or _sums_fit(space, limits, gemm)
    return space if is_fit else _linked(space, _OF_SUMS, _fit(limits, gemm))


def _given(rule: Rule, **values: Value) -> Rule:
    """A rule where these parameters have these values."""
    fixed = {name: np.array(value) for name, value in values.items()}
    needs = tuple(name for name in rule.needs if name not in values)
    if needs == rule.needs:
        return rule
    return rule._replace(needs=needs, holds=lambda c, d, g: rule.holds(Columns(**(vars(c) | fixed)), d, g))


def tensor_set(
    limits: DeviceLimits, gemm: Gemm, its: Any = TensorConfig, *, is_wide: bool = False
) -> FeasibleSet:
    """As `feasible_set`, of configs on tensor cores: empty on a GPU that cannot run them."""
    rules = [r for r in its.rules if not (is_wide and r.kind == "worth")]
    names = tuple(its.parameters)
    core = tuple(name for name in names if name not in (*_WALK_FACTOR, *_LAUNCH_FACTOR))
    groups = (core, _WALK_FACTOR, _LAUNCH_FACTOR)
    space = FeasibleSet(_joined(groups, rules, limits, gemm, its.parameters))
    if not len(space):
        return space
    tiles = [name for name in ("bm", "bn") if name in names]
    return _linked(space, tiles, lambda c: np.asarray(its.sum_bytes(c, gemm) <= WORKSPACE_LIMIT))


def _fit(limits: DeviceLimits, gemm: Gemm) -> Callable[[Columns], np.ndarray]:
    """The one rule on parameters of two factors. None of the kernels has chunks, whose depth is flush_k."""
    workspace = _given(RULE["workspace"], flush_k=0)
    return lambda columns: np.asarray(workspace.holds(columns, limits, gemm))


def _sums_fit(space: FeasibleSet, limits: DeviceLimits, gemm: Gemm) -> bool:
    """Whether that rule holds for all tiles whose sums the registers hold, as it does wherever splits are
    worth a trial: then it need not be asked about each row."""
    tiles = np.array(list(product(*(PARAMETER[name].values for name in _OF_SUMS))))
    tiles = tiles[tiles.prod(axis=1) <= limits.regs_per_sm]
    splits = _kinds(space.factors[-1], _OF_SPLITS, is_each=True)[1]
    columns = dict(zip(_OF_SUMS, tiles.T[:, :, None], strict=True)) | splits
    return bool(_fit(limits, gemm)(Columns(**columns)).all())
