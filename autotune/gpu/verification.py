"""Is C right? Every candidate is compared with float64 and with cuBLAS, on the device.

The bound is that of accuracy_class.py.

The reference is computed once per problem, by a kernel that shares nothing with those under test, and
cuBLAS's result is compared with it. If float64 would take longer than REFERENCE_BUDGET_S, or too much memory,
only some tiles of C are computed: corners, the edges where tiles hang over, and others drawn by the seed. All
of C is always searched for NaN and Inf (C is poisoned with NaN before, so an element left out shows) and
compared with cuBLAS's.
"""

from __future__ import annotations

import ctypes
import math
import random
from dataclasses import dataclass
from typing import Any

from ..facts.accuracy_class import gamma
from ..facts.device import DeviceLimits
from ..facts.fitted import number
from ..facts.gemm import Gemm
from ..facts.measurement import is_accurate
from .driver import ASSUMED_CLOCK_KHZ, check
from .memory import CANARY_WORD, Buffer, Enqueue, Operands, OperandSet, Region, Workspace, canary_name
from .module import Module, pack

LARGEST_NORMAL = 5.78  # no number of fill_normal is larger

CHECK_TILE, CHECK_THREADS = 64, 256  # as in checks.cu
TILE_ELEMENTS = CHECK_TILE * CHECK_TILE
REFERENCE_BYTES = 8 + 4  # per element: float64 product and float sum of absolute values
REFERENCE_BUDGET_S = 2.0
LEAST_TILES = 64
MOST_BATCH_BYTES = 1 << 30  # of a batch's reference
LEAST_ELEMENTS = 64  # of C, for its error to be compared with that of cuBLAS's
# Of reference_tiles, from the ratio of its shared-memory reads to its FMAs
_FP64_EFFICIENCY = number("_FP64_EFFICIENCY")
_COMPARE_BLOCKS = 4096
_LARGEST_FLOAT = 3.4028234663852886e38


def largest_magnitude(k: int) -> float:
    """What no |a|.|b| of length k exceeds for our normal numbers: mean, 10 deviations, a largest term."""
    largest_term = LARGEST_NORMAL**2
    return min(k * largest_term, k * 2 / math.pi + 10 * 0.772 * math.sqrt(k) + largest_term)


def fp64_rate(limits: DeviceLimits) -> float:
    """Float64 multiply-adds per second that the reference kernel reaches, roughly."""
    cores = {(8, 0): 32, (9, 0): 64, (10, 0): 64, (10, 3): 2}.get(limits.compute_capability, 2)
    return cores * limits.num_sms * 1e3 * ASSUMED_CLOCK_KHZ * _FP64_EFFICIENCY


def tile_budget(gemm: Gemm, limits: DeviceLimits, free_bytes: int) -> int:
    """How many tiles of C the reference may hold: by time and by a third of the free memory. Small products
    of a batch fill little of their tiles, so that a batch's reference has a limit of its own."""
    by_time = REFERENCE_BUDGET_S * fp64_rate(limits) / (TILE_ELEMENTS * max(gemm.k, 1))
    most_bytes = min(free_bytes / 3, MOST_BATCH_BYTES if gemm.is_batched else math.inf)
    by_memory = most_bytes / (TILE_ELEMENTS * REFERENCE_BYTES)
    return max(LEAST_TILES, int(min(by_time, by_memory)))


