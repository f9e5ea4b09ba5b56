"""`--where`, as a user types it: of `search` on the recorded space, of `space`, of `export-table`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from autotune import tuning
from autotune.facts.device import KNOWN
from autotune.facts.gemm import Gemm
from autotune.files.errors import UsageError
from autotune.kernel.config import Config
from autotune.kernel.feasible_set import feasible_set
from autotune.kernel.where import Where

from .conftest import SQUARE, measured, points, trials_of, write
from .runner import run

ALL = points(SQUARE)  # bk 8, 16; stages 2, 3, 4; four orders
BEST = ALL[20].to_dict()


def search(recording: Path, db: Path, *arguments: str) -> dict[str, Any]:
    done = run(
        "search",
        "--gpu",
        f"replay:{recording}",
        "--db",
        db,
        "--shape",
        "512",
        "--json",
        "--quiet",
        *arguments,
    )
    return json.loads(done.stdout)


def is_best(point: Mapping[str, Any], where: str) -> bool:
    """By the recording, in which times repeat."""
    times = {c.key: measured(n).time_us for n, c in enumerate(ALL) if Where.parse(where).holds(c.to_dict())}
    return times.get(Config.from_dict(point).key) == min(filter(None, times.values()))


def test_a_search_keeps_to_its_conditions(recording: Path, tmp_path: Path) -> None:
    where, db = "stages!=3,bk<=8", tmp_path / "a.db"
    facts = search(recording, db, "--where", "stages!=3", "--where", "bk<=8", "--trials", "100")
    matching = [config for config in ALL if Where.parse(where).holds(config.to_dict())]
    assert facts["num_trials"] == facts["num_new"] == len(matching) < len(ALL)
    assert is_best(facts["best_config"], where) and facts["best_time_us"] == facts["optimum_time_us"]
    assert facts["where"] == where
    history = json.loads(run("trials", "history", "--db", db, "--limit", "100", "--json").stdout)
    tried = [trial["config"] for trial in history["trials"]]
    assert tried and all(config["stages"] != 3 and config["bk"] == 8 for config in tried)
    message = run("search", "--gpu", f"replay:{recording}", "--db", db, "--shape", "512", "--where", where)
    assert f"{len(matching)} configs" in message.stderr
    assert f"Next: autotune export-table --db {db} --where 'stages!=3,bk<=8'" in message.stdout


def test_what_the_last_search_chose_is_the_best(recording: Path, tmp_path: Path) -> None:
    db = tmp_path / "a.db"

    def shown() -> dict[str, Any]:
        (study,) = json.loads(run("trials", "best", "--db", db, "--json").stdout)["studies"]
        return study["best_config"]

    assert search(recording, db)["best_config"] == BEST == shown()
    narrow = f"order!={BEST['order']}"
    again = search(recording, db, "--where", narrow)
    assert again["num_new"] == 0 and is_best(again["best_config"], narrow)
    trial = json.loads(run("trials", "show", str(again["faster_trial"]), "--db", db, "--json").stdout)
    assert trial["config"] == BEST
    assert Where.parse(narrow).holds(shown())
    assert search(recording, db)["best_config"] == BEST == shown()


def test_conditions_under_which_nothing_runs(tmp_path: Path) -> None:
    """All recorded configs that obey have failed."""
    trials = trials_of(ALL[:4])  # the last one spilled
    path = write(tmp_path / "few.gz", {SQUARE: trials})
    where = f"order={ALL[3].order},frag_buffers={ALL[3].frag_buffers}"
    done = run("search", "--gpu", f"replay:{path}", "--db", tmp_path / "a.db", "--where", where, code=3)
    assert "no candidate for 512x512x512:NN ran" in done.stderr


@pytest.mark.every(3)
@pytest.mark.parametrize(
    ("condition", "message"),
    [
        ("stage=3", "no parameter 'stage' (did you mean 'stages'?)"),
        ("bk=12", "bk is never 12 (did you mean 8 or 16?)"),
        ("order<row", "words have no order; use = or !="),
        ("bk", "write conditions as in pack_a=0"),
        ("pack_a=1", "512x512x512:NN: no config obeys pack_a=1: pack_a is 0 in every config"),
    ],
)
def test_wrong_conditions_of_a_search(recording: Path, tmp_path: Path, condition: str, message: str) -> None:
    done = run(
        "search", "--gpu", f"replay:{recording}", "--db", tmp_path / "a.db", "--shape", "512", "--where",
        condition, code=2,
    )  # fmt: skip
    assert message in done.stderr


def test_space_counts_and_explains_under_conditions() -> None:
    space = ("space", "--gpu", "quadro-rtx-5000", "--shape", "256x512x1024")
    where = Where.parse("vec_c=4,reduction!=two_pass")
    left = feasible_set(KNOWN["quadro-rtx-5000"], Gemm(256, 512, 1024)).where(where, Gemm(256, 512, 1024))
    facts = json.loads(run(*space, "--where", str(where), "--json").stdout)
    assert facts["num_configs"] == len(left) and facts["values"]["vec_c"] == [4]
    assert "two_pass" not in facts["values"]["reduction"] and facts["where"] == str(where)
    text = run(*space, "--where", str(where)).stdout
    assert f"{len(left):,} configs" in text and f"that obey {where}" in text
    config = "copy_a=register,copy_b=register,stages=2"
    message = json.loads(run(*space, "--explain", config, "--where", "pack_a=0,bm>64", "--json").stdout)
    assert message["broken_conditions"] == ["bm>64"] and not message["is_searched"]
    assert "bm>64 (not so)" in run(*space, "--explain", config, "--where", "pack_a=0,bm>64").stdout
    assert "did you mean 'reduction'" in run(*space, "--where", "reducton=none", code=2).stderr


def test_the_same_from_python(recording: Path, tmp_path: Path) -> None:
    result = tuning.tune(512, gpu=f"replay:{recording}", db=str(tmp_path / "a.db"), where="stages=2")
    best = result.best[SQUARE]
    assert best is not None and is_best(best.point, "stages=2") and str(result.where) == "stages=2"
    found = tuning.space(SQUARE, "h200", where=["pack_a=0", "stages=4"])
    assert found.point(0)["stages"] == 4 < len(found)
    with pytest.raises(UsageError, match="did you mean 'stages'"):
        tuning.space(SQUARE, "h200", where="stage=4")


@pytest.mark.stress
def test_a_limit_on_the_workspace(recording: Path, tmp_path: Path) -> None:
    """No recorded config needs one; of those that could be searched, some do."""
    facts = search(recording, tmp_path / "a.db", "--max-workspace", "0", "--where", "bk=8")
    assert facts["max_workspace_mib"] == 0 and is_best(facts["best_config"], "bk=8")
    assert facts["workspace_bytes"] == 0
    again = ("search", "--gpu", f"replay:{recording}", "--db", tmp_path / "a.db", "--shape", "512")
    message = run(*again, "--max-workspace", "0.5").stdout
    assert "--max-workspace 0.5" in message
    space = ("space", "--gpu", "h200", "--shape", "16x512x4096", "--json")
    every, some = (json.loads(run(*space, *more).stdout) for more in ((), ("--max-workspace", "0.25")))
    assert 0 < some["num_configs"] < every["num_configs"]
    split = "reduction=two_pass,split_k=8,vec_b=4"
    message = json.loads(run(*space, "--explain", split, "--max-workspace", "0.25").stdout)
    assert message["workspace_bytes"] == 8 * 64 * 512 * 4
    assert message["broken_conditions"] == ["a workspace of at most 0.25 MiB"]
    assert "--max-workspace" in run(*space[:-1], "--max-workspace", "-1", code=2).stderr


@pytest.mark.stress
def test_an_order_of_sums(recording: Path, tmp_path: Path) -> None:
    """All recorded configs sum in a chain."""
    facts = search(recording, tmp_path / "a.db", "--order", "chain", "--where", "bk=8")
    assert facts["order"] == "chain" and is_best(facts["best_config"], "bk=8")
    again = ("search", "--gpu", f"replay:{recording}", "--db", tmp_path / "a.db", "--shape", "512")
    message = run(*again, "--order", "chain").stdout
    assert f"export-table --db {tmp_path / 'a.db'} --order chain" in message
    rejected = run(*again, "--order", "chunks:256", code=2).stderr
    assert "no config that is searched here sums in the order chunks:256" in rejected
    space = ("space", "--gpu", "h200", "--shape", "513", "--order", "chunks:512")
    explained = json.loads(run(*space, "--explain", "flush_k=256", "--json").stdout)
    assert explained["broken_conditions"] == ["the order chunks:512"] and not explained["is_searched"]
    assert json.loads(run(*space, "--json").stdout)["values"]["flush_k"] == [512]
