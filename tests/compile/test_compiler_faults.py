"""Compilers that crash, never end, run out of memory or of disk: each costs one compile, and no more."""

from __future__ import annotations

import errno
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
from sandbox import small_disk

from autotune.facts.measurement import Outcome
from autotune.files.errors import EnvironmentProblem, TrialFailure
from autotune.kernel import compiler as compiler_module
from autotune.kernel import nvrtc, nvrtc_worker
from autotune.kernel.compiler import Compiler

TOY = 'extern "C" __global__ void sgemm(float* c) { c[threadIdx.x] = X; }'
# Deep enough that NVRTC is busy with it for minutes, in a place where it asks nobody whether to go on.
ENDLESS = 'extern "C" __global__ void sgemm(float* c) { ' + "if(c[0]) " * 30_000 + "c[0] = 1; }"
SLOW = ENDLESS.replace("if(c[0]) " * 30_000, "if(c[0]) " * 400)  # some tenths of a second
FAULTY = """
import ctypes, os, signal, sys
from autotune.kernel import nvrtc_worker
run = nvrtc_worker.run
def faulty(binding, request):
    if "-DX=13" in request.options:
        sys.stderr.write("last words"); sys.stderr.flush()
        DEED
    return run(binding, request)
nvrtc_worker.run = faulty
nvrtc_worker.main(int(sys.argv[1]))
"""

WITHOUT_NVRTC = """
import sys
sys.modules["cuda.bindings.nvrtc"] = None
from autotune.kernel import nvrtc_worker
nvrtc_worker.main(int(sys.argv[1]))
"""


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[..., Compiler]]:
    made: list[Compiler] = []

    def build(**options: object) -> Compiler:
        options = {"cache_dir": tmp_path / "cache", "num_threads": 2} | options
        made.append(Compiler("sm_80", **options))
        return made[-1]

    yield build
    for compiler in made:
        compiler.close()


def use(monkeypatch: pytest.MonkeyPatch, *command: str) -> None:
    """Have this command compile."""
    monkeypatch.setattr(nvrtc, "Process", partial(nvrtc.Process, command))


def failure(compiler: Compiler, source: str = TOY, number: int = 13) -> TrialFailure:
    with pytest.raises(TrialFailure) as failed:
        compiler.compile_source(source, {"X": number})
    return failed.value


# ------------------------------------------------------------------------------------ crashes


@pytest.mark.parametrize(
    ("deed", "words"),
    [
        ("ctypes.string_at(0)", "SIGSEGV"),
        ("os.abort()", "SIGABRT"),
        ("os.kill(os.getpid(), signal.SIGKILL)", "SIGKILL, for want of memory?"),
        ("os._exit(3)", "exit code 3"),
    ],
)
def test_a_crash_costs_one_compile(
    make: Callable[..., Compiler], monkeypatch: pytest.MonkeyPatch, deed: str, words: str
) -> None:
    monkeypatch.delenv("PYTHONDEVMODE", raising=False)  # which has words of its own at a crash
    use(monkeypatch, sys.executable, "-c", FAULTY.replace("DEED", deed))
    compiler = make()
    assert compiler.compile_source(TOY, {"X": 1}).compile_s > 0
    crash = failure(compiler)
    assert crash.outcome is Outcome.COMPILE_CRASHED
    assert crash.reason == f"the compiler died of it ({words}) last words"
    assert compiler.compile_source(TOY, {"X": 2}).compile_s > 0


def test_a_crash_leaves_what_others_compile_alone(
    make: Callable[..., Compiler], monkeypatch: pytest.MonkeyPatch
) -> None:
    use(monkeypatch, sys.executable, "-c", FAULTY.replace("DEED", "os.abort()"))
    compiler = make(num_threads=3)
    numbers = [1, 13, 2, 3, 13, 4, 5]
    futures = [compiler._pool.submit(compiler.compile_source, TOY, {"X": number}) for number in numbers]
    crashed = [isinstance(future.exception(), TrialFailure) for future in futures]
    assert crashed == [number == 13 for number in numbers]


