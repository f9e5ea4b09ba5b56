"""An exported table as C: it builds without a warning, computes what it should on a driver that stands in,
and chooses as Python does."""

from __future__ import annotations

import hashlib
import math
import os
import random
import re
import shutil
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from table_cases import CUBE, make_kernel, make_spec, make_table, rank, with_epilogues, with_tensor_kernel
from test_core import STRICT, drawn_table

from autotune.export.c_source import c_files
from autotune.facts.gemm import LAYOUTS, MAX_EXTENT, Gemm
from autotune.kernel.launch import Variant, named
from autotune.kernel.scaled_config import HalvesConfig
from autotune.runtime.calls.product import packed
from autotune.runtime.choose.chooser import Call, Chooser
from autotune.runtime.native import core
from autotune.runtime.native.core import numbered
from autotune.runtime.table.table import Kernel, Table
from autotune.suite import read_calls, read_suite

PROGRAM = Path(__file__).parents[1] / "c_program"
LAYER = Path(__file__).parents[2] / "examples/c/dense.c"
MULTIPLIES = (PROGRAM / "program.c", PROGRAM / "on_standin.c")
COMPILERS = [name for name in ("gcc", "clang") if shutil.which(name)]
LINKED = ("-lm", "-ldl", "-pthread")
# -Og, though -O2 stands before it, compiles in a third of the time; they tell lines
SANITIZED = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-g1", "-Og")
Run = Callable[..., subprocess.CompletedProcess[str]]
pytestmark = pytest.mark.xdist_group("tables in C")  # the core takes 3 s to compile under the sanitizers


def _code(kernel: Kernel) -> bytes:
    """What the driver that stands in takes for a cubin."""
    spec = kernel.spec
    facts = (
        spec.threads, kernel.registers, spec.split_k, spec.reduction == "cluster", spec.variant.trans_a,
        spec.variant.trans_b, spec.packs_a, spec.packs_b, spec.reduction == "two_pass",
        spec.variant.is_batched, *numbered(spec.variant.epilogue).values(),
    )  # fmt: skip
    return " ".join(str(int(fact)) for fact in facts).encode() + b"\0"


@pytest.fixture(scope="module")
def table() -> Table:
    """Kernels of every kind of launch, each the fastest somewhere."""
    changes = [{}, {"reduction": "two_pass", "split_k": 4}, {"reduction": "last_block", "split_k": 4},
               {"reduction": "cluster", "split_k": 2}, {"packs_a": True, "packs_b": True}]  # fmt: skip
    kernels = [
        make_kernel(f"{layout}-{number}", make_spec(layout, **change))
        for layout in LAYOUTS
        for number, change in enumerate(changes)
    ]
    rng = random.Random(3)
    figures = [
        replace(k.model, fixed_us=rng.uniform(0.5, 3), step_us=rng.uniform(0.05, 1))
        for k in kernels
        if k.model
    ]
    single = [replace(k, model=model) for k, model in zip(kernels, figures, strict=True)]
    plain = make_table(*single, *BATCHED.values(), entries=tuple(rank(g, k.id) for g, k in BATCHED.items()))
    return with_epilogues(plain, *named(["bias", "relu", "bias-gelu", "bias-gelu-tanh"]))


def _batched(name: str, layout: str = "NN", **changes: Any) -> Kernel:
    variant = Variant(layout[0] == "T", layout[1] == "T", is_batched=True)
    return make_kernel(name, make_spec(layout, variant=variant, **changes), None)


_BATCH = Gemm(20, 12, 16, batch=6)
_TRANSPOSED = {x: replace(_BATCH, trans_a=x[0] == "T", trans_b=x[1] == "T") for x in LAYOUTS}
BATCHED = {
    **{gemm: _batched(f"batched-{x}", x) for x, gemm in _TRANSPOSED.items()},
    replace(_BATCH, k=64, batch=4): _batched("batched-two", reduction="two_pass", split_k=2),
    replace(_BATCH, k=80, batch=4): _batched("batched-packs", packs_a=True, packs_b=True, vec_a=4, vec_b=4),
}


