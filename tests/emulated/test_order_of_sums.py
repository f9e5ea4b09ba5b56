"""Kernels of one order of sums give the bits of its reference: whatever the GPU that they are for, the tile,
the layout, the batch, the leading dimensions; row by row."""

from __future__ import annotations

import numpy as np
import pytest
from covering_instances import Instance, all_instances
from emulator import Builder, run
from problems import CHUNKS, Case, of_chunks, problem
from product_check import check_order

from autotune.facts.device import KNOWN
from autotune.facts.gemm import LAYOUTS, Gemm
from autotune.kernel import template
from autotune.kernel.config import Config
from autotune.kernel.feasible_set import feasible_set
from autotune.kernel.launch import Variant
from autotune.kernel.summation_order import SummationOrder, order_of
from autotune.kernel.where import Where

ORDERS = (
    ("chain", "none"),
    ("chunks:256", "none"),
    ("chunks:512", "none"),
    ("chunks:256", "chunks"),
    ("chunks:512", "chunks"),
)
ARCHS = ("sm_75", "sm_80", "sm_90", "sm_100")  # others have what these have
GPUS = {limits.arch: limits for limits in KNOWN.values() if limits.arch in ARCHS}  # one of each
DRAWN = [  # each pair of order, layout and GPU
    (*order, layout, ARCHS[(i + j) % len(ARCHS)])
    for i, order in enumerate(ORDERS)
    for j, layout in enumerate(LAYOUTS)
]


def drawn(arch: str, layout: str, order: str, reduction: str) -> Instance:
    """A kernel for batches that a search of this order may try on this GPU; of the smallest of some tiles."""
    trans_a, trans_b = layout[0] == "T", layout[1] == "T"
    m, n = (256, 255) if reduction == "chunks" else (1024, 1023)
    gemm = Gemm(m, n, 1021, trans_a, trans_b, 7)
    space = feasible_set(GPUS[arch], gemm, order=SummationOrder.parse(order))
    space = space.where(Where.parse(f"reduction={reduction}"), gemm)
    random = np.random.default_rng([ord(letter) for letter in arch + layout + order])
    some = [Config.from_dict(space.point(int(i))) for i in random.integers(len(space), size=30)]
    least = min(some, key=lambda c: (c.bm * c.bn, c.key))
    assert all(str(order_of(config)) == order for config in some)
    return Instance(least, Variant(trans_a, trans_b, is_batched=True))


@pytest.mark.every(6)
@pytest.mark.parametrize(("order", "reduction", "layout", "arch"), DRAWN)
def test_kernels_of_an_order_give_its_bits(
    builder: Builder, order: str, reduction: str, layout: str, arch: str
) -> None:
    tested = drawn(arch, layout, order, reduction)
    macros = template.macros(tested.config, tested.variant)
    executable = builder.submit(template.kernel_dir() / template.MAIN_FILE, macros, kernel_watch=())
    bm, bn = tested.config.bm, tested.config.bn
    cases = [
        Case("batch", bm // 2 + 1, bn // 2 + 1, 523, products=2),
        Case("wide rows", 3, bn + 1, 778, gap=3, products=7, shares="b"),
        Case("one row", 1, 5, 1025, gap=1),
        Case("scaled", 2, 9, 300, 1.7, -0.3, gap=2),
    ]
    tasks = [problem(tested, case, split_k=1, seed=at, num_sms=at) for at, case in enumerate(cases)]
    for task, result in zip(tasks, run(executable.result(), tasks), strict=True):
        assert check_order(task, result, tested)


def test_many_chunks_of_few_elements_are_added_in_order(builder: Builder) -> None:
    """Groups of threads share out their loads: of one group, of four, and of eight in several rounds."""
    macros = template.macros(CHUNKS.config, CHUNKS.variant)
    executable = builder.submit(template.kernel_dir() / template.MAIN_FILE, macros)
    tasks = [
        problem(CHUNKS, of_chunks(num), split_k=1, seed=at, num_sms=at)
        for at, num in enumerate((15, 33, 131))
    ]
    assert [1 << 8 - task.reduce_group_bits for task in tasks] == [1, 4, 8]
    for task, result in zip(tasks, run(executable.result(), tasks), strict=True):
        assert check_order(task, result, CHUNKS)


def test_covering_instances_have_each_kind_of_order() -> None:
    """Whatever test_emulated.py runs of these it holds to their order as well."""
    found = {str(order_of(tested.config)) for tested in all_instances()}
    assert found >= {"chain", "chunks:256", "None"}
