"""Which launches may begin early, and how the driver is told: by the runtime's own door to CUDA."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
from cuda.bindings import driver as real
from table_cases import (
    FakeDriver,
    OnGpu,
    make_kernel,
    make_spec,
    make_table,
    rank,
    write_table,
)

from autotune.facts.gemm import Gemm
from autotune.runtime.dispatcher import Dispatcher
from autotune.runtime.launch import cuda_driver as door
from autotune.runtime.launch.cuda_driver import CudaFault, Driver
from autotune.runtime.table.table import load

OVERLAP = real.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
GEMM = Gemm(70, 66, 256)


class Bindings:
    """cuda.bindings.driver, of which launches are written down instead of made."""

    def __init__(self) -> None:
        self.plain: list[tuple[Any, ...]] = []
        self.extended: list[tuple[Any, ...]] = []
        self.error = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(real, name)

    def cuInit(self, flags: int) -> tuple[int]:
        return (0,)

    def cuLaunchKernel(self, *arguments: Any) -> tuple[int]:
        self.plain.append(arguments)
        return (self.error,)

    def cuLaunchKernelEx(self, *arguments: Any) -> tuple[int]:
        self.extended.append(arguments)
        return (self.error,)


@pytest.fixture
def bindings(monkeypatch: pytest.MonkeyPatch) -> Bindings:
    stub = Bindings()
    monkeypatch.setattr(door, "cuda", stub)
    return stub


def test_a_call_of_four_launches_overlaps_in_each_or_in_none(tmp_path: Any) -> None:
    copies = {"packs_a": True, "packs_b": True, "reduction": "two_pass", "split_k": 2}
    table = make_table(make_kernel("k", make_spec(**copies), None), entries=(rank(GEMM, "k"),))
    folder = write_table(table, tmp_path / "t")
    driver = FakeDriver(load(folder))
    runtime = Dispatcher(folder, driver=driver)
    a, b, c = (np.ones(s, np.float32) for s in ((GEMM.m, GEMM.k), (GEMM.k, GEMM.n), (GEMM.m, GEMM.n)))
    runtime.sgemm(OnGpu(a), OnGpu(b), OnGpu(c))
    names = ["sgemm_pack", "sgemm_pack", "sgemm", "sgemm_reduce"]
    assert [(launch.name, launch.overlaps) for launch in driver.launches] == [(n, True) for n in names]
    driver.launches.clear()
    runtime.sgemm(OnGpu(a), OnGpu(b), OnGpu(c), alpha=0.0)  # nothing is packed
    assert [launch.overlaps for launch in driver.launches] == [True] * 2


def test_the_driver_is_told_by_an_attribute_of_the_launch(bindings: Bindings) -> None:
    Driver().launch(11, (132, 2), 256, 50_000, 77, 4096, True)
    assert not bindings.plain
    ((config, kernel, arguments, extra),) = bindings.extended
    assert (kernel, arguments, extra) == (11, 4096, 0)
    assert (config.gridDimX, config.gridDimY, config.gridDimZ) == (132, 2, 1)
    assert (config.blockDimX, config.blockDimY, config.blockDimZ) == (256, 1, 1)
    assert (config.sharedMemBytes, int(config.hStream)) == (50_000, 77)
    (attribute,) = config.attrs
    assert config.numAttrs == 1 and attribute.id == OVERLAP
    assert attribute.value.programmaticStreamSerializationAllowed == 1


def test_a_launch_that_waits_for_nobody_has_no_attributes(bindings: Bindings) -> None:
    Driver().launch(11, (132, 2), 256, 50_000, 77, 4096, False)
    assert bindings.plain == [(11, 132, 2, 1, 256, 1, 1, 50_000, 77, 4096, 0)]
    assert not bindings.extended


@pytest.mark.parametrize("overlaps", [False, True])
def test_a_refused_launch_is_a_fault(bindings: Bindings, overlaps: bool) -> None:
    bindings.error = 701
    with pytest.raises(CudaFault, match="LAUNCH_OUT_OF_RESOURCES"):
        Driver().launch(11, (1, 1), 32, 0, 0, 4096, overlaps)


def test_what_tells_launches_apart_tells_their_configurations_apart(bindings: Bindings) -> None:
    driver = Driver()
    kinds = [
        ((1, 1), 32, 0, 0),
        ((1, 2), 32, 0, 0),
        ((1, 1), 64, 0, 0),
        ((1, 1), 32, 9, 0),
        ((1, 1), 32, 0, 5),
    ]
    for grid, threads, smem_bytes, stream in kinds * 2:
        driver.launch(11, grid, threads, smem_bytes, stream, 4096, True)
    found = [
        ((c.gridDimX, c.gridDimY), c.blockDimX, c.sharedMemBytes, int(c.hStream))
        for c, *_ in bindings.extended
    ]
    assert found == kinds * 2
    configs = [c for c, *_ in bindings.extended]
    assert all(first is second for first, second in zip(configs[:5], configs[5:], strict=True))


def test_threads_share_no_configuration(bindings: Bindings) -> None:
    driver = Driver()
    threads = [
        threading.Thread(target=driver.launch, args=(11, (1, 1), 32, 0, 0, 4096, True)) for _ in range(2)
    ]
    for thread in threads:
        thread.start()
        thread.join()
    (first, *_), (second, *_) = bindings.extended
    assert first is not second


def test_configurations_are_remembered_within_bounds(
    bindings: Bindings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(door, "MAX_CONFIGS", 3)
    driver = Driver()
    for x in (1, 2, 3, 4, 4, 1):
        driver.launch(11, (x, 1), 32, 0, 0, 4096, True)
    assert [c.gridDimX for c, *_ in bindings.extended] == [1, 2, 3, 4, 4, 1]
    configs = [c for c, *_ in bindings.extended]
    assert configs[3] is configs[4] and configs[5] is not configs[0]
