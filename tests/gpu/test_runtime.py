"""An exported folder on a real GPU: right results for every kind of array, stream, view and thread.

The table here is made up, not searched: one kernel of each kind (whole tiles with vectors, ragged edges,
both ways of split-K) is called the winner of a shape, and the rest is what every export adds.
"""

from __future__ import annotations

import hashlib
import importlib
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from shutil import copytree
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from made_table import export_winners

from autotune.export.check import error_ratio, verify_table
from autotune.export.package import render, write_folder
from autotune.facts.gemm import LAYOUTS, Gemm
from autotune.files.errors import DispatchError, DispatchWarning
from autotune.gpu.driver import device_limits
from autotune.kernel.config import Config
from autotune.runtime.dispatcher import Dispatcher
from autotune.runtime.launch.cuda_driver import Driver
from autotune.runtime.launch.devices import Devices
from autotune.runtime.native import core
from autotune.runtime.table import gpu_models
from autotune.runtime.table.gpu_models import load_cubins
from autotune.runtime.table.table import load
from autotune.suite import CallSignature, read_calls

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
import pick_cost

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(600), pytest.mark.filterwarnings("default")]

SQUARE, LAST, TWO = Gemm(512, 512, 512), Gemm(128, 128, 4096), Gemm(64, 256, 2048)
CLUSTERED = Gemm(128, 256, 2048)
SHAPES = [
    SQUARE,
    LAST,
    TWO,
    CLUSTERED,
    Gemm(257, 129, 65),
    Gemm(1, 4096, 4096),
    Gemm(35, 700, 2048),
    Gemm(4097, 4097, 4097),
]
PACKED = [Gemm(259, 131, 515, layout[0] == "T", layout[1] == "T") for layout in LAYOUTS]  # ragged all round
SMALL = [SQUARE, LAST, TWO, CLUSTERED, Gemm(257, 129, 65), Gemm(1, 1, 1)]
Array = np.ndarray[Any, Any]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    limits = device_limits(0)
    copy, stages = ("async", 3) if limits.has_async_copy else ("register", 2)
    plain = Config(copy_a=copy, copy_b=copy, stages=stages, min_blocks=1).to_dict() | {"vec_b": 4}
    if copy == "async":
        plain["vec_a"] = 1
    winners = {
        SQUARE: Config.from_dict(plain | {"edges": "exact"}),
        LAST: Config.from_dict(plain | {"reduction": "last_block", "split_k": 8}),
        TWO: Config.from_dict(plain | {"reduction": "two_pass", "split_k": 4}),
    }
    if limits.has_clusters:
        winners[CLUSTERED] = Config.from_dict(plain | {"reduction": "cluster", "split_k": 8})
    packed = plain | {"pack_a": 1, "pack_b": 1, "vec_a": 4, "vec_b": 4, "vec_c": 1}
    ways = (
        {},
        {"reduction": "last_block", "split_k": 4},
        {"reduction": "two_pass", "split_k": 2},
        {"pack_a": 0, "vec_a": 1},
    )
    winners |= {gemm: Config.from_dict(packed | way) for gemm, way in zip(PACKED, ways, strict=True)}
    return export_winners(winners, tmp_path_factory.mktemp("table") / "exported_for_gpu_tests")


@pytest.fixture(scope="module")
def module(folder: Path) -> Iterator[ModuleType]:
    sys.path.insert(0, str(folder.parent))
    yield importlib.import_module(folder.name)
    sys.path.remove(str(folder.parent))


