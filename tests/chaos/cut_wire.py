"""A wire between processes and PostgreSQL that can be cut: connections break, or nothing comes through."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from pathlib import Path

_NAME = ".s.PGSQL.5432"
_BYTES = 1 << 16


class CutWire:
    """Passes on what comes to a socket in `folder`, until it is cut."""

    def __init__(self, folder: Path, server: Path) -> None:
        self._server = server / _NAME
        self._listening = socket.socket(socket.AF_UNIX)
        self._listening.bind(str(folder / _NAME))
        self._listening.listen(64)
        self._open: set[socket.socket] = set()
        self._may_pass = threading.Event()
        self._may_pass.set()
        self._refuses = False
        self._accepting = threading.Thread(target=self._accept, daemon=True)
        self._accepting.start()

    def cut(self, *, breaks: bool) -> None:
        """Break all connections and take none, or let nothing through, as a network that drops packets."""
        self._may_pass.clear()
        self._refuses = breaks
        for one in list(self._open) if breaks else ():
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def mend(self) -> None:
        self._refuses = False
        self._may_pass.set()

    def close(self) -> None:
        self.cut(breaks=True)
        self.mend()
        self._listening.shutdown(socket.SHUT_RDWR)
        self._accepting.join()
        self._listening.close()

    def _accept(self) -> None:
        while True:
            try:
                theirs, _ = self._listening.accept()
            except OSError:  # it is closed
                return
            if self._refuses:
                theirs.close()
                continue
            ours = socket.socket(socket.AF_UNIX)
            try:
                ours.connect(str(self._server))
            except OSError:
                theirs.close()
                ours.close()
                continue
            self._open |= {ours, theirs}
            for pair in ((ours, theirs), (theirs, ours)):
                threading.Thread(target=self._pass_on, args=pair, daemon=True).start()

    def _pass_on(self, source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(_BYTES):
                if not self._refuses:
                    self._may_pass.wait()
                sink.sendall(data)
        for one in (source, sink):
            self._open.discard(one)
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()
