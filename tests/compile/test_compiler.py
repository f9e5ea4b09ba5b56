"""The compiler's cache, timeout and reports, with real NVRTC: it needs no GPU."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.facts.measurement import Outcome
from autotune.files.errors import EnvironmentProblem, TrialFailure
from autotune.files.output_file import default_cache_dir
from autotune.kernel import compiler as module
from autotune.kernel import nvrtc, template
from autotune.kernel.compiler import Compiler, parse_report
from autotune.kernel.config import Config
from autotune.kernel.launch import Variant

NN = Variant()
SMALL = Config(bm=16, bn=32, bk=8, wm=16, wn=32, tm=4, tn=4, stages=2, bursts=1, unroll_k=4, min_blocks=1)
LARGE = Config(bm=128, bn=128, bk=32, wm=64, wn=64, tm=16, tn=8, stages=2, unroll_k=32, min_blocks=1)
TOY = 'extern "C" __global__ void sgemm(float* c) { c[threadIdx.x] = X; }'


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[..., Compiler]]:
    made: list[Compiler] = []

    def build(arch: str = "sm_80", **options: object) -> Compiler:
        options = {"cache_dir": tmp_path / "cache", "num_threads": 2} | options
        made.append(Compiler(arch, **options))
        return made[-1]

    yield build
    for compiler in made:
        compiler.close()


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file() and path.name != "compiling")


# ------------------------------------------------------------------------------------- cache


def test_a_compiled_kernel_comes_from_the_cache(make: Callable[..., Compiler]) -> None:
    first = make().compile(SMALL, NN)
    again = make().compile(SMALL, NN)
    assert first.compile_s > 0
    assert again == replace(first, compile_s=0.0)
    assert first.code.startswith(b"\x7fELF")
    assert first.registers > 0 == first.static_smem_bytes


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda data: b"",
    "truncated": lambda data: data[:-1],
    "a bit of code": lambda data: data[:-100] + bytes([data[-100] ^ 1]) + data[-99:],
    "a digit of the report": lambda data: data.replace(b'"registers": ', b'"registers": 1', 1),
    "not ours": lambda data: b"\n" + data,
    "zeros": lambda data: bytes(len(data)),
}


@pytest.mark.every(3)
@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_cache_file_is_compiled_anew(
    make: Callable[..., Compiler], tmp_path: Path, damage: Callable[[bytes], bytes]
) -> None:
    first = make().compile_source(TOY, {"X": 1})
    (file,) = _files(tmp_path / "cache")
    intact = file.read_bytes()
    file.write_bytes(damage(intact))
    assert file.read_bytes() != intact
    again = make().compile_source(TOY, {"X": 1})
    assert again.compile_s > 0
    assert replace(again, compile_s=0.0) == replace(first, compile_s=0.0)
    assert make().compile_source(TOY, {"X": 1}).compile_s == 0


def test_a_report_of_another_version_is_compiled_anew(make: Callable[..., Compiler], tmp_path: Path) -> None:
    make().compile_source(TOY, {"X": 1})
    (file,) = _files(tmp_path / "cache")
    _, report, code = file.read_bytes().split(b"\n", 2)
    body = json.dumps(json.loads(report) | {"barriers": 1}).encode() + b"\n" + code
    file.write_bytes(module.hashlib.sha256(body).hexdigest().encode() + b"\n" + body)
    assert make().compile_source(TOY, {"X": 1}).compile_s > 0


def test_all_that_decides_the_bytes_is_in_the_key(make: Callable[..., Compiler], tmp_path: Path) -> None:
    compiler = make()
    entry = TOY.replace("sgemm", "other")
    variations = [
        lambda: compiler.compile_source(TOY, {"X": 1}),
        lambda: compiler.compile_source(TOY, {"X": 2}),
        lambda: compiler.compile_source(TOY + "\n", {"X": 1}),
        lambda: compiler.compile_source(TOY, {"X": 1}, options=["-lineinfo"]),
        lambda: compiler.compile_source(TOY + entry, {"X": 1}),
        lambda: compiler.compile_source(TOY + entry, {"X": 1}, entry="other"),
        lambda: make("sm_90").compile_source(TOY, {"X": 1}),
        lambda: compiler.compile(SMALL, NN),
        lambda: compiler.compile(SMALL, Variant(is_wide=True)),
        lambda: compiler.compile(replace(SMALL, order="zigzag"), NN),
    ]
    for count, compile_it in enumerate(variations, 1):
        assert compile_it().compile_s > 0
        assert len(_files(tmp_path / "cache")) == count


def test_another_version_of_nvrtc_shares_nothing(
    make: Callable[..., Compiler], monkeypatch: pytest.MonkeyPatch
) -> None:
    make().compile_source(TOY, {"X": 1})
    monkeypatch.setattr(module, "compiler_version", lambda: "nvrtc 0.0")
    newer = make().compile_source(TOY, {"X": 1})
    assert newer.compile_s > 0
    assert newer.compiler == "nvrtc 0.0"


def test_configs_that_differ_in_the_launch_share_a_cubin(make: Callable[..., Compiler]) -> None:
    compiler = make()
    split = replace(SMALL, reduction="two_pass", split_k=4)
    first = compiler.compile(split, NN)
    assert compiler.compile(replace(split, split_k=16), NN) == replace(first, compile_s=0.0)


@pytest.mark.parametrize("below", ["", "deeper"])
def test_a_cache_folder_that_cannot_be_is_told_and_done_without(
    make: Callable[..., Compiler], tmp_path: Path, below: str
) -> None:
    """A file stands where the folder should: that stops even root."""
    (tmp_path / "file").touch()
    notes: list[str] = []
    compiler = make(cache_dir=tmp_path / "file" / below, note=notes.append)
    assert [compiler.compile_source(TOY, {"X": 1}).compile_s > 0 for _ in range(2)] == [True, True]
    (note,) = notes
    assert f"{tmp_path}/file" in note and "AUTOTUNE_CACHE" in note


def test_a_cache_lost_on_the_way_costs_compiling_only(make: Callable[..., Compiler], tmp_path: Path) -> None:
    notes: list[str] = []
    compiler = make(note=notes.append)
    compiler.compile_source(TOY, {"X": 1})
    (file,) = _files(tmp_path / "cache")
    folder = file.parent
    file.unlink()
    folder.rmdir()
    folder.touch()  # neither readable nor writable from here on
    assert [compiler.compile_source(TOY, {"X": 1}).compile_s > 0 for _ in range(2)] == [True, True]
    assert len(notes) == 1


@pytest.mark.parametrize(
    ("below", "mode"), [("", 0o777), ("entries", 0o772), ("entries/*", 0o702), ("tmp", 0o777)]
)
def test_a_cache_that_others_may_write_is_not_trusted(
    make: Callable[..., Compiler], tmp_path: Path, below: str, mode: int
) -> None:
    """Neither read nor written: what lies there is loaded as code."""
    cache, notes = tmp_path / "cache", list[str]()
    make().compile_source(TOY, {"X": 1})
    assert cache.stat().st_mode & 0o777 == 0o700
    (folder,) = cache.glob(below) if below else [cache]
    folder.chmod(mode)
    compiler, before = make(note=notes.append), _files(cache)
    assert [compiler.compile_source(TOY, {"X": x}).compile_s > 0 for x in (1, 2)] == [True, True]
    assert _files(cache) == before
    (note,) = notes
    assert "may be written by other users; remove it, or name another with AUTOTUNE_CACHE" in note
    folder.chmod(0o755)
    assert make().compile_source(TOY, {"X": 1}).compile_s == 0


def test_a_cache_of_another_user_is_not_trusted(
    make: Callable[..., Compiler], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    notes: list[str] = []
    make().compile_source(TOY, {"X": 1})
    uid = (tmp_path / "cache").stat().st_uid
    monkeypatch.setattr(os, "geteuid", lambda: uid + 1)
    assert make(note=notes.append).compile_source(TOY, {"X": 1}).compile_s > 0
    (note,) = notes
    assert f"belongs to user {uid}, and this is user {uid + 1}; run as its owner, or name another" in note
    assert "remove it" not in note  # as on a mount where what one makes is another's: it would never end


def test_a_cache_under_a_umask_of_002_is_used_and_nobody_else_may_write(
    make: Callable[..., Compiler], tmp_path: Path
) -> None:
    """cuda.core makes folders by the umask; those of earlier versions are mended."""
    cache, before = tmp_path / "cache", os.umask(0o002)
    try:
        assert make().compile_source(TOY, {"X": 1}).compile_s > 0
        for mode in (0o700, 0o775):  # the latter: as made before
            for folder in (cache, cache / "entries", *cache.glob("entries/*")):
                folder.chmod(mode if mode == 0o775 else folder.stat().st_mode)
            assert make(note=pytest.fail).compile_source(TOY, {"X": 1}).compile_s == 0
            assert not cache.stat().st_mode & 0o022 and (cache / "entries").stat().st_mode & 0o777 == 0o700
    finally:
        os.umask(before)


def test_the_cache_is_where_the_environment_says(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("AUTOTUNE_CACHE", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert default_cache_dir() == tmp_path / "home" / ".cache" / "autotune"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert default_cache_dir() == tmp_path / "xdg" / "autotune"
    monkeypatch.setenv("AUTOTUNE_CACHE", str(tmp_path / "own"))
    assert default_cache_dir() == tmp_path / "own"


# ---------------------------------------------------------------------------------- failures


def test_a_bad_source_fails_with_the_compilers_words(make: Callable[..., Compiler], tmp_path: Path) -> None:
    with pytest.raises(TrialFailure, match='identifier "undeclared" is undefined') as failed:
        make().compile_source('extern "C" __global__ void sgemm() { undeclared(); }')
    assert failed.value.outcome is Outcome.COMPILE_FAILED
    assert not _files(tmp_path / "cache"), "failures are not kept"


@pytest.mark.parametrize("entry", ["missing", "helper"])
def test_a_source_without_the_entry_fails(make: Callable[..., Compiler], entry: str) -> None:
    with pytest.raises(TrialFailure, match=f"does not mention {entry}") as failed:
        make().compile_source(TOY + "__device__ void helper() {}", {"X": 1}, entry=entry)
    assert failed.value.outcome is Outcome.COMPILE_FAILED


@pytest.mark.parametrize("arch", ["sm_70", "sm_999", "", "sm_80a"])
def test_a_gpu_that_nvrtc_does_not_know_is_told_at_once(make: Callable[..., Compiler], arch: str) -> None:
    with pytest.raises(EnvironmentProblem, match="sm_75 to sm_"):
        make(arch)


def test_a_compile_that_takes_too_long_is_cancelled_and_the_pool_goes_on(
    make: Callable[..., Compiler], monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler = make(timeout_s=0.0)
    late = [compiler.submit(config, NN) for config in (LARGE, replace(LARGE, order="zigzag"), SMALL)]
    for future in late:
        failure = future.exception()
        assert isinstance(failure, TrialFailure)
        assert failure.outcome is Outcome.COMPILE_TIMEOUT
    monkeypatch.setattr(compiler, "_timeout_s", 60.0)
    assert compiler.submit(SMALL, NN).result().compile_s > 0


def test_closing_drops_what_waits(make: Callable[..., Compiler]) -> None:
    compiler = make(num_threads=1)
    is_closing = threading.Event()
    compiler._pool.submit(is_closing.wait)  # holds the only thread
    waiting = compiler.submit(SMALL, NN)
    closer = threading.Thread(target=compiler.close)
    closer.start()
    with pytest.raises(CancelledError):
        waiting.result()
    is_closing.set()
    closer.join()
    compiler.close()


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="only Linux tells")
def test_a_compiler_takes_the_cores_that_are_left_to_the_process(make: Callable[..., Compiler]) -> None:
    usable = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(usable)})
    try:
        assert make(num_threads=None).num_threads == 1
    finally:
        os.sched_setaffinity(0, usable)
    assert make(num_threads=None).num_threads == len(usable)


# ------------------------------------------------------------------------------ shared cubins


SPLITS = [replace(SMALL, reduction="last_block", split_k=split_k) for split_k in (2, 4, 8)]


def _count_runs(compiler: Compiler, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, ...]]:
    """The options of every run of NVRTC from here on."""
    run, runs = compiler._run_nvrtc, []

    def counted(source: str, options: tuple[str, ...]) -> nvrtc.CompileAnswer:
        runs.append(options)
        return run(source, options)

    monkeypatch.setattr(compiler, "_run_nvrtc", counted)
    return runs


def test_configs_that_share_a_cubin_compile_once_when_submitted_together(
    make: Callable[..., Compiler], monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler = make()
    runs = _count_runs(compiler, monkeypatch)
    is_open = threading.Event()
    holders = [compiler._pool.submit(is_open.wait) for _ in range(compiler.num_threads)]
    futures = [compiler.submit(config, NN) for config in SPLITS * 2]
    others = [compiler.submit(SMALL, NN), compiler.submit(SPLITS[0], Variant(is_wide=True))]
    is_open.set()
    assert all(holder.result() for holder in holders)
    cubins = [future.result() for future in futures]
    apart = [future.result() for future in others]
    assert len(runs) == 3
    assert sum(cubin.compile_s > 0 for cubin in cubins) == 1, "time is told once"
    assert len({replace(cubin, compile_s=0.0) for cubin in cubins}) == 1
    assert len({cubin.sha256 for cubin in (cubins[0], *apart)}) == 3
    assert not compiler._under_way
    assert compiler.submit(SPLITS[1], NN).result().compile_s == 0, "later ones find it in the cache"
    assert len(runs) == 3


def test_a_failure_is_shared_once_and_then_forgotten(
    make: Callable[..., Compiler], monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler = make(num_threads=1, timeout_s=0.0)
    is_open = threading.Event()
    compiler._pool.submit(is_open.wait)
    futures = [compiler.submit(config, NN) for config in SPLITS]
    is_open.set()
    outcomes = {getattr(future.exception(), "outcome", None) for future in futures}
    assert outcomes == {Outcome.COMPILE_TIMEOUT}
    monkeypatch.setattr(compiler, "_timeout_s", 60.0)
    assert compiler.submit(SPLITS[0], NN).result().compile_s > 0


def test_closing_drops_all_that_wait_for_one_compile(make: Callable[..., Compiler]) -> None:
    compiler = make(num_threads=1)
    is_closing = threading.Event()
    compiler._pool.submit(is_closing.wait)
    waiting = [compiler.submit(config, NN) for config in SPLITS]
    closer = threading.Thread(target=compiler.close)
    closer.start()
    for future in waiting:
        with pytest.raises(CancelledError):
            future.result()
    is_closing.set()
    closer.join()


CLUSTERS = [replace(SMALL, reduction="cluster", split_k=split_k) for split_k in (2, 4, 8)]
WALKS = [replace(SPLITS[0], raster="m"), replace(SPLITS[0], group=8), replace(CLUSTERS[0], group=8)]
KERNELS = [SMALL, *SPLITS, *CLUSTERS, *WALKS, replace(SPLITS[0], order="zigzag")]


@given(st.sampled_from(KERNELS), st.sampled_from(KERNELS))
def test_a_shared_kernel_is_a_shared_source(one: Config, other: Config) -> None:
    same_macros = template.macros(one, NN) == template.macros(other, NN)
    assert same_macros == (one.kernel == other.kernel)


# ----------------------------------------------------------------------------------- reports


def test_many_threads_report_what_one_does(make: Callable[..., Compiler], tmp_path: Path) -> None:
    configs = [replace(SMALL, tm=tm, tn=tn, wm=4 * tm, wn=8 * tn, bm=8 * tm, bn=8 * tn, vec_b=1, vec_c=1)
               for tm, tn in ((2, 2), (2, 4), (4, 2), (4, 4), (1, 4))]  # fmt: skip
    crowd = make(num_threads=8)
    futures = [crowd.submit(config, NN) for config in configs * 2]
    combined = [replace(future.result(), compile_s=0.0) for future in futures]
    alone = make(num_threads=1, cache_dir=tmp_path / "alone")
    assert combined == [replace(alone.compile(config, NN), compile_s=0.0) for config in configs] * 2


def test_spills_frames_and_shared_memory_are_reported(make: Callable[..., Compiler]) -> None:
    source = """
    extern "C" __global__ void __launch_bounds__(1024) sgemm(float* c, int n) {
        __shared__ float tile[256];
        float sums[128];
    #pragma unroll
        for (int i = 0; i < 128; ++i) sums[i] = c[i * n];
        tile[threadIdx.x % 256] = sums[0];
        __syncthreads();
        for (int k = 0; k < n; ++k)
    #pragma unroll
            for (int i = 0; i < 128; ++i) sums[i] += sums[(i + 1) % 128] * tile[(k + i) % 256];
    #pragma unroll
        for (int i = 0; i < 128; ++i) c[i * n] = sums[i];
    }"""
    cubin = make().compile_source(source)
    assert cubin.spill_bytes > 0
    assert cubin.stack_bytes > 0
    assert cubin.static_smem_bytes == 1024
    assert cubin.registers == 64, "65536 over 1024 threads"


LOG = """ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'sgemm_reduce' for 'sm_90'
ptxas info    : Function properties for sgemm_reduce
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 22 registers, used 0 barriers, 432 bytes cmem[0]
ptxas info    : Compile time = 3.0 ms
ptxas info    : Compiling entry function 'sgemm' for 'sm_90'
ptxas info    : Function properties for sgemm
    24 bytes stack frame, 16 bytes spill stores, 20 bytes spill loads
