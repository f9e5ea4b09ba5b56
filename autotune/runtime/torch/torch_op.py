"""torch.ops.autotune.sgemm: a table's products and batches as an operator of torch, with derivatives by it.

torch.compile and torch.export take it as it is: they know its result's shape (a fake kernel) and its
derivatives, backward and forward.

There are two operators. With `sgemm` torch does nothing for tensors that need no derivative: they go to the
core at once. All others go to `sgemm_with_gradients`, which traced programs contain: if an operator has
derivatives, torch enters a kernel in Python twice, which takes as long as a product.

Within transforms of torch.func both come to the rules of one torch.autograd.Function before anything else
sees them. There alone do such rules hold for any nesting of transforms: a kernel behind would be called for a
single level, with tensors that hide others.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from itertools import chain, count
from typing import TYPE_CHECKING, Any

from ...files.errors import DispatchError
from ..native.processes import FORK_LOCK

if TYPE_CHECKING:
    from ..dispatcher import Dispatcher

_SCHEMA = "(Tensor a, Tensor b, *, float alpha=1.0, bool trans_a=False, bool trans_b=False) -> Tensor"
_KEY = "CUDA"  # of torch's dispatcher
# Keys, too: what comes before _KEY
_DERIVED, _MAPPED, _TRANSFORMED = "Autograd", "Batched", "FuncTorchDynamicLayerFrontMode"
_served: dict[Dispatcher, tuple[Any, Any]] = {}  # torch's library, to be kept, and the operator
Sgemm = Callable[..., Any]  # (a, b, *, alpha, trans_a, trans_b) -> C


def register(dispatcher: Dispatcher) -> Any:
    """The operator, alpha op(a) op(b), that this dispatcher serves: the first of a process is named `sgemm`,
    those of others `sgemm_2` and so on. Raises DispatchError if torch is not imported."""
    torch = sys.modules.get("torch")
    if torch is None:
        raise DispatchError("torch is not imported; import it before its operator is made")
    with FORK_LOCK:
        if dispatcher not in _served:
            _served[dispatcher] = _made(torch, dispatcher)
        return _served[dispatcher][1]


def _made(torch: Any, dispatcher: Dispatcher) -> tuple[Any, Any]:
    operators, library = torch.ops.autotune, torch.library.Library("autotune", "FRAGMENT")
    endings = chain([""], (f"_{number}" for number in count(2)))
    ending = next(one for one in endings if not hasattr(operators, f"sgemm{one}"))  # of other exports, too
    name, traced_name = f"sgemm{ending}", f"sgemm_with_gradients{ending}"
    for one in (name, traced_name):
        library.define(f"{one}{_SCHEMA}")
    sgemm, traced = getattr(operators, name), getattr(operators, traced_name)
    rules = _rules_of(torch, sgemm, traced)
    library.impl(traced_name, _kernel_of(dispatcher), _KEY)
    torch.library.register_fake(f"autotune::{traced_name}", _fake, lib=library)
    library.impl(traced_name, _derived(torch, rules), _DERIVED)
    library.impl(name, _composite_of(dispatcher, traced), "CompositeImplicitAutograd")
    for one in (name, traced_name):
        library.impl(one, _mapped(torch, sgemm), _MAPPED)
        library.impl(one, _transformed(torch, rules, traced), _TRANSFORMED)
    return library, sgemm


def _composite_of(dispatcher: Dispatcher, traced: Sgemm) -> Sgemm:
    """Made of other operators, as torch has it: of one, which modes of torch see."""

    def sgemm(a: Any, b: Any, *, alpha: float = 1.0, trans_a: bool = False, trans_b: bool = False) -> Any:
        found = dispatcher.sgemm_by_core(a, b, alpha, trans_a, trans_b)
        return traced(a, b, alpha=alpha, trans_a=trans_a, trans_b=trans_b) if found is None else found

    return sgemm


def _kernel_of(dispatcher: Dispatcher) -> Sgemm:
    def sgemm(a: Any, b: Any, *, alpha: float = 1.0, trans_a: bool = False, trans_b: bool = False) -> Any:
        found = dispatcher.sgemm_by_core(a, b, alpha, trans_a, trans_b, is_below_autograd=True)
        if found is None:  # a call signature that is new
            a, b = (_with_rows(x).detach() for x in (a, b))  # derivatives are the operator's
            found = dispatcher.sgemm(a, b, alpha=alpha, trans_a=trans_a, trans_b=trans_b)
        return found

    return sgemm


def _with_rows(x: Any) -> Any:
    """The tensor itself if its rows or columns are contiguous, else a copy, as of expanded gradients."""
    return x if x.dim() < 2 or 1 in x.stride()[-2:] or not x.numel() else x.contiguous()


def _fake(a: Any, b: Any, *, alpha: float = 1.0, trans_a: bool = False, trans_b: bool = False) -> Any:
    """The result's shape. What a product would refuse is refused when it is traced."""
    torch = sys.modules["torch"]
    _check_matrices(a.dim(), b.dim())
    for role, x in (("a", a), ("b", b)):
        if x.dtype != torch.float32:
            raise DispatchError(f"{role} has dtype {x.dtype}; convert it with .float()")
    inner_a, inner_b = a.shape[-2 if trans_a else -1], b.shape[-1 if trans_b else -2]
    torch._check_with(DispatchError, inner_a == inner_b, lambda: _mismatch(inner_a, inner_b))
    stack = torch.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    return a.new_empty((*stack, a.shape[-1 if trans_a else -2], b.shape[-2 if trans_b else -1]))


