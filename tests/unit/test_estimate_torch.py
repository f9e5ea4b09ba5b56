"""What torch itself computes is counted as what it is, whichever way it comes; where torch is installed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from host_torch import HostTorch
from table_cases import FakeDriver, make_kernel, make_spec, make_table, write_table

from autotune.estimate.counts import FP32, TF32, UNSUPPORTED
from autotune.facts.gemm import Gemm
from autotune.kernel.launch import PLAIN
from autotune.runtime.choose.chooser import Counted
from autotune.runtime.dispatcher import Dispatcher
from autotune.suite import CallSignature, by_shape, read_calls

torch: Any = pytest.importorskip("torch")
REPOSITORY = Path(__file__).resolve().parents[2]
PROGRAM = """
import threading, torch
from torch.nn import functional as F
cuda = "cuda"
one = lambda *shape: torch.ones(*shape, device=cuda, requires_grad=True)
with torch.autocast(cuda):
    one(8, 4) @ one(4, 2)
"""
SQUARE = "one(8, 8) @ one(8, 8)"


def counted(tmp_path: Path, text: str) -> tuple[dict[str, list[int]], dict[Gemm, int | None]]:
    """Operations and FLOPs by kind of work, and calls by shape, of a program behind the lines above."""
    program = tmp_path / "program.py"
    program.write_text(f"{PROGRAM}{text}\n")
    command = [sys.executable, "-m", "autotune.estimate.counted_program", str(tmp_path), "0", str(program)]
    path = os.pathsep.join((str(REPOSITORY), str(Path(torch.__file__).parents[1])))
    subprocess.run(command, env=os.environ | {"PYTHONPATH": path}, timeout=200, check=True, cwd=tmp_path)
    work = json.loads((tmp_path / "work.json").read_text())["work"]
    found = {one["what"]: [one["calls"], one["flops"]] for one in work}
    assert found.pop("products in float16") == [1, 2 * 8 * 4 * 2]
    shapes = by_shape(read_calls(tmp_path / "calls.json").calls) if found[FP32][0] else {}
    return found, shapes


def test_products_are_counted_wherever_they_come_from(tmp_path: Path) -> None:
    found, shapes = counted(
        tmp_path,
        f"""
linear = torch.nn.Linear(16, 32).to(cuda)
linear(one(4, 16)).square().sum().backward()  # one forward, two backward
thread = threading.Thread(target=lambda: {SQUARE}); thread.start(); thread.join()
torch.cdist(one(50, 6), one(60, 6))
with torch.inference_mode():
    linear(torch.ones(2, 3, 16))
    torch.nn.TransformerEncoderLayer(12, 2, 20, batch_first=True).eval().cuda()(torch.ones(2, 3, 12))
torch.compile(lambda x: x @ x)(one(9, 9))
torch.ones(()).expand(8, 8) @ one(8, 8)
torch.cuda.synchronize()
""",
    )
    assert shapes == {
        Gemm(4, 32, 16, trans_b=True): 1, Gemm(4, 16, 32): 1, Gemm(32, 16, 4, trans_a=True): 1,
        Gemm(8, 8, 8): 1, Gemm(50, 60, 8, trans_b=True): 1, Gemm(6, 32, 16, trans_b=True): 1,
        Gemm(2, 36, 12, trans_b=True, batch=3, shares_b=True): 1, Gemm(6, 12, 12, trans_b=True): 1,
        Gemm(6, 20, 12, trans_b=True): 1, Gemm(6, 12, 20, trans_b=True): 1, Gemm(9, 9, 9): 1,
    }  # fmt: skip
    assert found[UNSUPPORTED] == [1, 2 * 8**3] and found[FP32][1] == sum(gemm.flops for gemm in shapes)
    assert set(found) == {FP32, UNSUPPORTED, "attention in one kernel"}


def test_other_work_is_told_apart_forwards_and_backwards(tmp_path: Path) -> None:
    found, shapes = counted(
        tmp_path,
        f"""
x = one(2, 4, 8, 16)
F.scaled_dot_product_attention(x, x, x).sum().backward()  # one kernel on the CPU, too
F.scaled_dot_product_attention(x, x, x, dropout_p=0.1).sum().backward()  # several there
torch.nn.MultiheadAttention(16, 2)(*3 * [one(3, 2, 16)], need_weights=False)[0].square().sum().backward()
for layer in (torch.nn.LSTM(8, 8), torch.nn.GRU(8, 8)):
    layer(one(5, 3, 8))[0].sum().backward()
torch.nn.Conv2d(3, 4, 3)(one(1, 3, 8, 8)).sum().backward()
with torch.inference_mode():
    torch.nn.Conv2d(3, 4, 3)(torch.ones(1, 3, 8, 8))
