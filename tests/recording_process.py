"""A process that calls an exported table and records: run by tests, which count what it wrote.

    python recording_process.py TABLE FILE NUM SEED     NUM calls, then it ends; NUM 0: until it is killed

After each call it appends a byte to standard output.
"""

from __future__ import annotations

import os
import random
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "unit"))

import numpy as np
from table_cases import FakeDriver, OnGpu

from autotune.runtime.dispatcher import Dispatcher
from autotune.runtime.table.table import load

NUM_KINDS = 30


def main(folder: str, file: str, num: int, seed: int) -> None:
    runtime = Dispatcher(folder, driver=FakeDriver(load(Path(folder))))
    runtime.record_calls(file)
    rng, made = random.Random(seed), 0
    while not num or made < num:
        m = rng.randrange(1, NUM_KINDS)
        a, b, c = (OnGpu(np.ones(shape, np.float32)) for shape in ((m, 8), (8, 4), (m, 4)))
        runtime.sgemm(a, b, c)
        made += 1
        os.write(1, b".")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
