"""The runtime without a GPU: what it refuses, what it launches, and where."""

from __future__ import annotations

import copy
import gc
import pickle
import shutil
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from table_cases import (
    STICKY_CODE,
    FakeDriver,
    OnGpu,
    make_kernel,
    make_spec,
    make_table,
    put_packed,
    rank,
    write_table,
)

from autotune.facts.gemm import LAYOUTS, Gemm
from autotune.files.errors import DispatchError, DispatchWarning
from autotune.kernel.resources import workspace_bytes
from autotune.runtime import dispatcher, served_model
from autotune.runtime.calls.arrays import stream_handle
from autotune.runtime.calls.product import MAX_PLANS
from autotune.runtime.dispatcher import Dispatcher
from autotune.runtime.launch import planner
from autotune.runtime.launch.cuda_driver import CudaFault, ask_nvml
from autotune.runtime.native import core

TUNED = Gemm(128, 128, 64)
SPLIT_TWO, SPLIT_LAST, SPLIT_WIDE = Gemm(64, 64, 256), Gemm(64, 64, 512), Gemm(128, 192, 512)
CLUSTERED = Gemm(64, 128, 512)
PACKED = [Gemm(70, 66, 35, x[0] == "T", x[1] == "T") for x in LAYOUTS]
PACKED_A, PACKED_TWO, PACKED_LAST = Gemm(70, 66, 36), Gemm(70, 66, 256), Gemm(130, 66, 256)
STREAM = 77
Array = np.ndarray[Any, Any]


def _table() -> Any:
    copies = {"packs_a": True, "packs_b": True, "vec_a": 4, "vec_b": 4}
    packed = {
        **{g: make_kernel(f"packed-{g.layout.lower()}", make_spec(g.layout, **copies), None) for g in PACKED},
        PACKED_A: make_kernel("packed-a", make_spec(packs_a=True, vec_a=4), None),
        PACKED_TWO: make_kernel("packed-two", make_spec(reduction="two_pass", split_k=2, **copies), None),
        PACKED_LAST: make_kernel("packed-last", make_spec(reduction="last_block", split_k=4, **copies), None),
    }
    last = make_kernel("last", make_spec(reduction="last_block", split_k=4))
    return make_table(
        make_kernel("fast", make_spec(vec_a=4, vec_b=4, vec_c=4, is_exact=True, group=8, is_along_m=True)),
        make_kernel("two", make_spec(reduction="two_pass", split_k=2, group=4)),
        last,
        make_kernel("cluster", make_spec(reduction="cluster", split_k=8)),
        make_kernel("vector-tn", make_spec("TN", vec_a=4)),
        *packed.values(),
        entries=(
            *(rank(gemm, kernel.id) for gemm, kernel in packed.items()),
            rank(TUNED, "fast"),
            rank(SPLIT_TWO, "two"),
            rank(SPLIT_LAST, "last"),
            rank(SPLIT_WIDE, "last"),
            rank(CLUSTERED, "cluster"),
        ),
    )


def normal(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)


