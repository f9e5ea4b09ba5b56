"""Requests that the worker has before it answered the one before: order, faults, turns, and the queue."""

from __future__ import annotations

import random
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from functools import partial
from pathlib import Path

import pytest
from test_gpu_client import FAKE, OTHER, PROBLEM, SPEC, START, requests, worker_pids

from autotune.facts.device import KNOWN
from autotune.facts.measurement import Measurement, Outcome
from autotune.files.errors import EnvironmentProblem
from autotune.gpu import client, gpu_worker
from autotune.gpu.builder import Built
from autotune.gpu.client import MOST_SENT, WorkerClient
from autotune.gpu.gpu_queue import GpuQueue
from autotune.gpu.gpu_worker import GpuWorker
from autotune.gpu.protocol import KernelCode, Problem, RunComparison, RunTrial
from autotune.gpu.turns import Turns

OUTCOMES = {
    "fine": Outcome.OK, "crash": Outcome.FAULTED, "exit": Outcome.FAULTED, "hang": Outcome.TIMED_OUT,
    "garble": Outcome.FAULTED, "sticky": Outcome.FAULTED, "bug": Outcome.FAULTED, "babble": Outcome.FAULTED,
    "wrong": Outcome.WRONG_RESULT,
}  # fmt: skip
FATAL = [deed for deed, outcome in OUTCOMES.items() if outcome not in (Outcome.OK, Outcome.WRONG_RESULT)]


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "log"


@pytest.fixture
def make(log: Path) -> Iterator[Callable[..., WorkerClient]]:
    made: list[WorkerClient] = []

    def make_client(**options: object) -> WorkerClient:
        command = (sys.executable, str(FAKE), "by name", str(log))
        made.append(WorkerClient(START, command=command, **options))  # type: ignore[arg-type]
        made[-1].prepare(PROBLEM)
        return made[-1]

    yield make_client
    for one in made:
        one.close()


def run(deed: str, size: int = 4, problem: Problem = PROBLEM) -> RunTrial:
    return RunTrial(problem, KernelCode(bytes(size), deed, SPEC), None)


def test_two_requests_are_sent_and_answered_in_order(make: Callable[..., WorkerClient], log: Path) -> None:
    one = make()
    trials = [run(f"fine#{number}") for number in range(4)]
    assert [one.send_ahead(trial, 30.0) for trial in trials] == [True] * MOST_SENT + [False] * 2
    assert [one.trial(trial, 30.0).outcome for trial in trials] == [Outcome.OK] * 4
    assert requests(log) == ["Start", "Prepare", *["RunTrial"] * 4]


def test_nothing_is_sent_ahead_for_a_problem_that_is_not_prepared(make: Callable[..., WorkerClient]) -> None:
    one = make()
    assert not one.send_ahead(run("fine", problem=OTHER), 30.0)
    assert one.trial(run("fine", problem=OTHER), 30.0).outcome is Outcome.OK


@pytest.mark.every(3)
@pytest.mark.parametrize("deed", FATAL)
def test_what_was_sent_behind_a_fatal_candidate_is_asked_again(
    make: Callable[..., WorkerClient], log: Path, deed: str
) -> None:
    one = make()
    fatal, behind = run(deed), run("fine")
    assert one.send_ahead(fatal, 1.0)
    one.send_ahead(behind, 30.0)  # unless the worker is gone already
    assert one.trial(fatal, 1.0).outcome is OUTCOMES[deed]
    assert one.trial(behind, 30.0).outcome is Outcome.OK
    assert requests(log)[-3:] == ["Start", "Prepare", "RunTrial"] and len(worker_pids(log)) == 2


@pytest.mark.every(3)
@pytest.mark.parametrize("deed", FATAL)
def test_a_fatal_candidate_that_was_sent_ahead_is_blamed_itself(
    make: Callable[..., WorkerClient], deed: str
) -> None:
    one = make()
    before, fatal, behind = run("fine"), run(deed), run("fine#2")
    assert one.send_ahead(before, 30.0) and one.send_ahead(fatal, 1.0)
    assert one.trial(before, 30.0).outcome is Outcome.OK
    time.sleep(0.2)  # the worker may be gone already
    one.send_ahead(behind, 30.0)
    assert one.trial(fatal, 1.0).outcome is OUTCOMES[deed]
    assert one.trial(behind, 30.0).outcome is Outcome.OK
    assert not one.send_ahead(run(deed), 1.0), "never run again"
    assert "not run" in one.trial(run(deed), 1.0).reason


def test_behind_a_wrong_result_the_worker_prepares_by_itself(
    make: Callable[..., WorkerClient], log: Path
) -> None:
    one = make()
    wrong, behind, later = run("wrong"), run("fine"), run("fine#2")
    assert one.send_ahead(wrong, 30.0) and one.send_ahead(behind, 30.0)
    assert one.trial(wrong, 30.0).outcome is Outcome.WRONG_RESULT
    assert not one.send_ahead(later, 30.0)
    assert [one.trial(each, 30.0).outcome for each in (behind, later)] == [Outcome.OK] * 2
    assert requests(log) == ["Start", "Prepare", "RunTrial", "RunTrial", "Prepare", "RunTrial"]


