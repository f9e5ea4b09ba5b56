"""One kernel's result and time, on a driver that the host plays: what is wrong or slow is told."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from kind_cases import FIRST, H100, OTHER, SECOND, add, driver_of_kinds
from table_cases import LIMITS, FakeDriver, make_kernel, make_spec, make_table, write_table
from typer.testing import CliRunner

from autotune import gpu
from autotune.cli import verify
from autotune.cli.app import app
from autotune.facts.gemm import LAYOUTS, Gemm
from autotune.files.errors import DispatchError, EnvironmentProblem, SlowGpu
from autotune.runtime.dispatcher import Dispatcher
from autotune.runtime.settle import settling
from autotune.runtime.settle.settling import MAX_ATTEMPTS, NUM_GRAPHS, SLOWER
from autotune.runtime.table.table import Entry, RankedKernel, Table

RECORDED_US = 400.0
SMALL, BEST, LARGE = Gemm(64, 64, 64), Gemm(70, 66, 130), Gemm(130, 66, 64)


def table_of(layout: str = "NN", **changes: Any) -> Table:
    """Three tuned shapes, of which BEST takes most nearly what a check aims at."""
    trans = layout[0] == "T", layout[1] == "T"
    kernels = [make_kernel(name, make_spec(layout, **changes)) for name in ("small", "best", "large")]
    kernels = [replace(kernel, config=replace(kernel.config)) for kernel in kernels]
    times = {"small": (SMALL, 3.0), "best": (BEST, RECORDED_US), "large": (LARGE, 9e5)}
    entries = tuple(
        Entry(replace(gemm, trans_a=trans[0], trans_b=trans[1]), None, (RankedKernel(name, us, True),))
        for name, (gemm, us) in times.items()
    )
    return make_table(*kernels, entries=entries, limits=replace(LIMITS, l2_bytes=1 << 16))


def runtime_of(table: Table, place: Path, **driver: Any) -> tuple[Dispatcher, FakeDriver]:
    fake = FakeDriver(table, **{"kernel_us": {"best": RECORDED_US}, **driver})
    return Dispatcher(write_table(table, place / "t"), driver=fake, cublas=False), fake


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("autotune.runtime.launch.devices._warned", set())
    monkeypatch.setenv("AUTOTUNE_CACHE", str(tmp_path / "cache"))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("policy", ["cold", "warm"])
def test_what_is_right_and_as_fast_is_so(tmp_path: Path, layout: str, policy: str) -> None:
    runtime, driver = runtime_of(replace(table_of(layout), policy=policy), tmp_path)
    found = runtime.verify_quick()
    assert (found.kernel_id, found.gemm.layout, found.recorded_us) == ("best", layout, RECORDED_US)
    assert found.ratio == pytest.approx(1) and 0 < found.error_ratio < 0.5
    assert found.is_ok and found.differences == ()
    assert len(driver.launches) == NUM_GRAPHS * round(settling.CHECKED_BATCH_US / RECORDED_US)
    assert not (driver.handles or driver.memory or driver.context_stack), "something is left"
    assert "1.000 times the recorded 400" in str(found)
    assert runtime.verify_quick(device=1).device == 1


@pytest.mark.parametrize(
    "changes",
    [{"reduction": "two_pass", "split_k": 2}, {"reduction": "last_block", "split_k": 4}, {"packs_a": True}],
)
def test_kernels_of_every_kind_are_checked(tmp_path: Path, changes: dict[str, Any]) -> None:
    found = runtime_of(table_of(**changes), tmp_path)[0].verify_quick()
    assert found.is_right and found.error_ratio > 0


def test_a_wrong_result_is_noticed(tmp_path: Path) -> None:
    found = runtime_of(table_of(), tmp_path, result_error=0.01)[0].verify_quick()
    assert not found.is_right and found.is_as_fast and not found.is_ok
    assert "the result is wrong" in str(found)
    found = runtime_of(table_of(), tmp_path, result_error=float("nan"))[0].verify_quick()
    assert not found.is_ok


class _Times(dict[str, float]):
    """What a launch takes, one after another; the last one for all that come then."""

    def __init__(self, times_us: Iterator[float]) -> None:
        super().__init__()
        self._times_us = times_us
        self._last = 0.0

    def get(self, name: str, otherwise: Any = None) -> Any:
        self._last = next(self._times_us, self._last)
        return self._last


def test_a_slow_gpu_is_looked_at_longer_and_told(tmp_path: Path) -> None:
    runtime, driver = runtime_of(table_of(), tmp_path, kernel_us={"best": 1.3 * RECORDED_US})
    driver.external = {"power_limit_w": 500.0}
    with pytest.warns(match="power limit"):
        found = runtime.verify_quick()
    assert found.is_right and not found.is_as_fast and not found.is_ok
    assert found.ratio == pytest.approx(1.3)
    assert found.differences == ("its power limit is 500 W, not 700 W",) and "500 W" in str(found)
    assert len(driver.launches) == MAX_ATTEMPTS * NUM_GRAPHS * round(settling.CHECKED_BATCH_US / RECORDED_US)


def test_clocks_that_rise_are_waited_for(tmp_path: Path) -> None:
    runtime, driver = runtime_of(table_of(), tmp_path)
    driver.kernel_us = _Times(iter([3 * RECORDED_US] * 25 + [RECORDED_US] * 10))
    found = runtime.verify_quick()
    assert found.is_as_fast and found.ratio == pytest.approx(1)
    assert len(driver.launches) < MAX_ATTEMPTS * NUM_GRAPHS


def test_a_neighbour_that_takes_turns_is_noticed(tmp_path: Path) -> None:
    """Each fourth launch waits for another's time slice."""
    runtime, driver = runtime_of(table_of(), tmp_path)
    driver.kernel_us = _Times(iter([RECORDED_US * (1 if i % 4 else 5) for i in range(1000)]))
    found = runtime.verify_quick()
    assert found.ratio is not None and found.ratio > 1.5 and not found.is_as_fast