def normal(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng((seed, *shape)).standard_normal(shape, dtype=np.float32)


def stored(gemm: Gemm, seed: int = 0) -> tuple[Array, Array, Array]:
    """Random A and B as stored for these transpositions, and C."""
    a = normal(*((gemm.k, gemm.m) if gemm.trans_a else (gemm.m, gemm.k)), seed=seed)
    b = normal(*((gemm.n, gemm.k) if gemm.trans_b else (gemm.k, gemm.n)), seed=seed + 1)
    return a, b, normal(gemm.m, gemm.n, seed=seed + 2)


def check(
    gemm: Gemm, operands: tuple[Array, Array, Array], found: Array, alpha: float = 1.0, beta: float = 0.0
) -> None:
    assert found.shape == (gemm.m, gemm.n) and np.isfinite(found).all()
    ratio = error_ratio(gemm, operands, found, (alpha, beta), np.random.default_rng(0))
    assert ratio <= 1, f"{gemm}: off by {ratio:.3g} times the bound"


# Kinds of array. Each kit puts a host array on GPU 0 and gets it back.


class Torch:
    def __init__(self) -> None:
        self.torch = pytest.importorskip("torch")
        if not self.torch.cuda.is_available():
            pytest.skip("this torch has no CUDA")

    def put(self, x: Array) -> Any:
        return self.torch.from_numpy(x.copy()).cuda()

    def get(self, x: Any) -> Array:
        assert isinstance(x, self.torch.Tensor) and x.is_cuda
        return x.cpu().numpy()


class CuPy:
    def __init__(self) -> None:
        self.cupy = pytest.importorskip("cupy")

    def put(self, x: Array) -> Any:
        return self.cupy.asarray(x)

    def get(self, x: Any) -> Array:
        assert isinstance(x, self.cupy.ndarray)
        return self.cupy.asnumpy(x)


class Numba:
    def __init__(self) -> None:
        self.cuda = pytest.importorskip("numba.cuda")
        if not self.cuda.is_available():
            pytest.skip("this Numba has no CUDA")

    def put(self, x: Array) -> Any:
        return self.cuda.to_device(x)

    def get(self, x: Any) -> Array:
        return x.copy_to_host()


class Numpy:
    def put(self, x: Array) -> Any:
        return x.copy()

    def get(self, x: Any) -> Array:
        assert type(x) is np.ndarray
        return x


KITS: list[Callable[[], Any]] = [Torch, CuPy, Numba, Numpy]


@pytest.fixture(params=KITS, ids=lambda kit: kit.__name__)
def kit(request: pytest.FixtureRequest) -> Any:
    return request.param()


@pytest.mark.parametrize("gemm", SHAPES, ids=str)
def test_products(module: ModuleType, kit: Any, gemm: Gemm) -> None:
    a, b, c = stored(gemm)
    check(gemm, (a, b, c), kit.get(module.sgemm(kit.put(a), kit.put(b))))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("gemm", SMALL, ids=str)
def test_layouts_alpha_and_beta(module: ModuleType, kit: Any, gemm: Gemm, layout: str) -> None:
    trans_a, trans_b = layout[0] == "T", layout[1] == "T"
    gemm = Gemm(gemm.m, gemm.n, gemm.k, trans_a, trans_b)
    a, b, c = stored(gemm)
    out = kit.put(c)
    same = module.sgemm(kit.put(a), kit.put(b), out, alpha=1.25, beta=-0.5, trans_a=trans_a, trans_b=trans_b)
    assert same is out
    check(gemm, (a, b, c), kit.get(out), 1.25, -0.5)


@pytest.mark.parametrize("gemm", PACKED, ids=str)
def test_packed_operands(module: ModuleType, folder: Path, kit: Any, gemm: Gemm) -> None:
    """In turn with kernels that use the same workspace otherwise; with alpha = 0 neither A nor B is read."""
    pick = Dispatcher(folder).pick(gemm.m, gemm.n, gemm.k, gemm.trans_a, gemm.trans_b)
    assert pick.how == "exact"
    assert {k.id: k for k in load(folder).kernels}[pick.kernel_id].spec.packs_b
    flags = {"trans_a": gemm.trans_a, "trans_b": gemm.trans_b}
    for seed in range(3):
        a, b, c = stored(gemm, seed)
        out = kit.put(c)
        module.sgemm(kit.put(a), kit.put(b), out, alpha=1.25, beta=-0.5, **flags)
        check(gemm, (a, b, c), kit.get(out), 1.25, -0.5)
        for other in (LAST, TWO):
            a, b, c = stored(other, seed)
            check(other, (a, b, c), kit.get(module.sgemm(kit.put(a), kit.put(b))))
    a, b, c = stored(gemm)
    out = kit.put(c)
    module.sgemm(kit.put(np.full_like(a, np.nan)), kit.put(b), out, alpha=0.0, beta=2.0, **flags)
    np.testing.assert_array_equal(kit.get(out), 2 * c)


def test_nan_rules(module: ModuleType, kit: Any) -> None:
    a, b, c = stored(SQUARE)
    out = kit.put(np.full_like(c, np.nan))
    module.sgemm(kit.put(a), kit.put(b), out)
    check(SQUARE, (a, b, c), kit.get(out))  # beta = 0 does not read C
    bad = kit.put(np.full_like(a, np.nan))
    out = kit.put(c)
    module.sgemm(bad, kit.put(b), out, alpha=0.0, beta=2.0)
    np.testing.assert_array_equal(kit.get(out), 2 * c)  # alpha = 0 reads neither A nor B
    a[3, 5] = np.inf
    found = kit.get(module.sgemm(kit.put(a), kit.put(b)))
    assert not np.isfinite(found[3]).any() and np.isfinite(np.delete(found, 3, 0)).all()


@pytest.mark.parametrize(("m", "n", "k"), [(0, 5, 4), (5, 0, 4), (5, 6, 0)])
def test_no_elements(module: ModuleType, kit: Any, m: int, n: int, k: int) -> None:
    out = kit.put(normal(m, n))
    module.sgemm(kit.put(normal(m, k)), kit.put(normal(k, n)), out, beta=3.0)
    np.testing.assert_array_equal(kit.get(out), 3 * normal(m, n))


def test_results_repeat_bit_by_bit(module: ModuleType, kit: Any) -> None:
    for gemm in SMALL:
        a, b, _ = map(kit.put, stored(gemm))
        first, second = kit.get(module.sgemm(a, b)), kit.get(module.sgemm(a, b))
        np.testing.assert_array_equal(first, second)


def test_verify_finds_nothing_wrong(folder: Path) -> None:
    report = [*verify_table(folder)]
    assert not [c for c in report if not c.is_ok][:3]
    assert {c.kernel_id for c in report} == {k.id for k in load(folder).kernels}


# torch


@pytest.fixture
def torch() -> Any:
    return Torch().torch


@pytest.mark.parametrize("offset", [0, 1, 2, 4])
@pytest.mark.parametrize("extra", [0, 1, 2, 4])
def test_torch_views(module: ModuleType, torch: Any, offset: int, extra: int) -> None:
    """Rows further apart, bases off alignment, transposed views: all without a copy."""
    for gemm in (SQUARE, Gemm(100, 52, 36)):
        space = [
            torch.randn(rows, columns + extra + offset, device="cuda")
            for rows, columns in ((gemm.m, gemm.k), (gemm.k, gemm.n), (gemm.m, gemm.n))
        ]
        a, b, out = (x[:, offset : offset + w] for x, w in zip(space, (gemm.k, gemm.n, gemm.n), strict=True))
        around = space[2].clone()
        operands = a.cpu().numpy(), b.cpu().numpy(), out.cpu().numpy()
        module.sgemm(a, b, out)
        check(gemm, operands, out.cpu().numpy())
        around[:, offset : offset + gemm.n] = out
        assert torch.equal(around, space[2])  # nothing beside out was touched
        transposed = module.sgemm(b.T, a.T)
        check(
            Gemm(gemm.n, gemm.m, gemm.k),
            (operands[1].T, operands[0].T, operands[2].T),
            transposed.cpu().numpy(),
        )


def test_torch_current_stream_and_explicit_streams(module: ModuleType, torch: Any) -> None:
    a, b, c = stored(LAST)
    put_a, put_b = Torch().put(a), Torch().put(b)
    torch.cuda.synchronize()
    for stream in (torch.cuda.Stream(), torch.cuda.default_stream()):
        with torch.cuda.stream(stream):
            results = [module.sgemm(put_a, put_b) for _ in range(20)]
        results += [module.sgemm(put_a, put_b, stream=s) for s in (stream, stream.cuda_stream)]
        stream.synchronize()
        for found in results:
            check(LAST, (a, b, c), found.cpu().numpy())


def test_torch_runs_behind_what_the_stream_has(module: ModuleType, torch: Any) -> None:
    a, b, c = stored(SQUARE)
    put_a, put_b, late_a = Torch().put(np.zeros_like(a)), Torch().put(b), Torch().put(a)
    module.sgemm(put_a, put_b)  # the kernel is loaded, which takes as long as it takes
    stream = torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(200_000_000)
        put_a.copy_(late_a)  # on the GPU: a copy from the host would wait for the stream
        found = module.sgemm(put_a, put_b)
        assert not stream.query()  # the call did not wait
    stream.synchronize()
    check(SQUARE, (a, b, c), found.cpu().numpy())


@pytest.mark.parametrize("gemm", [*SMALL, PACKED[0]], ids=str)
def test_torch_graph(module: ModuleType, torch: Any, gemm: Gemm) -> None:
    """Captured twice in one graph, replayed with other data; the workspace is part of the graph."""
    a, b, c = stored(gemm)
    put_a, put_b, put_c = map(Torch().put, (a, b, c))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        first = module.sgemm(put_a, put_b)
        module.sgemm(put_a, put_b, put_c, alpha=2.0, beta=1.0)
    for seed in (10, 20):
        a, b, c = stored(gemm, seed)
        for place, x in ((put_a, a), (put_b, b), (put_c, c)):
            place.copy_(torch.from_numpy(x))
        module.sgemm(put_a, put_b)  # the stream's own workspace, meanwhile
        graph.replay()
        torch.cuda.synchronize()
        check(gemm, (a, b, c), first.cpu().numpy())
        check(gemm, (a, b, c), put_c.cpu().numpy(), 2.0, 1.0)


def test_what_torch_calls_is_recorded(folder: Path, torch: Any, tmp_path: Path) -> None:
    """By a new kind, by the core alone, with other rows and alignment, and captured: that once."""
    fresh, file = Dispatcher(folder), tmp_path / "calls.json"
    fresh.record_calls(file)
    a, b = torch.randn(100, 200, device="cuda"), torch.randn(200, 60, device="cuda")
    for _ in range(7):
        fresh.sgemm(a, b)
    for _ in range(3):
        fresh.sgemm(a[:, 1:65], b[:64])
    graph, out = torch.cuda.CUDAGraph(), torch.empty(100, 60, device="cuda")
    with torch.cuda.graph(graph):
        fresh.sgemm(a, b, out)
    for _ in range(5):
        graph.replay()
    torch.cuda.synchronize()
    expected = {
        CallSignature(Gemm(100, 60, 200), (200, 60, 60)): 8,
        CallSignature(Gemm(100, 60, 64), (200, 60, 60), (4, 16, 16)): 3,
    }
    text = {CallSignature(one.gemm, one.lds, one.alignment): one.calls for one in fresh.counts() if one.gemm}
    assert text == expected
    time.sleep(2.0)
    assert read_calls(file).calls == expected


def test_torch_graph_as_the_first_thing_a_process_does(folder: Path, torch: Any) -> None:
    """Kernels are loaded while a stream is captured."""
    fresh = Dispatcher(folder)
    for gemm in SMALL:
        a, b, c = stored(gemm)
        put_a, put_b, out = map(Torch().put, (a, b, c))
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            fresh.sgemm(put_a, put_b, out)
        graph.replay()
        torch.cuda.synchronize()
        check(gemm, (a, b, c), out.cpu().numpy())


@pytest.mark.alone
def test_streams_that_come_and_go_leave_no_memory(folder: Path, torch: Any) -> None:
    """Eight threads with four fresh streams a round; operands are made once, so that what grows is ours."""
    cupy, fresh, faults = pytest.importorskip("cupy"), Dispatcher(folder), []
    gemms = [LAST, TWO, PACKED[0]]
    inputs = [[Torch().put(x) for x in stored(gemm)[:2]] for gemm in gemms]
    outs = [[Torch().put(stored(gemm)[2]) for gemm in gemms] for _ in range(8)]

    def work(out: list[Any]) -> None:
        try:
            for number in range(4):
                stream = cupy.cuda.Stream(non_blocking=True)
                for _ in range(core.LAUNCHES_TO_STAY if number == 0 else 1):
                    for gemm, (a, b), c in zip(gemms, inputs, out, strict=True):
                        fresh.sgemm(a, b, c, trans_a=gemm.trans_a, trans_b=gemm.trans_b, stream=stream.ptr)
                stream.synchronize()
        except Exception as fault:
            faults.append(fault)

    def used_bytes() -> int:
        threads = [threading.Thread(target=work, args=(out,)) for out in outs]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        torch.cuda.synchronize()
        free, total = torch.cuda.mem_get_info()
        return int(total - free)

    used = [used_bytes() for _ in range(6)]
    assert not faults
    grown = [after - before for before, after in pairwise(used)]
    assert min(grown) <= core.KEPT_BYTES
    assert min(grown[2:]) <= 0, "32 pieces are all that there ever are"
    for gemm, c in zip(gemms, outs[0], strict=True):
        a, b, _ = stored(gemm)
        check(gemm, (a, b, np.zeros((gemm.m, gemm.n), np.float32)), c.cpu().numpy())


def test_torch_threads(folder: Path, torch: Any) -> None:
    fresh, faults = Dispatcher(folder), []
    shared = torch.cuda.Stream()

    def work(seed: int) -> None:
        try:
            stream = shared if seed % 2 else torch.cuda.Stream()
            for gemm in SMALL * 5:
                a, b, c = stored(gemm, seed)
                with torch.cuda.stream(stream):
                    found = fresh.sgemm(Torch().put(a), Torch().put(b))
                    check(gemm, (a, b, c), found.cpu().numpy())
        except BaseException as error:
            faults.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not faults, faults


def test_torch_on_another_gpu_of_the_kind(module: ModuleType, torch: Any) -> None:
    if torch.cuda.device_count() < 2 or torch.cuda.get_device_name(0) != torch.cuda.get_device_name(1):
        pytest.skip("one GPU of the kind")
    for gemm in SMALL:
        a, b, c = stored(gemm)
        found = module.sgemm(torch.from_numpy(a).to("cuda:1"), torch.from_numpy(b).to("cuda:1"))
        assert found.device.index == 1 and torch.cuda.current_device() == 0
        check(gemm, (a, b, c), found.cpu().numpy())
        with pytest.raises(module.DispatchError, match="on GPUs 0, 1"):
            module.sgemm(torch.from_numpy(a).cuda(), torch.from_numpy(b).to("cuda:1"))


def test_torch_rejections(module: ModuleType, torch: Any) -> None:
    a, b = torch.randn(8, 8, device="cuda"), torch.randn(8, 8, device="cuda")
    rejected = {
        "a has dtype": lambda: module.sgemm(a.double(), b),
        "b has dtype": lambda: module.sgemm(a, b.half()),
        "a is on cpu": lambda: module.sgemm(a.cpu(), b),
        "requires grad": lambda: module.sgemm(a.clone().requires_grad_(), b),
        "overlaps": lambda: module.sgemm(a, b, a),
        "inner extents": lambda: module.sgemm(a[:, :4], b),
        "strides": lambda: module.sgemm(a[:, ::2], b[:4], stream=torch.cuda.current_stream()),
        "beta is not 0": lambda: module.sgemm(a, b, beta=1.0),
        "host and of a GPU": lambda: module.sgemm(a, np.ones((8, 8), np.float32)),
    }
    for message, call in rejected.items():
        with pytest.raises(module.DispatchError, match=message):
            call()
    with torch.no_grad():
        found = module.sgemm(a.clone().requires_grad_(), b)
    torch.testing.assert_close(found, a @ b, rtol=1e-4, atol=1e-4)


def test_torch_knows_that_an_out_was_written(module: ModuleType, torch: Any) -> None:
    """A backward pass that needs what it held refuses, as after a product of torch's own."""
    a, b, saved = (torch.randn(64, 64, device="cuda") for _ in range(3))
    weights = torch.ones(64, 64, device="cuda", requires_grad=True)
    for _ in range(2):  # by Python, then by the core
        loss = (weights * saved).sum()
        module.sgemm(a, b, saved)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            loss.backward()


def test_torch_strides_that_no_kernel_walks(module: ModuleType, torch: Any) -> None:
    """A copy of what is not packed; an out by columns is that of the transposes."""
    space = torch.randn(70, 120, device="cuda")
    a, b = space[:, ::3], torch.randn(40, 1, device="cuda").expand(40, 66)
    outs = (torch.empty(66, 70, device="cuda").T, torch.empty(70, 132, device="cuda")[:, ::2])
    for out in (*outs, None):
        found = module.sgemm(a, b, out)
        assert out is None or found is out
        torch.testing.assert_close(found.double(), a.double() @ b.double(), rtol=1e-4, atol=1e-3)


def test_torch_takes_dlpack_of_others(module: ModuleType, torch: Any) -> None:
    class Opaque:
        """Speaks DLPack and nothing else."""

        def __init__(self, tensor: Any) -> None:
            self.tensor = tensor

        def __dlpack__(self, **options: Any) -> Any:
            return self.tensor.__dlpack__(**options)

        def __dlpack_device__(self) -> Any:
            return self.tensor.__dlpack_device__()

    a, b, c = stored(SQUARE)
    out = Torch().put(c)
    module.sgemm(Opaque(Torch().put(a)), Opaque(Torch().put(b)), Opaque(out))
    torch.cuda.synchronize()
    check(SQUARE, (a, b, c), out.cpu().numpy())
    with pytest.raises(module.DispatchError, match="pass out="):
        module.sgemm(Opaque(out), Opaque(out))


# CuPy and Numba


def test_cupy_streams_and_graph(module: ModuleType) -> None:
    kit = CuPy()
    cupy = kit.cupy
    for gemm in SMALL:
        a, b, c = stored(gemm)
        put_a, put_b, out = map(kit.put, (a, b, c))
        cupy.cuda.Device().synchronize()
        stream = cupy.cuda.Stream(non_blocking=True)
        with stream:
            check(gemm, (a, b, c), kit.get(module.sgemm(put_a, put_b)))
            stream.begin_capture()
            module.sgemm(put_a, put_b, out, beta=1.0)
            graph = stream.end_capture()
            graph.launch()
        stream.synchronize()
        check(gemm, (a, b, c), cupy.asnumpy(out), 1.0, 1.0)
        check(gemm, (a, b, c), kit.get(module.sgemm(put_a, put_b, stream=stream)))


def test_numba_streams(module: ModuleType) -> None:
    kit = Numba()
    a, b, c = stored(TWO)
    stream = kit.cuda.stream()
    found = module.sgemm(kit.put(a), kit.put(b), stream=stream)
    stream.synchronize()
    check(TWO, (a, b, c), kit.get(found))


# What a call costs


def test_first_calls_of_new_shapes_are_timed(folder: Path, torch: Any) -> None:
    """No bar: tests assert no times. benchmarks/pick_cost.py tells it."""
    gemms = [Gemm(300, 200, 100 + i, trans_a=bool(i & 1), trans_b=bool(i & 2)) for i in range(8)]
    costs_us = pick_cost.call_costs_us(folder, gemms)
    assert len(costs_us) == len(gemms) and all(0 < cost_us < 1e7 for cost_us in costs_us)


# Identity


def test_a_table_for_another_gpu_is_refused(folder: Path, tmp_path: Path) -> None:
    other = copytree(folder, tmp_path / "other")
    table = load(folder)
    changed = replace(table, environment=replace(table.environment, gpu_name="NVIDIA Imaginary 9000"))
    (other / "table.json").write_text(render(changed), encoding="utf-8")
    with pytest.raises(DispatchError, match=r"for NVIDIA Imaginary 9000 .* but GPU 0 is"):
        Dispatcher(other).sgemm(normal(4, 4), normal(4, 4))


def test_code_that_is_not_what_the_table_says_is_never_launched(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The code of a cluster in the place of one that splits k otherwise."""
    table = load(folder)
    ranked = {entry.gemm: entry.ranked[0].kernel for entry in table.entries}
    if CLUSTERED not in ranked:
        pytest.skip("this GPU has no clusters")
    by_id = {k.id: k for k in table.kernels}
    last, lender = by_id[ranked[LAST]], by_id[ranked[CLUSTERED]]
    same = ("sha256", "code_bytes", "registers", "blocks_per_sm")
    lent = replace(last, **{name: getattr(lender, name) for name in same})
    code = load_cubins(folder, table)
    kernels = tuple(lent if k.id == last.id else k for k in table.kernels)
    bad = write_folder(replace(table, kernels=kernels), code, tmp_path / "bad")
    with pytest.raises(DispatchError, match=f"the cubin of kernel '{last.id}' holds kernel '{lender.id}'"):
        Dispatcher(bad).sgemm(*stored(LAST)[:2])
    monkeypatch.setattr(gpu_models, "check_identity", lambda *_: None)  # the driver tells it, too
    with pytest.raises(DispatchError, match=r"not what its cubin holds: .* clusters of 1x8x1"):
        Dispatcher(bad).sgemm(*stored(LAST)[:2])
    found = Dispatcher(folder).sgemm(*stored(LAST)[:2])  # the process is none the worse
    check(LAST, stored(LAST), found)


def test_the_driver_says_of_each_kernel_what_the_table_says(folder: Path) -> None:
    table = load(folder)
    devices = Devices(table, load_cubins(folder, table), Driver())
    gpu = devices.gpu(0)
    for one in table.kernels:
        assert devices.kernel(gpu, one).sgemm  # else it is refused


def test_another_driver_is_told_and_served(folder: Path, tmp_path: Path) -> None:
    other = copytree(folder, tmp_path / "older")
    table = load(folder)
    older = replace(table.environment, driver_version="1.0", cuda_version="1.0")
    changed = replace(table, environment=older, created_at="long ago")
    (other / "table.json").write_text(render(changed), encoding="utf-8")
    with pytest.warns(DispatchWarning, match=r"driver.* is .*, not 1\.0"):
        found = Dispatcher(other).sgemm(*stored(SQUARE)[:2])
    check(SQUARE, stored(SQUARE), found)


def test_code_that_is_none_is_refused_by_the_driver(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table, junk = load(folder), b"\x7fELF but no more"
    sha256 = hashlib.sha256(junk).hexdigest()
    kernels = tuple(replace(k, sha256=sha256, code_bytes=len(junk)) for k in table.kernels)
    bad = write_folder(replace(table, kernels=kernels), {sha256: junk}, tmp_path / "bad")
    with pytest.raises(DispatchError, match="holds no kernel that it names"):
        Dispatcher(bad).sgemm(normal(4, 4), normal(4, 4))
    monkeypatch.setattr(gpu_models, "check_identity", lambda *_: None)  # the driver tells it, too
    with pytest.raises(DispatchError, match="refuses kernel"):
        Dispatcher(bad).sgemm(normal(4, 4), normal(4, 4))
    assert Driver().num_devices() >= 1  # the process is none the worse
