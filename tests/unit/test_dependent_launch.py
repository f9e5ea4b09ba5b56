"""Which launches may begin early, and how the driver is told: by an attribute."""

from __future__ import annotations

from typing import Any

import numpy as np
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
from autotune.kernel.launch import launch_config, overlap_attribute
from autotune.runtime.dispatcher import Dispatcher
from autotune.runtime.table.table import load

OVERLAP = real.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
GEMM = Gemm(70, 66, 256)


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


def test_the_driver_is_told_by_an_attribute_of_the_launch() -> None:
    config = launch_config(real, (132, 2), 256, 50_000, 77, [overlap_attribute(real)])
    assert (config.gridDimX, config.gridDimY, config.gridDimZ) == (132, 2, 1)
    assert (config.blockDimX, config.blockDimY, config.blockDimZ) == (256, 1, 1)
    assert (config.sharedMemBytes, int(config.hStream)) == (50_000, 77)
    (attribute,) = config.attrs
    assert config.numAttrs == 1 and attribute.id == OVERLAP
    assert attribute.value.programmaticStreamSerializationAllowed == 1
