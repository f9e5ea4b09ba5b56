"""Memory for products that are timed and not checked: normal numbers to read, and room to write.

Many products share it, each from its beginning on: nothing is filled or freed between them. What kernels
write is never read, so that numbers do not grow from product to product.
"""

from __future__ import annotations

import ctypes
from typing import Any

from ..gemm import FLOAT_BYTES, Gemm
from .driver import check
from .memory import ALIGNMENT, FILL_BLOCKS, FILL_THREADS, Buffer, OperandSet
from .module import EntryFunction, pack

_SEED = 77


def _aligned(num_bytes: int) -> int:
    return -(-num_bytes // ALIGNMENT) * ALIGNMENT


class Pool:
    """Grows to the largest ever asked for. `fill_normal` is that kernel of checks.cu."""

    def __init__(self, driver: Any, fill_normal: EntryFunction, stream: Any) -> None:
        self._driver, self._fill, self._stream = driver, fill_normal, stream
        self._read: Buffer | None = None
        self._written: Buffer | None = None

    def sets(self, gemm: Gemm, count: int) -> tuple[OperandSet, ...]:
        """So many operand sets that share nothing. Raises EnvironmentProblem where memory is too small."""
        a_bytes, b_bytes, c_bytes = map(_aligned, gemm.operand_bytes)
        step = a_bytes + b_bytes
        self._reserve(count * step, count * c_bytes)
        assert self._read is not None and self._written is not None
        a, c = self._read.address, self._written.address
        return tuple(OperandSet(a + i * step, a + i * step + a_bytes, c + i * c_bytes) for i in range(count))

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
        self._fill_with_numbers(self._read)

    def _fill_with_numbers(self, buffer: Buffer) -> None:
        count = buffer.num_bytes // FLOAT_BYTES
        values = [ctypes.c_void_p(buffer.address), ctypes.c_uint64(count), ctypes.c_uint64(_SEED)]
        blocks = min(FILL_BLOCKS, -(-count // FILL_THREADS))
        if blocks:
            self._fill.launch(self._stream, (blocks, 1), FILL_THREADS, pack(values))
