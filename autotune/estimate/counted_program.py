"""`python -m autotune.estimate.counted_program FOLDER SECONDS [-m] PROGRAM ...`: runs a program, and counts.

What it computes is written into the folder (counts.py), and on a GPU how long its products take. The process
ends as the program does; after so many seconds (0: never) it is ended, with 0.
"""

from __future__ import annotations

import atexit
import os
import signal
import sys
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

from ..runtime.choose.chooser import Counted
from ..runtime.torch.torch_program import run_program
from .counts import WorkCounts

MOST_S = 5.0  # for all kinds
_WARM_UP, _TIMED = 3, 20  # calls
Timed = Callable[[Callable[[], Any]], float]  # the seconds of one call


class ProductTime(NamedTuple):
    """`seconds`: of all calls of the kinds that were timed, which make up `share` of the FLOPs."""

    seconds: float
    share: float


def product_time(
    counts: Iterable[Counted], torch: Any, device: str, timed: Timed | None = None
) -> ProductTime:
    """Of these calls by torch, those with most FLOPs first, as long as there is time."""
    timed = timed or _by_events(torch)
    known = [one for one in counts if one.gemm is not None]
    flops = {one: one.calls * one.gemm.flops for one in known if one.gemm is not None}
    until_s, seconds, done = time.monotonic() + MOST_S, 0.0, 0
    torch.backends.cuda.matmul.fp32_precision = "ieee"
    for one in sorted(known, key=lambda one: -flops[one]):
        if time.monotonic() < until_s:
            a, b = _operands(one, torch, device)
            seconds += one.calls * timed(lambda a=a, b=b: torch.matmul(a, b))  # type: ignore[misc]
            done += flops[one]
    return ProductTime(seconds, done / max(sum(flops.values()), 1))


def _operands(counted: Counted, torch: Any, device: str) -> tuple[Any, Any]:
    gemm, (lda, ldb, _) = counted.gemm, counted.lds
    assert gemm is not None

    def made(rows: int, columns: int, ld: int, is_shared: bool, is_transposed: bool) -> Any:
        rows, columns = (columns, rows) if is_transposed else (rows, columns)
        num = 1 if is_shared or not gemm.is_batched else gemm.batch
        x = torch.ones((num, rows, max(ld, columns)), device=device)[..., :columns]
        x = x.mT if is_transposed else x
        return x.expand(gemm.batch, -1, -1) if gemm.is_batched else x[0]

    a = made(gemm.m, gemm.k, lda, gemm.shares_a, gemm.trans_a)
    return a, made(gemm.k, gemm.n, ldb, gemm.shares_b, gemm.trans_b)


def _by_events(torch: Any) -> Timed:
    def timed(call: Callable[[], Any]) -> float:
        started, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        for number in range(_WARM_UP + _TIMED):
            if number == _WARM_UP:
                started.record()
            call()
        ended.record()
        ended.synchronize()
        return float(started.elapsed_time(ended)) / 1e3 / _TIMED

    return timed


REFUSED = "refused"  # the file that says why nothing was run
_RETRY_S = 1.0  # until a program is told once more that its time is up


class _TimeIsUp(BaseException):
    """Raised in the program's main thread, which hardly catches it."""


def main(arguments: list[str]) -> int:
    """Raises what the program ends with; returns 1 if nothing was run."""
    folder, seconds, *program = Path(arguments[0]), float(arguments[1]), *arguments[2:]
    is_module = program[0] == "-m"
    os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")  # what is compiled multiplies as it does when it is not
    try:
        import torch

        if not hasattr(torch.library, "get_kernel"):
            raise ImportError(
                f"torch {torch.__version__} does not give its kernels; update it to 2.10 or later"
            )
        from .torch_work import allows_tf32, counted
    except (ImportError, OSError) as error:  # OSError: of a library that torch loads
        (folder / REFUSED).write_text(str(error), encoding="utf-8")
        return 1
    counts = WorkCounts(folder, allows_tf32)
    leave = _write_before_exit(counts)
    signal.signal(signal.SIGALRM, _end)
    sys.argv = program[is_module:]
    try:
        signal.setitimer(signal.ITIMER_REAL, seconds, _RETRY_S)
        with counted(counts):
            run_program(sys.argv[0], is_module)
    except _TimeIsUp:
        counts.facts["is_cut_short"] = True
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        if torch.cuda.is_available():
            _time_products(counts, torch)
        counts.write()
    if counts.facts["is_cut_short"]:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        leave(0)  # its threads may not end
    return 0


def _time_products(counts: WorkCounts, torch: Any) -> None:
    """Facts on the GPU's time, unless the program left the GPU unfit for it."""
    with suppress(RuntimeError):
        torch.cuda.synchronize()
        with torch.no_grad():
            found = product_time(counts.calls(), torch, "cuda")
        counts.facts["here"] = {
            "gpu": torch.cuda.get_device_name(),
            "seconds": counts.seconds,
            "products_s": found.seconds,
            "timed_share": found.share,
        }


def _write_before_exit(counts: WorkCounts) -> Callable[[int], Any]:
    """However the program leaves, short of being killed. Returns what leaves at once."""
    leave = os._exit

    def written(code: int) -> None:
        counts.write()
        leave(code)

    os._exit = written  # type: ignore[assignment]
    atexit.register(counts.write)
    return leave


def _end(number: int, frame: FrameType | None) -> None:
    raise _TimeIsUp


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
