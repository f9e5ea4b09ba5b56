"""The table goes to text and back unchanged, and nothing damaged is read."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from dispatch_cases import FIGURES, code_of, make_kernel, make_spec, make_table, rank, write_table
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.dispatch import strict
from autotune.dispatch.table import SCHEMA_VERSION, Table, _digest, load, load_cubins, parse, render
from autotune.errors import DispatchError
from autotune.gemm import Gemm

POSITIVE = st.integers(1, 10**6)
TIMES = st.floats(1e-3, 1e9)
GEMMS = st.builds(Gemm, POSITIVE, POSITIVE, POSITIVE, st.just(False), st.just(False))


def sample_table() -> Table:
    fast = make_kernel("fast", make_spec(vec_a=4, is_exact=True))
    split = make_kernel("split", make_spec(reduction="last_block", split_k=4), None)
    return make_table(fast, split, entries=(rank(Gemm(512, 512, 512), "fast", "split"),))


@st.composite
def tables(draw: st.DrawFn) -> Table:
    figures = st.one_of(st.none(), st.builds(replace, st.just(FIGURES), fixed_us=TIMES, round_us=TIMES))
    names = draw(st.lists(st.text(min_size=1, max_size=8), min_size=1, max_size=3, unique=True))
    kernels = [make_kernel(f"k-{name}", make_spec(bm=draw(POSITIVE)), draw(figures)) for name in names]
    gemms = draw(st.lists(GEMMS, max_size=3, unique=True))
    entries = tuple(rank(g, draw(st.sampled_from(kernels)).id) for g in gemms)
    return make_table(*kernels, entries=entries, created_at=draw(st.text(max_size=20)))


@given(tables())
def test_a_table_survives_its_text(table: Table) -> None:
    assert parse(render(table)) == table


def test_a_table_survives_its_folder(tmp_path: Path) -> None:
    table = sample_table()
    folder = write_table(table, tmp_path / "t")
    assert load(folder) == table
    assert load_cubins(folder, table) == {k.sha256: code_of(k.id) for k in table.kernels}


@settings(max_examples=300)
@given(st.data())
def test_one_changed_byte_is_refused(data: st.DataObject) -> None:
    raw = bytearray(render(sample_table()).encode())
    at = data.draw(st.integers(0, len(raw) - 1))
    raw[at] ^= data.draw(st.integers(1, 255))
    with pytest.raises((DispatchError, UnicodeDecodeError)):
        parse(raw.decode())


@given(st.integers(0, 10**6))
def test_a_table_cut_short_is_refused(length: int) -> None:
    text = render(sample_table())
    with pytest.raises(DispatchError):
        parse(text[: length % len(text)])


def test_a_byte_that_is_no_text_is_refused(tmp_path: Path) -> None:
    folder = write_table(sample_table(), tmp_path / "t")
    (folder / "table.json").write_bytes(b"\xff" + (folder / "table.json").read_bytes()[1:])
    with pytest.raises(DispatchError, match="not UTF-8"):
        load(folder)


def _places(node: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Paths of all values in a JSON tree."""
    items = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    return [path, *(place for key, value in items for place in _places(value, (*path, key)))][path == () :]


def _signed(data: dict[str, Any]) -> str:
    """The text of a changed table with a checksum that fits: only its meaning can be wrong."""
    text = json.dumps(data | {"checksum": "0" * 64}, indent=1, ensure_ascii=False) + "\n"
    return text.replace("0" * 64, _digest(text), 1)


def _tree() -> dict[str, Any]:
    return json.loads(render(sample_table()))


_PLACES = [p for p in _places(_tree()) if p != ("checksum",)]


@pytest.mark.parametrize("place", _PLACES, ids=lambda p: ".".join(map(str, p)))
def test_a_missing_or_mistyped_value_is_refused_though_signed(place: tuple[Any, ...]) -> None:
    def changed(change: Any) -> str:
        tree = _tree()
        node: Any = tree
        for key in place[:-1]:
            node = node[key]
        change(node, place[-1])
        return _signed(tree)

    is_item_of_a_list = place[-2:-1] in (("kernels",), ("entries",), ("ranked",))
    if not is_item_of_a_list and "config" not in place[:-1]:
        with pytest.raises(DispatchError):
            parse(changed(lambda node, key: node.pop(key)))
    with pytest.raises(DispatchError):
        parse(changed(lambda node, key: node.__setitem__(key, [{"not": "this"}])))


def test_unchanged_and_signed_anew_is_read() -> None:
    assert parse(_signed(_tree())) == sample_table()


def test_an_unknown_field_is_refused() -> None:
    with pytest.raises(DispatchError, match="unknown field 'surprise'"):
        parse(_signed(_tree() | {"surprise": 1}))


def test_a_newer_schema_says_so_whatever_else_changed() -> None:
    text = json.dumps({"format": "autotune dispatch table", "schema_version": SCHEMA_VERSION + 1, "new": []})
    with pytest.raises(DispatchError, match=r"schema 4, newer than 3.*autotune that wrote it"):
        parse(text)


LATER = {1: ("packs_a", "packs_b", "overlaps"), 2: ("overlaps",)}  # what kernels of a schema do not say


@pytest.mark.parametrize("version", LATER)
def test_a_table_of_an_older_schema_is_read(version: int) -> None:
    """Its kernels pack nothing, and are not launched early: they would not wait."""
    tree = _tree() | {"schema_version": version}
    for kernel in tree["kernels"]:
        for name in LATER[version]:
            del kernel["spec"][name]
    table = parse(_signed(tree))
    assert table == sample_table()
    assert not any(kernel.spec.overlaps for kernel in table.kernels)
    for kernels in (1, {}, [1], [{}], [{"spec": 1}]):
        with pytest.raises(DispatchError, match="damaged"):
            parse(_signed(tree | {"kernels": kernels}))


