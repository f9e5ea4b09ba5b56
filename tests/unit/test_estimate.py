"""A program of torch is run as it is, its products are counted, and what it may gain is predicted."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from cli_here import run_here
from typer.testing import CliRunner

from autotune.cli import app as command_line
from autotune.cli import estimate as command
from autotune.estimate.counts import FP32, TF32, UNSUPPORTED, WorkCounts
from autotune.facts.gemm import Gemm
from autotune.files.errors import EnvironmentProblem, UsageError
from autotune.kernel.launch import BIAS
from autotune.shipped.expected_times import Predicted, ShippedFigures
from autotune.suite import CallSignature, read_calls

REPOSITORY = Path(__file__).resolve().parents[2]
FAKE = REPOSITORY / "tests/played_torch"
PROGRAM = """
import sys, torch
from torch import Tensor
for _ in range(3):
    torch.addmm(Tensor(256), Tensor(32, 64), Tensor(256, 64).mT)
torch.bmm(Tensor(4, 8, 16), Tensor(4, 16, 8, offset=1))
torch.mm(Tensor(8, 8, dtype="bfloat16"), Tensor(8, 8, dtype="bfloat16"))
torch.backends.cuda.matmul.fp32_precision = "tf32"
torch.mm(Tensor(8, 8), Tensor(8, 8))
"""
HALF = "import torch\ntorch.mm(*2 * [torch.Tensor(8, 8, dtype='float16')])\n"
LINEAR = Gemm(32, 256, 64, trans_b=True)


class FakeFigures:
    """Of a GPU on which kernels are twice as fast as cuBLAS once they are tuned."""

    limits = SimpleNamespace(name="NVIDIA H100")

    def predict(self, gemm: Gemm) -> Predicted:
        return Predicted(cublas_us=4.0, kernel_us=2.0, untuned_us=4.0)


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A program, beside a torch that is simulated, in the folder that the command runs in."""
    monkeypatch.syspath_prepend(str(FAKE))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join((str(FAKE), str(REPOSITORY))))
    monkeypatch.setattr(ShippedFigures, "of_models", lambda _: [FakeFigures()])
    monkeypatch.setattr(command.targets, "matrices", list)
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "train.py"
    path.write_text(PROGRAM)
    return path


def run(*arguments: str | Path, code: int = 0) -> Any:
    message = run_here("estimate", *arguments, exit_code=code).stdout
    return json.loads(message) if "--json" in arguments else message


def test_products_are_counted_and_predicted(program: Path) -> None:
    facts = run("--json", program)
    work = {one["what"]: one for one in facts["work"]}
    assert {what: one["calls"] for what, one in work.items()} == {FP32: 4, "products in bfloat16": 1, TF32: 1}
    flops = 3 * LINEAR.flops + Gemm(8, 8, 16, batch=4).flops
    assert work[FP32]["flops"] == flops and facts["flops"] == flops + 2 * Gemm(8, 8, 8).flops
    assert work[FP32]["why_no_gain"] is None and "AMP" in work["products in bfloat16"]["why_no_gain"]
    (gpu,) = facts["predicted"]
    assert (
        gpu["cublas_s"] == pytest.approx(4 * 4e-6)
        and gpu["tuned_speedup"] == 2
        and gpu["untuned_speedup"] == 1
    )
    assert [(one["shape"], one["count"]) for one in facts["shapes"]] == [
        ("32x256x64:NT", 3),
        ("8x8x16b4:NN", 1),
    ]
    recorded = read_calls(Path("calls.json")).calls
    batch = CallSignature(Gemm(8, 8, 16, batch=4), (16, 8, 8), (16, 4, 16))
    assert recorded == {CallSignature.packed(LINEAR)._replace(epilogue=BIAS): 3, batch: 1}


def test_the_text_says_where_nothing_is_gained_and_what_is_next(program: Path) -> None:
    text = run(program, "--epochs", "3")
    assert "train.py --epochs 3: 4 products in float32 of 2 shapes" in text
    assert "tensor cores multiply" in text and "autocast (AMP)" in text and "2.000x" in text
    assert "Predicted, not measured here" in text and "search --suite calls.json" in text
    assert "100% of the products take less than 10 us" in text


