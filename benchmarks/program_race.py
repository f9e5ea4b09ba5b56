"""Two ways to run a program, in turns in one process: pairs of stretches in random order.

A stretch takes STRETCH_S or more, and begins and ends with a GPU that has nothing to do. Needs torch.
"""

from __future__ import annotations

import gc
import math
import random
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any, NamedTuple

import torch
from program_steps import Step

from autotune.facts import stats
from autotune.facts.stats import MeanRatio

PLAIN, ROUTED = "plain", "routed"
SEGMENT_S, MAX_PAIRS = 0.03, 400
WARM_S, WARM_STEPS = 0.2, 3
Wait = Callable[[], object]
Around = Callable[[], AbstractContextManager[object]]


class Side(NamedTuple):
    """One of two ways to run a program."""

    step: Step
    around: Around


def race(
    sides: Mapping[str, Side], wait: Wait, seconds: float, least_pairs: int, seed: int
) -> dict[str, Any]:
    """Seconds per step of each side in each pair, and how many steps a stretch has. `seconds`: how long all
    stretches take, but there are `least_pairs` however long these take."""
    slowest_s = max(_warm_up(side, wait) for side in sides.values())
    num_steps = max(1, math.ceil(SEGMENT_S / slowest_s))
    num_pairs = min(max(int(seconds / (2 * num_steps * slowest_s)), least_pairs), MAX_PAIRS)
    times: dict[str, list[float]] = {name: [] for name in sides}
    generator = random.Random(seed)
    with _no_old_garbage():
        for _ in range(num_pairs):
            for name in generator.sample(sorted(sides), len(sides)):
                times[name].append(_stretch_s(sides[name], num_steps, wait))
    return {"num_steps": num_steps, "step_s": times}


def _warm_up(side: Side, wait: Wait) -> float:
    """Run some steps; the seconds of the fastest."""
    with side.around():
        fastest_s, started, num = math.inf, time.perf_counter(), 0
        while num < WARM_STEPS or time.perf_counter() < started + WARM_S:
            before = time.perf_counter()
            side.step()
            wait()
            fastest_s, num = min(fastest_s, time.perf_counter() - before), num + 1
    return fastest_s


def _stretch_s(side: Side, num_steps: int, wait: Wait) -> float:
    """Seconds per step. One runs before the clock begins: to enter a context leaves a processor's caches to
    it, which a program does once, and a stretch of a long step each time."""
    with side.around():
        side.step()
        wait()
        started = time.perf_counter()
        for _ in range(num_steps):
            side.step()
        wait()
        return (time.perf_counter() - started) / num_steps


@contextmanager
def _no_old_garbage() -> Iterator[None]:
    """What was made before is not looked through again within it."""
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def ratio_of(by_key: Mapping[str, Any]) -> MeanRatio:
    """How many times as fast the routed side is."""
    return stats.mean_ratio(by_key["step_s"][PLAIN], by_key["step_s"][ROUTED])


def captured(side: Side, wait: Wait) -> Any:
    """A graph of one step."""
    graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    with side.around():
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(WARM_STEPS):
                side.step()
        wait()
        with torch.cuda.graph(graph, stream=stream):
            side.step()
    graph.replay()
    wait()
    return graph
