"""Requests for shapes: what is asked for, what tuning one may gain, and how they are listed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ..facts.device import KNOWN, known_limits, limits_by_name
from ..facts.gemm import Gemm
from ..files.errors import UsageError
from ..files.strict import hint
from ..files.words import shown
from ..store import Queue, QueuedRequest, Wanted

TUNED_SHARE = 0.15  # of a call's time that tuning its shape is expected to gain; others tell of 13 to 20 %
UNKNOWN = "h100"  # what a GPU is taken for that nobody knows, or named
MAX_SHAPES = 1000  # of one message
MAX_NAME = 100  # letters


def predicted_gain_us(gpu_name: str, gemm: Gemm, served_us: float) -> float:
    """What a call may gain by tuning: a share of its time, and no more than is above the GPU's limit."""
    limits = limits_by_name(gpu_name) or known_limits(UNKNOWN)
    limit_us = gemm.limit_us(limits.fma_tflops, limits.bandwidth_gbs)
    served_us = served_us or 2 * limit_us
    return max(0.0, min(TUNED_SHARE * served_us, served_us - limit_us))


def asked_for(document: Any, by: str, queue: Queue) -> list[Wanted]:
    """As `read_wanted`, a GPU by its full name. Raises UsageError, too, for one that is neither known nor
    serves the queue: nobody would ever take it up."""
    wanted = read_wanted(document, by)
    name = wanted[0].gpu
    if (limits := limits_by_name(name)) is not None:
        return [replace(one, gpu=limits.name) for one in wanted]
    seen = {one.gpu for one in queue.workers() if one.gpu} if name else set()
    if name and name not in seen:
        names = (*sorted(seen), *(limits.name for limits in KNOWN.values()), *KNOWN)
        raise UsageError(
            f"no worker serves a GPU {shown(name)} ({hint(name, names)}); begin one first, or name none"
        )
    return wanted


def read_wanted(document: Any, by: str) -> list[Wanted]:
    """Shapes by hand. Raises UsageError for anything else."""
    shapes = document.get("shapes") if isinstance(document, dict) else None
    gpu_name = document.get("gpu_name", "") if isinstance(document, dict) else None
    if not isinstance(shapes, list) or not 0 < len(shapes) <= MAX_SHAPES or not isinstance(gpu_name, str):
        raise UsageError(f"send a gpu_name, or none, and 1 to {MAX_SHAPES:,} shapes")
    if len(gpu_name) > MAX_NAME or not (gpu_name.isprintable() or not gpu_name):
        raise UsageError("gpu_name is no name of a GPU")
    found = []
    for one in shapes:
        text, calls = (one.get("shape"), one.get("calls", 1)) if isinstance(one, dict) else (one, 1)
        if (
            not isinstance(text, str)
            or len(text) > MAX_NAME
            or type(calls) is not int
            or not 0 < calls < 1 << 50
        ):
            raise UsageError("a shape is as 4096x128x4096:NT, and its calls are a whole number from 1")
        gemm = Gemm.parse(text)
        gemm.need_output()
        found.append(Wanted(gemm, gpu_name, float(calls), predicted_gain_us(gpu_name, gemm, 0.0), {}, by))
    return found


def request_document(one: QueuedRequest) -> dict[str, Any]:
    """Plain data."""
    wanted = one.wanted
    rest = ("id", "state", "reason", "result", "num_tries", "worker", "asked_s", "ended_s", "priority")
    return {
        "shape": str(wanted.gemm), "gpu": wanted.gpu, "calls": wanted.num_calls, "gain_us": wanted.gain_us,
        "asked_by": wanted.asked_by, **{name: getattr(one, name) for name in rest},
    }  # fmt: skip
