"""Arrays of other libraries, seen as what a launch needs: address, GPU, extents and strides.

torch, CuPy and Numba are known by name: their current stream is asked and results are allocated with them.
Anything else supports `__cuda_array_interface__` or DLPack. No library is imported here: the caller who
passes an array has imported its library.
"""

from __future__ import annotations

import sys
from numbers import Integral
from typing import Any, ClassVar

import numpy as np

from ...facts.gemm import FLOAT_BYTES, FP32
from ...files.errors import DispatchError
from ..launch.cuda_driver import LEGACY_STREAMS, PER_THREAD_STREAM, CudaFault, Driver
from ..torch.tensor_calls import check_no_trace, count_of_writes, forward_mode_of
from .product import NO_DEVICE, Form, Leading, form_of, packed_form

# address, GPU, form of a matrix, leading dimensions. Plain tuples: made three times per call
Operand = tuple[int, int, Form, Leading]
A_ROLE = "a"  # which may be of BF16 or FP16
BIAS_ROLE = "bias"  # of a vector, which is described as a matrix of one row
_FLOAT32 = np.dtype(np.float32)
_SHORT = {"bfloat16": "bf16", "float16": "fp16"}  # by the names of NumPy's types, and of ml_dtypes'
_LEAST_ADDRESS = 1 << 16  # below, systems leave everything unmapped
_UNKNOWN_ADDRESS = 1  # CUDA_ERROR_INVALID_VALUE
_LEAST_ON_GPU = 1 << 33  # GPUs' memory begins here, as far as is known: what begins below is looked at


class _StreamHandle:
    """A stream of another owner, given by the CUDA stream protocol."""

    def __init__(self, handle: int) -> None:
        self._handle = handle

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self._handle  # version of the protocol, handle


class Library:
    """One kind of array. Subclasses are stateless except for the module and the driver they use."""

    name: ClassVar[str] = ""
    is_host: ClassVar[bool] = False
    is_foreign: ClassVar[bool] = False  # its work must be ordered before ours explicitly

    def describe(self, x: Any, role: str) -> Operand:
        """Address, GPU, form, leading dimensions of float32 matrices. Raises DispatchError with `role`."""
        raise NotImplementedError

    def a_type(self, x: Any) -> str:
        """Of the elements of an A: one of `gemm.A_TYPES`; what is none of them is told as FP32."""
        return _short_type(getattr(x, "dtype", ""))

    def current_stream(self, x: Any, device: int) -> int:
        """Handle of the stream that the caller works on."""
        raise NotImplementedError

    def empty(self, shape: tuple[int, ...], device: int, stream: int | None) -> Any:
        """A new array, safe to write on `stream` (None: the current one)."""
        raise NotImplementedError

    def check_call(self) -> None:
        """Raises DispatchError where this library would do something else with a product than compute it."""

    def order(self, x: Any, stream: int) -> None:
        """Later work on `stream` waits for the work that produces x."""

    def mark_written(self, x: Any) -> None:
        """A product was written into an array that the caller passed."""

    def packed_copy(self, x: Any) -> Any | None:
        """A packed copy of an array, made on the current stream; None if this library has no known way."""
        return None

    def assign(self, x: Any, values: Any) -> None:
        """Copy an array into another, on the current stream; for libraries that make packed copies."""
        raise NotImplementedError


def _refuse(role: str, fault: str, advice: str) -> DispatchError:
    return DispatchError(f"{role} {fault}; {advice}")


def _no_memory(role: str) -> DispatchError:
    return _refuse(
        role,
        "claims elements, but has no memory of its own",
        "pass an array whose memory is allocated: instead of a FakeTensor, a tensor on meta, a wrapper, or a "
        "storage that was freed, a tensor with values; within torch.func call the operator of torch_op()",
    )


def _short_type(dtype: Any) -> str:
    """Of A's elements; FP32 for all others, too."""
    return _SHORT.get(str(getattr(dtype, "name", dtype)), FP32)


def _check_matrix(role: str, dtype: Any, ndim: int) -> None:
    if dtype != _FLOAT32 and (role != A_ROLE or _short_type(dtype) == FP32):
        raise _refuse(role, f"has dtype {dtype}", "convert it to float32")
    if ndim != 1 if role == BIAS_ROLE else ndim < 2:
        raise _not_so_many(role, ndim)


def _not_so_many(role: str, ndim: int) -> DispatchError:
    if role == BIAS_ROLE:
        return _refuse(role, f"has {ndim} dimensions, not 1", "pass a vector with an element for each column")
    return _refuse(role, f"has {ndim} dimensions, fewer than 2", "reshape it to a matrix")


