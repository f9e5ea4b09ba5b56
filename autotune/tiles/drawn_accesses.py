"""Accesses to be drawn lane by lane: a block's for one step of k, of a whole tile that begins with a line."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from ..kernel import resources
from ..kernel.config import Config
from .executed import OPERANDS, HostLaunch
from .warp_access import WarpAccess, conflicts, lines, sectors, serving, wavefronts

Group = dict[str, Any]

MOST_ROWS = 64  # instructions that are drawn of a kind of access
_ROWS_READ = "Sums: from staged rows", "Lanes side by side read what is side by side in C."
_TO_WORKSPACE = {
    True: "Every split stores its sums to a plane of its own, which a second kernel adds.",
    False: "Every split stores its sums by element and thread; the block that comes last adds them.",
}
_FROM_GLOBAL, _TO_SHARED, _TO_REGISTERS = (
    "from global memory", "to shared memory", "shared memory to registers",
)  # fmt: skip


def of_kernel(product: HostLaunch) -> list[Group]:
    """In the order in which they occur."""
    spec, one_step = product.spec, product.step_k * product.spec.split_k
    if isinstance(product.kernel, Config):
        whole = _of_first_block(replace(product, m=spec.bm, n=spec.bn, k=one_step))
        own = _of_first_block(replace(product, k=one_step))
        texts = _texts(product, product.kernel)
    else:
        m, n = min(product.m, spec.bm), min(product.n, spec.bn)
        whole = own = _of_first_block(replace(product, m=m, n=n, k=min(product.k, one_step)))
        texts = _reference_texts()
    made = []
    for (where, what, space, kind), (title, text, each) in texts.items():
        is_own = what == "C" or where in ("epilogue.cuh", "reduce_two_pass.cuh", "reduce_cluster.cuh")
        for access in own if is_own else whole:
            if (access.where, access.what, access.space) == (where, what, space) and access.kind in kind:
                made.append(_group(access, title, text, each))
    return made


def _of_first_block(product: HostLaunch) -> list[WarpAccess]:
    times = {0: (1,) * len(OPERANDS)}
    return product.recorded(times, reads_c=False, is_merged=False, is_last=True)


# By file, operand, space and kinds: title, text, and how many instructions of a warp are drawn (0: all).
Texts = dict[tuple[str, str, str, tuple[str, ...]], tuple[str, str, int]]


def _texts(product: HostLaunch, config: Config) -> Texts:
    """Of the template."""
    along_k = "The lanes of a warp stand along k and read neighbours, straight to registers."
    flushed = "Blocked summation: every thread adds its sums to a second set, and begins at zero again."
    sliced = "The slices become one: each lays down its sums, and slice 0 adds them to its own."
    store, load, copied = ("store",), ("load",), ("load", "store", "copy")
    made: Texts = {}
    for what in "AB":
        title = f"{what}: global memory to registers"
        made["dot_products.cuh", what, "global", load] = (title, along_k, 0)
    for what, (text, to) in zip("AB", _copies(product, config), strict=True):
        made["tile_copy.cuh", what, "global", copied] = (f"{what}: {_FROM_GLOBAL}", text, 0)
        made["tile_copy.cuh", what, "shared", copied] = (f"{what}: {_TO_SHARED}", to, 0)
    for what, side, extent, chunk in (
        ("A", "rows", config.tm, int(resources.chunk_m(config))),
        ("B", "columns", config.tn, int(resources.chunk_n(config))),
    ):
        text = f"For each k, a thread reads {what} for the {side} it owns, {chunk} at a time."
        made["fragments.cuh", what, "shared", load] = (f"{what}: {_TO_REGISTERS}", text, extent // chunk)
    made["flush.cuh", "sums", "shared", store] = ("Sums: flushed", flushed, 0)
    made["reduce_slices.cuh", "sums", "shared", store] = ("Sums: of a slice", sliced, 0)
    for where, is_plane in (("reduce_two_pass.cuh", True), ("reduce_last_block.cuh", False)):
        made[where, "workspace", "global", store] = ("Sums: to the workspace", _TO_WORKSPACE[is_plane], 0)
    text = "Threads write their sums; others read rows of them."
    made["staged_rows.cuh", "sums", "shared", store] = ("Sums: to staged rows", text, 0)
    for where in ("epilogue.cuh", "reduce_cluster.cuh"):
        made[where, "sums", "shared", load] = (*_ROWS_READ, 0)
    text = "The product, scaled, on its way to C."
    made["output.cuh", "C", "global", store] = ("C: to global memory", text, 0)
    return made


def _copies(product: HostLaunch, config: Config) -> list[tuple[str, str]]:
    """Of A and B: how a tile is copied, and how it then lies."""
    if product.step_k != config.bk:
        return [("", "")] * 2  # lanes share out k, and nothing is copied
    pieces_a, threads_a, pieces_b, threads_b = product.numbers(4, "copies").tolist()
    rows = resources.row_a(config, product.gemm), resources.row_b(config, product.gemm)
    made = []
    for is_k_major, extent, path, vec, pieces, threads, row in zip(
        product.is_k_major, (config.bm, config.bn), (config.copy_a, config.copy_b),
        (config.vec_a, config.vec_b), (pieces_a, pieces_b), (threads_a, threads_b), rows, strict=True,
    ):  # fmt: skip
        way = "asynchronously, past the registers" if path == "async" else "through registers"
        turn = ", transposed on its way" if is_k_major else ""
        stored = (extent, config.bk) if is_k_major else (config.bk, extent)
        text = (
            f"A tile of {stored[0]} x {stored[1]} floats as stored is copied {way}{turn}: {pieces} times "
            f"{vec} floats by each thread, {threads} threads side by side in a row."
        )
        made.append((text, f"Shared memory holds the tile by k, {row} floats from one k to the next."))
    return made


def _reference_texts() -> Texts:
    """Of the kernels of reference.cu."""
    made: Texts = {}
    for title, text, space, kind in (
        (_FROM_GLOBAL, "What the 32 threads of a warp ask for together.", "global", "load"),
        (_TO_SHARED, "Each thread stores what it copied.", "shared", "store"),
        (_TO_REGISTERS, "For each k, an element of A and of B.", "shared", "load"),
    ):
        for what in "AB":
            made["reference.cu", what, space, (kind,)] = (f"{what}: {title}", text, 1)
    made["reference.cu", "C", "global", ("store",)] = ("C: to global memory", "The product, scaled.", 0)
    return made


def _group(access: WarpAccess, title: str, text: str, each: int) -> Group:
    """One kind of access, with its instructions between the same barriers: of each, where lanes ask and what
    it comes to. Of each warp the first few, or all where `each` is 0."""
    numbers: dict[int, int] = {}  # of each warp, its instructions so far
    seen, rows = set(), []
    for row in np.flatnonzero(access.barrier == access.barrier.min()).tolist():
        warp, number = int(access.warp[row]), numbers.get(int(access.warp[row]), 0)
        requested = (warp, access.at[row].tobytes())
        if requested not in seen and not 0 < each <= number:
            seen.add(requested)
            rows.append((number, warp, row))
            numbers[warp] = number + 1
    rows.sort()
    drawn = rows[:MOST_ROWS]
    at = access.at[[row for _, _, row in drawn]]
    is_load = access.kind == "load"
    made: Group = {
        "title": title,
        "text": text,
        "where": access.where,
        "what": access.what,
        "space": access.space,
        "kind": access.kind,
        "vec": access.vec,
        "num_instructions": len(rows),
        "at": at.tolist(),
        "labels": [f"warp {warp}, access {number}" for number, warp, _ in drawn],
    }
    if access.space == "global":
        return made | {"sectors": sectors(at).tolist(), "lines": lines(at).tolist()}
    return made | {
        "served": serving(at, access.vec, is_load=is_load).tolist(),
        "wavefronts": wavefronts(at, access.vec, is_load=is_load).tolist(),
        "conflicts": conflicts(at, access.vec, is_load=is_load).tolist(),
    }
