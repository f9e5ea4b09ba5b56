"""Cycles that a warp loses to the ports of the register file: a static model, run over machine code.

As Huerta and others found by experiment on Ampere and later ("Analyzing Modern NVIDIA GPU cores", 2025), for
instructions of the FMA pipe:

    bank     a warp's registers lie in two, even and odd; each has one port, which gives one operand per cycle
    window   an instruction reads its operands in WINDOW cycles from its issue on; where ports have no room
             for them in these, it waits, and all behind it
    cache    an entry per bank and place of an operand keeps what was read there as `.reuse`. Who finds its
             register there needs no port; who reads another there, or keeps it no longer, clears the entry

One warp alone issues an instruction per cycle. Left out: operands of other instructions (addresses, data to
store), other warps, whose turns lose the entries (decision 0014), and all that has no fixed latency.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from sass import RegisterRead

NUM_BANKS = 2
WINDOW = 3  # cycles


@dataclass(frozen=True)
class Ports:
    """Of one run through a loop: `stalls` in cycles, registers read by the FMA pipe, and how many of these
    reads were `hits` of the cache."""

    stalls: int
    reads: int
    hits: int


class _RegisterFile:
    """What is in the cache, and which cycles of the ports are taken."""

    def __init__(self) -> None:
        self.hits = 0
        self._kept: dict[tuple[int, int], int] = {}  # by bank and slot: a register
        self._taken: list[set[int]] = [set() for _ in range(NUM_BANKS)]  # by bank: cycles

    def look_up(self, sources: Sequence[RegisterRead]) -> Counter[int]:
        """How often each bank is to be read: for all sources that the cache does not have."""
        missing: Counter[int] = Counter()
        for source in sources:
            bank = source.register % NUM_BANKS
            entry = (bank, source.slot)
            if self._kept.get(entry) == source.register:
                self.hits += 1
            else:
                missing[bank] += 1
            self._kept.pop(entry, None)
            if source.is_kept:
                self._kept[entry] = source.register
        return missing

    def read(self, banks: Counter[int], now: int) -> int:
        """Take the ports as early as they are free, from `now` on. Returns the cycle of the issue."""
        while any(len(self._free(bank, now)) < count for bank, count in banks.items()):
            now += 1
        for bank, count in banks.items():
            self._taken[bank].update(self._free(bank, now)[:count])
        for taken in self._taken:
            taken.difference_update([cycle for cycle in taken if cycle < now])
        return now

    def _free(self, bank: int, now: int) -> list[int]:
        return [cycle for cycle in range(now, now + WINDOW) if cycle not in self._taken[bank]]


def run(loop: Sequence[tuple[RegisterRead, ...]]) -> Ports:
    """A loop's second run: what the first leaves in the cache is there. `loop`: sources of each instruction,
    none for those that the model leaves out, as `sass.Code.fma_sources` gives them."""
    registers, cycle = _RegisterFile(), 0
    for _ in range(2):
        begin, hits_before = cycle, registers.hits
        for sources in loop:
            cycle = registers.read(registers.look_up(sources), cycle) + 1
    return Ports(
        stalls=cycle - begin - len(loop),
        reads=sum(map(len, loop)),
        hits=registers.hits - hits_before,
    )
