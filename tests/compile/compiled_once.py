"""Several entry functions of one text: a compiler would compile it for each, and report another."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from unittest.mock import patch

from autotune.kernel.compiler import Compiler, Cubin


def of_entries(
    compiler: Compiler, source: str, entries: Sequence[str], macros: Mapping[str, int] | None = None
) -> list[Cubin]:
    """What the compiler tells of each, in order."""
    with patch.object(compiler, "_run_nvrtc", cache(compiler._run_nvrtc)):
        return [compiler.compile_source(source, macros, entry=entry) for entry in entries]
