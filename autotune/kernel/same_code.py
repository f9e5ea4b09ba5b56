"""Sources of a kernel that compile to the same machine code: what was measured of one counts for the others.

`kernels/same_code.json` records which do. What proves it, benchmarks/compare_code.py, writes a line for
each pair of texts: {"family", "source_hash", "same_as", ...}, where `same_as` is of the older text. What
else stands there says how it was proved. Equality is symmetric and transitive, so the pairs of a family fall
into classes.

Studies of a class are kept under the hash of its oldest text. A version of autotune that knows only that text
then finds them, too, and two versions that share a database work on the same studies. A database may hold
studies under other hashes of the class, from before the record was written: the store says what it does then
(repository.Store.study).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

from ..files import strict
from ..files.errors import EnvironmentProblem
from . import template

RECORD = "same_code.json"
_PROOF = ("kernels", "architectures", "compiler", "date")  # for readers

Pair = tuple[str, str, str]  # family, hash of the newer text, hash of the older one


def record_file() -> Path:
    """Where the record is: beside the kernels, which it describes."""
    return template.kernel_dir() / RECORD


def equivalents(source_hash: str) -> tuple[str, ...]:
    """All sources with the code of this one, itself among them; the one that studies are kept under first.
    Raises EnvironmentProblem where the record cannot be read."""
    return _classes(record_file()).get(source_hash, (source_hash,))


def kept_as(source_hash: str) -> str:
    """The hash that studies of this source are kept under. Raises what `equivalents` does."""
    return equivalents(source_hash)[0]


def is_same(one: str, other: str) -> bool:
    """Whether two sources are known to compile to the same code. Raises what `equivalents` does."""
    return kept_as(one) == kept_as(other)


@cache
def _classes(path: Path) -> dict[str, tuple[str, ...]]:
    """Every hash of a record with its class."""
    try:
        pairs = list(_pairs(json.loads(path.read_text(encoding="utf-8"))))
    except (OSError, ValueError, RecursionError) as error:
        raise EnvironmentProblem(f"{path} cannot be read ({error}); reinstall autotune") from error
    classes: dict[str, tuple[str, ...]] = {}
    for family in dict.fromkeys(family for family, _, _ in pairs):
        classes |= _classes_of([(newer, older) for of, newer, older in pairs if of == family])
    return classes


def _pairs(record: object) -> Iterator[Pair]:
    """The pairs of a record. Raises ValueError for what is none."""
    for number, item in enumerate(strict.items(record, "the record")):
        where = f"entry {number}"
        names = ("family", "source_hash", "same_as")
        entry = strict.table(item, where)
        strict.check_keys(entry, (*names, *_PROOF), where, required=names)
        family, newer, older = (strict.text(entry[name], f"{where}: {name}") for name in names)
        yield family, newer, older


def _classes_of(pairs: Iterable[tuple[str, str]]) -> dict[str, tuple[str, ...]]:
    """Classes of one family, by each of their hashes. The oldest text is one that is newer than no other; of
    several the first that is named."""
    members: dict[str, list[str]] = {}
    for pair in pairs:
        joined = [one for hash_ in reversed(pair) for one in members.get(hash_, [hash_])]
        combined = list(dict.fromkeys(joined))
        members |= dict.fromkeys(combined, combined)
    newer = {one for one, other in pairs if one != other}
    return {
        source_hash: tuple(sorted(combined, key=lambda one: one in newer))
        for source_hash, combined in members.items()
    }
