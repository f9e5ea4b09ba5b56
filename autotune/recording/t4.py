"""Reads and writes T4, the results format that Kernel Tuner and others share.

T4: one JSON object of schema_version, metadata and results. Each result holds its configuration, `times`,
`invalidity` (why it counts for nothing, or "correct"), `correctness`, and `measurements` with units. One file
holds one problem, which other tools do not name.

The unit of `times` is metadata.timeunit, ms here as of Kernel Tuner; without it seconds, as
autotuning-methodology reads them, unless the measured time has a unit.
Sources: the results schema of the Auto-Tuning Association, version 1.0.0, as Kernel Tuner 1.5.0 carries it,
and what that and autotuning-methodology 1.1.0 write and read.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import date
from functools import partial
from pathlib import Path
from typing import Any

from ..facts import stats
from ..facts.measurement import Measurement, Outcome
from ..facts.other_problem import OtherProblem
from ..files.errors import UsageError
from ..files.strict import items, table
from ..files.words import shown
from ..target import Point
from .others_files import NO_DATE, Made, Results, Tried, failed, measured, names_of, point, seconds
from .recorded_space import Recording

SCHEMA_VERSION = "1.0.0"
# By outcome; a kernel that would not fit or that spills is refused before it runs.
INVALIDITY: dict[str, str] = {
    "ok": "correct",
    **dict.fromkeys(("illegal", "spilled", "does_not_fit"), "constraints"),
    **dict.fromkeys(("compile_failed", "compile_crashed"), "compile"),
    **dict.fromkeys(("compile_timeout", "timed_out"), "timeout"),
    **dict.fromkeys(("wrong_result", "inaccurate", "too_fast"), "correctness"),
    **dict.fromkeys(("faulted", "out_of_memory", "failed"), "runtime"),
}
_OUTCOMES = {  # of a tool that says no more
    "constraints": Outcome.ILLEGAL,
    "compile": Outcome.COMPILE_FAILED,
    "correctness": Outcome.WRONG_RESULT,
    "timeout": Outcome.TIMED_OUT,
}
_CORRECT = "correct"
_UNITS_S = {
    "seconds": 1.0, "s": 1.0, "milliseconds": 1e-3, "miliseconds": 1e-3, "ms": 1e-3, "microseconds": 1e-6,
    "us": 1e-6, "nanoseconds": 1e-9, "ns": 1e-9,
}  # fmt: skip


# ------------------------------------------------------------------------------------------ writing


def to_t4(made: Made, trials: Iterable[Tried]) -> Iterator[str]:
    """The trials of one problem, in pieces. What T4 has no field for is `metadata`. The first correct one
    comes first, else autotuning-methodology refuses the file; the others as they are."""
    head = {"schema_version": SCHEMA_VERSION, "metadata": {"timeunit": "milliseconds", **made.to_dict()}}
    yield json.dumps(head)[:-1] + ', "results": ['
    waiting, comma = list[str](), ""
    for trial in trials:
        if comma:
            yield comma + _result(trial)
            continue
        waiting.append(_result(trial))
        if trial.measurement.is_ok:
            yield ", ".join([waiting[-1], *waiting[:-1]])
            waiting, comma = [], ", "
    yield ", ".join(waiting) + "]}\n"


def _result(trial: Tried) -> str:
    """As text, which takes a quarter of the time that an encoder of JSON does. `compilation_time` is the
    schema's name, `compilation` that of both tools."""
    found, is_ok = trial.measurement, trial.measurement.is_ok
    compile_ms = repr(_ms(found.compile_s))
    runtimes = [round(sample / 1e6 * 1e3, 6) for sample in found.samples_us]  # `_ms`, for each of millions
    return (
        f'{{"timestamp": {json.dumps(trial.timestamp)}, "configuration": {{{", ".join(trial.items)}}}, '
        f'"objectives": ["time"], "times": {{"compilation_time": {compile_ms}, "compilation": {compile_ms}, '
        f'"validation": {_ms(found.verify_s)}, "benchmark": {_ms(found.measure_s)}, "framework": 0.0, '
        f'"search_algorithm": 0.0, "runtimes": {runtimes}}}, "invalidity": "{INVALIDITY[found.outcome]}", '
        f'"correctness": {float(is_ok)}, "measurements": [{_measurements(found, is_ok=is_ok)}]}}'
    )


_MEASURED = '{{"name": "{}", "value": {}, "unit": "{}"}}'.format
_UNITS = {"time": "ms", "registers": "", "spills": "bytes", "shared_memory": "bytes", "error_ratio": ""}
_FIGURES = [_MEASURED(name, "%r", unit) for name, unit in _UNITS.items()]
_ALL_FIGURES = ", ".join(_FIGURES)


def _measurements(found: Any, *, is_ok: bool) -> str:
    """What was measured; T4 knows no null and JSON no infinity, so what is not known is left out."""
    time_ms = None if found.time_us is None else _ms(found.time_us / 1e6)
    values = time_ms, found.registers, found.spill_bytes, found.smem_bytes, found.error_ratio
    if is_ok and not found.reason and None not in values and math.isfinite(sum(values)):
        return _ALL_FIGURES % values
    pairs = zip(_FIGURES, values, strict=True)
    told = [text % value for text, value in pairs if value is not None and math.isfinite(value)]
    if not is_ok:
        told.append(_MEASURED("outcome", f'"{found.outcome.value}"', ""))
    if found.reason:
        told.append(_MEASURED("reason", json.dumps(found.reason), ""))
    return ", ".join(told)


