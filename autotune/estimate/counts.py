"""What a program computes: FP32 products by call signature, as they are recorded, and other work by what it
is.

Knows torch's tensors by their shapes, strides and addresses only.
"""

from __future__ import annotations

import json
import math
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ..facts.gemm import FLOAT_BYTES, Gemm, Triple
from ..files.errors import DispatchError
from ..kernel.launch import PLAIN, Epilogue, name_of
from ..runtime.calls.product import Product, folded, form_of, read_operands, stacked
from ..runtime.choose.chooser import OTHERS, TUNED_ALIGNMENT, Counted

CALLS, WORK = "calls.json", "work.json"  # in the folder that is written
FP32 = "products in float32"  # that a table may serve
TF32 = "products in float32 while the program allows TF32"
UNSUPPORTED = "products in float32 of strides that no kernel takes"
ON_HOST = "products on the CPU"
EVERY_S = 0.5  # between two writes
_MOST_SHARE = 0.05  # of the time, for writing
_MATRIX, _STACK = 2, 3  # dimensions
MAX_KINDS = 1 << 16  # of call that are counted separately
_VERSION = 2  # of the format of core/recorder.c, which suite.py reads


class WorkCounts:
    """Counts of a process, which may be killed at any moment: what it writes into `folder` is seldom older
    than EVERY_S. Threads may share it. `allows_tf32`: whether the program does now."""

    def __init__(self, folder: Path, allows_tf32: Callable[[], bool]) -> None:
        self._folder, self._allows_tf32 = folder, allows_tf32
        self._calls: Counter[Counted] = Counter()  # by kind
        self._work: dict[str, list[int]] = {FP32: [0, 0]}  # calls and FLOP
        self._within = threading.local()
        self._lock = threading.Lock()
        self._pid, self._due_s = os.getpid(), 0.0
        self._started_s = self._ended_s = 0.0  # the first and the last work
        self.facts: dict[str, Any] = {"is_cut_short": False}  # that are written, too

    @contextmanager
    def within(self, what: str) -> Iterator[None]:
        """What this thread multiplies meanwhile is part of other work; "": which is counted as a whole."""
        before = self.what_within()
        self._within.what = what if before is None else before
        try:
            yield
        finally:
            self._within.what = before

    def what_within(self) -> str | None:
        return getattr(self._within, "what", None)

    def product(
        self, a: Any, b: Any, out: Any = None, part_of: str | None = None, epilogue: Epilogue = PLAIN
    ) -> None:
        """One product of two matrices or stacks; packed without an out. `part_of`: as `within`."""
        flops, what = 2 * math.prod(a.shape) * b.shape[-1], part_of
        if not flops or what == "":
            return
        problem = None
        if what is None:
            what, problem = self._classify(a, b, out)
        if problem is not None:
            addresses = a.data_ptr(), b.data_ptr(), 0 if out is None else out.data_ptr()
            self._count(problem, addresses, epilogue)
        self.add(what, flops)

    def _count(self, problem: Product, addresses: Triple, epilogue: Epilogue) -> None:
        a, b, c = map(_alignment, addresses)
        kind = Counted(problem.gemm, problem.lds, (a, b, c), epilogue, "", 1, "cublas", calls=0)
        with self._lock:
            is_known = kind in self._calls or len(self._calls) < MAX_KINDS
            self._calls[kind if is_known else OTHERS] += 1

    def _classify(self, a: Any, b: Any, out: Any) -> tuple[str, Product | None]:
        """What a product counts as, and the product itself if a table may serve it."""
        dtype = str(a.dtype).removeprefix("torch.")
        if dtype != "float32":
            return f"products in {dtype}", None
        if self._allows_tf32():
            return TF32, None
        (form_a, leading_a), (form_b, leading_b) = (form_of(x.shape, x.stride()) for x in (a, b))
        form_c, leading_c = (None, None) if out is None else form_of(out.shape, out.stride())
        forms, leading = (form_a, form_b, form_c), (leading_a, leading_b, leading_c)
        try:
            if len(a.shape) == _MATRIX:
                return FP32, read_operands(*forms, False, False)
            stack = stacked(forms, leading, False, False)
            problem = read_operands(*forms, False, False, stack.batch)
            return FP32, folded(problem) or problem
        except DispatchError:
            return UNSUPPORTED, None

    def add(self, what: str, flops: float) -> None:
        """One call of some work."""
        now_s = time.monotonic()
        with self._lock:
            done = self._work.setdefault(what, [0, 0])
            done[0] += 1
            done[1] += round(flops)
            self._started_s, self._ended_s = self._started_s or now_s, now_s
        if now_s > self._due_s:
            self.write()

    @property
    def seconds(self) -> float:
        """From the first work to the last."""
        return self._ended_s - self._started_s

    def calls(self) -> list[Counted]:
        """Of products that a table may serve."""
        with self._lock:
            return [kind._replace(calls=calls) for kind, calls in reversed(self._calls.items())]

    def write(self) -> None:
        """Write the counts. A forked child writes nothing: they are its parent's."""
        if os.getpid() != self._pid:
            return
        started_s = time.monotonic()
        self._due_s = math.inf
        with self._lock:
            work = [
                {"what": what, "calls": calls, "flops": flops} for what, (calls, flops) in self._work.items()
            ]
        _replace(self._folder / CALLS, rendered(self.calls()))
        _replace(self._folder / WORK, json.dumps({"work": work, **self.facts}))
        now_s = time.monotonic()
        self._due_s = now_s + max(EVERY_S, (now_s - started_s) / _MOST_SHARE)


def rendered(counts: Iterable[Counted]) -> str:
    """The text of a file of calls, as the core writes it."""
    rows, others = [], 0
    for counted in counts:
        if counted.gemm is None:
            others += counted.calls
            continue
        gemm, (lda, ldb, ldc), (a, b, c) = counted.gemm, counted.lds, counted.alignment
        rows.append(
            f'{{"m": {gemm.m}, "n": {gemm.n}, "k": {gemm.k}, "layout": "{gemm.layout}", {_batch(gemm)}'
            f"{_epilogue(counted.epilogue)}"
            f'"ld": [{lda}, {ldb}, {ldc}], "align": [{a}, {b}, {c}], "count": {counted.calls}}}'
        )
    lines = ",\n".join(rows)
    return f'{{"version": {_VERSION}, "shape": [\n{lines}\n], "others": {others}}}\n'


def _batch(gemm: Gemm) -> str:
    shared = '"shared": "a", ' if gemm.shares_a else '"shared": "b", ' if gemm.shares_b else ""
    return f'"batch": {gemm.batch}, {shared}' if gemm.is_batched else ""


def _epilogue(epilogue: Epilogue) -> str:
    return "" if epilogue == PLAIN else f'"epilogue": "{name_of(epilogue)}", '


def _alignment(address: int) -> int:
    """The largest power of two that divides an address, from a float's size up to a vector's."""
    return max(FLOAT_BYTES, (address | TUNED_ALIGNMENT) & -(address | TUNED_ALIGNMENT))


def _replace(path: Path, content: str) -> None:
    part = path.with_name(f".{path.name}.{threading.get_ident()}")
    part.write_text(content, encoding="utf-8")
    part.replace(path)
