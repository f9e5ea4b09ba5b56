"""Has a test go by a record of its own of which sources compile to the same code."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from autotune.kernel import same_code


def know_as_same(
    monkeypatch: pytest.MonkeyPatch, folder: Path, *pairs: tuple[str, str], family: str = "sgemm"
) -> None:
    """From now on these pairs (hash, same as) are the same code, and no others."""
    path = folder / f"same_code_{len(list(folder.glob('same_code_*')))}.json"
    entries = [{"family": family, "source_hash": newer, "same_as": older} for newer, older in pairs]
    path.write_text(json.dumps(entries), encoding="utf-8")
    monkeypatch.setattr(same_code, "record_file", lambda: path)
