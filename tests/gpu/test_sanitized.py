"""The script that compute-sanitizer watches, without a GPU: what it compiles, and on a driver simulated by
the host, that it computes the problems it says and sees what is wrong."""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
import sanitized  # first: it makes the folder of the others known
from emulator import NOTHING, LaunchResult
from host_driver import HostDriver, play_pack, view
from problems import problems
from product_check import WrongProduct, activated, check, reference

from autotune.facts.device import KNOWN
from autotune.kernel import template
from autotune.kernel.compiler import Compiler

HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def compiler(tmp_path_factory):
    compiler = Compiler("sm_90", cache_dir=tmp_path_factory.mktemp("cache"))
    yield compiler
    compiler.close()


@pytest.mark.parametrize(
    ("script", "arguments"),
    [("sanitized.py", ("plant", "none of these")), ("counted_launch.py", ("99",))],
)
def test_what_tools_start_finds_what_it_imports(script, arguments, tmp_path):
    """As a program, without the paths that pytest adds. It ends where it looks for a GPU, or for the task."""
    done = subprocess.run(
        [sys.executable, HERE / script, *arguments], capture_output=True, text=True, check=False,
        cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(HERE.parents[1])},
    )  # fmt: skip
    *_, end = done.stderr.splitlines()
    assert end.startswith(("autotune.files.errors.EnvironmentProblem", "KeyError", "IndexError")), done.stderr


@pytest.mark.parametrize("name", sanitized.PLANTS)
def test_plants_compile(compiler, name):
    assert compiler.compile_source(sanitized.PLANT, sanitized.PLANTS[name]).registers > 0


@pytest.mark.parametrize("name", sanitized.MUTANTS)
def test_mutants_compile_and_differ_in_one_line(compiler, name):
    text = sanitized.mutant_source(name)
    pairs = zip(template.source().split("\n"), text.split("\n"), strict=True)
    assert sum(before != after for before, after in pairs) == 1
    macros = template.macros(sanitized.MUTATED.config, sanitized.MUTATED.variant)
    assert compiler.compile_source(text, macros).registers > 0


class FakeGpu(sanitized.Gpu):
    """Its kernels are `play`, called with the problem and the arguments as they are in memory."""

    def __init__(self, play):
        self.driver = HostDriver(None, {b"sgemm": self._play}, 2**28)
        self.limits, self.device, self.stream, self._borrowed = KNOWN["h200"], 0, 77, []
        self.play, self.problem = play, None

    def compute(self, one, problem):
        self.problem = one, problem
        return sanitized.compute(self, self.load(b"sgemm"), problem)

    def _play(self, host, name, grid, values):
        one, p = self.problem
        if name == template.REDUCE_ENTRY:
            counts = (p.split_k, *p.padded, p.reduce_group_bits, p.reduce_blocks_per_product, p.c.stride)
            assert (*values[:2], *values[7:13]) == (p.m, p.n, *counts)
            assert bytes(values[13]) == self.epilogue
            return
        if name == template.PACK_ENTRY:
            play_pack(grid, values)
            return
        m, n, k, alpha, a, lda, b, ldb, beta, c, ldc, workspace, splits, schedule, batch, epilogue = values
        assert (m, n, k, alpha, beta, splits) == (p.m, p.n, p.k, p.alpha, p.beta, p.split_k)
        assert tuple(schedule) == p.schedule
        assert bool(workspace) == bool(p.sum_bytes)
        assert (batch.products, batch.stride_c, ldc) == (p.products, p.c.stride, p.c.ld)
        self.epilogue = bytes(epilogue)
        packed = {plan.is_a for plan in p.packs}
        a, b = (
            _unpacked(address, stored, lead, stride, is_by_k)
            if is_a in packed
            else _view(address, stored, lead, stride)
            for is_a, address, stored, lead, stride, is_by_k in (
                (True, a, p.a, lda, batch.stride_a, one.variant.trans_a),
                (False, b, p.b, ldb, batch.stride_b, not one.variant.trans_b),
            )
        )
        if p.alpha:  # packed operands are otherwise anything
            for read, stored in ((a, p.a), (b, p.b)):
                assert np.array_equal(read, stored.matrices, equal_nan=True)
        bias = _view(epilogue.bias, p.bias, p.bias.ld, epilogue.stride_bias)
        assert np.array_equal(bias, p.bias.matrices, equal_nan=True)
        kept = _view(epilogue.kept, p.kept, epilogue.ld_kept, epilogue.stride_kept)
        self.play(one, p, LaunchResult(_view(c, p.c, ldc, batch.stride_c), kept), workspace)


def _view(address, stored, lead, stride):
    """The matrices in memory that ends with their last element; a null pointer is one without any."""
    shape = count, rows, columns = stored.matrices.shape
    if not address:
        assert not stored.matrices.size
        return stored.matrices
    num_floats = (count - 1) * stride + (rows - 1) * lead + columns
    flat = np.frombuffer((ctypes.c_float * num_floats).from_address(address), np.float32)
    return np.lib.stride_tricks.as_strided(flat, shape, (4 * stride, 4 * lead, 4), writeable=True)


def _unpacked(address, stored, padded, stride, is_by_k):
    """Packed operands as they are stored, which is by k already or not."""
    count, rows, columns = stored.matrices.shape
    rows, columns = (rows, columns) if is_by_k else (columns, rows)
    packed = [view(address + 4 * at * stride, rows, padded, padded)[:, :columns] for at in range(count)]
    return np.stack([one if is_by_k else one.T for one in packed])


