"""A database as large as commands have to bear: `python tests/large_database.py FILE [SHAPES [TRIALS]]`.

The trials of a small one (browser/many_trials.py), copied in SQL: under other configs until a shape has its
number, and whole shapes, with their finals, under other extents.
"""

from __future__ import annotations

import json
import random
import sqlite3
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "browser"))

import many_trials

from autotune.kernel import same_code, template
from autotune.kernel.config import PARAMETERS

NUM_TRIALS = 907_800
_OF_ONE = 1500  # trials of a shape that are copied
_OWN_SHAPES = 26  # that a small one has at most
_COPIED = (
    "outcome, reason, samples_us, is_cut_short, error_ratio, error_over_cublas, registers, spill_bytes,"
    " smem_bytes, compile_s, verify_s, measure_s, sm_clock_mhz, memory_clock_mhz, power_w, temperature_c,"
    " throttle_reasons, marks, discarded, origin"
)


def write(path: Path, num_shapes: int = 4, num_trials: int = NUM_TRIALS) -> None:
    """Fill a new database, as one search of as many seconds as it takes at 45 trials/s."""
    each, num_own = num_trials // num_shapes, min(num_shapes, _OWN_SHAPES)
    many_trials.write(path, num_own, num_own * min(each, _OF_ONE))
    with sqlite3.connect(path) as db:
        kept_as = same_code.kept_as(template.source_hash())  # so that it can be exported
        db.execute("UPDATE kernel SET source_hash = ?", (kept_as,))
        studies = [row[0] for row in db.execute("SELECT id FROM study")]
        _copy_trials(db, studies, each - min(each, _OF_ONE))
        for number in range(num_own, num_shapes):
            _copy_shape(db, studies[number % num_own], 8 * (number // num_own))
    db.close()


def _copy_trials(db: sqlite3.Connection, studies: list[int], num: int) -> None:
    """So many more of each study."""
    first = db.execute("SELECT max(id) FROM config").fetchone()[0] + 1
    db.executemany("INSERT INTO config (id, key, point) VALUES (?, ?, ?)", _configs(first, num))
    for study in studies if num else ():
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


def _copy_shape(db: sqlite3.Connection, study: int, more: int) -> None:
    """A study of a larger m and n, with all that belongs to it."""
    own = {"m": f"m + {more}", "n": f"n + {more}"}
    new = _copied(db, "study", own, f"id = {study}")
    baseline = _copied(db, "baseline", {"study_id": new}, f"study_id = {study}")
    final = db.execute(f"SELECT max(id) FROM final WHERE study_id = {study}").fetchone()[0]
    other = _copied(db, "final", {"study_id": new, "baseline_id": baseline}, f"id = {final}")
    _copied(db, "final_entry", {"final_id": other}, f"final_id = {final}")
    _copied(db, "trial", {"study_id": new}, f"study_id = {study}")


def _copied(db: sqlite3.Connection, table: str, changed: dict[str, object], which: str) -> int:
    """Copy rows with some columns changed; returns the id of the last."""
    names = [row[1] for row in db.execute(f"PRAGMA table_info({table})") if row[1] != "id"]
    values = [str(changed.get(name, name)) for name in names]
    query = f"INSERT INTO {table} ({', '.join(names)}) SELECT {', '.join(values)} FROM {table} WHERE {which}"
    return db.execute(query).lastrowid or 0


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
