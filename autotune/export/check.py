"""Is an exported folder right, on this GPU, now? Identity, checksums, and every kernel's results.

Each kernel multiplies a ragged shape through the code that serves applications, from host arrays. C is
poisoned with NaN where beta = 0, searched for NaN and Inf as a whole, and compared with float64 on rows and
columns that include all edges; bit by bit with the order of a table whose kernels sum in one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ..facts.accuracy_class import worst_ratio
from ..facts.gemm import FP32, Gemm
from ..files.errors import DispatchError
from ..kernel.launch import Epilogue
from ..kernel.summation_order import fma, reference
from ..perf_model.model_figures import Depths
from ..runtime.calls.arrays import Libraries
from ..runtime.calls.multiply import Added, sgemm_host
from ..runtime.choose.chooser import Call, Chooser, Pick
from ..runtime.launch.cuda_driver import PER_THREAD_STREAM, Driver
from ..runtime.launch.devices import gpu_model_here
from ..runtime.launch.planner import Engine
from ..runtime.table.gpu_models import GpuModel, no_table
from ..runtime.table.table import Kernel, Table
from .manifest import check_files

NUM_ROWS, NUM_COLUMNS = 64, 512  # of C that are compared with float64
RAGGED_BATCH = 3  # products
MAX_SLOPE = 1.5  # GELU enlarges an error by at most 1.13; its own roundings are a few more
SCALES = ((1.0, 0.0), (1.25, -0.5))  # alpha, beta

_Array = np.ndarray[Any, np.dtype[np.float32]]


@dataclass(frozen=True)
class KernelCheck:
    """One kernel on one shape. `error_ratio` is max |C - C64| / bound; above 1 it is wrong."""

    kernel_id: str
    gemm: Gemm
    alpha: float
    beta: float
    error_ratio: float
    reason: str  # "" if right

    @property
    def is_ok(self) -> bool:
        return not self.reason


def verify_table(
    folder: Path,
    *,
    device: int = 0,
    driver: Driver | None = None,
    is_checked: Callable[[Kernel], bool] = lambda _: True,
) -> Iterator[KernelCheck]:
    """Checks every kernel of an exported folder, or some of them, on one GPU. Raises DispatchError if the
    folder is damaged, newer than this code or for another GPU, and if the GPU fails: then the kernels cannot
    be judged."""
    driver = driver or Driver()
    models = {GpuModel.of_table(model.table): model for model in check_files(folder).models}
    here = gpu_model_here(driver, device)
    found = next((models[one] for one in here.accepted if one in models), None)
    if found is None:
        raise DispatchError(no_table([model.table for model in models.values()], device, here))
    _, table, code = found
    for kernel in table.kernels:
        # A worker checks those that read an A of two-byte elements, which have no epilogue
        if is_checked(kernel) and kernel.variant.a_type == FP32:
            engine = Engine(table, code, _Only(table, kernel), driver)
            yield from _checks(engine, device, kernel, ragged_shape(kernel))


class _Only(Chooser):
    """Picks one kernel for any call it may serve, whatever workspace that takes."""

    def __init__(self, table: Table, kernel: Kernel) -> None:
        super().__init__(table)
        self._kernel = replace(kernel, spec=replace(kernel.spec, max_workspace=None))

    def pick(self, call: Call, allowed: Depths | None = None) -> Pick:
        fault = call.rejection(self._kernel)
        if fault is not None:
            raise DispatchError(f"kernel {self._kernel.id} does not serve {call.gemm}: {fault}; export again")
        return Pick(self._kernel.id, "exact", partial(str, "it is under test"), self._kernel.spec.split_k)

    def with_epilogue(self, pick: Pick, epilogue: Epilogue) -> Pick:
        return pick  # of a kernel that has it


def ragged_shape(kernel: Kernel) -> Gemm:
    """A few tiles and a rest in every extent that may have one (only k, if the kernel takes whole tiles
    only), in whole vectors."""
    spec = kernel.spec
    rest = 3 * max(spec.vec_a, spec.vec_b, spec.vec_c)
    edge = 0 if spec.is_exact else rest
    depth = 2 * kernel.config.flush_k + spec.bk * max(3, 2 * spec.split_k) + rest
    depth = min(depth, spec.max_k or depth)  # in whole vectors, as chunks are
    variant = spec.variant
    batch = RAGGED_BATCH if variant.is_batched else 1
    return Gemm(2 * spec.bm + edge, 3 * spec.bn + edge, depth, variant.trans_a, variant.trans_b, batch)


def _checks(engine: Engine, device: int, kernel: Kernel, gemm: Gemm) -> Iterator[KernelCheck]:
    """Of one kernel on a shape, by SCALES: the same operands, whose sums are computed once."""
    rng = np.random.default_rng((0, gemm.m, gemm.n, gemm.k))
    a, b, c = _operands(gemm, rng)
    epilogue = kernel.variant.epilogue
    bias = rng.standard_normal(gemm.n, dtype=np.float32) if epilogue.bias != "none" else None
    activation = None if epilogue.activation == "none" else epilogue.activation
    added = Added.of(Libraries(engine.driver), bias, activation)
    last = tuple(_of(x, gemm.batch - 1) for x in (a, b, c))
    corners = None if engine.table.order is None else _Corners.of(gemm, last, engine.table.order)
    for scales in SCALES:
        out = c.copy() if scales[1] else np.full_like(c, np.nan)
        sgemm_host(
            engine, device, PER_THREAD_STREAM, (a, b, out), scales, (gemm.trans_a, gemm.trans_b), added
        )
        checked = sorted({0, gemm.batch // 2, gemm.batch - 1})
        ratio = max(
            error_ratio(gemm, (_of(a, i), _of(b, i), _of(c, i)), _of(out, i), scales, rng, bias, activation)
            for i in checked
        )
        finite = bool(np.isfinite(out).all())
        reason = "" if ratio <= 1 else f"C is off by {ratio:.3g} times the bound against float64"
        if not finite:
            at = tuple(np.argwhere(~np.isfinite(out))[0].tolist())
            reason = f"C[{', '.join(map(str, at))}] is {out[at]}"
        if not reason and corners is not None:
            reason = corners.other_bits(_of(out, gemm.batch - 1), scales, bias, activation)
        yield KernelCheck(kernel.id, gemm, *scales, ratio if finite else math.inf, reason)


@dataclass(frozen=True)
class _Corners:
    """Elements of C near its corners: their sums as an order has them, and what C held before."""

    order: str
    rows: np.ndarray[Any, Any]
    columns: np.ndarray[Any, Any]
    sums: _Array
    before: _Array

    @classmethod
    def of(cls, gemm: Gemm, operands: tuple[_Array, ...], order: str) -> _Corners:
        """`operands`: A and B as stored, and C."""
        a, b, c = operands
        rows, columns = (np.r_[:2, extent - 2 : extent] % extent for extent in (gemm.m, gemm.n))
        sums = reference((a.T if gemm.trans_a else a)[rows], (b.T if gemm.trans_b else b)[:, columns], order)
        return cls(order, rows, columns, sums, c[np.ix_(rows, columns)])

    def other_bits(
        self, after: _Array, scales: tuple[float, float], bias: _Array | None, activation: str | None
    ) -> str:
        """What of C is not as the order has it; "" if nothing, or if an activation is more than a
        comparison."""
        if activation not in (None, "relu"):
            return ""
        alpha, beta = map(np.float32, scales)
        expected = alpha * self.sums
        if beta:
            expected = fma(np.full_like(self.sums, beta), self.before, expected)
        if bias is not None:
            expected = expected + bias[self.columns]
        if activation:
            expected = np.maximum(expected, np.float32(0))
        found = after[np.ix_(self.rows, self.columns)]
        mismatches = np.argwhere(found.view(np.uint32) != expected.view(np.uint32))
        if not len(mismatches):
            return ""
        i, j = mismatches[0]
        return f"C[{self.rows[i]}, {self.columns[j]}] has other bits than the order {self.order}"


def _operands(gemm: Gemm, rng: np.random.Generator) -> tuple[_Array, _Array, _Array]:
    """A, B and C as stored: matrices, or for a batch stacks of them."""
    stack = (gemm.batch,) if gemm.is_batched else ()
    shapes = (
        (gemm.k, gemm.m) if gemm.trans_a else (gemm.m, gemm.k),
        (gemm.n, gemm.k) if gemm.trans_b else (gemm.k, gemm.n),
        (gemm.m, gemm.n),
    )
    a, b, c = (rng.standard_normal((*stack, *shape), dtype=np.float32) for shape in shapes)
    return a, b, c


def _of(stack: _Array, product: int) -> _Array:
    """The matrix of one product."""
    one: _Array = stack[product] if stack.ndim > 2 else stack
    return one


def error_ratio(
    gemm: Gemm,
    operands: tuple[_Array, _Array, _Array],
    result: _Array,
    scales: tuple[float, float],
    rng: np.random.Generator,
    bias: _Array | None = None,
    activation: str | None = None,
) -> float:
    """Largest |C - C64| / bound over some rows and columns of C, the outermost among them.

    `operands` are A and B as stored and the C before, `scales` alpha and beta; `bias` (n,) is added, and the
    activation made of the sum.
    """
    a, b, c = operands
    rows, columns = _some(gemm.m, NUM_ROWS, rng), _some(gemm.n, NUM_COLUMNS, rng)
    part_a = (a.T if gemm.trans_a else a)[rows].astype(np.float64)
    part_b = (b.T if gemm.trans_b else b)[:, columns].astype(np.float64)
    part_c = c[np.ix_(rows, columns)].astype(np.float64)
    alpha, beta = scales
    exact = alpha * (part_a @ part_b) + beta * part_c
    size = abs(alpha) * (np.abs(part_a) @ np.abs(part_b)) + abs(beta) * np.abs(part_c)
    if bias is not None:
        exact, size = exact + bias[columns], size + np.abs(bias[columns])
    if activation is not None:
        exact, size = _activated(exact, activation), MAX_SLOPE * size
    return worst_ratio(gemm.k, result[np.ix_(rows, columns)], exact, size)


def _activated(x: np.ndarray[Any, Any], activation: str) -> np.ndarray[Any, Any]:
    """In float64."""
    found: np.ndarray[Any, Any] = np.maximum(x, 0)
    if activation == "gelu":
        found = 0.5 * x * (1 + np.vectorize(math.erf, otypes=[np.float64])(math.sqrt(0.5) * x))
    if activation == "gelu_tanh":
        found = 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
    return found


def _some(extent: int, count: int, rng: np.random.Generator) -> np.ndarray[Any, Any]:
    """Up to `count` indices below `extent`, sorted: the first and last few, the rest drawn."""
    if extent <= count:
        return np.arange(extent)
    few = count // 8
    inner = rng.choice(np.arange(few, extent - few), count - 2 * few, replace=False)
    return np.sort(np.concatenate([np.arange(few), inner, np.arange(extent - few, extent)]))