def right(one, p, written, workspace):
    assert np.array_equal(written.c, p.c.matrices, equal_nan=True)
    value, _ = reference(p, one.variant.trans_a, one.variant.trans_b)
    written.c[:] = activated(p.epilogue.activation, value)
    if p.epilogue.keeps:
        written.kept[:] = value


def overrun(one, p, written, workspace):
    right(one, p, written, workspace)
    gap = ctypes.c_float.from_address(written.c.ctypes.data + 4 * p.n)
    gap.value = 0.0


def keeps_too_much(one, p, written, workspace):
    right(one, p, written, workspace)
    gap = ctypes.c_float.from_address(written.kept.ctypes.data + 4 * (p.kept.stride - 1))
    gap.value = 0.0


def unfinished(one, p, written, workspace):
    right(one, p, written, workspace)
    ctypes.c_uint32.from_address(workspace + p.sum_bytes).value = 1


def test_blocks_of_some_instances_hand_sums_on():
    """Under every tool: in a case of those that racecheck is shown."""
    chosen = enumerate(sanitized.instances(KNOWN["h200"]))
    tasks = [
        task for number, one in chosen if one.config.reduction == "chunks" for task in problems(one, number)
    ]
    shown = {task.name for task in tasks if task.counter_bytes}
    assert shown & {*sanitized.PIPELINED, sanitized.FLUSHED}


@pytest.mark.stress
def test_all_instances_get_their_problems():
    gpu = FakeGpu(right)
    chosen = sanitized.instances(gpu.limits)
    assert len(chosen) >= 40
    for number, one in enumerate(chosen):
        tasks = problems(one, number)
        assert {task.name for task in tasks} >= set(sanitized.PIPELINED)
        for task in tasks:
            check(task, gpu.compute(one, task), one.variant.trans_a, one.variant.trans_b)
    assert not gpu.driver.memory  # all freed


@pytest.mark.stress
@pytest.mark.parametrize(
    ("play", "words"),
    [
        (overrun, ": C: written between the rows"),
        (keeps_too_much, "what is kept: written between the rows or products"),
        (unfinished, "not left zero"),
    ],
)
def test_what_is_written_elsewhere_is_seen(play, words):
    gpu = FakeGpu(play)
    tasks = [(one, task) for one in sanitized.instances(gpu.limits) for task in problems(one)]
    is_fit = {
        overrun: lambda p: p.m > 1 and p.c.ld > p.n and not p.counter_bytes,
        keeps_too_much: lambda p: (
            p.kept is not NOTHING and p.products > 1 and p.kept.stride > p.m * p.kept.ld
        ),
        unfinished: lambda p: p.counter_bytes,
    }[play]
    one, task = next((one, p) for one, p in tasks if is_fit(p))
    with pytest.raises(WrongProduct, match=words):
        gpu.compute(one, task)


@pytest.mark.stress
@pytest.mark.parametrize(("how", "is_marked"), [("marked", True), ("unwritten", False)])
def test_kernels_of_a_table_get_their_problems(tmp_path, monkeypatch, capsys, how, is_marked):
    """`initcheck` wants the workspace as it was allocated; every other tool finds it marked."""
    gpu = FakeGpu(right)
    found = []

    def compute(host, module, task):
        host.problem = one, task
        return original(host, module, task)

    def remember(one, p, written, workspace):
        if p.sum_bytes:
            found.append(ctypes.c_uint32.from_address(workspace).value)
        right(one, p, written, workspace)

    one = next(i for i in sanitized.instances(gpu.limits) if i.config.reduction == "last_block")
    original, gpu.play = sanitized.compute, remember
    monkeypatch.setattr(sanitized, "compute", compute)
    monkeypatch.setattr(sanitized, "Gpu", lambda: gpu)
    (tmp_path / "cubin").write_bytes(b"sgemm")
    task = {"id": "k", "config": one.config.to_dict(), "variant": asdict(one.variant),
            "cubin": str(tmp_path / "cubin")}  # fmt: skip
    (tmp_path / "list").write_text(json.dumps([task]), encoding="utf-8")
    assert sanitized.main("table", "pipelined", str(tmp_path / "list"), how) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts == {"launches": {"k": len(sanitized.PIPELINED) + bool(one.config.flush_k)}, "wrong": []}
    assert {value == int(sanitized.MARK) for value in found} == {is_marked}


@pytest.mark.stress
def test_a_wrong_kernel_of_a_table_is_told(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sanitized, "Gpu", lambda: FakeGpu(right))
    monkeypatch.setattr(
        sanitized,
        "compute",
        lambda gpu, module, p: LaunchResult(np.zeros_like(p.c.matrices), p.kept.matrices),
    )
    one = sanitized.MUTATED
    (tmp_path / "cubin").write_bytes(b"sgemm")
    task = {"id": "k", "config": one.config.to_dict(), "variant": asdict(one.variant),
            "cubin": str(tmp_path / "cubin")}  # fmt: skip
    (tmp_path / "list").write_text(json.dumps([task]), encoding="utf-8")
    assert sanitized.main("table", "all", str(tmp_path / "list"), "marked") == 1
    assert json.loads(capsys.readouterr().out)["wrong"][0].startswith("k: tiles that fit: ")
