"""What benchmarks/vs_kernel_tuner.py hands to Kernel Tuner, and what it makes of the answers.

There is no GPU here and no Kernel Tuner: its side is simulated."""

from __future__ import annotations

import argparse
import json
import re
import sys
from pathlib import Path

import numpy as np
import pytest

from autotune.facts.device import KNOWN
from autotune.facts.gemm import Gemm
from autotune.files.errors import UsageError
from autotune.kernel import template
from autotune.kernel.feasible_set import feasible_set
from autotune.kernel.launch import Grid, Variant, plan
from autotune.kernel.resources import launch_spec, smem_bytes
from autotune.kernel.rules import broken_rules
from autotune.search.propose.samplers import make_proposer

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
import kernel_tuner_side as side
import vs_kernel_tuner as bench

LIMITS, GEMM = KNOWN["h200"], Gemm(256, 512, 128, trans_b=True)


@pytest.fixture(scope="module")
def configs():
    return bench.subset(feasible_set(LIMITS, GEMM), 60, seed=3)


@pytest.fixture(scope="module")
def job(configs):
    return json.loads(json.dumps(bench.kernel_tuner_job(GEMM, configs, LIMITS)))


def test_the_subset_is_seeded_feasible_and_within_its_domain(configs) -> None:
    feasible = feasible_set(LIMITS, GEMM)
    assert configs == bench.subset(feasible, 60, seed=3) != bench.subset(feasible, 60, seed=4)
    assert len(set(configs)) == len(configs) == 60
    for config in configs:
        assert not broken_rules(config, LIMITS, GEMM)
        assert all(getattr(config, name) in values for name, values in bench.DOMAIN.items())


def test_a_shape_without_such_configs_says_so() -> None:
    with pytest.raises(UsageError, match="--shape"):
        bench.subset(feasible_set(LIMITS, Gemm(1, 4096, 4096)), 60, seed=0)


def test_our_samplers_see_the_subset_and_nothing_else(configs) -> None:
    given = bench.as_feasible_set(configs)
    assert [given.point(i) for i in range(len(given))] == [config.to_dict() for config in configs]
    proposer = make_proposer(given, "autotune", 0)
    requested = {proposer.ask().number for _ in range(len(configs))}
    assert requested == set(range(len(configs)))


def test_kernel_tuner_compiles_and_launches_what_we_do(configs, job) -> None:
    fixed = {name: int(value) for name, value in re.findall(r"^#define (\w+) (-?\d+)$", job["source"], re.M)}
    assert job["source"].endswith(bench.with_raster_compiled_in(template.source()))
    for config, values, tiles, smem in zip(
        configs, job["configs"], job["tiles"], job["smem_bytes"], strict=True
    ):
        given = dict(zip(job["names"], values, strict=True))
        threads = given.pop("block_size_x")
        spec = launch_spec(config, GEMM, LIMITS)
        macros = template.macros(config, Variant(trans_b=True))
        macros |= {"GROUP": config.group, "IS_ALONG_M": int(config.raster == "m")}
        macros |= {"PROBLEM_M": GEMM.m, "PROBLEM_N": GEMM.n}
        assert {**given, **{name: fixed[name] for name in macros if name not in given}} == macros
        assert (threads, smem) == (spec.threads, int(smem_bytes(config, GEMM)))
        grid = plan(spec, GEMM.m, GEMM.n, GEMM.k)
        assert (tiles, 1) == grid.size
        assert grid.workspace_bytes == grid.reduce_blocks == 0
    assert len({tuple(values) for values in job["configs"]}) == len(configs)


def test_what_kernel_tuner_cannot_vary_is_compiled_in() -> None:
    head = 'extern "C" __global__ void CLUSTER_OF(1) '
    text = f"{head}sgemm(int m, float* c, int splits,\n    Schedule schedule, Batch batch) {{\n    body();"
    changed = bench.with_raster_compiled_in(text)
    assert changed.endswith(
        f"{head}sgemm(int m, float* c, int splits) {{ constexpr Schedule schedule{{compiled_schedule()}}; "
        "constexpr Batch batch{};\n    body();"
    )
    with pytest.raises(ValueError, match="0 kernels sgemm"):
        bench.with_raster_compiled_in("sgemm(int m) {")


