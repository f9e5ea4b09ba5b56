"""The tables of a database as a server hands them out: looked at once a second, contents kept up to a bound.

Threads may share it.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any

from ..store import Artifacts, Channel, ChannelKey
from ..store.artifacts import best_channel
from .table_source import FILES, listed_of

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
