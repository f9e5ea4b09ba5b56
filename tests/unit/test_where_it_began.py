"""docs/ladder.md names the ideas that autotune began with; each is there, and each row has its test."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from table_cases import FIGURES, make_kernel, make_spec, make_table

from autotune.cli import explain
from autotune.facts.device import KNOWN
from autotune.facts.gemm import Gemm
from autotune.kernel import resources
from autotune.kernel.config import Config
from autotune.kernel.rules import broken_rules
from autotune.kernel.rungs import STEPS
from autotune.report.activity import Bin
from autotune.runtime.choose.chooser import Call, Chooser
from autotune.tiles import kernel_picture

ROOT = Path(__file__).resolve().parents[2]
LADDER = (ROOT / "docs/ladder.md").read_text(encoding="utf-8")
ROWS = re.findall(r"^\| ([^|]+) \| [^|]+ \|$", LADDER.partition("## Where this began")[2], re.MULTILINE)[1:]
CONFIGS = {step.name: step.kernel for step in STEPS if isinstance(step.kernel, Config)}


def _steps() -> None:
    headings = re.findall(r"^## \d+\. ([^:]+):", LADDER, re.MULTILINE)
    assert len(headings) == len(STEPS) + 1 == 10 and headings[-1] == "Tuned"
    names = [re.sub(r"[ ,]", "", step.name.lower()) for step in STEPS]
    assert [re.sub(r"[ ,]", "", heading.lower()) for heading in headings[:-1]] == names


def _copy_pipeline() -> None:
    config = CONFIGS["cp.async 128x256x8"]
    assert (config.bm, config.bn, config.bk, resources.threads(config)) == (128, 256, 8, 256)
    assert (config.copy_a, config.copy_b, config.stages) == ("async", "async", 2)


def _size_switch() -> None:
    """Of a kernel of large tiles and one of small ones, each serves the sizes that it is for."""
    kernels = [
        make_kernel("large", make_spec(bm=128, bn=128), FIGURES),
        make_kernel("small", make_spec(bm=32, bn=32), FIGURES),
    ]
    choose = Chooser(make_table(*kernels))
    picked = [choose.pick(Call.packed(Gemm(size, size, 256))).kernel_id for size in (64, 8192)]
    assert picked == ["small", "large"]


def _power_view() -> None:
    script = (ROOT / "autotune/report/static/timeline.js").read_text(encoding="utf-8")
    for column in ("clock_mhz", "power_w", "temperature_c"):
        assert column in Bin.__dataclass_fields__ and f'"{column}"' in script


def _explained_tile() -> None:
    subject = explain._requested(1, "bm=64,vec_b=1,min_blocks=1", Gemm(256, 256, 64))
    page = kernel_picture.explorer_page([subject], KNOWN["h200"], "h200", "")
    assert "config 1" in page and '"bm"' in page


def _block_tiling() -> None:
    config, quadro = CONFIGS["1D thread tile"], KNOWN["quadro-rtx-5000"]
    assert (config.bm, config.bn, config.bk, config.tm, config.tn) == (64, 64, 8, 8, 1)
    assert not broken_rules(config, quadro, Gemm(4096, 4096, 4096))


CHECKS: dict[str, Callable[[], None]] = {
    "the steps from a naive kernel to a fast one": _steps,
    "a 128 x 256 x 8 pipeline of asynchronous copies": _copy_pipeline,
    "a switch of kernels by size": _size_switch,
    "a view of power beside speed": _power_view,
    "a tile that explains itself": _explained_tile,
    "block tiling on a Quadro RTX 5000": _block_tiling,
}


@pytest.mark.parametrize("idea", CHECKS)
def test_what_it_started_with_is_there(idea: str) -> None:
    CHECKS[idea]()


def test_each_idea_has_its_row() -> None:
    assert list(CHECKS) == ROWS
