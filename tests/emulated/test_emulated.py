"""The CUDA template executed on the host: every value of every parameter, every layout, odd problems."""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path

import pytest
from covering_instances import (
    GROUPS,
    PAIRED,
    VALUES,
    VARIED,
    VARIED_GROUPS,
    Instance,
    all_instances,
    covering_variants,
    instance,
    with_each_value,
)
from emulator import SANITIZED, Builder, LaunchProblem, run
from problems import Case, problem, problems
from product_check import check, check_order

from autotune.kernel import resources, template
from autotune.kernel.config import PACKED_ORDERS
from autotune.kernel.launch import NARROW_LD, Epilogue

INSTANCES = all_instances()
NUMBERS = [  # every value in `make test`, every pair in `make stress`
    pytest.param(number, id=tested.id, marks=() if number in with_each_value() else pytest.mark.stress)
    for number, tested in enumerate(INSTANCES)
]
Build = Callable[[Instance], "Future[Path]"]


@pytest.fixture(scope="session")
def build(builder: Builder, request: pytest.FixtureRequest) -> Build:
    """Compiles an instance; those that the selected tests need are begun at once. Processes that share the
    work begin at different ends. Every value is seen under the sanitizers, which take three times as long:
    of every pair compute-sanitizer sees what the emulator does not."""
    pairs = {instance for number, instance in enumerate(INSTANCES) if number not in with_each_value()}

    def submit(instance: Instance) -> Future[Path]:
        macros = template.macros(instance.config, instance.variant)
        watch = () if instance in pairs else SANITIZED
        return builder.submit(template.kernel_dir() / template.MAIN_FILE, macros, kernel_watch=watch)

    items = request.session.items
    is_odd = os.environ.get("PYTEST_XDIST_WORKER", "gw0")[-1] in "13579"
    for item in items[::-1] if is_odd else items:
        is_autotune = getattr(item, "module", None) is sys.modules[__name__] and hasattr(item, "callspec")
        number = item.callspec.params.get("number") if is_autotune else None
        if number is not None:
            submit(INSTANCES[number])
    return submit


def run_and_check(build: Build, instance: Instance, tasks: list) -> None:
    for task, result in zip(tasks, run(build(instance).result(), tasks), strict=True):
        check(task, result, instance.variant.trans_a, instance.variant.trans_b)
        check_order(task, result, instance)


@pytest.mark.parametrize("number", NUMBERS)
def test_instance_is_right_on_every_case(build: Build, number: int) -> None:
    run_and_check(build, INSTANCES[number], problems(INSTANCES[number], number))


@pytest.mark.every(2)
@pytest.mark.parametrize("sides", [(4, 4), (4, 1), (1, 4), (1, 1)], ids=str)
def test_packed_orders_give_the_bits_of_any_other(build: Build, sides: tuple[int, int]) -> None:
    """Neighbours in a row, in a column where the width is odd, and none."""
    tm, tn = sides
    tile = {"tm": tm, "tn": tn, "wm": 8 * tm, "wn": 4 * tn, "bm": 16 * tm, "bn": 8 * tn, "vec_b": 1}
    case = Case("odd", 37, 19, 21, 1.5, 0.5)
    found = []
    for order in ("row", *PACKED_ORDERS):
        ordered = instance("NT", **tile, order=order, vec_c=1)
        (result,) = run(build(ordered).result(), [problem(ordered, case, split_k=1, seed=5)])
        found.append(result.c.tobytes())
    assert len(set(found)) == 1


def test_instances_cover_every_value() -> None:
    for name, values in (VALUES | VARIED).items():
        missing = set(values) - {i.values()[name] for i in INSTANCES}
        assert not missing, f"no instance has {name} in {missing}"


def test_problems_cover_every_split() -> None:
    for reduction in ("two_pass", "last_block"):
        splits = {
            p.split_k
            for number, i in enumerate(INSTANCES)
            if i.config.reduction == reduction
            for p in problems(i, number)
        }
        assert splits == set(VALUES["split_k"][1:])


def test_instances_cover_pairs_and_groups() -> None:
    everything = VALUES | VARIED
    groups = {*itertools.combinations(PAIRED, 2), *GROUPS, *VARIED_GROUPS}
    for names in groups:
        seen = {tuple(i.values()[name] for name in names) for i in INSTANCES}
        wanted = set(itertools.product(*(everything[name] for name in names)))
        if names == ("slice_k", "reduction"):  # slices share out the k of chunks
            wanted -= {(slices, "chunks") for slices in everything["slice_k"] if slices != 1}
        missing = wanted - seen
        assert not missing, f"no instance has {names} = {missing}"


def test_instances_cover_staged_rows_of_every_kind() -> None:
    """Tiles of a width that is no multiple of a warp's, in every way to C."""
    found = {(i.config.bn, i.values()["staging"]) for i in covering_variants()}
    assert found == set(itertools.product((24, 40, 48, 56, 80, 112), VARIED["staging"]))


