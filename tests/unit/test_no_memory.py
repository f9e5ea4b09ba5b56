"""What claims elements and has no memory of its own is refused before any launch, of whatever library."""

from __future__ import annotations

import ctypes
import sys
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from table_cases import FakeDriver, OnGpu, make_kernel, make_spec, make_table, with_epilogues, write_table
from test_tensor_calls import CUDA, FLOAT, _DLTensor, _Tensor, offered  # noqa: F401  a fixture

from autotune.files.errors import DispatchError
from autotune.kernel.launch import named
from autotune.runtime.calls import arrays
from autotune.runtime.dispatcher import Dispatcher
from autotune.runtime.launch.cuda_driver import CudaFault
from autotune.runtime.launch.planner import CorePlan

REFUSED = "has no memory of its own; pass an array"
SHAPES = {"a": (8, 4), "b": (4, 6), "out": (8, 6), "bias": (6,)}
Array = np.ndarray[Any, np.dtype[np.float32]]
each_role = pytest.mark.parametrize("role", SHAPES)


@pytest.fixture
def driver() -> FakeDriver:
    return FakeDriver(with_epilogues(make_table(make_kernel("plain", make_spec())), *named(["bias"])))


@pytest.fixture
def runtime(driver: FakeDriver, tmp_path: Path) -> Dispatcher:
    return Dispatcher(write_table(driver.table, tmp_path / "t"), driver=driver, cublas=False)


def matrices() -> dict[str, Array]:
    rng = np.random.default_rng(0)
    return {name: rng.standard_normal(shape, dtype=np.float32) for name, shape in SHAPES.items()}


def _rejected(runtime: Dispatcher, driver: FakeDriver, role: str, operands: dict[str, Any]) -> None:
    num_launches = len(driver.launches)
    with pytest.raises(DispatchError, match=f"{role} .*{REFUSED}"):
        runtime.sgemm(**operands)
    assert len(driver.launches) == num_launches and not driver.memory


class _Interface:
    def __init__(self, shape: tuple[int, ...], address: int | None) -> None:
        self.__cuda_array_interface__ = {
            "shape": shape, "typestr": "<f4", "version": 3, "data": (address, False), "strides": None,
        }  # fmt: skip


@each_role
@pytest.mark.parametrize("address", [0, None, 16], ids=str)
def test_of_an_array_interface(runtime, driver, role, address):
    operands = {name: OnGpu(x) for name, x in matrices().items()}
    _rejected(runtime, driver, role, operands | {role: _Interface(SHAPES[role], address)})


def test_an_address_that_cuda_does_not_know_is_told(runtime, driver, monkeypatch):
    def unknown(address: int) -> int:
        raise CudaFault("looking up a device address", 1, "CUDA_ERROR_INVALID_VALUE")

    monkeypatch.setattr(driver, "pointer_device", unknown)
    with pytest.raises(DispatchError, match=r"bias is at address 0x.*, which CUDA did not allocate; pass"):
        runtime.sgemm(**{name: OnGpu(x) for name, x in matrices().items()})
    assert not driver.launches


@each_role
def test_of_dlpack(runtime, driver, role, monkeypatch):
    def view(x: Any, *_: Any) -> Any:
        address = 0 if x is operands[role] else x.data.ctypes.data
        text = {"ptr": address, "shape": x.data.shape, "strides": None, "device_id": 0, "readonly": False}
        return SimpleNamespace(is_device_accessible=True, **text), np.dtype(np.float32)

    monkeypatch.setattr(arrays.Foreign, "_view", staticmethod(view))
    operands = {name: SimpleNamespace(data=x, __dlpack__=None) for name, x in matrices().items()}
    _rejected(runtime, driver, role, operands)