@pytest.mark.parametrize("text", ["{}", "[]", "null", '{"format": "other"}'])
def test_something_else_is_called_so(text: str) -> None:
    with pytest.raises(DispatchError, match="not a dispatch table"):
        parse(text)


def _with_kernel(**changes: Any) -> Table:
    table = sample_table()
    kernel = table.kernels[0]
    spec = {k: changes.pop(k) for k in list(changes) if k in asdict(kernel.spec)}
    changed = replace(kernel, spec=replace(kernel.spec, **spec), **changes)
    return replace(table, kernels=(changed, *table.kernels[1:]))


WRONG = {
    "size": _with_kernel(bm=0),
    "vector": _with_kernel(vec_a=3),
    "reduction": _with_kernel(reduction="magic"),
    "split without reduction": _with_kernel(split_k=2),
    "overlap that the GPU does not know": replace(
        _with_kernel(overlaps=True),
        limits=replace(sample_table().limits, compute_capability=(8, 9)),
        environment=replace(sample_table().environment, compute_capability=(8, 9)),
    ),
    "cluster of no size": _with_kernel(reduction="cluster", split_k=16),
    "sha": _with_kernel(sha256="../../etc/passwd"),
    "residency": _with_kernel(blocks_per_sm=0),
    "negative figure": _with_kernel(model=replace(FIGURES, step_us=-1.0)),
    "efficiency": _with_kernel(model=replace(FIGURES, memory_efficiency=0.0)),
    "doubled id": _with_kernel(id="split"),
    "reference to nowhere": replace(sample_table(), entries=(rank(Gemm(1, 1, 1), "nobody"),)),
    "other layout": replace(sample_table(), entries=(rank(Gemm(1, 1, 1, True), "fast"),)),
    "empty entry": replace(sample_table(), entries=(rank(Gemm(1, 1, 1)),)),
    "doubled shape": replace(sample_table(), entries=(rank(Gemm(1, 1, 1), "fast"),) * 2),
    "no default": replace(sample_table(), defaults={"NN": "default-nn"}),
    "default with a workspace": replace(
        sample_table(),
        kernels=tuple(
            replace(k, spec=replace(k.spec, packs_b=True)) if k.id == "default-nn" else k
            for k in sample_table().kernels
        ),
    ),
    "picky default": replace(sample_table(), defaults={**sample_table().defaults, "NN": "fast"}),
    "default of another layout": replace(
        sample_table(), defaults={**sample_table().defaults, "NN": "default-tt"}
    ),
    "two GPUs": replace(sample_table(), limits=replace(sample_table().limits, compute_capability=(8, 0))),
}


@pytest.mark.parametrize("name", WRONG)
def test_well_formed_nonsense_is_refused(name: str) -> None:
    with pytest.raises(DispatchError, match=r"damaged: .*export"):
        parse(render(WRONG[name]))


def test_a_default_must_compete() -> None:
    table = sample_table()
    mute = [replace(k, model=None) if k.id == "default-nn" else k for k in table.kernels]
    with pytest.raises(DispatchError, match="no model to compete"):
        parse(render(replace(table, kernels=tuple(mute))))


@pytest.mark.parametrize("constant", ["NaN", "Infinity", "-Infinity", "1e999"])
def test_numbers_are_finite(constant: str) -> None:
    text = json.dumps(_tree()).replace("2.5", constant, 1)
    with pytest.raises((DispatchError, strict.Misfit)):
        parse(text)


def test_a_key_that_stands_twice_is_refused() -> None:
    with pytest.raises(strict.Misfit, match="twice"):
        strict.parse('{"a": 1, "a": 1}')


@pytest.mark.parametrize("change", ["missing", "changed", "cut"])
def test_a_damaged_cubin_is_refused(tmp_path: Path, change: str) -> None:
    table = sample_table()
    folder = write_table(table, tmp_path / "t")
    path = folder / table.kernels[0].cubin_file
    code = path.read_bytes()
    if change == "missing":
        path.unlink()
    else:
        path.write_bytes(code[:-1] if change == "cut" else bytes([code[0] ^ 1]) + code[1:])
    with pytest.raises(DispatchError, match="export the table again"):
        load_cubins(folder, table)


def test_a_missing_folder_says_what_to_pass(tmp_path: Path) -> None:
    with pytest.raises(DispatchError, match="pass a folder made by export-table"):
        load(tmp_path / "nowhere")


@dataclass(frozen=True)
class Sample:
    count: int
    ratio: float
    label: str | None
    pair: tuple[int, int]
    many: tuple[str, ...]
    mixed: dict[str, int | str]


GOOD = {"count": 1, "ratio": 2, "label": None, "pair": [1, 2], "many": [], "mixed": {"a": 1, "b": "x"}}


def test_strict_reads_what_fits() -> None:
    sample = strict.read(Sample, GOOD, "s")
    assert sample == Sample(1, 2.0, None, (1, 2), (), {"a": 1, "b": "x"})
    assert type(sample.ratio) is float


@pytest.mark.parametrize(
    ("field", "value"),
    [("count", True), ("count", 1.0), ("count", "1"), ("ratio", "1"), ("ratio", True), ("label", 1),
     ("pair", [1]), ("pair", [1, 2, 3]), ("pair", {}), ("many", [1]), ("mixed", {"a": None}),
     ("mixed", {"a": True}), ("mixed", [])],
)  # fmt: skip
def test_strict_converts_nothing(field: str, value: Any) -> None:
    with pytest.raises(strict.Misfit, match=rf"s\.{field}"):
        strict.read(Sample, GOOD | {field: value}, "s")
