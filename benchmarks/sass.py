"""What a cubin's machine code consists of, without a disassembler: instructions, loops, operands.

A cubin is an ELF file of 64 bits, the code of an entry its section `.text.ENTRY`. From compute capability 7.0
on an instruction is 16 bytes: the low nine bits name the operation, the next three where its operands come
from (registers, constants, immediates), a branch holds the distance to its target, counted from the
instruction behind it, and a register is a byte of its own. None of this is documented by the vendor. It was
read off nvdisasm's output for sm_75 to sm_120: tests/compile/test_compiler_figures.py holds it against what
the template must compile to, test_ports.py registers against nvdisasm where that is installed.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from autotune.files.errors import UsageError
from autotune.kernel.machine_code import sections

INSTRUCTION_BYTES = 16
_HOPPER = 90  # the first architecture whose branches keep the low bits of their distance apart
_OPERATION_BITS = 9
_BRANCH, _NOP = 0x147, 0x118
_FORM_SHIFT, _FORM_BITS = 9, 0b111
_THREE_SOURCES = (0x23, 0x24, 0x25, 0x27)  # FFMA, IMAD, IMAD.WIDE, IMAD.HI; FMUL and FADD have two
_ALL_REGISTERS = 1  # the form whose operands all are; of others one comes from elsewhere
_ELSEWHERE_IS_LAST = (2, 3, 7)  # forms whose third operand comes from elsewhere: it takes the second's place
_NO_REGISTER = 255  # RZ, which reads as zero
_KEEP_SHIFT = 58  # of the high 8 bytes: a bit per operand, `.reuse` in nvdisasm's text
# The kinds of instruction that are told apart, by operation; an instruction may be of several.
KINDS: dict[str, tuple[int, ...]] = {
    "ffma": (0x23,),
    "ffma2": (0x49,),  # two FMAs of neighbours in registers; sm_100 to sm_107
    "fma_pipe": (0x20, 0x21, 0x23, 0x24, 0x25, 0x27),  # FMUL, FADD, FFMA, IMAD, IMAD.WIDE, IMAD.HI
    "warpgroup_mmas": (0x1F0,),  # of tensor cores, sm_90a
    "shared_loads": (0x184,),
    "shared_stores": (0x188,),
    "global_loads": (0x181,),
    "async_copies": (0x1AE,),
    "barriers": (0x11D,),
}


@dataclass(frozen=True)
class Counts:
    """Instructions of a stretch of code: all, and how many of each of KINDS."""

    instructions: int
    kinds: dict[str, int]

    def __add__(self, other: Counts) -> Counts:
        kinds = {name: count + other.kinds[name] for name, count in self.kinds.items()}
        return Counts(self.instructions + other.instructions, kinds)

    def __mul__(self, times: int) -> Counts:
        kinds = {name: count * times for name, count in self.kinds.items()}
        return Counts(self.instructions * times, kinds)

    @property
    def num_bytes(self) -> int:
        return self.instructions * INSTRUCTION_BYTES


@dataclass(frozen=True)
class Loop:
    """A backward branch: the instructions from its target, `first`, to itself, `last`."""

    first: int
    last: int

    def __len__(self) -> int:
        return self.last + 1 - self.first

    def encloses(self, other: Loop) -> bool:
        return self != other and self.first <= other.first and other.last <= self.last


@dataclass(frozen=True)
class RegisterRead:
    """A register that an instruction reads as its operand number `slot`, from 0. `is_kept`: for instructions
    behind it that read the same register in the same place."""

    slot: int
    register: int
    is_kept: bool


class Code:
    """The instructions of one entry of a cubin. Raises UsageError for what is none."""

    def __init__(self, cubin: bytes, entry: str, arch: str) -> None:
        words = np.frombuffer(_section(cubin, f".text.{entry}"), dtype="<u8")
        if not len(words) or len(words) % 2:
            raise UsageError(f"the code of {entry} is not made of instructions of {INSTRUCTION_BYTES} bytes")
        first = words[::2]
        operations = (first & ((1 << _OPERATION_BITS) - 1)).astype(int)
        length = int(np.flatnonzero(operations != _NOP)[-1]) + 1  # NOPs fill up the last line
        self.operations = operations[:length]
        self._words = words[: 2 * length].reshape(length, 2)  # low and high 8 bytes of each
        self.loops = _loops(first[:length], self.operations, int(arch.removeprefix("sm_")))

    def count(self, loop: Loop | None = None) -> Counts:
        """Of a loop, or of all the code. Both sides of a branch count: what is skipped at times, too."""
        part = self.operations if loop is None else self.operations[loop.first : loop.last + 1]
        kinds = {name: int(np.isin(part, numbers).sum()) for name, numbers in KINDS.items()}
        return Counts(len(part), kinds)

    def fma_sources(self, loop: Loop) -> list[tuple[RegisterRead, ...]]:
        """What each instruction of a loop reads if the FMA pipe executes it; nothing for all others."""
        segment = slice(loop.first, loop.last + 1)
        pairs = zip(self.operations[segment], self._words[segment], strict=True)
        return [_sources(int(op), *map(int, pair)) if op in KINDS["fma_pipe"] else () for op, pair in pairs]

    def main_loop(self) -> Loop:
        """The loop that holds the most FMAs: of such that hold each other, the innermost."""

        def num_fmas(loop: Loop) -> int:
            kinds = self.count(loop).kinds
            return kinds["ffma"] + 2 * kinds["ffma2"]

        most = max(self.loops, key=lambda loop: (num_fmas(loop), -len(loop)), default=None)
        if most is None or not num_fmas(most):
            raise UsageError("no loop of this kernel holds an FFMA: nothing of it can be said")
        return most

    def around(self, loop: Loop) -> Loop:
        """The innermost loop that encloses this one."""
        outer = [other for other in self.loops if other.encloses(loop)]
        if not outer:
            raise UsageError("no loop encloses the innermost: this kernel is not built as expected")
        return min(outer, key=len)


def _sources(operation: int, low: int, high: int) -> tuple[RegisterRead, ...]:
    """The registers that an instruction of the FMA pipe reads, of its low and high 8 bytes."""
    form = low >> _FORM_SHIFT & _FORM_BITS
    places = {0: low >> 24}
    if form == _ALL_REGISTERS:
        places[1] = low >> 32
    if operation in _THREE_SOURCES:
        places[1 if form in _ELSEWHERE_IS_LAST else 2] = high
    read = [(slot, place & 0xFF) for slot, place in places.items()]
    return tuple(
        RegisterRead(slot, register, bool(high >> _KEEP_SHIFT + slot & 1))
        for slot, register in read
        if register != _NO_REGISTER
    )


def _loops(first: np.ndarray, operations: np.ndarray, arch: int) -> list[Loop]:
    """All backward branches. `first`: the low 8 bytes of each instruction."""
    found = []
    for at in np.flatnonzero(operations == _BRANCH):
        target = int(at) + 1 + _distance(int(first[at]), arch) // INSTRUCTION_BYTES
        if not 0 <= target <= len(operations):
            raise UsageError(f"instruction {at} branches out of the code: this is no code of sm_{arch}")
        if target <= at:
            found.append(Loop(target, int(at)))
    return found


def _distance(word: int, arch: int) -> int:
    """Bytes from behind a branch to its target: a signed number of 4-byte units in bits 34 and up, and from
    sm_90 on its low eight bits in bits 16 to 23."""
    high = (word >> 34) - (1 << 30 if word >> 63 else 0)
    return 4 * ((high << 8) + (word >> 16 & 0xFF) if arch >= _HOPPER else high)


def _section(elf: bytes, name: str) -> bytes:
    """The content of a section of a cubin."""
    try:
        return sections(elf)[name].content
    except KeyError:
        raise UsageError(f"this cubin has no section {name}") from None
