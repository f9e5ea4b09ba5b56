"""Suites: files that list the shapes of a search, and how often a program calls for each.

A suite is written by hand in TOML, or recorded by a program that calls an exported table, in JSON: there each
process writes its own file into the folder FILE.d, and FILE means all of them.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from .facts.cublas_calls import adds_bias_within
from .facts.gemm import FP32, LAYOUTS, Gemm, Triple
from .facts.shape_lists import CHOICES, EXTENTS, HEADER, ListedShape, Note, read_list
from .files.errors import UsageError
from .files.strict import NewerVersion, check_keys, check_version, items, table, whole
from .files.user_file import decoded, read_file, read_toml, unusable
from .files.words import LARGEST, counted, shown
from .kernel.launch import BIAS, EPILOGUES, PLAIN, Epilogue, name_of

MOST_CALLS = 10**15  # of one shape
MOST_JSON = 64 << 20  # bytes: four times what a process records at most
VERSION = 2  # of what is recorded: 1 had no epilogues
ALIGNED = 16  # bytes: what shapes are tuned with
_NOTES = ("name", "kind", "notes", "cublas_us")  # notes for readers of the file: not used
_KEYS = (*EXTENTS, *CHOICES, *_NOTES)
_HOW = "write [[shape]] tables with m, n and k"
_LARGEST_LD = 2**63 - 1
_FRAME = ('{"version"', "]")  # beginnings of the lines around the shapes that were recorded


class CallSignature(NamedTuple):
    """Calls of one kind: a product, leading dimensions of A, B and C in elements, the alignment of their
    addresses in bytes, and what is added to the product or made of it."""

    gemm: Gemm
    lds: Triple
    alignment: Triple = (ALIGNED, ALIGNED, ALIGNED)
    epilogue: Epilogue = PLAIN

    @classmethod
    def packed(cls, gemm: Gemm) -> CallSignature:
        """Packed, and as aligned as shapes are tuned."""
        return cls(gemm, gemm.lds)


Calls = dict[CallSignature, int | None]


class Suite(NamedTuple):
    """Each call signature once, with the calls of all its tables; None for all if the suite has no counts.
    `others`: calls of unknown kinds."""

    calls: Calls
    others: int = 0


def read_suite(*paths: Path, note: Note = lambda message: None) -> dict[Gemm, int | None]:
    """Read the shapes of suites: each once, with the calls of all their tables, for any leading dimensions.
    None for all if the suites have no counts. `note` receives damaged parts of recorded files, which are left
    out. Raises UsageError, naming the file, if one cannot be read or holds anything else."""
    return by_shape(read_kinds(paths, note))


def read_kinds(paths: Sequence[Path], note: Note = lambda message: None) -> Calls:
    """The same, of each call signature."""
    try:
        return merged(read_calls(path, note) for path in paths).calls
    except ValueError as error:
        names = ", ".join(map(str, paths))
        raise UsageError(f"{names}: {error}; name those that count calls apart from the others") from error


def by_shape(calls: Mapping[CallSignature, int | None]) -> dict[Gemm, int | None]:
    """The calls of each shape, for any leading dimensions."""
    found: dict[Gemm, int | None] = {}
    for kind, count in calls.items():
        found[kind.gemm] = None if count is None else (found.get(kind.gemm) or 0) + count
    return found


def adding_of(calls: Mapping[CallSignature, int | None]) -> dict[Gemm, int]:
    """The calls of each shape for which torch has cuBLAS add a bias."""
    found = Counter[Gemm]()
    for kind, count in calls.items():
        if kind.epilogue == BIAS and adds_bias_within(kind.gemm):
            found[kind.gemm] += count or 1
    return found


def epilogues_of(calls: Iterable[CallSignature]) -> dict[Gemm, tuple[str, ...]]:
    """The names of the epilogues that calls of each shape ask for, of shapes with any."""
    found: dict[Gemm, dict[str, None]] = {}
    for kind in calls:
        if kind.epilogue != PLAIN:
            found.setdefault(kind.gemm, {})[name_of(kind.epilogue)] = None
    return {gemm: tuple(names) for gemm, names in found.items()}


def read_calls(
    path: Path, note: Note = lambda message: None, on_read: Callable[[int, int], None] = lambda done, of: None
) -> Suite:
    """Read all call signatures of a suite, and of the files that processes recorded beside it. As
    `read_suite`. `on_read` is told after each of these files how many were read, and of how many."""
    folder = Path(f"{path}.d")
    recorded = sorted(folder.glob("[!.]*.json")) if folder.is_dir() else []
    parts, newer = [], None
    for number, file in enumerate(recorded, 1):
        try:
            parts.append(_read_recorded(file, note))
        except NewerVersion as error:
            newer = str(unusable(file, "suite", error, ""))
            note(f"{newer}: left out")
        on_read(number, len(recorded))
    if path.exists() or not folder.is_dir():
        parts.insert(0, _read_one(path, note))
    try:
        suite = merged(parts)
    except ValueError as error:
        raise UsageError(f"{path} counts no calls, and {folder} does; move one of them away") from error
    if not (suite.calls or suite.others):
        hint = f"run a program that records into {path}, and look again"
        raise UsageError(newer or f"{folder} holds no call; {hint}")
    return suite


def merged(suites: Iterable[Suite]) -> Suite:
    """All calls of several suites. Raises ValueError if some of them have counts, and others do not."""
    return _added_up((suite.calls.items(), suite.others) for suite in suites)


def _added_up(parts: Iterable[tuple[Iterable[tuple[CallSignature, int | None]], int]]) -> Suite:
    """Of kinds with counts, and of calls of unknown kinds."""
    calls: Calls = {}
    others = 0
    for counted_kinds, num_others in parts:
        others += num_others
        for kind, count in counted_kinds:
            num_known = len(calls)
            before = calls.setdefault(kind, count)  # kinds take long to hash
            if len(calls) == num_known:
                calls[kind] = None if count is None else count + (before or 0)
    if len({count is None for count in calls.values()}) > 1:
        raise ValueError("some shapes have a count, others have none")
    return Suite(calls, others)


def _read_one(path: Path, note: Note) -> Suite:
    """One file: of TOML, recorded in JSON, or a list of shapes. Raises UsageError."""
    content = read_file(path, "suite", MOST_JSON)
    how = f"{_HOW}, or a list: a CSV of {HEADER}, or [m, n, k] in JSON"
    try:
        text = decoded(content)
        entries = read_list(text, lambda message: note(f"{path}: {message}"))
        if entries is not None:
            return _tables(entries)
        if path.suffix == ".json" or text.lstrip().startswith("{"):
            how = "record it again, or write it in TOML"
            return _suite(table(_parsed(text), "the file"))
        if path.suffix in (".csv", ".tsv", ".jsonl"):
            raise ValueError(f"it is no list of shapes: {shown(text.strip().partition(chr(10))[0])}")
    except (ValueError, RecursionError) as error:
        raise unusable(path, "suite", error, how) from error
    return read_toml(path, "suite", _suite, how)


def _parsed(text: str) -> Any:
    return json.loads(text, parse_constant=_refuse)


def _refuse(word: str) -> Any:
    raise ValueError(f"{word} is no number")


def _read_recorded(path: Path, note: Note) -> Suite:
    """The record of one process, without damaged parts, which a note names. Raises NewerVersion."""
    try:
        content = read_file(path, "suite", MOST_JSON)
    except UsageError as error:
        note(f"{error}: left out")
        return Suite({})
    try:
        return _suite(table(_parsed(decoded(content)), "the file"))
    except NewerVersion:
        raise
    except (ValueError, RecursionError) as error:
        suite, num_corrupted = _readable_lines(content.decode("utf-8", "replace"))
        note(
            f"{path} is damaged ({error}): {num_corrupted} of its lines cannot be read and are left out, "
            f"{counted(len(suite.calls), 'shape')} can; remove the file to be rid of this"
        )
        return suite


def _readable_lines(text: str) -> tuple[Suite, int]:
    """The shapes whose lines are whole, and the number of other lines."""
    parts, num_corrupted = [], 0
    for line in text.splitlines():
        if not line.startswith(_FRAME):
            try:
                row = table(_parsed(line.rstrip().removesuffix(",")), "a line")
                parts.append(_suite({"shape": [row | {"count": row.get("count")}]}))
            except (ValueError, RecursionError):
                num_corrupted += 1
    return merged(parts), num_corrupted


def _suite(data: dict[str, Any]) -> Suite:
    """Raises ValueError."""
    check_version(data.get("version"), VERSION)
    check_keys(data, ("shape", "version", "others", *_NOTES), "at the top")
    whole(data.get("version", VERSION), "version", 1, VERSION)
    others = whole(data.get("others", 0), "others", 0, MOST_CALLS)
    tables = data.get("shape", [])
    if isinstance(tables, dict):
        raise ValueError("shape is one table, [shape], and not a list of them")
    items(tables, "shape")
    return _tables([ListedShape(f"shape {i}", entry) for i, entry in enumerate(tables, 1)], others)


def _tables(entries: Sequence[ListedShape], others: int = 0) -> Suite:
    """Of the tables of shapes. Raises ValueError."""
    shapes = [(_kind(entry.table, entry.where), entry.table.get("count")) for entry in entries]
    if not (shapes or others):
        raise ValueError("it holds no shape")
    if len({count is not None for _, count in shapes}) > 1:
        missing = next(entry.where for entry in entries if entry.table.get("count") is None)
        raise ValueError(f"{missing}: the key 'count' is missing, which others have")
    return _added_up([(shapes, others)])


def _kind(entry: Any, where: str) -> CallSignature:
    """The call signature of one `[[shape]]` table."""
    check_keys(table(entry, where), _KEYS, where, required=EXTENTS)
    gemm = _shape(entry, where)
    if "count" in entry:
        whole(entry["count"], f"{where}: count", 1, MOST_CALLS)
    packed = CallSignature.packed(gemm)
    lds, alignment = packed.lds, packed.alignment
    if "ld" in entry:
        lds = _triple(entry["ld"], f"{where}: ld", _LARGEST_LD)
        stored = ((gemm.k, gemm.m) if gemm.trans_a else (gemm.m, gemm.k),
                  (gemm.n, gemm.k) if gemm.trans_b else (gemm.k, gemm.n), (gemm.m, gemm.n))  # fmt: skip
        for name, ld, (rows, columns) in zip("ABC", lds, stored, strict=True):
            if rows > 1 and ld < columns:
                raise ValueError(f"{where}: ld of {name} is {ld}, less than its rows of {columns}")
    if "align" in entry:
        alignment = _triple(entry["align"], f"{where}: align", LARGEST)
        if not set(alignment) <= {4, 8, ALIGNED}:
            raise ValueError(f"{where}: align is {shown(entry['align'])}: each is 4, 8 or {ALIGNED} bytes")
    name = entry.get("epilogue")
    if "epilogue" in entry and (not isinstance(name, str) or name not in EPILOGUES):
        raise ValueError(f"{where}: epilogue {shown(name)} is none of {', '.join(EPILOGUES)}")
    return CallSignature(gemm, lds, alignment, PLAIN if name is None else EPILOGUES[name])


def _triple(value: Any, where: str, most: int) -> Triple:
    """Of A, B and C."""
    a, b, c = items(value, where, 3)
    return whole(a, where, 1, most), whole(b, where, 1, most), whole(c, where, 1, most)


def _shape(entry: dict[str, Any], where: str) -> Gemm:
    m, n, k, batch = numbers = entry["m"], entry["n"], entry["k"], entry.get("batch", 1)
    if {*map(type, numbers)} != {int}:
        pairs = zip((*EXTENTS, "batch"), numbers, strict=True)
        name, value = next(pair for pair in pairs if type(pair[1]) is not int)
        raise ValueError(f"{where}: {name} is {shown(value)}, and not a whole number")
    layout = entry.get("layout", "NN")
    if layout not in LAYOUTS:
        layout = _one_of(LAYOUTS, layout, f"{where}: layout")
    shared = _one_of(("A", "B"), entry["shared"], f"{where}: shared") if "shared" in entry else ""
    a_type = str(entry.get("a_type", FP32))
    try:
        trans, shares = (layout[0] == "T", layout[1] == "T"), (shared == "A", shared == "B")
        return Gemm(m, n, k, *trans, batch, *shares, a_type)
    except UsageError as error:
        raise ValueError(f"{where}: {error}") from None


def _one_of(known: Sequence[str], value: Any, where: str) -> str:
    """A word in capitals, whatever its case."""
    if not isinstance(value, str) or value.upper() not in known:
        raise ValueError(f"{where} {shown(value)} is none of {', '.join(known)}")
    return value.upper()
