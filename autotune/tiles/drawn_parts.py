"""Parts of a picture: C and its blocks, counts with what they mean, what a kernel takes of an SM."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from ..facts.device import DeviceLimits
from ..facts.gemm import FLOAT_BYTES, Gemm
from ..kernel import resources
from ..kernel.config import WARP, Config, lanes_k
from ..kernel.rungs import ReferenceKernel
from .executed import OPERANDS, HostLaunch
from .launch_counts import AccessKey
from .warp_access import SECTOR, AccessCounts

Drawing = dict[str, Any]

FMA_PIPES = 4  # of an SM: each takes the FMAs of a warp in a cycle
SECTOR_BYTES = FLOAT_BYTES * SECTOR
MOST_BLOCKS = 40_000  # that are drawn one by one


def grid(product: HostLaunch, wave: int) -> Drawing:
    """C in tiles, and the blocks by their numbers. `wave`: blocks that the GPU holds at a time."""
    g, spec, num_blocks = product.gemm, product.spec, len(product.blocks)
    drawn = product.blocks[:MOST_BLOCKS]
    return {
        "m": g.m,
        "n": g.n,
        "k": g.k,
        "bm": spec.bm,
        "bn": spec.bn,
        "tiles_m": product.tiles_m,
        "tiles_n": product.tiles_n,
        "products": g.batch,
        "splits": product.grid.split_k,
        "num_blocks": num_blocks,
        "wave": wave,
        "num_waves": -(-num_blocks // wave),
        "last_wave": (num_blocks - 1) % wave + 1,
        "product": drawn["product"].tolist() if g.is_batched else [],
        "row": drawn["row"].tolist(),
        "column": drawn["column"].tolist(),
        "split": drawn["split"].tolist() if product.grid.split_k > 1 else [],
        "steps": int(product.steps()[0][0]),
        "order": _order_sentence(product),
        "needed": [_needed(product.blocks[first : first + wave]) for first in range(0, len(drawn), wave)],
    }


def _needed(blocks: npt.NDArray[Any]) -> tuple[int, int]:
    """Rows and columns of tiles that the blocks of a wave need: what they share in L2 are the same ones."""
    return len(np.unique(blocks[["product", "row"]])), len(np.unique(blocks[["product", "column"]]))


def _order_sentence(product: HostLaunch) -> str:
    spec, grid = product.spec, product.grid
    side, across = ("m", "n") if spec.is_along_m else ("n", "m")
    width = min(spec.group, product.tiles_n if spec.is_along_m else product.tiles_m)
    group = f"in groups of {width} tiles across {across}" if width > 1 else "one tile wide"
    all_again = f" All tiles, then all again: {grid.split_k} splits of k."
    if product.are_shared:
        all_again = f" They share out {grid.split_k} chunks of each tile evenly; drawn is where each begins."
    splits = {
        "none": "",
        "cluster": f" {grid.split_k} blocks of a cluster share out the k of each tile.",
        "last_wave": f" The {grid.split_tiles} tiles of the last wave are split in {grid.split_k}.",
    }.get(spec.reduction, all_again)
    few = f" The first {MOST_BLOCKS:,} are drawn." if len(product.blocks) > MOST_BLOCKS else ""
    return f"Blocks walk along {side}, {group}.{splits}{few}"


def counts(found: dict[AccessKey, AccessCounts], gemm: Gemm, limits: DeviceLimits) -> Drawing:
    """The table of counts, and in sentences what they mean beside the arithmetic."""
    total = sum(found.values(), AccessCounts())
    requested = sum(n.num_bytes for key, n in found.items() if key.space == "global")
    rows = [{**key._asdict(), **asdict(each)} for key, each in found.items()]
    text = [_of_global(requested, SECTOR_BYTES * total.sectors, gemm), _of_shared(total, gemm, limits)]
    return {"rows": rows, "sentences": text}


def _of_global(requested: int, moved: int, gemm: Gemm) -> str:
    return (
        f"Lanes ask for {_bytes(requested)} of global memory, which moves as {_bytes(moved)} in sectors: "
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
    return _limiting({name: int(blocks) for name, blocks in fits.items()}, resident, threads, takes, limits)


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
    return _limiting(fits, min(fits.values()), spec.threads, takes, limits)


def _taken(what: str, amount: int, most: int, note: str = "") -> Drawing:
    return {"what": what, "amount": amount, "most": most, "note": note}


def _limiting(
    fits: dict[str, int], resident: int, threads: int, takes: list[Drawing], limits: DeviceLimits
) -> Drawing:
    least = min(fits.values())
    limiting = [name for name, blocks in fits.items() if blocks == least]
    warps, most = resident * threads // WARP, limits.threads_per_sm // WARP
    verb = "decide" if len(limiting) > 1 or limiting[0].endswith("s") else "decides"
    return {
        "say": f"{resident} {'block' if resident == 1 else 'blocks'} on an SM, {warps} of its {most} warps: "
        f"{' and '.join(limiting)} {verb}.",
        "takes": takes,
        "fits": [{"by": name, "blocks": blocks} for name, blocks in fits.items()],
        "resident": resident,
        "decides": limiting,
    }


def tile(product: HostLaunch, config: Config) -> Drawing:
    """A block's tile: where its warps begin, and the elements of each lane from there."""
    numbers = product.numbers(product.spec.threads * (1 + config.tm + config.tn), "thread_tiles")
    threads = numbers.reshape(product.spec.threads, -1)
    own, rows, columns = np.split(threads, (1, 1 + config.tm), axis=1)
    first = np.stack([own[::WARP, 0], rows[::WARP, 0], columns[::WARP, 0]], axis=1)
    sizes = {name: getattr(config, name) for name in ("bm", "bn", "bk", "wm", "wn", "tm", "tn")}
    return sizes | {
        "threads": product.spec.threads,
        "slices": config.slice_k,
        "lanes": [config.wm // config.tm, config.wn // config.tn, int(lanes_k(config))],
        "warps": [{"m": m, "n": n, "slice": number} for number, m, n in first.tolist()],
        "rows": (rows[:WARP] - rows[0, 0]).tolist(),
        "columns": (columns[:WARP] - columns[0, 0]).tolist(),
    }


def reference_tile(product: HostLaunch) -> Drawing:
    """The same of a kernel of reference.cu, whose threads own an element each: that which they store. Every
    warp has a row of it, or a column."""
    side = product.spec.bm
    alone = replace(product, m=side, n=side, k=1, lds=(1, side, side))
    found = alone.recorded({0: (1,) * len(OPERANDS)}, reads_c=False, is_merged=False)
    row, column = np.divmod(next(access.at for access in found if access.what == "C"), side)
    down, across = (WARP, 1) if row[0, 1] else (1, WARP)
    return {
        "bm": side,
        "bn": side,
        "bk": product.step_k,
        "wm": down,
        "wn": across,
        "tm": 1,
        "tn": 1,
        "threads": product.spec.threads,
        "slices": 1,
        "lanes": [down, across, 1],
        "warps": [{"m": m, "n": n, "slice": 0} for m, n in np.stack([row, column], axis=2)[:, 0].tolist()],
        "rows": (row[:1] - row[0, 0]).T.tolist(),
        "columns": (column[:1] - column[0, 0]).T.tolist(),
    }
