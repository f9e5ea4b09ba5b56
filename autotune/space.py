"""The space of kernels: one record per instance, the rules it must obey, and the set that obeys them.

A `Config` names one instance of the template in `kernels/`. Its parameters stand in `PARAMETERS`,
what binds them in `RULES`. A rule is a predicate that reads configs and columns of configs alike, so
one text both explains a single config (`broken_rules`) and enumerates the space (`feasible_set`).

Kinds of rule, from hard to soft:
    template  the kernel does not compile otherwise; the id stands in its static_assert
    device    this GPU cannot run it
    shape     this problem cannot be computed with it
    worth     legal, but known not to pay: searched only when asked for (`--all`)
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property, reduce
from typing import Any, Literal

import numpy as np

from .device import DeviceLimits
from .errors import UsageError
from .gemm import FLOAT_BYTES, Gemm
from .launch import LaunchSpec, Variant

WARP = 32
MAX_THREADS = 1024
MAX_REGISTERS = 255
SM_PARTITIONS = 4  # each has a quarter of an SM's registers and runs a quarter of its warps
REGISTER_GRANULE = 8  # ptxas hands out registers in eights
OVERHEAD_REGISTERS = 18  # addresses, counters and predicates of the leanest kernel seen: a lower bound
MAX_ROWS = 1 << 26  # of one factor of a space: more would take gigabytes
_JOIN_ROWS = 1 << 17  # rows joined at a time: what the processor's caches hold
WORKSPACE_LIMIT = 1 << 30  # bytes that split-K may take for partial sums

Value = int | str
RuleKind = Literal["template", "device", "shape", "worth"]


@dataclass(frozen=True, order=True)
class Config:
    """One instance of the template and how it is launched. Tiles count elements."""

    bm: int = 64
    bn: int = 128
    bk: int = 16
    wm: int = 32
    wn: int = 64
    tm: int = 8
    tn: int = 8
    slice_k: int = 1
    bursts: int = 4
    stages: int = 3
    pad: int = 4
    copy_a: str = "async"
    copy_b: str = "async"
    vec_a: int = 1
    vec_b: int = 4
    vec_c: int = 4
    order: str = "row_snake"
    frag_buffers: int = 1
    unroll_k: int = 16
    min_blocks: int = 4
    edges: str = "predicated"
    raster: str = "n"
    group: int = 1
    reduction: str = "none"
    split_k: int = 1

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Config:
        """Read a full or partial mapping; what is missing keeps its default."""
        unknown = sorted(set(data) - set(PARAMETER))
        if unknown:
            raise UsageError(f"unknown parameter {unknown[0]!r}; known are {', '.join(PARAMETER)}")
        for name, value in data.items():
            if type(value) not in (int, str) or value not in PARAMETER[name].values:
                raise UsageError(f"{name} = {value!r}: expected {PARAMETER[name].describe()}")
        return cls(**data)

    @classmethod
    def parse(cls, text: str) -> Config:
        """Read `bm=64,bn=128,copy_a=async`; what is missing keeps its default."""
        pairs = [item.strip().partition("=") for item in text.split(",") if item.strip()]
        if not all(equals and name for name, equals, _ in pairs):
            raise UsageError(f"config {text!r}: write name=value pairs, as in bm=64,bn=128")
        values = {name.strip(): _number_or_word(value.strip()) for name, _, value in pairs}
        if len(values) < len(pairs):
            raise UsageError(f"config {text!r}: name each parameter once")
        return cls.from_dict(values)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @property
    def key(self) -> str:
        """The config as `parse` reads it, every parameter named: its identity in the store."""
        return ",".join(f"{name}={getattr(self, name)}" for name in PARAMETER)

    @property
    def kernel(self) -> Config:
        """The config less what only the launch needs: equal for configs that share a cubin."""
        return replace(self, split_k=1 if self.reduction == "none" else 2)

    def __str__(self) -> str:
        return self.key


def _number_or_word(text: str) -> Value:
    return int(text) if re.fullmatch("[0-9]{1,9}", text) else text


@dataclass(frozen=True)
class Parameter:
    """One knob: `values` are those a search may pick, in their natural order."""

    name: str
    values: tuple[Value, ...]
    meaning: str
    unit: str = ""

    def describe(self) -> str:
        return f"{self.meaning}, one of {', '.join(map(str, self.values))}"


PARAMETERS: tuple[Parameter, ...] = (
    Parameter("tm", (1, 2, 4, 6, 8, 12, 16), "rows of C per thread (TM)", "elements"),
    Parameter("tn", (1, 2, 4, 6, 8, 12, 16), "columns of C per thread (TN)", "elements"),
    Parameter("wm", (1, 2, 4, 8, 16, 32, 48, 64, 96, 128, 256), "rows of C per warp", "elements"),
    Parameter("wn", (4, 8, 16, 32, 48, 64, 96, 128, 256), "columns of C per warp", "elements"),
    Parameter(
        "bm", (1, 2, 4, 8, 16, 32, 48, 64, 96, 128, 160, 192, 256), "rows of C per block (BM)", "elements"
    ),
    Parameter(
        "bn", (4, 8, 16, 32, 48, 64, 96, 128, 160, 192, 256), "columns of C per block (BN)", "elements"
    ),
    Parameter("bk", (4, 8, 16, 32, 64), "depth of k per pipeline stage (BK)", "elements"),
    Parameter("slice_k", (1, 2, 4, 8), "warp groups of a block that share out bk", "groups"),
    Parameter("unroll_k", (4, 8, 16, 32, 64), "k steps unrolled in the inner loop", "steps"),
    Parameter("frag_buffers", (1, 2), "register buffers per operand fragment", "buffers"),
    Parameter("edges", ("exact", "predicated"), "whether tiles may hang over the edge of C"),
    Parameter("vec_a", (1, 2, 4), "elements of A per copy from global memory", "elements"),
    Parameter("vec_b", (1, 2, 4), "elements of B per copy from global memory", "elements"),
    Parameter("vec_c", (1, 2, 4), "elements of C per access to global memory", "elements"),
    Parameter("copy_a", ("register", "async"), "path of A to shared memory (async: cp.async)"),
    Parameter("copy_b", ("register", "async"), "path of B to shared memory (async: cp.async)"),
    Parameter("stages", (1, 2, 3, 4, 5, 6, 8), "tiles of A and B held in shared memory", "tiles"),
    Parameter("bursts", (1, 2, 4, 8), "parts in which a tile's copies start, spread over its k", "parts"),
    Parameter("pad", (0, 1, 2, 4, 8), "floats after each shared row of a transposed operand", "elements"),
    Parameter("min_blocks", (1, 2, 3, 4, 5, 6, 8), "blocks per SM that registers must allow", "blocks"),
    Parameter(
        "order",
        ("row", "row_snake", "col_snake", "zigzag", "pair_snake"),
        "order of the unrolled FMAs over the thread tile",
    ),
    Parameter("raster", ("m", "n"), "direction in which blocks walk over C"),
    Parameter("group", (1, 2, 4, 8, 16), "tiles walked across before the next step along", "tiles"),
    Parameter(
        "reduction",
        ("none", "two_pass", "last_block", "last_wave"),
        "how partial sums of split-K are added; last_wave splits only tiles that fill no whole wave",
    ),
    Parameter(
        "split_k",
        (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256),
        "blocks that share out k",
        "blocks",
    ),
)
PARAMETER: dict[str, Parameter] = {p.name: p for p in PARAMETERS}

_LAUNCH_FACTOR = ("reduction", "split_k")
_WALK_FACTOR = ("raster", "group")
_ORDER_FACTOR = ("order",)


# ------------------------------------------------------------------------------------------------
# Derived quantities. Each reads a Config or columns of configs: only operators numpy also knows.


def _chunk(t: Any) -> Any:
    """Widest of 4, 2, 1 floats that divides a thread's extent: one shared-memory access."""
    return 4 - 2 * (t % 4 != 0) - 1 * (t % 2 != 0)


