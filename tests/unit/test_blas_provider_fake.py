"""cuBLAS as a provider, simulated by the host: products, handles, workspaces, captures, switch, faults."""

from __future__ import annotations

import json
import math
import threading
import warnings
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from fake_blas import FakeBlas, install
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from table_cases import (
    FIGURES,
    LIMITS,
    FakeDriver,
    OnGpu,
    isolated,
    make_kernel,
    make_spec,
    make_table,
    rank,
    write_table,
)

from autotune.facts.gemm import MAX_EXTENT, Gemm
from autotune.files.errors import DispatchError, DispatchWarning
from autotune.perf_model import cublas_model
from autotune.runtime.choose import blas_provider
from autotune.runtime.choose.blas_provider import BlasLibrary, BlasProvider, ProvenBlas
from autotune.runtime.choose.chooser import Call, Chooser, Pick
from autotune.runtime.dispatcher import Dispatcher
from autotune.runtime.launch import planner
from autotune.runtime.native import core
from autotune.runtime.table.table import CublasFigures, Table

STREAM = 77
SHAPE, TUNED = Gemm(40, 36, 68), Gemm(128, 128, 64)
Array = np.ndarray[Any, Any]


def _table() -> Table:
    fast = replace(FIGURES, step_us=0.1)
    table = make_table(
        make_kernel("last", make_spec(reduction="last_block", split_k=2), fast),
        make_kernel("plain", make_spec(), replace(fast, step_us=0.08)),
        make_kernel("tuned", make_spec(group=8), None),
        entries=(rank(TUNED, "tuned"),),
    )
    return replace(table, limits=replace(LIMITS, l2_bytes=1 << 16))


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("AUTOTUNE_CUBLAS", raising=False)
    return isolated(monkeypatch, tmp_path)


@pytest.fixture
def blas(driver: FakeDriver, monkeypatch: pytest.MonkeyPatch) -> FakeBlas:
    fake = FakeBlas(driver)
    install(monkeypatch, fake)
    return fake


@pytest.fixture
def picked(monkeypatch: pytest.MonkeyPatch) -> None:
    """The selector takes cuBLAS to be the fastest for every call."""
    own = Chooser.pick

    def pick(self: Chooser, call: Call, *known: Any) -> Pick:
        return replace(own(self, call, *known), provider="cublas", cublas_us=1.0)

    monkeypatch.setattr(Chooser, "pick", pick)


@pytest.fixture
def runtime(
    folder: Path,
    driver: FakeDriver,
    blas: FakeBlas,
    picked: None,
) -> Dispatcher:
    return Dispatcher(folder, driver=driver)


def normal(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)


def multiply(runtime: Dispatcher, gemm: Gemm = SHAPE, seed: int = 0, **options: Any) -> None:
    """A product, whose result is checked."""
    a, b, c = normal(gemm.m, gemm.k, seed=seed), normal(gemm.k, gemm.n), normal(gemm.m, gemm.n)
    expected = options.get("alpha", 1.0) * (a @ b) + options.get("beta", 0.0) * c
    runtime.sgemm(OnGpu(a), OnGpu(b), OnGpu(c), **options)
    np.testing.assert_allclose(c, expected, rtol=1e-4, atol=1e-4)


# Products


@st.composite
def _views(draw: st.DrawFn) -> tuple[Array, Array, Array, bool, bool]:
    """Operands with any row distance and order of storage, and flags that fit them."""
    m, n, k = (draw(st.integers(1, 9)) for _ in range(3))

    def matrix(rows: int, columns: int) -> Array:
        is_by_columns = draw(st.booleans())
        stored = (columns, rows) if is_by_columns else (rows, columns)
        view = normal(stored[0], stored[1] + draw(st.integers(0, 3)))[:, : stored[1]]
        return view.T if is_by_columns else view

    trans_a, trans_b = draw(st.booleans()), draw(st.booleans())
    a = matrix(k, m) if trans_a else matrix(m, k)
    b = matrix(n, k) if trans_b else matrix(k, n)
    return a, b, normal(m, n + draw(st.integers(0, 3)))[:, :n], trans_a, trans_b


