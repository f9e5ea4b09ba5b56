"""Kernel Tuner's side of vs_kernel_tuner.py: `python kernel_tuner_side.py JOB.json RESULT.json`.

Calls `kernel_tuner.tune_kernel` as its manual shows it, with two things that its interface does not offer:
the configs are handed over as a list (its solver would walk through the whole product of 20 parameters), and
a kernel may have more than 48 KiB of shared memory (an attribute to set before the first launch). Both only
spare it time or failures. Needs kernel_tuner, numpy and, for the backend `nvcuda`, cuda-bindings.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

ERROR_PER_K = 1e-6  # allowed |C - C64| per unit of depth, for random normal operands
C_ARGUMENT = 9  # position of C among the kernel's arguments


def main() -> None:
    job_file, result_file = map(Path, sys.argv[1:3])
    job = json.loads(job_file.read_text(encoding="utf-8"))
    if job["path"]:
        sys.path.append(job["path"])
    result_file.write_text(json.dumps(search(job)), encoding="utf-8")


def search(job: dict[str, Any]) -> dict[str, Any]:
    """One run of Kernel Tuner. `best` is the number of the fastest config; times in us, spans in s."""
    from kernel_tuner import interface

    configs = [tuple(config) for config in job["configs"]]
    number = {config: i for i, config in enumerate(configs)}
    names = job["names"]

    def numbered(params: dict[str, Any]) -> int:
        return number[tuple(params[name] for name in names)]

    interface.Searchspace = _given_space(names, configs)
    arguments, answer = _arguments(job)
    memory = _shared_memory(lambda params: job["smem_bytes"][numbered(params)])
    started = time.perf_counter()
    results, _ = interface.tune_kernel(
        job["entry"],
        lambda params: job["source"],
        lambda params: (job["tiles"][numbered(params)], 1, 1),
        arguments,
        {name: sorted(set(column)) for name, column in zip(names, zip(*configs, strict=True), strict=True)},
        grid_div_x=[], grid_div_y=[], grid_div_z=[],
        answer=answer, atol=ERROR_PER_K * job["extents"][2],
        lang=job["lang"], compiler_options=["-std=c++17", "-default-device"],
        smem_args={"size": memory.size}, observers=[memory],
        iterations=job["iterations"], quiet=True, seed=job["seed"],
        strategy=job["strategy"], strategy_options={"time_limit": job["seconds"]},
    )  # fmt: skip
    elapsed_s = time.perf_counter() - started
    return _summary({numbered(result): result for result in results}) | {"elapsed_s": elapsed_s}


def _summary(results: dict[int, dict[str, Any]]) -> dict[str, Any]:
    """Of results by number of config: a config asked for again counts once. A trial is one that was compiled,
    verified and timed; the others are failures."""
    timed = {i: float(result["time"]) for i, result in results.items() if "__error__" not in result}
    best = min(timed, key=lambda i: timed[i], default=None)
    spans = {
        name: sum(float(result.get(key, 0.0)) for result in results.values()) / 1e3
        for name, key in (
            ("compile_s", "compile_time"), ("verify_s", "verification_time"), ("measure_s", "benchmark_time"),
        )
    }  # fmt: skip
    return {
        "num_trials": len(timed),
        "num_failed": len(results) - len(timed),
        "best": best,
        "own_time_us": None if best is None else 1e3 * timed[best],
        **spans,
    }


def _given_space(names: list[str], configs: list[tuple[Any, ...]]) -> type:
    """Its search space with these configs and no others, through the door it has for recorded spaces."""
    from kernel_tuner.searchspace import Searchspace

    class GivenSpace(Searchspace):
        def __init__(self, tune_params: dict[str, Any], restrictions: object, max_threads: int) -> None:
            cache = {str(i): dict(zip(names, config, strict=True)) for i, config in enumerate(configs)}
            super().__init__(None, None, None, from_cache={"tune_params": tune_params, "cache": cache})

    return GivenSpace


def _shared_memory(size_of: Any) -> Any:
    """An observer, because observers are handed the backend: it lets a kernel have its shared memory."""
    from kernel_tuner.observers.observer import BenchmarkObserver

    class SharedMemory(BenchmarkObserver):
        def size(self, params: dict[str, Any]) -> int:
            num_bytes = int(size_of(params))
            function = self.dev.func
            if hasattr(function, "max_dynamic_shared_size_bytes"):  # CuPy
                function.max_dynamic_shared_size_bytes = num_bytes
            else:
                from cuda.bindings import driver

                attribute = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
                driver.cuFuncSetAttribute(function, attribute, num_bytes)  # a failure shows at the launch
            return num_bytes

        def get_results(self) -> dict[str, Any]:
            return {}

    return SharedMemory()


def _arguments(job: dict[str, Any]) -> tuple[list[Any], list[Any]]:
    """What `sgemm` is launched with, as `launch.Grid` says, and C as it should be. C begins as NaN."""
    m, n, k = job["extents"]
    trans_a, trans_b = job["is_transposed"]
    lda, ldb, ldc = map(np.int64, job["lds"])
    rng = np.random.default_rng(job["seed"])
    a = rng.standard_normal((k, m) if trans_a else (m, k), dtype=np.float32)
    b = rng.standard_normal((n, k) if trans_b else (k, n), dtype=np.float32)
    product = (a.T if trans_a else a).astype(np.float64) @ (b.T if trans_b else b).astype(np.float64)
    c = np.full((m, n), np.nan, dtype=np.float32)
    workspace, one_split = np.zeros(4, dtype=np.float32), np.int32(1)
    arguments = [
        np.int32(m), np.int32(n), np.int32(k), np.float32(1), a, lda, b, ldb, np.float32(0), c, ldc,
        workspace, one_split,
    ]  # fmt: skip
    answer: list[Any] = [None] * len(arguments)
    answer[C_ARGUMENT] = product.astype(np.float32)
    return arguments, answer


if __name__ == "__main__":
    main()
