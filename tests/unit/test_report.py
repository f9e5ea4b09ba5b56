"""The numbers of a report against statements of them made otherwise, and the page that is made of them."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from html.parser import HTMLParser

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from autotune.device import KNOWN, Environment
from autotune.gemm import Gemm
from autotune.measurement import CachePolicy, Measurement, Outcome
from autotune.report import charts, numbers, page
from autotune.report.importance import MIN_TRIALS, explained_share, importance
from autotune.report.labels import labels
from autotune.store import Final, FinalEntry, StudyRef, StudySummary, TrialRecord
from autotune.target import Baseline

HERE = Environment("NVIDIA H200", "GPU-0", (9, 0), "580.1", "13.0", "13.4", "13.1")
RECORDED = replace(HERE, recorded_on="2026-11-21")
BEGAN = datetime(2026, 11, 21, 12, tzinfo=UTC)
GEMM = Gemm(1024, 1024, 1024)


def _ok(time_us: float, **facts) -> Measurement:
    return Measurement(Outcome.OK, time_us=time_us, samples_us=(time_us,), **facts)


def _trial(number: int, measurement: Measurement, *, at_s: float = 0.0, **changes) -> TrialRecord:
    key = f"a={number}"
    record = TrialRecord(number, key, {"a": number}, measurement, "seed", BEGAN + timedelta(seconds=at_s))
    return replace(record, **changes)


def _study(trials, *, environment=HERE, final=None, cublas_us=50.0, limits=KNOWN["h200"]):
    ref = StudyRef(7, environment, "0" * 64, "nvrtc 13.4", GEMM, CachePolicy.COLD, 1)
    ok = [t for t in trials if t.measurement.is_ok]
    best = min(ok, key=lambda t: t.measurement.time_us, default=None)
    counts = {outcome: sum(t.measurement.outcome is outcome for t in trials) for outcome in Outcome}
    summary = StudySummary(ref, counts, best, cublas_us, BEGAN)
    return numbers.study_numbers(summary, trials, final, limits)


# -------------------------------------------------------------------------------- importance


@given(st.lists(st.tuples(st.floats(1.0, 1e6), st.integers(0, 4)), min_size=2, max_size=60))
@example([(163.0, 0), (163.0, 0), (163.0, 1)])  # alike; in one unit the mean of their logs is rounded away
@example([(163.0, 0), (163.0, 0), (163.0 + 1e-12, 1)])  # alike but for rounding
def test_a_share_is_a_share_and_does_not_depend_on_names_or_units(trials: list[tuple[float, int]]) -> None:
    times, values = [time for time, _ in trials], [value for _, value in trials]
    logs = np.log(times)
    share = explained_share(values, logs)
    assert 0.0 <= share <= 1.0
    renamed = explained_share([f"word {value}" for value in values], logs)
    in_other_units = explained_share(values, np.log(np.array(times) * 1000))
    assert renamed == share
    assert in_other_units == pytest.approx(share, abs=1e-6)


@given(st.lists(st.sampled_from("abc"), min_size=8, max_size=40).filter(lambda v: len(set(v)) > 1))
def test_a_parameter_that_alone_decides_explains_all(values: list[str]) -> None:
    logs = np.array([{"a": 0.0, "b": 1.0, "c": 3.0}[value] for value in values])
    assert explained_share(values, logs) == pytest.approx(1.0)


def test_chance_explains_nothing_however_many_values_there_are() -> None:
    """The plain share of the variance between 10 values of 40 trials is a quarter by chance alone."""
    rng = np.random.default_rng(0)
    shares = [explained_share(rng.integers(0, 10, 40).tolist(), rng.normal(size=40)) for _ in range(300)]
    assert np.mean(shares) < 0.06


def test_the_share_of_two_independent_parameters_is_what_made_the_times() -> None:
    rng = np.random.default_rng(1)
    points = [{"big": int(b), "small": int(s), "none": int(z), "fixed": 1}
              for b, s, z in rng.integers(0, 2, (4000, 3))]  # fmt: skip
    logs = [2.0 * p["big"] + 1.0 * p["small"] for p in points]  # variances 4 : 1
    found = importance(points, np.exp(logs).tolist())
    assert [parameter.name for parameter in found] == ["big", "small", "none"]
    assert [parameter.share for parameter in found] == pytest.approx([0.8, 0.2, 0.0], abs=0.03)


def test_the_values_of_a_parameter_stand_in_their_order_with_their_trials() -> None:
    points = [{"a": (16, 4, 8)[i % 3], "w": "xy"[i % 2]} for i in range(MIN_TRIALS + 1)]
    times = [100.0 + i for i in range(len(points))]
    by_name = {parameter.name: parameter.values for parameter in importance(points, times)}
    assert [v.value for v in by_name["a"]] == [4, 8, 16]
    assert [v.value for v in by_name["w"]] == ["x", "y"]
    assert sum(v.num_trials for v in by_name["a"]) == len(points)
    assert (by_name["a"][2].best_us, by_name["a"][0].best_us) == (100.0, 101.0)
    assert by_name["w"][1].median_us == np.median(times[1::2])
    assert importance(points[: MIN_TRIALS - 1], times[: MIN_TRIALS - 1]) == ()


def test_no_trials_or_equal_times_are_explained_by_nothing() -> None:
    assert explained_share([], np.array([])) == 0.0
    assert explained_share([1, 2], np.array([0.0, 1.0])) == 0.0, "as many values as trials"
    assert explained_share([1, 1, 2, 2], np.ones(4)) == 0.0


# ----------------------------------------------------------------------------------- labels


def test_labels_tell_apart_what_shares_a_description() -> None:
    points = [{"a": a, "b": b, "c": c} for a, b, c in ((1, 2, 3), (1, 2, 4), (1, 5, 3), (2, 2, 3))]
    assert labels(points, lambda point: f"a{point['a']}") == ["a1 b=2 c=3", "a1 b=2 c=4", "a1 b=5 c=3", "a2"]


def test_finalists_that_share_a_description_are_told_apart_in_the_report() -> None:
    entries = tuple(
        FinalEntry(f"key {i}", {"bm": 64, "vec_b": i}, i, True, 50.0 + i, (50.0 + i,)) for i in (1, 2, 4)
    )
    study = _study([_trial(1, _ok(50.0))], final=Final(entries, Baseline(61.0), BEGAN))
    html = page.render([study], "a.db", "today", lambda point: f"{point.get('bm')}x128")
    assert all(f"64x128 vec_b={i}<" in html for i in (1, 2, 4))


# ----------------------------------------------------------------------------------- history


@given(st.lists(st.one_of(st.none(), st.floats(1.0, 1e3)), max_size=30))
def test_the_best_so_far_is_the_running_minimum(times: list[float | None]) -> None:
    failed = Measurement(Outcome.SPILLED, "too much")
    trials = [_trial(i, failed if t is None else _ok(t), at_s=i) for i, t in enumerate(times)]
    study = _study(trials)
    running, expected = math.inf, []
    for number, time_us in enumerate(times, 1):
        if time_us is not None and time_us < running:
            running = time_us
            expected.append((number, time_us))
    assert [(step.number, step.time_us) for step in study.best_so_far] == expected
    assert (study.num_trials, study.num_failed) == (len(times), times.count(None))
    assert len(study.timed) == len(times) - times.count(None)


def test_pauses_between_runs_are_not_searching_time() -> None:
    seconds = (0.0, 0.5, 2.0, 86_402.0, 86_403.0, 86_402.5)  # a day off, and a clock set back
    trials = [_trial(i, _ok(10.0), at_s=s) for i, s in enumerate(seconds)]
    assert numbers.elapsed_s(trials, is_recorded=False) == pytest.approx([0.0, 0.5, 2.0, 2.0, 3.0, 3.0])


def test_a_recording_counts_what_it_recorded_not_how_fast_it_was_replayed() -> None:
    spent = _ok(10.0, compile_s=0.5, verify_s=0.1, measure_s=0.4)
    trials = [_trial(i, spent, at_s=i * 1e-3) for i in range(4)]
    study = _study(trials, environment=RECORDED)
    assert [trial.elapsed_s for trial in study.timed] == pytest.approx([1.0, 2.0, 3.0, 4.0])


def test_the_ledger_adds_up_what_trials_took() -> None:
    trials = [
        _trial(0, _ok(10.0, compile_s=2.0, verify_s=0.1, measure_s=0.3), at_s=0.0),
        _trial(1, _ok(12.0, compile_s=0.0, verify_s=0.1, measure_s=0.1, is_cut_short=True), at_s=1.0),
        _trial(2, Measurement(Outcome.COMPILE_FAILED, "no", compile_s=1.0), at_s=2.0),
    ]
    study = _study(trials)
    ledger = study.ledger
    assert (ledger.compile_s, ledger.verify_s, ledger.measure_s) == pytest.approx((3.0, 0.2, 0.4))
    assert (ledger.num_compiled, study.num_cut_short, ledger.elapsed_s) == (2, 1, 2.0)
    assert ledger.gpu_share == pytest.approx(0.3)
    assert _study(trials[:1]).ledger.gpu_share is None, "one trial takes no time from trial to trial"


def test_the_final_is_told_before_trials_and_its_cublas_before_an_older_one() -> None:
    entries = tuple(FinalEntry(f"a={n}", {"a": n}, n, n < 3, 40.0 + n, (40.0 + n,)) for n in (1, 2, 3))
    final = Final(entries, Baseline(44.0), BEGAN)
    study = _study([_trial(1, _ok(40.5)), _trial(2, _ok(39.0))], final=final)
    assert (study.best_us, study.best_point, study.cublas_us) == (41.0, {"a": 1}, 44.0)
    without = _study([_trial(1, _ok(40.5)), _trial(2, _ok(39.0))])
    assert (without.best_us, without.best_point, without.cublas_us) == (39.0, {"a": 2}, 50.0)
    limit_us = GEMM.limit_us(KNOWN["h200"].fma_tflops, KNOWN["h200"].bandwidth_gbs)
    assert without.share_of_limit == limit_us / 39.0
    assert without.cublas_share_of_limit == limit_us / 50.0
    assert without.speedup == 50.0 / 39.0
    unknown = _study([_trial(1, _ok(40.5))], limits=None, cublas_us=None)
    assert (unknown.limit_us, unknown.share_of_limit, unknown.speedup) == (None, None, None)


def test_failures_that_differ_in_numbers_only_are_one_group() -> None:
    reasons = ("96 bytes spilled", "128 bytes spilled", "C[3] is 1.5e-3, not 2.0", "C[9] is nan, not 2.0")
    trials = [_trial(i, Measurement(Outcome.SPILLED, reason)) for i, reason in enumerate(reasons)]
    trials.append(_trial(9, Measurement(Outcome.WRONG_RESULT, "96 bytes spilled")))
    groups = numbers.failure_groups(trials)
    assert [(g.outcome, g.count) for g in groups] == [
        (Outcome.SPILLED, 2), (Outcome.SPILLED, 1), (Outcome.SPILLED, 1), (Outcome.WRONG_RESULT, 1),
    ]  # fmt: skip
    assert (groups[0].reason, groups[0].key) == ("128 bytes spilled", "a=1"), "of the newest"


@given(st.lists(st.floats(1e-2, 1e7), min_size=1, max_size=5))
def test_a_logarithmic_axis_has_marks_around_all_times_and_says_what_they_are(times: list[float]) -> None:
    values, texts = charts.log_ticks([*times, None])
    assert values == sorted(set(values))
    assert values[0] <= min(times) * (1 + 1e-9)
    assert max(times) < 10 / 9 * values[-1] * (1 + 1e-9)
    told = {value: text for value, text in zip(values, texts, strict=True) if text}
    assert [float(text.replace(",", "")) for text in told.values()] == pytest.approx(list(told))
    assert len(told) >= 6
    assert all("e" not in text for value, text in told.items() if 1 <= value < 1e6)


# -------------------------------------------------------------------------------------- page

HOSTILE = '</script><script>alert("x")</script>&<b>'


class _Outline(HTMLParser):
    """Text outside scripts, ids, and scripts apart; fails where a table cell or heading is not closed."""

    VOID = frozenset({"meta", "br", "wbr"})

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []
        self.links: list[str] = []
        self.sources: list[str] = []
        self.text = ""
        self.scripts: list[str] = []

    def handle_starttag(self, tag, attrs) -> None:
        facts = dict(attrs)
        self.ids += [facts["id"]] if "id" in facts else []
        self.links += [facts["href"]] if "href" in facts else []
        self.sources += [facts["src"]] if "src" in facts else []
        if tag == "script":
            self.scripts.append("")
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data) -> None:
        if self.open and self.open[-1] == "script":
            self.scripts[-1] += data
        else:
            self.text += data


def _outline(studies) -> _Outline:
    outline = _Outline()
    outline.feed(page.render(studies, "some.db", "today", lambda point: f"config {point}"))
    outline.close()
    assert outline.open == []
    return outline


@pytest.fixture
def full():
    """A study in which everything occurs, with text that tries to break out of the page."""
    trials = [_trial(i, _ok(60.0 + i % 9, compile_s=0.3), at_s=i, origin=("seed", HOSTILE)[i % 2],
                     point={"a": i % 3, "w": "xy"[i % 2]}) for i in range(30)]  # fmt: skip
    trials.append(_trial(30, Measurement(Outcome.FAULTED, HOSTILE), at_s=30, key=HOSTILE))
    final = Final((FinalEntry(HOSTILE, {"a": 1}, 1, True, 59.0, (59.0,)),), Baseline(61.0), BEGAN)
    return _study(trials, final=final)


def test_the_page_is_whole_and_keeps_text_from_becoming_markup(full) -> None:
    outline = _outline([full])
    assert outline.text.count(HOSTILE) >= 3  # reason, key, key of the final: shown as they are
    assert not any("alert(" in script and "Plotly.newPlot" not in script for script in outline.scripts[1:])
    assert len(outline.ids) == len(set(outline.ids))
    assert set(outline.links) <= {f"#{name}" for name in outline.ids}
    for words in (
        "History",
        "Importance",
        "faulted",
        "Tied",
        "1024x1024x1024:NN",
        "The GPU verified and timed",
    ):
        assert words in outline.text
    assert "Recorded on" not in outline.text


def test_the_page_needs_no_network(full) -> None:
    outline = _outline([full])
    assert outline.sources == []
    assert len(outline.scripts[0]) > 1_000_000, "plotly.js is in it"
    assert "cdn" not in "".join(outline.scripts[1:])


def test_the_pictures_show_the_numbers(full) -> None:
    drawn = [script for script in _outline([full]).scripts if "Plotly.newPlot" in script]
    assert len(drawn) == 3  # limits, history, importance
    call = r'Plotly\.newPlot\(\s*"history-7",\s*(\[.*?\]),\s*\{"template"'
    series = re.search(call, drawn[1], re.DOTALL)
    assert series is not None
    lines = {trace["name"]: trace for trace in json.loads(series[1])}
    assert lines["best so far"]["y"] == [60.0, 60.0]
    assert set(lines) == {"seed", HOSTILE, "best so far", "cuBLAS", "limit"}


def test_a_recorded_study_says_so(full) -> None:
    ref = replace(full.study, environment=RECORDED)
    text = _outline([replace(full, study=ref)]).text
    assert "Recorded on NVIDIA H200, 2026-11-21" in text
    assert "GPU was busy" not in text


def test_a_study_of_failures_only_has_a_page_too() -> None:
    study = _study([_trial(1, Measurement(Outcome.TIMED_OUT, "no answer"))], cublas_us=None, limits=None)
    text = _outline([study]).text
    assert "No trial was timed" in text
    assert "no answer" in text


@pytest.mark.parametrize("count", [1, charts.MAX_DOTS, charts.MAX_DOTS + 1, 5 * charts.MAX_DOTS])
def test_many_trials_are_thinned_evenly_to_both_ends(count: int) -> None:
    timed = [numbers.Timed(i, float(i), 1.0, "", "") for i in range(count)]
    kept = [trial.number for trial in charts.thinned(timed)]
    assert len(kept) == min(count, charts.MAX_DOTS)
    assert (kept[0], kept[-1]) == (0, count - 1)
    assert kept == sorted(set(kept))


def test_the_overview_tells_the_geometric_mean_and_the_least(full) -> None:
    slow = replace(full, study=replace(full.study, id=8, gemm=Gemm(64, 64, 64)), best_us=2 * full.best_us)
    text = _outline([full, slow]).text
    assert f"over 2 studies {full.speedup / math.sqrt(2):.3f}x as fast as cuBLAS" in text
    assert f"least {full.speedup / 2:.3f}x, on 64x64x64:NN" in text
    assert "geometric mean" not in _outline([full, replace(slow, cublas_us=None)]).text
