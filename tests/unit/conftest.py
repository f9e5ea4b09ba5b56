"""Databases of a test's own: a file, or one on every kind of server that a store supports."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from autotune.store import Store


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(tmp_path / "trials.db") as opened:
        yield opened


@pytest.fixture(params=("sqlite", "postgresql"))
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str | Path:
    """A test that takes it runs once for each kind of database."""
    if request.param == "sqlite":
        return tmp_path / "trials.db"
    return request.getfixturevalue("postgresql").new_database()


@pytest.fixture
def either_store(url: str | Path) -> Iterator[Store]:
    with Store.open(url) as opened:
        yield opened


@pytest.fixture(autouse=True)
def without_cublas(monkeypatch: pytest.MonkeyPatch) -> None:
    """Played GPUs must not meet the cuBLAS of this machine: tests that play cuBLAS switch it on."""
    monkeypatch.setenv("AUTOTUNE_CUBLAS", "0")
