"""The core reads torch's tensors, by a stand-in that offers DLPack's exchange in C over NumPy arrays."""

from __future__ import annotations

import ctypes
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from fake_blas import FakeBlas
from table_cases import FakeDriver, make_kernel, make_spec, make_table, write_table

from autotune.facts.gemm import Gemm
from autotune.files.errors import DispatchError
from autotune.runtime.choose import blas_provider
from autotune.runtime.choose.blas_provider import BlasLibrary
from autotune.runtime.choose.chooser import Chooser
from autotune.runtime.dispatcher import Dispatcher
from autotune.runtime.torch import tensor_calls
from autotune.runtime.torch.tensor_calls import tensor_calls_of

STREAM = 77
CUDA, FLOAT = 2, 2  # of dlpack.h
Array = np.ndarray[Any, np.dtype[np.float32]]


class _DLTensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p), ("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32), ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16), ("shape", ctypes.c_void_p), ("strides", ctypes.c_void_p),
        ("byte_offset", ctypes.c_uint64),
    )  # fmt: skip


class _Tensor:
    """The part of torch.Tensor that is read, over a NumPy array."""

    def __init__(self, matrix: Array, **changes: Any) -> None:
        self.data, self.dtype, self.layout = matrix, "float32", "strided"
        self.is_cuda, self.requires_grad, self.device, self.negative = True, False, "cuda:0", False
        self.kind: dict[str, int] = {}  # of what is told through DLPack
        self.__dict__.update(changes)
        self.changes = changes
        self.extents = (ctypes.c_int64 * matrix.ndim)(*matrix.shape)
        # As torch tells them: a stride along one element is 1
        strides = (1 if n < 2 else s // 4 for n, s in zip(matrix.shape, matrix.strides, strict=True))
        self.strides = (ctypes.c_int64 * matrix.ndim)(*strides)

    shape = property(lambda self: self.data.shape)

    def dim(self) -> int:
        return self.data.ndim

    def stride(self) -> tuple[int, ...]:
        return tuple(s // 4 for s in self.data.strides)

    def data_ptr(self) -> int:
        return self.data.ctypes.data

    def storage_offset(self) -> int:
        return 0

    def get_device(self) -> int:
        return self.kind.get("device_id", 0)

    def is_neg(self) -> bool:
        return self.negative

    def new_empty(self, shape: tuple[int, int]) -> _Tensor:
        return _Tensor(np.empty(shape, np.float32))

    T = property(lambda self: _Tensor(self.data.T))

    def __getitem__(self, at: Any) -> _Tensor:
        return _Tensor(self.data[at], **self.changes)

    def contiguous(self) -> _Tensor:
        return _Tensor(np.ascontiguousarray(self.data))

    def copy_(self, other: _Tensor) -> _Tensor:
        self.data[...] = other.data
        return self


_Tensor.__module__, _Tensor.__name__ = "torch", "Tensor"
TORCH = SimpleNamespace(
    Tensor=_Tensor, float32="float32", strided="strided", is_grad_enabled=lambda: True,
    _C=SimpleNamespace(_cuda_getCurrentRawStream=lambda device: STREAM),
    empty=lambda shape, dtype, device: _Tensor(np.empty(shape, np.float32)),
)  # fmt: skip
_OBJECT = ctypes.py_object
_Pointers = ctypes.c_void_p * 8


@ctypes.PYFUNCTYPE(ctypes.c_int, _OBJECT, ctypes.POINTER(_DLTensor))
def _view(x: _Tensor, found: Any) -> int:
    if x.layout != "strided":
        return -1
    notes = {"device_type": CUDA, "device_id": 0, "ndim": x.data.ndim, "code": FLOAT, "bits": 32, "lanes": 1}
    notes |= {"data": x.data.ctypes.data - 8, "byte_offset": 8}
    notes |= {"shape": ctypes.addressof(x.extents), "strides": ctypes.addressof(x.strides)} | x.kind
    for name, value in notes.items():
        setattr(found[0], name, value)
    return 0


@ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_int32, ctypes.c_int32, ctypes.POINTER(ctypes.c_void_p))
def _stream(kind: int, device: int, found: Any) -> int:
    assert kind == CUDA and device in (0, 1)
    found[0] = STREAM
    return 0


def _capsule(name: bytes, major: int = 1, has_view: bool = True) -> tuple[Any, Any]:
    functions = [ctypes.cast(f, ctypes.c_void_p).value for f in (_view, _stream)]
    pointers = _Pointers(major | 3 << 32, 0, 1, 1, 1, functions[0] if has_view else 0, functions[1])
    new = ctypes.pythonapi.PyCapsule_New
    new.restype, new.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
    return new(ctypes.addressof(pointers), name, None), (pointers, name)


@pytest.fixture
def offered(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Offers the exchange, of a version and under a name."""
    monkeypatch.setitem(sys.modules, "torch", TORCH)
    kept = []

    def offer(name: bytes = b"dlpack_exchange_api", **changes: Any) -> None:
        capsule, held = _capsule(name, **changes)
        kept.append(held)
        monkeypatch.setattr(_Tensor, "__dlpack_c_exchange_api__", capsule, raising=False)

    return offer


@pytest.fixture
def table() -> Any:
    split = make_kernel("split", make_spec("TN", reduction="last_block", split_k=8))
    return make_table(make_kernel("plain", make_spec()), split)


@pytest.fixture
def driver(table: Any) -> FakeDriver:
    return FakeDriver(table)


@pytest.fixture
def runtime(table: Any, driver: FakeDriver, tmp_path: Path, offered: Any) -> Dispatcher:
    offered()
    return Dispatcher(write_table(table, tmp_path / "t"), driver=driver)


def normal(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)


def alone(runtime: Dispatcher, monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on nothing is served but by the core alone."""

    def refuse(*_: Any) -> Any:
        raise AssertionError("Python was asked")

    assert runtime._opened is not None and runtime._tensors is not None
    monkeypatch.setattr(runtime._opened[0], "serving", refuse)


A, B = normal(70, 40), normal(40, 66, seed=1)


def multiply(runtime: Dispatcher, a: Array, b: Array, **options: Any) -> None:
    """A product into an out and, where C is not read, into a new tensor; both are checked."""
    of_a, of_b = (x.T if options.get(f"trans_{name}") else x for x, name in ((a, "a"), (b, "b")))
    c = normal(of_a.shape[0], of_b.shape[1], seed=2)
    alpha, beta = options.get("alpha", 1.0), options.get("beta", 0.0)
    expected = alpha * (of_a @ of_b) + beta * c
    out = _Tensor(c)
    assert runtime.sgemm(_Tensor(a), _Tensor(b), out, **options) is out
    results = [c] if beta else [c, runtime.sgemm(_Tensor(a), _Tensor(b), **options).data]
    for result in results:
        np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-4)


VIEWS = {
    "packed": (A, B, {}),
    "scaled": (A, B, {"alpha": -0.5, "beta": 2.0}),
    "wide rows": (normal(70, 44)[:, :40], normal(40, 80)[:, 4:70], {}),
    "by columns": (normal(40, 70).T, normal(66, 40).T, {}),
    "transposed": (normal(40, 70), normal(66, 40), {"trans_a": True, "trans_b": True}),
    "split": (normal(300, 64), normal(300, 64), {"trans_a": True}),
    "one row": (normal(1, 40), B, {}),
    "one column": (A, normal(40, 1), {}),
    "deep by one": (normal(70, 9)[:, :1], normal(1, 66), {}),
    "a row of many": (normal(9, 40)[::9], B, {}),
}


def test_strides_of_what_is_empty_mean_nothing(runtime: Dispatcher) -> None:
    """torch gives no packed copy of an expanded tensor without elements: it is one, whatever its strides."""
    a = np.broadcast_to(np.zeros((0, 1, 40), np.float32), (0, 70, 40))
    assert not a.strides[1]
    assert runtime.sgemm(_Tensor(a), _Tensor(B)).data.shape == (0, 70, 66)


@pytest.mark.parametrize("view", VIEWS)
def test_what_came_before_is_served_by_the_core_alone(runtime, driver, monkeypatch, view):
    a, b, options = VIEWS[view]
    multiply(runtime, a, b, **options)
    alone(runtime, monkeypatch)
    num_launches = len(driver.launches)
    for _ in range(3):
        multiply(runtime, a, b, **options)
    assert len(driver.launches) > num_launches
    assert {launch.stream for launch in driver.launches} == {STREAM}


def test_what_the_core_serves_alone_is_counted(runtime, monkeypatch):
    a, b, options = VIEWS["wide rows"]
    multiply(runtime, a, b, **options)
    alone(runtime, monkeypatch)
    for _ in range(5):
        multiply(runtime, a, b, **options)
    counts = runtime.counts()
    assert {(counted.gemm, counted.provider) for counted in counts} == {(Gemm(70, 66, 40), "autotune")}
    assert {counted.lds[:2] for counted in counts} == {(44, 80)}
    assert sum(counted.calls for counted in counts) == 2 * 6


def test_torch_is_told_of_each_out_that_is_written(table, driver, offered, monkeypatch, tmp_path):
    """Once a product, by Python and then by the core; never of a result that is new."""
    written: list[Any] = []
    autograd = SimpleNamespace(graph=SimpleNamespace(increment_version=written.append))
    monkeypatch.setattr(TORCH, "autograd", autograd, raising=False)
    offered()
    runtime = Dispatcher(write_table(table, tmp_path / "t"), driver=driver)
    out = _Tensor(normal(70, 66))
    for _ in range(2):
        runtime.sgemm(_Tensor(A), _Tensor(B), out)
        runtime.sgemm(_Tensor(A), _Tensor(B))
        assert written.pop() is out and not written
        alone(runtime, monkeypatch)


def test_what_torch_says_of_a_written_out_is_told(table, driver, offered, monkeypatch, tmp_path):
    def refuse(x: Any) -> None:
        raise ValueError("it was written amid a backward pass")

    allowed: list[Any] = []
    calls = iter((allowed.append, allowed.append, refuse))
    graph = SimpleNamespace(increment_version=lambda x: next(calls)(x))
    monkeypatch.setattr(TORCH, "autograd", SimpleNamespace(graph=graph), raising=False)
    offered()
    runtime = Dispatcher(write_table(table, tmp_path / "t"), driver=driver)
    out = _Tensor(normal(70, 66))
    for _ in range(2):
        runtime.sgemm(_Tensor(A), _Tensor(B), out)
    with pytest.raises(ValueError, match="amid a backward pass"):
        runtime.sgemm(_Tensor(A), _Tensor(B), out)


def test_what_cublas_serves_is_served_by_the_core_alone(table, driver, offered, monkeypatch, tmp_path):
    offered()
    blas, own = FakeBlas(driver), Chooser.pick
    library = BlasLibrary(blas)
    monkeypatch.setattr(blas_provider, "find_library", lambda: library)
    monkeypatch.setattr(Chooser, "pick", lambda *of: replace(own(*of), provider="cublas"))
    runtime = Dispatcher(write_table(table, tmp_path / "t"), driver=driver, cublas=True)
    multiply(runtime, A, B)
    alone(runtime, monkeypatch)
    for alpha, beta in ((1.0, 0.0), (-2.0, 0.5)):
        multiply(runtime, A, B, alpha=alpha, beta=beta)
    assert len(blas.served) == 5 and not driver.launches
    multiply(runtime, A, B, alpha=0.0)  # A and B are not read
    assert len(blas.served) == 5 and driver.launches


def test_scales_and_streams_differ_between_calls_of_a_kind(runtime, monkeypatch):
    multiply(runtime, A, B)
    alone(runtime, monkeypatch)
    for alpha in (0.0, 1, np.float32(2.5), -3.0):
        multiply(runtime, A, B, alpha=alpha)


def test_a_new_kind_is_planned_and_then_served(runtime, monkeypatch):
    multiply(runtime, A, B)
    multiply(runtime, A, normal(40, 67))
    multiply(runtime, normal(71, 41)[:70, :40], B)
    alone(runtime, monkeypatch)
    multiply(runtime, A, normal(40, 67))
    with pytest.raises(AssertionError, match="Python was asked"):
        multiply(runtime, A, normal(40, 68))


OTHERWISE = {
    "every second column": ({"a": normal(70, 80)[:, ::2]}, "a"),
    "expanded": ({"b": np.broadcast_to(normal(40, 1), (40, 66))}, "b"),
    "rows that share elements": ({"a": np.lib.stride_tricks.sliding_window_view(normal(109), 40)}, "a"),
    "out by columns": ({"out": normal(66, 70).T}, ""),
    "out by columns, far apart": ({"out": normal(66, 90).T[:70]}, ""),
    "every second column of out": ({"out": normal(70, 132)[:, ::2]}, "out"),
    "all at once": ({"a": normal(70, 80)[:, ::2], "out": normal(66, 70).T}, "a"),
}


@pytest.mark.parametrize("options", [{}, {"alpha": -0.5, "beta": 2.0}])
@pytest.mark.parametrize("what", OTHERWISE)
def test_what_no_kernel_walks_is_computed_otherwise(runtime: Dispatcher, what: str, options: Any) -> None:
    changes, copied = OTHERWISE[what]
    arrays = {"a": A, "b": B, "out": normal(70, 66)} | changes
    expected = (
        options.get("alpha", 1.0) * (arrays["a"] @ arrays["b"]) + options.get("beta", 0.0) * arrays["out"]
    )
    tensors = {name: _Tensor(array) for name, array in arrays.items()}
    assert runtime.sgemm(**tensors, **options) is tensors["out"]
    np.testing.assert_allclose(arrays["out"], expected, rtol=1e-4, atol=1e-4)
    assert runtime.num_copied == ({copied: 1} if copied else {})


@pytest.mark.parametrize("trans_a", [False, True])
@pytest.mark.parametrize("trans_b", [False, True])
def test_an_out_by_columns_takes_flags_as_any(runtime: Dispatcher, trans_a: bool, trans_b: bool) -> None:
    a, b = normal(40, 70) if trans_a else A, normal(66, 40) if trans_b else B
    out = normal(66, 70).T
    runtime.sgemm(_Tensor(a), _Tensor(b), _Tensor(out), trans_a=trans_a, trans_b=trans_b)
    np.testing.assert_allclose(out, (a.T if trans_a else a) @ (b.T if trans_b else b), rtol=1e-4, atol=1e-4)


def test_no_copy_is_made_on_a_stream_that_is_passed(runtime: Dispatcher, driver: FakeDriver) -> None:
    with pytest.raises(DispatchError, match="pass a contiguous copy"):
        runtime.sgemm(_Tensor(normal(70, 80)[:, ::2]), _Tensor(B), _Tensor(normal(70, 66)), stream=STREAM)
    assert not runtime.num_copied and not driver.launches


_STRIDED = np.lib.stride_tricks.as_strided
SHARED = {
    "one row": _STRIDED(normal(66), (70, 66), (0, 4)),
    "one column": _STRIDED(normal(70), (70, 66), (4, 0)),
    "rows that overlap": _STRIDED(normal(5000), (70, 66), (4 * 65, 4)),
    "rows that meet later": _STRIDED(normal(5000), (70, 66), (4 * 30, 4 * 20)),
}


@pytest.mark.parametrize("of", [_Tensor, np.asarray])
@pytest.mark.parametrize("what", SHARED)
def test_an_out_whose_elements_share_memory_is_refused_before_a_launch(runtime, driver, what, of):
    multiply(runtime, A, B)
    num_launches = len(driver.launches)
    with pytest.raises(DispatchError, match="elements of out share memory; pass an out of its own"):
        runtime.sgemm(of(A), of(B), of(SHARED[what]))
    assert len(driver.launches) == num_launches and not runtime.num_copied


@pytest.mark.parametrize("of", [_Tensor, np.asarray])
@pytest.mark.parametrize("shape", [(0, 5), (5, 0)])
def test_strides_of_an_out_without_elements_mean_nothing(runtime, of, shape):
    """NumPy and torch give it strides of 0."""
    out = of(np.zeros(shape, np.float32))
    runtime.sgemm(of(normal(shape[0], 4)), of(normal(4, shape[1])), out, beta=3.0)


REFUSED = {
    "gradient": ({"requires_grad": True}, "no gradient"),
    "host": ({"is_cuda": False, "device": "cpu", "kind": {"device_type": 1}}, "on cpu"),
    "half": ({"dtype": "float16", "kind": {"bits": 16}}, "dtype float16"),
    "integers": ({"dtype": "int32", "kind": {"code": 0}}, "dtype int32"),
    "sparse": ({"layout": "sparse"}, "to_dense"),
    "negated": ({"negative": True}, "resolve_neg"),
}


@pytest.mark.parametrize("place", ["a", "b", "out"])
@pytest.mark.parametrize("what", REFUSED)
def test_what_is_refused_says_why(runtime, driver, what, place):
    multiply(runtime, A, B)
    changes, message = REFUSED[what]
    arrays = {"a": A, "b": B, "out": normal(70, 66)}
    tensors = {name: _Tensor(x, **changes if name == place else {}) for name, x in arrays.items()}
    num_launches = len(driver.launches)
    with pytest.raises(DispatchError, match=f"{place} .*{message}"):
        runtime.sgemm(**tensors)
    assert len(driver.launches) == num_launches


class _Hiding(_Tensor):
    """Hides other tensors, as within a transform of torch.func."""

    def data_ptr(self) -> int:
        raise RuntimeError("Cannot access data pointer of Tensor that doesn't have storage")


class _Nested(_Tensor):
    is_nested = True

    @property
    def shape(self) -> Any:
        raise RuntimeError("NestedTensorImpl doesn't support sizes")


@pytest.mark.parametrize("place", ["a", "b", "out"])
@pytest.mark.parametrize(
    ("kind", "message"), [(_Hiding, r"no memory of its own.*torch_op"), (_Nested, "a nested tensor; pass")]
)
def test_what_hides_other_tensors_is_refused(runtime, driver, kind, message, place):
    multiply(runtime, A, B)
    arrays = {"a": A, "b": B, "out": normal(70, 66)}
    tensors = {name: (kind if name == place else _Tensor)(x) for name, x in arrays.items()}
    num_launches = len(driver.launches)
    with pytest.raises(DispatchError, match=f"{place} .*{message}"):
        runtime.sgemm(**tensors)
    assert len(driver.launches) == num_launches


@pytest.mark.parametrize("place", ["a", "b", "out"])
def test_what_has_a_tangent_is_refused(table, driver, offered, monkeypatch, tmp_path, place):
    """By what would plan a call, and by the core, which knows it."""
    forward_ad = SimpleNamespace(_current_level=-1)
    forward_ad.unpack_dual = lambda x: SimpleNamespace(tangent=x.changes.get("tangent"))
    monkeypatch.setattr(TORCH, "autograd", SimpleNamespace(forward_ad=forward_ad), raising=False)
    offered()
    runtime = Dispatcher(write_table(table, tmp_path / "t"), driver=driver)
    for level in (0, -1, 0):
        forward_ad._current_level = level
        tensors = {"a": A, "b": B, "out": normal(70, 66)}
        dual = {name: _Tensor(x, **{"tangent": x} if name == place else {}) for name, x in tensors.items()}
        if level < 0:
            runtime.sgemm(**dual)  # left over
            continue
        with pytest.raises(DispatchError, match=f"{place} has a tangent.*torch_op"):
            runtime.sgemm(**dual)
        multiply(runtime, A, B)


def test_a_trace_that_would_lose_a_product_is_refused(table, driver, offered, monkeypatch, tmp_path):
    """Of a kind that is new or known; a mode that only looks is none."""
    mode = SimpleNamespace(_is_in_torch_dispatch_mode=False)
    proxies = SimpleNamespace(get_proxy_mode=lambda: mode)
    monkeypatch.setattr(TORCH, "utils", SimpleNamespace(_python_dispatch=mode), raising=False)
    offered()
    runtime = Dispatcher(write_table(table, tmp_path / "t"), driver=driver)
    multiply(runtime, A, B)
    mode._is_in_torch_dispatch_mode = True
    multiply(runtime, A, B)
    monkeypatch.setitem(sys.modules, "torch.fx.experimental.proxy_tensor", proxies)
    for b in (B, normal(40, 67)):
        num_launches = len(driver.launches)
        with pytest.raises(DispatchError, match="records a trace"):
            multiply(runtime, A, b)
        assert len(driver.launches) == num_launches


def test_a_trace_of_torch_jit_is_refused_too(table, driver, offered, monkeypatch, tmp_path):
    is_traced = False
    monkeypatch.setattr(TORCH._C, "_is_tracing", lambda: is_traced, raising=False)
    offered()
    runtime = Dispatcher(write_table(table, tmp_path / "t"), driver=driver)
    multiply(runtime, A, B)
    is_traced = True
    with pytest.raises(DispatchError, match="records a trace"):
        multiply(runtime, A, B)


def test_faults_of_a_call_are_told_by_the_dispatcher(runtime, driver):
    multiply(runtime, A, B)
    a, b, c = _Tensor(A), _Tensor(B), _Tensor(normal(70, 66))
    square = normal(40, 40)
    multiply(runtime, square, square.copy())
    for arguments, options, message in (
        ((a, b, c), {"alpha": 1e39}, "no float32"),
        ((a, b, c), {"beta": "2"}, "no float32"),
        ((a, b, c), {"trans_a": "T"}, "trans_a"),
        ((a, b), {"beta": 1.0}, "no out"),
        ((a, a, c), {}, "inner extents"),
        ((_Tensor(square), _Tensor(square.copy()), _Tensor(square)), {}, "overlaps"),
        ((_Tensor(normal(2)), b), {}, "1 dimensions"),
    ):
        num_launches = len(driver.launches)
        with pytest.raises(DispatchError, match=message):
            runtime.sgemm(*arguments, **options)
        assert len(driver.launches) == num_launches
    multiply(runtime, A, B)


def test_a_launch_that_fails_is_told(runtime, driver, monkeypatch):
    multiply(runtime, A, B)
    alone(runtime, monkeypatch)
    driver.launch_error = 700
    with pytest.raises(DispatchError, match=r"launching a kernel.*start the process again"):
        multiply(runtime, A, B)
    assert not driver.context_stack


def test_threads_share_what_is_remembered(runtime, monkeypatch):
    multiply(runtime, A, B)
    faults = []

    def work(seed: int) -> None:
        try:
            for number in range(30):
                multiply(runtime, normal(70, 40, seed=seed), normal(40, 60 + number % 7, seed=number))
        except BaseException as fault:
            faults.append(fault)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not faults


@pytest.mark.parametrize(
    "changes", [{"name": b"another"}, {"major": 2}, {"has_view": False}], ids=["name", "version", "no view"]
)
def test_an_exchange_that_is_not_known_is_left_alone(runtime, offered, changes):
    offered(**changes)
    multiply(runtime, A, B)
    multiply(runtime, A, B)
    assert runtime._tensors is None


def test_without_torch_there_are_none(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    assert tensor_calls_of(None) is None
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(Tensor=int))
    assert tensor_calls_of(None) is None and tensor_calls._exchange_of(int) is None


_PROCESS = """
import os, sys, threading
sys.path[:0] = PATHS
from pathlib import Path
from test_tensor_calls import A, B, TORCH, _capsule, _Tensor, multiply
from table_cases import FakeDriver, make_kernel, make_spec, make_table, write_table
from autotune.files.errors import DispatchError
from autotune.runtime.dispatcher import Dispatcher

sys.modules["torch"] = TORCH
_Tensor.__dlpack_c_exchange_api__, held = _capsule(b"dlpack_exchange_api")
table = make_table(make_kernel("plain", make_spec()))
runtime = Dispatcher(write_table(table, Path(sys.argv[1]) / "t"), driver=FakeDriver(table))
"""
_FORKED = """
multiply(runtime, A, B)
assert runtime._tensors is not None
child = os.fork()
if not child:
    for a, b in ((A, B), (A, B[:, :5].copy())):  # what came before, and what is new
        try:
            multiply(runtime, a, b)
        except DispatchError as error:
            assert "forked" in str(error)
        else:
            os._exit(1)
    os._exit(0)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
_FORKED_BEFORE = """
runtime.pick(70, 66, 40)
child = os.fork()
multiply(runtime, A, B)  # in both
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) if child else 0)
"""
_EXITS_AT_WORK = """
def work():
    while True:
        multiply(runtime, A, B)

