"""One record of the values that decide how a search proceeds: stored with each study, and given by
`--policy`. When a gain is unlikely is a rule of its own (`Patience` in stats.py).

The values are those that did best on recorded spaces and in searches on an H200 (docs/decisions/0007, 0015,
0023 to 0026, 0041, 0068). docs/search.md says in which step each counts.
"""

from __future__ import annotations

import sys
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from .files.arguments import plain, shown
from .files.entries import check_keys
from .files.errors import UsageError
from .files.user_file import read_toml

_HOW = "write one line for each value that is to differ, as num_startup = 30"
_SHARES = frozenset(
    {"bandit_hope", "duel_error", "final_error", "polish_share", "final_share", "cublas_share",
     "search_share", "fill_share", "probe_share"}
)  # fmt: skip
_POSITIVE = frozenset(
    {"num_startup", "lend_every", "lend_less", "num_parents", "num_drawn", "num_fitted", "most_planned",
     "bandit_after", "duel_error", "final_error", "most_rounds", "num_finalists", "batch_s", "ahead_s",
     "search_share", "num_leaders"}
)  # fmt: skip


@dataclass(frozen=True)
class SearchPolicy:
    """`num_` and `most_` are counts, shares lie between 0 and 1, `_s` are seconds. Raises UsageError for an
    invalid value."""

    # What is tried before the model knows enough, and beside it
    num_seeds: int = 16  # configs that are expected to do well on such a shape, tried first; 0: none ever
    num_startup: int = 15  # points before the model is asked
    num_lenders: int = 3  # studies of the same shape that lend their best, and as many of similar shapes
    num_loans: int = 8  # configs that each of the former lends; each of the latter lends a third, rounded up
    lend_every: int = 4  # proposals of a shape between two lent points, at first;
    lend_less: int = 50  # after this many there are twice as many between them, then three times, ...
    # What the model evaluates, and how many results it is given
    num_parents: int = 6  # best points whose relatives are tried
    num_founders: int = 8  # regions (of our kernel: tiles) whose best point is a parent, too
    num_carried: int = 16  # times that each parent is carried to another region
    num_mixed: int = 400  # points mixed from parents and others
    num_drawn: int = 1500  # points drawn over the whole set, or among kernels that are compiled
    num_climbed: int = 3  # most promising points whose neighbours are evaluated next
    num_fitted: int = 240  # results that the model is conditioned on at most: more make a proposal slower
    growth: float = 1.1  # times as many results as at the last fit: then lengths are fitted again
    most_planned: int = 12  # points planned together; the last are planned without the results of the first
    bandit_after: int = 100  # results; before, what leads anywhere is looked for, and no region is chosen
    bandit_hope: float = 0.4  # share of its best time that a region may gain, over the root of its trials
    # Who is the fastest
    close: float = 0.05  # a candidate farther from the best needs no duel: a trial may be off by disturbance
    duel_error: float = 0.01  # chance that a duel names one the faster that is not
    final_error: float = 0.05  # chance that a final drops one as fast as the fastest, over all looks
    most_rounds: int = 60  # two that these do not tell apart are tied
    num_finalists: int = 8
    equivalent: float = 0.002  # a smaller difference does not matter
    # Who has the seconds
    batch_s: float = 0.04  # of a duel at a time: a ready candidate waits no longer than this
    ahead_s: float = 0.6  # of work that needs no compiler: so much waits, that no ask leaves the GPU idle
    most_trial_s: float = 0.15  # a compiled kernel that takes longer on a shape would keep candidates waiting
    polish_share: float = 0.15  # of the seconds to search, at their end, for steps from the best
    final_share: float = 0.1  # of the seconds granted, kept for the finals
    final_s: float = 4.0  # per shape, at most
    cublas_share: float = 0.05  # at most, to time cuBLAS on drawn shapes: a table uses it where it wins
    # Shapes that nobody named
    search_share: float = 0.6  # of the seconds, to search them
    fill_share: float = 0.35  # at most, to time across all shapes what was found, where some were named
    probe_share: float = 0.1  # at most, to time kernels that ship
    num_leaders: int = 12  # of a shape, that are timed on all others of its layout
    num_foreign: int = 3  # of these, that are timed in other layouts, too

    def __post_init__(self) -> None:
        for field in fields(self):
            object.__setattr__(self, field.name, plain(getattr(self, field.name)))
            if problem := _problem(field.name, getattr(self, field.name), field.default):
                raise UsageError(f"search policy: {field.name} {problem}; by default it is {field.default}")

    @classmethod
    def read(cls, path: Path) -> SearchPolicy:
        """From a TOML file with the values that differ from the defaults. Raises UsageError, naming the
        file."""
        return read_toml(path, "search policy", cls.of, _HOW)

    @classmethod
    def of(cls, values: dict[str, Any]) -> SearchPolicy:
        """The defaults, except for these values. Raises ValueError for unknown names, UsageError for
        values."""
        check_keys(values, [field.name for field in fields(cls)], "at the top")
        return cls(**values)

    def to_dict(self) -> dict[str, bool | int | float]:
        """Each value by its name."""
        return asdict(self)


def _problem(name: str, value: Any, default: Any) -> str:
    """What is wrong with a value; empty where nothing is."""
    if type(value) is not type(default) and not (type(value) is int and type(default) is float):
        return f"is {value!r}, and no {'whole number' if type(default) is int else type(default).__name__}"
    least = 1 if name == "growth" else 0
    if not value <= sys.float_info.max:  # NaN is not, nor are whole numbers of 400 digits
        return f"is {shown(value)}, and not finite"
    if value < least or (value == least and name in _POSITIVE | {"growth"}):
        return f"is {value}, and not {'more than' if name in _POSITIVE | {'growth'} else 'at least'} {least}"
    return f"is {value}, and no share: at most 1" if name in _SHARES and value > 1 else ""
