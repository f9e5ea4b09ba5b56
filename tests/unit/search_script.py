"""A search in a process of its own, to interrupt and kill: `search_script.py DB TRIALS slow|stuck`.

Prints "started" once trials are being made, and a JSON object at the end.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from concurrent.futures import Future
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from fake_target import FakeTarget, product_space

from autotune.facts.gemm import Gemm
from autotune.search import Options, tune
from autotune.search.progress import Stopping, TrialDone
from autotune.store import Store


class SlowTarget(FakeTarget):
    """Four candidates under way; each answer takes 30 ms, or for ever."""

    def __init__(self, *, is_stuck: bool) -> None:
        super().__init__(product_space(8, 8, 8), capacity=4)
        self._is_stuck = is_stuck
        self._turn = threading.Lock()

    def submit(self, gemm, point, cutoff_us):
        future: Future = Future()
        threading.Thread(target=self._answer, args=(future, gemm, point), daemon=True).start()
        return future

    def _answer(self, future, gemm, point) -> None:
        with self._turn:
            if not future.set_running_or_notify_cancel():
                return
            if self._is_stuck:
                print("started", flush=True)  # not earlier: a signal before a candidate is under way ends it
                time.sleep(1e6)
            time.sleep(0.03)
            future.set_result(self.measure(gemm, point))


def main() -> None:
    db, trials, kind = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    notes = []

    def on_event(event) -> None:
        if isinstance(event, TrialDone):
            notes.append(event.key)
        if isinstance(event, Stopping):
            print("stopping", flush=True)
        if len(notes) == 3:
            print("started", flush=True)

    with Store.open(db) as store:
        target = SlowTarget(is_stuck=kind == "stuck")
        result = tune(target, store, [Gemm(64, 64, 64)], Options(trials=trials), on_event)
    print(json.dumps({"reason": result.reason, "num_new": result.num_new, "told": notes}))


if __name__ == "__main__":
    main()
