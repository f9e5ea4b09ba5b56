"""`autotune tables` and `tokens`: from an exported folder to one that another machine writes."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from .runner import run

sys.path.insert(0, str(Path(__file__).parents[1] / "unit"))
from table_cases import make_table, write_table


@pytest.fixture
def published(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The address of a table in ./autotune.db, whose key is team.key."""
    monkeypatch.chdir(tmp_path)
    write_table(make_table(), tmp_path / "sgemm_dispatch")
    run("tables", "key", "team.key")
    done = run("tables", "publish", "--key", "team.key", "--gpu", "none", "--json")
    (one,) = json.loads(done.stdout)["tables"]
    return str(one["address"])


def test_a_table_is_published_listed_and_pulled(published: str, tmp_path: Path) -> None:
    again = run("tables", "publish", "--key", "team.key", "--gpu", "none")
    assert "is the newest already" in again.stdout
    assert published[:12] in run("tables", "list").stdout
    run("tables", "pull", published[:8], "--out", "other", "--trust", "team.key.pub")
    assert run("verify", "other", "--gpu", "none").stdout.startswith("other/:")
    run("tables", "key", "wrong.key")
    run("tables", "pull", published[:8], "--out", "no", "--trust", "wrong.key.pub", code=6)
    run("tables", "pull", published[:8], "--out", "no", code=2)
    assert not (tmp_path / "no").exists()


def test_pins_and_rollbacks_say_what_is_current(published: str) -> None:
    assert published[:12] in run("tables", "pin", published[:6]).stdout
    assert "pinned" in run("tables", "list").stdout
    run("tables", "pin", published[:6], "--off")
    assert "nothing was published before" in run("tables", "rollback", published, code=2).stderr
    for nothing in ("zz", ""):  # as of a variable that a shell does not know
        assert "no table has an address" in run("tables", "pin", nothing, code=2).stderr


@pytest.mark.parametrize("command", ["list", "pin 3f", "rollback 3f", "pull 3f --out t --trust " + "0" * 64])
def test_what_reads_tables_makes_no_database(command: str, tmp_path: Path) -> None:
    said = run("tables", *command.split(), "--db", "none.db", cwd=tmp_path, code=5).stderr
    assert "no database none.db" in said and not [*tmp_path.iterdir()]


def test_what_was_not_verified_is_not_published(published: str, tmp_path: Path) -> None:
    (tmp_path / "sgemm_dispatch/cubins.gz").write_bytes(b"x")
    run("tables", "publish", "--key", "team.key", "--gpu", "none", code=6)
    run("tables", "publish", "--key", "team.key", code=6)
    assert run("tables", "list", "--json").stdout.count('"address"') == 1


def test_a_token_is_shown_once(published: str) -> None:
    token = run("tokens", "new", "laptop", "--role", "read", "--role", "request").stdout.strip()
    listed = run("tokens", "list").stdout
    assert "laptop" in listed and token not in listed and len(token) >= 43
    run("tokens", "new", "laptop", code=2)
    run("tokens", "new", "other", "--role", "king", code=2)
    run("tokens", "revoke", "laptop")
    run("tokens", "revoke", "laptop", code=2)
