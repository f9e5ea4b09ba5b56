"""Deliberate faults of the core, each of which some drawn call in C must notice, or crash by."""

from __future__ import annotations

import os
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from autotune.runtime.native import core

FAULTS = {  # file, and what stands there instead of what
    "operands are not shared": ("calls.c", "|| batch->stride[1] ||", "||"),
    "gaps between C": ("calls.c", "!goes_on || batch->stride[2] != m * ldc ||", "!goes_on ||"),
    "a converted A": ("calls.c", "(int64_t)planned->m * planned->k;", "planned->m;"),
    "an A of two bytes": ("calls.c", "planned->from_type ? 0 : call->at[0]", "call->at[0]"),
    "products share C": ("calls.c", "return of_c >= apart ||", "return true ||"),
    "no memory": ("calls.c", "if (is_read && (is_nowhere(call->at[0])", "if (0 && (is_nowhere(call->at[0])"),
    "overlap": ("calls.c", "at_overlap(plan, at)\n", "0\n"),
    "an activation": ("calls.c", "if (is_such && one->plain", "if (one->bias == kind->bias && one->plain"),
    "alignment": ("calls.c", "kind.low[i] = (uint32_t)(call->at[i] % AT_ALIGNED);", "kind.low[i] = 0;"),
    "the loop": ("plan.c", "planned->is_looped ? planned->batch : AT_SINGLE;", "AT_SINGLE;"),
    "rows of an A": ("plan.c", "int64_t ld = planned->from_ld,", "int64_t ld = planned->ld[0],"),
    "two in a workspace": ("plan.c", "loan.address + scratch_bytes - of_kernel : 0", "loan.address : 0"),
    "what alpha hides": ("plan.c", "alpha != 0 ? start_pack(", "1 ? start_pack("),
    "sums behind packs": ("plan.c", "= workspace + (uint64_t)plan->grid.pack_bytes;", "= workspace;"),
    "counters": ("workspace.c", "base + piece->scratch_bytes - scratch_bytes", "base"),
    "a graph's memory": ("workspace.c", "kept->capture_id == id && kept->stream == stream", "true"),
    "a graph's counters": ("workspace.c", "counter_bytes ? cuda->zero(kept", "0 ? cuda->zero(kept"),
    "a stream's memory": ("workspace.c", "if (piece->stream_id == stream_id && piece->thread == thread)", ""),
    "what all share": ("grid.c", "batch->stride[operand] ? batch->products : 1;", "batch->products;"),
    "distances of vectors": ("choice.c", "(call->low[i] | apart) % AT_ALIGNED", "call->low[i] % AT_ALIGNED"),
    "a GPU model": ("loader.c", "!is_capable || !(is_accepted", "!is_capable && !(is_accepted"),
}  # fmt: skip
RUNS = """
import sys
from functools import cache
from pathlib import Path
from c_front import PatchedCore
from test_any_call import calls_in_c
of = cache(lambda has_blas: PatchedCore(has_blas, Path(sys.argv[1])))
for seed in range(96):
    calls_in_c(seed, of)
"""


def run(tmp_path: Path, name: str, old: str, new: str) -> int:
    """The exit status of drawn calls by a core with a fault."""
    sources = shutil.copytree(core.FOLDER, tmp_path / "core")
    text = (sources / name).read_text(encoding="utf-8")
    assert text.count(old) == 1
    (sources / name).write_text(text.replace(old, new), encoding="utf-8")
    flags = [flag for flag in runpy.run_path(str(sources / "build.py"))["FLAGS"] if flag != "-O2"]
    library, texts = tmp_path / "faulty.so", map(str, sorted(sources.glob("*.c")))
    subprocess.run(["gcc", *flags, "-w", *texts, "-o", str(library), "-lm", "-ldl"], check=True)
    unit, tests, checkout, *_ = Path(__file__).parents
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, (unit, tests, checkout)))}
    return subprocess.run(
        [sys.executable, "-c", RUNS, str(library)], env=environment, capture_output=True, check=False
    ).returncode


@pytest.mark.stress
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_noticed(fault: str, tmp_path: Path) -> None:
    if shutil.which("gcc") is None:
        pytest.skip("gcc is not installed")
    assert run(tmp_path, *FAULTS[fault])


@pytest.mark.stress
def test_without_a_fault_nothing_is(tmp_path: Path) -> None:
    if shutil.which("gcc") is None:
        pytest.skip("gcc is not installed")
    assert run(tmp_path, "calls.c", "#include <limits.h>", "#include <limits.h>") == 0