class _CuPy:
    """The part of cupy.ndarray that is read; if it is given an address, its memory was freed."""

    def __init__(self, values: Array, address: int | None = None) -> None:
        own = values.ctypes.data
        ptr, begin = (own, own) if address is None else (address, 0)
        self.data = SimpleNamespace(ptr=ptr, device_id=0, mem=SimpleNamespace(ptr=begin))
        self.dtype, self.ndim = values.dtype, values.ndim
        self.shape, self.strides = values.shape, values.strides


_CuPy.__module__, _CuPy.__name__ = "cupy", "ndarray"


@each_role
@pytest.mark.parametrize("address", [0, 1 << 20, 1 << 35], ids=["first", "behind", "far"])
def test_of_cupy(runtime, driver, role, address, monkeypatch):
    monkeypatch.setitem(sys.modules, "cupy", SimpleNamespace())
    operands = {name: _CuPy(x) for name, x in matrices().items()}
    _rejected(runtime, driver, role, operands | {role: _CuPy(matrices()[role], address)})


@each_role
def test_of_numpy(runtime, driver, role):
    interface = {"shape": SHAPES[role], "typestr": "<f4", "version": 3, "data": (16, False)}
    devnull = np.asarray(SimpleNamespace(__array_interface__=interface))
    _rejected(runtime, driver, role, matrices() | {role: devnull})


class _Nowhere(_Tensor):
    """Of a storage that was freed: it begins `behind` bytes behind address 0."""

    behind = 0

    def data_ptr(self) -> int:
        return self.behind

    def storage_offset(self) -> int:
        return self.behind // 4

    def untyped_storage(self) -> Any:
        return SimpleNamespace(device=self.device, data_ptr=lambda: 0)


def _nowhere(values: Array, behind: int) -> _Nowhere:
    made = _Nowhere(values, kind={"data": 0, "byte_offset": behind})
    made.behind = behind
    return made


@each_role
@pytest.mark.parametrize("behind", [0, 1 << 20, 1 << 31, 1 << 33, 1 << 38])
def test_of_torch_by_the_core_too(runtime, driver, offered, role, behind):  # noqa: F811
    """The first time Python looks, later the core."""
    offered()
    operands = {name: _Tensor(x) for name, x in matrices().items()}
    for _ in range(2):
        _rejected(runtime, driver, role, operands | {role: _nowhere(matrices()[role], behind)})
        runtime.sgemm(**operands)
    assert runtime._tensors is not None


def test_a_new_result_without_memory_is_no_result(runtime, driver, offered, monkeypatch):  # noqa: F811
    """Such as a FakeTensorMode around a call of others makes."""
    offered()
    a, b, *_ = (_Tensor(x) for x in matrices().values())
    runtime.sgemm(a, b)
    num_launches = len(driver.launches)
    monkeypatch.setattr(_Tensor, "new_empty", lambda self, shape: _nowhere(np.empty(shape, np.float32), 0))
    monkeypatch.setattr(
        sys.modules["torch"], "empty", lambda shape, **_: _nowhere(np.empty(shape, np.float32), 0)
    )
    with pytest.raises(DispatchError, match=f"out .*{REFUSED}"):
        runtime.sgemm(a, b)
    assert len(driver.launches) == num_launches


def test_what_has_no_elements_needs_none(runtime, driver):
    none = _Interface((0, 4), 0)
    runtime.sgemm(none, OnGpu(matrices()["b"]), _Interface((0, 6), None))
    runtime.sgemm(np.empty((0, 4), np.float32), matrices()["b"])
    assert not driver.launches


