"""The time model's errors for launches, learned from those that were timed.

    log(measured / modelled) = level of the shape + weights of the kernel . terms of the launch

The terms are numbers that say how a launch fills the GPU and what its modelled time consists of, each about
as large as its deviation over all kernels, and products of pairs of the first of them: what queues, waves and
splits cost together is no sum. The level is shared by all kernels of a layout, so it decides nothing among
them, only against cuBLAS: a Gaussian process over shapes (residual.py).

A kernel was timed on some hundred launches and has as many weights as terms. So they are drawn to what
kernels of its tile, threads and way of adding up have, and these to none: ridge regression in two levels (C.
Rasmussen, C. Williams, Gaussian Processes for Machine Learning (2006), 2.7). It is fitted in turns with
the shapes' levels.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ..facts.fitted import number, numbers
from ..kernel.launch import LaunchSpec
from . import residual
from .launches import Whole
from .model_figures import NUM_TERMS, PAIRED, TERM_CENTRES, TERM_MOST, TERM_SCALES, Floats
from .residual import Residuals
from .time_model import Speeds, Work, parts_us

# Samples that weigh as much as what weights are drawn to: those of like kernels; none, of all kernels; and
# none, of how they depend on each trait of kernels
_DRAW_TO_LIKE, _DRAW_TO_NONE, _DRAW_OF_TRAIT = numbers("DRAW_TO_LIKE DRAW_TO_NONE DRAW_OF_TRAIT")
_MOST_LOG = number("MOST_LOG")  # by which a single launch counts
_SHAPE_DRAW = number("SHAPE_DRAW")  # samples that weigh as much as that a shape's level is 0
_NUM_TURNS = 6
_FIRST, _SECOND = np.triu_indices(PAIRED)


class LaunchErrors(NamedTuple):
    """`weights` (kernels, NUM_TERMS), zeros for a kernel of which nothing was learned; `level`: one row."""

    weights: Floats
    level: Residuals


def none(num_kernels: int) -> LaunchErrors:
    """For kernels without learned errors."""
    return LaunchErrors(np.zeros((num_kernels, NUM_TERMS)), residual.none(1))


def terms(speeds: Speeds, todo: Work, level: Floats | float = 0.0, kind: type = float) -> Floats:
    """(NUM_TERMS, launches): 1, the logarithm of the shape's level, the numbers, and products of pairs; of
    this type."""
    parts = parts_us(speeds, todo)
    of_time = np.array([parts.memory_us, todo.overhead_us, speeds.fixed_us, todo.l2_us, parts.round_us])
    found: Floats = np.empty((NUM_TERMS, of_time.shape[1]), kind)
    found[0], found[1] = 1, level
    numbers = found[2 : 2 + len(TERM_CENTRES)]
    numbers[: len(todo.form)] = todo.form
    np.divide(of_time, parts.time_us, out=numbers[len(todo.form) :], casting="same_kind")
    numbers -= np.array(TERM_CENTRES)[:, None]
    numbers /= np.array(TERM_SCALES)[:, None]
    np.clip(numbers, -TERM_MOST, TERM_MOST, out=numbers)
    for first, second, product in zip(_FIRST, _SECOND, found[2 + len(numbers) :], strict=True):
        np.multiply(numbers[first], numbers[second], out=product)
    return found


def traits(specs: Sequence[LaunchSpec], blocks_per_sm: Sequence[int]) -> Floats:
    """(kernels, traits) of kernels by which their weights are alike: 1, and others of mean 0 and deviation
    1."""
    rows = [
        (
            s.bm, s.bn, s.bk, s.threads, s.smem_bytes + 1, s.vec_a, s.vec_b, resident,
            *(2 ** (s.reduction == name) for name in ("none", "two_pass", "last_block", "last_wave")),
            2 ** (s.packs_a + s.packs_b),
        )
        for s, resident in zip(specs, blocks_per_sm, strict=True)
    ]  # fmt: skip
    logs = np.log2(np.array(rows, float))
    logs -= logs.mean(axis=0)
    logs /= np.maximum(logs.std(axis=0), 1e-6)
    return np.concatenate([np.ones((len(logs), 1)), logs], axis=1)


class TimedLaunches(NamedTuple):
    """Launches that were timed, those of the first kernel before those of the next; arrays."""

    begin: Whole  # the first of each kernel
    place: Whole  # the shape of each
    terms: Floats  # (NUM_TERMS, launches), for a level of 0
    logs: Floats  # of measured over modelled times
    weights: Floats


def learn(known: TimedLaunches, traits: Floats, places: Floats) -> tuple[LaunchErrors, Floats]:
    """From at least one launch of each kernel, on shapes at these places. Also the logarithms that it leaves
    unexplained."""
    num, rows = len(places), known.terms.T  # that of the level is 0, and so are its weights
    ends = np.append(known.begin[1:], len(rows))
    of_kernel = [slice(a, b) for a, b in zip(known.begin, ends, strict=True)]
    inverses = np.empty((len(traits), NUM_TERMS, NUM_TERMS))
    for inverse, own in zip(inverses, of_kernel, strict=True):
        squares = (rows[own].T * known.weights[own]) @ rows[own] + _DRAW_TO_LIKE * np.eye(NUM_TERMS)
        inverse[:] = _DRAW_TO_LIKE * np.linalg.inv(squares)
    to_like = _to_like(inverses, traits)
    of_shape = np.bincount(known.place, known.weights, num)
    found = np.zeros((len(traits), NUM_TERMS))

    def unexplained() -> Floats:
        explained = [rows[own] @ one for own, one in zip(of_kernel, found, strict=True)]
        return np.asarray(known.logs - np.concatenate(explained), float)

    for _ in range(_NUM_TURNS):
        level = np.bincount(known.place, known.weights * unexplained(), num) / (of_shape + _SHAPE_DRAW)
        logs = known.weights * np.clip(known.logs - level[known.place], -_MOST_LOG, _MOST_LOG)
        sums = np.stack([logs[own] @ rows[own] for own in of_kernel]) / _DRAW_TO_LIKE
        own_weights = np.einsum("cij,cj->ci", inverses, sums)
        drawn = (to_like @ (traits.T @ own_weights * _DRAW_TO_LIKE).ravel()).reshape(traits.shape[1], -1)
        found = own_weights + np.einsum("cij,cj->ci", inverses, traits @ drawn)
    left = unexplained()
    level = np.bincount(known.place, known.weights * left, num) / np.maximum(of_shape, 1e-12)
    levels = residual.learn(places, level[None], 1 / np.maximum(of_shape, 1e-12)[None])
    found[:, 1] = 1
    expected = np.log([residual.factors(levels, one)[0] for one in places])
    return LaunchErrors(found, levels), left - expected[known.place]


def _to_like(inverses: Floats, traits: Floats) -> Floats:
    """What gives the weights of traits, of which there are few, from sums over kernels: the kernels' own
    deviations are eliminated."""
    num, size = traits.shape[1], inverses.shape[1]
    pairs = (traits[:, :, None] * traits[:, None, :]).reshape(len(traits), -1)
    # Of a kernel's samples against what it is drawn to: 1 less its inverse
    draws = np.outer(pairs.sum(axis=0), np.eye(size)) - pairs.T @ inverses.reshape(len(traits), -1)
    squares = _DRAW_TO_LIKE * draws.reshape(num, num, size, size).transpose(0, 2, 1, 3)
    squares = squares.reshape(num * size, num * size)
    drawn = np.full(num, _DRAW_OF_TRAIT)
    drawn[0] = _DRAW_TO_NONE
    squares[np.diag_indices(num * size)] += np.repeat(drawn, size)
    found: Floats = np.asarray(np.linalg.inv(squares), float)
    return found
