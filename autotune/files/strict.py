"""Frozen dataclasses from JSON, fully checked.

Every field must be there, none may be unknown, every value must have the declared type and be within the
declared bounds (`Annotated[int, Within(...)]`). No value is converted, except that a whole number may be
given for a float. Copied into exported tables.

A declaration is turned into functions that read it, once: a table has tens of thousands of values. Records of
a list are read by columns, each field of all of them at once. If that finds a fault, they are read again, one
by one, to locate it.

The content of other files of JSON and TOML is checked by hand: the functions that take `where`, the place in
the file, raise a ValueError that begins with it.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from functools import cache, partial
from itertools import repeat
from operator import itemgetter
from types import NoneType, UnionType
from typing import Annotated, Any, Union, get_args, get_origin

from .words import LARGEST, shown

LONGEST = 100_000  # of a text, in characters


def check_keys(
    found: Mapping[str, Any], known: Collection[str], where: str, required: Collection[str] = ()
) -> None:
    """Raises ValueError if a key is unknown, with a suggestion, or a required one is missing."""
    if set(required) <= found.keys() <= set(known):
        return
    missing = [name for name in required if name not in found]
    unknown = [name for name in found if name not in known]
    if unknown:
        raise ValueError(f"{where}: unknown key {shown(unknown[0])} ({hint(unknown[0], known)})")
    if missing:
        raise ValueError(f"{where}: the key {missing[0]!r} is missing")


def hint(name: str, known: Collection[str]) -> str:
    """The name that may have been meant, or all that are known."""
    from difflib import get_close_matches  # loads for longer than most messages take

    close = get_close_matches(name[:40], known, n=1) or get_close_matches(name[:40].lower(), known, n=1)
    return f"did you mean {close[0]!r}?" if close else f"known are {', '.join(known)}"


def table(value: Any, where: str) -> dict[str, Any]:
    """A table of TOML, an object of JSON."""
    if type(value) is not dict:
        raise ValueError(f"{where}: expected a table, found {shown(value)}")
    return value


def items(value: Any, where: str, length: int | None = None) -> Sequence[Any]:
    """A list, of so many items."""
    if type(value) is not list:
        raise ValueError(f"{where}: expected a list, found {shown(value)}")
    if length is not None and len(value) != length:
        raise ValueError(f"{where}: expected {length:,} items, found {len(value):,}")
    return value


def text(value: Any, where: str) -> str:
    """A text that every database can store."""
    if type(value) is not str or len(value) > LONGEST:
        raise ValueError(f"{where}: expected a text, found {shown(value)}")
    if "\0" in value or any("\ud800" <= character <= "\udfff" for character in value):
        raise ValueError(f"{where}: {shown(value)} holds invalid characters")
    return value


def whole(value: Any, where: str, least: int = 0, most: int = LARGEST) -> int:
    """A whole number within these bounds."""
    if type(value) is not int or not least <= value <= most:
        raise ValueError(f"{where}: expected a whole number from {least} to {most:,}, found {shown(value)}")
    return value


def number(value: Any, where: str, least: float, most: float) -> float:
    """A number within these bounds; whole or not."""
    if type(value) not in (int, float) or not least <= value <= most:
        raise ValueError(f"{where}: expected a number from {least:g} to {most:g}, found {shown(value)}")
    return float(value)


class Within:
    """A number from `least` to `most`, both included, stated where its field is declared: `num_sms:
    Annotated[int, Within(1, 4096)]`. Bounds are wide: they exclude values that no GPU has, or that arithmetic
    cannot handle.

    Equal to itself only: typing keeps one `Annotated[int, Within(1, 4)]` for all that are equal, and the
    copies of this class in exported folders are other classes."""

    __slots__ = ("least", "most")

    def __init__(self, least: float, most: float) -> None:
        self.least = least
        self.most = most

    def __str__(self) -> str:
        return f"{self.least:,} ... {self.most:,}"


Reader = Callable[[Any], Any]
ColumnReader = Callable[[Sequence[Any]], Sequence[Any]]  # raises Mismatch, without the fault or its place
_MAX_BITS = 64  # of a whole number: longer ones are out of every bound


class Mismatch(ValueError):
    """A value does not fit its declaration. The message says how and, with a path, where."""

    def __init__(self, fault: str, path: str = "") -> None:
        super().__init__(fault, path)
        self.fault = fault
        self.path = path

    def within(self, step: str) -> Mismatch:
        """The same, with the place seen from one level further out."""
        return Mismatch(self.fault, step + self.path)

    def __str__(self) -> str:
        return f"{self.path} {self.fault}" if self.path else self.fault


class NewerVersion(Mismatch):
    """A newer autotune wrote this: it is not damaged, and whatever else it holds cannot be judged here."""


def check_version(found: Any, latest: int, word: str = "version") -> None:
    """Raises NewerVersion. To be asked before anything else."""
    if type(found) is int and found > latest:
        message = _describe(found) if found.bit_length() > _MAX_BITS else found
        raise NewerVersion(f"{word} {message}, newer than {latest}, which this code reads")


def read(declared: Any, value: Any, where: str) -> Any:
    """`value` (from JSON) as `declared`: a dataclass, tuple, dict, union, bounded or plain type. Raises
    Mismatch, naming the place as a path such as `kernels[3].config.bm`, and what the dataclasses themselves
    raise."""
    try:
        return _reader(declared)(value)
    except Mismatch as mismatch:
        raise mismatch.within(where) from None


@cache
def _reader(declared: Any) -> Reader:
    if is_dataclass(declared):
        return _record_reader(declared)
    factories: dict[Any, Callable[[tuple[Any, ...]], Reader]] = {
        Annotated: _bounded_reader,
        Union: _union_reader,  # of what is annotated
        UnionType: _union_reader,
        tuple: _tuple_reader,
        dict: _dict_reader,
    }
    origin = get_origin(declared)
    if origin in factories:
        return factories[origin](get_args(declared))
    return {float: _read_float, int: _read_whole, str: _read_text}.get(declared) or _plain_reader(declared)


def _mismatch(expected: str, value: Any) -> Mismatch:
    return Mismatch(f"is {_describe(value)}, expected {expected}")


def _describe(value: Any) -> str:
    """A value in a few words, whatever its size."""
    if type(value) in (dict, list):
        return "an object" if type(value) is dict else "a list"
    if type(value) is int and value.bit_length() > _MAX_BITS:
        return "a huge number"
    return repr(value[:60] if type(value) is str else value)


def _plain_reader(declared: type) -> Reader:
    def read_plain(value: Any) -> Any:
        if type(value) is not declared:
            raise _mismatch(declared.__name__, value)
        return value

    return read_plain


def _read_whole(value: Any) -> int:
    if type(value) is not int or value.bit_length() > _MAX_BITS:
        raise _mismatch("int", value)
    return value


def _read_float(value: Any) -> float:
    if type(value) is int and value.bit_length() <= _MAX_BITS:
        return float(value)
    if type(value) is not float or not math.isfinite(value):
        raise _mismatch("a finite number", value)
    return value


def _read_text(value: Any) -> str:
    if type(value) is not str:
        raise _mismatch("str", value)
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            raise _mismatch("Unicode text, without half a pair of surrogates", value) from None
    return value


def _bounded_reader(arguments: tuple[Any, ...]) -> Reader:
    declared, bounds = arguments
    assert isinstance(bounds, Within)
    plain, least, most = _reader(declared), bounds.least, bounds.most

    def read_bounded(value: Any) -> Any:
        if type(value) is declared and least <= value <= most:  # most are: neither NaN nor huge
            return value
        found = plain(value)
        if not least <= found <= most:
            raise _mismatch(str(bounds), value)
        return found

    return read_bounded


@cache
def _declared(cls: Any) -> dict[str, Any]:
    """The type of each field. They are names in the record's own module, and evaluated all at once: one by
    one, as typing does, takes four times as long."""
    names = [field.name for field in fields(cls)]
    types = ", ".join(str(field.type) for field in fields(cls))
    return dict(zip(names, eval(f"({types},)", vars(sys.modules[cls.__module__])), strict=True))


def _record_reader(cls: Any) -> Reader:
    readers = [(name, _reader(declared)) for name, declared in _declared(cls).items()]
    names = [name for name, _ in readers]
    known = set(names)

    def read_record(value: Any) -> Any:
        if type(value) is not dict:
            raise _mismatch(f"an object ({cls.__name__})", value)
        if value.keys() != known:
            raise _rename_error(value, names)
        found = []
        try:
            for name, reader in readers:
                found.append(reader(value[name]))
        except Mismatch as mismatch:
            raise mismatch.within(f".{readers[len(found)][0]}") from None
        return cls(*found)

    return read_record


def _rename_error(value: dict[str, Any], names: list[str]) -> Mismatch:
    missing = [name for name in names if name not in value]
    if missing:
        return Mismatch(f"lacks the field {missing[0]!r}")
    unknown = next(name for name in value if name not in names)
    return Mismatch(f"has an unknown field {unknown[:60]!r}")


def _union_reader(choices: tuple[Any, ...]) -> Reader:
    rest = [choice for choice in choices if choice is not NoneType]
    readers = {choice: _reader(choice) for choice in rest}
    names = " or ".join(getattr(choice, "__name__", str(choice)) for choice in rest)

    def read_union(value: Any) -> Any:
        if value is None and NoneType in choices:
            return None
        if len(rest) == 1:
            return readers[rest[0]](value)
        if type(value) not in readers:
            raise _mismatch(names, value)
        return readers[type(value)](value)

    return read_union


def _tuple_reader(items: tuple[Any, ...]) -> Reader:
    if items[-1] is Ellipsis:
        return _list_reader(items[0])
    readers = [_reader(item) for item in items]

    def read_tuple(value: Any) -> tuple[Any, ...]:
        if type(value) is not list:
            raise _mismatch("a list", value)
        if len(value) != len(readers):
            raise Mismatch(f"is a list of {len(value)} items, expected {len(readers)}")
        return _each(readers, value)

    return read_tuple


def _list_reader(declared: Any) -> Reader:
    read_column = _column_reader(declared)

    def read_list(value: Any) -> tuple[Any, ...]:
        if type(value) is not list:
            raise _mismatch("a list", value)
        try:
            return tuple(read_column(value))
        except Mismatch:
            return _each(repeat(_reader(declared)), value)

    return read_list


def _each(readers: Iterable[Reader], values: list[Any]) -> tuple[Any, ...]:
    """The result of the reader for each value. Raises Mismatch, which names the value."""
    found: list[Any] = []
    try:
        for reader, value in zip(readers, values, strict=False):
            found.append(reader(value))
    except Mismatch as mismatch:
        raise mismatch.within(f"[{len(found)}]") from None
    return tuple(found)


def _dict_reader(types: tuple[Any, ...]) -> Reader:
    read_key, read_item = map(_reader, types)

    def read_dict(value: Any) -> dict[str, Any]:
        if type(value) is not dict:
            raise _mismatch("an object", value)
        found = {}
        for key, item in value.items():
            try:
                found[read_key(key)] = read_item(item)
            except Mismatch as mismatch:
                raise mismatch.within(f"[{key!r:.60}]") from None
        return found

    return read_dict


# -------------------------------------------- by columns: anything not plainly right may be a fault


@cache
def _column_reader(declared: Any) -> ColumnReader:
    """Reads many values of one declaration, just as `_reader` reads each."""
    if is_dataclass(declared):
        return _record_column_reader(declared)
    origin, arguments = get_origin(declared), get_args(declared)
    if origin is Annotated:
        return _number_column_reader(declared, arguments[0], arguments[1].least, arguments[1].most)
    if origin in (Union, UnionType) and len(arguments) == 2 and arguments[1] is NoneType:
        return _optional_column_reader(arguments[0])
    if origin is tuple and arguments[-1] is not Ellipsis:
        return _tuple_column_reader(arguments)
    if declared is int:
        return _number_column_reader(int, int, 1 - (1 << _MAX_BITS), (1 << _MAX_BITS) - 1)
    if declared in (str, bool):
        return _plain_column_reader(declared)
    return partial(_read_each, declared)


def _read_each(declared: Any, values: Sequence[Any]) -> Sequence[Any]:
    return list(map(_reader(declared), values))


def _is_all(kind: type, values: Sequence[Any]) -> bool:
    return set(map(type, values)) == {kind}


def _number_column_reader(declared: Any, kind: type, least: float, most: float) -> ColumnReader:
    def read_numbers(values: Sequence[Any]) -> Sequence[Any]:
        is_right = _is_all(kind, values) and least <= min(values) and max(values) <= most
        if is_right and (kind is int or all(map(math.isfinite, values))):
            return values
        return _read_each(declared, values)  # a float may be written as a whole number

    return read_numbers


def _plain_column_reader(kind: type) -> ColumnReader:
    def read_plain(values: Sequence[Any]) -> Sequence[Any]:
        is_right = _is_all(kind, values) and (kind is not str or all(map(str.isascii, values)))
        return values if is_right else _read_each(kind, values)

    return read_plain


def _optional_column_reader(declared: Any) -> ColumnReader:
    read_column = _column_reader(declared)

    def read_optional(values: Sequence[Any]) -> Sequence[Any]:
        if None not in values:
            return read_column(values)
        found = iter(read_column([value for value in values if value is not None]))
        return [None if value is None else next(found) for value in values]

    return read_optional


def _record_column_reader(cls: Any) -> ColumnReader:
    columns = [(itemgetter(name), _column_reader(declared)) for name, declared in _declared(cls).items()]
    known = set(_declared(cls))

    def read_records(values: Sequence[Any]) -> Sequence[Any]:
        if not values:
            return []
        if not _is_all(dict, values) or any(set(keys) != known for keys in set(map(tuple, values))):
            raise Mismatch("")
        return list(map(cls, *[read(list(map(field, values))) for field, read in columns]))

    return read_records


def _tuple_column_reader(items: tuple[Any, ...]) -> ColumnReader:
    readers = [_column_reader(item) for item in items]

    def read_tuples(values: Sequence[Any]) -> Sequence[Any]:
        if not values:
            return []
        if not _is_all(list, values) or set(map(len, values)) != {len(readers)}:
            raise Mismatch("")
        columns = zip(*values, strict=True)
        return list(zip(*[read(column) for read, column in zip(readers, columns, strict=True)], strict=True))

    return read_tuples


def parse(text: str) -> Any:
    """Strict JSON: no duplicate keys, NaN or Infinity. Raises Mismatch."""
    try:
        return json.loads(text, object_pairs_hook=_unique, parse_constant=_refuse)
    except json.JSONDecodeError as error:
        raise Mismatch(f"not JSON ({error})") from error
    except RecursionError:
        raise Mismatch("its JSON is nested too deeply") from None
    except Mismatch:
        raise
    except ValueError:  # of Python, which reads no number of thousands of digits
        raise Mismatch("a number has more digits than any field takes") from None


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise Mismatch("a key occurs twice in one object")
    return found


def _refuse(name: str) -> Any:
    raise Mismatch(f"{name} is not a JSON number")
