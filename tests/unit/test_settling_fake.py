"""Settling on a driver that the host plays: the fastest is found and kept, and no product suffers for it."""

from __future__ import annotations

import json
import threading
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from bindings import arity
from cuda.bindings import driver as real
from table_cases import (
    FIGURES,
    LIMITS,
    STICKY_CODE,
    FakeDriver,
    OnGpu,
    isolated,
    make_kernel,
    make_spec,
    make_table,
    rank,
    sign,
    write_table,
)

from autotune.facts.gemm import Gemm
from autotune.files.errors import DispatchError, DispatchWarning, EnvironmentProblem
from autotune.runtime.choose.chooser import NUM_FIRST, Call, Chooser
from autotune.runtime.dispatcher import Dispatcher
from autotune.runtime.launch import cuda_driver as door
from autotune.runtime.launch.cuda_driver import CudaFault, Driver
from autotune.runtime.settle import choices
from autotune.runtime.table.table import Table

TUNED, SHAPE, OTHER = Gemm(128, 128, 64), Gemm(72, 68, 36), Gemm(40, 68, 36)
SHAPES = [(SHAPE.m, SHAPE.n, SHAPE.k), (OTHER.m, OTHER.n, OTHER.k)]
STREAM = 77
FAST = replace(FIGURES, step_us=0.1)
PACKS = {"packs_a": True, "packs_b": True, "vec_a": 4, "vec_b": 4}


def _table(policy: str = "cold") -> Table:
    table = make_table(
        make_kernel("two", make_spec(reduction="two_pass", split_k=16), FAST),
        make_kernel("last", make_spec(reduction="last_block", split_k=2), FAST),
        make_kernel("packed", make_spec(**PACKS), replace(FAST, fixed_us=1.2, step_us=0.01)),
        make_kernel("plain", make_spec(), replace(FAST, step_us=0.08)),
        make_kernel("slow", make_spec(group=4), FIGURES),
        make_kernel("tuned", make_spec(group=8), None),
        entries=(rank(TUNED, "tuned"),),
        policy=policy,
    )
    return replace(table, limits=replace(LIMITS, l2_bytes=1 << 16))


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("autotune.runtime.launch.devices._warned", set())
    return isolated(monkeypatch, tmp_path)


@pytest.fixture
def driver() -> FakeDriver:
    return FakeDriver(_table(), kernel_us={"last": 20.0})


def first_use(folder: Path, driver: FakeDriver, **options: Any) -> Dispatcher:
    return Dispatcher(folder, settle="first-use", driver=driver, **options)


