"""Compile tasks on Ray and on Dask: how long they take, and what becomes of them where workers die (0081).

    pip install ray distributed
    python benchmarks/decisions/ray_or_dask.py --tasks 60

Each task compiles kernels by NVRTC, without a cache, on two workers of one core. Some kill their worker, as a
compiler that crashes does; they are not counted. Prints for each: seconds, and how many others were given up.
"""

from __future__ import annotations

import argparse
import os
import signal
import time
from collections.abc import Callable
from typing import Any

_TEXT = (
    'extern "C" __global__ void f(float *x) {{ for (int i = 0; i < {n}; ++i) x[i * {n}] *= x[i] + {n}.0f; }}'
)


def compiled(number: int, kills: bool) -> int:
    """The size of a cubin. Kills its process if it is to."""
    from cuda.bindings import nvrtc

    if kills:
        os.kill(os.getpid(), signal.SIGKILL)
    total = 0
    for n in range(8):
        _, program = nvrtc.nvrtcCreateProgram(_TEXT.format(n=1000 * number + n + 2).encode(), b"", 0, [], [])
        nvrtc.nvrtcCompileProgram(program, 1, [b"-arch=sm_90"])
        total += nvrtc.nvrtcGetCUBINSize(program)[1]
    return total


def _by_ray(tasks: list[bool]) -> int:
    import ray

    ray.init("local", num_cpus=2, include_dashboard=False, log_to_driver=False)
    task = ray.remote(num_cpus=1, max_retries=3)(compiled)
    refs = [task.remote(number, kills) for number, kills in enumerate(tasks)]
    found = [_outcome(lambda ref=ref: ray.get(ref)) for ref in refs]  # type: ignore[misc]
    ray.shutdown()
    return _given_up(found, tasks)


def _by_dask(tasks: list[bool]) -> int:
    from distributed import Client, LocalCluster

    with (
        LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster,
        Client(cluster) as client,
    ):
        futures = [client.submit(compiled, number, kills) for number, kills in enumerate(tasks)]
        return _given_up([_outcome(future.result) for future in futures], tasks)


def _outcome(get: Callable[[], Any]) -> bool:
    try:
        get()
    except Exception:
        return False
    return True


def _given_up(found: list[bool], tasks: list[bool]) -> int:
    return sum(not done for done, kills in zip(found, tasks, strict=True) if not kills)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--tasks", type=int, default=60)
    parser.add_argument("--killers", type=int, nargs="+", default=[0, 1, 6])
    options = parser.parse_args()
    print("| killers | on | seconds | innocent tasks given up |\n|---|---|---|---|")
    for crash_points in options.crash_points:
        step = options.tasks // crash_points if crash_points else options.tasks + 1
        tasks = [number % step == step - 1 for number in range(options.tasks)]
        for name, run in (("Ray", _by_ray), ("Dask", _by_dask)):
            started_s = time.monotonic()
            given_up = run(tasks)
            seconds = time.monotonic() - started_s
            print(
                f"| {crash_points} | {name} | {seconds:.1f} | {given_up} of {tasks.count(False)} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
