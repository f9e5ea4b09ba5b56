"""`autotune search --events FILE`: what happens, as it happens, for programs: one JSON object a line."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, Self, TextIO

from ..facts.gemm import Gemm
from ..files.errors import UsageError
from ..search.progress import Best, Event
from ..store import StudyRef
from . import console


class EventLines:
    """Appends events to a file (`-`: stdout), each at once. A reader that went away ends no search."""

    def __init__(self, path: Path | None) -> None:
        """Raises UsageError if the file cannot be written."""
        self._path = path
        self._file: TextIO | None = sys.stdout if str(path) == "-" else None
        try:
            if path is not None and self._file is None:
                self._file = path.open("a", encoding="utf-8", buffering=1)
        except OSError as error:
            raise UsageError(f"--events {path} cannot be written: {error.strerror or error}") from error

    def __call__(self, event: Event) -> None:
        self.write(re.sub(r"(?<!^)(?=[A-Z])", "_", type(event).__name__).lower(), _plain(event))

    def write(self, name: str, facts: Mapping[str, Any]) -> None:
        """One line: the event's name, then its facts."""
        if self._file is None:
            return
        line = json.dumps({"event": name, **console.finite(facts)}, allow_nan=False, default=str)
        try:
            self._file.write(f"{line}\n")
            self._file.flush()
        except OSError as error:
            console.note(f"--events {self._path} is written no more: {error.strerror or error}")
            self._abandon()

    def _abandon(self) -> None:
        file, self._file = self._file, None
        if file is not None and file is not sys.stdout:
            with suppress(OSError):
                file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._abandon()


def _plain(value: Any) -> Any:
    """What JSON has; a shape is its text, a study its id, and of a best what follows from it too."""
    if isinstance(value, Gemm):
        return str(value)
    if isinstance(value, StudyRef):
        return value.id
    if is_dataclass(value):
        found = {one.name: _plain(getattr(value, one.name)) for one in fields(value)}
        derived = ("speedup", "share_of_limit") if isinstance(value, Best) else ()
        return {**found, **{name: getattr(value, name) for name in derived}}
    if isinstance(value, Mapping):
        return dict(value)
    return list(value) if isinstance(value, tuple) else value
