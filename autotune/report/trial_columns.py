"""Trials as columns of plain data, as pages take them: 20,000 trials in a few megabytes of JSON.

A column is one of three things, whichever is the shortest:
    {"all": value}                      every trial has this value
    {"values": [...], "rows": [...]}    trial i has values[rows[i]]
    [...]                               trial i has the i-th"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from ..facts.device import DeviceLimits
from ..facts.gemm import Gemm
from ..kernel.resources import workspace_of
from ..store import TrialRecord

MAX_ENCODED = 0.5  # distinct values per trial, up to which their numbers are shorter than they are
_FIGURES = ("is_cut_short", "registers", "spill_bytes", "smem_bytes")  # as they are
TIME_DIGITS = 5  # significant ones: samples scatter by more than the sixth

Column = dict[str, Any] | list[Any]


def column(values: Sequence[Any]) -> Column:
    """These values, of JSON's types, in the shortest way."""
    index: dict[Any, int] = {}
    rows = [index.setdefault(value, len(index)) for value in values]
    if len(index) == 1:
        return {"all": values[0]}
    if len(index) <= MAX_ENCODED * len(values):
        return {"values": list(index), "rows": rows}
    return list(values)


def significant(value: float | None, digits: int = TIME_DIGITS) -> float | None:
    """Rounded to so many significant digits; None for what JSON has no number for."""
    return float(f"{value:.{digits}g}") if value is not None and math.isfinite(value) else None


def trial_columns(
    trials: Sequence[TrialRecord],
    elapsed_s: Sequence[float],
    first: int,
    gemm: Gemm,
    limits: DeviceLimits | None,
) -> dict[str, Any]:
    """Trials of one study by column; `first` is the number of the first of them in the study, `limits` those
    of its GPU model, if it is known. `point` has a column per parameter; parameters that no trial has are
    left out."""
    measured = [trial.measurement for trial in trials]
    names = list(dict.fromkeys(name for trial in trials for name in trial.point))
    columns = {
        "id": [trial.id for trial in trials],
        "s": [round(seconds, 2) for seconds in elapsed_s],
        "us": [significant(m.time_us) for m in measured],
        "origin": column([trial.origin for trial in trials]),
        "outcome": column([m.outcome.value for m in measured]),
        "reason": column([m.reason for m in measured]),
        "error": column([significant(m.error_over_cublas, 3) for m in measured]),
        **{name: column([getattr(m, name) for m in measured]) for name in _FIGURES},
        "workspace_bytes": column([workspace_of(trial.point, gemm, limits) for trial in trials]),
        "clock_mhz": column([m.state.sm_clock_mhz for m in measured]),
        "power_w": column([significant(m.state.power_w, 4) for m in measured]),
        "temperature_c": column([m.state.temperature_c for m in measured]),
        "marks": column([" ".join(m.marks) for m in measured]),
    }
    point = {name: column([trial.point.get(name) for trial in trials]) for name in names}
    return {"first": first, "count": len(trials), "columns": columns, "point": point}
