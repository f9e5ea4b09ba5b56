"""What pages are drawn from: each document against the trials that it was made of."""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import replace
from datetime import timedelta
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from study_cases import GEMM, STARTED, at_s, failed, ok_in, study_of

from autotune.cli.report import numbers_of
from autotune.facts.device import KNOWN
from autotune.facts.gemm import Gemm
from autotune.facts.measurement import Discarded, GpuState, Measurement, Outcome
from autotune.kernel.config import Config
from autotune.recording.replay import ReplayTarget
from autotune.report import documents, page
from autotune.report.activity import NUM_BINS, runs
from autotune.report.documents import column, finalists, trial_columns
from autotune.report.importance import MIN_TRIALS, MOST_PARAMETERS, importance, pairs
from autotune.report.numbers import PAUSE_S, StudyNumbers
from autotune.search import Options, tune
from autotune.search_policy import SearchPolicy
from autotune.store import Final, FinalEntry, Store
from autotune.target import Baseline
from autotune.target_finder import default_recording

# ---------------------------------------------------------------------------------- columns


def _values(found: Any, count: int) -> list[Any]:
    """What a page reads of a column."""
    if isinstance(found, list):
        return found
    return [found["all"]] * count if "all" in found else [found["values"][row] for row in found["rows"]]


@given(st.lists(st.one_of(st.none(), st.integers(0, 3), st.sampled_from("ab")), max_size=30))
def test_a_column_tells_every_value(values: list[Any]) -> None:
    message = json.loads(json.dumps(column(values)))
    assert _values(message, len(values)) == values


def test_a_column_of_few_values_is_short() -> None:
    assert column([7] * 1000) == {"all": 7}
    assert len(json.dumps(column(["a long word", "another"] * 500))) < 4000
    assert column([1, 2, 3]) == [1, 2, 3]


def test_trials_become_columns_of_themselves() -> None:
    state = GpuState(1980, 2600, 431.26, 61, ())
    trials = [
        at_s(4, ok_in(107.123456, error_over_cublas=math.inf, registers=128, state=state, marks=("drift",))),
        at_s(9, failed("96 bytes"), 2.5, point={"a": 9, "w": "x"}, origin="polish"),
    ]
    found = trial_columns(trials, [0.0, 2.504], 31, GEMM, KNOWN["h200"])
    columns = {name: _values(c, 2) for name, c in found["columns"].items()}
    assert (found["first"], found["count"], columns["id"], columns["s"]) == (31, 2, [4, 9], [0.0, 2.5])
    assert columns["us"] == [107.12, None]
    assert columns["error"] == [None, None], "JSON has no infinity"
    assert (columns["power_w"], columns["temperature_c"], columns["marks"]) == (
        [431.3, None],
        [61, None],
        ["drift", ""],
    )
    assert (columns["reason"], columns["outcome"]) == (["", "96 bytes"], ["ok", "spilled"])
    assert columns["workspace_bytes"] == [None, None], "of another kernel"
    packing = Config(pack_a=1, vec_a=4, pad=0)
    trial = replace(trials[0], key=packing.key, point=packing.to_dict())
    for gemm, num_bytes in ((Gemm(4096, 4096, 4096), 64 << 20), (Gemm(64, 64, 16), 4096)):
        found_of = trial_columns([trial], [0.0], 1, gemm, KNOWN["h200"])
        assert found_of["columns"]["workspace_bytes"] == {"all": num_bytes}
    assert {name: _values(c, 2) for name, c in found["point"].items()} == {"a": [4, 9], "w": [None, "x"]}


# ---------------------------------------------------------------------------------- finalists


def _entry(rank: int, samples: tuple[float, ...], **changes: Any) -> FinalEntry:
    entry = FinalEntry(f"a={rank}", {"a": rank}, rank, rank == 1, float(np.median(samples)), samples)
    return replace(entry, **changes)


