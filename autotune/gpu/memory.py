"""Operands on the device: their layout in memory, a canary on each side of each, and their values.

All sets of one problem share one allocation:

    canary | A | canary | B | canary | C | canary | A | canary | ...      (set 0, set 1, ...)

A canary begins at the very end of an operand and reaches to the next, so that one element too far is
seen. Canaries are filled with a special NaN: a write damages it, and a read that is used spoils C.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..facts.gemm import A_TYPES, FLOAT_BYTES, FP32, Gemm
from ..facts.measurement import CachePolicy
from ..files.errors import EnvironmentProblem
from .driver import OUT_OF_MEMORY, CudaError, check
from .module import EntryFunction, Module, pack

ALIGNMENT = 256  # bytes: what cuMemAlloc guarantees, and more than any vector load needs
CANARY_BYTES = 16 * 1024
CANARY_ENTRY_BYTES = 16  # address and number of words, as in `Canary` of checks.cu
CANARY_WORD = 0x7FE5A5A5  # a quiet NaN that no kernel computes
POISON_WORD = 0x7FFFFFFF  # a NaN: what nobody writes in C stays one
MAX_SETS = 4096  # a batch launches on every set once: more would make it long and slow to build
FILL_BLOCKS, FILL_THREADS = 2048, 256


def aligned(num_bytes: int) -> int:
    """This many bytes, rounded up to where the next operand may begin."""
    return -(-num_bytes // ALIGNMENT) * ALIGNMENT


def num_sets(gemm: Gemm, l2_bytes: int, policy: CachePolicy) -> int:
    """Operand sets to rotate among: together larger than twice L2 when cold, one when warm. Problems so small
    that `MAX_SETS` sets do not exceed L2 (below about 30 KB) stay partly warm."""
    if policy is CachePolicy.WARM:
        return 1
    return min(MAX_SETS, 2 * l2_bytes // max(gemm.num_bytes, 1) + 1)


@dataclass(frozen=True)
class Region:
    """A piece of an allocation, in bytes from its start. Canaries are whole 4-byte words."""

    offset: int
    num_bytes: int

    @property
    def end(self) -> int:
        return self.offset + self.num_bytes


@dataclass(frozen=True)
class Layout:
    """The places of operands and canaries. `operands[3 * s + i]` is A, B or C (i = 0, 1, 2) of set s; canary
    g lies before operand g, the last one behind all."""

    operands: tuple[Region, ...]
    canaries: tuple[Region, ...]
    num_bytes: int


def lay_out(sizes: Sequence[int], repeats: int = 1) -> Layout:
    """Place regions of these sizes (bytes, multiples of 4), `repeats` times over, canaries around each."""
    operands: list[Region] = []
    canaries: list[Region] = []
    end = 0
    for size in (*sizes,) * repeats:
        start = aligned(end + CANARY_BYTES)
        canaries.append(Region(end, start - end))
        operands.append(Region(start, size))
        end = start + size
    canaries.append(Region(end, CANARY_BYTES))
    return Layout(tuple(operands), tuple(canaries), end + CANARY_BYTES)


def canary_name(number: int, num_canaries: int) -> str:
    """Which of the operands' canary regions this is, for a message; beyond them are the workspace's."""
    if number >= num_canaries:
        return "around the workspace"
    if number == 0:
        return "before A of set 0"
    return f"behind {'ABC'[(number - 1) % 3]} of set {(number - 1) // 3}"


@dataclass(frozen=True)
class OperandSet:
    """Device addresses of A (m, k), B (k, n), C (m, n), in FP32, stored as the Gemm says; a batch lies in a
    row. `short_a`: A in elements of two bytes, for problems that have it so."""

    a: int
    b: int
    c: int
    short_a: int = 0

    def of_a(self, a_type: str) -> int:
        """The A that a kernel reads."""
        return self.a if a_type == FP32 else self.short_a


class Buffer:
    """Device memory of one allocation. Raises EnvironmentProblem, with sizes, if there is none left."""

    def __init__(self, driver: Any, num_bytes: int, purpose: str) -> None:
        self._driver = driver
        self.num_bytes = num_bytes
        try:
            self.address = int(check(driver.cuMemAlloc, max(num_bytes, 1)))
        except CudaError as error:
            if error.code != OUT_OF_MEMORY:
                raise
            free, total = check(driver.cuMemGetInfo)
            raise EnvironmentProblem(
                f"{purpose} need {num_bytes / 2**30:.2f} GiB of GPU memory, {int(free) / 2**30:.2f} of "
                f"{int(total) / 2**30:.2f} GiB are free; use a smaller shape or free the GPU"
            ) from error

    def fill(self, word: int, region: Region, stream: Any) -> None:
        """Set every 4-byte word of a region."""
        if region.num_bytes:
            check(
                self._driver.cuMemsetD32Async,
                *(self.address + region.offset, word, region.num_bytes // 4, stream),
            )

    def fill_normal(self, kernel: EntryFunction, region: Region, seed: int, stream: Any) -> None:
        """Fill a region with random normal numbers; `kernel` is `fill_normal` of checks.cu."""
        count = region.num_bytes // FLOAT_BYTES
        if count:
            values = [
                ctypes.c_void_p(self.address + region.offset),
                ctypes.c_uint64(count),
                ctypes.c_uint64(seed),
            ]
            blocks = min(FILL_BLOCKS, -(-count // FILL_THREADS))
            kernel.launch(stream, (blocks, 1), FILL_THREADS, pack(values))

    def upload(self, data: Any, stream: Any, offset: int = 0) -> None:
        """Copy a ctypes object to this offset; returns when it is there. On the stream: a plain cuMemcpyHtoD
        may return while its DMA still runs, on another stream."""
        size = ctypes.sizeof(data)
        check(self._driver.cuMemcpyHtoDAsync, *(self.address + offset, ctypes.addressof(data), size, stream))
        check(self._driver.cuStreamSynchronize, stream)

    def free(self) -> None:
        check(self._driver.cuMemFree, self.address)


def canary_list(address: int, canaries: Sequence[Region]) -> ctypes.Array[ctypes.c_uint64]:
    """Address and number of words of each canary, as `check_canaries` reads them."""
    words = [w for c in canaries for w in (address + c.offset, c.num_bytes // 4)]
    return (ctypes.c_uint64 * len(words))(*words)


class Operands:
    """All operand sets of one problem, filled with the same random normal numbers by kernels of `checks`.
    Sets are equal, so one reference serves them all. Of an A of two-byte elements each holds both: in FP32,
    rounded to what these hold, for cuBLAS and the reference, and as candidates read it."""

    def __init__(self, driver: Any, checks: Module, gemm: Gemm, count: int, seed: int, stream: Any) -> None:
        self._driver, self._stream, self._a_type = driver, stream, gemm.a_type
        self._checks, fill_normal = checks, checks.kernel("fill_normal")
        self.layout = lay_out(replace(gemm, a_type=FP32).operand_bytes, count)
        list_offset = aligned(self.layout.num_bytes)
        self.num_bytes = list_offset + CANARY_ENTRY_BYTES * len(self.layout.canaries)
        self._buffer = Buffer(driver, self.num_bytes, f"{count} operand sets of {gemm}")
        starts = [self._buffer.address + region.offset for region in self.layout.operands]
        self._short = self._short_buffer(gemm, count) if gemm.a_type != FP32 else None
        places = ((*starts[3 * i : 3 * i + 3], self._short_a(i)) for i in range(count))
        self.sets = tuple(OperandSet(*place) for place in places)
        self._buffer.fill(CANARY_WORD, Region(0, self.layout.num_bytes), stream)
        for number, region in enumerate(self.layout.operands):
            if number % 3 == 2:
                self._buffer.fill(POISON_WORD, region, stream)
            else:
                self._buffer.fill_normal(fill_normal, region, 2 * seed + number % 3, stream)
        self._shorten()
        self.canaries = self._buffer.address + list_offset  # address of the list that check_canaries reads
        self._buffer.upload(canary_list(self._buffer.address, self.layout.canaries), stream, list_offset)

    def fill(self, kernel: EntryFunction, gemm: Gemm, kind: int, seed: int) -> None:
        """Put other numbers into A and B of all sets, of a kind; `kernel`: `fill_operand` of checks.cu."""
        (m, n, k), trans_a, trans_b = (gemm.m, gemm.n, gemm.k), gemm.trans_a, gemm.trans_b
        stored = ((k, m) if trans_a else (m, k), not trans_a), ((n, k) if trans_b else (k, n), trans_b)
        for number, region in enumerate(self.layout.operands):
            if number % 3 == 2 or not region.num_bytes:
                continue
            (rows, columns), is_k_major = stored[number % 3]
            count = region.num_bytes // FLOAT_BYTES
            place = (ctypes.c_void_p(self._buffer.address + region.offset), ctypes.c_uint64(count))
            drawn = (ctypes.c_uint64(2 * seed + number % 3), ctypes.c_int32(kind))
            extents = (ctypes.c_uint64(rows), ctypes.c_uint64(columns))
            flags = (ctypes.c_int32(is_k_major), ctypes.c_int32(number % 3 == 0))
            blocks = min(FILL_BLOCKS, -(-count // FILL_THREADS))
            kernel.launch(self._stream, (blocks, 1), FILL_THREADS, pack([*place, *drawn, *extents, *flags]))
        self._shorten()

    def _short_buffer(self, gemm: Gemm, count: int) -> Buffer:
        """For A in elements of two bytes, each between words that are two NaN."""
        self._short_layout = lay_out((-(-gemm.operand_bytes[0] // 4) * 4,), count)
        buffer = Buffer(self._driver, self._short_layout.num_bytes, f"{count} times A of {gemm}")
        buffer.fill(POISON_WORD, Region(0, buffer.num_bytes), self._stream)
        return buffer

    def _short_a(self, number: int) -> int:
        """Its address in a set; 0 without."""
        return self._short.address + self._short_layout.operands[number].offset if self._short else 0

    def _shorten(self) -> None:
        """Round A to elements of two bytes, in FP32 and in these."""
        if self._short is None:
            return
        kernel = self._checks.kernel("shorten_operand")
        for one, region in zip(self.sets, self.layout.operands[::3], strict=True):
            count = region.num_bytes // FLOAT_BYTES
            if count:
                values = [ctypes.c_void_p(one.a), ctypes.c_void_p(one.short_a), ctypes.c_uint64(count)]
                values.append(ctypes.c_int32(A_TYPES.index(self._a_type)))
                blocks = min(FILL_BLOCKS, -(-count // FILL_THREADS))
                kernel.launch(self._stream, (blocks, 1), FILL_THREADS, pack(values))

    def poison(self, number: int) -> None:
        """Make every element of C of one set NaN."""
        self._buffer.fill(POISON_WORD, self.layout.operands[3 * number + 2], self._stream)

    def free(self) -> None:
        self._buffer.free()
        if self._short is not None:
            self._short.free()


class Workspace:
    """Memory of a launch for packed operands, partial sums and counters: grows to the largest ever asked
    for. Canaries surround it, like operands."""

    def __init__(self, driver: Any, stream: Any) -> None:
        self._driver, self._stream = driver, stream
        self._buffer: Buffer | None = None
        self._layout = lay_out((0,))
        num_canaries = len(self._layout.canaries)
        self._canaries = Buffer(driver, CANARY_ENTRY_BYTES * num_canaries, "the list of canaries")
        self.canaries = self._canaries.address

    @property
    def num_canaries(self) -> int:
        """Canaries to check now: none while no memory is in use."""
        return len(self._layout.canaries) if self._layout.operands[0].num_bytes else 0

    def prepare(self, scratch_bytes: int, counter_bytes: int) -> int:
        """Room for scratch (made NaN) and counters (made zero) behind them; returns its address. Raises
        EnvironmentProblem if the GPU has too little memory left."""
        self._layout = lay_out((scratch_bytes + counter_bytes,))
        if scratch_bytes + counter_bytes == 0:
            return 0
        buffer = self._reserve(self._layout.num_bytes)
        region = self._layout.operands[0]
        buffer.fill(CANARY_WORD, Region(0, self._layout.num_bytes), self._stream)
        buffer.fill(POISON_WORD, Region(region.offset, scratch_bytes), self._stream)
        buffer.fill(0, Region(region.offset + scratch_bytes, counter_bytes), self._stream)
        self._canaries.upload(canary_list(buffer.address, self._layout.canaries), self._stream)
        return buffer.address + region.offset

    def free(self) -> None:
        self._canaries.free()
        if self._buffer is not None:
            self._buffer.free()

    def _reserve(self, num_bytes: int) -> Buffer:
        if self._buffer is not None and self._buffer.num_bytes >= num_bytes:
            return self._buffer
        if self._buffer is not None:
            check(self._driver.cuStreamSynchronize, self._stream)
            self._buffer.free()
            self._buffer = None
        self._buffer = Buffer(self._driver, num_bytes, "packed operands and partial sums")
        return self._buffer


Enqueue = Callable[[OperandSet], None]  # puts one launch on the stream


_SEED = 77


class Pool:
    """Grows to the largest ever asked for. `fill_normal` is that kernel of checks.cu."""

    def __init__(self, driver: Any, fill_normal: EntryFunction, stream: Any) -> None:
        self._driver, self._fill, self._stream = driver, fill_normal, stream
        self._read: Buffer | None = None
        self._written: Buffer | None = None

    def sets(self, operand_bytes: tuple[int, int, int], count: int) -> tuple[OperandSet, ...]:
        """This many operand sets that share nothing; `operand_bytes` are those of A, B and C of one. Raises
        EnvironmentProblem if memory is too small."""
        a_bytes, b_bytes, c_bytes = map(aligned, operand_bytes)
        step = a_bytes + b_bytes
        self._reserve(count * step, count * c_bytes)
        assert self._read is not None and self._written is not None
        a, c = self._read.address, self._written.address
        places = ((a + i * step, a + i * step + a_bytes, c + i * c_bytes) for i in range(count))
        return tuple(OperandSet(*at, short_a=at[0]) for at in places)

    def free(self) -> None:
        for buffer in filter(None, (self._read, self._written)):
            buffer.free()
        self._read = self._written = None

    def _reserve(self, read_bytes: int, written_bytes: int) -> None:
        known = [0 if buffer is None else buffer.num_bytes for buffer in (self._read, self._written)]
        if self._read is not None and known[0] >= read_bytes and known[1] >= written_bytes:
            return
        check(self._driver.cuStreamSynchronize, self._stream)
        self.free()
        self._read = Buffer(self._driver, max(read_bytes, known[0]), "numbers to time with")
        self._written = Buffer(self._driver, max(written_bytes, known[1]), "results that nobody reads")
        self._read.fill_normal(self._fill, Region(0, self._read.num_bytes), _SEED, self._stream)
