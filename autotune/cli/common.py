"""What several commands share: reading shapes, opening databases and GPUs, saying what was recorded."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from ..device import Environment
from ..errors import UsageError
from ..gemm import Gemm
from ..other_problem import read_problem
from ..store import Store, StudySummary
from ..suite import read_suite
from . import console


def read_shapes(shapes: Sequence[str], suite: Path | Iterable[Gemm] | None) -> tuple[Gemm, ...]:
    """The problems of `--shape` and `--suite`, or of a suite that was read, each once; empty if neither was
    given.

    Raises UsageError, also for a problem without output.
    """
    named = [Gemm.parse(text) for text in shapes]
    for gemm in named:
        gemm.need_output()
    listed = _listed(suite) if isinstance(suite, Path) else suite or ()
    return tuple(dict.fromkeys([*named, *listed]))


def read_problems(shapes: Sequence[str]) -> tuple[Gemm, ...]:
    """The problems that `--shape` names of a database, each once: it may hold other problems than products.

    Raises UsageError, also for a product without output.
    """
    problems = tuple(dict.fromkeys(map(read_problem, shapes)))
    for problem in problems:
        problem.need_output()
    return problems


def read_calls(suite: Path | None) -> tuple[dict[Gemm, int], bool]:
    """How often a suite says that each shape is called for, and whether it does: else each counts once.

    Raises UsageError.
    """
    calls = _listed(suite) if suite else {}
    is_counted = bool(calls) and None not in calls.values()
    return {gemm: count or 1 for gemm, count in calls.items()}, is_counted


def _listed(suite: Path) -> dict[Gemm, int | None]:
    """The shapes of a suite. Raises UsageError, also for a problem without output, and names the file."""
    calls = read_suite(suite, console.note)
    try:
        for gemm in calls:
            gemm.need_output()
    except UsageError as error:
        raise UsageError(f"{suite}: {error}") from None
    return calls


def need_shapes(shapes: Sequence[str], suite: Path | None) -> tuple[Gemm, ...]:
    """As `read_shapes`. Raises UsageError if there is none."""
    gemms = read_shapes(shapes, suite)
    if not gemms:
        raise no_shape()
    return gemms


def no_shape() -> UsageError:
    return UsageError("no shape: pass --shape 4096, --shape 4096x128x4096 or --suite FILE")


@contextmanager
def open_existing(db: str) -> Iterator[Store]:
    """A database to read from. At the end a note names the rows that are damaged and were left out. Raises
    StoreError if its file is missing."""
    with Store.open_existing(db) as store, store.damages.told(console.note):
        yield store


def studies_of(store: Store, gemms: Sequence[Gemm], max_error: float | None = None) -> list[StudySummary]:
    """The studies with trials, of these problems or of all; the best of each is accurate to `max_error`.

    Raises UsageError if there is none, StoreError if that is because rows are damaged.
    """
    found = [s for s in store.studies(max_error) if s.num_trials and (not gemms or s.study.gemm in gemms)]
    if not found:
        store.damages.refuse()
        what = f"of {', '.join(map(str, gemms))} " if gemms else ""
        raise UsageError(f"the database holds no trials {what}yet; run `autotune search` first")
    return found


def source_text(environment: Environment) -> str:
    """Where times come from: `NVIDIA H200`, or `recorded on NVIDIA H200, 2026-11-21`."""
    if environment.is_recorded:
        return f"recorded on {environment.gpu_name}, {environment.recorded_on}"
    return environment.gpu_name


def share(part: float | None, whole: float | None) -> float | None:
    """part / whole where both are there."""
    return None if part is None or not whole else part / whole