for _ in range(4):
    threading.Thread(target=work, daemon=True).start()
multiply(runtime, A, B)
"""


_AT_ONCE = """
import sys, threading
from contextlib import suppress
from types import SimpleNamespace
from autotune.runtime.native import core
from autotune.runtime.torch import tensor_calls
own, met, told = tensor_calls._python_here, threading.Barrier(2), []
def slowly():
    made = own()
    with suppress(threading.BrokenBarrierError):
        met.wait(timeout=0.5)
    return made
tensor_calls._python_here = slowly
function = core.library().autotune_sgemm_of_tensors
structs = core.library().structs
library = SimpleNamespace(structs=structs, autotune_sgemm_of_tensors=function)
library.autotune_use_python = told.append
sys.modules["torch"] = SimpleNamespace(is_grad_enabled=lambda: True)
arguments = SimpleNamespace(library=library, handle=0), SimpleNamespace(is_neg=None), 0, False
threads = [threading.Thread(target=tensor_calls.TensorCalls, args=arguments) for _ in "12"]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(len(told), len(set(told)))
"""


def test_the_core_is_told_of_python_once():
    """By whichever of two threads is first: calls of which it was told before would be freed under it."""
    done = subprocess.run([sys.executable, "-c", _AT_ONCE], capture_output=True, text=True, check=False)
    assert done.stdout == "2 1\n", done.stderr


@pytest.mark.every(3)
@pytest.mark.parametrize("rest", [_FORKED, _FORKED_BEFORE, _EXITS_AT_WORK], ids=["after", "before", "exit"])
def test_forks_and_ends_of_processes(rest, tmp_path):
    paths = [str(Path(__file__).parent), *filter(None, sys.path)]
    program = _PROCESS.replace("PATHS", repr(paths)) + rest
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
