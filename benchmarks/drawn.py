"""Kernels drawn at random from all that are legal, over architectures and layouts.

Each value of each parameter that the compiler sees occurs, and so do batches and epilogues. A seed decides
alone: the same list every time. Kernels whose unrolled loop has more than MAX_FMAS are left out: they take
many seconds to compile, and have no text of their own.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np

from autotune.facts.device import KNOWN, DeviceLimits
from autotune.facts.gemm import LAYOUTS, Gemm
from autotune.kernel.config import PARAMETERS, Config, Value
from autotune.kernel.launch import ACTIVATIONS, BIASES, PLAIN, Epilogue, Variant
from autotune.kernel.rules import LEGAL, RULES
from autotune.kernel.where import Where

DEVICES: dict[str, DeviceLimits] = {limits.arch: limits for limits in KNOWN.values()}
MAX_FMAS = 2048
_ANY = Where()
_SIDE = 4096  # of the problem: large, so that no rule of the kind `shape` leaves anything out
_NUM_DRAWS = 3000  # per architecture and layout; about one in twenty ends as a legal config
_PLAIN_SHARE = 0.5  # of the kernels have no epilogue: most that people run have none


@dataclass(frozen=True)
class Drawn:
    """A kernel to compile: the architecture, the config and the variant."""

    arch: str
    config: Config
    variant: Variant

    @property
    def layout(self) -> str:
        return ("T" if self.variant.trans_a else "N") + ("T" if self.variant.trans_b else "N")

    def __str__(self) -> str:
        v = self.variant
        words = (self.layout, "wide" * v.is_wide, "batched" * v.is_batched, str(v.epilogue))
        return f"{self.arch} {' '.join(filter(None, words))} {self.config}"

    def traits(self) -> set[tuple[str, Value]]:
        """What a spread should show at least once, as (name, value)."""
        values = {(p.name, getattr(self.config, p.name)) for p in PARAMETERS if p.name != "split_k"}
        values |= {("cluster", self.config.split_k)} if self.config.reduction == "cluster" else set()
        v, reduction = self.variant, self.config.reduction
        ends = (self.layout, f"batched {v.is_batched}", f"bias {v.epilogue.bias}", v.epilogue.activation)
        values |= {("ends", f"{reduction} {how}") for how in ends}
        place = f"{self.arch} {self.layout}"
        return values | {("place", place), ("is_wide", v.is_wide), ("keeps", v.epilogue.keeps)}


def spread(num: int, seed: int, where: Where = _ANY) -> list[Drawn]:
    """`num` kernels, of those that `where` allows: first those that show what no other has shown, then places
    take turns."""
    rng = np.random.default_rng(seed)
    places = [(limits, layout) for limits in DEVICES.values() for layout in LAYOUTS]
    pools = [[one for one in _legal(rng, *at) if where.holds(one.config.to_dict())] for at in places]
    unseen = set().union(*(drawn.traits() for pool in pools for drawn in pool))
    chosen: list[Drawn] = []
    while unseen and len(chosen) < num:
        best = max(itertools.chain(*pools), key=lambda drawn: len(drawn.traits() & unseen))
        chosen.append(best)
        unseen -= best.traits()
    for drawn in itertools.chain(*zip(*pools, strict=False)):
        if len(chosen) < num and drawn not in chosen:
            chosen.append(drawn)
    return chosen


def _legal(rng: np.random.Generator, limits: DeviceLimits, layout: str) -> Iterator[Drawn]:
    trans_a, trans_b = (letter == "T" for letter in layout)
    gemm = Gemm(_SIDE, _SIDE, _SIDE, trans_a, trans_b)
    for config in _configs(rng, limits, gemm):
        if config.tm * config.tn * config.unroll_k <= MAX_FMAS:
            is_wide, is_batched = (bool(bit) for bit in rng.integers(2, size=2))
            variant = Variant(trans_a, trans_b, is_wide, is_batched, _epilogue(rng))
            yield Drawn(limits.arch, config, variant)


def _epilogue(rng: np.random.Generator) -> Epilogue:
    if rng.random() < _PLAIN_SHARE:
        return PLAIN
    bias, activation = BIASES[rng.integers(len(BIASES))], ACTIVATIONS[rng.integers(len(ACTIVATIONS))]
    return Epilogue(bias, activation, keeps=bool(rng.integers(2)))


def _configs(rng: np.random.Generator, limits: DeviceLimits, gemm: Gemm) -> list[Config]:
    """Parameters are drawn one after another; a rule drops what breaks it as soon as it can be judged."""
    names: list[str] = []
    columns: dict[str, np.ndarray] = {}
    num = _NUM_DRAWS
    pending = [rule for rule in RULES if rule.kind in LEGAL]
    for parameter in PARAMETERS:
        names.append(parameter.name)
        ready = [rule for rule in pending if set(rule.needs) <= set(names)]
        pending = [rule for rule in pending if rule not in ready]
        choices = _choices(columns, num, parameter.name, parameter.values)
        is_legal = np.ones(choices[parameter.name].shape, dtype=bool)
        for rule in ready:
            is_legal &= rule.holds(SimpleNamespace(**choices), limits, gemm)
        picked = np.where(is_legal, rng.random(is_legal.shape), -1.0).argmax(axis=1)
        kept = np.flatnonzero(is_legal.any(axis=1))
        columns = {name: column[kept] for name, column in columns.items()}
        columns[parameter.name] = np.array(parameter.values)[picked[kept]]
        num = len(kept)
    rows = zip(*(columns[name].tolist() for name in names), strict=True)
    return [Config.from_dict(dict(zip(names, row, strict=True))) for row in rows]


def _choices(
    columns: dict[str, np.ndarray], num: int, name: str, values: Sequence[Value]
) -> dict[str, np.ndarray]:
    """Every row with every value of one more parameter; each column is (rows, values)."""
    shape = (num, len(values))
    known = {key: np.broadcast_to(column[:, None], shape) for key, column in columns.items()}
    return known | {name: np.broadcast_to(np.array(values), shape)}
