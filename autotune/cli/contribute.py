"""`autotune contribute`: what a card does, in one file that its owner may give away: for a card that nobody
of this project has.

It searches some shapes, then times the best configs and random ones on all of them, as `record` does. The
file is a recording: it is replayed, merged into databases, and written as a matrix of starting points."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import typer

from .. import gpu, tuning
from .. import target_finder as targets
from ..facts.gemm import Gemm
from ..files.output_file import check_writable
from ..files.words import counted
from ..recording.replay import ReplayTarget
from ..store import this_process
from . import common, console, record
from .ctrl_c import SIGNALLED
from .requests import ContributeRequest, RecordRequest
from .search import EventPrinter

SEARCH_SHARE = 0.4  # of the seconds; the rest times configs on all shapes
NUM_CONFIGS = 3000  # at most: more than ten minutes time on most machines
_PATH = re.compile(r"(?:~|\.{0,2})(?:[/\\][\w.+@-]+)+")
_UUID = re.compile(r"\b(?:(?:GPU|MIG)-)+[0-9a-f]{8}-[0-9a-f-]+(?:/\d+)*", re.IGNORECASE)
_HOLDS = (
    "GPU's name and limits, versions of driver, CUDA, NVRTC and cuBLAS, the date; for each shape the samples "
    "of cuBLAS; for each config on it how it ended, its samples, its error against cuBLAS's, registers, "
    "shared memory, seconds, and what disturbed it"
)
_HOLDS_NOT = "no name of a user or host, no path, no UUID of the GPU, nothing of your programs"


def run(request: ContributeRequest, *, is_json: bool, is_quiet: bool) -> None:
    """Search, record, check. Asked again with the same file, it goes on. Raises UsageError,
    EnvironmentProblem, DeviceLost and StoreError."""
    suites = request.suites or ([] if request.shapes else [targets.studies_dir() / "suites/recorded.toml"])
    gemms = common.need_shapes(request.shapes, suites)
    targets.refuse_recording(request.gpu)
    name = gpu.find_gpu(request.gpu).name
    out = request.out or Path(f"{re.sub('[^a-z0-9]+', '-', name.lower())}.json.gz")
    check_writable(out)
    console.note(f"{out} will hold: {_HOLDS}; and {_HOLDS_NOT}. Nothing is sent: the file is yours to give.")
    db, search_s = f"{out}.db", SEARCH_SHARE * request.seconds
    with console.Progress(is_quiet=is_quiet) as progress:
        printer = EventPrinter(progress, is_quiet=is_quiet)
        found = tuning.tune(
            gemms, gpu=request.gpu, seconds=search_s, db=db, on_event=printer, note=console.note
        )
    if found.search.signal is not None:
        raise typer.Exit(SIGNALLED + found.search.signal)
    requested = RecordRequest(
        out=out, gpu=request.gpu, shapes=[*map(str, gemms)], configs=NUM_CONFIGS,
        seconds=request.seconds - search_s, db=db, max_error=None,
    )  # fmt: skip
    record.run(requested, is_json=is_json, is_quiet=is_quiet, clean=clean)
    console.note(_checked(out))


def clean(reason: str) -> str:
    """A compiler's or driver's words without paths, without names of the user and the host, however they are
    written, and without the GPU's UUID. A home may have a space in its name."""
    home, host = os.environ.get("HOME", ""), this_process.host()
    text = _PATH.sub("...", reason.replace(home, "~") if len(home) > 1 else reason)
    names = this_process.login(), host, host.partition(".")[0]
    for name in (name for name in names if name and not name.isdigit()):
        text = re.sub(rf"\b{re.escape(name)}\b", "...", text, flags=re.IGNORECASE)
    return _UUID.sub("...", text)


def _checked(out: Path) -> str:
    """What a file holds, as others will read it. Raises UsageError if no kernel of a shape ran."""
    found = ReplayTarget(out)
    best: Mapping[Gemm, float] = {gemm: found.optimum(gemm)[1] for gemm in found.gemms}
    cublas = {gemm: found.baseline(gemm).time_us for gemm in found.gemms}
    counts = Counter("slower" if best[g] > us else "faster" for g, us in cublas.items() if us)
    return (
        f"{out} was read back: {counted(len(best), 'shape')} of {found.environment.gpu_name}, "
        f"{counts['faster']} faster than cuBLAS. Anyone may replay it (search --gpu replay:{out}), merge it "
        f"(trials merge {out}) and export a first table of it"
    )
