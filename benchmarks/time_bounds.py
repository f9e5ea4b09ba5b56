"""What the compiler's figures of a kernel say of its time on a GPU: a bound, and how far it is missed.

    compute   a scheduler issues one instruction per cycle, and its FMA pipe has a quarter of an SM's cores;
              the SM that has most blocks to work through decides
    shared    shared memory serves 128 bytes per cycle, and 16 bytes for each lane in two at the least,
              however many lanes read the same (Nsight Compute, H200: decision 0014)
    memory    each byte that must come from DRAM or go there does so at full bandwidth
    packing   is done before, at the bandwidth that its operand is read with

Nothing else is in it: no latency, no launch, no conflict of registers or of banks, no L2, no power. What
those take is learnt where times were measured (`Trust`): a share of the bound that is reached, a fixed time.
The clock is the one that the FMA rate of the device's limits implies.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from sass import Code, Counts

from autotune.facts.device import DeviceLimits
from autotune.facts.gemm import FLOAT_BYTES, Gemm
from autotune.files.errors import UsageError
from autotune.kernel import launch, resources, template
from autotune.kernel.compiler import Cubin
from autotune.kernel.config import WARP, Config

# FP32 cores of an SM (CUDA C++ Programming Guide, arithmetic instructions; cuda.core does not tell)
_FP32_CORES = {(7, 5): 64, (8, 0): 64, (8, 6): 128, (8, 9): 128, (9, 0): 128, (12, 0): 128}
SHARED_BYTES_PER_CYCLE = 128
_FIXED_US = np.linspace(0.0, 6.0, 241)
_REACHED = np.linspace(0.2, 1.0, 321)


def fp32_cores(limits: DeviceLimits) -> int:
    try:
        return _FP32_CORES[limits.compute_capability]
    except KeyError:
        raise UsageError(f"how many FP32 cores an SM of {limits.name} has is not known here") from None


def clock_ghz(limits: DeviceLimits) -> float:
    return limits.fma_tflops * 1e3 / (2 * fp32_cores(limits) * limits.num_sms)


@dataclass(frozen=True)
class Figures:
    """A compiled kernel on a GPU. `tile` counts what a warp issues per tile of k, `loop` the innermost main
    loop, which runs `runs` times for that."""

    config: Config
    registers: int
    spill_bytes: int
    smem_bytes: int
    threads: int
    blocks_per_sm: int
    loop: Counts
    runs: int
    tile: Counts

    @property
    def warps_per_block(self) -> int:
        return self.threads // WARP

    @property
    def warps_per_sm(self) -> int:
        return self.blocks_per_sm * self.warps_per_block

    @property
    def ffma_share(self) -> float:
        """Of the instructions that are issued per tile."""
        return self.tile.kinds["ffma"] / self.tile.instructions

    @property
    def smem_bytes_per_fma(self) -> float:
        """That lanes are given from shared memory: neighbours that read the same count each."""
        return FLOAT_BYTES * (1 / self.config.tm + 1 / self.config.tn)

    @property
    def shared_cycles(self) -> int:
        """Of an SM's shared memory, for a block's tile of k: to write it, and to read its fragments."""
        c = self.config
        chunks = ((c.tm, resources.chunk_m(c)), (c.tn, resources.chunk_n(c)))
        loads = sum(extent // chunk * max(1, chunk // 2) for extent, chunk in chunks)
        written = FLOAT_BYTES * c.bk * (c.bm + c.bn) // SHARED_BYTES_PER_CYCLE
        return int(written + self.warps_per_block * c.bk // c.slice_k * loads)

    @property
    def l2_bytes_per_fma(self) -> float:
        """That blocks copy from L2, each its own tiles."""
        return FLOAT_BYTES * (1 / self.config.bm + 1 / self.config.bn)

    def tile_cycles(self, limits: DeviceLimits) -> int:
        """Of a scheduler, for one warp and one tile of k: to issue it, or of the FMA pipe if that is more."""
        per_fma = WARP * resources.SM_PARTITIONS // fp32_cores(limits)
        return max(self.tile.instructions, per_fma * self.tile.kinds["fma_pipe"])

    def pipe_share(self, limits: DeviceLimits) -> float:
        """Of the FMA rate, that the main loop can reach at most."""
        per_fma = WARP * resources.SM_PARTITIONS // fp32_cores(limits)
        return per_fma * self.tile.kinds["ffma"] / self.tile_cycles(limits)


def figures(config: Config, gemm: Gemm, limits: DeviceLimits, cubin: Cubin) -> Figures:
    """Of one compiled config. Raises UsageError where the main loop is not as the template writes it."""
    code = Code(cubin.code, template.ENTRY, limits.arch)
    inner = code.main_loop()
    loop = code.count(inner)
    fmas = config.tm * config.tn * config.bk // config.slice_k
    if loop.kinds["ffma2"]:
        raise UsageError(f"{config}: how long packed FMAs take is not known; name another order")
    runs, rest = divmod(fmas, loop.kinds["ffma"])
    if rest or not runs:
        raise UsageError(f"{config}: {loop.kinds['ffma']} FFMA in the main loop for {fmas} per tile")
    tile = loop
    if runs > 1:  # what the loop over tiles holds besides is issued once for all runs
        tile = code.count(code.around(inner)) + loop * (runs - 1)
    return Figures(
        config=config,
        registers=cubin.registers,
        spill_bytes=cubin.spill_bytes,
        smem_bytes=int(resources.smem_bytes(config, gemm)) + cubin.static_smem_bytes,
        threads=int(resources.threads(config)),
        blocks_per_sm=int(resources.blocks_per_sm(config, limits, gemm, cubin.registers)),
        loop=loop,
        runs=runs,
        tile=tile,
    )


@dataclass(frozen=True)
class Bound:
    """Times in us; `wave_loss` is the share of the SMs' time that stays idle as tiles do not come out even,
    `dram_bytes_per_fma` what the product (packing not counted) must move."""

    compute_us: float
    shared_us: float
    memory_us: float
    packing_us: float
    waves: float
    wave_loss: float
    dram_bytes_per_fma: float

    @property
    def time_us(self) -> float:
        return self.packing_us + max(self.compute_us, self.shared_us, self.memory_us)

    @property
    def binds(self) -> str:
        times = {"compute": self.compute_us, "shared": self.shared_us, "memory": self.memory_us}
        return max(times, key=lambda name: times[name])


def bound(found: Figures, gemm: Gemm, limits: DeviceLimits) -> Bound:
    """Of one kernel on one problem."""
    spec = resources.launch_spec(found.config, gemm, limits)
    grid = launch.plan(spec, gemm.m, gemm.n, gemm.k, gemm.strides)
    depth = -(-gemm.k // spec.bk)
    part = -(-depth // grid.split_k)  # tiles of k of a block of a split tile
    whole, split = grid.tiles - grid.split_tiles, grid.split_tiles * grid.split_k
    steps = [(-(-whole // limits.num_sms), depth), (-(-split // limits.num_sms), part)]  # of the busiest SM
    warps = found.warps_per_block
    cycles = sum(-(-blocks * warps // resources.SM_PARTITIONS) * d for blocks, d in steps)
    cycles *= found.tile_cycles(limits)
    shared_cycles = sum(blocks * d for blocks, d in steps) * found.shared_cycles
    total = (whole * depth + split * part) * warps / resources.SM_PARTITIONS / limits.num_sms
    moved, packing = _dram_bytes(grid, gemm, limits)
    return Bound(
        compute_us=cycles / clock_ghz(limits) / 1e3,
        shared_us=shared_cycles / clock_ghz(limits) / 1e3,
        memory_us=moved / limits.bandwidth_gbs / 1e3,
        packing_us=packing / limits.bandwidth_gbs / 1e3,
        waves=(whole + split) / (found.blocks_per_sm * limits.num_sms),
        wave_loss=1 - total * found.tile_cycles(limits) / cycles,
        dram_bytes_per_fma=2 * moved / gemm.flops,
    )


def _dram_bytes(grid: launch.Grid, gemm: Gemm, limits: DeviceLimits) -> tuple[int, int]:
    """What the product must move, and what packing before it: each matrix once. What the one leaves for the
    other costs nothing where it fits L2."""
    operands = {True: gemm.operand_bytes[0], False: gemm.operand_bytes[1]}
    moved, packing = gemm.num_bytes, 0
    for pack in grid.packs:
        fits = pack.num_bytes <= limits.l2_bytes
        packing += operands[pack.is_a] + (0 if fits else pack.num_bytes)
        moved += (0 if fits else pack.num_bytes) - operands[pack.is_a]
    sums = 0 if grid.sum_bytes <= limits.l2_bytes else 2 * grid.sum_bytes
    return moved + sums, packing


@dataclass(frozen=True)
class Trust:
    """What measured times taught: time = fixed_us + bound / reached, and how far that is off.

    `ratio`: the geometric mean of measured over bound, `worst` the largest. `spread`: the factor that
    measured and fitted times differ by, one standard deviation of their logarithm; `most` the largest.
    """

    num_shapes: int
    ratio: float
    worst: float
    fixed_us: float
    reached: float
    spread: float
    most: float

    def expect_us(self, bound_us: float) -> float:
        return self.fixed_us + bound_us / self.reached


def learn(bounds_us: Sequence[float], times_us: Sequence[float]) -> Trust:
    """The fixed time and the share of the bound that fit best, by squares of logarithms."""
    low, seen = np.array(bounds_us), np.array(times_us)
    fitted = _FIXED_US[:, None, None] + low / _REACHED[:, None]  # (fixed, reached, shapes)
    off = np.log(seen / fitted)
    at, reached = np.unravel_index(np.argmin((off**2).sum(axis=2)), off.shape[:2])
    best = off[at, reached]
    return Trust(
        num_shapes=len(low),
        ratio=math.exp(np.log(seen / low).mean()),
        worst=float((seen / low).max()),
        fixed_us=float(_FIXED_US[at]),
        reached=float(_REACHED[reached]),
        spread=math.exp(math.sqrt((best**2).mean())),
        most=math.exp(float(np.abs(best).max())),
    )
