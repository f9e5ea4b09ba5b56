"""The core in C makes the choices that Python makes, on whatever table, and is C that no compiler minds."""

from __future__ import annotations

import ctypes
import math
import os
import random
import re
import runpy
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import fake_launches
import numpy as np
import pytest
from fake_selector import Selector
from hypothesis import given
from table_cases import _PACK, _REDUCE, _SGEMM, LIMITS, _arguments, calls_of, make_table, rank
from test_selector import cases

from autotune.export.figures import figures_of, weights_text
from autotune.facts.gemm import LAYOUTS, SINGLE, Batch, Gemm
from autotune.files.errors import DispatchError
from autotune.kernel.config import Config, threads_along_k
from autotune.kernel.launch import WORKSPACE_LIMIT, LaunchSpec, Variant, rejection, schedule
from autotune.kernel.launch import plan as plan_grid
from autotune.kernel.summation_order import CHUNKS
from autotune.perf_model.cublas_model import CublasModel
from autotune.perf_model.launches import Launches
from autotune.perf_model.model_figures import NUM_TERMS, Depths, ModelFigures
from autotune.perf_model.residual import Residuals
from autotune.runtime.calls.product import Product
from autotune.runtime.choose.chooser import Call, Chooser, Pick, in_splits
from autotune.runtime.launch.planner import CorePlan, Engine
from autotune.runtime.native import core
from autotune.runtime.native.core import Core, core_of
from autotune.runtime.table.table import (
    CublasFigures,
    Entry,
    Kernel,
    KernelRecord,
    Table,
    launchable,
)
from autotune.target_finder import matrices

NUM_CALLS = 10_000
NUM_KERNELS = 60  # of each layout
NUM_PLACES = 30
NUM_BATCHED = 12  # kernels for batches, of each layout
STRICT = ("-Wall", "-Wextra", "-Wconversion", "-Wshadow", "-pedantic", "-Werror")
BUILD = runpy.run_path(str(core.FOLDER / "build.py"))


@cache
def shipped_configs(layout: str) -> list[Config]:
    """All that the matrices that ship hold of a layout: kernels of every kind."""
    return sorted(
        {row.config for matrix in matrices() for row in matrix.rows if row.layout == layout},
        key=lambda config: config.key,
    )


def _in_chunks(config: Config, rng: random.Random) -> Config:
    """Some of them."""
    if threads_along_k(config) > 1 or rng.random() < 0.8:
        return config
    return replace(config, reduction="chunks", split_k=1, flush_k=rng.choice(CHUNKS))


def _figures(rng: random.Random) -> ModelFigures:
    fixed_us, round_us, step_us = rng.uniform(1, 4), rng.uniform(0.01, 0.3), rng.uniform(0.01, 0.6)
    return ModelFigures(
        fixed_us, round_us, step_us, rng.uniform(0.3, 1), rng.randint(0, 9), rng.uniform(0, 0.3)
    )


def _kernel(name: str, layout: str, config: Config, rng: random.Random) -> Kernel:
    missed = rng.choice(["", weights_text(np.array([rng.gauss(0, 0.02) for _ in range(NUM_TERMS)]))])
    is_batched = name.startswith("batched")
    variant = Variant(layout[0] == "T", layout[1] == "T", rng.random() < 0.2, is_batched)
    model = None if is_batched or rng.random() < 0.05 else _figures(rng)
    record = KernelRecord(name, config, variant, "0" * 64, 1, 1, 128, rng.randint(1, 8), model, missed)
    return launchable(record, LIMITS, "5" * 64)


def _extent(rng: random.Random, most: float = 14) -> int:
    return int(2 ** rng.uniform(0, most))


def _extents(rng: random.Random) -> tuple[int, int, int]:
    return _extent(rng), _extent(rng), _extent(rng, 17)


def _batch(gemm: Gemm, rng: random.Random) -> Gemm:
    shared = rng.choice([(False, False), (False, False), (True, False), (False, True)])
    return replace(gemm, batch=rng.choice((2, 3, 5, 8, 20, 33, 64)), shares_a=shared[0], shares_b=shared[1])


