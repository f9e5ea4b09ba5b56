"""Pages to look at: a report of searches that were replayed, and a large one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from cli.runner import run

from . import many_trials
from .chromium import Window, missing, window

RECORDED_SUITE = many_trials.ROOT / "studies/suites/recorded.toml"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """All of this folder is marked, and left out with the reason where there is no browser."""
    why = missing()
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker("browser")
            if why:
                item.add_marker(pytest.mark.skip(reason=why))


@pytest.fixture(scope="session")
def browser() -> Iterator[Window]:
    with window() as opened:
        yield opened


@pytest.fixture(scope="session")
def searched(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database of six recorded shapes."""
    db = tmp_path_factory.mktemp("searched") / "recorded.db"
    run("search", "--gpu", f"replay:{many_trials.RECORDED}", "--suite", RECORDED_SUITE, "--trials", "120",
        "--db", db, "--quiet")  # fmt: skip
    return db


@pytest.fixture(scope="session")
def report(searched: Path) -> str:
    """The address of its report."""
    out = searched.with_name("report.html")
    run("report", "--db", searched, "--out", out)
    return out.as_uri()


@pytest.fixture(scope="session")
def large_report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report of 26 shapes and 20,000 trials."""
    folder = tmp_path_factory.mktemp("large")
    many_trials.write(folder / "many.db")
    run("report", "--db", folder / "many.db", "--out", folder / "report.html")
    return folder / "report.html"
