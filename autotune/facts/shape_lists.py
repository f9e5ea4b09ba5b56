"""Lists of shapes as people have them: CSV, JSON, and what PyTorch's TunableOp stored. They become the tables
of a suite.

CSV begins with a header, in any order and case: m, n, k, and if need be layout (or trans_a and trans_b),
batch, count, ...; or it is three numbers a line. Separators are commas, semicolons, tabs or spaces. JSON is a
list, or one value a line: objects with these names, triples [m, n, k], or texts such as "4096x128x4096:NT".
"""

from __future__ import annotations

import csv
import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from ..files.errors import UsageError
from ..files.words import shown
from .gemm import Gemm

EXTENTS = ("m", "n", "k")
CHOICES = ("layout", "batch", "shared", "a_type", "epilogue", "ld", "align", "count")
HEADER = "m,n,k[,layout,batch,count]"
_SEPARATORS = ",;\t"
_KNOWN = frozenset((*EXTENTS, *CHOICES, "trans_a", "trans_b"))
_OTHER_NAMES = {
    "calls": "count", "num": "count", "batch_count": "batch", "batch_size": "batch",
    **dict.fromkeys(("transa", "trans_a", "transpose_a", "ta", "a_t"), "trans_a"),
    **dict.fromkeys(("transb", "trans_b", "transpose_b", "tb", "b_t"), "trans_b"),
}  # fmt: skip
_TRANSPOSED = {
    **dict.fromkeys(("n", "0", "false", "no", "none", ""), "N"),
    **dict.fromkeys(("t", "c", "1", "true", "yes"), "T"),
}
_WHOLE = re.compile(r"([+-]?[0-9]{1,20})(\.0*)?")
_TUNABLE = re.compile(r"^(\w*)TunableOp_(.+)_[NTC]{2}$")
_STAMP = "Validator,"
_PARAMS = re.compile(
    r"(?P<a>[ntc])(?P<b>[ntc])_(?P<m>\d+)_(?P<n>\d+)_(?P<k>\d+)(_B_(?P<batch>\d+))?"
    r"(_ld_(?P<lda>\d+)_(?P<ldb>\d+)_(?P<ldc>\d+))?(_.*)?",
    re.IGNORECASE,
)
_HIP_FP32 = "f32_r"
_FP32 = ("float", "tf32")  # the latter: FP32 operands, multiplied in TF32
_LOG = re.compile(r"^\s*(-\s*\{\s*)?(\S*/)?(rocblas|hipblas)", re.IGNORECASE | re.MULTILINE)
_SPACES = re.compile(rf'" +(?=[{_SEPARATORS}]|$)')  # behind a quotation mark: csv takes none there
_BENCHED = re.compile("(roc|hip)blas(lt)?-gflops", re.IGNORECASE)  # a column that their benchmarks print
# Of lines of rocblas-bench and hipblaslt-bench, the YAML of profiles, and traces
_FROM_LOG = (
    "it looks like a log of rocBLAS or hipBLASLt; this line converts its products of FP32: "
    r"""awk -F '[^A-Za-z0-9_.]+' 'BEGIN {print "m,n,k,layout,batch,count"} """
    r"""function row(m, n, k, a, b, batch, count) {gsub("C", "T", a); gsub("C", "T", b); """
    r"""print n "," m "," k "," b a "," batch "," count} """
    r"""/^rocblas_sgemm/ {b = 1; if (/batched/) for (i = 7; i <= NF; i++) if ($i ~ /^[0-9]+$/) b = $i; """
    r"""row($4, $5, $6, $2, $3, b, 1); next} """
    r"""/gemm|hipblaslt/ && /_sgemm|(-r|a_type)[: "]+(f32_r|s)[^a-z0-9_]/ {split("", v); """
    r"""v["batch_count"] = v["call_count"] = 1; for (i = 1; i < NF; i++) """
    r"""if ($(i + 1) ~ /^([0-9]+|[NTC])$/) v[tolower($i)] = $(i + 1); row(v["m"], v["n"], v["k"], """
    r"""v["transposea"] v["transa"], v["transposeb"] v["transb"], v["batch_count"], v["call_count"])}' """
    "FILE > shapes.csv"
)
Note = Callable[[str], None]


class ListedShape(NamedTuple):
    """One shape: where it stands in its file, and its table as a suite has it."""

    where: str
    table: Any


