"""Routes FP32 products of an unmodified program of torch to a table, where that is expected to be faster.

While routing is on, torch's dispatcher has other kernels for aten's mm, addmm, bmm and baddbmm on CUDA
(torch.library, kind "IMPL"). All products of matrices arrive there: from Python and C++, of `linear` and
`matmul`, of backward passes, which torch runs in other threads, and of compiled programs. Autograd and
autocast are above and unchanged. Products that are left alone go to torch's own kernel, so no call arrives
twice. If possible, kernels in C++ come before these (torch_router.py): of a known kind only calls arrive here
that those do not read.

Left alone are other dtypes, products while the program allows TF32, and call signatures for which cuBLAS is
expected to be as fast. The first call of a kind decides what serves it.
"""

from __future__ import annotations

import sys
import threading
import warnings
from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple

from ...facts.cublas_calls import forced_tf32
from ...facts.gemm import Gemm
from ...files.errors import DispatchError
from ...files.words import counted
from ...kernel.launch import BIAS, Epilogue
from ..calls.arrays import Torch
from ..calls.product import MAX_PLANS, stacked
from ..launch.planner import LiveState, key_of
from .routed_engine import AllSignatures, Decided, RoutedEngine, RoutedSignatures
from .torch_router import NoRouter, ProgramGain, Router

_ENTERED = threading.Lock()  # one routing at a time: torch's dispatcher is one for all threads
_TF32, _DTYPE = "the program allows TF32", "another dtype than float32"
_MISMATCHED = "tensors that do not fit each other"
_BEFORE_TABLES = (_MISMATCHED, _DTYPE, _TF32)  # in the order in which they are checked
_MATRIX, _STACK = 2, 3  # dimensions
_TENSOR = "a tensor that is not read in C, a scale beyond float32, or memory that overlaps"
_MOST_FLOAT = 3.4028234663852886e38
_MAX_LISTED = 20  # kinds of a report
_HOW_KNOWN = ("predicted, not measured", "predicted, measured where that settled what serves")
Own = Callable[..., Any]


class RoutedSignature(NamedTuple):
    """Calls of one kind: their number, the time of one in us (0: unknown), and why they were left alone ("":
    they were served)."""

    gemm: Gemm
    has_bias: bool
    num_calls: int
    expected_us: float
    cublas_us: float
    reason: str

    @property
    def saved_us(self) -> float:
        """The GPU time that all of them are predicted to have saved, or were seen to by those that settled
        them."""
        is_known = not self.reason and self.expected_us and self.cublas_us
        return self.num_calls * (self.cublas_us - self.expected_us) if is_known else 0.0

    def __str__(self) -> str:
        bias = " and a bias" if self.has_bias else ""
        times = f"predicted {self.expected_us:.1f} us, cuBLAS {self.cublas_us:.1f} us"
        return f"{self.num_calls:,} x {self.gemm}{bias}: {times}"