def _ms(seconds: float) -> float:
    return round(seconds * 1e3, 6)


# ------------------------------------------------------------------------------------------ reading


def is_t4(data: Mapping[str, Any]) -> bool:
    """Whether a JSON object looks like T4."""
    return isinstance(data.get("results"), list)


def from_t4(data: Mapping[str, Any], path: Path) -> Recording:
    """The recording in a file of T4, named after the file where it does not say of what kernel it is. Keys
    that are not known are left alone: the format is not ours. Raises UsageError where no result can be read.
    """
    try:
        found, results = items(data["results"], "results"), Results()
        metadata = data["metadata"] if isinstance(data.get("metadata"), dict) else {}
        unit_s, names = _unit_s(metadata, found), _names(found)
        for i, result in enumerate(found):
            results.add(f"results[{i}]", partial(_trial, names, result, unit_s, f"results[{i}]"))
        day, name = _day(found), path.name.partition(".")[0]
        external = Made.external(OtherProblem.of(name, ()), name, results.unnamed, day)
        return results.recording(path, Made.read(metadata, day) or external)
    except (ValueError, LookupError, TypeError, UsageError) as error:
        raise UsageError(f"{path} is no usable T4 file: {error}") from error


def _names(found: Sequence[Any]) -> tuple[str, ...]:
    """Of the first result that has a configuration; a result with other parameters cannot be read."""
    configs = (result.get("configuration") for result in found if isinstance(result, dict))
    first = next((config for config in configs if isinstance(config, dict) and config), None)
    if first is None:
        raise ValueError("no result has a configuration" if found else "it holds no result")
    return names_of(first)


def _unit_s(metadata: Mapping[str, Any], found: Sequence[Any]) -> float:
    """Seconds in the unit of `times`. Raises ValueError for one that is not known."""
    named = metadata.get("timeunit") or next(filter(None, map(_unit_of_time, found)), "seconds")
    if not isinstance(named, str) or named.lower() not in _UNITS_S:
        raise ValueError(f"metadata: timeunit {shown(named)} is none of {', '.join(_UNITS_S)}")
    return _UNITS_S[named.lower()]


def _unit_of_time(result: Any) -> Any:
    entry = _measured(result).get("time", {}) if isinstance(result, dict) else {}
    return entry.get("unit")


def _trial(names: tuple[str, ...], result: Any, unit_s: float, where: str) -> tuple[Point, Measurement]:
    found = table(result, where)
    config = point(names, table(found["configuration"], f"{where}: configuration"), where)
    times, facts = table(found.get("times") or {}, f"{where}: times"), _measured(found)
    took_s = {
        "compile_s": seconds(times.get("compilation", times.get("compilation_time")), unit_s),
        "verify_s": seconds(times.get("validation"), unit_s),
        "measure_s": seconds(times.get("benchmark"), unit_s),
    }
    invalidity = found.get("invalidity", _CORRECT)
    if invalidity == _CORRECT and found.get("correctness") == 0:
        invalidity = "correctness"
    if invalidity != _CORRECT:
        return config, _failed(invalidity, facts, took_s)
    listed = times.get("runtimes")
    samples = [s for s in listed if type(s) in (int, float)] if isinstance(listed, list) else []
    if "time" not in facts:
        return config, measured(samples, stats.median(samples) if samples else None, unit_s * 1e6, took_s)
    own_s = _UNITS_S.get(str(facts["time"].get("unit")).lower(), unit_s)
    in_its_unit = [s * unit_s / own_s for s in samples]
    return config, measured(in_its_unit, facts["time"].get("value"), own_s * 1e6, took_s)


def _failed(invalidity: Any, facts: Mapping[str, Any], took_s: dict[str, Any]) -> Measurement:
    values = {name: facts[name].get("value") for name in ("outcome", "reason", "__error__") if name in facts}
    known = {failure.value: failure for failure in Outcome if failure is not Outcome.OK}
    outcome = known.get(str(values.get("outcome")), _OUTCOMES.get(str(invalidity), Outcome.FAULTED))
    reason = values.get("reason") or values.get("__error__") or invalidity
    return failed(reason if isinstance(reason, str) else shown(reason), took_s, outcome)


def _measured(result: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The measurements of a result by name; of several the first."""
    listed = result.get("measurements")
    entries = [entry for entry in listed if isinstance(entry, dict)] if isinstance(listed, list) else []
    return {str(entry.get("name")): entry for entry in reversed(entries)}


def _day(found: Sequence[Any]) -> str:
    """The day of the first result that says when it was measured."""
    for result in found:
        stamp = result.get("timestamp") if isinstance(result, dict) else None
        try:
            return date.fromisoformat(str(stamp)[:10]).isoformat()
        except ValueError:
            continue
    return NO_DATE
