"""Options and markers for all tests.

Tests marked `gpu` are skipped where no NVIDIA GPU answers; with `--require-gpu` they fail instead. So do
those marked `alone` where several processes of pytest-xdist share the GPU.
"""

from __future__ import annotations

import fcntl
import gc
import os
import random
import runpy
import signal
import subprocess
import sys
import tempfile
import zlib
from collections import Counter
from collections.abc import Generator, Iterator
from datetime import date
from functools import cache
from pathlib import Path

import kept
import pytest
from hypothesis import settings
from postgresql_server import Server, missing_postgresql, running_server

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # before numpy loads: as the command line does
# Machines that run tests are busy ones; examples are others in every run.
settings.register_profile("no-deadline", deadline=None, max_examples=40)
settings.load_profile("no-deadline")

DAY = "AUTOTUNE_TESTS_DAY"  # of a run: it says which tests `--share` takes

# A run in the background of a script, or under nohup, inherits ignored signals, which tests send.
for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, signal.default_int_handler if number is signal.SIGINT else signal.SIG_DFL)

# Tests see what a process did, and no disk after a power cut: a wait for it, 5 ms and more, shows nothing.
os.fsync = lambda descriptor: None

# Asked in a process of its own: once a process has initialised CUDA it must not fork.
_PROBE = """
from cuda.bindings import driver
(error,) = driver.cuInit(0)
if error: raise SystemExit(f"cuInit: {error.name}")
error, count = driver.cuDeviceGetCount()
raise SystemExit(None if count else "no device")
"""


@pytest.fixture(scope="session")
def postgresql() -> Iterator[Server]:
    """A PostgreSQL server of this test run's own; skips where PostgreSQL or its driver is not installed."""
    why = missing_postgresql()
    if why:
        pytest.skip(why)
    with running_server() as server:
        yield server


@pytest.fixture(scope="session", autouse=True)
def carried_once() -> Iterator[None]:
    from carried import once  # loads numpy

    with once():
        yield


@cache
def missing_gpu() -> str:
    """Why there is no GPU to test on, or "" if there is one."""
    probe = subprocess.run([sys.executable, "-c", _PROBE], capture_output=True, text=True, timeout=120)
    return (probe.stderr.strip().splitlines() or ["no answer"])[-1] if probe.returncode else ""


def build_core() -> None:
    """Build the core anew where a source is younger: nothing is tested that is not what its sources say."""
    core = runpy.run_path(str(Path(__file__).resolve().parents[1] / "autotune" / "core" / "build.py"))
    if not core["is_current"]():
        core["build"]()


def pytest_configure(config: pytest.Config) -> None:
    """One cache of compiled kernels for all processes of this run: not the user's, and gone with it. And a
    folder for what these processes make for each other."""
    if not hasattr(config, "workerinput"):  # the workers of pytest-xdist inherit it
        folder = tempfile.TemporaryDirectory(prefix="autotune-tests-")
        config.add_cleanup(folder.cleanup)
        os.environ["AUTOTUNE_CACHE"] = folder.name
        shared = tempfile.TemporaryDirectory(prefix="autotune-tests-")
        config.add_cleanup(shared.cleanup)
        os.environ[kept.RUN] = shared.name
        os.environ.setdefault(DAY, date.today().isoformat())
        # Sets are in one order in all processes, so that what one made another recognises (carried.py).
        os.environ.setdefault("PYTHONHASHSEED", str(random.randrange(2**32)))
        build_core()


def look_for_cycles_seldom() -> None:
    """What was loaded and collected, some 330,000 objects, stays as long as the process: Python's search for
    cycles passes over it, and comes every 20,000 new objects, not every 700. It took a tenth of all tests."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--require-gpu", action="store_true", help="fail, rather than skip, tests marked gpu")
    parser.addoption(
        "--share", type=int, default=1, metavar="N", help=f"of stress tests one of N, others each day ({DAY})"
    )


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("gpu") is None:
        return
    why = missing_gpu() and f"no GPU answers ({missing_gpu()})"
    num_processes = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    if not why and num_processes > 1 and item.get_closest_marker("alone"):
        why = "other tests share the GPU (run `pytest -m alone` without -n)"
    if why and item.config.getoption("--require-gpu"):
        pytest.fail(f"--require-gpu: {why}", pytrace=False)
    if why:
        pytest.skip(why)


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Generator[None, object, object]:
    """The first of a run's processes compiles all tests, with their assertions written anew, and keeps them.
    The others wait, and read what it kept: to do all of that in each takes twice the processor time."""
    if not hasattr(session.config, "workerinput") or sys.dont_write_bytecode:
        return (yield)
    compiled = Path(os.environ[kept.RUN]) / "tests are compiled"
    with compiled.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not compiled.exists():
            collected = yield
            compiled.touch()
            return collected
    return (yield)


@pytest.hookimpl(tryfirst=True)  # before pytest selects by markers
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Of a test that is marked `every(n)`, all cases but each n-th are `stress`. And `--share`."""
    day, share = os.environ[DAY], config.getoption("--share")
    num_cases = Counter[str]()
    left_out = set[pytest.Item]()
    for item in items:
        marker, name = item.get_closest_marker("every"), item.nodeid.partition("[")[0]
        if marker is not None and num_cases[name] % marker.args[0]:
            item.add_marker(pytest.mark.stress)
        num_cases[name] += 1
        if item.get_closest_marker("stress") and zlib.crc32(f"{day} {item.nodeid}".encode()) % share:
            left_out.add(item)
    config.hook.pytest_deselected(items=list(left_out))
    items[:] = [item for item in items if item not in left_out]


def pytest_collection_finish(session: pytest.Session) -> None:
    """`--require-gpu` that selects no GPU test would pass without having looked at the GPU, and groups that
    pytest-xdist overlooks cost minutes."""
    look_for_cycles_seldom()
    grouped = next((item for item in session.items if item.get_closest_marker("xdist_group")), None)
    if grouped and getattr(session.config.option, "loadgroup", False) and "@" not in grouped.nodeid:
        raise pytest.UsageError("--dist loadgroup, but this pytest-xdist groups no tests with this pytest")
    is_required = session.config.getoption("--require-gpu")
    if is_required and not any(item.get_closest_marker("gpu") for item in session.items):
        raise pytest.UsageError("--require-gpu, but no selected test is marked gpu")
