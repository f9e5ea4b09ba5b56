"""Databases of a test's own, a file or one on every kind of server that a store supports; and a cuBLAS
that is simulated."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from fake_blas import FakeBlas, install
from table_cases import FakeDriver, write_table

from autotune.runtime.dispatcher import Dispatcher
from autotune.store import Store


@pytest.fixture
def quick_folder(tmp_path: Path) -> Iterator[Path]:
    """A folder in memory where there is one, for hundreds of commits that would each wait for the disk. What
    a process wrote before it was killed is there all the same."""
    in_memory = Path("/dev/shm")
    if not os.access(in_memory, os.W_OK | os.X_OK):
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(prefix="autotune-tests-", dir=in_memory) as folder:
        yield Path(folder)


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


@pytest.fixture(scope="module")
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The table of a test module, which its `_table` makes, as a folder."""
    return write_table(request.module._table(), tmp_path_factory.mktemp("table") / "t")


@pytest.fixture
def driver(request: pytest.FixtureRequest) -> FakeDriver:
    """A GPU that the host plays, with the kernels of that table."""
    return FakeDriver(request.module._table())


@pytest.fixture
def runtime(folder: Path, driver: FakeDriver) -> Dispatcher:
    return Dispatcher(folder, driver=driver)


@pytest.fixture
def blas(driver: FakeDriver, monkeypatch: pytest.MonkeyPatch) -> FakeBlas:
    """A cuBLAS that is simulated on the test's driver, and found by whoever looks for one."""
    fake = FakeBlas(driver)
    install(monkeypatch, fake)
    return fake