ptxas info    : Used 128 registers, used 1 barriers, 24 bytes cumulative stack size, 512 bytes smem
"""
REPORT = {"registers": 128, "spill_bytes": 36, "stack_bytes": 24, "static_smem_bytes": 512}


def test_an_entry_is_told_from_its_neighbours() -> None:
    assert parse_report(LOG, "sgemm") == REPORT
    reduce = {"registers": 22, "spill_bytes": 0, "stack_bytes": 0, "static_smem_bytes": 0}
    assert parse_report(LOG, "sgemm_reduce") == reduce


@given(st.sets(st.integers(0, LOG.count("\n") - 1)))
def test_a_report_with_lines_missing_is_refused_or_still_right(lost: set[int]) -> None:
    kept = "\n".join(line for number, line in enumerate(LOG.splitlines()) if number not in lost)
    try:
        assert parse_report(kept, "sgemm") == REPORT
    except TrialFailure as failure:
        assert failure.outcome is Outcome.COMPILE_FAILED
        assert lost & {6, 8, 9}


@pytest.mark.parametrize("log", ["", "\0\0", LOG + LOG, LOG.replace("'sgemm'", "'other'")])
def test_a_report_that_does_not_name_the_entry_once_is_refused(log: str) -> None:
    with pytest.raises(TrialFailure, match="does not mention sgemm once"):
        parse_report(log, "sgemm")