def _mismatch(inner_a: Any, inner_b: Any) -> str:
    return f"inner extents differ, {inner_a} and {inner_b}; check shapes, trans_a and trans_b"


def _check_matrices(num_dims_a: int, num_dims_b: int) -> None:
    if num_dims_a < 2 or num_dims_b < 2:
        raise DispatchError(
            f"a has {num_dims_a} dimensions and b has {num_dims_b}, fewer than 2; reshape them to matrices"
        )


def _derived(torch: Any, rules: Any) -> Sgemm:
    forward_mode = torch.autograd.forward_ad

    def sgemm(a: Any, b: Any, *, alpha: float = 1.0, trans_a: bool = False, trans_b: bool = False) -> Any:
        is_backward = torch.is_grad_enabled() and (a.requires_grad or b.requires_grad)
        if is_backward or forward_mode._current_level >= 0:
            return rules.apply(a, b, alpha, trans_a, trans_b)
        return rules.forward(a, b, alpha, trans_a, trans_b)

    return sgemm


def _transformed(torch: Any, rules: Any, traced: Sgemm) -> Sgemm:
    functorch = torch._C._functorch

    def sgemm(a: Any, b: Any, *, alpha: float = 1.0, trans_a: bool = False, trans_b: bool = False) -> Any:
        if functorch.peek_interpreter_stack().key() != functorch.TransformType.Functionalize:
            return rules.apply(a, b, alpha, trans_a, trans_b)
        level = torch._functorch.pyfunctorch.retrieve_current_functorch_interpreter()
        is_wrapped, adds_views = functorch.is_functionaltensor, level.functionalize_add_back_views()
        a, b = (functorch._unwrap_functional_tensor(x, adds_views) if is_wrapped(x) else x for x in (a, b))
        with level.lower():  # it changes nothing in place
            found = traced(a, b, alpha=alpha, trans_a=trans_a, trans_b=trans_b)
        return functorch._wrap_functional_tensor(found, level.level())

    return sgemm


def _mapped(torch: Any, sgemm: Sgemm) -> Sgemm:
    """Under the older vmap, by which torch.autograd computes many gradients at once."""
    of_torch = torch._C

    def mapped(a: Any, b: Any, *, alpha: float = 1.0, trans_a: bool = False, trans_b: bool = False) -> Any:
        level = of_torch._vmapmode_decrement_nesting() + 1  # an outer one may map what is left
        try:
            is_mapped = of_torch._functorch.is_legacy_batchedtensor
            dims = tuple(0 if is_mapped(x) else None for x in (a, b))
            if dims[0] == 0:
                a = torch._remove_batch_dim(a, level, 1, 0)
            if dims[1] == 0:
                b = torch._remove_batch_dim(b, level, 1, 0)
            found = sgemm(*_stacked(a, b, dims), alpha=alpha, trans_a=trans_a, trans_b=trans_b)
        finally:
            of_torch._vmapmode_increment_nesting()
        return torch._add_batch_dim(found, 0, level)

    return mapped


