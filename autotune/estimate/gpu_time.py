"""How long a program's products take cuBLAS on this GPU: each kind timed alone once the program has ended."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from ..runtime.choose.chooser import Counted

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
