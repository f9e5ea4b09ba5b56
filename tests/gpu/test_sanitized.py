"""The script that compute-sanitizer watches, without a GPU: what it compiles, and on a driver played by the
host, that it computes the problems it says and sees what is wrong."""

from __future__ import annotations

import ctypes
import json

import numpy as np
import pytest
import sanitized  # first: it makes the folder of the others known
from check import WrongResult, check
from host_driver import HostDriver, play_pack, view
from problems import problems

from autotune import kernel
from autotune.compiler import Compiler
from autotune.device import KNOWN


@pytest.fixture(scope="module")
def compiler(tmp_path_factory):
    compiler = Compiler("sm_90", cache_dir=tmp_path_factory.mktemp("cache"))
    yield compiler
    compiler.close()


@pytest.mark.parametrize("name", sanitized.PLANTS)
def test_plants_compile(compiler, name):
    assert compiler.compile_source(sanitized.PLANT, sanitized.PLANTS[name]).registers > 0


@pytest.mark.parametrize("name", sanitized.MUTANTS)
def test_mutants_compile_and_differ_in_one_line(compiler, name):
    text = sanitized.mutant_source(name)
    pairs = zip(kernel.source().split("\n"), text.split("\n"), strict=True)
    assert sum(before != after for before, after in pairs) == 1
    macros = kernel.macros(sanitized.MUTATED.config, sanitized.MUTATED.variant)
    assert compiler.compile_source(text, macros).registers > 0


class PlayedGpu(sanitized.Gpu):
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
        if name == kernel.REDUCE_ENTRY:
            counts = (p.split_k, *p.padded, p.reduce_group_bits, p.reduce_blocks)
            assert (*values[:2], *values[7:12]) == (p.m, p.n, *counts)
            return
        if name == kernel.PACK_ENTRY:
            play_pack(grid, values)
            return
        m, n, k, alpha, a, lda, b, ldb, beta, c, ldc, workspace, splits, *raster, _strides, _epilogue = values
        assert (m, n, k, alpha, beta, splits) == (p.m, p.n, p.k, p.alpha, p.beta, p.split_k)
        assert raster == [one.config.group, one.config.raster == "m"]
        assert bool(workspace) == bool(p.sum_bytes)
        padded = {plan.is_a: plan.padded for plan in p.packs}
        assert (lda, ldb, ldc) == (padded.get(True, p.lds[0]), padded.get(False, p.lds[1]), p.lds[2])
        a = _unpacked(a, p.a, lda, one.variant.trans_a) if True in padded else _stored(a, p.a, lda)
        b = _unpacked(b, p.b, ldb, not one.variant.trans_b) if False in padded else _stored(b, p.b, ldb)
        if not p.alpha:  # packed operands are then anything
            a, b = p.a, p.b
        self.play(one, p, a, b, _stored(c, p.c, ldc), workspace)


def _stored(address, like, lead):
    """A view of a matrix in memory that ends with its last element; a null pointer is one without any."""
    rows, columns = like.shape
    if not address:
        assert not like.size
        return like
    flat = np.frombuffer((ctypes.c_float * ((rows - 1) * lead + columns)).from_address(address), np.float32)
    return np.lib.stride_tricks.as_strided(flat, like.shape, (4 * lead, 4), writeable=True)


def _unpacked(address, like, padded, is_by_k):
    """A packed operand as it is stored, which is by k already or not."""
    rows, columns = like.shape if is_by_k else like.shape[::-1]
    packed = view(address, rows, padded, padded)[:, :columns]
    return packed if is_by_k else packed.T


def right(one, p, a, b, c, workspace):
    for given, stored in ((p.a, a), (p.b, b), (p.c, c)):
        assert np.array_equal(given, stored, equal_nan=True)
    a, b = (x.astype(np.float64) for x in (a, b))
    with np.errstate(invalid="ignore"):
        product = (a.T if one.variant.trans_a else a) @ (b.T if one.variant.trans_b else b)
        scaled = p.beta * c.astype(np.float64) if p.beta else 0
        c[:] = scaled + (p.alpha * product if p.alpha and p.k else 0)


