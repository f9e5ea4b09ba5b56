"""The rungs of the ladder: each is what its name says, and runs on the devices that it should."""

from __future__ import annotations

from dataclasses import replace

import pytest

from autotune.facts.device import KNOWN, DeviceLimits
from autotune.facts.gemm import Gemm
from autotune.files.errors import UsageError
from autotune.kernel import resources, rungs, template
from autotune.kernel.config import Config
from autotune.kernel.launch import plan
from autotune.kernel.rules import broken_rules
from autotune.kernel.rungs import STEPS, ReferenceKernel

SQUARE = Gemm(4096, 4096, 4096)
CONFIGS = {step.name: step.kernel for step in STEPS if isinstance(step.kernel, Config)}
REFERENCES = {step.name: step.kernel for step in STEPS if isinstance(step.kernel, ReferenceKernel)}


def test_rungs_have_names_of_their_own_and_say_what_they_add() -> None:
    assert len(STEPS) == len({step.name for step in STEPS}) == len({step.adds for step in STEPS}) == 9
    assert list(REFERENCES) == [step.name for step in STEPS[:3]]


@pytest.mark.parametrize("limits", KNOWN.values(), ids=KNOWN)
def test_every_step_runs_on_every_gpu_but_for_asynchronous_copies(limits: DeviceLimits) -> None:
    broken = {name: broken_rules(config, limits, SQUARE) for name, config in CONFIGS.items()}
    missing = {name: [rule.id for rule in rules] for name, rules in broken.items() if rules}
    assert missing == ({} if limits.has_async_copy else {"cp.async 128x256x8": ["async-device"]})


def test_steps_are_the_classic_ones() -> None:
    assert {name: resources.threads(config) for name, config in CONFIGS.items()} == {
        "1D thread tile": 512,
        "2D thread tile": 256,
        "vectorised": 256,
        "warp tile": 128,
        "padded double buffer": 256,
        "cp.async 128x256x8": 256,
    }
    assert replace(CONFIGS["vectorised"], vec_a=1, vec_b=1, vec_c=1) == CONFIGS["2D thread tile"]


def test_sizes_that_are_no_vectors_leave_out_the_vectorised() -> None:
    def rejected(shape: str) -> set[str]:
        gemm = Gemm.parse(shape)
        kernels = {s.name: s.kernel for s in rungs.steps(gemm)}
        configs = {name: k for name, k in kernels.items() if isinstance(k, Config)}
        return {name for name, c in configs.items() if broken_rules(c, KNOWN["h200"], gemm)}

    assert rejected("1000x1004x1008") == set()
    assert rejected("4097") == set(CONFIGS) - {"1D thread tile", "2D thread tile"}


def test_edges_are_exact_where_tiles_fit() -> None:
    def edges(shape: str) -> dict[str, str]:
        steps = rungs.steps(Gemm.parse(shape))
        return {s.name: s.kernel.edges for s in steps if isinstance(s.kernel, Config)}

    assert set(edges("4096").values()) == {"exact"}
    assert {name for name, e in edges("4096x128x4096").items() if e != "exact"} == {"cp.async 128x256x8"}
    assert set(edges("4092").values()) == {"predicated"}


@pytest.mark.parametrize("shape", ["4096:NT", "4096:TN", "0x5x5", "5x0x5"])
def test_problems_without_a_ladder_are_refused(shape: str) -> None:
    with pytest.raises(UsageError):
        rungs.steps(Gemm.parse(shape))


@pytest.mark.parametrize("name", REFERENCES)
def test_references_are_launched_with_a_block_per_tile(name: str) -> None:
    grid = plan(REFERENCES[name].spec, 33, 65, 7)
    assert (grid.tiles, grid.workspace_bytes, grid.reduce_blocks) == (6, 0, 0)
    source = template.source(rungs.REFERENCE_FILE)
    assert f"constexpr int TILE = {rungs.REFERENCE_TILE};" in source
    assert f"{REFERENCES[name].entry}(int m, int n, int k," in source


def test_reference_kernels_do_not_touch_the_identity_of_the_template() -> None:
    assert "sgemm_naive" not in template.source()