def test_the_arguments_are_those_of_the_kernel(job) -> None:
    """Up to the number of splits."""
    arguments, answer = side._arguments(job | {"seed": 0})
    listed = re.search(r"Arguments of `sgemm`, in order: (.*?)\.\n", Grid.__doc__, re.DOTALL)
    kinds = re.sub(r"\s+", " ", listed[1]).replace("m, n, k (int32)", "m (int32), n (int32), k (int32)")
    kinds = kinds.partition(", the schedule")[0]
    expected = [re.sub(r".*\((\w+)\)", r"\1", word) if "(" in word else "array" for word in kinds.split(", ")]
    names = {np.int32: "int32", np.int64: "int64", np.float32: "float", np.ndarray: "array"}
    assert [names[type(argument)] for argument in arguments] == expected
    a, b, c = arguments[4], arguments[6], arguments[9]
    assert (a.shape, b.shape, c.shape) == ((256, 128), (512, 128), (256, 512))
    assert np.isnan(c).all()
    assert [i for i, wanted in enumerate(answer) if wanted is not None] == [side.C_ARGUMENT]
    np.testing.assert_allclose(answer[side.C_ARGUMENT], a @ b.T, atol=side.ERROR_PER_K * GEMM.k)


def test_results_are_counted_once_and_failures_never_win() -> None:
    results = {
        4: {"time": 2.0, "compile_time": 500.0},
        7: {"time": 1.5, "compile_time": 250.0, "verification_time": 10.0},
        9: {"__error__": "RuntimeFailedConfig", "time": 0.1},
    }
    found = side._summary(results)
    assert (found["num_trials"], found["num_failed"]) == (2, 1)
    assert (found["best"], found["own_time_us"]) == (7, 1500.0)
    assert (found["compile_s"], found["verify_s"]) == (0.75, 0.01)
    assert side._summary({})["best"] is None


def _args(**changes) -> argparse.Namespace:
    facts = {"seconds": 1.0, "seed": 0, "lang": "nvcuda", "iterations": 7, "kernel_tuner_path": None}
    return argparse.Namespace(**facts | changes)


def _play(monkeypatch: pytest.MonkeyPatch, folder: Path, text: str) -> None:
    (folder / "side.py").write_text(text, encoding="utf-8")
    monkeypatch.setattr(bench, "SIDE", folder / "side.py")


def test_the_answer_of_the_other_side_is_told_with_its_config(configs, job, monkeypatch, tmp_path) -> None:
    text = """import json, os, sys
job = json.load(open(sys.argv[1], encoding="utf-8"))
assert (os.environ["CUDA_VISIBLE_DEVICES"], os.environ["CUDA_CACHE_DISABLE"]) == ("GPU-7", "1")
answer = {"num_trials": 30, "num_failed": 2, "best": 5, "own_time_us": 9.5, "elapsed_s": 15.0}
json.dump(answer | {"told": job["strategy"]}, open(sys.argv[2], "w", encoding="utf-8"))
"""
    _play(monkeypatch, tmp_path, text)
    result = bench.run_kernel_tuner(_args(), job, configs, "pso", "GPU-7")
    assert (result["config"], result["told"], result["error"]) == (configs[5].to_dict(), "pso", "")
    assert bench.rate(result) == 2.0
    ours = {"tool": "autotune", "strategy": "autotune", "num_trials": 600, "num_failed": 0, "elapsed_s": 15.0,
            "own_time_us": 9.0, "judged_time_us": 8.0, "error": ""}  # fmt: skip
    text = bench.table([ours, result | {"judged_time_us": 10.0}], cublas_us=12.0)
    assert "1.500x" in text
    assert "1.200x" in text
    assert "20.0 times the trials per second of kernel_tuner, pso" in text


def test_the_other_side_may_fail_without_ending_the_comparison(configs, job, monkeypatch, tmp_path) -> None:
    _play(monkeypatch, tmp_path, "raise SystemExit('no module named kernel_tuner')")
    result = bench.run_kernel_tuner(_args(), job, configs, "pso", "GPU-7")
    assert (result["config"], result["num_trials"], bench.rate(result)) == (None, 0, 0.0)
    assert "no module named kernel_tuner" in bench.table([result], None)
    monkeypatch.setattr(bench, "GRACE_S", 0.0)
    _play(monkeypatch, tmp_path, "import time; time.sleep(60)")
    assert "did not end" in bench.run_kernel_tuner(_args(seconds=0.5), job, configs, "pso", "")["error"]
