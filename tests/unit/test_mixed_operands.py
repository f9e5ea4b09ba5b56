"""An A of BF16 or FP16 beside a B of FP32, without a GPU: by a kernel that reads it, or converted first."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from table_cases import (
    FakeDriver,
    OnGpu,
    make_kernel,
    make_spec,
    make_table,
    rank,
    short_at,
    with_tensor_kernel,
    write_table,
)

from autotune.facts.gemm import LAYOUTS, TYPED_LAYOUTS, Gemm, type_of
from autotune.facts.other_problem import problem_of
from autotune.files.errors import DispatchError, UsageError
from autotune.kernel import templates
from autotune.runtime.calls import arrays
from autotune.runtime.dispatcher import Dispatcher
from autotune.runtime.service import table_server
from autotune.runtime.settle import settling
from autotune.runtime.table.table import load
from autotune.service.served import ToldShape

TUNED = Gemm(512, 512, 512, a_type="fp16")
TYPES = ("fp16", "bf16")
Array = np.ndarray[Any, Any]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    two = make_kernel("two", make_spec(reduction="two_pass", split_k=2))
    table = make_table(two, entries=(rank(Gemm(64, 64, 256), "two"),))
    return write_table(with_tensor_kernel(table, gemm=TUNED), tmp_path / "t")


@pytest.fixture(params=TYPES)
def a_type(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """NumPy has no BF16: its float16 stands for the bits of one, too."""
    monkeypatch.setitem(arrays._SHORT, "float16", request.param)
    return str(request.param)


def opened(folder: Path, **options: Any) -> tuple[Dispatcher, FakeDriver]:
    driver = FakeDriver(load(folder))
    return Dispatcher(folder, driver=driver, cublas=False, **options), driver


def short(*shape: int, ld: int = 0, offset: int = 0) -> Array:
    """Elements of two bytes, finite as FP16 and as BF16, rows `ld` apart."""
    *products, rows, columns = shape
    ld = ld or columns
    space = np.zeros((*products, rows * ld + offset + 128), np.float16)
    if not products:
        offset += (-space.ctypes.data // 2) % 128
    whole = space[..., offset : offset + rows * ld].reshape(*products, rows, ld)[..., :columns]
    whole[...] = np.random.default_rng(rows + columns).uniform(0.5, 2, (*products, rows, columns))
    return whole


def exact(a: Array, a_type: str) -> Array:
    packed = np.ascontiguousarray(a)
    return short_at(packed.ctypes.data, 1, a.size, a.size, a_type).reshape(a.shape)


def normal(*shape: int) -> Array:
    return np.random.default_rng(sum(shape)).standard_normal(shape, dtype=np.float32)


def names(driver: FakeDriver) -> list[str]:
    return [launch.name for launch in driver.launches]


def test_a_kernel_of_the_class_reads_it_as_it_is(folder: Path) -> None:
    runtime, driver = opened(folder, accuracy="fp32")
    a, b, c = short(512, 512), normal(512, 512), np.zeros((512, 512), np.float32)
    runtime.sgemm(OnGpu(a), OnGpu(b), out=OnGpu(c))
    assert [(one.kernel_id, one.name) for one in driver.launches] == [("tensor", "sgemm")]
    np.testing.assert_allclose(c, a.astype(np.float32) @ b, rtol=1e-4, atol=1e-3)


def test_a_strict_call_converts_it_first(folder: Path, a_type: str) -> None:
    runtime, driver = opened(folder)
    a, b, c = short(512, 512), normal(512, 512), np.zeros((512, 512), np.float32)
    for _ in range(2):
        runtime.sgemm(OnGpu(a), OnGpu(b), out=OnGpu(c))
        np.testing.assert_allclose(c, exact(a, a_type) @ b, rtol=1e-4, atol=1e-3)
    assert names(driver) == ["upcast", "sgemm", "sgemm_reduce"] * 2
    assert len(driver.of("load")) == 2  # each once


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("extents", [(64, 64, 256), (5, 7, 3), (70, 1, 1500), (1, 33, 2)])
def test_any_layout_rows_and_scales(
    folder: Path, a_type: str, layout: str, extents: tuple[int, int, int]
) -> None:
    runtime, _ = opened(folder)
    (m, n, k), (trans_a, trans_b) = extents, (one == "T" for one in layout)
    columns = m if trans_a else k
    a = short(k if trans_a else m, columns, ld=columns + 3, offset=1)
    b, c = normal(*((n, k) if trans_b else (k, n))), normal(m, n)
    of_a, of_b = exact(a, a_type), b.T if trans_b else b
    expected = 1.5 * ((of_a.T if trans_a else of_a) @ of_b) - 0.5 * c
    runtime.sgemm(OnGpu(a), OnGpu(b), out=OnGpu(c), alpha=1.5, beta=-0.5, trans_a=trans_a, trans_b=trans_b)
    np.testing.assert_allclose(c, expected, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("shared", ["", "a", "b"])
def test_batches(folder: Path, a_type: str, shared: str) -> None:
    runtime, driver = opened(folder)
    a = short(24, 40) if shared == "a" else short(3, 24, 40)
    b = normal(40, 16) if shared == "b" else normal(3, 40, 16)
    c = np.zeros((3, 24, 16), np.float32)
    runtime.sgemm(OnGpu(a), OnGpu(b), out=OnGpu(c))
    np.testing.assert_allclose(c, exact(a, a_type) @ b, rtol=1e-4, atol=1e-3)
    assert names(driver).count("upcast") == 1


def test_what_is_not_read_is_not_converted(folder: Path) -> None:
    runtime, driver = opened(folder)
    c = normal(8, 8)
    expected = 2 * c
    runtime.sgemm(OnGpu(short(8, 8)), OnGpu(normal(8, 8)), out=OnGpu(c), alpha=0, beta=2)
    np.testing.assert_allclose(c, expected)
    assert names(driver) == ["sgemm"]


def test_arrays_of_the_host_are_converted_there(folder: Path) -> None:
    runtime, driver = opened(folder)
    a, b = short(30, 20), normal(20, 10)
    np.testing.assert_allclose(runtime.sgemm(a, b), a.astype(np.float32) @ b, rtol=1e-4, atol=1e-4)
    assert names(driver) == ["sgemm"]


def test_only_a_may_be_short(folder: Path) -> None:
    runtime, driver = opened(folder)
    with pytest.raises(DispatchError, match="b has dtype float16; convert it to float32"):
        runtime.sgemm(OnGpu(normal(8, 8)), OnGpu(short(8, 8)), out=OnGpu(normal(8, 8)))
    with pytest.raises(DispatchError, match="a begins 1 bytes behind"):
        space = np.zeros(1000, np.uint8)[1:801].view(np.float16).reshape(20, 20)
        runtime.sgemm(OnGpu(space), OnGpu(normal(20, 20)), out=OnGpu(normal(20, 20)))
    with pytest.raises(DispatchError, match="out overlaps an input"):
        space = np.zeros(800, np.float32)
        a = space[396:].view(np.float16)[:400].reshape(20, 20)
        runtime.sgemm(OnGpu(a), OnGpu(normal(20, 20)), out=OnGpu(space[:400].reshape(20, 20)))
    assert not driver.launches


def test_calls_are_counted_by_the_type_of_a(folder: Path, tmp_path: Path) -> None:
    for accuracy in ("strict", "fp32"):
        runtime, _ = opened(folder, accuracy=accuracy)
        runtime.record_calls(tmp_path / f"{accuracy}.json")
        a, b = short(512, 512), normal(512, 512)
        runtime.sgemm(OnGpu(a), OnGpu(b), out=OnGpu(np.zeros((512, 512), np.float32)))
        runtime.sgemm(OnGpu(b), OnGpu(b), out=OnGpu(np.zeros((512, 512), np.float32)))
        found = {one.gemm: one.calls for one in runtime.counts()}
        assert found == {TUNED: 1, replace(TUNED, a_type="fp32"): 1}


def test_a_server_is_told_of_fp32(folder: Path) -> None:
    for accuracy, how in (("strict", "modelled"), ("fp32", "exact")):
        runtime, _ = opened(folder, accuracy=accuracy)
        a, b = short(512, 512), normal(512, 512)
        runtime.sgemm(OnGpu(a), OnGpu(b), out=OnGpu(np.zeros((512, 512), np.float32)))
        (counted,) = runtime.counts()
        told = ToldShape(**table_server._served(runtime.models[0], counted, 1))
        assert (told.gemm, told.how) == (Gemm(512, 512, 512), how)


def test_a_quick_check_takes_no_short_a() -> None:
    table = with_tensor_kernel(make_table(entries=(rank(Gemm(64, 64, 256), "nn"),)), time_us=500, gemm=TUNED)
    assert [entry.gemm for entry in table.entries] != [Gemm(64, 64, 256)]
    found = settling._entry(table)
    assert found and found.gemm == Gemm(64, 64, 256)


def test_layouts_are_numbered_as_the_core_does() -> None:
    assert TYPED_LAYOUTS[:4] == LAYOUTS
    for number, layout in enumerate(TYPED_LAYOUTS):
        gemm = Gemm(8, 8, 8, layout[0] == "T", layout[1] == "T", a_type=type_of(layout))
        assert gemm.layout == layout and number == LAYOUTS.index(layout[:2]) + 4 * (number // 4)
        assert Gemm.parse(str(gemm)) == gemm
    assert Gemm.parse("8b3:TN:shared-a:a-bf16").operand_bytes == (2 * 64, 4 * 3 * 64, 4 * 3 * 64)


def test_a_study_tells_the_type_by_its_source() -> None:
    source = templates.source_of("fp32", "bf16")
    assert templates.accuracy_of(source) == "fp32"
    assert problem_of(source, Gemm(8, 8, 8)) == Gemm(8, 8, 8, a_type="bf16")
    assert not templates.is_alike(source, templates.source_of("fp32"))
    assert templates.is_current(source)
    with pytest.raises(UsageError, match="a_type is 'int8'; say 'fp32', 'bf16' or 'fp16'"):
        Gemm(8, 8, 8, a_type="int8")
