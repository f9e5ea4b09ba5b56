"""torch.ops.autotune.sgemm: a table's products and batches as an operator of torch, with gradients by it.

torch.compile and torch.export take it as it is: they know its result's shape (a fake kernel) and its
gradients.

There are two operators. With `sgemm` torch does nothing for tensors that need no gradient: they go to the
core at once. All others go to `sgemm_with_gradients`, which traced programs contain: if an operator has
gradients, torch enters a kernel in Python twice, which takes as long as a product.

Copied into exported tables.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ..errors import DispatchError

if TYPE_CHECKING:
    from .dispatcher import Dispatcher

_SCHEMA = "(Tensor a, Tensor b, *, float alpha=1.0, bool trans_a=False, bool trans_b=False) -> Tensor"
_TRACED = "sgemm_with_gradients"
_served: list[tuple[Any, Dispatcher]] = []  # torch's library, to be kept, and who serves: at most one


def register(dispatcher: Dispatcher) -> Any:
    """The operator, alpha op(a) op(b), served by this dispatcher from now on. Raises DispatchError if torch
    is not imported, or if another dispatcher serves it in this process."""
    torch = sys.modules.get("torch")
    if torch is None:
        raise DispatchError("torch is not imported; import it before its operator is made")
    if not _served:
        if hasattr(torch.ops.autotune, "sgemm"):
            raise DispatchError("another table serves torch.ops.autotune.sgemm in this process; use that one")
        _served.append((_made(torch, dispatcher), dispatcher))
    elif _served[0][1] is not dispatcher:
        raise DispatchError(
            "another dispatcher serves torch.ops.autotune.sgemm in this process; use that one"
        )
    return torch.ops.autotune.sgemm


def _made(torch: Any, dispatcher: Dispatcher) -> Any:
    library = torch.library.Library("autotune", "FRAGMENT")
    for name in ("sgemm", _TRACED):
        library.define(f"{name}{_SCHEMA}")
    library.impl(_TRACED, _kernel_of(dispatcher), "CUDA")
    torch.library.register_fake(f"autotune::{_TRACED}", _fake, lib=library)
    torch.library.register_autograd(f"autotune::{_TRACED}", _backward, setup_context=_keep, lib=library)
    traced = getattr(torch.ops.autotune, _TRACED)
    library.impl("sgemm", _composite_of(dispatcher, traced), "CompositeImplicitAutograd")
    return library


def _composite_of(dispatcher: Dispatcher, traced: Any) -> Callable[..., Any]:
    """Made of other operators, as torch has it: of one."""

    def sgemm(a: Any, b: Any, *, alpha: float = 1.0, trans_a: bool = False, trans_b: bool = False) -> Any:
        found = dispatcher.sgemm_by_core(a, b, alpha, trans_a, trans_b)
        return traced(a, b, alpha=alpha, trans_a=trans_a, trans_b=trans_b) if found is None else found

    return sgemm


def _kernel_of(dispatcher: Dispatcher) -> Callable[..., Any]:
    def sgemm(a: Any, b: Any, *, alpha: float = 1.0, trans_a: bool = False, trans_b: bool = False) -> Any:
        found = dispatcher.sgemm_by_core(a, b, alpha, trans_a, trans_b, is_below_autograd=True)
        if found is None:  # a kind of call that is new
            a, b = (_with_rows(x).detach() for x in (a, b))  # gradients are the operator's
            found = dispatcher.sgemm(a, b, alpha=alpha, trans_a=trans_a, trans_b=trans_b)
        return found

    return sgemm


def _with_rows(x: Any) -> Any:
    """The tensor itself if rows or columns of its matrices are contiguous, else a copy, as for expanded
    gradients."""
    return x if x.dim() < 2 or 1 in x.stride()[-2:] or not x.numel() else x.contiguous()


def _fake(a: Any, b: Any, *, alpha: float = 1.0, trans_a: bool = False, trans_b: bool = False) -> Any:
    if a.dim() < 2 or b.dim() < 2:
        raise DispatchError(
            f"a has {a.dim()} dimensions and b has {b.dim()}, fewer than 2; reshape them to matrices"
        )
    stack = sys.modules["torch"].broadcast_shapes(a.shape[:-2], b.shape[:-2])
    return a.new_empty((*stack, a.shape[-1 if trans_a else -2], b.shape[-2 if trans_b else -1]))


def _keep(ctx: Any, inputs: tuple[Any, ...], keyword_only_inputs: dict[str, Any], output: Any) -> None:
    ctx.save_for_backward(*inputs)
    ctx.options = keyword_only_inputs


def _backward(ctx: Any, grad: Any) -> tuple[Any, Any]:
    a, b = ctx.saved_tensors
    alpha, trans_a, trans_b = (ctx.options[name] for name in ("alpha", "trans_a", "trans_b"))
    needs_a, needs_b = ctx.needs_input_grad[:2]
    sgemm = sys.modules["torch"].ops.autotune.sgemm
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