_SCALE = st.sampled_from((1.0, -0.5, 3.0))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(_views(), _SCALE, st.one_of(st.just(0.0), _SCALE))
def test_every_view_is_multiplied(
    runtime: Dispatcher,
    driver: FakeDriver,
    case: tuple[Array, Array, Array, bool, bool],
    alpha: float,
    beta: float,
) -> None:
    a, b, c, trans_a, trans_b = case
    around = c.base if c.base is not None else c
    before, n = around.copy(), c.shape[1]
    expected = alpha * (a.T if trans_a else a) @ (b.T if trans_b else b) + beta * c
    runtime.sgemm(OnGpu(a), OnGpu(b), OnGpu(c), alpha=alpha, beta=beta, trans_a=trans_a, trans_b=trans_b)
    np.testing.assert_allclose(c, expected, rtol=1e-4, atol=1e-4)
    np.testing.assert_array_equal(around[:, n:], before[:, n:])
    assert not driver.launches


def test_pick_says_who_serves(runtime: Dispatcher, blas: FakeBlas, driver: FakeDriver) -> None:
    pick = runtime.pick(SHAPE.m, SHAPE.n, SHAPE.k)
    assert (pick.provider, pick.cublas_us) == ("cublas", 1.0)
    multiply(runtime, alpha=0.5, beta=-2.0, stream=STREAM)
    assert [(one.stream, one.context) for one in blas.served] == [(STREAM, 100)]
    assert not driver.launches and not driver.context_stack