def test_what_the_machine_lacks_ends_one_request_and_not_the_next(make: Callable[..., WorkerClient]) -> None:
    one = make()
    lacking, behind = run("no memory"), run("fine")
    assert one.send_ahead(lacking, 30.0) and one.send_ahead(behind, 30.0)
    with pytest.raises(EnvironmentProblem, match="no memory"):
        one.trial(lacking, 30.0)
    assert one.trial(behind, 30.0).outcome is Outcome.OK


def test_a_large_cubin_behind_a_hang_waits_no_longer_than_that(
    make: Callable[..., WorkerClient], log: Path
) -> None:
    """It does not fit into the pipe, and the worker reads no more."""
    one = make()
    hang, large = run("hang"), run("fine", 5_000_000)
    assert one.send_ahead(hang, 0.5)
    began_s = time.monotonic()
    assert not one.send_ahead(large, 0.5)
    assert one.trial(hang, 0.5).outcome is Outcome.TIMED_OUT
    assert time.monotonic() - began_s < 20
    assert one.trial(large, 30.0).outcome is Outcome.OK


def test_comparisons_are_sent_ahead_too(make: Callable[..., WorkerClient], log: Path) -> None:
    one = make()
    fine, crash = KernelCode(b"", "fine", SPEC), KernelCode(b"", "crash", SPEC)
    good = RunComparison(PROBLEM, (fine, fine), 3)
    bad = RunComparison(PROBLEM, (fine, crash), 3)
    assert one.send_ahead(bad, 30.0)
    one.send_ahead(good, 30.0)  # unless the worker is gone already
    assert one.compare_pair(bad, 30.0) is None
    found = one.compare_pair(good, 30.0)
    assert found is not None and found.samples_us[0] == (1.0,) * 3


def test_a_turn_lasts_while_requests_follow_each_other_and_nobody_waits(
    make: Callable[..., WorkerClient], tmp_path: Path
) -> None:
    one, other = make(turns=Turns("GPU-0", folder=tmp_path)), Turns("GPU-0", folder=tmp_path)
    has_turn = threading.Event()

    def wait_for_turn() -> None:
        with other.take():
            has_turn.set()

    trials = [run(f"fine#{number}") for number in range(4)]
    assert one.send_ahead(trials[0], 30.0) and one.send_ahead(trials[1], 30.0)
    thread = threading.Thread(target=wait_for_turn)
    thread.start()
    while not one._turns.is_wanted:
        time.sleep(0.01)
    assert one.trial(trials[0], 30.0).outcome is Outcome.OK
    assert not one.send_ahead(trials[2], 30.0), "another process waits"
    assert not has_turn.wait(0.2)
    assert one.trial(trials[1], 30.0).outcome is Outcome.OK
    assert has_turn.wait(30)
    thread.join()
    assert one.trial(trials[2], 30.0).outcome is Outcome.OK
    with other.take():
        pass  # who has nothing to send has no turn
    other.close()


@pytest.mark.parametrize("deed", ["crash", "hang", "sticky"])
def test_a_turn_ends_with_its_worker(make: Callable[..., WorkerClient], tmp_path: Path, deed: str) -> None:
    one, other = make(turns=Turns("GPU-0", folder=tmp_path)), Turns("GPU-0", folder=tmp_path)
    fatal, behind = run(deed), run("fine")
    assert one.send_ahead(fatal, 0.5)
    one.send_ahead(behind, 30.0)  # unless the worker is gone already
    assert one.trial(fatal, 0.5).outcome is OUTCOMES[deed]
    with other.take():
        pass
    other.close()


# ------------------------------------------------------------------------------- the thread that sends


