"""A call's product as its kernel's text executes it on the host: which warps ask for what, block by block.

A C++ compiler turns one instance of the template, with the primitives of recorder/, into a library. Nothing
is moved or multiplied, so that a block takes milliseconds.
"""

from __future__ import annotations

import atexit
import ctypes
import hashlib
import mmap
import platform
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from math import gcd, lcm
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ..core import build
from ..facts.device import DeviceLimits
from ..facts.gemm import Gemm
from ..files.errors import EnvironmentProblem
from ..files.output_file import default_cache_dir, own_folder
from ..kernel import launch, resources, template
from ..kernel.config import WARP, Config
from ..kernel.launch import EPILOGUE_WORDS, SCHEDULE_WORDS, Grid, LaunchSpec
from ..kernel.rungs import REFERENCE_FILE, REFERENCE_TILE, ReferenceKernel
from .warp_access import KINDS, LINE, Addresses, WarpAccess

_FOLDER = Path(__file__).parent / "recorder"
_FLAGS = (  # few blocks are executed: to compile takes longer
    "-std=c++17", "-Og", "-w", "-fPIC", "-shared", "-fvisibility=hidden", "-fno-exceptions",
    "-fno-rtti",
)  # fmt: skip
OPERANDS = ("A", "B", "C", "workspace", "sums")  # Operand of recorder.cpp
_WHY = "to explain a kernel, its text is compiled as C++ and executed on this machine"
_BEGINS = tuple((number + 1) << 40 for number in range(4))  # addresses that nobody has
_FEW_STEPS = 2  # of k, which are executed before one looks at what more of them come to
_INT = ctypes.c_int
_ROW = np.dtype(
    [
        ("file", "u8"), ("kind", "i4"), ("is_shared", "i4"), ("vec", "i4"), ("warp", "i4"), ("barrier", "i4"),
        ("operand", "i4"), ("times", "i8"), ("at", "i8", WARP),
        ("key", "u8"),
    ]
)  # fmt: skip
_BLOCK_FIELDS = ("x", "y", "product", "row", "column", "split", "splits", "tile")
_BLOCK = np.dtype([(name, "i4") for name in _BLOCK_FIELDS])

Times = Sequence[int]  # how often what a block asks for counts: of each of OPERANDS


def compile_cpp(*arguments: str) -> str:
    """Run the C++ compiler on this; returns its command. Raises EnvironmentProblem."""
    try:
        command = [*build.compiler(), "-x", "c++"]
        done = subprocess.run([*command, *arguments], capture_output=True, text=True, check=False)
    except (build.NotBuilt, OSError) as fault:
        raise EnvironmentProblem(f"{_WHY}: {fault}; install g++, or `pip install ziglang`") from None
    if done.returncode:
        raise EnvironmentProblem(
            f"{_WHY}, and {shlex.join(command)} fails: {done.stderr.strip()[-300:]}; install g++, or "
            "`pip install ziglang` and set CC='python -m ziglang cc'"
        )
    return shlex.join(command)


@cache
def _library(file: str, macros: tuple[tuple[str, int], ...]) -> ctypes.CDLL:
    """The kernels of a file, compiled for the host. Raises EnvironmentProblem."""
    defined = [f"-D{name}={value}" for name, value in (*macros, ("KERNEL_FILE", f'"{file}"'))]
    included = [f"-I{folder}" for folder in (_FOLDER, template.kernel_dir())]
    command = (*_FLAGS, *included, *defined, f"{_FOLDER}/recorder.cpp", "-o")
    kept = _hosts() / f"{_digest(command)}.so"
    if not kept.exists():
        with tempfile.TemporaryDirectory(dir=kept.parent) as folder:
            made = Path(folder) / kept.name
            compile_cpp(*command, str(made))
            made.replace(kept)
    return ctypes.CDLL(str(kept))


@cache
def _hosts() -> Path:
    """Where compiled kernels are kept: in the cache, or for this process alone where that cannot be used."""
    try:
        return own_folder(default_cache_dir(), "hosts")
    except (OSError, RuntimeError):
        folder = Path(tempfile.mkdtemp())
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        return folder


@cache
def _texts() -> bytes:
    """All that a compiled kernel is made of."""
    paths = (path for folder in (_FOLDER, template.kernel_dir()) for path in sorted(folder.iterdir()))
    return b"\0".join(path.read_bytes() for path in paths if path.is_file())


def _digest(command: Sequence[str]) -> str:
    message = (platform.machine(), *command)
    return hashlib.sha256(b"\0".join([_texts(), *map(str.encode, message)])).hexdigest()[:32]


