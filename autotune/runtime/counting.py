"""How often each kind of call was served: as the core tells, and as it is counted where no table is.

Copied into exported tables.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from itertools import count
from typing import NamedTuple

from ..facts.gemm import FLOAT_BYTES, Gemm, Triple
from ..kernel.launch import PLAIN, Epilogue
from .pick import MAX_TALLIES, TUNED_ALIGNMENT, Pick, Provider
from .product import Product


class Counted(NamedTuple):
    """A kind of call, what served it, and how often. `lds`: leading dimensions in elements;
    `alignment`: of the addresses of A, B and C in bytes, 4, 8 or 16; `epilogue`: what the call adds to the
    product or makes of it, which may need more than the kernel. `gemm` is None for the calls of all
    kinds beyond the first MAX_TALLIES, of which nothing else is known."""

    gemm: Gemm | None
    lds: Triple
    alignment: Triple
    epilogue: Epilogue
    kernel_id: str
    split_k: int
    provider: Provider
    calls: int


OTHERS = Counted(None, (0, 0, 0), (0, 0, 0), PLAIN, "", 0, "autotune", 0)


class CallCount:
    """The calls of one kind. Threads may share it: `add` is one C function. A lock would take ten times as
    long."""

    def __init__(self, kind: Counted) -> None:
        self.kind, self._next = kind, count()
        self.add: Callable[[], int] = self._next.__next__

    @property
    def calls(self) -> int:
        return int(repr(self._next).removeprefix("count(").removesuffix(")"))  # to read it otherwise counts


class CallCounts:
    """All of an engine. A tally outlives plans: a plan that is made again finds its own."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._by_kind: dict[Counted, CallCount] = {}
        self._others = CallCount(OTHERS)

    def of(self, problem: Product, addresses: Triple, pick: Pick, epilogue: Epilogue = PLAIN) -> CallCount:
        aligned = (alignment(addresses[0]), alignment(addresses[1]), alignment(addresses[2]))
        served = (pick.kernel_id, pick.split_k, pick.provider)
        kind = Counted(problem.gemm, problem.lds, aligned, epilogue, *served, calls=0)
        with self._lock:
            if kind not in self._by_kind and len(self._by_kind) >= MAX_TALLIES:
                return self._others
            return self._by_kind.setdefault(kind, CallCount(kind))

    def counts(self) -> list[Counted]:
        """Those that are not zero, the newest kind first."""
        with self._lock:
            tallies = [*reversed(self._by_kind.values()), self._others]
        counts = [tally.kind._replace(calls=tally.calls) for tally in tallies]
        return [counted for counted in counts if counted.calls]


def alignment(address: int) -> int:
    """The largest power of two that divides an address, from a float's size up to a vector's."""
    return max(FLOAT_BYTES, (address | TUNED_ALIGNMENT) & -(address | TUNED_ALIGNMENT))
