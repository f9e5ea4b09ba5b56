"""One kernel for seconds, nearly without pause: its times while the GPU heats up, and the GPU's state."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from autotune.facts.measurement import GpuState
from autotune.gpu.memory import Enqueue, OperandSet
from autotune.gpu.session import Session
from autotune.gpu.timer import LaunchGraph

_BATCHES = 5  # graphs queued at once
_BATCH_US = 100_000.0


@dataclass(frozen=True)
class Spell:
    """About half a second of one kernel: `time_us` is the mean of its launches."""

    time_us: float
    num_launches: int
    state: GpuState


def sustain(
    session: Session, enqueue: Enqueue, sets: Sequence[OperandSet], launch_us: float, seconds: float
) -> list[Spell]:
    """Launch nearly without pause for this many seconds of the GPU's time.

    `launch_us` is the approximate time of a launch. Clocks and power are read once in each spell.
    """
    clock = session.timer
    passes = max(1, round(_BATCH_US / (launch_us * len(sets))))
    batch = LaunchGraph(session.driver, session.stream, enqueue, sets, passes * len(sets))
    spells: list[Spell] = []
    left_us = seconds * 1e6
    try:
        while left_us > 0:
            clock.state = GpuState()
            spell_us = sum(clock.intervals_us([batch.replay] * _BATCHES))
            launches = _BATCHES * batch.launches
            spells.append(Spell(spell_us / launches, launches, clock.state))
            left_us -= spell_us
        return spells
    finally:
        batch.close()
