"""The order of sums: what a config says of it, and the reference in NumPy."""

from __future__ import annotations

import ctypes
import ctypes.util
import functools
import sys
from itertools import accumulate
from pathlib import Path

import numpy as np
import pytest

import autotune
from autotune.facts.gemm import Gemm
from autotune.files.errors import UsageError
from autotune.kernel.config import Config
from autotune.kernel.summation_order import (
    CHAIN,
    SummationOrder,
    fma,
    order_of,
)

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
from sum_lengths import lengths_of

GEMM = Gemm(300, 200, 4096)


@functools.cache
def _fmaf() -> ctypes._FuncPointer:
    fmaf = ctypes.CDLL(ctypes.util.find_library("m")).fmaf
    fmaf.restype, fmaf.argtypes = ctypes.c_float, [ctypes.c_float] * 3
    return fmaf


def _near_ties(random: np.random.Generator, num: int) -> tuple[np.ndarray, ...]:
    """Sums halfway between two floats but for a trifle that float64 rounds away."""
    x = np.float32(1) + random.integers(1, 2**11, num).astype(np.float32) * np.float32(2**-11)
    y = np.ldexp(random.choice([-1, 1], num), random.integers(-80, -40, num)).astype(np.float32)
    s = np.ldexp(1 + random.integers(0, 2**23, num) / 2**23, random.integers(-30, 30, num))
    return x, y, s.astype(np.float32)


@pytest.mark.parametrize("kind", ["any bits", "normal", "far apart"])
def test_fma_is_that_of_the_c_library(kind: str) -> None:
    random, num = np.random.default_rng(47), 20_000
    if kind == "any bits":
        x, y, s = random.integers(0, 2**32, (3, num), dtype=np.uint32).view(np.float32)
    elif kind == "normal":
        x, y, s = random.standard_normal((3, num), dtype=np.float32)
    else:
        x, y, s = _near_ties(random, num)
    expected = np.array([_fmaf()(*map(float, one)) for one in zip(x, y, s, strict=True)], np.float32)
    is_same = fma(x, y, s).view(np.uint32) == expected.view(np.uint32)
    assert np.all(is_same | np.isnan(expected))


def test_fma_rounds_once_where_float64_rounds_twice() -> None:
    """Products are a trifle more than 2^-24, and 1 + 2^-24 is halfway from 1 to the next float."""
    x = np.arange(2**23, 2**23 + 2**14)
    y = 2**46 // x + 1
    is_near = x * y - 2**46 < 2**17
    x, y = (x[is_near] / 2**23).astype(np.float32), (y[is_near] / 2**47).astype(np.float32)
    assert len(x) > 50 and np.all((x.astype(np.float64) * y + 1).astype(np.float32) == 1)
    assert np.all(fma(x, y, np.ones_like(x)) == np.float32(1 + 2**-23))


@pytest.mark.parametrize(
    ("text", "k", "lengths"),
    [
        ("chain", 1000, (1000,)),
        ("chain", 0, ()),
        ("chunks:256", 256, (256,)),
        ("chunks:256", 257, (1, 256)),
        ("chunks:256", 1000, (232, 256, 256, 256)),
    ],
)
def test_chunks_are_counted_from_the_end_of_k(text: str, k: int, lengths: tuple[int, ...]) -> None:
    order = SummationOrder.parse(text)
    assert (order.lengths(k), str(order)) == (lengths, text)


@pytest.mark.parametrize("text", ["chunks", "chunks:0", "chunks:-1", "chain:5", "", "Chain"])
def test_no_order_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="write chain, or chunks:512"):
        SummationOrder.parse(text)


@pytest.mark.parametrize(
    ("changes", "order"),
    [
        ({}, "chain"),
        ({"flush_k": 512, "bm": 128}, "chunks:512"),
        ({"slice_k": 2}, "None"),
        ({"wm": 8, "wn": 8}, "None"),  # lanes share out k
        ({"reduction": "two_pass", "split_k": 2}, "None"),
        ({"flush_k": 256, "reduction": "last_wave", "split_k": 2}, "None"),
    ],
)
def test_order_follows_from_the_config(changes: dict[str, int | str], order: str) -> None:
    assert str(order_of(Config.from_dict(changes))) == order


@pytest.mark.parametrize("reduction", ["two_pass", "last_block", "cluster"])
def test_splits_that_are_chunks_have_their_order_on_such_a_shape(reduction: str) -> None:
    split = Config(bk=16, reduction=reduction, split_k=8)
    assert lengths_of(split, GEMM) == SummationOrder(512).lengths(GEMM.k)
    assert lengths_of(split, Gemm(300, 200, 4100)) != SummationOrder(512).lengths(4100)


def test_groups_of_two_pass_and_chunks_of_splits_have_no_order() -> None:
    assert lengths_of(Config(reduction="two_pass", split_k=64), Gemm(16, 16, 65536)) is None
    assert lengths_of(Config(flush_k=256, reduction="last_block", split_k=2), GEMM) is None
    assert lengths_of(Config(flush_k=1024), GEMM) == SummationOrder(1024).lengths(GEMM.k)


def test_reference_is_a_chain_or_chains_of_chunks() -> None:
    random = np.random.default_rng(1)
    a, b = random.standard_normal((2, 3, 600), np.float32), random.standard_normal((600, 4), np.float32)

    def chain(i: int, j: int, first: int, end: int) -> float:
        *_, last = accumulate(
            range(first, end), lambda s, p: _fmaf()(float(a[0, i, p]), float(b[p, j]), s), initial=0.0
        )
        return np.float32(last)

    assert autotune.reference(a, b)[0, 2, 3] == chain(2, 3, 0, 600)
    ends = [(0, 88), (88, 344), (344, 600)]
    c0, c1, c2 = (chain(1, 0, *end) for end in ends)
    assert autotune.reference(a, b, order="chunks:256")[0, 1, 0] == (c0 + c1) + c2
    assert np.array_equal(autotune.reference(a, b)[1], autotune.reference(a[1], b))
    assert autotune.reference(a[..., :0], b[:0]).tolist() == np.zeros((2, 3, 4)).tolist()
    assert str(CHAIN) == "chain"


def test_reference_refuses_what_is_no_product() -> None:
    with pytest.raises(UsageError, match="pass"):
        autotune.reference(np.ones((2, 3)), np.ones((4, 2)))
