"""Where signed tables are kept, as the command line asks: a database, or a server by its URL; and those of a
database as a server hands them out, looked at once a second, contents kept up to a bound."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

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
from ..store import Artifacts, Channel, ChannelKey
from ..store.artifacts import What, best_channel, need_full

if TYPE_CHECKING:
    from .signing import NewArtifact  # needs a package that most of this needs not

Document = dict[str, Any]
UPLOAD_S = 120.0  # a step of sending a table
_SIZE_BYTES = 8
FILES = (SIGNED_FILE, TABLE_FILE, CUBIN_FILE)
MAX_UPLOAD_BYTES = sum(MAX_BYTES.values()) + _SIZE_BYTES * len(FILES)


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


# Both list every table as `listed_of` has it, publish one (true: it is new), pin one, end that or take it
# back (`decide`), and give the files of one: what is signed, table, cubins, not checked yet. They raise
# StoreError and NoAnswer, UsageError for an address that is not there.


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


TableSource = DatabaseTables | ServerTables
LOOK_S = 1.0
MAX_KEPT_BYTES = 256 << 20
Tokens = Mapping[str, tuple[str, frozenset[str]]]


class Catalogue:
    """Raises StoreError where the database cannot be read."""

    def __init__(self, artifacts: Artifacts, clock: Callable[[], float] = time.monotonic) -> None:
        self._artifacts, self._clock = artifacts, clock
        self._lock = threading.Lock()
        self._looked_s, self._latest = -LOOK_S, -1
        self.channels: Mapping[ChannelKey, Channel] = {}
        self.listed: list[dict[str, Any]] = []
        self.tokens: Tokens = {}
        self._files: OrderedDict[str, tuple[bytes, bytes, bytes]] = OrderedDict()
        self._num_bytes = 0

    def look(self) -> None:
        """Read what was decided since, unless that was done a moment ago."""
        with self._lock:
            if self._clock() - self._looked_s < LOOK_S:
                return
            self.tokens = self._artifacts.tokens()
            latest = self._artifacts.latest_event()
            if latest != self._latest:
                self.channels, self.listed = self._artifacts.channels(), listed_of(self._artifacts)
                self._latest = latest
            self._looked_s = self._clock()

    @property
    def is_fresh(self) -> bool:
        """Whether the last look is not long ago."""
        return self._clock() - self._looked_s < LOOK_S

    def forget(self) -> None:
        """Look again at the next request: something was decided here."""
        self._looked_s = -LOOK_S

    def current(self, requested: ChannelKey) -> str | None:
        """The address of the table for such a GPU."""
        return best_channel(self.channels, requested)

    def file(self, address: str, name: str) -> bytes | None:
        """One of the files of a table; None if it is not there."""
        if name not in FILES:
            return None
        with self._lock:
            found = self._files.get(address)
            if found is not None:
                self._files.move_to_end(address)
        if found is None:
            found = self._artifacts.files(address)
            if found is None:
                return None
            self._keep(address, found)
        return found[FILES.index(name)]

    def _keep(self, address: str, files: tuple[bytes, bytes, bytes]) -> None:
        with self._lock:
            if address not in self._files:
                self._files[address] = files
                self._num_bytes += sum(map(len, files))
            while self._num_bytes > MAX_KEPT_BYTES and len(self._files) > 1:
                _, oldest = self._files.popitem(last=False)
                self._num_bytes -= sum(map(len, oldest))
