"""A cubin says which kernel it holds: tables with swapped cubins are refused, whatever checksums say."""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from table_cases import (
    SOURCE,
    FakeDriver,
    code_of,
    list_anew,
    make_kernel,
    make_spec,
    make_table,
    marked,
    put_packed,
    rank,
    sign,
    slices,
    write_table,
)
from test_export import DEEP, EXACT, SPLIT, SQUARE, FakeCompiler, results
from test_table_fuzzed import NUM_MUTATIONS, SEED
from test_template import CONFIGS, VARIANTS

from autotune.export.exporter import export_table
from autotune.export.manifest import check_files
from autotune.export.package import packed
from autotune.export.tuned import TunedPoint, TunedShape
from autotune.facts.gemm import Gemm
from autotune.files.errors import DispatchError
from autotune.kernel import identity
from autotune.kernel.config import Config
from autotune.kernel.launch import Variant
from autotune.runtime.dispatcher import Dispatcher
from autotune.runtime.launch.devices import LoadedKernel
from autotune.runtime.launch.planner import Engine
from autotune.runtime.table.gpu_models import load_cubins
from autotune.runtime.table.table import Table, load

NAME = identity.of(SOURCE, Config(), Variant())
AGAIN = "it was not loaded: export the table again with `autotune export-table`"


def sample() -> Table:
    """Two kernels of one layout that differ in what is compiled."""
    plain, fast = make_kernel("plain", make_spec()), make_kernel("fast", make_spec(vec_a=4, is_exact=True))
    return make_table(plain, fast, entries=(rank(Gemm(512, 512, 512), "fast"),))


def change_table(folder: Path, change: Any) -> None:
    """Rewrite table.json, with a checksum that fits."""
    path = folder / "table.json"
    tree = json.loads(path.read_text(encoding="utf-8"))
    change(tree)
    path.write_text(sign(tree), encoding="utf-8")
    list_anew(folder)


def put(folder: Path, kernel_id: str, code: bytes) -> None:
    """Give a kernel other code, under a SHA-256 that fits."""
    sha256 = hashlib.sha256(code).hexdigest()
    put_packed(folder, next(k for k in load(folder).kernels if k.id == kernel_id).sha256, packed(code))

    def change(tree: dict[str, Any]) -> None:
        kernel = next(k for k in tree["kernels"] if k["id"] == kernel_id)
        kernel["sha256"], kernel["code_bytes"] = sha256, len(code)

    change_table(folder, change)


def use(kernel_id: str) -> Callable[[Path], LoadedKernel]:
    """Imports a folder, and loads one of its kernels as a product does."""

    def load_it(folder: Path) -> LoadedKernel:
        runtime = Dispatcher(folder, driver=FakeDriver(load(folder)))
        engine = runtime._open()[0].of(0)
        assert isinstance(engine, Engine)
        kernel = next(k for k in runtime.table.kernels if k.id == kernel_id)
        return engine.devices.kernel(engine.devices.gpu(0), kernel)

    return load_it


# ---- the text


@given(CONFIGS, VARIANTS, CONFIGS, VARIANTS)
def test_kernels_share_an_identity_just_if_they_share_code(
    one: Config, variant: Variant, other: Config, other_variant: Variant
) -> None:
    names = identity.of(SOURCE, one, variant), identity.of(SOURCE, other, other_variant)
    assert (names[0] == names[1]) == ((one.kernel, variant) == (other.kernel, other_variant))
    assert names[0] == identity.of(SOURCE, one.kernel, variant) != identity.of("6" * 64, one, variant)
    assert len(names[0]) < identity.MAX_LENGTH and not set(names[0]) & set('"\\')
    assert Config.parse(names[0].split(" ")[3]) == one.kernel, "it can be read back"


@given(st.binary(max_size=99), st.binary(max_size=99))
def test_it_is_read_wherever_it_lies(before: bytes, behind: bytes) -> None:
    assert identity.read(before + marked(NAME, "") + behind) == NAME


@pytest.mark.parametrize(
    "code",
    [
        b"", b"\x7fELF", NAME.encode() + b"\0",  # none
        marked(NAME, "")[:-1], marked("x" * identity.MAX_LENGTH, ""),  # no end
        marked(NAME, "") * 2, marked(identity.MARK + NAME, ""),  # which one?
        marked("sgemm\n", ""), marked("sgemm \x7f", ""), marked("sgemm é", ""),
        identity.MARK.encode() * 500_000,
    ],
    ids=range(11),
)  # fmt: skip
def test_what_is_none_is_read_as_none(code: bytes) -> None:
    assert identity.read(code) == ""


