"""What each GPU model can run is in its feasible set, and what it lacks the hardware for is not.

There are no such GPUs to try it on: a rule that hides a value from one of them would be seen by nobody.
"""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest
from space_cases import find_config

from autotune.facts.device import KNOWN, DeviceLimits
from autotune.facts.gemm import Gemm
from autotune.kernel.config import PACKED_ORDERS, PARAMETER, Config, Value
from autotune.kernel.feasible_set import feasible_set
from autotune.kernel.rules import LEGAL, broken_rules

DEVICES = ("quadro-rtx-5000", "rtx-3090", "rtx-4090", "h200")
# Quick to enumerate; together they hold every kind of problem that a rule of the space knows.
SHAPES = (
    "1x64x32768",
    "3x5x2048",
    "16x130x4096:TN",
    "130x8x4096:TN",
    "4096x8x512",
    "4096x1x2048",
    "1000x2x2048",
    "300x3000x3000:TT",
    "2049x2050x64:TT",
)
# With these, every tile in between, which only a C of its extent has: on one GPU model, since none differs.
SHAPES_IN_BETWEEN = ("24x112x1024", "40x80x1024:TN", "56x56x1024", "80x40x1024", "112x24x1024:TT")
IN_BETWEEN: dict[str, set[Value]] = {
    "bm": {24, 40, 56, 80, 112}, "bn": {24, 40, 56, 80, 112}, "wm": {24}, "wn": {24},
}  # fmt: skip
# Legal, but known not to pay anywhere (rules of kind `worth`): searched with --all only.
NOT_WORTH: dict[str, set[Value]] = {
    "bk": {4}, "stages": {5, 8}, "flush_k": {512, 2048}, "pad": {8}, "order": {"row"}
}  # fmt: skip

IN_AN_ORDER: dict[str, set[Value]] = {"reduction": {"chunks"}}  # proposed where an order of sums is asked for


def _lacking(limits: DeviceLimits) -> dict[str, set[Value]]:
    """Values that need hardware which this GPU is without, and those that pay only with it."""
    missing: dict[str, set[Value]] = {}
    if not limits.has_async_copy:
        missing |= {"copy_a": {"async"}, "copy_b": {"async"}, "stages": {3, 4, 6}}
    if not limits.has_clusters:
        missing |= {"reduction": {"cluster"}}
    if not limits.has_packed_fma:
        missing |= {"order": set(PACKED_ORDERS)}
    return missing


def _searched(limits: DeviceLimits, shapes: tuple[str, ...] = SHAPES) -> dict[str, set[Value]]:
    """The values of each parameter that stand in the feasible set of some shape."""
    found: dict[str, set[Value]] = {name: set() for name in PARAMETER}
    for shape in shapes:
        for factor in feasible_set(limits, Gemm.parse(shape)).factors:
            for name, values, codes in zip(factor.names, factor.values, factor.codes.T, strict=True):
                found[name] |= {values[code] for code in np.unique(codes)}
    return found


@pytest.mark.every(2)
@pytest.mark.parametrize("device", DEVICES)
def test_every_value_that_pays_is_searched_on_every_gpu_that_has_it(device: str) -> None:
    missing = _lacking(KNOWN[device])
    for name, found in _searched(KNOWN[device]).items():
        held_out = NOT_WORTH.get(name, set()) | missing.get(name, set()) | IN_AN_ORDER.get(name, set())
        assert found | IN_BETWEEN.get(name, set()) == set(PARAMETER[name].values) - held_out, name


def test_tiles_in_between_are_searched_where_they_fit() -> None:
    found = _searched(KNOWN["h200"], SHAPES_IN_BETWEEN)
    for name, values in IN_BETWEEN.items():
        assert values <= found[name], name


@pytest.mark.parametrize("device", DEVICES)
def test_what_does_not_pay_is_legal_all_the_same(device: str) -> None:
    limits, gemm, rng = KNOWN[device], Gemm.parse("4096:TN"), random.Random(device)
    staged: set[Value] = set() if limits.has_async_copy else {3, 4, 6}
    for name, values in (NOT_WORTH | {"stages": NOT_WORTH["stages"] | staged}).items():
        for value in values:
            assert find_config(rng, limits, gemm, LEGAL, {name: value}), (name, value)


@pytest.mark.parametrize("device", DEVICES)
def test_what_the_hardware_lacks_is_in_no_set(device: str) -> None:
    limits, gemm = KNOWN[device], Gemm(512, 512, 512)
    plain = replace(Config(), copy_a="register", copy_b="register", stages=2, min_blocks=1)
    assert broken_rules(plain, limits, gemm) == ()
    for change, rule, is_there in (
        ({"copy_a": "async"}, "async-device", limits.has_async_copy),
        ({"copy_b": "async"}, "async-device", limits.has_async_copy),
        ({"reduction": "cluster", "split_k": 2}, "cluster-device", limits.has_clusters),
        ({"order": PACKED_ORDERS[0]}, "packed-device", limits.has_packed_fma),
    ):
        broken = [r.id for r in broken_rules(replace(plain, **change), limits, gemm)]
        assert broken == ([] if is_there else [rule])
