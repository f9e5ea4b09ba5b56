"""A damaged row is named and left out; everything else goes on."""

from __future__ import annotations

import random
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import mutations
import optuna
import pytest
from fake_target import FakeTarget
from store_cases import COMPILER, H200, SQUARE, add, config, failed, ok

from autotune.cli import common, one_trial, trials
from autotune.cli.report import contents, numbers_of
from autotune.cli.requests import BestRequest, DiffRequest, FailuresRequest, HistoryRequest, ShowRequest
from autotune.export.from_store import read_results
from autotune.facts.device import KNOWN
from autotune.facts.gemm import Gemm
from autotune.facts.measurement import Discarded, Outcome
from autotune.files.errors import AutotuneError, DispatchError, StoreError, UsageError
from autotune.kernel import template
from autotune.report import page
from autotune.search import Options, tune
from autotune.search_policy import SearchPolicy
from autotune.store import ComparisonRecord, FinalEntry, Store
from autotune.store.optuna_storage import OptunaStorage
from autotune.target import Baseline

pytestmark = pytest.mark.timeout(24 * 3600)  # any number of mutations
OTHER = Gemm(64, 64, 64)
TABLES = (
    "environment", "kernel", "config", "study", "trial", "baseline", "duel", "final", "final_entry"
)  # fmt: skip
NUM_VALUES = mutations.NUM or 75
NUM_BYTES = mutations.NUM or 20


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database with something in every table, whose columns take NULL, too."""
    path = tmp_path_factory.mktemp("whole") / "whole.db"
    with Store.open(path) as store:
        for gemm in (SQUARE, OTHER):
            study = store.study(H200, template.source_hash(), COMPILER, gemm)
            for number in range(4):
                discarded = (Discarded((5.0, 6.0), ("drift",)),)
                add(store, study, number, replace(ok(3.0 + number), marks=("drift",), discarded=discarded))
            add(store, study, 5, failed())
            add(store, study, 7, failed(Outcome.SPILLED, "8 bytes"))
            store.add_baseline(study, Baseline(4.0, (4.0, 4.5)))
            keys = (config(0).key, config(1).key)
            store.add_comparison(study, ComparisonRecord(keys, ((3.0,) * 20, (4.0,) * 20), 0))
            entries = [
                FinalEntry(config(n).key, config(n).to_dict(), n + 1, n < 2, 3.0 + n, (3.0 + n,) * 9, 1e-3)
                for n in range(3)
            ]
            store.set_final(study, entries, Baseline(4.0, (4.0,)), ("drift",))
        tune(FakeTarget(), store, [OTHER], Options(trials=8, policy=SearchPolicy(num_finalists=3)))
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA writable_schema = ON")
    connection.execute("UPDATE sqlite_master SET sql = replace(sql, ' NOT NULL,', ',')")
    connection.commit()
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    connection.close()
    return path


@pytest.fixture
def path(whole: Path, tmp_path: Path) -> Path:
    return Path(shutil.copy(whole, tmp_path / "damaged.db"))


@contextmanager
def opened(path: Path) -> Iterator[sqlite3.Connection]:
    """A connection that takes whatever is written."""
    connection = sqlite3.connect(path, isolation_level=None)
    for pragma in ("ignore_check_constraints = ON", "foreign_keys = OFF"):
        connection.execute(f"PRAGMA {pragma}")
    try:
        yield connection
    finally:
        connection.close()


def damage(path: Path, sql: str, *values: Any) -> None:
    with opened(path) as connection:
        assert connection.execute(sql, values).rowcount > 0


def readers(store: Store, path: Path, number: int) -> dict[str, Callable[[], Any]]:
    """All that is made of a database."""
    db, gpu = str(path), KNOWN["h200"]
    found: dict[str, Callable[[], Any]] = {
        "best": lambda: trials.best(BestRequest(db), is_json=False),
        "history": lambda: trials.history(HistoryRequest(db, limit=9), is_json=False),
        "failures": lambda: trials.failures(FailuresRequest(db, limit=9), is_json=True),
        "show": lambda: one_trial.show(ShowRequest(1 + number % 20, db), is_json=False),
        "diff": lambda: one_trial.diff(DiffRequest(1 + number % 7, 2 + number % 5, db), is_json=False),
        "report": lambda: numbers_of(store, (), 1.5),
        "export": lambda: [read_results(store, e, gpu) for e in store.environments()[:1]],
    }
    if number % 20 == 0:
        found["page"] = lambda: page.render(contents(numbers_of(store, (), 1.5), "x"))
    return found


def read_all(store: Store, path: Path, number: int, what: str) -> None:
    """Run two of the readers. Fails for any exception that is not a refusal."""
    for name, read in random.Random(number).sample(sorted(readers(store, path, number).items()), 2):
        store.bad_rows = type(store.bad_rows)("it")
        try:
            read()
        except StoreError:
            pass
        except UsageError as error:
            assert "no trial" in str(error), f"{name}, {what}: {error}"
        except DispatchError:
            assert name == "export", what
        except Exception as error:
            raise AssertionError(f"{name}, {what}: {error!r}") from error


VALUES: tuple[Any, ...] = (
    *(None, -1, 0, 1, 2, 7, 2**31, 2**62, -(2**63), 1e308, -1e308, float("inf"), 5e-324, 0.5),
    *("", "x", "ok", "1", "[]", "{}", "null", "true", "[1, 2", "[null]", "[-1]", "[0]", "[1e999]", "[NaN]"),
    *('["a"]', "[[1]]", '[{"a": 1}]', '{"a": [1]}', '{"bm": 1}', '"x"', "9" * 5000, "[" * 3000),
    *(b"", b"\xff\xfe", "9999-12-31 23:59:59.000000", "0001-01-01 00:00:00.000000", "2026-13-01"),
    *("cold", "warm", "bm=1", "bm=64,zz=1", "a\0b", "\x1b[31m"),
)


def mutated(rng: random.Random, old: Any, others: list[Any]) -> Any:
    """Another value: of the list, of another row or column, or a part of the old one."""
    kind = rng.randrange(4)
    if kind == 0 and others:
        return rng.choice(others)
    if kind == 1 and isinstance(old, str) and old:
        at = rng.randrange(len(old))
        return rng.choice((old[:at], old[:at] + chr(rng.randrange(32, 127)) + old[at + 1 :]))
    if kind == 2 and isinstance(old, int | float) and old == old:
        return rng.choice((-old, old * 1000, old + 1, str(old), float(old)))
    return rng.choice(VALUES)


def test_values_of_every_column(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hundreds of values that may not be where they are: each is left out or refused."""
    rng = random.Random(11 + mutations.SEED)
    with Store.open(path) as store, opened(path) as connection:
        monkeypatch.setattr(common, "open_existing", lambda db: _borrowed(store))
        columns = [
            (table, row[1])
            for table in TABLES
            for row in connection.execute(f"PRAGMA table_info('{table}')").fetchall()
        ]
        for number in range(NUM_VALUES):
            table, column = rng.choice(columns)
            ids = [row[0] for row in connection.execute(f'SELECT id FROM "{table}"')]
            row_id, field = rng.choice(ids), f'"{table}" SET "{column}"'
            values = [row[0] for row in connection.execute(f'SELECT "{column}" FROM "{table}"')]
            old = connection.execute(f'SELECT "{column}" FROM "{table}" WHERE id = ?', (row_id,)).fetchone()[
                0
            ]
            new = mutated(rng, old, values)
            if isinstance(new, int) and not -(2**63) <= new < 2**63:
                continue
            try:
                connection.execute(f"UPDATE {field} = ? WHERE id = ?", (new, row_id))
            except sqlite3.IntegrityError:
                continue  # not even by hand
            changed_id = new if column == "id" else row_id
            read_all(store, path, number, f"{table} {row_id}: {column} = {new!r:.60} (mutation {number})")
            connection.execute(f"UPDATE {field} = ? WHERE id = ?", (old, changed_id))


