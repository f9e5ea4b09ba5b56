"""Compiles torch_router.cpp, the router in C++ that comes before Python's, for the loaded torch.

That takes a compiler for C++20, torch's headers, which its wheel holds, and some 10 seconds, once; a note on
stderr says so. The library is kept in the cache folder, by torch's build and the source. Without it the
kernels in Python (torch_routing.py) route alone: each call takes longer on the host.

It also measures what routing gains an unmodified program of torch, while it runs (`ProgramGain`):

1. It shows every call (`Watch`), until the last ones repeat. The shortest sequence that they repeat is a step
   here, whatever the program means by one.
2. From then on it shows a call only where a stretch of whole steps ends. There the GPU is waited for, and the
   next stretch begins, plain or routed, in pairs of random order.
3. A hash of a stretch's calls says whether it was of these steps. If it was not, they are sought again, among
   twice as many calls if few were of these steps: then the program's own step may hold several of them.

Plain calls pass the router, too, which takes them some 0.1 us.
"""

from __future__ import annotations

import atexit
import ctypes
import fcntl
import hashlib
import math
import os
import platform
import random
import shlex
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

from ...files.errors import DispatchError
from ...files.output_file import NotOwn, default_cache_dir, own_folder, sync_path
from ...files.words import chosen
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
    """The core's handles of tables, in memory that C++ reads; those of GPU models may be added later."""

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
    call signatures are settled on their own calls."""

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
    if chosen(SWITCH, None, ("0", "1"), "1", SWITCH, error=DispatchError) == "0":
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
    if named := os.environ.get("CXX"):
        return shlex.split(named)
    for name in ("c++", "g++", "clang++"):
        if found := shutil.which(name):
            return [found]
    raise NoRouter("no C++ compiler is here (c++, g++, clang++, or what CXX says)")


SEGMENT_S = 0.05
FIRST_WINDOW, LAST_WINDOW = 64, 1 << 17  # calls among which a step is sought
MIN_PAIRS = 6
FEW_WINDOWS = 8  # a step that repeats among no more calls is a part of a longer one
HASH_FACTOR = 0x9E3779B97F4A7C15  # of torch_router.cpp, too


class Cycle:
    """A step that repeats, and the seconds that it took, plain and routed, in each pair of stretches."""

    def __init__(self, hashes: tuple[int, ...], step_s: float) -> None:
        """`hashes`: of the calls of a step. `step_s`: about how long it takes."""
        self.num_calls = len(hashes)
        self.num_steps = math.ceil(SEGMENT_S / max(step_s, 1e-9))
        self.hash = joined(hashes * self.num_steps)  # of a stretch
        self.plain_s: list[float] = []
        self.routed_s: list[float] = []

    def describe(self, predicted_us: float) -> str:
        """What was measured; `predicted_us`: what the table predicts that a call saves the GPU."""
        num_pairs, what = len(self.plain_s), f"a step of {self.num_calls:,} products"
        if num_pairs < MIN_PAIRS:
            return (
                f"not measured: of {what} {num_pairs} pairs of stretches ran, fewer than {MIN_PAIRS}; let "
                "the program run longer"
            )
        from statistics import median

        from ...facts.stats import mean_ratio

        ratio, plain_ms = mean_ratio(self.plain_s, self.routed_s), 1e3 * median(self.plain_s)
        saved = [plain_ms * (1 - 1 / x) for x in ratio]
        predicted_ms = 1e-3 * predicted_us * self.num_calls
        return (
            f"measured: {ratio.mean:.3f} times as fast routed as plain, 95 % interval {ratio.low:.3f} to "
            f"{ratio.high:.3f}, in {num_pairs} pairs of stretches of {self.num_steps:,} steps\n"
            f"  {what} takes {plain_ms:.3f} ms plain, and routed {saved[0]:.3f} ms less ({saved[1]:.3f} to "
            f"{saved[2]:.3f}); predicted: {predicted_ms:.3f} ms of the GPU's time less"
        )


class ProgramGain:
    """Measures from its making on, as the calls come. `wait`: waits for the GPU; it raises what ends all
    measuring, as where a graph is captured."""

    def __init__(
        self, watch: Watch, wait: Callable[[], None], clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self._watch, self._wait, self._clock = watch, wait, clock
        self._random = random.Random(0)
        self._window, self._seen = FIRST_WINDOW, list[tuple[int, float]]()
        self._cycles: dict[int, Cycle] = {}  # by a hash of their calls in any order
        self._cycle = Cycle((), SEGMENT_S)
        self._is_found = False  # else a step is sought
        self._turns: list[bool] = []  # those of a pair that are to come: whether they are routed
        self._pair: dict[bool, float] = {}
        self._started_s: float | None = None
        self._expected = self._num_measured = 0
        self._why_not = ""
        self._lock = threading.Lock()
        watch.begin(self._see)

    def describe(self, predicted_us: float) -> str:
        """What came of it, as text; `predicted_us`: what the table predicts that a call saves the GPU."""
        cycles = sorted(self._cycles.values(), key=lambda cycle: -len(cycle.plain_s))
        notes = [cycle.describe(predicted_us) for cycle in cycles if len(cycle.plain_s) >= MIN_PAIRS]
        notes = notes or [cycle.describe(predicted_us) for cycle in cycles[:1]]
        if not notes:
            notes = [f"not measured: of {len(self._seen):,} products the last repeat no sequence of calls"]
        if self._why_not:
            notes.append(f"measuring ended early: {self._why_not}")
        return "\n".join(notes)

    def measured(self) -> tuple[int, float]:
        """The number of pairs of stretches, and the time in us that these took less routed than plain."""
        pairs = [
            (x, y) for c in list(self._cycles.values()) for x, y in zip(c.plain_s, c.routed_s, strict=False)
        ]
        return len(pairs), 1e6 * sum(plain_s - routed_s for plain_s, routed_s in pairs)

    def _see(self) -> None:
        """Called before a call is served."""
        try:
            if not self._lock.acquire(blocking=False):
                raise DispatchError("several threads multiply at the same time")
            try:
                if self._is_found:
                    self._end_segment()
                else:
                    self._seek()
            finally:
                self._lock.release()
        except Exception as error:  # C++ called: nobody else would hear of it
            self._why_not = str(error)
            self._watch.end()

    def _seek(self) -> None:
        self._seen.append((self._watch.take_hash(), self._clock()))
        self._watch.num_unseen = 0
        if len(self._seen) < self._window:
            return
        last = self._seen[self._window // 4 :]  # a program begins with calls of another kind
        period = period_of([hashed for hashed, _ in last])
        if period is not None:
            self._begin(tuple(hashed for hashed, _ in last), tuple(at_s for _, at_s in last), period)
        elif self._window < LAST_WINDOW:
            self._window *= 2
        else:
            raise DispatchError(f"{self._window:,} products repeat no sequence of calls")

    def _begin(self, hashes: tuple[int, ...], times: tuple[float, ...], period: int) -> None:
        """Let calls pass until a stretch may begin."""
        first, num = longest_gap(times, period), len(hashes)
        num_repeats = (num - 1) // period
        step_s = (times[-1] - times[-1 - num_repeats * period]) / num_repeats
        step = hashes[first + 1 : first + 1 + period]
        found = self._cycle = Cycle(step, step_s)
        known = self._cycles.setdefault(joined(sorted(step)), found)  # the same, from another call on
        found.plain_s, found.routed_s = known.plain_s, known.routed_s
        self._is_found, self._started_s, self._num_measured = True, None, 0
        self._watch.num_unseen = (first - num) % period
        self._expected = joined(hashes[num - period : num - period + self._watch.num_unseen + 1])

    def _end_segment(self) -> None:
        """And begin the next."""
        hashed, cycle = self._watch.take_hash(), self._cycle
        self._wait()
        if hashed != self._expected:
            self._restart()
            return
        if self._started_s is not None:
            is_routed = not self._watch.is_plain
            self._pair[is_routed] = (self._clock() - self._started_s) / cycle.num_steps
            self._num_measured += cycle.num_steps * cycle.num_calls
        if not self._turns:
            self._keep_pair(cycle)
            self._turns = self._random.sample((False, True), 2)
        self._watch.is_plain = not self._turns.pop()
        self._watch.num_unseen = cycle.num_steps * cycle.num_calls - 1
        self._expected = cycle.hash
        self._started_s = self._clock()

    def _keep_pair(self, cycle: Cycle) -> None:
        if self._pair:
            cycle.plain_s.append(self._pair[False])
            cycle.routed_s.append(self._pair[True])
        self._pair = {}

    def _restart(self) -> None:
        """The program does something else now, or its step is longer than was thought."""
        if self._num_measured < FEW_WINDOWS * self._window:
            self._window = min(2 * self._window, LAST_WINDOW)
        self._watch.is_plain = self._watch.num_unseen = 0
        self._is_found, self._turns, self._pair, self._seen = False, [], {}, []


def joined(hashes: Iterable[int]) -> int:
    """The hash of several calls by those of each, as torch_router.cpp has it."""
    found = 0
    for hashed in hashes:
        found = (found * HASH_FACTOR + hashed) % (1 << 64)
    return found


REPEATS = 3  # repeats that a period needs


def period_of(items: Sequence[object]) -> int | None:
    """The length of the shortest sequence that all items repeat, `REPEATS` times or more; None if none does.

    The last repeat need not be whole. It takes time in proportion to the number of items: the longest proper
    prefix that is a suffix, too, is what remains of them without one period (Knuth, Morris and Pratt, 1977).
    """
    lengths = [0] * len(items)  # of that prefix, for each number of items
    for i in range(1, len(items)):
        length = lengths[i - 1]
        while length and items[i] != items[length]:
            length = lengths[length - 1]
        lengths[i] = length + (items[i] == items[length])
    if not items:
        return None
    period = len(items) - lengths[-1]
    return period if REPEATS * period <= len(items) else None


def longest_gap(times: Sequence[float], period: int) -> int:
    """Before which item of a period most time passes, where `times` are those of the items: there one step
    of a program ends, if anywhere."""
    from statistics import median  # as above, what takes long to import is for those who measure alone

    gaps = [after - before for before, after in pairwise(times)]
    return max(range(period), key=lambda item: median(gaps[(item - 1) % period :: period]))
