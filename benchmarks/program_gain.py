"""What a program could gain by a table: from a profile of its plain step, the table's times, and host times.

A step's time T is not that of the host's work H or of the GPU's work G alone: it is taken as the longer of
both and a rest, which routing does not change. Attainable is T - (max(H, G) - max(H', G')), where

- G' is G less what products save on the GPU: their time in the profile less the table's time for them, for
  every kind that the table serves, and that it makes faster;
- H' is H less what calls save on the host: every FP32 product's call takes as long as `sgemm`.

H is how long a step keeps the host if the GPU waits for it, less what the step waits for the GPU. Where a
step's launches fill the stream's queue, H holds some of G, and less seems attainable than is.
"""

from __future__ import annotations

import statistics
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import nullcontext
from typing import Any

import torch
from program_race import PLAIN, ROUTED, Wait
from program_steps import Step

LEAST_RATIO = 1.01  # below it, next to nothing is attainable
NUM_STEPS, NUM_ISSUES = 3, 9
PRODUCTS = {"aten::mm": False, "aten::bmm": False, "aten::addmm": True, "aten::baddbmm": True}  # has a C
WAITS = ("cudaStreamSynchronize", "cudaEventSynchronize")


def profiled(step: Step, routing: Any, wait: Wait) -> dict[str, Any]:
    """Of a step, plain and routed: us in which the GPU is busy, us in which the host waits for it, kernels.
    Plain also `host_us`, how long it keeps the host, and `products`: calls and us of the GPU by extents."""
    found: dict[str, Any] = {}
    for name, around in ((PLAIN, nullcontext()), (ROUTED, routing)):
        with around:
            found[name] = _profiled_side(step, wait, with_products=name == PLAIN)
    return found


def _profiled_side(step: Step, wait: Wait, with_products: bool) -> dict[str, Any]:
    issue_s = statistics.median(_issue_s(step, wait) for _ in range(NUM_ISSUES))
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities, record_shapes=with_products) as profile:
        for _ in range(NUM_STEPS):
            step()
        wait()
    events = profile.profiler.kineto_results.events()
    on_gpu = [event for event in events if event.device_type() == torch.autograd.DeviceType.CUDA]
    waited_us = sum(event.duration_ns() for event in events if event.name() in WAITS) / 1e3 / NUM_STEPS
    spans = [(event.start_ns(), event.start_ns() + event.duration_ns()) for event in on_gpu]
    found: dict[str, Any] = {
        "busy_us": union(spans) / 1e3 / NUM_STEPS,
        "num_kernels": len(spans) / NUM_STEPS,
        "waited_us": waited_us,
        "host_us": max(1e6 * issue_s - waited_us, 0.0),
    }
    if with_products:
        found["products"] = _products(profile.key_averages(group_by_input_shape=True))
    return found


def _issue_s(step: Step, wait: Wait) -> float:
    wait()
    began = time.perf_counter()
    step()
    return time.perf_counter() - began


def union(spans: list[tuple[int, int]]) -> int:
    """The length of what intervals cover."""
    total, reached = 0, -1
    for begin, end in sorted(spans):
        total += max(0, end - max(begin, reached))
        reached = max(reached, end)
    return total


def _products(averages: Any) -> list[dict[str, Any]]:
    """The products of a step: operator, extents, calls, us of the GPU."""
    found = []
    for one in averages:
        if one.key in PRODUCTS:
            a, b = one.input_shapes[1:3] if PRODUCTS[one.key] else one.input_shapes[:2]
            extents = {"batch": a[0] if len(a) == 3 else 1, "m": a[-2], "n": b[-1], "k": a[-1]}
            calls, us = one.count / NUM_STEPS, one.device_time_total / NUM_STEPS
            found.append({"op": one.key, **extents, "num_calls": calls, "gpu_us": us})
    return found


def attainable(found: Mapping[str, Any], host: Mapping[str, Any]) -> dict[str, float]:
    """The ratio that the measurements of a program allow, and what it is made of; `host`: by operator, the
    median us of a call by torch and by the table's `sgemm`."""
    profile, table_us = found["profile"][PLAIN], _table_us(found["calls"]["kinds"])
    step_us = 1e6 * statistics.median(found["eager"]["step_s"][PLAIN])
    gpu_saved = host_saved = 0.0
    for product in profile["products"]:
        ours_us, num_calls = table_us.get(_extents(product)), product["num_calls"]
        if ours_us is not None:
            gpu_saved += max(product["gpu_us"] - num_calls * ours_us, 0.0)
        call_us = host[product["op"].removeprefix("aten::")]
        host_saved += num_calls * max(call_us["torch"] - call_us["sgemm"], 0.0)
    host_us, gpu_us = profile["host_us"], profile["busy_us"]
    best_us = step_us - max(host_us, gpu_us) + max(host_us - host_saved, gpu_us - gpu_saved)
    return {
        "ratio": step_us / best_us, "step_us": step_us, "best_us": best_us, "host_us": host_us,
        "gpu_us": gpu_us, "host_saved_us": host_saved, "gpu_saved_us": gpu_saved,
    }  # fmt: skip


def _extents(one: Mapping[str, Any]) -> tuple[int, int, int, int]:
    return one["batch"], one["m"], one["n"], one["k"]


def _table_us(kinds: Iterable[Mapping[str, Any]]) -> dict[tuple[int, int, int, int], float]:
    """By extents, the table's time of a call that it serves: the mean over all layouts, by their calls."""
    calls, us = Counter[Any](), Counter[Any]()
    for kind in kinds:
        if not kind["reason"] and kind["expected_us"]:
            calls[_extents(kind)] += kind["num_calls"]
            us[_extents(kind)] += kind["num_calls"] * kind["expected_us"]
    return {extents: us[extents] / calls[extents] for extents in calls}
