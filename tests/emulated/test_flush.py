"""Blocked summation, bit by bit: what the kernel adds up, in which blocks, and in which order."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from covering_instances import Instance, instance
from emulator import Builder, LaunchProblem, run
from problems import Case, problem

from autotune.kernel import template

_TILE = {"bm": 8, "bn": 16, "bk": 8, "wm": 8, "wn": 16, "tm": 2, "tn": 2, "flush_k": 256}
INSTANCES = (
    instance("NN", **_TILE, frag_buffers=2, stages=3, vec_b=1),
    instance("NT", **_TILE, frag_buffers=1, stages=2, copy_a="register"),
    instance("TN", **_TILE | {"tm": 1, "tn": 1, "wm": 4, "wn": 8}, stages=1, frag_buffers=1),
    instance("NN", **_TILE | {"bk": 16}, slice_k=2, unroll_k=4, stages=2, frag_buffers=1, bursts=1),
    instance("TT", **_TILE, stages=2, frag_buffers=2, reduction="last_block", split_k=2),
)
# k before, at and after the ends of blocks, a ragged first tile among them
DEPTHS = (8, 255, 256, 257, 264, 511, 512, 520, 773)


def _exact(problem: LaunchProblem, random: np.random.Generator) -> LaunchProblem:
    """The problem with operands of 16 bits: products and one float add up in float64 without rounding, so
    that rounding such a sum to float32 is what a fused multiply-add does."""
    for operand in (problem.a.matrices, problem.b.matrices):
        sign = random.choice([-1.0, 1.0], size=operand.shape)
        operand[...] = sign * (1 + random.integers(0, 2**15, size=operand.shape) / 2**15)
    return problem


def _split_bounds(depth: int, bk: int, splits: int) -> list[tuple[int, int]]:
    """First and last k of each split: whole tiles, the first of all being the ragged one."""
    tiles = -(-depth // bk)
    ends = [0, *(depth - (tiles - t) * bk for t in range(1, tiles + 1))]
    most = -(-tiles // splits)
    return [(ends[min(s * most, tiles)], ends[min((s + 1) * most, tiles)]) for s in range(splits)]


def _chain(a: np.ndarray, b: np.ndarray, steps: list[int]) -> np.ndarray:
    """Products of these k added one after another in float32: (m, k), (k, n) -> (m, n)."""
    total = np.zeros((len(a), b.shape[1]), np.float32)
    for k in steps:
        total = (np.outer(a[:, k], b[k]) + total).astype(np.float32)
    return total


def _slice_sum(
    a: np.ndarray, b: np.ndarray, tested: Instance, first: int, last: int, number: int
) -> np.ndarray:
    """What one slice of k sums: chains of blocks of flush_k, the first block being the short one."""
    c = tested.config
    width, flushed = c.bk // c.slice_k, c.flush_k
    tiles = -(-(last - first) // c.bk)
    starts = [first, *(last - (tiles - t) * c.bk for t in range(1, tiles))]
    block_of = {start: -((tiles - t) * c.bk // -flushed) for t, start in enumerate(starts)}
    total = np.zeros((len(a), b.shape[1]), np.float32)
    for block in sorted(set(block_of.values()), reverse=True):
        steps = []
        for start, end in pairwise([*starts, last]):
            if block_of[start] == block:
                own = range(start + number * width, min(start + (number + 1) * width, end))
                steps += [k for k in own if k < end]
        total = total + _chain(a, b, steps)
    return total


def _blocked(problem: LaunchProblem, tested: Instance) -> np.ndarray:
    """C as blocked summation in float32 makes it: slices, then splits, added in their order."""
    a, b = (stored.matrices[0].astype(np.float64) for stored in (problem.a, problem.b))
    a, b = (a.T if tested.variant.trans_a else a), (b.T if tested.variant.trans_b else b)
    total = None
    for first, last in _split_bounds(problem.k, tested.config.bk, problem.split_k):
        part = _slice_sum(a, b, tested, first, last, 0)
        for number in range(1, tested.config.slice_k):
            part = part + _slice_sum(a, b, tested, first, last, number)
        total = part if total is None else total + part
    assert total is not None
    return total


@pytest.mark.parametrize("tested", INSTANCES, ids=[i.id for i in INSTANCES])
def test_sums_are_blocked_sums(builder: Builder, tested: Instance) -> None:
    random = np.random.default_rng(3)
    tasks = [
        _exact(problem(tested, Case(f"k = {k}", 5, 11, k), split_k=tested.config.split_k, seed=k), random)
        for k in DEPTHS
    ]
    macros = template.macros(tested.config, tested.variant)
    executable = builder.submit(template.kernel_dir() / template.MAIN_FILE, macros).result()
    for task, result in zip(tasks, run(executable, tasks), strict=True):
        assert np.array_equal(result.c[0], _blocked(task, tested)), task.name


def test_blocks_make_long_sums_more_accurate(builder: Builder) -> None:
    errors = {}
    for flush_k in (0, 256):
        tested = instance("NN", **_TILE | {"flush_k": flush_k})
        task = problem(tested, Case("long", 8, 16, 4096), split_k=1, seed=5)
        macros = template.macros(tested.config, tested.variant)
        (result,) = run(builder.submit(template.kernel_dir() / template.MAIN_FILE, macros).result(), [task])
        exact = task.a.matrices[0].astype(np.float64) @ task.b.matrices[0].astype(np.float64)
        errors[flush_k] = np.linalg.norm(result.c[0] - exact) / np.linalg.norm(exact)
    assert errors[256] < 0.5 * errors[0]
