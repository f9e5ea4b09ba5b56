"""Parts of a picture: C and its blocks, counts with what they mean, what a kernel takes of an SM."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import numpy as np

from ..facts.device import DeviceLimits
from ..facts.gemm import FLOAT_BYTES, Gemm
from ..kernel import resources
from ..kernel.config import WARP, Config
from ..kernel.rungs import ReferenceKernel
from .block_walk import BlockWalk
from .launch_counts import AccessKey
from .reference_accesses import ReferenceTile
from .warp_access import SECTOR, AccessCounts

Drawing = dict[str, Any]

FMA_PIPES = 4  # of an SM: each takes the FMAs of a warp in a cycle
SECTOR_BYTES = FLOAT_BYTES * SECTOR
MOST_BLOCKS = 40_000  # that are drawn one by one


def grid(walk: BlockWalk, wave: int) -> Drawing:
    """C in tiles, and the blocks in the order of their numbers. `wave`: blocks that the GPU holds at a
    time."""
    g, spec = walk.shape.gemm, walk.spec
    num_blocks = len(walk.blocks)
    drawn = walk.blocks[:MOST_BLOCKS]
    return {
        "m": g.m,
        "n": g.n,
        "k": g.k,
        "bm": spec.bm,
        "bn": spec.bn,
        "tiles_m": walk.tiles_m,
        "tiles_n": walk.tiles_n,
        "products": g.batch,
        "splits": walk.grid.split_k,
        "num_blocks": num_blocks,
        "wave": wave,
        "num_waves": -(-num_blocks // wave),
        "last_wave": (num_blocks - 1) % wave + 1,
        "product": walk.tiles[drawn[:, 0], 0].tolist() if g.is_batched else [],
        "row": walk.tiles[drawn[:, 0], 1].tolist(),
        "column": walk.tiles[drawn[:, 0], 2].tolist(),
        "split": drawn[:, 1].tolist() if walk.grid.split_k > 1 else [],
        "steps": walk.first_share.steps,
        "order": _order_sentence(walk),
        "needed": _needed(walk, wave),
    }


def _needed(walk: BlockWalk, wave: int) -> list[tuple[int, int]]:
    """Rows and columns of tiles that the blocks of each wave need: what they share in L2 are the same
    ones."""
    found = []
    for first in range(0, min(len(walk.blocks), MOST_BLOCKS), wave):
        tiles = walk.tiles[walk.blocks[first : first + wave, 0]]
        found.append((len(np.unique(tiles[:, :2], axis=0)), len(np.unique(tiles[:, [0, 2]], axis=0))))
    return found


def _order_sentence(walk: BlockWalk) -> str:
    side, across = ("m", "n") if walk.spec.is_along_m else ("n", "m")
    width = min(walk.spec.group, walk.tiles_n if walk.spec.is_along_m else walk.tiles_m)
    group = f"in groups of {width} tiles across {across}" if width > 1 else "one tile wide"
    splits = {
        "none": "",
        "cluster": f" {walk.grid.split_k} blocks of a cluster share out the k of each tile.",
        "last_wave": f" The {walk.grid.split_tiles} tiles of the last wave are split in {walk.grid.split_k}.",
    }.get(walk.spec.reduction, f" All tiles, then all again: {walk.grid.split_k} splits of k.")
    few = f" The first {MOST_BLOCKS:,} are drawn." if len(walk.blocks) > MOST_BLOCKS else ""
    return f"Blocks walk along {side}, {group}.{splits}{few}"


def counts(found: dict[AccessKey, AccessCounts], gemm: Gemm, limits: DeviceLimits) -> Drawing:
    """The table of counts, and in sentences what they mean beside the arithmetic."""
    total = sum(found.values(), AccessCounts())
    asked = sum(n.num_bytes for key, n in found.items() if key.space == "global")
    rows = [{**key._asdict(), **asdict(each)} for key, each in found.items()]
    told = [_of_global(asked, SECTOR_BYTES * total.sectors, gemm), _of_shared(total, gemm, limits)]
    return {"rows": rows, "sentences": told}


def _of_global(asked: int, moved: int, gemm: Gemm) -> str:
    return (
        f"Lanes ask for {_bytes(asked)} of global memory, which moves as {_bytes(moved)} in sectors: "
        f"{_times(moved / gemm.num_bytes)} A, B and C ({_bytes(gemm.num_bytes)}). "
        "Caches take what repeats."
    )


def _of_shared(total: AccessCounts, gemm: Gemm, limits: DeviceLimits) -> str:
    if not total.wavefronts:
        return "Shared memory is not used."
    fma_cycles = gemm.flops / 2 / WARP / FMA_PIPES / limits.num_sms
    busy = total.wavefronts / limits.num_sms / fma_cycles
    verdict = "it bounds the kernel" if busy > 1 else "FMAs can hide it"
    conflicts = "no banks conflict"
    if total.conflicts:
        conflicts = f"{total.conflicts / total.wavefronts:.1%} of its wavefronts are bank conflicts"
    return (
        f"Shared memory takes {busy:.2f} cycles for each cycle of FMAs, one wavefront a cycle: {verdict}; "
        f"{conflicts}."
    )


def _times(ratio: float) -> str:
    return f"{ratio:,.0f} times" if ratio >= 100 else f"{ratio:.3g} times"


def _bytes(count: int) -> str:
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("KB", 1e3)):
        if count >= size:
            return f"{count / size:,.3g} {unit}" if count < 1000 * size else f"{count / size:,.0f} {unit}"
    return f"{count} bytes"


def taken_of_sm(config: Config, gemm: Gemm, limits: DeviceLimits) -> Drawing:
    """What a block takes of an SM, how many fit by each of its means, and which decides."""
    registers = int(resources.expected_registers(config, limits))
    fits = resources.blocks_by_limit(config, limits, gemm, registers)
    threads = int(resources.threads(config))
    takes = [
        _taken("registers per thread", registers, resources.MAX_REGISTERS, "as expected before compiling"),
        _taken("bytes of shared memory", int(resources.smem_bytes(config, gemm)), limits.smem_per_block),
        _taken("threads", threads, resources.MAX_THREADS),
    ]
    resident = resources.residency(config, limits, gemm)
    return _fitting({name: int(blocks) for name, blocks in fits.items()}, resident, threads, takes, limits)


def taken_by_reference(kernel: ReferenceKernel, limits: DeviceLimits) -> Drawing:
    """The same of a kernel of reference.cu, whose registers nobody estimates: they are few."""
    spec = kernel.spec
    fits = {
        "shared memory": limits.smem_per_sm // max(spec.smem_bytes + limits.smem_reserved, 1),
        "threads": limits.threads_per_sm // spec.threads,
        "block slots": limits.blocks_per_sm,
    }
    takes = [
        _taken("bytes of shared memory", spec.smem_bytes, limits.smem_per_block),
        _taken("threads", spec.threads, resources.MAX_THREADS),
    ]
    return _fitting(fits, min(fits.values()), spec.threads, takes, limits)


def _taken(what: str, amount: int, most: int, note: str = "") -> Drawing:
    return {"what": what, "amount": amount, "most": most, "note": note}


def _fitting(
    fits: dict[str, int], resident: int, threads: int, takes: list[Drawing], limits: DeviceLimits
) -> Drawing:
    least = min(fits.values())
    decides = [name for name, blocks in fits.items() if blocks == least]
    warps, most = resident * threads // WARP, limits.threads_per_sm // WARP
    verb = "decide" if len(decides) > 1 or decides[0].endswith("s") else "decides"
    return {
        "say": f"{resident} {'block' if resident == 1 else 'blocks'} on an SM, {warps} of its {most} warps: "
        f"{' and '.join(decides)} {verb}.",
        "takes": takes,
        "fits": [{"by": name, "blocks": blocks} for name, blocks in fits.items()],
        "resident": resident,
        "decides": decides,
    }


def reference_tile(tile: ReferenceTile) -> Drawing:
    """A block's tile, as that of an instance: every warp has a row of it, or a column."""
    side, (down, across) = tile.kernel.spec.bm, (WARP, 1) if tile.is_down else (1, WARP)
    first_m, first_n = tile.row[:, 0], tile.column[:, 0]
    return {
        "bm": side,
        "bn": side,
        "bk": tile.depth,
        "wm": down,
        "wn": across,
        "tm": 1,
        "tn": 1,
        "threads": tile.kernel.spec.threads,
        "slices": 1,
        "lanes": [down, across, 1],
        "warps": [{"m": int(m), "n": int(n), "slice": 0} for m, n in zip(first_m, first_n, strict=True)],
        "rows": (tile.row[:1] - first_m[0]).T.tolist(),
        "columns": (tile.column[:1] - first_n[0]).T.tolist(),
    }