def write(table: Table, folder: Path) -> Path:
    code = {kernel.sha256: _code(kernel) for kernel in table.kernels}
    for name, content in c_files([(table, code)]).items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return folder / "c"


@pytest.fixture(scope="module")
def sources(table: Table, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(table, tmp_path_factory.mktemp("sources"))


@pytest.fixture(scope="module")
def objects(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of what was compiled: most sources are the same whatever the table."""
    return tmp_path_factory.mktemp("objects")


def _object(source: Path, headers: Path, objects: Path, command: Sequence[str]) -> str:
    """Compiled once from the same text, with the same headers, by the same command. What does not open the
    table does not depend on its name."""
    text, others = source.read_bytes(), [path.read_bytes() for path in sorted(headers.glob("*.h"))]
    texts = [text, *(x if b"autotune_create" in text else re.sub(rb"[0-9a-f]{12}", b"", x) for x in others)]
    key = hashlib.sha256(b"\0".join([*(word.encode() for word in command), *texts])).hexdigest()
    made = objects / f"{key}.o"
    if not made.exists():
        _quietly([*command, f"-I{headers}", "-c", str(source), "-o", str(made)])
    return str(made)


def _quietly(command: Sequence[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert not done.returncode and not done.stderr, done.stderr


def link(
    files: Sequence[Path],
    sources: Path,
    objects: Path,
    out: Path,
    compiler: str,
    *flags: str,
    form: str = "-pie",
    has_table: bool = True,
) -> None:
    """A program of these sources and libraries, with an exported table in it; `-shared`: a library."""
    strict = [compiler, "-std=c11", "-O2", "-fPIC", *STRICT, *flags]
    own = [path for path in sorted(sources.glob("*.c")) if path.name != "example.c" and has_table]
    made = [
        _object(path, sources, objects, strict) if path.suffix == ".c" else str(path)
        for path in (*own, *files)
    ]
    cubins = [f"-Wa,-I{sources}", str(sources / "cubins.S")] if has_table else []
    if form == "archive":
        made.append(f"{out}.o")
        _quietly([compiler, *cubins, "-c", "-o", made[-1]])
        _quietly(["ar", "rcs", str(out), *made])
        return
    _quietly([compiler, *flags, form, *made, *cubins, "-o", str(out), *LINKED])


def build(
    sources: Path,
    out: Path,
    objects: Path,
    compiler: str = "gcc",
    *flags: str,
    programs: Sequence[Path] = MULTIPLIES,
    has_table: bool = True,
) -> Run:
    """The test's program, and the driver that stands in; what runs it with that driver."""
    out.mkdir(exist_ok=True)
    driver = out / "libcuda.so.1"
    standin = _object(
        PROGRAM / "standin_driver.c",
        core.FOLDER,
        objects,
        [compiler, "-std=gnu11", "-O1", *flags, "-fPIC"],
    )
    _quietly([compiler, *flags, "-shared", standin, "-o", str(driver), "-lm"])
    made = [*programs, driver]
    link(made, sources, objects, out / "program", compiler, *flags, has_table=has_table)

    def run(*arguments: str, text: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(out / "program"), *arguments], capture_output=True, text=True, input=text, check=False,
            env=os.environ | {"LD_LIBRARY_PATH": str(out), "AUTOTUNE_CUBLAS": "0"} | environment,
        )  # fmt: skip

    return run


@pytest.fixture(scope="module")
def program(sources: Path, objects: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Under the sanitizers of addresses and of undefined behaviour, leaks included."""
    return build(sources, tmp_path_factory.mktemp("sanitized") / "p", objects, "gcc", *SANITIZED)


@pytest.mark.stress
def test_the_example_of_a_layer_names_its_kernel(sources: Path, objects: Path, tmp_path: Path) -> None:
    link([LAYER], sources, objects, tmp_path / "dense", "gcc", *SANITIZED)
    command, environment = [str(tmp_path / "dense"), "9", "16", "20"], os.environ | {"AUTOTUNE_CUBLAS": "0"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert (done.returncode, done.stderr) == (0, "") and done.stdout.startswith("NT-"), done


def test_no_comment_ends_in_what_a_table_says_of_its_gpu(table, tmp_path):
    evil = "NVIDIA H200 **/\n#error ran\n/*"
    named = replace(table, environment=replace(table.environment, gpu_name=evil), created_at=evil)
    text = (write(named, tmp_path) / "exported_table.c").read_text(encoding="utf-8")
    comment, _, rest = text.partition("*/")
    assert comment.count("#error ran") == 2 and rest.lstrip().startswith("#include")


def test_a_table_that_is_exported_again_keeps_its_name(table: Table, tmp_path: Path) -> None:
    """Programs that were built with it find autotune_create; another table has another name."""
    again = replace(table, created_at="2031-01-01T00:00:00Z", made_by="autotune 9.0.0")
    fewer = replace(table, kernels=table.kernels[:-1], left_out=())
    headers = [
        (write(one, tmp_path / str(number)) / "autotune_sgemm.h").read_bytes()
        for number, one in enumerate((table, again, fewer))
    ]
    assert headers[0] == headers[1] != headers[2]


def test_products_are_right(program):
    done = program("products", "5", "150")
    assert done.returncode == 0, done.stderr
    launches, allocations = (int(word) for word in done.stdout.split() if word.isdigit())
    assert launches > 300 and 0 < allocations <= 4  # a piece for each of four streams


def test_batches_are_right(program):
    """By kernels for batches, as single products, and one by one where nothing was tuned."""
    done = program("batches", "3", "150")
    assert done.returncode == 0, done.stderr
    assert int(done.stdout.split()[0]) > 300


def test_epilogues_are_right(program, tmp_path):
    """With a bias and without, of single products and batches; and they are recorded as they were asked."""
    done = program("epilogues", "7", "150", AUTOTUNE_RECORD=str(tmp_path / "calls.json"))
    assert done.returncode == 0, done.stderr
    assert int(done.stdout.split()[0]) > 300
    requested = {kind.epilogue for kind in read_calls(tmp_path / "calls.json").calls}
    assert {*named(["bias", "relu", "bias-gelu", "bias-gelu-tanh"])} <= requested


def test_an_a_of_bf16_is_converted(program, tmp_path):
    """By one launch for all products of a batch, at any place; such calls are recorded as what they are."""
    done = program("mixed", "7", "100", AUTOTUNE_RECORD=str(tmp_path / "calls.json"))
    assert done.returncode == 0, done.stderr
    assert int(done.stdout.split()[0]) > 700
    assert {kind.gemm.a_type for kind in read_calls(tmp_path / "calls.json").calls} == {"bf16"}


@pytest.mark.stress
def test_the_sanitizers_of_clang_find_nothing_either(sources, objects, tmp_path):
    if "clang" not in COMPILERS:
        pytest.skip("clang is not installed")
    run = build(sources, tmp_path / "p", objects, "clang", *SANITIZED)
    for what in (
        ("products", "5", "40"),
        ("batches", "3", "40"),
        ("epilogues", "7", "40"),
        ("errors",),
        ("forked",),
    ):
        done = run(*what)
        assert done.returncode == 0, (what, done.stderr[-3000:])


def test_each_status_is_told(program):
    done = program("errors")
    assert (done.returncode, done.stdout) == (0, "told\n"), done.stderr


@pytest.mark.stress
@pytest.mark.parametrize("compiler", COMPILERS)
def test_threads_share_a_handle(sources, objects, tmp_path, compiler):
    """And calls are recorded meanwhile."""
    run = build(sources, tmp_path / "p", objects, compiler, *CHECKS["thread"])
    file = str(tmp_path / "calls.json")
    for what in (("threads", "40"), ("stress", "4000"), ("record", file, "4000")):
        done = run(*what, TSAN_OPTIONS="halt_on_error=1")
        assert done.returncode == 0, done.stderr[-3000:]
    assert sum(read_suite(Path(file)).values()) == STRESS_CALLS


STRESS_CALLS = 4500  # of eight threads with 500 each, and of one more


def test_a_forked_process_may_close_a_handle_that_is_in_use(program):
    done = program("forked")
    assert done.returncode == 0, done.stderr


EARLY = (PROGRAM / "early_fork.c", PROGRAM / "on_standin.c")
CHECKS = {"address": SANITIZED, "thread": ("-g", "-fsanitize=thread")}


@pytest.mark.every(4)
@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("compiler", COMPILERS)
def test_a_fork_before_the_first_product_is_noticed(sources, objects, tmp_path, compiler, check):
    """While a thread initialises CUDA, or loads its first kernel; after a refused call."""
    run = build(sources, tmp_path / "p", objects, compiler, *CHECKS[check], programs=EARLY)
    for case, held in (("held", "cuInit"), ("held", "cuLibraryLoadData"), ("refused", "")):
        done = run(case, STANDIN_HOLDS=held)
        assert done.returncode == 0, (case, held, done.stderr[-3000:])


@pytest.mark.every(2)
@pytest.mark.parametrize("compiler", COMPILERS)
def test_a_child_of_a_process_without_cuda_is_free(sources, objects, tmp_path, compiler):
    """Even if a thread has calls recorded at that moment. Without sanitizers: in the child of a process with
    threads the allocator of gcc's may wait for one that is not there."""
    run = build(sources, tmp_path / "p", objects, compiler, programs=EARLY)
    done = run("before", str(tmp_path / "calls.json"))
    assert done.returncode == 0, done.stderr[-3000:]
    assert sum(read_suite(tmp_path / "calls.json").values()) == NUM_FORKS + 1


NUM_FORKS = 50  # of early_fork.c


@pytest.mark.every(4)
@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("compiler", COMPILERS)
def test_a_library_that_is_closed_stays(sources, objects, tmp_path, compiler, check):
    """Its thread runs on, and writes at the process's end; a graph that ends calls it."""
    programs, library = (PROGRAM / "unloaded.c", PROGRAM / "on_standin.c"), tmp_path / "libtable.so"
    run = build(
        sources, tmp_path / "p", objects, compiler, *CHECKS[check], programs=programs, has_table=False
    )
    link([], sources, objects, library, compiler, *CHECKS[check], form="-shared")
    done = run(str(library), str(tmp_path / "calls.json"))
    assert done.returncode == 0, done.stderr[-3000:]
    assert sum(read_suite(tmp_path / "calls.json").values()) == 1


@pytest.mark.every(2)
@pytest.mark.parametrize("form", ["archive", "-shared"])
def test_a_program_may_have_two_tables(table, objects, tmp_path, form):
    """Each part opens the one whose header it includes; both headers in one file are an error."""
    renamed = tuple(replace(k, id=f"other-{k.id}") for k in table.kernels)
    defaults = {layout: f"other-{name}" for layout, name in table.defaults.items()}
    parts = [str(PROGRAM / "two_tables.c")]
    for name, one in (
        ("first", table),
        ("second", replace(table, kernels=renamed, defaults=defaults, entries=(), order="chain")),
    ):
        sources = write(one, tmp_path / name)
        part = _object(PROGRAM / "two_tables.c", sources, objects, ["gcc", f"-DPART={name}"])
        library = tmp_path / f"lib{name}.{'a' if form == 'archive' else 'so'}"
        link([], sources, objects, library, "gcc", form=form)
        parts += [part, str(library)]
    _quietly(["gcc", *parts, "-o", str(tmp_path / "program"), f"-Wl,-rpath,{tmp_path}", *LINKED])
    done = subprocess.run([str(tmp_path / "program")], capture_output=True, text=True, check=True)
    first, second = done.stdout.split()
    assert second.startswith("other-") and not first.startswith("other-")
    assert second.endswith(",chain") and first.endswith(",none")
    both = "".join(f'#include "{name}/c/autotune_sgemm.h"\n' for name in ("first", "first", "second"))
    shown = subprocess.run(
        ["gcc", f"-I{tmp_path}", "-fsyntax-only", "-x", "c", "-"], input=both, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert (
        shown.returncode
        and shown.stderr.count("error: #error") == 1
        and "two exported tables" in shown.stderr
    )


_CLASSES = """
#include <stdio.h>
#include "autotune_sgemm.h"
int main(void) {
    for (int accuracy = 0; accuracy < 3; ++accuracy) {
        autotune_handle *handle;
        autotune_pick_info pick = {0};
        const autotune_status status = autotune_create_accuracy(&handle, (autotune_accuracy)accuracy);
        if (!status) autotune_pick(handle, 0, 0, 512, 512, 512, &pick);
        printf("%s\\n", status ? autotune_error_text(status) : pick.kernel);
        autotune_destroy(handle);
    }
    return 0;
}
"""


def test_a_handle_is_for_a_class_of_accuracy(table, objects, tmp_path):
    """The one that was asked for, and none where no table serves it."""
    wider = with_tensor_kernel(make_table(make_kernel("plain", make_spec()), entries=(rank(CUBE, "plain"),)))
    lines = {}
    widest = with_tensor_kernel(make_table(make_kernel("plain", make_spec())), HalvesConfig())
    for name, one in (("strict", table), ("wider", wider), ("widest", widest)):
        sources = write(one, tmp_path / name)
        (tmp_path / f"{name}.c").write_text(_CLASSES)
        link([tmp_path / f"{name}.c"], sources, objects, tmp_path / f"run-{name}", "gcc")
        done = subprocess.run([str(tmp_path / f"run-{name}")], capture_output=True, text=True, check=True)
        lines[name] = done.stdout.splitlines()
    assert [line for line in lines["strict"][1:] if "no table serves that class" not in line] == []
    assert lines["wider"][:2] == ["plain", "tensor"] and "no table serves that class" in lines["wider"][2]
    assert lines["widest"] == ["plain", "plain", "tensor"]


def test_calls_are_recorded(program, tmp_path):
    """As the program says, or the environment; what is left when a handle is closed, or at the end, too."""
    file, other = tmp_path / "calls.json", tmp_path / "others.json"
    for number in (1, 2):
        done = program("stress", "4000", AUTOTUNE_RECORD=str(file))
        assert done.returncode == 0, done.stderr[-3000:]
        assert sum(read_suite(file).values()) == number * STRESS_CALLS
    done = program("record", str(other), "4000", AUTOTUNE_RECORD=str(file))
    assert done.returncode == 0, done.stderr[-3000:]
    assert read_suite(other) == {gemm: count // 2 for gemm, count in read_suite(file).items()}
    assert sum(read_suite(other).values()) == STRESS_CALLS
    kinds = read_calls(file).calls
    assert all(kind.alignment == (16, 16, 16) for kind in kinds)
    assert {kind.lds[0] - kind.gemm.lda for kind in kinds if kind.gemm.m > 1 < kind.gemm.k} == {1, 2, 3}


def test_where_calls_cannot_be_recorded_nothing_is_launched(program):
    done = program("one", AUTOTUNE_RECORD="/no folder/of this name")
    assert "name a file in a folder that can be written, with AUTOTUNE_RECORD" in done.stdout


@pytest.mark.parametrize(
    ("name", "message"),
    [("NVIDIA T4", "another GPU model"), ("NVIDIA H200 MIG 1g.18gb", "all is well"),
     ("NVIDIA H200", "all is well")],
)  # fmt: skip
def test_the_kind_of_gpu_is_looked_at(program, name, message):
    done = program("one", STANDIN_GPU=name)
    assert message in done.stdout, done.stderr


def test_each_gpu_is_served_by_the_table_of_its_kind(table, objects, tmp_path):
    """Two kinds in one process, whose kernels differ in registers: what is loaded is checked against that."""
    environment = replace(table.environment, gpu_name="NVIDIA H100")
    theirs = [
        replace(k, id=f"h100-{k.id}", registers=k.registers + 8, blocks_per_sm=2) for k in table.kernels
    ]
    codes = [_code(kernel) for kernel in theirs]
    theirs = [
        replace(k, sha256=hashlib.sha256(code).hexdigest()) for k, code in zip(theirs, codes, strict=True)
    ]
    defaults = {layout: f"h100-{name}" for layout, name in table.defaults.items()}
    other = replace(table, environment=environment, kernels=tuple(theirs), defaults=defaults, entries=())
    kinds = [(t, {kernel.sha256: _code(kernel) for kernel in t.kernels}) for t in (table, other)]
    for name, content in c_files(kinds).items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    run = build(tmp_path / "c", tmp_path / "p", objects, "gcc", *SANITIZED)
    calls = tmp_path / "calls.json"
    done = run("kinds", str(calls), STANDIN_OTHER_GPU="NVIDIA H100")
    assert done.returncode == 0, done.stderr
    without, h200, h100 = done.stdout.split()
    assert without == h200 and not h200.startswith("h100-") and h100.startswith("h100-")
    assert read_suite(calls) == {Gemm(64, 64, 64): 6}
    calls.unlink(missing_ok=True)
    swapped = run("kinds", str(calls), STANDIN_GPU="NVIDIA H100").stdout.split()
    assert swapped == [h200, h100, h200]
    done = run("kinds", str(calls), STANDIN_GPU="NVIDIA T4")
    assert done.returncode == 1 and "another GPU model" in done.stderr and "--add" in done.stderr


def test_code_that_is_not_the_table_s_is_refused(table, objects, tmp_path):
    other = replace(table, kernels=tuple(replace(k, registers=k.registers - 1) for k in table.kernels))
    code = {kernel.sha256: _code(kernel) for kernel in table.kernels}
    for name, content in c_files([(other, code)]).items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    assert "does not hold the kernel" in build(tmp_path / "c", tmp_path / "p", objects)("one").stdout


def test_without_a_driver_it_says_so(sources, objects, tmp_path):
    build(sources, tmp_path / "p", objects)
    library = tmp_path / "p" / "libcuda.so.1"
    source = "int cuCtxSetCurrent(void *c) { return !c; } int standin_allocations(void) { return 0; }"
    source += " int standin_launches(void) { return 0; }"  # a driver that lacks nearly everything
    subprocess.run(
        ["gcc", "-shared", "-fPIC", "-x", "c", "-", "-o", str(library)], input=source, text=True, check=True
    )
    done = subprocess.run(
        [str(tmp_path / "p" / "program"), "one"], capture_output=True, text=True, check=False,
        env=os.environ | {"LD_LIBRARY_PATH": str(tmp_path / "p")},
    )  # fmt: skip
    assert "no CUDA driver" in done.stdout, done.stderr


@pytest.mark.every(2)
@pytest.mark.parametrize("compiler", COMPILERS)
def test_picks_are_python_s(compiler, objects, tmp_path):
    table, rng = drawn_table(7, times_batches=True), random.Random(7)
    run = build(write(table, tmp_path), tmp_path / "p", objects, compiler)
    gemms = [entry.gemm for entry in table.entries]
    gemms += [replace(gemm, batch=gemm.batch + 1) for gemm in gemms if gemm.is_batched]
    while len(gemms) < 3000:
        extents = (int(2 ** rng.uniform(0, most)) for most in (14, 14, 17))
        single = Gemm(*extents, rng.random() < 0.5, rng.random() < 0.5)
        shared = rng.choice(({"shares_a": True}, {"shares_b": True}, {}))
        gemms.append(rng.choice((single, single, replace(single, batch=rng.randint(2, 99), **shared))))
    lines = [
        f"{g.trans_a:d} {g.trans_b:d} {g.m} {g.n} {g.k} {g.shares_a:d} {g.shares_b:d} {g.batch}"
        for g in gemms
    ]
    done = run("picks", text="\n".join(lines))
    assert done.returncode == 0, done.stderr
    chooser = Chooser(table)
    for gemm, line in zip(gemms, done.stdout.splitlines(), strict=True):
        problem = chooser.served_as(packed(gemm), (0, 0, 0))
        pick = chooser.pick(Call(problem.gemm, problem.lds, batch=problem.batch))
        kernel, how, split_k, _, is_looped, *times, workspace = line.split()
        assert chooser.workspace_bytes(pick, Call(problem.gemm, problem.lds, batch=problem.batch)) == int(
            workspace
        )
        shown = kernel, how, split_k, is_looped
        assert (pick.kernel_id, pick.how, str(pick.split_k), f"{pick.is_looped:d}") == shown
        for mine, shown in zip((pick.expected_us, pick.cublas_us), times, strict=True):
            assert math.isclose(mine or 0.0, float.fromhex(shown), rel_tol=1e-9)


def test_it_is_built_by_cmake_found_by_pkg_config_and_called_from_cpp(sources, tmp_path):
    if not all(map(shutil.which, ("cmake", "pkg-config", "g++"))):
        pytest.skip("cmake, pkg-config and g++ are not all installed")
    built, prefix = str(tmp_path / "b"), tmp_path / "installed"
    for command in (
        [
            "cmake",
            "-S",
            str(sources),
            "-B",
            built,
            f"-DCMAKE_INSTALL_PREFIX={prefix}",
            "-DBUILD_SHARED_LIBS=ON",
        ],
        ["cmake", "--build", built, "--parallel", "2"],
        ["cmake", "--install", built],
    ):  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
    [found] = prefix.rglob("autotune_sgemm.pc")
    flags = subprocess.run(
        ["pkg-config", "--cflags", "--libs", "autotune_sgemm"], capture_output=True, text=True, check=True,
        env=os.environ | {"PKG_CONFIG_PATH": str(found.parent)},
    ).stdout.split()  # fmt: skip
    source = f"""
        #include <autotune_sgemm.h>
        #include <cstdio>
        int main() {{
            autotune_handle *handle;
            autotune_pick_info pick;
            if (autotune_create(&handle)) return 1;
            if (autotune_pick(handle, 0, 1, 64, 64, {MAX_EXTENT}, &pick)) return 2;
            std::puts(pick.kernel);
            autotune_destroy(handle);
        }}"""
    program = str(tmp_path / "program")
    command = ["g++", "-Wall", "-Wextra", "-Werror", "-x", "c++", "-", "-o", program, *flags]
    subprocess.run(command, input=source, text=True, check=True)
    folder = next(flag[2:] for flag in flags if flag.startswith("-L"))
    done = subprocess.run(
        [program], capture_output=True, text=True, check=True, env=os.environ | {"LD_LIBRARY_PATH": folder}
    )
    assert done.stdout.startswith(("NT-", "default-nt"))


@pytest.mark.stress
def test_the_example_builds_and_runs(sources, objects, tmp_path):
    out = tmp_path / "p"
    build(sources, out, objects)
    own = [str(path) for path in sorted(sources.glob("*.c"))]
    include = (f"-I{sources}", f"-Wa,-I{sources}")
    command = [
        "gcc",
        "-std=gnu11",
        "-O2",
        *STRICT,
        *include,
        *own,
        str(sources / "cubins.S"),
        "-o",
        str(out / "e"),
        *LINKED,
    ]
    subprocess.run(command, check=True)
    done = subprocess.run(
        [str(out / "e")], capture_output=True, text=True, check=False,
        env=os.environ | {"LD_LIBRARY_PATH": str(out), "AUTOTUNE_CUBLAS": "0"},
    )  # fmt: skip
    assert done.returncode == 0 and "largest error" in done.stdout, done.stdout + done.stderr


def test_names_are_text_whatever_they_hold(table, tmp_path):
    environment = replace(table.environment, gpu_name='NVIDIA "H200" \\ %s ??/ é')
    text = c_files([(replace(table, environment=environment), {k.sha256: b"x" for k in table.kernels})])
    path = tmp_path / "t.c"
    path.write_bytes(text["c/exported_table.c"])
    subprocess.run(["gcc", "-std=c11", *STRICT, "-fsyntax-only", f"-I{core.FOLDER}", str(path)], check=True)
