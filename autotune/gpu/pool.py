"""Memory for products that are timed and not checked: normal numbers to read, and room to write.

Many products share it, each from its start: nothing is filled or freed between them. What kernels
write is never read, so that numbers do not grow from product to product.
"""

from __future__ import annotations

from typing import Any

from .driver import check
from .memory import Buffer, OperandSet, Region, aligned
from .module import EntryFunction

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
        self._read.fill_normal(self._fill, Region(0, self._read.num_bytes), _SEED, self._stream)
