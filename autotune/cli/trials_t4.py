"""`autotune trials t4`: writes one study, or one problem of a recording, in the format that others read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ..errors import UsageError
from ..gemm import Gemm
from ..output_file import check_writable, write_file
from ..recording.replay import read_recording
from ..recording.t4 import T4Trial, to_t4
from ..store import shown
from . import common, console


def run(out: Path, db: str, recording: Path | None, shape: str | None, *, is_json: bool) -> None:
    """Write the file. Raises UsageError where it is not clear which trials are meant, or `out` cannot be
    written, EnvironmentProblem on a full disk."""
    check_writable(out)
    gemm = None if shape is None else Gemm.parse(shape)
    data = _of_study(db, gemm) if recording is None else _of_recording(recording, gemm)
    write_file(out, json.dumps(data, allow_nan=False) + "\n")
    valid = sum(result["invalidity"] == "correct" for result in data["results"])
    problem = data["metadata"]["problem"]
    told = {"file": str(out), "problem": problem, "num_results": len(data["results"]), "num_correct": valid}
    if is_json:
        console.show_json(told)
    else:
        console.show(
            f"{out}: {told['num_results']:,} results, {valid:,} of them correct, T4 {data['schema_version']}"
        )


def _of_study(db: str, gemm: Gemm | None) -> dict[str, Any]:
    """The study with the newest trial of this problem, or of the only one that there is."""
    with common.open_existing(db) as store:
        studies = common.studies_of(store, () if gemm is None else (gemm,))
        _need_one({summary.study.gemm for summary in studies}, shown(db))
        study = max(studies, key=lambda summary: summary.updated_at).study
        trials = [T4Trial(t.point, t.measurement, t.created_at.isoformat()) for t in store.trials(study)]
    return to_t4(study.gemm, study.environment, trials)


def _of_recording(path: Path, gemm: Gemm | None) -> dict[str, Any]:
    recording = read_recording(path)
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
    return to_t4(found, environment, trials)


def _need_one(gemms: set[Gemm], source: str | Path) -> set[Gemm]:
    if len(gemms) > 1:
        raise UsageError(f"a T4 file holds one problem, {source} more; add --shape: {_names(gemms)}")
    return gemms


def _names(gemms: set[Gemm]) -> str:
    return ", ".join(map(str, sorted(gemms)))
