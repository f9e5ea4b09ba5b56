"""Whatever the table and the call: what is launched, taken together, is that product, once.

Tables and calls are drawn; the driver is simulated, and computes what it is told to. Gaps between rows and
products hold NaN, which a stray read brings into C, or what has to stay.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fake_blas import FakeBlas, install
from table_cases import (
    LIMITS,
    SOURCE,
    FakeDriver,
    OnGpu,
    activated,
    isolated,
    make_kernel,
    make_spec,
    make_table,
    rank,
    with_epilogues,
    with_tensor_kernel,
    write_table,
)
from test_tensor_calls import STREAM
from test_torch_routing import FakeTorch, Tensor
from test_torch_routing import expected_times as expected_times
from test_torch_routing import fake_torch as fake_torch

from autotune.facts.accuracy_class import STRICT
from autotune.facts.gemm import LAYOUTS, Gemm
from autotune.files.errors import DispatchError
from autotune.kernel.config import Config
from autotune.kernel.launch import BIAS, EPILOGUES, PLAIN, Variant, plan
from autotune.kernel.summation_order import order_of
from autotune.runtime.calls.product import Product
from autotune.runtime.choose.chooser import Call, Chooser, Pick
from autotune.runtime.dispatcher import Dispatcher
from autotune.runtime.table.table import Table, launchable, load
from autotune.runtime.torch.routed_engine import Decided, RoutedEngine

SIDES, DEPTHS = (1, 2, 3, 5, 8, 33, 64, 65, 128), (0, 1, 7, 16, 33, 64, 128, 256, 512, 513, 1100)
REDUCTIONS: tuple[dict[str, Any], ...] = (
    {}, {}, {"reduction": "two_pass", "split_k": 2}, {"reduction": "two_pass", "split_k": 5},
    {"reduction": "last_block", "split_k": 4}, {"reduction": "last_wave", "split_k": 2},
    {"reduction": "cluster", "split_k": 4}, {"reduction": "chunks", "chunk": 512},
)  # fmt: skip
NUM_CALLS = 12
PICK = Chooser.pick
Array = np.ndarray[Any, Any]


class Strict(FakeDriver):
    """It looks at what a launch may touch, and at the promises of its table, too."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._user_of: dict[int, int] = {}  # of memory: the stream

    def _sgemm(self, spec: Any, error: float, grid: Any, arguments: list[Any]) -> None:
        workspace, splits = arguments[11:13]
        m, n, k, *_, batch, _ = arguments
        assert spec.max_k is None or k <= spec.max_k
        if workspace:
            planned = plan(spec if spec.chunk else replace(spec, split_k=splits), m, n, k, batch)
            self._check_place(workspace, planned.sum_bytes + planned.counter_bytes)
        super()._sgemm(spec, error, grid, arguments)

    def launch(self, kernel: int, *rest: Any) -> None:
        if kernel in self._kernels and self.table.order is not None:
            record, _ = self._kernels[kernel]
            assert isinstance(record.config, Config)
            assert str(order_of(record.config)) == self.table.order or record.spec.max_k
        before = len(self.workspaces)
        super().launch(kernel, *rest)
        for workspace in filter(None, self.workspaces[before:]):
            (base,) = (at for at, space in self.memory.items() if at <= workspace < at + len(space))
            assert self._user_of.setdefault(base, rest[3]) == rest[3], "two streams work in one workspace"

    def free(self, address: int, stream: int) -> None:
        super().free(address, stream)
        self._user_of.pop(address, None)


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
    table = as_configured(make_table(*kernels, order=order))
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
        table = with_tensor_kernel(table, gemm=Gemm(128, 128, 64, a_type=rng.choice(("fp32", "fp16"))))
    elif rng.random() < 0.8:
        table = with_epilogues(table, BIAS, *rng.sample(list(EPILOGUES.values())[1:], 1))
    return as_configured(table)


def as_configured(table: Table) -> Table:
    """Its kernels as their configs say that they are launched."""
    kernels = (
        launchable(one, LIMITS, SOURCE, order=table.order) if isinstance(one.config, Config) else one
        for one in table.kernels
    )
    return replace(table, kernels=tuple(kernels))


def drawn_gemm(rng: random.Random, known: list[Gemm]) -> Gemm:
    if known and rng.random() < 0.6:
        return rng.choice(known)
    m, n, k = rng.choice(SIDES), rng.choice(SIDES), rng.choice(DEPTHS)
    batch, shared = rng.choice((1, 1, 1, 2, 3, 5)), rng.choice(("", "", "a", "b"))
    shares: Any = {f"shares_{shared}": True} if shared and batch > 1 else {}
    return Gemm(m, n, k, rng.random() < 0.5, rng.random() < 0.5, batch, **shares)


