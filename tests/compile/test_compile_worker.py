"""Kernels from elsewhere: compile workers make what GPU workers wait for, by way of a database."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from autotune.facts.gemm import Gemm
from autotune.files.errors import TrialFailure
from autotune.gpu import instance
from autotune.kernel.compiler import CompileJob, Compiler
from autotune.kernel.config import Config
from autotune.service import compile_worker
from autotune.service.compile_worker import StoreHelpers, made
from autotune.store import Build, Store

SIZES = (64, 128, 256)
VARIANT = instance.variant(Gemm(256, 256, 256))


class Counted:
    """A helper that compiles here and counts."""

    def __init__(self, compiler: Compiler, num_slots: int = 4) -> None:
        self.compiler, self.num_slots = compiler, num_slots
        self.keys: list[str] = []

    def build(self, job: CompileJob) -> bytes | None:
        self.keys.append(job.key)
        task = job.to_dict()
        return made(self.compiler, job.key, task).packed


@pytest.fixture
def compiler(tmp_path: Path) -> Iterator[Compiler]:
    made = Compiler("sm_90", cache_dir=tmp_path / "theirs", num_threads=1)
    yield made
    made.close()


def test_helpers_compile_what_no_core_here_is_free_for(compiler: Compiler, tmp_path: Path) -> None:
    helpers = Counted(compiler)
    here = Compiler("sm_90", cache_dir=tmp_path / "here", num_threads=1, helpers=helpers)
    assert here.num_threads == 5
    futures = [here.submit(Config(bm=bm), VARIANT) for bm in SIZES]
    cubins = [future.result() for future in futures]
    assert 1 <= len(helpers.keys) <= 2, "one was compiled here"
    again = Compiler("sm_90", cache_dir=tmp_path / "here", num_threads=1)
    assert [again.compile(Config(bm=bm), VARIANT).sha256 for bm in SIZES] == [
        cubin.sha256 for cubin in cubins
    ]
    here.close()
    again.close()


def test_processes_that_share_a_cache_compile_a_kernel_once(tmp_path: Path) -> None:
    compilers = [Compiler("sm_90", cache_dir=tmp_path / "cache", num_threads=1) for _ in range(3)]
    barrier, found = threading.Barrier(3), []

    def compile_one(one: Compiler) -> None:
        barrier.wait()
        found.append(one.compile(Config(), VARIANT).compile_s)

    threads = [threading.Thread(target=compile_one, args=(one,)) for one in compilers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(seconds > 0 for seconds in found) == [False, False, True]
    for one in compilers:
        one.close()


def test_builds_go_by_the_database(
    tmp_path: Path, compiler: Compiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compile_worker, "POLL_S", 0.01)
    jobs = [
        CompileJob(compiler.version, "f", _options(), text, "", "sm_90") for text in (_KERNEL, "int x = y;")
    ]
    with Store.open(tmp_path / "a.db") as store, store.queue().join("compile", slots=2) as member:
        builds = store.builds()

        def serve() -> None:
            while not is_over.wait(0.01):
                for key, task in builds.claim(member, 2).items():
                    builds.finish(key, made(compiler, key, task))

        is_over = threading.Event()
        serving = threading.Thread(target=serve)
        serving.start()
        with StoreHelpers(builds) as helpers:
            while not helpers.num_slots:
                pass
            packed = helpers.build(jobs[0])
            assert packed is not None and packed == helpers.build(jobs[0])
            with pytest.raises(TrialFailure, match='identifier "y" is undefined'):
                helpers.build(jobs[1])
        is_over.set()
        serving.join()
        with StoreHelpers(builds) as nobody:
            assert nobody.build(jobs[0]) is None, "it has seen no worker yet"


def test_a_build_is_claimed_again_where_its_worker_is_lost(tmp_path: Path) -> None:
    with Store.open(tmp_path / "a.db") as store:
        builds = store.builds()
        builds.ask("a", {"x": 1})
        builds.ask("a", {"x": 1})
        with store.queue().join("compile") as lost:
            assert builds.claim(lost, 5) == {"a": {"x": 1}}
            assert builds.claim(lost, 5) == {}
        with store.queue().join("compile") as other:
            assert builds.claim(other, 5) == {"a": {"x": 1}}
            assert builds.found(["a"]) == {}
            builds.finish("a", Build(b"one"))
            builds.finish("a", Build(b"late"))
        assert builds.found(["a", "b"]) == {"a": Build(b"one")}


def test_a_job_of_another_compiler_is_left_to_who_requested(compiler: Compiler) -> None:
    job = CompileJob("nvrtc 99.0", "f", (), _KERNEL, "", "sm_90")
    assert made(compiler, job.key, job.to_dict()) == Build(None)
    assert made(compiler, "another", {"source": "?"}) == Build(None)
    assert CompileJob.from_dict(job.to_dict()) == job


_KERNEL = 'extern "C" __global__ void f(float *x) { x[0] = 1.0f; }'


def _options() -> tuple[str, ...]:
    return ("-arch=sm_90", "-std=c++17", "-default-device", "--no-cache", "--ptxas-options=-v")
