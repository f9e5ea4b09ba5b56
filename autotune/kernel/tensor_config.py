"""One instance of the kernel on tensor cores (`kernels/tensor_sgemm.cu`): its parameters, rules and launch.

Compute capability 9.0 alone: its instructions are of sm_90a, which no other GPU runs. Copied into exported
tables.
"""

from __future__ import annotations

from typing import Any, ClassVar, Self

import numpy as np

from ..facts import accuracy_class
from ..facts.device import DeviceLimits
from ..facts.fitted import numbers
from ..facts.frozen import frozen
from ..facts.gemm import FLOAT_BYTES, FP32, Gemm, per_word
from .config import KernelConfig, Parameter
from .launch import PACK_ALIGNMENT, WORKSPACE_LIMIT, LaunchSpec, Variant, packed_floats
from .resources import launched
from .rules import Rule

ARCH = "sm_90a"
BM, BK = 128, 32
# Parts of a float, how many of their products count, and the k of an instruction
TF32X3, BF16X6 = SCHEMES = ("tf32x3", "bf16x6")
WARPGROUP, NUM_MULTIPLIERS = 128, 2
PLANE_ALIGNMENT = 1024  # bytes
BARRIER_BYTES = 16  # of a stage
REGISTERS = 64 * 1024  # of an SM, which a block has alone
# The tensor cores' rates, in TF32 1,024 multiply-adds per SM and cycle and in BF16 twice as many, divided by
# the products of parts that an A of each type needs, over the rate of 128 lanes
OVER_FMA = {FP32: 1024 / 3 / 128, "bf16": 2048 / 3 / 128, "fp16": 1024 / 2 / 128}
# Of an element that is packed; of a split's share of k
PACK_USES, LEAST_DEPTH = numbers("TENSOR_PACK_USES TENSOR_LEAST_DEPTH")
LEAST_RESULTS = 64 * 64  # of C: fewer show no error that can be compared, and keep no tensor core busy