@contextmanager
def _borrowed(store: Store) -> Iterator[Store]:
    yield store


@pytest.mark.stress
def test_searches_go_on_beside_damage(whole: Path, tmp_path: Path) -> None:
    """As above, for what writes: a search, and Optuna."""
    rng = random.Random(12 + mutations.SEED)
    for number in range(max(NUM_VALUES // 50, 15)):
        path = Path(shutil.copy(whole, tmp_path / f"{number}.db"))
        table = rng.choice([name for name in TABLES if name != "kernel"])
        with opened(path) as connection:
            column = rng.choice(connection.execute(f"PRAGMA table_info('{table}')").fetchall()[1:])[1]
            value = rng.choice(VALUES)
            try:
                connection.execute(f'UPDATE "{table}" SET "{column}" = ? WHERE id % 3 = 0', (value,))
            except sqlite3.IntegrityError:
                continue
        try:
            with Store.open(path) as store:
                tune(FakeTarget(), store, [OTHER], Options(trials=6, policy=SearchPolicy(num_finalists=3)))
                storage = OptunaStorage(store)
                for name in optuna.get_all_study_names(storage):
                    assert optuna.load_study(study_name=name, storage=storage).trials is not None
        except StoreError:
            pass
        except Exception as error:
            raise AssertionError(
                f"{table}.{column} = {value!r:.60} (mutation {number}): {error!r}"
            ) from error
        path.unlink()


def test_bytes_of_the_file(whole: Path, tmp_path: Path) -> None:
    """A disk that lost pages, a copy that was cut short: a StoreError, or what is left."""
    rng = random.Random(13 + mutations.SEED)
    content = whole.read_bytes()
    for number in range(NUM_BYTES):
        path, changed = tmp_path / f"{number}.db", bytearray(content)
        at = rng.choice((rng.randrange(len(changed)), rng.randrange(200)))
        size = rng.choice((1, 1, 4, 64, 4096))
        kind = rng.randrange(4)
        if kind == 0:
            changed = changed[:at]
        elif kind == 1:
            changed[at : at + size] = rng.randbytes(len(changed[at : at + size]))
        elif kind == 2:
            changed[at : at + size] = bytes(len(changed[at : at + size]))
        else:
            changed[at] ^= 1 << rng.randrange(8)
        path.write_bytes(changed)
        what = f"kind {kind} at {at}, {size} bytes (mutation {number})"
        try:
            with Store.open(path) as store:
                read_all(store, path, number, what)
        except AutotuneError as error:
            assert isinstance(error, StoreError), what
        except AssertionError:
            raise
        except Exception as error:
            raise AssertionError(f"{what}: {error!r}") from error
        for file in tmp_path.glob(f"{number}.db*"):
            file.unlink()


# ---- what is told of it

CASES = [
    ("UPDATE trial SET samples_us = '[1,' WHERE id = 2", "trial 2 (samples_us is '[1,')"),
    ("UPDATE trial SET outcome = 'fine' WHERE id = 2", "trial 2 (outcome is 'fine')"),
    ("UPDATE trial SET time_us = 'fast' WHERE id = 2", "trial 2 (outcome is ok and time_us is 'fast')"),
    ("UPDATE trial SET compile_s = NULL WHERE id = 2", "trial 2 (compile_s is NULL)"),
    ("UPDATE trial SET reason = x'ff' WHERE id = 2", "trial 2 (reason is b'\\xff')"),
    ("UPDATE trial SET config_id = 99 WHERE id = 2", "trial 2 (config_id 99 is not there)"),
    ("UPDATE trial SET study_id = 99 WHERE id = 2", "trial 2 (study_id 99 is not there)"),
    (
        "UPDATE config SET point = '{\"zz\": 1}' WHERE id = 2",
        "config 2 (key and point name different configs)",
    ),
    ("UPDATE config SET key = 'bm=1' WHERE id = 2", "config 2 (key and point name different configs)"),
    ("UPDATE study SET policy = 'hot' WHERE id = 2", "study 2 ('hot' is not a valid CachePolicy)"),
    ("UPDATE study SET m = -4 WHERE id = 2", "study 2 (m is -4, expected a whole number of 0"),
    ("UPDATE environment SET gpu_name = NULL WHERE id = 2", "environment 2 (gpu_name is NULL)"),
    ("DELETE FROM kernel WHERE id = 2", "study 3 (kernel_id 2 is not there)"),
    ("UPDATE baseline SET time_us = -1 WHERE study_id = 2", "baseline 4 (time_us is -1.0)"),
    ("UPDATE final SET marks = '{}' WHERE id = 2", "final 2 (marks is '{}')"),
    ("UPDATE final_entry SET time_us = 0 WHERE final_id = 2 AND rank = 1", "final_entry 4 (time_us is 0.0)"),
]


@pytest.mark.every(4)
@pytest.mark.parametrize(("sql", "text"), CASES, ids=[text for _, text in CASES])
def test_the_row_is_named_and_the_others_are_shown(
    path: Path, capsys: pytest.CaptureFixture[str], sql: str, text: str
) -> None:
    damage(path, sql)
    trials.best(BestRequest(str(path)), is_json=False)
    best = capsys.readouterr()
    trials.history(HistoryRequest(str(path), limit=99), is_json=False)
    history = capsys.readouterr()
    assert str(SQUARE) in best.out and str(SQUARE) in history.out
    assert text in best.err + history.err
    assert best.err.count("\n") <= 1 and history.err.count("\n") <= 1  # one note


def test_a_damaged_comparison_is_left_out(path: Path) -> None:
    damage(path, "UPDATE duel SET winner = 2 WHERE id = 1")
    with Store.open(path) as store:
        first, second, _ = [summary.study for summary in store.studies()]
        assert (len(store.comparisons(first)), len(store.comparisons(second))) == (0, 1)
        assert [str(damage) for damage in store.bad_rows] == ["duel 1 (winner is 2)"]


def test_the_next_in_line_takes_the_place_of_what_is_damaged(path: Path) -> None:
    """An older baseline, the next entry of a final, the next fastest trial."""
    damage(path, "UPDATE baseline SET samples_us = 7 WHERE id = 2")
    damage(path, "UPDATE final_entry SET joules = 'x' WHERE id = 1")
    damage(path, "UPDATE trial SET time_us = -3 WHERE id = 1")
    with Store.open(path) as store:
        study = store.studies()[0].study
        baseline, final = store.baseline(study), store.final(study)
        assert baseline is not None and baseline.samples_us == (4.0, 4.5)
        assert final is not None and final.winner.key == config(1).key and final.winner.is_tied
        assert [trial.key for trial in store.best(study, 2)] == [config(1).key, config(2).key]


def test_nothing_but_damage_is_a_store_error(path: Path) -> None:
    damage(path, "UPDATE study SET policy = 'hot'")
    with pytest.raises(StoreError, match=r"damaged and left out: study 1 .*delete them, or restore a copy"):
        trials.best(BestRequest(str(path)), is_json=False)
    with Store.open(path) as store, pytest.raises(StoreError, match="study 1"):
        read_results(store, H200, KNOWN["h200"])


def test_the_config_of_a_damaged_trial_counts_as_tried(path: Path) -> None:
    with Store.open(path) as store:
        study = store.studies()[2].study
        keys = store.keys(study)
    damage(path, "UPDATE trial SET outcome = 'fine' WHERE study_id = ?", study.id)
    target = FakeTarget()
    with Store.open(path) as store:
        tune(target, store, [OTHER], Options(trials=8, policy=SearchPolicy(num_finalists=3)))
        assert len(store.bad_rows) == len(keys)
    requested = {",".join(f"{n}={v}" for n, v in point.items()) for _, point in target.submitted}
    assert len(requested) == 8 and not requested & keys
