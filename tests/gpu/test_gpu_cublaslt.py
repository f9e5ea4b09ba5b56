"""What is timed as the cuBLAS that adds a bias is what torch calls for it, on the GPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from statistics import median
from typing import Any

import pytest

from autotune.facts.cublas_calls import TORCH_BYTES
from autotune.facts.gemm import Gemm
from autotune.gpu import driver
from autotune.gpu.cublaslt import CublasLt, load_library
from autotune.gpu.memory import OperandSet
from autotune.runtime.torch.routed_engine import adds_as_timed

torch: Any = pytest.importorskip("torch")
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not adds_as_timed(), reason="this torch adds a bias otherwise"),
]
# Of ViT and BERT, where torch's call takes longer than cublasSgemm, and others where it is another kernel
SHAPES = ("536x768x3072:NT", "3152x3072x768:NT", "3152x768x3072:NT", "32x21x256:NT", "33x77x129:NT",
          "16x1000x768:NT", "128x128x32768:NT", "1024x768x3072:NN", "300x500x700:TN")  # fmt: skip
NUM_CALLS = 15


@pytest.fixture
def lt(torch: Any) -> Iterator[CublasLt]:
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.ones(4, 4, device="cuda") @ torch.ones(4, 4, device="cuda")  # whose context and library are used
    library = load_library()
    if library is None:
        pytest.skip("no cuBLASLt")
    found = CublasLt(driver.open_driver(), library, torch.cuda.current_stream().cuda_stream, TORCH_BYTES)
    yield found
    torch.cuda.synchronize()
    found.free()


def kernels_of(torch: Any, call: Callable[[], object]) -> tuple[list[str], float]:
    """The names of what one call launches, and the GPU's time in us, the median of some."""
    for _ in range(3):
        call()
    torch.cuda.synchronize()
    on_cuda = [torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=on_cuda, acc_events=True) as profile:  # else it warns, once
        for _ in range(NUM_CALLS):
            call()
        torch.cuda.synchronize()
    on_gpu = torch.autograd.DeviceType.CUDA
    events = sorted(
        (one for one in profile.events() if one.device_type == on_gpu), key=lambda one: one.time_range.start
    )
    each = len(events) // NUM_CALLS
    assert each and len(events) == each * NUM_CALLS
    calls = [events[at : at + each] for at in range(0, len(events), each)]
    times_us = [sum(one.time_range.elapsed_us() for one in some) for some in calls]
    return [one.name for one in calls[0]], median(times_us)


@pytest.mark.alone
@pytest.mark.parametrize("shape", SHAPES)
def test_a_product_with_a_bias_is_timed_as_torch_calls_it(torch: Any, lt: CublasLt, shape: str) -> None:
    gemm = Gemm.parse(shape)
    stored = torch.randn((gemm.k, gemm.m) if gemm.trans_a else (gemm.m, gemm.k), device="cuda")
    weights = torch.randn((gemm.n, gemm.k) if gemm.trans_b else (gemm.k, gemm.n), device="cuda")
    a, b = stored.T if gemm.trans_a else stored, weights.T if gemm.trans_b else weights
    bias, c = torch.randn(gemm.n, device="cuda"), torch.empty(gemm.m, gemm.n, device="cuda")
    operands = OperandSet(stored.data_ptr(), weights.data_ptr(), c.data_ptr())
    product = lt.product(gemm, bias.data_ptr())
    algorithm = product.first(operands)
    names, own_us = kernels_of(torch, lambda: product.enqueue(algorithm, operands))
    torchs, torch_us = kernels_of(torch, lambda: torch.addmm(bias, a, b))
    product.free()
    assert names == torchs
    assert torch.equal(c, torch.addmm(bias, a, b))
    assert 0.9 < own_us / torch_us < 1.1
