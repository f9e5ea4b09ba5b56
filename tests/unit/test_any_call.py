"""Whatever the table and the call: what is launched, taken together, is that product, once.

Tables and calls are drawn; the driver is simulated, and computes what it is told to. Gaps between rows and
products hold NaN, which a stray read brings into C, or what has to stay; so does C where beta is 0, and so do
A and B where alpha is. Some calls are captured into graphs, which run later, with other values, among others.
"""

from __future__ import annotations

import ctypes
import hashlib
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from c_front import Handle, PatchedCore, library
from fake_blas import FakeBlas, install
from host_torch import HostTorch
from kind_cases import add
from table_cases import (
    LIMITS,
    FakeDriver,
    Launch,
    OnGpu,
    activated,
    code_of,
    isolated,
    make_kernel,
    make_spec,
    make_table,
    rank,
    unexpected,
    with_epilogues,
    with_tensor_kernel,
    write_table,
)
from test_tensor_calls import STREAM
from test_torch_routing import FakeTorch, Tensor
from test_torch_routing import expected_times as expected_times
from test_torch_routing import fake_torch as fake_torch
from test_untuned_batches import times as batch_times

from autotune.facts.accuracy_class import STRICT, UNIT_ROUNDOFF, gamma
from autotune.facts.gemm import A_TYPES, LAYOUTS, Gemm
from autotune.files.errors import DispatchError
from autotune.kernel.config import Config
from autotune.kernel.launch import ACTIVATIONS, BIAS, EPILOGUES, PLAIN, Epilogue, Variant, plan
from autotune.kernel.mma_config import MmaConfig
from autotune.kernel.summation_order import order_of
from autotune.kernel.tensor_config import TensorConfig
from autotune.runtime.calls.product import Product
from autotune.runtime.choose.blas_provider import BlasProvider
from autotune.runtime.choose.chooser import Call, Chooser, Pick
from autotune.runtime.dispatcher import Dispatcher
from autotune.runtime.launch.cuda_driver import CudaFault
from autotune.runtime.native import core
from autotune.runtime.served_model import open_models
from autotune.runtime.settle import choices
from autotune.runtime.table.table import Table, launchable, load
from autotune.runtime.torch.routed_engine import Decided, RoutedEngine

SIDES, DEPTHS = (1, 2, 3, 5, 8, 33, 64, 65, 128), (0, 1, 7, 16, 33, 64, 128, 256, 512, 513, 1100)
REDUCTIONS: tuple[dict[str, Any], ...] = (
    {}, {}, {"reduction": "two_pass", "split_k": 2}, {"reduction": "two_pass", "split_k": 5},
    {"reduction": "last_block", "split_k": 4}, {"reduction": "last_wave", "split_k": 2},
    {"reduction": "cluster", "split_k": 4}, {"reduction": "chunks", "chunk": 512},
)  # fmt: skip
NUM_CALLS, NUM_TURNS = 12, 40
PICK = Chooser.pick
Array = np.ndarray[Any, Any]


class Strict(FakeDriver):
    """It looks at what a launch may touch, and at the promises of its table, too. `is_short`: of memory."""

    is_short = False

    def __post_init__(self) -> None:
        super().__post_init__()
        self._orders: dict[str, str | None] = {}  # of cubins
        self.add(self.table)
        self._user_of: dict[int, tuple[str, int]] = {}  # of memory: the stream, or the graph
        self._running, self._user = 0, ("", 0)  # the graph, and who launches

    def _sgemm(self, spec: Any, error: float, grid: Any, arguments: list[Any]) -> None:
        workspace, splits = arguments[11:13]
        m, n, k, *_, batch, _ = arguments
        assert spec.max_k is None or k <= spec.max_k
        if workspace:
            planned = plan(spec if spec.chunk else replace(spec, split_k=splits), m, n, k, batch)
            assert spec.max_workspace is None or planned.workspace_bytes <= spec.max_workspace
            behind = planned.sum_bytes + planned.counter_bytes
            self._check_place(workspace, behind)
            within = workspace if behind else workspace - 1  # packed operands alone lie before it
            (base,) = (at for at, space in self.memory.items() if at <= within < at + len(space) - 256)
            user = self._user_of.setdefault(base, self._user)
            assert user == self._user, "two that may run at once have one workspace"
        super()._sgemm(spec, error, grid, arguments)

    def add(self, table: Table) -> None:
        """Also its kernels. What is of several tables holds the promises of none."""
        known = {one.sha256: one for one in self.table.kernels}
        for one in table.kernels:
            is_shared = known.get(one.sha256, one).spec != one.spec
            loose = replace(one, spec=replace(one.spec, max_k=None, max_workspace=None))
            known[one.sha256] = loose if is_shared else one
            self._orders[one.sha256] = None if is_shared else table.order
        self.table = replace(self.table, kernels=tuple(known.values()))

    def launch(self, kernel: int, *rest: Any) -> None:
        record, _ = self._kernels.get(kernel, (None, ""))
        if record is not None and (order := self._orders[record.sha256]) is not None:
            assert isinstance(record.config, Config)
            assert str(order_of(record.config)) == order or record.spec.max_k
        super().launch(kernel, *rest)

    def _run(self, launch: Launch, play: Callable[[], None]) -> None:
        self._user = ("graph", self._running) if self._running else ("stream", launch.stream)
        super()._run(launch, play)

    def allocate(self, num_bytes: int, stream: int, pool: int = 0) -> int:
        if self.is_short:
            raise CudaFault("taking memory", 2, "CUDA_ERROR_OUT_OF_MEMORY")
        return super().allocate(num_bytes, stream, pool)

    def free(self, address: int, stream: int) -> None:
        super().free(address, stream)
        if address not in self.memory:
            self._user_of.pop(address, None)

    @contextmanager
    def captured(self, stream: int) -> Iterator[Graph]:
        self.graph += 1
        nodes = self._captured[stream] = []
        self.capturing |= {stream}
        yield Graph(self, self.graph, nodes)
        self.capturing -= {stream}
        del self._captured[stream]