class TorchRouting:
    """A context: products of torch are routed within it, in all threads. It may be entered again; its report
    covers all its uses. Torch exchanges kernels without a lock: no thread may multiply while it is
    entered or left. `no_router`: why only kernels in Python route; "": those in C++ come before them.

    Raises DispatchError if torch is missing or too old, if another one is already entered, or if the core was
    not built."""

    def __init__(self, make_engine: Callable[[bool], RoutedSignatures]) -> None:
        self._torch = torch = _torch()
        self._float32 = torch.float32
        self._library: Any = None
        plain, biased = make_engine(False), make_engine(True)
        self._plain, self._biased = _Products(plain), _Products(biased)
        self._others: Counter[str] = Counter()
        self._router: Router | None = None
        self.gain: ProgramGain | None = None  # the last one that was measured
        self.no_router = ""
        try:
            tables = plain.tables, biased.tables
            self._router = Router(torch, *tables, _BEFORE_TABLES, self._key, is_live=plain.is_live)
        except NoRouter as reason:
            self.no_router = str(reason)

    def __enter__(self) -> TorchRouting:
        if not _ENTERED.acquire(blocking=False):
            raise DispatchError("products of torch are routed already; leave that `with` first")
        try:
            self._library = self._register()
        except BaseException:
            _ENTERED.release()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        if self._router is not None:
            self._router.leave()
        self._keep_settled()
        self._library = None  # torch takes back what it registered
        _ENTERED.release()

    def _register(self) -> Any:
        library = self._torch.library.Library("aten", "IMPL")
        routed = {
            "mm": (self._mm, _MATRIX), "mm.out": (self._mm_out, _MATRIX),
            "addmm": (self._addmm, _MATRIX), "addmm.out": (self._addmm_out, _MATRIX),
            "bmm": (self._mm, _STACK), "bmm.out": (self._mm_out, _STACK),
            "baddbmm": (self._addmm, _STACK), "baddbmm.out": (self._addmm_out, _STACK),
        }  # fmt: skip
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # replacing a kernel is intended
            for name, (make, num_dims) in routed.items():
                own = self._torch.library.get_kernel(f"aten::{name}", self._key)
                if f"Register{self._key}" not in str(own):
                    self._do_without("another library has replaced torch's kernels")
                library.impl(name, make(own.call_boxed, num_dims), self._key, with_keyset=True)
        try:
            if self._router is not None:
                self._router.enter()
        except NoRouter as reason:
            self._do_without(str(reason))
        return library

    def exchange(self, make: Callable[[bool], Callable[[int], RoutedEngine]]) -> None:
        """Route to other tables from the next call on: `make` has what makes their engines, without and with
        a bias."""
        self._plain.exchange(make(False))
        self._biased.exchange(make(True))

    def _keep_settled(self) -> None:
        for products in (self._plain, self._biased):
            products.keep_settled()

    def _do_without(self, reason: str) -> None:
        """Continue without the router in C++."""
        self._router, self.no_router = None, self.no_router or reason

    _key = "CUDA"  # of torch's dispatcher

    # What torch calls: like its own kernels, which are `own`. Those of batches have the same arguments

    def _mm(self, own: Own, num_dims: int) -> Own:
        def mm(keys: Any, a: Any, b: Any) -> Any:
            is_open = self._is_open(a, b, num_dims)
            found = self._serve(self._plain, a, b, None, 1.0, 0.0) if is_open else None
            return own(keys, a, b) if found is None else found

        return mm

    def _mm_out(self, own: Own, num_dims: int) -> Own:
        def mm_out(keys: Any, a: Any, b: Any, *, out: Any) -> Any:
            is_open = self._is_open(a, b, num_dims)
            found = self._serve(self._plain, a, b, out, 1.0, 0.0) if is_open else None
            return own(keys, a, b, out=out) if found is None else found

        return mm_out

    def _addmm(self, own: Own, num_dims: int) -> Own:
        def addmm(keys: Any, c: Any, a: Any, b: Any, *, beta: Any = 1, alpha: Any = 1) -> Any:
            is_open = self._is_open(a, b, num_dims, c)
            found = self._serve_sum(c, a, b, beta, alpha, None) if is_open else None
            return own(keys, c, a, b, beta=beta, alpha=alpha) if found is None else found

        return addmm

    def _addmm_out(self, own: Own, num_dims: int) -> Own:
        def addmm_out(keys: Any, c: Any, a: Any, b: Any, *, beta: Any = 1, alpha: Any = 1, out: Any) -> Any:
            is_open = self._is_open(a, b, num_dims, c)
            found = self._serve_sum(c, a, b, beta, alpha, out) if is_open else None
            return own(keys, c, a, b, beta=beta, alpha=alpha, out=out) if found is None else found

        return addmm_out

    def _is_open(self, a: Any, b: Any, num_dims: int, c: Any = None) -> bool:
        """Whether a table is asked. Only for matrices, or stacks of equally many, and a C that fits: torch
        reports what is wrong with others, which the core would broadcast, or not read."""
        reason = ""
        if not (a.dim() == b.dim() == num_dims and _have_same_count(a, b, c)):
            reason = _MISMATCHED
        elif any(x.dtype is not self._float32 for x in (a, b, c) if x is not None):
            reason = _DTYPE
        elif self._allows_tf32():
            reason = _TF32
        if reason:
            self._others[reason] += 1
        return not reason

    def _serve(
        self, products: _Products, a: Any, b: Any, out: Any, alpha: float, beta: float, bias: Any = None
    ) -> Any | None:
        """The result, or None for a call that is left alone. `bias`: a vector that the epilogue adds."""
        served = products.sgemm(a, b, out, alpha, beta, bias)
        if served is None:
            self._leave()
        return served if served is not False else None

    def _serve_sum(self, c: Any, a: Any, b: Any, beta: Any, alpha: Any, out: Any) -> Any | None:
        """As `_serve`, if C is read; C has the result's extents, or broadcasts to them."""
        if max(abs(alpha), abs(beta)) > _MOST_FLOAT:
            self._leave()
            return None
        if beta == 0:
            return self._serve(self._plain, a, b, out, alpha, 0.0)
        extents = (*a.shape[:-1], b.shape[-1])
        if beta == 1 and self._biased.adds(c, a, extents[-1]) and (out is None or _is_apart(out, c)):
            return self._serve(self._biased, a, b, out, alpha, 0.0, c)
        products = self._plain if c.shape == extents else self._biased
        if out is None:
            if not products.is_served(a, b):
                return None
            out = a.new_empty(extents)
        elif out.shape != extents or not _is_apart(out, a, b) or not products.is_served(a, b):
            return None
        try:
            out.copy_(c)
        except (RuntimeError, ValueError):  # C does not broadcast, or overlaps the out: torch tells of it
            self._leave()
            return None
        return self._serve(products, a, b, out, alpha, beta)

    def _leave(self) -> None:
        self._others[_TENSOR] += 1

    def _allows_tf32(self) -> bool:
        """As torch's products on CUDA ask, and the router in C++: whatever way it was set in last."""
        return bool(self._torch.backends.cuda.matmul.fp32_precision == "tf32")

    # What it tells

    def kinds(self) -> list[RoutedSignature]:
        """All kinds so far: first those that saved most, then those left alone most often. Of very many kinds
        those of late: the report counts the calls of all."""
        return _kinds(self._plain.call_counts(), self._biased.call_counts())

    def call_counts(self) -> Counter[str]:
        """The number of calls so far by the reason why they were left alone; "": they were served."""
        plain, biased = self._plain.call_counts(), self._biased.call_counts()
        calls = self._others + plain.forgotten + biased.forgotten
        if self._router is not None:
            calls += self._router.num_skipped()
        for kind in _kinds(plain, biased):
            calls[kind.reason] += kind.num_calls
        return calls

    @property
    def saved_us(self) -> float:
        """The GPU time that the table predicts all of them to have saved."""
        found = (self._plain.call_counts(), self._biased.call_counts())
        return sum(kind.saved_us for kind in _kinds(*found)) + sum(text.saved_us for text in found)

    def measure_gain(self) -> ProgramGain:
        """Have routing switched off and on while the program runs, to measure what it gains: from now on,
        until this is left. Raises DispatchError without the router in C++."""
        if self._router is None:
            raise DispatchError(
                "what a program gains is measured with the router in C++, which there is not: "
                f"{self.no_router}"
            )
        self.gain = ProgramGain(self._router.watch, self._wait)
        return self.gain

    def _wait(self) -> None:
        if self._torch.cuda.is_current_stream_capturing():
            raise DispatchError("the program captures a graph")
        self._torch.cuda.synchronize()

    def report(self) -> str:
        """The same as text: hits, misses with reasons, and the GPU time that the table predicts they save."""
        self._keep_settled()
        misses = self.call_counts()
        hits = misses.pop("", 0)
        lines = [
            f"{counted(hits, 'product')} served, {misses.total():,} left alone; "
            f"{_HOW_KNOWN[self._plain.is_live]}: {self.saved_us / 1e3:,.1f} ms of the GPU's time saved"
        ]
        lines += [f"  left alone: {number:,} x {reason}" for reason, number in misses.most_common()]
        lines += [f"  sums of all that is served have the order {order}" for order in self._plain.orders]
        lines += self.live_lines()
        if self.no_router:
            lines.append(f"  by kernels in Python, which take longer on the host: {self.no_router}")
        if why_tf32 := forced_tf32():
            lines.append(f"  {why_tf32}")
        served = [kind for kind in self.kinds() if not kind.reason]
        lines += [f"  {kind}" for kind in served[:_MAX_LISTED]]
        if len(served) > _MAX_LISTED:
            lines.append(f"  and {counted(len(served) - _MAX_LISTED, 'other kind')} (`kinds()` has all)")
        return "\n".join(lines)

    def live(self) -> list[LiveState]:
        """What is known of the kinds that are settled on their own calls."""
        return [*self._plain.call_counts().live, *self._biased.call_counts().live]

    def live_lines(self) -> list[str]:
        """How many kinds are settled on their own calls, and why others are not, in lines of the report."""
        if self.no_router and self._plain.is_live:
            return ["  nothing is settled on the program's calls: that takes the router in C++"]
        live = self.live()
        num_settled, num_won = sum(not one.reason for one in live), sum(one.winner > 0 for one in live)
        if not live:
            return []
        kinds = counted(len(live), "kind")
        lines = [f"  settled on their own calls: {num_settled} of {kinds}, of which {num_won} changed"]
        for name, is_dropped in (("dropped", True), ("not yet", False)):
            reasons = Counter(one.reason for one in live if one.reason and one.is_dropped == is_dropped)
            lines += [f"    {name}: {number:,} x {reason}" for reason, number in reasons.most_common()]
        return lines


