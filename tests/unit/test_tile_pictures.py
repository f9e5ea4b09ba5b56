"""What the tile explorer draws: steps along k, the ladder's first kernels, pictures as data, the page as a
file."""

from __future__ import annotations

import json
import random
import re
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from space_cases import find_config

from autotune import tiles
from autotune.facts.device import KNOWN, known_limits
from autotune.facts.gemm import LAYOUTS, Gemm
from autotune.files.errors import UsageError
from autotune.kernel import rungs
from autotune.kernel.config import Config
from autotune.kernel.rungs import ReferenceKernel
from autotune.tiles.drawn_parts import MOST_BLOCKS
from autotune.tiles.kernel_picture import Subject, explorer_page, picture
from autotune.tiles.launch_counts import count
from autotune.tiles.timeline import FILL, PlaceState, Timeline

H200 = known_limits("h200")
SIGNS = {"free": "", "start": "c", "flight": ".", "there": "=", "multiply": "#"}
REFERENCES = [step.kernel for step in rungs.STEPS if isinstance(step.kernel, ReferenceKernel)]


def subject(config: Config | ReferenceKernel, gemm: Gemm) -> Subject:
    return Subject("a kernel", "what is to be seen", "kernels", config, gemm)


def short(cell: PlaceState) -> str:
    return f"{'' if cell.tile is None else cell.tile}{SIGNS[cell.doing]}{cell.ends[:1]}"


def rows(line: Timeline, operand: str = "A") -> list[str]:
    """One row for each stage, as kernels/pipeline.cuh draws them."""
    return [
        " ".join(short(line.stage(stage, operand, step)) or "-" for step in line.steps)
        for stage in range(line.config.stages)
    ]


def test_asynchronous_copies_fill_three_stages_as_the_kernel_draws_it() -> None:
    """The first picture of kernels/pipeline.cuh, with a drain behind it: c starts, w waits, # multiplies."""
    line = Timeline(Config.from_dict({"stages": 3}), 6)
    assert rows(line) == [
        "0cw 0# 3c 3.w 3# - -",
        "1c 1.w 1# 4c 4.w 4# -",
        "- 2c 2.w 2# 5c 5.w 5#",
    ]


def test_copies_through_registers_fill_two_stages_as_the_kernel_draws_it() -> None:
    """The second picture of kernels/pipeline.cuh: s stores what the registers hold."""
    line = Timeline(Config.from_dict({"stages": 2, "copy_a": "register", "copy_b": "register"}), 4)
    assert rows(line) == ["0s 0# 2s 2# -", "- 1s 1# 3s 3#"]
    assert [short(line.registers("A", step)) for step in line.steps] == ["0cs", "1cs", "2cs", "3cs", ""]


def test_one_stage_is_refilled_at_the_end_of_a_step() -> None:
    line = Timeline(Config.from_dict({"stages": 1, "bursts": 1}), 3)
    assert rows(line) == ["0cw 0#w 1#w 2#"]
    assert "all have read the only stage" in " ".join(line.descriptions(0))


@given(
    st.integers(1, 8),
    st.integers(1, 40),
    st.sampled_from(("async", "register")),
    st.sampled_from(("async", "register")),
)
def test_every_tile_is_copied_before_it_is_multiplied_and_stays_until_then(
    stages: int, num_tiles: int, copy_a: str, copy_b: str
) -> None:
    config = Config.from_dict({"copy_a": copy_a, "copy_b": copy_b})
    line = Timeline(replace(config, stages=stages), num_tiles)
    for operand, path in (("A", copy_a), ("B", copy_b)):
        for tile in range(num_tiles):
            stage = tile % stages
            found = line.stage(stage, operand, tile)
            assert (found.tile, found.doing) == (tile, "multiply")
            states = [line.stage(stage, operand, step) for step in range(line.start(tile), tile)]
            if stages > 1:
                assert all(state.tile == tile for state in states)
                ends = [state.ends for state in states if state.ends]
                assert ends == ["wait" if path == "async" else "store"]
    message = [sentence for step in line.steps for sentence in line.descriptions(step)]
    assert all(sentence.endswith(".") for sentence in message)


def _all_accesses(kernel: ReferenceKernel, g: Gemm) -> dict[tuple[str, str], list[np.ndarray]]:
    """What each warp of a kernel of reference.cu without tiles asks of global memory, access by access."""
    found: dict[tuple[str, str], list[np.ndarray]] = {
        ("A", "load"): [],
        ("B", "load"): [],
        ("C", "store"): [],
    }
    for block_m in range(0, g.m, 32):
        for block_n in range(0, g.n, 32):
            for warp in range(32):
                lane = np.arange(32)
                row, column = (lane, warp) if kernel.entry == "sgemm_naive" else (warp, lane)
                row, column = np.broadcast_arrays(block_m + row, block_n + column)
                inside = (row < g.m) & (column < g.n)
                if not inside.any():
                    continue
                found["C", "store"].append((row * g.n + column)[inside])
                for k in range(g.k):
                    found["A", "load"].append((row * g.k + k)[inside])
                    found["B", "load"].append((k * g.n + column)[inside])
    return found


