"""How deep cuBLAS's sums are, as read off what it would launch, is how much it errs on the GPU."""

from __future__ import annotations

import random
import threading
from typing import Any

import numpy as np
import pytest

from autotune.facts.gemm import LAYOUTS, Gemm
from autotune.perf_model.model_figures import DEFAULT_ERRORS, Depths
from autotune.runtime.choose.blas_provider import CublasSums, loaded_library, loaded_lt
from autotune.runtime.choose.chooser import Call
from autotune.runtime.launch.cuda_driver import Driver
from autotune.runtime.launch.devices import Gpus

torch: Any = pytest.importorskip("torch")
pytestmark = pytest.mark.gpu
LAYERS = ("2048x768x768:NT", "2048x768x768:NN", "768x768x2048:TN", "996x768x3072:NT", "3152x768x3072:NT",
          "300x500x700:TT", "512x512x16384:NN", "4096x4096x4096:NN", "257x129x3000:TN")  # fmt: skip
NUM_DRAWN = 20
ROWS = 48  # of C that are compared with float64


class Unordered:
    """What is asked of a table."""

    order = None


@pytest.fixture
def sums() -> CublasSums:
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.ones(4, 4, device="cuda") @ torch.ones(4, 4, device="cuda")  # whose context and library are used
    driver = Driver()
    return CublasSums(driver, Gpus(driver), Unordered(), loaded_library, loaded_lt)


def drawn(seed: int) -> list[str]:
    rng = random.Random(seed)
    sides = [(rng.randrange(33, 3000), rng.randrange(33, 3000)) for _ in range(NUM_DRAWN)]
    return [f"{m}x{n}x{rng.randrange(256, 9000)}:{rng.choice(LAYOUTS)}" for m, n in sides]


def allowed(sums: CublasSums, gemm: Gemm, adds_bias: bool = False) -> Depths | None:
    return sums.allowed(Call.packed(gemm)._replace(adds_bias=adds_bias), sums._devices.gpu(0))


def errors_of_torch(gemm: Gemm, adds_bias: bool = False) -> Depths:
    """Depths of cuBLAS's sums by its errors on normal and on positive numbers. `adds_bias`: of the product
    that torch has cuBLASLt compute with a bias, here zeros."""
    bias = torch.zeros(gemm.n, device="cuda")
    generator = torch.Generator("cuda").manual_seed(3)
    found = []
    for make in (torch.randn, torch.rand):
        a = make(
            gemm.k if gemm.trans_a else gemm.m,
            gemm.m if gemm.trans_a else gemm.k,
            device="cuda",
            generator=generator,
        )
        b = make(
            gemm.n if gemm.trans_b else gemm.k,
            gemm.k if gemm.trans_b else gemm.n,
            device="cuda",
            generator=generator,
        )
        a, b = a.T if gemm.trans_a else a, b.T if gemm.trans_b else b
        exact = (a[:ROWS].double() @ b.double()).cpu().numpy()
        c = torch.addmm(bias, a, b) if adds_bias else a @ b
        error = c[:ROWS].double().cpu().numpy() - exact
        found.append(float(np.linalg.norm(error) / np.linalg.norm(exact)))
    return Depths.of_errors(*found)


@pytest.mark.parametrize("adds_bias", [False, True], ids=["plain", "bias"])
@pytest.mark.parametrize("text", [*LAYERS, *drawn(71)])
def test_errors_of_cublas_are_those_of_its_splits(sums: CublasSums, text: str, adds_bias: bool) -> None:
    """Within half and twice the depth: the guess is off by up to 12 times."""
    gemm = Gemm.parse(text)
    limit = allowed(sums, gemm, adds_bias)
    if limit is None:
        pytest.skip("cuBLAS does not tell")
    told, seen = limit.within(1 / DEFAULT_ERRORS[0], 1 / DEFAULT_ERRORS[1]), errors_of_torch(gemm, adds_bias)
    assert 0.5 < seen.zero_mean / told.zero_mean < 2
    assert 0.4 < seen.positive / told.positive < 2.5


@pytest.mark.parametrize("adds_bias", [False, True], ids=["plain", "bias"])
def test_most_layers_are_told(sums: CublasSums, adds_bias: bool) -> None:
    told = [allowed(sums, Gemm.parse(text), adds_bias) is not None for text in (*LAYERS, *drawn(72))]
    assert sum(told) > 0.9 * len(told)


def test_nothing_is_disturbed_while_graphs_are_captured(sums: CublasSums) -> None:
    """On this thread and on another."""
    a, b = torch.randn(256, 256, device="cuda"), torch.randn(256, 256, device="cuda")
    out, graph = torch.empty_like(a), torch.cuda.CUDAGraph()
    torch.mm(a, b, out=out)
    torch.cuda.synchronize()
    found: list[Any] = []
    with torch.cuda.graph(graph):
        torch.mm(a, b, out=out)
        found.append(allowed(sums, Gemm.parse("640x640x2048:NN")))
        other = threading.Thread(target=lambda: found.append(allowed(sums, Gemm.parse("640x648x2048:NT"))))
        other.start()
        other.join()
    out.zero_()
    graph.replay()
    torch.testing.assert_close(out, a @ b)
    assert None not in found