class ConfigOnTensorCores(KernelConfig):
    """What configs of each kernel on tensor cores have."""

    accuracy: ClassVar[str] = accuracy_class.FP32
    summed: ClassVar[tuple[str, ...]]  # of two that agree in these, a product of one layout has the same bits
    pack_depth: ClassVar[int] = 0  # as packed_floats takes it
    bm: int
    bn: int
    bk: int
    reduction: str

    @property
    def threads(self) -> int:
        """Of a block."""
        raise NotImplementedError

    @classmethod
    def _values(cls, c: Any, *names: str) -> list[Any]:
        """Of a config or columns, which lack what is alike in all configs."""
        return [getattr(c if hasattr(c, name) else cls, name) for name in names]

    @classmethod
    def packed_bytes(cls, c: Any, g: Gemm) -> Any:
        """Memory of packed operands, padded to whole tiles; as launch.plan lays them out. Of a config or
        columns."""
        bm, bn, pack_a, pack_b = cls._values(c, "bm", "bn", "pack_a", "pack_b")
        found: Any = 0
        for is_packed, tile, extent, is_shared in (
            (pack_a, bm, g.m, g.shares_a),
            (pack_b, bn, g.n, g.shares_b),
        ):
            products = 1 if is_shared else g.batch
            padded = -(-extent // tile) * tile
            own = is_packed * FLOAT_BYTES * products * packed_floats(cls.pack_depth, g.k, padded)
            found = found + -(-own // PACK_ALIGNMENT) * PACK_ALIGNMENT
        return found

    @classmethod
    def sum_bytes(cls, c: Any, g: Gemm) -> Any:
        """`Grid.sum_bytes` of launches; of a config or columns."""
        bm, bn = cls._values(c, "bm", "bn")
        planes = (c.reduction == "two_pass") * c.split_k * g.batch
        return 1.0 * FLOAT_BYTES * planes * (-(-g.m // bm) * bm) * (-(-g.n // bn) * bn)

    @classmethod
    def workspaces(cls, c: Any, g: Gemm) -> Any:
        """`Grid.workspace_bytes` of launches; of a config or columns."""
        return cls.packed_bytes(c, g) + cls.sum_bytes(c, g)

    @staticmethod
    def smem_bytes(c: Any, of: Gemm | Variant) -> Any:
        """Shared memory of a block; of a config or columns."""
        raise NotImplementedError

    @property
    def kernel(self) -> Self:
        """The config without the parameters of the launch: equal for configs that share a cubin."""
        return self._launched(raster="n", group=1, split_k=1 if self.reduction == "none" else 2)

    @property
    def in_any_splits(self) -> Self:
        """As `Config.in_any_splits`."""
        return self._launched(split_k=1 if self.reduction == "none" else 2)

    def _launched(self, **parameters: int | str) -> Self:
        return type(self)(**(vars(self) | parameters))

    @property
    def expected_registers(self) -> int:
        """Of a thread: blocks have an SM alone."""
        return REGISTERS // self.threads

    def blocks_per_sm(self, limits: DeviceLimits, of: Gemm | Variant, registers: int) -> int:
        """Blocks of one kernel that an SM holds at a time, by the compiler's registers per thread."""
        return limits.regs_per_sm // (self.threads * registers)

    def launch_spec(self, variant: Variant, limits: DeviceLimits) -> LaunchSpec:
        """What launches of it need to know."""
        return LaunchSpec(
            **launched(self), bm=self.bm, bk=self.bk, threads=self.threads,
            smem_bytes=int(self.smem_bytes(self, variant)), is_exact=False,
            overlaps=limits.has_dependent_launch, variant=variant, pack_depth=self.pack_depth,
        )  # fmt: skip


@frozen()
class TensorConfig(ConfigOnTensorCores):
    """One instance of that kernel and how it is launched. `PARAMETERS` says what each of these is."""

    main_file = "tensor_sgemm.cu"
    arch = ARCH
    summed = ("promote_k", "flush_k", "pack_a", "reduction", "split_k", "scheme")
    bm = BM
    bk = BK
    bn: int = 128
    stages: int = 3
    promote_k: int = 32
    flush_k: int = 512
    loaders: int = 2
    ahead: int = 2
    vec_a: int = 4
    vec_b: int = 4
    vec_c: int = 2
    pack_a: int = 0
    pack_b: int = 0
    group: int = 8
    raster: str = "n"
    reduction: str = "none"
    split_k: int = 1
    scheme: str = TF32X3

    @property
    def key(self) -> str:
        """Without the scheme of kernels that are older than others are."""
        return ",".join(f"{name}={value}" for name, value in vars(self).items() if value != TF32X3)

    @property
    def threads(self) -> int:
        return WARPGROUP * (self.loaders + NUM_MULTIPLIERS)

    @staticmethod
    def smem_bytes(c: Any, of: Gemm | Variant) -> Any:
        """Planes of B, tiles of A, flushed sums, barriers, alignment."""
        words = per_word(of.a_type)
        along_k = BM * (BK + (4 if words == 1 else 0))
        tile_a = np.where((c.pack_a > 0) | of.trans_a, BK * (BM + 8), along_k) // words
        flushed = BM * c.bn * (c.flush_k > 0)
        planes = c.bn * BK * np.where(np.equal(c.scheme, BF16X6), 3, 4) // 2  # words, of three parts or two
        floats = c.stages * (planes + tile_a) + flushed
        return FLOAT_BYTES * floats + BARRIER_BYTES * c.stages + PLANE_ALIGNMENT


PARAMETERS: tuple[Parameter, ...] = (
    Parameter("bn", (64, 128), "columns of C per block (BN)", "elements"),
    Parameter("stages", (2, 3, 4, 5, 6), "tiles of A and planes of B held in shared memory", "tiles"),
    Parameter("promote_k", (8, 16, 32, 64, 128), "k after which sums leave the tensor cores", "steps"),
    Parameter(
        "flush_k",
        (0, 256, 512, 1024),
        "k after which sums move on to sums in shared memory, 0 never",
        "steps",
    ),
    Parameter("loaders", (1, 2), "warpgroups that load", "warpgroups"),
    Parameter("ahead", (1, 2, 3, 4, 6), "tiles of B that a loading thread has on their way", "tiles"),
    Parameter("vec_a", (1, 4), "words of A, of 4 bytes, per copy from global memory", "words"),
    Parameter("vec_b", (1, 4), "elements of B per copy from global memory", "elements"),
    Parameter("vec_c", (1, 2), "elements of C per access to global memory", "elements"),
    Parameter("pack_a", (0, 1), "whether A is copied by k, then m, before the product"),
    Parameter("pack_b", (0, 1), "whether B is copied by k, then n, before the product"),
    Parameter("raster", ("m", "n"), "direction in which blocks walk over C"),
    Parameter("group", (1, 2, 4, 8, 16), "tiles walked across before the next step along", "tiles"),
    Parameter("reduction", ("none", "two_pass"), "how partial sums of split-K are added"),
    Parameter("split_k", (1, 2, 3, 4, 6, 8, 12, 16, 24, 32), "blocks that share out k", "blocks"),
    Parameter("scheme", SCHEMES, "which parts a float is split into, and how many of their products count"),
)
PARAMETER = TensorConfig.parameters = {p.name: p for p in PARAMETERS}


def _loading(c: Any) -> Any:
    return WARPGROUP * c.loaders


def _loading_registers(c: Any) -> Any:
    """Of a loading thread, as tensor_config.cuh shares them out."""
    given = REGISTERS // (_loading(c) + WARPGROUP * NUM_MULTIPLIERS) // 8 * 8
    multiplying = BM * c.bn // (WARPGROUP * NUM_MULTIPLIERS) * 2 + 64
    left = (given * (c.loaders + NUM_MULTIPLIERS) - multiplying * NUM_MULTIPLIERS) // c.loaders // 8 * 8
    return np.where(multiplying > given, left, given)


def is_widest(vec: Any, most: int, lead: int, packs: Any = 0) -> Any:
    """Whether vectors are the widest that rows so far apart allow, or those of a packed operand."""
    return vec == np.where((packs == 1) | (lead % most == 0), most, 1)


# ---- rules of several of these kernels


def results_rule(kernel: str, needs: str) -> Rule:
    """Of C. It reads one parameter, as rules answer for each config."""
    return Rule(
        f"{kernel}-results", "shape", (needs,),
        "C has 64 x 64 elements or more: of fewer no error can be compared with SGEMM's",
        lambda c, d, g: (getattr(c, needs) > 0) & (g.num_results >= LEAST_RESULTS),
    )  # fmt: skip


def type_rule(kernel: str, needs: str, why: str) -> Rule:
    """Of A, for kernels that read floats alone."""
    return Rule(
        f"{kernel}-type", "shape", (needs,), f"operands are floats: an A of two-byte elements {why}",
        lambda c, d, g: (getattr(c, needs) > 0) & (g.a_type == FP32),
    )  # fmt: skip


def worth_split(bn: int) -> Rule:
    """Of tiles so wide."""

    def tiles(g: Gemm) -> int:
        return -(-g.m // BM) * -(-g.n // bn) * g.batch

    return Rule(
        "worth-split", "worth", ("reduction", "split_k"),
        f"shares of k at least {LEAST_DEPTH} deep, where tiles alone leave SMs idle",
        lambda c, d, g: (c.split_k == 1)
        | ((g.k >= LEAST_DEPTH * c.split_k) & (tiles(g) * c.split_k <= 4 * d.num_sms)),
    )  # fmt: skip


SPLIT_REDUCTION = Rule(
    "split-reduction", "shape", ("reduction", "split_k"), "split-K needs a reduction, and nothing else does",
    lambda c, d, g: (c.reduction != "none") == (c.split_k > 1),
)  # fmt: skip
EXTENT_B = Rule(
    "extent-b", "shape", ("vec_b", "pack_b"), "rows of B (as stored) are whole vectors, or B is packed",
    lambda c, d, g: (g.ldb % c.vec_b == 0) | (c.pack_b == 1),
)  # fmt: skip
EXTENT_C = Rule(
    "extent-c", "shape", ("vec_c",), "rows of C are whole vectors", lambda c, d, g: g.ldc % c.vec_c == 0
)
WORTH_FLUSH = Rule(
    "worth-flush", "worth", ("flush_k",), "flush the sums of a k that is at least twice as deep",
    lambda c, d, g: (c.flush_k == 0) | (g.k >= 2 * c.flush_k),
)  # fmt: skip
WORTH_HEIGHT = Rule(
    "worth-height", "worth", ("bm",), "a block tile is not taller than twice C",
    lambda c, d, g: (c.bm == 64) | (c.bm < 2 * g.m),
)  # fmt: skip
WORTH_WIDTH = Rule(
    "worth-width", "worth", ("bn",), "a block tile is not wider than twice C",
    lambda c, d, g: (c.bn == 64) | (c.bn < 2 * g.n),
)  # fmt: skip
WORTH_VECTOR_B = Rule(
    "worth-vector-b", "worth", ("vec_b", "pack_b"), "the widest vectors that B allows",
    lambda c, d, g: is_widest(c.vec_b, 4, g.ldb, c.pack_b),
)  # fmt: skip
WORTH_VECTOR_C = Rule(
    "worth-vector-c", "worth", ("vec_c",), "the widest vectors that C allows",
    lambda c, d, g: is_widest(c.vec_c, 2, g.ldc),
)  # fmt: skip
WORTH_PACK = Rule(
    "worth-pack", "worth", ("pack_a", "pack_b"),
    "an operand is packed whose rows are no vectors, and of which every element is used 512 times",
    lambda c, d, g: ((c.pack_a == 0) | ((g.lda % 4 != 0) & (g.n >= PACK_USES)))
    & ((c.pack_b == 0) | ((g.ldb % 4 != 0) & (g.m >= PACK_USES))),
)  # fmt: skip
WORTH_GROUP = Rule(
    "worth-group", "worth", ("raster", "group"),
    "walk along m in plain order or not at all: groups go along n",
    lambda c, d, g: (c.raster == "n") | (c.group == 1),
)  # fmt: skip

RULES: tuple[Rule, ...] = (
    Rule("tensor-promote", "template", ("promote_k", "scheme"),
         "sums leave the tensor cores after 8 (TF32) or 16 of k, or whole tiles",
         lambda c, d, g: ((c.promote_k == 8) & (c.scheme == TF32X3)) | (c.promote_k == 16)
         | (c.promote_k % BK == 0)),
    Rule("tensor-flush", "template", ("promote_k", "flush_k"),
         "sums are flushed where they have just left the tensor cores",
         lambda c, d, g: (c.flush_k % BK == 0) & (c.flush_k % c.promote_k == 0)),
    Rule("tensor-device", "device", ("bn",),
         "tensor cores are asked in the way of compute capability 9.0, which no other GPU knows",
         lambda c, d, g: (c.bn > 0) & (d.compute_capability == (9, 0))),
    Rule("tensor-stages", "device", ("bn", "stages", "flush_k", "pack_a", "scheme"),
         "stages and flushed sums fit the shared memory of a block",
         lambda c, d, g: TensorConfig.smem_bytes(c, g) <= d.smem_per_block),
    Rule("tensor-tasks", "template", ("bn", "loaders"), "a tile is loaded by whole tasks of 4 x 4 elements",
         lambda c, d, g: 2 * c.bn % _loading(c) == 0),
    Rule("tensor-ahead", "template", ("bn", "loaders", "ahead"),
         "the tiles on their way, and 32 more, are the registers of a loading thread",
         lambda c, d, g: BK * c.ahead * c.bn // _loading(c) + 32 <= _loading_registers(c)),
    Rule("extent-a", "shape", ("vec_a", "pack_a"), "rows of A (as stored) are whole vectors, or A is packed",
         lambda c, d, g: (g.lda % (per_word(g.a_type) * c.vec_a) == 0) | (c.pack_a == 1)),
    EXTENT_B,
    Rule("tensor-type", "shape", ("pack_a",), "an A of two-byte elements is read as it is, not packed",
         lambda c, d, g: (c.pack_a == 0) | (g.a_type == FP32)),
    SPLIT_REDUCTION,
    Rule("pack-workspace", "shape", ("bn", "pack_a", "pack_b"), "packed operands fit 1 GiB",
         lambda c, d, g: TensorConfig.packed_bytes(c, g) <= WORKSPACE_LIMIT),
    EXTENT_C,
    results_rule("tensor", "bn"),
    Rule("worth-promote", "worth", ("promote_k", "scheme"),
         "sums leave after 16 of k or more: each time rounds, and after every 8 errors grow; those of TF32, "
         "whose products have more bits, after 64 at most",
         lambda c, d, g: (c.promote_k > 8) & ((c.promote_k <= 64) | (c.scheme == BF16X6))),
    WORTH_FLUSH,
    WORTH_WIDTH,
    Rule("worth-vector-a", "worth", ("vec_a", "pack_a"), "the widest vectors that A allows",
         lambda c, d, g: is_widest(c.vec_a, 4, g.lda // per_word(g.a_type), c.pack_a)),
    Rule("worth-narrow-a", "worth", ("bn", "loaders", "ahead", "vec_a", "pack_a"),
         "where A is copied float by float, its addresses leave registers for few tiles of B",
         lambda c, d, g: (c.vec_a > 1)
         | np.where(c.bn == 64, c.ahead <= 2, (c.loaders == 2) & (c.ahead == 1))),
    WORTH_VECTOR_B,
    WORTH_PACK,
    worth_split(64),
    WORTH_VECTOR_C,
    WORTH_GROUP,
)  # fmt: skip
TensorConfig.rules = RULES
