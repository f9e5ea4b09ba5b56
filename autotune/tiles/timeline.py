"""When the tiles of a block are copied, waited for and multiplied, step by step: kernels/pipeline.cuh.

Tile t is multiplied in step t, from stage t % stages. Its copy starts stages - 1 steps before, or as the
pipeline is filled. With one stage there is nowhere to copy ahead to: registers hold the next tile, or its
copy waits for the end of the step.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ..kernel.config import Config

Doing = Literal["free", "start", "flight", "there", "multiply"]
Ending = Literal["", "wait", "store"]
FILL = -1  # the step before the first
_MOST_SHOWN = 24  # steps


@dataclass(frozen=True)
class PlaceState:
    """What becomes of a place for a tile in a step. `ends`: what every thread does before the barrier."""

    tile: int | None
    doing: Doing
    ends: Ending = ""


@dataclass(frozen=True)
class Timeline:
    """The steps of a block with so many tiles of k."""

    config: Config
    num_tiles: int

    @property
    def steps(self) -> list[int]:
        """The steps to be drawn: all, or of many the first and the last, which differ from the others."""
        last = self.num_tiles
        half = max(self.config.stages + 2, _MOST_SHOWN // 2)
        return [FILL, *(t for t in range(last) if t < half or t >= last - half)]

    def stage(self, stage: int, operand: str, step: int) -> PlaceState:
        """The place of an operand's tile in a stage."""
        c = self.config
        if step >= 0 and step % c.stages == stage:
            ends = self._ends(step + 1, operand, step) if c.stages == 1 else ""
            return PlaceState(step, "multiply", ends)
        tile = self._next_in(stage, step)
        if tile >= self.num_tiles or self.start(tile) > step:
            return PlaceState(None, "free")
        if self._is_async(operand):
            doing: Doing = "start" if self.start(tile) == step else "flight"
            return PlaceState(tile, doing, self._ends(tile, operand, step))
        if self.start(tile) == step:
            return PlaceState(tile, "free", "store")
        return PlaceState(tile, "there")

    def registers(self, operand: str, step: int) -> PlaceState:
        """The registers through which an operand's tiles pass."""
        loaded = [tile for tile in self._started_in(step) if not self._is_async(operand)]
        if not loaded:
            return PlaceState(None, "free")
        return PlaceState(loaded[0] if step >= 0 else loaded[-1], "start", "store")

    def start(self, tile: int) -> int:
        """The step in which the copy of a tile starts."""
        return FILL if tile == 0 else max(FILL, tile - max(self.config.stages - 1, 1))

    def descriptions(self, step: int) -> list[str]:
        """What happens in a step, to be read."""
        c = self.config
        started = self._started_in(step)
        notes = []
        is_late = c.stages == 1 and "async" in (c.copy_a, c.copy_b) and step >= 0
        if started and not is_late:
            parts = f", in {c.bursts} bursts spread over the step" if c.bursts > 1 and step >= 0 else ""
            notes.append(f"The copy of {_tiles(started)} starts{parts}.")
        elif step >= 0 and not started:
            notes.append("Nothing is left to copy: the pipeline drains.")
        if step >= 0:
            notes.append(
                f"Tile {step} is read from stage {step % c.stages} and multiplied, k by k: "
                f"{c.bk // c.slice_k} k" + (f" in each of {c.slice_k} slices." if c.slice_k > 1 else ".")
            )
        if started and c.stages == 1 and step >= 0:
            notes.append("A barrier: all have read the only stage, which may be overwritten.")
            if is_late:
                notes.append(f"The copy of {_tiles(started)} starts.")
        through = [name for name, path in (("A", c.copy_a), ("B", c.copy_b)) if path == "register"]
        if started and through:
            notes.append(f"What came through registers is stored to shared memory ({' and '.join(through)}).")
        coming = step + 1
        if coming < self.num_tiles:
            if len(through) < 2:
                notes.append(f"Every thread waits for its own copies of tile {coming}.")
            free = ", and the stage read last may be overwritten" if c.stages > 1 and step >= 0 else ""
            notes.append(f"A barrier: tile {coming} is whole{free}.")
            if c.frag_buffers > 1 and step >= 0:
                notes.append("With two fragment buffers this stands before the last k instead of after it.")
        elif step >= 0:
            notes.append("It was the last tile: the sums are complete.")
        return notes

    def _started_in(self, step: int) -> list[int]:
        first = step + max(self.config.stages - 1, 1)
        candidates = range(max(1, self.config.stages - 1)) if step == FILL else (first,)
        return [tile for tile in candidates if tile < self.num_tiles]

    def _next_in(self, stage: int, step: int) -> int:
        """The tile that is multiplied from this stage next."""
        return step + 1 + (stage - step - 1) % self.config.stages

    def _is_async(self, operand: str) -> bool:
        return (self.config.copy_a if operand == "A" else self.config.copy_b) == "async"

    def _ends(self, tile: int, operand: str, step: int) -> Ending:
        if tile != step + 1 or tile >= self.num_tiles:
            return ""
        return "wait" if self._is_async(operand) else "store"


def _tiles(numbers: list[int]) -> str:
    if len(numbers) == 1:
        return f"tile {numbers[0]}"
    return f"tiles {', '.join(map(str, numbers[:-1]))} and {numbers[-1]}"
