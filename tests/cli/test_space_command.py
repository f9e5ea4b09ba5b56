"""`autotune space`, as a user runs it."""

from __future__ import annotations

import json

import pytest

from autotune.facts.device import KNOWN
from autotune.facts.gemm import Gemm
from autotune.kernel.config import PARAMETER, Config
from autotune.kernel.feasible_set import feasible_set
from autotune.kernel.rules import RULES, broken_rules

from .runner import run


def test_counts_and_names_every_rule() -> None:
    facts = json.loads(run("space", "--gpu", "quadro-rtx-5000", "--shape", "256x512x1024", "--json").stdout)
    found = feasible_set(KNOWN["quadro-rtx-5000"], Gemm(256, 512, 1024))
    assert facts["num_configs"] == len(found)
    assert [rule["id"] for rule in facts["rules"]] == [rule.id for rule in RULES]
    assert set(facts["values"]) == set(PARAMETER)
    assert facts["values"]["copy_a"] == ["register"]  # no cp.async on this card


def test_text_tells_the_count_and_the_sentences() -> None:
    text = run("space", "--gpu", "quadro-rtx-5000", "--shape", "256x512x1024").stdout
    assert f"{len(feasible_set(KNOWN['quadro-rtx-5000'], Gemm(256, 512, 1024))):,} configs" in text
    assert all(rule.sentence in text for rule in RULES)


@pytest.mark.parametrize(
    ("gpu", "shape", "config"),
    [
        ("h200", "4096", "bm=64"),
        ("h200", "4097", "edges=exact,vec_b=1,vec_c=1"),
        ("quadro-rtx-5000", "4096", "copy_a=async"),
        ("h200", "4096", "tm=16,tn=16,min_blocks=8"),
    ],
)
def test_explains_what_is_refused(gpu: str, shape: str, config: str) -> None:
    facts = json.loads(run("space", "--gpu", gpu, "--shape", shape, "--explain", config, "--json").stdout)
    broken = broken_rules(Config.parse(config), KNOWN[gpu], Gemm.parse(shape))
    assert facts["is_legal"] == (not broken)
    assert {rule.id for rule in broken} <= {rule["id"] for rule in facts["broken_rules"]}
    text = run("space", "--gpu", gpu, "--shape", shape, "--explain", config).stdout
    assert all(f"{rule.id} ({rule.kind}): {rule.sentence}\n    here " in text for rule in broken)


def test_a_rejection_tells_the_limit_where_it_comes_from_and_what_was_assumed() -> None:
    config = "bm=128,bn=128,edges=exact"
    text = run("space", "--gpu", "h200", "--shape", "4096", "--explain", config).stdout
    assert (
        "here at least 98 registers per thread, at most 64: 65,536 of an SM for min_blocks 4 x 256 = 1,024 "
        "threads" in text
    )
    assumed = text.partition("not given, so assumed: ")[2].strip().split(", ")
    named = [item.partition("=")[0] for item in [*config.split(","), *assumed]]
    assert sorted(named) == sorted(PARAMETER) and "min_blocks=4" in assumed


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--gpu", "voodoo2"), "voodoo2"),
        (("--gpu", "h200", "--shape", "4096x"), "4096x"),
        (("--gpu", "h200", "--explain", "bm"), "name=value"),
        (("--gpu", "h200", "--explain", "colour=1"), "colour"),
        (("--gpu", "h200", "--explain", "bm=wide"), "bm"),
        (("--gpu", "h200", "--explain", "bm=63"), "one of 1, 2, 4, 8"),
        (("--gpu", "h200", "--explain", "tm=0"), "tm"),
    ],
)
def test_wrong_usage_is_one_line_and_exit_code_2(arguments: tuple[str, ...], message: str) -> None:
    done = run("space", *arguments, code=2)
    assert done.stdout == ""
    assert message in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_it_says_what_is_expected_and_from_where_that_is_known() -> None:
    """Where nothing was measured, kernels of other GPUs are carried over; cuBLAS is not."""
    here = json.loads(run("space", "--gpu", "h200", "--shape", "4096x128x4096", "--json").stdout)["expected"]
    assert here["is_measured"] and list(here["sources"]) == ["NVIDIA H200"]
    assert here["limit_us"] < here["kernel_us"] and here["limit_us"] < here["cublas_us"]
    assert "shapes of NN, 2026-11-23, driver 580.159.04, cuBLAS 13.1.0" in here["sources"]["NVIDIA H200"]
    there = run("space", "--gpu", "quadro-rtx-5000", "--shape", "256x512x1024").stdout
    assert "Nothing was measured on Quadro RTX 5000. Expected: " in there
    assert "times on NVIDIA H100 80GB HBM3 (" in there and "cuBLAS, limit" not in there
    nothing = json.loads(run("space", "--gpu", "h200", "--shape", "64x64x0", "--json").stdout)
    assert nothing["expected"] is None


def test_explains_configs_of_the_kernel_on_tensor_cores() -> None:
    config = "promote_k=8,scheme=bf16x6"
    done = run("space", "--gpu", "h200", "--shape", "4096", "--explain", config, "--json")
    facts = json.loads(done.stdout)
    assert [rule["id"] for rule in facts["broken_rules"]] == ["tensor-promote"]
    text = run("space", "--gpu", "h200", "--shape", "4096", "--explain", "promote_k=32,scheme=bf16x6").stdout
    assert "in the space" in text and "all registers of an SM" in text
    text = run("space", "--gpu", "rtx-3090", "--explain", "wm=64,wn=64,promote_k=32,bk=32").stdout
    assert "mma-registers" in text and "at least" in text
    drawn = run("explain", "--gpu", "h200", "--config", config, code=2)
    assert "kernel on tensor cores, which is not drawn" in drawn.stderr


def test_lists_what_a_class_has_on_a_gpu() -> None:
    facts = {
        gpu: json.loads(run("space", "--gpu", gpu, "--accuracy", "fp32", "--json").stdout)
        for gpu in ("rtx-3090", "a100", "h200")
    }
    assert facts["a100"]["num_configs"] > facts["rtx-3090"]["num_configs"] > 500
    assert "wm" in facts["rtx-3090"]["values"] and "loaders" in facts["h200"]["values"]
    assert "mma-stages" in {rule["id"] for rule in facts["rtx-3090"]["rules"]}
    text = run("space", "--gpu", "rtx-3090", "--accuracy", "fp32", "--where", "wm=32,scheme=bf16x6").stdout
    assert "Expected:" not in text and "rows of C per warp" in text
    refused = run("space", "--gpu", "rtx-2080-ti", "--accuracy", "fp32", code=2)
    assert "need sm_80 or later" in refused.stderr