def _raced(entry: Entry, rng: random.Random) -> Entry:
    """Beside a cuBLAS that is slower, or faster, or was not there; timed as it adds a bias, or not."""
    cublas_us, adding_us = (rng.choice((None, 9.0, 10.5, 11.6, 11.8, 30.0)) for _ in range(2))
    return replace(entry, cublas_us=cublas_us, adding_us=adding_us)


def _cublas(rng: random.Random, *, is_batched: bool = False) -> CublasFigures:
    places = [_extents(rng) for _ in range(NUM_PLACES)]
    weights = np.array([[rng.gauss(0, 0.2) for _ in places]])
    model = CublasModel(Residuals(np.zeros((NUM_PLACES, 6)), weights), rng.uniform(0, 0.3), 0.1)
    gemms = [Gemm(*place, batch=rng.randint(2, 99) if is_batched else 1) for place in places]
    return figures_of("13.1.0", gemms, model)


def limited(table: Table, max_workspace: int) -> Table:
    """The same, whose launches take at most so many bytes of workspace."""
    specs = (replace(kernel.spec, max_workspace=max_workspace) for kernel in table.kernels)
    kernels = tuple(map(_with_spec, table.kernels, specs))
    return replace(table, kernels=kernels, max_workspace=max_workspace)


def _with_spec(kernel: Kernel, spec: LaunchSpec) -> Kernel:
    return replace(kernel, spec=spec)


def drawn_table(seed: int, *, times_batches: bool = False) -> Table:
    """Kernels of every kind with models of any kind, tuned shapes, and times of cuBLAS. `times_batches`: on
    batches, too, for which half of the kernels are those of single products again."""
    rng = random.Random(seed)
    kernels = [
        _kernel(f"{layout}-{number}", layout, _in_chunks(config, rng), rng)
        for layout in LAYOUTS
        for number, config in enumerate(rng.sample(shipped_configs(layout), NUM_KERNELS))
    ]
    kernels += [
        _kernel(f"batched-{layout}-{number}", layout, _in_chunks(config, rng), rng)
        for layout in LAYOUTS
        for number, config in enumerate(rng.sample(shipped_configs(layout), NUM_BATCHED))
    ]
    for kernel in kernels[: len(LAYOUTS) * NUM_KERNELS : 2] if times_batches else ():
        kernels.append(_kernel(f"batched-like-{kernel.id}", kernel.layout, kernel.config, rng))
    entries = []
    for layout in LAYOUTS:
        gemms = [Gemm(*_extents(rng), layout[0] == "T", layout[1] == "T") for _ in range(8)]
        own = [kernel for kernel in kernels if kernel.layout == layout]
        names = [kernel.id for kernel in own if not kernel.variant.is_batched]
        entries += [_raced(rank(gemm, *rng.sample(names, 3)), rng) for gemm in gemms]
        names = [kernel.id for kernel in own if kernel.variant.is_batched]
        batches = [_batch(gemm, rng) for gemm in gemms for _ in "1234"]
        entries += [_raced(rank(gemm, *rng.sample(names, 3)), rng) for gemm in dict.fromkeys(batches)]
    places = {layout: tuple(_extents(rng) for _ in range(NUM_PLACES)) for layout in LAYOUTS}
    levels = {x: weights_text(np.array([rng.gauss(0, 0.2) for _ in own])) for x, own in places.items()}
    cublas = {layout: _cublas(rng) for layout in LAYOUTS[:3]}  # of the last one nothing is known
    adding = {layout: _cublas(rng) for layout in LAYOUTS[1:]}
    known = {"places": places, "levels": levels, "cublas": cublas, "cublas_adding": adding}
    if times_batches:
        known["cublas_batched"] = {x: _cublas(rng, is_batched=True) for x in LAYOUTS[1:]}
    return make_table(*kernels, entries=tuple(entries), **known)


