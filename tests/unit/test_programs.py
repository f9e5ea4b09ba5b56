"""benchmarks/programs.py without a GPU: tiny programs run in turns, and what is told is what was measured."""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch")
sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import program_gain
import program_host
import program_race
import programs
import promises
from program_host import OURS, OURS_OUT, SERVED, TORCH
from program_race import PLAIN, ROUTED, Side
from program_steps import PROGRAMS

from autotune.facts.gemm import LAYOUTS, Gemm
from autotune.runtime.torch.torch_routing import RoutedSignature

WAYS = TORCH, SERVED, OURS, OURS_OUT


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SEGMENT_S", "WARM_S"):
        monkeypatch.setattr(program_race, name, 0.0)


class FakeRouting:
    """Within it a step makes two served calls and one that is left alone."""

    def __init__(self) -> None:
        self.is_on, self.num = False, 0

    def __enter__(self) -> None:
        self.is_on = True

    def __exit__(self, *_: object) -> None:
        self.is_on = False

    def step(self) -> None:
        self.num += self.is_on

    def call_counts(self) -> Counter[str]:
        return Counter({"": 2 * self.num, "as fast": self.num})

    def kinds(self) -> list[RoutedSignature]:
        one = RoutedSignature(Gemm(32, 256, 64), True, self.num, 5.0, 8.0, "")
        return [one, one, RoutedSignature(Gemm(4, 4, 4), False, self.num, 1.0, 1.0, "as fast")]


def test_tiny_programs_run_on_the_host(tmp_path: Path, capsys: Any) -> None:
    names = ["policy", "autoencoder"]
    out = tmp_path / "programs.json"
    programs.main(["--device", "cpu", "--tiny", "--pairs", "2", "--out", str(out), "--only", *names])
    report = json.loads(out.read_text())
    assert not report["failed"] and list(report["programs"]) == names
    text = capsys.readouterr().out
    for name, found in report["programs"].items():
        times = found["eager"]["step_s"]
        assert len(times[PLAIN]) == len(times[ROUTED]) >= 2 and f"| {name} |" in text
    assert f"of {len(names)}" in text


def test_what_fails_is_told_and_the_others_run(monkeypatch: Any, tmp_path: Path, capsys: Any) -> None:
    broken = PROGRAMS["policy"]._replace(make=lambda *_, **__: int("no number"))
    monkeypatch.setitem(PROGRAMS, "dlrm", broken)
    out = tmp_path / "programs.json"
    programs.main(
        ["--device", "cpu", "--tiny", "--pairs", "2", "--out", str(out), "--only", "dlrm", "policy"]
    )
    report = json.loads(out.read_text())
    assert "no number" in report["failed"]["dlrm"] and list(report["programs"]) == ["policy"]
    assert "dlrm failed" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        programs.main(["--device", "cpu", "--only", "nothing"])
    assert "no program is named nothing" in capsys.readouterr().err


def test_turns_are_paired_in_random_order(monkeypatch: Any) -> None:
    log: list[str] = []
    sides = {name: Side(lambda name=name: log.append(name), FakeRouting) for name in (PLAIN, ROUTED)}
    found = program_race.race(sides, lambda: None, 0.0, 8, 1)
    assert found["num_steps"] == 1 and [len(times) for times in found["step_s"].values()] == [8, 8]
    turns = log[-32::2]  # a stretch is of two steps
    pairs = {tuple(turns[i : i + 2]) for i in range(0, 16, 2)}
    assert pairs == {(PLAIN, ROUTED), (ROUTED, PLAIN)}


def test_the_calls_of_a_step_are_counted_by_kind() -> None:
    routing = FakeRouting()
    with routing:
        routing.step()
    found = programs.calls_of(routing.step, programs.Place("cpu", lambda: None, routing))
    assert found["tally"] == {"": 2, "as fast": 1}
    assert [(kind["m"], kind["num_calls"]) for kind in found["kinds"]] == [(32, 2), (4, 1)]


