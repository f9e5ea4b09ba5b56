"""Compiles torch_router.cpp, the router in C++ that comes before Python's, for the loaded torch.

That takes a compiler for C++20, torch's headers, which its wheel holds, and some 10 seconds, once; a note on
stderr says so. The library is kept in the cache folder, by torch's build and the source. Without it the
kernels in Python (torch_routing.py) route alone: each call takes longer on the host. Copied into exported
tables.
"""

from __future__ import annotations

import atexit
import ctypes
import fcntl
import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from ...files.cache_folder import NotOwn, default_cache_dir, own_folder
from ...files.errors import DispatchError
from ...files.output_file import sync_path
from ..native.core import Core, loaded
from .tensor_calls import current_stream_of

SWITCH = "AUTOTUNE_ROUTER"  # 0: Python's kernels route alone
SOURCE = Path(__file__).with_suffix(".cpp")
MAX_TABLES = 64  # GPU models
# Of routers that were entered: threads may be within one when it is left, which waits for nobody
_all_entered = set["Router"]()
_FLAGS = ("-std=c++20", "-O2", "-fPIC", "-shared")  # as headers of torch 2.14 ask for
_MOST_SECONDS = 600


class NoRouter(DispatchError):
    """Kernels in Python route alone, and why."""


class _Table(ctypes.Structure):
    _fields_ = (("handle", ctypes.c_void_p), ("has_bias", ctypes.c_int64))


class _Router(ctypes.Structure):
    _fields_ = (
        *(
            (name, ctypes.c_void_p)
            for name in (
                "meet", "leaves_alone", "serve", "release_plan", "begin_turn", "end_turn", "current_stream",
                "plain", "biased", "num_left_alone", "watch",
            )
        ),
        ("is_live", ctypes.c_int64),
    )  # fmt: skip


_See = ctypes.CFUNCTYPE(None)


class Watch(ctypes.Structure):
    """How calls are watched: `see` is called with each but `num_unseen`, before it is served. `hash` is that
    of all calls since it was 0. While `is_plain` is set, all calls are left alone, uncounted."""

    _fields_ = (
        ("see", _See),
        ("num_unseen", ctypes.c_int64),
        ("hash", ctypes.c_uint64),
        ("is_plain", ctypes.c_int64),
    )
    see: Any
    num_unseen: int
    hash: int
    is_plain: int

    def begin(self, see: Callable[[], None]) -> None:
        """Show all calls, from now on, also those of other threads. `see` raises nothing."""
        self.see = _See(see)
        self._kept = [*getattr(self, "_kept", ()), self.see]  # each may end while C++ calls it

    def end(self) -> None:
        """Show none any more."""
        self.is_plain, self.see = 0, _See()

    def take_hash(self) -> int:
        """The hash, which begins anew."""
        found, self.hash = self.hash, 0
        return found


class Tables:
    """The core's handles of tables, in memory that C++ reads; also those of GPU models that are added
    later."""

    def __init__(self) -> None:
        self.list, self._cores = (_Table * (MAX_TABLES + 1))(), list[Core]()  # the last stays empty

    def add(self, core: Core, has_bias: bool) -> None:
        """Cores that do not fit are left to Python."""
        at = len(self._cores)
        if at < MAX_TABLES:
            self._cores.append(core)
            self.list[at].has_bias = has_bias
            self.list[at].handle = core.handle  # from here on it is read

    def exchange(self, core: Core, other: Core, has_bias: bool) -> None:
        """Have another table in the place of one. Calls may be within that: whoever exchanges it keeps it."""
        if core in self._cores:
            at = self._cores.index(core)
            self.list[at].has_bias = False  # until it is known of which
            self.list[at].handle = other.handle
            self.list[at].has_bias, self._cores[at] = has_bias, other


class Router:
    """May be entered while Python's kernels are registered. Raises NoRouter.

    `reasons`: why calls are left alone before a table is asked, as torch_router.cpp numbers them. `is_live`:
    call signatures are settled on their own calls.
    """

    def __init__(
        self,
        torch: Any,
        plain: Tables,
        biased: Tables,
        reasons: Sequence[str],
        key: str,
        *,
        is_live: bool = False,
    ) -> None:
        self._library = _library(torch, key.lower())
        self._kept = plain, biased
        self._reasons, self._counts = reasons, (ctypes.c_uint64 * len(reasons))()
        core = loaded()
        calls = (
            core.autotune_meet, core.autotune_leaves_alone, core.autotune_serve, core.autotune_release_plan,
            core.autotune_begin_turn, core.autotune_end_turn,
        )  # fmt: skip
        self.watch = Watch()
        self._router = _Router(
            *(ctypes.cast(call, ctypes.c_void_p).value for call in calls),
            current_stream_of(torch.Tensor),
            *(ctypes.addressof(x) for x in (plain.list, biased.list, self._counts, self.watch)),
            is_live,
        )
        self._key, self._entered = key, None

    def enter(self) -> None:
        self._entered = self._library.autotune_router_enter(ctypes.byref(self._router), self._key.encode())
        if not self._entered:
            raise NoRouter("torch refuses kernels in C++")
        _all_entered.add(self)
        atexit.register(self.leave)  # its threads may outlive this object

    def leave(self) -> None:
        atexit.unregister(self.leave)
        entered, self._entered = self._entered, None
        self.watch.end()
        if entered:  # else the interpreter's end was first: a generator is closed behind it
            self._library.autotune_router_leave(entered)

    def num_skipped(self) -> Counter[str]:
        """How many calls, by reason."""
        return +Counter(dict(zip(self._reasons, self._counts, strict=True)))


