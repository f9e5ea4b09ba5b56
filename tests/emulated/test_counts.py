"""The counts of `autotune/tiles`, for which threads run one by one and move nothing, against those of the
emulator, where they meet at barriers and compute C: equal, each.

Thirty instances over all architectures, two of four problems each, in turn. Then counts with a fault in
them, which must be found.
"""

from __future__ import annotations

import functools
import importlib
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest
from counted_instances import counted_instances
from covering_instances import Instance
from emulator import Builder, LaunchProblem, run
from problems import LIMITS, Case, problem
from product_check import check

from autotune.facts.gemm import Gemm
from autotune.kernel import template
from autotune.kernel.config import lanes_k
from autotune.tiles import drawn_accesses
from autotune.tiles.executed import HostLaunch
from autotune.tiles.launch_counts import AccessKey, count
from autotune.tiles.warp_access import AccessCounts

COUNTED = counted_instances()
MOST_FLUSHED = 512  # k between flushes that is quickly emulated twice


def cases(instance: Instance) -> list[Case]:
    """Rows of operands lie side by side, as the model has them: tiles that fit, of long sums where these are
    flushed, tiles that hang over."""
    c = instance.config
    bm, bn, bk = c.bm, c.bn, c.bk * lanes_k(c)
    products = 3 if instance.variant.is_batched else 1
    flushed = 2 * c.flush_k if c.flush_k <= MOST_FLUSHED else 0
    return [
        Case("fits", bm, 2 * bn, flushed + 3 * bk, products=products),
        Case("hangs over", bm + bm // 2 + 1, bn + bn // 2 + 1, 2 * bk + 5, 0.5, -1.0, products=products),
        Case("many tiles", 2 * bm + 3, 2 * bn - 1, bk + 3, products=products),
        Case("small", 1, bn + 1, bk - 1, products=products),
    ]


def tasks_of(instance: Instance) -> list[LaunchProblem]:
    return [
        problem(instance, case, split_k=split, seed=i)
        for i, (case, split) in enumerate(zip(cases(instance), (2, 3, 7, 40), strict=True))
    ]


def emulated(lines: list[str]) -> dict[str, dict[AccessKey, AccessCounts]]:
    """Counts by problem, as counting.cpp writes them."""
    found: dict[str, dict[AccessKey, AccessCounts]] = {}
    for line in lines:
        name, *words = line.split("\t")
        what = "workspace" if words[2] == "the workspace" else words[2]
        key = AccessKey(words[0], words[1], what, words[3], words[4])
        found.setdefault(name, {})[key] = AccessCounts(*map(int, words[5:]))
    return found


def modelled(
    instance: Instance, task: LaunchProblem, count: Callable = count
) -> dict[AccessKey, AccessCounts]:
    v = instance.variant
    gemm = Gemm(task.m, task.n, task.k, v.trans_a, v.trans_b, task.products)
    splits = 1 if instance.config.reduction == "chunks" else task.split_k  # its number follows from k
    config = replace(instance.config, split_k=splits)
    return count(config, gemm, LIMITS, reads_c=task.beta != 0)


@pytest.fixture(scope="session")
def counting(builder: Builder, request: pytest.FixtureRequest) -> dict[int, Future[Path]]:
    """Executables that tell of their loops, of the instances that the selected tests need: all begun at once.
    The sanitizers watch the same instances in test_emulated.py, on more problems."""
    main = template.kernel_dir() / template.MAIN_FILE
    selected = [item for item in request.session.items if item.path == Path(__file__)]
    numbers = {item.callspec.params["number"] for item in selected if "counting" in item.fixturenames}
    return {
        number: builder.submit(
            main,
            template.macros(instance.config, instance.variant) | {"COUNTED": 1},
            flags=("-w",),
            kernel_watch=(),
        )
        for number, (_, instance) in enumerate(COUNTED)
        if number in numbers
    }


@pytest.mark.every(40)
@pytest.mark.parametrize("number", range(len(COUNTED)), ids=[f"{arch}-{i.id}" for arch, i in COUNTED])
def test_counts_are_those_of_the_emulator(
    counting: dict[int, Future[Path]], number: int, tmp_path: Path
) -> None:
    instance, counts = COUNTED[number][1], tmp_path / "counts"
    tasks = tasks_of(instance)[number % 2 :: 2]
    for task in tasks:  # each in a process of its own: to count takes time
        (result,) = run(counting[number].result(), [task], counts)
        check(task, result, instance.variant.trans_a, instance.variant.trans_b)
    found = emulated(counts.read_text().splitlines())
    for task in tasks:
        assert modelled(instance, task) == found[task.name], task.name


def _seen(trace: Path) -> set[tuple[object, ...]]:
    """Accesses of warps: kernel, file, operand, space, kind, warp, vector, address of each lane."""
    found: set[tuple[object, ...]] = set()
    for line in trace.read_text().splitlines():
        words = line.split("\t")
        what = "workspace" if words[2] == "the workspace" else words[2]
        found.add((*words[:2], what, *words[3:5], *map(int, words[5:])))
    return found


@pytest.mark.every(40)
@pytest.mark.parametrize("number", range(len(COUNTED)), ids=[f"{arch}-{i.id}" for arch, i in COUNTED])
def test_lanes_ask_for_what_is_drawn(counting: dict[int, Future[Path]], number: int, tmp_path: Path) -> None:
    """Every instruction that the explorer draws is one that this warp made: its lanes, these addresses."""
    instance = COUNTED[number][1]
    c, v, trace = instance.config, instance.variant, tmp_path / "trace"
    splits = 2 if c.reduction not in ("none", "cluster") else c.split_k
    depth, num_tiles = c.bk * lanes_k(c), 3 if c.reduction == "last_wave" else 2  # which splits one of three
    task = problem(
        instance, Case("drawn", c.bm, num_tiles * c.bn, 2 * depth * splits), split_k=splits, seed=1
    )
    run(counting[number].result(), [task], trace=trace)
    gemm = Gemm(task.m, task.n, task.k, v.trans_a, v.trans_b)
    config = replace(c, split_k=task.split_k)
    seen, drawn = _seen(trace), drawn_accesses.of_kernel(HostLaunch.of(config, gemm, LIMITS))
    for group in drawn:
        for at, label in zip(group["at"], group["labels"], strict=True):
            warp = int(label.split()[1].rstrip(","))
            kind = (group["where"], group["what"], group["space"], group["kind"])
            assert ("sgemm", *kind, warp, group["vec"], *at) in seen, (group["title"], label)
    assert {("C", "store"), ("workspace", "store")} & {(group["what"], group["kind"]) for group in drawn}


# Modules that count, in the order in which they load, and faults: what stands in the text, and what stands
# there then.
MODULES = ("warp_access", "executed", "launch_counts")
FAULTS = (
    ("warp_access", "SECTOR = 8", "SECTOR = 16"),
    ("warp_access", "LINE = 32", "LINE = 16"),
    ("warp_access", "BANKS = 32", "BANKS = 16"),
    ("warp_access", "for apart in (1, 2)", "for apart in (1,)"),
    ("warp_access", "(shared), 2 * lanes)", "(shared), lanes)"),
    ("executed", "most * split", "most * (split + 1)"),
    ("executed", "(at_a % LINE, *left", "(at_a % 8 * 0, *left"),
    ("executed", "(at_c % LINE, *left, rank", "(at_c % LINE, rank"),
    ("executed", "is_last, b[\"splits\"])", "is_last)"),
    ("executed", "grid.padded_n if spec.packs_b else gemm.ldb", "gemm.ldb"),
    ("launch_counts", "pack.extent - i, k - p)", "k - p,)"),
    ("launch_counts", "_add(found, _counts(_packed(product, pack)))", "pass"),
    ("launch_counts", "int(not pack.is_a)", "0"),
)  # fmt: skip


@pytest.fixture
def faulty(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable]:
    """Loads what counts with one text changed; gives back its `count`."""

    def load(module: str, before: str, after: str) -> Callable:
        for name in MODULES[MODULES.index(module) :]:
            real = importlib.import_module(f"autotune.tiles.{name}")
            text = Path(str(real.__file__)).read_text(encoding="utf-8")
            if name == module:
                assert text.count(before) == 1, f"{before!r} stands {text.count(before)} times in {name}.py"
                text = text.replace(before, after)
            made = ModuleType(real.__name__)
            made.__package__, made.__file__ = "autotune.tiles", real.__file__
            monkeypatch.setitem(sys.modules, real.__name__, made)
            monkeypatch.setattr("autotune.tiles." + name, made)
            exec(compile(text, str(real.__file__), "exec"), made.__dict__)
        return made.count

    return load


def plain(counts: dict) -> dict:
    """Without classes, of which faulty modules have their own."""
    return {tuple(key): str(found) for key, found in counts.items()}


@functools.cache
def rightly_counted() -> list[tuple[LaunchProblem, Instance, dict]]:
    """Every problem, and what is counted without a fault; those that take it least time first."""
    found = []
    for _, instance in COUNTED:
        for task in tasks_of(instance):
            started = time.process_time()
            right = plain(modelled(instance, task))
            found.append((time.process_time() - started, task, instance, right))
    return [entry[1:] for entry in sorted(found, key=lambda entry: entry[0])]


@pytest.mark.stress
@pytest.mark.xdist_group("faults in counts")  # to count rightly takes a while
@pytest.mark.parametrize(
    "fault", FAULTS, ids=[f"{module}: {after or 'without ' + before}" for module, before, after in FAULTS]
)
def test_fault_in_counting_is_found(faulty: Callable, fault: tuple[str, str, str]) -> None:
    """Counts differ for one of the problems at least on which the right ones are equal."""
    other = faulty(*fault)
    for task, instance, right in rightly_counted():
        try:
            found = modelled(instance, task, other)
        except (IndexError, ValueError):
            return
        if plain(found) != right:
            return
    pytest.fail("no count differs: this line is needless or untested")
