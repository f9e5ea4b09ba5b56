"""Has torch tell `WorkCounts` what it computes, for as long as a context is entered.

Products are seen where a table's routing would serve them (torch_routing.py): kernels of torch's
dispatcher count them, and call torch's own. Other work is seen by a mode of the dispatcher. Without a GPU the
program runs on the CPU (no_gpu.py), and what is one kernel on a GPU counts as one.
"""

from __future__ import annotations

import math
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from functools import cache, partial, wraps
from typing import Any

import torch
from torch.jit._builtins import _find_builtin, _register_builtin
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from ..facts.cublas_calls import forced_tf32
from ..kernel.launch import BIAS, PLAIN
from .counts import ON_HOST, WorkCounts
from .no_gpu import OnCpu, as_on_a_gpu, replace

CONVOLUTIONS = "convolutions"
ATTENTION = "attention in one kernel"
RECURRENT = "recurrent layers"
VECTORS = "products of a matrix and a vector"
LINALG = "factorizations and solves"
_PRODUCTS = tuple(f"{name}{out}" for name in ("mm", "addmm", "bmm", "baddbmm") for out in ("", ".out"))
_FUSED = (  # functions that are one kernel on a GPU, and several products on a CPU
    (torch.nn.functional, "scaled_dot_product_attention", ATTENTION),
    *((torch._VF, name, RECURRENT) for name in ("lstm", "gru", "rnn_tanh", "rnn_relu")),
)
_BACKWARD = 2.5  # times the products of attention's forward pass: five for two
_PER_ELEMENT = {  # FLOP for each element of a matrix and each of its rows
    "linalg_cholesky_ex": 1 / 3, "linalg_lu_factor_ex": 2 / 3, "_linalg_solve_ex": 2 / 3,
    "linalg_inv_ex": 2.0, "linalg_solve_triangular": 1.0, "triangular_solve": 1.0, "cholesky_solve": 2.0,
}  # fmt: skip
_MARK = "autotune"  # of nodes of autograd, in their metadata


@contextmanager
def counted(counts: WorkCounts) -> Iterator[None]:
    """Within it torch's work is counted, in all threads that begin there."""
    is_on_gpu = torch.cuda.is_available()
    with ExitStack() as entered:
        kept = [_counting_products(counts, "CPU", is_other=is_on_gpu)]
        if is_on_gpu:
            kept.append(_counting_products(counts, "CUDA", is_other=False))
        else:
            entered.enter_context(as_on_a_gpu())
            for owner, name, part in _FUSED:
                replace(owner, name, _as_one(getattr(owner, name), part, counts), entered)
        entered.callback(kept.clear)  # torch takes back what it registered
        replace(threading.Thread, "start", _starting_in(partial(_modes, counts, is_on_gpu)), entered)
        with _modes(counts, is_on_gpu):
            yield


@contextmanager
def _modes(counts: WorkCounts, is_on_gpu: bool) -> Iterator[None]:
    """Torch's modes are a thread's own."""
    with nullcontext() if is_on_gpu else OnCpu(), _OtherWork(counts):
        yield


def _starting_in(entered: Callable[[], Any]) -> Callable[[threading.Thread], None]:
    """`Thread.start` of threads that run within a context."""
    start = threading.Thread.start

    def start_in(thread: threading.Thread) -> None:
        run = thread.run

        def run_in() -> None:
            with entered():
                run()

        thread.run = run_in  # type: ignore[method-assign]
        start(thread)

    return start_in


def allows_tf32() -> bool:
    """Whether products on CUDA are made with it now (as TorchRouting asks)."""
    return bool(forced_tf32() or torch.backends.cuda.matmul.fp32_precision == "tf32")


def _counting_products(counts: WorkCounts, key: str, *, is_other: bool) -> Any:
    """Kernels for a key of torch's dispatcher, while the result lives. `is_other`: not the GPU's."""
    library = torch.library.Library("aten", "IMPL")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # replacing a kernel is intended
        for name in _PRODUCTS:
            own = torch.library.get_kernel(f"aten::{name}", key)
            kernel = _counting(counts, own.call_boxed, ON_HOST if is_other else None)
            library.impl(name, kernel, key, with_keyset=True)
    return library


