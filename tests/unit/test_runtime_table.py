"""The table goes to text and back unchanged, and nothing damaged is read."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, is_dataclass, replace
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from table_cases import (
    FIGURES,
    code_of,
    make_kernel,
    make_spec,
    make_table,
    older_text,
    rank,
    sign,
    with_epilogues,
    write_table,
)

from autotune.export.package import render
from autotune.facts.gemm import Gemm
from autotune.files import strict
from autotune.files.errors import DispatchError
from autotune.files.strict import Within
from autotune.kernel.launch import EPILOGUES, Variant
from autotune.runtime.table.gpu_models import load_cubins
from autotune.runtime.table.soundness import OLDEST
from autotune.runtime.table.table import (
    SCHEMA_VERSION,
    AgainstCublas,
    HeldOut,
    KernelRecord,
    Table,
    load,
    parse,
)

POSITIVE = st.integers(1, 10**6)
TIMES = st.floats(1e-3, 1e9)
SPECS = st.builds(make_spec, vec_a=st.sampled_from((1, 2, 4)), is_exact=st.booleans(), packs_b=st.booleans())
GEMMS = st.builds(Gemm, POSITIVE, POSITIVE, POSITIVE, st.just(False), st.just(False))


def sample_table() -> Table:
    fast = make_kernel("fast", make_spec(vec_a=4, is_exact=True))
    split = make_kernel("split", make_spec(reduction="last_block", split_k=4), None)
    beside = AgainstCublas(5, 1.4, 0.2, 1.3, 0.0, 0.4)
    left_out = (HeldOut("deep k", 3, 0.9, 0.95, 0.98, None), HeldOut("all", 7, 0.91, 0.96, 0.99, beside))
    entries = (rank(Gemm(512, 512, 512), "fast", "split"),)
    return make_table(fast, split, entries=entries, left_out=left_out)


@st.composite
def tables(draw: st.DrawFn) -> Table:
    figures = st.one_of(st.none(), st.builds(replace, st.just(FIGURES), fixed_us=TIMES, round_us=TIMES))
    names = draw(st.lists(st.text(min_size=1, max_size=8), min_size=1, max_size=3, unique=True))
    kernels = [make_kernel(f"k-{name}", draw(SPECS), draw(figures)) for name in names]
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
    assert load_cubins(folder, table) == {k.sha256: code_of(k) for k in table.kernels}


@settings(max_examples=100)
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


def _tree() -> dict[str, Any]:
    return json.loads(render(sample_table()))


_PLACES = [p for p in _places(_tree()) if p != ("checksum",)]


@pytest.mark.every(4)
@pytest.mark.parametrize("place", _PLACES, ids=lambda p: ".".join(map(str, p)))
def test_a_missing_or_mistyped_value_is_refused_thoughsign(place: tuple[Any, ...]) -> None:
    def changed(change: Any) -> str:
        tree = _tree()
        node: Any = tree
        for key in place[:-1]:
            node = node[key]
        change(node, place[-1])
        return sign(tree)

    may_be_absent = place[-2:-1] in (("kernels",), ("entries",), ("ranked",), ("left_out",))
    if not may_be_absent and place not in (("left_out",), ("max_workspace",), ("order",)):
        with pytest.raises(DispatchError):
            parse(changed(lambda node, key: node.pop(key)))
    with pytest.raises(DispatchError):
        parse(changed(lambda node, key: node.__setitem__(key, [{"not": "this"}])))


def test_unchanged_and_signed_anew_is_read() -> None:
    assert parse(sign(_tree())) == sample_table()


def test_a_limit_on_the_workspace_is_that_of_each_kernel() -> None:
    tree = _tree() | {"max_workspace": 1 << 20}
    table = parse(sign(tree))
    assert {kernel.spec.max_workspace for kernel in table.kernels} == {1 << 20}
    assert parse(render(table)) == table
    with pytest.raises(DispatchError, match="launched otherwise than its config says"):
        render(replace(table, max_workspace=None))
    with pytest.raises(DispatchError, match="max_workspace"):
        parse(sign(_tree() | {"max_workspace": -1}))


def test_an_unknown_field_is_refused() -> None:
    with pytest.raises(DispatchError, match="unknown field 'surprise'"):
        parse(sign(_tree() | {"surprise": 1}))


def test_a_newer_schema_says_so_whatever_else_changed() -> None:
    text = json.dumps({"format": "autotune dispatch table", "schema_version": SCHEMA_VERSION + 1, "new": []})
    newer = rf"schema {SCHEMA_VERSION + 1}, newer than {SCHEMA_VERSION}.*autotune that wrote it"
    with pytest.raises(DispatchError, match=newer):
        parse(text)


@pytest.mark.parametrize("version", range(1, SCHEMA_VERSION))
def test_a_table_of_the_schema_before_is_read_and_older_ones_name_what_exports_again(version: int) -> None:
    text = older_text(sample_table(), version)
    if version >= OLDEST:
        assert parse(text) == sample_table()
        return
    how = "export the table again with `autotune export-table`$"
    older = f"is of schema {version}, and 10 is the oldest that this code reads; {how}"
    with pytest.raises(DispatchError, match=older):
        parse(text)


def test_how_blocks_walk_follows_from_the_config() -> None:
    table = make_table(make_kernel("k", make_spec(group=8, is_along_m=True)))
    (found,) = (kernel for kernel in parse(render(table)).kernels if kernel.id == "k")
    assert (found.spec.group, found.spec.is_along_m) == (8, True)
    assert (found.config.group, found.config.raster) == (8, "m")


def test_a_table_that_says_nothing_of_shapes_left_out_is_read() -> None:
    tree = _tree()
    del tree["left_out"]
    assert parse(sign(tree)) == replace(sample_table(), left_out=())


def batch_table() -> Table:
    """Two batches of a shape that is tuned as a single product, too."""
    many = make_kernel("many", make_spec(vec_a=4, variant=Variant(is_batched=True)), None)
    single, batch = Gemm(512, 512, 512), Gemm(512, 512, 512, batch=8)
    shared = replace(batch, shares_b=True)
    entries = (rank(single, "one"), rank(batch, "many"), rank(shared, "many"))
    return make_table(make_kernel("one", make_spec()), many, entries=entries)


def test_batches_are_written_and_read_as_they_are() -> None:
    assert parse(render(batch_table())) == batch_table()


@pytest.mark.parametrize("version", range(OLDEST, SCHEMA_VERSION + 1))
def test_sums_of_an_older_table_that_are_too_large_now_are_left_out(version: int) -> None:
    """With the padding of their tiles. The rest of the table serves."""
    variant = Variant(is_batched=True)
    split = make_kernel("split", make_spec(reduction="last_block", split_k=8, variant=variant), None)
    other, large = make_kernel("other", make_spec(variant=variant), None), Gemm(65, 65, 512, batch=4000)
    larger, single = replace(large, batch=4001), Gemm(512, 512, 512)
    entries = rank(large, "split", "other"), rank(larger, "split"), rank(single, "one")
    table = make_table(make_kernel("one", make_spec()), split, other, entries=entries)
    text = render(table) if version == SCHEMA_VERSION else older_text(table, version)
    if version > OLDEST:
        with pytest.raises(DispatchError, match="partial sums would take more than 1 GiB"):
            parse(text)
    else:
        first, last = parse(text).entries
        assert [one.kernel for one in first.ranked] == ["other"] and last.gemm == single


BATCH_FAULTS = {
    "a kernel for single products": (
        lambda tree: tree["entries"][1]["ranked"][0].update(kernel="one"),
        "512x512x512b8:NN names a kernel for single",
    ),
    "a kernel for batches": (
        lambda tree: tree["entries"][0]["ranked"][0].update(kernel="many"),
        "512:NN names a kernel for batches",
    ),
    "a kernel that cannot read it": (
        lambda tree: tree["entries"][1]["gemm"].update(k=510), "'many', which cannot serve it: A is not made",
    ),
    "no products": (lambda tree: tree["entries"][1]["gemm"].update(batch=0), "batch is 0, expected a whole"),
    "all shared": (lambda tree: tree["entries"][2]["gemm"].update(shares_a=True), "share one of them"),
    "one that shares": (lambda tree: tree["entries"][0]["gemm"].update(shares_a=True), "shares no operand"),
    "twice": (lambda tree: tree["entries"][2]["gemm"].update(shares_b=False), "a shape stands twice"),
    "modelled": (lambda tree: tree["kernels"][0]["variant"].update(is_batched=True), "and has a model"),
    "as the default": (lambda tree: tree["defaults"].update(NN="many"), "does not serve every call"),
}  # fmt: skip


def added_table() -> Table:
    """With a bias, and with a bias and GELU."""
    return with_epilogues(sample_table(), EPILOGUES["bias"], EPILOGUES["bias-gelu"])


def test_epilogues_are_written_and_read_as_they_are() -> None:
    assert parse(render(added_table())) == added_table()
    some = replace(added_table(), epilogues=())  # of which no kernel needs to have any
    assert parse(render(some)) == some


def _first_added(tree: Any) -> Any:
    return next(one for one in tree["kernels"] if one["variant"]["epilogue"]["bias"] == "columns")


def _drop_split(tree: Any) -> None:
    """The second plain kernel, not its variants."""
    del tree["kernels"][1], tree["entries"][0]["ranked"][1]


def _make_unknown(tree: Any) -> None:
    """An epilogue that only one kernel has."""
    tree["epilogues"] = []
    _first_added(tree)["variant"]["epilogue"]["bias"] = "rows"


EPILOGUE_FAULTS: dict[str, tuple[Any, str]] = {
    "unknown": (_make_unknown, "that no call asks for"),
    "twice": (lambda tree: tree["epilogues"].append(tree["epilogues"][0]), "an epilogue stands twice"),
    "not there": (
        lambda tree: tree["epilogues"].append({"bias": "none", "activation": "relu", "keeps": False}),
        "lacks a variant with the epilogue relu",
    ),
    "of rows": (lambda tree: tree["epilogues"][0].update(bias="rows"), "that no call asks for"),
    "that keeps": (lambda tree: tree["epilogues"][0].update(keeps=True), "that no call asks for"),
    "of nothing": (lambda tree: tree["epilogues"][0].update(bias="none"), "that no call asks for"),
    "one missing": (lambda tree: tree["kernels"].remove(_first_added(tree)), "lacks a variant with .* bias"),
    "without a plain one": (_drop_split, "has an epilogue, and there is none without"),
    "modelled": (
        lambda tree: _first_added(tree).update(model=tree["kernels"][0]["model"]), "an epilogue, and a model",
    ),
    "ranked": (
        lambda tree: tree["entries"][0]["ranked"][0].update(kernel=_first_added(tree)["id"]),
        "names a kernel with an epilogue",
    ),
    "as the default": (
        lambda tree: tree["defaults"].update(NN="default-nn-bias_columns"), "does not serve every call",
    ),
}  # fmt: skip


FAULTS: dict[str, tuple[Any, dict[str, tuple[Any, str]]]] = {
    "batch": (batch_table, BATCH_FAULTS), "epilogue": (added_table, EPILOGUE_FAULTS),
}  # fmt: skip


@pytest.mark.parametrize(("what", "name"), [(what, name) for what in FAULTS for name in FAULTS[what][1]])
def test_what_cannot_be_of_a_batch_or_an_epilogue_is_refused(what: str, name: str) -> None:
    make, faults = FAULTS[what]
    change, message = faults[name]
    tree = json.loads(render(make()))
    change(tree)
    with pytest.raises(DispatchError, match=message):
        parse(sign(tree))


@pytest.mark.parametrize("text", ["{}", "[]", "null", '{"format": "other"}'])
def test_something_else_is_called_so(text: str) -> None:
    with pytest.raises(DispatchError, match="not a dispatch table"):
        parse(text)


def _changed(**values: Any) -> str:
    """The sample with values elsewhere in it, by path: `limits__num_sms`, `kernels__0__config__bm`."""
    tree = _tree()
    for path, value in values.items():
        node: Any = tree
        *steps, last = (int(step) if step.isdecimal() else step for step in path.split("__"))
        for step in steps:
            node = node[step]
        node[last] = value
    return sign(tree)


_ONE = {"m": 1, "n": 1, "k": 1, "trans_a": False, "trans_b": False}
_FAST = {"kernel": "fast", "time_us": 1.0, "is_tied": True}


def _entries(*entries: tuple[dict[str, Any], list[Any]]) -> str:
    return _changed(entries=[{"gemm": gemm, "cublas_us": None, "ranked": ranked} for gemm, ranked in entries])


WRONG = {
    "size": _changed(kernels__0__config__bm=0),
    "size that no search has": _changed(kernels__0__config__bm=1024),
    "no whole warps": _changed(kernels__0__config__wm=48),
    "division by nothing": _changed(kernels__0__config__slice_k=0),
    "vector": _changed(kernels__0__config__vec_a=3),
    "copies that turn vectors": _changed(kernels__0__config__copy_a="async"),
    "more shared memory than there is": _changed(kernels__0__config__stages=8, kernels__0__config__bk=64),
    "reduction": _changed(kernels__0__config__reduction="magic"),
    "split without reduction": _changed(kernels__0__config__split_k=2),
    "reduction without split": _changed(kernels__0__config__reduction="two_pass"),
    "cluster of no size": _changed(kernels__1__config__reduction="cluster", kernels__1__config__split_k=16),
    "cluster that the GPU does not know": _changed(
        kernels__1__config__reduction="cluster", limits__compute_capability=[8, 9],
        environment__compute_capability=[8, 9],
    ),
    "sha": _changed(kernels__0__sha256="../../etc/passwd"),
    "no residency": _changed(kernels__0__blocks_per_sm=0),
    "residency that cannot be": _changed(kernels__0__blocks_per_sm=4),
    "no register": _changed(kernels__0__registers=0),
    "more registers than there are": _changed(kernels__0__registers=256),
    "negative figure": _changed(kernels__0__model__step_us=-1.0),
    "efficiency": _changed(kernels__0__model__memory_efficiency=0.0),
    "no SM": _changed(limits__num_sms=0),
    "beyond a double": _changed(limits__num_sms=10**400),
    "float beyond a double": _changed(limits__fma_tflops=10**400),
    "half a surrogate": _changed(created_at="\ud800"),
    "doubled id": _changed(kernels__0__id="split"),
    "reference to nowhere": _entries((_ONE, [_FAST | {"kernel": "nobody"}])),
    "other layout": _entries((_ONE | {"trans_a": True}, [_FAST])),
    "empty entry": _entries((_ONE, [])),
    "doubled shape": _entries((_ONE, [_FAST]), (_ONE, [_FAST])),
    "time of nothing": _entries((_ONE, [_FAST | {"time_us": 0.0}])),
    "no default": _changed(defaults={"NN": "default-nn"}),
    "default with a workspace": _changed(kernels__2__config__pack_b=1),
    "picky default": _changed(defaults__NN="fast"),
    "default of another layout": _changed(defaults__NN="default-tt"),
    "two GPUs": _changed(limits__compute_capability=[8, 0]),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_well_formed_nonsense_is_refused(name: str) -> None:
    with pytest.raises(DispatchError, match=r"damaged: .*export"):
        parse(WRONG[name])


def test_nothing_is_written_that_is_launched_otherwise_than_its_config_says() -> None:
    table = sample_table()
    odd = replace(table.kernels[0], spec=replace(table.kernels[0].spec, threads=32))
    with pytest.raises(DispatchError, match="launched otherwise"):
        render(replace(table, kernels=(odd, *table.kernels[1:])))


def test_a_default_must_compete() -> None:
    table = sample_table()
    mute = [replace(k, model=None) if k.id == "default-nn" else k for k in table.kernels]
    with pytest.raises(DispatchError, match="no model to compete"):
        parse(render(replace(table, kernels=tuple(mute))))


@pytest.mark.parametrize("constant", ["NaN", "Infinity", "-Infinity", "1e999"])
def test_numbers_are_finite(constant: str) -> None:
    text = json.dumps(_tree()).replace("2.5", constant, 1)
    with pytest.raises((DispatchError, strict.Mismatch)):
        parse(text)


def test_a_key_that_stands_twice_is_refused() -> None:
    with pytest.raises(strict.Mismatch, match="twice"):
        strict.parse('{"a": 1, "a": 1}')


@pytest.mark.parametrize("change", ["missing", "changed", "cut"])
def test_a_damaged_cubin_is_refused(tmp_path: Path, change: str) -> None:
    table = sample_table()
    folder = write_table(table, tmp_path / "t")
    path = folder / "cubins.gz"
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
    with pytest.raises(strict.Mismatch, match=rf"s\.{field}"):
        strict.read(Sample, GOOD | {field: value}, "s")


@dataclass(frozen=True)
class Columns:
    whole: int
    text: str
    flag: bool
    bounded: Annotated[int, Within(1, 9)]
    share: Annotated[float, Within(0, 1)]
    maybe: Annotated[float, Within(0, 1)] | None
    triple: tuple[Annotated[int, Within(0, 9)], int, str]
    many: tuple[int, ...]
    free: float
    inner: Sample | None


RIGHT = {"whole": 1, "text": "a", "flag": True, "bounded": 9, "share": 0.5, "maybe": None,
         "triple": [1, 2, "c"], "many": [3], "free": -1.5, "inner": GOOD}  # fmt: skip
ODD_VALUES = st.sampled_from(
    (0, 1, -1, 1 << 64, 10, True, None, 0.5, 1.5, float("nan"), float("inf"), 1e300, "", "é", "\ud800", [],
     [1, 2], [1, 2, "c"], [1, "b", "c"], [1 << 70], {}, GOOD, GOOD | {"count": "1"}, GOOD | {"ratio": 1})
)  # fmt: skip


def _describe(declared: Any, value: Any) -> Any:
    try:
        return strict.read(declared, value, "s")
    except strict.Mismatch as mismatch:
        return str(mismatch)


@given(
    st.lists(st.dictionaries(st.sampled_from(sorted(RIGHT)), ODD_VALUES, max_size=2), max_size=4),
    st.booleans(),
)
def test_records_read_by_columns_are_as_those_read_one_by_one(
    changes: list[dict[str, Any]], lacks_one: bool
) -> None:
    records = [RIGHT | changed for changed in changes]
    if lacks_one and records:
        records[-1] = {name: value for name, value in records[-1].items() if name != "flag"}
    each = [_describe(Columns, record) for record in records]
    faults = [f"s[{i}]{shown.removeprefix('s')}" for i, shown in enumerate(each) if type(shown) is str]
    assert repr(_describe(tuple[Columns, ...], records)) == repr(faults[0] if faults else tuple(each))


def test_a_record_of_one_field_and_a_list_of_none_are_read() -> None:
    assert strict.read(tuple[Single, ...], [{"text": "ab"}, {"text": "c"}], "s") == (
        Single("ab"),
        Single("c"),
    )
    assert strict.read(tuple[Single, ...], [], "s") == ()
    assert strict.read(tuple[int, ...], [], "s") == ()


@dataclass(frozen=True)
class Single:
    text: str


def _declared(cls: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Every field of a record and of those in it."""
    for name, declared in get_type_hints(cls, include_extras=True).items():
        kinds = [declared]
        while kinds:
            kind = kinds.pop()
            if is_dataclass(kind):
                yield from _declared(kind, f"{path}{name}.")
            elif get_origin(kind) is not Annotated and get_args(kind):
                kinds += get_args(kind)
            else:
                yield f"{path}{name}", kind


def test_every_number_of_a_table_has_bounds_where_it_is_declared() -> None:
    """Those of a config are values of their parameters, and a Gemm holds its extents itself."""
    fields_of = {
        name: kind
        for cls in (Table, KernelRecord)
        for name, kind in _declared(cls)
        if not name.startswith(("config.", "kernels.", "entries.gemm."))
    }
    assert {"registers", "limits.num_sms", "model.step_us", "entries.ranked.time_us"} <= set(fields_of)
    assert not [name for name, kind in fields_of.items() if kind in (int, float)]
