"""How a compiled kernel is launched, and which calls it may serve.

Shared by the tuner and by exported tables (this file is copied into them): standard library only.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from typing import Any, NamedTuple

from ..facts.frozen import frozen
from ..facts.gemm import FLOAT_BYTES, FP32, SINGLE, Batch, per_word
from ..files.errors import UsageError
from ..files.words import texts

REDUCE_BITS = 8
REDUCE_THREADS = 1 << REDUCE_BITS  # threads per block of the kernel `sgemm_reduce`
WARP_BITS = 5
MANY_THREADS = 1 << 18  # of `sgemm_reduce`: more gain nothing
GROUP_SPLITS = 8  # the least number of splits for a group of its threads: it loads eight at a time
PACK_THREADS = 256  # threads per block of the kernel `sgemm_pack`, which packs PACK_TILE^2 elements
PACK_TILE = 64
WORKSPACE_LIMIT = 1 << 30  # bytes that the packed operands of a call may take, and its partial sums too
PACK_ALIGNMENT = 256  # bytes
PACK_SMEM_BYTES = FLOAT_BYTES * PACK_TILE * (PACK_TILE + 1)
COUNTER_BYTES = 4
WAIT_ELEMENTS = 2048  # of C, that an SM could do while a step waits (docs/decisions/0104)
FILL_STEPS = 2  # that it takes to fill a pipeline
MAX_GRID_X, MAX_GRID_Y = 2**31 - 1, 2**16 - 1
NARROW_LD = 2**29  # leading dimensions from here on need a kernel compiled with `is_wide`


SCHEDULE_WORDS = 14  # of 32 bits: four divisors of three each, the number of full groups, is_along_m
EPILOGUE_WORDS = 5  # of 64 bits: bias, kept, ld_kept, stride_bias, stride_kept
BIASES = ("none", "rows", "columns")
ACTIVATIONS = ("none", "relu", "gelu", "gelu_tanh")
PLANES = ("two_pass", "chunks")  # reductions by a second kernel
LONG_ACTIVATIONS = ("gelu", "gelu_tanh")  # of so many instructions that their kernels store by rows


@frozen()
class Epilogue:
    """What a kernel does to alpha * AB + beta * C before it is stored in C (kernels/epilogue.cuh). `bias` is
    added: a value for each row of C, or for each column. `keeps`: the result so far is stored in a second
    matrix, whose address and leading dimension allow the same vectors as those of C. Then follows the
    activation."""

    bias: str = "none"
    activation: str = "none"
    keeps: bool = False

    def __str__(self) -> str:
        """`bias_columns-gelu-kept`; "" for none."""
        parts = [f"bias_{self.bias}"] if self.bias != "none" else []
        parts += [self.activation] if self.activation != "none" else []
        return "-".join([*parts, *(["kept"] if self.keeps else [])])


PLAIN = Epilogue()


@frozen()
class Variant:
    """What a cubin is compiled for besides its config: the layouts, 64-bit leading dimensions, batches (a
    kernel for single products does not read their strides), the epilogue, and the type of A's elements."""

    trans_a: bool = False
    trans_b: bool = False
    is_wide: bool = False
    is_batched: bool = False
    epilogue: Epilogue = PLAIN
    a_type: str = FP32

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Variant:
        epilogue = data.get("epilogue")
        return cls(**{**data, "epilogue": Epilogue(**epilogue) if epilogue else PLAIN})


@frozen()
class LaunchSpec:
    """What a launch needs to know of a kernel: plain integers, as stored in a table."""

    bm: int
    bn: int
    bk: int
    threads: int
    smem_bytes: int
    vec_a: int
    vec_b: int
    vec_c: int
    is_exact: bool
    reduction: str  # none, two_pass, last_block, last_wave, cluster, chunks
    split_k: int
    variant: Variant
    wave: int = 0  # blocks that the GPU holds at once: only for last_wave and chunks
    packs_a: bool = False
    packs_b: bool = False
    # Every kernel of the code waits for the previous one on the stream before it reads or writes: so it may
    # be launched early, while that one still runs (docs/decisions/0018). Compute capability 9.0 and later.
    overlaps: bool = False
    # Blocks walk along one side of C, `group` tiles across before the next step along (tile_scheduler.cuh).
    group: int = 1
    is_along_m: bool = False
    max_workspace: int | None = None  # bytes that its table allows a launch; None: as any
    max_k: int | None = None  # depth up to which it sums in the order of its table; None: as any
    chunk: int = 0  # depth of a split, where not their number is given but this: only for chunks
    pack_depth: int = 0  # of tiles to which operands are packed, scaled; 0: floats by k (`packed_floats`)
    num_sms: int = 0  # of the GPU, for chunks; with no wave each block has one, as in tables before schema 16

    @property
    def num_launches(self) -> int:
        """Of kernels, for one product."""
        return 1 + self.has_planes + self.packs_a + self.packs_b

    @property
    def has_planes(self) -> bool:
        """Whether `sgemm_reduce` adds the sums of splits."""
        return self.reduction in PLANES

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> LaunchSpec:
        return cls(**{**data, "variant": Variant.from_dict(data["variant"])})