class _Products:
    """Products by one engine; threads may share it. Raises DispatchError where torch is too old."""

    def __init__(self, engine: RoutedSignatures) -> None:
        self._engine, self._library = engine, Torch(is_below_autograd=True)
        self.is_live = engine.is_live
        calls = engine.tensor_calls()
        if calls is None:
            raise DispatchError("this torch does not offer its tensors to C; update it to 2.10 or later")
        self._calls = calls
        self._known: dict[tuple[Any, ...], Decided] = {}  # by what two tensors look like

    @property
    def orders(self) -> list[str]:
        return self._engine.orders

    def sgemm(self, a: Any, b: Any, out: Any, alpha: Any, beta: Any, bias: Any = None) -> Any:
        """The result; False if the call signature is left alone, None if these tensors are."""
        call = (a, b, out, alpha, beta, False, False, *(() if bias is None else (bias, 0)))
        found = self._calls.sgemm(*call)
        if found is None and self._decide(a, b, out, None if bias is None else BIAS) is not None:
            found = self._calls.sgemm(*call)
        return found

    def adds(self, c: Any, a: Any, columns: int) -> bool:
        """Whether a C that is read is a bias for which the kernels on a's GPU have an epilogue."""
        is_bias = c.dim() == 1 and c.shape[0] == columns and (columns < 2 or c.stride()[0] == 1)
        return bool(is_bias and a.is_cuda and self._engine.has(BIAS, a.get_device()))

    def is_served(self, a: Any, b: Any) -> bool:
        """Whether a product into a new C will be served."""
        key = (a.device, a.shape, a.stride(), a.data_ptr() % 16, b.shape, b.stride(), b.data_ptr() % 16)
        found = self._known.get(key)
        if found is None or found.is_forgotten:
            found = self._decide(a, b, None)
        if found is None:
            return False
        if len(self._known) >= MAX_PLANS:
            self._known.clear()
        self._known[key] = found
        if not found.is_served:  # else it is counted when it is made
            found.plan.count()
        return found.is_served

    def _decide(self, a: Any, b: Any, out: Any, epilogue: Epilogue | None = None) -> Decided | None:
        """The decision on such calls; None if there can be none."""
        try:
            at_a, device_a, form_a, leading_a = self._library.describe(a, "a")
            at_b, device_b, form_b, leading_b = self._library.describe(b, "b")
            at_c, device_c, form_c, leading_c = (
                (0, device_a, None, None) if out is None else self._library.describe(out, "out")
            )
            devices, forms, at = (device_a, device_b, device_c), (form_a, form_b, form_c), (at_a, at_b, at_c)
            batch = None
            if leading_a:
                stack = stacked(forms, (leading_a, leading_b, leading_c), False, False)
                if not stack.offsets:
                    return None
                batch = stack.batch
            return self._engine.decide(key_of(devices, forms, at, False, False, batch, epilogue))
        except DispatchError:
            return None

    def call_counts(self) -> AllSignatures:
        return self._engine.call_counts()

    def keep_settled(self) -> None:
        if self.is_live:
            self._engine.keep_settled()

    def exchange(self, make: Callable[[int], RoutedEngine]) -> None:
        self._engine.exchange(make)
        self._known.clear()