def read_list(text: str, note: Note) -> list[ListedShape] | None:
    """The shapes of a list; None if the text is none. `note`: of what is not used. Raises ValueError."""
    lines = [(number, line) for number, line in enumerate(text.splitlines(), 1) if _is_used(line)]
    first = lines[0][1].strip() if lines else ""
    if not first:
        return None
    if any(_TUNABLE.match(line.partition(",")[0].strip()) for _, line in lines) or first.startswith(_STAMP):
        return _of_tunable_op(lines, note)
    if _BENCHED.search(text):
        return _of_benchmark(lines, note)
    if _LOG.search(text):
        raise ValueError(_FROM_LOG)
    found = _of_json(text, lines, note) if first[0] in '[{"' else None
    if found is not None or first[0] in "[{":
        return found
    names = [_name(cell) for cell in _cells(first)]
    if set(EXTENTS) <= set(names):
        return _of_csv(names, lines[1:], _separator(first), note)
    if len(names) == len(EXTENTS) and all(map(_WHOLE.fullmatch, names)):
        return _of_csv(EXTENTS, lines, _separator(first), note)
    return None


def _is_used(line: str) -> bool:
    return bool(line.strip()) and not line.lstrip().startswith("#")


# ---------------------------------------------------------------------------------------------- CSV


def _separator(line: str) -> str:
    """The most frequent one; a space where there is none."""
    found = max(_SEPARATORS, key=line.count)
    return found if found in line else " "


def _cells(line: str) -> list[str]:
    return next(cells for _, cells in _rows([(1, line)], _separator(line)))


def _rows(lines: Iterable[tuple[int, str]], separator: str) -> Iterator[tuple[int, list[str]]]:
    """The cells of each row, and the number of its last line: a cell in quotation marks may hold several."""
    number = 0

    def texts() -> Iterator[str]:
        nonlocal number
        for numbered in lines:
            number, line = numbered
            yield " ".join(line.split()) if separator == " " else _SPACES.sub('"', line) + "\n"

    try:
        for cells in csv.reader(texts(), delimiter=separator, skipinitialspace=True, strict=True):
            yield number, [cell.strip() for cell in cells]
    except csv.Error as error:
        raise ValueError(f"line {number}: {error}") from None


def _of_csv(
    names: Sequence[str], lines: Iterable[tuple[int, str]], separator: str, note: Note
) -> list[ListedShape]:
    repeated = [name for name, count in Counter(filter(None, names)).items() if count > 1]
    if repeated:
        raise ValueError(f"line 1: the column {repeated[0]!r} is there twice")
    found = []
    for number, cells in _rows(lines, separator):
        if len(cells) != len(names):
            raise ValueError(f"line {number}: expected {len(names)} values, found {len(cells)}")
        given = {name: _value(cell) for name, cell in zip(names, cells, strict=True) if name and cell}
        found.append((f"line {number}", given))
    return _used(found, note)


def _name(cell: Any) -> str:
    name = str(cell).strip().lower()
    return _OTHER_NAMES.get(name, name)


def _value(cell: Any) -> Any:
    """A whole number, which a table may hold as 4096.0; else the cell as it is."""
    if isinstance(cell, float) and cell.is_integer():
        return int(cell)
    found = _WHOLE.fullmatch(cell) if isinstance(cell, str) else None
    return int(found[1]) if found else cell


def _used(found: Sequence[tuple[str, Mapping[str, Any]]], note: Note) -> list[ListedShape]:
    """Tables of what a suite knows, with the layout for two flags."""
    others = dict.fromkeys(name for _, given in found for name in given if name not in _KNOWN)
    if others:
        named = ", ".join(list(others)[:10])
        note(f"of its columns, {named} {'is' if len(others) == 1 else 'are'} not used")
    return [ListedShape(where, _with_layout(given, where)) for where, given in found]


def _with_layout(given: Mapping[str, Any], where: str) -> dict[str, Any]:
    table = {name: value for name, value in given.items() if name in _KNOWN}
    flags = [table.pop(name, None) for name in ("trans_a", "trans_b")]
    if flags == [None, None]:
        return table
    codes = ["N" if flag is None else _TRANSPOSED.get(str(flag).lower()) for flag in flags]
    if "layout" in table or None in codes:
        raise ValueError(f"{where}: trans_a and trans_b are {shown(flags)}: write N or T, and no layout")
    return {**table, "layout": "".join(map(str, codes))}


# --------------------------------------------------------------------------------------------- JSON


def _of_json(text: str, lines: Sequence[tuple[int, str]], note: Note) -> list[ListedShape] | None:
    """A list, or a value a line, or one shape; None for another object, which is a suite of ours."""
    try:
        data = json.loads(text)
    except ValueError:
        data = _of_lines(lines)
    is_one = isinstance(data, list) and bool(data) and not any(isinstance(x, list | dict | str) for x in data)
    if is_one or isinstance(data, str) or (isinstance(data, dict) and set(EXTENTS) <= {*map(_name, data)}):
        data = [data]
    if not isinstance(data, list):
        return None
    return _used([(f"shape {i}", _object(each, f"shape {i}")) for i, each in enumerate(data, 1)], note)