def matrices(gemm: Gemm = SHAPE, seed: int = 0) -> tuple[Any, Any, Any]:
    random = np.random.default_rng(seed)
    a, b, c = (np.zeros(rows * columns + 64, np.float32) for rows, columns in (
        (gemm.m, gemm.k), (gemm.k, gemm.n), (gemm.m, gemm.n)))  # fmt: skip
    placed = []
    for space, shape in ((a, (gemm.m, gemm.k)), (b, (gemm.k, gemm.n)), (c, (gemm.m, gemm.n))):
        start = (-space.ctypes.data // 4) % 64
        view = space[start : start + shape[0] * shape[1]].reshape(shape)
        view[...] = random.standard_normal(shape, dtype=np.float32)
        placed.append(view)
    return placed[0], placed[1], placed[2]


def multiply(runtime: Dispatcher, driver: FakeDriver, gemm: Gemm = SHAPE, **options: Any) -> str:
    """The kernel that served a product, whose result is checked."""
    a, b, c = matrices(gemm)
    before, beta = c.copy(), options.get("beta", 0.0)
    runtime.sgemm(OnGpu(a), OnGpu(b), OnGpu(c), **options)
    np.testing.assert_allclose(c, a @ b + beta * before, rtol=1e-4, atol=1e-4)
    return driver.launches[-1].kernel_id


def is_timed(driver: FakeDriver) -> bool:
    return bool(driver.of("make_stream"))


def candidates(gemm: Gemm = SHAPE) -> list[str]:
    ranked = Chooser(_table()).ranked(Call.packed(gemm), NUM_FIRST)
    return [pick.kernel_id for pick in ranked]


# What is chosen


@pytest.mark.parametrize("name", ["two", "last", "packed", "plain"])
@pytest.mark.parametrize("policy", ["cold", "warm"])
def test_the_fastest_of_the_models_first_serves(tmp_path: Path, name: str, policy: str) -> None:
    assert name in candidates() and len(candidates()) == NUM_FIRST
    table = _table(policy)
    driver = FakeDriver(table, kernel_us={name: 20.0})
    runtime = first_use(write_table(table, tmp_path / "t"), driver)
    before = runtime.pick(SHAPE.m, SHAPE.n, SHAPE.k)
    assert (before.how, before.kernel_id) == ("modelled", candidates()[0])
    assert multiply(runtime, driver, beta=0.5, stream=STREAM) == name
    pick = runtime.pick(SHAPE.m, SHAPE.n, SHAPE.k)
    assert (pick.kernel_id, pick.how) == (name, "settled")
    assert "the fastest of 4 that were timed" in pick.reason
    num_launches = {"two": 2, "packed": 3}.get(name, 1)
    assert pick.expected_us == pytest.approx(20.0 * num_launches)
    assert not driver.handles and not driver.memory


@pytest.mark.parametrize(("policy", "num_sets"), [("cold", 64), ("warm", 1)])
def test_cold_launches_have_operands_of_their_own_and_an_empty_l2(
    tmp_path: Path, policy: str, num_sets: int
) -> None:
    table = _table(policy)
    driver = FakeDriver(table, kernel_us={"last": 20.0})
    first_use(write_table(table, tmp_path / "t"), driver).settle(SHAPES[:1])
    sizes = [entry[2] for entry in driver.of("allocate")]
    assert sizes[0] // num_sets * num_sets == sizes[0]
    assert sum(SHAPE.operand_bytes) <= sizes[0] / num_sets < sum(SHAPE.operand_bytes) + 3 * 256
    is_overwritten = 2 * _table().limits.l2_bytes in [entry[2] for entry in driver.of("zero")]
    assert is_overwritten == (policy == "cold")


@pytest.mark.parametrize(("all_us", "num_launches"), [(500.0, 2), (5000.0, 1)])
def test_what_is_surely_slower_is_launched_again_unless_all_take_long(
    folder: Path, all_us: float, num_launches: int
) -> None:
    driver = FakeDriver(_table(), kernel_us=dict.fromkeys(candidates(), all_us) | {"plain": 10 * all_us})
    first_use(folder, driver).settle(SHAPES[:1])
    assert [launch.kernel_id for launch in driver.launches].count("plain") == num_launches


def test_a_first_launch_that_loads_decides_nothing(folder: Path) -> None:
    driver = FakeDriver(_table(), kernel_us={"last": 20.0}, loading_us={"last": 30_000.0})
    (pick,) = first_use(folder, driver).settle(SHAPES[:1])
    assert pick.kernel_id == "last"


def test_a_tuned_shape_is_never_settled(folder: Path, driver: FakeDriver) -> None:
    runtime = first_use(folder, driver)
    (pick,) = runtime.settle([(TUNED.m, TUNED.n, TUNED.k)])
    assert (pick.how, pick.kernel_id) == ("exact", "tuned")
    assert multiply(runtime, driver, TUNED) == "tuned"
    assert not is_timed(driver)


def test_products_without_elements_or_depth_are_not_settled(folder: Path, driver: FakeDriver) -> None:
    runtime = first_use(folder, driver)
    picks = runtime.settle([(0, 5, 3), (5, 7, 0)])
    assert picks[0].how == "default" and picks[1].how == "modelled"
    runtime.sgemm(OnGpu(np.ones((5, 0), np.float32)), OnGpu(np.ones((0, 7), np.float32)),
                  OnGpu(np.ones((5, 7), np.float32)))  # fmt: skip
    assert not is_timed(driver)


def test_off_times_nothing_and_reads_nothing(folder: Path, driver: FakeDriver, cache: Path) -> None:
    first_use(folder, driver).settle(SHAPES)
    for runtime in (Dispatcher(folder, driver=driver), Dispatcher(folder, settle="off", driver=driver)):
        driver.log.clear()
        assert multiply(runtime, driver) == candidates()[0]
        assert not is_timed(driver) and not driver.of("synchronize")


def test_what_ran_before_runs_what_is_settled(folder: Path, driver: FakeDriver) -> None:
    runtime = Dispatcher(folder, driver=driver)
    assert multiply(runtime, driver) == candidates()[0] == runtime.pick(*SHAPES[0]).kernel_id
    assert [pick.kernel_id for pick in runtime.settle(SHAPES)] == ["last", "last"]
    assert multiply(runtime, driver) == "last" == runtime.pick(*SHAPES[0]).kernel_id


def test_other_rows_and_alignments_are_settled_apart(folder: Path, driver: FakeDriver) -> None:
    runtime = first_use(folder, driver)
    a, b, c = matrices()
    wide = np.zeros((SHAPE.m, SHAPE.k + 1), np.float32)
    wide[:, : SHAPE.k] = a
    for number, operand in enumerate((a, wide[:, : SHAPE.k], a, wide[:, : SHAPE.k])):
        runtime.sgemm(OnGpu(operand), OnGpu(b), OnGpu(c))
        np.testing.assert_allclose(c, a @ b, rtol=1e-4, atol=1e-4)
        assert len(driver.of("make_stream")) == min(number + 1, 2)


# What is kept


def test_a_choice_is_kept_for_later_dispatchers(folder: Path, driver: FakeDriver, cache: Path) -> None:
    assert multiply(first_use(folder, driver), driver) == "last"
    (path,) = cache.iterdir()
    assert json.loads(path.read_text())["settled_on"]["cublas"] is None
    again = FakeDriver(_table(), kernel_us={"plain": 1.0})
    assert multiply(first_use(folder, again), again) == "last"
    assert not is_timed(again) and not again.of("synchronize")
    (pick,) = Dispatcher(folder, driver=again).settle(SHAPES[:1])
    assert (pick.how, pick.kernel_id) == ("settled", "last")
    assert not is_timed(again)


ELSEWHERE = [{"driver_version": "590.2"}, {"num_sms": 66}, {"power_limit_w": 500.0}]


@pytest.mark.filterwarnings("ignore::autotune.files.errors.DispatchWarning")
@pytest.mark.parametrize("changes", ELSEWHERE, ids=str)
def test_elsewhere_it_is_settled_anew(
    folder: Path, driver: FakeDriver, cache: Path, changes: dict[str, Any]
) -> None:
    assert multiply(first_use(folder, driver), driver) == "last"
    other = FakeDriver(_table(), kernel_us={"plain": 1.0}, external=changes)
    assert multiply(first_use(folder, other), other) == "plain"
    assert len(list(cache.iterdir())) == 2


def test_another_table_has_a_file_of_its_own(
    folder: Path, driver: FakeDriver, cache: Path, tmp_path: Path
) -> None:
    first_use(folder, driver).settle(SHAPES[:1])
    table = replace(_table(), created_at="2026-11-22T00:00:00+00:00")
    other = FakeDriver(table, kernel_us={"plain": 1.0})
    assert multiply(first_use(write_table(table, tmp_path / "other"), other), other) == "plain"
    assert len(list(cache.iterdir())) == 2


def test_two_processes_add_to_one_file(folder: Path, cache: Path) -> None:
    """Both read an empty file first: what the first writes, the second finds when it writes."""
    drivers = [FakeDriver(_table(), kernel_us={"last": 20.0}) for _ in range(3)]
    runtimes = [first_use(folder, driver) for driver in drivers]
    runtimes[0].settle([]), runtimes[1].settle([])
    runtimes[0].settle(SHAPES[:1])
    runtimes[1].settle(SHAPES[1:])
    assert [pick.how for pick in runtimes[2].settle(SHAPES)] == ["settled", "settled"]
    assert not is_timed(drivers[2])


def _damage(change: Callable[[dict[str, Any]], None]) -> Callable[[Path], None]:
    """A file that was changed on purpose: its checksum fits."""

    def damage(path: Path) -> None:
        tree = json.loads(path.read_text())
        change(tree)
        path.write_text(sign(tree))

    return damage


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-20])


