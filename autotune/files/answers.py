"""Answers that take seconds to compute, kept in the cache folder until a file of autotune changes."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

from .errors import AutotuneError
from .output_file import default_cache_dir, own_folder, write_file

_MOST = 32  # the oldest go first


def kept(question: object, sources: Iterable[Path], make: Callable[[], Any]) -> Any:
    """What `make` answers, as JSON has it: from the cache, if the same question was answered before. It must
    have a `repr` of its own. `sources`: folders of data that answers come from, beside autotune's code.
    Without a folder to keep it in, the answer is made again."""
    key = hashlib.sha256(repr((question, _state((Path(__file__).parents[1], *sources)))).encode()).hexdigest()
    try:
        kept_here = own_folder(default_cache_dir(), "answers") / f"{key}.json"
        with suppress(FileNotFoundError, ValueError):
            return json.loads(kept_here.read_bytes())
    except (OSError, RuntimeError):
        return make()
    answer = make()
    with suppress(OSError, AutotuneError):
        write_file(kept_here, json.dumps(answer))
        for path in sorted(kept_here.parent.iterdir(), key=lambda path: path.stat().st_mtime)[:-_MOST]:
            path.unlink()
    return answer


@cache
def _state(folders: tuple[Path, ...]) -> str:
    """Another once any file below has changed."""
    files = sorted(path for folder in folders for path in folder.rglob("*.*") if path.suffix != ".pyc")
    return repr([(str(path), found.st_size, found.st_mtime_ns) for path in files for found in (path.stat(),)])
