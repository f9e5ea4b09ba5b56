"""`autotune trials t1` and `trials t4`: write one study, or one problem of a recording, in the formats that
others read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from ..facts.gemm import Gemm
from ..facts.other_problem import read_problem
from ..files.errors import UsageError
from ..files.output_file import check_writable, write_file
from ..files.words import counted
from ..recording.others_files import Made, Tried
from ..recording.replay import read_recording
from ..recording.t1 import to_t1
from ..recording.t4 import SCHEMA_VERSION, to_t4
from ..store import shown
from . import common, console
from .requests import T1Request, T4Request


def t1(request: T1Request, *, is_json: bool) -> None:
    """Write a cache. Raises as `t4`."""
    _write(request, to_t1, "a cache (T1)", is_json=is_json)


def t4(request: T4Request, *, is_json: bool) -> None:
    """Write results. Raises UsageError where it is not clear which trials are
    meant, or `out` cannot be written, EnvironmentProblem on a full disk."""
    _write(request, to_t4, f"T4 {SCHEMA_VERSION}", is_json=is_json)


def _write(
    request: T4Request, form: Callable[[Made, Iterable[Tried]], Iterator[str]], text: str, *, is_json: bool
) -> None:
    """Trials are read as they are written."""
    out, counts = request.out, Counter[bool]()
    check_writable(out)
    gemm = None if request.shape is None else read_problem(request.shape)
    recording, study = request.recording, request.study
    if recording is not None and study is not None:
        raise UsageError(f"{recording} has no studies; leave out --study, or --recording for a database")
    opened = _of_study(request.db, gemm, study) if recording is None else _of_recording(recording, gemm)

    def count(trials: Iterable[Tried]) -> Iterator[Tried]:
        for trial in trials:
            counts[trial.measurement.is_ok] += 1
            yield trial

    with opened as (made, trials):
        write_file(out, form(made, count(trials)))
    numbers = {"num_results": counts.total(), "num_correct": counts[True]}
    console.answer(
        {"file": str(out), "problem": made.to_dict()["problem"], **numbers},
        lambda: f"{out}: {counted(counts.total(), 'result')}, {counts[True]:,} of them correct, {text}",
        is_json=is_json,
    )


@contextmanager
def _of_study(db: str, gemm: Gemm | None, number: int | None) -> Iterator[tuple[Made, Iterator[Tried]]]:
    """The study of this number, or the one with the newest trial, of this problem, or of the only one."""
    with common.open_existing(db) as store:
        studies = common.studies_of(store, () if gemm is None else (gemm,))
        if number is not None:
            studies = [one for one in studies if one.study.id == number]
            if not studies:
                of = "" if gemm is None else f" of {gemm}"
                raise UsageError(f"{shown(db)} holds no study {number}{of} (`trials best --json` lists them)")
        _need_one({summary.study.gemm for summary in studies}, shown(db))
        study = max(studies, key=lambda summary: summary.updated_at).study
        if len(studies) > 1:
            source = common.source_text(study.environment)
            newest = f"the newest is written ({source}), number {study.id}; --study names another"
            console.note(f"{shown(db)} holds {len(studies):,} studies of {study.gemm}: {newest}")
        made = Made(study.gemm, study.source_hash, study.environment, study.policy)
        yield made, (Tried(one.items, one.values, one, one.created_at) for one in store.facts(study))


@contextmanager
def _of_recording(path: Path, gemm: Gemm | None) -> Iterator[tuple[Made, Iterator[Tried]]]:
    recording = read_recording(path)
    if recording.note:
        console.note(recording.note)
    held = set(recording.problems)
    gemms = held if gemm is None else held & {gemm}
    if not gemms:
        raise UsageError(f"{path} holds no {gemm}; ask for one of: {_names(held)}")
    (found,) = _need_one(gemms, path)
    problem, environment = recording.problems[found], recording.environment
    points = (
        {n: v[code] for n, v, code in zip(recording.names, recording.values, codes, strict=True)}
        for codes in problem.codes
    )
    measured = zip(points, problem.measurements, strict=True)
    made = Made(found, recording.source_hash, environment, recording.policy)
    yield made, (Tried.of(point, one, environment.recorded_on) for point, one in measured)


def _need_one(gemms: set[Gemm], source: str | Path) -> set[Gemm]:
    if len(gemms) > 1:
        raise UsageError(f"such a file holds one problem, {source} more; add --shape: {_names(gemms)}")
    return gemms


def _names(gemms: set[Gemm]) -> str:
    return ", ".join(map(str, sorted(gemms)))