@pytest.fixture
def left_alone(runtime, offered):  # noqa: F811
    """The core, which leaves such products alone, and whether it says so of operands at an address."""
    offered()
    runtime.sgemm(_Tensor(matrices()["a"]), _Tensor(matrices()["b"]))
    core = runtime._engines[0].core
    structs, batch = core.library.structs, (1, (0, 0, 0))
    planned = structs.planned(m=8, n=6, k=4, ld=(4, 6, 6), is_left_alone=1, batch=batch)
    plan = CorePlan(core, planned)
    rows, columns = (8, 4, 8), (4, 6, 6)
    kind = structs.kind(rows, columns, columns, (1, 1, 1), batch)
    core.library.autotune_remember(core.handle, ctypes.byref(kind), plan.address)

    def is_left_alone(address: int, signature: int = 0) -> bool:
        extents = [(ctypes.c_int64 * 2)(*SHAPES[name]) for name in ("a", "b")]
        text = [_DLTensor(address, CUDA, 0, 2, FLOAT, 32, 1, ctypes.addressof(one)) for one in extents]
        at, found, numbers = map(ctypes.addressof, text), ctypes.c_int32(), core.library.numbers
        requested = None, None, numbers.AS_SETTLED, signature
        assert not core.library.autotune_meet(core.handle, *at, *requested, ctypes.byref(found))
        return found.value == numbers.LEFT_ALONE

    return core, kind, plan, is_left_alone


def test_the_router_is_not_told_of_a_plan_for_them(left_alone):
    """Python looks at the call instead."""
    *_, is_left_alone = left_alone
    assert is_left_alone(1 << 40) and not is_left_alone(0) and not is_left_alone(1 << 20)


def test_what_is_left_alone_is_found_by_its_signature_until_its_plan_is_forgotten(left_alone):
    core, kind, plan, is_left_alone = left_alone
    known = lambda signature: core.library.autotune_leaves_alone(core.handle, signature)  # noqa: E731
    assert is_left_alone(1 << 40) and not known(7)
    assert is_left_alone(1 << 40, 7) and known(7) and known(7) and not known(8) and not known(7 + 512)
    assert plan.num_tensor_calls == 4
    core.library.autotune_remember(core.handle, ctypes.byref(kind), plan.address)  # another might be
    assert not known(7) and is_left_alone(1 << 40, 7) and known(7)
    core.library.autotune_forget(core.handle)
    assert not known(7) and plan.num_tensor_calls == 6


@pytest.fixture
def torch_itself(monkeypatch: pytest.MonkeyPatch) -> Any:
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(torch.Tensor, "is_cuda", property(lambda x: x.device.type != "meta"))
    return torch


def _wrapper(torch: Any) -> type:
    return type("Wrapper", (torch.Tensor,), {"__torch_dispatch__": classmethod(lambda *_, **__: None)})


def _fakes(torch: Any) -> dict[str, Any]:
    from torch._subclasses import FakeTensorMode

    with FakeTensorMode():
        fake = torch.empty(8, 16, device="cuda")
    freed, of_bias = torch.empty(8, 16), torch.empty(16)
    view = freed[4:]
    freed.untyped_storage().resize_(0)
    of_bias.untyped_storage().resize_(0)
    wrapped: list[Any] = []
    torch.vmap(lambda x: wrapped.append(x) or x)(torch.empty(2, 8, 16))
    wrapper = torch.Tensor._make_wrapper_subclass(_wrapper(torch), (4, 4))
    meta = torch.empty(4, 4, device="meta")
    return {
        "fake": fake, "fake transposed": fake.T, "view of a fake": fake[1:], "meta": meta, "freed": freed,
        "view of a freed one": view, "vmap": wrapped[0], "wrapper": wrapper, "bias": fake[0],
        "freed bias": of_bias,
    }  # fmt: skip


def test_of_torch_itself(torch_itself):
    library = arrays.Torch()
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # torch minds when the address of a FakeTensor is asked
        for name, x in _fakes(torch_itself).items():
            role = "bias" if "bias" in name else "a"
            with pytest.raises(DispatchError, match=f"{role} .*{REFUSED}"):
                library.describe(x, role)


def test_of_a_real_tensor_of_a_subclass_the_address_is_its_own(torch_itself):
    plain = torch_itself.ones(4, 4)
    for x in (plain, torch_itself.nn.Parameter(plain, requires_grad=False)):
        assert arrays.Torch().describe(x, "a")[0] == x.data_ptr()
    assert arrays.Torch().describe(torch_itself.ones(0, 4), "a")[0] == 0
