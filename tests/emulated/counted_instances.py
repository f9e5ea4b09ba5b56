"""Thirty instances, five legal on each architecture, which show every way that memory is used."""

from __future__ import annotations

import functools

import numpy as np
from covering_instances import Instance, all_instances
from kept import kept

from autotune.facts.device import KNOWN, DeviceLimits
from autotune.facts.gemm import Gemm
from autotune.kernel import resources
from autotune.kernel.config import lanes_k
from autotune.kernel.launch import PLAIN
from autotune.kernel.rules import broken_rules

OF_EACH = 5
WIDE = 16  # columns of a tile, from where its rows lie in several sectors
_SEED = 17
_MOST_WORK = 64 * 128  # elements of C in a tile: what is quickly emulated


def _features(instance: Instance) -> set[tuple[str, object]]:
    """What decides which accesses there are and where they go."""
    values = instance.values()
    named = (
        "copy_a", "copy_b", "vec_a", "vec_b", "vec_c", "pack_a", "pack_b", "reduction", "edges", "layout",
        "frag_buffers", "staging", "is_batched", "slice_k", "stages", "bursts", "pad", "tm", "tn", "raster",
        "row_groups",
    )  # fmt: skip
    c = instance.config
    return {
        *((name, values[name]) for name in named),
        ("flushes", c.flush_k > 0),
        ("batch", values["is_batched"], values["edges"], c.bn >= WIDE and c.vec_c == 1),
        ("lanes along k", lanes_k(c) > 1, instance.layout),
        ("transposed and padded", c.pad > 0 and resources.is_k_major_a(c, _gemm(instance))),
        ("path of A", c.copy_a, c.vec_a, instance.layout[0], c.pack_a),
        ("path of B", c.copy_b, c.vec_b, instance.layout[1], c.pack_b),
        ("way out", c.reduction, c.slice_k > 1, c.vec_c),
    }


def _gemm(instance: Instance) -> Gemm:
    return Gemm(4096, 4096, 4096, instance.variant.trans_a, instance.variant.trans_b)


@functools.cache
def architectures() -> dict[str, DeviceLimits]:
    """One GPU model for each architecture that is known."""
    return {limits.arch: limits for limits in sorted(KNOWN.values(), key=lambda d: d.compute_capability)}


@kept
def counted_instances() -> list[tuple[str, Instance]]:
    """By architecture: greedily what shows most that is not yet seen; a seed decides among equals."""
    plain = [i for i in all_instances() if i.variant.epilogue == PLAIN and _work(i) <= _MOST_WORK]
    random = np.random.default_rng(_SEED)
    seen: set[tuple[str, object]] = set()
    chosen: list[tuple[str, Instance]] = []
    for arch, limits in architectures().items():
        legal = [i for i in plain if not broken_rules(i.config, limits, _gemm(i), ("template", "device"))]
        for _ in range(OF_EACH):
            left = [i for i in legal if i not in [other for _, other in chosen]]
            gains = np.array([len(_features(i) - seen) for i in left]) + random.random(len(left))
            best = left[int(np.argmax(gains))]
            seen |= _features(best)
            chosen.append((arch, best))
    return chosen


def _work(instance: Instance) -> int:
    return instance.config.bm * instance.config.bn
