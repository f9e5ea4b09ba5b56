"""Which block computes which tile of C, and which part of k: kernels/tile_scheduler.cuh, on arrays."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ..facts.device import DeviceLimits
from ..kernel import launch, resources
from ..kernel.launch import Grid, LaunchSpec
from .tile_shape import TileShape
from .warp_access import Addresses


@dataclass(frozen=True)
class KShare:
    """A split's share of k: `steps` of the main loop, the first `first_depth` deep, from `begin` on."""

    split: int
    steps: int
    begin: int
    first_depth: int


@dataclass(frozen=True)
class BlockWalk:
    """The blocks of one launch, in the order of their numbers."""

    shape: TileShape
    spec: LaunchSpec
    grid: Grid

    @classmethod
    def of(cls, shape: TileShape, limits: DeviceLimits) -> BlockWalk:
        spec = resources.launch_spec(shape.config, shape.gemm, limits)
        g = shape.gemm
        return cls(shape, spec, launch.plan(spec, g.m, g.n, g.k, g.strides))

    @property
    def tiles_m(self) -> int:
        return self.grid.padded_m // self.spec.bm

    @property
    def tiles_n(self) -> int:
        return self.grid.padded_n // self.spec.bn

    @property
    def has_staged_rows(self) -> bool:
        """Whether sums go through shared memory, by rows, on their way to C."""
        return bool(resources.has_staged_rows(self.shape.config))

    @property
    def num_whole(self) -> int:
        """Tiles that are not split: they come first."""
        return self.grid.tiles - self.grid.split_tiles if self.spec.reduction == "last_wave" else 0

    @cached_property
    def tiles(self) -> Addresses:
        """Product, row and column of tiles, of each tile by its number: (tiles, 3)."""
        along, across = self.tiles_m, self.tiles_n
        if not self.spec.is_along_m:
            along, across = across, along
        width = min(self.spec.group, across)
        number = np.arange(self.grid.tiles, dtype=np.int64)
        product, number = number // (self.tiles_m * self.tiles_n), number % (self.tiles_m * self.tiles_n)
        group, within = number // (width * along), number % (width * along)
        own_width = np.minimum(width, across - group * width)
        at_along, at_across = within // own_width, group * width + within % own_width
        rows, columns = (at_along, at_across) if self.spec.is_along_m else (at_across, at_along)
        return np.stack([product, rows, columns], axis=1)

    @cached_property
    def blocks(self) -> Addresses:
        """Tile and split of each block by its number, along x first; those of a cluster start together:
        (blocks, 2)."""
        splits = self.grid.split_k
        if self.spec.reduction != "last_wave":
            columns, rows = self.grid.size
            number = np.arange(columns * rows, dtype=np.int64)
            if self.spec.reduction == "cluster":
                return np.stack([number // rows, number % rows], axis=1)
            return np.stack([number % columns, number // columns], axis=1)
        whole = self.num_whole
        behind = np.arange(self.grid.split_tiles * splits, dtype=np.int64)
        tile = np.concatenate([np.arange(whole, dtype=np.int64), whole + behind // splits])
        return np.stack([tile, np.concatenate([np.zeros(whole, np.int64), behind % splits])], axis=1)

    def tiles_by_splits(self) -> list[tuple[Addresses, int]]:
        """Rows of `tiles` that are split alike, and into how many splits of k."""
        whole = self.num_whole
        parts = [(self.tiles[:whole], 1), (self.tiles[whole:], self.grid.split_k)]
        return [(rows, splits) for rows, splits in parts if len(rows)]

    @property
    def first_share(self) -> KShare:
        """What the first block has of k."""
        return self.shares(self.tiles_by_splits()[0][1])[0]

    def shares(self, splits: int) -> list[KShare]:
        """How so many splits share out k. The first step of all is the ragged one."""
        k, step = self.shape.gemm.k, self.shape.step_k
        num_steps = -(-k // step)
        ragged = k - (num_steps - 1) * step
        most = -(-num_steps // splits)
        made = []
        for split in range(splits):
            first = most * split
            steps = max(0, min(most, num_steps - first))
            begin, depth = (0, ragged) if first == 0 else (ragged + (first - 1) * step, step)
            made.append(KShare(split, steps, begin, depth))
        return made
