"""benchmarks/vs_cublas.py from end to end, on a driver simulated by the host: who takes part, what is
told."""

from __future__ import annotations

import json
import sys
from argparse import Namespace
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from xml.etree import ElementTree

import numpy as np
import pytest
from host_driver import view
from test_checks import checks  # noqa: F401  # a fixture
from test_gpu_session import LIMITS, HostCublas, host, right  # noqa: F401  # a fixture among them

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import contest
import vs_cublas
from spells import Spell

from autotune.facts.device import Environment
from autotune.facts.gemm import Gemm
from autotune.facts.measurement import CachePolicy, GpuState, Measurement, Outcome
from autotune.files.errors import DispatchError, EnvironmentProblem, UsageError
from autotune.gpu import driver, session
from autotune.gpu.cublas import CublasError
from autotune.kernel import resources, template
from autotune.kernel.compiler import Cubin
from autotune.kernel.config import Config
from autotune.store import FinalEntry, Store

SMALL = {"bm": 32, "bn": 32, "bk": 8, "wm": 16, "wn": 32, "tm": 4, "tn": 4, "unroll_k": 8, "bursts": 1}
CONFIG = Config.from_dict({**SMALL, "vec_b": 1, "vec_c": 1, "reduction": "two_pass", "split_k": 2})
GEMMS = (Gemm(70, 60, 33), Gemm(33, 65, 40, trans_b=True))


class FakeCompiler:
    version = "nvrtc 13.0"

    def __init__(self, arch: str) -> None:
        self.arch = arch

    def compile(self, config, variant):
        return self.compile_source("right")

    def submit(self, config, variant):
        """Compiled once it is needed."""

    def compile_source(self, source, entry="sgemm"):
        code = b"checks" if source == template.source("checks.cu") else source.encode()
        return Cubin(code, code.decode(), self.arch, self.version, 32, 0, 0, 0, 0.0)


def product(gemm, operands, times=1.0):
    """C = op(A) op(B), in float64 and rounded."""
    a = view(operands.a, *((gemm.k, gemm.m) if gemm.trans_a else (gemm.m, gemm.k)), gemm.lda)
    b = view(operands.b, *((gemm.n, gemm.k) if gemm.trans_b else (gemm.k, gemm.n)), gemm.ldb)
    op_a, op_b = (x.T if t else x for x, t in ((a, gemm.trans_a), (b, gemm.trans_b)))
    view(operands.c, gemm.m, gemm.n, gemm.n)[:] = times * (op_a.astype(np.float64) @ op_b)


class FakeLt:
    """Four candidates: one is refused, one is wrong, one slow, one fast."""

    def __init__(self, host):  # noqa: F811
        self.host, self.num_products, self.candidates_now = host, 0, ["refused", "wrong", "slow", "fast"]

    def product(self, gemm):
        self.num_products += 1
        return SimpleNamespace(
            candidates=lambda: self.candidates_now, enqueue=partial(self._enqueue, gemm), free=self._free
        )

    def _enqueue(self, gemm, candidate, operands):
        if candidate == "refused":
            raise CublasError("cublasLtMatmul failed with status 15")
        self.host.enqueue(partial(self._play, gemm, candidate, operands))

    def _play(self, gemm, candidate, operands):
        self.host.clock_us += {"slow": 300.0}.get(candidate, -20.0)
        product(gemm, operands, 1.5 if candidate == "wrong" else 1.0)

    def _free(self):
        self.num_products -= 1


class FakeTorch:
    version = "torch 9.9, CUDA 13.0"
    error: Exception | None = None

    def __init__(self, host):  # noqa: F811
        self.host = host

    def __call__(self, gemm, sets):
        def enqueue(operands):
            if self.error:
                raise self.error
            self.host.enqueue(partial(product, gemm, operands))

        return enqueue


@pytest.fixture
def arena(host, monkeypatch):  # noqa: F811
    environment = Environment("NVIDIA H200", "GPU-0", (9, 0), "580", "13.0", "13.0", "13.1.0")

    class Session(session.Session):
        def __init__(self, start):
            super().__init__(start)
            self.cublas = HostCublas(host)

    monkeypatch.setattr(contest, "Session", Session)
    monkeypatch.setattr(contest, "Compiler", FakeCompiler)
    monkeypatch.setattr(driver, "device_limits", lambda index: LIMITS)
    monkeypatch.setattr(driver, "environment", lambda gpu, **versions: environment)
    monkeypatch.setattr(contest.cublaslt, "load_library", lambda: None)

    def play(library, name, grid, values):
        gemm = next(g for g in GEMMS if g.m == values[0])
        spec = resources.launch_spec(CONFIG, gemm, LIMITS)
        right(library, name, grid, values, gemm=gemm, spec=spec)

    host.sgemms[b"right"] = play
    opened = contest.Arena("0", CachePolicy.COLD, with_torch=False)
    opened.lt, opened.torch = FakeLt(host), FakeTorch(host)
    return opened