def packed_floats(depth: int, k: int, padded: Any) -> Any:
    """Of a packed operand of one product: its elements by k, in rows of `padded`; or, with a depth, tiles
    that are so deep, and for each row of each what it was divided by (kernels/scaled_config.cuh)."""
    return -(-k // depth) * (depth + 1) * padded if depth else k * padded


class Pack(NamedTuple):
    """A launch of `sgemm_pack`: one operand of all products, copied into the workspace by k, then m (or n),
    or as `packed_floats` says of a depth.

    Arguments, in order: extent, k (int32), operand, its leading dimension (int64), is_k_major (int32), where
    to (address), padded, blocks_per_product (int32), stride (int64). `extent` is m for A and n for B; a row
    of the packed operand has `padded` elements, zeros behind the extent; it lies `offset` bytes into the
    workspace. The operands of a batch lie `stride` elements apart, their copies `packed_stride`; an operand
    that all products share is copied once."""

    is_a: bool
    extent: int
    padded: int
    is_k_major: bool  # the operand is contiguous along k
    blocks: int
    offset: int
    num_bytes: int
    products: int = 1
    stride: int = 0
    packed_stride: int = 0

    @property
    def blocks_per_product(self) -> int:
        return self.blocks // self.products


class Grid(NamedTuple):
    """A launch of `sgemm`; before it, of `sgemm_pack` for each of `packs`; behind it, for PLANES, of
    `sgemm_reduce`.

    `size` is the grid in blocks: tiles by splits; for last_wave one row, in which tiles that fill whole waves
    have a block each, and each of the `split_tiles` behind them `split_k` blocks; for chunks also one row, of
    blocks that share out all of them (`num_shares`). Tiles are those of all
    products of a batch, one product behind the other.

    Arguments of `sgemm`, in order: m, n, k (int32), alpha (float), A, lda (int64), B, ldb (int64), beta
    (float), C, ldc (int64), workspace, split_k (int32), the schedule (a struct of the SCHEDULE_WORDS words of
    `schedule`), the batch (a struct of the three `strides`, int64, and the number of products, int32), the
    epilogue (a struct of EPILOGUE_WORDS words of 64 bits: the addresses of bias and kept, then ld_kept,
    stride_bias and stride_kept in elements; all 0 where a kernel has none). Arguments of `sgemm_reduce`: m, n
    (int32), alpha, beta (float), C, ldc (int64), workspace, split_k, padded_m, padded_n, reduce_group_bits,
    reduce_blocks_per_product (int32), the stride of C (int64), the epilogue; it takes `reduce_smem_bytes` of
    shared memory. A kernel may declare fewer arguments than these: the driver reads as many as it declares
    (CUDA Driver API, `cuLaunchKernel`: numbers, offsets and sizes of parameters come from the kernel's
    image). Kernels of tables before schema 5 end with `split_k`, `reduce_group_bits` and `padded`. A packed
    operand is given to `sgemm` by its place in the workspace, with `padded` as its leading dimension.
    `workspace` is the address behind all packed operands: from there on lie `split_k` planes of partial sums,
    each of all split tiles (for PLANES `split_k` planes of padded_m x padded_n for one product after the
    other; then a tile for each block, if these share out chunks), and behind them `counter_bytes` of
    counters: zero before the first launch, left zero by every launch. Clusters leave nothing there: `split_k`
    blocks along y are one, as they are compiled, and read each other's sums."""

    size: tuple[int, int]
    tiles: int
    split_tiles: int
    split_k: int
    padded_m: int
    padded_n: int
    sum_bytes: int
    counter_bytes: int
    reduce_blocks: int
    reduce_group_bits: int = REDUCE_BITS  # of a block, groups of 2^bits threads share out the splits
    reduce_smem_bytes: int = 0
    packs: tuple[Pack, ...] = ()
    products: int = 1
    strides: tuple[int, int, int] = (0, 0, 0)  # from product to product, of A, B and C as `sgemm` gets them

    @property
    def reduce_blocks_per_product(self) -> int:
        return self.reduce_blocks // self.products

    @property
    def most_blocks(self) -> int:
        """Along x, of the largest of its launches."""
        return max(self.size[0], self.reduce_blocks, *(pack.blocks for pack in self.packs))

    @property
    def pack_bytes(self) -> int:
        return sum(pack.num_bytes for pack in self.packs)

    @property
    def scratch_bytes(self) -> int:
        """Bytes before the counters."""
        return self.pack_bytes + self.sum_bytes

    @property
    def workspace_bytes(self) -> int:
        return self.scratch_bytes + self.counter_bytes


NO_LAUNCH = Grid((0, 1), 0, 0, 1, 0, 0, 0, 0, 0)


def num_splits(chunk: Any, split_k: Any, k: Any) -> Any:
    """The parts of k in a launch: as many as are asked for, or chunks, 0 for none; numbers or arrays."""
    return split_k + (chunk > 0) * ((k - 1 + (k == 0)) // (chunk + (chunk == 0)))


def num_shares(
    tiles: Any, chunks: Any, k_tiles: Any, in_chunk: Any, tile: Any, num_sms: Any, wave: Any
) -> Any:
    """How many blocks share out the chunks of all tiles (kernels/chunks.cuh); 0: each has one chunk of one.
    Of `k_tiles` steps of a tile a chunk has `in_chunk`; `tile` is its elements. Numbers or arrays; whole,
    also where they are floats.

    There are as many as are resident, in whole waves of one block per SM, and none has less than a chunk.
    They share where that is sooner done: a step of a block takes as long as the elements of all blocks on its
    SM, and as WAIT_ELEMENTS more; and each fills its pipeline once more (docs/decisions/0104)."""
    one_each, is_given = tiles * chunks, 1 * (wave > 0) * (chunks > 1)
    sms, steps = num_sms + (num_sms == 0), tiles * k_tiles
    whole = steps // in_chunk
    most = whole - (whole - wave) * (whole > wave)
    shares = most - most % sms * (most > sms)
    in_turn = in_chunk * shares * (-(-one_each // sms) * tile + WAIT_ELEMENTS)
    shared = (steps + FILL_STEPS * shares) * (-(-shares // sms) * tile + WAIT_ELEMENTS)
    return shares * (1 - (one_each <= wave) * (in_turn <= shared)) * is_given


def has_work(spec: LaunchSpec, k: int) -> bool:
    """Whether every split of k has some work."""
    return spec.split_k == 1 or spec.split_k * spec.bk <= k


def divisor(value: int) -> tuple[int, int, int]:
    """`Divisor` of kernels/tile_scheduler.cuh: n // value == n * multiplier >> shift for 0 <= n < 2^31.
    multiplier * value exceeds 2^shift by less than value, and so by less than 2^(shift - 31): for such n the
    quotient is too large by less than 1 / value (Granlund and Montgomery, 1994)."""
    shift = 31 + (value - 1).bit_length()
    return value, -(-(1 << shift) // value), shift


def schedule(spec: LaunchSpec, grid: Grid) -> tuple[int, ...]:
    """`Schedule` of kernels/tile_scheduler.cuh: how the blocks of a launch walk over the tiles of C."""
    tiles_m, tiles_n = grid.padded_m // spec.bm, grid.padded_n // spec.bn
    along, across = (tiles_m, tiles_n) if spec.is_along_m else (tiles_n, tiles_m)
    width = min(spec.group, across)
    num_full, last_width = divmod(across, width)
    divisors = (tiles_m * tiles_n, width * along, width, max(last_width, 1))
    return (*(word for value in divisors for word in divisor(value)), num_full, int(spec.is_along_m))


def reduce_groups(elements: int, splits: Any) -> Any:
    """How many groups of threads in a block of `sgemm_reduce` share out the splits: a power of two, or an
    array of them if `splits` is one. A block is one group, or more of them as long as all threads are not
    many and each group has enough splits (docs/decisions/0028)."""
    num_levels = sum(
        splits >= (2 << bit) * GROUP_SPLITS
        for bit in range(REDUCE_BITS - WARP_BITS)
        if elements << bit < MANY_THREADS
    )
    return 1 << num_levels


def plan(spec: LaunchSpec, m: int, n: int, k: int, batch: Batch = SINGLE) -> Grid:
    """The launch of products of m x n results (both at least 1) of depth k."""
    tiles_m, tiles_n = -(-m // spec.bm), -(-n // spec.bn)
    tiles = tiles_m * tiles_n * batch.products
    split_tiles = {"none": 0, "last_wave": tiles % max(spec.wave, 1)}.get(spec.reduction, tiles)
    is_cluster = spec.reduction == "cluster"
    splits = num_splits(spec.chunk, spec.split_k, k)
    num_groups = reduce_groups(m * n * batch.products, splits) if spec.has_planes else 1
    group_bits = REDUCE_BITS - (num_groups.bit_length() - 1)
    shares = _shares(spec, tiles, splits, k)
    sizes = {"last_wave": (tiles + split_tiles * (spec.split_k - 1), 1)}
    packs = _packs(spec, (m, tiles_m * spec.bm), (n, tiles_n * spec.bn), k, batch)
    packed = {pack.is_a: pack.packed_stride for pack in packs}
    return Grid(
        size=(shares, 1) if shares else sizes.get(spec.reduction, (tiles, splits)),
        tiles=tiles,
        split_tiles=split_tiles,
        split_k=splits,
        padded_m=tiles_m * spec.bm,
        padded_n=tiles_n * spec.bn,
        sum_bytes=0 if is_cluster else FLOAT_BYTES * (splits * split_tiles + shares) * spec.bm * spec.bn,
        counter_bytes=COUNTER_BYTES * (shares if is_cluster or spec.has_planes else split_tiles),
        reduce_blocks=-(-m * n // (1 << group_bits)) * batch.products if spec.has_planes else 0,
        reduce_group_bits=group_bits,
        reduce_smem_bytes=FLOAT_BYTES * REDUCE_THREADS if group_bits < REDUCE_BITS else 0,
        packs=packs,
        products=batch.products,
        strides=(packed.get(True, batch.stride_a), packed.get(False, batch.stride_b), batch.stride_c),
    )


def _shares(spec: LaunchSpec, tiles: int, chunks: int, k: int) -> int:
    if not spec.chunk:
        return 0
    return int(
        num_shares(
            tiles, chunks, -(-k // spec.bk), spec.chunk // spec.bk, spec.bm * spec.bn, spec.num_sms, spec.wave
        )
    )


def _packs(
    spec: LaunchSpec, extents_a: tuple[int, int], extents_b: tuple[int, int], k: int, batch: Batch
) -> tuple[Pack, ...]:
    """The operands that are packed; for each its extent in the matrix, and in whole tiles."""
    if not (spec.packs_a or spec.packs_b) or not k:
        return ()
    packs: list[Pack] = []
    for is_a, is_packed, is_k_major, (extent, padded), stride in (
        (True, spec.packs_a, not spec.variant.trans_a, extents_a, batch.stride_a),
        (False, spec.packs_b, spec.variant.trans_b, extents_b, batch.stride_b),
    ):
        if is_packed:
            products = batch.products if stride else 1  # what all share is packed once
            floats = packed_floats(spec.pack_depth, k, padded)
            num_bytes = -(-FLOAT_BYTES * floats * products // PACK_ALIGNMENT) * PACK_ALIGNMENT
            blocks = -(-padded // PACK_TILE) * -(-k // PACK_TILE) * products
            offset, packed_stride = sum(p.num_bytes for p in packs), floats if stride else 0
            places = (blocks, offset, num_bytes, products, stride, packed_stride)
            packs.append(Pack(is_a, extent, padded, is_k_major, *places))
    return tuple(packs)


def rejection(
    spec: LaunchSpec,
    m: int,
    n: int,
    k: int,
    lds: tuple[int, int, int],
    addresses: tuple[int, int, int] = (0, 0, 0),
    batch: Batch = SINGLE,
) -> str | None:
    """Why this kernel must not serve a call with these leading dimensions and base addresses of
    A, B, C (elements, bytes), or None if it may. The layouts are taken to match already."""
    if batch.products > 1 and not spec.variant.is_batched:
        return "a batch needs a kernel that was compiled for batches"
    if spec.is_exact and (m % spec.bm or n % spec.bn):
        return f"exact edges need multiples of {spec.bm}x{spec.bn}"
    is_packed = (spec.packs_a, spec.packs_b, False)
    widest = max(ld for ld, packed in zip(lds, is_packed, strict=True) if not packed)
    if not spec.variant.is_wide and widest >= NARROW_LD:
        return f"a leading dimension of {widest} needs a wide kernel"
    if spec.max_k is not None and k > spec.max_k:
        return f"from k = {spec.max_k + 1} on it sums in another order than its table"
    grid = plan(spec, m, n, k, batch)
    if spec.max_workspace is not None and grid.workspace_bytes > spec.max_workspace:
        mib = 1 << 20
        needed, allowed = grid.workspace_bytes / mib, spec.max_workspace / mib
        return f"it needs {needed:.3g} MiB of workspace, and the table allows {allowed:g} MiB"
    if fault := too_large(grid):
        return fault
    contiguous = (m if spec.variant.trans_a else k, k if spec.variant.trans_b else n, n)
    vectors = (spec.vec_a, spec.vec_b, spec.vec_c)
    for name, floats, extent, ld, stride, address, packed in zip(
        "ABC", vectors, contiguous, lds, batch[1:], addresses, is_packed, strict=True
    ):
        if packed:
            continue
        vec = floats * per_word(spec.variant.a_type) if name == "A" else floats
        if extent % vec or ld % vec or stride % vec or address % (floats * FLOAT_BYTES):
            return f"{name} is not made of aligned vectors of {vec}"
    return None


def too_large(grid: Grid) -> str:
    """Why no GPU is asked to make a launch, or ""."""
    if grid.most_blocks > MAX_GRID_X:
        return "more tiles than a grid holds"
    if grid.size[1] > MAX_GRID_Y:
        return "more splits than a grid holds"
    for what, num_bytes in (("packed operands", grid.pack_bytes), ("partial sums", grid.sum_bytes)):
        if num_bytes > WORKSPACE_LIMIT:
            return f"{what} would take more than {WORKSPACE_LIMIT >> 30} GiB"
    return ""


def overlap_attribute(driver: Any) -> Any:
    """The attribute of a launch that may overlap the kernel before it; `driver`: `cuda.bindings.driver`."""
    attribute = driver.CUlaunchAttribute()
    attribute.id = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
    attribute.value.programmaticStreamSerializationAllowed = 1
    return attribute


def launch_config(
    driver: Any, grid: tuple[int, int], threads: int, smem_bytes: int, stream: Any, attributes: list[Any]
) -> Any:
    """What `cuLaunchKernelEx` wants to know of a launch, arguments apart."""
    config = driver.CUlaunchConfig()
    config.gridDimX, config.gridDimY, config.gridDimZ = (*grid, 1)
    config.blockDimX, config.blockDimY, config.blockDimZ = threads, 1, 1
    config.sharedMemBytes, config.hStream = smem_bytes, stream
    if attributes:
        config.attrs, config.numAttrs = attributes, len(attributes)
    return config


BIAS = Epilogue(bias="columns")
ACTIVATED = ACTIVATIONS[1:]  # as a call asks for them
EPILOGUES = {
    "bias": BIAS,
    **{name.replace("_", "-"): Epilogue(activation=name) for name in ACTIVATED},
    **{f"bias-{name.replace('_', '-')}": Epilogue("columns", name) for name in ACTIVATED},
}
_NAMES = {epilogue: name for name, epilogue in EPILOGUES.items()}


def name_of(epilogue: Epilogue) -> str:
    """The name that `autotune export-table --epilogue` takes."""
    return _NAMES[epilogue]


def named(names: str | Iterable[str]) -> tuple[Epilogue, ...]:
    """Epilogues by their names, each once. Raises UsageError for a name of none."""
    requested = tuple(dict.fromkeys(texts("epilogues", names)))
    for name in requested:
        if name not in EPILOGUES:
            raise UsageError(f"no epilogue is named {name!r:.60}; pass some of {', '.join(EPILOGUES)}")
    return tuple(EPILOGUES[name] for name in requested)
