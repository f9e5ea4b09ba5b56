"""cuBLAS as a provider on a real GPU: right products on streams, in threads and in graphs that run at once.

The selector is made to pick cuBLAS for every call; what it is faster for is not tested here.
"""

from __future__ import annotations

import ctypes
import math
import threading
from collections.abc import Callable
from dataclasses import replace
from inspect import isfunction
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from made_table import export_winners, plain_config, stored

from autotune.export.check import error_ratio
from autotune.facts.gemm import LAYOUTS, Gemm
from autotune.files.errors import DispatchError
from autotune.gpu.driver import device_limits
from autotune.runtime.choose import blas_provider
from autotune.runtime.choose.blas_provider import BlasLibrary
from autotune.runtime.choose.chooser import Call, Chooser, Pick
from autotune.runtime.dispatcher import Dispatcher
from autotune.runtime.native import core
from autotune.runtime.settle.choices import FOLDER

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(600), pytest.mark.filterwarnings("default")]

# Few tiles and a deep k: where cuBLAS splits k, it keeps partial sums in the workspace.
DEEP = Gemm(64, 64, 20000)
SHAPES = [
    Gemm(512, 512, 512),
    DEEP,
    Gemm(1, 4096, 4096),
    Gemm(257, 129, 65),
    Gemm(35, 700, 2048),
    Gemm(1, 1, 1),
]
Array = np.ndarray[Any, Any]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    config = plain_config(device_limits(0), vec_b=4)
    return export_winners({SHAPES[0]: config}, tmp_path_factory.mktemp("table") / "exported_beside_cublas")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("AUTOTUNE_CACHE", str(tmp_path / "cache"))
    for name in ("AUTOTUNE_SETTLE", "AUTOTUNE_CHOICES", "AUTOTUNE_CUBLAS"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path / "cache" / FOLDER


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Streams of the products that cuBLAS got, it is picked for every call."""
    if blas_provider.find_library() is None:
        pytest.skip("no cuBLAS is found")
    own_pick, own_set, own_sgemm = Chooser.pick, cublas()["cublasSetStream_v2"], cublas()["cublasSgemm_v2"]
    streams: dict[int, int] = {}
    found: list[int] = []

    def pick(self: Chooser, call: Call, *known: Any) -> Pick:
        return replace(own_pick(self, call, *known), provider="cublas")

    def set_stream(handle: int, stream: int | None) -> Any:
        streams[handle] = stream or 0
        return own_set(handle, stream or 0)

    def sgemm(handle: int, *arguments: Any) -> Any:
        status = own_sgemm(handle, *arguments)
        found.append(streams[handle])
        return status

    monkeypatch.setattr(Chooser, "pick", pick)
    replaced(monkeypatch, cublasSetStream_v2=set_stream, cublasSgemm_v2=sgemm)
    return found


def cublas() -> dict[str, Any]:
    """Its functions, by name, with the types of their arguments."""
    library = blas_provider.find_library()
    assert library is not None
    version = [int(part) for part in library.version.split(".")]

    def get_property(part: int, value: Any) -> int:
        value._obj.value = version[part]
        return 0

    kinds = (kind for _, kind in core.loaded().structs.blas._fields_)
    calls = zip(kinds, library.functions.items(), strict=True)
    found = {
        name: call if isfunction(call) else kind(ctypes.cast(call, ctypes.c_void_p).value)  # or a stand-in
        for kind, (name, call) in calls
    }
    return found | {"cublasGetProperty": get_property}


def replaced(monkeypatch: pytest.MonkeyPatch, **functions: Any) -> None:
    """Call these instead of cuBLAS's own, through handles that nobody else has."""
    made = BlasLibrary(SimpleNamespace(**(cublas() | functions)))
    monkeypatch.setattr(blas_provider, "find_library", lambda: made)


def check(
    gemm: Gemm, operands: tuple[Array, Array, Array], found: Any, alpha: float = 1.0, beta: float = 0.0
) -> None:
    result = found.cpu().numpy()
    ratio = error_ratio(gemm, operands, result, (alpha, beta), np.random.default_rng(0))
    assert np.isfinite(result).all() and ratio <= 1, f"{gemm}: off by {ratio:.3g} times the bound"


def put(torch: Any, *arrays: Array) -> list[Any]:
    return [torch.from_numpy(x.copy()).cuda() for x in arrays]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("gemm", SHAPES, ids=str)
def test_products(folder: Path, torch: Any, served: list[int], gemm: Gemm, layout: str) -> None:
    gemm = Gemm(gemm.m, gemm.n, gemm.k, layout[0] == "T", layout[1] == "T")
    runtime, operands = Dispatcher(folder), stored(gemm)
    flags = {"trans_a": gemm.trans_a, "trans_b": gemm.trans_b}
    for alpha, beta in ((1.0, 0.0), (1.25, -0.5)):
        a, b, c = put(torch, *operands)
        if not beta:
            c.fill_(math.nan)
        runtime.sgemm(a, b, c, alpha=alpha, beta=beta, **flags)
        check(gemm, operands, c, alpha, beta)
    assert len(served) == 2


@pytest.mark.parametrize("extra", [0, 1, 4])
def test_views(folder: Path, torch: Any, served: list[int], extra: int) -> None:
    """Rows further apart and off alignment; nothing beside out is touched."""
    gemm, runtime = Gemm(100, 52, 36), Dispatcher(folder)
    space = [
        torch.randn(rows, cols + 2 * extra, device="cuda") for rows, cols in ((100, 36), (36, 52), (100, 52))
    ]
    a, b, out = (x[:, extra : extra + w] for x, w in zip(space, (36, 52, 52), strict=True))
    operands, around = (a.cpu().numpy(), b.cpu().numpy(), out.cpu().numpy()), space[2].clone()
    runtime.sgemm(a, b, out)
    check(gemm, operands, out)
    around[:, extra : extra + 52] = out
    assert torch.equal(around, space[2]) and len(served) == 1


def test_streams_at_once(folder: Path, torch: Any, served: list[int]) -> None:
    """One thread, several streams: their products overlap, and share no workspace."""
    runtime, streams = Dispatcher(folder), [torch.cuda.Stream() for _ in range(4)]
    operands = [stored(DEEP, seed) for seed in range(4)]
    placed = [put(torch, *one) for one in operands]
    torch.cuda.synchronize()
    for _ in range(30):
        for stream, (a, b, c) in zip(streams, placed, strict=True):
            runtime.sgemm(a, b, c, stream=stream)
    torch.cuda.synchronize()
    for one, (_, _, c) in zip(operands, placed, strict=True):
        check(DEEP, one, c)
    assert len(served) == 120 and len(set(served)) == 4


def in_threads(works: list[Callable[[], None]]) -> None:
    faults: list[BaseException] = []

    def run(work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as fault:
            faults.append(fault)

    threads = [threading.Thread(target=run, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not faults, faults


def test_threads_at_once(folder: Path, torch: Any, served: list[int]) -> None:
    """Each on a stream of its own, and then all on one."""
    runtime = Dispatcher(folder)
    shared = torch.cuda.Stream()

    def work(seed: int) -> None:
        for number, gemm in enumerate([*SHAPES, *SHAPES]):
            operands = stored(gemm, seed)
            stream = shared if number >= len(SHAPES) else torch.cuda.Stream()
            with torch.cuda.stream(stream):
                a, b, c = put(torch, *operands)
                for _ in range(10):
                    runtime.sgemm(a, b, c)
                stream.synchronize()
                check(gemm, operands, c)

    in_threads([lambda seed=seed: work(seed) for seed in range(4)])
    assert len(served) == 4 * 20 * len(SHAPES)


def test_graphs_that_replay_at_once(folder: Path, torch: Any, served: list[int]) -> None:
    """Two graphs and eager products on three streams: each has a workspace of its own. The graphs are
    captured in the mode that forbids the most, and hold shapes that cuBLAS was not called for before."""
    runtime = Dispatcher(folder)
    runtime.sgemm(*put(torch, *stored(SHAPES[0])))  # this thread has its handle now
    shapes = [DEEP, Gemm(96, 64, 16384), Gemm(129, 65, 4097)]
    operands = [[stored(gemm, seed) for gemm in shapes] for seed in range(3)]
    placed = [[put(torch, *one) for one in row] for row in operands]
    graphs = []
    for row in placed[:2]:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, capture_error_mode="global"):
            for a, b, c in row:
                runtime.sgemm(a, b, c)
        graphs.append(graph)
    assert len(served) == 1 + 2 * len(shapes)
    streams = [torch.cuda.Stream() for _ in range(3)]
    for row in placed:
        for _, _, c in row:
            c.fill_(math.nan)
    torch.cuda.synchronize()
    for _ in range(20):
        for stream, graph in zip(streams, graphs, strict=False):
            with torch.cuda.stream(stream):
                graph.replay()
        with torch.cuda.stream(streams[2]):
            for a, b, c in placed[2]:
                runtime.sgemm(a, b, c)
    torch.cuda.synchronize()
    for row, places in zip(operands, placed, strict=True):
        for gemm, one, (_, _, c) in zip(shapes, row, places, strict=True):
            check(gemm, one, c)


def test_a_capture_without_a_handle_is_served_by_kernels(folder: Path, torch: Any, served: list[int]) -> None:
    runtime, operands = Dispatcher(folder), stored(DEEP)
    a, b, c = put(torch, *operands)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        runtime.sgemm(a, b, c)
    assert not served
    graph.replay()
    torch.cuda.synchronize()
    check(DEEP, operands, c)


def test_a_handle_is_made_while_another_thread_captures(folder: Path, torch: Any, served: list[int]) -> None:
    """In the mode that forbids other threads what could disturb it."""
    runtime, operands = Dispatcher(folder), stored(SHAPES[0])
    a, b, c = put(torch, *operands)
    other = torch.empty_like(c)
    runtime.sgemm(a, b, c)
    torch.cuda.synchronize()

    def work() -> None:
        with torch.cuda.stream(torch.cuda.Stream()):
            runtime.sgemm(a, b, other)

    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="global"):
        runtime.sgemm(a, b, c)
        in_threads([work])
        runtime.sgemm(a, b, c, beta=1.0)
    graph.replay()
    torch.cuda.synchronize()
    assert len(served) == 4
    torch.testing.assert_close(c, 2 * other, rtol=1e-3, atol=1e-3)


def test_results_repeat_bit_by_bit(folder: Path, torch: Any, served: list[int]) -> None:
    runtime = Dispatcher(folder)
    for gemm in SHAPES:
        a, b, c = put(torch, *stored(gemm))
        first = runtime.sgemm(a, b)
        runtime.sgemm(a, b, c)
        assert torch.equal(first, c)


def test_switched_off_it_is_not_called(folder: Path, torch: Any, served: list[int]) -> None:
    runtime, operands = Dispatcher(folder, cublas=False), stored(DEEP)
    a, b, c = put(torch, *operands)
    runtime.sgemm(a, b, c)
    check(DEEP, operands, c)
    assert not served and runtime.pick(DEEP.m, DEEP.n, DEEP.k).provider == "autotune"


def test_settling_times_it(folder: Path, torch: Any, cache: Path) -> None:
    library = blas_provider.find_library()
    if library is None:
        pytest.skip("no cuBLAS is found")
    runtime, limits = Dispatcher(folder), device_limits(0)
    shapes = [gemm for gemm in SHAPES[1:] if gemm.m > 1]
    picks = runtime.settle([(gemm.m, gemm.n, gemm.k) for gemm in shapes])
    for gemm, pick in zip(shapes, picks, strict=True):
        assert pick.how == "settled" and pick.expected_us is not None
        least_us = 0.85 * gemm.limit_us(limits.fma_tflops, math.inf)
        assert pick.cublas_us is None or pick.cublas_us >= least_us
        assert pick.provider == "autotune" or pick.cublas_us < pick.expected_us
        operands = stored(gemm)
        a, b, c = put(torch, *operands)
        runtime.sgemm(a, b, c)
        check(gemm, operands, c)
    (path,) = cache.iterdir()
    assert f'"cublas": "{library.version}"' in path.read_text()


def test_what_fails_says_how_to_do_without(
    folder: Path, torch: Any, served: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    own = cublas()["cublasSgemm_v2"]

    def misled(*arguments: Any) -> Any:
        return own(*arguments[:8], 0, *arguments[9:])  # the first leading dimension

    replaced(monkeypatch, cublasSgemm_v2=misled)
    a, b, c = put(torch, *stored(SHAPES[0]))
    with pytest.raises(DispatchError, match=r"cublasSgemm failed with status 7.*cublas=False"):
        Dispatcher(folder).sgemm(a, b, c)