def test_everyone_is_timed_in_the_same_rounds_and_nothing_stays_behind(host, arena):  # noqa: F811
    for gemm in GEMMS:
        used, handles = host.used_bytes, host.num_handles
        found = arena.race(gemm, CONFIG, 5)
        assert list(found.contestants) == ["ours", "cublas", "cublaslt", "torch"]
        assert {c.samples_us for c in found.contestants.values()} == {(200.0,) * 5, (100.0,) * 5, (80.0,) * 5}
        assert found.contestants["cublaslt"].detail == "candidate 4 of 4"
        assert all(0 <= c.accuracy.relative_error < 1e-6 for c in found.contestants.values())
        assert found.notes == []
        assert (host.used_bytes, host.num_handles, arena.lt.num_products) == (used, handles, 0)


def test_who_cannot_take_part_is_noted(arena):
    arena.lt.candidates_now = ["refused", "wrong"]
    arena.torch.error = RuntimeError("operation not permitted when stream is capturing")
    found = arena.race(GEMMS[0], CONFIG, 3)
    assert list(found.contestants) == ["ours", "cublas"]
    assert len(found.notes) == 2
    arena.lt = arena.torch = None
    assert arena.race(GEMMS[0], CONFIG, 3).notes == ["cuBLASLt was not found"]


def test_a_wrong_kernel_of_ours_ends_the_benchmark(host, arena):  # noqa: F811
    broken = host.sgemms[b"right"]

    def off(library, name, grid, values):
        broken(library, name, grid, values)
        if name == "sgemm_reduce":
            view(values[4], 70, 60, 60)[3, 4] += 0.5

    host.sgemms[b"right"] = off
    with pytest.raises(contest.WrongContestant, match=r"ours .* on 70x60x33:NN: C\[3, 4\]"):
        arena.race(GEMMS[0], CONFIG, 3)


def test_cublas_is_needed(host, arena, monkeypatch):  # noqa: F811
    monkeypatch.setattr(contest, "Session", session.Session)
    with pytest.raises(EnvironmentProblem, match="cuBLAS was not found"):
        contest.Arena("0", CachePolicy.COLD)


def _options(tmp_path: Path, **changes: object) -> Namespace:
    options = {
        "suite": None, "shape": [str(gemm) for gemm in GEMMS], "db": str(tmp_path / "a.db"), "gpu": "0",
        "cache": "cold", "rounds": 3, "no_torch": False, "sustained": None, "turns": 2,
        "out": tmp_path / "results" / "a.json", "svg": tmp_path / "results" / "a.svg",
    }  # fmt: skip
    return Namespace(**(options | changes))


def database(path: Path, arena, *ranked: Config) -> str:
    """A search that found these, in this order; the first two are tied."""
    with Store.open(path) as store:
        for gemm in GEMMS:
            study = store.study(arena.environment, template.source_hash(), "nvrtc 13.0", gemm)
            for config in ranked:
                found = Measurement(Outcome.OK, time_us=9.0, samples_us=(9.0,))
                store.add_trial(study, config.key, config.to_dict(), found, "seed")
            entries = [
                FinalEntry(c.key, c.to_dict(), rank, rank < 3, 9.0) for rank, c in enumerate(ranked, 1)
            ]
            store.set_final(study, entries)
    return str(path)


@pytest.fixture
def known(arena, monkeypatch, tmp_path):
    """A database that holds CONFIG for every shape."""
    monkeypatch.setattr(vs_cublas, "Arena", lambda *rest, **options: arena)
    database(tmp_path / "a.db", arena, CONFIG, replace(CONFIG, group=8))


def test_results_are_told_kept_and_drawn(known, tmp_path, capsys):
    vs_cublas._run(_options(tmp_path))
    lines = capsys.readouterr().out.splitlines()
    first = next(line for line in lines if line.startswith("70x60x33:NN"))
    assert first.split()[1:9] == ["200.0", "us", "100.0", "us", "80.00", "us", "100.0", "us"]
    assert first.split()[9:12] == ["0.500x", "0.400x", "0.500x"]
    report = json.loads((tmp_path / "results" / "a.json").read_text())
    assert [shape["shape"] for shape in report["shapes"]] == [str(gemm) for gemm in GEMMS]
    assert report["means"]["cublas"]["ours_is_faster_by"] == pytest.approx(0.5)
    assert report["means"]["cublaslt"]["worst"] == pytest.approx(0.4)
    assert report["shapes"][0]["contestants"]["ours"]["samples_us"] == [200.0] * 3
    assert report["shapes"][0]["contestants"]["ours"]["detail"] == CONFIG.key
    assert report["environment"]["gpu_uuid"] == "GPU-0"
    assert report["date"].startswith("20")
    texts = [t.text for t in ElementTree.parse(tmp_path / "results" / "a.svg").iter() if t.text]
    assert "70x60x33:NN" in texts
    assert any(text.endswith("0.50x cuBLAS") for text in texts)


