"""Accesses to be drawn lane by lane: a block's for one step of k, of a whole tile that begins with a line."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..kernel.config import WARP
from . import shared_sums, tile_output
from .block_walk import BlockWalk
from .dot_loads import DotLines
from .launch_counts import OperandPlace, operand_places, stored
from .reference_accesses import ReferenceTile
from .tile_copies import copy_of
from .tile_output import TilePlace
from .warp_access import NOBODY, WarpAccess, conflicts, lines, sectors, serving, wavefronts

Group = dict[str, Any]

MOST_ROWS = 64  # instructions that are drawn of a kind of access


def of_template(walk: BlockWalk) -> list[Group]:
    """In the order in which they occur."""
    shape = walk.shape
    made: list[Group] = []
    if shape.lanes_k > 1:
        for place in operand_places(walk):
            access = DotLines(shape, place.operand).accesses(0, place.ld, place.tile, shape.step_k)
            text = "The lanes of a warp stand along k and read neighbours, straight to registers."
            made.append(_group(access, f"{place.operand}: global memory to registers", text, shape.threads))
    else:
        for place in operand_places(walk):
            made += _copies(walk, place)
        for access in shared_sums.fragments(shape):
            side = "rows" if access.what == "A" else "columns"
            text = f"For each k, a thread reads {access.what} for the {side} it owns, {access.vec} at a time."
            made.append(_group(access, f"{access.what}: shared memory to registers", text, shape.threads))
    if shape.config.flush_k:
        text = "Blocked summation: every thread adds its sums to a second set, and begins at zero again."
        made.append(_group(shared_sums.flushed(shape, "store"), "Sums: flushed", text, shape.threads))
    if shape.config.slice_k > 1:
        text = "The slices become one: each lays down its sums, and slice 0 adds them to its own."
        made.append(_group(shared_sums.slices(shape, "store"), "Sums: of a slice", text, shape.threads))
    return [*made, *_output(walk)]


def _copies(walk: BlockWalk, place: OperandPlace) -> list[Group]:
    shape, copy = walk.shape, copy_of(walk.shape, place.operand)
    reads, stores = copy.accesses(0, place.ld, place.tile, shape.config.bk, is_first=False)
    way = "asynchronously, past the registers" if copy.is_async else "through registers"
    turn = ", transposed on its way" if copy.is_k_major else ""
    text = (
        f"A tile of {copy.rows} x {copy.cols} floats as stored is copied {way}{turn}: {copy.pieces} times "
        f"{copy.vec} floats by each thread, {copy.row_threads} threads side by side in a row."
    )
    to = f"Shared memory holds the tile by k, {copy.shared_row} floats from one k to the next."
    return [
        _group(reads, f"{place.operand}: from global memory", text, shape.threads),
        _group(stores, f"{place.operand}: to shared memory", to, shape.threads),
    ]


def _output(walk: BlockWalk) -> list[Group]:
    shape, c, grid = walk.shape, walk.shape.config, walk.grid
    place = TilePlace(0, shape.gemm.ldc, min(c.bm, shape.gemm.m), min(c.bn, shape.gemm.n))
    if walk.spec.reduction == "two_pass":
        text = "Every split stores its sums to a plane of its own, which a second kernel adds."
        access = tile_output.plane(shape, 0, grid.padded_n)
        return [_group(access, "Sums: to the workspace", text, shape.threads)]
    made: list[Group] = []
    if walk.spec.reduction in ("last_block", "last_wave"):
        text = "Every split stores its sums by element and thread; the block that comes last adds them."
        access = tile_output.partial_sums(shape, 0, "store")
        made.append(_group(access, "Sums: to the workspace", text, shape.threads))
    is_cluster = walk.spec.reduction == "cluster"
    found = (
        tile_output.stored_by_cluster(shape, place, 0, reads_c=False)
        if is_cluster
        else stored(walk, place, reads_c=False)
    )
    texts = {
        ("sums", "store"): (
            "Sums: to staged rows",
            "Threads write their sums; others read rows of them.",
        ),
        ("sums", "load"): ("Sums: from staged rows", "Lanes side by side read what is side by side in C."),
        ("C", "store"): ("C: to global memory", "The product, scaled, on its way to C."),
    }
    for key, (title, text) in texts.items():
        first = next((a for a in found if (a.what, a.kind) == key), None)
        if first is not None:
            made.append(_group(first, title, text, shape.threads))
    return made


def of_reference(tile: ReferenceTile) -> list[Group]:
    """In the order in which they occur."""
    whole = (min(tile.gemm.m, WARP), min(tile.gemm.n, WARP))
    texts = {
        ("global", "load"): ("from global memory", "What the 32 threads of a warp ask for together."),
        ("shared", "store"): ("to shared memory", "Each thread stores what it copied."),
        ("shared", "load"): ("shared memory to registers", "For each k, an element of A and of B."),
    }
    made = []
    for access, _ in tile.step(0, 0, whole, min(tile.gemm.k, WARP)):
        title, text = texts[access.space, access.kind]
        made.append(_group(access, f"{access.what}: {title}", text, tile.kernel.spec.threads))
    stores = tile.stores(0, whole)
    return [*made, _group(stores, "C: to global memory", "The product, scaled.", tile.kernel.spec.threads)]


def _group(access: WarpAccess, title: str, text: str, threads: int) -> Group:
    """One kind of access, with its instructions: of each, where lanes ask and what it comes to."""
    warps = threads // WARP
    rows = [row for row in range(len(access.at)) if np.any(access.at[row] != NOBODY)][:MOST_ROWS]
    at = access.at[rows]
    is_load = access.kind == "load"
    made: Group = {
        "title": title,
        "text": text,
        "where": access.where,
        "what": access.what,
        "space": access.space,
        "kind": access.kind,
        "vec": access.vec,
        "num_instructions": int(np.any(access.at != NOBODY, axis=1).sum()),
        "at": at.tolist(),
        "labels": [f"warp {row % warps}, access {row // warps}" for row in rows],
    }
    if access.space == "global":
        return made | {"sectors": sectors(at).tolist(), "lines": lines(at).tolist()}
    return made | {
        "served": serving(at, access.vec, is_load=is_load).tolist(),
        "wavefronts": wavefronts(at, access.vec, is_load=is_load).tolist(),
        "conflicts": conflicts(at, access.vec, is_load=is_load).tolist(),
    }