def _batched(reduction: str = "") -> list[LaunchProblem]:
    return [
        p
        for number, i in enumerate(INSTANCES)
        if i.variant.is_batched and reduction in ("", i.config.reduction)
        for p in problems(i, number)
    ]


def test_batches_lie_in_every_way() -> None:
    """Packed and with gaps, shared and interleaved, of one product and of several; the bias, too."""
    batches = _batched()
    assert {p.products for p in batches} >= {1, 2, 3, 7}
    for name in ("a", "b", "c", "bias", "kept"):
        found = set()
        for p in batches:
            stored = getattr(p, name)
            count, rows, columns = stored.matrices.shape
            if count > 1 and rows and columns:
                end = (rows - 1) * stored.ld + columns
                found.add("gaps" if stored.stride > end else "packed" if stored.stride == end else "in turns")
            elif count == 1 and p.products > 1:
                assert stored.stride == 0
                found.add("shared")
        assert found >= {"gaps"} | ({"packed", "in turns"} if name in "abc" else set())
        assert ("shared" in found) == (name in ("a", "b", "bias"))
    packed = {(pack.is_a, pack.products, pack.stride > 0) for p in batches for pack in p.packs}
    assert packed >= set(itertools.product((True, False), (2, 3), (True,)))
    assert packed >= {(True, 1, False), (False, 1, False)}  # one copy of what all share


def test_last_waves_of_batches_begin_and_end_anywhere() -> None:
    """Within one product, and in the middle of one with others behind it."""
    found = set()
    for number, i in enumerate(INSTANCES):
        if i.variant.is_batched and i.config.reduction == "last_wave":
            for p in problems(i, number):
                tiles = -(-p.m // i.config.bm) * -(-p.n // i.config.bn)
                whole = tiles * p.products - p.counter_bytes // 4
                found.add((whole > 0, whole // tiles == p.products - 1, whole % tiles > 0))
    assert found >= {(False, False, False), (True, False, False), (True, True, True)}


def _rows_of_their_own(tested: Instance) -> set[tuple[str, str, bool, bool]]:
    """Operands whose copies stay in one row per thread (IS_ONE_ROW): which, its path, whether it is packed,
    and whether a thread has several pieces."""
    c, v, found = tested.config, tested.variant, set()
    operands = (
        ("a", not v.trans_a, c.bm, c.vec_a, c.copy_a, c.pack_a),
        ("b", v.trans_b, c.bn, c.vec_b, c.copy_b, c.pack_b),
    )
    for name, is_k_major, width, vec, path, is_packed in operands:
        lanes, vectors = resources.threads(c) // c.bk, width // vec
        is_plain = bool(is_packed) or (not is_k_major and c.edges == "exact")
        if is_plain and lanes >= 8 and resources.threads(c) % c.bk == vectors % lanes == 0:
            found.add((name, path, bool(is_packed), vectors > lanes))
    return found


def test_instances_cover_copies_in_one_row() -> None:
    seen = set().union(*(_rows_of_their_own(i) for i in INSTANCES))
    for name, path in itertools.product("ab", ("register", "async")):
        assert (name, path, True) in {copy[:3] for copy in seen}
    assert {copy[2:] for copy in seen} >= {(True, False), (True, True), (False, True)}


SMALL = {"bm": 16, "bn": 32, "wm": 16, "wn": 32, "tm": 4, "tn": 4, "bk": 8, "stages": 2}


@pytest.mark.every(3)
@pytest.mark.parametrize("is_wide", [False, True], ids=["narrow", "wide"])
@pytest.mark.parametrize(
    ("layout", "reduction"), [("NN", "none"), ("NT", "two_pass"), ("TN", "last_block"), ("TT", "none")]
)
def test_matrices_beyond_2_31_elements(build: Build, layout: str, reduction: str, is_wide: bool) -> None:
    """Leading dimensions as large as the kernel may be given; only pages that are touched exist."""
    ld = 2**31 + 4 if is_wide else NARROW_LD - 4
    splits = {"reduction": reduction, "split_k": 1 if reduction == "none" else 2}
    large = instance(layout, is_wide=is_wide, **SMALL | splits, vec_b=1)
    case = Case("far apart", 9, 12, 10, 1.0, 0.5)
    run_and_check(build, large, [problem(large, case, split_k=2, seed=7, lds=(ld, ld - 4, ld))])


def test_products_beyond_2_31_elements(build: Build) -> None:
    """Strides are 64 bits wide in every kernel, whatever its leading dimensions."""
    epilogue = Epilogue("rows", "relu", keeps=True)
    large = instance("NN", **SMALL, vec_b=1, is_batched=True, epilogue=epilogue)
    case = Case("far apart", 9, 12, 10, 1.0, 0.5, products=3)
    run_and_check(build, large, [problem(large, case, split_k=1, seed=7, stride=2**31 + 4)])