class Laid:
    """An array somewhere in memory, and all of that. `is_odd`: strides and address may be any."""

    def __init__(self, rng: random.Random, shape: tuple[int, ...], *, is_read: bool = True,
                 is_odd: bool = False, is_shared: bool = False, kind: Any = np.float32) -> None:  # fmt: skip
        *products, rows, columns = shape
        by_columns = is_odd and rng.random() < 0.2
        inner, outer = (rows, columns) if by_columns else (columns, rows)
        pads = (0, 0, 4, 1, 3, 64) if is_odd else (0,)
        ld, start = inner + rng.choice(pads), rng.choice((0, 0, 4, 1, 2)) * is_odd
        apart = outer * ld + rng.choice(pads)
        if products and is_odd and rng.random() < 0.2:  # products beside each other
            ld, apart = products[0] * inner + ld - inner, inner
        if is_shared:
            apart = 0
        elif products and is_read and is_odd and rng.random() < 0.1:  # or overlapping
            apart = rng.choice((ld, 1))
        step = 2 if is_odd and rng.random() < 0.05 else 1  # no kernel walks in steps of two
        strides = [step * one for one in (*(apart for _ in products), *((1, ld) if by_columns else (ld, 1)))]
        reach = sum((x - 1) * y for x, y in zip(shape, strides, strict=True) if x) + 1
        self.whole = np.full(reach + start + 300, np.nan if is_read else 7, kind)
        size = self.whole.itemsize
        self._at = shape, kind, size * ((-self.whole.ctypes.data // size) % (256 // size) + start)
        self._strides = [size * one for one in strides]
        self.x = self._in(self.whole)
        self.x[...] = np.random.default_rng(rng.randrange(1 << 30)).uniform(-1, 1, shape)
        self._before = self.whole.copy()

    def _in(self, whole: Array) -> Array:
        shape, kind, offset = self._at
        return np.ndarray(shape, kind, whole, offset, self._strides)

    def check(self, expected: Array | None = None) -> None:
        """It holds this, or what it did, and all around it is as it was; then all is."""
        whole = self._before.copy()
        if expected is not None:
            self._in(whole)[...] = expected
        np.testing.assert_allclose(self.whole, whole, rtol=1e-4, atol=2e-4)
        self.whole[...] = self._before


def product(a: Array, b: Array) -> Array:
    return np.asarray(a.astype(np.float64) @ b.astype(np.float64))


def operands(
    rng: random.Random, gemm: Gemm, *, is_odd: bool, is_short: bool = False
) -> tuple[Laid, Laid, Laid, Array, Array]:
    """A, B and C, and views of op(A) and op(B)."""
    stack = (gemm.batch,) if gemm.is_batched else ()
    a = (gemm.k, gemm.m) if gemm.trans_a else (gemm.m, gemm.k)
    b = (gemm.n, gemm.k) if gemm.trans_b else (gemm.k, gemm.n)
    kind = np.float16 if is_short else np.float32
    of_a = Laid(rng, (*stack, *a), is_odd=is_odd, is_shared=gemm.shares_a, kind=kind)
    of_b = Laid(rng, (*stack, *b), is_odd=is_odd, is_shared=gemm.shares_b)
    of_c = Laid(rng, (*stack, gemm.m, gemm.n), is_read=False, is_odd=is_odd)
    turned = [
        x.x.swapaxes(-1, -2) if turns else x.x for x, turns in ((of_a, gemm.trans_a), (of_b, gemm.trans_b))
    ]
    return of_a, of_b, of_c, turned[0], turned[1]


def one_call(rng: random.Random, runtime: Dispatcher, driver: FakeDriver) -> bool:
    """Whether it was served; if not, nothing was launched and nothing written."""
    gemm = drawn_gemm(rng, [entry.gemm for entry in runtime.table.entries])
    is_short = gemm.a_type != "fp32" or rng.random() < 0.15
    a, b, c, *turned = operands(rng, gemm, is_odd=rng.random() < 0.6, is_short=is_short)
    made = OnGpu if is_short else rng.choice((OnGpu, Tensor))
    epilogue = rng.choice((PLAIN, PLAIN, PLAIN, *runtime.table.epilogues))
    bias = Laid(rng, (1, gemm.n)).x[0] if epilogue.bias != "none" else None
    activation: Any = None if epilogue.activation == "none" else epilogue.activation
    options: dict[str, Any] = {"trans_a": gemm.trans_a, "trans_b": gemm.trans_b, "activation": activation}
    options |= {} if bias is None else {"bias": made(bias)}
    options["accuracy"] = rng.choice((STRICT, runtime.table.accuracy))
    for _ in range(2):
        alpha, beta = rng.choice((1.0, 1.0, 0.5, -2.0, 0.0)), rng.choice((0.0, 0.0, 1.0, -0.5))
        want = alpha * product(*turned) + beta * c.x + (0 if bias is None else bias)
        on: Any = {} if made is Tensor else {"stream": STREAM + rng.randrange(2)}
        before = len(driver.launches)
        try:
            runtime.sgemm(made(a.x), made(b.x), made(c.x), alpha=alpha, beta=beta, **options, **on)
        except DispatchError:
            c.check()
            assert len(driver.launches) == before
            return False
        c.check(activated(want, activation))
    return True


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, fake_torch: FakeTorch) -> Callable[..., Any]:
    isolated(monkeypatch, tmp_path)

    def make(table: Table, **options: Any) -> tuple[Dispatcher, FakeDriver]:
        folder = write_table(table, tmp_path / "t")
        driver: Any = Strict(load(folder))
        install(monkeypatch, FakeBlas(driver) if options["cublas"] else None)
        return Dispatcher(folder, driver=driver, **options), driver

    return make


@pytest.mark.every(3)
@pytest.mark.parametrize("seed", range(64))
def test_a_call_is_its_product(seed: int, opened: Callable[..., Any]) -> None:
    rng = random.Random(seed)
    settle = rng.choice(("off", "off", "first-use", "live"))
    runtime, driver = opened(drawn_table(rng), settle=settle, cublas=rng.random() < 0.4)
    assert sum(one_call(rng, runtime, driver) for _ in range(NUM_CALLS)) > NUM_CALLS // 4


def routed_call(rng: random.Random, torch: FakeTorch, table: Table, decided: list[Any]) -> None:
    """By torch's dispatcher, transposed as views, and by each launch that may take its turn."""
    gemm = replace(drawn_gemm(rng, [entry.gemm for entry in table.entries]), a_type="fp32")
    is_odd, has_sum, has_out = (rng.random() < chance for chance in (0.6, 0.5, 0.5))
    _, _, c, *views = operands(rng, gemm, is_odd=is_odd)
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
        c.check(want if has_out else None)
        for engine, one, planned in decided:
            rivals_are_the_product(engine, one, planned, views)
        decided.clear()


def rivals_are_the_product(
    engine: RoutedEngine, decided: Decided, planned: Product, views: list[Array]
) -> None:
    """Planned for a batch or, of all its rows, for one product."""
    gemm, core = planned.gemm, engine.core
    shape = (*(gemm.batch for _ in "1" * gemm.is_batched), gemm.m, gemm.n)
    strides = (planned.batch.stride_c,) * gemm.is_batched + (planned.lds[2], 1)
    bias = np.linspace(-1, 1, gemm.n, dtype=np.float32)
    for rival in decided.rivals:
        if rival.reason or rival.pick is None:
            continue
        has_bias = engine._chooser.kernels[rival.pick.kernel_id].variant.epilogue.bias != "none"
        whole = np.full(sum((x - 1) * y for x, y in zip(shape, strides, strict=True)) + 1, np.nan, np.float32)
        c = np.ndarray(shape, np.float32, whole, strides=[4 * one for one in strides])
        at = (*(x.ctypes.data for x in views), c.ctypes.data, bias.ctypes.data * has_bias)
        assert not core.library.autotune_run_plan(core.handle, rival.plan.address, STREAM, *at, 1.0, 0.0)
        want = product(*views) + bias * has_bias
        np.testing.assert_allclose(c, want.reshape(shape), rtol=1e-4, atol=2e-4)


@pytest.mark.every(3)
@pytest.mark.parametrize("seed", range(64))
def test_a_routed_call_is_its_product(
    seed: int, opened: Callable[..., Any], fake_torch: FakeTorch, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng, decided = random.Random(seed), list[Any]()
    decide = RoutedEngine.remember

    def pick(self: Chooser, call: Call) -> Pick:
        """Kernels take long or are soon done; torch's own is slow, or fast, or unknown."""
        found, drawn = PICK(self, call), random.Random(str(call.gemm))
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
            routed_call(rng, fake_torch, runtime.table, decided)
    assert driver.launches or runtime.table.order is None