def test_what_lies_within_the_bound_is_no_fault(tmp_path: Path) -> None:
    for factor, is_as_fast in ((0.5, True), (SLOWER - 0.01, True), (SLOWER + 0.01, False)):
        place = tmp_path / str(factor)
        runtime, _ = runtime_of(table_of(), place, kernel_us={"best": factor * RECORDED_US})
        assert runtime.verify_quick().is_as_fast is is_as_fast


def test_without_a_tuned_shape_the_result_alone_is_checked(tmp_path: Path) -> None:
    runtime, _ = runtime_of(replace(table_of(), entries=()), tmp_path)
    found = runtime.verify_quick()
    assert found.is_ok and found.ratio is None and found.kernel_id == "default-nn"
    assert "nothing recorded" in str(found)


def test_where_it_cannot_be_checked_that_is_told(tmp_path: Path) -> None:
    runtime, driver = runtime_of(table_of(), tmp_path)
    driver.capturing = frozenset([0])
    with pytest.raises(DispatchError, match="while a graph is captured"):
        runtime.verify_quick()
    driver.capturing, driver.num_free_bytes = frozenset(), 1 << 10
    with pytest.raises(DispatchError, match="more than a quarter of what is free"):
        runtime.verify_quick()
    driver.num_free_bytes = 1 << 36
    with pytest.raises(DispatchError, match="GPU 2 is NVIDIA T4"):
        runtime.verify_quick(device=OTHER)
    with pytest.raises(DispatchError, match="number of a GPU"):
        runtime.verify_quick(device="0")  # type: ignore[arg-type]
    assert not (driver.handles or driver.memory or driver.context_stack)


def test_each_kind_is_checked_by_its_own_table(tmp_path: Path) -> None:
    folder = write_table(FIRST, tmp_path / "t")
    add(SECOND, folder)
    driver = driver_of_kinds(FIRST, SECOND)
    runtime = Dispatcher(folder, driver=driver, fallback="cublas")
    assert runtime.verify_quick(device=H100).kernel_id == "of-h100"
    assert runtime.verify_quick().kernel_id == "of-h200"
    with pytest.raises(DispatchError, match="which cuBLAS serves: nothing can be checked"):
        runtime.verify_quick(device=OTHER)


# The command


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeDriver:
    write_table(table_of(), tmp_path / "t")
    driver = FakeDriver(table_of(), kernel_us={"best": RECORDED_US})
    monkeypatch.setattr("autotune.runtime.launch.cuda_driver.Driver", lambda: driver)
    info = gpu.GpuInfo(1, "NVIDIA H200", "GPU-1", (9, 0), 1 << 37)
    monkeypatch.setattr(gpu, "find_gpu", lambda selector: info)
    return driver


def test_the_command_says_what_it_saw(fake: FakeDriver, tmp_path: Path) -> None:
    folder = str(tmp_path / "t")
    done = CliRunner().invoke(app, ["verify", folder, "--quick"])
    assert done.exit_code == 0 and "GPU 0 (NVIDIA H200), best on 70x66x130:NN" in done.stdout, done.output
    done = CliRunner().invoke(app, ["verify", folder, "--quick", "--gpu", "1", "--json"])
    facts = json.loads(done.stdout)
    assert (facts["device"], facts["kernel"], facts["is_right"], facts["is_as_fast"]) == (
        1,
        "best",
        True,
        True,
    )
    assert facts["ratio"] == pytest.approx(1)


def test_what_is_slow_or_wrong_is_an_error_of_its_own(
    fake: FakeDriver, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fake.kernel_us = {"best": 2 * RECORDED_US}
    with pytest.raises(
        SlowGpu, match=r"takes 2\.00 times as long as was recorded, more than 1\.1: `nvidia"
    ) as slow:
        verify.run_quick(tmp_path / "t", "auto", is_json=True)
    assert slow.value.exit_code == 7 and json.loads(capsys.readouterr().out)["is_as_fast"] is False
    fake.result_error = 1.0
    with pytest.raises(DispatchError, match="best is wrong on GPU 0: do not use"):
        verify.run_quick(tmp_path / "t", "auto", is_json=False)


def test_without_a_gpu_nothing_is_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def none(_: str) -> None:
        raise EnvironmentProblem("no GPU")

    monkeypatch.setattr(gpu, "find_gpu", none)
    with pytest.raises(DispatchError, match="no table"):  # trying again would not help
        verify.run_quick(tmp_path, "auto", is_json=False)
    monkeypatch.setattr(verify, "Dispatcher", lambda *_, **__: None)
    with pytest.raises(EnvironmentProblem):
        verify.run_quick(tmp_path, "auto", is_json=False)
    done = CliRunner().invoke(app, ["verify", str(tmp_path), "--quick", "--gpu", "none"])
    assert "leave out --quick or --gpu none" in str(done.exception)