def test_a_process_killed_while_idle_is_no_kernels_fault(make: Callable[..., Compiler]) -> None:
    """As where memory runs out: these processes are the first to go."""
    compiler = make()
    compiler.compile_source(TOY, {"X": 1})
    (idle,) = compiler._idle
    os.kill(idle._process.pid, signal.SIGKILL)
    assert is_gone_soon(idle._process.pid)
    assert compiler.compile_source(TOY, {"X": 2}).compile_s > 0
    assert idle not in compiler._idle and not idle.is_alive


def test_a_compile_that_never_ends_is_ended_wherever_it_is(make: Callable[..., Compiler]) -> None:
    compiler = make(timeout_s=1.0)
    late = failure(compiler, ENDLESS)
    assert (late.outcome, late.reason) == (Outcome.COMPILE_TIMEOUT, "ended after 1 s")
    assert compiler.compile_source(TOY, {"X": 1}).compile_s > 0


def test_a_compiler_without_memory_costs_one_compile(
    make: Callable[..., Compiler], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Address space for a small kernel, none for a large one."""
    limited = f"ulimit -v 400000; exec {sys.executable} -m autotune.kernel.nvrtc_worker $0"
    use(monkeypatch, "bash", "-c", limited)
    compiler = make()
    greedy = TOY.replace("{", "{ float x[8]; " + "x[c[0] > 0] += c[X] * c[X + 1];" * 100_000)
    starved = failure(compiler, greedy)
    assert starved.outcome in (Outcome.COMPILE_FAILED, Outcome.COMPILE_CRASHED), starved
    assert compiler.compile_source(TOY, {"X": 1}).compile_s > 0


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (("/nonexistent",), "no process can be started to compile in .*; run `autotune doctor`"),
        ((sys.executable, "-c", "raise SystemExit('NVRTC is gone')"), r"does not start \(NVRTC is gone\)"),
        ((sys.executable, "-c", WITHOUT_NVRTC), r"NVRTC cannot be loaded \(.*nvrtc.*\); install it"),
    ],
)
def test_what_the_machine_lacks_is_no_fault_of_a_kernel(
    make: Callable[..., Compiler], monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...], words: str
) -> None:
    use(monkeypatch, *command)
    with pytest.raises(EnvironmentProblem, match=words):
        make().compile_source(TOY, {"X": 1})


@pytest.mark.parametrize(
    "missing",
    [(tempfile, "TemporaryFile"), (socket, "socketpair"), (subprocess, "Popen")],
    ids=["folder", "files", "process"],
)
@pytest.mark.parametrize(
    ("number", "advice"),
    [
        (errno.EMFILE, "too many files are open: .*; allow more .ulimit -n.$"),
        (errno.ENOMEM, "out of memory: .*; free some$"),
        (errno.ENOSPC, "the disk is full: .*; free some$"),
        (errno.EAGAIN, "too many processes run: .*; end some, or allow more .ulimit -u"),
        (errno.EACCES, "TMPDIR|autotune doctor"),
    ],
    ids=lambda value: errno.errorcode[value] if isinstance(value, int) else "",
)
def test_no_room_for_a_process_is_no_fault_of_a_kernel(
    make: Callable[..., Compiler],
    monkeypatch: pytest.MonkeyPatch,
    missing: tuple[object, str],
    number: int,
    advice: str,
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise OSError(number, "none is left")

    monkeypatch.setattr(*missing, fail)
    with pytest.raises(EnvironmentProblem, match=advice):
        make().compile_source(TOY, {"X": 1})


# ---------------------------------------------------------------------------------- processes

PARENT = """
import os, signal, sys, threading
from pathlib import Path
sys.path.insert(0, TESTS)
from test_compiler_faults import ENDLESS, TOY
from autotune.kernel.compiler import Compiler
compiler = Compiler("sm_80", cache_dir=Path(sys.argv[1]), num_threads=2, timeout_s=3.0)
compiler.compile_source(TOY, {"X": 1})
(idle,) = compiler._idle
print(idle._process.pid, flush=True)
if sys.argv[2] == "compiling":
    threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGKILL)).start()
    compiler.compile_source(ENDLESS)