torch.linalg.cholesky(torch.eye(30))
one(8, 8) @ one(8)
torch.set_float32_matmul_precision("high")
{SQUARE}
torch.set_float32_matmul_precision("highest")
one(8, 8).double() @ one(8, 8).double()
""",
    )
    attention, conv = 2 * 2 * 2 * 4 * 8 * 8 * 16, 2 * 4 * 36 * 27
    of_heads = 2 * 2 * 4 * 3 * 3 * 8
    assert found["attention in one kernel"][1] == round(attention * 3.5) + attention * 3 + of_heads * 3.5
    gate = 2 * 15 * (64 + 64)  # 4 in an LSTM, 3 in a GRU; three times with the backward pass
    assert found["recurrent layers"][1] == pytest.approx(3 * 7 * gate, rel=0.1)
    assert found["convolutions"][1] == 2 * conv + conv * 2
    assert found["factorizations and solves"] == [1, 30**3 / 3]
    assert found["products of a matrix and a vector"] == [1, 2 * 64]
    assert found[TF32] == [1, 2 * 8**3] and found["products in float64"] == [1, 2 * 8**3]
    assert sum(count or 0 for count in shapes.values()) == 6  # of the attention's projections


def test_what_asks_for_a_gpu_runs_without_one(tmp_path: Path) -> None:
    _, shapes = counted(
        tmp_path,
        """
class Attends(torch.nn.Module):
    def forward(self, x):
        return F.scaled_dot_product_attention(x, x, x) @ x.mT
torch.jit.script(Attends())(torch.ones(1, 2, 5, 8))
F.scaled_dot_product_attention(*3 * [torch.ones(2, 3, 8)])  # of three dimensions: by products on a GPU, too
stream, began, ended = torch.cuda.Stream(), *(torch.cuda.Event(enable_timing=True) for _ in range(2))
torch.cuda.set_device(0)
began.record()
with torch.cuda.stream(stream):
    stream.wait_stream(torch.cuda.current_stream())
    made = torch.rand(4, 6, generator=torch.Generator(cuda).manual_seed(1), device="cuda:0")
    made.to(0).pin_memory().cuda(non_blocking=True) @ torch.ones(6, 7, device=0)
ended.record(stream)
torch.cuda.synchronize()
assert began.elapsed_time(ended) > 0 and isinstance(torch.Generator(), torch.Generator)
torch.save(made, "made.pt")
torch.load("made.pt", map_location=cuda) @ torch.load("made.pt").T
""",
    )
    assert shapes == {
        Gemm(5, 5, 8, trans_b=True, batch=2): 1,
        Gemm(4, 7, 6): 1,
        Gemm(4, 4, 6, trans_b=True): 1,
        Gemm(3, 3, 8, trans_b=True, batch=2): 1,
        Gemm(3, 8, 3, batch=2): 1,
    }


def test_a_program_is_counted_as_a_routed_one_is_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from autotune.estimate.counts import WorkCounts
    from autotune.estimate.torch_work import allows_tf32, counted

    HostTorch(monkeypatch, lambda x: x, is_compiled=False)
    kernels = [make_kernel(name, make_spec(name)) for name in ("NN", "NT", "TN", "TT")]
    driver = FakeDriver(make_table(*kernels))
    runtime = Dispatcher(write_table(driver.table, tmp_path / "t"), driver=driver)

    def program() -> None:
        x, w, wide = torch.ones(6, 8), torch.ones(12, 8), torch.ones(40, 40)
        torch.nn.functional.linear(x, w, torch.ones(12))
        torch.mm(wide[1:9, 3:11], wide[:8, :5])
        torch.mm(x.T, x, out=wide[2:10, 4:12])
        torch.addmm(torch.ones(6, 12), x, w.T, beta=0.5)
        torch.bmm(torch.ones(3, 5, 7), torch.ones(7, 4).expand(3, 7, 4))  # one product of all its rows
        torch.bmm(torch.ones(5, 3, 7).transpose(0, 1), torch.ones(3, 4, 7).mT)
        torch.baddbmm(torch.ones(4), torch.ones(3, 5, 7), torch.ones(3, 7, 4))

    with torch.no_grad(), runtime.torch():
        program()
    recorded = {CallSignature(*one[:4]): one.calls for one in runtime.counts()}  # type: ignore[arg-type]
    counts = WorkCounts(tmp_path, allows_tf32)
    with torch.no_grad(), counted(counts):
        program()
    counts.write()
    assert read_calls(tmp_path / "calls.json").calls == recorded and len(recorded) == 7


def test_products_are_timed_by_kind_those_with_most_work_first() -> None:
    from autotune.estimate.counted_program import product_time

    kinds = [
        Counted(Gemm(8, 4, 2, batch=3, shares_b=True), (2, 6, 4), (16, 16, 16), PLAIN, "", 1, "cublas", 5),
        Counted(Gemm(16, 8, 32, True, True), (16, 32, 8), (16, 16, 16), PLAIN, "", 1, "cublas", 2),
    ]
    shapes = []

    def timed(call: Any) -> float:
        shapes.append(tuple(call().shape))
        return 1.0

    found = product_time(kinds, torch, "cpu", timed)
    assert shapes == [(16, 8), (3, 8, 4)] and found == (7.0, 1.0)
