"""The CUDA driver simulated by the host: memory is malloc'ed, kernels are host functions, time is made up.

Stands in for `cuda.bindings.driver` in tests of the session, so that all that surrounds a GPU (arguments,
layouts, graphs, bookkeeping, failures) runs without one. Every call is held to the arity that the real
binding documents, and every address to memory that is allocated.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from bindings import arity
from cuda.bindings import driver as real

from autotune.gpu.sgemm import BatchArgument, EpilogueArgument, ScheduleArgument
from autotune.kernel.launch import PACK_TILE

_ADDRESS, _INT, _LONG, _FLOAT = ctypes.c_void_p, ctypes.c_int32, ctypes.c_int64, ctypes.c_float
_COUNT, _WORD, _DOUBLE = ctypes.c_uint64, ctypes.c_uint32, ctypes.c_double
_MATRIX = (_ADDRESS, _LONG)
_SGEMM = (
    *(_INT, _INT, _INT, _FLOAT, *_MATRIX, *_MATRIX, _FLOAT, *_MATRIX, _ADDRESS, _INT),
    *(ScheduleArgument, BatchArgument, EpilogueArgument),
)
SIGNATURES = {
    "sgemm": _SGEMM,
    "other": _SGEMM,
    "sgemm_pack": (_INT, _INT, *_MATRIX, _INT, _ADDRESS, _INT, _INT, _LONG),
    "sgemm_reduce": (_INT, _INT, _FLOAT, _FLOAT, *_MATRIX, _ADDRESS, *[_INT] * 5, _LONG, EpilogueArgument),
    "fill_normal": (_ADDRESS, _COUNT, _COUNT),
    "fill_operand": (_ADDRESS, _COUNT, _COUNT, _INT, _COUNT, _COUNT, _INT, _INT),
    "shorten_operand": (_ADDRESS, _ADDRESS, _COUNT, _INT),
    "reference_tiles": (_INT, _INT, _INT, _ADDRESS, *[_LONG] * 3, _ADDRESS, *[_LONG] * 3, *[_ADDRESS] * 3),
    "compare_tiles": (_INT, _INT, *[_ADDRESS] * 4, _DOUBLE, _ADDRESS),
    "compare_whole": (_ADDRESS, _ADDRESS, _COUNT, _DOUBLE, _ADDRESS),
    "check_canaries": (_ADDRESS, _WORD, _WORD, _ADDRESS),
}
_HOST_NAMES = {
    "fill_normal": "host_fill",
    "fill_operand": "host_fill_operand",
    "shorten_operand": "host_shorten_operand",
    "reference_tiles": "host_reference",
    "compare_tiles": "host_compare_tiles",
    "compare_whole": "host_compare_whole",
    "check_canaries": "host_check_canaries",
}


class Status(int):
    """As `CUresult`: a number with a name."""

    @property
    def name(self) -> str:
        return real.CUresult(int(self)).name


def view(address: int, rows: int, columns: int, lead: int) -> np.ndarray:
    """A matrix in host memory, to read and write."""
    if not (rows and columns):
        return np.empty((rows, columns), np.float32)
    flat = (ctypes.c_float * ((rows - 1) * lead + columns)).from_address(address)
    whole = np.frombuffer(flat, np.float32)
    return np.lib.stride_tricks.as_strided(whole, (rows, columns), (4 * lead, 4), writeable=True)


def play_pack(grid: tuple[int, int], values: list[Any]) -> None:
    """Plays `sgemm_pack`, reading every argument where launch.Pack says it is."""
    extent, k, operand, lead, is_k_major, to, padded, blocks_per_product, stride = values
    assert blocks_per_product == -(-padded // PACK_TILE) * -(-k // PACK_TILE)
    products, rest = divmod(grid[0], blocks_per_product)
    assert (rest, grid[1]) == (0, 1)
    for product in range(products):
        packed = view(to + 4 * product * k * padded, k, padded, padded)
        of = operand + 4 * product * stride
        packed[:, extent:] = 0
        packed[:, :extent] = view(of, extent, k, lead).T if is_k_major else view(of, k, extent, lead)


def _value(kind: Any, address: int) -> Any:
    """An argument of this type, as it is in memory now."""
    if issubclass(kind, (ctypes.Structure, ctypes.Array)):
        return kind.from_buffer_copy(kind.from_address(address))
    return kind.from_address(address).value or 0


def _overlaps(attribute: Any) -> bool:
    """Whether a launch with this attribute, the only one known here, may begin early."""
    assert attribute.id == real.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
    return attribute.value.programmaticStreamSerializationAllowed == 1


class HostDriver:
    """`checks` is the library of checks_host.cpp. `sgemms` maps what a cubin's bytes say to a function
    that plays its kernels: it is called with the entry's name, the arguments and the driver."""

    def __init__(self, checks: ctypes.CDLL, sgemms: dict[bytes, Any], num_bytes: int = 2**26) -> None:
        self.checks, self.sgemms, self.num_bytes = checks, sgemms, num_bytes
        self.memory: dict[int, Any] = {}
        self.num_handles = 0  # graphs and libraries that are alive
        self.pending = 0  # status that the next wait reports
        self.clock_us = 0.0
        self.kernel_us = 100.0
        self.num_launches = 0
        self.smem_allowed = 48 * 1024
        self.overlapping: list[tuple[str, bool]] = []  # launches: the entry, whether it may begin early
        self._captured: list[Any] | None = None

    def __getattr__(self, name: str) -> Any:
        play = getattr(type(self), f"play_{name}", None)
        if play is None:
            return getattr(real, name)  # enumerations

        def call(*arguments: Any) -> tuple[Any, ...]:
            assert len(arguments) == arity(name), (name, arguments)
            result = play(self, *arguments)
            return (result,) if isinstance(result, Status) else (Status(0), result)

        call.__name__ = name
        return call

    @property
    def used_bytes(self) -> int:
        return sum(ctypes.sizeof(block) for block in self.memory.values())

    # ------------------------------------------------------------------------------ memory

    def play_cuMemAlloc(self, size: int) -> Any:
        if self.used_bytes + size > self.num_bytes:
            return Status(2)
        block = (ctypes.c_char * (size + 256))()
        address = -(-ctypes.addressof(block) // 256) * 256
        self.memory[address] = block
        return address

    def play_cuMemFree(self, address: int) -> Status:
        del self.memory[address]
        return Status(0)

    def play_cuMemGetInfo(self) -> Any:
        return self.num_bytes - self.used_bytes, self.num_bytes

    def is_allocated(self, address: int, size: int) -> bool:
        return any(
            a <= address and address + size <= a + ctypes.sizeof(b) - 255 for a, b in self.memory.items()
        )

    def play_cuMemsetD32Async(self, address: int, word: int, count: int, stream: Any) -> Status:
        assert self.is_allocated(address, 4 * count)
        words = (ctypes.c_uint32 * count).from_address(address)
        np.frombuffer(words, np.uint32)[:] = word
        return Status(0)

    def play_cuMemcpyHtoDAsync(self, to: int, source: int, size: int, stream: Any) -> Status:
        assert self.is_allocated(to, size)
        ctypes.memmove(to, source, size)
        return Status(0)

    def play_cuMemcpyDtoHAsync(self, to: int, source: int, size: int, stream: Any) -> Status:
        assert self.is_allocated(source, size)
        ctypes.memmove(to, source, size)
        return Status(0)

    # ------------------------------------------------------------------------------ code

    def play_cuLibraryLoadData(self, code: bytes, *options: Any) -> Any:
        assert options == ([], [], 0, [], [], 0)
        if code not in self.sgemms and code != b"checks":
            return Status(200)
        self.num_handles += 1
        return code

    def play_cuLibraryUnload(self, library: bytes) -> Status:
        self.num_handles -= 1
        return Status(0)

    def play_cuLibraryGetKernel(self, library: bytes, name: bytes) -> Any:
        return (library, name.decode())

    def play_cuKernelGetFunction(self, kernel: Any) -> Any:
        return kernel

    def play_cuKernelSetAttribute(self, which: Any, value: int, kernel: Any, device: Any) -> Status:
        assert which == real.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        self.smem_allowed = value
        return Status(0)

    def play_cuLaunchKernelEx(self, config: Any, function: Any, parameters: int, extra: int) -> Status:
        assert (config.gridDimZ, config.blockDimY, config.blockDimZ, extra) == (1, 1, 1, 0)
        if config.sharedMemBytes > self.smem_allowed or config.blockDimX > 1024:
            return Status(701)
        library, name = function
        x, y = config.gridDimX, config.gridDimY
        assert len(config.attrs) == config.numAttrs
        self.overlapping.append((name, any(_overlaps(attribute) for attribute in config.attrs)))
        signature = SIGNATURES[name]
        addresses = (ctypes.c_void_p * len(signature)).from_address(parameters)
        values = [_value(kind, address) for kind, address in zip(signature, addresses, strict=True)]
        self.enqueue(partial(self._play, library, name, (x, y), values))
        return Status(0)

    def enqueue(self, work: Callable[[], None]) -> None:
        """Do a piece of the GPU's work now, or at each replay of the graph that is being captured."""
        if self._captured is None:
            self._run(work)
        else:
            self._captured.append(work)

    def _run(self, work: Callable[[], None]) -> None:
        self.clock_us += self.kernel_us
        self.num_launches += 1
        work()

    def _play(self, library: bytes, name: str, grid: tuple[int, int], values: list[Any]) -> None:
        if library == b"checks":
            typed = [t(v) for t, v in zip(SIGNATURES[name], values, strict=True)]
            getattr(self.checks, _HOST_NAMES[name])(grid[0], *typed)
        else:
            self.sgemms[library](self, name, grid, values)

    # ------------------------------------------------------------------------------ time

    def play_cuStreamBeginCapture(self, stream: Any, mode: Any) -> Status:
        assert self._captured is None
        self._captured = []
        return Status(0)

    def play_cuStreamEndCapture(self, stream: Any) -> Any:
        graph, self._captured = self._captured, None
        self.num_handles += 1
        return graph

    def play_cuGraphInstantiate(self, graph: Any, flags: int) -> Any:
        self.num_handles += 1
        return list(graph)

    def play_cuGraphUpload(self, graph: Any, stream: Any) -> Status:
        return Status(0)

    def play_cuGraphDestroy(self, graph: Any) -> Status:
        self.num_handles -= 1
        return Status(0)

    play_cuGraphExecDestroy = play_cuGraphDestroy

    def play_cuGraphLaunch(self, graph: Any, stream: Any) -> Status:
        for work in graph:
            self._run(work)
        return Status(0)

    def play_cuEventCreate(self, flags: int) -> Any:
        return [0.0]

    def play_cuEventRecord(self, event: list[float], stream: Any) -> Status:
        assert self._captured is None
        event[0] = self.clock_us
        return Status(0)

    def play_cuEventSynchronize(self, event: Any) -> Status:
        return Status(self.pending)

    def play_cuStreamSynchronize(self, stream: Any) -> Status:
        return Status(self.pending)

    def play_cuEventElapsedTime(self, begin: list[float], end: list[float]) -> float:
        return (end[0] - begin[0]) / 1000

    # ------------------------------------------------------------------------------ devices

    def play_cuDeviceGet(self, index: int) -> Any:
        return index

    def play_cuDevicePrimaryCtxRetain(self, device: Any) -> Any:
        return "context"

    def play_cuCtxSetCurrent(self, context: Any) -> Status:
        return Status(0)

    def play_cuStreamCreate(self, flags: int) -> Any:
        assert flags == 1
        return 77
