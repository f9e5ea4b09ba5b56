"""CUDA source to cubin, on all cores, through a disk cache. Needs no driver and no GPU.

Each thread of a pool lets a process compile (nvrtc.py says why) while the GPU times. Compiled kernels are
kept on disk, keyed by everything that decides their bytes, with the compiler's own report beside them: only
that report shows spills.
"""

from __future__ import annotations

import base64
import fcntl
import hashlib
import json
import os
import re
import struct
import threading
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

from ..facts.measurement import Outcome
from ..files.errors import EnvironmentProblem, TrialFailure, UsageError
from ..files.output_file import NotOwn, check_own, default_cache_dir, own_folder
from . import identity, machine_code, nvrtc, template, templates
from .launch import Variant
from .scaled_config import AnyConfig

CACHE_BYTES = 4 << 30  # the least recently read kernels go first
# Where cuda.core keeps files, in folders by the first letters of their keys, and where it writes them. Those
# folders it makes by the umask: so that nobody else may write there, nobody else may enter the first.
_ENTRIES, _WRITTEN = "entries", "tmp"
_LOCKS = "compiling"  # a file of which processes lock a byte for each kernel that they compile
MOST_HELPED = 64  # kernels that others compile for one GPU at a time
# If there is a driver, NVRTC keeps its own cache, whose results come without ptxas's log. Without the
# declarations of textures and the like, which `-minimal` leaves out, a compile takes 11 of 246 ms less, and
# gives the same code (NVRTC 13.3, 12 configs).
_BASE_OPTIONS = ("-std=c++17", "-default-device", "-minimal", "--no-cache", "--ptxas-options=-v")
_BASIS = {"sm_90a": "sm_90"}  # what has instructions of its own, and is in no list
_ENTRY = re.compile(r"Compiling entry function '(\w+)'")
_REGISTERS = re.compile(r"Used (\d+) registers")
_STATIC_SMEM = re.compile(r"(\d+) bytes smem")
_FRAME = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")


@dataclass(frozen=True)
class Cubin:
    """A compiled kernel and ptxas's report of its entry function. Sizes are bytes."""

    code: bytes
    sha256: str
    arch: str
    compiler: str
    registers: int
    spill_bytes: int  # stores plus loads
    stack_bytes: int
    static_smem_bytes: int
    compile_s: float  # 0 when it came from the cache

    @property
    def code_hash(self) -> str | None:
        """Equal for kernels of the same machine code (machine_code.py); None for what is no cubin."""
        with suppress(UsageError):
            return machine_code.code_hash(self.code)
        return None

    def report(self) -> dict[str, Any]:
        """All but the code, as kept beside it in the cache."""
        return {name: value for name, value in asdict(self).items() if name != "code"}

    def packed(self) -> bytes:
        """As one file of a cache: SHA-256 of what follows, its report as a line of JSON, its code."""
        body = json.dumps(self.report()).encode() + b"\n" + self.code
        return hashlib.sha256(body).hexdigest().encode() + b"\n" + body


@dataclass(frozen=True)
class CompileJob:
    """All that decides a kernel's bytes, and so its `key` in caches. `name`: its identity, if it has one."""

    version: str  # of the compiler
    entry: str
    options: tuple[str, ...]
    source: str
    name: str
    arch: str

    @cached_property
    def key(self) -> str:
        limiting = "\0".join((self.version, self.entry, *self.options, self.source))
        return hashlib.sha256(limiting.encode()).hexdigest()

    def to_dict(self) -> dict[str, Any]:
        """Plain data, the text packed."""
        packed = base64.b64encode(zlib.compress(self.source.encode())).decode()
        return {**asdict(self), "source": packed}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> CompileJob | None:
        """None for what is no job."""
        try:
            unpacked = zlib.decompress(base64.b64decode(data["source"])).decode()
            return cls(**{**data, "options": tuple(data["options"]), "source": unpacked})
        except (KeyError, TypeError, ValueError, zlib.error):
            return None


class Helpers(Protocol):
    """Others that compile: on other machines, say. Threads share it."""

    @property
    def num_slots(self) -> int:
        """How many kernels they compile at a time, as of late."""

    def build(self, job: CompileJob) -> bytes | None:
        """A kernel as `Cubin.packed`; None: compile it here. Raises TrialFailure if it does not compile."""


def compiler_version() -> str:
    """`nvrtc 13.0`. Raises EnvironmentProblem where there is none."""
    return nvrtc.installed().version


def _check_arch(arch: str) -> None:
    """Raises EnvironmentProblem where NVRTC cannot serve this GPU at all: no candidate would compile."""
    known = nvrtc.installed().archs
    if _BASIS.get(arch, arch) not in [f"sm_{number}" for number in known]:
        raise EnvironmentProblem(
            f"{compiler_version()} does not compile for {arch}, only for sm_{min(known)} to sm_{max(known)}; "
            "install another one (cuda-toolkit[nvrtc]) or use another GPU"
        )


