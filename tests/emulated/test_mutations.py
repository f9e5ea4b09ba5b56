"""A template with one barrier, wait, fence or edge check removed must fail: else the tests are blind."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import pytest
from covering_instances import Instance, instance
from emulator import SANITIZED, Builder, EmulatedFault, run
from mutate import OPERATORS, Mutant, mutants_of, unmatched_tags
from problems import CHUNKS, SHUFFLED, Case, of_chunks, problem, problems
from product_check import WrongProduct, check

from autotune.kernel import template
from autotune.kernel.launch import Epilogue

NOT_MUTATED = {"primitives.cuh"}  # the host brings its own
_INCLUDE = re.compile(r'^#include "([\w.]+)"$', re.MULTILINE)


def kernel_files() -> list[Path]:
    """The files that make up the template."""
    folder = template.kernel_dir()
    names, pending = set(), [template.MAIN_FILE]
    while pending:
        name = pending.pop()
        if name not in names:
            names.add(name)
            included = _INCLUDE.findall((folder / name).read_text(encoding="utf-8"))
            pending += [other for other in included if (folder / other).exists()]
    return [folder / name for name in sorted(names - NOT_MUTATED)]


MUTANTS = [m for path in kernel_files() for m in mutants_of(path.name, path.read_text(encoding="utf-8"))]

_TILE = {"bm": 16, "bn": 32, "wm": 16, "wn": 16, "tm": 4, "tn": 2, "bk": 8}
_DOTS = {
    "bm": 8, "bn": 2, "wm": 2, "wn": 2, "tm": 2, "tn": 2, "bk": 8, "slice_k": 2, "unroll_k": 4, "stages": 1,
    "bursts": 1, "frag_buffers": 1, "copy_a": "register", "copy_b": "register", "pad": 4, "min_blocks": 1,
}  # fmt: skip
_PLAIN = {"vec_a": 1, "vec_b": 1, "vec_c": 1}
# Between them they run every line of the template; a mutant has to fail on one.
INSTANCES = (
    instance(
        "NN", **_TILE, stages=3, vec_b=1, vec_c=2, reduction="last_block", split_k=2, group=2,
        is_batched=True, epilogue=Epilogue("columns", "relu", keeps=True),
    ),
    instance(
        "TT", **_TILE | _PLAIN, slice_k=2, stages=1, copy_a="register", copy_b="register",
        reduction="two_pass", split_k=2, is_batched=True, epilogue=Epilogue("rows", "gelu_tanh", keeps=True),
    ),
    instance("TN", **_TILE | _PLAIN, slice_k=2, stages=1),
    # rows on their way to C that the threads do not divide evenly
    instance("NT", **_TILE | _PLAIN | {"bn": 48}, stages=2, copy_b="register", frag_buffers=2),
    instance(
        "NN", **_TILE | {"bk": 16}, slice_k=4, stages=2, vec_b=2, vec_c=2, frag_buffers=2, copy_a="register",
        reduction="last_block", split_k=2,
    ),
    instance(
        "TN", **_TILE | {"bk": 16}, stages=4, slice_k=2, bursts=2, vec_a=2, vec_b=2, vec_c=2, frag_buffers=2,
    ),
    instance("TT", **_TILE | _PLAIN, stages=1, copy_a="register", slice_k=2, flush_k=256),
    # clusters: every thread adds in one round; in several, of uneven shares
    instance("NN", **_TILE, stages=3, vec_c=1, slice_k=2, reduction="cluster", split_k=2),
    instance("NT", **_TILE | _PLAIN | {"bk": 4}, stages=1, reduction="cluster", split_k=4),
    # tiles that the threads do not divide evenly, by rows and by columns
    instance("TN", **_TILE | {"bm": 48, "wm": 48, "tm": 6, "wn": 8, "bk": 16}, stages=2, vec_a=4, vec_c=1),
    instance("TN", **_TILE | {"bm": 48, "wm": 48, "tm": 12, "bn": 16}, stages=2, vec_a=1, vec_c=1),
    # a K-major operand and another packed; copies in one row, through registers and not
    instance(
        "NN", **_TILE, stages=2, pack_a=1, pack_b=1, vec_a=1, vec_b=2, vec_c=1, copy_a="register",
        is_batched=True, epilogue=Epilogue("rows", "gelu"),
    ),
    # lanes share out k
    instance("NN", **_DOTS, vec_a=2, vec_b=1, vec_c=1, reduction="last_block", split_k=2),
    instance("TT", **_DOTS | {"slice_k": 1, "unroll_k": 8}, vec_a=1, vec_b=4, vec_c=1, is_batched=True),
)  # fmt: skip
# Groups of threads add them in one round and in several: their k is too deep for all cases. Blocks
# share out nothing: the workspace ends with the planes.
OF_CHUNKS = [problem(CHUNKS, of_chunks(num), split_k=1, seed=num, num_sms=0) for num in (33, 131)]
# Blocks share out the chunks of two products: they have parts of two chunks, and of several
SHARED = instance(
    "TN", **_TILE | _PLAIN, stages=2, min_blocks=1, reduction="chunks", flush_k=256, is_batched=True
)
OF_SHARES = [
    problem(SHARED, case, split_k=1, seed=num_sms, num_sms=num_sms)
    for case in (
        Case("in two products", 17, 33, 600, gap=1, order=SHUFFLED, products=2),
        Case("alpha = 0", 17, 1, 600, 0.0, 0.5, products=2),
    )
    for num_sms in (3, 4)
]
# The instances on which mutants of a file die soonest; the others follow.
FIRST = {
    "dot_products.cuh": (12, 13), "epilogue.cuh": (11, 0, 1, 3), "flush.cuh": (6,), "main_loop.cuh": (5, 6),
    "pack.cuh": (11,), "pipeline.cuh": (1,), "reduce_cluster.cuh": (8, 7), "reduce_slices.cuh": (2,),
    "reduce_two_pass.cuh": (1,), "sgemm.cu": (0, 11), "staged_rows.cuh": (8,), "thread_tile.cuh": (12, 0),
    "tile_copy.cuh": (9, 0, 1, 3),
}  # fmt: skip


def fate(
    builder: Builder,
    main: Path,
    tested: Instance,
    *,
    kernel_watch: Sequence[str] = SANITIZED,
    runtime_watch: Sequence[str] = (),
) -> str:
    """What becomes of this text on all problems of an instance; "" if nothing is wrong with it."""
    tasks = {CHUNKS: OF_CHUNKS, SHARED: OF_SHARES}.get(tested) or problems(tested)
    macros = template.macros(tested.config, tested.variant)
    watch = {"kernel_watch": kernel_watch, "runtime_watch": runtime_watch}
    executable = builder.submit(main, macros, flags=("-w",), **watch).result()
    try:
        for task, result in zip(tasks, run(executable, tasks), strict=True):
            check(task, result, tested.variant.trans_a, tested.variant.trans_b)
    except (EmulatedFault, WrongProduct) as error:
        return str(error)
    return ""


@pytest.mark.every(14)
@pytest.mark.parametrize("mutant", MUTANTS, ids=[m.id for m in MUTANTS])
def test_mutant_fails(builder: Builder, mutant: Mutant, tmp_path: Path) -> None:
    """What the emulator finds by itself it finds under sanitizers, too, which take twice as long."""
    mutant.write(template.kernel_dir(), tmp_path / "kernels")
    main = tmp_path / "kernels" / template.MAIN_FILE
    numbers = dict.fromkeys((*FIRST.get(mutant.file, ()), *range(len(INSTANCES))))
    order = [INSTANCES[number] for number in numbers]
    order[:0] = {"reduce_planes.cuh": [CHUNKS], "chunks.cuh": [SHARED]}.get(mutant.file, [])
    for watch in ((), SANITIZED):
        if any(fate(builder, main, tested, kernel_watch=watch) for tested in order):
            return
    pytest.fail(f"survived all tests, so it is needless or untested:\n{mutant}", pytrace=False)


@pytest.mark.stress
@pytest.mark.parametrize("tested", (*INSTANCES, SHARED), ids=[i.id for i in (*INSTANCES, SHARED)])
def test_unchanged_text_passes(builder: Builder, tested: Instance) -> None:
    """Of batches and of clusters with the emulator itself under sanitizers, too, which take ten seconds."""
    main = template.kernel_dir() / template.MAIN_FILE
    runtime_watch = SANITIZED if tested in (INSTANCES[0], INSTANCES[8]) else ()
    assert fate(builder, main, tested, runtime_watch=runtime_watch) == ""


def test_every_operator_finds_its_place() -> None:
    """A pattern that no longer matches the text would remove nothing, and pass."""
    assert {m.operator for m in MUTANTS} == {operator.name for operator in OPERATORS}


@pytest.mark.parametrize("path", kernel_files(), ids=lambda path: path.name)
def test_every_edge_tag_is_understood(path: Path) -> None:
    assert unmatched_tags(path.read_text(encoding="utf-8")) == []
