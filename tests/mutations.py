"""Damages data at random, as a careless hand or a hostile one would: keys, values, whole branches.

AUTOTUNE_FUZZ=50000 has each fuzzer make so many mutations, AUTOTUNE_FUZZ_SEED=7 others: see `make fuzz`.
"""

from __future__ import annotations

import copy
import os
import random
from typing import Any

NUM = int(os.environ.get("AUTOTUNE_FUZZ", "0"))  # 0: each its own number
SEED = int(os.environ.get("AUTOTUNE_FUZZ_SEED", "0"))

NASTY: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 2, 7, 255, 256, 2**31 - 1, 2**31, 2**53 + 1, 2**63, 10**400, 0.0, 0.5, -0.5,
    1e-320, 1e-9, 1e18, 1e300, float("inf"), float("-inf"), float("nan"), "", "0", "x", "\ud800", "a\0b",
    "1" * 5000, "none", "4096", "0x0x0", "NN", [], [[]], [0], {}, {"a": 1}, [None] * 3,
)  # fmt: skip


def mutated(data: Any, rng: random.Random) -> Any:
    """A copy with one to three faults in it."""
    corrupted = copy.deepcopy(data)
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        corrupted = _fault(corrupted, rng)
    return corrupted


def _fault(data: Any, rng: random.Random) -> Any:
    """Walks down to a random place, and damages what is there."""
    if not isinstance(data, dict | list) or not data or rng.random() < 0.12:
        return _other(data, rng)
    key: Any = rng.choice(list(data)) if isinstance(data, dict) else rng.randrange(len(data))
    if rng.random() < 0.6:
        data[key] = _fault(data[key], rng)
    else:
        rng.choice((_drop, _rename, _swap, _repeat))(data, key, rng)
    return data


def _other(value: Any, rng: random.Random) -> Any:
    """Something near the value, or something else altogether."""
    if isinstance(value, int | float) and rng.random() < 0.5:
        return rng.choice((value + 1, value - 1, -value, value * 2, value * 10**6, value // 3))
    if isinstance(value, str) and value and rng.random() < 0.4:
        at = rng.randrange(len(value))
        return value[:at] + rng.choice(("", "0", "f", ":", "\n", value)) + value[at + 1 :]
    return copy.deepcopy(rng.choice(NASTY))


def _drop(data: Any, key: Any, rng: random.Random) -> None:
    del data[key]


def _rename(data: Any, key: Any, rng: random.Random) -> None:
    if isinstance(data, dict):
        data[rng.choice((f"{key}s", key[:-1], "", "x"))] = data.pop(key)
    else:
        data.insert(key, copy.deepcopy(rng.choice(NASTY)))


def _swap(data: Any, key: Any, rng: random.Random) -> None:
    other = rng.choice(list(data)) if isinstance(data, dict) else rng.randrange(len(data))
    data[key], data[other] = data[other], data[key]


def _repeat(data: Any, key: Any, rng: random.Random) -> None:
    if isinstance(data, dict):
        data[rng.choice(list(data))] = copy.deepcopy(data[key])
    else:
        data.append(copy.deepcopy(data[key]))