def _form(role: str, shape: Any, byte_strides: Any, size: int = FLOAT_BYTES) -> tuple[Form, Leading]:
    if role == BIAS_ROLE:
        shape, byte_strides = (1, *shape), byte_strides and (0, *byte_strides)
    extents = [int(extent) for extent in shape]
    if byte_strides is None or 0 in extents:
        return packed_form(extents)
    steps = [divmod(int(stride), size) for stride in byte_strides]
    if any(rest for _, rest in steps):
        what = "floats" if size == FLOAT_BYTES else "elements"
        raise _refuse(role, f"has strides {tuple(byte_strides)} that are no whole {what}", "copy it")
    return form_of(extents, [step for step, _ in steps])


class Torch(Library):
    """Below autograd derivatives are torch's: elsewhere tensors that need them are refused."""

    name = "torch"

    def __init__(self, is_below_autograd: bool = False) -> None:
        self._torch = torch = sys.modules["torch"]
        self._float32, self._strided = torch.float32, torch.strided
        self._short = {getattr(torch, name, None): one for name, one in _SHORT.items()}
        self._is_below_autograd = is_below_autograd
        self._forward_mode = forward_mode_of(torch)
        self._own_dispatch = getattr(getattr(torch, "Tensor", None), "__torch_dispatch__", None)
        self._count_write = count_of_writes(torch)
        # The raw handle, without a Python object around it, where this torch has it.
        self._raw_stream = getattr(torch._C, "_cuda_getCurrentRawStream", self._slow_stream)

    def _slow_stream(self, device: int) -> int:
        return int(self._torch.cuda.current_stream(device).cuda_stream)

    def describe(self, x: Any, role: str) -> Operand:
        if fault := self._fault(x, role):
            raise fault
        is_bias = role == BIAS_ROLE
        *extents, rows, cols = (1, x.shape[0]) if is_bias else x.shape
        *strides, by_row, by_col = (1, x.stride()[0]) if is_bias else x.stride()
        leading = tuple(zip(extents, strides, strict=True)) if extents else ()
        address = self._address(x)
        if 0 in extents:  # no matrix: strides mean nothing, and torch gives no packed copy
            return address, x.get_device(), *packed_form((*extents, rows, cols))
        if address < _LEAST_ADDRESS and 0 not in x.shape:
            raise _no_memory(role)
        return address, x.get_device(), (rows, cols, by_row, by_col), leading

    def _address(self, x: Any) -> int:
        """0 for a tensor without memory of its own, even if it begins far behind its storage."""
        try:
            is_plain = getattr(type(x), "__torch_dispatch__", None) is self._own_dispatch
            address = int(x.data_ptr()) if is_plain else 0  # torch warns if a FakeTensor is asked
            if is_plain and address - FLOAT_BYTES * x.storage_offset() >= _LEAST_ON_GPU:
                return address
            storage = x.untyped_storage()
            return int(x.data_ptr()) if storage.device == x.device and storage.data_ptr() else 0
        except RuntimeError:  # it has no storage
            return 0

    def check_call(self) -> None:
        check_no_trace(self._torch)

    def _fault(self, x: Any, role: str) -> DispatchError | None:
        if getattr(x, "is_nested", False):
            return _refuse(role, "is a nested tensor", "pass its matrices one by one, or padded as a batch")
        if x.dtype is not self._float32 and (role != A_ROLE or x.dtype not in self._short):
            return _refuse(role, f"has dtype {x.dtype}", "convert it with .float()")
        if getattr(x, "is_meta", False):
            return _no_memory(role)
        if not x.is_cuda:
            return _refuse(role, f"is on {x.device}", "move it with .cuda(), or pass NumPy arrays")
        if x.layout is not self._strided:
            return _refuse(role, f"has layout {x.layout}", "convert it with .to_dense()")
        if x.dim() != 1 if role == BIAS_ROLE else x.dim() < 2:
            return _not_so_many(role, x.dim())
        if x.is_neg():
            return _refuse(role, "is a lazily negated view", "resolve it with .resolve_neg()")
        if self._is_below_autograd:
            return None
        if self._forward_mode._current_level >= 0 and self._forward_mode.unpack_dual(x).tangent is not None:
            advice = "pass its primal, or call the operator of torch_op()"
            return _refuse(role, "has a tangent, and sgemm has no derivative", advice)
        if x.requires_grad and self._torch.is_grad_enabled():
            advice = "call it under torch.no_grad(), or call the operator of torch_op()"
            return _refuse(role, "requires grad, and sgemm has no gradient", advice)
        return None

    def current_stream(self, x: Any, device: int) -> int:
        return int(self._raw_stream(device))

    def empty(self, shape: tuple[int, ...], device: int, stream: int | None) -> Any:
        torch = self._torch
        if stream is None or stream == self._raw_stream(device):
            return torch.empty(shape, dtype=self._float32, device=device)
        # The allocator hands out memory in the order of one stream: it must be ours.
        with torch.cuda.stream(torch.cuda.ExternalStream(stream, device=device)):
            return torch.empty(shape, dtype=self._float32, device=device)

    def mark_written(self, x: Any) -> None:
        if self._count_write is not None:
            self._count_write(x)

    def a_type(self, x: Any) -> str:
        return self._short.get(x.dtype, FP32)

    def packed_copy(self, x: Any) -> Any | None:
        return x.contiguous()

    def assign(self, x: Any, values: Any) -> None:
        x.copy_(values)


