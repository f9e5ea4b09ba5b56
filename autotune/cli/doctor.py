"""`autotune doctor`: what is here, what is missing, and what to do about it."""

from __future__ import annotations

import os
import platform
import shutil
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from .. import __version__, gpu
from .. import target_finder as targets
from ..facts.cublas_calls import TF32_OVERRIDE, forced_tf32
from ..facts.device import describe_alias
from ..files.errors import AutotuneError, EnvironmentProblem
from ..files.output_file import NotOwn, check_own, default_cache_dir
from ..files.wheel_libraries import CUBLAS, pip_install
from ..files.words import counted
from ..kernel import compiler, template
from ..store import exists, shown
from . import common, console
from .requests import DoctorRequest

MIN_PYTHON = (3, 11)
LOW_DISK_BYTES = 2 << 30

OK, MISSING, BROKEN = "ok", "missing", "broken"


@dataclass(frozen=True)
class Finding:
    """One thing looked at. `missing`: a part of autotune cannot be used; `broken`: autotune cannot."""

    state: str
    detail: str
    next_step: str = ""
    name: str = ""


def run(request: DoctorRequest, *, is_json: bool) -> None:
    """Print every finding. Raises EnvironmentProblem if something is broken, after all were printed."""
    findings = [_safely(name, look) for name, look in _looks(request.db).items()]
    facts = {"version": __version__, "findings": [asdict(f) for f in findings]}
    console.answer(facts, lambda: _text(findings), is_json=is_json)
    broken = [finding.name for finding in findings if finding.state == BROKEN]
    if broken:
        raise EnvironmentProblem(f"autotune cannot work here: see {', '.join(broken)} above")


def _looks(db: str) -> dict[str, Callable[[], Finding]]:
    return {
        "python": _python,
        "gpu": _gpus,
        "compiler": lambda: Finding(OK, compiler.compiler_version()),
        "C++ compiler": _cpp_compiler,
        "cublas": _cublas,
        "fp32": _fp32,
        "kernel": lambda: Finding(OK, f"{template.kernel_dir()}, source {template.source_hash()[:12]}"),
        "cache": _cache,
        "recorded spaces": _recordings,
        "database": lambda: _database(db),
    }


def _safely(name: str, look: Callable[[], Finding]) -> Finding:
    """An error while looking is a finding too."""
    try:
        return replace(look(), name=name)
    except AutotuneError as error:
        what, _, advice = " ".join(str(error).split()).partition("; ")
        return Finding(BROKEN, what, advice, name)


def _text(findings: list[Finding]) -> str:
    rows = [(f.state, f.name, f.detail) for f in findings]
    steps = [f"  {f.name}: {f.next_step}" for f in findings if f.next_step]
    head = f"autotune {__version__} in {Path(__file__).resolve().parents[1]}"
    todo = ["", "What to do:", *steps] if steps else ["", "Nothing is missing."]
    return "\n".join([head, "", console.table(("state", "what", "found"), rows, ends_in_text=True), *todo])


def _python() -> Finding:
    found = f"{platform.python_version()} on {platform.system()} {platform.machine()}, {os.cpu_count()} cores"
    if sys.version_info < MIN_PYTHON:
        return Finding(BROKEN, found, "use Python 3.11 or later")
    return Finding(OK, found)


def _gpus() -> Finding:
    problem = targets.why_no_gpu()
    if problem is not None:
        advice = "to measure, use an NVIDIA GPU (Turing or later) with driver 580 or later;"
        return Finding(MISSING, problem, f"{advice} without one, `--gpu auto` searches a recorded space")
    from ..gpu.nvml import Monitor

    gpus = gpu.list_gpus()
    driver = Monitor(gpus[0].uuid).driver_version() or "unknown"
    names = "; ".join(f"{g.index}: {g.name} {g.uuid}, {g.total_bytes / 2**30:.0f} GiB" for g in gpus)
    accepted = "".join(f"; {text}" for g in gpus if (text := describe_alias(g.name)))
    return Finding(OK, f"{names}; driver {driver}{accepted}")


def _cpp_compiler() -> Finding:
    from ..tiles.executed import compile_cpp

    try:
        return Finding(OK, compile_cpp("-fsyntax-only", os.devnull))
    except EnvironmentProblem as problem:
        what, _, advice = str(problem).rpartition("; ")
        return Finding(MISSING, what, f"{advice} (needed only by `autotune explain`)")


def _cublas() -> Finding:
    from ..gpu import cublas

    library = cublas.load_library()
    if library is None:
        advice = f"{pip_install(CUBLAS)} (the yardstick: needed only to measure)"
        return Finding(MISSING, "libcublas was not found", advice)
    return Finding(OK, cublas.library_version(library))


def _fp32() -> Finding:
    if why_tf32 := forced_tf32():
        return Finding(MISSING, why_tf32, f"unset {TF32_OVERRIDE} for products in FP32")
    return Finding(OK, f"{TF32_OVERRIDE} does not turn products into TF32")


def _cache() -> Finding:
    try:
        folder = default_cache_dir()
    except RuntimeError as error:
        return Finding(MISSING, f"none ({error})", "set AUTOTUNE_CACHE to a folder of yours")
    present = next(parent for parent in (folder, *folder.parents) if parent.exists())
    free = shutil.disk_usage(present).free
    found = f"{folder}, {free / 2**30:.1f} GiB free"
    if not os.access(present, os.W_OK):
        return Finding(BROKEN, f"{found}, not writable", "set AUTOTUNE_CACHE to a folder of yours")
    try:
        check_own(folder)
    except NotOwn as error:
        reason, _, advice = str(error.strerror).partition("; ")
        return Finding(MISSING, f"{found}: {reason}", advice)
    if free < LOW_DISK_BYTES:
        return Finding(MISSING, found, "free some disk space, or set AUTOTUNE_CACHE elsewhere")
    return Finding(OK, found)


def _recordings() -> Finding:
    shipped = targets.recordings()
    if not shipped:
        return Finding(MISSING, f"none in {targets.studies_dir()}", "reinstall autotune")
    return Finding(OK, ", ".join(path.name for path in shipped))


def _database(db: str) -> Finding:
    if not exists(db):
        return Finding(OK, f"{shown(db)} is not there yet; `autotune search` makes it")
    with common.open_existing(db) as store:
        studies = store.studies()
        for one in studies:  # so that damaged rows of what commands show first are named
            store.best(one.study)
            store.cublas_us(one.study)
    num_trials = sum(study.num_trials for study in studies)
    num_studies = counted(len(studies), "study", "studies")
    return Finding(OK, f"{shown(db)}: {counted(num_trials, 'trial')} in {num_studies}")
