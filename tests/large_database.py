"""A database as large as commands have to bear: `python tests/large_database.py FILE [SHAPES [TRIALS]]`.

The trials of a small one (browser/many_trials.py), copied in SQL under other configs until there are so many.
"""

from __future__ import annotations

import json
import random
import sqlite3
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "browser"))

import many_trials

from autotune.kernel.config import PARAMETERS

NUM_TRIALS = 907_800
_OF_ONE = 1500  # trials of a shape that are copied
_COPIED = (
    "outcome, reason, samples_us, is_cut_short, error_ratio, error_over_cublas, registers, spill_bytes,"
    " smem_bytes, compile_s, verify_s, measure_s, sm_clock_mhz, memory_clock_mhz, power_w, temperature_c,"
    " throttle_reasons, marks, discarded, origin"
)


def write(path: Path, num_shapes: int = 4, num_trials: int = NUM_TRIALS) -> None:
    """Fill a new database, as one search of as many seconds as it takes at 45 trials/s."""
    each = num_trials // num_shapes
    many_trials.write(path, num_shapes, num_shapes * min(each, _OF_ONE))
    with sqlite3.connect(path) as db:
        studies = [row[0] for row in db.execute("SELECT id FROM study")]
        first = db.execute("SELECT max(id) FROM config").fetchone()[0] + 1
        missing = max(0, each - min(each, _OF_ONE))
        db.executemany("INSERT INTO config (id, key, point) VALUES (?, ?, ?)", _configs(first, missing))
        for study in studies:
            own = f"SELECT row_number() OVER () AS number, * FROM trial WHERE study_id = {study}"
            db.execute(f"CREATE TEMP TABLE own AS {own}")
            (num_own,) = db.execute("SELECT count(*) FROM own").fetchone()
            db.execute(
                f"INSERT INTO trial (study_id, config_id, time_us, created_at, {_COPIED})"
                f" SELECT {study}, config.id, time_us * (1.05 + (config.id * 7919 % 1000) / 1000.0),"
                f" datetime(created_at, '+' || (config.id / 45.0) || ' seconds') || '.000000', {_COPIED}"
                f" FROM config JOIN own ON own.number = 1 + (config.id * 31 % {num_own})"
                f" WHERE config.id >= {first}"
            )
            db.execute("DROP TABLE own")
    db.close()


def _configs(first: int, num: int):
    rng, known = random.Random(1), set()
    while len(known) < num:
        point = {p.name: rng.choice(p.values) for p in PARAMETERS}
        key = ",".join(f"{name}={value}" for name, value in point.items())
        if key not in known:
            known.add(key)
            yield first + len(known) - 1, key, json.dumps(point, separators=(",", ":"))


if __name__ == "__main__":
    write(Path(sys.argv[1]), *map(int, sys.argv[2:]))
