"""`autotune search --cluster`: a search on GPUs of a Ray cluster."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import typer

from ..facts.gemm import Gemm
from ..facts.measurement import read_policy
from ..files.errors import EnvironmentProblem, UsageError
from ..files.words import counted, time_text
from ..service.queue_worker import QueueWork
from ..service.ray_cluster import ClusterGpus, search
from ..service.wanted import request_document
from ..store import QueuedRequest, RequestState, typed
from . import console
from .ctrl_c import SIGNALLED
from .requests import SearchRequest

ENDED = (RequestState.TUNED, RequestState.REFUSED, RequestState.GIVEN_UP)
DEFAULT_S = 120.0  # of a shape


def run(request: SearchRequest, calls: Mapping[Gemm, int], *, is_json: bool, is_quiet: bool) -> None:
    """`calls`: how often each shape is called for. Raises UsageError for what a cluster does not do,
    EnvironmentProblem where a shape has no winner."""
    gpus = ClusterGpus.parse(request.gpu)
    if request.num_drawn or request.stale or request.trials:
        raise UsageError("--cluster tunes shapes: without --any, --stale and --trials")
    num = sum(one.num for one in gpus)
    share_s = DEFAULT_S if request.seconds is None else request.seconds * num / max(num, len(calls))
    work = QueueWork(request.db, share_s, read_policy(request.cache), request.max_error, request.effort)
    with console.Progress(is_quiet=is_quiet) as progress:

        def tell(found: Sequence[QueuedRequest]) -> None:
            done = sum(one.state in ENDED for one in found)
            at = [str(one.wanted.gemm) for one in found if one.state == RequestState.TUNING]
            progress.update(f"{done}/{counted(len(found), 'shape')}", ", ".join(at[:4]))

        found, signal = search(str(request.cluster), gpus, calls, work, tell, console.note)
    facts = {"cluster": request.cluster, "shapes": [request_document(one) for one in found]}
    console.answer(facts, lambda: _text(found, request.db), is_json=is_json)
    if signal is not None:
        raise typer.Exit(SIGNALLED + signal)
    failed = [one for one in found if one.state != RequestState.TUNED]
    if failed:
        raise EnvironmentProblem("; ".join(f"{one.wanted.gemm}: {one.reason}" for one in failed))


def _text(found: Sequence[QueuedRequest], db: str) -> str:
    rows = []
    for one in found:
        best = one.result
        speedup = best.get("speedup")
        rows.append(
            (
                str(one.wanted.gemm), one.state, time_text(best["time_us"]) if "time_us" in best else "-",
                console.ratio_text(speedup), str(best.get("gpu", "-")), one.reason,
            )
        )  # fmt: skip
    table = console.table(("shape", "state", "best", "vs cuBLAS", "GPU", "why"), rows, right=(2, 3))
    name, password = typed(db)
    return f"{table}\nNext: autotune export-table --db {name}{password}"