def test_intervals_are_those_of_ratios_within_rounds() -> None:
    """The GPU slows down by half over the rounds; the second takes 2 % more in each of them."""
    drift = tuple(100 * 1.5 ** (i / 40) for i in range(40))
    noise = np.random.default_rng(0).normal(1, 0.001, 40)
    second = tuple(float(1.02 * t * n) for t, n in zip(drift, noise, strict=True))
    final = Final(
        (_entry(1, drift), _entry(2, second)), Baseline(130.0, tuple(1.3 * t for t in drift)), STARTED
    )
    first, other, cublas = finalists(final)
    assert (first.ratio, first.low, first.high) == (1.0, 1.0, 1.0)
    assert other.low <= other.ratio <= other.high
    assert (other.low, other.high) == pytest.approx((1.02, 1.02), abs=0.001)
    assert (cublas.rank, cublas.label, cublas.ratio) == (0, "cuBLAS", pytest.approx(1.3))


def test_finals_without_samples_or_cublas_have_ratios_alone() -> None:
    entries = (_entry(1, (50.0,), samples_us=()), _entry(2, (55.0,), samples_us=()))
    first, second = finalists(Final(entries, Baseline(None), STARTED))
    assert (second.ratio, second.low, second.high) == (1.1, None, None)
    assert first.ratio == 1.0


# ---------------------------------------------------------------------------------- pairs


def test_a_pair_that_decides_together_explains_what_neither_does_alone() -> None:
    rng = np.random.default_rng(2)
    points = [{"x": int(x), "y": int(y), "z": int(z)} for x, y, z in rng.integers(0, 2, (400, 3))]
    trials = [at_s(i, ok_in(100.0 * (2 if p["x"] != p["y"] else 1)), point=p) for i, p in enumerate(points)]
    alone = importance(points, [t.measurement.time_us for t in trials])
    assert all(parameter.share < 0.05 for parameter in alone)
    first, *others = pairs(trials, alone)
    assert ({first.first, first.second}, first.share) == ({"x", "y"}, pytest.approx(1.0))
    assert all(pair.share < 0.05 for pair in others)


def test_pairs_are_of_the_most_important_parameters_only() -> None:
    rng = np.random.default_rng(3)
    points = [{f"p{i}": int(rng.integers(0, 2)) for i in range(12)} for _ in range(60)]
    trials = [at_s(i, ok_in(float(10 + rng.random())), point=p) for i, p in enumerate(points)]
    found = pairs(trials, importance(points, [t.measurement.time_us for t in trials]))
    assert len(found) == MOST_PARAMETERS * (MOST_PARAMETERS - 1) // 2


# ---------------------------------------------------------------------------------- runs


@given(st.lists(st.tuples(st.floats(0, 300), st.booleans()), min_size=1, max_size=60))
def test_runs_hold_every_trial_once_and_are_parted_by_pauses(given_trials: list[tuple[float, bool]]) -> None:
    seconds = np.cumsum([gap for gap, _ in given_trials])
    trials = [at_s(i + 1, ok_in(10.0) if is_ok else failed(), float(s))
              for i, (s, (_, is_ok)) in enumerate(zip(seconds, given_trials, strict=True))]  # fmt: skip
    found = runs([study_of(trials)])
    gaps = np.diff([trial.created_at for trial in trials])
    pauses = sum(gap.total_seconds() > PAUSE_S for gap in gaps)
    assert len(found) == min(pauses + 1, 12)
    if pauses < 12:
        assert sum(run.num_trials for run in found) == len(trials)
        assert sum(run.num_failed for run in found) == sum(not is_ok for _, is_ok in given_trials)
    for run in found:
        assert sum(part.num_ok + part.num_failed for part in run.bins) == run.num_trials
        assert len(run.bins) <= NUM_BINS + 1
        assert run.seconds == pytest.approx((run.ended_at - run.began_at).total_seconds())
    assert [run.began_at for run in found] == sorted((run.began_at for run in found), reverse=True)