def _kinds(plain: AllSignatures, biased: AllSignatures) -> list[RoutedSignature]:
    found = [
        RoutedSignature(one.gemm, has_bias, one.num_calls, *one.times_us, one.reason)
        for has_bias, text in ((False, plain), (True, biased))
        for one in text.kinds
    ]
    return sorted(found, key=lambda kind: (-kind.saved_us, -kind.num_calls))


def _have_same_count(a: Any, b: Any, c: Any) -> bool:
    """Whether there are as many matrices in a as in b, and torch would add C at all, whatever its scale."""
    if c is None or a.shape[:-2] != b.shape[:-2]:
        return bool(a.shape[:-2] == b.shape[:-2])
    own, extents = c.shape[::-1], (b.shape[-1], *a.shape[-2::-1])
    is_expandable = len(own) <= len(extents) and all(x in (1, y) for x, y in zip(own, extents, strict=False))
    return is_expandable and bool(c.device == a.device)


def _is_apart(out: Any, *operands: Any) -> bool:
    """Whether a tensor has its own memory."""
    place = out.untyped_storage().data_ptr()
    return all(place != one.untyped_storage().data_ptr() for one in operands)


def _torch() -> Any:
    torch = sys.modules.get("torch")
    if torch is None:
        raise DispatchError("torch is not imported; import it before its products are routed")
    if not hasattr(torch.library, "get_kernel"):
        raise DispatchError(
            f"torch {torch.__version__} does not give its kernels; update it to 2.10 or later"
        )
    return torch