class Graph(NamedTuple):
    """What was captured."""

    driver: Strict
    number: int
    nodes: list[Callable[[], object]]

    def run(self) -> None:
        self.driver._running = self.number
        for node in self.nodes:
            node()
        self.driver._running = 0

    def end(self) -> None:
        self.driver.end_graph(self.number)
        users = self.driver._user_of
        for base in [at for at, user in users.items() if user == ("graph", self.number)]:
            del users[base]


def drawn_table(rng: random.Random) -> Table:
    order = rng.choice((None, None, "chain", "chunks:512"))
    kernels = []
    for number in range(rng.randint(3, 9)):
        layout, is_batched = rng.choice(LAYOUTS), rng.random() < 0.5
        variant = Variant(layout[0] == "T", layout[1] == "T", rng.random() < 0.2, is_batched)
        may_be = {"chain": REDUCTIONS[:1], "chunks:512": REDUCTIONS[::7]}.get(str(order), REDUCTIONS)
        packs = [rng.random() < (0.5 if order else 0.2) for _ in "ab"]
        vectors = [4 if is_packed else rng.choice((1, 1, 2, 4)) for is_packed in (*packs, False)]
        spec = make_spec(
            variant=variant, packs_a=packs[0], packs_b=packs[1], vec_a=vectors[0], vec_b=vectors[1],
            vec_c=vectors[2], is_exact=rng.random() < 0.1, group=rng.choice((1, 4)),
            is_along_m=rng.random() < 0.5, **rng.choice(may_be),
        )  # fmt: skip
        made = (f"k{number}", spec, None) if is_batched else (f"k{number}", spec)
        kernels.append(make_kernel(*made))
        if not is_batched and rng.random() < 0.5:  # the same for batches, by which any may be served
            twin = replace(spec, variant=replace(variant, is_batched=True))
            kernels.append(make_kernel(f"k{number}-batched", twin, None))
    known = {} if order else {x: batch_times(rng.choice((0.01, 100.0))) for x in LAYOUTS}
    most = rng.choice((None, None, None, 0, 1 << 16, 1 << 20))
    made_of = make_table(*kernels, order=order, cublas_batched=known, max_workspace=most)
    table = as_configured(made_of)
    entries = {}
    for _ in range(8):
        gemm = drawn_gemm(rng, [])
        fits = [
            one.id for one in table.kernels
            if (one.layout, one.variant.is_batched) == (gemm.layout, gemm.is_batched)
            and Call.packed(gemm).rejection(one) is None
        ]  # fmt: skip
        if fits and gemm.k and (order is None or gemm.k <= 512):
            entries[gemm] = replace(rank(gemm, *fits[:3]), cublas_us=rng.choice((None, 5.0, 13.0)))
    table = replace(table, entries=tuple(entries.values()))
    if order is None and rng.random() < 0.3:
        gemm = Gemm(128, 128, 64, a_type=rng.choice(A_TYPES), batch=rng.choice((1, 1, 3)))
        table = with_tensor_kernel(table, gemm=gemm, config=rng.choice((TensorConfig(), MmaConfig())))
    elif rng.random() < 0.8:
        table = with_epilogues(table, BIAS, *rng.sample(list(EPILOGUES.values())[1:], 1))
    return as_configured(table)


def as_configured(table: Table) -> Table:
    """Its kernels as their configs say that they are launched."""
    kernels = (
        launchable(one, LIMITS, one.source_hash, table.max_workspace, table.order) for one in table.kernels
    )
    return replace(table, kernels=tuple(kernels))


def drawn_gemm(rng: random.Random, known: list[Gemm]) -> Gemm:
    if known and rng.random() < 0.6:
        return rng.choice(known)
    m, n, k = rng.choice(SIDES), rng.choice(SIDES), rng.choice(DEPTHS)
    batch, shared = rng.choice((1, 1, 1, 2, 3, 5)), rng.choice(("", "", "a", "b"))
    shares: Any = {f"shares_{shared}": True} if shared and batch > 1 else {}
    return Gemm(m, n, k, rng.random() < 0.5, rng.random() < 0.5, batch, **shares)


def limited(rng: random.Random, patch: pytest.MonkeyPatch) -> None:
    """What the core may hold of memory: much, or little, and at once."""
    patch.setattr(core, "LAUNCHES_TO_STAY", rng.choice((1, 1, 2, 8)))
    patch.setattr(core, "CAPTURED_BYTES", rng.choice((1, 1 << 16, 4 << 20)))
    patch.setattr(core, "PIECES_BYTES", rng.choice((1 << 18, 1 << 28, 1 << 28)))
    patch.setattr(core, "MAX_PIECES", rng.choice((1, 32, 32)))


