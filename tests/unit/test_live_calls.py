"""benchmarks/live_calls.py without a GPU: products of a table and of cuBLAS take turns until one has won."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from table_cases import isolated, make_kernel, make_spec, make_table, write_table
from test_live import ALONE_US, LONG_US, NAMES, Clocked

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
from live_calls import LiveCalls

from autotune.facts.gemm import Gemm
from autotune.gpu.memory import OperandSet
from autotune.kernel.launch import Variant
from autotune.runtime.choose.chooser import Call, Chooser, Pick
from autotune.runtime.dispatcher import Dispatcher


@pytest.mark.parametrize("shape", ["24x8x12:NN", "24x8x12b3:NN", "24x1x12:NT"])
def test_a_shape_is_settled_beside_cublas(shape: str, tmp_path: Path, monkeypatch) -> None:
    """A column as a row of B, too: it is also a column, which is another layout, of other kernels."""
    isolated(monkeypatch, tmp_path)
    gemm = Gemm.parse(shape)
    variant = Variant(gemm.trans_a, gemm.trans_b, is_batched=gemm.is_batched)
    specs = [make_spec(group=1 << place, variant=variant) for place in range(3)]
    model = {"model": None} if gemm.is_batched else {}
    kernels = [make_kernel(name, spec, **model) for name, spec in zip(NAMES, specs, strict=True)]
    table = make_table(
        make_kernel("single", make_spec(group=16, variant=Variant(gemm.trans_a, gemm.trans_b))), *kernels
    )
    picks = [
        Pick(name, "modelled", str, 1, LONG_US, cublas_us=LONG_US - 1, provider="cublas") for name in NAMES
    ]
    looped = Pick("single", "default", str, 1, provider="cublas", is_looped=True)
    monkeypatch.setattr(Chooser, "pick", lambda *_: looped if gemm.is_batched else picks[0])
    for rank in ("ranked", "ranked_in_batch"):
        monkeypatch.setattr(Chooser, rank, lambda *_: picks)
    driver = Clocked(table, kernel_us=dict.fromkeys(NAMES, 45.0) | {"second": 40.0})
    arena = SimpleNamespace(
        gpu=SimpleNamespace(index=0),
        session=SimpleNamespace(stream=77, driver=SimpleNamespace(cuStreamSynchronize=lambda _: (0,))),
        cublas=lambda: SimpleNamespace(sgemm=lambda *_, lds: driver.run(ALONE_US)),
    )  # fmt: skip

    def keep_busy() -> None:  # the GPU has passed earlier calls, and works on something else
        driver.now_us = max(driver.now_us, driver.gpu_us)
        driver.gpu_us = driver.now_us + 100

    dispatcher = Dispatcher(write_table(table, tmp_path / "t"), driver=driver, settle="live-any-order")
    live = LiveCalls(arena, dispatcher, keep_busy)
    arrays = [
        np.ones(gemm.batch * rows * columns, np.float32)
        for rows, columns in ((24, 12), (12, gemm.n), (24, gemm.n))
    ]
    operands = OperandSet(*(array.ctypes.data for array in arrays))
    found = live.settled(Call.packed(gemm), [operands])
    assert live._decided(Call.packed(gemm), operands).gemm == gemm
    assert (found["name"], found["is_settled"], found["limited_by"]) == ("second/1", True, "the GPU")
    assert found["gpu_us"].keys() == {"cublas", *(f"{name}/1" for name in NAMES)}
    assert found["num_samples"] <= 16 and 0 < found["cost_calls"] <= 3
    assert (arrays[2] == gemm.k).all()