class CuPy(Library):
    name = "cupy"

    def __init__(self) -> None:
        self._cupy = sys.modules["cupy"]

    def describe(self, x: Any, role: str) -> Operand:
        _check_matrix(role, x.dtype, x.ndim)
        if int(x.data.mem.ptr) < _LEAST_ADDRESS and 0 not in x.shape:
            raise _no_memory(role)
        return int(x.data.ptr), int(x.data.device_id), *_form(role, x.shape, x.strides, x.dtype.itemsize)

    def current_stream(self, x: Any, device: int) -> int:
        with self._cupy.cuda.Device(device):
            return int(self._cupy.cuda.get_current_stream().ptr)

    def _external(self, stream: int) -> Any:
        """A handle as CuPy's stream. CuPy 14 needs the protocol, earlier versions know only the handle."""
        streams = self._cupy.cuda
        if hasattr(streams.Stream, "from_external"):
            return streams.Stream.from_external(_StreamHandle(stream))
        return streams.ExternalStream(stream)

    def empty(self, shape: tuple[int, ...], device: int, stream: int | None) -> Any:
        cuda = self._cupy.cuda
        with cuda.Device(device):
            if stream is None or stream == cuda.get_current_stream().ptr:
                return self._cupy.empty(shape, dtype=_FLOAT32)
            with self._external(stream):  # its memory pool keeps an arena per stream
                return self._cupy.empty(shape, dtype=_FLOAT32)

    def packed_copy(self, x: Any) -> Any | None:
        with self._cupy.cuda.Device(x.data.device_id):
            return self._cupy.ascontiguousarray(x)

    def assign(self, x: Any, values: Any) -> None:
        with self._cupy.cuda.Device(x.data.device_id):
            x[...] = values


class Foreign(Library):
    """Anything with `__cuda_array_interface__` or DLPack. Runs on the producer's stream if that is known,
    else on the legacy default stream."""

    name = "DLPack"
    is_foreign = True

    def __init__(self, driver: Driver) -> None:
        self._driver = driver

    def describe(self, x: Any, role: str) -> Operand:
        interface = getattr(x, "__cuda_array_interface__", None)
        if interface is None:
            return self._describe_dlpack(x, role)
        shape = interface["shape"]
        _check_matrix(role, np.dtype(interface["typestr"]), len(shape))
        address, is_read_only = interface["data"]
        if interface.get("mask") is not None:
            raise _refuse(role, "has a mask", "pass the array without it")
        if role == "out" and is_read_only:
            raise _refuse(role, "is read-only", "pass a writable array")
        is_somewhere = address or 0 not in shape
        device = self._device(int(address or 0), role) if is_somewhere else NO_DEVICE
        size = np.dtype(interface["typestr"]).itemsize
        return int(address or 0), device, *_form(role, shape, interface.get("strides"), size)

    def a_type(self, x: Any) -> str:
        interface = getattr(x, "__cuda_array_interface__", None)
        if interface is not None:
            return _short_type(np.dtype(interface["typestr"]))
        return _short_type(self._view(x, A_ROLE, -1)[1])

    def _device(self, address: int, role: str) -> int:
        """The GPU of an array with elements at this address."""
        if address < _LEAST_ADDRESS:
            raise _no_memory(role)
        try:
            return self._driver.pointer_device(address)
        except CudaFault as fault:
            if fault.code != _UNKNOWN_ADDRESS:
                raise
            text = f"is at address {address:#x}, which CUDA did not allocate"
            raise _refuse(role, text, "pass an array on a GPU") from fault

    def _describe_dlpack(self, x: Any, role: str) -> Operand:
        view, dtype = self._view(x, role, -1)
        _check_matrix(role, dtype, len(view.shape))
        if not view.is_device_accessible or view.device_id < 0:
            raise _refuse(role, "is not on a GPU", "move it there, or pass NumPy arrays")
        if role == "out" and view.readonly:
            raise _refuse(role, "is read-only", "pass a writable array")
        if 0 not in view.shape:
            self._device(int(view.ptr), role)
        return int(view.ptr), int(view.device_id), *_form(role, view.shape, view.strides, 1)

    @staticmethod
    def _view(x: Any, role: str, stream: int) -> tuple[Any, Any]:
        from cuda.core.utils import StridedMemoryView

        try:
            view = StridedMemoryView.from_dlpack(x, stream_ptr=stream)
            return view, view.dtype
        except (BufferError, NotImplementedError, TypeError, ValueError) as error:
            raise _refuse(
                role, f"does not come through DLPack ({error})", "copy it to torch or CuPy"
            ) from error

    def current_stream(self, x: Any, device: int) -> int:
        return (getattr(x, "__cuda_array_interface__", None) or {}).get("stream") or 0

    def empty(self, shape: tuple[int, ...], device: int, stream: int | None) -> Any:
        raise DispatchError(
            "arrays of this library cannot be made here; pass out=, a float32 array on the GPU"
        )

    def order(self, x: Any, stream: int) -> None:
        interface = getattr(x, "__cuda_array_interface__", None)
        if interface is None:
            self._view(x, "an operand", stream or 1)  # the producer waits for us: 1 is the default stream
            return
        producer = interface.get("stream")
        if producer is not None and (producer, stream) not in ((1, 0), (stream, stream)):
            self._driver.order(producer, stream)


