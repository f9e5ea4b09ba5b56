"""Batches at the runtime: what serves them, arrays of more dimensions, strides, captures, counts.

Products are computed by the simulated driver and the simulated cuBLAS, which check what real ones rely on.
"""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fake_blas import FakeBlas
from fake_selector import BATCH_MARGIN
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from table_cases import FakeDriver, OnGpu, make_kernel, make_spec, make_table, rank

from autotune.cli.verify import _cases
from autotune.export.check import verify_table
from autotune.facts.gemm import LAYOUTS, Batch, Gemm
from autotune.files.errors import DispatchError
from autotune.kernel.launch import Variant
from autotune.runtime.calls.product import MAX_LOOPED, Product, folded, packed, stacked
from autotune.runtime.choose.chooser import Call, Chooser
from autotune.runtime.dispatcher import Dispatcher
from autotune.runtime.table.table import Entry, RankedKernel
from autotune.suite import read_suite

Array = np.ndarray[Any, Any]
SMALL = Gemm(20, 12, 16, batch=6)
SPLIT, LAST, PACKS = (replace(SMALL, k=k, batch=4) for k in (64, 80, 128))
SHARED = replace(SMALL, batch=8, shares_b=True)


def _kernel(name: str, layout: str = "NN", **changes: Any) -> Any:
    variant = Variant(layout[0] == "T", layout[1] == "T", is_batched=True)
    return make_kernel(name, make_spec(layout, variant=variant, **changes), None)


def _table() -> Any:
    kernels = [
        *(_kernel(f"batched-{x.lower()}", x) for x in LAYOUTS),
        _kernel("vectors", vec_a=4, vec_b=4, vec_c=4),
        _kernel("two", reduction="two_pass", split_k=2),
        _kernel("last", reduction="last_block", split_k=2),
        _kernel("packs", packs_a=True, packs_b=True, vec_a=4, vec_b=4),
    ]
    transposed = [replace(SMALL, trans_a=x[0] == "T", trans_b=x[1] == "T") for x in LAYOUTS]
    return make_table(
        *kernels,
        make_kernel("single", make_spec()),
        entries=(
            rank(SMALL, "vectors", "batched-nn"),
            *(rank(gemm, f"batched-{gemm.layout.lower()}") for gemm in transposed[1:]),
            rank(SPLIT, "two"),
            rank(LAST, "last"),
            rank(PACKS, "packs"),
            rank(replace(PACKS, shares_a=True), "packs"),
            rank(SHARED, "batched-nn"),
        ),
    )


@pytest.fixture
def runtime(folder: Path, driver: FakeDriver, blas: FakeBlas) -> Dispatcher:
    return Dispatcher(folder, driver=driver, cublas=True)


@pytest.fixture
def alone(folder: Path, driver: FakeDriver) -> Dispatcher:
    """Without cuBLAS."""
    return Dispatcher(folder, driver=driver, cublas=False)


def normal(*shape: int, seed: int = 0) -> Array:
    """At an address of 256 bytes, as allocations are."""
    count = int(np.prod(shape))
    space = np.zeros(count + 64, np.float32)
    start = (-space.ctypes.data // 4) % 64
    view = space[start : start + count].reshape(shape)
    view[...] = np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)
    return view


def operands(gemm: Gemm) -> tuple[Array, Array, Array]:
    stack = (gemm.batch,) if gemm.is_batched else ()
    a = (() if gemm.shares_a else stack) + ((gemm.k, gemm.m) if gemm.trans_a else (gemm.m, gemm.k))
    b = (() if gemm.shares_b else stack) + ((gemm.n, gemm.k) if gemm.trans_b else (gemm.k, gemm.n))
    return normal(*a), normal(*b, seed=1), normal(*stack, gemm.m, gemm.n, seed=2)