def aligned(rows: int, columns: int, ld: int | None = None, offset: int = 0) -> Array:
    """Random matrix that starts `offset` floats behind an address of 256 bytes, rows `ld` apart."""
    ld = ld or columns
    space = np.zeros(rows * ld + offset + 64, np.float32)
    start = (-space.ctypes.data // 4) % 64 + offset
    view = space[start : start + rows * ld].reshape(rows, ld)[:, :columns]
    view[...] = normal(rows, columns)
    return view


def operands(gemm: Gemm) -> tuple[Array, Array, Array]:
    a = aligned(*((gemm.k, gemm.m) if gemm.trans_a else (gemm.m, gemm.k)))
    b = aligned(*((gemm.n, gemm.k) if gemm.trans_b else (gemm.k, gemm.n)))
    return a, b, aligned(gemm.m, gemm.n)


def close(found: Array, expected: Array) -> None:
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


# Copies


@dataclass
class Layer:
    """As of a model that is averaged, saved, or sent to a process."""

    multiply: Any


def test_copies_share_one_dispatcher(runtime: Dispatcher) -> None:
    layer = Layer(runtime.sgemm)
    for made in (copy.copy(layer), copy.deepcopy(layer)):
        assert made.multiply == runtime.sgemm and made.multiply.__self__ is runtime
    assert copy.copy(runtime) is copy.deepcopy(runtime) is runtime


def test_what_is_pickled_is_opened_once_in_a_process(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = Dispatcher(folder, deterministic=True, fallback="cublas")
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        assert pickle.loads(pickle.dumps(Layer(runtime.sgemm), protocol)).multiply.__self__ is runtime
    pickled = pickle.dumps([runtime, Layer(runtime.pick)])
    monkeypatch.setattr(dispatcher, "_made", {})  # as in another process
    opened, layer = pickle.loads(pickled)
    assert layer.multiply.__self__ is opened is not runtime and opened.table == runtime.table
    assert opened._is_deterministic and opened._fallback == "cublas"
    assert pickle.loads(pickled)[0] is opened


def test_dispatchers_made_alike_are_told_apart(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = [Dispatcher(folder) for _ in range(3)]
    assert [pickle.loads(pickle.dumps(one)) for one in made] == made
    pickled = pickle.dumps(made[1:])
    monkeypatch.setattr(dispatcher, "_made", {})
    opened = [Dispatcher(folder), *pickle.loads(pickled)]
    assert len({*opened, *made}) == 6
    assert pickle.loads(pickle.dumps(made)) == opened


def test_a_pickle_of_a_folder_that_is_gone_says_so(folder: Path, tmp_path: Path) -> None:
    pickled = pickle.dumps(Dispatcher(shutil.copytree(folder, tmp_path / "t")))
    gc.collect()
    shutil.rmtree(tmp_path / "t")
    with pytest.raises(DispatchError, match=str(tmp_path / "t")):
        pickle.loads(pickled)


# Products


@pytest.mark.parametrize("gemm", [TUNED, SPLIT_TWO, SPLIT_LAST, CLUSTERED, Gemm(65, 63, 31)], ids=str)
@pytest.mark.parametrize(("alpha", "beta"), [(1.0, 0.0), (0.5, -2.0), (0.0, 1.0)])
def test_products_are_right(runtime: Dispatcher, gemm: Gemm, alpha: float, beta: float) -> None:
    a, b, c = operands(gemm)
    expected = alpha * (a @ b) + beta * c
    out = OnGpu(c)
    assert runtime.sgemm(OnGpu(a), OnGpu(b), out, alpha=alpha, beta=beta) is out
    close(c, expected)


@pytest.mark.parametrize("gemm", [TUNED, SPLIT_TWO, SPLIT_LAST, CLUSTERED, PACKED_TWO], ids=str)
def test_a_pick_tells_the_workspace_of_its_launch(runtime: Dispatcher, gemm: Gemm) -> None:
    pick, (table,) = runtime.pick(gemm.m, gemm.n, gemm.k, gemm.trans_a, gemm.trans_b), runtime.tables
    (kernel,) = (kernel for kernel in table.kernels if kernel.id == pick.kernel_id)
    assert pick.split_k == kernel.config.split_k
    assert pick.workspace_bytes == workspace_bytes(kernel.config, gemm, table.limits)
    assert (pick.workspace_bytes > 0) == (gemm in (SPLIT_TWO, SPLIT_LAST, PACKED_TWO))
    assert f"workspace_bytes={pick.workspace_bytes}" in repr(pick)


def test_what_is_prepared_loads_nothing_more(runtime: Dispatcher, driver: FakeDriver) -> None:
    shapes = [TUNED, SPLIT_TWO, CLUSTERED, Gemm(65, 63, 31), Gemm(9, 70, 40, True, True), Gemm(0, 4, 4)]
    picks = runtime.prepare([(g.m, g.n, g.k, g.trans_a, g.trans_b) for g in shapes])
    assert picks == [runtime.pick(g.m, g.n, g.k, g.trans_a, g.trans_b) for g in shapes]
    loaded, launched = len(driver.of("load")), len(driver.launches)
    assert loaded and not launched
    for gemm in shapes:
        a, b, c = operands(gemm)
        runtime.sgemm(OnGpu(a), OnGpu(b), OnGpu(c), trans_a=gemm.trans_a, trans_b=gemm.trans_b)
        close(c, (a.T if gemm.trans_a else a) @ (b.T if gemm.trans_b else b))
    assert len(driver.of("load")) == loaded
    rows = np.array([(g.m, g.n, g.k, g.trans_a, g.trans_b) for g in shapes])
    assert runtime.prepare(rows, device=np.int64(0)) == picks  # type: ignore[arg-type]
    assert len(driver.of("load")) == loaded
    for wrong in ([(1, 2)], [(1, 2, -3)], ["512"]):
        with pytest.raises(DispatchError):
            runtime.prepare(wrong)
    with pytest.raises(DispatchError, match="number of a GPU"):
        runtime.prepare([(1, 1, 1)], device="cuda:0")  # type: ignore[arg-type]


def test_a_pick_is_remembered_and_no_argument_of_a_wrong_type_with_it(runtime: Dispatcher) -> None:
    """1, True, 1.0 and numpy's are one key of a dict."""
    first = runtime.pick(1, 1, 1, True, False)
    assert runtime.pick(1, 1, 1, True, False) is first
    assert runtime.pick(np.int64(1), np.int32(1), np.uint8(1), 1, 0) is first
    assert runtime.pick(1, 1, 1, np.True_, np.False_) is first
    assert runtime.pick(1, 1, 1, True, True) is not first
    wrong: list[Any] = [(True, 1, 1), (1, 1.0, 1), (1, 1, np.float32(1)), (np.True_, 1, 1)]
    wrong += [(1, 1, 1, 1.0), (1, 1, 1, True, 0.0), (1, 1, 1, "T"), (1, 1, 1, [1])]
    for arguments in wrong:
        with pytest.raises(DispatchError):
            runtime.pick(*arguments)


def test_so_many_picks_are_remembered(runtime: Dispatcher, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(served_model, "MAX_PICKS", 3)
    picks = {m: runtime.pick(m, 8, 8) for m in range(1, 9)}
    latest_first = reversed(picks.items())
    assert 0 < sum(runtime.pick(m, 8, 8) is found for m, found in latest_first) <= 3
    assert all(runtime.pick(m, 8, 8) == found for m, found in picks.items())


def test_what_ends_after_its_modules_says_nothing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As at the end of a process, which takes the names of modules."""
    runtime = Dispatcher(folder, driver=FakeDriver(_table()))
    runtime.prepare([(TUNED.m, TUNED.n, TUNED.k)])
    said: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", said.append)
    monkeypatch.setattr(core, "sys", None)
    monkeypatch.setattr(planner, "sys", None)
    del runtime
    gc.collect()
    assert not said


def test_what_runs_is_what_pick_says(runtime: Dispatcher, driver: FakeDriver) -> None:
    for gemm, name in ((TUNED, "fast"), (SPLIT_TWO, "two"), (SPLIT_LAST, "last"), (CLUSTERED, "cluster")):
        pick = runtime.pick(gemm.m, gemm.n, gemm.k)
        assert (pick.kernel_id, pick.how, pick.entry) == (name, "exact", gemm)
        a, b, c = operands(gemm)
        driver.launches.clear()
        runtime.sgemm(OnGpu(a), OnGpu(b), OnGpu(c))
        assert {launch.kernel_id for launch in driver.launches} == {name}
    names = [launch.name for launch in driver.launches]
    assert names == ["sgemm"]


def test_unaligned_operands_get_a_kernel_that_may_read_them(runtime: Dispatcher, driver: FakeDriver) -> None:
    a, b, c = operands(TUNED)
    a = aligned(128, 64, offset=1)
    runtime.sgemm(OnGpu(a), OnGpu(b), OnGpu(c))
    assert driver.launches[-1].kernel_id != "fast"
    close(c, a @ b)


@st.composite
def _views(draw: st.DrawFn) -> tuple[Array, Array, Array, bool, bool]:
    """Operands with any row distance, base address and order of storage, and flags that fit them."""
    m, n, k = (draw(st.one_of(st.integers(1, 9), st.sampled_from((64, 128)))) for _ in range(3))

    def matrix(rows: int, columns: int) -> Array:
        is_by_columns = draw(st.booleans())
        stored = (columns, rows) if is_by_columns else (rows, columns)
        ld = stored[1] + draw(st.sampled_from((0, 0, 1, 4)))
        view = aligned(*stored, ld, draw(st.sampled_from((0, 0, 1, 2))))
        return view.T if is_by_columns else view

    trans_a, trans_b = draw(st.booleans()), draw(st.booleans())
    a = matrix(k, m) if trans_a else matrix(m, k)
    b = matrix(n, k) if trans_b else matrix(k, n)
    out = aligned(m, n, n + draw(st.sampled_from((0, 3, 4))), draw(st.sampled_from((0, 1))))
    return a, b, out, trans_a, trans_b


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(_views())
def test_every_view_is_multiplied_without_a_copy(
    runtime: Dispatcher, driver: FakeDriver, case: tuple[Array, Array, Array, bool, bool]
) -> None:
    a, b, c, trans_a, trans_b = case
    expected = (a.T if trans_a else a) @ (b.T if trans_b else b)
    runtime.sgemm(OnGpu(a), OnGpu(b), OnGpu(c), trans_a=trans_a, trans_b=trans_b)
    close(c, expected)
    assert not driver.of("copy_in")


def test_out_keeps_what_lies_between_its_rows(runtime: Dispatcher) -> None:
    a, b, _ = operands(TUNED)
    space = np.full((128, 160), 7, np.float32)
    runtime.sgemm(OnGpu(a), OnGpu(b), OnGpu(space[:, 16:144]))
    assert (space[:, :16] == 7).all() and (space[:, 144:] == 7).all()


def test_beta_zero_does_not_read_out(runtime: Dispatcher) -> None:
    a, b, c = operands(TUNED)
    c[...] = np.nan
    runtime.sgemm(OnGpu(a), OnGpu(b), OnGpu(c))
    assert np.isfinite(c).all()


@pytest.mark.parametrize(("m", "n", "k"), [(0, 5, 3), (5, 0, 3), (0, 0, 0)])
def test_nothing_is_launched_for_no_elements(
    runtime: Dispatcher, driver: FakeDriver, m: int, n: int, k: int
) -> None:
    runtime.sgemm(OnGpu(normal(m, k)), OnGpu(normal(k, n)), OnGpu(normal(m, n)))
    assert not driver.launches
    assert "nothing is launched" in runtime.pick(m, n, k).reason


def test_no_depth_scales_out(runtime: Dispatcher, driver: FakeDriver) -> None:
    c = normal(5, 7)
    expected = 2 * c
    runtime.sgemm(OnGpu(normal(5, 0)), OnGpu(normal(0, 7)), OnGpu(c), beta=2.0)
    close(c, expected)
    assert len(driver.launches) == 1


# Refusals: none may reach a launch

_A, _B, _C = normal(8, 4), normal(4, 6), normal(8, 6)


def _call(a: Any = _A, b: Any = _B, c: Any = _C, **options: Any) -> Callable[[Dispatcher], Any]:
    wrapped = [OnGpu(x) if isinstance(x, np.ndarray) else x for x in (a, b, c)]
    return lambda runtime: runtime.sgemm(*wrapped, **options)


REFUSED = {
    "dtype": (_call(_A.astype(np.float64)), "a has dtype float64"),
    "byte order": (_call(_A.astype(">f4")), "a has dtype >f4"),
    "dimensions": (_call(b=normal(4)), "b has 1 dimensions"),
    "inner extents": (_call(trans_a=True), r"op\(a\) is 4x8 and op\(b\) is 4x6"),
    "shape of out": (_call(c=normal(6, 8)), "out is 6x8, expected 8x6"),
    "out by columns": (_call(c=normal(6, 8).T), "out is stored by columns"),
    "strides": (_call(normal(8, 8)[:, ::2]), "a is 8x4 with strides of 8 and 2"),
    "expanded": (_call(np.broadcast_to(normal(4), (8, 4))), "strides of 0 and 1"),
    "backwards": (_call(normal(8, 4)[::-1]), "strides of -4 and 1"),
    "overlapping rows": (
        _call(np.lib.stride_tricks.as_strided(normal(64), (8, 4), (12, 4))),
        "strides of 3 and 1",
    ),
    "no out for beta": (_call(c=None, beta=1.0), "beta is not 0"),
    "no out for foreign": (_call(c=None), "pass out="),
    "no array": (_call([[1.0]]), "a is a list"),
    "read-only out": (_call(c=OnGpu(_C, is_read_only=True)), "out is read-only"),
    "host and GPU": (lambda runtime: runtime.sgemm(_A, OnGpu(_B)), "host and of a GPU are mixed"),
    "alpha": (_call(alpha="much"), "no float32"),
    "alpha too large": (_call(alpha=1e39), "no float32"),
    "stream": (_call(stream="first"), "stream is a str"),
    "flag as stream": (_call(stream=True), "stream is a bool"),
    "stream of another GPU": (_call(stream=99), "stream is of GPU 1, the arrays are on GPU 0"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_wrong_call_is_refused_before_any_launch(
    runtime: Dispatcher, driver: FakeDriver, name: str
) -> None:
    call, message = REFUSED[name]
    driver.streams[99] = 1
    before = _C.copy()
    with pytest.raises(DispatchError, match=message):
        call(runtime)
    assert not driver.launches
    assert not driver.memory
    assert not driver.context_stack
    np.testing.assert_array_equal(_C, before)


def test_strides_that_are_no_whole_floats_are_refused(runtime: Dispatcher) -> None:
    odd = np.zeros(8 * 18, np.uint8)
    a = np.ndarray((8, 4), np.float32, odd.data, strides=(18, 4))
    with pytest.raises(DispatchError, match="no whole floats"):
        runtime.sgemm(OnGpu(a), OnGpu(_B), OnGpu(_C))


@pytest.mark.parametrize("role", ["a", "b", "out"])
def test_what_begins_within_a_float_is_refused(tmp_path: Path, role: str) -> None:
    """Also by kernels that pack: these take operands with any alignment of floats."""
    table = make_table(make_kernel("NN", make_spec(packs_a=True, packs_b=True)))
    driver = FakeDriver(table)
    runtime = Dispatcher(write_table(table, tmp_path / "t"), driver=driver)
    arrays = {"a": _A, "b": _B, "out": _C.copy()}
    bytes_ = np.zeros(arrays[role].nbytes + 1, np.uint8)
    arrays[role] = np.ndarray(arrays[role].shape, np.float32, bytes_.data, offset=1)
    with pytest.raises(DispatchError, match=f"{role} begins . bytes behind a whole float; pass a copy"):
        runtime.sgemm(*(OnGpu(x) for x in arrays.values()))
    assert not driver.launches


@pytest.mark.parametrize("shift", [-1, 0, 1, 31])
def test_overlap_is_refused(runtime: Dispatcher, driver: FakeDriver, shift: int) -> None:
    space = normal(200)
    a, c = space[64 : 64 + 32].reshape(8, 4), space[64 + shift : 64 + shift + 48].reshape(8, 6)
    with pytest.raises(DispatchError, match="out overlaps an input"):
        runtime.sgemm(OnGpu(a), OnGpu(_B), OnGpu(c))
    with pytest.raises(DispatchError, match="out overlaps an input"):
        runtime.sgemm(space[64 : 64 + 32].reshape(8, 4), _B, c)
    assert not driver.launches


def test_what_has_no_elements_overlaps_nothing(runtime: Dispatcher) -> None:
    """Views of no elements may have an address all the same."""
    space = normal(48)
    a, b, c = OnGpu(space[4:4].reshape(8, 0)), OnGpu(space[9:9].reshape(0, 6)), space.reshape(8, 6)
    for x, at in ((a, 16), (b, 36)):
        x.address = c.ctypes.data + at
    runtime.sgemm(a, b, OnGpu(c))
    assert not c.any()
    empty = OnGpu(c[:0])
    empty.address = _B.ctypes.data + 8
    runtime.sgemm(OnGpu(_A[:0]), OnGpu(_B), empty)


def test_neighbours_do_not_overlap(runtime: Dispatcher) -> None:
    space = normal(200)
    a, c = space[:32].reshape(8, 4), space[32:80].reshape(8, 6)
    expected = a @ _B
    runtime.sgemm(OnGpu(a), OnGpu(_B), OnGpu(c))
    close(c, expected)


def test_arrays_on_two_gpus_are_refused(runtime: Dispatcher, driver: FakeDriver) -> None:
    driver.places[_B.ctypes.data] = 1
    with pytest.raises(DispatchError, match="on GPUs 0, 1"):
        runtime.sgemm(OnGpu(_A), OnGpu(_B), OnGpu(_C))


def test_extents_beyond_int32_are_refused(runtime: Dispatcher) -> None:
    with pytest.raises(DispatchError, match="expected a whole number of 0"):
        runtime.pick(2**31, 1, 1)


@pytest.mark.parametrize(
    "extents",
    [("a", 2, 3), (1.5, 2, 3), (2.0, 2, 3), (True, 2, 3), (np.True_, 2, 3), (-1, 2, 3), (1, 2**31, 3),
     (1, 2, 10**5000), (None, 2, 3), ([4], 2, 3), (np.ones(2), 2, 3), (np.float32(4), 2, 3)],
    ids=lambda e: str(type(e[0]).__name__),
)  # fmt: skip
def test_extents_that_are_no_whole_numbers_are_refused(runtime: Dispatcher, extents: Any) -> None:
    for turn in range(3):
        with pytest.raises(DispatchError, match=r"[mnk] is .*expected a whole number"):
            runtime.pick(*extents[turn:], *extents[:turn])


@pytest.mark.parametrize("kind", [np.int64, np.int32, np.uint16, int])
def test_whole_numbers_of_numpy_are_extents(runtime: Dispatcher, kind: Any) -> None:
    found = runtime.pick(kind(TUNED.m), kind(TUNED.n), kind(TUNED.k))
    assert (found.how, found.entry) == ("exact", TUNED)
    assert runtime.pick(kind(0), kind(2), kind(3)).how == "default"


@pytest.mark.parametrize("flag", ["N", "", None, 2, [1], np.ones(2), 1.0], ids=repr)
def test_flags_are_true_or_false(runtime: Dispatcher, driver: FakeDriver, flag: Any) -> None:
    with pytest.raises(DispatchError, match=r"trans_a is a .*True or False"):
        runtime.pick(1, 2, 3, flag)
    with pytest.raises(DispatchError, match=r"trans_b is a .*True or False"):
        runtime.sgemm(OnGpu(_A), OnGpu(_B), OnGpu(_C), trans_b=flag)
    assert not driver.launches
    assert runtime.pick(1, 2, 3, np.True_) == runtime.pick(1, 2, 3, 1) == runtime.pick(1, 2, 3, True)


# Whose table it is


def test_another_gpu_is_refused_with_the_next_step(runtime: Dispatcher, driver: FakeDriver) -> None:
    for array in (_A, _B, _C):
        driver.places[array.ctypes.data] = 2
    with pytest.raises(DispatchError, match=r"for NVIDIA H200 \(sm_90\), but GPU 2 is NVIDIA T4 .*search"):
        runtime.sgemm(OnGpu(_A), OnGpu(_B), OnGpu(_C))
    assert not driver.launches


def test_a_driver_that_cannot_load_is_named(runtime: Dispatcher, driver: FakeDriver) -> None:
    driver.refused_code = 209
    with pytest.raises(DispatchError, match=r"driver \(CUDA 12.4\) refuses kernel .* nvrtc 13.4.*update"):
        runtime.sgemm(OnGpu(_A), OnGpu(_B), OnGpu(_C))
    assert not driver.context_stack
    driver.refused_code = 0
    runtime.sgemm(OnGpu(_A), OnGpu(_B), OnGpu(_C))


def test_a_lost_context_says_that_only_a_new_process_helps(runtime: Dispatcher, driver: FakeDriver) -> None:
    driver.launch_error = STICKY_CODE
    with pytest.raises(DispatchError, match="start the process again"):
        runtime.sgemm(OnGpu(_A), OnGpu(_B), OnGpu(_C))
    assert not driver.context_stack


def test_a_damaged_kernel_is_refused_before_a_launch_and_others_serve(tmp_path: Path) -> None:
    table = _table()
    folder, driver = write_table(table, tmp_path / "t"), FakeDriver(table)
    runtime = Dispatcher(folder, driver=driver)
    m, n, k = TUNED.m, TUNED.n, TUNED.k
    chosen = runtime.pick(m, n, k).kernel_id
    sha256 = next(kernel.sha256 for kernel in table.kernels if kernel.id == chosen)
    (folder / "cubins.gz").rename(tmp_path / "as it was")  # which `runtime` has opened
    (folder / "cubins.gz").write_bytes((tmp_path / "as it was").read_bytes())
    put_packed(folder, sha256, b"other")
    a, b = (OnGpu(np.ones(extents, np.float32)) for extents in ((m, k), (k, n)))
    for _ in range(2):  # nor is it taken to be loaded
        with pytest.raises(DispatchError, match="is damaged"):
            Dispatcher(folder, driver=driver).sgemm(a, b, OnGpu(np.zeros((m, n), np.float32)))
    assert not driver.launches and not driver.context_stack
    c = np.zeros((n, n), np.float32)
    runtime.sgemm(b, b, OnGpu(c), trans_a=True)  # what was opened before serves
    assert driver.launches and (c == k).all()


# Code that is not what the table says

MISFITS = {
    "threads": (SPLIT_TWO, "sgemm", {"max_threads": 64}, "64 threads per block, the table launches 128"),
    "threads of the second pass": (SPLIT_TWO, "sgemm_reduce", {"max_threads": 128}, "launches 256"),
    "threads that pack": (PACKED_A, "sgemm_pack", {"max_threads": 64}, "launches 256"),
    "registers": (TUNED, "sgemm", {"registers": 96}, "takes 96 registers per thread, the table says 128"),
    "no cluster": (CLUSTERED, "sgemm", {"cluster": (0, 0, 0)}, "clusters of no blocks.*launches 1x8x1"),
    "other cluster": (CLUSTERED, "sgemm", {"cluster": (1, 4, 1)}, "clusters of 1x4x1 blocks.*1x8x1"),
    "cluster along x": (CLUSTERED, "sgemm", {"cluster": (8, 1, 1)}, "clusters of 8x1x1 blocks"),
    "unasked cluster": (TUNED, "sgemm", {"cluster": (1, 2, 1)}, "clusters of 1x2x1 blocks.*launches no"),
    "shared memory": (TUNED, "sgemm", {"static_smem_bytes": 227 << 10}, "bytes of shared memory per block"),
}


@pytest.mark.parametrize("name", MISFITS)
def test_code_that_is_not_what_the_table_says_is_never_launched(
    runtime: Dispatcher, driver: FakeDriver, name: str
) -> None:
    gemm, function, facts, message = MISFITS[name]
    a, b, c = operands(gemm)
    driver.code_facts = {function: facts}
    for _ in range(2):  # nor at a second call
        with pytest.raises(DispatchError, match=rf"is not what its cubin holds: {function} .*{message}"):
            runtime.sgemm(OnGpu(a), OnGpu(b), OnGpu(c))
    assert not driver.launches and not driver.context_stack and not driver.memory
    driver.code_facts = {}
    runtime.sgemm(OnGpu(a), OnGpu(b), OnGpu(c))
    close(c, a @ b)


# Conditions that are not the table's: told, never refused


@pytest.fixture
def untold(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("autotune.runtime.launch.devices._warned", set())


ELSEWHERE = {
    "SMs": ({"num_sms": 66}, "its number of SMs is 66, not 132"),
    "driver": ({"driver_version": "590.2"}, r"its driver is 590\.2, not 580\.1"),
    "CUDA, where NVML is missing": (
        {"driver_version": "", "cuda_version": "13.2"}, r"CUDA version of the driver is 13\.2, not 13\.0",
    ),
    "power limit": ({"power_limit_w": 500.0}, "its power limit is 500 W, not 700 W"),
}  # fmt: skip


@pytest.mark.usefixtures("untold")
@pytest.mark.parametrize("name", ELSEWHERE)
def test_other_conditions_are_told_once_and_products_are_right(
    runtime: Dispatcher, driver: FakeDriver, folder: Path, name: str
) -> None:
    changes, message = ELSEWHERE[name]
    driver.external = changes
    with pytest.warns(DispatchWarning, match=rf"{message}\. Results are right.*autotune search --gpu 0"):
        runtime.sgemm(OnGpu(_A), OnGpu(_B), OnGpu(_C))
    close(_C, _A @ _B)
    again = Dispatcher(folder, driver=driver)  # the same table, in the same process
    again.sgemm(OnGpu(_A), OnGpu(_B), OnGpu(_C))
    runtime.sgemm(OnGpu(_A), OnGpu(_B), OnGpu(_C))


@pytest.mark.usefixtures("untold")
def test_a_slice_of_the_gpu_is_served_and_told(folder: Path) -> None:
    driver = FakeDriver(_table(), names=("NVIDIA H200 MIG 1g.18gb",), external={"num_sms": 16})
    runtime = Dispatcher(folder, driver=driver)
    for gemm in (TUNED, SPLIT_TWO, SPLIT_LAST, CLUSTERED):
        a, b, c = operands(gemm)
        if gemm == TUNED:
            with pytest.warns(DispatchWarning, match=r"H200 MIG 1g.18gb, .*SMs is 16, not 132"):
                runtime.sgemm(OnGpu(a), OnGpu(b), OnGpu(c))
        else:
            runtime.sgemm(OnGpu(a), OnGpu(b), OnGpu(c))
        close(c, a @ b)


@pytest.mark.usefixtures("untold")
def test_what_is_not_known_is_not_told(runtime: Dispatcher, driver: FakeDriver) -> None:
    driver.external = {"driver_version": "", "power_limit_w": None}
    runtime.sgemm(OnGpu(_A), OnGpu(_B), OnGpu(_C))  # warnings are errors here


def test_a_gpu_that_does_not_answer_is_not_refused_for_it(
    runtime: Dispatcher, driver: FakeDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(device: int) -> Any:
        raise CudaFault("SMs of GPU 0", 1, "CUDA_ERROR_INVALID_VALUE")

    monkeypatch.setattr(driver, "conditions", fail)
    runtime.sgemm(OnGpu(_A), OnGpu(_B), OnGpu(_C))


def test_without_nvml_nothing_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cuda.bindings.nvml", None)
    assert ask_nvml("GPU-0") == ("", None)


# Streams, contexts, devices, threads


def test_the_caller_decides_the_stream(runtime: Dispatcher, driver: FakeDriver) -> None:
    runtime.sgemm(OnGpu(_A), OnGpu(_B), OnGpu(_C))
    runtime.sgemm(OnGpu(_A, stream=5), OnGpu(_B), OnGpu(_C))
    runtime.sgemm(OnGpu(_A), OnGpu(_B), OnGpu(_C), stream=STREAM)
    assert [launch.stream for launch in driver.launches] == [0, 5, STREAM]


def test_work_of_other_streams_is_waited_for(runtime: Dispatcher, driver: FakeDriver) -> None:
    runtime.sgemm(OnGpu(_A, stream=5), OnGpu(_B, stream=6), OnGpu(_C, stream=1), stream=STREAM)
    assert driver.of("order") == [("order", 5, STREAM), ("order", 6, STREAM), ("order", 1, STREAM)]
    driver.log.clear()
    runtime.sgemm(OnGpu(_A, stream=1), OnGpu(_B, stream=1), OnGpu(_C, stream=1), stream=0)
    assert not driver.of("order")


class _Protocol:
    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, 11


@pytest.mark.parametrize(
    ("stream", "handle"),
    [(5, 5), (_Protocol(), 11), (SimpleNamespace(cuda_stream=12), 12), (SimpleNamespace(ptr=13), 13),
     (SimpleNamespace(handle=SimpleNamespace(value=14)), 14),
     (SimpleNamespace(handle=SimpleNamespace(value=None)), 0)],
)  # fmt: skip
def test_streams_of_all_libraries_are_understood(stream: Any, handle: int) -> None:
    assert stream_handle(stream) == handle


def test_the_callers_context_is_restored(runtime: Dispatcher, driver: FakeDriver) -> None:
    driver.push_context(101)
    runtime.sgemm(OnGpu(_A), OnGpu(_B), OnGpu(_C))
    assert driver.launches[-1].context == 100
    assert driver.context_stack == [101]


def test_each_gpu_of_the_kind_has_its_own_kernels(runtime: Dispatcher, driver: FakeDriver) -> None:
    runtime.sgemm(OnGpu(_A), OnGpu(_B), OnGpu(_C))
    for array in (_A, _B, _C):
        driver.places[array.ctypes.data] = 1
    runtime.sgemm(OnGpu(_A), OnGpu(_B), OnGpu(_C))
    assert [launch.context for launch in driver.launches] == [100, 101]
    assert len({device for _, device in driver.allowed_smem}) == 2
    assert len(driver.of("load")) == 1  # a library is of no GPU


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Streams have a piece from their first launch on."""
    monkeypatch.setattr(core, "LAUNCHES_TO_STAY", 1)


def test_threads_load_once_and_agree(runtime: Dispatcher, driver: FakeDriver, at_once: None) -> None:
    gemm, faults = SPLIT_TWO, []
    ready = threading.Barrier(8)

    def work(seed: int) -> None:
        a, b = normal(gemm.m, gemm.k, seed=seed), normal(gemm.k, gemm.n, seed=seed + 99)
        c = np.empty((gemm.m, gemm.n), np.float32)
        ready.wait()
        for _ in range(10):
            runtime.sgemm(OnGpu(a), OnGpu(b), OnGpu(c), stream=STREAM)
            if not np.allclose(c, a @ b, rtol=1e-3, atol=1e-3):
                faults.append(seed)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not faults
    assert len(driver.of("load")) == 1
    names = [launch.name for launch in driver.launches]
    assert sorted(names) == ["sgemm"] * 80 + ["sgemm_reduce"] * 80
    # Both passes of a product stay together once its stream has a workspace for all of its launches.
    own = 2 * 2 * core.LAUNCHES_TO_STAY
    assert names[own:] == ["sgemm", "sgemm_reduce"] * (80 - 2 * core.LAUNCHES_TO_STAY)


def test_kinds_of_call_are_remembered_within_bounds(
    runtime: Dispatcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("autotune.runtime.launch.planner.MAX_PLANS", 3)
    for m in range(1, 9):
        runtime.sgemm(OnGpu(normal(m, 4)), OnGpu(_B), OnGpu(normal(m, 6)))
    assert runtime._opened is not None and len(runtime._opened[0].of(0)._plans) <= 3 < MAX_PLANS


# Workspaces


def test_a_workspace_is_kept_and_zeroed_once_per_stream(
    runtime: Dispatcher, driver: FakeDriver, at_once: None
) -> None:
    for gemm in (SPLIT_WIDE, SPLIT_LAST, SPLIT_TWO, SPLIT_WIDE, SPLIT_LAST):
        a, b, c = operands(gemm)
        runtime.sgemm(OnGpu(a), OnGpu(b), OnGpu(c), stream=STREAM)
        close(c, a @ b)
    assert len(driver.of("allocate")) == len(driver.of("zero")) == len(driver.of("make_pool")) == 1
    runtime.sgemm(OnGpu(a), OnGpu(b), OnGpu(c), stream=STREAM + 1)
    assert len(driver.of("allocate")) == 2


def test_a_workspace_grows_in_the_order_of_its_stream(
    runtime: Dispatcher, driver: FakeDriver, at_once: None
) -> None:
    for gemm in (SPLIT_LAST, SPLIT_WIDE, SPLIT_LAST):
        a, b, c = operands(gemm)
        runtime.sgemm(OnGpu(a), OnGpu(b), OnGpu(c), stream=STREAM)
        close(c, a @ b)
    assert len(driver.of("allocate")) == 2
    assert [entry[-1] for entry in driver.log if entry[0] in ("allocate", "zero", "free")] == [STREAM] * 5
    assert len(driver.memory) == 1


def test_a_stream_that_goes_on_launching_gets_a_workspace(runtime: Dispatcher, driver: FakeDriver) -> None:
    a, b, c = operands(SPLIT_LAST)
    for number in range(1, 3 * core.LAUNCHES_TO_STAY):
        runtime.sgemm(OnGpu(a), OnGpu(b), OnGpu(c), stream=STREAM)
        close(c, a @ b)
        assert len(driver.memory) == (number >= core.LAUNCHES_TO_STAY)
    assert len(driver.of("allocate")) == core.LAUNCHES_TO_STAY


@pytest.mark.parametrize("gemm", [SPLIT_TWO, SPLIT_LAST], ids=str)
def test_a_graph_owns_its_workspace(
    runtime: Dispatcher, driver: FakeDriver, gemm: Gemm, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By nodes that take it and give it back, of what a graph does not keep (test_captured_launches.py)."""
    monkeypatch.setattr(core, "CAPTURED_BYTES", 0)
    driver.capturing = frozenset({STREAM})
    a, b, c = operands(gemm)
    for _ in range(2 * core.LAUNCHES_TO_STAY):
        runtime.sgemm(OnGpu(a), OnGpu(b), OnGpu(c), stream=STREAM)
        close(c, a @ b)
    assert len(driver.of("allocate")) == len(driver.of("free")) == 2 * core.LAUNCHES_TO_STAY
    assert not driver.memory
    assert not driver.of("synchronize")


def test_streams_that_come_and_go_leave_nothing(runtime: Dispatcher, driver: FakeDriver) -> None:
    a, b, c = operands(SPLIT_LAST)
    for stream in range(100, 200):
        runtime.sgemm(OnGpu(a), OnGpu(b), OnGpu(c), stream=stream)
        close(c, a @ b)
    assert not driver.memory


def test_many_streams_do_not_hoard_memory(runtime: Dispatcher, driver: FakeDriver, at_once: None) -> None:
    a, b, c = operands(SPLIT_LAST)
    for stream in range(100, 100 + core.MAX_PIECES + 5):
        runtime.sgemm(OnGpu(a), OnGpu(b), OnGpu(c), stream=stream)
    assert len(driver.memory) == core.MAX_PIECES


def test_what_is_kept_in_all_is_bounded(
    runtime: Dispatcher, folder: Path, driver: FakeDriver, at_once: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Streams for which nothing is left, and calls that are too large, take memory for each launch."""
    small, large = operands(SPLIT_LAST), operands(SPLIT_WIDE)
    for a, b, c in (small, large):  # one stream each: what either needs
        runtime.sgemm(OnGpu(a), OnGpu(b), OnGpu(c), stream=50 + len(driver.memory))
    sizes = [entry[2] for entry in driver.of("allocate")]
    assert sizes[0] < sizes[1]
    kept_bytes = sum(sizes) + sizes[0]
    monkeypatch.setattr(core, "PIECES_BYTES", kept_bytes)
    bounded, before = Dispatcher(folder, driver=driver), set(driver.memory)
    for stream in (60, 61, 60, 61):
        for a, b, c in (small, large):
            bounded.sgemm(OnGpu(a), OnGpu(b), OnGpu(c), stream=stream)
            close(c, a @ b)
            kept = [space for address, space in driver.memory.items() if address not in before]
            assert sum(len(space) - 256 for space in kept) <= kept_bytes
    assert len(kept) == 2  # the large one of the first stream, the small one of the other


def test_each_thread_has_its_own_default_stream(
    runtime: Dispatcher, driver: FakeDriver, at_once: None
) -> None:
    a, b, c = operands(SPLIT_LAST)
    runtime.sgemm(OnGpu(a), OnGpu(b), OnGpu(c), stream=2)
    thread = threading.Thread(target=lambda: runtime.sgemm(OnGpu(a), OnGpu(b), OnGpu(c), stream=2))
    thread.start()
    thread.join()
    assert len(driver.memory) == 2


def test_a_failed_launch_gives_back_a_graphs_workspace(
    runtime: Dispatcher, driver: FakeDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(core, "CAPTURED_BYTES", 0)
    driver.capturing, driver.launch_error = frozenset({STREAM}), 1
    a, b, c = operands(SPLIT_LAST)
    with pytest.raises(DispatchError):
        runtime.sgemm(OnGpu(a), OnGpu(b), OnGpu(c), stream=STREAM)
    assert not driver.memory


# Packed operands


def launched(driver: FakeDriver) -> list[tuple[str, str]]:
    return [(launch.kernel_id, launch.name) for launch in driver.launches]


@pytest.mark.parametrize("gemm", [*PACKED, PACKED_A, PACKED_TWO, PACKED_LAST], ids=str)
@pytest.mark.parametrize("is_captured", [False, True], ids=["eager", "captured"])
def test_operands_are_packed_before_the_product(
    runtime: Dispatcher, driver: FakeDriver, at_once: None, gemm: Gemm, is_captured: bool
) -> None:
    driver.capturing = frozenset({STREAM} if is_captured else ())
    a, b, c = operands(gemm)
    expected = 0.5 * (a.T if gemm.trans_a else a) @ (b.T if gemm.trans_b else b) - 2 * c
    runtime.sgemm(
        OnGpu(a), OnGpu(b), OnGpu(c), alpha=0.5, beta=-2.0, trans_a=gemm.trans_a, trans_b=gemm.trans_b,
        stream=STREAM,
    )  # fmt: skip
    close(c, expected)
    names = ["sgemm_pack"] * (1 if gemm == PACKED_A else 2) + ["sgemm"]
    assert [name for _, name in launched(driver)] == names + ["sgemm_reduce"] * (gemm == PACKED_TWO)
    assert {kernel_id[:6] for kernel_id, _ in launched(driver)} == {"packed"}
    assert {launch.stream for launch in driver.launches} == {STREAM}
    assert len(driver.memory) == 1


def test_packed_operands_may_lie_anywhere(
    runtime: Dispatcher, driver: FakeDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    gemm = PACKED[0]
    pick = runtime.pick(gemm.m, gemm.n, gemm.k)
    monkeypatch.setattr(runtime._models[0].chooser, "pick", lambda *_: pick)  # else the model would choose
    a, b = aligned(gemm.m, gemm.k, gemm.k + 2, offset=1), aligned(gemm.k, gemm.n, gemm.n + 1, offset=3)
    c = aligned(gemm.m, gemm.n)
    runtime.sgemm(OnGpu(a), OnGpu(b), OnGpu(c))
    close(c, a @ b)
    assert [name for _, name in launched(driver)] == ["sgemm_pack", "sgemm_pack", "sgemm"]


@pytest.mark.parametrize("alpha", [0.0, -0.0, 1e-60], ids=["zero", "minus zero", "zero in float32"])
def test_nothing_is_packed_that_is_not_read(runtime: Dispatcher, driver: FakeDriver, alpha: float) -> None:
    a, b, c = operands(PACKED_LAST)
    a[...] = b[...] = np.nan
    expected = 3 * c
    runtime.sgemm(OnGpu(a), OnGpu(b), OnGpu(c), alpha=alpha, beta=3.0)
    close(c, expected)
    assert launched(driver) == [("packed-last", "sgemm")]


@pytest.mark.parametrize("alpha", ["much", 1e39, np.ones(2)], ids=["word", "too large", "two"])
def test_nothing_is_packed_for_a_call_that_is_refused(
    runtime: Dispatcher, driver: FakeDriver, alpha: Any
) -> None:
    a, b, c = operands(PACKED_LAST)
    with pytest.raises(DispatchError, match="no float32"):
        runtime.sgemm(OnGpu(a), OnGpu(b), OnGpu(c), alpha=alpha)
    assert not driver.launches


def test_packed_operands_share_a_workspace_with_counters_that_stay_zero(
    runtime: Dispatcher, driver: FakeDriver, at_once: None
) -> None:
    """Whatever comes after what: counters stand at the border, and scratch never reaches them."""
    order = [PACKED_LAST, SPLIT_LAST, PACKED[0], SPLIT_TWO, PACKED_TWO, PACKED_A, PACKED_LAST, SPLIT_LAST]
    for gemm in order:
        a, b, c = operands(gemm)
        runtime.sgemm(OnGpu(a), OnGpu(b), OnGpu(c), stream=STREAM)
        close(c, a @ b)
    assert len(driver.of("zero")) == len(driver.of("allocate"))
    assert len(driver.memory) == 1
    runtime.sgemm(OnGpu(a), OnGpu(b), OnGpu(c), stream=STREAM + 1)
    assert len(driver.memory) == 2  # another stream packs into memory of its own


def test_all_launches_of_a_packed_product_stay_together(
    runtime: Dispatcher, driver: FakeDriver, at_once: None
) -> None:
    faults, ready = [], threading.Barrier(4)

    def work(gemm: Gemm) -> None:
        a, b, c = operands(gemm)
        ready.wait()
        for _ in range(10):
            runtime.sgemm(OnGpu(a), OnGpu(b), OnGpu(c), stream=STREAM)
            if not np.allclose(c, a @ b, rtol=1e-3, atol=1e-3):
                faults.append(gemm)

    gemms = (PACKED[0], PACKED_TWO, PACKED_LAST, PACKED_A)
    threads = [threading.Thread(target=work, args=(gemm,)) for gemm in gemms]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not faults
    names = {g: ["sgemm_pack"] * 2 + ["sgemm"] for g in ("packed-nn", "packed-last")}
    names |= {
        "packed-two": ["sgemm_pack", "sgemm_pack", "sgemm", "sgemm_reduce"],
        "packed-a": ["sgemm_pack", "sgemm"],
    }
    left = launched(driver)
    while left:
        expected = names[left[0][0]]
        assert left[: len(expected)] == [(left[0][0], name) for name in expected]
        left = left[len(expected) :]


# NumPy


@pytest.mark.parametrize("layout", LAYOUTS)
def test_numpy_arrays_are_copied_there_and_back(runtime: Dispatcher, driver: FakeDriver, layout: str) -> None:
    trans_a, trans_b = layout[0] == "T", layout[1] == "T"
    a, b, _ = operands(Gemm(33, 17, 9, trans_a, trans_b))
    c = runtime.sgemm(a, b, trans_a=trans_a, trans_b=trans_b)
    assert isinstance(c, np.ndarray) and c.dtype == np.float32
    close(c, (a.T if trans_a else a) @ (b.T if trans_b else b))
    assert not driver.memory and driver.of("synchronize")


def test_numpy_out_may_have_any_strides(runtime: Dispatcher) -> None:
    space = normal(16, 12)
    out = space[::2, ::2]
    rest, expected = space[1::2].copy(), 2 * (_A @ _B) + 3 * out
    assert runtime.sgemm(_A[::-1][::-1], _B, out, alpha=2.0, beta=3.0) is out
    close(out, expected)
    np.testing.assert_array_equal(space[1::2], rest)


def test_numpy_rejections(runtime: Dispatcher, driver: FakeDriver) -> None:
    frozen = np.zeros((8, 6), np.float32)
    frozen.flags.writeable = False
    for call in (
        lambda: runtime.sgemm(_A, _B, frozen),
        lambda: runtime.sgemm(_A, _B, np.zeros((6, 8), np.float32)),
        lambda: runtime.sgemm(_A, _B.astype(np.float16)),
        lambda: runtime.sgemm(_A, _A),
    ):
        with pytest.raises(DispatchError):
            call()
    assert not driver.launches and not driver.memory


def test_numpy_uses_the_first_gpu_that_fits(folder: Path) -> None:
    driver = FakeDriver(_table(), names=("NVIDIA T4", "NVIDIA H200"))
    Dispatcher(folder, driver=driver).sgemm(_A, _B)
    assert driver.launches[0].context == 101
    driver = FakeDriver(_table(), names=("NVIDIA T4",))
    with pytest.raises(DispatchError, match="NVIDIA T4"):
        Dispatcher(folder, driver=driver).sgemm(_A, _B)
    with pytest.raises(DispatchError, match="no GPU"):
        Dispatcher(folder, driver=FakeDriver(_table(), names=())).sgemm(_A, _B)


def test_numpy_cannot_be_captured(runtime: Dispatcher, driver: FakeDriver) -> None:
    driver.capturing = frozenset({STREAM})
    with pytest.raises(DispatchError, match="part of a graph"):
        runtime.sgemm(_A, _B, stream=STREAM)
    assert not driver.memory


# torch, by a stand-in that has what the runtime asks of it


class _Tensor:
    """The part of torch.Tensor that the runtime reads, over a NumPy array."""

    def __init__(self, matrix: Array, **changes: Any) -> None:
        self.data = matrix
        self.dtype, self.layout = _TORCH.float32, _TORCH.strided
        self.is_cuda, self.requires_grad, self.device = True, False, "cuda:0"
        self.negative = False
        self.__dict__.update(changes)  # what a test wants different

    shape = property(lambda self: self.data.shape)

    def dim(self) -> int:
        return self.data.ndim

    def stride(self) -> tuple[int, ...]:
        return tuple(s // 4 for s in self.data.strides)

    def storage_offset(self) -> int:
        return 0

    def data_ptr(self) -> int:
        return self.data.ctypes.data

    def get_device(self) -> int:
        return 0

    def is_neg(self) -> bool:
        return self.negative


_Tensor.__module__, _Tensor.__name__ = "torch", "Tensor"
_TORCH = SimpleNamespace(
    float32="float32", strided="strided", is_grad_enabled=lambda: True,
    _C=SimpleNamespace(_cuda_getCurrentRawStream=lambda device: STREAM),
    empty=lambda shape, dtype, device: _Tensor(np.empty(shape, np.float32)),
)  # fmt: skip


@pytest.fixture
def torch_(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", _TORCH)


@pytest.mark.usefixtures("torch_")
def test_torch_gets_torch_on_its_current_stream(runtime: Dispatcher, driver: FakeDriver) -> None:
    c = runtime.sgemm(_Tensor(_A), _Tensor(_B))
    assert isinstance(c, _Tensor)
    close(c.data, _A @ _B)
    assert driver.launches[-1].stream == STREAM


@pytest.mark.usefixtures("torch_")
@pytest.mark.parametrize(
    ("changes", "message"),
    [({"requires_grad": True}, "no gradient"), ({"is_cuda": False, "device": "cpu"}, "a is on cpu"),
     ({"dtype": "bfloat16"}, r"dtype bfloat16.*float\(\)"), ({"layout": "sparse"}, "to_dense"),
     ({"negative": True}, "resolve_neg"), ({"data": normal(2)}, "1 dimensions")],
)  # fmt: skip
def test_torch_rejections(
    runtime: Dispatcher, driver: FakeDriver, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(DispatchError, match=message):
        runtime.sgemm(_Tensor(_A, **changes), _Tensor(_B))
    assert not driver.launches


@pytest.mark.usefixtures("torch_")
def test_mixed_libraries_need_a_stream(runtime: Dispatcher, driver: FakeDriver) -> None:
    with pytest.raises(DispatchError, match="pass stream="):
        runtime.sgemm(_Tensor(_A), OnGpu(_B))
    c = runtime.sgemm(_Tensor(_A), OnGpu(_B), stream=STREAM)
    close(c.data, _A @ _B)
    assert driver.launches[-1].stream == STREAM