def _library(torch: Any, backend: str) -> Any:
    """For a torch and its kernels of a backend; compiled if the cache lacks it. Raises NoRouter, and
    DispatchError for an invalid switch."""
    chosen = os.environ.get(SWITCH) or "1"
    if chosen not in ("0", "1"):
        raise DispatchError(f"{SWITCH} is {chosen!r}; say '0' or '1'")
    if chosen == "0":
        raise NoRouter(f"{SWITCH} is 0")
    try:
        # holds the GIL, as torch does when it registers
        found = ctypes.PyDLL(str(_compiled(torch, backend)))
        found.autotune_router_bytes.restype = ctypes.c_uint64
        found.autotune_router_enter.restype = ctypes.c_void_p
        found.autotune_router_enter.argtypes = [ctypes.c_void_p, ctypes.c_char_p]
        found.autotune_router_leave.argtypes = [ctypes.c_void_p]
    except (OSError, RuntimeError, AttributeError, subprocess.SubprocessError) as error:
        raise NoRouter(f"{type(error).__name__}: {error}") from error
    if found.autotune_router_bytes() != ctypes.sizeof(_Router):
        raise NoRouter("its source is of another version")
    return found


def _compiled(torch: Any, backend: str) -> Path:
    compiler, source = _compiler(), SOURCE.read_bytes()
    place, abi = Path(torch.__file__).parent, int(torch.compiled_with_cxx11_abi())
    command = [
        *compiler, *_FLAGS, f"-DBACKEND={backend}", f"-D_GLIBCXX_USE_CXX11_ABI={abi}",
        f"-isystem{place / 'include'}", "-xc++", "-", f"-L{place / 'lib'}", f"-ltorch_{backend}",
        "-ltorch_cpu", "-lc10", "-Wl,--no-undefined,--as-needed",
    ]  # fmt: skip
    build = (torch.__version__, torch.version.git_version, platform.machine(), *command)
    digest = hashlib.sha256(b"\0".join([source, *(str(one).encode() for one in build)])).hexdigest()[:16]
    folder = _own_folder()
    made = folder / f"torch-{torch.__version__}-{backend}-{digest}.so"
    with (folder / "lock").open("w") as lock:
        with suppress(OSError):  # without locks each process of a program compiles it, instead of one
            fcntl.flock(lock, fcntl.LOCK_EX)
        if not made.exists():
            _compile(command, source, made)
    return made


def _own_folder() -> Path:
    """The folder of routers. Raises NoRouter if other users may write there."""
    try:
        return own_folder(default_cache_dir(), "router")
    except NotOwn as error:
        raise NoRouter(str(error)) from error


def _compile(command: list[str], source: bytes, made: Path) -> None:
    """Raises NoRouter if the compiler fails; a file then says why, and prevents another attempt."""
    log = made.with_suffix(".log")
    if log.exists():
        raise NoRouter(f"the compiler failed; {log} says why: remove it to try again")
    sys.stderr.write(f"autotune: compiling a router for torch, once, in some 10 s; {SWITCH}=0 does without\n")
    with tempfile.TemporaryDirectory(dir=made.parent) as folder:
        path = Path(folder) / made.name
        command = [*command, "-o", str(path)]
        done = subprocess.run(command, input=source, capture_output=True, timeout=_MOST_SECONDS, check=False)
        if done.returncode:
            log.write_bytes(f"{shlex.join(command)}\n".encode() + done.stderr)
            raise NoRouter(f"the compiler failed; {log} says why: remove it to try again")
        sync_path(path)  # or a power cut may leave half a library
        path.replace(made)


def _compiler() -> list[str]:
    if chosen := os.environ.get("CXX"):
        return shlex.split(chosen)
    for name in ("c++", "g++", "clang++"):
        if found := shutil.which(name):
            return [found]
    raise NoRouter("no C++ compiler is here (c++, g++, clang++, or what CXX says)")