def _flip(path: Path) -> None:
    path.write_text(path.read_text().replace('"last"', '"tuned"'))


def _invalid(path: Path) -> None:
    path.write_bytes(b"\xff\xfe\x00")


DAMAGES = {
    "empty": (lambda path: path.write_text(""), "not JSON"),
    "cut": (_cut, "not JSON"),
    "one word": (_flip, "checksum does not match"),
    "no text": (_invalid, "utf-8"),
    "a list": (lambda path: path.write_text("[]"), "no file of choices"),
    "another table": (_damage(lambda tree: tree.update(table="0" * 64)), "another table"),
    "another GPU": (_damage(lambda tree: tree["settled_on"].update(num_sms=7)), "settled elsewhere"),
    "newer": (_damage(lambda tree: tree.update(schema_version=3)), "schema 3, newer than 2, which"),
    "unknown field": (_damage(lambda tree: tree["choices"][0].update(more=1)), "unknown field"),
    "no time": (_damage(lambda tree: tree["choices"][0].update(time_us=-1)), "time_us is -1"),
    "large": (lambda path: path.write_text(" " * choices.MAX_FILE_BYTES + "{}"), "larger than 4 MiB"),
}


@pytest.mark.every(3)
@pytest.mark.parametrize("name", DAMAGES)
def test_a_damaged_file_is_told_once_and_replaced(
    folder: Path, driver: FakeDriver, cache: Path, name: str
) -> None:
    first_use(folder, driver).settle(SHAPES[:1])
    (path,) = cache.iterdir()
    damage, message = DAMAGES[name]
    damage(path)
    other = FakeDriver(_table(), kernel_us={"plain": 1.0})
    runtime = first_use(folder, other)
    with pytest.warns(DispatchWarning, match=message) as text:
        assert multiply(runtime, other) == "plain"
        assert multiply(runtime, other, OTHER) == "plain"
    assert len(text) == 1
    again = FakeDriver(_table())
    assert multiply(first_use(folder, again), again) == "plain"
    assert not is_timed(again)