def expected(a: Array, b: Array, c: Array, alpha: float, beta: float, gemm: Gemm) -> Array:
    a, b = (np.swapaxes(x, -1, -2) if t else x for x, t in ((a, gemm.trans_a), (b, gemm.trans_b)))
    return alpha * (a.astype(np.float64) @ b.astype(np.float64)) + beta * c


def close(found: Array, other: Array) -> None:
    np.testing.assert_allclose(found, other, rtol=1e-4, atol=1e-4)


TUNED = [entry.gemm for entry in _table().entries]


@pytest.mark.parametrize("gemm", TUNED, ids=str)
@pytest.mark.parametrize(("alpha", "beta"), [(1.0, 0.0), (0.5, -2.0), (0.0, 1.0)])
def test_a_tuned_batch_is_one_launch_of_its_kernel(
    runtime: Dispatcher, driver: FakeDriver, blas: FakeBlas, gemm: Gemm, alpha: float, beta: float
) -> None:
    a, b, c = operands(gemm)
    want = expected(a, b, c, alpha, beta, gemm)
    flags = {"trans_a": gemm.trans_a, "trans_b": gemm.trans_b}
    runtime.sgemm(OnGpu(a), OnGpu(b), OnGpu(c), alpha=alpha, beta=beta, **flags)
    close(c, want)
    pick = runtime.pick(gemm.m, gemm.n, gemm.k, gemm.trans_a, gemm.trans_b, batch=gemm.batch,
                        shares_a=gemm.shares_a, shares_b=gemm.shares_b)  # fmt: skip
    assert (pick.how, pick.provider, pick.is_looped) == ("exact", "autotune", False)
    assert [one.kernel_id for one in driver.launches if one.name == "sgemm"] == [pick.kernel_id]
    assert not blas.served


def test_neighbours_are_served_by_its_kernel_and_others_by_cublas(
    runtime: Dispatcher, driver: FakeDriver, blas: FakeBlas
) -> None:
    for batch, who in ((12, "autotune"), (3, "autotune"), (13, "cublas"), (2, "cublas")):
        a, b, c = operands(replace(SMALL, batch=batch))
        want = expected(a, b, c, 2.0, 1.0, SMALL)
        driver.launches.clear()
        blas.served.clear()
        runtime.sgemm(OnGpu(a), OnGpu(b), OnGpu(c), alpha=2.0, beta=1.0)
        close(c, want)
        pick = runtime.pick(20, 12, 16, batch=batch)
        assert (pick.how, pick.provider, pick.entry) == ("nearest", who, SMALL)
        assert pick.expected_us == pytest.approx(10.0 * batch / 6)
        assert (len(driver.launches), len(blas.served)) == ((1, 0) if who == "autotune" else (0, 1))
    other = Gemm(9, 9, 9, batch=5)
    a, b, c = operands(other)
    blas.served.clear()
    runtime.sgemm(OnGpu(a), OnGpu(b), OnGpu(c))
    close(c, a @ b)
    assert len(blas.served) == 1 and runtime.pick(9, 9, 9, batch=5).is_looped


def test_without_cublas_every_batch_is_served_all_the_same(alone: Dispatcher, driver: FakeDriver) -> None:
    for gemm, num in ((replace(SMALL, batch=40), 1), (Gemm(9, 9, 9, batch=5), 5)):
        a, b, c = operands(gemm)
        driver.launches.clear()
        alone.sgemm(OnGpu(a), OnGpu(b), OnGpu(c))
        close(c, a @ b)
        assert len(driver.launches) == num
        assert alone.pick(gemm.m, gemm.n, gemm.k, batch=gemm.batch).provider == "autotune"


def test_a_kernel_has_to_be_surely_faster_for_other_batches() -> None:
    for cublas_us, who in (
        (10.0 * np.exp(BATCH_MARGIN) + 0.01, "autotune"),
        (11.6, "cublas"),
        (None, "cublas"),
    ):
        entry = Entry(SMALL, cublas_us, (RankedKernel("batched-nn", 10.0, True),))
        table = replace(_table(), entries=(entry,))
        assert Chooser(table).pick(Call.packed(replace(SMALL, batch=7))).provider == who


