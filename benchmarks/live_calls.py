"""Settles call signatures as a routed program does (core/live.h): on calls, with cuBLAS in torch's place.

The GPU is busy before each call, with what also takes the operands out of L2. Used by any_shape.py.
"""

from __future__ import annotations

import ctypes
import time
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from contest import Arena
from table_arena import CUBLAS, name_of, stored

from autotune.gpu.driver import check
from autotune.gpu.memory import Buffer, OperandSet, Region
from autotune.runtime.calls.product import Forms
from autotune.runtime.choose.chooser import Call, offsets_of
from autotune.runtime.dispatcher import Dispatcher
from autotune.runtime.launch.planner import key_of
from autotune.runtime.torch.routed_engine import Decided, RoutedSignatures

BUSY_BYTES = 1 << 28  # more than any L2: it is written for longer than the host takes to make a call
MOST_S = 1.0  # of calls: those of the shortest products pay for their samples within it
MOST_AHEAD = 16  # calls that the host is ahead: a sample counts when the GPU has passed it


class LiveCalls:
    """Calls of products that a table's launches and cuBLAS serve in turns until they are settled."""

    def __init__(self, arena: Arena, dispatcher: Dispatcher, keep_busy: Callable[[], None]) -> None:
        self._arena, self._keep_busy, self._stream = arena, keep_busy, int(arena.session.stream)
        engines, _ = dispatcher._on_gpus()
        self._wait = partial(check, arena.session.driver.cuStreamSynchronize, self._stream)
        self._kinds: RoutedSignatures = engines.routed_signatures(has_bias=False)

    @classmethod
    def on(cls, arena: Arena, folder: Path) -> LiveCalls:
        """Of an exported table, on the GPU of an arena."""
        other = Buffer(arena.session.driver, BUSY_BYTES, "what keeps the GPU busy")
        keep_busy = partial(other.fill, 0, Region(0, BUSY_BYTES), arena.session.stream)
        return cls(arena, Dispatcher(folder, settle="live-any-order"), keep_busy)

    def settled(self, call: Call, sets: Sequence[OperandSet]) -> dict[str, Any]:
        """What serves such calls in the end, how many calls and samples that took, and what the samples lost
        against as many calls of it, in its calls (`cost_calls`; the host's time is not among it)."""
        decided = self._decided(call, sets[0])
        if decided.live is None:
            return {"name": _name(decided), "is_settled": True, "num_samples": 0, "cost_calls": 0.0}
        sampled, num_calls, ends_s = Counter[int](), 0, time.monotonic() + MOST_S
        while not decided.live.state().is_settled and time.monotonic() < ends_s:
            number = self._call(decided, call, sets[num_calls % len(sets)])
            sampled[number] += 1
            num_calls += 1
            if num_calls % MOST_AHEAD == 0:
                self._wait()
        state = decided.live.state()
        gpu_us = [round(us, 3) for us, _ in state.times_us]
        own_us = gpu_us[state.winner]
        lost_us = sum(num * max(gpu_us[i] - own_us, 0.0) for i, num in sampled.items() if i >= 0)
        return {
            "name": _name(decided.rivals[state.winner]), "is_settled": state.is_settled,
            "is_dropped": state.is_dropped, "limited_by": state.limited_by, "reason": state.reason,
            "num_calls": num_calls, "num_samples": state.num_samples,
            "gpu_us": dict(zip(map(_name, decided.rivals), gpu_us, strict=True)),
            "cost_calls": round(lost_us / own_us, 3) if own_us else 0.0,
        }  # fmt: skip

    def _decided(self, call: Call, operands: OperandSet) -> Decided:
        gemm, (lda, ldb, ldc) = call.gemm, call.lds
        stored_a, stored_b, stored_c = stored(gemm)
        forms: Forms = ((*stored_a, lda, 1), (*stored_b, ldb, 1), (*stored_c, ldc, 1))
        batch = call.batch if gemm.is_batched else None
        at = offsets_of((operands.a, operands.b, operands.c))
        index = self._arena.gpu.index
        return self._kinds.decide(key_of((index,) * 3, forms, at, gemm.trans_a, gemm.trans_b, batch))

    def _call(self, decided: Decided, call: Call, operands: OperandSet) -> int:
        """The number of the rival that was sampled, or -1."""
        core, stream = self._kinds._engine_of(self._arena.gpu.index).core, self._stream
        assert decided.live is not None
        turn, at = core.library.structs.turn(), (operands.a, operands.b, operands.c, 0)
        self._keep_busy()
        core.library.autotune_begin_turn(decided.live.address, stream, ctypes.byref(turn))
        if turn.is_left_alone:
            self._arena.cublas().sgemm(call.gemm, operands, lds=call.lds)
            is_done = True
        else:
            is_done = not core.library.autotune_run_plan(core.handle, turn.plan, stream, *at, 1.0, 0.0)
        core.library.autotune_end_turn(decided.live.address, stream, ctypes.byref(turn), is_done)
        return int(turn.number)


def _name(decided: Decided) -> str:
    return CUBLAS if decided.reason or decided.pick is None else name_of(decided.pick)
