"""benchmarks/sanitize_table.py: every kernel is looked at, and what is found is laid at the right one's door.

The tools are simulated: each says what the real one would of the kernels that are not clean."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from table_cases import make_kernel, make_spec, make_table, rank, write_table

from autotune.facts.gemm import Gemm
from autotune.files.errors import EnvironmentProblem
from autotune.runtime.table.table import load

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
import sanitize_table
import sanitizer
from sanitizer import FOUND, SanitizerRun

SAID = "========= COMPUTE-SANITIZER\n========= Invalid __global__ read of size 4 bytes\n{}\n"


class Fake:
    """Tools over kernels of which some are not clean: `deeds` says how, by tool and kernel."""

    def __init__(self, deeds=()):
        self.deeds = dict(deeds)
        self.runs = []

    def __call__(self, tool, arguments):
        if arguments[0] == "plant":
            return (
                self._verdict(0, "", "")
                if "broken" not in self.deeds
                else SanitizerRun(1, None, "", "no GPU")
            )
        deed, cases, path, how = arguments
        assert (deed, cases) == ("table", sanitize_table.CASES[tool])
        assert how == ("unwritten" if tool == "initcheck" else "marked")
        names = [task["id"] for task in json.loads(Path(path).read_text())]
        self.runs.append((tool, names))
        seen, wrong = {}, []
        for name in names:
            deed = self.deeds.get((tool, name))
            if deed == "dies":  # and with it all that would come behind
                return SanitizerRun(139, None, "", "Segmentation fault")
            if deed == "is found":
                return self._verdict(1, json.dumps({"launches": seen, "wrong": []}), SAID)
            wrong += [f"{name}: C is off"] if deed == "is wrong" else []
            seen[name] = 0 if deed == "is not launched" else 7
        facts = json.dumps({"launches": seen, "wrong": wrong})
        return replace(self._verdict(0, facts, ""), exit_code=int(bool(wrong)))

    @staticmethod
    def _verdict(num_found, facts, said):
        summary = f"========= ERROR SUMMARY: {num_found} errors"
        return SanitizerRun(
            FOUND if num_found else 0, num_found, f"{said.format('')}{facts}\n{summary}\n", ""
        )


def tasks(number):
    return [{"id": f"k{i}", "config": {}, "variant": {}, "cubin": ""} for i in range(number)]


@given(
    st.integers(1, 40),
    st.dictionaries(
        st.tuples(st.sampled_from(["memcheck", "initcheck"]), st.integers(0, 39)),
        st.sampled_from(["dies", "is found", "is wrong", "is not launched"]),
        max_size=5,
    ),
)
def test_exactly_those_that_are_not_clean_are_named(tmp_path_factory, number, deeds):
    fake = Fake({(tool, f"k{i}"): deed for (tool, i), deed in deeds.items() if i < number})
    scratch = tmp_path_factory.mktemp("scratch")
    found = sanitize_table.examine(tasks(number), ["memcheck", "initcheck"], 1, fake, scratch)
    assert sorted((f.tool, f.kernel) for f in found) == sorted(fake.deeds)
    assert all(f.what for f in found)
    if not fake.deeds:
        assert len(fake.runs) == 2 * -(-number // sanitize_table.SHARD)
    for tool in ("memcheck", "initcheck"):
        assert {name for t, names in fake.runs if t == tool for name in names} == {
            f"k{i}" for i in range(number)
        }


@pytest.mark.parametrize(
    ("deed", "what"),
    [
        ("dies", "exit 139 without a summary: Segmentation fault"),
        ("is found", "Invalid __global__ read of size 4 bytes"),
        ("is wrong", "k1: C is off"),
        ("is not launched", "its problems did not run"),
    ],
)
def test_what_is_found_is_told(tmp_path, deed, what):
    (found,) = sanitize_table.examine(tasks(3), ["racecheck"], 2, Fake({("racecheck", "k1"): deed}), tmp_path)
    assert (found.kernel, found.what) == ("k1", what)
    text = sanitize_table.text(tasks(3), ["racecheck"], [found])
    assert text.count("clean") == 3 and text.count("FOUND") == 1
    assert text.endswith("1 of 3 kernels are not clean")


def test_a_tool_that_does_not_work_is_no_finding(tmp_path):
    with pytest.raises(EnvironmentProblem, match=r"memcheck does not work here: .*no GPU"):
        sanitize_table.examine(tasks(2), ["memcheck"], 1, Fake({"broken": ""}), tmp_path)


# ------------------------------------------------------------------------------ from a folder


@pytest.fixture
def folder(tmp_path):
    """Two tuned kernels, one of them in two splits of one cubin, and a default for each layout."""
    spec = make_spec(reduction="last_block", split_k=2)
    twice = make_kernel("split2", spec)
    again = replace(make_kernel("split4", replace(spec, split_k=4)), sha256=twice.sha256)
    entry = rank(Gemm(64, 64, 64), "plain", "split2")
    table = make_table(make_kernel("plain", make_spec()), again, twice, entries=(entry,))
    return write_table(table, tmp_path / "table")


def test_each_cubin_counts_once(folder):
    table = load(folder)
    available = [k.id for k in sanitize_table.distinct(table, is_tuned=False)]
    assert available[:2] == ["plain", "split4"] and len(available) == 2 + 4
    assert [k.id for k in sanitize_table.distinct(table, is_tuned=True)] == ["plain", "split2"]


@pytest.mark.parametrize(
    ("deeds", "code"), [({}, 0), ({("synccheck", "plain"): "is found"}, 1), ({"broken": ""}, 3)]
)
def test_the_exit_code_tells(folder, tmp_path, monkeypatch, capsys, deeds, code):
    fake = Fake(deeds)
    monkeypatch.setattr(sanitize_table, "find_tool", lambda: Path("tool"))
    monkeypatch.setattr(sanitize_table, "run", lambda path, tool, arguments: fake(tool, arguments))
    out = tmp_path / "out.json"
    monkeypatch.setattr(sys, "argv", ["sanitize_table.py", str(folder), "--tuned", "--out", str(out)])
    with pytest.raises(SystemExit) as ended:
        sanitize_table.main()
    assert ended.value.code == code
    if code != 3:
        report = json.loads(out.read_text())
        assert report["kernels"] == ["plain", "split2"]
        assert [f["kernel"] for f in report["findings"]] == ["plain"] * code
        assert ("all 2 are clean" in capsys.readouterr().out) == (code == 0)


def test_a_damaged_cubin_is_refused(folder, monkeypatch):
    (folder / "cubins.gz").write_bytes(b"else")
    monkeypatch.setattr(sanitize_table, "find_tool", lambda: Path("tool"))
    monkeypatch.setattr(sys, "argv", ["sanitize_table.py", str(folder)])
    with pytest.raises(SystemExit) as ended:
        sanitize_table.main()
    assert ended.value.code == 6


# ------------------------------------------------------------------------------ the tool itself


def tool_that(tmp_path, script):
    path = tmp_path / "tool"
    path.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
    path.chmod(0o755)
    return path


@pytest.mark.parametrize(
    ("script", "num_found", "is_clean"),
    [
        ("echo '========= ERROR SUMMARY: 0 errors'", 0, True),
        ("echo '========= RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)'", 0, True),
        ("echo '========= ERROR SUMMARY: 0 errors'; exit 1", 0, False),
        ("echo '========= ERROR SUMMARY: 3 errors'; exit 77", 3, False),
        ("echo nothing; exit 0", None, False),
    ],
)
def test_a_run_is_clean_only_where_the_tool_says_so(tmp_path, script, num_found, is_clean):
    verdict = sanitizer.run(tool_that(tmp_path, script), "memcheck", ("plant", "clean"))
    assert (verdict.num_found, verdict.is_clean) == (num_found, is_clean)
    assert is_clean or verdict.finding


def test_a_long_report_is_shown_from_its_first_line(tmp_path):
    found = sanitizer.run(tool_that(tmp_path, "seq 1000; echo why >&2; exit 77"), "racecheck", ())
    lines = str(found).splitlines()
    assert lines[:2] == ["exit 77", "1"] and lines[60:63] == ["60", "... 930 lines", "991"]
    assert lines[-2:] == ["1000", "why"]


@pytest.mark.parametrize(
    ("text", "version"), [("Version 2026.4.0.0 (build 1) (public-release)", (2026, 4)), ("none", (0, 0))]
)
def test_the_release_of_a_tool_is_read(tmp_path, text, version):
    assert sanitizer.version_of(tool_that(tmp_path, f"echo 'Copyright'; echo '{text}'")) == version


def test_a_tool_that_never_ends_is_ended(tmp_path, monkeypatch):
    monkeypatch.setattr(sanitizer, "MOST_S", 0.2)
    verdict = sanitizer.run(tool_that(tmp_path, "exec sleep 30"), "synccheck", ())
    assert not verdict.is_clean and "no end" in verdict.finding


def test_the_driver_script_is_run_by_the_tool(tmp_path):
    verdict = sanitizer.run(tool_that(tmp_path, 'echo "$@"'), "initcheck", ("plant", "clean"))
    assert verdict.stdout.split()[-3:] == [str(sanitizer.DRIVER), "plant", "clean"]
    assert sanitizer.DRIVER.is_file()


def test_a_missing_tool_is_told(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    monkeypatch.setattr(sanitizer.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(EnvironmentProblem, match="pip install"):
        sanitizer.find_tool()