def test_a_kernel_of_vectors_serves_no_batch_that_lies_between_them(runtime: Dispatcher) -> None:
    selector = Chooser(_table())
    odd = Call.packed(SMALL)._replace(batch=Batch(6, 321, 192, 240))
    assert selector.pick(odd).kernel_id == "batched-nn"
    assert "lies" not in selector.pick(Call.packed(SMALL)).reason
    assert selector.pick(Call.packed(SMALL)).kernel_id == "vectors"


def test_rows_that_go_on_are_one_product(runtime: Dispatcher, driver: FakeDriver) -> None:
    a, b, c = normal(5, 7, 16), normal(16, 12), normal(5, 7, 12)
    runtime.sgemm(OnGpu(a), OnGpu(b), OnGpu(c))
    close(c, a @ b)
    (counted,) = runtime.counts()
    assert counted.gemm == Gemm(35, 12, 16)
    assert runtime.pick(7, 12, 16, batch=5, shares_b=True).how == runtime.pick(35, 12, 16).how


@given(st.data())
@settings(max_examples=80)
def test_what_is_folded_is_the_same_product(data: st.DataObject) -> None:
    """Any strides: what lies as one product does in NumPy does here, and nothing else."""
    products, m, n, k = (data.draw(st.integers(low, 4)) for low in (2, 1, 1, 1))
    transposed = data.draw(st.booleans())
    lda = data.draw(st.integers(m if transposed else k, 20))
    ldc = data.draw(st.integers(n, 9))
    stride_a, stride_c = (data.draw(st.sampled_from([1, m, m * ld, ld, 17])) for ld in (lda, ldc))
    gemm = Gemm(m, n, k, transposed, batch=products, shares_b=True)
    found = folded(Product(gemm, (lda, n, ldc), (0, 0, 0), Batch(products, stride_a, 0, stride_c)))
    if found is None:
        return
    place_a = [[p * stride_a + (i + j * lda if transposed else i * lda + j) for j in range(k)]
               for p in range(products) for i in range(m)]  # fmt: skip
    place_c = [[p * stride_c + i * ldc + j for j in range(n)] for p in range(products) for i in range(m)]
    a, _, c = found.lds
    rows = range(products * m)
    assert place_a == [[i + j * a if transposed else i * a + j for j in range(k)] for i in rows]
    assert place_c == [[i * c + j for j in range(n)] for i in rows]
    assert (a >= products * m if transposed else a >= k) and c >= n


@st.composite
def _arrays(draw: st.DrawFn) -> tuple[Array, Array, Array]:
    """Stacks whose leading dimensions broadcast, permuted in memory, some of them expanded."""
    extents = draw(st.lists(st.integers(1, 3), min_size=1, max_size=3))
    m, n, k = (draw(st.integers(1, 9)) for _ in "mnk")

    def stack(rows: int, columns: int, *, may_broadcast: bool) -> Array:
        own = [draw(st.sampled_from([e, 1])) if may_broadcast else e for e in extents]
        if may_broadcast and draw(st.booleans()):
            own = own[draw(st.integers(0, len(own))) :]
        order = draw(st.permutations(range(len(own) + 1)))  # of the leading dimensions and the rows
        shape = [*own, rows]
        stored = normal(*(shape[at] for at in order), columns + draw(st.integers(0, 3)), seed=len(shape))
        placed = np.argsort(order).tolist()
        return stored.transpose(*placed, len(order))[..., :columns]

    a, b = stack(m, k, may_broadcast=True), stack(k, n, may_broadcast=True)
    shape = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    extents = list(shape)
    return a, b, stack(m, n, may_broadcast=False)


