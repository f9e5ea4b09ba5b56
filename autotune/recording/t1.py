"""Reads and writes Kernel Tuner's T1 caches: spaces that others recorded, of whatever kernel.

T1: one JSON object of device_name, kernel_name, problem_size, tune_params_keys, tune_params and
cache, whose entries hold the parameters, `time` (ms), `times` (ms) and how long compiling, verifying and
timing took (ms). A config that failed has the name of its failure as `__error__`, before 1.5 as `time`.
A tuner that was stopped leaves the file open: without its last braces, after a comma.
Source: the caches of Kernel Tuner, up to 1.5.0, and of the Auto-Tuning Association's benchmark hub.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

from ..facts.measurement import Measurement, Outcome
from ..files.errors import UsageError
from ..files.strict import items, table, text
from ..files.words import shown
from ..kernel.config import Value
from ..target import Point
from .others_files import (
    NO_DATE,
    Made,
    Results,
    Tried,
    failed,
    measured,
    names_of,
    point,
    problem,
    seconds,
)
from .recorded_space import Recording

_FAILURES = {
    "ErrorConfig": Outcome.FAULTED,
    "CompilationFailedConfig": Outcome.COMPILE_FAILED,
    "RuntimeFailedConfig": Outcome.FAULTED,
    "InvalidConfig": Outcome.ILLEGAL,
}
_ERRORS = {  # by outcome; others failed when they ran
    **dict.fromkeys((Outcome.ILLEGAL, Outcome.SPILLED, Outcome.DOES_NOT_FIT), "InvalidConfig"),
    Outcome.COMPILE_FAILED: "CompilationFailedConfig",
    Outcome.COMPILE_TIMEOUT: "CompilationFailedConfig",
    Outcome.COMPILE_CRASHED: "CompilationFailedConfig",
}
_ERROR = "__error__"
_STEPS = {"compile_s": "compile_time", "verify_s": "verification_time", "measure_s": "benchmark_time"}
_MS, _MS_US = 1e-3, 1e3  # a millisecond in seconds and in us
_PIECE = 1 << 20  # characters
_LONGEST_KEY = 200  # that a message shows, in characters


def is_t1(data: Mapping[str, Any]) -> bool:
    """Whether a JSON object looks like a T1 cache."""
    return "cache" in data and ("tune_params_keys" in data or "tune_params" in data)


def from_t1(data: Mapping[str, Any], path: Path) -> Recording:
    """The recording in a T1 cache. Keys that are not known are left alone: the format is not ours. Raises
    UsageError where no entry can be read."""
    try:
        listed = data.get("tune_params_keys") or list(table(data["tune_params"], "tune_params"))
        names, results = names_of(items(listed, "tune_params_keys")), Results()
        for key, entry in table(data["cache"], "cache").items():
            where = f"cache[{key[:_LONGEST_KEY]!r}]"
            results.add(where, partial(_trial, names, entry, where))
        kernel = text(data.get("kernel_name") or "kernel", "kernel_name")
        device = text(data.get("device_name") or results.unnamed, "device_name")
        external = Made.external(problem(kernel, data.get("problem_size")), kernel, device)
        return results.recording(path, Made.read(data.get("metadata"), NO_DATE) or external)
    except (ValueError, LookupError, TypeError, UsageError) as error:
        raise UsageError(f"{path} is no usable Kernel Tuner T1 cache: {error}") from error


def _trial(names: tuple[str, ...], entry: Any, where: str) -> tuple[Point, Measurement]:
    found = table(entry, where)
    config = point(names, found, where)
    took_s = {name: seconds(found.get(key), _MS) for name, key in _STEPS.items()}
    error = _error_in({key: value for key, value in found.items() if key not in names})
    if error is not None:
        return config, failed(error, took_s, _FAILURES.get(error, Outcome.FAULTED))
    return config, measured(found.get("times"), found.get("time"), _MS_US, took_s)


def _error_in(found: Mapping[str, Any]) -> str | None:
    """The name of a config's failure: it may stand in the place of any objective."""
    if _ERROR in found:
        return found[_ERROR] if isinstance(found[_ERROR], str) else shown(found[_ERROR])
    named = (value for value in found.values() if isinstance(value, str) and value in _FAILURES)
    time = found.get("time")
    return next(named, time if isinstance(time, str) else None)


# ------------------------------------------------------------------------------------------ writing


def to_t1(made: Made, trials: Iterable[Tried]) -> Iterator[str]:
    """A cache that Kernel Tuner searches in its simulation mode, in pieces: the trials of one problem. What
    it has no field for is `metadata`. The values of parameters, which come first, are known last: entries
    wait in a file meanwhile."""
    found = dict[str, None]()
    with TemporaryFile("w+", encoding="utf-8") as entries:
        for trial in trials:
            entries.write(f"{',' if found else ''}\n{_line(trial)}")
            found.update(dict.fromkeys(trial.items))
        values: defaultdict[str, list[Value]] = defaultdict(list)
        for item in found:
            ((name, value),) = json.loads(f"{{{item}}}").items()
            values[name].append(value)
        sizes = made.problem.m, made.problem.n, made.problem.k
        head = {
            "device_name": made.environment.gpu_name,
            "kernel_name": made.to_dict()["kernel"],
            "problem_size": [size for size in sizes if size],
            "tune_params_keys": list(values),
            "tune_params": values,
            "objective": "time",
            "metadata": made.to_dict(),
        }
        yield json.dumps(head)[:-1] + ',\n"cache": {'
        entries.seek(0)
        yield from iter(partial(entries.read, _PIECE), "")
    yield "\n}\n}\n"


def _line(trial: Tried) -> str:
    key = json.dumps(",".join(trial.values))
    return f"{key}: {{{', '.join(trial.items)}, {_results(trial.measurement)}}}"


def _results(found: Any) -> str:
    """Times in ms. Text, as an encoder of JSON takes three times as long."""
    entry = _TOOK((found.compile_s / _MS, found.verify_s / _MS, found.measure_s / _MS))
    if found.time_us is None:
        return f'{entry}, "{_ERROR}": "{_ERRORS.get(found.outcome, "RuntimeFailedConfig")}"'
    times = [sample / _MS_US for sample in found.samples_us]
    return f'{entry}, "time": {found.time_us / _MS_US}, "times": {times}'


_TOOK = (
    "".join([*(f'"{key}": %r, ' for key in _STEPS.values()), '"framework_time": 0.0, "strategy_time": 0.0'])
).__mod__