@pytest.mark.parametrize("kernel", REFERENCES[:2], ids=lambda kernel: kernel.entry)
@pytest.mark.parametrize("gemm", [Gemm(64, 96, 33), Gemm(45, 37, 50)], ids=str)
def test_counts_of_reference_kernels_are_those_of_every_access(kernel: ReferenceKernel, gemm: Gemm) -> None:
    counted = {(key.what, key.kind): counts for key, counts in count(kernel, gemm, H200).items()}
    for key, accesses in _all_accesses(kernel, gemm).items():
        assert counted[key].accesses == len(accesses)
        assert counted[key].num_bytes == 4 * sum(map(len, accesses))
        assert counted[key].sectors == sum(len(set((at // 8).tolist())) for at in accesses)
        assert counted[key].lines == sum(len(set((at // 32).tolist())) for at in accesses)


def test_tiles_of_the_third_kernel_are_read_without_conflicts() -> None:
    counted = {(k.what, k.space, k.kind): n for k, n in count(REFERENCES[2], Gemm(50, 70, 40), H200).items()}
    steps, blocks, warps = 2, 2 * 3, 32
    for what in "AB":
        assert counted[what, "shared", "store"].accesses == blocks * warps * steps
        assert counted[what, "shared", "load"].accesses == blocks * warps * steps * 32
        assert counted[what, "shared", "load"].wavefronts == counted[what, "shared", "load"].accesses
    assert counted["A", "global", "load"].num_bytes == 4 * 50 * 40 * 3
    assert counted["B", "global", "load"].num_bytes == 4 * 70 * 40 * 2


@pytest.mark.stress
@settings(deadline=None, max_examples=6)
@given(
    st.sampled_from(sorted(KNOWN)),
    st.sampled_from(LAYOUTS),
    st.sampled_from((1, 1, 3)),
    st.integers(0, 10**6),
)
def test_a_picture_is_plain_data_that_fits_together(name: str, layout: str, batch: int, seed: int) -> None:
    limits, rng = known_limits(name), random.Random(seed)
    gemm = Gemm(*(8 * rng.randint(1, 20) for _ in "mnk"), layout[0] == "T", layout[1] == "T", batch)
    config = find_config(rng, limits, gemm)
    if config is None:
        return
    drawn = picture(subject(config, gemm), limits)
    assert json.loads(json.dumps(drawn, allow_nan=False))["name"] == "a kernel"
    grid, tile, line = drawn["grid"], drawn["tile"], drawn["timeline"]
    num_drawn = min(grid["num_blocks"], MOST_BLOCKS)
    assert len(grid["row"]) == len(grid["column"]) == num_drawn
    if num_drawn == grid["num_blocks"]:
        assert max(grid["row"]) == grid["tiles_m"] - 1
        assert max(grid["column"]) == grid["tiles_n"] - 1
    assert len(grid["needed"]) == -(-num_drawn // grid["wave"])
    assert {len(tile["rows"]), len(tile["columns"])} == {32}
    assert len(line["sentences"]) == len(line["steps"])
    assert all(len(row["cells"]) == len(line["steps"]) for row in line["rows"])
    for group in drawn["accesses"]:
        assert len(group["at"]) == len(group["labels"]) > 0
        assert {len(at) for at in group["at"]} == {32}
    assert len(drawn["counts"]["rows"]) == len(count(config, gemm, limits))
    assert drawn["resources"]["resident"] >= config.min_blocks or "registers" in drawn["resources"]["decides"]


def test_a_config_that_is_none_is_told_with_its_rules() -> None:
    drawn = picture(subject(Config.from_dict({"wn": 96}), Gemm(4096, 4096, 4096)), H200)
    assert [rule["id"] for rule in drawn["broken"]] == ["warp-lanes", "block-warps-n"]
    assert "grid" not in drawn


def test_an_empty_product_is_refused() -> None:
    with pytest.raises(UsageError, match="k is 0"):
        picture(subject(Config(), Gemm(8, 8, 0)), H200)


@pytest.mark.stress
def test_the_ladder_can_be_drawn_on_every_gpu_or_says_why_not() -> None:
    gemm = Gemm(256, 256, 64)
    for name in KNOWN:
        for step in rungs.steps(gemm):
            drawn = picture(subject(step.kernel, gemm), known_limits(name))
            assert drawn["broken"] or drawn["counts"]["rows"]


def test_the_page_stands_alone() -> None:
    sly = replace(subject(Config(), Gemm(256, 256, 64)), name="</script><b>")
    text = explorer_page([sly, subject(REFERENCES[0], Gemm(64, 64, 64))], H200, "h200", "a foot")
    assert not re.search(r"(src|href)=\"(?!data:,)", text)
    assert not re.findall(r"https?://(?!www\.w3\.org/2000/svg)", text)
    assert "</script><b>" not in text
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)
    assert found is not None
    assert json.loads(found[1])["views"][0]["name"] == "</script><b>"


def test_colours_of_an_order_rise_in_lightness() -> None:
    """So they can be told apart, and in their order, without seeing colour."""
    script = (Path(tiles.__file__).parent / "explorer/elements.js").read_text()
    ramp = re.findall(r"#[0-9a-f]{6}", re.search(r"const RAMP = \[(.*?)\]", script, re.DOTALL)[1])
    weights = ((1, 0.2126), (3, 0.7152), (5, 0.0722))
    lightness = [sum(weight * int(c[i : i + 2], 16) for i, weight in weights) for c in ramp]
    assert len(ramp) >= 8
    assert all(after - before > 10 for before, after in pairwise(lightness))


def test_the_fill_is_the_first_step() -> None:
    assert Timeline(Config(), 300).steps[:3] == [FILL, 0, 1]
    assert Timeline(Config(), 300).steps[-1] == 299
