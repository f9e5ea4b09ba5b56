"""What a program could gain by a table at most: from a profile of its plain step, and times of calls.

Attainable is the time T of a step less all that its products could save, on either side, as if neither side
ever waited for the other:

- on the GPU: their time in the profile less the table's time for them, for every kind that the table serves,
  and that it makes faster;
- on the host: the part of T that their calls take, which is their part of the host's profile, less what is
  left of a call if it takes as long as the quickest way to serve one in a loop, instead of as long as torch's
  in the same loop.

No step is shorter than what is left of the GPU's busy time. Above that, where the GPU waits for the host the
first shortens nothing, and where it does not, the second: no program reaches all of it.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import nullcontext
from typing import Any

import torch
from program_host import QUICKEST, TORCH
from program_race import PLAIN, ROUTED, Wait
from program_steps import Step

LEAST_RATIO = 1.01  # below it, next to nothing is attainable
NUM_STEPS = 3
PRODUCTS = {"aten::mm": False, "aten::bmm": False, "aten::addmm": True, "aten::baddbmm": True}  # has a C
WAITS = ("cudaStreamSynchronize", "cudaEventSynchronize", "cudaDeviceSynchronize")


def profiled(step: Step, routing: Any, wait: Wait) -> dict[str, Any]:
    """Of a step, plain and routed: us in which the GPU is busy, and with anything but products; us of these,
    added up; us in which the host works (longer than without a profiler); kernels; `products`: calls, us of
    the GPU and of the host by extents."""
    found: dict[str, Any] = {}
    for name, around in ((PLAIN, nullcontext()), (ROUTED, routing or nullcontext())):
        with around:
            found[name] = _profiled_side(step, wait)
    return found


def _profiled_side(step: Step, wait: Wait) -> dict[str, Any]:
    activities = [torch.profiler.ProfilerActivity.CPU]
    activities += [torch.profiler.ProfilerActivity.CUDA] * torch.cuda.is_available()
    with torch.profiler.profile(activities=activities, record_shapes=True) as profile:
        for _ in range(NUM_STEPS):
            step()
        wait()
    events = profile.profiler.kineto_results.events()
    on_gpu = [event for event in events if event.device_type() == torch.autograd.DeviceType.CUDA]
    calls = {event.correlation_id() for event in events if event.name() in PRODUCTS}
    spans = [(event.start_ns(), event.start_ns() + event.duration_ns()) for event in on_gpu]
    is_product = [event.linked_correlation_id() in calls for event in on_gpu]
    others = [span for span, is_one in zip(spans, is_product, strict=True) if not is_one]
    of_products = [end - begin for (begin, end), is_one in zip(spans, is_product, strict=True) if is_one]
    ns = {"busy_us": union(spans), "others_us": union(others), "products_us": sum(of_products)}
    return {
        **{name: value / 1e3 / NUM_STEPS for name, value in ns.items()},
        "num_kernels": len(spans) / NUM_STEPS,
        "host_us": _work_us(profile.key_averages()),
        "products": _products(profile.key_averages(group_by_input_shape=True)),
    }


def _work_us(averages: Any) -> float:
    """What the host does in a step; it is slower under the profiler, in all parts."""
    return float(sum(one.self_cpu_time_total for one in averages if one.key not in WAITS)) / NUM_STEPS


def union(spans: list[tuple[int, int]]) -> int:
    """The length of what intervals cover."""
    total, reached = 0, -1
    for begin, end in sorted(spans):
        total += max(0, end - max(begin, reached))
        reached = max(reached, end)
    return total


def _products(averages: Any) -> list[dict[str, Any]]:
    """The products of a step: operator, extents, calls, us of the GPU and of the host."""
    found = []
    for one in averages:
        if one.key in PRODUCTS:
            a, b = one.input_shapes[1:3] if PRODUCTS[one.key] else one.input_shapes[:2]
            extents = {"batch": a[0] if len(a) == 3 else 1, "m": a[-2], "n": b[-1], "k": a[-1]}
            of_all = {"num_calls": one.count, "gpu_us": one.device_time_total, "host_us": one.cpu_time_total}
            of_a_step = {name: value / NUM_STEPS for name, value in of_all.items()}
            found.append({"op": one.key, **extents, **of_a_step})
    return found


def attainable(found: Mapping[str, Any], host: Mapping[str, Any]) -> dict[str, float]:
    """The ratio that the measurements of a program allow, and what it is made of; `host`: by operator, the
    median us of a call by torch, and by what serves it soonest."""
    profile, table_us = found["profile"][PLAIN], _table_us(found["calls"]["kinds"])
    step_us = 1e6 * statistics.median(found["eager"]["step_s"][PLAIN])
    gpu_saved = host_saved = 0.0
    for product in profile["products"]:
        kernel_us, num_calls = table_us.get(extents_of(product)), product["num_calls"]
        if kernel_us is not None:
            gpu_saved += max(product["gpu_us"] - num_calls * kernel_us, 0.0)
        call_us = host[product["op"].removeprefix("aten::")]
        part = product["host_us"] / profile["host_us"]
        host_saved += step_us * part * max(1 - call_us[QUICKEST] / call_us[TORCH], 0.0)
    busy_us = min(profile["busy_us"], step_us)  # kernels take longer under the profiler
    best_us = max(step_us - gpu_saved - host_saved, busy_us - gpu_saved)
    return {
        "ratio": step_us / best_us, "step_us": step_us, "best_us": best_us,
        "host_saved_us": host_saved, "gpu_saved_us": gpu_saved,
    }  # fmt: skip


def extents_of(one: Mapping[str, Any]) -> tuple[int, int, int, int]:
    return one["batch"], one["m"], one["n"], one["k"]


def _table_us(kinds: Iterable[Mapping[str, Any]]) -> dict[tuple[int, int, int, int], float]:
    """By extents, the table's time of a call that it serves: the mean over all layouts, by their calls."""
    calls, us = Counter[Any](), Counter[Any]()
    for kind in kinds:
        if not kind["reason"] and kind["expected_us"]:
            calls[extents_of(kind)] += kind["num_calls"]
            us[extents_of(kind)] += kind["num_calls"] * kind["expected_us"]
    return {extents: us[extents] / calls[extents] for extents in calls}