def chunk_m(c: Any) -> Any:
    """Neighbouring rows of C that a thread reads from shared A in one access."""
    return _chunk(c.tm)


def chunk_n(c: Any) -> Any:
    """Neighbouring columns of C that a thread reads from shared B in one access."""
    return _chunk(c.tn)


def threads_per_slice(c: Any) -> Any:
    return (c.bm // c.wm) * (c.bn // c.wn) * WARP


def threads(c: Any) -> Any:
    """Threads per block."""
    return threads_per_slice(c) * c.slice_k


def is_transposed_a(g: Gemm) -> bool:
    """Shared memory holds A by k, then m: an A that is contiguous along k is turned on the way."""
    return not g.trans_a


def is_transposed_b(g: Gemm) -> bool:
    """Shared memory holds B by k, then n: a B that is contiguous along k is turned on the way."""
    return g.trans_b


def smem_bytes(c: Any, g: Gemm) -> Any:
    """Dynamic shared memory per block: the stages, or the slices' partial sums if those need more."""
    row_a = c.bm + c.pad * is_transposed_a(g)
    row_b = c.bn + c.pad * is_transposed_b(g)
    stages = c.stages * c.bk * (row_a + row_b)
    sums = c.bm * c.bn * (c.slice_k > 1)
    return FLOAT_BYTES * np.maximum(stages, sums)


def register_cap(c: Any, limits: DeviceLimits) -> Any:
    """Registers per thread that ptxas may use under the launch bounds: the fullest partition decides."""
    warps = -(-threads(c) * c.min_blocks // (WARP * SM_PARTITIONS))
    per_thread = limits.regs_per_sm // (SM_PARTITIONS * WARP * warps)
    return np.minimum(MAX_REGISTERS, per_thread // REGISTER_GRANULE * REGISTER_GRANULE)


def register_estimate(c: Any) -> Any:
    """Registers per thread that no compiler can do without: sums, fragments, the leanest overhead."""
    return c.tm * c.tn + c.frag_buffers * (c.tm + c.tn) + OVERHEAD_REGISTERS


def blocks_per_sm(c: Any, limits: DeviceLimits, g: Gemm, registers: Any) -> Any:
    """Blocks resident on one SM, given the compiler's registers per thread."""
    granules = -(-registers // REGISTER_GRANULE) * REGISTER_GRANULE
    warps = limits.regs_per_sm // (SM_PARTITIONS * WARP * granules) * SM_PARTITIONS
    by_registers = warps // (threads(c) // WARP)
    by_smem = limits.smem_per_sm // (smem_bytes(c, g) + limits.smem_reserved)
    by_threads = limits.threads_per_sm // threads(c)
    return reduce(np.minimum, (by_registers, by_smem, by_threads, limits.blocks_per_sm))


def tiles_m(c: Any, g: Gemm) -> Any:
    return -(-g.m // c.bm)


def tiles_n(c: Any, g: Gemm) -> Any:
    return -(-g.n // c.bn)


def launch_spec(config: Config, gemm: Gemm, limits: DeviceLimits, *, is_wide: bool = False) -> LaunchSpec:
    """What a launch of this config needs to know, for problems of this layout, on this kind of GPU."""
    return LaunchSpec(
        bm=config.bm,
        bn=config.bn,
        bk=config.bk,
        threads=threads(config),
        smem_bytes=int(smem_bytes(config, gemm)),
        vec_a=config.vec_a,
        vec_b=config.vec_b,
        vec_c=config.vec_c,
        is_exact=config.edges == "exact",
        reduction=config.reduction,
        split_k=config.split_k,
        wave=limits.num_sms * config.min_blocks if config.reduction == "last_wave" else 0,
        variant=Variant(gemm.trans_a, gemm.trans_b, is_wide),
    )


# ------------------------------------------------------------------------------------------------
# Rules


@dataclass(frozen=True)
class Rule:
    """`holds(config or columns, limits, gemm)` is true where the sentence is obeyed."""

    id: str
    kind: RuleKind
    needs: tuple[str, ...]
    sentence: str
    holds: Callable[[Any, DeviceLimits, Gemm], Any]


_GEOMETRY = ("bm", "bn", "wm", "wn", "tm", "tn")
_THREADS = ("bm", "bn", "wm", "wn", "slice_k")
_SMEM = ("bm", "bn", "bk", "slice_k", "stages", "pad")


def _load_extent_a(c: Any, g: Gemm) -> Any:
    return c.bk if is_transposed_a(g) else c.bm


def _load_extent_b(c: Any, g: Gemm) -> Any:
    return c.bk if is_transposed_b(g) else c.bn


def _tiles_64(g: Gemm) -> int:
    return -(-g.m // 64) * -(-g.n // 64)


def _sums_in_flight(d: DeviceLimits) -> int:
    """Elements of C that one wave of blocks computes at most: all registers of the GPU."""
    return d.num_sms * d.regs_per_sm


def _vec_fits(vec: Any, extent: int) -> Any:
    return extent % vec == 0


def _widest(vec: Any, tile: Any, extent: int, is_narrow: Any) -> Any:
    """Whether no wider vector divides both the tile and the matrix (or 4-byte copies are meant)."""
    four = (tile % 4 == 0) & (extent % 4 == 0)
    two = (tile % 2 == 0) & (extent % 2 == 0)
    best = 1 + 1 * two + 2 * (four & two)
    return (vec == best) | (is_narrow & (vec == 1))


RULES: tuple[Rule, ...] = (
    # template: the kernel's static_asserts carry the same ids
    Rule("warp-lanes", "template", ("wm", "wn", "tm", "tn"),
         "the thread tiles of 32 lanes fill the warp tile: (wm/tm) * (wn/tn) = 32",
         lambda c, d, g: (c.wm % c.tm == 0) & (c.wn % c.tn == 0)
         & ((c.wm // c.tm) * (c.wn // c.tn) == WARP)),
    Rule("block-warps-m", "template", ("bm", "wm"), "whole warp tiles fill the block: wm divides bm",
         lambda c, d, g: c.bm % c.wm == 0),
    Rule("block-warps-n", "template", ("bn", "wn"), "whole warp tiles fill the block: wn divides bn",
         lambda c, d, g: c.bn % c.wn == 0),
    Rule("threads", "template", _THREADS, "a block has at most 1024 threads",
         lambda c, d, g: threads(c) <= MAX_THREADS),
    Rule("slices", "template", ("bk", "slice_k"), "slices share out a tile's k evenly",
         lambda c, d, g: c.bk % c.slice_k == 0),
    Rule("unroll", "template", ("bk", "slice_k", "unroll_k"),
         "whole unrolled runs fill a slice: unroll_k divides bk / slice_k",
         lambda c, d, g: (c.bk // c.slice_k) % c.unroll_k == 0),
    Rule("fragment-parity", "template", ("frag_buffers", "unroll_k"),
         "two fragment buffers alternate: unroll_k is even",
         lambda c, d, g: (c.frag_buffers == 1) | (c.unroll_k % 2 == 0)),
    Rule("vector-a", "template", ("bm", "bk", "vec_a"),
         "whole vectors fill the contiguous side of A's tile",
         lambda c, d, g: _load_extent_a(c, g) % c.vec_a == 0),
    Rule("vector-b", "template", ("bn", "bk", "vec_b"),
         "whole vectors fill the contiguous side of B's tile",
         lambda c, d, g: _load_extent_b(c, g) % c.vec_b == 0),
    Rule("vector-c", "template", ("tn", "vec_c"),
         "a thread's neighbouring columns of C fill whole vectors",
         lambda c, d, g: chunk_n(c) % c.vec_c == 0),
    Rule("async-turn-a", "template", ("copy_a", "vec_a"),
         "cp.async cannot turn a vector: a transposed A is copied 4 bytes at a time",
         lambda c, d, g: (c.copy_a != "async") | (c.vec_a == 1) | (not is_transposed_a(g))),
    Rule("async-turn-b", "template", ("copy_b", "vec_b"),
         "cp.async cannot turn a vector: a transposed B is copied 4 bytes at a time",
         lambda c, d, g: (c.copy_b != "async") | (c.vec_b == 1) | (not is_transposed_b(g))),
    Rule("pad-a", "template", ("tm", "pad"),
         "padding keeps vector reads of a transposed A aligned",
         lambda c, d, g: (c.pad % chunk_m(c) == 0) | (not is_transposed_a(g))),
    Rule("pad-b", "template", ("tn", "pad"),
         "padding keeps vector reads of a transposed B aligned",
         lambda c, d, g: (c.pad % chunk_n(c) == 0) | (not is_transposed_b(g))),
    Rule("bursts", "template", ("bk", "slice_k", "unroll_k", "stages", "bursts"),
         "bursts spread over the steps of a whole slice, two or more each, into a stage that is not read",
         lambda c, d, g: (c.bursts == 1) | ((c.unroll_k == c.bk // c.slice_k)
         & (c.unroll_k % (2 * c.bursts) == 0) & (c.stages > 1))),
    # device
    Rule("async-device", "device", ("copy_a", "copy_b"), "cp.async needs sm_80 or later",
         lambda c, d, g: ((c.copy_a != "async") & (c.copy_b != "async")) | d.has_async_copy),
    Rule("shared-memory", "device", _SMEM, "a block's stages fit its shared memory",
         lambda c, d, g: smem_bytes(c, g) <= d.smem_per_block),
    Rule("resident-smem", "device", (*_SMEM, "min_blocks"),
         "min_blocks blocks fit the shared memory of an SM",
         lambda c, d, g: c.min_blocks * (smem_bytes(c, g) + d.smem_reserved) <= d.smem_per_sm),
    Rule("resident-threads", "device", (*_THREADS, "min_blocks"),
         "min_blocks blocks fit the threads and block slots of an SM",
         lambda c, d, g: (c.min_blocks * threads(c) <= d.threads_per_sm)
         & (c.min_blocks <= d.blocks_per_sm)),
    Rule("registers", "device", (*_THREADS, "tm", "tn", "frag_buffers", "min_blocks"),
         "sums and fragments fit the registers that the launch bounds leave",
         lambda c, d, g: register_estimate(c) <= register_cap(c, d)),
    # shape
    Rule("split-reduction", "shape", ("reduction", "split_k"),
         "split-K needs a reduction, and nothing else does",
         lambda c, d, g: (c.reduction != "none") == (c.split_k > 1)),
    Rule("exact-edges", "shape", ("bm", "bn", "edges"),
         "exact edges need m and n to be multiples of the block tile",
         lambda c, d, g: (c.edges != "exact") | ((g.m % c.bm == 0) & (g.n % c.bn == 0))),
    Rule("extent-a", "shape", ("vec_a",), "rows of A (as stored) are whole vectors",
         lambda c, d, g: _vec_fits(c.vec_a, g.lda)),
    Rule("extent-b", "shape", ("vec_b",), "rows of B (as stored) are whole vectors",
         lambda c, d, g: _vec_fits(c.vec_b, g.ldb)),
    Rule("extent-c", "shape", ("vec_c",), "rows of C are whole vectors",
         lambda c, d, g: _vec_fits(c.vec_c, g.ldc)),
    Rule("workspace", "shape", ("reduction", "split_k"), "the partial sums of split-K fit 1 GiB",
         lambda c, d, g: FLOAT_BYTES * c.split_k * (c.split_k > 1)
         * np.where(c.reduction == "last_wave", min(g.m * g.n, _sums_in_flight(d)), g.m * g.n)
         <= WORKSPACE_LIMIT),
    # worth
    Rule("worth-threads", "worth", _THREADS, "64 to 512 threads: fewer hide no latency, more cannot",
         lambda c, d, g: (threads(c) >= 64) & (threads(c) <= 512)),
    Rule("worth-slices", "worth", _THREADS, "slices pay where a slice alone is at most 128 threads",
         lambda c, d, g: (c.slice_k == 1) | (threads_per_slice(c) <= 128)),
    Rule("worth-thread-tile", "worth", ("tm", "tn"), "at most 192 sums: registers for more spill",
         lambda c, d, g: (c.tm * c.tn <= 192) & (c.tm <= 4 * c.tn) & (c.tn <= 4 * c.tm)
         | (c.tm <= 2) | (c.tn <= 2)),
    Rule("worth-small-tile", "worth", ("tm", "tn"),
         "sums beyond 16 per thread unless a side of C is short",
         lambda c, d, g: (c.tm * c.tn >= 16) | (min(g.m, g.n) <= 64)),
    Rule("worth-block-m", "worth", ("bm",), "a block tile is not taller than twice C",
         lambda c, d, g: (c.bm <= 16) | (c.bm < 2 * g.m)),
    Rule("worth-block-n", "worth", ("bn",), "a block tile is not wider than twice C",
         lambda c, d, g: (c.bn <= 16) | (c.bn < 2 * g.n)),
    Rule("worth-flat-m", "worth", ("bm",), "tiles of few rows only where C has few rows",
         lambda c, d, g: (c.bm >= 16) | (g.m < 2 * c.bm)),
    Rule("worth-flat-n", "worth", ("bn",), "tiles of few columns only where C has few columns",
         lambda c, d, g: (c.bn >= 16) | (g.n < 2 * c.bn)),
    Rule("worth-intensity", "worth", ("bm", "bn"),
         "block tiles reuse each element enough, unless a side of C is short",
         lambda c, d, g: ((c.bm >= 32) | (g.m < 32)) & ((c.bn >= 32) | (g.n < 32))
         & (c.bm * c.bn <= 256 * 192)),
    Rule("worth-edges", "worth", ("bm", "bn", "edges"), "exact edges wherever they are possible",
         lambda c, d, g: (c.edges == "exact") == ((g.m % c.bm == 0) & (g.n % c.bn == 0))),
    Rule("worth-vector-a", "worth", ("bm", "bk", "vec_a", "copy_a"), "the widest vectors that A allows",
         lambda c, d, g: _widest(c.vec_a, _load_extent_a(c, g), g.lda,
                                 (c.copy_a == "async") & is_transposed_a(g))),
    Rule("worth-vector-b", "worth", ("bn", "bk", "vec_b", "copy_b"), "the widest vectors that B allows",
         lambda c, d, g: _widest(c.vec_b, _load_extent_b(c, g), g.ldb,
                                 (c.copy_b == "async") & is_transposed_b(g))),
    Rule("worth-vector-c", "worth", ("tn", "vec_c"), "the widest vectors that C allows",
         lambda c, d, g: _widest(c.vec_c, chunk_n(c), g.ldc, False)),
    Rule("worth-copies", "worth", ("bm", "bn", "bk", *_THREADS, "vec_a", "vec_b"),
         "every thread has something to copy, and none more than 32 pieces",
         lambda c, d, g: (2 * c.bm * c.bk >= c.vec_a * threads(c) * (c.bm >= 32))
         & (2 * c.bn * c.bk >= c.vec_b * threads(c) * (c.bn >= 32))
         & (c.bm * c.bk <= 32 * c.vec_a * threads(c)) & (c.bn * c.bk <= 32 * c.vec_b * threads(c))),
    Rule("worth-staged-copies", "worth",
         ("bk", *_THREADS, "tm", "tn", "copy_a", "copy_b", "frag_buffers", "min_blocks"),
         "register-staged copies leave registers for sums and fragments",
         lambda c, d, g: register_estimate(c)
         + (c.bm * c.bk // threads(c)) * (c.copy_a == "register")
         + (c.bn * c.bk // threads(c)) * (c.copy_b == "register") <= register_cap(c, d) + REGISTER_GRANULE),
    Rule("worth-stages", "worth", ("copy_a", "copy_b", "stages"),
         "two stages, or 3, 4 or 6 where a copy is asynchronous",
         lambda c, d, g: (c.stages == 2) | (((c.copy_a == "async") | (c.copy_b == "async"))
         & ((c.stages == 3) | (c.stages == 4) | (c.stages == 6)))),
    Rule("worth-async", "worth", ("copy_a", "copy_b"), "an asynchronous copy where the device has it",
         lambda c, d, g: (c.copy_a == "async") | (c.copy_b == "async") | (not d.has_async_copy)),
    Rule("worth-depth", "worth", ("bk",), "tiles at least 8 deep: fewer steps do not pay for a barrier",
         lambda c, d, g: c.bk >= 8),
    Rule("worth-unroll", "worth", ("tm", "tn", "bk", "slice_k", "unroll_k"),
         "unroll a slice whole, or as far as 4096 FMAs: more do not fit the instruction cache",
         lambda c, d, g: (c.tm * c.tn * c.unroll_k <= 4096)
         & ((c.unroll_k == c.bk // c.slice_k) | (c.tm * c.tn * c.unroll_k > 2048))),
    Rule("worth-bursts", "worth", (*_THREADS, "bk", "vec_a", "vec_b", "bursts"),
         "every burst has a copy of its own for each thread",
         lambda c, d, g: (c.bursts == 1)
         | ((c.bm * c.bk // c.vec_a + c.bn * c.bk // c.vec_b) >= c.bursts * threads(c))),
    Rule("worth-order", "worth", ("order",), "orders that turn round: plain rows were never the best",
         lambda c, d, g: c.order != "row"),
    Rule("worth-pad", "worth", ("tm", "tn", "pad"),
         "padding by one access where an operand is transposed on its way, else none",
         lambda c, d, g: c.pad
         == np.maximum(chunk_m(c) * is_transposed_a(g), chunk_n(c) * is_transposed_b(g))),
    Rule("worth-min-blocks", "worth", (*_THREADS, "tm", "tn", "min_blocks"),
         "ask for residency only where it binds: one block may have all registers anyway",
         lambda c, d, g: (c.min_blocks == 1)
         | ((register_cap(c, d) <= 168) & (register_cap(c, d) <= 2.5 * c.tm * c.tn + 72))),
    Rule("worth-occupancy", "worth", (*_THREADS, "min_blocks"),
         "at least 128 threads per SM",
         lambda c, d, g: threads(c) * c.min_blocks >= 128),
    Rule("worth-split", "worth", ("reduction", "split_k"),
         "shares of k at least 128 deep, of all tiles only where 64x64 tiles alone leave SMs idle",
         lambda c, d, g: (c.split_k == 1)
         | ((g.k >= 128 * c.split_k)
            & (((c.reduction != "last_wave") & (_tiles_64(g) * c.split_k <= 16 * d.num_sms))
               | ((c.reduction == "last_wave") & (c.split_k <= 16) & (_tiles_64(g) > d.num_sms))))),
    Rule("worth-group", "worth", ("raster", "group"),
         "walk along m in plain order or not at all: groups go along n",
         lambda c, d, g: (c.raster == "n") | (c.group == 1)),
)  # fmt: skip
RULE: dict[str, Rule] = {rule.id: rule for rule in RULES}
LEGAL: tuple[RuleKind, ...] = ("template", "device", "shape")


def broken_rules(
    config: Config, limits: DeviceLimits, gemm: Gemm, kinds: Sequence[RuleKind] = LEGAL
) -> tuple[Rule, ...]:
    """The rules of those kinds that this config breaks, in the order of `RULES`.

    Where a template rule is broken only such rules are told: the others presume a kernel that compiles.
    """
    template = [r for r in RULES if r.kind == "template" and not r.holds(config, limits, gemm)]
    others = [r for r in RULES if r.kind != "template" and r.kind in kinds] if not template else []
    broken = [*template, *(r for r in others if not r.holds(config, limits, gemm))]
    return tuple(r for r in broken if r.kind in kinds)


# ------------------------------------------------------------------------------------------------
# The feasible set


class _Columns:
    """Columns of configs under construction, read by rules through attributes."""

    def __init__(self, columns: dict[str, np.ndarray]) -> None:
        self.__dict__.update(columns)


@dataclass(frozen=True)
class Factor:
    """One independent part of a space: every row of `codes` may meet every row of other factors.

    `codes[i, j]` indexes `values[j]`, the values of parameter `names[j]`; shape (rows, parameters).
    """

    names: tuple[str, ...]
    values: tuple[tuple[Value, ...], ...]
    codes: np.ndarray  # uint8 (rows, parameters)

    def __len__(self) -> int:
        return len(self.codes)

    @cached_property
    def _sorted(self) -> tuple[np.ndarray, np.ndarray | None]:
        """Rows as byte strings in ascending order, and which row each is if `_join` did not sort them."""
        keys = np.ascontiguousarray(self.codes, dtype=np.uint8).view(f"S{len(self.names)}").ravel()
        if np.all(keys[:-1] <= keys[1:]):
            return keys, None
        order = np.argsort(keys, kind="stable")
        return keys[order], order

    def rows_of(self, codes: np.ndarray) -> np.ndarray:
        """Rows that hold these codes, -1 where none does; shapes (q, parameters) -> (q,)."""
        keys, rows = self._sorted
        if not len(keys):
            return np.full(len(codes), -1)
        wanted = np.ascontiguousarray(codes, dtype=np.uint8).view(keys.dtype).ravel()
        at = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
        return np.where(keys[at] == wanted, at if rows is None else rows[at], -1)


@dataclass(frozen=True)
class FeasibleSet:
    """A finite set of points: the Cartesian product of its factors' rows.

    A point is numbered 0 ... len - 1 in mixed radix, the last factor fastest. Samplers see a space
    only through this class, so any recorded space of other tools is searched in the same way.
    """

    factors: tuple[Factor, ...]

    def __len__(self) -> int:
        return int(np.prod([len(f) for f in self.factors], dtype=object)) if self.factors else 0

    @cached_property
    def names(self) -> tuple[str, ...]:
        return tuple(name for f in self.factors for name in f.names)

    @cached_property
    def values(self) -> tuple[tuple[Value, ...], ...]:
        return tuple(v for f in self.factors for v in f.values)

    def rows(self, index: int) -> tuple[int, ...]:
        """Row of each factor at this point."""
        rows = []
        for factor in reversed(self.factors):
            index, row = divmod(index, len(factor))
            rows.append(row)
        return tuple(reversed(rows))

    def index(self, rows: Sequence[int]) -> int:
        """Number of the point at these rows of the factors."""
        number = 0
        for factor, row in zip(self.factors, rows, strict=True):
            number = number * len(factor) + int(row)
        return number

    def codes(self, index: int) -> np.ndarray:
        """Codes of all parameters at this point, in the order of `names`."""
        rows = self.rows(index)
        return np.concatenate([f.codes[r] for f, r in zip(self.factors, rows, strict=True)])

    def point(self, index: int) -> dict[str, Value]:
        """Parameters by name at this point."""
        return {n: v[c] for n, v, c in zip(self.names, self.values, self.codes(index), strict=True)}

    def find(self, point: Mapping[str, Value]) -> int | None:
        """Number of a point, or None if it is not in the set."""
        rows = []
        for factor in self.factors:
            try:
                codes = [v.index(point[n]) for n, v in zip(factor.names, factor.values, strict=True)]
            except (KeyError, ValueError):
                return None
            row = int(factor.rows_of(np.array([codes], dtype=np.uint8))[0])
            if row < 0:
                return None
            rows.append(row)
        return self.index(rows)


def _join(names: Sequence[str], rules: Iterable[Rule], limits: DeviceLimits, gemm: Gemm) -> Factor:
    """All combinations of the parameters that obey the rules, one parameter joined at a time.

    A rule is applied as soon as the parameters it needs are there, which keeps the table small.
    """
    pending = list(rules)
    table = np.zeros((1, 0), dtype=np.uint8)  # (rows, parameters so far)
    for at, name in enumerate(names):
        known = names[: at + 1]
        ready = [r for r in pending if set(r.needs) <= set(known)]
        pending = [r for r in pending if r not in ready]
        choices = len(PARAMETER[name].values)
        step = max(1, _JOIN_ROWS // choices)
        parts = [table[start : start + step] for start in range(0, max(1, len(table)), step)]
        table = np.concatenate([_obeying(ready, _extended(p, choices), known, limits, gemm) for p in parts])
        if len(table) > MAX_ROWS:
            raise UsageError(
                f"{gemm} on {limits.name}: more than {MAX_ROWS:,} combinations of {', '.join(known)} are "
                "legal, too many to enumerate; leave out --all, or ask about one config with --explain"
            )
    return Factor(tuple(names), tuple(PARAMETER[n].values for n in names), table)


def _extended(rows: np.ndarray, choices: int) -> np.ndarray:
    """Every row with every code of one more parameter: (rows, p) -> (rows * choices, p + 1)."""
    codes = np.tile(np.arange(choices, dtype=np.uint8), len(rows))
    return np.column_stack((np.repeat(rows, choices, axis=0), codes))


def _obeying(
    rules: Sequence[Rule], codes: np.ndarray, names: Sequence[str], limits: DeviceLimits, gemm: Gemm
) -> np.ndarray:
    """The rows of `codes` (rows, names) that obey the rules. A rule sees only what those before it left."""
    for rule in rules:
        columns = {n: np.array(PARAMETER[n].values)[codes[:, names.index(n)]] for n in rule.needs}
        codes = codes[np.broadcast_to(rule.holds(_Columns(columns), limits, gemm), len(codes))]
    return codes


def feasible_set(limits: DeviceLimits, gemm: Gemm, *, is_wide: bool = False) -> FeasibleSet:
    """Every config that this device can run on this problem and that is worth a try.

    `is_wide` drops the rules of kind `worth`, and the set with it grows a thousandfold. Raises
    UsageError where it then becomes too large to enumerate.
    """
    rules = [r for r in RULES if not (is_wide and r.kind == "worth")]
    apart = (*_ORDER_FACTOR, *_WALK_FACTOR, *_LAUNCH_FACTOR)
    core = tuple(p.name for p in PARAMETERS if p.name not in apart)
    factors = []
    for names in (core, _ORDER_FACTOR, _WALK_FACTOR, _LAUNCH_FACTOR):
        own = [r for r in rules if set(r.needs) <= set(names)]
        factors.append(_join(names, own, limits, gemm))
    return FeasibleSet(tuple(factors))

