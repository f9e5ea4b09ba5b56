"""`autotune trials t1` and `trials t4`: write one study, or one problem of a recording, in the formats that
others read."""

from __future__ import annotations

import json
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


def run(out: Path, db: str, recording: Path | None, shape: str | None, form: str, *, is_json: bool) -> None:
    """Write the file, of the form `t1` or `t4`. Raises UsageError where it is not clear which trials are
    meant, or `out` cannot be written, EnvironmentProblem on a full disk."""
    check_writable(out)
    gemm = None if shape is None else read_problem(shape)
    made, trials = _of_study(db, gemm) if recording is None else _of_recording(recording, gemm)
    if form == "t1":
        text, told = to_t1(made, [(trial.point, trial.measurement) for trial in trials]), "a cache (T1)"
    else:
        text, told = json.dumps(to_t4(made, trials), allow_nan=False) + "\n", f"T4 {SCHEMA_VERSION}"
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