def _rules_of(torch: Any, sgemm: Sgemm, traced: Sgemm) -> Any:
    """The derivatives of C = alpha op(a) op(b), and many products as one batch, by the operator itself."""

    class Rules(torch.autograd.Function):  # type: ignore[misc]
        @staticmethod
        def forward(a: Any, b: Any, alpha: float, trans_a: bool, trans_b: bool) -> Any:
            with torch._C._AutoDispatchBelowAutograd():
                return traced(a, b, alpha=alpha, trans_a=trans_a, trans_b=trans_b)

        @staticmethod
        def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
            a, b, *ctx.options = inputs
            ctx.save_for_backward(a, b)
            ctx.save_for_forward(a, b)
            ctx.set_materialize_grads(False)  # a product with zeros takes as long as any

        @staticmethod
        def backward(ctx: Any, grad: Any) -> tuple[Any, ...]:
            return *_gradients(ctx, grad, sgemm), None, None, None

        @staticmethod
        def jvp(ctx: Any, tangent_a: Any, tangent_b: Any, *_: Any) -> Any:
            a, b = ctx.saved_tensors
            pairs = ((tangent_a, b), (a, tangent_b))
            parts = [_with_options(sgemm, ctx, *pair) for pair in pairs if all(x is not None for x in pair)]
            return parts[0] if len(parts) == 1 else parts[0] + parts[1]

        @staticmethod
        def vmap(_: Any, dims: tuple[Any, ...], a: Any, b: Any, *options: Any) -> tuple[Any, int]:
            alpha, trans_a, trans_b = options
            return sgemm(*_stacked(a, b, dims), alpha=alpha, trans_a=trans_a, trans_b=trans_b), 0

    return Rules


def _with_options(sgemm: Sgemm, ctx: Any, a: Any, b: Any) -> Any:
    alpha, trans_a, trans_b = ctx.options
    return sgemm(a, b, alpha=alpha, trans_a=trans_a, trans_b=trans_b)


def _gradients(ctx: Any, grad: Any, sgemm: Sgemm) -> tuple[Any, Any]:
    if grad is None:
        return None, None
    a, b = ctx.saved_tensors
    alpha, trans_a, trans_b = ctx.options
    needs_a, needs_b = ctx.needs_input_grad[:2]
    of_a = of_b = None
    if needs_a and trans_a:
        of_a = sgemm(b, grad, alpha=alpha, trans_a=trans_b, trans_b=True)
    elif needs_a:
        of_a = sgemm(grad, b, alpha=alpha, trans_b=not trans_b)
    if needs_b and trans_b:
        of_b = sgemm(grad, a, alpha=alpha, trans_a=True, trans_b=trans_a)
    elif needs_b:
        of_b = sgemm(a, grad, alpha=alpha, trans_a=not trans_a)
    return _summed(of_a, a), _summed(of_b, b)


def _summed(grad: Any, like: Any) -> Any:
    """The sum of the gradients of an operand that all products share."""
    return grad if grad is None or grad.shape == like.shape else grad.sum_to_size(like.shape)


def _stacked(a: Any, b: Any, dims: tuple[Any, ...]) -> tuple[Any, Any]:
    """Operands whose mapped dimension, None for one that all share, is the outermost of a batch."""
    num_dims = [x.dim() - (at is not None) for x, at in zip((a, b), dims, strict=False)]
    _check_matrices(*num_dims)
    found = []
    for x, at, num_own in zip((a, b), dims, num_dims, strict=False):
        if at is not None:
            x = x.movedim(at, 0)
            for _ in range(max(num_dims) - num_own):
                x = x.unsqueeze(1)
        found.append(x)
    return found[0], found[1]
