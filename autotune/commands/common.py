"""What several commands share: reading shapes, opening databases and GPUs, saying what was recorded."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ..device import DeviceLimits, Environment, known_limits
from ..errors import StoreError, UsageError
from ..gemm import Gemm, read_suite
from ..measurement import CachePolicy
from ..store import Store, StudySummary, exists, shown


def read_shapes(shapes: Sequence[str], suite: Path | None) -> tuple[Gemm, ...]:
    """The problems of `--shape` and `--suite`, each once; empty if neither was given."""
    named = [Gemm.parse(text) for text in shapes]
    return tuple(dict.fromkeys([*named, *(read_suite(suite) if suite else ())]))


def need_shapes(shapes: Sequence[str], suite: Path | None) -> tuple[Gemm, ...]:
    """As `read_shapes`. Raises UsageError if there is none."""
    gemms = read_shapes(shapes, suite)
    if not gemms:
        raise UsageError("no shape: pass --shape 4096, --shape 4096x128x4096 or --suite FILE")
    return gemms


def read_policy(text: str) -> CachePolicy:
    try:
        return CachePolicy(text)
    except ValueError:
        raise UsageError(f"--policy {text!r} is none; known are {', '.join(CachePolicy)}") from None


def open_existing(db: str) -> Store:
    """A database to read from. Raises StoreError if its file is missing, rather than make an empty one."""
    if not exists(db):
        raise StoreError(f"no database {shown(db)}; run `autotune search` first, or name it with --db")
    return Store.open(db)


def studies_of(store: Store, gemms: Sequence[Gemm]) -> list[StudySummary]:
    """The studies with trials, of these problems or of all. Raises UsageError if there is none."""
    found = [s for s in store.studies() if s.num_trials and (not gemms or s.study.gemm in gemms)]
    if not found:
        what = f"of {', '.join(map(str, gemms))} " if gemms else ""
        raise UsageError(f"the database holds no trials {what}yet; run `autotune search` first")
    return found


def limits_by_name(gpu_name: str) -> DeviceLimits | None:
    """Limits of a kind of GPU that this package knows, else None."""
    try:
        return known_limits(gpu_name)
    except UsageError:
        return None


def source_text(environment: Environment) -> str:
    """Where times come from: `NVIDIA H200`, or `recorded on NVIDIA H200, 2026-11-21`."""
    if environment.is_recorded:
        return f"recorded on {environment.gpu_name}, {environment.recorded_on}"
    return environment.gpu_name


def share(part: float | None, whole: float | None) -> float | None:
    """part / whole where both are there."""
    return None if part is None or not whole else part / whole