def _counting(counts: WorkCounts, own: Callable[..., Any], what: str | None) -> Callable[..., Any]:
    def kernel(keys: Any, *operands: Any, **options: Any) -> Any:
        found = own(keys, *operands, **options)
        *c, a, b = operands
        epilogue = BIAS if c and options.get("beta", 1) == 1 and c[0].shape == b.shape[-1:] else PLAIN
        counts.product(a, b, options.get("out"), what or _part_of(counts), epilogue)
        return found

    return kernel


def _part_of(counts: WorkCounts) -> str | None:
    """What a product is part of: something that this thread does, or whose backward pass it is in."""
    within = counts.what_within()
    if within is not None:
        return within
    node = torch._C._current_autograd_node()
    return None if node is None else node.metadata.get(_MARK)


class _OtherWork(TorchDispatchMode):
    """Counts all but products of matrices."""

    def __init__(self, counts: WorkCounts) -> None:
        super().__init__()
        self._counts = counts

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if _is_composite(func):  # seen in inference mode alone; its parts are to be seen, too
            with self:
                return func.decompose(*args, **kwargs)
        name = func._schema.name.removeprefix("aten::")
        what = _what(name)
        if what is None:
            return func(*args, **kwargs)
        with self._counts.within(""):
            found = func(*args, **kwargs)
        self._counts.add(self._counts.what_within() or what, _flops(what, name, func, args, kwargs, found))
        return found


@cache
def _is_composite(func: Any) -> bool:
    return bool(torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), "CompositeImplicitAutograd"))


@cache
def _what(name: str) -> str | None:
    """The kind of work of an operator; None of one whose work is products, or next to none."""
    if "_rnn" in name:
        return RECURRENT
    if "_attention" in name and not name.endswith("_math"):
        return ATTENTION
    if name in ("mv", "addmv"):
        return VECTORS
    if name in _PER_ELEMENT:
        return LINALG
    return CONVOLUTIONS if getattr(torch.ops.aten, name, None) in flop_registry and "conv" in name else None


def _flops(what: str, name: str, func: Any, args: Any, kwargs: Any, found: Any) -> Any:
    if what == CONVOLUTIONS:
        return flop_registry[func.overloadpacket](*args, **kwargs, out_val=found)
    matrices = [x for x in _tensors(args) if x.dim() > 1]
    is_backward = name.endswith("_backward")
    if what == ATTENTION:
        query, key, value = matrices[is_backward:][:3]
        per_query = 2 * key.shape[-2] * (query.shape[-1] + value.shape[-1])
        return math.prod(query.shape[:-1]) * per_query * (_BACKWARD if is_backward else 1)
    if what == RECURRENT:
        weights = args[1] if isinstance(args[1], (list, tuple)) else args[1:3]
        each = sum(x.numel() for x in weights if x.dim() > 1)
        return 2.0 * math.prod(args[0].shape[:-1]) * each * (2 if is_backward else 1)
    if what == VECTORS:
        return 2.0 * matrices[0].numel()
    return _PER_ELEMENT[name] * max(x.numel() for x in matrices) * matrices[-1].shape[-1]


def _mark(found: Any, given: Any, what: str) -> None:
    """Have products of its backward pass count as a part of other work: from its results to what it took."""
    passed = {None, *(x.grad_fn for x in _tensors(given))}
    waiting = [x.grad_fn for x in _tensors(found)]
    while waiting:
        node = waiting.pop()
        if node not in passed:
            passed.add(node)
            node.metadata[_MARK] = what
            waiting += [before for before, _ in node.next_functions]


def _tensors(value: Any) -> Iterator[Any]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for one in value:
            yield from _tensors(one)


def _is_fused(query: Any, *_: Any, enable_gqa: bool = False, **__: Any) -> bool:
    """Whether a GPU has one kernel for such an attention in float32; else it multiplies matrices, too."""
    return query.dim() == 4 and query.shape[-1] % 4 == 0 and not enable_gqa


def _as_one(function: Callable[..., Any], what: str, counts: WorkCounts) -> Callable[..., Any]:
    @wraps(function)
    def counted_as_one(*args: Any, **kwargs: Any) -> Any:
        if what == ATTENTION and not _is_fused(*args, **kwargs):
            return function(*args, **kwargs)
        with counts.within(what):
            found = function(*args, **kwargs)
        _mark(found, (args, *kwargs.values()), what)
        return found

    _register_builtin(counted_as_one, _find_builtin(function))  # TorchScript compiles it as torch's own
    return counted_as_one
