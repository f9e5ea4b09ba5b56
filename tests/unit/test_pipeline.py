"""How many points a search has under way."""

from __future__ import annotations

from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any, cast

import pytest

from autotune.facts.measurement import Measurement, Outcome
from autotune.search.points import Ask
from autotune.search.progress import Ledger
from autotune.search.propose.origins import RANDOM, REUSE
from autotune.search.run.pipeline import Pipeline
from autotune.target import Target

DONE = Measurement(Outcome.OK, time_us=1.0, samples_us=(1.0, 1.0, 1.0))


class Slow:
    """A target that answers when told to."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.waiting: list[Future[Measurement]] = []

    def submit(self, *_: Any) -> Future[Measurement]:
        self.waiting.append(Future())
        return self.waiting[-1]

    def submit_compiled(self, *_: Any) -> Future[Measurement]:
        return self.submit()

    def finish(self, num: int) -> None:
        for _ in range(num):
            self.waiting.pop(0).set_result(DONE)


def _pipeline(capacity: int) -> tuple[Slow, Pipeline, Any]:
    target = Slow(capacity)
    shape = SimpleNamespace(gemm=None, findings=SimpleNamespace(cutoff_us=None), keep=lambda *_: None)
    return target, Pipeline(cast(Target, target), Ledger()), shape


def _submit(pipeline: Pipeline, shape: Any, num: int) -> None:
    for _ in range(num):
        pipeline.submit(shape, Ask(0, RANDOM, {}, ""))


@pytest.mark.parametrize(("capacity", "at_once"), [(1, 1), (4, 1), (6, 1), (10, 2), (22, 4), (42, 8)])
def test_places_are_filled_when_a_fifth_of_them_is_free(capacity: int, at_once: int) -> None:
    target, pipeline, shape = _pipeline(capacity)
    assert pipeline.is_due and pipeline.num_free == capacity
    _submit(pipeline, shape, capacity)
    for num_done in range(1, at_once + 1):
        assert not pipeline.is_due
        target.finish(1)
        assert len(list(pipeline.kept())) == 1
        assert pipeline.num_free == num_done
    assert pipeline.is_due


def test_kernels_that_are_compiled_already_take_no_place() -> None:
    _target, pipeline, shape = _pipeline(10)
    _submit(pipeline, shape, 8)
    for _ in range(5):
        pipeline.submit(shape, Ask(0, REUSE, {}, ""))
    assert (pipeline.num_open, pipeline.num_free, pipeline.is_due) == (13, 2, True)
