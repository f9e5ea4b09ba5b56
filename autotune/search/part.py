"""What one of several processes does of a search: each has a GPU, and takes shapes from those that are left.

With seconds each begins its share at once. Else a GPU has few shapes at a time, and takes the next one when
it is about to become free. Where there are fewer shapes than GPUs, several divide the configs of one
(store/claims.py)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from ..facts.gemm import Gemm
from ..kernel.compiler import Helpers


@dataclass(frozen=True)
class Part:
    """`begin(listed, by_clock)`: the shapes to begin with, of all that the search is for. `more(num_open)`:
    those to begin besides, asked from time to time with the number of those that have not ended. `helpers`:
    who compiles besides, elsewhere."""

    begin: Callable[[Sequence[Gemm], bool], Sequence[Gemm]]
    more: Callable[[int], Sequence[Gemm]]
    helpers: Helpers | None = None


@dataclass
class Dispenser:
    """Which of several GPUs of one model has which shapes. `of`: how many GPUs there are."""

    of: int
    ahead: int = 2  # shapes that a GPU has: while one ends, the other keeps it busy
    _holders: dict[Gemm, set[int]] = field(default_factory=dict)  # of each shape: who has it, or had it

    def begin(self, gpu: int, listed: Sequence[Gemm], by_clock: bool) -> list[Gemm]:
        """What the GPU of this number begins with. All GPUs list the same shapes."""
        for number, gemm in enumerate(listed):
            self._holders.setdefault(gemm, {number % self.of} if by_clock else set())
        own = [gemm for gemm in listed if gpu in self._holders[gemm]]
        own = own or self._free[: self.ahead if len(self._free) >= self.ahead * self.of else 1]
        return self._give(gpu, own or self._least_held)

    def more(self, gpu: int, num_open: int) -> list[Gemm]:
        """What this GPU begins besides: with seconds only what another has lost."""
        return self._give(gpu, self._free[: max(0, self.ahead - num_open)])

    def lose(self, gpu: int) -> None:
        """This GPU ended before its shapes did."""
        for holders in self._holders.values():
            holders.discard(gpu)

    @property
    def _free(self) -> list[Gemm]:
        return [gemm for gemm, holders in self._holders.items() if not holders]

    @property
    def _least_held(self) -> list[Gemm]:
        """One that the fewest GPUs search: there are fewer shapes than GPUs."""
        return sorted(self._holders, key=lambda gemm: len(self._holders[gemm]))[:1]

    def _give(self, gpu: int, gemms: list[Gemm]) -> list[Gemm]:
        for gemm in gemms:
            self._holders[gemm].add(gpu)
        return gemms