def drawn_calls(table: Table, num: int, seed: int) -> Iterator[Call]:
    """Of any size, tuned shapes and their neighbours among them; half of them packed and aligned."""
    rng = random.Random(seed)
    for _ in range(num):
        near = rng.choice([entry for entry in table.entries if not entry.gemm.is_batched]).gemm
        gemm = Gemm(*_extents(rng), rng.random() < 0.5, rng.random() < 0.5)
        gemm = rng.choice([gemm, gemm, gemm, near, replace(near, m=near.m + 1), replace(gemm, k=0)])
        call = Call.packed(gemm)
        if rng.random() < 0.5:
            lds = tuple(ld + rng.choice((0, 0, 1, 2, 4, 2**29)) for ld in call.lds)
            call = Call(gemm, lds, tuple(4 * rng.choice((0, 0, 1, 2, 3)) for _ in "abc"))
        yield call


def drawn_batches(table: Table, num: int, seed: int) -> Iterator[Call]:
    """Tuned batches and their neighbours; half of them packed and aligned."""
    rng = random.Random(seed)
    tuned = [entry.gemm for entry in table.entries if entry.gemm.is_batched]
    for _ in range(num):
        gemm = rng.choice(tuned)
        gemm = rng.choice([gemm, gemm, replace(gemm, batch=_extent(rng, 8) + 2), replace(gemm, n=gemm.n + 1)])
        call = Call.packed(gemm)
        if rng.random() < 0.5:
            lds = tuple(ld + rng.choice((0, 0, 1, 2, 4)) for ld in call.lds)
            a, b, c = (stride and stride + rng.choice((0, 0, 1, 4, 1000)) for stride in call.batch[1:])
            addresses = tuple(4 * rng.choice((0, 0, 0, 1, 2)) for _ in "abc")
            call = Call(gemm, lds, addresses, Batch(gemm.batch, a, b, c))
        yield call


def assert_same(mine: Pick, other: Pick) -> None:
    """But for the last bits of sums and exponentials."""
    exactly = ("kernel_id", "how", "split_k", "entry", "provider", "is_looped")
    assert [getattr(mine, name) for name in exactly] == [getattr(other, name) for name in exactly]
    for name in ("expected_us", "cublas_us"):
        us, other_us = getattr(mine, name), getattr(other, name)
        assert (us is None) == (other_us is None)
        assert us is None or math.isclose(us, other_us, rel_tol=1e-9)
    assert math.isclose(mine.margin, other.margin, rel_tol=1e-9)


def assert_same_reasons(mine: Pick, other: Pick) -> None:
    assert_same(mine, other)
    assert mine.reason == other.reason


