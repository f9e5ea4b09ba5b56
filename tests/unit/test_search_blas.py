"""A search takes one thread for linear algebra, whatever numpy was loaded with, and gives the others back."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from fake_target import FakeTarget

from autotune.facts.gemm import Gemm
from autotune.search import Options, tune
from autotune.search.run import threads as blas
from autotune.store import Store

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def threads():
    """How many threads each OpenBLAS of this process takes: two, until the test ends."""
    found = blas.libraries()
    if not found:
        pytest.skip(f"numpy {np.__version__} brings no OpenBLAS that is known here")
    before = [library.num_threads() for library in found]
    for library in found:
        library.set_num_threads(2)
    yield lambda: {library.num_threads() for library in found}
    for library, num_threads in zip(found, before, strict=True):
        library.set_num_threads(num_threads)


def test_a_search_takes_one_thread_and_gives_the_others_back(threads, tmp_path):
    seen = set()
    with Store.open(tmp_path / "a.db") as store:
        tune(FakeTarget(), store, [Gemm(64, 64, 64)], Options(trials=9), lambda _: seen.update(threads()))
        assert (seen, threads()) == ({1}, {2})
        with pytest.raises(ZeroDivisionError):
            tune(FakeTarget(), store, [Gemm(64, 64, 64)], Options(trials=12), lambda _: 1 / 0)
    assert threads() == {2}


def test_numpys_own_library_is_found_where_it_has_one():
    """In a process of its own, told nothing by the environment."""
    code = (
        "import numpy\nfrom autotune.search.run import threads as blas\n"
        "name = numpy.show_config('dicts')['Build Dependencies']['blas']['name']\n"
        "found = blas.libraries()\n"
        "assert bool(found) or 'openblas' not in name, name\n"
        "with blas.one_thread(): assert {f.num_threads() for f in found} <= {1}"
    )
    environment = {k: v for k, v in os.environ.items() if k != "OPENBLAS_NUM_THREADS"}
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    subprocess.run([sys.executable, "-c", code], env=environment, check=True, timeout=60)


def test_where_nothing_tells_what_is_loaded_nothing_is_changed(monkeypatch, tmp_path):
    monkeypatch.setattr(blas, "_MAPS", tmp_path / "maps")
    assert blas.libraries() == []
    (tmp_path / "maps").write_text("7f00-7f01 r-xp 0 0:0 1 /gone/libopenblas.so (deleted)\n7f02 rw-p\n")
    with blas.one_thread():
        assert blas.libraries() == []
