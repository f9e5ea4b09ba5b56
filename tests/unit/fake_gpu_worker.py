"""A GPU worker without a GPU, for tests: does what the candidate's `sha256` says, up to a `#`.

Run as `python fake_gpu_worker.py MODE LOG FD PARENT`. Appends its process id and each request to LOG.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import subprocess
import sys
import time
from multiprocessing.connection import Connection
from pathlib import Path

from autotune.facts.measurement import Failure, Outcome
from autotune.gpu import protocol, worker
from autotune.target import CellTime

mode, log, descriptor, parent = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
held: list[protocol.Problem] = []


def note(text: str) -> None:
    with log.open("a") as file:
        file.write(f"{os.getpid()} {text}\n")


def trial(deed: str) -> protocol.Answer:
    match deed:
        case "crash":
            faulthandler.disable()  # Python's development mode would have last words
            os.kill(os.getpid(), signal.SIGSEGV)
        case "exit":
            sys.stderr.write("last words of the worker")
            sys.stderr.flush()
            os._exit(3)
        case "hang":
            while True:
                time.sleep(60)
        case "hang with child":
            child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
            note(f"child {child.pid}")
            time.sleep(600)
        case "garble":
            os.write(descriptor, b"\x00\x00\x00\x08this is no pickle at all")
            time.sleep(600)
        case "stop midway":  # announces a message of a gigabyte and sends none of it
            os.write(descriptor, b"\x3f\xff\xff\xff")
            time.sleep(600)
        case "sticky":
            return protocol.TrialResult(Outcome.FAULTED, "CUDA_ERROR_ILLEGAL_ADDRESS (700)", is_last=True)
        case "wrong":
            return protocol.TrialResult(Outcome.WRONG_RESULT, "C[0, 0] is off", error_ratio=9.0)
        case "no memory":
            return protocol.Failed("environment", "no memory for the problem")
        case "bug":
            return protocol.Failed("internal", "Traceback: a bug")
        case "babble":
            return protocol.Prepared()
    return protocol.TrialResult(Outcome.OK, samples_us=(12.0, 10.0, 11.0), error_ratio=0.25)


def handle(request: object) -> protocol.Answer:
    note(type(request).__name__)
    match request:
        case protocol.Start() if mode == "no gpu":
            return protocol.Failed("environment", "the GPU is gone")
        case protocol.Start() if mode == "die at start":
            os._exit(1)
        case protocol.Start():
            return protocol.Ready("13.1.0", "580.1", os.getpid())
        case protocol.Prepare() if mode == "die at prepare":
            os._exit(1)
        case protocol.Prepare(problem=problem) if mode == "holds two":
            held[:] = [*held[-1:], problem]
            return protocol.Prepared(held=tuple(held))
        case protocol.Prepare():
            return protocol.Prepared(baseline_us=(20.0, 22.0, 21.0))
        case protocol.RunTrial(peers=peers) if mode == "tell partners":
            return protocol.TrialResult(Outcome.OK, " ".join(map(str, peers)))
        case protocol.RunTrial(kernel=kernel):
            return trial(kernel.sha256.partition("#")[0] if mode == "by name" else mode)
        case protocol.RunRace(kernels=kernels, rounds=rounds):
            if any(kernel.sha256 == "crash" for kernel in kernels) or len(kernels) == 3:
                os._exit(1)
            wrong = Failure(Outcome.WRONG_RESULT, "C[0, 0] is off")
            failures = {i: wrong for i, kernel in enumerate(kernels) if kernel.sha256 == "wrong"}
            samples = tuple(() if i in failures else (1.0,) * rounds for i in range(len(kernels)))
            return protocol.RaceResult(samples, (2.0,) * rounds, failures=failures)
        case protocol.RunComparison(kernels=kernels) if any(kernel.sha256 == "wrong" for kernel in kernels):
            return protocol.ComparisonResult(((), ()), 0.25)
        case protocol.RunComparison(kernels=kernels, rounds=rounds, shuffle=shuffle):
            if any(kernel.sha256 == "crash" for kernel in kernels):
                os._exit(1)
            return protocol.ComparisonResult(((1.0 + shuffle,) * rounds, (2.0,) * rounds), 0.25)
        case protocol.RunCells(cells=cells):
            times = []
            for _, kernel, *_ in cells:
                what = "cuBLAS" if kernel is None else kernel.sha256
                note(f"cell {what}")
                if what == "crash":
                    os._exit(1)
                if what == "sticky":
                    return protocol.CellsResult(tuple(times), "ILLEGAL_ADDRESS (700)", is_last=True)
                times.append(CellTime((float(len(times)) + 1,)))
            return protocol.CellsResult(tuple(times))
    raise AssertionError(request)


worker.exit_with(parent)
protocol.serve(Connection(descriptor), handle)
os._exit(0)
