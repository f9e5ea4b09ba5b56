"""benchmarks/vs_itself.py from end to end, on a driver simulated by the host: what is told of two
searches."""

from __future__ import annotations

import json
import sys
from argparse import Namespace
from dataclasses import replace
from pathlib import Path

import pytest
from test_checks import checks  # noqa: F401  # a fixture
from test_gpu_session import LIMITS, host, right  # noqa: F401  # a fixture among them
from test_vs_cublas import CONFIG, GEMMS, arena, database  # noqa: F401  # a fixture among them

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import contest
import vs_itself

from autotune.files.errors import UsageError
from autotune.kernel import resources

PLAIN = replace(CONFIG, reduction="none", split_k=1)


@pytest.fixture
def fake(arena, host, monkeypatch):  # noqa: F811
    """Two configs: CONFIG splits k and takes a second pass, 200 us in all, PLAIN takes 100."""

    def play(config):
        def run(library, name, grid, values):
            gemm = next(g for g in GEMMS if g.m == values[0])
            right(library, name, grid, values, gemm=gemm, spec=resources.launch_spec(config, gemm, LIMITS))

        return run

    host.sgemms[b"split"], host.sgemms[b"plain"] = play(CONFIG), play(PLAIN)

    def compile_config(config, variant):
        return arena.compiler.compile_source("split" if config == CONFIG else "plain")

    monkeypatch.setattr(arena.compiler, "compile", compile_config)
    monkeypatch.setattr(vs_itself, "Arena", lambda *rest, **options: arena)
    return arena


def _options(tmp_path: Path, *sources: str, **changes: object) -> Namespace:
    options = {
        "sources": list(sources), "suite": None, "shape": None, "gpu": "0", "cache": "cold", "rounds": 6,
        "instead": None, "loads": 2, "out": tmp_path / "a.json",
    }  # fmt: skip
    return Namespace(**(options | changes))


def test_two_searches_are_raced_and_the_loser_is_told(host, fake, tmp_path, capsys):  # noqa: F811
    used, handles = host.used_bytes, host.num_handles
    one = database(tmp_path / "one.db", fake, PLAIN)
    two = database(tmp_path / "two.db", fake, CONFIG)
    vs_itself._run(_options(tmp_path, one, two))
    report = json.loads((tmp_path / "a.json").read_text())
    assert [s["shape"] for s in report["shapes"]] == sorted(map(str, GEMMS))
    for shape in report["shapes"]:
        assert shape["second_over_first"]["median"] == pytest.approx(2.0)
        assert shape["best"] == "1:one.db" and not shape["is_same"]
        assert shape["searches"]["2:two.db"]["over_best"]["median"] == pytest.approx(2.0)
        assert len(shape["searches"]["2:two.db"]["samples_us"]) == 6
    assert report["summary"]["largest_difference"] == pytest.approx(1.0)
    assert "The first two differ by 100.00% at most" in capsys.readouterr().out
    assert (host.used_bytes, host.num_handles) == (used, handles)


def test_equal_choices_run_once_and_any_number_of_results_takes_part(host, fake, tmp_path, capsys):  # noqa: F811
    one = database(tmp_path / "one.db", fake, PLAIN)
    two = database(tmp_path / "two.db", fake, PLAIN)
    vs_itself._run(_options(tmp_path, one, two))
    report = json.loads((tmp_path / "a.json").read_text())
    assert (report["summary"]["largest_difference"], report["summary"]["num_same"]) == (0.0, 2)
    three = database(tmp_path / "three.db", fake, CONFIG)
    vs_itself._run(_options(tmp_path, three, one, str(tmp_path / "a.json"), shape=[str(GEMMS[0])]))
    (shape,) = json.loads((tmp_path / "a.json").read_text())["shapes"]
    assert [round(s["over_best"]["median"], 3) for s in shape["searches"].values()] == [2.0, 1.0, 1.0]
    assert "1:three.db is 100.00% from the best known" in capsys.readouterr().out


def test_one_search_is_raced_against_other_values_where_they_are_legal(host, fake, tmp_path, capsys):  # noqa: F811
    (tmp_path / "won.json").write_text(
        json.dumps({"shapes": [
            {"shape": str(gemm), "contestants": {"ours": {"detail": CONFIG.key}}} for gemm in GEMMS
        ]})
    )  # fmt: skip
    vs_itself._run(_options(tmp_path, str(tmp_path / "won.json"), instead="reduction=none, split_k=1"))
    report = json.loads((tmp_path / "a.json").read_text())
    assert report["searches"] == ["1:won.json", "1:won.json reduction=none, split_k=1"]
    assert report["summary"]["mean_second_over_first"]["mean"] == pytest.approx(0.5)
    assert "The second took 0.5000 times as long as the first" in capsys.readouterr().out
    illegal = vs_itself.changed({GEMMS[0]: CONFIG}, "split_k=1", LIMITS)
    assert illegal == {GEMMS[0]: CONFIG}


def test_a_database_takes_part_with_what_it_would_export(fake, tmp_path):
    one = database(tmp_path / "one.db", fake, PLAIN, CONFIG)
    chosen = vs_itself.read_choices(one, fake, ())
    assert set(chosen) == set(GEMMS) and set(chosen.values()) <= {PLAIN, CONFIG}


def test_a_wrong_kernel_ends_the_race(host, fake, tmp_path):  # noqa: F811
    host.sgemms[b"plain"] = lambda library, name, grid, values: None
    with pytest.raises(contest.WrongContestant, match=r"1:one\.db"):
        vs_itself._run(_options(tmp_path, database(tmp_path / "one.db", fake, PLAIN)))


@pytest.mark.parametrize("content", ["nonsense", "[]", '{"shapes": [{"shape": "8"}]}'])
def test_what_is_no_result_is_refused(tmp_path, content):
    path = tmp_path / "a.json"
    path.write_text(content)
    with pytest.raises(UsageError, match="holds no result of a search"):
        vs_itself.from_json(str(path))


def test_a_missing_shape_is_named(fake, tmp_path):
    (tmp_path / "a.json").write_text(
        json.dumps({"shapes": [{"shape": "64", "best_config": PLAIN.to_dict()}]})
    )
    with pytest.raises(UsageError, match="70x60x33:NN"):
        vs_itself.read_choices(str(tmp_path / "a.json"), fake, GEMMS)
    with pytest.raises(UsageError, match="no shape in common"):
        vs_itself.shared({"one": {GEMMS[0]: PLAIN}, "two": {GEMMS[1]: PLAIN}})