@given(arrays=_arrays())
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_stacks_of_any_kind_are_multiplied_in_place(
    runtime: Dispatcher, alone: Dispatcher, arrays: tuple[Array, Array, Array]
) -> None:
    a, b, c = arrays
    want = 0.5 * (a.astype(np.float64) @ b.astype(np.float64)) - c
    kept = c.base.copy() if c.base is not None else None
    before = c.copy()
    for dispatcher in (runtime, alone):
        c[...] = before
        dispatcher.sgemm(OnGpu(a), OnGpu(b), OnGpu(c), alpha=0.5, beta=-1.0)
        close(c, want)
        c[...] = before
        assert kept is None or np.array_equal(kept, c.base), "what lies between the rows was written"
        close(dispatcher.sgemm(a, b), a @ b)
    assert not runtime.num_copied


@pytest.mark.parametrize("shape", [(0, 3, 4), (2, 0, 3, 4)])
def test_no_products_launch_nothing(runtime: Dispatcher, driver: FakeDriver, shape: tuple[int, ...]) -> None:
    a, b = np.zeros(shape, np.float32), np.zeros((4, 5), np.float32)
    c = np.zeros((*shape[:-1], 5), np.float32)
    runtime.sgemm(OnGpu(a), OnGpu(b), OnGpu(c))
    assert runtime.sgemm(a, b).shape == c.shape
    assert not driver.launches and not runtime.counts()


def test_a_batch_without_depth_is_scaled(runtime: Dispatcher) -> None:
    a, b, c = np.zeros((3, 4, 0), np.float32), np.zeros((3, 0, 5), np.float32), normal(3, 4, 5)
    want = 2 * c
    runtime.sgemm(OnGpu(a), OnGpu(b), OnGpu(c), beta=2.0)
    close(c, want)


