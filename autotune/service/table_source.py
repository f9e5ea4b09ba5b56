"""Where signed tables are kept, as the command line asks: a database, or a server by its URL."""

from __future__ import annotations

from typing import Any, Protocol

from ..files import strict
from ..files.errors import UsageError
from ..runtime.service.table_server import (
    MAX_BYTES,
    MAX_CUBINS_BYTES,
    SIGNED_FILE,
    NoAnswer,
    Refused,
    ServerCalls,
    fetch_files,
    is_address,
)
from ..runtime.table.table import CUBIN_FILE, TABLE_FILE
from ..store import Artifacts
from ..store.artifacts import What, need_full
from .signing import NewArtifact

Document = dict[str, Any]
UPLOAD_S = 120.0  # a step of sending a table
_SIZE_BYTES = 8
FILES = (SIGNED_FILE, TABLE_FILE, CUBIN_FILE)
MAX_UPLOAD_BYTES = sum(MAX_BYTES.values()) + _SIZE_BYTES * len(FILES)


class TableSource(Protocol):
    """What both can do. Raises StoreError and NoAnswer, UsageError for an address that is not there."""

    def listed(self) -> list[Document]:
        """Every table, as `listed_of` has it."""
        ...

    def publish(self, new: NewArtifact, by: str) -> bool:
        """Returns whether it is new."""
        ...

    def decide(self, what: What, address: str, by: str) -> None:
        """Pin it, end that, or take it back."""
        ...

    def files(self, address: str) -> tuple[bytes, bytes, bytes]:
        """What is signed, table, cubins: not checked yet."""
        ...


def listed_of(artifacts: Artifacts) -> list[Document]:
    """Every table of a database, as documents, the newest last."""
    channels = artifacts.channels()
    return [
        {
            "address": one.address,
            **one.channel._asdict(),
            **one.facts,
            "published_at": one.created_at.isoformat(),
            "is_current": channels[one.channel].current == one.address,
            "is_pinned": channels[one.channel].pinned == one.address,
            "is_taken_back": one.address not in channels[one.channel].published,
        }
        for one in artifacts.all()
    ]


def packed_files(files: tuple[bytes, bytes, bytes]) -> bytes:
    """The files of a table as one body: before each its length, 8 bytes, big endian."""
    return b"".join(len(one).to_bytes(_SIZE_BYTES, "big") + one for one in files)


def unpacked_files(body: bytes) -> tuple[bytes, bytes, bytes]:
    """Raises UsageError for any other body."""
    found, at = list[bytes](), 0
    for name in FILES:
        size = int.from_bytes(body[at : at + _SIZE_BYTES], "big")
        at += _SIZE_BYTES
        if not 0 < size <= min(MAX_BYTES[name], len(body) - at):
            raise UsageError("this is no signed table: three files, each behind its length in 8 bytes")
        found.append(body[at : at + size])
        at += size
    if at != len(body):
        raise UsageError(f"{len(body) - at} bytes follow the signed table")
    return found[0], found[1], found[2]


class DatabaseTables:
    """Tables of a database."""

    def __init__(self, artifacts: Artifacts) -> None:
        self._artifacts = artifacts

    def listed(self) -> list[Document]:
        return listed_of(self._artifacts)

    def publish(self, new: NewArtifact, by: str) -> bool:
        return self._artifacts.publish(*new, by)

    def decide(self, what: What, address: str, by: str) -> None:
        self._artifacts.decide(what, need_full((one.address for one in self._artifacts.all()), address), by)

    def files(self, address: str) -> tuple[bytes, bytes, bytes]:
        full = need_full((one.address for one in self._artifacts.all()), address)
        found = self._artifacts.files(full)
        assert found is not None  # nothing is ever deleted
        return found


class ServerTables:
    """Tables of a server. It knows by its token who asks, whatever `by` says."""

    def __init__(self, url: str, token: str) -> None:
        self._calls = ServerCalls(url, token, UPLOAD_S)

    def listed(self) -> list[Document]:
        try:
            answer = self._calls.get("tables", most_bytes=MAX_CUBINS_BYTES)
            found: list[Document] = answer.document()["tables"]
            if all(is_address(one["address"]) for one in found):
                return found
        except (KeyError, TypeError):
            pass
        raise NoAnswer("the server lists no tables as this autotune knows them; update one of both")

    def publish(self, new: NewArtifact, by: str) -> bool:
        answer = self._calls.post("tables", content=packed_files(new.files))
        return bool(strict.read(dict[str, bool], answer.document(), "answer").get("is_new"))

    def decide(self, what: What, address: str, by: str) -> None:
        answer = self._calls.post("tables", self._full(address), what, content={})
        if answer.status == 404:
            raise Refused(f"the server has no table {address}")

    def files(self, address: str) -> tuple[bytes, bytes, bytes]:
        return fetch_files(self._calls, self._full(address))

    def _full(self, address: str) -> str:
        return need_full((one["address"] for one in self.listed()), address)