def _unpack(packed: bytes) -> Cubin | None:
    """None for a file that is damaged or of another version: no error, the kernel is compiled again."""
    digest, _, body = packed.partition(b"\n")
    if hashlib.sha256(body).hexdigest().encode() != digest:
        return None
    report, _, code = body.partition(b"\n")
    try:
        return Cubin(code=code, **{**json.loads(report), "compile_s": 0.0})
    except TypeError:
        return None


def parse_report(log: str, entry: str) -> dict[str, int]:
    """Registers, spills, stack and static shared memory of one entry function in ptxas's log."""
    sections = _ENTRY.split(log)
    of_entry = [text for name, text in zip(sections[1::2], sections[2::2], strict=True) if name == entry]
    section = of_entry[0] if len(of_entry) == 1 else ""
    registers, frame = _REGISTERS.search(section), _FRAME.search(section)
    smem = _STATIC_SMEM.search(section)
    if registers is None or frame is None:
        raise TrialFailure(Outcome.COMPILE_FAILED, f"the compiler's report does not mention {entry} once")
    stack, stores, loads = map(int, frame.groups())
    return {
        "registers": int(registers[1]),
        "spill_bytes": stores + loads,
        "stack_bytes": stack,
        "static_smem_bytes": int(smem[1]) if smem else 0,
    }


def usable_cores() -> int:
    """Cores that this process may run on: `taskset`, or a container, may leave it fewer than there are."""
    if hasattr(os, "sched_getaffinity"):  # Linux
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


_most_cores: list[int] = []  # of this process, where others have the rest


def use_cores(most: int) -> None:
    """Have compilers that this process opens take no more cores, for others of this machine compile, too."""
    _most_cores[:] = [max(1, most)]


