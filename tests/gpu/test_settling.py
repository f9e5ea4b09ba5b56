"""Settling on a real GPU: the choice is right and kept, captures and the caller's memory are left alone."""

from __future__ import annotations

import math
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from made_table import export_winners, plain_config, stored

from autotune.export.check import error_ratio
from autotune.facts.fitted import MAX_ERROR
from autotune.facts.gemm import Gemm
from autotune.gpu.driver import device_limits
from autotune.perf_model.model_figures import Depths
from autotune.runtime.calls.product import packed
from autotune.runtime.choose.chooser import Call
from autotune.runtime.dispatcher import Dispatcher
from autotune.runtime.native import core
from autotune.runtime.settle.choices import FOLDER
from autotune.runtime.settle.settling import DEFAULT_STREAM, MOST_CHECKED

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(600), pytest.mark.filterwarnings("default")]

TUNED = Gemm(512, 512, 512)
SHAPES = [
    Gemm(300, 200, 1000),
    Gemm(64, 64, 64),
    Gemm(35, 700, 2048),
    Gemm(1, 4096, 4096),
    Gemm(64, 64, 20000),
    Gemm(257, 129, 65, True, False),
    Gemm(1000, 999, 1001, False, True),
    Gemm(2048, 2048, 2048),
]
DEEP = [Gemm(300, 200, 9000), Gemm(64, 64, 20000), Gemm(35, 700, 2048, False, True), Gemm(1, 4096, 4096)]
ANY_DEPTH = Depths(math.inf, math.inf)
ALONE = """
import sys
sys.path.insert(0, sys.argv[1])
import exported_to_settle as table
from exported_to_settle._autotune.runtime.settle.settling import Settler
def refuse(*arguments):
    raise AssertionError("it was timed again")
Settler._race = refuse
for pick in table.settle(eval(sys.argv[2])):
    print(pick.how, pick.kernel_id, pick.split_k)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    config = plain_config(device_limits(0), vec_b=4)
    return export_winners({TUNED: config}, tmp_path_factory.mktemp("table") / "exported_to_settle")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("AUTOTUNE_CACHE", str(tmp_path / "cache"))
    for name in ("AUTOTUNE_SETTLE", "AUTOTUNE_CHOICES"):
        monkeypatch.delenv(name, raising=False)
    yield tmp_path / "cache" / FOLDER


def shape_of(gemm: Gemm) -> tuple[int, int, int, bool, bool]:
    return gemm.m, gemm.n, gemm.k, gemm.trans_a, gemm.trans_b


def multiply(torch: Any, runtime: Any, gemm: Gemm) -> None:
    """A product into the middle of a larger matrix, checked with all that lies around it."""
    a, b, c = stored(gemm)
    around = torch.full((gemm.m + 8, gemm.n), 7.0, device="cuda")
    out = around[4:-4]  # as aligned as a matrix of its own
    out.copy_(torch.from_numpy(c))
    put = [torch.from_numpy(x).cuda() for x in (a, b)]
    before = [x.clone() for x in put]
    runtime.sgemm(*put, out, alpha=1.25, beta=-0.5, trans_a=gemm.trans_a, trans_b=gemm.trans_b)
    found = out.cpu().numpy()
    ratio = error_ratio(gemm, (a, b, c), found, (1.25, -0.5), np.random.default_rng(0))
    assert np.isfinite(found).all() and ratio <= 1, f"{gemm}: off by {ratio:.3g} times the bound"
    assert (around[:4] == 7).all() and (around[-4:] == 7).all()
    assert all(torch.equal(*pair) for pair in zip(put, before, strict=True))


def test_shapes_are_settled_and_products_are_right(folder: Path, torch: Any, cache: Path) -> None:
    runtime, limits = Dispatcher(folder), device_limits(0)
    picks = runtime.settle([shape_of(gemm) for gemm in SHAPES])
    engine, settler = runtime._models[0].open(runtime._open_for(None)[0].driver)
    for gemm, pick in zip(SHAPES, picks, strict=True):
        first = settler.first(packed(gemm), Call.packed(gemm), engine.devices.gpu(0), DEFAULT_STREAM)
        timed = first or runtime._models[0].chooser.ranked(Call.packed(gemm), MOST_CHECKED, ANY_DEPTH)
        assert (pick.kernel_id, pick.split_k) in {(one.kernel_id, one.split_k) for one in timed}
        assert pick.how == "settled" and pick.expected_us is not None
        assert pick.expected_us >= 0.85 * gemm.limit_us(limits.fma_tflops, math.inf)
        multiply(torch, runtime, gemm)
    assert runtime.settle([shape_of(TUNED)])[0].how == "exact"
    assert len(list(cache.iterdir())) == 1


@pytest.mark.parametrize("numbers", ["normal", "uniform"])
@pytest.mark.parametrize("gemm", DEEP, ids=str)
def test_what_is_settled_is_as_accurate_as_cublas(folder: Path, torch: Any, gemm: Gemm, numbers: str) -> None:
    runtime = Dispatcher(folder)
    assert runtime.settle([shape_of(gemm)])[0].how == "settled"
    rng = np.random.default_rng(0)
    draw = rng.standard_normal if numbers == "normal" else rng.random
    a, b = (
        torch.from_numpy(draw((y, x) if is_transposed else (x, y), dtype=np.float32)).cuda()
        for x, y, is_transposed in ((gemm.m, gemm.k, gemm.trans_a), (gemm.k, gemm.n, gemm.trans_b))
    )
    of_a, of_b = a.T if gemm.trans_a else a, b.T if gemm.trans_b else b
    exact, ours = of_a.double() @ of_b.double(), torch.empty(gemm.m, gemm.n, device="cuda")
    runtime.sgemm(a, b, ours, trans_a=gemm.trans_a, trans_b=gemm.trans_b)
    errors = [float((found - exact).norm() / exact.norm()) for found in (ours, of_a @ of_b)]
    assert errors[0] <= 1.1 * MAX_ERROR * errors[1]


def test_another_process_uses_what_was_settled(folder: Path) -> None:
    picks = Dispatcher(folder).settle([shape_of(gemm) for gemm in SHAPES])
    shapes = repr([shape_of(gemm) for gemm in SHAPES])
    done = subprocess.run(
        [sys.executable, "-c", ALONE, str(folder.parent), shapes],
        env=dict(os.environ), capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [f"{p.how} {p.kernel_id} {p.split_k}" for p in picks]


@pytest.mark.parametrize("gemm", SHAPES, ids=str)
def test_a_shape_is_settled_at_its_first_use(folder: Path, torch: Any, gemm: Gemm) -> None:
    runtime = Dispatcher(folder, settle="first-use")
    for _ in range(2):
        multiply(torch, runtime, gemm)
    assert runtime.pick(*shape_of(gemm)).how == "settled"
    with torch.cuda.stream(torch.cuda.Stream()):
        multiply(torch, runtime, gemm)


def test_a_first_use_under_capture_is_not_settled(folder: Path, torch: Any) -> None:
    runtime = Dispatcher(folder, settle="first-use")
    for gemm in SHAPES:
        a, b, c = stored(gemm)
        put = [torch.from_numpy(x).cuda() for x in (a, b, c)]
        flags = {"trans_a": gemm.trans_a, "trans_b": gemm.trans_b}
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            runtime.sgemm(*put, **flags)
        assert runtime.pick(*shape_of(gemm)).how == "modelled"
        runtime.sgemm(*put, **flags)
        assert runtime.pick(*shape_of(gemm)).how == "settled"
        settled = torch.cuda.CUDAGraph()
        with torch.cuda.graph(settled):
            runtime.sgemm(*put, **flags)
        for one in (graph, settled):
            put[2].fill_(math.nan)
            one.replay()
            torch.cuda.synchronize()
            ratio = error_ratio(gemm, (a, b, c), put[2].cpu().numpy(), (1.0, 0.0), np.random.default_rng(0))
            assert ratio <= 1


def test_a_capture_of_another_thread_goes_on(folder: Path, torch: Any) -> None:
    """In the mode that forbids other threads what could disturb it."""
    runtime, faults, gemm = Dispatcher(folder, settle="first-use"), [], SHAPES[0]
    a, b, c = (torch.from_numpy(x).cuda() for x in stored(gemm))
    other = torch.empty_like(c)
    torch.cuda.synchronize()

    def work() -> None:
        try:
            with torch.cuda.stream(torch.cuda.Stream()):
                runtime.sgemm(a, b, other)
        except BaseException as fault:
            faults.append(fault)

    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="global"):
        runtime.sgemm(a, b, c)
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        runtime.sgemm(a, b, c, beta=1.0)
    assert not faults, faults
    graph.replay()
    torch.cuda.synchronize()
    assert runtime.pick(*shape_of(gemm)).how == "settled"
    torch.testing.assert_close(c, 2 * other, rtol=1e-3, atol=1e-3)


@pytest.mark.alone
def test_settling_gives_its_memory_back(
    folder: Path, torch: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The driver may keep some the first time. What we kept would be missing each time."""
    missing = []
    for turn in range(4):
        monkeypatch.setenv("AUTOTUNE_CACHE", str(tmp_path / str(turn)))
        runtime = Dispatcher(folder, cublas=False)  # what that loads, it keeps
        runtime.settle([shape_of(SHAPES[0])])
        torch.cuda.synchronize()
        before = torch.cuda.mem_get_info()[0]
        runtime.settle([shape_of(gemm) for gemm in SHAPES])
        torch.cuda.synchronize()
        missing.append(before - torch.cuda.mem_get_info()[0])
    assert min(missing) <= core.KEPT_BYTES


def test_pinned_choices_serve_without_a_clock(folder: Path, torch: Any, tmp_path: Path) -> None:
    runtime = Dispatcher(folder)
    picks = runtime.settle([shape_of(gemm) for gemm in SHAPES])
    runtime.export_choices(tmp_path / "choices.json")
    pinned = Dispatcher(folder, deterministic=True, choices=tmp_path / "choices.json")
    for gemm, pick in zip(SHAPES, picks, strict=True):
        found = pinned.pick(*shape_of(gemm))
        assert (found.how, found.kernel_id, found.split_k) == ("settled", pick.kernel_id, pick.split_k)
        multiply(torch, pinned, gemm)
