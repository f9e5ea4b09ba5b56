"""As much of torch as `autotune estimate` meets, where torch itself is not installed.

Products of tensors without values, which a dispatcher hands to the kernel that was registered for them last.
"""

from __future__ import annotations

import math
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

_OWN = SimpleNamespace(call_boxed=lambda keys, *operands, **options: Tensor(*_shape(*operands)))
_kernels: dict[str, Any] = {}
__version__, float16 = "9.9", "torch.float16"


def _shape(*operands: Tensor) -> tuple[int, ...]:
    a, b = operands[-2:]
    return (*a.shape[:-1], b.shape[-1])


class Tensor:
    def __init__(self, *shape: int, dtype: str = "float32", offset: int = 0) -> None:
        self.shape, self.dtype, self._offset = shape, f"torch.{dtype}", offset
        self._strides = tuple(math.prod(shape[at + 1 :]) for at in range(len(shape)))

    def stride(self) -> tuple[int, ...]:
        return self._strides

    def storage_offset(self) -> int:
        return 0

    def data_ptr(self) -> int:
        return 4096 + 4 * self._offset

    @property
    def mT(self) -> Tensor:
        made = Tensor(*self.shape[:-2], *self.shape[:-3:-1], offset=self._offset)
        made._strides = (*self._strides[:-2], *self._strides[:-3:-1])
        return made

    def cuda(self) -> Tensor:
        return self

    pin_memory = cuda


class _Library:
    def __init__(self, namespace: str, kind: str) -> None:
        assert (namespace, kind) == ("aten", "IMPL")

    def impl(self, name: str, kernel: Any, key: str, *, with_keyset: bool) -> None:
        assert key == "CPU" and with_keyset
        _kernels[name] = kernel


def _product(name: str) -> Any:
    return lambda *operands: _kernels.get(name, _OWN.call_boxed)(None, *operands)


mm, addmm, bmm, baddbmm = map(_product, ("mm", "addmm", "bmm", "baddbmm"))
device = type("device", (), {"__init__": lambda self, name: None})
autocast = type("autocast", (), {"__init__": lambda self, *_: None})
library = SimpleNamespace(Library=_Library, get_kernel=lambda name, key: _OWN)
backends = SimpleNamespace(cuda=SimpleNamespace(matmul=SimpleNamespace(fp32_precision="none")))
cuda = SimpleNamespace(is_available=lambda: False, synchronize=lambda: None)
for _name in ("set_device", "Event", "Stream", "stream", "current_stream", "default_stream"):
    setattr(cuda, _name, None)
Generator, load = type("Generator", (), {}), None
nn = SimpleNamespace(functional=SimpleNamespace(scaled_dot_product_attention=None))
lstm = gru = rnn_tanh = rnn_relu = None
_VF = SimpleNamespace(lstm=len, gru=len, rnn_tanh=len, rnn_relu=len)
nn.functional.scaled_dot_product_attention = len
_C = SimpleNamespace(_current_autograd_node=lambda: None)


class _Mode:
    def __enter__(self) -> None: ...

    def __exit__(self, *_: object) -> None: ...


for _name, _held in (
    ("overrides", {"TorchFunctionMode": _Mode}),
    ("utils", {}),
    ("jit", {}),
    ("jit._builtins", {"_find_builtin": id, "_register_builtin": lambda *_: None}),
    ("utils._python_dispatch", {"TorchDispatchMode": _Mode}),
    ("utils.flop_counter", {"flop_registry": {}}),
):
    _made = sys.modules[f"torch.{_name}"] = ModuleType(f"torch.{_name}")
    vars(_made).update(_held)
