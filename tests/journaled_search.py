"""The command line with a journal, to be killed: `journaled_search.py JOURNAL DELAY_S search ...`.

Every line of the journal is written at once and survives `kill -9`; it is a JSON object:

    {"asked": KEY}     a point was submitted
    {"measured": KEY}  its measurement came in: a recording answers DELAY_S later, a GPU when it is done
    {"told": KEY}      its trial was told of as stored

What is searched, stored and printed is what `python -m autotune search ...` does.
"""

from __future__ import annotations

import json
import os
import sys
import time
from functools import partial

import carried

from autotune import target_finder as targets
from autotune.cli import app, search
from autotune.gpu.gpu_target import GpuTarget
from autotune.recording.replay import ReplayTarget
from autotune.search.progress import TrialDone
from autotune.target import point_key


class Journal:
    """Appends lines, each by one system call: whole or not there."""

    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def __call__(self, what: str, key: str) -> None:
        os.write(self._file, json.dumps({what: key}).encode() + b"\n")


def main(path: str, delay: str, *arguments: str) -> None:
    delay_s = float(delay)
    note = Journal(path)

    class SlowReplay(ReplayTarget):
        def submit(self, gemm, point, cutoff_us):
            note("asked", point_key(point))
            time.sleep(delay_s)
            future = super().submit(gemm, point, cutoff_us)
            note("measured", point_key(point))
            return future

    class JournaledGpu(GpuTarget):
        def submit(self, gemm, point, cutoff_us):
            note("asked", point_key(point))
            return self._journaled(point, super().submit(gemm, point, cutoff_us))

        def submit_compiled(self, gemm, point, cutoff_us):
            note("asked", point_key(point))
            return self._journaled(point, super().submit_compiled(gemm, point, cutoff_us))

        def _journaled(self, point, future):
            future.add_done_callback(partial(self._journal, point_key(point)))
            return future

        @staticmethod
        def _journal(key, future) -> None:
            if not future.cancelled() and future.exception() is None:
                note("measured", key)

    class JournaledPainter(search.EventPrinter):
        def __call__(self, event) -> None:
            if isinstance(event, TrialDone):
                note("told", event.key)
            super().__call__(event)

    targets.ReplayTarget, targets.GpuTarget = SlowReplay, JournaledGpu
    search.EventPrinter = JournaledPainter
    sys.argv = ["autotune", *arguments]
    app.main()


if __name__ == "__main__":
    main(*sys.argv[1:])
else:  # others are forked from this process
    carried.learn("h200")
