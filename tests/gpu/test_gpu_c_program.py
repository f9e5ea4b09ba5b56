"""An exported table as C on a real GPU: the unit tests' program, and the example that an export brings."""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from made_table import each_kind_of_launch, export_winners, plain_config

from autotune.facts.gemm import LAYOUTS, Gemm
from autotune.gpu.driver import device_limits

PROGRAM = Path(__file__).parents[1] / "c_program"
EPILOGUES = ("bias", "relu", "bias-gelu", "bias-gelu-tanh")
NUM_CALLS = 1_000_000
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.timeout(600),
    pytest.mark.skipif(shutil.which("gcc") is None, reason="gcc is not installed"),
    pytest.mark.xdist_group("programs in C"),
]


def _in_layouts(gemm: Gemm) -> list[Gemm]:
    return [replace(gemm, trans_a=x[0] == "T", trans_b=x[1] == "T") for x in LAYOUTS]


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every kind of launch, of single products and of batches, with epilogues."""
    plain = plain_config(device_limits(0), vec_b=1)
    winners = each_kind_of_launch(
        plain, *map(_in_layouts, (Gemm(64, 64, 48), Gemm(33, 65, 127), Gemm(48, 40, 512)))
    )
    winners |= dict.fromkeys(_in_layouts(Gemm(20, 12, 16, batch=6)), plain)
    winners[Gemm(20, 12, 64, batch=4)] = replace(plain, reduction="two_pass", split_k=2)
    folder = tmp_path_factory.mktemp("c") / "c_table"
    return export_winners(winners, folder, epilogues=EPILOGUES, with_c=True) / "c"


def _compiled(sources: Path, out: Path, *files: Path) -> Path:
    own = [path for path in sorted(sources.glob("*.c")) if path.name != "example.c"]
    command = ["gcc", "-std=gnu11", "-O2", "-Wall", "-Werror", f"-I{sources}", f"-Wa,-I{sources}"]
    linked = [str(sources / "cubins.S"), "-o", str(out), "-lm", "-ldl", "-pthread"]
    subprocess.run([*command, *map(str, (*own, *files)), *linked], check=True)
    return out


@pytest.fixture(scope="module")
def program(sources: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("program") / "program"
    return _compiled(sources, out, PROGRAM / "program.c", PROGRAM / "on_gpu.c")


def _run(program: Path, *arguments: str, cublas: bool = False) -> str:
    done = subprocess.run(
        [str(program), *arguments], capture_output=True, text=True, check=False,
        env=os.environ | {"AUTOTUNE_CUBLAS": f"{cublas:d}"},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("cublas", [False, True], ids=["kernels", "cublas"])
@pytest.mark.parametrize("what", ["products", "batches", "epilogues", "mixed"])
def test_what_a_program_multiplies_is_right(program: Path, what: str, cublas: bool) -> None:
    launches = int(_run(program, what, "11", "400", cublas=cublas).split()[0])
    assert launches > (0 if cublas else 300)  # cuBLAS launches by itself


def test_a_million_calls_on_threads_and_streams_are_right(program: Path) -> None:
    """Of 1,000 kinds, on eight threads and four streams: each is checked, and memory does not grow."""
    _run(program, "stress", str(NUM_CALLS))


def test_threads_share_kinds_of_call(program: Path) -> None:
    """So many that each stream has met enough splits to keep its memory."""
    _run(program, "threads", "2000")


def test_the_example_multiplies(sources: Path, tmp_path: Path) -> None:
    example = _compiled(sources, tmp_path / "example", sources / "example.c")
    assert "largest error" in _run(example)