@pytest.fixture
def gpu(log: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[GpuWorker]:
    command = (sys.executable, str(FAKE), "by name", str(log))
    monkeypatch.setattr(gpu_worker, "WorkerClient", partial(client.WorkerClient, command=command))
    monkeypatch.setattr(gpu_worker.Deadlines, "trial_s", lambda *_: 1.0)
    one = GpuWorker("GPU-sent-ahead", KNOWN["h200"], b"", print)
    one.baseline(PROBLEM)
    yield one
    if not one.is_closed:
        one.close()


@pytest.mark.every(3)
@pytest.mark.parametrize("seed", range(3))
def test_each_of_many_candidates_has_its_own_outcome_whatever_its_neighbours_do(
    gpu: GpuWorker, seed: int
) -> None:
    rng = random.Random(seed)
    deeds = [rng.choice([deed, "fine", "fine"]) for deed in (*OUTCOMES, "refused") * 2]
    rng.shuffle(deeds)

    def build(number: int, deed: str) -> Built:
        if deed == "refused":
            return Built(Measurement(Outcome.SPILLED, "too many registers"))
        return Built(Measurement(Outcome.OK), run(f"{deed}#{number}").kernel)

    found: list[tuple[str, Future[Measurement]]] = []
    for number, deed in enumerate(deeds):
        build_fn = partial(build, number, deed)
        if rng.random() < 0.5:
            found.append((deed, gpu.measure_idle(PROBLEM, build_fn, None)))
        else:
            found.append((deed, Future[Measurement]()))
            gpu.measure(found[-1][1], PROBLEM, build_fn, None)
    for deed, future in found:
        assert future.result(60).outcome is OUTCOMES.get(deed, Outcome.SPILLED), deed


def test_what_is_begun_when_the_gpu_is_closed_is_finished_and_the_rest_is_cancelled(gpu: GpuWorker) -> None:
    built = Built(Measurement(Outcome.OK), run("fine").kernel)
    futures = [gpu.measure_idle(PROBLEM, lambda: built, None) for _ in range(50)]
    futures[0].result(30)
    gpu.close()
    assert all(future.done() for future in futures)
    ended = [future.cancelled() for future in futures]
    assert ended == sorted(ended) and ended[-1]
    assert all(future.result().outcome is Outcome.OK for future in futures if not future.cancelled())


class Played:
    """Work that notes when it is begun and done."""

    def __init__(self, name: str, notes: list[str], *, can: bool = True) -> None:
        self.name, self.notes, self.can = name, notes, can

    def ahead(self) -> bool:
        self.notes.append(f"begin {self.name}")
        return self.can

    def work(self) -> str:
        self.notes.append(f"end {self.name}")
        return self.name


def _played(queue: GpuQueue, works: list[Played]) -> None:
    gate = threading.Event()
    queue.submit(gate.wait)
    futures = [queue.submit_idle(work.work, work.ahead) for work in works]
    gate.set()
    assert [future.result(10) for future in futures] == [work.name for work in works]
    queue.close()


def test_the_next_is_begun_before_this_one_is_waited_for() -> None:
    notes: list[str] = []
    _played(GpuQueue(), [Played(name, notes) for name in "abc"])
    assert notes == ["begin a", "begin b", "end a", "begin c", "end b", "end c"]


def test_nothing_is_begun_behind_what_could_not_be() -> None:
    notes: list[str] = []
    _played(GpuQueue(), [Played(name, notes, can=name != "b") for name in "abc"])
    assert notes == ["begin a", "begin b", "end a", "begin b", "end b", "begin c", "end c"]


def test_what_could_not_be_begun_ahead_lets_later_candidates_go_first() -> None:
    queue, notes = GpuQueue(), list[str]()
    gate, submitted = threading.Event(), Future[str]()
    queue.submit(gate.wait)
    first = Played("first", notes)

    def begin_and_submit() -> str:
        candidate = Played("candidate", notes)
        queue.submit_into(submitted, candidate.work, candidate.ahead)
        return first.work()

    queue.submit_idle(begin_and_submit, first.ahead)
    late = Played("late", notes, can=False)
    idle = queue.submit_idle(late.work, late.ahead)
    gate.set()
    assert (submitted.result(10), idle.result(10)) == ("candidate", "late")
    queue.close()
    assert [note for note in notes if note.startswith("end")] == ["end first", "end candidate", "end late"]


def test_what_had_its_turn_but_could_not_be_begun_is_done_before_the_end() -> None:
    """Nobody can cancel it any more, and it needs the GPU's worker."""
    queue, notes, is_free, is_begun = GpuQueue(), list[str](), threading.Event(), threading.Event()

    def wait_and_end() -> str:
        is_begun.set()
        is_free.wait(10)
        return first.work()

    first, refused = Played("first", notes), Played("refused", notes, can=False)
    gate = threading.Event()
    queue.submit(gate.wait)
    idle = [queue.submit_idle(wait_and_end, first.ahead), queue.submit_idle(refused.work, refused.ahead)]
    gate.set()
    assert is_begun.wait(10)
    queue.drop_idle()
    threading.Timer(0.1, is_free.set).start()
    queue.close(lambda: notes.append("last"))
    assert [future.result(0) for future in idle] == ["first", "refused"] and notes[-1] == "last"


def test_no_third_is_sent_while_the_first_is_being_committed() -> None:
    """Who dies then loses at most two measurements that came in, and what the GPU is on."""
    queue, notes, may_commit = GpuQueue(), list[str](), threading.Event()
    works = [Played(name, notes) for name in "abcd"]
    gate, futures = threading.Event(), list[Future[str]]()
    queue.submit(gate.wait)
    for work in works:
        futures.append(Future())
        futures[-1].add_done_callback(lambda _: may_commit.wait(10))
        queue.submit_into(futures[-1], work.work, work.ahead)
    gate.set()
    while "end b" not in notes:
        time.sleep(0.01)
    time.sleep(0.1)
    assert notes == ["begin a", "begin b", "end a", "begin c", "end b"] and not futures[1].done()
    may_commit.set()
    futures[-1].result(10)
    queue.close()
    assert notes[5:] == ["begin d", "end c", "end d"]
