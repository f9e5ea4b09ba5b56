"""What serves products of torch is settled on the program's own calls, on a GPU."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
from made_table import export_winners, plain_config

from autotune.facts.gemm import LAYOUTS, Gemm
from autotune.gpu.driver import device_limits
from autotune.runtime.dispatcher import Dispatcher
from autotune.runtime.launch.planner import LiveState
from autotune.runtime.torch.torch_routing import TorchRouting

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(600)]

M, N, K = 2000, 1500, 1000  # nobody tuned it
MOST_CALLS = 3000


@pytest.fixture
def routing(torch: Any, tmp_path: Path) -> TorchRouting:
    config = plain_config(device_limits(0), vec_b=1)
    winners = {Gemm(512, 512, 512, layout[0] == "T", layout[1] == "T"): config for layout in LAYOUTS}
    winners[Gemm(256, 256, 256, batch=8)] = config  # a kernel for batches
    folder = export_winners(winners, tmp_path / "exported_for_live")
    made = Dispatcher(folder, settle="live-any-order").torch()
    assert not made.no_router, made.no_router
    return made


@pytest.fixture
def operands(torch: Any) -> tuple[Any, Any]:
    torch.manual_seed(0)
    return torch.randn(M, K, device="cuda"), torch.randn(K, N, device="cuda")


def is_right(torch: Any, a: Any, b: Any, c: Any) -> bool:
    exact = a.double() @ b.double()
    return bool((c - exact).norm() <= 2 * ((a @ b) - exact).norm())


def multiply_until_settled(torch: Any, routing: TorchRouting, a: Any, b: Any) -> LiveState:
    """The state of their one kind of call, once settled or after MOST_CALLS; results are right."""
    with routing:
        for number in range(MOST_CALLS):
            c = a @ b
            if number % 50 == 49:
                assert is_right(torch, a, b, c)
            if routing.live() and routing.live()[0].is_settled:
                break
    (state,) = routing.live()
    print(routing.call_counts(), state, routing.report())
    return state


def test_a_busy_program_is_settled_by_the_gpus_time(torch: Any, routing: TorchRouting, operands: Any) -> None:
    """A kernel that was never tuned loses to cuBLAS there, or wins: the faster one serves either way. No
    other test has its shape: what they settle is kept for the next process."""
    state = multiply_until_settled(torch, routing, operands[0][: M - 8], operands[1])
    assert state.is_settled and state.limited_by == "the GPU" and state.num_samples <= 16, state
    gpu_us = [gpu for gpu, _ in state.times_us]
    assert min(gpu_us) > 0
    assert state.is_dropped or gpu_us[state.winner] <= 1.02 * min(gpu_us[0], gpu_us[state.winner])


def test_a_program_that_waits_for_each_product_is_settled_by_the_hosts(
    torch: Any, routing: TorchRouting
) -> None:
    a, b = torch.randn(64, 64, device="cuda"), torch.randn(64, 64, device="cuda")
    with routing:
        for _ in range(20 * MOST_CALLS):
            a @ b
            torch.cuda.synchronize()
            if routing.live() and routing.live()[0].is_settled:
                break
    (state,) = routing.live()
    print(routing.call_counts(), state)
    assert state.is_settled and (state.is_dropped or state.limited_by == "the host"), state


def test_a_batch_that_nobody_tuned_is_settled(torch: Any, routing: TorchRouting) -> None:
    a, b = torch.randn(64, 200, 400, device="cuda"), torch.randn(64, 400, 200, device="cuda")
    state = multiply_until_settled(torch, routing, a, b)
    assert state.is_settled and len(state.times_us) == 2, state


def test_graphs_hold_what_is_settled_and_disturb_nothing(
    torch: Any, routing: TorchRouting, operands: Any
) -> None:
    a, b = operands
    with routing:
        for _ in range(5):
            a @ b
        graph, c = torch.cuda.CUDAGraph(), torch.empty(M, N, device="cuda")
        with torch.cuda.graph(graph):
            torch.mm(a, b, out=c)
    graph.replay()
    torch.cuda.synchronize()
    assert is_right(torch, a, b, c)


def test_a_capture_goes_on_while_another_thread_is_sampled(
    torch: Any, routing: TorchRouting, operands: Any
) -> None:
    (a, b), stop, faults = operands, threading.Event(), list[BaseException]()

    def multiply() -> None:
        try:
            with torch.cuda.stream(torch.cuda.Stream()):
                while not stop.is_set():
                    a @ b
                torch.cuda.synchronize()
        except BaseException as fault:
            faults.append(fault)

    with routing:
        a @ b
        x = torch.randn(256, 256, device="cuda")
        thread = threading.Thread(target=multiply)
        thread.start()
        for _ in range(20):
            graph, y = torch.cuda.CUDAGraph(), torch.empty_like(x)
            with torch.cuda.graph(graph, capture_error_mode="thread_local"):
                torch.mm(x, x, out=y)
            graph.replay()
            torch.cuda.current_stream().synchronize()
            assert is_right(torch, x, x, y)
        stop.set()
        thread.join()
    assert not faults


def test_streams_and_threads_share_a_kind(torch: Any, routing: TorchRouting, operands: Any) -> None:
    (a, b), wrong = operands, list[int]()

    def multiply(number: int) -> None:
        with torch.cuda.stream(torch.cuda.Stream()):
            for _ in range(100):
                c = a @ b
            torch.cuda.current_stream().synchronize()
            if not is_right(torch, a, b, c):
                wrong.append(number)

    torch.cuda.synchronize()
    with routing:
        threads = [threading.Thread(target=multiply, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not wrong