@dataclass(frozen=True)
class HostLaunch:
    """The launch of `sgemm`, or of a kernel of reference.cu, that a call makes; operands as it gets them.
    `lds` and `strides` (from product to product) are of A, B and C, in floats."""

    kernel: Config | ReferenceKernel
    gemm: Gemm  # of the call
    spec: LaunchSpec
    m: int
    n: int
    k: int
    lds: tuple[int, int, int]
    strides: tuple[int, int, int]

    @classmethod
    def of(cls, kernel: Config | ReferenceKernel, gemm: Gemm, limits: DeviceLimits) -> HostLaunch:
        if isinstance(kernel, ReferenceKernel):
            spec = kernel.spec
        else:
            spec = resources.launch_spec(kernel, gemm, limits)
        grid = launch.plan(spec, gemm.m, gemm.n, gemm.k, gemm.strides)
        lda = grid.padded_m if spec.packs_a else gemm.lda
        ldb = grid.padded_n if spec.packs_b else gemm.ldb
        return cls(kernel, gemm, spec, gemm.m, gemm.n, gemm.k, (lda, ldb, gemm.ldc), grid.strides)

    @property
    def entry(self) -> str:
        return self.kernel.entry if isinstance(self.kernel, ReferenceKernel) else template.ENTRY

    @property
    def is_k_major(self) -> tuple[bool, bool]:
        """Whether A and B, as the product reads them, are contiguous along k."""
        if isinstance(self.kernel, ReferenceKernel):
            return True, False
        keys = resources.is_k_major_a, resources.is_k_major_b
        return tuple(bool(key(self.kernel, self.gemm)) for key in keys)  # type: ignore[return-value]

    @property
    def step_k(self) -> int:
        """Depth of a step of the main loop."""
        if isinstance(self.kernel, ReferenceKernel):
            return REFERENCE_TILE if self.kernel.smem_bytes else 1
        return self.spec.bk

    @cached_property
    def grid(self) -> Grid:
        return launch.plan(self.spec, self.m, self.n, self.k, self.gemm.strides)

    @property
    def tiles_m(self) -> int:
        return self.grid.padded_m // self.spec.bm

    @property
    def tiles_n(self) -> int:
        return self.grid.padded_n // self.spec.bn

    @cached_property
    def library(self) -> ctypes.CDLL:
        if isinstance(self.kernel, ReferenceKernel):
            return _library(REFERENCE_FILE, (("PLAIN_FLOATS", 1),))
        return _library(template.MAIN_FILE, tuple(template.macros(self.kernel, self.spec.variant).items()))

    @cached_property
    def schedule(self) -> ctypes.Array[ctypes.c_uint32]:
        return (ctypes.c_uint32 * SCHEDULE_WORDS)(*launch.schedule(self.spec, self.grid))

    @cached_property
    def blocks(self) -> npt.NDArray[Any]:
        """What each block computes, by its number; those of a cluster follow one another. Of blocks that
        share out chunks, what they compute first."""
        width, height = self.grid.size
        if self.are_shared:
            return self._shared_blocks()
        return self._blocks_of(width, height)

    @property
    def are_shared(self) -> bool:
        """Whether blocks share out chunks, so that each has parts of several (kernels/chunks.cuh)."""
        return bool(self.spec.chunk) and self.grid.split_k > self.grid.size[1]

    def _shares(self) -> tuple[Addresses, Addresses]:
        """The first step of each share and the one behind it, counted through all tiles."""
        number, width = np.arange(self.grid.size[0], dtype=np.int64), self.grid.size[0]
        of_all = self.grid.tiles * -(-self.k // self.step_k)
        return of_all * number // width, of_all * (number + 1) // width

    def one_each(self) -> HostLaunch:
        """The same where each block has one chunk of one tile: but for what is handed over, all blocks
        together ask for the same."""
        spec = replace(self.spec, wave=0)
        return HostLaunch(self.kernel, self.gemm, spec, self.m, self.n, self.k, self.lds, self.strides)

    def cuts(self) -> Addresses:
        """Numbers of the blocks that go on with a chunk of the block before."""
        of_tile, in_chunk = -(-self.k // self.step_k), self.spec.chunk // self.step_k
        left = of_tile - self._shares()[0] % of_tile
        return np.flatnonzero((left < of_tile) & (left % in_chunk > 0))

    def _shared_blocks(self) -> npt.NDArray[Any]:
        width, of_tile = self.grid.size[0], -(-self.k // self.step_k)
        last_tile, last = np.divmod(self._shares()[1] - 1, of_tile)
        found = self._blocks_of(self.grid.tiles, 1)[last_tile]
        chunks, in_chunk = self.grid.split_k, self.spec.chunk // self.step_k
        found["x"], found["y"], found["splits"] = np.arange(width), 0, chunks
        found["split"] = chunks - 1 - (of_tile - 1 - last) // in_chunk
        return found

    def _blocks_of(self, width: int, height: int) -> npt.NDArray[Any]:
        found = np.empty(width * height, _BLOCK)
        tiles, splits = (self.tiles_m, self.tiles_n), self.grid.split_k
        if isinstance(self.kernel, ReferenceKernel):
            tiles = (self.m, self.n)
        numbers = (*tiles, self.grid.products, splits, self.schedule, width, height)
        self.library.walk(*numbers, found.ctypes.data_as(ctypes.c_void_p))
        return found

    def steps(self) -> tuple[Addresses, Addresses]:
        """How many steps of the main loop each block makes, and the k that its first one begins with."""
        if self.are_shared:
            begin, end = self._shares()
            first = begin % -(-self.k // self.step_k)
            left = self.k - (-(-self.k // self.step_k) - first) * self.step_k
            return end - begin, np.where(first == 0, 0, left)
        split, splits = self.blocks["split"].astype(np.int64), self.blocks["splits"]
        if self.spec.chunk:  # counted from the end: the first one is short
            end = self.k - (splits - split - 1) * self.spec.chunk
            begin = np.maximum(end - self.spec.chunk, 0)
            return -(-(end - begin) // self.step_k), begin
        num_steps = -(-self.k // self.step_k)
        most = -(-num_steps // splits)
        first = most * split
        begin = np.where(first == 0, 0, self.k - (num_steps - first) * self.step_k)
        return np.clip(num_steps - first, 0, most), begin

    def numbers(self, numbers: int, name: str) -> npt.NDArray[np.int32]:
        """What a function of recorder.cpp says of the instance."""
        found = np.empty(numbers, np.int32)
        getattr(self.library, name)(found.ctypes.data_as(ctypes.c_void_p))
        return found

    @property
    def period(self) -> int:
        """Steps after which operands lie as before within a line, and sums are flushed alike."""
        apart = [
            self.step_k * (1 if is_k_major else ld)
            for is_k_major, ld in zip(self.is_k_major, self.lds[:2], strict=True)
        ]
        flush_k = 0 if isinstance(self.kernel, ReferenceKernel) else self.kernel.flush_k
        return lcm(*(LINE // gcd(LINE, floats) for floats in apart), max(flush_k // self.step_k, 1))

    def shorter(self, periods: int) -> HostLaunch:
        """The same with so many periods less in each of its splits."""
        less = periods * self.period * self.step_k * self.grid.split_k
        return HostLaunch(
            self.kernel, self.gemm, self.spec, self.m, self.n, self.k - less, self.lds, self.strides
        )

    def shortest(self) -> int:
        """The most periods that can be left out: then blocks have steps left, and all as many less."""
        if self.spec.chunk:  # with less of k there would be fewer blocks
            return 0
        steps, splits = self.steps()[0], self.blocks["splits"]
        each = self.period * (self.grid.split_k // splits)
        periods = int(((steps - _FEW_STEPS) // each)[steps > 0].min(initial=max(self.k, 1)))
        if periods <= 0:
            return 0
        is_similar = np.array_equal(self.shorter(periods).steps()[0] + periods * each * (steps > 0), steps)
        return periods if is_similar else 0

    def places(self) -> dict[str, npt.NDArray[np.int64]]:
        """By operand, a row for each block: where what it asks for lies within a line, how much of its tile
        is in the matrix, and what else decides. Blocks with equal rows ask for the same."""
        b = {name: self.blocks[name].astype(np.int64) for name in _BLOCK_FIELDS}
        (lda, ldb, ldc), (stride_a, stride_b, stride_c) = self.lds, self.strides
        m, n = b["row"] * self.spec.bm, b["column"] * self.spec.bn
        left = np.minimum(self.m - m, self.spec.bm), np.minimum(self.n - n, self.spec.bn)
        steps, k = self.steps()
        is_last = b["split"] == b["splits"] - 1
        along_a, along_b = self.is_k_major
        at_a = b["product"] * stride_a + (m * lda + k if along_a else m + k * lda)
        at_b = b["product"] * stride_b + (n * ldb + k if along_b else n + k * ldb)
        at_c = b["product"] * stride_c + m * ldc + n
        rank = b["split"] if self.spec.reduction == "cluster" else is_last
        if self.spec.has_planes:
            plane = b["product"] * b["splits"] + b["split"]
            at = [plane * (self.grid.padded_m * self.grid.padded_n) + m * self.grid.padded_n + n]
        else:
            first, area = b["tile"], self.spec.bm * self.spec.bn
            at = [first * area, (first + b["split"] * self.grid.split_tiles) * area]
        rows = {
            "A": (at_a % LINE, *left, steps, k == 0),
            "B": (at_b % LINE, *left, steps, k == 0),
            "C": (at_c % LINE, *left, rank, b["splits"], steps),
            "workspace": (*(floats % LINE for floats in at), is_last, b["splits"]),
        }
        return {what: np.stack(list(columns), axis=1) for what, columns in rows.items()}

    def arguments(self, *, reads_c: bool, workspace: int) -> list[Any]:
        """As launch.Grid has them."""
        a, b, c = map(ctypes.c_void_p, _BEGINS[:3])
        scale, beta = ctypes.c_float(1), ctypes.c_float(reads_c)
        lda, ldb, ldc = map(ctypes.c_longlong, self.lds)
        batch = (ctypes.c_longlong * 4)(*self.strides, self.grid.products)
        return [
            *map(_INT, (self.m, self.n, self.k)), scale, a, lda, b, ldb, beta, c, ldc,
            ctypes.c_void_p(workspace), _INT(self.grid.split_k), self.schedule, batch, no_epilogue(),
        ]  # fmt: skip

    def recorded(
        self, times: Mapping[int, Times], *, reads_c: bool, is_merged: bool = True, is_last: bool = False
    ) -> list[WarpAccess]:
        """What these blocks ask for, by their numbers. Where it `is_merged`, rows that count alike are one.
        `is_last`: a block adds and stores its tile, whatever split it has."""
        with _Memory(self.grid.sum_bytes + self.grid.counter_bytes) as workspace:
            arguments = self.arguments(reads_c=reads_c, workspace=workspace)
            recording = AccessRecording(self.library, workspace, is_merged=is_merged)
            for number, counted in times.items():
                block = self.blocks[number]
                ticket = block["splits"] - 1 if is_last else block["split"]
                place = (0, block["x"], block["y"], self.grid.size[0], ticket, self.grid.size[1])
                recording.record(self.entry, arguments, self.spec.threads, place, counted)
            return recording.accesses(self.entry)


def no_epilogue() -> ctypes.Array[ctypes.c_longlong]:
    return (ctypes.c_longlong * EPILOGUE_WORDS)()


class _Memory:
    """Addresses for a workspace: the counters in it are touched, and nothing else."""

    def __init__(self, num_bytes: int) -> None:
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        self._memory = mmap.mmap(-1, max(num_bytes, 1), flags=flags)
        self._begin = ctypes.c_char.from_buffer(self._memory)

    def __enter__(self) -> int:
        return ctypes.addressof(self._begin)

    def __exit__(self, *_: object) -> None:
        del self._begin
        self._memory.close()


class AccessRecording:
    """Blocks that are executed one after the other, and what they ask for together."""

    def __init__(self, library: ctypes.CDLL, workspace: int = _BEGINS[3], *, is_merged: bool = True) -> None:
        self._library = library
        library.rows.restype = ctypes.c_void_p
        library.begin((ctypes.c_void_p * 4)(*_BEGINS[:3], workspace), _INT(is_merged))

    def record(
        self, entry: str, arguments: Sequence[Any], threads: int, place: Iterable[int], times: Times,
        packed: int = -1,
    ) -> None:  # fmt: skip
        """A block of a kernel. `place`: thread 0, along x and y, blocks along x, ticket, along y."""
        addresses = (ctypes.c_void_p * len(arguments))(*map(ctypes.addressof, arguments))
        block, counted = (_INT * 6)(*place), (ctypes.c_longlong * len(OPERANDS))(*times)
        self._library.record(entry.encode(), packed, addresses, threads, block, counted)

    def accesses(self, kernel: str) -> list[WarpAccess]:
        """By file, operand, space, kind and vector, in the order in which they were first met."""
        count = _INT()
        address = self._library.rows(ctypes.byref(count))
        rows = np.frombuffer(ctypes.string_at(address, count.value * _ROW.itemsize), _ROW)
        files = {int(at): Path(ctypes.string_at(int(at)).decode()).name for at in np.unique(rows["file"])}
        own: dict[tuple[Any, ...], list[int]] = {}
        names = ("file", "operand", "is_shared", "kind", "vec")
        for number, (file, *key) in enumerate(zip(*(rows[name].tolist() for name in names), strict=True)):
            own.setdefault((files[file], *key), []).append(number)
        return [
            WarpAccess(
                kernel, file, OPERANDS[operand], "shared" if is_shared else "global", KINDS[kind], vec,
                rows["at"][numbers], rows["times"][numbers], rows["warp"][numbers], rows["barrier"][numbers],
            )
            for (file, operand, is_shared, kind, vec), numbers in own.items()
        ]  # fmt: skip


def unique_rows(keys: npt.NDArray[np.int64]) -> list[tuple[int, int]]:
    """Of rows that are equal, the number of the first, and how many there are; in their order."""
    from_least = keys - keys.min(axis=0)
    as_one = np.zeros(len(keys), np.int64)
    for column in from_least.T:
        as_one = as_one * (int(column.max()) + 1) + column
    _, first, counts = np.unique(as_one, return_index=True, return_counts=True)
    return sorted(zip(first.tolist(), counts.tolist(), strict=True))