os.kill(os.getpid(), signal.SIGKILL)
"""


def is_gone_soon(pid: int) -> bool:
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return True
        except (FileNotFoundError, ProcessLookupError):
            return True
        time.sleep(0.02)
    return False


@pytest.mark.stress
@pytest.mark.parametrize("it_is", ["idle", "compiling"])
def test_a_compiling_process_outlives_nobody(tmp_path: Path, it_is: str) -> None:
    """Killed with -9, a coordinator cannot end it: its pipe does, or its timer."""
    here = Path(__file__).parent
    paths = [str(here.parents[1]), str(here.parent), os.environ.get("PYTHONPATH", "")]
    done = subprocess.run(
        [sys.executable, "-c", PARENT.replace("TESTS", repr(str(here))), tmp_path / "cache", it_is],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths))},
        stdout=subprocess.PIPE, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == -signal.SIGKILL
    assert is_gone_soon(int(done.stdout))


def test_compilers_give_way_to_what_feeds_them() -> None:
    process = nvrtc.Process()
    try:
        niceness = os.getpriority(os.PRIO_PROCESS, process._process.pid)
        assert niceness == min(os.getpriority(os.PRIO_PROCESS, 0) + nvrtc_worker.LATER, 19)
    finally:
        process.end()


def ticks(number: int) -> int:
    """Of the processor that a process has had."""
    after_name = Path(f"/proc/{number}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return int(after_name[11]) + int(after_name[12])


def test_a_compile_that_has_to_wait_is_not_ended(make: Callable[..., Compiler]) -> None:
    """As for a processor that others keep busy: these processes give way to them."""
    compiler = make(timeout_s=1.0)
    compiler.compile_source(TOY, {"X": 1})
    (idle,) = compiler._idle
    number, before = idle._process.pid, ticks(idle._process.pid)

    def stop_for_a_while() -> None:
        while ticks(number) < before + 2:
            time.sleep(0.001)
        os.kill(number, signal.SIGSTOP)
        time.sleep(1.5)
        os.kill(number, signal.SIGCONT)

    stopping = threading.Thread(target=stop_for_a_while)
    stopping.start()
    assert compiler.compile_source(SLOW).compile_s > 1.5
    stopping.join()
    assert idle in compiler._idle


def test_closing_ends_all_processes(make: Callable[..., Compiler]) -> None:
    compiler = make()
    futures = [compiler._pool.submit(compiler.compile_source, TOY, {"X": number}) for number in range(4)]
    assert all(future.result().code for future in futures)
    pids = [process._process.pid for process in compiler._idle]
    assert 1 <= len(pids) <= 2
    compiler.close()
    assert all(is_gone_soon(pid) for pid in pids)


# -------------------------------------------------------------------------------------- cache

COMPILE_TWICE = """
import sys
from pathlib import Path
sys.path.insert(0, TESTS)
from test_compiler_faults import TOY
from autotune.kernel.compiler import Compiler
notes = []
compiler = Compiler("sm_80", cache_dir=Path("cache"), num_threads=1, note=notes.append)
big = TOY.replace("{", "{ __shared__ float x[64]; " + "x[c[1] > X] += c[X];" * 200)
for number in (1, 2, 3, 3):
    assert compiler.compile_source(big, {"X": number}).code
compiler.close()
(note,) = notes
print(note)
"""


@pytest.mark.parametrize(
    ("options", "words"),
    [("size=12k", "No space left on device"), ("ro", "Read-only file system")],
    ids=["full", "read-only"],
)
def test_a_disk_that_takes_no_more_costs_compiling_anew_and_is_told_once(options: str, words: str) -> None:
    here = Path(__file__).parent
    code = COMPILE_TWICE.replace("TESTS", repr(str(here)))
    done = small_disk(options, sys.executable, "-c", code)
    assert done.returncode == 0, done.stderr
    assert f"The kernel cache cache cannot be used ({words}): kernels are compiled anew" in done.stdout


def test_a_user_without_a_home_has_no_cache(
    make: Callable[..., Compiler], monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    notes: list[str] = []
    monkeypatch.setattr(compiler_module, "default_cache_dir", no_home)
    compiler = make(cache_dir=None, note=notes.append)
    for _ in range(2):
        assert compiler.compile_source(TOY, {"X": 1}).compile_s > 0
    (note,) = notes
    assert "of a user without a home" in note and "AUTOTUNE_CACHE" in note
