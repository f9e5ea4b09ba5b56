"""`autotune trials t1` and `trials t4`: write one study, or one problem of a recording, in the formats that
others read."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from ..facts.gemm import Gemm
from ..facts.other_problem import read_problem
from ..files.errors import UsageError
from ..files.output_file import check_writable, write_file
from ..files.words import counted
from ..recording.others_files import Made
from ..recording.replay import read_recording
from ..recording.t1 import to_t1
from ..recording.t4 import SCHEMA_VERSION, T4Trial, to_t4
from ..store import shown
from . import common, console
from .requests import T1Request, T4Request


def t1(request: T1Request, *, is_json: bool) -> None:
    """Write a cache. Raises as `t4`."""
    made, trials = _read(request)
    text = to_t1(made, [(trial.point, trial.measurement) for trial in trials])
    _write(request.out, text, "a cache (T1)", made, trials, is_json=is_json)


def t4(request: T4Request, *, is_json: bool) -> None:
    """Write results. Raises UsageError where it is not clear which trials are
    meant, or `out` cannot be written, EnvironmentProblem on a full disk."""
    made, trials = _read(request)
    text = json.dumps(to_t4(made, trials), allow_nan=False) + "\n"
    _write(request.out, text, f"T4 {SCHEMA_VERSION}", made, trials, is_json=is_json)


def _read(request: T4Request) -> tuple[Made, list[T4Trial]]:
    check_writable(request.out)
    gemm = None if request.shape is None else read_problem(request.shape)
    return (
        _of_study(request.db, gemm) if request.recording is None else _of_recording(request.recording, gemm)
    )


def _write(out: Path, text: str, told: str, made: Made, trials: Sequence[T4Trial], *, is_json: bool) -> None:
    write_file(out, text)
    valid = sum(trial.measurement.is_ok for trial in trials)
    if is_json:
        facts = {"problem": made.to_dict()["problem"], "num_results": len(trials), "num_correct": valid}
        console.show_json({"file": str(out), **facts})
    else:
        console.show(f"{out}: {counted(len(trials), 'result')}, {valid:,} of them correct, {told}")


def _of_study(db: str, gemm: Gemm | None) -> tuple[Made, list[T4Trial]]:
    """The study with the newest trial of this problem, or of the only one that there is."""
    with common.open_existing(db) as store:
        studies = common.studies_of(store, () if gemm is None else (gemm,))
        _need_one({summary.study.gemm for summary in studies}, shown(db))
        study = max(studies, key=lambda summary: summary.updated_at).study
        trials = [T4Trial(t.point, t.measurement, t.created_at.isoformat()) for t in store.trials(study)]
    return Made(study.gemm, study.source_hash, study.environment, study.policy), trials


def _of_recording(path: Path, gemm: Gemm | None) -> tuple[Made, list[T4Trial]]:
    recording = read_recording(path)
    if recording.note:
        console.note(recording.note)
    held = set(recording.problems)
    gemms = held if gemm is None else held & {gemm}
    if not gemms:
        raise UsageError(f"{path} holds no {gemm}; ask for one of: {_names(held)}")
    (found,) = _need_one(gemms, path)
    problem, environment = recording.problems[found], recording.environment
    points = [
        {n: v[code] for n, v, code in zip(recording.names, recording.values, codes, strict=True)}
        for codes in problem.codes
    ]
    trials = [
        T4Trial(point, measurement, environment.recorded_on)
        for point, measurement in zip(points, problem.measurements, strict=True)
    ]
    return Made(found, recording.source_hash, environment, recording.policy), trials


def _need_one(gemms: set[Gemm], source: str | Path) -> set[Gemm]:
    if len(gemms) > 1:
        raise UsageError(f"such a file holds one problem, {source} more; add --shape: {_names(gemms)}")
    return gemms


def _names(gemms: set[Gemm]) -> str:
    return ", ".join(map(str, sorted(gemms)))