def test_a_folder_in_the_place_of_the_file_costs_nothing_but_the_memory(
    folder: Path, driver: FakeDriver, cache: Path
) -> None:
    first_use(folder, driver).settle(SHAPES[:1])
    (path,) = cache.iterdir()
    path.unlink()
    path.mkdir()
    runtime = first_use(folder, driver)
    with pytest.warns(DispatchWarning, match="is no regular file|cannot be read") as text:
        assert multiply(runtime, driver) == "last"
    assert multiply(runtime, driver) == "last"
    assert len(text) == 1


def test_what_others_may_have_settled_is_not_taken(folder: Path, driver: FakeDriver, cache: Path) -> None:
    first_use(folder, driver).settle(SHAPES[:1])
    (path,), other = cache.iterdir(), FakeDriver(_table(), kernel_us={"plain": 1.0})
    before = path.read_bytes()
    cache.chmod(0o777)
    with pytest.warns(DispatchWarning, match="is not kept: .*may be written by other users; remove it"):
        assert multiply(first_use(folder, other), other) == "plain"
    assert path.read_bytes() == before


def test_a_folder_that_cannot_be_written_is_told(
    folder: Path, driver: FakeDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arguments: Any, **options: Any) -> None:
        raise EnvironmentProblem("the disk is full")

    monkeypatch.setattr(choices, "write_file", fail)
    runtime = first_use(folder, driver)
    with pytest.warns(DispatchWarning, match="is not kept: the disk is full") as text:
        assert multiply(runtime, driver) == "last"
        assert multiply(runtime, driver, OTHER) == "last"
    assert len(text) == 1
    assert runtime.pick(*SHAPES[0]).how == "settled"


ILLEGAL = {
    "no kernel": {"kernel": "none"},
    "of another layout": {"kernel": "default-tn"},
    "no split": {"kernel": "two", "split_k": 17},
    "splits of one that does not": {"kernel": "plain", "split_k": 2},
    "without work": {"kernel": "two", "split_k": 32},
}


@pytest.mark.parametrize("name", ILLEGAL)
def test_a_choice_that_must_not_serve_is_settled_again(
    folder: Path, driver: FakeDriver, cache: Path, name: str
) -> None:
    first_use(folder, driver).settle(SHAPES[:1])
    (path,) = cache.iterdir()
    _damage(lambda tree: tree["choices"][0].update(ILLEGAL[name]))(path)
    other = FakeDriver(_table(), kernel_us={"packed": 1.0})
    assert multiply(first_use(folder, other), other) == "packed"
    assert is_timed(other)