def _of_lines(lines: Sequence[tuple[int, str]]) -> list[Any] | None:
    """A value a line; None where the first is none: TOML, CSV, or JSON that is damaged."""
    found: list[Any] = []
    for number, line in lines if len(lines) > 1 else ():
        try:
            found.append(json.loads(line))
        except ValueError as error:
            if found and not lines[0][1].lstrip().startswith("[["):  # of TOML
                raise ValueError(f"line {number}: {error}") from None
            return None
    return found or None


def _object(each: Any, where: str) -> dict[str, Any]:
    if isinstance(each, dict):
        named = {_name(name): _value(value) for name, value in each.items()}
        if len(named) < len(each):
            raise ValueError(f"{where}: {shown(each)} names something twice")
        return named
    if isinstance(each, list) and len(each) == len(EXTENTS):
        return dict(zip(EXTENTS, map(_value, each), strict=True))
    if isinstance(each, str):
        try:
            gemm = Gemm.parse(each)
        except UsageError as error:
            raise ValueError(f"{where}: {error}") from None
        shared = {"shared": "A" if gemm.shares_a else "B"} if gemm.shares_a or gemm.shares_b else {}
        extents = {"m": gemm.m, "n": gemm.n, "k": gemm.k, "layout": gemm.layout.partition(":")[0]}
        typed = {} if gemm.is_float else {"a_type": gemm.a_type}
        return {**extents, "batch": gemm.batch, **shared, **typed}
    raise ValueError(f"{where}: {shown(each)} is no object with m, n and k, no [m, n, k], and no text")


# ------------------------------------------------ what rocblas-bench and hipblaslt-bench print


def _of_benchmark(lines: Iterable[tuple[int, str]], note: Note) -> list[ListedShape]:
    """Names in one line, values in the next ones: of products that are column-major."""
    names, found = list[str](), []
    for number, line in lines:
        cells = [cell.strip() for cell in line.split(",")]
        if _BENCHED.search(line):
            names = [_name(cell.rpartition(":")[2]) for cell in cells]
        elif set(EXTENTS) <= set(names) and len(cells) == len(names):
            given = dict(zip(names, map(_value, cells), strict=True))
            if given.pop("a_type", _HIP_FP32) == _HIP_FP32:
                table = _with_layout(given, where := f"line {number}")
                extents = {"m": table["n"], "n": table["m"], "layout": table.get("layout", "NN")[::-1]}
                found.append(ListedShape(where, table | extents))
    if not found:
        raise ValueError("it holds no product of FP32")
    note("products of rocBLAS are column-major: m and n, and the operands, change places; taken for FP32")
    return found


# ------------------ PyTorch's TunableOp: GemmTunableOp_float_TN,tn_M_N_K_ld_LDA_LDB_LDC,SOLUTION,MS


def _of_tunable_op(lines: Iterable[tuple[int, str]], note: Note) -> list[ListedShape]:
    """Its products are column-major: by rows they are C transposed, of the operands in the other order."""
    entries, others = [], Counter[str]()
    for number, line in lines:
        name, _, rest = line.partition(",")
        operator = _TUNABLE.match(name.strip())
        if operator is None:
            continue  # a validator
        found = _PARAMS.fullmatch(rest.partition(",")[0].strip())
        if found is None:
            raise ValueError(f"line {number}: {shown(rest)} is not as PyTorch names a product: tn_M_N_K")
        if operator[2] in _FP32:
            bias = {"epilogue": "bias"} if operator[1].endswith("AndBias") else {}
            entries.append(ListedShape(f"line {number}", _by_rows(found) | bias))
        else:
            others[operator[2]] += 1
    if others:
        named = ", ".join(f"{count:,} of {dtype}" for dtype, count in others.most_common())
        note(f"products that are not of FP32 are left out: {named}")
    if not entries:
        raise ValueError("it holds no product of FP32")
    note("PyTorch's products are column-major: m and n, and the operands, change places (tn_1_2_3: 2x1x3:NT)")
    return entries


def _by_rows(found: re.Match[str]) -> dict[str, Any]:
    layout = "".join("N" if found[side] in "nN" else "T" for side in "ba")  # c: of real numbers as t
    extents = {name: int(found[name_there]) for name, name_there in zip(EXTENTS, "nmk", strict=True)}
    table: dict[str, Any] = {**extents, "layout": layout}
    if found["batch"]:
        table["batch"] = int(found["batch"])
    if found["lda"]:
        table["ld"] = [int(found[name]) for name in ("ldb", "lda", "ldc")]
    return table
