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
from collections.abc import Iterable, Mapping, Sequence
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
    """Of a step, plain and routed: us in which the GPU is busy, and with anything but products; us of these;
    us in which the host works (longer than without a profiler); kernels; `products`: calls, us of the GPU and
    of the host by operator and extents. The GPU's time of a call is what its launches add to the union of
    those before them: one that waits for them, as the second of a split product, begins early."""
    found: dict[str, Any] = {}
    for name, around in ((PLAIN, nullcontext()), (ROUTED, routing or nullcontext())):
        with around:
            found[name] = _profiled_side(step, wait)
    return found


def _profiled_side(step: Step, wait: Wait) -> dict[str, Any]:
    activities = [torch.profiler.ProfilerActivity.CPU]
    activities += [torch.profiler.ProfilerActivity.CUDA] * torch.cuda.is_available()
    step()
    wait()
    with torch.profiler.profile(activities=activities, record_shapes=True) as profile:
        for _ in range(NUM_STEPS):
            step()
        wait()
    events = profile.profiler.kineto_results.events()
    on_gpu = sorted(
        (one for one in events if one.device_type() == torch.autograd.DeviceType.CUDA),
        key=lambda one: one.start_ns(),
    )
    added = added_ns([(one.start_ns(), one.start_ns() + one.duration_ns()) for one in on_gpu])
    of_calls = Counter[int]()
    for one, ns in zip(on_gpu, added, strict=True):
        of_calls[one.linked_correlation_id()] += ns
    products = products_of(events, of_calls)
    busy_us, products_us = sum(added) / 1e3 / NUM_STEPS, sum(one["gpu_us"] for one in products)
    return {
        "busy_us": busy_us, "others_us": busy_us - products_us, "products_us": products_us,
        "num_kernels": len(on_gpu) / NUM_STEPS, "host_us": _work_us(profile.key_averages()),
        "products": products,
    }  # fmt: skip


def _work_us(averages: Any) -> float:
    """What the host does in a step; it is slower under the profiler, in all parts."""
    return float(sum(one.self_cpu_time_total for one in averages if one.key not in WAITS)) / NUM_STEPS


def added_ns(spans: Sequence[tuple[int, int]]) -> list[int]:
    """What each of the intervals, by their begin, adds to what those before it cover."""
    added, reached = [], 0
    for begin, end in spans:
        added.append(max(0, end - max(begin, reached)))
        reached = max(reached, end)
    return added


def products_of(events: Iterable[Any], gpu_ns: Mapping[int, int]) -> list[dict[str, Any]]:
    """The products of a step: operator, extents, calls, us of the GPU and of the host. `gpu_ns`: by call."""
    found: dict[tuple[Any, ...], dict[str, float]] = {}
    for one in events:
        if one.name() in PRODUCTS:
            a, b = one.shapes()[1:3] if PRODUCTS[one.name()] else one.shapes()[:2]
            extents = a[0] if len(a) == 3 else 1, a[-2], b[-1], a[-1]
            none = {"num_calls": 0.0, "gpu_us": 0.0, "host_us": 0.0}
            of_kind = found.setdefault((one.name(), *extents), none)
            of_kind["num_calls"] += 1
            of_kind["gpu_us"] += gpu_ns[one.correlation_id()] / 1e3
            of_kind["host_us"] += one.duration_ns() / 1e3
    names = "op", "batch", "m", "n", "k"
    return [
        dict(zip(names, kind, strict=True)) | {name: value / NUM_STEPS for name, value in of_kind.items()}
        for kind, of_kind in found.items()
    ]


def attainable(found: Mapping[str, Any], host: Mapping[str, Any]) -> dict[str, float]:
    """The ratio that the measurements of a program allow, and what it is made of; `host`: by operator, the
    median us of a call by torch, and by what serves it soonest."""
    profile, table_us = found["profile"][PLAIN], _table_us(found["calls"]["kinds"])
    step_us = 1e6 * statistics.median(found["eager"]["step_s"][PLAIN])
    gpu_saved = host_saved = 0.0
    for product in profile["products"]:
        kernel_us, num_calls = table_us.get(kind_of(product)), product["num_calls"]
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


def kind_of(one: Mapping[str, Any]) -> tuple[int, ...]:
    """What a product of a profile and a kind of call have in common."""
    has_bias = PRODUCTS[one["op"]] if "op" in one else one["has_bias"]
    return has_bias, one["batch"], one["m"], one["n"], one["k"]


def _table_us(kinds: Iterable[Mapping[str, Any]]) -> dict[tuple[int, ...], float]:
    """The table's time of a call that it serves: the mean over all layouts, by their calls."""
    calls, us = Counter[Any](), Counter[Any]()
    for kind in kinds:
        if not kind["reason"] and kind["expected_us"]:
            calls[kind_of(kind)] += kind["num_calls"]
            us[kind_of(kind)] += kind["num_calls"] * kind["expected_us"]
    return {kind: us[kind] / calls[kind] for kind in calls}