_STACK, _OUT = normal(3, 8, 4), normal(3, 8, 6)
_WIDE = np.broadcast_to(normal(8, 6), (3, 8, 6))
REFUSED = {
    "leading": (_STACK, normal(2, 4, 6), _OUT, "differ in a leading dimension"),
    "out": (_STACK, normal(3, 4, 6), normal(2, 8, 6), "out has 2 matrices, expected 3"),
    "flat out": (_STACK, normal(3, 4, 6), normal(8, 6), "out has 1 matrices, expected 3"),
    "deep out": (normal(8, 4), normal(4, 6), normal(1, 8, 6), "out is 1x8x6, expected 8x6; pass another"),
    "deeper out": (normal(8, 4), normal(4, 6), normal(2, 8, 6), "expected 1: out is 2x8x6, expected 8x6"),
    "inner": (_STACK, normal(3, 5, 6), _OUT, "inner extents differ"),
    "shared out": (_STACK, normal(3, 4, 6), _WIDE, "products of out overlap"),
    "meeting out": (
        _STACK, normal(3, 4, 6), np.lib.stride_tricks.as_strided(normal(500), (3, 8, 6), (40, 24, 4)),
        "products of out overlap",
    ),
    "backwards": (_STACK[::-1], normal(3, 4, 6), _OUT, "matrices of a lie backwards"),
    "dtype": (_STACK.astype(np.float64), normal(3, 4, 6), _OUT, "a has dtype float64"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_a_wrong_call_is_refused_before_any_launch(
    runtime: Dispatcher, driver: FakeDriver, name: str
) -> None:
    a, b, c, message = REFUSED[name]
    with pytest.raises(DispatchError, match=message):
        runtime.sgemm(OnGpu(a), OnGpu(b), OnGpu(c))
    assert not driver.launches and not driver.memory


@pytest.mark.parametrize("strides", [(16, 16, 4), (48, 16, 4), (-16, 16, 4)], ids=str)
def test_so_is_an_out_of_numpy_of_which_products_overlap(runtime, driver, strides) -> None:
    """Not one that lies backwards."""
    shared = np.lib.stride_tricks.as_strided(normal(500)[100:], (3, 4, 4), strides)
    with pytest.raises(DispatchError, match="products of out overlap"):
        runtime.sgemm(normal(3, 4, 5), normal(5, 4), shared)
    assert not driver.launches and not driver.memory
    apart = np.empty((3, 5, 8), np.float32)[::-1, :4, ::2]
    runtime.sgemm(normal(3, 4, 5), normal(5, 4), apart)
    np.testing.assert_allclose(apart, normal(3, 4, 5) @ normal(5, 4), rtol=1e-4, atol=1e-4)


MANY = MAX_LOOPED + 1
TOO_MANY = {
    "one batch": ((MANY, 2, 2), (MANY, 2, 2)),
    "several": ((300, 1, 2, 2), (1, 300, 2, 2)),
}


@pytest.mark.parametrize("of", [OnGpu, np.asarray])
@pytest.mark.parametrize("case", TOO_MANY)
def test_an_untuned_batch_is_not_launched_one_by_one_without_end(alone, driver, case, of) -> None:
    a, b = (np.ones(shape, np.float32) for shape in TOO_MANY[case])
    out = np.empty(np.broadcast_shapes(a.shape, b.shape), np.float32)
    with pytest.raises(DispatchError, match=r"a launch for each of more than 65,536 products; tune such"):
        alone.sgemm(of(a), of(b), of(out))
    assert not driver.launches and not driver.memory and not alone.counts()


def test_nor_is_a_batch_that_cublas_cannot_serve(runtime, driver) -> None:
    a, out = np.ones((MANY, 2, 2), np.float32), np.empty((MANY, 2, 2), np.float32)
    with pytest.raises(DispatchError, match="more than 65,536 products"):
        runtime.sgemm(OnGpu(a), OnGpu(a), OnGpu(out), alpha=0.0)  # A and B must not be read
    assert not driver.launches


def test_matrices_that_lie_too_irregularly_are_refused() -> None:
    form = (2, 2, 2, 1)
    with pytest.raises(DispatchError, match=r"70,000 calls, more than 65,536; pass contiguous copies"):
        stacked((form, form, None), (((70_000, 4), (1, 0)), ((1, 0), (70_001, 4)), None), False, False)


def test_out_must_be_apart_from_all_products(runtime: Dispatcher, driver: FakeDriver) -> None:
    space = normal(3 * 8 * 4 + 3 * 8 * 4)
    a, c = space[: 3 * 8 * 4].reshape(3, 8, 4), space[2 * 8 * 4 + 8 :][: 3 * 8 * 4].reshape(3, 8, 4)
    with pytest.raises(DispatchError, match="out overlaps an input"):
        runtime.sgemm(OnGpu(a), OnGpu(normal(4, 4)), OnGpu(c))
    assert not driver.launches


def test_a_captured_batch_owns_its_workspace(runtime: Dispatcher, driver: FakeDriver) -> None:
    stream = 77
    for gemm in (SPLIT, LAST, PACKS, Gemm(9, 9, 9, batch=5)):
        a, b, c = operands(gemm)
        driver.capturing = frozenset()
        runtime.sgemm(OnGpu(a), OnGpu(b), OnGpu(c), stream=stream)
        driver.capturing = frozenset({stream})
        c[...] = np.nan
        runtime.sgemm(OnGpu(a), OnGpu(b), OnGpu(c), stream=stream)
        close(c, a @ b)


def test_what_is_prepared_is_planned_and_settling_leaves_batches_alone(
    runtime: Dispatcher, driver: FakeDriver
) -> None:
    (pick,) = runtime.prepare([(20, 12, 16, False, False, 6)])
    num_loaded = len(driver.of("load"))
    a, b, c = operands(SMALL)
    runtime.sgemm(OnGpu(a), OnGpu(b), OnGpu(c))
    assert pick.how == "exact" and len(driver.of("load")) == num_loaded == 1
    driver.launches.clear()
    (left,) = runtime.settle([(9, 9, 9, False, False, 5)])
    assert left.is_looped and left.how != "settled" and not driver.launches
    for wrong in ((1, 2), (1, 2, 3, 4), (1, 2, 3, False, False, 0), (1, 2, 3, False, False, 2, True, True)):
        with pytest.raises(DispatchError):
            runtime.prepare([wrong])


def test_calls_are_counted_as_batches(runtime: Dispatcher) -> None:
    for gemm, times in ((SMALL, 3), (replace(PACKS, shares_a=True), 2)):
        a, b, c = operands(gemm)
        for _ in range(times):
            runtime.sgemm(OnGpu(a), OnGpu(b), OnGpu(c))
    assert {(one.gemm, one.calls) for one in runtime.counts()} == {
        (SMALL, 3),
        (replace(PACKS, shares_a=True), 2),
    }


@given(st.data())
@settings(max_examples=80)
def test_calls_of_a_stack_are_all_its_products(data: st.DataObject) -> None:
    """Each place of the leading dimensions is computed once, where its operands lie."""
    extents = data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=3))
    strides = st.sampled_from([0, 1, 7, 20, 60, 240])
    leading = [tuple((e, data.draw(strides)) for e in extents) for _ in "ab"]
    form = (2, 2, 2, 1)
    stack = stacked((form, form, None), (leading[0], leading[1], None), False, False)
    batch = stack.batch or Batch()
    found = sorted(
        tuple(offset[r] // 4 + i * batch[1 + r] for r in range(3)) for offset in stack.offsets
        for i in range(batch.products)
    )  # fmt: skip
    of_c = [4 * int(np.prod(extents[at + 1 :])) for at in range(len(extents))]
    steps = [[s for _, s in leading[0]], [s for _, s in leading[1]], of_c]
    want = sorted(
        tuple(sum(i * s for i, s, e in zip(at, steps[r], extents, strict=True) if e > 1) for r in range(3))
        for at in np.ndindex(*extents)
    )
    assert found == want
    assert stack.shape == (*extents, 2, 2)
    assert packed(SMALL).batch == SMALL.strides


def test_recorded_batches_are_a_suite_that_a_search_reads(
    folder: Path, driver: FakeDriver, blas: FakeBlas, tmp_path: Path
) -> None:
    file = tmp_path / "calls.json"
    shared = replace(PACKS, shares_a=True)
    runtime = Dispatcher(folder, driver=driver, cublas=True)
    runtime.record_calls(file)
    for gemm, times in ((SMALL, 2), (shared, 1), (Gemm(9, 9, 9, batch=5), 3)):
        a, b, c = operands(gemm)
        for _ in range(times):
            runtime.sgemm(OnGpu(a), OnGpu(b), OnGpu(c))
    wanted = {SMALL: 2, shared: 1, Gemm(9, 9, 9, batch=5): 3}
    deadline = time.monotonic() + 20
    found: dict[Gemm, int | None] = {}
    while found != wanted and time.monotonic() < deadline:
        time.sleep(0.05)
        if any(Path(f"{file}.d").glob("[!.]*.json")):
            found = read_suite(file)
    assert found == wanted


def test_verify_runs_kernels_for_batches_on_batches() -> None:
    """Each on what it was tuned for, and on other batches: no kernel for batches is left out."""
    cases = [(kernel, gemm) for kernel, gemm, _ in _cases(_table())]
    assert all(kernel.variant.is_batched == gemm.is_batched for kernel, gemm in cases)
    of = {kernel.id: {gemm for other, gemm in cases if other is kernel} for kernel, _ in cases}
    assert of["packs"] >= {PACKS, replace(PACKS, shares_a=True)} and len(of["packs"]) > 2
    assert set(of) == {kernel.id for kernel in _table().kernels}


def test_the_check_of_a_folder_multiplies_batches(folder: Path, driver: FakeDriver) -> None:
    found = [*verify_table(folder, driver=driver)]
    assert not [check for check in found if not check.is_ok]
    assert any(check.gemm.is_batched for check in found)
    driver.result_error = 1.0
    wrong = {check.kernel_id for check in verify_table(folder, driver=driver) if not check.is_ok}
    assert wrong == {kernel.id for kernel in _table().kernels}
