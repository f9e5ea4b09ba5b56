"""Pages to look at: a report of searches that were replayed, and a large one."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from cli.runner import run

from . import many_trials

sys.path.append(str(many_trials.ROOT / "docs/tools"))

from chromium import Window, missing, window

RECORDED_SUITE = many_trials.ROOT / "studies/suites/recorded.toml"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """All of this folder is marked, and left out with the reason where there is no browser."""
    why, folder = missing(), str(Path(__file__).parent)
    for item in items:
        if str(item.path).startswith(folder):
            item.add_marker("browser")
            if why:
                item.add_marker(pytest.mark.skip(reason=why))


@pytest.fixture(scope="module")
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
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An exported folder of a few kernels that were never compiled."""
    sys.path.append(str(many_trials.ROOT / "tests/unit"))
    from table_cases import FIGURES, make_kernel, make_spec, make_table, write_table

    unsure = replace(FIGURES, fixed_us=0.5, step_us=0.7, relative_error=0.1)
    kernels = [
        make_kernel(f"{layout.lower()}-{group}", make_spec(layout, group=group), figures)
        for layout in ("NN", "NT", "TN", "TT")
        for group, figures in ((1, FIGURES), (4, unsure))
    ]
    return write_table(make_table(*kernels), tmp_path_factory.mktemp("exported") / "sgemm_dispatch")


@pytest.fixture(scope="session")
def ladder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `autotune ladder --json` might have printed for the first shape."""
    steps = [
        {"name": name, "adds": f"what {name} adds", "reason": "", "time_us": 1000.0 / 2**i,
         "gflops": 2000.0 * 2**i, "share_of_limit": 0.03 * 2**i, "speedup": 0.06 * 2**i}
        for i, name in enumerate(("naive", "coalesced", "tiled", "tuned", "cuBLAS"))
    ]  # fmt: skip
    facts = {"shape": "1024x1024x1024:NN", "environment": {"gpu_name": "NVIDIA H200"}, "num_rounds": 15}
    path = tmp_path_factory.mktemp("ladder") / "ladder.json"
    path.write_text(json.dumps({**facts, "steps": steps}), encoding="utf-8")
    return path


@pytest.fixture(scope="session")
def report(searched: Path, table: Path, ladder: Path) -> str:
    """The address of its report."""
    out = searched.with_name("report.html")
    run("report", "--db", searched, "--table", table, "--ladder", ladder, "--out", out)
    return out.as_uri()


@pytest.fixture(scope="session")
def disturbed_report(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The address of a report of trials of which some were disturbed."""
    folder = tmp_path_factory.mktemp("disturbed")
    many_trials.write(folder / "disturbed.db", num_shapes=2, num_trials=1000)
    run("report", "--db", folder / "disturbed.db", "--out", folder / "report.html")
    return (folder / "report.html").as_uri()


@pytest.fixture(scope="session")
def large_report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report of 26 shapes and 20,000 trials."""
    folder = tmp_path_factory.mktemp("large")
    many_trials.write(folder / "many.db")
    run("report", "--db", folder / "many.db", "--out", folder / "report.html")
    return folder / "report.html"