def test_a_run_tells_where_the_seconds_went_and_what_the_gpu_was_like() -> None:
    cool, hot = GpuState(1980, 2600, 400.0, 60, ()), GpuState(1700, 2600, 690.0, 80, ("sw_power_cap",))
    again = (Discarded((12.0,), ("drift",)),)
    trials = [
        at_s(1, ok_in(10.0, compile_s=3.0, verify_s=0.1, measure_s=0.2, state=cool)),
        at_s(2, ok_in(11.0, measure_s=0.3, state=hot, marks=("sw_power_cap",), discarded=again), 10.0),
        at_s(3, failed(), 10.1),
    ]
    (run,) = runs([study_of(trials)])
    first, last = run.bins[0], run.bins[-1]
    assert (first.num_ok, first.compile_s, first.verify_s, first.measure_s) == (1, 3.0, 0.1, 0.2)
    assert (first.clock_mhz, last.clock_mhz, last.power_w, last.temperature_c) == (1980, 1700, 690.0, 80)
    assert (last.num_ok, last.num_failed, last.num_repeated, last.marks) == (1, 1, 1, {"sw_power_cap": 1})
    assert all(part.clock_mhz is None for part in run.bins[1:-1])


def test_progress_of_a_run_begins_with_what_was_best_before() -> None:
    late = PAUSE_S + 100
    first = study_of(
        [at_s(1, ok_in(20.0)), at_s(3, ok_in(30.0), late), at_s(5, ok_in(15.0), late + 4)], number=1
    )
    second = study_of([at_s(4, ok_in(8.0), late + 2)], number=2, gemm=Gemm(64, 64, 64))
    latest, oldest = runs([first, second])
    assert {p.study: p.steps for p in latest.progress} == {1: ((0.0, 20.0), (4.0, 15.0)), 2: ((2.0, 8.0),)}
    assert [p.study for p in oldest.progress] == [1]


def test_seconds_of_a_recorded_run_are_those_that_its_search_told(tmp_path: Path) -> None:
    """A search counts the seconds of a machine that compiles ahead; added up they are five times as many."""
    target = ReplayTarget(default_recording())
    with Store.open(tmp_path / "a.db") as store:
        gemm = Gemm(512, 512, 16384)
        found = tune(target, store, [gemm], Options(trials=40, policy=SearchPolicy(num_finalists=1)))
        (study,) = numbers_of(store, (), None)
    (run,) = runs([study])
    assert run.is_recorded and run.seconds == pytest.approx(found.ledger.search_s)


def test_trials_at_the_power_limit_are_not_disturbed() -> None:
    trials = [at_s(i, ok_in(10.0, marks=marks)) for i, marks in enumerate((("sw_power_cap",), ("drift",)), 1)]
    (run,) = runs([study_of(trials)])
    assert run.num_disturbed == 1 and run.bins[0].marks == {"sw_power_cap": 1, "drift": 1}


# ---------------------------------------------------------------------------------- documents

HOSTILE = '</script><script>alert("x")</script>&<b><!--'


@pytest.fixture
def full() -> StudyNumbers:
    """A study in which everything occurs, with text that tries to break out of the page."""
    trials = [at_s(i, ok_in(60.0 + i % 9, compile_s=0.3), i, origin=("seed", HOSTILE)[i % 2],
                   point={"a": i % 3, "w": "xy"[i % 2]}) for i in range(1, 31)]  # fmt: skip
    trials.append(at_s(31, Measurement(Outcome.FAULTED, HOSTILE), 31, key=HOSTILE))
    entry = FinalEntry("a=9", {"a": 1}, 1, True, 59.0, (59.0,))
    return study_of(trials, final=Final((entry,), Baseline(61.0), STARTED))


