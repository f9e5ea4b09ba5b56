"""Products and batches of NumPy arrays: copied to a GPU, multiplied there, copied back.

Copied into exported tables.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import numpy as np

from ..facts.gemm import FLOAT_BYTES
from ..files.errors import DispatchError
from .added import Added
from .arrays import packed_form
from .planner import Planner
from .product import check_launches
from .stacks import check_products_apart, stacked

_Array = np.ndarray[Any, np.dtype[np.float32]]


def sgemm_host(
    engine: Planner,
    device: int,
    stream: int,
    arrays: tuple[_Array, _Array, _Array | None],
    scales: tuple[float, float],
    transposed: tuple[bool, bool],
    added: Added | None = None,
) -> _Array:
    """C = alpha * op(A) * op(B) + beta * C for arrays a, b, out of the host; waits for the result.

    `scales` are alpha and beta, `transposed` trans_a and trans_b; `added`: a bias on the host, and an
    activation. Arrays with any strides are packed during the copy.

    Raises DispatchError if shapes do not fit, out overlaps an input, products of out may overlap each other,
    or the stream is captured.
    """
    a, b, out = arrays
    bias = None if added is None else added.bias
    read = [x for x in (a, b, bias) if x is not None]
    if out is not None and any(np.may_share_memory(x, out) for x in read):
        raise DispatchError("out overlaps an input in memory; pass a copy of the input or another out")
    if out is not None and out.ndim > 2 and out.size:
        strides = [stride // FLOAT_BYTES for stride in out.strides]
        check_products_apart(zip(out.shape, strides, strict=True))
    a, b = np.ascontiguousarray(a), np.ascontiguousarray(b)
    (form_a, leading_a), (form_b, leading_b) = packed_form(a.shape), packed_form(b.shape)
    form_c, leading_c = (None, None) if out is None else packed_form(out.shape)
    forms = form_a, form_b, form_c
    stack = stacked(forms, (leading_a, leading_b, leading_c), *transposed)
    lowest, epilogue = stack.lowest((0, 0, 0)), None if added is None else added.epilogue
    plan = engine.plan((device, device, device), forms, lowest, *transposed, stack.batch, epilogue)
    if added is not None:
        added.check(plan.problem.gemm.n, device)
    if not plan.is_cublas:
        check_launches(len(stack.offsets) * plan.loop.products)
    result = np.empty(stack.shape, np.float32) if out is None else np.ascontiguousarray(out)
    driver = engine.driver
    with engine.devices.current(plan.gpu), ExitStack() as at_end:
        if driver.is_capturing(stream):
            raise DispatchError("NumPy arrays cannot be part of a graph; copy them to the GPU first")
        at_end.callback(driver.synchronize, stream)
        places = []
        copied = [(a, True), (b, True), (result, scales[1] != 0)]
        copied += [] if bias is None else [(np.ascontiguousarray(bias), True)]
        for x, is_read in copied:
            place = driver.allocate(max(x.nbytes, 1), stream)
            at_end.callback(driver.free, place, stream)
            if is_read and x.nbytes:
                driver.copy_in(place, x.ctypes.data, x.nbytes, stream)
            places.append(place)
        for behind in stack.offsets:
            at_a, at_b, at_c = (at + offset for at, offset in zip(places[:3], behind, strict=True))
            engine.run(plan, stream, (at_a, at_b, at_c), *scales, sum(places[3:]))
        if result.nbytes:
            driver.copy_out(result.ctypes.data, places[2], result.nbytes, stream)
    if out is None or out is result:
        return result
    out[...] = result
    return out