def test_sustained_turns_alternate_with_clocks_and_power(known, arena, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(vs_cublas, "SUSTAINED", GEMMS[:1])
    state = GpuState(1950, 3201, 690.0, 60, ("sw_power_cap",))
    arena.session.timer._watch = lambda: state
    vs_cublas._run(_options(tmp_path, shape=None, sustained=0.05))
    (found,) = json.loads((tmp_path / "results" / "a.json").read_text())["sustained"]
    ours, cublas = found["contestants"]["ours"], found["contestants"]["cublas"]
    assert (ours["num_turns"], ours["sm_clock_mhz"], ours["power_w"]) == (2, 1950, 690.0)
    assert ours["throttle_reasons"] == ["sw_power_cap"]
    assert (ours["time_us"], cublas["time_us"]) == (pytest.approx(200.0), pytest.approx(100.0))
    assert [len(c["spells"]) for c in found["contestants"].values()] == [2] * 4
    ratios = {name: facts["ours_is_faster_by"] for name, facts in found["contestants"].items()}
    assert ratios == pytest.approx({"ours": 1.0, "cublas": 0.5, "cublaslt": 0.4, "torch": 0.5})
    assert ours["seconds"] >= 0.1
    time_us, launches, clock_mhz, power_w = ours["spells"][0][0]
    assert (time_us, clock_mhz, power_w) == (pytest.approx(200.0), 1950, 690.0) and launches > 1
    assert ours["detail"] == CONFIG.key
    assert "sw_power_cap" in capsys.readouterr().out
    assert not (tmp_path / "results" / "a.svg").exists()


def test_a_shape_that_was_not_tuned_is_named(known, tmp_path):
    with pytest.raises(DispatchError, match="64x64x64"):
        vs_cublas._run(_options(tmp_path, shape=[str(GEMMS[0]), "64"]))


def test_a_kernel_that_errs_too_much_takes_no_part(arena, tmp_path):
    """The arena's own limit decides, as an export's does."""
    accurate, wild = CONFIG, replace(CONFIG, group=8)
    with Store.open(tmp_path / "b.db") as store:
        study = store.study(arena.environment, template.source_hash(), "nvrtc 13.0", GEMMS[0])
        for config, time_us, error in ((accurate, 9.0, 1.0), (wild, 8.0, 99.0)):
            found = Measurement(Outcome.OK, time_us=time_us, samples_us=(time_us,), error_over_cublas=error)
            store.add_trial(study, config.key, config.to_dict(), found, "seed")
        (shape,) = arena.results(store, ()).shapes
        assert shape.ranked[0].config == accurate
        arena.max_error = None
        (shape,) = arena.results(store, ()).shapes
        assert shape.ranked[0].config == wild


def test_nothing_to_do_is_a_wrong_flag(tmp_path):
    with pytest.raises(UsageError, match="--suite"):
        vs_cublas._run(_options(tmp_path, shape=None))


def test_what_nvml_does_not_tell_is_a_dash() -> None:
    spells = [[Spell(10.0, 5, GpuState())]]
    names = {"ours": "", "cublas": ""}
    found = contest.Sustained(GEMMS[0], names, dict.fromkeys(names, spells))
    facts = vs_cublas.sustained_facts(found, LIMITS)
    assert facts["contestants"]["ours"]["joules_per_tflop"] is None
    assert facts["contestants"]["cublas"]["ours_is_faster_by"] == 1.0
    assert " -" in vs_cublas.sustained_text(facts)


def test_geometric_means_are_over_the_shapes_of_each() -> None:
    def shape(name, **times):
        taken = {k: {"share_of_limit": 0.5, "ours_is_faster_by": v} for k, v in times.items()}
        return {"shape": name, "contestants": taken}

    found = vs_cublas.means([shape("a", owned=1.0, cublas=2.0, torch=3.0), shape("b", owned=1.0, cublas=0.5)])
    assert found["cublas"]["ours_is_faster_by"] == pytest.approx(1.0)
    assert (found["cublas"]["worst"], found["cublas"]["worst_shape"]) == (0.5, "b")
    assert found["torch"]["num_shapes"] == 1
    assert "cublaslt" not in found
    assert "torch.mm" in vs_cublas.means_text(found)
