"""torch itself, whose products of matrices on the host are routed as if these were on a GPU.

For tests that a simulated torch serves, too: the same calls by torch's dispatcher, its kernels for the CPU,
and a simulated driver.
"""

from __future__ import annotations

import ctypes
import tempfile
import warnings
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from table_cases import FakeDriver
from test_tensor_calls import STREAM, _DLTensor, _stream

from autotune.runtime.calls import arrays
from autotune.runtime.torch import torch_router, torch_routing

CUDA, POINTERS = 2, 8  # of dlpack.h
_VIEW, _CURRENT_STREAM = 5, 6  # places in DLPackExchangeAPI


@cache
def _cache() -> tempfile.TemporaryDirectory[str]:
    """Where the router is kept, for all tests of this process."""
    return tempfile.TemporaryDirectory()


class HostTorch:
    """As PlayedTorch of test_torch_routing. `own_calls`: that nothing was launched for."""

    def __init__(self, patch: pytest.MonkeyPatch, wrap: Callable[..., Any], *, is_compiled: bool) -> None:
        self._torch, self._wrap = pytest.importorskip("torch"), wrap
        self.own_calls, self.drivers = 0, list[FakeDriver]()
        made = FakeDriver.__post_init__
        patch.setattr(FakeDriver, "__post_init__", lambda one: (made(one), self.drivers.append(one))[0])
        patch.setenv(torch_router.SWITCH, str(int(is_compiled)))
        patch.setattr(torch_router, "default_cache_dir", lambda: Path(_cache().name))
        patch.setattr(torch_routing.TorchRouting, "_key", "CPU")
        self._pretend(patch)

    def _pretend(self, patch: pytest.MonkeyPatch) -> None:
        """Tensors of the host are on GPU 0."""
        tensor = self._torch.Tensor
        patch.setattr(tensor, "is_cuda", property(lambda _: True))
        patch.setattr(tensor, "get_device", lambda _: 0)
        patch.setattr(self._torch._C, "_cuda_getCurrentRawStream", lambda _: STREAM, raising=False)
        patch.setattr(arrays.Torch, "empty", lambda _, shape, *__: self._torch.empty(shape))
        get, new = ctypes.pythonapi.PyCapsule_GetPointer, ctypes.pythonapi.PyCapsule_New
        get.restype, get.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
        new.restype, new.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
        name = b"dlpack_exchange_api"
        pointers = (ctypes.c_void_p * POINTERS).from_address(get(tensor.__dlpack_c_exchange_api__, name))
        pointers = (ctypes.c_void_p * POINTERS)(*pointers)
        kind = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.POINTER(_DLTensor))
        of_torch = kind(pointers[_VIEW])

        @kind
        def view(x: Any, found: Any) -> int:
            try:
                failed = int(of_torch(x, found))
            except RuntimeError:  # a tensor that hides others, whose fault torch's own function keeps in C
                return -1
            found[0].device_type, found[0].device_id = CUDA, 0
            return failed

        pointers[_VIEW] = ctypes.cast(view, ctypes.c_void_p).value
        pointers[_CURRENT_STREAM] = ctypes.cast(_stream, ctypes.c_void_p).value
        self._kept = view, pointers, name
        patch.setattr(tensor, "__dlpack_c_exchange_api__", new(ctypes.addressof(pointers), name, None))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._torch, name)

    def tensor(self, x: Any) -> Any:
        """A tensor over the memory of a simulated one."""
        data = x.data
        whole = data if data.base is None else data.base
        offset = (data.ctypes.data - whole.ctypes.data) // data.itemsize
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that it may not be written
            made = self._torch.from_numpy(whole).as_strided(data.shape, x.stride(), offset)
        return made.to(getattr(self._torch, x.dtype))

    def call(self, name: str, *arguments: Any, **options: Any) -> Any:
        operator, _, overload = name.partition(".")
        function = getattr(getattr(self._torch.ops.aten, operator), overload or "default")
        out = options.get("out")
        text = options | ({"out": self.tensor(out)} if out is not None else {})
        before = self._num_launches()
        with self._torch.no_grad():
            found = function(*map(self.tensor, arguments), **text)
        self.own_calls += self._num_launches() == before
        return self._wrap(found.float().numpy()) if out is None else out

    def _num_launches(self) -> int:
        return sum(len(one.launches) for one in self.drivers)