class Compiler:
    """Compiles for one architecture. Threads may share it.

    `cache_dir` None means the default, `num_threads` None all cores (`use_cores`); `timeout_s` bounds the
    processor time of one compile, which is then ended. If the cache cannot be used, kernels are compiled
    again and `note` is called once, from any thread. Raises EnvironmentProblem if NVRTC is missing, or too
    old or new for `arch`."""

    def __init__(
        self,
        arch: str,
        *,
        cache_dir: Path | None = None,
        num_threads: int | None = None,
        timeout_s: float = 30.0,
        helpers: Helpers | None = None,
        note: Callable[[str], None] = lambda text: None,
    ) -> None:
        _check_arch(arch)
        self.arch = arch
        self._num_own = num_threads or min([usable_cores(), *_most_cores])
        self.version = compiler_version()
        self._timeout_s, self._helpers = timeout_s, helpers
        most = self._num_own + (MOST_HELPED if helpers else 0)
        self._pool = ThreadPoolExecutor(most, thread_name_prefix="nvrtc")
        self._own_slots = threading.BoundedSemaphore(self._num_own)
        self._under_way: dict[tuple[AnyConfig, Variant], Future[Cubin]] = {}
        self._idle: list[nvrtc.Process] = []
        self._lock = threading.Lock()
        self._note, self._is_reported = note, False
        self._place = "of a user without a home"
        self._cache = self._open_cache(cache_dir)

    @property
    def num_threads(self) -> int:
        """How many kernels are compiled at a time, here and by helpers."""
        return self._num_own + (min(MOST_HELPED, self._helpers.num_slots) if self._helpers else 0)

    def compile(self, config: AnyConfig, variant: Variant) -> Cubin:
        """Compile one instance of the template; the cubin says which (identity.py). Raises TrialFailure
        (compile_failed, compile_timeout, compile_crashed) and EnvironmentProblem."""
        source, macros, name = templates.compiled(config, variant)
        return self.compile_source(source, macros, name=name, arch=config.arch)

    def submit(self, config: AnyConfig, variant: Variant) -> Future[Cubin]:
        """`compile` on the pool. Configs that share a cubin compile once even while the first of them is
        under way: the others wait without a thread, have the same outcome (failed, cancelled), and take no
        `compile_s`."""
        key = (config.kernel, variant)
        with self._lock:
            first = self._under_way.get(key)
            if first is None:
                future = self._under_way[key] = self._pool.submit(self.compile, config, variant)
        if first is not None:
            return _following(first)
        # without the lock: where the compile has ended already, this runs here and now
        future.add_done_callback(lambda _: self._forget(key))
        return future

    def _forget(self, key: tuple[AnyConfig, Variant]) -> None:
        with self._lock:
            self._under_way.pop(key, None)

    def compile_source(
        self,
        source: str,
        macros: Mapping[str, int] | None = None,
        *,
        entry: str = template.ENTRY,
        options: Sequence[str] = (),
        name: str = "",
        arch: str | None = None,
    ) -> Cubin:
        """Compile any text; `entry` names the function whose figures are reported. `name` is the identity
        that the text declares, if it does: code with another is refused. `arch`: instead of this
        compiler's."""
        arch = arch or self.arch
        defines = [f"-D{name}={value}" for name, value in (macros or {}).items()]
        all_options = (f"-arch={arch}", *_BASE_OPTIONS, *options, *defines)
        return self.made(CompileJob(self.version, entry, all_options, source, name, arch))

    def made(self, job: CompileJob) -> Cubin:
        """From the cache, from helpers, or compiled here; once, however many processes share the cache."""
        if (cached := self._load(job)) is not None:
            return cached
        with self._alone(job.key):
            if (cached := self._load(job)) is not None:
                return cached
            cubin = self._made_somewhere(job)
            self._save(job.key, cubin)
        return cubin

    def _made_somewhere(self, job: CompileJob) -> Cubin:
        """Here as long as a core is free, then by helpers."""
        if self._helpers is None:
            return self._made_here(job)
        if not self._own_slots.acquire(blocking=False):
            packed = self._helpers.build(job)
            cubin = None if packed is None else _unpack(packed)
            if cubin is not None and identity.read(cubin.code) == job.name:
                return cubin
            self._own_slots.acquire()
        try:
            return self._made_here(job)
        finally:
            self._own_slots.release()

    def _made_here(self, job: CompileJob) -> Cubin:
        made = self._run_nvrtc(job.source, job.options)
        cubin = Cubin(
            code=made.code,
            sha256=hashlib.sha256(made.code).hexdigest(),
            arch=job.arch,
            compiler=self.version,
            compile_s=made.seconds,
            **parse_report(made.log, job.entry),
        )
        if (found := identity.read(cubin.code)) != job.name:
            raise TrialFailure(
                Outcome.COMPILE_FAILED, f"{job.name!r} was compiled, and the code is {found!r}"
            )
        return cubin

    @contextmanager
    def _alone(self, key: str) -> Iterator[None]:
        """No other process that shares the cache compiles this kernel meanwhile: each is compiled once. Where
        that cannot be had, it is compiled twice."""
        with ExitStack() as stack:
            with suppress(OSError, RuntimeError):
                place = Path(self._place) / _LOCKS
                lock = stack.enter_context(place.open("ab"))
                byte = int(key[:14], 16)
                # of this open file, not of the process: threads are others, too
                region = struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, byte, 1, 0)
                fcntl.fcntl(lock, fcntl.F_OFD_SETLKW, region)
            yield

    def close(self) -> None:
        """Drop what is queued and wait for what runs."""
        self._pool.shutdown(wait=True, cancel_futures=True)
        while self._idle:
            self._idle.pop().end()
        if self._cache is not None:
            self._cache.close()

    # A cache that is missing, full or read-only costs compiling again, never a trial.

    def _open_cache(self, folder: Path | None) -> Any:
        from cuda.core.utils import FileStreamProgramCache

        try:
            folder = folder or default_cache_dir()
            self._place = str(folder)
            kept = own_folder(folder, _ENTRIES)
            check_own(folder, folder / _WRITTEN, *kept.iterdir())
            kept.chmod(0o700)
            return FileStreamProgramCache(folder, max_size_bytes=CACHE_BYTES)
        except (OSError, RuntimeError) as error:
            self._go_without(error)
            return None

    def _load(self, job: CompileJob) -> Cubin | None:
        if self._cache is None:
            return None
        try:
            packed = self._cache.get(job.key)
        except OSError as error:
            self._go_without(error)
            return None
        cubin = None if packed is None else _unpack(bytes(packed))
        return cubin if cubin is not None and identity.read(cubin.code) == job.name else None

    def _save(self, key: str, cubin: Cubin) -> None:
        if self._cache is None:
            return
        try:
            self._cache[key] = cubin.packed()
        except OSError as error:
            self._go_without(error)

    def _go_without(self, error: OSError | RuntimeError) -> None:
        with self._lock:
            is_reported, self._is_reported = self._is_reported, True
        if not is_reported:
            reason = error if isinstance(error, NotOwn) else getattr(error, "strerror", None) or error
            advice = " Free some space there, or set AUTOTUNE_CACHE to a folder of yours."
            self._note(
                f"The kernel cache {self._place} cannot be used ({reason}): kernels are compiled"
                f" anew.{'' if isinstance(error, NotOwn) else advice}"
            )

    def _run_nvrtc(self, source: str, options: Sequence[str]) -> nvrtc.CompileAnswer:
        process = self._take_process()
        try:
            return process.compile(nvrtc.CompileRequest(source, tuple(options), self._timeout_s))
        finally:
            if process.is_alive:
                with self._lock:
                    self._idle.append(process)

    def _take_process(self) -> nvrtc.Process:
        """One that waits for work, or a new one. What killed one that waited, as want of memory may, is no
        fault of the kernel that comes next."""
        while True:
            with self._lock:
                process = self._idle.pop() if self._idle else None
            if process is None:
                return nvrtc.Process()
            if process.is_running:
                return process
            process.end()


def _following(first: Future[Cubin]) -> Future[Cubin]:
    """Ends as `first` does; only the first has the compile time."""
    future: Future[Cubin] = Future()

    def settle(done: Future[Cubin]) -> None:
        if done.cancelled():
            future.cancel()
        elif (error := done.exception()) is not None:
            future.set_exception(error)
        else:
            future.set_result(replace(done.result(), compile_s=0.0))

    first.add_done_callback(settle)
    return future