class Laid:
    """An array somewhere in memory, and all of that. `is_odd`: strides and address may be any that are read.
    `is_strange`: elements may share memory, or lie backwards."""

    def __init__(
        self, rng: random.Random, shape: tuple[int, ...], *, is_read: bool = True, is_odd: bool = False,
        is_shared: bool = False, kind: Any = np.float32, is_strange: bool = False, moved: int = 0,
    ) -> None:  # fmt: skip
        *products, rows, columns = shape
        by_columns = is_odd and rng.random() < 0.2
        inner, outer = (rows, columns) if by_columns else (columns, rows)
        pads = (0, 0, 4, 1, 3, 64) if is_odd else (0,)
        ld, start = inner + rng.choice(pads), rng.choice((0, 0, 4, 1, 2)) * is_odd + moved
        apart = outer * ld + rng.choice(pads)
        if len(products) == 1 and is_odd and rng.random() < 0.2:  # products beside each other
            ld, apart = products[0] * inner + ld - inner, inner
        if is_shared:
            apart = 0
        elif products and (is_read or is_strange) and is_odd and rng.random() < 0.1:  # or overlapping
            apart = rng.choice((ld, 1))
        step = 2 if is_odd and rng.random() < 0.05 else 1  # no kernel walks in steps of two
        strides = [step * one for one in ((1, ld) if by_columns else (ld, 1))]
        for extent in reversed(products):
            strides, apart = [step * apart, *strides], extent * apart + rng.choice(pads)
        for side in range(len(shape)):
            if is_strange and rng.random() < 0.1:
                strides[side] *= rng.choice((0, -1, -1))
        reach = [(x - 1) * y for x, y in zip(shape, strides, strict=True) if x]
        lowest = -sum(one for one in reach if one < 0)
        self.fill_with = (np.nan if kind is not np.uint16 else 0x7FC0) if is_read else 7
        self.whole = np.full(sum(map(abs, reach)) + 1 + start + 300, self.fill_with, kind)
        size = self.whole.itemsize
        whole_units = (-self.whole.ctypes.data // size) % (256 // size) + start + lowest
        self._at = shape, kind, size * whole_units
        self._strides = [size * one for one in strides]
        self.x = self._in(self.whole)
        self.fill(rng)

    def _in(self, whole: Array) -> Array:
        shape, kind, offset = self._at
        return np.ndarray(shape, kind, whole, offset, self._strides)

    def fill(self, rng: random.Random, *, is_read: bool = True) -> None:
        """With other values; with NaN, if nobody may read them."""
        values = np.random.default_rng(rng.randrange(1 << 30)).uniform(-1, 1, self.x.shape)
        if not is_read:
            values[...] = np.nan
        bits = values.astype(np.float32).view(np.uint32) >> 16
        self.x[...] = bits if self.x.dtype == np.uint16 else values
        self._before = self.whole.copy()

    @property
    def before(self) -> Array:
        return self._in(self._before)

    @property
    def floats(self) -> Array:
        """What it holds; unsigned integers are BF16."""
        if self.x.dtype == np.uint16:
            return (self.x.astype(np.uint32) << 16).view(np.float32)
        return self.x.astype(np.float32)

    @property
    def is_apart(self) -> bool:
        """Whether no two elements share memory."""
        at = np.zeros((), np.int64)
        for extent, stride in zip(self.x.shape, self.x.strides, strict=True):
            at = np.add.outer(at, np.arange(extent) * stride)
        return np.unique(at).size == at.size

    def check(self, expected: Array | None = None, bound: Array | float = 0.0) -> None:
        """It holds this, or what it did, and all around it is as it was; then all is."""
        whole = self._before.copy()
        if expected is not None:
            found = self.x.astype(np.float64)
            is_right = (np.abs(found - expected) <= bound) | (np.isnan(found) & np.isnan(expected))
            at = tuple(np.argwhere(~is_right)[0]) if not is_right.all() else ()
            assert is_right.all(), f"{found[at]} at {at} of {found.shape}, expected {expected[at]}"
            self._in(whole)[...] = found
        np.testing.assert_array_equal(self.whole, whole)
        self.whole[...] = self._before

    def by_rows(self) -> tuple[bool, int] | None:
        """Whether its matrices are stored by columns, and the leading dimension; None if neither rows nor
        columns are contiguous."""
        rows, columns = self.x.shape[-2:]
        by_row, by_column = (one // self.x.itemsize for one in self.x.strides[-2:])
        if (by_column == 1 or columns < 2) and (by_row >= columns or rows < 2):
            return False, by_row
        return (True, by_column) if (by_row == 1 or rows < 2) and (by_column >= rows or columns < 2) else None

    @property
    def apart(self) -> int:
        return self.x.strides[0] // self.x.itemsize if self.x.ndim == 3 else 0


def product(a: Array, b: Array) -> Array:
    return np.asarray(a.astype(np.float64) @ b.astype(np.float64))


class Drawn:
    """A product, or a batch of them, of arrays that lie somewhere, scaled and with an epilogue."""

    def __init__(
        self, rng: random.Random, gemm: Gemm, epilogue: Epilogue = PLAIN, *, is_odd: bool,
        kind: Any = np.float32, is_strange: bool = False, moved: int = 0,
    ) -> None:  # fmt: skip
        self.gemm, self.epilogue, self.alpha, self.beta = gemm, epilogue, 1.0, 0.0
        of_a, of_b, of_c = self._leading(rng, gemm, is_strange)
        a = (gemm.k, gemm.m) if gemm.trans_a else (gemm.m, gemm.k)
        b = (gemm.n, gemm.k) if gemm.trans_b else (gemm.k, gemm.n)
        how: Any = {"is_odd": is_odd, "is_strange": is_strange, "moved": moved}
        self.a = Laid(rng, (*of_a, *a), is_shared=gemm.shares_a, kind=kind, **how)
        self.b = Laid(rng, (*of_b, *b), is_shared=gemm.shares_b, **how)
        self.c = Laid(rng, (*of_c, gemm.m, gemm.n), is_read=False, **how)
        has_bias, start = epilogue.bias != "none", rng.choice((0, 0, 1)) * is_odd
        self.added = Laid(rng, (1, gemm.n + start)) if has_bias else None
        self.bias = None if self.added is None else self.added.x[0, start:]

    @staticmethod
    def _leading(rng: random.Random, gemm: Gemm, is_strange: bool) -> list[tuple[int, ...]]:
        """Leading extents of A, B and C; where all is allowed, several, which broadcast."""
        of_c: tuple[int, ...] = (gemm.batch,) if gemm.is_batched else ()
        if not is_strange or rng.random() < 0.5:
            return [of_c] * 3
        of_c = rng.choice((of_c, (*of_c, 1), (1, *of_c), (2, *of_c), (*of_c, 2), (*of_c, 0)))
        less = [tuple(x if rng.random() < 0.8 else 1 for x in of_c)[rng.randrange(3) // 2 :] for _ in "ab"]
        full = rng.randrange(2)
        less[full] = of_c  # or C would have other extents
        return [*less, of_c]

    @property
    def turned(self) -> tuple[Array, Array]:
        """op(A) and op(B)."""
        pairs = (self.a.floats, self.gemm.trans_a), (self.b.floats, self.gemm.trans_b)
        a, b = (x.swapaxes(-1, -2) if turns else x for x, turns in pairs)
        return a, b

    @property
    def views(self) -> list[Array]:
        """The same, where A and B lie."""
        pairs = (self.a.x, self.gemm.trans_a), (self.b.x, self.gemm.trans_b)
        return [x.swapaxes(-1, -2) if turns else x for x, turns in pairs]

    @property
    def activation(self) -> Any:
        return None if self.epilogue.activation == "none" else self.epilogue.activation

    def fill(self, rng: random.Random, scales: tuple[float, float] | None = None) -> None:
        self.alpha, self.beta = scales or (rng.choice(ALPHAS), rng.choice(BETAS))
        for x in (self.a, self.b):
            x.fill(rng, is_read=np.float32(self.alpha) != 0)
        self.c.fill(rng, is_read=np.float32(self.beta) != 0)

    def expected(self) -> tuple[Array, Array]:
        """The result in float64, and by how much each element may be off."""
        alpha, beta = float(np.float32(self.alpha)), float(np.float32(self.beta))
        a, b = self.turned if alpha else (np.zeros_like(x) for x in self.turned)
        c = beta * self.c.before.astype(np.float64) if beta else 0.0
        bias = 0.0 if self.bias is None else self.bias.astype(np.float64)
        want = activated(alpha * product(a, b) + c + bias + np.zeros(self.c.x.shape), self.activation)
        size = abs(alpha) * product(np.abs(a), np.abs(b)) + np.abs(c) + np.abs(bias)
        return want, 1.2 * (gamma(self.gemm.k) + 3 * UNIT_ROUNDOFF) * size + np.finfo(np.float32).tiny

    def check(self, *, is_served: bool = True, slack: float = 1.0) -> None:
        """C is the product, or as it was, and all else as it was."""
        want, bound = self.expected() if is_served else (None, 0.0)
        self.c.check(want, slack * bound)
        self.a.check()
        self.b.check()


ALPHAS, BETAS = (1.0, 1.0, 0.5, -2.0, 0.0, 1e-46), (0.0, 0.0, 1.0, -0.5, 1e-46)


class Graphs:
    """Graphs that were captured, with the calls in them: they run among others, with other values."""

    def __init__(self, rng: random.Random, driver: Strict) -> None:
        self._rng, self._driver, self._held = rng, driver, list[tuple[Graph, Drawn, tuple[float, float]]]()

    def call(self, drawn: Drawn, stream: int, serve: Callable[[], bool], *, may_capture: bool = True) -> bool:
        """Have a call served, or captured, and some graphs run; returns whether it was served."""
        num_launches = len(self._driver.launches)
        if may_capture and self._rng.random() < 0.25:
            with self._driver.captured(stream) as graph:
                is_served = serve()
            drawn.check(is_served=False)
            assert len(self._driver.launches) == num_launches
            if is_served:
                self._held.append((graph, drawn, (drawn.alpha, drawn.beta)))
        else:
            is_served = serve()
            assert not unexpected
            drawn.check(is_served=is_served)
            may_settle = self._driver.is_short  # by launches into memory of its own, before it is short
            assert is_served or may_settle or len(self._driver.launches) == num_launches
        for one in self._rng.sample(self._held, min(len(self._held), 2)):
            graph, other, scales = one
            other.fill(self._rng, scales)
            graph.run()
            other.check()
            if self._rng.random() < 0.3:
                graph.end()
                self._held.remove(one)
        return is_served


def one_call(rng: random.Random, runtime: Dispatcher, driver: Strict, graphs: Graphs) -> bool:
    """Whether it was served; if not, nothing was launched and nothing written."""
    made = rng.choice((OnGpu, OnGpu, Tensor, np.asarray))
    gpu = rng.choice((0, 0, 0, 1, 2)) if made is OnGpu else 0
    table = runtime.tables[min(gpu, len(runtime.tables) - 1)]
    gemm = drawn_gemm(rng, [entry.gemm for entry in table.entries])
    is_short = made is not Tensor and (gemm.a_type != "fp32" or rng.random() < 0.15)
    epilogue, is_strange = rng.choice((PLAIN, PLAIN, PLAIN, *table.epilogues)), rng.random() < 0.2
    drawn = Drawn(rng, gemm, epilogue, is_odd=rng.random() < 0.6, is_strange=is_strange,
                  kind=np.float16 if is_short else np.float32)  # fmt: skip
    for x in (drawn.a.x, drawn.b.x, drawn.c.x, drawn.bias):
        driver.places |= {} if x is None else {x.ctypes.data: gpu}
    options: dict[str, Any] = {"trans_a": gemm.trans_a, "trans_b": gemm.trans_b}
    options |= {} if drawn.bias is None else {"bias": made(drawn.bias)}
    options |= {"activation": drawn.activation, "accuracy": rng.choice((STRICT, runtime.table.accuracy))}
    is_plain = not is_strange and all(one.by_rows() for one in (drawn.a, drawn.b))
    out = aliased(drawn) if is_plain and rng.random() < 0.1 else None
    is_served = False
    for _ in range(2):
        drawn.fill(rng)
        stream = STREAM + 10 * gpu + rng.randrange(2) if made is OnGpu else STREAM
        driver.streams[stream] = gpu
        on: Any = {"stream": stream} if made is OnGpu else {}
        on |= {"alpha": drawn.alpha, "beta": drawn.beta}

        def serve(on: Any = on) -> bool:
            try:
                runtime.sgemm(
                    made(drawn.a.x), made(drawn.b.x), made(drawn.c.x if out is None else out), **options, **on
                )
            except DispatchError:
                return False
            return True

        driver.is_short = rng.random() < 0.05
        is_served = graphs.call(drawn, stream, serve, may_capture=made is OnGpu)
        is_short, driver.is_short = driver.is_short, False
        assert not is_served or (drawn.c.is_apart and out is None)
        must_be = is_plain and drawn.c.by_rows() and not drawn.c.by_rows()[0] and table.order is None
        has_table = gpu < len(runtime.tables)
        assert is_served or not must_be or is_short or not has_table or out is not None
    return is_served


def aliased(drawn: Drawn) -> Array | None:
    """A C in the memory of A, if there is room."""
    a, shape = drawn.a, drawn.c.x.shape
    start = a.x.ctypes.data - a.whole.ctypes.data
    if not a.x.size or not drawn.c.x.size or a.x.dtype != np.float32:
        return None
    if start + 4 * drawn.c.x.size > a.whole.nbytes:
        return None
    return np.ndarray(shape, np.float32, a.whole, start)


@pytest.fixture(autouse=True)
def nothing_unexpected_yet() -> None:
    unexpected.clear()


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., Any]:
    isolated(monkeypatch, tmp_path)

    def make(*tables: Table, **options: Any) -> tuple[Dispatcher, Strict]:
        folder = write_table(tables[0], tmp_path / "t")
        for table in tables[1:]:
            add(table, folder)
        driver: Any = Strict(load(folder), names=("NVIDIA H200", "NVIDIA H100", "NVIDIA T4"))
        for table in tables:
            driver.add(table)
        install(monkeypatch, FakeBlas(driver) if options["cublas"] else None)
        return Dispatcher(folder, driver=driver, **options), driver

    return make


def for_another_gpu(table: Table, name: str) -> Table:
    """The same kernels under other names, for another GPU model."""
    kernels = {}
    for one in table.kernels:
        other = replace(one, id=f"other-{one.id}")
        kernels[one.id] = replace(other, sha256=hashlib.sha256(code_of(other)).hexdigest())
    entries = [
        replace(one, ranked=tuple(replace(x, kernel=kernels[x.kernel].id) for x in one.ranked))
        for one in table.entries
    ]
    return replace(
        table, kernels=tuple(kernels.values()), entries=tuple(entries),
        defaults={layout: kernels[one].id for layout, one in table.defaults.items()},
        environment=replace(table.environment, gpu_name=name),
    )  # fmt: skip


FAULTS = (
    "flag",
    "extent",
    "ld",
    "misaligned",
    "nowhere",
    "products",
    "stride",
    "products share C",
    "activation",
)


@dataclass
class InC:
    """A row-major call of autotune_sgemm.h. A, B and C: address, leading dimension, stride."""

    turns: list[int]
    extents: list[int]
    a: list[int]
    b: list[int]
    c: list[int]
    products: int
    scales: tuple[float, float]
    a_type: int
    bias: int
    activation: int

    @classmethod
    def of(cls, rng: random.Random, drawn: Drawn) -> InC | None:
        """None if there is no such call."""
        gemm, laid = drawn.gemm, (drawn.a, drawn.b, drawn.c)
        forms = [one.by_rows() for one in laid]
        if None in forms or (forms[2] or (True,))[0]:
            return None
        turns, lds = zip(*(form or (False, 1) for form in forms), strict=True)
        at = [one.x.ctypes.data for one in laid]
        for i, one in enumerate(laid):
            may_be_none = not one.x.size or (i < 2 and not np.float32(drawn.alpha))
            at[i] = 0 if may_be_none and rng.random() < 0.5 else at[i]
        sides = [[x, max(ld, 1), one.apart] for x, ld, one in zip(at, lds, laid, strict=True)]
        return cls(
            [int(gemm.trans_a != turns[0]), int(gemm.trans_b != turns[1])], [gemm.m, gemm.n, gemm.k], *sides,
            gemm.batch, (drawn.alpha, drawn.beta), A_TYPES.index(gemm.a_type),
            0 if drawn.bias is None else drawn.bias.ctypes.data, ACTIVATIONS.index(drawn.epilogue.activation),
        )  # fmt: skip

    def spoil(self, rng: random.Random, fault: str) -> bool:
        """Make it a call that is refused; False if that fault does not occur in it."""
        (m, n, k), (turns_a, turns_b) = self.extents, self.turns
        sides = (
            (self.a, (k, m) if turns_a else (m, k)),
            (self.b, (n, k) if turns_b else (k, n)),
            (self.c, (m, n)),
        )
        side, (rows, columns) = rng.choice(sides)
        is_batch = self.products > 1
        if fault == "flag":
            self.turns[rng.randrange(2)] = rng.choice((2, -1))
        elif fault == "extent":
            self.extents[rng.randrange(3)] = rng.choice((-1, -(1 << 31), (1 << 31) - 1))
        elif fault == "ld":
            side[1] = rng.choice((0, -1, columns - 1)) if rows > 1 < columns else 0
        elif fault == "misaligned":
            side[0] += 1
        elif fault == "products":
            self.products = -1
        elif fault == "stride" and is_batch:
            side[2] = rng.choice((-1, 1 << 62))
        elif fault == "products share C" and is_batch and m * n > 1:
            self.c[2] = rng.choice((0, n - 1, 1 if m * n > 1 and n > 1 else 0))
        elif fault == "activation":
            self.activation = rng.choice((-1, 4))
        elif fault == "nowhere" and m and n:
            is_read = k and np.float32(self.scales[0]) != 0
            rng.choice((self.a, self.b, self.c) if is_read else (self.c,))[0] = rng.choice((0, 4096))
        else:
            return False
        return True

    def arguments(self, rng: random.Random) -> tuple[str, list[Any]]:
        """A function that takes it, and its arguments behind the stream."""
        (m, n, k), (alpha, beta), adds = self.extents, self.scales, [self.bias, self.activation]
        if self.a_type or rng.random() < 0.1:
            at_a, *rest = self.a
            whole = [*self.turns, m, n, k, alpha, at_a, self.a_type, *rest, *self.b, beta, *self.c]
            return "autotune_sgemm_mixed", [*whole, self.products, *adds]
        by_columns, has_epilogue = rng.random() < 0.5, any(adds) or rng.random() < 0.2
        has_batch = self.products != 1 or rng.random() < 0.3
        order, num = -1 if by_columns else 1, 3 if has_batch else 2
        first, second = (self.a, self.b)[::order]
        whole = [*self.turns[::order], *(m, n)[::order], k, alpha, *first[:num], *second[:num], beta]
        whole += [*self.c[:num], *([self.products] * has_batch), *(adds * has_epilogue)]
        name = "autotune_sgemm" + "_strided_batched" * has_batch + "_epilogue" * has_epilogue
        return name + "_by_columns" * by_columns, whole


def one_call_in_c(
    rng: random.Random, handle: Handle, driver: Strict, tables: list[Table], graphs: Graphs
) -> bool:
    """Whether it was served. All that is legal is, but by a table of one order; nothing else is."""
    of, gpu = handle.numbers, rng.choice((0, 0, 0, 0, 1, 1, 2, None))
    driver.context_stack[:] = [] if gpu is None else [100 + gpu]
    table = {0: tables[0], 1: tables[-1] if len(tables) > 1 else None}.get(gpu or 0)
    gemm = drawn_gemm(rng, [entry.gemm for entry in tables[0].entries])
    if gemm.a_type == "fp32" and rng.random() < 0.25:
        gemm = replace(gemm, a_type=rng.choice(A_TYPES[1:]))
    if rng.random() < 0.1:
        gemm = replace(gemm, **{rng.choice(("m", "n")): 0})
    epilogue = rng.choice((PLAIN, PLAIN, PLAIN, *tables[0].epilogues, rng.choice(list(EPILOGUES.values()))))
    kind = {"fp32": np.float32, "bf16": np.uint16, "fp16": np.float16}[gemm.a_type]
    is_served, drawn, seed, is_odd = False, None, 0, rng.random() < 0.6
    while drawn is None or InC.of(rng, drawn) is None:
        seed, is_odd = rng.randrange(1 << 30), is_odd and rng.random() < 0.8
        drawn = Drawn(random.Random(seed), gemm, epilogue, is_odd=is_odd, kind=kind)
    for moved in (0, rng.choice((0, 1, 2, 4))):  # the same again, elsewhere
        drawn = Drawn(random.Random(seed), gemm, epilogue, is_odd=is_odd, kind=kind, moved=moved)
        drawn.fill(rng)
        called = InC.of(rng, drawn)
        assert called is not None
        allowed, fault = {of.OK}, rng.choice(FAULTS) if rng.random() < 0.1 else ""
        driver.is_short = rng.random() < 0.05
        if gemm.m and gemm.n:
            if epilogue != PLAIN and table is not None and epilogue not in table.epilogues:
                allowed = {of.NO_EPILOGUE}
            allowed |= {of.NO_KERNEL} if table is not None and table.order else set()
            allowed |= {of.CUDA + 2} if driver.is_short else set()
        if fault and called.spoil(rng, fault):
            allowed = {of.BAD_CALL}
        elif rng.random() < 0.05 and gemm.m and gemm.n and gemm.k:
            called.c[0] = (
                (called.a[0] // 4 * 4 or called.c[0]) if rng.random() < 0.5 else called.b[0] or called.c[0]
            )
            if called.c[0] != drawn.c.x.ctypes.data:
                allowed = allowed - {of.OK} | {of.OVERLAP}
        if gpu is None:
            allowed = {of.NO_CONTEXT}
        elif table is None or gpu == 2:
            allowed = {of.OTHER_GPU}
        status, (name, arguments) = -1, called.arguments(rng)
        stream = rng.choice((0, 2, STREAM, STREAM, STREAM + 1))

        def serve(name: str = name, arguments: Any = arguments, stream: int = stream) -> bool:
            nonlocal status
            status = handle.call(name, stream, *arguments)
            return status == of.OK

        is_served = graphs.call(drawn, stream, serve)
        driver.is_short = False
        assert status in allowed, (fault, name, arguments, status)
    return is_served


def calls_in_c(seed: int, of: Callable[[bool], PatchedCore]) -> int:
    """How many of those that are drawn for a seed were served."""
    rng = random.Random(seed)
    tables = [drawn_table(rng)]
    if rng.random() < 0.5:
        tables.append(for_another_gpu(drawn_table(rng), "NVIDIA H100"))
    order = {one.order for one in tables}
    kernels = tuple(kernel for one in tables for kernel in one.kernels)
    all_of_them = replace(tables[0], kernels=kernels, order=order.pop() if len(order) == 1 else None)
    driver = Strict(all_of_them, names=("NVIDIA H200", "NVIDIA H100", "NVIDIA T4"))
    blas = FakeBlas(driver) if rng.random() < 0.4 else None
    with pytest.MonkeyPatch.context() as patch:
        limited(rng, patch)
        handle, graphs = of(blas is not None).open(tables, driver, blas), Graphs(rng, driver)
    num = sum(one_call_in_c(rng, handle, driver, tables, graphs) for _ in range(2 * NUM_CALLS))
    handle.close()
    return num


@pytest.mark.every(3)
@pytest.mark.parametrize("seed", range(64))
def test_a_call_in_c_is_its_product(seed: int) -> None:
    assert calls_in_c(seed, library)


@pytest.mark.filterwarnings("ignore:.* is not settled")  # where memory is short
@pytest.mark.every(3)
@pytest.mark.parametrize("seed", range(64))
def test_a_call_is_its_product(
    seed: int, opened: Any, fake_torch: FakeTorch, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """With tables for one or two GPU models, of which one is exchanged while graphs hold its kernels."""
    rng = random.Random(seed)
    settle = rng.choice(("off", "off", "first-use", "live"))
    tables = [
        drawn_table(rng),
        *(for_another_gpu(drawn_table(rng), "NVIDIA H100") for _ in "1" * rng.randrange(2)),
    ]
    limited(rng, monkeypatch)
    runtime, driver = opened(*tables, settle=settle, cublas=rng.random() < 0.4)
    graphs = Graphs(rng, driver)
    num = sum(one_call(rng, runtime, driver, graphs) for _ in range(NUM_CALLS))
    found = write_table(drawn_table(rng), tmp_path / "other")
    driver.add(load(found))
    (model, *_) = open_models(
        found, BlasProvider(is_on=False), "off", is_deterministic=False, accuracy=STRICT
    )
    runtime.exchange({model.gpu_model: (model.table, model._code)})
    num += sum(one_call(rng, runtime, driver, graphs) for _ in range(NUM_CALLS // 2))
    assert num > NUM_CALLS // 4


def routed_call(rng: random.Random, torch: Any, table: Table, decided: list[Any]) -> None:
    """By torch's dispatcher, transposed as views, and by each launch that may take its turn."""
    gemm = replace(drawn_gemm(rng, [entry.gemm for entry in table.entries]), a_type="fp32")
    is_odd, has_sum, has_out = (rng.random() < chance for chance in (0.6, 0.5, 0.5))
    drawn = Drawn(rng, gemm, is_odd=is_odd)
    c, views = drawn.c, drawn.views
    names = ("bmm", "baddbmm") if gemm.is_batched else ("mm", "addmm")
    scales, added, want = {}, [], product(*views)
    if has_sum:
        scales = {"alpha": rng.choice((1.0, 0.5)), "beta": rng.choice((1.0, 1.0, 0.5, 0.0))}
        added = [Laid(rng, rng.choice(((1, gemm.n), want.shape))).x]
        added = [added[0][0] if added[0].shape == (1, gemm.n) else added[0]]
        want = scales["alpha"] * want + scales["beta"] * added[0]
    options: dict[str, Any] = {**scales, "out": Tensor(c.x)} if has_out else scales
    for _ in range(2):
        own_calls, name = torch.own_calls, names[has_sum] + ".out" * has_out
        found = torch.call(name, *map(Tensor, (*added, *views)), **options)
        is_left = torch.own_calls != own_calls
        assert not is_left or table.order != "chain" or is_odd, "all that a kernel takes is served"
        np.testing.assert_allclose(found.data, want, rtol=1e-4, atol=2e-4)
        c.check(want if has_out else None, 1e-4 * (2 + np.abs(want)))
        assert not unexpected
        for engine, one, planned in decided:
            launches_are_the_product(engine, one, planned, views)
        decided.clear()


def launches_are_the_product(
    engine: RoutedEngine, decided: Decided, planned: Product, views: list[Array]
) -> None:
    """Each that may serve, planned for a batch or, of all its rows, for one product; then those that do in
    turn, as the router in C++ asks for them."""
    gemm, core = planned.gemm, engine.core
    shape = (*(gemm.batch for _ in "1" * gemm.is_batched), gemm.m, gemm.n)
    strides = (planned.batch.stride_c,) * gemm.is_batched + (planned.lds[2], 1)
    bias, exact = np.linspace(-1, 1, gemm.n, dtype=np.float32), product(*views)

    def check(address: int, has_bias: bool) -> None:
        whole = np.full(sum((x - 1) * y for x, y in zip(shape, strides, strict=True)) + 1, np.nan, np.float32)
        c = np.ndarray(shape, np.float32, whole, strides=[4 * one for one in strides])
        at = (*(x.ctypes.data for x in views), c.ctypes.data, bias.ctypes.data * has_bias)
        assert not core.library.autotune_run_plan(core.handle, address, STREAM, *at, 1.0, 0.0)
        np.testing.assert_allclose(c, (exact + bias * has_bias).reshape(shape), rtol=1e-4, atol=2e-4)

    served = [one for one in decided.rivals if not one.reason and one.pick is not None]
    kernels = [engine._chooser.kernels[one.pick.kernel_id] for one in served]  # type: ignore[union-attr]
    has_bias = {
        one.plan.address: kernel.variant.epilogue.bias != "none"
        for one, kernel in zip(served, kernels, strict=True)
    }
    for address, adds in has_bias.items():
        check(address, adds)
    for _ in range(NUM_TURNS if decided.live else 0):
        turn, of = core.library.structs.turn(), (decided.live.address, STREAM)
        core.library.autotune_begin_turn(*of, ctypes.byref(turn))
        assert turn.is_left_alone == (turn.plan not in has_bias)
        if not turn.is_left_alone:
            check(turn.plan, has_bias[turn.plan])
        core.library.autotune_end_turn(*of, ctypes.byref(turn), 1)


@pytest.fixture(params=["played", "C++"])
def torch(request: pytest.FixtureRequest, expected_times: None, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A stand-in for it; where it is installed, itself, with the router in C++."""
    if request.param == "played":
        return request.getfixturevalue("fake_torch")
    return HostTorch(monkeypatch, Tensor, is_compiled=True)


@pytest.mark.every(3)
@pytest.mark.parametrize("seed", range(64))
def test_a_routed_call_is_its_product(
    seed: int, opened: Callable[..., Any], torch: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    rng, decided = random.Random(seed), list[Any]()
    decide = RoutedEngine.remember

    def pick(self: Chooser, call: Call, *known: Any) -> Pick:
        """Kernels take long or are soon done; torch's own is slow, or fast, or unknown."""
        found, drawn = PICK(self, call, *known), random.Random(str(call.gemm))
        us, slow = (found.expected_us or 3.0) * drawn.choice((1, 0.1)), drawn.choice((100, 100, 0.5, None))
        return replace(found, expected_us=us, cublas_us=slow and slow * us, provider="autotune", margin=0.0)

    def remember(self: RoutedEngine, key: Any, plan: Any) -> None:
        decide(self, key, plan)
        if key in self._decided:
            decided.append((self, self._decided[key], plan.problem))

    monkeypatch.setattr(Chooser, "pick", pick)
    monkeypatch.setattr(RoutedEngine, "remember", remember)
    settle = rng.choice(("off", "live", "live", "live-any-order"))
    runtime, driver = opened(drawn_table(rng), settle=settle, cublas=False)
    with runtime.torch():
        for _ in range(NUM_CALLS):
            routed_call(rng, torch, runtime.table, decided)
    assert driver.launches or runtime.table.order is None
    for kept in tmp_path.rglob(f"{choices.FOLDER}/*.json"):
        choices.read(kept, choices.name_of(runtime.table), "", choices.LiveFile)