def tiles_of_one(gemm: Gemm) -> tuple[int, int]:
    """Rows and columns of tiles of C, in one product."""
    return -(-gemm.m // CHECK_TILE), -(-gemm.n // CHECK_TILE)


def num_tiles(gemm: Gemm) -> int:
    """Tiles of C, of all products."""
    rows, columns = tiles_of_one(gemm)
    return rows * columns * gemm.batch


def num_elements(gemm: Gemm, tiles: list[int]) -> int:
    """Elements of C in these tiles."""
    rows, columns = tiles_of_one(gemm)
    places = ((tile // columns % rows, tile % columns) for tile in tiles)
    return sum(
        min(CHECK_TILE, gemm.m - CHECK_TILE * row) * min(CHECK_TILE, gemm.n - CHECK_TILE * column)
        for row, column in places
    )


def choose_tiles(gemm: Gemm, budget: int, seed: int) -> list[int]:
    """Numbers of the tiles of C to check: all if the budget allows, else corners, last row and column,
    first row and column of the first and of the last product, then others at random. Ascending."""
    rows, columns = tiles_of_one(gemm)
    of_one, count = rows * columns, num_tiles(gemm)
    if count <= budget:
        return list(range(count))
    last_row = range(of_one - columns, of_one)
    last_column = range(columns - 1, of_one, columns)
    corners = [0, columns - 1, of_one - columns, of_one - 1]
    edges = [*corners, *last_row, *last_column, *range(columns), *range(0, of_one, columns)]
    ordered = dict.fromkeys(first + tile for tile in edges for first in (0, count - of_one))
    chosen = list(ordered)[: max(budget // 2, 4)]
    others = random.Random(seed).sample(range(count), min(count, budget))
    return sorted(list(dict.fromkeys([*chosen, *others]))[:budget])


# ----------------------------------------------------------------------------------- what was found


class RawFindings(ctypes.Structure):
    """`Findings` of checks.cu."""

    _fields_ = (
        ("worst", ctypes.c_uint64),
        ("num_nonfinite", ctypes.c_uint64),
        ("num_corrupted", ctypes.c_uint64),
        ("last_damaged", ctypes.c_uint64),
        ("worst_to_other", ctypes.c_uint64),
        ("squares", ctypes.c_double),
    )


def ratio_of(packed: int) -> float:
    """The float whose bits are in the upper half; infinity becomes the largest float, which JSON knows."""
    ratio = float(ctypes.c_float.from_buffer_copy((packed >> 32).to_bytes(4, "little")).value)
    return min(ratio, _LARGEST_FLOAT)


@dataclass(frozen=True)
class Verdict:
    """`error_ratio` is max |C - C64| / bound over the checked tiles, `at` (row, column) where, in a batch
    (product, row, column); `cublas_ratio` the same against cuBLAS over all of C (0 where there is no cuBLAS).

    `error_norm` is ||C - C64||, Frobenius, over the checked tiles; `error_over_cublas` how many times that of
    cuBLAS's C it is on the same operands and elements (None where cuBLAS is absent or exact, or where these
    are too few to tell)."""

    error_ratio: float
    at: tuple[int, ...]
    cublas_ratio: float = 0.0
    num_nonfinite: int = 0
    num_corrupted: int = 0
    corrupted: str = ""
    error_norm: float = 0.0
    error_over_cublas: float | None = None

    @property
    def errors(self) -> tuple[float, float]:
        """By Frobenius and by element against |A| |B|: to compare with others of this problem."""
        return self.error_norm, self.error_ratio

    @property
    def fault(self) -> str:
        """Why the result is wrong, or "" if it is right."""
        at = ", ".join(map(str, self.at))
        if self.num_corrupted:
            return f"{self.num_corrupted} words written outside the operands, {self.corrupted}"
        if self.num_nonfinite:
            return f"{self.num_nonfinite} elements of C are NaN, Inf or were not written"
        if not self.error_ratio <= 1:
            return f"C[{at}] is off by {self.error_ratio:.3g} times the bound against float64"
        if not self.cublas_ratio <= 1:
            return f"C differs from cuBLAS's by {self.cublas_ratio:.3g} times the tolerance"
        return ""


def why_inaccurate(error_over_cublas: float | None, max_error: float | None) -> str:
    """Why a result that is right is not accurate enough, or "" if it is, or if there is no limit."""
    if is_accurate(error_over_cublas, max_error):
        return ""
    return f"right, but its error is {error_over_cublas:.2f} times cuBLAS's; the limit is {max_error:g} times"


def locate(gemm: Gemm, tiles: list[int], packed: int) -> tuple[int, ...]:
    """Row and column in C of a packed index of compare_tiles; in a batch the product before them."""
    slot, element = divmod(packed & 0xFFFFFFFF, TILE_ELEMENTS)
    rows, columns = tiles_of_one(gemm)
    down, tile_column = divmod(tiles[slot], columns)
    product, tile_row = divmod(down, rows)
    row, column = divmod(element, CHECK_TILE)
    at = (tile_row * CHECK_TILE + row, tile_column * CHECK_TILE + column)
    return (product, *at) if gemm.is_batched else at


# ------------------------------------------------------------------------------------ on the device


def _strides(lead: int, is_transposed: bool, products: int) -> list[ctypes.c_int64]:
    """Elements from row to row, from column to column and from product to product of op(X)."""
    rows, columns = (1, lead) if is_transposed else (lead, 1)
    return [ctypes.c_int64(stride) for stride in (rows, columns, products)]


class Verifier:
    """The reference of one problem, and the check of a C against it. `most_tiles`: of C, that are checked at
    most; None: as time and memory allow. Raises EnvironmentProblem where memory does not suffice."""

    def __init__(
        self,
        driver: Any,
        checks: Module,
        gemm: Gemm,
        limits: DeviceLimits,
        seed: int,
        stream: Any,
        most_tiles: int | None = None,
    ) -> None:
        self._driver, self._checks, self._stream = driver, checks, stream
        self._gemm = gemm
        free, _ = check(driver.cuMemGetInfo)
        self.tiles = choose_tiles(gemm, most_tiles or tile_budget(gemm, limits, int(free)), seed)
        elements = len(self.tiles) * TILE_ELEMENTS
        # One allocation: products (8 bytes each), magnitudes (4), findings, numbers of tiles (4).
        self._findings = Region(REFERENCE_BYTES * elements, ctypes.sizeof(RawFindings))
        num_bytes = self._findings.end + 4 * len(self.tiles)
        self._buffer = Buffer(driver, num_bytes, f"the float64 reference of {gemm}")
        products = self._buffer.address
        self._reference = (products + self._findings.end, products, products + 8 * elements)
        self._buffer.upload((ctypes.c_int32 * len(self.tiles))(*self.tiles), stream, self._findings.end)
        self._other: Buffer | None = None
        self._cublas_norm = 0.0
        # The norm of n independent errors scatters by 1 / sqrt(2 n): 9 % for these, for one it is luck.
        self._has_norms = gemm.num_results >= LEAST_ELEMENTS

    @property
    def share(self) -> float:
        """Of C that is checked against float64."""
        return num_elements(self._gemm, self.tiles) / self._gemm.num_results

    @property
    def num_bytes(self) -> int:
        return self._buffer.num_bytes + (self._other.num_bytes if self._other else 0)

    @property
    def products(self) -> int:
        """Address of the float64 products: (tiles, CHECK_TILE, CHECK_TILE), zero beyond the edges of C."""
        return self._reference[1]

    def compute_reference(self, operands: OperandSet) -> None:
        """Enqueue the float64 products of the chosen tiles."""
        gemm, strides = self._gemm, self._gemm.strides
        arguments = [
            *map(ctypes.c_int32, (gemm.m, gemm.n, gemm.k)),
            *(ctypes.c_void_p(operands.a), *_strides(gemm.lda, gemm.trans_a, strides.stride_a)),
            *(ctypes.c_void_p(operands.b), *_strides(gemm.ldb, gemm.trans_b, strides.stride_b)),
            *map(ctypes.c_void_p, self._reference),
        ]
        self._launch("reference_tiles", len(self.tiles), arguments)

    def keep_cublas(self, operands: OperandSet, enqueue: Enqueue) -> None:
        """Compute C by cuBLAS and keep it for comparison."""
        size = self._gemm.operand_bytes[2]
        self._other = Buffer(self._driver, size, f"cuBLAS's result of {self._gemm}")
        enqueue(OperandSet(operands.a, operands.b, self._other.address))

    def check_cublas(self) -> Verdict:
        """cuBLAS's kept result against float64: it checks the reference, and others are held against it."""
        assert self._other is not None
        verdict = self._judge(self._other.address, [], is_cublas=True)
        self._cublas_norm = verdict.error_norm
        return verdict

    def check(self, c: int, operands: Operands, workspace: Workspace) -> Verdict:
        """Judge the C at this address, and all canaries. Waits for the stream."""
        canaries = [(operands.canaries, len(operands.layout.canaries))]
        if workspace.num_canaries:
            canaries.append((workspace.canaries, workspace.num_canaries))
        return self._judge(c, canaries)

    def free(self) -> None:
        self._buffer.free()
        if self._other is not None:
            self._other.free()

    def _judge(self, c: int, canaries: list[tuple[int, int]], *, is_cublas: bool = False) -> Verdict:
        self._buffer.fill(0, self._findings, self._stream)
        self._compare(c, 0 if is_cublas or self._other is None else self._other.address)
        first = 0
        for address, count in canaries:
            numbers = (ctypes.c_uint32(first), ctypes.c_uint32(CANARY_WORD))
            self._launch("check_canaries", count, [ctypes.c_void_p(address), *numbers, self._out()])
            first += count
        raw = RawFindings()
        check(
            self._driver.cuMemcpyDtoHAsync,
            *(ctypes.addressof(raw), self._out().value, ctypes.sizeof(raw), self._stream),
        )
        check(self._driver.cuStreamSynchronize, self._stream)
        norm = math.sqrt(raw.squares)
        is_comparable = self._has_norms and self._cublas_norm > 0
        return Verdict(
            error_norm=norm,
            error_over_cublas=norm / self._cublas_norm if is_comparable else None,
            error_ratio=ratio_of(raw.worst),
            at=locate(self._gemm, self.tiles, raw.worst),
            cublas_ratio=ratio_of(raw.worst_to_other),
            num_nonfinite=raw.num_nonfinite,
            num_corrupted=raw.num_corrupted,
            corrupted=canary_name(raw.last_damaged - 1, canaries[0][1]) if raw.num_corrupted else "",
        )

    def _compare(self, c: int, other: int) -> None:
        gemm = self._gemm
        matrix = (ctypes.c_int32(gemm.m), ctypes.c_int32(gemm.n), ctypes.c_void_p(c))
        reference = map(ctypes.c_void_p, self._reference)
        bound = ctypes.c_double(gamma(gemm.k))
        self._launch("compare_tiles", len(self.tiles), [*matrix, *reference, bound, self._out()])
        count = gemm.num_results
        blocks = min(_COMPARE_BLOCKS, -(-count // CHECK_THREADS))
        # how far C may be from cuBLAS's, each being within the bound of the truth
        tolerance = ctypes.c_double(2 * gamma(gemm.k) * largest_magnitude(gemm.k))
        whole = [ctypes.c_void_p(c), ctypes.c_void_p(other), ctypes.c_uint64(count), tolerance, self._out()]
        self._launch("compare_whole", blocks, whole)

    def _out(self) -> ctypes.c_void_p:
        return ctypes.c_void_p(self._buffer.address + self._findings.offset)

    def _launch(self, name: str, blocks: int, arguments: list[Any]) -> None:
        self._checks.kernel(name).launch(self._stream, (blocks, 1), CHECK_THREADS, pack(arguments))
