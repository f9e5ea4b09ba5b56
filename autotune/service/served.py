"""What programs tell of how they were served: read, added up, and stored once a second.

A shape that a table could only model, or did not know, is wanted: it becomes a request, unless one for it
ended a while ago. What was not stored yet is bounded, and lost with the process: programs tell of their next
calls, too.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Annotated, Any

from ..facts.frozen import frozen
from ..facts.gemm import LAYOUTS, MAX_EXTENT, Gemm
from ..files import strict
from ..files.errors import UsageError
from ..files.strict import Within
from ..store import Artifacts, Queue, RequestState, Usage, Wanted
from .wanted import MAX_NAME, MAX_SHAPES, predicted_gain_us

KNOWN = ("exact", "settled")  # how a shape is served that needs no tuning
CUBLAS, MEASURED = "cublas", "measured"
MAX_PENDING = 50_000  # entries that wait to be stored
AGAIN_S = 86_400.0  # after a request ended, until programs may ask for its shape again
MAX_ENDED, MAX_NEW = 100_000, 1000  # requests that are read when the server begins; that end within a second
_ENDED = (RequestState.TUNED, RequestState.REFUSED, RequestState.GIVEN_UP)

Time = Annotated[float, Within(0, 1e12)]
Extent = Annotated[int, Within(1, MAX_EXTENT)]
Calls = Annotated[int, Within(1, 1 << 40)]


@frozen()
class ToldShape:
    """As a program counts it (runtime/service/table_server.py). Times are of one call, 0 if not known."""

    m: Extent
    n: Extent
    k: Extent
    layout: str
    batch: Annotated[int, Within(1, MAX_EXTENT)]
    shared: str
    lds: tuple[Extent, ...]
    calls: Calls
    how: str
    provider: str
    expected_us: Time
    cublas_us: Time

    @property
    def gemm(self) -> Gemm:
        """Raises UsageError for none."""
        if self.layout not in LAYOUTS or self.shared not in ("", "a", "b"):
            raise UsageError(f"{self.layout!r} and {self.shared!r} are no layout and operand that is shared")
        trans_a, trans_b = (one == "T" for one in self.layout)
        return Gemm(
            self.m, self.n, self.k, trans_a, trans_b, self.batch, self.shared == "a", self.shared == "b"
        )

    @property
    def served_us(self) -> float:
        return self.cublas_us if self.provider == CUBLAS else self.expected_us

    @property
    def saved_us(self) -> float:
        """Of all calls, against cuBLAS."""
        is_known = self.provider != CUBLAS and self.cublas_us and self.expected_us
        return self.calls * (self.cublas_us - self.expected_us) if is_known else 0.0


@frozen()
class ToldGain:
    """What a program measured: pairs of stretches, and the time that these took less."""

    pairs: Annotated[int, Within(0, 1 << 31)]
    saved_us: Annotated[float, Within(-1e15, 1e15)]


@frozen()
class ServedMessage:
    """Of one program, for one GPU model. `table`: the address of the one that it took from a server."""

    gpu_name: str
    compute_capability: tuple[int, int]
    table: str
    shapes: tuple[ToldShape, ...]
    measured: ToldGain


def read_served(document: Any) -> ServedMessage:
    """Raises UsageError for anything else."""
    try:
        found: ServedMessage = strict.read(ServedMessage, document, "message")
    except strict.Mismatch as mismatch:
        raise UsageError(str(mismatch)) from mismatch
    if (
        len(found.shapes) > MAX_SHAPES
        or not 0 < len(found.gpu_name) <= MAX_NAME
        or not found.gpu_name.isprintable()
    ):
        raise UsageError(
            f"a message is of one GPU, named in {MAX_NAME} letters, and {MAX_SHAPES} shapes at most"
        )
    hows = (*KNOWN, "modelled", "nearest", "default")
    for shape in found.shapes:
        if (
            shape.how not in hows
            or shape.provider not in (CUBLAS, "autotune")
            or len(shape.lds) not in (0, 3)
        ):
            raise UsageError("a shape is served in a way that nobody knows")
        shape.gemm.need_output()
    return found


class Intake:
    """Adds up, and stores what was added up when `store` is called. Threads may share it."""

    def __init__(self, artifacts: Artifacts, queue: Queue) -> None:
        self._artifacts, self._queue = artifacts, queue
        self._lock = threading.Lock()
        self._usage: dict[tuple[str, str, str], tuple[int, float]] = {}
        self._wanted: dict[tuple[str, Gemm], tuple[int, float, Sequence[int], str]] = {}
        self._ended: dict[tuple[str, Gemm], float] = {}  # seconds since 1970
        self._most = MAX_ENDED  # requests that the next look reads

    def add(self, message: ServedMessage, by: str) -> bool:
        """Returns false, with nothing added, if too much waits to be stored."""
        with self._lock:
            if len(self._usage) + len(self._wanted) > MAX_PENDING:
                return False
            gpu = message.gpu_name
            for shape in message.shapes:
                gemm = shape.gemm
                how = CUBLAS if shape.provider == CUBLAS else shape.how
                self._count(gpu, str(gemm), how, shape.calls, shape.saved_us)
                if shape.how not in KNOWN:
                    calls, *_ = self._wanted.get((gpu, gemm), (0, 0.0, (), ""))
                    gain_us = predicted_gain_us(gpu, gemm, shape.served_us)
                    self._wanted[gpu, gemm] = calls + shape.calls, gain_us, shape.lds, by
            if message.measured.pairs:
                self._count(gpu, "", MEASURED, message.measured.pairs, message.measured.saved_us)
        return True

    def _count(self, gpu: str, shape: str, how: str, calls: int, saved_us: float) -> None:
        before = self._usage.get((gpu, shape, how), (0, 0.0))
        self._usage[gpu, shape, how] = before[0] + calls, before[1] + saved_us

    def store(self) -> None:
        """Store what there is. Raises StoreError, and keeps it."""
        with self._lock:
            usage, wanted = self._usage, self._wanted
            self._usage, self._wanted = {}, {}
        try:
            self._artifacts.add_usage(Usage(*key, *value) for key, value in usage.items())
            usage = {}
            if wanted:
                self._look()
                self._queue.submit(_wanted(*one) for one in wanted.items() if one[0] not in self._ended)
        except BaseException:
            self._put_back(usage, wanted)
            raise

    def _put_back(self, usage: dict[Any, Any], wanted: dict[Any, Any]) -> None:
        with self._lock:
            for key, value in usage.items():
                self._count(*key, *value)
            for key, (calls, *rest) in wanted.items():
                more, *_ = self._wanted.get(key, (0,))
                self._wanted[key] = (calls + more, *rest)

    def _look(self) -> None:
        """Learn which requests have ended; after the first time, among the newest alone."""
        for one in self._queue.requests(_ENDED, most=self._most):
            self._ended[one.wanted.gpu, one.wanted.gemm] = one.ended_s or 0.0
        self._most, oldest_s = MAX_NEW, self._queue.clock_s() - AGAIN_S
        if min(self._ended.values(), default=oldest_s) < oldest_s:
            self._ended = {key: at_s for key, at_s in self._ended.items() if at_s >= oldest_s}


def _wanted(key: tuple[str, Gemm], value: tuple[int, float, Sequence[int], str]) -> Wanted:
    (gpu, gemm), (calls, gain_us, lds, by) = key, value
    return Wanted(gemm, gpu, float(calls), gain_us, {"lds": list(lds)} if lds else {}, by)