def test_all_are_raced_before_any_is_captured_or_profiled(monkeypatch: Any, tmp_path: Path) -> None:
    """On a machine without a GPU: graphs and profiles are stood in for."""
    log: list[str] = []
    routing = FakeRouting()
    place = programs.Place("cpu", lambda: None, routing)

    def captured(side: Side, wait: Any) -> Any:
        log.append("captured")
        if len(log) == 2:
            raise RuntimeError("operation not permitted")
        return SimpleNamespace(replay=side.step)

    def profiled(step: Any, *_: Any) -> Any:
        log.append("profiled")
        product = {"op": "aten::addmm", "batch": 1, "m": 32, "n": 256, "k": 64, "num_calls": 2}
        products = [product | {"gpu_us": 9.0, "host_us": 0.5}]
        side = {"busy_us": 1.0, "num_kernels": 1, "host_us": 1.0, "products": products}
        return {PLAIN: side, ROUTED: side}

    monkeypatch.setattr(programs, "place_of", lambda _: place)
    monkeypatch.setattr(programs, "captured", captured)
    monkeypatch.setattr(programs.program_gain, "profiled", profiled)
    times = {f"{name}, {way}": [9.0] for name in ("linear", "mm", "bmm") for way in WAYS}
    monkeypatch.setattr(programs.program_host, "measured", lambda *_, **__: {"default": times})
    monkeypatch.setitem(PROGRAMS, "gp", PROGRAMS["policy"]._replace(waits=True))
    out = tmp_path / "programs.json"
    names = ["policy", "gp", "neural_ode"]
    programs.main(["--table", "t", "--tiny", "--pairs", "2", "--out", str(out), "--only", *names])
    found = json.loads(out.read_text())["programs"]
    assert log == ["captured"] * 4 + ["profiled"] * 3 and not routing.is_on
    assert "not permitted" in found["policy"]["graph"]["refused"] and "graph" not in found["gp"]
    assert found["neural_ode"]["graph"]["step_s"] and all("attainable" in one for one in found.values())


def test_a_step_of_each_is_run_for_a_recording(monkeypatch: Any) -> None:
    routing = FakeRouting()
    monkeypatch.setattr(programs, "place_of", lambda _: programs.Place("cpu", lambda: None, routing))
    monkeypatch.setitem(PROGRAMS, "policy", PROGRAMS["policy"]._replace(make=lambda *_, **__: routing.step))
    programs.main(["--table", "t", "--record", "calls.json", "--only", "policy"])
    assert routing.num == 1 and not routing.is_on


def events() -> tuple[list[Any], Counter[int]]:
    """Of the host, as a profiler tells them, and the GPU's ns by call."""

    def one(name: str, shapes: list[list[int]], number: int, us: float) -> Any:
        facts = {"name": name, "shapes": shapes, "correlation_id": number, "duration_ns": 2000 * us}
        return SimpleNamespace(**{key: lambda value=value: value for key, value in facts.items()})

    linear, batched = [[256], [32, 64], [64, 256]], [[3, 4, 5], [3, 5, 6]]
    found = [
        one("aten::addmm", linear, 2 * i + j, 10.0) for i in range(program_gain.NUM_STEPS) for j in (0, 1)
    ]
    found += [one("aten::bmm", batched, 100 + i, 9.0) for i in range(program_gain.NUM_STEPS)]
    found += [one("aten::relu", [[3, 4]], 200, 9.0)]
    return found, Counter({event.correlation_id(): event.duration_ns() / 2 for event in found})


def test_what_is_attainable_is_less_of_the_host_and_of_the_gpu() -> None:
    """Two calls served in 5 us instead of 10, and three whose 58 of 80 us on the host shrink to a third."""
    products = program_gain.products_of(*events())
    assert [(p["batch"], p["m"], p["n"], p["k"]) for p in products] == [(1, 32, 256, 64), (3, 4, 6, 5)]
    served = {"batch": 1, "m": 32, "n": 256, "k": 64, "has_bias": True, "num_calls": 2}
    served |= {"reason": "", "expected_us": 5.0}
    alone = served | {"k": 65, "reason": "as fast", "expected_us": 1.0}
    times = {f"{name}, {way}": [30.0] for name in ("linear", "mm", "bmm") for way in WAYS}
    times |= {"linear, served": [10.0], "bmm, sgemm(out=)": [10.0]}
    profile = {"products": products, "host_us": 80.0, "busy_us": 45.0}
    found = {
        "eager": {"step_s": {PLAIN: [1e-4] * 3}},
        "calls": {"kinds": [served, alone]},
        "profile": {PLAIN: profile},
    }
    best = program_gain.attainable(found, program_host.medians({"default": times}))
    assert best["gpu_saved_us"] == pytest.approx(10.0)
    assert best["host_saved_us"] == pytest.approx(100 * 58 / 80 * 2 / 3)
    assert best["ratio"] == pytest.approx(100 / (90 - 100 * 58 / 80 * 2 / 3))
    del times["bmm, served"]  # a table without a kernel for it
    assert program_gain.attainable(found, program_host.medians({"default": times})) == best
    for busy_us, best_us in ((95.0, 85.0), (120.0, 90.0)):  # the GPU works on; slower than a step
        profile["busy_us"] = busy_us
        assert program_gain.attainable(found, program_host.medians({"default": times}))["best_us"] == best_us


def test_a_launch_takes_what_it_adds_to_those_before_it() -> None:
    """The second begins early, and waits for the first; the third is covered."""
    assert program_gain.added_ns([(0, 4), (1, 9), (5, 8), (20, 21)]) == [4, 5, 0, 1]