@pytest.mark.every(3)
@pytest.mark.parametrize(("seed", "version"), [(1, None), (2, "13.1.0"), (3, "12.8.4")])
def test_the_core_chooses_as_python_does(seed, version):
    table = drawn_table(seed)
    python, native = Selector(table, lambda: version), Chooser(table, lambda: version)
    hows, num_moved, rng = set(), 0, random.Random(seed)
    for number, call in enumerate(drawn_calls(table, NUM_CALLS // 3, seed)):
        check = assert_same_reasons if number % 4 == 0 else assert_same
        check(native.pick(call), pick := python.pick(call))
        if number % 4 == 0:
            adding = call._replace(adds_bias=True)
            check(native.pick(adding), other := python.pick(adding))
            num_moved += pick.provider != other.provider
            depths = Depths(2 ** rng.uniform(0, 12), 2 ** rng.uniform(0, 12))
            check(native.pick(call, depths), python.pick(call, depths))
        hows.add((pick.how, pick.provider))
    assert hows >= {("exact", "autotune"), ("modelled", "autotune"), ("modelled", "cublas")} and num_moved > 9


def test_the_core_ranks_as_python_does():
    """With depths of sums that are known, too."""
    table, rng, nums = drawn_table(1), random.Random(1), set()
    python, native = Selector(table), Chooser(table)
    for call in drawn_calls(table, 250, 1):
        depths = Depths(2 ** rng.uniform(0, 12), 2 ** rng.uniform(0, 12))
        for num, allowed in ((4, None), (8, depths)):
            expected = python.ranked(call, num, allowed)
            for mine, other in zip(native.ranked(call, num, allowed), expected, strict=True):
                assert_same_reasons(mine, other)
            nums.add(len(expected))
    assert nums >= {1, 4, 8}


def test_the_core_chooses_for_batches_as_python_does():
    hows = set()
    for seed in (4, 5, 6):
        table = drawn_table(seed)
        python, native = Selector(table), Chooser(table)
        for call in drawn_batches(table, 500, seed):
            assert_same_reasons(native.pick(call), pick := python.pick(call))
            hows.add((pick.how, pick.provider, pick.is_looped))
    tuned = {(how, who, False) for how in ("exact", "nearest") for who in ("autotune", "cublas")}
    assert hows >= {*tuned, ("modelled", "cublas", True)}


@pytest.mark.parametrize("version", [None, "12.8.4"])
def test_the_core_picks_and_ranks_for_batches_that_were_not_tuned_as_python_does(version):
    hows = Counter()
    for seed in (4, 5):
        table = drawn_table(seed, times_batches=True)
        python, native = Selector(table, lambda: version), Chooser(table, lambda: version)
        for call in drawn_batches(table, 150, seed):
            assert_same_reasons(native.pick(call), pick := python.pick(call))
            hows[pick.how, pick.provider, pick.is_looped] += 1
            ranked = native.ranked_in_batch(call, 4)
            if pick.how == "modelled" and not pick.is_looped:
                assert ranked[0].kernel_id == pick.kernel_id and ranked[0].split_k == pick.split_k
                for one in ranked:
                    assert call.rejection(native.kernels[one.kernel_id], one.split_k) is None
                assert native.pick(call._replace(has_epilogue=True)).is_looped
    assert min(hows["modelled", who, False] for who in ("autotune", "cublas")) > 9
    assert hows["modelled", "cublas", True]  # of a layout without times


def test_packed_operands_and_partial_sums_of_tall_products_keep_to_their_bounds():
    """In whole tiles, as a launch takes them; in the core as in Python."""
    table, rng = drawn_table(8), random.Random(8)
    python, native = Selector(table), Chooser(table)
    for _ in range(300):
        gemm = Gemm(int(2 ** rng.uniform(18, 24)), rng.choice((1, 4, 32, 33)), rng.randint(1000, 20_000))
        call = Call.packed(rng.choice((gemm, replace(gemm, m=gemm.n, n=gemm.m))))
        assert_same(native.pick(call), pick := python.pick(call))
        kernel, g = native.kernels[pick.kernel_id], call.gemm
        grid = plan_grid(in_splits(kernel, pick.split_k), g.m, g.n, g.k)
        assert max(grid.pack_bytes, grid.sum_bytes) <= WORKSPACE_LIMIT


def test_the_core_keeps_to_the_depth_of_a_chain_as_python_does():
    """In a table of chunks a chain serves as deep as one of them."""
    free, moved = drawn_table(7), 0
    last = {*free.defaults.values()}
    specs = (replace(k.spec, max_k=None if k.id in last else 512) for k in free.kernels)
    table = replace(free, kernels=tuple(map(_with_spec, free.kernels, specs)))
    python, native, unlimited = Selector(table), Chooser(table), Chooser(free)
    for call in (*drawn_calls(table, NUM_CALLS // 20, 7), *drawn_batches(table, 200, 7)):
        pick = python.pick(call)
        assert_same(native.pick(call), pick)
        assert call.gemm.k <= 512 or pick.kernel_id in last
        moved += unlimited.pick(call).kernel_id != pick.kernel_id
    assert moved > 20


@pytest.mark.every(4)
@pytest.mark.parametrize("most", [0, 100_000, 3 << 20, 100 << 20])
def test_the_core_keeps_to_a_limit_on_the_workspace_as_python_does(most):
    free = drawn_table(7)
    table, moved = limited(free, most), 0
    python, native, unlimited = Selector(table), Chooser(table), Chooser(free)
    for call in (*drawn_calls(table, NUM_CALLS // 10, 7), *drawn_batches(table, 500, 7)):
        pick = python.pick(call)
        assert_same(native.pick(call), pick)
        assert native.workspace_bytes(pick, call.single if pick.is_looped else call) <= most
        ranked = native.ranked(call, 4) if not call.gemm.is_batched else ()
        assert all(native.workspace_bytes(one, call) <= most for one in ranked)
        moved += unlimited.pick(call).kernel_id != pick.kernel_id
    assert moved > 20


@given(cases())
def test_tables_without_models_and_calls_that_nothing_serves(case):
    table, call = case
    python, native = Selector(table), Chooser(table)
    try:
        pick = python.pick(call)
    except DispatchError as rejected:
        with pytest.raises(DispatchError, match="no kernel serves") as message:
            native.pick(call)
        assert str(message.value) == str(rejected)
    else:
        assert_same_reasons(native.pick(call), pick)


class RecordingDriver:
    """Keeps launches: what is launched how, with which arguments."""

    LOADED = (1, 2, 3)  # sgemm, sgemm_reduce, sgemm_pack

    def __init__(self) -> None:
        self.launches: list[Any] = []
        self.context = 7

    def current_context(self) -> int:
        return self.context

    def push_context(self, context: int) -> None:
        raise AssertionError("it is current")

    pop_context = stream_id = is_capturing = make_pool = allocate = free = zero = push_context
    loading_depth = 0

    def launch(self, kernel, grid, threads, smem_bytes, stream, arguments, overlaps):
        types = (_SGEMM, _REDUCE, _PACK)[kernel - 1]
        values = [tuple(x) if hasattr(x, "__len__") else x for x in _arguments(arguments, types)]
        self.launches.append((kernel, grid, threads, smem_bytes, stream, bool(overlaps), values))


def test_the_core_launches_what_python_does():
    """All launches of kernels of every kind, in any number of splits, byte for byte."""
    table, rng = drawn_table(5), random.Random(5)
    driver, found = RecordingDriver(), Core(table, core.library())
    calls = calls_of(driver)
    found.library.autotune_use_driver(found.handle, ctypes.byref(calls))
    oracle = fake_launches.FakeLaunches(driver)
    native = Engine.__new__(Engine)
    native.core, kinds = found, set()
    for number in rng.choices(range(len(table.kernels)), k=600):
        kernel = table.kernels[number]
        m, n, k = (int(2 ** rng.uniform(0, most)) for most in (12, 12, 14))
        gemm = Gemm(m, n, k, kernel.variant.trans_a, kernel.variant.trans_b)
        split_k = rng.choice((2, 5, 16, 64)) if Launches.of([kernel.spec], [1]).is_splitting[0] else None
        spec = in_splits(kernel, split_k)
        lds = (max(gemm.lda, 1) + 3, max(gemm.ldb, 1) + 4, n + 5)
        batch = SINGLE
        if kernel.variant.is_batched:
            shared = rng.choice((0, 1)), rng.choice((0, 1))
            batch = Batch(rng.randint(2, 40), shared[0] * (m * k + 5), shared[1] * (k * n + 3), m * n + 7)
        plain = replace(spec, vec_a=1, vec_b=1, vec_c=1, is_exact=False)
        if rejection(plain, m, n, k, lds, batch=batch) is not None:
            continue
        grid, problem = plan_grid(spec, m, n, k, batch), Product(gemm, lds, (8, 8, 8), batch)
        loaded = fake_launches.LaunchableKernel(
            *RecordingDriver.LOADED, spec.threads, spec.smem_bytes, spec.overlaps
        )
        sgemm, reduce, pack = RecordingDriver.LOADED
        planned = found.library.structs.planned(
            m=m, n=n, k=k, layout=LAYOUTS.index(gemm.layout), kernel=number, split_k=spec.split_k, ld=lds,
            num_bytes=(8, 8, 8), context=7, sgemm=sgemm, reduce=reduce, pack=pack,
            batch=(batch.products, batch[1:]),
        )  # fmt: skip
        plan = fake_launches.Launched(problem, loaded, grid, schedule(spec, grid), CorePlan(found, planned))
        for alpha in (0.5, 0.0):
            bias = rng.choice((0, 6 << 40))
            launch = (plan, 11, (1 << 40, 2 << 40, 3 << 40), alpha, 2.0, 5 << 40, bias)
            driver.launches.clear()
            oracle.launch_all(*launch)
            expected = driver.launches[:]
            driver.launches.clear()
            native.launch_all(*launch)
            assert driver.launches == expected
            biases = {values[-1][0] for kernel, *_, values in expected if kernel != 3}
            assert biases == {bias}
            kinds.add((spec.reduction, len(expected), batch.products > 1))
    assert len(kinds) > 14


def test_what_is_out_of_range_is_refused():
    found = Core(drawn_table(1), core.library())
    one = Call(Gemm(1, 1, 1), (1, 1, 1))
    for call in (
        one._replace(gemm=Gemm(0, 1, 1)),
        one._replace(lds=(1, 0, 1)),
        Call(Gemm(1, 1, 1, batch=2), (1, 1, 1), batch=Batch(0, 1, 1, 1)),
    ):
        with pytest.raises(DispatchError, match="refuses"):
            found.choose(call, None)


def test_a_kernel_for_one_product_is_not_planned_for_a_batch():
    table = drawn_table(5)
    found = Core(table, core.library())
    calls = calls_of(RecordingDriver())
    found.library.autotune_use_driver(found.handle, ctypes.byref(calls))
    single, many = (
        next(i for i, kernel in enumerate(table.kernels) if kernel.variant.is_batched == is_batched)
        for is_batched in (False, True)
    )

    def made(number, products, layout=None, **others):
        kernel = table.kernels[number]
        return CorePlan(
            found,
            found.library.structs.planned(
                m=8, n=8, k=8, layout=LAYOUTS.index(layout or kernel.layout), kernel=number,
                split_k=kernel.spec.split_k, ld=(8, 8, 8), batch=(products, (64, 64, 64)), **others,
            ),
        )  # fmt: skip

    assert made(single, 1).address and made(many, 2).address
    assert made(single, 2, is_looped=True).address and made(single, 2, is_left_alone=True).address
    other = LAYOUTS[LAYOUTS.index(table.kernels[single].layout) - 1]
    for wrong in ((single, 2), (many, 1), (single, 1, other)):
        with pytest.raises(DispatchError, match="refuses a plan"):
            made(*wrong)


def test_without_the_library_it_is_said_what_to_do(monkeypatch, tmp_path):
    monkeypatch.setattr(core, "FOLDER", tmp_path)
    core.library.cache_clear()
    try:
        with pytest.raises(DispatchError, match=r"need the core in C, and .*libautotune_core.so is missing"):
            core_of(drawn_table(1))
        (tmp_path / core.LIBRARY).write_bytes(b"no library")
        core.library.cache_clear()
        assert core.library() is None
    finally:
        monkeypatch.undo()
        core.library.cache_clear()
    assert core.library() is not None


@pytest.mark.parametrize(
    ("declared", "is_taken"),
    [
        (f'"number TABLE_VERSION {core.VERSION}"', True),
        ('"number TABLE_VERSION 1"', False),
        (f'"enum {{ AUTOTUNE_TABLE_VERSION = {core.VERSION} }};"', False),
        (None, False),
    ],
    ids=["the same", "another version", "as C", "not told"],
)
def test_a_library_of_other_sources_is_left_alone(monkeypatch, tmp_path, declared, is_taken):
    made = tmp_path / core.LIBRARY
    command = ["cc", "-shared", "-fPIC", "-x", "c", "-", "-o", str(made)]
    source = declared and f"const char *const autotune_declared[] = {{{declared}, 0}};"
    subprocess.run(command, input=source or "int nothing;", text=True, check=True)
    monkeypatch.setattr(core, "FOLDER", tmp_path)
    core.library.cache_clear()
    try:
        assert (core.library() is not None) == is_taken
    finally:
        monkeypatch.undo()
        core.library.cache_clear()


def test_layouts_are_those_of_the_compiler(tmp_path):
    """Every field of every struct, and the size of each."""
    structs = vars(core.loaded().structs)
    message = {f"{name}.{field}": getattr(one, field).offset
            for name, one in structs.items() for field, _ in one._fields_}  # fmt: skip
    message |= {name: ctypes.sizeof(one) for name, one in structs.items()}
    lines = [
        f'printf("{name} %zu\\n", '
        + (f"offsetof(autotune_{name.replace('.', ', ')})" if "." in name else f"sizeof(autotune_{name})")
        + ");"
        for name in message
    ]
    source = '#include "tensors.h"\n#include <stdio.h>\nint main(void) {\n' + "\n".join(lines) + "return 0; }"
    made, folder = str(tmp_path / "sizes"), f"-I{core.FOLDER}"
    subprocess.run(["cc", "-x", "c", "-", folder, "-o", made], input=source, text=True, check=True)
    found = subprocess.run([made], capture_output=True, text=True, check=True).stdout.split()
    assert dict(zip(found[::2], map(int, found[1::2]), strict=True)) == message and len(message) > 200


def test_a_table_of_another_version_is_refused(monkeypatch):
    monkeypatch.setattr(core, "VERSION", core.VERSION + 1)
    with pytest.raises(DispatchError, match="version"):
        Core(drawn_table(1), core.library())


_SAME_STRUCTS = """
#include <cuda.h>
#include <stddef.h>
#include "driver.h"
#define SAME(theirs, ours) _Static_assert(sizeof(theirs) == sizeof(ours), #ours)
#define PLACE(theirs, a, ours, b) _Static_assert(offsetof(theirs, a) == offsetof(ours, b), #b)
SAME(CUlaunchConfig, at_launch_config);
SAME(CUlaunchAttribute, at_launch_attribute);
SAME(CUmemPoolProps, at_pool_properties);
PLACE(CUlaunchConfig, hStream, at_launch_config, stream);
PLACE(CUlaunchConfig, attrs, at_launch_config, attributes);
PLACE(CUlaunchConfig, numAttrs, at_launch_config, num_attributes);
PLACE(CUlaunchAttribute, value, at_launch_attribute, value);
PLACE(CUmemPoolProps, location, at_pool_properties, location);
_Static_assert(CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION == AT_OVERLAPS, "overlaps");
_Static_assert(CU_STREAM_CAPTURE_MODE_RELAXED == AT_CAPTURE_RELAXED, "relaxed");
_Static_assert(CU_MEMPOOL_ATTR_RELEASE_THRESHOLD == 4 && CU_MEM_ALLOCATION_TYPE_PINNED == 1, "pool");
int (*push)(CUcontext) = cuCtxPushCurrent, (*get)(CUcontext *) = cuCtxGetCurrent;
"""


def test_structs_are_those_of_cuda():
    """As far as its headers are here: the core is built without."""
    headers = [Path("/usr/local/cuda/include"), *Path("/usr/local").glob("cuda-*/include")]
    found = next((folder for folder in headers if (folder / "cuda.h").exists()), None)
    if found is None:
        pytest.skip("no headers of CUDA are installed")
    command = ["gcc", "-fsyntax-only", "-x", "c", "-", f"-I{found}", f"-I{core.FOLDER}", "-w"]
    subprocess.run(command, input=_SAME_STRUCTS, text=True, check=True)


@pytest.mark.every(2)
@pytest.mark.parametrize("compiler", ["gcc", "clang"])
def test_no_compiler_warns(compiler, tmp_path):
    if shutil.which(compiler) is None:
        pytest.skip(f"{compiler} is not installed")
    made = str(tmp_path / "core.so")
    done = subprocess.run(
        [compiler, *BUILD["FLAGS"], *STRICT, *map(str, BUILD["sources"]()), "-o", made, "-lm", "-ldl"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert not done.returncode and not done.stderr, done.stderr


_SANITIZED = """
import sys
from pathlib import Path
import pytest
from autotune.runtime.native import core
own, core.FOLDER = core.FOLDER, Path(sys.argv[1])
assert core.library() is not None  # and is remembered
core.FOLDER = own
sys.exit(pytest.main(["-q", "-p", "no:cacheprovider", *sys.argv[2:]]))
"""
LAUNCHING = (
    "test_dispatcher.py", "test_captured_launches.py", "test_tensor_calls.py", "test_blas_provider_fake.py",
    "test_recorded_calls.py", "test_batches.py", "test_epilogues.py",
)  # fmt: skip
# Not those whose products other processes make, nor those of files that Python reads
ELSEWHERE = (
    "not processes and not kill and not fork and not merging and not is_written_is_read and not damage_stops"
)


@pytest.mark.stress
@pytest.mark.timeout(900)  # all tests of launching, several times as slow
def test_sanitizers_find_nothing(tmp_path):
    """In choosing, and in all tests of launching."""
    sanitizer = subprocess.run(
        ["gcc", "-print-file-name=libasan.so"], capture_output=True, text=True, check=True
    ).stdout.strip()
    flags = ("-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")
    sources = map(str, BUILD["sources"]())
    made = str(tmp_path / core.LIBRARY)
    subprocess.run(["gcc", *BUILD["FLAGS"], *flags, *sources, "-o", made, "-lm", "-ldl"], check=True)
    here = Path(__file__).parent
    chosen = [
        f"{__file__}::test_the_core_launches_what_python_does",
        *(str(here / name) for name in LAUNCHING),
    ]
    paths = os.pathsep.join(filter(None, [str(here), *sys.path]))
    done = subprocess.run(
        [sys.executable, "-c", _SANITIZED, str(tmp_path), *chosen, "-k", ELSEWHERE],
        capture_output=True, text=True, check=False, cwd=here.parents[1],
        env=os.environ | {"LD_PRELOAD": sanitizer, "ASAN_OPTIONS": "detect_leaks=0", "PYTHONPATH": paths},
    )  # fmt: skip
    assert done.returncode == 0 and " passed" in done.stdout, done.stdout[-3000:] + done.stderr[-3000:]


@pytest.mark.stress
def test_the_library_is_built_by_whatever_compiler_is_told(monkeypatch, tmp_path):
    built = BUILD["build"].__globals__
    monkeypatch.setitem(built, "FOLDER", tmp_path)
    monkeypatch.setitem(built, "LIBRARY", tmp_path / core.LIBRARY)
    for path in core.FOLDER.glob("*.[ch]"):
        shutil.copy(path, tmp_path)
    monkeypatch.setenv("CC", "gcc -g0")
    assert not BUILD["is_current"]()
    assert ctypes.CDLL(str(BUILD["build"]())).autotune_open and BUILD["is_current"]()
    assert sorted(path.suffix for path in tmp_path.iterdir() if path.suffix not in (".c", ".h")) == [".so"]
    monkeypatch.setenv("CC", "false")
    with pytest.raises(BUILD["NotBuilt"], match="false"):
        BUILD["build"]()
    monkeypatch.delenv("CC")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setitem(built, "find_spec", lambda name: None)
    with pytest.raises(BUILD["NotBuilt"], match=r"no C compiler .* ziglang"):
        BUILD["build"]()
    monkeypatch.setitem(built, "find_spec", str)
    assert built["compiler"]() == [sys.executable, "-m", "ziglang", "cc"]


def test_a_wheel_is_for_every_c_library_that_has_the_symbols(tmp_path: Path) -> None:
    """What the linker wrote, as another reader of it says; 2.17 at least, and no tag of glibc without it."""
    listed = subprocess.run(["readelf", "--version-info", core.FOLDER / "libautotune_core.so"],
                            capture_output=True, text=True, check=True).stdout  # fmt: skip
    latest = max(int(minor) for minor in re.findall(r"GLIBC_2\.(\d+)", listed))
    assert BUILD["wheel_tag"]().startswith(f"py3-none-manylinux_2_{max(latest, 17)}_")
    library = tmp_path / "library.so"
    for text, platform in ((b"\0GLIBC_2.2.5\0GLIBC_2.4\0", "manylinux_2_17_"), (b"\0musl\0", "linux_")):
        library.write_bytes(text)
        assert BUILD["wheel_tag"](library).startswith(f"py3-none-{platform}")
