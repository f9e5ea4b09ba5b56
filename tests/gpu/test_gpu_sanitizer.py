"""compute-sanitizer over a spread of the template's instances, and over faults that it must see.

Each tool runs once for all instances, as starting one takes longer than most of what it checks.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from functools import partial
from pathlib import Path

import pytest

from autotune.files.errors import EnvironmentProblem
from autotune.gpu import driver
from autotune.kernel.compiler import Compiler

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
sys.path.insert(0, str(Path(__file__).parent))
import sanitize_table
import sanitized
from sanitizer import FOUND, OPTIONS, SanitizerRun, find_tool, run, version_of

NUM_INSTANCES = 40  # at least
KNOWS_WARPGROUPS = (2026, 1)  # the first release whose racecheck does (docs/decisions/0112)

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(400)]


@pytest.fixture(scope="module")
def path(request: pytest.FixtureRequest) -> Path:
    """Where compute-sanitizer is."""
    try:
        return find_tool()
    except EnvironmentProblem as reason:
        if request.config.getoption("--require-gpu"):
            pytest.fail(f"--require-gpu: {reason}", pytrace=False)
        pytest.skip(str(reason))


@pytest.fixture(scope="module")
def watch(path: Path) -> sanitize_table.Run:
    """The driver script under one tool."""
    return partial(run, path)


def num_found(done: SanitizerRun) -> int:
    assert done.num_found is not None, done
    return done.num_found


@pytest.mark.parametrize(("tool", "cases"), [("memcheck", "all"), ("racecheck", "pipelined")])
def test_the_template_is_clean(watch: sanitize_table.Run, tool: str, cases: str) -> None:
    done = watch(tool, ("spread", cases))
    assert num_found(done) == 0, done
    assert done.exit_code == 0, done
    facts = json.loads(next(line for line in done.stdout.splitlines() if line.startswith("{")))
    assert facts["wrong"] == []
    assert facts["num_instances"] >= NUM_INSTANCES
    assert facts["num_launches"] >= 4 * NUM_INSTANCES


FIRST = {"mma": (8, 0), "halves": (7, 5)}  # without warpgroups, from a compute capability on


@pytest.mark.parametrize(
    ("deed", "num_instances"), [("tensor", 32), ("mma", 32), ("scaled", 12), ("halves", 12)]
)
@pytest.mark.parametrize("tool", OPTIONS)
def test_kernels_on_tensor_cores_are_clean(
    watch: sanitize_table.Run, path: Path, tool: str, deed: str, num_instances: int
) -> None:
    capability = driver.device_limits(driver.find_gpu("auto").index).compute_capability
    if capability < FIRST[deed] if deed in FIRST else capability != (9, 0):
        pytest.skip(f"no such kernel for compute capability {capability}")
    if tool == "racecheck" and deed == "scaled":
        pytest.skip("racecheck does not see that __syncwarp orders what lanes read (docs/decisions/0112)")
    if tool == "racecheck" and deed not in FIRST and (found := version_of(path)) < KNOWS_WARPGROUPS:
        pytest.skip(f"{path} is of {found}; racecheck knows warpgroups from {KNOWS_WARPGROUPS} on")
    done = watch(tool, (deed, "all"))
    assert num_found(done) == 0, done
    assert done.exit_code == 0, done
    facts = json.loads(next(line for line in done.stdout.splitlines() if line.startswith("{")))
    assert (facts["wrong"], facts["num_instances"]) == ([], num_instances)


@pytest.mark.parametrize("tool", OPTIONS)
def test_nothing_is_found_in_a_clean_kernel(watch: sanitize_table.Run, tool: str) -> None:
    done = watch(tool, ("plant", "clean"))
    assert (done.exit_code, num_found(done)) == (0, 0), done


@pytest.mark.parametrize(
    ("tool", "kind", "name"),
    [
        ("memcheck", "plant", "reads too far"),
        ("memcheck", "plant", "writes too far"),
        ("memcheck", "mutant", "no check of the edge"),
        ("racecheck", "plant", "races"),
        ("racecheck", "plant", "reads too soon"),
        ("racecheck", "mutant", "no barrier"),
        ("initcheck", "plant", "reads what nobody wrote"),
        ("synccheck", "plant", "is not met by all"),
    ],
)
def test_a_planted_fault_is_found(watch: sanitize_table.Run, tool: str, kind: str, name: str) -> None:
    done = watch(tool, (kind, name))
    assert num_found(done) > 0, done
    assert done.exit_code == FOUND, done


@pytest.mark.parametrize(
    ("tool", "name"), [("memcheck", "no check of the edge"), ("racecheck", "no barrier")]
)
def test_the_one_bad_kernel_of_a_table_is_named(
    watch: sanitize_table.Run, tool: str, name: str, tmp_path
) -> None:
    """Among right ones, and whatever becomes of those that would have run behind it."""
    compiler = Compiler(driver.device_limits(driver.find_gpu("auto").index).arch)
    one = sanitized.MUTATED
    texts = {"right": sanitized.template.source(), "bad": sanitized.mutant_source(name)}
    tasks = []
    for number, which in enumerate(("right", "bad", "right")):
        cubin = compiler.compile_source(texts[which], sanitized.template.macros(one.config, one.variant))
        cubin_file = tmp_path / f"{number}.cubin"
        cubin_file.write_bytes(cubin.code)
        tasks.append({"id": f"{number}-{which}", "config": one.config.to_dict(),
                      "variant": asdict(one.variant), "cubin": str(cubin_file)})  # fmt: skip
    compiler.close()
    found = sanitize_table.examine(tasks, [tool], 2, watch, tmp_path)
    assert {(f.tool, f.kernel) for f in found} == {(tool, "1-bad")}


def test_right_kernels_of_a_table_are_clean_under_every_tool(watch: sanitize_table.Run, tmp_path) -> None:
    """Splits and packed operands among them: `initcheck` finds their workspace unwritten."""
    limits = driver.device_limits(driver.find_gpu("auto").index)
    compiler = Compiler(limits.arch)
    tasks = []
    for number, one in enumerate(sanitized.instances(limits)[:12]):
        (tmp_path / f"{number}.cubin").write_bytes(compiler.compile(one.config, one.variant).code)
        tasks.append({"id": f"{number}", "config": one.config.to_dict(), "variant": asdict(one.variant),
                      "cubin": str(tmp_path / f"{number}.cubin")})  # fmt: skip
    compiler.close()
    assert {task["config"]["reduction"] for task in tasks} >= {"two_pass", "last_block", "last_wave"}
    assert any(task["config"]["pack_a"] for task in tasks)
    assert sanitize_table.examine(tasks, list(OPTIONS), 4, watch, tmp_path) == []