class Numba(Foreign):
    name = "numba"

    def current_stream(self, x: Any, device: int) -> int:
        return super().current_stream(x, device) or stream_handle(sys.modules["numba"].cuda.default_stream())

    def empty(self, shape: tuple[int, ...], device: int, stream: int | None) -> Any:
        cuda = sys.modules["numba"].cuda
        with cuda.gpus[device]:
            return cuda.device_array(shape, dtype=_FLOAT32)


class Host(Library):
    """NumPy arrays, which the runtime copies to a GPU and back."""

    name = "numpy"
    is_host = True

    def describe(self, x: Any, role: str) -> Operand:
        _check_matrix(role, x.dtype, x.ndim)
        if role == "out" and not x.flags.writeable:
            raise _refuse(role, "is read-only", "pass a writable array")
        if x.size and x.ctypes.data < _LEAST_ADDRESS:
            raise _no_memory(role)
        return int(x.ctypes.data), NO_DEVICE, *_form(role, x.shape, x.strides, x.dtype.itemsize)


class Libraries:
    """Finds the library of an array by its type."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._by_type: dict[type, Library] = {}
        self._by_name: dict[str, Library] = {}

    def of(self, x: Any, role: str) -> Library:
        """The library that x belongs to. Raises DispatchError if x is not an array."""
        found = self._by_type.get(type(x))
        if found is None:
            found = self._by_type[type(x)] = self._shared(_kind(x, role))
        return found

    def stream(self, stream: Any, device: int) -> int:
        """Handle of a stream that the caller passed. Raises DispatchError if it is of another GPU.

        While the stream is captured this is not checked: asking would end the capture."""
        handle = stream_handle(stream)
        is_default = handle in LEGACY_STREAMS or handle == PER_THREAD_STREAM
        if not is_default and not self._driver.is_capturing(handle):
            owner = self._driver.stream_device(handle)
            if owner != device:
                raise DispatchError(
                    f"the stream is of GPU {owner}, the arrays are on GPU {device}; pass a stream of GPU "
                    f"{device}"
                )
        return handle

    def _shared(self, kind: type[Library]) -> Library:
        """One object per library, so that identity shows whether two operands share a library."""
        if kind.name not in self._by_name:
            self._by_name[kind.name] = kind(self._driver) if issubclass(kind, Foreign) else kind()
        return self._by_name[kind.name]


_KINDS: tuple[tuple[str, str, type[Library]], ...] = (
    ("torch", "Tensor", Torch),
    ("cupy", "ndarray", CuPy),
    ("numba", "DeviceNDArray", Numba),
    ("numba_cuda", "DeviceNDArray", Numba),
)


def _kind(x: Any, role: str) -> type[Library]:
    if isinstance(x, np.ndarray):
        return Host
    for base in type(x).__mro__:
        package = base.__module__.partition(".")[0]
        for known, name, kind in _KINDS:
            if package == known and base.__name__ == name:
                return kind
    if hasattr(x, "__cuda_array_interface__") or hasattr(x, "__dlpack__"):
        return Foreign
    raise _refuse(role, f"is a {type(x).__name__}", "pass a torch, CuPy, Numba, NumPy or DLPack array")


def stream_handle(stream: Any) -> int:
    """Handle of a stream: an int, or a stream of cuda.core, torch, CuPy or Numba."""
    if isinstance(stream, Integral) and not isinstance(stream, bool):
        return int(stream)
    if hasattr(stream, "__cuda_stream__"):
        return int(stream.__cuda_stream__()[1])
    for name in ("cuda_stream", "ptr", "handle"):
        handle = getattr(stream, name, None)
        if handle is not None:
            return int(getattr(handle, "value", handle) or 0)  # Numba's is a c_void_p, empty for 0
    raise DispatchError(
        f"stream is a {type(stream).__name__}; pass a handle or a stream of torch, CuPy, Numba or cuda.core"
    )
