"""The CUDA template executed on the host: every value of every parameter, every layout, odd problems."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path

import pytest
from check import check
from cover import GROUPS, PAIRED, TYPICAL, VALUES, Instance, covering_instances, instance
from emulator import Builder, run
from problems import Case, problem, problems

from autotune import kernel, resources
from autotune.launch import NARROW_LD

INSTANCES = [*TYPICAL, *covering_instances()]
Build = Callable[[Instance], "Future[Path]"]


@pytest.fixture(scope="session")
def build(builder: Builder, request: pytest.FixtureRequest) -> Build:
    """Compiles an instance; those that the selected tests need are begun at once."""

    def submit(instance: Instance) -> Future[Path]:
        macros = kernel.macros(instance.config, instance.variant)
        return builder.submit(kernel.kernel_dir() / kernel.MAIN_FILE, macros)

    for item in request.session.items:
        number = getattr(item, "callspec", None) and item.callspec.params.get("number")
        if number is not None:
            submit(INSTANCES[number])
    return submit


def run_and_check(build: Build, instance: Instance, tasks: list) -> None:
    for task, result in zip(tasks, run(build(instance).result(), tasks), strict=True):
        check(task, result, instance.variant.trans_a, instance.variant.trans_b)


@pytest.mark.parametrize("number", range(len(INSTANCES)), ids=[i.id for i in INSTANCES])
def test_instance_is_right_on_every_case(build: Build, number: int) -> None:
    run_and_check(build, INSTANCES[number], problems(INSTANCES[number], number))


def test_instances_cover_every_value() -> None:
    for name, values in VALUES.items():
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
    groups = {*itertools.combinations(PAIRED, 2), *GROUPS}
    for names in groups:
        seen = {tuple(i.values()[name] for name in names) for i in INSTANCES}
        missing = set(itertools.product(*(VALUES[name] for name in names))) - seen
        assert not missing, f"no instance has {names} = {missing}"


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
