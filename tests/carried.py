"""What the matrices that ship tell of a GPU model, once per process: to carry their times over to it, and
to learn from them, takes a second. And what an export chooses by them, which takes ten, once per test run."""

from __future__ import annotations

import hashlib
import os
import pickle
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import cache
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import kept

from autotune import target_finder as targets
from autotune.export import exporter, portfolio
from autotune.export.portfolio import Costs, TimedCandidates, TimedKernel
from autotune.facts.device import DeviceLimits, known_limits
from autotune.facts.gemm import Gemm
from autotune.kernel.config import Config
from autotune.recording.matrix import TimeMatrix
from autotune.shipped import starting_points


@contextmanager
def once() -> Iterator[None]:
    """Meanwhile matrices that ship are read once, and what was made of them for a GPU is remembered."""
    shipped = cache(targets.matrices)
    carry = portfolio._carried

    @cache
    def carried_here(layout: str, limits: DeviceLimits) -> tuple[TimedKernel, ...]:
        return tuple(carry(layout, shipped(), limits, None))

    @cache
    def known_here(layout: str, limits: DeviceLimits) -> TimedCandidates:
        return TimedCandidates.of(layout, carried_here(layout, limits), limits)

    @cache
    def costs_here(layout: str, limits: DeviceLimits) -> Costs:
        return Costs(known_here(layout, limits))

    def carried(
        layout: str, matrices: Sequence[TimeMatrix], limits: DeviceLimits, only: Collection[Config] | None
    ) -> list[TimedKernel]:
        if not _are_the_same(matrices, shipped()):
            return carry(layout, matrices, limits, only)
        return [one for one in carried_here(layout, limits) if only is None or one.config in only]

    def known(layout: str, found: Sequence[TimedKernel], limits: DeviceLimits) -> TimedCandidates:
        are_shipped = _are_the_same(found, carried_here(layout, limits))
        return known_here(layout, limits) if are_shipped else TimedCandidates.of(layout, found, limits)

    def costs(its: TimedCandidates) -> Costs:
        are_shipped = _are_the_same(its.found, carried_here(its.layout, its.limits))
        return costs_here(its.layout, its.limits) if are_shipped else Costs(its)

    with (
        patch.object(targets, "matrices", lambda: [*shipped()]),
        patch.object(portfolio, "_carried", carried),
        patch.object(starting_points, "TimedCandidates", SimpleNamespace(of=known)),
        patch.object(starting_points, "Costs", costs),
        patch.object(exporter, "portfolio", _by_what_is_given(exporter.portfolio)),
        patch.object(exporter, "held_out", _by_what_is_given(exporter.held_out)),
    ):
        yield


def _by_what_is_given(function: Callable[..., Any]) -> Callable[..., Any]:
    """Made by the first process of a test run that needs it."""

    def made(*given: Any) -> Any:
        if kept.RUN not in os.environ:
            return function(*given)
        key = hashlib.sha256(pickle.dumps(given)).hexdigest()
        return kept.once(f"{function.__qualname__}-{key}", lambda: function(*given))

    return made


def _are_the_same(some: Sequence[object], others: Sequence[object]) -> bool:
    return [*map(id, some)] == [*map(id, others)]


def learn(gpu: str) -> None:
    """As long as this process lives it remembers what a search on this GPU begins with, and so do processes
    that are forked from it."""
    _remembered.enter_context(once())
    starting_points.StartingPoints(targets.matrices(), known_limits(gpu))(Gemm(512, 512, 512))


_remembered = ExitStack()
