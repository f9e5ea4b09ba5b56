"""What `space` and `explain` say of times to expect on a card, and from where that is known."""

from __future__ import annotations

from functools import cache
from typing import Any

from .. import target_finder as targets
from ..facts.device import DeviceLimits
from ..facts.frozen import picked
from ..facts.gemm import Gemm
from ..files.answers import kept
from . import console


@cache
def facts(limits: DeviceLimits, gemm: Gemm) -> dict[str, Any] | None:
    """For machines; None if nothing is expected."""
    question = "expected", limits, gemm
    found: dict[str, Any] | None = kept(question, [targets.studies_dir()], lambda: _facts(limits, gemm))
    return found


def _facts(limits: DeviceLimits, gemm: Gemm) -> dict[str, Any] | None:
    from ..shipped.expected_times import expected_on  # here: where the answer is kept, nobody waits for it

    found = expected_on(targets.matrices(), limits, gemm) if gemm.k else None
    if found is None:
        return None
    limit_us = gemm.limit_us(limits.fma_tflops, limits.bandwidth_gbs) or None
    return {**picked(found, "kernel_us cublas_us is_measured sources"), "limit_us": limit_us}


def text(limits: DeviceLimits, gemm: Gemm) -> str:
    """For people, in a sentence or two."""
    found = facts(limits, gemm)
    if found is None:
        return f"Nothing measured tells what {gemm} takes on {limits.name}."
    times = [f"{console.time_text(found['kernel_us'])} by the best kernel that ships"]
    times += [f"{console.time_text(found['cublas_us'])} by cuBLAS"] if found["cublas_us"] else []
    times += [f"limit {console.time_text(found['limit_us'])}"] if found["limit_us"] else []
    sources = "; ".join(f"{name} ({message})" for name, message in found["sources"].items())
    if found["is_measured"]:
        return f"Expected: {', '.join(times)}; modelled from times on {sources}."
    return (
        f"Nothing was measured on {limits.name}. Expected: {', '.join(times)}; carried over by a model from "
        f"times on {sources}. `autotune contribute` on such a card would tell."
    )