def test_any_bytes_can_be_read() -> None:
    """What comes of mutants is nothing, or a short plain text."""
    rng, code = random.Random(SEED), bytearray(marked(NAME, "code") + bytes(99))
    for _ in range(NUM_MUTATIONS):
        mutant = bytearray(code)
        for _ in range(rng.choice((1, 1, 2, 9))):
            at = rng.randrange(len(mutant))
            piece = rng.choice((bytes([rng.randrange(256)]), b"", b"\0", identity.MARK.encode(), bytes(code)))
            mutant[at : at + rng.choice((0, 1, 30))] = piece
        found = identity.read(bytes(mutant))
        assert len(found) <= identity.MAX_LENGTH and (found.isprintable() and found.isascii())


# ---- tables


def test_a_table_whose_cubins_say_what_they_hold_is_loaded(tmp_path: Path) -> None:
    folder = write_table(sample(), tmp_path / "t")
    change_table(folder, lambda tree: None)
    assert Dispatcher(folder).pick(512, 512, 512).kernel_id == "fast"


def test_swapped_cubins_are_refused_though_their_checksums_fit(tmp_path: Path) -> None:
    folder = write_table(sample(), tmp_path / "t")

    def swap(tree: dict[str, Any]) -> None:
        plain, fast = tree["kernels"][:2]
        for name in ("sha256", "code_bytes", "packed_bytes"):
            plain[name], fast[name] = fast[name], plain[name]

    plain, fast = ((folder / "cubins.gz").read_bytes()[at] for at in list(slices(folder).values())[:2])
    change_table(folder, swap)
    path = folder / "cubins.gz"
    path.write_bytes(fast + plain + path.read_bytes()[len(plain + fast) :])
    table = load(folder)
    for load_it in (use("plain"), check_files, lambda where: load_cubins(where, table)):
        with pytest.raises(DispatchError) as rejected:
            load_it(folder)
        text = str(rejected.value)
        swapped = (
            f"{folder} is damaged: the cubin of kernel {one!r} holds kernel {other!r}; {AGAIN}"
            for one, other in (("plain", "fast"), ("fast", "plain"))
        )
        assert text in swapped


def test_cubins_that_were_exchanged_are_refused_by_their_checksums(tmp_path: Path) -> None:
    folder = write_table(sample(), tmp_path / "t")
    plain, fast = sample().kernels[:2]
    put_packed(folder, plain.sha256, packed(code_of(fast)))
    put_packed(folder, fast.sha256, packed(code_of(plain)))
    with pytest.raises(DispatchError, match=r"SHA-256|does not hold"):
        use("plain")(folder)


@pytest.mark.parametrize(
    ("code", "text"),
    [
        (marked(identity.of("6" * 64, Config(), Variant()), ""), r"another kernel \(sgemm 6{64} NN tm="),
        (marked(identity.of(SOURCE, Config(), Variant(False, True)), ""), r"another kernel \(sgemm 5{64} NT"),
        (b"of an older export", "no kernel that it names"),
        (marked(NAME, "") * 2, "no kernel that it names"),
    ],
    ids=["source", "layout", "none", "two"],
)
def test_a_cubin_from_elsewhere_is_refused(tmp_path: Path, code: bytes, text: str) -> None:
    folder = write_table(sample(), tmp_path / "t")
    put(folder, "fast", code)
    with pytest.raises(DispatchError, match=f"the cubin of kernel 'fast' holds {text}.*; {AGAIN}"):
        use("fast")(folder)
    use("plain")(folder)  # the others serve


def test_a_kernel_that_says_to_be_another_is_refused(tmp_path: Path) -> None:
    """Not the cubin but the config beside it is changed, to one that is as legal."""
    folder = write_table(sample(), tmp_path / "t")
    change_table(folder, lambda tree: tree["kernels"][0]["config"].update(order="zigzag"))
    with pytest.raises(DispatchError, match=r"the cubin of kernel 'plain' holds another kernel \(sgemm 5"):
        use("plain")(folder)


def test_a_split_that_a_launch_chooses_is_no_part_of_it(tmp_path: Path) -> None:
    shapes = tuple(
        TunedShape(gemm, (TunedPoint(Config(reduction="last_block", split_k=split_k), 9.0, True),))
        for gemm, split_k in ((SQUARE, 4), (DEEP, 16))
    )
    folder = export_table(results(shapes=shapes), tmp_path / "t", FakeCompiler())
    first, second = (entry.ranked[0].kernel for entry in load(folder).entries)
    shas = {kernel.id: kernel.sha256 for kernel in load(folder).kernels}
    assert first != second and shas[first] == shas[second]
    load_cubins(folder, load(folder))


# ---- exports


def test_nothing_is_written_that_was_not_requested_for(tmp_path: Path) -> None:
    """A compiler, or a cache, that mixes up two kernels."""
    other = {EXACT: SPLIT.kernel, SPLIT.kernel: EXACT}
    compiler = FakeCompiler(confused=lambda config: other.get(config, config))
    with pytest.raises(DispatchError, match=r"than were asked for: the cubin of kernel .* holds kernel"):
        export_table(results(), tmp_path / "t", compiler)
    assert not (tmp_path / "t").exists()
