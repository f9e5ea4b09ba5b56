"""`autotune explain`, as a user runs it."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest

from .runner import REPOSITORY, run


def views(out: Path) -> list[dict]:
    found = re.search(r'id="data">(.*?)</script>', out.read_text(encoding="utf-8"), re.DOTALL)
    assert found is not None
    return json.loads(found[1])["views"]


@pytest.mark.stress
def test_the_ladder_ends_with_the_tuned_kernel(tmp_path: Path) -> None:
    done = run("explain", cwd=tmp_path)
    assert re.match(r"wrote tiles.html: \d+ kernels, [\d.]+ MB; open it in a browser\n", done.stdout)
    assert "by cuBLAS, limit" in done.stdout and "times on NVIDIA H200 (" in done.stdout
    assert "times on NVIDIA H200 (" in (tmp_path / "tiles.html").read_text(encoding="utf-8")
    drawn = views(tmp_path / "tiles.html")
    ladder = [view["name"] for view in drawn if view["family"] == "the ladder"]
    assert (ladder[0], ladder[-1], len(ladder)) == ("1. naive", "10. tuned", 10)
    assert len({view["shape"] for view in drawn}) > 3  # winners of other shapes


def test_a_config_comes_first_and_may_be_json(tmp_path: Path) -> None:
    out = tmp_path / "mine.html"
    text, as_json = "bm=64,vec_b=1,min_blocks=1", '{"bm": 128, "vec_b": 1, "min_blocks": 1}'
    done = run("explain", "--gpu", "rtx-4090", "--shape", "256x256x64:NT", "--config", text,
               "--config", as_json, "--out", out, "--json")  # fmt: skip
    message = json.loads(done.stdout)
    assert [kernel["name"] for kernel in message["kernels"]] == ["config 1", "config 2"]
    assert message["broken_rules"] == {}
    values = [{p["name"]: p["value"] for p in view["parameters"]} for view in views(out)]
    assert [v["bm"] for v in values] == [64, 128]


@pytest.mark.stress
def test_configs_of_examples_break_no_rules(tmp_path: Path) -> None:
    manual = (REPOSITORY / "docs/manual/kernels.md").read_text(encoding="utf-8")
    texts = manual, run("explain", "--help", COLUMNS="200").stdout
    example = re.compile(r"^    autotune (explain .*--config.*)$", re.MULTILINE)
    lines = [line for text in texts for line in example.findall(text)]
    assert len(lines) >= 4
    for line in lines:
        message = json.loads(run(*shlex.split(line, comments=True), "--json", cwd=tmp_path).stdout)
        assert message["broken_rules"] == {}, line


def test_a_config_that_breaks_rules_is_told_and_drawn_as_such(tmp_path: Path) -> None:
    done = run("explain", "--shape", "256", "--config", "wn=96", cwd=tmp_path)
    assert "whole warp tiles fill the block" in done.stderr
    assert views(tmp_path / "tiles.html")[0]["broken"]


def test_what_cannot_be_drawn_is_refused(tmp_path: Path) -> None:
    assert "no limits known" in run("explain", "--gpu", "abacus", code=2, cwd=tmp_path).stderr
    assert "is no JSON" in run("explain", "--config", "{bm", code=2, cwd=tmp_path).stderr
    unknown = run("explain", "--gpu", "a100", "--shape", "64:TT", code=2, cwd=tmp_path).stderr
    assert "name one with --config" in unknown
    assert "k is 0" in run("explain", "--shape", "8x8x0", code=2, cwd=tmp_path).stderr
    assert not (tmp_path / "tiles.html").exists()
