"""What serves a call signature is settled on the program's own calls: in the core with a clock that is
simulated, and by torch's dispatcher where torch is installed."""

from __future__ import annotations

import ctypes
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from host_torch import HostTorch
from table_cases import FakeDriver, isolated, make_kernel, make_spec, make_table, write_table
from test_tensor_calls import normal
from test_torch_routing import Tensor

from autotune.facts.gemm import Batch
from autotune.files.errors import DispatchError
from autotune.kernel.launch import Variant
from autotune.runtime.choose.chooser import Chooser, Pick
from autotune.runtime.dispatcher import Dispatcher
from autotune.runtime.launch import planner
from autotune.runtime.launch.cuda_driver import CudaFault
from autotune.runtime.launch.planner import LiveState, key_of
from autotune.runtime.settle.choices import Choices
from autotune.runtime.torch.routed_engine import Decided, RoutedSignatures

STREAM, M, N, K = 77, 24, 12, 8
NAMES = ("first", "second", "third")
ALONE_US = 50.0  # of the GPU, that torch's own kernel takes
LONG_US = 4000.0  # that the model expects: of such calls each may be a sample
A, B = normal(M, K), normal(K, N, seed=1)


class Clocked(FakeDriver):
    """A GPU that works behind the host, and a host whose launches take `host_us` of the simulated time."""

    now_us = gpu_us = 0.0
    host_us = 5.0
    num_recorded = 0

    @property
    def num_started(self) -> int:
        """Samples, at most."""
        return -(-self.num_recorded // 2)

    def run(self, us: float) -> None:
        self.now_us += self.host_us
        self.gpu_us = max(self.gpu_us, self.now_us) + us

    def _run(self, launch: Any, play: Any) -> None:
        super()._run(launch, play)
        self.run(self.kernel_us[launch.kernel_id])

    def record_on(self, event: int, stream: int) -> None:
        assert stream not in self.capturing, "the event becomes one of the graph"
        super().record_on(event, stream)
        self.num_recorded += 1
        self.now_us += 0.5
        self.gpu_us = self.handles[event] = max(self.gpu_us + 0.1, self.now_us)

    def query_event(self, event: int) -> None:
        self._must_have_passed(self.handles[event] or 0.0)

    def query_stream(self, stream: int) -> None:
        assert self.loading_depth and self.current_context(), "another thread's capture would end"
        self._must_have_passed(self.gpu_us)

    def _must_have_passed(self, us: float) -> None:
        if us > self.now_us:
            raise CudaFault("asking", 600, "CUDA_ERROR_NOT_READY")


class Program:
    """Calls of one kind, as the router makes them."""

    def __init__(
        self, kinds: RoutedSignatures, driver: Clocked, decided: Decided, a: Any = A, b: Any = B
    ) -> None:
        self.driver, self.decided, self.served = driver, decided, list[int]()
        self._a, self._b = a, b
        self._core = kinds._engine_of(0).core
        self._library, self._plan = self._core.library, decided.live
        assert self._plan is not None
        self._addresses = [plan.address for plan in self._plan.rivals]

    @property
    def state(self) -> LiveState:
        assert self.decided.live is not None
        return self.decided.live.state()

    def call(self, stream: int = STREAM, *, is_done: bool = True) -> int:
        """The number of the rival that serves, whose result is right."""
        assert self._plan is not None
        turn, c = self._library.structs.turn(), np.full((*self._a.shape[:-1], N), np.nan, np.float32)
        self._library.autotune_begin_turn(self._plan.address, stream, ctypes.byref(turn))
        if turn.is_left_alone:
            self.driver.run(ALONE_US)
        elif is_done:
            at = (self._a.ctypes.data, self._b.ctypes.data, c.ctypes.data, 0)
            assert not self._library.autotune_run_plan(self._core.handle, turn.plan, stream, *at, 1.0, 0.0)
            np.testing.assert_allclose(c, self._a @ self._b, rtol=1e-4, atol=1e-5)
        self._library.autotune_end_turn(self._plan.address, stream, ctypes.byref(turn), is_done)
        self.served.append(self._addresses.index(turn.plan))
        return self.served[-1]

    def call_busy(self, most: int = 200) -> None:
        """Calls behind other work, until it is settled; the host waits now and then."""
        for number in range(most):
            if self.state.is_settled:
                return
            self.driver.gpu_us = max(self.driver.gpu_us, self.driver.now_us) + 100
            self.call()
            if number % 3 == 2:
                self.driver.now_us = self.driver.gpu_us


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Clocked:
    isolated(monkeypatch, tmp_path)
    picks = [
        Pick(name, "modelled", str, 1, LONG_US, cublas_us=LONG_US - 1, provider="cublas") for name in NAMES
    ]
    monkeypatch.setattr(Chooser, "pick", lambda *_: picks[0])
    monkeypatch.setattr(Chooser, "ranked", lambda *_: picks)
    monkeypatch.setattr(Pick, "reason", "")
    table = make_table(*(make_kernel(name, make_spec(group=1 << place)) for place, name in enumerate(NAMES)))
    return Clocked(table, kernel_us=dict.fromkeys(NAMES, 40.0))


@pytest.fixture
def dispatcher(driver: Clocked, tmp_path: Path) -> Dispatcher:
    return Dispatcher(write_table(driver.table, tmp_path / "t"), driver=driver, settle="live")


def decided(dispatcher: Dispatcher, batch: Batch | None = None) -> tuple[RoutedSignatures, Decided]:
    engines, _ = dispatcher._on_gpus()
    kinds = engines.routed_signatures(has_bias=False)
    forms = ((M, K, K, 1), (K, N, N, 1), None)
    at = tuple(address % 16 for address in (A.ctypes.data, B.ctypes.data, 0))
    return kinds, kinds.decide(key_of((0, 0, 0), forms, at, False, False, batch))


@pytest.fixture
def program(dispatcher: Dispatcher, driver: Clocked) -> Program:
    kinds, found = decided(dispatcher)
    return Program(kinds, driver, found)


def test_the_rivals_are_torch_itself_and_the_launches_that_are_ranked_first(program: Program) -> None:
    """The first is what serves without turns: the table leaves such calls alone."""
    assert program.decided.reason and len(program._addresses) == 4
    assert [one.reason for one in program.decided.beside] == ["", "", ""]
    assert [one.pick.kernel_id for one in program.decided.beside if one.pick] == list(NAMES)


def test_where_the_gpu_is_the_limit_the_least_time_of_the_gpu_wins(program: Program, driver: Clocked) -> None:
    """One that takes a quarter longer by its second sample has no more."""
    driver.kernel_us["second"] = 35.0
    program.call_busy()
    state = program.state
    assert (state.limited_by, state.winner, state.is_dropped, state.num_samples) == ("the GPU", 2, False, 14)
    assert [gpu_us for gpu_us, _ in state.times_us] == pytest.approx([50, 40, 35, 40], rel=0.05)
    assert [program.call() for _ in range(5)] == [2] * 5
    counts = {one.plan.num_tensor_calls for one in program.decided.beside}
    assert counts == {0} and program.decided.num_calls == program.served.count(0)


def test_what_takes_half_as_long_again_has_one_sample(program: Program, driver: Clocked) -> None:
    driver.kernel_us |= {"first": 60.0, "third": 39.0}
    program.call_busy()
    assert program.state.winner == 3
    assert [program.served[:-1].count(number) for number in (1, 3)] == [1, 4]


def test_samples_lose_some_three_calls_at_most(program: Program, driver: Clocked) -> None:
    """Of what takes far longer than the best, there is one sample, or none."""
    driver.kernel_us |= {"first": 200.0, "second": 190.0, "third": 20.0}
    program.call_busy()
    assert program.state.is_settled and program.served.count(1) + program.served.count(2) <= 2


def test_what_is_expected_to_take_thrice_as_long_has_no_sample(
    dispatcher: Dispatcher, driver: Clocked, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Torch's own kernel, where the table serves."""
    pick = Pick("first", "modelled", str, 1, LONG_US, cublas_us=3 * LONG_US)
    monkeypatch.setattr(Chooser, "pick", lambda *_: pick)
    kinds, found = decided(dispatcher)
    program = Program(kinds, driver, found)
    program.call_busy()
    assert found.rivals[1].reason and program.state.is_settled and program.served.count(1) == 0


def test_what_was_measured_is_told_instead_of_what_was_predicted(
    dispatcher: Dispatcher, driver: Clocked
) -> None:
    driver.kernel_us["second"] = 35.0
    kinds, found = decided(dispatcher)
    assert found.beside[1].times_us == (LONG_US, LONG_US - 1)
    program = Program(kinds, driver, found)
    program.call_busy()
    program.call()
    (kind,) = [one for one in kinds.call_counts().kinds if one.pick and one.pick.kernel_id == "second"]
    assert kind.times_us == pytest.approx((35, ALONE_US), rel=0.05)


def test_what_no_launch_beats_stays(program: Program, driver: Clocked) -> None:
    """What cannot win any more by its second sample has no more: within a quarter of the least, too."""
    driver.kernel_us |= dict.fromkeys(NAMES, 60.0)
    program.call_busy()
    state = program.state
    assert (state.is_settled, state.is_dropped, state.winner) == (True, False, 0)
    assert 7 <= state.num_samples <= 8


def test_few_samples_are_taken_and_in_no_fixed_order(
    dispatcher: Dispatcher, driver: Clocked, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(planner.secrets, "randbits", lambda _: 32)
    kinds, found = decided(dispatcher)
    program = Program(kinds, driver, found)
    program.call_busy()
    sampled = [one for one in program.served[:-1] if one]  # the last call is by the winner
    assert len(sampled) == 12 and sampled[:6] != sampled[6:]


@pytest.fixture
def of_many(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, driver: Clocked) -> Callable[..., Program]:
    """A program whose calls torch's own kernel and nine others may serve, of which six take part."""

    def made(*kernel_us: float) -> Program:
        names = [f"kernel{place}" for place in range(len(kernel_us))]
        specs = [make_spec(group=1 << place % 5, vec_c=1 + place // 5) for place in range(len(names))]
        table = make_table(*map(make_kernel, names, specs))
        picks = [
            Pick(name, "modelled", str, 1, LONG_US + place, cublas_us=LONG_US - 1, provider="cublas")
            for place, name in enumerate(names)
        ]
        monkeypatch.setattr(Chooser, "pick", lambda *_: picks[0])
        monkeypatch.setattr(Chooser, "ranked", lambda *_: picks)
        clocked = Clocked(table, kernel_us=dict(zip(names, kernel_us, strict=True)))
        folder = write_table(table, tmp_path / "many")
        kinds, found = decided(Dispatcher(folder, driver=clocked, settle="live"))
        return Program(kinds, clocked, found)

    return made


def test_of_many_those_that_lead_have_the_samples(of_many: Callable[..., Program]) -> None:
    """Seven have one each; then the first and two others have four."""
    program = of_many(*(48.0 - place for place in range(9)))
    program.call_busy()
    assert (program.state.winner, program.state.num_samples, len(program.state.times_us)) == (6, 16, 7)
    nums = Counter(program.served[:-1])
    assert [nums[number] for number in range(1, 7)] == [1, 1, 1, 1, 4, 4]


def test_first_samples_end_once_they_have_lost_enough(of_many: Callable[..., Program]) -> None:
    """Though nearly as little is expected of all: what was expected is far too little."""
    program = of_many(40.0, *[75.0] * 8)
    program.call_busy()
    nums = Counter(program.served[:-1])
    assert program.state.winner == 1 and [nums[number] for number in range(2, 7)] == [1, 1, 0, 0, 0]


def test_a_call_on_an_idle_stream_takes_what_the_host_does(
    dispatcher: Dispatcher, driver: Clocked, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So a product of a microsecond is settled in far fewer calls than its own time would pay for."""
    pick, own = Pick("first", "modelled", str, 1, 1.0, cublas_us=2.0), driver.run
    monkeypatch.setattr(Chooser, "pick", lambda *_: pick)
    monkeypatch.setattr(driver, "run", lambda us: (threading.Event().wait(us * 1e-6), own(us)))
    kinds, found = decided(dispatcher)
    program = Program(kinds, driver, found)
    for _ in range(2500):  # 800 for each sample, by its own time
        driver.now_us = driver.gpu_us + 1
        program.call()
        if program.state.is_settled:
            break
    assert program.state.is_settled and program.state.limited_by == "the host"


def test_calls_that_find_the_stream_idle_are_compared_by_the_host(program: Program, driver: Clocked) -> None:
    """By time that passes, since the host's is not simulated: torch's own kernel is made slow there."""
    own = program.driver.run

    def run(us: float) -> None:
        if us == ALONE_US:
            threading.Event().wait(0.02)
        own(us)

    driver.run = run  # type: ignore[method-assign]
    driver.kernel_us["first"] = 300.0  # the host gains, and the program loses
    for _ in range(100):
        driver.now_us = driver.gpu_us + 1
        program.call()
    state = program.state
    assert (state.limited_by, state.is_settled, state.num_samples) == ("the host", True, 14)
    assert state.winner in (2, 3) or state.is_dropped  # the machine may be slow amid it


def test_torchs_own_kernel_is_sampled_once_where_it_is_seldom_called(
    dispatcher: Dispatcher, driver: Clocked, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On an idle stream, if that takes thrice as long: the host's way to it is cold each time."""
    pick = Pick("first", "modelled", str, 1, LONG_US, cublas_us=2 * LONG_US)
    monkeypatch.setattr(Chooser, "pick", lambda *_: pick)
    driver.kernel_us |= dict.fromkeys(NAMES, 10.0)
    kinds, found = decided(dispatcher)
    program = Program(kinds, driver, found)
    for _ in range(100):
        driver.now_us = driver.gpu_us + 1
        program.call()
    assert not found.rivals[0].reason and found.rivals[1].reason
    assert program.served.count(1) == 1 and program.state.is_settled


def test_busy_and_idle_calls_are_never_compared(program: Program, driver: Clocked) -> None:
    """Every other call is idle, and would make the launches that had those look slow."""
    for number in range(60):
        driver.now_us = driver.gpu_us + 1
        if number % 2:
            driver.gpu_us += 100
        program.call()
    times_us = [gpu_us for gpu_us, _ in program.state.times_us]
    lag_us = 0.0 if program.state.limited_by == "the GPU" else driver.host_us
    assert times_us == pytest.approx([ALONE_US + lag_us, *[40 + lag_us] * 3], rel=0.05)


def test_a_stream_that_runs_dry_meanwhile_tells_nothing(program: Program, driver: Clocked) -> None:
    for _ in range(200):
        driver.now_us = driver.gpu_us
        driver.gpu_us += 1  # less than a launch takes the host
        program.call()
    assert program.state.num_samples == 0
    assert (program.state.is_settled, program.state.is_dropped, program.state.winner) == (True, True, 0)
    assert "busy first and idle then" in program.state.reason


def test_times_that_spread_decide_nothing(program: Program, driver: Clocked) -> None:
    driver.kernel_us |= dict(zip(NAMES, (40.0, 41.0, 42.0), strict=True))
    num_calls, own = Counter[float](), driver.run

    def run(us: float) -> None:  # of each rival every other call takes twice as long
        num_calls[us] += 1
        own(us * (1 + num_calls[us] % 2))

    driver.run = run  # type: ignore[method-assign]
    program.call_busy()
    assert program.state.is_settled and program.state.winner == 0


def test_nothing_is_sampled_while_a_graph_is_captured(program: Program, driver: Clocked) -> None:
    driver.capturing = frozenset({STREAM})
    assert {program.call() for _ in range(50)} == {0}
    assert program.state.num_samples == 0 and not program.state.is_settled
    assert "captured" in program.state.reason


def test_a_capture_takes_what_is_settled(program: Program, driver: Clocked) -> None:
    driver.kernel_us["third"] = 10.0
    program.call_busy()
    driver.capturing = frozenset({STREAM})
    assert program.call() == 3


def test_a_call_that_was_not_made_is_no_sample(program: Program, driver: Clocked) -> None:
    for _ in range(100):
        driver.gpu_us = driver.now_us + 100
        program.call(is_done=False)
    assert program.state.num_samples == 0


@pytest.mark.parametrize("call", ["make_event", "record_on", "query_stream", "query_event"])
def test_what_the_driver_refuses_stops_no_product(
    program: Program, driver: Clocked, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    def refuse(*_: Any) -> None:
        raise CudaFault(call, 2, "CUDA_ERROR_OUT_OF_MEMORY")

    monkeypatch.setattr(driver, call, refuse)
    program.call_busy()
    assert program.state.winner == 0 and program.state.num_samples == 0
    assert program.state.reason == "the driver refused the sample (CUresult 2)"


def test_short_products_are_sampled_seldom(dispatcher: Dispatcher, driver: Clocked, monkeypatch) -> None:
    """A sample takes the host some 4 us: not more than 0.5 % of the time of calls of 10 us."""
    pick = Pick("first", "modelled", str, 1, 10.0, cublas_us=9.0, provider="cublas")
    monkeypatch.setattr(Chooser, "pick", lambda *_: pick)
    kinds, found = decided(dispatcher)
    program = Program(kinds, driver, found)
    for _ in range(400):
        driver.gpu_us = driver.now_us + 100
        program.call()
    assert 1 <= driver.num_started <= 20


def test_threads_may_call_at_once(program: Program, driver: Clocked) -> None:
    def work() -> None:
        for _ in range(40):
            program.call()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(program.served) == 160


@pytest.mark.parametrize("settle", ["off", "first-use", None])
def test_without_it_nothing_takes_turns(driver: Clocked, tmp_path: Path, settle: Any) -> None:
    _, found = decided(Dispatcher(write_table(driver.table, tmp_path / "t"), driver=driver, settle=settle))
    assert found.live is None and not found.beside


def test_launches_that_sum_otherwise_take_turns_only_if_requested(tmp_path: Path, monkeypatch) -> None:
    split = make_spec(reduction="two_pass", split_k=2)
    table = make_table(make_kernel("first", make_spec()), make_kernel("second", split))
    picks = [Pick("first", "modelled", str, 1, 9.0, cublas_us=8.0), Pick("second", "modelled", str, 2, 9.0)]
    monkeypatch.setattr(Chooser, "pick", lambda *_: picks[0])
    monkeypatch.setattr(Chooser, "ranked", lambda *_: picks)
    for settle, names in (("live", ["first"]), ("live-any-order", ["first", "second"])):
        folder = write_table(table, tmp_path / settle.replace("-", "_"))
        made = Dispatcher(folder, driver=Clocked(table), settle=settle)  # type: ignore[arg-type]
        _, found = decided(made)
        assert [one.pick.kernel_id for one in found.beside if one.pick and not one.reason] == names


def test_ranks_of_a_program_do_not_settle_each_for_itself(dispatcher: Dispatcher, monkeypatch) -> None:
    ranks = SimpleNamespace(is_available=lambda: True, is_initialized=lambda: True, get_world_size=lambda: 2)
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(distributed=ranks))
    assert decided(dispatcher)[1].live is None


def test_a_deterministic_dispatcher_settles_nothing(driver: Clocked, tmp_path: Path, monkeypatch) -> None:
    folder = write_table(driver.table, tmp_path / "t")
    with pytest.raises(DispatchError, match="deterministic"):
        Dispatcher(folder, driver=driver, settle="live", deterministic=True)
    monkeypatch.setenv("AUTOTUNE_SETTLE", "live")
    assert decided(Dispatcher(folder, driver=driver, deterministic=True))[1].live is None
    monkeypatch.setenv("AUTOTUNE_SETTLE", "life")
    with pytest.raises(DispatchError, match="'off', 'first-use', 'live' or 'live-any-order'"):
        Dispatcher(folder, driver=driver)


@pytest.fixture
def torch(driver: Clocked, monkeypatch: pytest.MonkeyPatch) -> Iterator[HostTorch]:
    made = HostTorch(monkeypatch, Tensor, is_compiled=True)
    made.drivers.append(driver)
    yield made
    made.use_deterministic_algorithms(False)


def test_products_of_torch_take_turns(torch, dispatcher: Dispatcher, driver: Clocked, monkeypatch) -> None:
    with dispatcher.torch() as routing:
        for _ in range(100):
            driver.gpu_us = driver.now_us + 1e6  # busy
            found = torch.call("mm", Tensor(A), Tensor(B))
            np.testing.assert_allclose(found.data, A @ B, rtol=1e-4, atol=1e-5)
            driver.now_us = driver.gpu_us + 1
    (state,) = routing.live()
    assert state.is_settled and state.num_samples == 4 and state.limited_by == "the GPU"
    assert "settled on their own calls" in routing.report()
    assert sum(kind.num_calls for kind in routing.kinds()) == 100
    assert torch.own_calls + len(driver.launches) == 100 and driver.launches


def test_where_torch_is_deterministic_the_table_decides(torch, dispatcher, driver: Clocked) -> None:
    with dispatcher.torch() as routing:
        torch.call("mm", Tensor(A), Tensor(B))
        torch.use_deterministic_algorithms(True)
        for _ in range(30):
            driver.gpu_us = driver.now_us + 1e6
            torch.call("mm", Tensor(A), Tensor(B))
    assert routing.live()[0].num_samples == 0 and not driver.launches


def test_a_forward_pass_that_is_computed_again_is_not_sampled(
    torch, dispatcher, driver: Clocked, monkeypatch: pytest.MonkeyPatch
) -> None:
    from torch.utils.checkpoint import checkpoint

    monkeypatch.setattr(planner.secrets, "randbits", lambda _: 32)  # by which each call is due for a sample
    a, b = (torch.from_numpy(x.copy()).requires_grad_() for x in (A, B))
    with dispatcher.torch():
        with torch.no_grad():
            for _ in range(9):  # Python decides on it, and what loads is not sampled
                a @ b
        found = checkpoint(lambda x, y: x @ y, a, b, use_reentrant=False)
        assert driver.num_started == 1  # the forward pass is sampled
        driver.now_us = driver.gpu_us + 1
        found.sum().backward()
        assert driver.num_started == 1
        with torch.no_grad():
            a @ b  # the GPU has passed both events
            a @ b
        assert driver.num_started == 2


def test_what_is_settled_serves_the_next_process_at_once(
    dispatcher: Dispatcher, driver: Clocked, tmp_path: Path
) -> None:
    """From the cache folder, where a later choice by fewer samples overrules none."""
    driver.kernel_us["second"] = 35.0
    kinds, found = decided(dispatcher)
    Program(kinds, driver, found).call_busy()
    kinds.keep_settled()
    again = Dispatcher(write_table(driver.table, tmp_path / "t2"), driver=driver, settle="live")
    next_kinds, next_found = decided(again)
    state = Program(next_kinds, driver, next_found).state
    assert (state.is_settled, state.winner, state.num_samples, state.reason) == (True, 2, 14, "")
    assert Program(next_kinds, driver, next_found).call() == 2
    engine = next_kinds._engine_of(0)
    choices = engine._known.live_on(engine.devices.gpu(0))
    (kept,) = choices.all().values()
    choices.add(replace(kept, kernel="", split_k=1, num_samples=12))
    assert [*choices.all().values()] == [kept]
    other = Choices(
        *(getattr(choices, f"_{name}") for name in ("table", "settled_on", "path", "tell", "kind"))
    )
    better, later = replace(kept, num_samples=16), replace(kept, call=replace(kept.call, m=kept.call.m + 1))
    other.add(better)  # of another process
    choices.add(later)
    assert [*choices.all().values()] == [better, later]


def test_a_batch_that_nobody_tuned_is_settled_among_kernels_for_batches(tmp_path: Path, monkeypatch) -> None:
    """A table without any leaves it to torch, as ever."""
    isolated(monkeypatch, tmp_path)
    many = make_kernel("many", make_spec(variant=Variant(is_batched=True)), None)
    own, batch = Chooser.pick, Batch(3, M * K, K * N, M * N)
    monkeypatch.setattr(Chooser, "pick", lambda *call: replace(own(*call), expected_us=LONG_US))
    for kernels, names in (((), []), ((many,), ["many"])):
        table = make_table(make_kernel("one", make_spec()), *kernels)
        driver = Clocked(table, kernel_us={"many": 10.0})
        made = Dispatcher(write_table(table, tmp_path / f"t{len(kernels)}"), driver=driver, settle="live")
        kinds, found = decided(made, batch=batch)
        assert found.reason and [one.pick.kernel_id for one in found.beside if one.pick] == names
    a, b = normal(3 * M, K).reshape(3, M, K), normal(3 * K, N).reshape(3, K, N)
    program = Program(kinds, driver, found, a, b)
    program.call_busy()
    assert (program.state.winner, program.state.num_samples, program.call()) == (1, 5, 1)