@pytest.mark.parametrize("name", ["file", "x" * 5000], ids=["a file", "a long name"])
def test_without_a_place_choices_are_kept_in_memory(
    folder: Path, driver: FakeDriver, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("AUTOTUNE_CACHE", str(tmp_path / name))
    runtime = first_use(folder, driver)
    with pytest.warns(DispatchWarning, match="cannot be read") as text:
        assert multiply(runtime, driver) == "last"
        assert multiply(runtime, driver, OTHER) == "last"
    assert len(text) == 1
    driver.log.clear()
    assert multiply(runtime, driver) == "last" and not is_timed(driver)


def test_what_a_file_holds_is_bounded(
    folder: Path, driver: FakeDriver, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(choices, "MAX_CHOICES", 1)
    runtime = first_use(folder, driver)
    assert multiply(runtime, driver) == "last"
    assert multiply(runtime, driver, OTHER) == candidates(OTHER)[0]
    (path,) = cache.iterdir()
    assert len(json.loads(path.read_text())["choices"]) == 1


def test_kinds_that_are_not_settled_are_remembered_up_to_a_number(
    folder: Path, driver: FakeDriver, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program whose shapes never repeat does not grow; what is forgotten is looked at anew."""
    monkeypatch.setattr(choices, "MAX_CHOICES", 1)
    monkeypatch.setattr(choices, "MAX_LEFT", 4)
    runtime = first_use(folder, driver)
    known = runtime._models[0].choices()
    assert multiply(runtime, driver) == "last"
    driver.log.clear()
    for _ in range(2):
        for m in range(20):
            multiply(runtime, driver, replace(OTHER, m=OTHER.m + 4 * m))
            assert len(known._left) <= 4
    assert not is_timed(driver)


# No product suffers for it


@pytest.mark.parametrize("stream", [STREAM, 0])
def test_nothing_is_timed_under_capture(folder: Path, driver: FakeDriver, stream: int) -> None:
    runtime = first_use(folder, driver)
    driver.capturing = frozenset({stream})
    for _ in range(2):
        assert multiply(runtime, driver, stream=stream) == candidates()[0]
    assert not is_timed(driver) and not driver.of("synchronize")
    driver.capturing = frozenset()
    assert multiply(runtime, driver, stream=stream) == "last"
    driver.capturing = frozenset({stream})
    assert multiply(runtime, driver, stream=stream) == "last"  # what is known serves
    assert multiply(runtime, driver, OTHER, stream=stream) == candidates(OTHER)[0]
    assert len(driver.of("make_stream")) == 1


def test_a_stream_that_cannot_be_requested_for_its_capture_is_left_alone(
    folder: Path, driver: FakeDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(stream: int) -> bool:
        raise CudaFault("asking a stream for its capture", 906, "CUDA_ERROR_STREAM_CAPTURE_IMPLICIT")

    runtime = first_use(folder, driver)
    with monkeypatch.context() as patch:
        patch.setattr(driver, "is_capturing", fail)
        a, b, c = matrices()
        runtime.sgemm(OnGpu(a), OnGpu(b), OnGpu(c))
    assert not is_timed(driver)
    runtime.sgemm(OnGpu(a), OnGpu(b), OnGpu(c))
    assert is_timed(driver)


def test_shapes_are_not_settled_while_the_default_stream_is_captured(
    folder: Path, driver: FakeDriver
) -> None:
    driver.capturing = frozenset({0})
    with pytest.raises(DispatchError, match="cannot be settled while a graph is captured; do so before"):
        first_use(folder, driver).settle(SHAPES)
    assert not driver.launches and not driver.context_stack


def test_what_the_caller_has_is_neither_read_nor_written(folder: Path, driver: FakeDriver) -> None:
    a, b, c = matrices()
    c[...] = 7.0
    places = [(x.ctypes.data, x.ctypes.data + x.nbytes) for x in (a, b, c)]
    seen: list[Any] = []
    launch = driver._sgemm

    def watch(spec: Any, error: float, grid: Any, arguments: list[Any]) -> None:
        launch(spec, error, grid, arguments)
        inside = [low <= arguments[i] < high for i, (low, high) in zip((4, 6, 9), places, strict=True)]
        seen.append((any(inside), bool((c == 7.0).all())))

    driver._sgemm = watch
    first_use(folder, driver).sgemm(OnGpu(a), OnGpu(b), OnGpu(c), alpha=2.0, beta=1.0)
    np.testing.assert_allclose(c, 2 * (a @ b) + 7.0, rtol=1e-4, atol=1e-4)
    *timed, last = seen
    assert len(timed) > 100 and last[0]
    assert all(not is_callers and is_untouched for is_callers, is_untouched in timed)


def test_it_waits_for_the_callers_stream_and_runs_on_its_own(folder: Path, driver: FakeDriver) -> None:
    driver.kernel_us = {"plain": 20.0}  # which needs no memory
    multiply(first_use(folder, driver), driver, stream=STREAM)
    own = driver.launches[0].stream
    assert {launch.stream for launch in driver.launches} == {own, STREAM}
    assert driver.of("synchronize")[0] == ("synchronize", STREAM)
    assert {entry[1] for entry in driver.of("synchronize")[1:]} == {own}
    assert {entry[-1] for name in ("allocate", "free") for entry in driver.of(name)} == {own}


FAULTS = [
    "free_bytes", "make_stream", "make_event", "record", "elapsed_us", "capture", "launch_graph",
    "free_graph", "free_event", "free_stream", "copy", "copy_in", "synchronize", "allocate", "zero", "free",
    "get_kernel",
]  # fmt: skip


@pytest.mark.every(4)
@pytest.mark.parametrize("number", [1, 2, 5])
@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_of_the_driver_costs_the_choice_not_the_product(
    folder: Path, driver: FakeDriver, monkeypatch: pytest.MonkeyPatch, name: str, number: int
) -> None:
    """The first call of a kind to fail, or one behind it; every one of them while settling."""
    gemm = SHAPE  # what the model picks for it needs no workspace
    real, count = getattr(driver, name), [0]

    def fail(*arguments: Any, **options: Any) -> Any:
        count[0] += 1
        if count[0] == number + (name == "get_kernel"):  # without the first of these there is no product
            raise CudaFault(f"playing {name}", 2, "CUDA_ERROR_OUT_OF_MEMORY")
        return real(*arguments, **options)

    monkeypatch.setattr(driver, name, fail)
    runtime = first_use(folder, driver)
    expected = Chooser(_table()).pick(Call.packed(gemm)).kernel_id
    with warnings.catch_warnings(record=True) as text:
        warnings.simplefilter("always")
        served = multiply(runtime, driver, gemm, stream=STREAM)
    assert not driver.context_stack and not driver.loading_depth
    if count[0] < number + (name == "get_kernel"):
        assert not text and runtime.pick(gemm.m, gemm.n, gemm.k).how == "settled"
        return
    assert served == expected
    assert [str(w.message).partition(",")[0] for w in text] == [f"{gemm} is not settled"]
    assert name.startswith("free") or not (driver.memory or driver.handles)
    num_tries = count[0]
    multiply(runtime, driver, gemm, stream=STREAM)
    assert count[0] == num_tries or name not in ("make_stream", "free_bytes")  # it is not tried again


def test_a_lost_context_ends_the_product_that_finds_it(
    folder: Path, driver: FakeDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver.launch_error = STICKY_CODE
    with (
        pytest.warns(DispatchWarning, match="is not settled"),
        pytest.raises(DispatchError, match="start the process again"),
    ):
        multiply(first_use(folder, driver), driver)
    assert not driver.context_stack


@pytest.mark.parametrize(("share", "is_settled"), [(0.5, False), (30.0, True)])
def test_memory_is_bounded_by_what_is_free(
    folder: Path, driver: FakeDriver, share: float, is_settled: bool
) -> None:
    """`share`: free bytes, over what a single launch needs of a quarter of it."""
    needed = SHAPE.num_bytes + 2 * _table().limits.l2_bytes
    driver.num_free_bytes = int(4 * share * needed)
    runtime = first_use(folder, driver)
    if is_settled:
        assert multiply(runtime, driver) == "last"
        assert sum(entry[2] for entry in driver.of("allocate")) <= driver.num_free_bytes / 4
    else:
        with pytest.warns(DispatchWarning, match="more than a quarter of what is free"):
            assert multiply(runtime, driver) == candidates()[0]
        assert not driver.launches[1:] or {x.kernel_id for x in driver.launches} == {candidates()[0]}


def test_a_clock_that_stands_still_chooses_nothing(folder: Path, driver: FakeDriver) -> None:
    driver.kernel_us = {kernel.id: 0.0 for kernel in _table().kernels}
    with pytest.warns(DispatchWarning, match="events tell no times"):
        assert multiply(first_use(folder, driver), driver) == candidates()[0]


def test_threads_settle_a_shape_once_and_do_not_wait(folder: Path, driver: FakeDriver) -> None:
    runtime, faults = first_use(folder, driver), []
    inside, go_on = threading.Event(), threading.Event()
    real = driver.free_bytes

    def pause() -> int:
        inside.set()
        assert go_on.wait(60)
        return real()

    driver.free_bytes = pause

    def work(seed: int) -> None:
        a, b, c = matrices(seed=seed)
        runtime.sgemm(OnGpu(a), OnGpu(b), OnGpu(c), stream=STREAM + seed)
        if not np.allclose(c, a @ b, rtol=1e-3, atol=1e-3):
            faults.append(seed)

    first = threading.Thread(target=work, args=(0,))
    first.start()
    assert inside.wait(60)
    others = [threading.Thread(target=work, args=(seed,)) for seed in range(1, 5)]
    for thread in others:
        thread.start()
    for thread in others:
        thread.join()
    served = {launch.kernel_id for launch in driver.launches if launch.stream >= STREAM}
    assert served == {candidates()[0]}  # meanwhile
    go_on.set()
    first.join()
    assert not faults
    assert multiply(runtime, driver) == "last"
    assert len(driver.of("make_stream")) == 1


def test_numpy_arrays_are_settled_too(folder: Path, driver: FakeDriver) -> None:
    runtime = first_use(folder, driver)
    a, b, _ = matrices()
    np.testing.assert_allclose(runtime.sgemm(a, b), a @ b, rtol=1e-4, atol=1e-4)
    assert driver.launches[-1].kernel_id == "last"
    assert not driver.memory


# Pinned


def pinned(folder: Path, driver: FakeDriver, path: Path) -> Path:
    runtime = Dispatcher(folder, driver=driver)
    runtime.settle(SHAPES[:1])
    runtime.export_choices(path)
    return path


def test_pinned_choices_are_the_same_everywhere(folder: Path, driver: FakeDriver, tmp_path: Path) -> None:
    path = pinned(folder, driver, tmp_path / "choices.json")
    picks = []
    for changes in ({}, {"num_sms": 66}):
        rank_driver = FakeDriver(_table(), kernel_us={"plain": 1.0}, external=changes)
        runtime = Dispatcher(folder, deterministic=True, choices=path, driver=rank_driver)
        picks.append([runtime.pick(*shape) for shape in SHAPES])  # before any GPU is asked
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DispatchWarning)
            assert multiply(runtime, rank_driver) == "last"
            assert multiply(runtime, rank_driver, OTHER) == candidates(OTHER)[0]
        assert not is_timed(rank_driver)
    assert picks[0] == picks[1]
    assert [pick.how for pick in picks[0]] == ["settled", "modelled"]
    assert "pinned as the fastest of 4" in picks[0][0].reason


def test_a_deterministic_dispatcher_reads_and_settles_nothing(folder: Path, driver: FakeDriver) -> None:
    first_use(folder, driver).settle(SHAPES)
    runtime = Dispatcher(folder, deterministic=True, driver=FakeDriver(_table()))
    assert [runtime.pick(*shape).how for shape in SHAPES] == ["modelled", "modelled"]
    with pytest.raises(DispatchError, match="deterministic dispatcher settles nothing"):
        runtime.settle(SHAPES)
    with pytest.raises(DispatchError, match="leave out settle or deterministic"):
        first_use(folder, driver, deterministic=True)


def test_pins_come_before_what_is_settled_and_are_exported_again(
    folder: Path, driver: FakeDriver, tmp_path: Path
) -> None:
    path = pinned(folder, driver, tmp_path / "choices.json")
    other = FakeDriver(_table(), kernel_us={"plain": 1.0}, external={"driver_version": "580.1"})
    for file in (tmp_path / "cache" / choices.FOLDER).iterdir():
        file.unlink()
    runtime = first_use(folder, other, choices=str(path))
    assert multiply(runtime, other) == "last" and multiply(runtime, other, OTHER) == "plain"
    runtime.export_choices(tmp_path / "more.json")
    both = Dispatcher(folder, deterministic=True, choices=tmp_path / "more.json")
    assert [both.pick(*shape).kernel_id for shape in SHAPES] == ["last", "plain"]
    both.export_choices(tmp_path / "again.json")
    assert (tmp_path / "again.json").read_text() == (tmp_path / "more.json").read_text()


@pytest.mark.every(3)
@pytest.mark.parametrize("name", [name for name in DAMAGES if name != "another GPU"])
def test_a_damaged_file_of_pins_is_refused(
    folder: Path, driver: FakeDriver, tmp_path: Path, name: str
) -> None:
    path = pinned(folder, driver, tmp_path / "choices.json")
    damage, message = DAMAGES[name]
    damage(path)
    with pytest.raises(DispatchError, match=f"{message}.*export_choices"):
        Dispatcher(folder, choices=path)


def test_a_missing_file_of_pins_is_refused(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(DispatchError, match="no file of choices at"):
        Dispatcher(folder, choices=tmp_path / "none.json")


def test_choices_are_not_written_where_they_cannot_be(
    folder: Path, driver: FakeDriver, tmp_path: Path
) -> None:
    with pytest.raises(DispatchError, match="its folder does not exist"):
        Dispatcher(folder, driver=driver).export_choices(tmp_path / "none" / "choices.json")


# Options


def test_the_environment_says_what_is_not_passed(
    folder: Path, driver: FakeDriver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AUTOTUNE_SETTLE", "first-use")
    assert multiply(Dispatcher(folder, driver=driver), driver) == "last"
    driver.log.clear()
    multiply(Dispatcher(folder, settle="off", driver=driver), driver, OTHER)
    multiply(Dispatcher(folder, deterministic=True, driver=driver), driver, OTHER)
    assert not is_timed(driver)
    monkeypatch.setenv("AUTOTUNE_SETTLE", "")
    monkeypatch.setenv("AUTOTUNE_CHOICES", str(pinned(folder, driver, tmp_path / "choices.json")))
    assert Dispatcher(folder).pick(*SHAPES[0]).how == "settled"


def test_options_that_are_none_are_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for options in ({"settle": "always"}, {"settle": True}, {"settle": 3}):
        with pytest.raises(DispatchError, match=r"settle is .*say 'off', 'first-use', 'live' or"):
            Dispatcher(folder, **options)
    with pytest.raises(DispatchError, match="deterministic is a str"):
        Dispatcher(folder, deterministic="yes")
    monkeypatch.setenv("AUTOTUNE_CHOICES", "/nowhere/choices.json")
    with pytest.raises(DispatchError, match="no file of choices at /nowhere"):
        Dispatcher(folder)
    monkeypatch.setenv("AUTOTUNE_SETTLE", "yes")
    with pytest.raises(DispatchError, match="AUTOTUNE_SETTLE is 'yes'"):
        Dispatcher(folder)


@pytest.mark.parametrize("shape", [(1, 2), (1, 2, 3, True), 4096, "4096", (1, 2, "x"), (1, 2, 3, 4, 5)])
def test_what_is_no_shape_is_refused(folder: Path, driver: FakeDriver, shape: Any) -> None:
    with pytest.raises(DispatchError, match=r"is no shape|is .*, expected|pass True or False"):
        Dispatcher(folder, driver=driver).settle([SHAPES[0], shape])
    assert not driver.launches


@pytest.mark.parametrize("shapes", [4096, None])
def test_what_holds_no_shapes_is_refused(folder: Path, driver: FakeDriver, shapes: Any) -> None:
    runtime = Dispatcher(folder, driver=driver)
    for call in (runtime.settle, runtime.prepare):
        with pytest.raises(DispatchError, match=f"{shapes} holds no shapes; pass a list"):
            call(shapes)


def test_a_gpu_is_a_number(folder: Path, driver: FakeDriver) -> None:
    with pytest.raises(DispatchError, match=r"number of a GPU, is '0', expected a whole number"):
        Dispatcher(folder, driver=driver).settle(SHAPES, device="0")
    with pytest.raises(DispatchError, match="GPU 2 is NVIDIA T4"):
        Dispatcher(folder, driver=driver).settle(SHAPES, device=2)
    assert [pick.how for pick in Dispatcher(folder, driver=driver).settle(SHAPES, device=1)] == [
        "settled"
    ] * 2
    assert {launch.context for launch in driver.launches} == {101}


# The driver's own calls


class Bindings:
    """cuda.bindings.driver, of which calls are written down; each is held to the arity that is documented."""

    def __init__(self, rejected: str = "") -> None:
        self.calls: list[str] = []
        self._rejected = rejected

    def __getattr__(self, name: str) -> Any:
        if name[:2] != "cu" or name in ("cuuint64_t",):
            return getattr(real, name)

        def call(*arguments: Any) -> tuple[Any, ...]:
            assert len(arguments) == arity(name), name
            self.calls.append(name)
            if name == self._rejected:
                return (2,)
            values = {"cuMemGetInfo": (7, 8), "cuEventElapsedTime": (0.25,)}.get(
                name, (41 + len(self.calls),)
            )
            return (0, *values)

        return call


def _use(driver: Driver) -> None:
    stream, begin, end = driver.make_stream(), driver.make_event(), driver.make_event()
    assert len({stream, begin, end}) == 3
    driver.record(begin, stream)
    graph = driver.capture(stream, lambda: driver.copy(4096, 8192, 16, stream))
    driver.launch_graph(graph, stream)
    driver.record(end, stream)
    assert driver.elapsed_us(begin, end) == 250.0
    assert driver.free_bytes() == 7
    driver.free_graph(graph), driver.free_event(begin), driver.free_stream(stream)


def test_every_call_of_the_driver_is_as_the_bindings_document_it(monkeypatch: pytest.MonkeyPatch) -> None:
    bindings = Bindings()
    monkeypatch.setattr(door, "cuda", bindings)
    _use(Driver())
    started, copied, ended, built = map(bindings.calls.index, (
        "cuStreamBeginCapture", "cuMemcpyDtoDAsync", "cuStreamEndCapture", "cuGraphInstantiate"))  # fmt: skip
    assert started < copied < ended < built < bindings.calls.index("cuGraphDestroy")
    for name in set(bindings.calls) - {"cuInit"}:
        refusing = Bindings(name)
        monkeypatch.setattr(door, "cuda", refusing)
        with pytest.raises(CudaFault, match="OUT_OF_MEMORY"):
            _use(Driver())
        started, ended = (refusing.calls.count(f"cuStream{x}Capture") for x in ("Begin", "End"))
        assert started == ended or name == "cuStreamBeginCapture"  # no stream is left capturing
