"""How long the GPU's worker waits between two trials: a worker that sleeps stands in for one with a GPU.

    python benchmarks/hand_over.py [--trials 300] [--trial-ms 10] [--threads 1] [--processes 2]
        [--commit-ms 3]

Beside it so many threads of Python compute, as those that propose and store, and so many processes, as
compilers. Each trial is committed for so long by the thread that settles it. Prints the milliseconds that the
worker waited for its next request after an answer, and trials a second.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import threading
import time
from concurrent.futures import Future
from functools import partial
from multiprocessing.connection import Connection
from statistics import mean, median, quantiles

from autotune.facts.device import KNOWN
from autotune.facts.gemm import Gemm
from autotune.facts.measurement import CachePolicy, Measurement, Outcome
from autotune.gpu import client, gpu_worker, protocol, worker
from autotune.gpu.builder import Built
from autotune.gpu.gpu_worker import GpuWorker
from autotune.gpu.protocol import KernelCode, Problem
from autotune.kernel.launch import LaunchSpec, Variant
from autotune.search.run.threads import prompt_switching

SPEC = LaunchSpec(64, 64, 8, 64, 0, 1, 1, 1, False, "none", 1, Variant())
PROBLEM = Problem(Gemm(64, 64, 64), CachePolicy.COLD)
CUBIN_BYTES = 60_000
BURN = "while True: pass"


def serve(trial_s: float, descriptor: int, parent: int) -> None:
    """The worker: a trial's `verify_s` is what it waited for the request."""
    worker.exit_with(parent)
    with Connection(descriptor) as connection:
        while True:
            began_s = time.perf_counter()
            try:
                request = connection.recv()
            except EOFError:
                return
            waited_s = time.perf_counter() - began_s
            match request:
                case protocol.Start():
                    connection.send(protocol.Ready("", "", None))
                case protocol.Prepare():
                    connection.send(protocol.Prepared((1.0,)))
                case protocol.RunTrial():
                    time.sleep(trial_s)
                    connection.send(protocol.TrialResult(Outcome.OK, "", (1.0,), verify_s=waited_s))
                case _:
                    return


def compute(is_over: threading.Event) -> None:
    while not is_over.is_set():
        sum(range(1000))


def measure(args: argparse.Namespace) -> None:
    command = (sys.executable, __file__, "--serve", str(args.trial_ms / 1e3))
    setattr(gpu_worker, "WorkerClient", partial(client.WorkerClient, command=command))  # noqa: B010
    is_over, waited_s = threading.Event(), list[float]()
    others = [subprocess.Popen([sys.executable, "-c", BURN]) for _ in range(args.processes)]
    threads = [threading.Thread(target=compute, args=(is_over,)) for _ in range(args.threads)]

    def commit(done: Future[Measurement]) -> None:
        waited_s.append(done.result().verify_s)
        time.sleep(args.commit_ms / 1e3)

    built = Built(Measurement(Outcome.OK), KernelCode(bytes(CUBIN_BYTES), "any", SPEC))
    gpu = GpuWorker("GPU-of-hand-over", KNOWN["h200"], b"", print)
    try:
        gpu.baseline(PROBLEM)
        futures = [Future[Measurement]() for _ in range(args.trials)]
        for future in futures:
            future.add_done_callback(commit)
        with prompt_switching():
            for thread in threads:
                thread.start()
            began_s = time.perf_counter()
            for future in futures:
                gpu.measure(future, PROBLEM, lambda: built, None)
            for future in futures:
                future.result()
            took_s = time.perf_counter() - began_s
    finally:
        is_over.set()
        gpu.close()
        for one in others:
            one.kill()
            one.wait()
    waits_ms = sorted(1e3 * s for s in waited_s[1:])
    print(
        f"{args.trials} trials of {args.trial_ms:g} ms, {args.threads} threads, {args.processes} processes: "
        f"waited {mean(waits_ms):.2f} ms each (median {median(waits_ms):.2f}, nine of ten at most "
        f"{quantiles(waits_ms, n=10)[-1]:.2f}), {args.trials / took_s:.1f} trials/s"
    )


def main() -> None:
    if sys.argv[1:2] == ["--serve"]:
        serve(float(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
        return
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--trials", type=int, default=300)
    parser.add_argument("--trial-ms", type=float, default=10.0)
    parser.add_argument("--commit-ms", type=float, default=3.0)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--processes", type=int, default=2)
    measure(parser.parse_args())


if __name__ == "__main__":
    main()
