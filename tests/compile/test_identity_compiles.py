"""The identity is in what NVRTC makes, and costs no kernel anything: its code stays, byte for byte."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from autotune.files.errors import TrialFailure, UsageError
from autotune.kernel import compiler as module
from autotune.kernel import identity, same_code, template
from autotune.kernel.compiler import Compiler
from autotune.kernel.config import Config
from autotune.kernel.launch import Variant

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
import sass

SMALL = Config(
    bm=64, bn=64, bk=8, wm=32, wn=32, tm=4, tn=8, unroll_k=8, stages=2, vec_a=1, copy_a="register",
    copy_b="register", min_blocks=1,
)  # fmt: skip
KINDS = {
    "plain": (SMALL, Variant()),
    "split": (replace(SMALL, reduction="two_pass", split_k=4, edges="exact"), Variant(is_wide=True)),
    "packed": (replace(SMALL, pack_a=1, pack_b=1, vec_a=4, vec_b=4, pad=0), Variant(True, False)),
}
ENTRIES = (template.ENTRY, template.REDUCE_ENTRY, template.PACK_ENTRY)
# of an entry: its code, what the driver is told of it, its constants
PARTS = (".text.", ".nv.info.", ".nv.constant0.")
MODULE_BYTES = 1024  # that the text, its symbol and its address may take


@pytest.fixture(params=["sm_75", "sm_86", "sm_90", "sm_120"], scope="module")
def compiler(request: pytest.FixtureRequest) -> Iterator[Compiler]:
    with closing(Compiler(request.param)) as made:
        yield made


def section(code: bytes, name: str) -> bytes | None:
    try:
        return sass._section(code, name)
    except UsageError:
        return None


@pytest.mark.every(2)
@pytest.mark.parametrize(
    ("compiler", "kind"),
    [("sm_75", "plain"), ("sm_86", "packed"), *(("sm_90", kind) for kind in KINDS), ("sm_120", "split")],
    indirect=["compiler"],
)
def test_kernels_are_what_they_are_without_it(compiler: Compiler, kind: str) -> None:
    config, variant = KINDS[kind]
    named = compiler.compile(config, variant)
    bare = compiler.compile_source(template.source(), template.macros(config, variant))
    name = identity.of(same_code.kept_as(template.source_hash()), config, variant)
    assert (identity.read(named.code), identity.read(bare.code)) == (name, "")
    parts = [f"{part}{entry}" for part in PARTS for entry in ENTRIES]
    assert section(named.code, ".text.sgemm")
    for part in parts:
        if part.startswith(".nv.info."):  # it numbers symbols, and there is one more
            assert len(section(named.code, part) or b"") == len(section(bare.code, part) or b"")
        else:
            assert section(named.code, part) == section(bare.code, part), part
    figures = ("registers", "spill_bytes", "stack_bytes", "static_smem_bytes")
    assert [getattr(named, one) for one in figures] == [getattr(bare, one) for one in figures]
    assert len(name) < len(named.code) - len(bare.code) < MODULE_BYTES
    assert b"\0sgemm_identity\0" in named.code, "its symbol"


def test_it_lies_where_other_constants_of_the_module_are(compiler: Compiler) -> None:
    """So it brings no segment of its own, which a driver would have to allocate."""
    config, variant = KINDS["plain"]
    named = compiler.compile(config, variant)
    bare = compiler.compile_source(template.source(), template.macros(config, variant))
    assert identity.MARK.encode() in (section(named.code, ".nv.global.init") or b"")
    assert section(bare.code, ".nv.global.init")


@pytest.fixture
def cached(tmp_path: Path) -> Iterator[Compiler]:
    with closing(Compiler("sm_90", cache_dir=tmp_path / "cache", num_threads=1)) as made:
        yield made


def test_a_cache_that_gives_another_kernel_is_not_believed(cached: Compiler, tmp_path: Path) -> None:
    (one, variant), (other, other_variant) = KINDS["plain"], KINDS["split"]
    first, second = cached.compile(one, variant), cached.compile(other, other_variant)
    files = [path for path in (tmp_path / "cache/entries").rglob("*") if path.is_file()]
    assert len(files) == 2
    contents = [path.read_bytes() for path in files]
    for path, content in zip(files, reversed(contents), strict=True):
        path.write_bytes(content)
    again = cached.compile(one, variant)
    assert again.compile_s > 0 and again.code == first.code != second.code
    assert cached.compile(one, variant).compile_s == 0


def test_an_answer_to_another_question_is_no_kernel(
    cached: Compiler, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (one, variant), (other, other_variant) = KINDS["plain"], KINDS["split"]
    cached.compile(one, variant)
    run, requested = module.nvrtc.Process.compile, []

    def confuse(process, request):  # type: ignore[no-untyped-def]
        requested.append(request)
        return run(process, requested[0])

    monkeypatch.setattr(module.nvrtc.Process, "compile", confuse)
    cached.compile(replace(one, order="zigzag"), variant)
    with pytest.raises(TrialFailure, match=r"'sgemm .* was compiled, and the code is 'sgemm .*order=zigzag"):
        cached.compile(other, other_variant)