def overrun(one, p, a, b, c, workspace):
    right(one, p, a, b, c, workspace)
    gap = ctypes.c_float.from_address(c.ctypes.data + 4 * p.n)
    gap.value = 0.0


def unfinished(one, p, a, b, c, workspace):
    right(one, p, a, b, c, workspace)
    ctypes.c_uint32.from_address(workspace + p.sum_bytes).value = 1


def test_all_instances_get_their_problems():
    gpu = PlayedGpu(right)
    chosen = sanitized.instances(gpu.limits)
    assert len(chosen) >= 40
    for number, one in enumerate(chosen):
        tasks = problems(one, number)
        assert {task.name for task in tasks} >= set(sanitized.PIPELINED)
        for task in tasks:
            check(task, gpu.compute(one, task), one.variant.trans_a, one.variant.trans_b)
    assert not gpu.driver.memory  # all freed


@pytest.mark.parametrize(
    ("play", "words"), [(overrun, "between the rows of C"), (unfinished, "not left zero")]
)
def test_what_is_written_elsewhere_is_seen(play, words):
    gpu = PlayedGpu(play)
    tasks = [(one, task) for one in sanitized.instances(gpu.limits) for task in problems(one)]
    is_fit = {
        overrun: lambda p: p.m > 1 and p.lds[2] > p.n and not p.counter_bytes,
        unfinished: lambda p: p.counter_bytes,
    }[play]
    one, task = next((one, p) for one, p in tasks if is_fit(p))
    with pytest.raises(WrongResult, match=words):
        gpu.compute(one, task)


@pytest.mark.parametrize(("how", "is_marked"), [("marked", True), ("unwritten", False)])
def test_kernels_of_a_table_get_their_problems(tmp_path, monkeypatch, capsys, how, is_marked):
    """`initcheck` wants the workspace as it was allocated; every other tool finds it marked."""
    gpu = PlayedGpu(right)
    found = []

    def compute(host, module, task):
        host.problem = one, task
        return original(host, module, task)

    def remember(one, p, a, b, c, workspace):
        if p.sum_bytes:
            found.append(ctypes.c_uint32.from_address(workspace).value)
        right(one, p, a, b, c, workspace)

    one = next(i for i in sanitized.instances(gpu.limits) if i.config.reduction == "last_block")
    original, gpu.play = sanitized.compute, remember
    monkeypatch.setattr(sanitized, "compute", compute)
    monkeypatch.setattr(sanitized, "Gpu", lambda: gpu)
    (tmp_path / "cubin").write_bytes(b"sgemm")
    task = {"id": "k", "config": one.config.to_dict(), "variant": vars(one.variant),
            "cubin": str(tmp_path / "cubin")}  # fmt: skip
    (tmp_path / "list").write_text(json.dumps([task]), encoding="utf-8")
    assert sanitized.main("table", "pipelined", str(tmp_path / "list"), how) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts == {"launches": {"k": len(sanitized.PIPELINED) + bool(one.config.flush_k)}, "wrong": []}
    assert {value == int(sanitized.MARK) for value in found} == {is_marked}


def test_a_wrong_kernel_of_a_table_is_told(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sanitized, "Gpu", lambda: PlayedGpu(right))
    monkeypatch.setattr(sanitized, "compute", lambda gpu, module, p: np.zeros_like(p.c))
    one = sanitized.MUTATED
    (tmp_path / "cubin").write_bytes(b"sgemm")
    task = {"id": "k", "config": one.config.to_dict(), "variant": vars(one.variant),
            "cubin": str(tmp_path / "cubin")}  # fmt: skip
    (tmp_path / "list").write_text(json.dumps([task]), encoding="utf-8")
    assert sanitized.main("table", "all", str(tmp_path / "list"), "marked") == 1
    assert json.loads(capsys.readouterr().out)["wrong"][0].startswith("k: tiles that fit: ")