def test_the_overview_has_a_line_for_each_study(full: StudyNumbers) -> None:
    found = documents.overview([full, study_of([at_s(1, failed())], number=8, cublas_us=None)], "a.db")
    first, second = found["studies"]
    assert first["speedup"] == 61.0 / 59.0
    assert (first["num_trials"], first["num_failed"], first["num_tied"]) == (31, 1, 1)
    assert (first["shape"], first["config"], first["best_trial"]) == (
        "1024x1024x1024:NN",
        "a=1",
        trial_of("a=9", full),
    )
    assert (second["best_us"], second["speedup"], second["config"]) == (None, None, None)
    assert (first["label"], second["label"]) == ("1024x1024x1024:NN #7", "1024x1024x1024:NN #8")
    assert found["parameters"]["bm"]["meaning"].startswith("rows of C per block")
    assert first["flops_per_byte"] == pytest.approx(GEMM.flops / GEMM.num_bytes, rel=1e-4)


def trial_of(key: str, study: StudyNumbers) -> int:
    return next(trial.id for trial in study.records.trials if trial.key == key)


def test_a_study_in_full_has_all_trials_or_those_that_are_new(full: StudyNumbers) -> None:
    found = documents.in_full(full)
    assert (found["trials"]["first"], found["trials"]["count"]) == (1, 31)
    newer = documents.new_trials(full, after=full.records.trials[27].id)
    assert (newer["trials"]["first"], newer["trials"]["count"]) == (29, 3)
    assert newer["trials"]["columns"]["s"] == [28.0, 29.0, 30.0]
    assert documents.new_trials(full, after=10_000)["trials"]["count"] == 0
    assert [group["trial"] for group in found["failures"]] == [31]
    assert found["finalists"][0]["trial"] == trial_of("a=9", full)
    assert len(found["importance"]) == 2
    assert found["best_so_far"][0] == [1, 0.0, 61.0]
    assert len(full.ok) >= MIN_TRIALS


class _Outline(HTMLParser):
    """Scripts and what is asked for; fails where an element is not closed."""

    VOID = frozenset({"meta", "link"})

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []
        self.requested: list[str] = []
        self.documents: dict[str, str] = {}
        self._document: str | None = None

    def handle_starttag(self, tag, attrs) -> None:
        facts = dict(attrs)
        self.ids += [facts["id"]] if "id" in facts else []
        self.requested += [facts[name] for name in ("src", "href") if name in facts]
        self._document = facts.get("data-document")
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data) -> None:
        if self._document is not None:
            self.documents[self._document] = self.documents.get(self._document, "") + data


def outline_of(html: str) -> _Outline:
    outline = _Outline()
    outline.feed(html)
    outline.close()
    assert outline.open == []
    return outline


def test_the_file_is_whole_and_keeps_text_from_becoming_markup(full: StudyNumbers) -> None:
    overview = documents.overview([full], HOSTILE)
    outline = outline_of(page.render({"overview": overview, "study/7": documents.in_full(full)}))
    read = {name: json.loads(text) for name, text in outline.documents.items()}
    assert read["overview"] == json.loads(json.dumps(overview))
    assert read["overview"]["source"] == HOSTILE
    assert HOSTILE in json.dumps(read["study/7"]).replace('\\"', '"')
    assert len(outline.ids) == len(set(outline.ids))


def test_the_file_asks_for_nothing(full: StudyNumbers) -> None:
    html = page.render({"overview": documents.overview([full], "a.db")})
    assert [address for address in outline_of(html).requested if not address.startswith(("#", "data:"))] == []
    assert len(html) > page.LIBRARY.stat().st_size, "what draws is in it"


def test_the_library_is_the_one_that_its_note_names() -> None:
    """Whoever takes a newer one writes down which."""
    note = (page.LIBRARY.parent / "README.md").read_text(encoding="utf-8")
    assert hashlib.sha256(page.LIBRARY.read_bytes()).hexdigest() in note


def test_times_are_told_in_whole_seconds_of_utc() -> None:
    assert documents.time_text(STARTED + timedelta(seconds=1.7)) == "2026-11-21T12:00:01Z"
