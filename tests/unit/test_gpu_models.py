"""A folder with tables for several GPU models, where it is used: each GPU gets its own, and others none, or
cuBLAS."""

from __future__ import annotations

import json
import threading
import time
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import test_torch_routing
from fake_blas import FakeBlas
from kind_cases import FIRST, H100, H200, OTHER, SECOND, TUNED, add, driver_of_kinds, table_for
from table_cases import FakeDriver, OnGpu, write_table
from test_blas_provider_fake import install
from test_dispatcher import aligned, close, normal
from test_tensor_calls import _Tensor
from test_torch_routing import FakeTorch, Tensor

from autotune.facts.gemm import Gemm
from autotune.files.errors import DispatchError, DispatchWarning, UsageError
from autotune.runtime.dispatcher import Dispatcher
from autotune.runtime.settle import choices
from autotune.suite import read_suite

SHAPE = (TUNED.m, TUNED.n, TUNED.k)
NAMES = {H200: "of-h200", H100: "of-h100"}
fake_torch, expected_times = test_torch_routing.fake_torch, test_torch_routing.expected_times  # fixtures


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = write_table(FIRST, tmp_path_factory.mktemp("kinds") / "t")
    add(SECOND, folder)
    return folder


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("AUTOTUNE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("autotune.runtime.launch.devices._warned", set())
    for name in ("AUTOTUNE_SETTLE", "AUTOTUNE_CHOICES", "AUTOTUNE_CUBLAS", "AUTOTUNE_FALLBACK"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path / "cache" / choices.FOLDER


@pytest.fixture
def driver() -> FakeDriver:
    return driver_of_kinds(FIRST, SECOND)


@pytest.fixture
def runtime(folder: Path, driver: FakeDriver) -> Dispatcher:
    return Dispatcher(folder, driver=driver, cublas=False)


def multiply(runtime: Dispatcher, driver: FakeDriver, device: int, gemm: Gemm = TUNED, **scales: Any) -> None:
    """A product on one GPU, checked."""
    a, b, c = aligned(gemm.m, gemm.k), aligned(gemm.k, gemm.n), aligned(gemm.m, gemm.n)
    driver.places |= {x.ctypes.data: device for x in (a, b, c)}
    alpha, beta = scales.get("alpha", 1.0), scales.get("beta", 0.0)
    expected = alpha * (a.astype(np.float64) @ b) + (beta * c if beta else 0)
    if not beta:
        c[...] = np.nan
    runtime.sgemm(OnGpu(a), OnGpu(b), OnGpu(c), **scales)
    close(c, expected)


def test_each_gpu_is_served_by_the_table_of_its_kind(runtime: Dispatcher, driver: FakeDriver) -> None:
    for device in (H100, H200, H100, H200):
        multiply(runtime, driver, device)
        launch = driver.launches[-1]
        assert (launch.kernel_id, launch.context) == (NAMES[device], 100 + device)
    assert [table.environment.gpu_name for table in runtime.tables] == ["NVIDIA H200", "NVIDIA H100"]
    assert runtime.table is runtime.tables[0]
    counted = Counter({one.kernel_id: one.calls for one in runtime.counts()})
    assert counted == {"of-h200": 2, "of-h100": 2}


def test_picks_are_of_the_gpu_that_is_named_or_current(runtime: Dispatcher, driver: FakeDriver) -> None:
    for _ in range(2):
        for device, name in NAMES.items():
            assert runtime.pick(*SHAPE, device=device).kernel_id == name
            driver.push_context(100 + device)
            assert runtime.pick(*SHAPE).kernel_id == name
            assert runtime.prepare([SHAPE])[0].kernel_id == name
            driver.pop_context()
    assert runtime.pick(*SHAPE).kernel_id == "of-h200"  # the first GPU that a table is for
    driver.push_context(100 + OTHER)
    assert runtime.pick(*SHAPE).kernel_id == "of-h200"
    with pytest.raises(DispatchError, match="GPU 2 is NVIDIA T4"):
        runtime.pick(*SHAPE, device=OTHER)
    with pytest.raises(DispatchError, match="number of a GPU"):
        runtime.pick(*SHAPE, device="cuda:1")  # type: ignore[arg-type]


def test_without_a_gpu_the_first_table_is_requested(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_driver() -> Any:
        raise DispatchError("no CUDA driver")

    monkeypatch.setattr("autotune.runtime.launch.cuda_driver.Driver", no_driver)
    assert Dispatcher(folder).pick(*SHAPE).kernel_id == "of-h200"


def test_a_folder_of_one_kind_asks_no_gpu_for_a_pick(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process may be forked after it."""
    monkeypatch.setattr("autotune.runtime.launch.cuda_driver.Driver", lambda: pytest.fail("asked for a GPU"))
    assert Dispatcher(folder / "kinds" / "nvidia_h100_sm_90").pick(*SHAPE).kernel_id == "of-h100"


def test_arrays_of_the_host_go_to_a_gpu_that_a_table_is_for(runtime: Dispatcher, driver: FakeDriver) -> None:
    a, b = normal(128, 64), normal(64, 128)
    for current, name in ((None, "of-h200"), (H100, "of-h100"), (OTHER, "of-h200")):
        if current is not None:
            driver.push_context(100 + current)
        close(runtime.sgemm(a, b), a @ b)
        assert driver.launches[-1].kernel_id == name
        if current is not None:
            driver.pop_context()


def test_other_gpus_are_refused_with_the_kinds_that_are_there(
    runtime: Dispatcher, driver: FakeDriver
) -> None:
    with pytest.raises(DispatchError) as rejected:
        multiply(runtime, driver, OTHER)
    text = str(rejected.value)
    assert "NVIDIA H200 (sm_90) and NVIDIA H100 (sm_90), but GPU 2 is NVIDIA T4 (sm_75)" in text
    assert "--add" in text and "AUTOTUNE_FALLBACK=cublas" in text
    assert not driver.launches
    a, b, c = normal(8, 4), normal(4, 6), normal(8, 6)
    driver.places[b.ctypes.data] = H100
    with pytest.raises(DispatchError, match="on GPUs 0, 1"):
        runtime.sgemm(OnGpu(a), OnGpu(b), OnGpu(c))
    multiply(runtime, driver, H100)  # no other GPU pays for it


def test_a_gpu_is_accepted_as_another_where_the_user_says_so(
    folder: Path, driver: FakeDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a warning, as under other conditions; its own table comes before, and other code never serves."""
    driver.names = ("NVIDIA H200 NVL", "NVIDIA H100", "NVIDIA T4")
    with pytest.raises(DispatchError, match="accept it as such: AUTOTUNE_LIKE='NVIDIA H200'"):
        multiply(Dispatcher(folder, driver=driver, cublas=False), driver, H200)
    monkeypatch.setenv("AUTOTUNE_LIKE", "NVIDIA H200")
    runtime = Dispatcher(folder, driver=driver, cublas=False)
    with pytest.warns(DispatchWarning, match="its name is NVIDIA H200 NVL, not NVIDIA H200"):
        multiply(runtime, driver, H200)
    assert driver.launches[-1].kernel_id == "of-h200"
    assert "AUTOTUNE_LIKE accepts other GPUs as NVIDIA H200" in runtime.pick(*SHAPE, device=H200).reason
    multiply(runtime, driver, H100)
    assert driver.launches[-1].kernel_id == "of-h100"
    assert "AUTOTUNE_LIKE" not in runtime.pick(*SHAPE, device=H100).reason
    with pytest.raises(DispatchError, match="GPU 2 is NVIDIA T4"):
        multiply(runtime, driver, OTHER)


def test_calls_of_all_kinds_are_recorded(runtime: Dispatcher, driver: FakeDriver, tmp_path: Path) -> None:
    file = tmp_path / "calls.json"
    multiply(runtime, driver, H200)
    runtime.record_calls(file)
    for _ in range(3):
        multiply(runtime, driver, H100)
    until_s = time.monotonic() + 20  # both engines write four times a second
    while (found := recorded(file)) != {TUNED: 4} and time.monotonic() < until_s:
        time.sleep(0.05)
    assert found == {TUNED: 4}


def recorded(file: Path) -> dict[Gemm, int]:
    try:
        return dict(read_suite(file))
    except UsageError:  # nothing yet
        return {}


def test_shapes_are_settled_on_each_kind_for_itself(runtime: Dispatcher, driver: FakeDriver) -> None:
    """And written for the one whose table it is."""
    shape = (72, 68, 36)
    for device in (H200, H100):
        (pick,) = runtime.settle([shape], device=device)
        assert pick.how == "settled"
        assert runtime.pick(*shape, device=device).how == "settled"


@pytest.mark.parametrize("device", [H200, H100])
def test_what_is_pinned_is_of_one_table(
    runtime: Dispatcher, driver: FakeDriver, folder: Path, tmp_path: Path, device: int
) -> None:
    shape, file = (72, 68, 36), tmp_path / "choices.json"
    runtime.settle([shape], device=device)
    runtime.export_choices(file, device=device)
    again = Dispatcher(folder, driver=driver, choices=file, deterministic=True)
    picked = {number: again.pick(*shape, device=number).how for number in (H200, H100)}
    assert picked[device] == "settled" and picked[1 - device] != "settled"
    again.export_choices(tmp_path / "copy.json", device=device)
    assert json.loads((tmp_path / "copy.json").read_text()) == json.loads(file.read_text())
    other = write_table(table_for("NVIDIA L4", "of-l4"), tmp_path / "other")
    with pytest.raises(DispatchError, match="choices for another table"):
        Dispatcher(other, driver=driver, choices=file)


# cuBLAS instead of a table


@pytest.fixture
def blas(driver: FakeDriver, monkeypatch: pytest.MonkeyPatch) -> FakeBlas:
    fake = FakeBlas(driver)
    install(monkeypatch, fake)
    return fake


def test_cublas_serves_other_gpus_with_one_warning(folder: Path, driver: FakeDriver, blas: FakeBlas) -> None:
    runtime = Dispatcher(folder, driver=driver, fallback="cublas", cublas=False)
    with pytest.warns(DispatchWarning, match=r"no table is for GPU 2, NVIDIA T4 \(sm_75\): cuBLAS") as text:
        for gemm in (TUNED, Gemm(5, 7, 9)):
            multiply(runtime, driver, OTHER, gemm)
            multiply(runtime, driver, OTHER, gemm, alpha=0.5, beta=-2.0)
            multiply(runtime, driver, OTHER, gemm, alpha=0.0, beta=3.0)
            multiply(runtime, driver, OTHER, gemm, alpha=0.0)
    assert len(text) == 1
    assert len(blas.served) == 8 and {one.context for one in blas.served} == {100 + OTHER}
    assert not driver.launches and driver.context_stack == []
    multiply(runtime, driver, H100)
    assert len(blas.served) == 8 and driver.launches[-1].kernel_id == "of-h100"
    pick = runtime.pick(*SHAPE, device=OTHER)
    assert (pick.provider, pick.kernel_id) == ("cublas", "") and "no table is for this GPU" in pick.reason
    assert runtime.prepare([SHAPE], device=OTHER) == runtime.settle([SHAPE], device=OTHER) == [pick]
    assert {one.provider for one in runtime.counts() if not one.kernel_id} == {"cublas"}
    assert sum(one.calls for one in runtime.counts() if one.provider == "cublas") == 8
    with pytest.raises(DispatchError, match="no choices to write"):
        runtime.export_choices(folder / "never.json", device=OTHER)


def test_what_has_no_depth_is_scaled(folder: Path, driver: FakeDriver, blas: FakeBlas) -> None:
    runtime = Dispatcher(folder, driver=driver, fallback="cublas")
    with pytest.warns(DispatchWarning, match="cuBLAS serves"):
        multiply(runtime, driver, OTHER, Gemm(5, 7, 0), beta=2.0)
    multiply(runtime, driver, OTHER, Gemm(5, 7, 0))
    driver.places.clear()
    for m, n in ((0, 3), (3, 0)):
        a, b, c = normal(m, 4), normal(4, n), normal(m, n)
        driver.places |= {x.ctypes.data: OTHER for x in (a, b)}
        runtime.sgemm(OnGpu(a), OnGpu(b), OnGpu(c))
    assert len(blas.served) == 2


def test_arrays_of_the_host_are_served_where_no_table_is_for_any_gpu(
    folder: Path, driver: FakeDriver, blas: FakeBlas
) -> None:
    driver.names = ("NVIDIA T4",)
    a, b = normal(9, 5), normal(5, 7)
    with pytest.raises(DispatchError, match="GPU 0 is NVIDIA T4"):
        Dispatcher(folder, driver=driver).sgemm(a, b)
    runtime = Dispatcher(folder, driver=driver, fallback="cublas")
    with pytest.warns(DispatchWarning, match="cuBLAS serves"):
        close(runtime.sgemm(a, b), a @ b)


def test_the_environment_says_what_serves_other_gpus(
    folder: Path, driver: FakeDriver, blas: FakeBlas, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AUTOTUNE_FALLBACK", "cublas")
    with pytest.warns(DispatchWarning, match="cuBLAS serves"):
        multiply(Dispatcher(folder, driver=driver), driver, OTHER)
    for refusing in (
        Dispatcher(folder, driver=driver, fallback="refuse"),
        Dispatcher(folder, driver=driver, deterministic=True),
    ):
        with pytest.raises(DispatchError, match="GPU 2 is NVIDIA T4"):
            multiply(refusing, driver, OTHER)
    monkeypatch.setenv("AUTOTUNE_FALLBACK", "torch")
    with pytest.raises(DispatchError, match="AUTOTUNE_FALLBACK is 'torch'; say 'refuse' or 'cublas'"):
        Dispatcher(folder)
    with pytest.raises(DispatchError, match="fallback is 'mkl'"):
        Dispatcher(folder, fallback="mkl")  # type: ignore[arg-type]


def test_a_cublas_that_gives_no_handle_fails_each_product(
    folder: Path, driver: FakeDriver, blas: FakeBlas
) -> None:
    """No kernel is there to serve instead; nothing is counted."""
    blas.rejected = {"cublasCreate": 3}
    runtime = Dispatcher(folder, driver=driver, fallback="cublas")
    with pytest.warns(DispatchWarning, match="cuBLAS serves"):
        for text in ("cublasCreate failed with status 3", "gives no handle now"):
            with pytest.raises(DispatchError, match=text):
                multiply(runtime, driver, OTHER)
    assert not runtime.counts() and not driver.launches


def test_what_cublas_cannot_do_is_told(
    folder: Path, driver: FakeDriver, blas: FakeBlas, monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime = Dispatcher(folder, driver=driver, fallback="cublas")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DispatchWarning)
        for wrong, message in (({"alpha": "much"}, "no float32"), ({"alpha": 1e39}, "no float32")):
            with pytest.raises(DispatchError, match=message):
                a = normal(4, 4)
                driver.places[a.ctypes.data] = OTHER
                runtime.sgemm(OnGpu(a), OnGpu(a), OnGpu(_on(driver, OTHER)), **wrong)  # type: ignore[arg-type]
        driver.capturing = frozenset([77])
        driver.streams[77] = OTHER
        with pytest.raises(DispatchError, match="make a product on this GPU before that"):
            runtime.sgemm(*(OnGpu(_on(driver, OTHER)) for _ in range(3)), stream=77)
        install(monkeypatch, None)
        lonely = Dispatcher(folder, driver=driver, fallback="cublas")
        with pytest.raises(DispatchError, match="no cuBLAS can be loaded to serve it; install"):
            multiply(lonely, driver, OTHER)
    assert not driver.launches and not driver.context_stack


_kept: list[Any] = []


def _on(driver: FakeDriver, device: int) -> Any:
    made = aligned(4, 4)
    _kept.append(made)
    driver.places[made.ctypes.data] = device
    return made


# torch


class OtherTensor(Tensor):
    """On GPU 1."""

    def __init__(self, matrix: Any) -> None:
        super().__init__(matrix, device="cuda:1", kind={"device_id": 1})

    def get_device(self) -> int:
        return 1

    def new_empty(self, shape: tuple[int, int]) -> OtherTensor:
        return OtherTensor(np.empty(shape, np.float32))


def test_torch_s_tensors_are_read_by_the_core_of_each_kind(
    folder: Path,
    driver: FakeDriver,
    fake_torch: FakeTorch,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    runtime = Dispatcher(folder, driver=driver, cublas=False)
    a, b = aligned(40, 40), aligned(40, 40)
    on = {device: lambda x, at=device: _Tensor(x, kind={"device_id": at}) for device in NAMES}
    for wrap in on.values():
        for _ in range(2):
            runtime.sgemm(wrap(a), wrap(b), wrap(aligned(40, 40)))
    assert runtime._opened is not None
    monkeypatch.setattr(runtime._opened[0], "serving", lambda _: pytest.fail("Python was asked"))
    for device in (H200, H100, H200):
        out = on[device](aligned(40, 40))
        assert runtime.sgemm(on[device](a), on[device](b), out) is out
        close(out.data, a @ b)
        assert driver.launches[-1].context == 100 + device
    assert sum(one.calls for one in runtime.counts()) == 7


def test_routed_products_go_to_the_table_of_their_gpu(
    folder: Path,
    driver: FakeDriver,
    fake_torch: FakeTorch,
) -> None:
    routing = Dispatcher(folder, driver=driver).torch()
    a, b = normal(70, 40), normal(40, 66, seed=1)  # of a depth at which kernels are expected to win
    with routing:
        for _ in range(3):
            for kind, device in ((Tensor, 0), (OtherTensor, 1)):
                close(fake_torch.call("mm", kind(a), kind(b)).data, a @ b)
                assert driver.launches[-1].context == 100 + device
    assert fake_torch.own_calls == 0 and len(driver.launches) == 6
    assert "6 products served" in routing.report()


@pytest.mark.parametrize("fallback", ["refuse", "cublas"])
def test_routing_leaves_alone_what_is_on_other_gpus(
    folder: Path,
    driver: FakeDriver,
    fake_torch: FakeTorch,
    fallback: Any,
) -> None:
    driver.names = ("NVIDIA H200", "NVIDIA T4")
    routing = Dispatcher(folder, driver=driver, fallback=fallback).torch()
    a, b = normal(70, 40), normal(40, 66, seed=1)
    with routing:
        for _ in range(3):
            close(fake_torch.call("mm", Tensor(a), Tensor(b)).data, a @ b)
            close(fake_torch.call("mm", OtherTensor(a), OtherTensor(b)).data, a @ b)
    assert (fake_torch.own_calls, len(driver.launches)) == (3, 3)
    assert "3 products served, 3 left alone" in routing.report() and "another GPU" in routing.report()


def test_threads_meet_kinds_at_once(runtime: Dispatcher, driver: FakeDriver) -> None:
    faults: list[BaseException] = []

    def work(device: int) -> None:
        try:
            for _ in range(20):
                multiply(runtime, driver, device)
        except BaseException as fault:
            faults.append(fault)

    threads = [threading.Thread(target=work, args=(number % 2,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not faults
    assert Counter(launch.kernel_id for launch in driver.launches) == {"of-h200": 80, "of-h100": 80}
    assert len(driver.of("load")) == 2