def test_a_row_tells_ratio_interval_and_share() -> None:
    eager = {"step_s": {PLAIN: [2.0, 2.0], ROUTED: [1.6, 1.6]}, "num_steps": 1}
    sides = {PLAIN: {"busy_us": 30.0, "num_kernels": 7}, ROUTED: {"busy_us": 20.0, "num_kernels": 9}}
    found = {
        "eager": eager, "graph": {"refused": "it waits"}, "calls": {"tally": {"": 5, "x": 2}},
        "attainable": {"ratio": 2.0}, "profile": sides,
    }  # fmt: skip
    text = programs.describe({"one": found})
    row = "| one | 2000.000 | 1.250 [1.250, 1.250] | 1.500 | 7 -> 9 | 5 | 2 | none | 2.000 | 40% |"
    assert "geometric mean 1.250 of 1; wholly below 0.99: none" in text
    assert row in text and "one is not captured: it waits" in text and "40% in the mean" in text


def test_what_a_step_gains_is_the_sum_of_its_parts() -> None:
    """Two served calls, which the table promises 5 us instead of 8, and one that is left alone."""
    served = {"batch": 1, "m": 32, "n": 256, "k": 64, "has_bias": True, "reason": "", "num_calls": 2}
    served |= {"expected_us": 5.0, "cublas_us": 8.0}
    kinds = [
        served,
        served | {"m": 4, "reason": "as fast"},
        served | {"has_bias": False, "reason": "as fast"},
    ]

    def side(served_us: float, left_us: float, others_us: float, busy_us: float) -> dict[str, Any]:
        products = [served | {"gpu_us": served_us}, served | {"has_bias": False, "gpu_us": left_us}]
        times = {"products_us": served_us + left_us, "others_us": others_us, "busy_us": busy_us}
        return {"products": products, **times}

    found = {
        "calls": {"kinds": kinds},
        "eager": {"step_s": {PLAIN: [100e-6] * 3, ROUTED: [80e-6] * 3}},
        "profile": {PLAIN: side(18.0, 9.0, 50.0, 77.0), ROUTED: side(11.0, 8.0, 48.0, 67.0)},
        "alone": [{PLAIN: {"warm": 8.0, "cold": 9.0}, ROUTED: {"warm": 5.0, "cold": 5.5}}],
    }
    parts = promises.explained(found)
    assert [parts[name] for name in promises.PARTS] == pytest.approx([6.0, 2.0, -1.0, 1.0, 2.0, 10.0])
    assert parts["gained"] == pytest.approx(20.0) and parts["missed"] == pytest.approx(1 / 18)
    assert (parts["provider, cold"], parts["kernel, warm"]) == pytest.approx((2.0, 0.0))
    text = promises.describe({"one": {"explained": parts}, "failed": {}})
    assert "| one | 20.0 | 6.0 | 2.0 | -1.0 |" in text and "of 1 promises 0 are kept within 5%" in text


@pytest.mark.filterwarnings("ignore:.*Profiler clears events")
def test_promises_are_explained_without_a_gpu(tmp_path: Path) -> None:
    out = tmp_path / "promises.json"
    promises.main(["--device", "cpu", "--tiny", "--pairs", "2", "--only", "policy", "--out", str(out)])
    found = json.loads(out.read_text())["programs"]["policy"]
    assert found["profile"][PLAIN]["products"] and found["profile"][PLAIN]["busy_us"] == 0


class PlayedEvent:
    """Of a GPU on which all takes 3 us."""

    def __init__(self, enable_timing: bool) -> None:
        assert enable_timing

    def record(self) -> None:
        pass

    def elapsed_time(self, end: PlayedEvent) -> float:
        return 0.003


def test_calls_are_timed_alone_of_every_layout_with_batch_and_bias(monkeypatch: Any) -> None:
    monkeypatch.setattr(promises, "FLUSHED_FLOATS", 16)
    monkeypatch.setattr(promises.torch.cuda, "Event", PlayedEvent)
    monkeypatch.setattr(promises.torch.cuda, "_sleep", lambda cycles: None, raising=False)
    shapes = [f"3x5x7{batch}:{layout}" for batch in ("", "b2") for layout in LAYOUTS]
    kinds = [
        programs._facts(RoutedSignature(Gemm.parse(shape), has_bias, 1, 5.0, 8.0, ""), 1)
        for has_bias in (False, True)
        for shape in shapes
    ]
    found: dict[str, Any] = {"calls": {"kinds": kinds}}
    promises.timed_alone(
        found, lambda: None, programs.Place("cpu", lambda: None, FakeRouting()), SimpleNamespace()
    )
    assert len(found["alone"]) == len(kinds)
    nothing = dict.fromkeys(promises.STATES, 0.0)
    assert all(one == {PLAIN: nothing, ROUTED: nothing} for one in found["alone"])