def test_what_was_measured_on_a_gpu_bounds_the_gain_of_the_program(program: Path) -> None:
    """Half of its time, twice as fast: a third more, at most."""
    measured = {"gpu": "NVIDIA H100", "seconds": 4.0, "products_s": 2.0, "timed_share": 0.995}
    facts = run("--json", program)
    assert facts["here"] is None
    here = command._here({"here": measured})
    assert here == {**measured, "share": 0.5}
    text = command._text({**facts, "here": here})
    assert (
        "take cuBLAS 2 s of the program's 4 s, 50%" in text and "the whole program is 1.33x as fast" in text
    )


@pytest.mark.every(2)
@pytest.mark.parametrize(
    ("end", "code", "message"),
    [
        ("sys.exit(int(sys.argv[1]))", 5, "exit code 5"),
        ("raise ValueError", 1, "exit code 1"),
        ("import os; os._exit(7)", 7, "exit code 7"),
        ("import os; os.kill(os.getpid(), 9)", 137, "exit code 137"),
    ],
)
def test_however_a_program_ends_it_is_told_and_ended_likewise(
    program: Path, end: str, code: int, message: str
) -> None:
    program.write_text(f"{PROGRAM}\n{end}\n")
    text = run(program, "5", code=code)
    assert message in text and ("4 products" in text or code == 137)


def test_a_program_without_float32_products_has_nothing_to_gain(program: Path) -> None:
    program.write_text(HALF)
    text = run("-m", "train")
    assert "train: 0 products" in text and "nothing to gain in this program" in text
    assert not Path("calls.json").exists()


def test_a_program_is_ended_when_its_time_is_up(program: Path) -> None:
    program.write_text(f"{PROGRAM}\nimport time\nwhile True:\n    time.sleep(9)\n")
    facts = run("--seconds", "0.5", "--json", program)
    assert facts["is_cut_short"] and facts["num_calls"] == 4


def test_ctrl_c_ends_the_program_and_tells_what_it_did(program: Path) -> None:
    program.write_text(f"{HALF}\nimport time\nopen('begun', 'w')\ntime.sleep(60)\n")
    started = subprocess.Popen(
        [sys.executable, "-m", "autotune", "estimate", "--json", str(program)],
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip
    while not Path("begun").exists():
        time.sleep(0.02)
    os.killpg(started.pid, signal.SIGINT)
    facts = json.loads(started.communicate(timeout=60)[0])
    assert started.returncode == 130 and facts["was_interrupted"]
    assert [one["calls"] for one in facts["work"]] == [0, 1]


def test_what_is_missing_is_told_with_the_next_step(program: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fault(*arguments: str) -> BaseException | None:
        return CliRunner().invoke(command_line.app, ["estimate", *arguments]).exception

    assert isinstance(fault("none.py"), UsageError)
    Path("calls.json.d").mkdir()
    assert "--out" in str(fault(str(program)))
    Path("calls.json.d").rmdir()
    Path("torch.py").write_text("raise ImportError('libcudart.so.13 is not here')")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join((".", str(REPOSITORY))))
    rejected = fault(str(program))
    assert isinstance(rejected, EnvironmentProblem) and "libcudart" in str(rejected)
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    missing = fault(str(program))
    assert isinstance(missing, EnvironmentProblem) and "torch is missing" in str(missing)


def test_debug_behind_the_program_is_the_programs() -> None:
    own = command_line._num_own
    assert own(["estimate", "train.py", "--debug"]) == 1 and own(["search", "--debug"]) == 2
    assert own(["--debug", "estimate", "-m", "x"]) == 2


def test_forked_children_write_no_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    counts = WorkCounts(tmp_path, lambda: False)
    monkeypatch.setattr(os, "getpid", lambda: -1)
    counts.add("convolutions", 1.0)
    assert not list(tmp_path.iterdir())


def test_strides_that_no_kernel_takes_are_told_apart(tmp_path: Path) -> None:
    counts = WorkCounts(tmp_path, lambda: False)

    def tensor(shape: tuple[int, ...], strides: tuple[int, ...]) -> Any:
        return SimpleNamespace(shape=shape, dtype="torch.float32", stride=lambda: strides, data_ptr=lambda: 0)

    counts.product(tensor((8, 8), (0, 0)), tensor((8, 8), (8, 1)))
    counts.product(tensor((8, 0), (1, 1)), tensor((0, 8), (8, 1)))  # nothing to compute
    with counts.within("attention"), counts.within("another"):
        counts.product(tensor((8, 8), (8, 1)), tensor((8, 8), (8, 1)), part_of=counts.what_within())
    counts.write()
    work = json.loads((tmp_path / "work.json").read_text())["work"]
    assert {one["what"]: one["calls"] for one in work} == {FP32: 0, UNSUPPORTED: 1, "attention": 1}
