"""One record of the values that decide how a search proceeds: stored with each study, and given by `--policy`
and `--effort`. When a gain is unlikely is a rule of its own (`Patience` in stats.py).

The values are those that did best on recorded spaces and in searches on an H200 (docs/decisions/0007, 0015,
0023 to 0026, 0041, 0068). Those that follow from others, or are fixed, are no fields. docs/search.md says in
which step each counts.
"""

from __future__ import annotations

import sys
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from .facts.stats import Patience
from .files.errors import UsageError
from .files.strict import check_keys
from .files.user_file import read_toml
from .files.words import one_of, option, plain, shown

_HOW = "write one line for each value that is to differ, as num_startup = 30"
_MOST_ERROR = 0.2  # of a comparison: a final's is five times as much
_MAY_BE_0 = frozenset({"num_seeds", "num_loans", "close", "most_trial_s"})


@dataclass(frozen=True)
class SearchPolicy:
    """`num_` and `most_` are counts, shares lie between 0 and 1, `_s` are seconds. Raises UsageError for an
    invalid value."""

    # What is tried before the model knows enough, and beside it
    num_seeds: int = 16  # configs that are expected to do well on such a shape, tried first; 0: none ever
    num_startup: int = 15  # points before the model is asked
    num_loans: int = 8  # configs that each study of the same shape lends
    lend_every: int = 8  # proposals of a shape between two lent points, at first
    # What the model evaluates, and how many results it is given
    num_parents: int = 6  # best points whose relatives are tried
    num_drawn: int = 1500  # points drawn over the whole set, or among kernels that are compiled
    num_fitted: int = 240  # results that the model is conditioned on at most: more make a proposal slower
    most_planned: int = 12  # points planned together; the last are planned without the results of the first
    # Who is the fastest
    close: float = 0.05  # a candidate farther from the best needs no comparison: trials may be disturbed
    duel_error: float = 0.01  # chance that a comparison names one the faster that is not
    most_rounds: int = 60  # two that these do not tell apart are tied
    num_finalists: int = 8
    # Who has the GPU
    batch_s: float = 0.04  # of a comparison at a time: a ready candidate waits no longer than this
    most_trial_s: float = 0.15  # a compiled kernel that takes longer on a shape would keep candidates waiting

    lend_less: ClassVar[int] = 50  # proposals after which lent points are half as frequent, then a third, ...
    growth: ClassVar[float] = 1.1  # times as many results as at the last fit: then lengths are fitted again
    # Shares of the seconds
    polish_share: ClassVar[float] = 0.15  # of those to search, at their end, for steps from the best
    final_share: ClassVar[float] = 0.2  # of those granted, at most, kept for the finals
    renew_s: ClassVar[float] = 4.0  # that a fresh worker for these takes (H100, H200)
    cublas_share: ClassVar[float] = 0.05  # at most, to time cuBLAS on drawn shapes; with a bias; on batches
    search_share: ClassVar[float] = 0.6  # with drawn shapes, to search them and the named ones;
    fill_share: ClassVar[float] = 0.35  # at most, to time across all shapes what was found,
    probe_share: ClassVar[float] = 0.1  # and kernels that ship

    @property
    def num_lenders(self) -> int:
        """Studies of the same shape that lend their best, and as many of similar shapes, a third as many."""
        return -(-self.num_loans // 3)

    @property
    def num_founders(self) -> int:
        """Regions (of our kernel: tiles) whose best point is a parent, too."""
        return self.num_parents + 2

    @property
    def num_carried(self) -> int:
        """Times that each parent is carried to another region."""
        return 2 * self.num_founders

    @property
    def num_climbed(self) -> int:
        """Most promising points whose neighbours are evaluated next."""
        return self.num_parents // 2

    @property
    def num_mixed(self) -> int:
        """Points mixed from parents and others."""
        return 4 * self.num_drawn // 15

    @property
    def final_error(self) -> float:
        """Chance that a final drops one as fast as the fastest, over all looks."""
        return 5 * self.duel_error

    @property
    def equivalent(self) -> float:
        """A smaller difference does not matter."""
        return self.close / 25

    @property
    def ahead_s(self) -> float:
        """Of work that needs no compiler: so much waits, that no ask leaves the GPU idle."""
        return 15 * self.batch_s

    @property
    def num_leaders(self) -> int:
        """Kernels of a shape that are timed on all others of its layout."""
        return 3 * self.num_finalists // 2

    @property
    def num_foreign(self) -> int:
        """Of these, those that are timed in other layouts, too."""
        return self.num_leaders // 4

    def __post_init__(self) -> None:
        for field in fields(self):
            object.__setattr__(self, field.name, plain(getattr(self, field.name)))
            if problem := _problem(field.name, getattr(self, field.name), field.default):
                raise UsageError(f"search policy: {field.name} {problem}; by default it is {field.default}")

    @classmethod
    def read(cls, path: Path, base: SearchPolicy | None = None) -> SearchPolicy:
        """From a TOML file with the values that differ from those of another. Raises UsageError, naming the
        file."""
        return read_toml(path, "search policy", (base or cls()).but, _HOW)

    def but(self, values: dict[str, Any]) -> SearchPolicy:
        """The same, except for these values. Raises ValueError for unknown names, UsageError for values."""
        check_keys(values, [field.name for field in fields(self)], "at the top")
        return replace(self, **values)

    def to_dict(self) -> dict[str, bool | int | float]:
        """Each value by its name."""
        return asdict(self)


def _problem(name: str, value: Any, default: Any) -> str:
    """What is wrong with a value; empty where nothing is."""
    if type(value) is not type(default) and not (type(value) is int and type(default) is float):
        return f"is {value!r}, and no {'whole number' if type(default) is int else type(default).__name__}"
    if not value <= sys.float_info.max:  # NaN is not, nor are whole numbers of 400 digits
        return f"is {shown(value)}, and not finite"
    if value < 0 or (value == 0 and name not in _MAY_BE_0):
        return f"is {value}, and not {'at least' if name in _MAY_BE_0 else 'more than'} 0"
    is_too_large = name == "duel_error" and value > _MOST_ERROR
    return f"is {value}, and more than {_MOST_ERROR}" if is_too_large else ""


class Effort(NamedTuple):
    """How much a search does: how it proceeds, and where no seconds and trials are given, when it ends."""

    policy: SearchPolicy
    patience: Patience


EFFORTS = {
    "quick": Effort(
        SearchPolicy(
            num_seeds=8, num_loans=4, num_drawn=600, num_fitted=120, most_rounds=30, num_finalists=4
        ),
        Patience(horizon=10, min_trials=50),
    ),
    "standard": Effort(SearchPolicy(), Patience()),
    "thorough": Effort(
        SearchPolicy(num_seeds=32, num_drawn=3000, num_fitted=400, most_rounds=120, num_finalists=16),
        Patience(horizon=50, min_trials=200),
    ),
}


def read_effort(name: str) -> Effort:
    """Raises UsageError."""
    return EFFORTS[one_of(option("effort"), name, [*EFFORTS])]
