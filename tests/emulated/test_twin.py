"""The emulator itself: it runs a right kernel rightly and reports every kind of fault planted in one."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from covering_instances import instance
from emulator import Builder, BuildError, EmulatedFault, LaunchProblem, LaunchResult, Stored, run
from problems import SHUFFLED, Case, problem
from product_check import WrongProduct, activated, check

from autotune.kernel.launch import Epilogue

TOY = Path(__file__).with_name("toy.cu")
TILE = 8
THREADS = TILE * TILE
SMEM_BYTES = 2 * 2 * TILE * TILE * 4

# fault planted in toy.cu: what the run says of it
FAULTS = {
    "NO_BARRIER_AFTER_WAIT": r"race: |copy under way: read",
    "NO_BARRIER_BEFORE_REFILL": r"race: |copy under way: read",
    "NO_WAIT": r"copy under way: read",
    "SHALLOW_WAIT": r"copy under way: read",
    "NO_COMMIT": r"copy under way: read",
    "NO_LAST_WAIT": r"copy under way at the end",
    "PLAIN_READ_BEFORE_WAIT": r"elements are wrong.*nan",
    "PLAIN_WRITE_BEFORE_WAIT": r"elements are wrong.*nan",
    "READ_OF_UNWRITTEN": r"elements are wrong.*nan",
    "EARLY_EXIT": r"barrier divergence: thread 0 waits at .*, thread 7 ended",
    "OTHER_BARRIER": r"barrier divergence: thread 0 waits at .*, thread 63 waits at",
    "SHARED_OVERRUN": r"read outside shared memory: floats 256 \.\.\. 256 of 256",
    "PLAIN_SHARED_OVERRUN": r"AddressSanitizer: heap-buffer-overflow",
    "GLOBAL_OVERRUN": r"load outside global memory",
    "GAP_READ": r"load of a gap: float 43 of A",
    "GAP_COPIED": r"asynchronous copy of a gap: float 43 of A",
    "PLAIN_GLOBAL_OVERRUN": r"AddressSanitizer: heap-buffer-overflow",
    "NO_EDGE_CHECK": r"asynchronous copy (outside global memory|of a gap)|elements are wrong",
    "MISALIGNED": r"is not aligned to 16 bytes",
    "INT_OVERFLOW": r"runtime error: signed integer overflow",
    "PADDING_WRITTEN": r"padding of C overwritten: element 19 of row 0",
    "A_WRITTEN": r"store to A",
    "C_READ": r"load of C, which must not be read",
    "NO_FENCE": r"elements are wrong.*nan|no fence",
    "FENCE_AFTER_ATOMIC": r"elements are wrong.*nan",
    "NO_BARRIER_BEFORE_ATOMIC": r"elements are wrong.*nan|race",
    "NO_FENCE_AFTER_ATOMIC": r"no fence between the atomic and here",
    "COUNTER_LEFT": r"counter 0 is left at 2",
    "NO_WAIT_FOR_KERNELS": r"(copy|load|store) before the wait for the kernels before",
    "END_WITHOUT_WAIT_FOR_KERNELS": r"end of a thread that has not waited for the kernels before",
}
CLUSTER_FAULTS = {
    "FOREIGN_READ_AT_ONCE": r"read of block \d, which need not have begun",
    "NO_CLUSTER_BARRIER_BEFORE_READ": r"read of block \d, which need not have begun",
    "NO_CLUSTER_BARRIER_BEFORE_WRITE": r"race: (write.*which another block read|read.*which block \d wrote)",
    "NO_CLUSTER_BARRIER_AT_END": r"read of block \d, which has ended|end of a block that another read",
    "ONE_BLOCK_ENDS": r"read of block 1, which has ended|end of a block that|waits for its cluster, of which",
    "NO_SUCH_BLOCK": r"read of block 2 of a cluster of 2",
}


def toy_problems(orders: tuple[int, ...]) -> list[LaunchProblem]:
    """19 columns and 17 rows in tiles of 8, 43 deep, with one split and with two."""
    m, n, k = 17, 19, 43
    tiles = -(-m // TILE) * -(-n // TILE)
    random = np.random.default_rng(1)
    a, b, c = (
        Stored(random.standard_normal((1, *shape), dtype=np.float32), shape[1] + gap)
        for shape, gap in (((m, k), 2), ((k, n), 1), ((m, n), 3))
    )
    return [
        LaunchProblem(
            f"splits={splits} beta={beta} threads={thread_order} blocks={block_order}", m, n, k, a, b, c,
            THREADS, SMEM_BYTES, (tiles, splits), split_k=splits,
            sum_bytes=splits * tiles * THREADS * 4 * (splits > 1),
            counter_bytes=4 * tiles * (splits > 1), alpha=1.5, beta=beta, thread_order=thread_order,
            block_order=block_order, seed=5,
        )
        for splits, beta, thread_order, block_order in itertools.product((1, 2), (-0.5, 0.0), orders, orders)
    ]  # fmt: skip


def clustered(problems: list[LaunchProblem]) -> list[LaunchProblem]:
    """Those of two splits, which then need no workspace."""
    return [replace(p, sum_bytes=0, counter_bytes=0) for p in problems if p.split_k == 2]


def run_toy(builder: Builder, fault: str, problems: list[LaunchProblem], cluster: int = 1) -> None:
    executable = builder.submit(TOY, {"FAULT": fault, "CLUSTER": cluster}).result()
    for task, result in zip(problems, run(executable, problems), strict=True):
        check(task, result)


def test_right_kernel_passes_in_every_order(builder: Builder) -> None:
    run_toy(builder, "NONE", toy_problems(orders=(0, 1, 2)))


def test_right_cluster_passes_in_every_order(builder: Builder) -> None:
    run_toy(builder, "NONE", clustered(toy_problems(orders=(0, 1, 2))), cluster=2)


@pytest.mark.parametrize("order", [0, 1, 2], ids=["forward", "reverse", "shuffled"])
@pytest.mark.parametrize("fault", CLUSTER_FAULTS)
def test_fault_planted_in_a_cluster_is_reported_in_every_order(
    builder: Builder, fault: str, order: int
) -> None:
    with pytest.raises(EmulatedFault, match=CLUSTER_FAULTS[fault]):
        run_toy(builder, fault, clustered(toy_problems(orders=(order,))), cluster=2)


def test_a_grid_of_no_whole_clusters_is_refused(builder: Builder) -> None:
    with pytest.raises(EmulatedFault, match="1 blocks along y are no whole clusters of 2"):
        run_toy(builder, "NONE", toy_problems(orders=(0,)), cluster=2)


@pytest.mark.every(5)
@pytest.mark.parametrize("order", [0, 1, 2], ids=["forward", "reverse", "shuffled"])
@pytest.mark.parametrize("fault", FAULTS)
def test_planted_fault_is_reported_in_every_order(builder: Builder, fault: str, order: int) -> None:
    with pytest.raises((EmulatedFault, WrongProduct), match=FAULTS[fault]):
        run_toy(builder, fault, toy_problems(orders=(order,)))


def test_text_that_does_not_compile_is_told(builder: Builder) -> None:
    with pytest.raises(BuildError, match="UNKNOWN_FAULT"):
        builder.submit(TOY, {"FAULT": "UNKNOWN_FAULT"}).result()


def test_missing_compiler_says_what_to_install(builder: Builder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("emulator._compiler", None)
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(BuildError, match=r"g\+\+ >= 12.*apt-get install g\+\+"):
        builder.submit(TOY, {"FAULT": "NONE"})


BATCH = Case("a batch", 9, 12, 7, 1.5, -0.5, 1, SHUFFLED, is_special=True, products=3)


def fake(task: LaunchProblem) -> LaunchResult:
    """What a right kernel makes of a problem without transposed operands, in float32."""
    a, b, c = (stored.matrices for stored in (task.a, task.b, task.c))
    bias = task.bias.matrices.swapaxes(1, 2) if task.epilogue.bias == "rows" else task.bias.matrices
    with np.errstate(invalid="ignore"):
        kept = np.float32(task.alpha) * (a @ b) + np.float32(task.beta) * c + bias
    return LaunchResult(activated(task.epilogue.activation, kept.astype(np.float64)).astype(np.float32), kept)


def epilogue_problem(bias: str, activation: str) -> LaunchProblem:
    tested = instance("NN", is_batched=True, epilogue=Epilogue(bias, activation, keeps=True))
    return problem(tested, BATCH, split_k=1, seed=3)


@pytest.mark.parametrize("activation", ["none", "relu", "gelu", "gelu_tanh"])
@pytest.mark.parametrize("bias", ["rows", "columns"])
def test_check_knows_what_an_epilogue_makes(bias: str, activation: str) -> None:
    task = epilogue_problem(bias, activation)
    c, kept = fake(task)
    check(task, LaunchResult(c, kept))
    wrong = [
        LaunchResult(c, np.full_like(kept, np.nan)),  # not kept
        LaunchResult(c[::-1], kept),  # products mixed up
        LaunchResult(np.nan_to_num(c), kept),  # NaN lost
        LaunchResult(c + np.float32(1e-4), kept),
    ]
    if activation != "none":
        wrong += [LaunchResult(kept, kept), LaunchResult(c, c)]  # no activation; kept behind it
    for result in wrong:
        with pytest.raises(WrongProduct):
            check(task, result)


def test_check_knows_whose_bias_it_is() -> None:
    task = epilogue_problem("rows", "none")
    bias = Stored(np.roll(task.bias.matrices, 1, axis=2), task.bias.ld, task.bias.stride)
    with pytest.raises(WrongProduct):
        check(task, fake(replace(task, bias=bias)))
