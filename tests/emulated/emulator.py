"""Builds instances of a kernel for the host and runs problems on them (see primitives_host.hpp).

An executable holds one instance of one kernel text; it reads problems from standard input and writes
their C, and what it keeps. Executables are stored by the hash of all that went into them, so that only
changes compile.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
import struct
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from autotune.kernel.launch import PACK_SMEM_BYTES, PACK_THREADS, PLAIN, SCHEDULE_WORDS, Epilogue, Pack

HERE = Path(__file__).resolve().parent
RUNTIME = ("counting.cpp", "main.cpp", "memory.cpp", "scheduler.cpp", "tensor.cpp")
FLAGS = (
    "-std=c++17", "-O1", "-Wall", "-Wextra", "-Wno-unknown-pragmas",
    "-ftrivial-auto-var-init=pattern",  # what was never set is -1.7e38, not a lucky zero
)  # fmt: skip
# They tell lines; -Og compiles what they watch in two thirds of the time of -O1, and it runs as fast
SANITIZED = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-g1", "-Og")
RUNTIME_FLAGS = ("-O2",)  # beside FLAGS: compiled once, run by every instance
NUM_COMPILES = 2  # at a time: CI has two cores
LOCKS = "locks"  # a folder in that of the executables: one file for each that is being built
STRICT = ("-Werror",)
RUN_TIMEOUT_S = 100.0
# no stack of each allocation, and little kept of what was freed: a quarter of a run
_ASAN = "detect_leaks=0:malloc_context_size=0:quarantine_size_mb=8:exitcode=4"
_OPTIONS = {"ASAN_OPTIONS": _ASAN, "UBSAN_OPTIONS": "print_stacktrace=1"}
_NOISE = "ASan doesn't fully support makecontext"  # it does: scheduler.cpp announces every switch


class BuildError(Exception):
    """The compiler refused an instance, or there is no compiler."""


class EmulatedFault(Exception):
    """The emulator or a sanitizer ended the run; the message is what it wrote."""


@dataclass(frozen=True)
class Stored:
    """The matrices of an operand, (count, rows, columns), and where they lie, in floats.

    Rows are `ld` apart, matrices `stride`; `offset` moves the base off its alignment. One matrix may serve
    all products of a batch. `words`: their memory, where an element is no float.
    """

    matrices: np.ndarray
    ld: int
    stride: int = 0
    offset: int = 0
    words: np.ndarray | None = None

    @property
    def memory(self) -> np.ndarray:
        return self.matrices if self.words is None else self.words

    def fields(self) -> tuple[int, ...]:
        """As `struct Stored` of problem.hpp."""
        return *self.memory.shape, self.ld, self.stride, self.offset


NOTHING = Stored(np.empty((0, 1, 1), np.float32), 1)


class LaunchResult(NamedTuple):
    """C, and what an epilogue keeps, both (products, m, n); where it keeps nothing, that is empty."""

    c: np.ndarray
    kept: np.ndarray


@dataclass(frozen=True)
class LaunchProblem:
    """One launch: A, B, C as stored, and what `launch.plan` says; all of `products` products.

    The epilogue adds `bias`, rows of as many floats as C has rows or columns, and fills `kept`. Orders:
    0 forward, 1 reverse, 2 shuffled by `seed`.
    """

    name: str
    m: int
    n: int
    k: int
    a: Stored
    b: Stored
    c: Stored
    threads: int
    smem_bytes: int
    size: tuple[int, int]
    split_k: int = 1
    padded: tuple[int, int] = (0, 0)
    sum_bytes: int = 0
    counter_bytes: int = 0
    reduce_blocks: int = 0
    reduce_blocks_per_product: int = 0
    reduce_threads: int = 0
    reduce_group_bits: int = 0
    reduce_smem_bytes: int = 0
    alpha: float = 1.0
    beta: float = 0.0
    thread_order: int = 0
    block_order: int = 0
    seed: int = 0
    packs: tuple[Pack, ...] = ()
    schedule: tuple[int, ...] = (0,) * SCHEDULE_WORDS
    epilogue: Epilogue = PLAIN
    bias: Stored = NOTHING
    kept: Stored = NOTHING

    @property
    def products(self) -> int:
        return len(self.c.matrices)

    def packed(self) -> bytes:
        """As main.cpp reads it: the name, `struct Problem` of problem.hpp, and the operands."""
        name = self.name.encode()
        operands = (self.a, self.b, self.c, self.bias)
        integers = (
            self.m, self.n, self.k, self.products,
            *(field for stored in (*operands, self.kept) for field in stored.fields()),
            self.threads, self.smem_bytes, *self.size, self.split_k, *self.padded,
            self.sum_bytes, self.counter_bytes,
            self.reduce_blocks, self.reduce_blocks_per_product, self.reduce_threads, self.reduce_group_bits,
             self.reduce_smem_bytes, *self.schedule,
            *self._pack(is_a=True), *self._pack(is_a=False),
            sum(pack.num_bytes for pack in self.packs), PACK_THREADS, PACK_SMEM_BYTES,
            self.thread_order, self.block_order, self.seed,
        )  # fmt: skip
        form = f"<q{len(name)}s{len(integers)}q2d"
        header = struct.pack(form, len(name), name, *integers, self.alpha, self.beta)
        return header + b"".join(stored.memory.astype("<f4", copy=False).tobytes() for stored in operands)

    def _pack(self, is_a: bool) -> tuple[int, ...]:
        """As `struct Pack`: zeros where the operand is not packed."""
        for p in self.packs:
            if p.is_a == is_a:
                launch = (p.extent, p.padded, p.is_k_major, p.blocks, p.offset)
                return *launch, p.products, p.blocks_per_product, p.stride, p.packed_stride
        return (0,) * 9


def run(
    executable: Path,
    problems: Iterable[LaunchProblem],
    counts: Path | None = None,
    trace: Path | None = None,
) -> list[LaunchResult]:
    """What becomes of each problem, in order. Raises `EmulatedFault` at the first that goes wrong.

    A kernel that is compiled with `COUNTED` writes to the file `counts` what its warps ask of memory, and to
    `trace` every access.
    """
    problems, files = list(problems), {"AUTOTUNE_COUNTS": counts, "AUTOTUNE_TRACE": trace}
    try:
        done = subprocess.run(
            [executable],
            input=b"".join(p.packed() for p in problems),
            capture_output=True,
            env=os.environ | _OPTIONS | {name: str(path) for name, path in files.items() if path},
            timeout=RUN_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise EmulatedFault(f"no end after {RUN_TIMEOUT_S} s") from None
    if done.returncode != 0:
        lines = done.stderr.decode(errors="replace").splitlines()
        message = "\n".join(line for line in lines if _NOISE not in line)
        raise EmulatedFault(f"exit {done.returncode}: {message[:6000]}")
    floats, results = np.frombuffer(done.stdout, "<f4"), []
    for p in problems:
        written = []
        for stored in (p.c, p.kept):
            shape, size = stored.matrices.shape, stored.matrices.size
            written.append(floats[:size].reshape(shape))
            floats = floats[size:]
        results.append(LaunchResult(*written))
    return results


class Builder:
    """Compiles in a few threads and keeps executables in `folder`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._pool = ThreadPoolExecutor(NUM_COMPILES, thread_name_prefix="g++")
        self._lock = threading.Lock()
        self._runtime: dict[tuple[str, ...], list[Path]] = {}  # by how it is watched
        self._builds: dict[str, Future[Path]] = {}

    def submit(
        self,
        main: Path,
        macros: Mapping[str, object],
        flags: Sequence[str] = STRICT,
        *,
        kernel_watch: Sequence[str] = SANITIZED,
        runtime_watch: Sequence[str] = (),
    ) -> Future[Path]:
        """The executable for the kernel text `main` (with its folder's *.cuh) under these macros.

        What watches them: a kernel's own accesses are for the sanitizers to see. The runtime, which checks
        what it is asked for, takes three times as long to compile under them, and a quarter longer to run.
        """
        defines = [*kernel_watch, *flags, *(f"-D{name}={value}" for name, value in macros.items())]
        texts = [main, *sorted(main.parent.glob("*.cuh")), *sorted(HERE.glob("*.hpp")), HERE / "instance.cpp"]
        runtime = [*runtime_watch, *(str(self._hash_of(HERE / name)) for name in RUNTIME)]
        key = self._key(texts, [*defines, *runtime])
        with self._lock:
            if key not in self._builds:
                build = (key, main, defines, [*kernel_watch, *runtime_watch], tuple(runtime_watch))
                self._builds[key] = self._pool.submit(self._build, *build)
            return self._builds[key]

    def library(self, source: Path, included: Sequence[Path], flags: Sequence[str]) -> Path:
        """A shared library of one source and of the texts that it includes: compiled once for all modules and
        processes."""
        target = self._folder / f"{self._key([source, *included], flags)}.so"
        with self._alone(target.name):
            if target.exists():
                target.touch()
                return target
            with tempfile.TemporaryDirectory(dir=self._folder) as scratch:
                made = Path(scratch) / "made.so"
                self._compile([*flags, "-shared", "-fPIC", source, "-o", made])
                made.rename(target)
        return target

    def close(self) -> None:
        self._pool.shutdown(cancel_futures=True)

    def _hash_of(self, path: Path) -> str:
        return hashlib.sha256(path.read_bytes()).hexdigest()

    def _key(self, texts: Sequence[Path], flags: Sequence[str]) -> str:
        parts = [*compiler()[1:], *FLAGS, *flags, *(f"{p.name} {self._hash_of(p)}" for p in texts)]
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:32]

    def _build(
        self, key: str, main: Path, defines: Sequence[str], linked: Sequence[str], watch: tuple[str, ...]
    ) -> Path:
        target = self._folder / key
        with self._alone(key):
            if target.exists():
                target.touch()  # the oldest are removed first
                return target
            includes = [f"-I{HERE}", f'-DKERNEL_FILE="{main}"']
            with tempfile.TemporaryDirectory(dir=self._folder) as scratch:
                object_file, executable = Path(scratch) / "instance.o", Path(scratch) / "instance"
                self._compile([*FLAGS, *includes, *defines, "-c", HERE / "instance.cpp", "-o", object_file])
                self._compile([*FLAGS, *linked, object_file, *self._runtime_objects(watch), "-o", executable])
                executable.rename(target)
            return target

    @contextmanager
    def _alone(self, key: str) -> Iterator[None]:
        """While no other process builds this: the other processes of a test run want the same ones."""
        folder = self._folder / LOCKS
        folder.mkdir(exist_ok=True)
        with (folder / key).open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def _runtime_objects(self, watch: tuple[str, ...]) -> list[Path]:
        """What every executable shares, compiled once."""
        with self._lock:
            if watch not in self._runtime:
                self._runtime[watch] = [self._runtime_object(HERE / name, watch) for name in RUNTIME]
            return self._runtime[watch]

    def _runtime_object(self, source: Path, watch: tuple[str, ...]) -> Path:
        flags = [*RUNTIME_FLAGS, *watch]
        key = self._key([source, *sorted(HERE.glob("*.hpp"))], flags)
        target = self._folder / f"{key}.o"
        with self._alone(key):
            if target.exists():
                target.touch()
                return target
            with tempfile.TemporaryDirectory(dir=self._folder) as scratch:
                object_file = Path(scratch) / "runtime.o"
                self._compile([*FLAGS, *flags, f"-I{HERE}", "-c", source, "-o", object_file])
                object_file.rename(target)
        return target

    @staticmethod
    def _compile(arguments: Sequence[str | Path]) -> None:
        done = subprocess.run([compiler()[0], *arguments], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise BuildError(done.stderr[-6000:])


_compiler: tuple[str, str] | None = None


def compiler() -> tuple[str, str]:
    """Path and version of the C++ compiler: $CXX, else g++."""
    global _compiler
    if _compiler is None:
        path = shutil.which(os.environ.get("CXX", "g++"))
        if path is None:
            raise BuildError(
                "no C++ compiler: these tests run the CUDA template on the host and need g++ >= 12 with "
                "its sanitizer libraries (Debian, Ubuntu: apt-get install g++), or CXX set to a compiler"
            )
        version = subprocess.run([path, "--version"], capture_output=True, text=True, check=True).stdout
        _compiler = (path, version)
    return _compiler


def remove_oldest(folder: Path, keep: int, unused_s: float) -> None:
    """Keeps the `keep` files of `folder` that were used last, and what was used in the last `unused_s`
    seconds: other processes may be at it."""
    begin = time.time() - unused_s
    used: list[tuple[float, Path]] = []
    for path in folder.iterdir():
        with contextlib.suppress(FileNotFoundError):  # removed by another process
            used += [(path.stat().st_mtime, path)] if path.is_file() else []
    for used_at, path in sorted(used, reverse=True)[keep:]:
        if used_at < begin:
            path.unlink(missing_ok=True)