def test_beta_zero_does_not_read_out(runtime: Dispatcher) -> None:
    a, b, c = normal(5, 7), normal(7, 3), np.full((5, 3), np.nan, np.float32)
    runtime.sgemm(OnGpu(a), OnGpu(b), OnGpu(c))
    np.testing.assert_allclose(c, a @ b, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("alpha", [0.0, -0.0, 1e-60])
def test_what_reads_no_operands_is_left_to_kernels(
    runtime: Dispatcher, blas: FakeBlas, driver: FakeDriver, alpha: float
) -> None:
    multiply(runtime, alpha=alpha, beta=3.0)
    multiply(runtime, Gemm(5, 7, 0), beta=3.0)
    assert runtime.pick(5, 7, 0).provider == "autotune"
    assert driver.launches and not blas.served


@pytest.mark.parametrize("scale", ["much", 1e39], ids=["word", "too large"])
@pytest.mark.parametrize("name", ["alpha", "beta"])
def test_what_is_no_scale_is_refused(
    runtime: Dispatcher, blas: FakeBlas, driver: FakeDriver, name: str, scale: Any
) -> None:
    a, b, c = normal(4, 4), normal(4, 4), normal(4, 4)
    with pytest.raises(DispatchError, match="no float32"):
        runtime.sgemm(OnGpu(a), OnGpu(b), OnGpu(c), **{name: scale})
    assert not blas.served and not driver.launches


@pytest.mark.parametrize("at", range(3))
def test_leading_dimensions_beyond_int_are_left_to_kernels(blas: FakeBlas, at: int) -> None:
    provider, lds = BlasProvider(is_on=True), [68, 36, 36]
    pick = Pick("plain", "modelled", lambda: "it is modelled", 1, provider="cublas")
    for ld, name in ((MAX_EXTENT, "cublas"), (MAX_EXTENT + 1, "autotune")):
        lds[at] = ld
        found = provider.served(pick, Call(SHAPE, (lds[0], lds[1], lds[2])))
        assert found.provider == name
    assert "cannot be called" in found.reason


# Handles


def test_a_thread_has_a_handle_on_each_gpu(runtime: Dispatcher, blas: FakeBlas, driver: FakeDriver) -> None:
    a, b, c = normal(4, 4), normal(4, 4), normal(4, 4)
    for device in (0, 1, 0, 1):
        driver.places |= {x.ctypes.data: device for x in (a, b, c)}
        runtime.sgemm(OnGpu(a), OnGpu(b), OnGpu(c))
    assert [one.context for one in blas.served] == [100, 101, 100, 101]
    assert len({one.handle for one in blas.served}) == len(blas.handles) == 2


def test_the_core_is_told_of_cublas_once(
    folder: Path, driver: FakeDriver, blas: FakeBlas, picked: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By whichever of two threads is first: calls of which it was told before would be freed under it."""
    own, notes, met = planner._blas_calls, list[object](), threading.Barrier(2)

    def slowly(*arguments: Any) -> Any:
        notes.append(own(*arguments))
        with suppress(threading.BrokenBarrierError):
            met.wait(timeout=0.5)
        return notes[-1]

    monkeypatch.setattr(planner, "_blas_calls", slowly)
    runtime = Dispatcher(folder, driver=driver)
    a, b, c = normal(40, 30), normal(30, 20), [np.zeros((40, 20), np.float32) for _ in "12"]
    works = [threading.Thread(target=runtime.sgemm, args=(OnGpu(a), OnGpu(b), OnGpu(one))) for one in c]
    for work in works:
        work.start()
    for work in works:
        work.join()
    assert len(notes) == 1 and len(blas.served) == 2


def test_threads_that_call_at_once_have_handles_of_their_own(runtime: Dispatcher, blas: FakeBlas) -> None:
    faults, ready = [], threading.Barrier(8)

    def work(seed: int) -> None:
        try:
            multiply(runtime, seed=seed)
            ready.wait(300)  # sanitizers on a busy machine take their time
            for number in range(10):
                multiply(runtime, seed=seed + number, alpha=1.0 + seed, stream=STREAM + seed % 3)
        except BaseException as fault:
            ready.abort()  # nobody waits for this thread
            faults.append(fault)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not faults
    assert 1 <= len(blas.handles) <= 8  # the simulated library sees to it that no two threads use one at once


def test_threads_that_come_and_go_make_one_handle(runtime: Dispatcher, blas: FakeBlas) -> None:
    for _ in range(20):
        in_thread(lambda: multiply(runtime))
    assert len(blas.served) == 20 and len(blas.handles) == 1


def in_thread(work: Any) -> None:
    faults: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except BaseException as fault:
            faults.append(fault)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert not faults, faults


# Workspaces and captures


def test_streams_share_no_workspace(
    runtime: Dispatcher, blas: FakeBlas, driver: FakeDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(core, "LAUNCHES_TO_STAY", 1)
    for stream in (5, 6, 5, 6):
        multiply(runtime, stream=stream)
    found = {(one.stream, one.workspace) for one in blas.served}
    assert len(found) == 2 and len({at for _, at in found}) == 2
    in_thread(lambda: multiply(runtime, stream=2))
    multiply(runtime, stream=2)  # another stream: each thread has its own default one
    assert len({one.workspace for one in blas.served}) == 4 == len(driver.memory)


def test_a_workspace_is_given_back_in_the_order_of_its_stream(
    runtime: Dispatcher, driver: FakeDriver
) -> None:
    multiply(runtime, stream=STREAM)
    assert [entry[-1] for entry in driver.log if entry[0] in ("allocate", "free")] == [STREAM, STREAM]
    assert not driver.memory


def test_a_graph_owns_its_workspace(runtime: Dispatcher, blas: FakeBlas, driver: FakeDriver) -> None:
    for _ in range(2 * core.LAUNCHES_TO_STAY):
        multiply(runtime, stream=STREAM)  # whose workspace stays
    kept = set(driver.memory)
    driver.log.clear()
    driver.capturing = frozenset({STREAM})
    for _ in range(3):
        multiply(runtime, stream=STREAM)
    assert {one.workspace for one in blas.served[-3:]}.isdisjoint(kept) and set(driver.memory) == kept
    assert len(driver.of("allocate")) == len(driver.of("free")) == 3
    assert not driver.launches and not driver.of("synchronize")


def test_no_handle_is_made_under_capture(runtime: Dispatcher, blas: FakeBlas, driver: FakeDriver) -> None:
    driver.capturing = frozenset({STREAM})
    multiply(runtime, stream=STREAM)
    assert driver.launches and not blas.handles  # the kernel of the table serves
    multiply(runtime, stream=STREAM + 1)
    multiply(runtime, stream=STREAM)
    assert [one.stream for one in blas.served] == [STREAM + 1, STREAM]
    in_thread(lambda: multiply(runtime, stream=STREAM))
    assert len(blas.handles) == 1


def test_a_handle_that_a_thread_left_serves_under_capture(
    runtime: Dispatcher, blas: FakeBlas, driver: FakeDriver
) -> None:
    in_thread(lambda: multiply(runtime))
    driver.capturing = frozenset({STREAM})
    multiply(runtime, stream=STREAM)
    assert len(blas.served) == 2 and len(blas.handles) == 1 and not driver.launches


# The switch, and a library that is not there


@pytest.mark.parametrize(
    ("argument", "notes", "deterministic", "is_on"),
    [(None, None, False, True), (None, "1", False, True), (None, "0", False, False), (None, "", False, True),
     (True, "0", False, True), (False, "1", False, False), (False, None, False, False),
     (None, None, True, False), (None, "1", True, False), (True, None, True, True)],
)  # fmt: skip
def test_it_is_switched_by_argument_then_environment(
    folder: Path, driver: FakeDriver, blas: FakeBlas, picked: None, monkeypatch: pytest.MonkeyPatch,
    argument: bool | None, notes: str | None, deterministic: bool, is_on: bool,
) -> None:  # fmt: skip
    if notes is not None:
        monkeypatch.setenv("AUTOTUNE_CUBLAS", notes)
    runtime = Dispatcher(folder, cublas=argument, deterministic=deterministic, driver=driver)
    pick = runtime.pick(SHAPE.m, SHAPE.n, SHAPE.k)
    assert runtime.pick(SHAPE.m, SHAPE.n, SHAPE.k) is pick  # remembered as it is told
    assert pick.provider == ("cublas" if is_on else "autotune")
    assert ("is off or not there" in pick.reason) == (not is_on)
    multiply(runtime)
    assert (len(blas.served), len(driver.launches) > 0) == (int(is_on), not is_on)
    assert is_on or not blas.handles


@pytest.mark.parametrize("notes", ["yes", "2", "off", " 1"])
def test_a_switch_that_is_none_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch, notes: str) -> None:
    monkeypatch.setenv("AUTOTUNE_CUBLAS", notes)
    with pytest.raises(DispatchError, match=r"AUTOTUNE_CUBLAS is .*; say '0' or '1'"):
        Dispatcher(folder)
    Dispatcher(folder, cublas=False)
    with pytest.raises(DispatchError, match="cublas is a str; pass True or False"):
        Dispatcher(folder, cublas="on")  # type: ignore[arg-type]


def test_it_is_not_looked_for_where_it_is_not_picked(
    folder: Path, driver: FakeDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> None:
        raise AssertionError("loaded for nothing")

    monkeypatch.setattr(blas_provider, "find_library", fail)
    runtime = Dispatcher(folder, driver=driver)
    assert runtime.pick(SHAPE.m, SHAPE.n, SHAPE.k).provider == "autotune"
    multiply(runtime)


def test_a_version_that_was_not_timed_serves_what_the_timed_one_would_not(
    tmp_path: Path, driver: FakeDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A dispatcher asks which is loaded; not a deterministic one, since processes load it at other times."""
    kernel_us = Chooser(_table()).pick(Call.packed(SHAPE)).expected_us
    least_us = cublas_model.least_us(SHAPE, _table().limits)
    assert kernel_us is not None
    level = math.log(kernel_us / least_us) + cublas_model.MARGIN * cublas_model.OTHER_VERSION / 2
    figures = CublasFigures("13.0.0", "01000000" * 3, "00000000", level, 0.0, 3.0)
    kernels = tuple(
        k if k.model is None else replace(k, model=replace(k.model, relative_error=0.0))
        for k in _table().kernels
    )
    folder = write_table(replace(_table(), kernels=kernels, cublas={"NN": figures}), tmp_path / "table")
    install(monkeypatch, FakeBlas(driver))
    for loaded, options, provider in (
        ((13, 1, 0), {}, "cublas"),
        ((13, 0, 0), {}, "autotune"),
        ((13, 1, 0), {"deterministic": True, "cublas": True}, "autotune"),
        (None, {}, "autotune"),
    ):
        library = None if loaded is None else BlasLibrary(FakeBlas(driver, version=loaded))
        monkeypatch.setattr(blas_provider, "loaded_library", lambda library=library: library)
        runtime = Dispatcher(folder, driver=driver, **options)
        assert runtime.pick(SHAPE.m, SHAPE.n, SHAPE.k).provider == provider


def test_where_it_is_absent_kernels_serve(
    folder: Path, driver: FakeDriver, picked: None, monkeypatch: pytest.MonkeyPatch, cache: Path
) -> None:
    install(monkeypatch, None)
    runtime = Dispatcher(folder, driver=driver)
    pick = runtime.pick(SHAPE.m, SHAPE.n, SHAPE.k)
    assert pick.provider == "autotune" and "not there, and this kernel serves" in pick.reason
    multiply(runtime)
    assert driver.launches[-1].kernel_id == pick.kernel_id
    runtime.settle([(SHAPE.m, SHAPE.n, SHAPE.k)])
    (path,) = cache.iterdir()
    assert json.loads(path.read_text())["settled_on"]["cublas"] is None


# Faults


@pytest.mark.parametrize("name", ["cublasCreate", "cublasSetMathMode", "cublasSetPointerMode"])
def test_a_gpu_without_a_handle_is_told_once_and_kernels_serve(
    runtime: Dispatcher, blas: FakeBlas, driver: FakeDriver, name: str
) -> None:
    blas.rejected = {name: 3}
    with pytest.warns(DispatchWarning, match=rf"cuBLAS 13.1.0 .*GPU 0.*{name} failed with status 3") as notes:
        multiply(runtime)
        multiply(runtime)
        in_thread(lambda: multiply(runtime))
    assert len(notes) == 1 and len(blas.handles) == 1  # nor tried again
    assert driver.launches and not blas.served and not driver.context_stack
    blas.rejected = {}
    a, b, c = normal(4, 4), normal(4, 4), normal(4, 4)
    driver.places = {x.ctypes.data: 1 for x in (a, b, c)}
    runtime.sgemm(OnGpu(a), OnGpu(b), OnGpu(c))
    assert [one.context for one in blas.served] == [101]  # on the other GPU it serves


@pytest.mark.parametrize("name", ["cublasSetStream", "cublasSetWorkspace", "cublasSgemm"])
def test_a_call_that_fails_says_what_to_do(
    runtime: Dispatcher, blas: FakeBlas, driver: FakeDriver, name: str
) -> None:
    blas.rejected = {name: 14}
    with pytest.raises(DispatchError, match=f"{name} failed with status 14.*cublas=False.*AUTOTUNE_CUBLAS=0"):
        multiply(runtime)
    assert not driver.memory and not driver.context_stack
    blas.rejected = {}
    multiply(runtime)


# Settling


def settling(folder: Path, driver: FakeDriver, **options: Any) -> Dispatcher:
    return Dispatcher(folder, settle="first-use", driver=driver, **options)


@pytest.mark.parametrize(
    ("time_us", "provider", "is_timed"),
    [(20.0, "cublas", True), (10.0, "cublas", True), (90.0, "autotune", True), (700.0, "autotune", False)],
)
def test_settling_times_it_beside_the_kernels(
    folder: Path, driver: FakeDriver, blas: FakeBlas, time_us: float, provider: str, is_timed: bool
) -> None:
    driver.kernel_us, blas.time_us = {"last": 60.0, "plain": 70.0}, time_us
    runtime = settling(folder, driver)
    multiply(runtime, stream=STREAM)
    pick = runtime.pick(SHAPE.m, SHAPE.n, SHAPE.k)
    assert (pick.how, pick.kernel_id, pick.provider) == ("settled", "last", provider)
    assert pick.expected_us == pytest.approx(60.0)
    assert pick.cublas_us == (pytest.approx(time_us) if is_timed else None)
    assert ("cuBLAS, the fastest beside" in pick.reason) == (provider == "cublas")
    num_served = len(blas.served)
    multiply(runtime, stream=STREAM)
    assert len(blas.served) - num_served == (provider == "cublas")
    assert not driver.handles and all(one.workspace for one in blas.served)


def test_settled_choices_serve_other_dispatchers_with_this_version(
    folder: Path, driver: FakeDriver, blas: FakeBlas, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blas.time_us = 20.0
    multiply(settling(folder, driver))
    (path,) = cache.iterdir()
    assert json.loads(path.read_text())["settled_on"]["cublas"] == "13.1.0"
    driver.log.clear()
    again = settling(folder, driver)
    num_served = len(blas.served)
    multiply(again)
    assert again.pick(SHAPE.m, SHAPE.n, SHAPE.k).provider == "cublas"
    assert len(blas.served) == num_served + 1 and not driver.of("make_stream")
    other = FakeBlas(driver, version=(13, 2, 0))
    install(monkeypatch, other)
    multiply(settling(folder, driver))
    assert driver.of("make_stream") and len(list(cache.iterdir())) == 2
    multiply(settling(folder, driver, cublas=False))
    assert len(list(cache.iterdir())) == 3  # what was settled without it is kept apart


def test_a_lone_kernel_is_settled_against_it(tmp_path: Path, driver: FakeDriver, blas: FakeBlas) -> None:
    table = make_table(entries=(rank(TUNED, "default-nn"),))  # one launch for every layout
    driver, blas.time_us = replace(driver, table=table), 20.0
    blas.driver = driver
    runtime = Dispatcher(write_table(table, tmp_path / "t"), driver=driver)
    (pick,) = runtime.settle([(SHAPE.m, SHAPE.n, SHAPE.k)])
    assert (pick.how, pick.provider) == ("settled", "cublas")


def test_a_pinned_choice_of_it_serves_where_it_is_on(
    folder: Path, driver: FakeDriver, blas: FakeBlas, tmp_path: Path
) -> None:
    driver.kernel_us, blas.time_us = {"last": 60.0}, 20.0
    runtime = settling(folder, driver)
    multiply(runtime)
    runtime.export_choices(tmp_path / "choices.json")
    for cublas, provider in ((None, "autotune"), (True, "cublas")):
        pinned = Dispatcher(
            folder, deterministic=True, choices=tmp_path / "choices.json", cublas=cublas, driver=driver
        )
        pick = pinned.pick(SHAPE.m, SHAPE.n, SHAPE.k)
        assert (pick.how, pick.kernel_id, pick.provider) == ("settled", "last", provider)
        num_served = len(blas.served)
        multiply(pinned)
        assert len(blas.served) - num_served == (provider == "cublas")


def test_a_fault_while_settling_costs_the_choice_alone(
    folder: Path, driver: FakeDriver, blas: FakeBlas
) -> None:
    blas.rejected = {"cublasSgemm": 13}
    runtime = settling(folder, driver)
    with pytest.warns(DispatchWarning, match="not settled, the model's choice serves: cublasSgemm failed"):
        multiply(runtime)
    multiply(runtime)
    assert not driver.memory and not driver.handles


def test_where_warnings_are_errors_what_is_not_settled_is_told_and_served(
    folder: Path, driver: FakeDriver, blas: FakeBlas
) -> None:
    blas.rejected = {"cublasSgemm": 13}
    with warnings.catch_warnings(record=True) as shown:
        warnings.simplefilter("error")
        multiply(settling(folder, driver))
    (text,) = (str(warning.message) for warning in shown)
    assert "is not settled, the model's choice serves: cublasSgemm failed" in text


# Finding it


def test_threads_that_look_at_once_find_the_same_version(monkeypatch: pytest.MonkeyPatch) -> None:
    provider, seen = BlasProvider(is_on=True), list[str | None]()

    def look() -> Any:
        if not seen:  # another thread asks meanwhile
            seen.append("")
            seen.append(provider.loaded_version())
        return SimpleNamespace(version="13.1.0")

    monkeypatch.setattr(blas_provider, "loaded_library", look)
    assert provider.loaded_version() == "13.1.0" and seen[1:] == ["13.1.0"]


def test_who_asks_where_bits_were_proven_minds_no_thread_that_settles() -> None:
    provider = ProvenBlas(is_on=True)

    class Settling:
        """A call signature, to compare with which takes as long as another thread needs to settle one."""

        def __eq__(self, _: object) -> bool:
            provider._found[Call.packed(SHAPE), len(provider._found)] = False
            return False

        def __hash__(self) -> int:
            return id(self)

    found: Any = {(Settling(), 0): True, (Settling(), 1): True}
    provider._found = found
    assert not provider.may_serve(Call.packed(TUNED))


def test_what_is_mapped_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = [
        "7f0000000000-7f0000001000 r-xp 00000000 08:01 1 /opt/with a space/libcublas.so.13",
        "7f0000001000-7f0000002000 r--p 00001000 08:01 1 /opt/with a space/libcublas.so.13",
        "7f0000002000-7f0000003000 r-xp 00000000 08:01 2 /opt/libcublasLt.so.13",
        "7f0000003000-7f0000004000 r-xp 00000000 08:01 3 /opt/notlibcublas.so",
        "7f0000004000-7f0000005000 rw-p 00000000 00:00 0 ",
        "",
    ]
    (tmp_path / "maps").write_text("\n".join(lines))
    monkeypatch.setattr(blas_provider, "_MAPS", tmp_path / "maps")
    assert blas_provider._mapped() == ["/opt/with a space/libcublas.so.13"]
    monkeypatch.setattr(blas_provider, "_MAPS", tmp_path / "none")
    assert blas_provider._mapped() == []
