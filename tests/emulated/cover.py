"""Few instances that between them show every value of every parameter, and every pair of some.

Random legal instances are drawn once; then, greedily, the one is taken that shows most of what is not
yet seen for the work it costs to emulate. Seed and rules decide alone: the same list every time.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from types import SimpleNamespace

import numpy as np

from autotune.config import PARAMETER, PARAMETERS, Config
from autotune.device import KNOWN
from autotune.gemm import LAYOUTS, Gemm
from autotune.launch import Variant
from autotune.rules import RULES, Rule, broken_rules

# Parameters whose code paths meet: all pairs of their values are shown. The rest: each value.
PAIRED = (
    "copy_a", "copy_b", "stages", "frag_buffers", "slice_k", "reduction", "edges", "vec_a", "vec_b", "vec_c",
    "pack_a", "pack_b", "layout",
)  # fmt: skip
GROUPS = (  # besides: branches of the pipeline, and what follows it
    ("copy_a", "copy_b", "stages"),
    ("copy_a", "stages", "frag_buffers"),
    ("copy_a", "copy_b", "bursts"),
    ("copy_b", "frag_buffers", "bursts"),
    ("bursts", "reduction"),
    ("bursts", "layout"),
    ("pack_a", "layout", "edges"),  # what is copied from where, and how far
    ("pack_b", "layout", "edges"),
    ("pack_a", "copy_a", "is_wide"),
    ("pack_b", "copy_b", "is_wide"),
    ("pack_a", "pack_b", "reduction"),  # what shares the workspace
)
VALUES: dict[str, tuple[int | str, ...]] = {p.name: p.values for p in PARAMETERS} | {
    "layout": LAYOUTS,
    "is_wide": (0, 1),
}
NAMES = tuple(VALUES)
_LIMITS = KNOWN["h200"]
_NUM_DRAWS = 400_000  # per layout; about one in a hundred is legal


@dataclass(frozen=True)
class Instance:
    """What one executable holds: the config, and the variant that it is compiled for."""

    config: Config
    variant: Variant

    @property
    def layout(self) -> str:
        return ("T" if self.variant.trans_a else "N") + ("T" if self.variant.trans_b else "N")

    @property
    def id(self) -> str:
        """Layout, and what differs from the default config."""
        default, own = Config().to_dict(), self.config.to_dict()
        changed = [f"{name}={own[name]}" for name in PARAMETER if own[name] != default[name]]
        return ",".join([self.layout + ("-wide" if self.variant.is_wide else ""), *changed])

    def values(self) -> dict[str, int | str]:
        """All that `VALUES` knows of, by name."""
        return self.config.to_dict() | {"layout": self.layout, "is_wide": int(self.variant.is_wide)}


def instance(layout: str, *, is_wide: bool = False, **parameters: int | str) -> Instance:
    """An instance of the default config but for these parameters.

    What they make illegal of the rest is set to its first legal value: a hand-written instance names
    what it is about and no more.
    """
    variant = Variant(trans_a=layout[0] == "T", trans_b=layout[1] == "T", is_wide=is_wide)
    config = Config.from_dict(parameters)
    while broken := _broken_rules(config, variant):
        free = [name for name in broken[0].needs if name not in parameters]
        repaired = [replace(config, **{name: value}) for name in free for value in VALUES[name]]
        config, before = min(repaired, key=lambda c: len(_broken_rules(c, variant))), config
        if config == before or len(_broken_rules(config, variant)) >= len(broken):
            raise ValueError(f"{parameters} cannot be made legal: rule {broken[0].id}, {broken[0].sentence}")
    return Instance(config, variant)


def _broken_rules(config: Config, variant: Variant) -> tuple[Rule, ...]:
    gemm = Gemm(4096, 4096, 4096, variant.trans_a, variant.trans_b)
    return broken_rules(config, _LIMITS, gemm, ("template",))


# Tiles of the usual kind: several warps either way, square thread tiles, deep pipelines.
TYPICAL = (
    instance("NN"),
    instance("TT", bm=64, bn=64, vec_a=4, vec_b=1, frag_buffers=2, order="col_snake", stages=4),
    instance(
        "TN", bm=128, bn=64, bk=8, wm=64, wn=32, vec_a=4, pad=0, order="zigzag", group=4, edges="exact",
    ),
    instance(
        "NT", bm=64, bn=64, bk=8, wm=32, wn=32, tm=8, tn=4, vec_a=4, vec_b=4, stages=2, copy_a="register",
        copy_b="register", frag_buffers=2, order="pair_snake", group=2,
    ),
    instance(
        "NN", bm=32, bn=64, wm=16, wn=32, tm=4, tn=4, slice_k=2, stages=2, copy_a="register", vec_a=4,
        reduction="two_pass", split_k=3,
    ),
    instance(
        "TN", bm=64, bn=32, wm=32, wn=16, tm=4, tn=4, slice_k=2, unroll_k=4, vec_a=4, vec_c=2,
        frag_buffers=2, reduction="last_block", split_k=4, is_wide=True,
    ),
    instance(
        "NT", bm=16, bn=32, bk=8, wm=16, wn=32, tm=4, tn=4, slice_k=2, unroll_k=4, min_blocks=1, bursts=1,
        reduction="last_wave", split_k=3,
    ),
    instance(
        "TT", bm=32, bn=64, bk=8, wm=32, wn=32, tm=4, tn=8, unroll_k=8, min_blocks=1, stages=2, bursts=1,
        vec_a=4, vec_b=1, reduction="cluster", split_k=4,
    ),
    instance(
        "NT", bm=64, bn=96, bk=8, wm=32, wn=48, tm=4, tn=12, pack_a=1, pack_b=1, vec_a=4, vec_b=2, vec_c=1,
        copy_b="register", reduction="last_block", split_k=2,
    ),
    instance(
        "TN", bm=64, bn=64, bk=8, wm=32, wn=32, tm=4, tn=8, pack_a=1, pack_b=1, vec_a=1, vec_b=4,
        copy_a="register", reduction="two_pass", split_k=2,
    ),
    instance("NN", bm=48, bn=96, wm=48, wn=48, tm=12, tn=6, pad=8, vec_c=2, edges="exact", raster="m"),
)  # fmt: skip


def _geometries() -> np.ndarray:
    """Value codes of (tm, tn, wm, wn, bm, bn) that tile one another; shape (rows, 6)."""
    names = ("tm", "tn", "wm", "wn", "bm", "bn")
    warps = [
        (i, j, p, q)
        for (i, tm), (j, tn), (p, wm), (q, wn) in itertools.product(
            *(list(enumerate(VALUES[name])) for name in names[:4])
        )
        if wm % tm == 0 and wn % tn == 0 and (wm // tm) * (wn // tn) == 32
    ]
    rows = [
        (*warp, r, s)
        for warp in warps
        for (r, bm), (s, bn) in itertools.product(enumerate(VALUES["bm"]), enumerate(VALUES["bn"]))
        if bm % VALUES["wm"][warp[2]] == 0 and bn % VALUES["wn"][warp[3]] == 0
    ]
    return np.array(rows)


def _draw(random: np.random.Generator, geometries: np.ndarray, layout: int) -> np.ndarray:
    """Codes of legal instances of one layout; shape (rows, NAMES)."""
    codes = {name: random.integers(len(VALUES[name]), size=_NUM_DRAWS) for name in NAMES}
    rows = geometries[random.integers(len(geometries), size=_NUM_DRAWS)]
    codes |= dict(zip(("tm", "tn", "wm", "wn", "bm", "bn"), rows.T, strict=True))
    codes["layout"] = np.full(_NUM_DRAWS, layout)
    codes["split_k"] = np.where(codes["reduction"] == 0, 0, np.maximum(codes["split_k"], 1))
    columns = SimpleNamespace(**{p.name: np.array(p.values)[codes[p.name]] for p in PARAMETERS})
    text = LAYOUTS[layout]
    gemm = Gemm(4096, 4096, 4096, trans_a=text[0] == "T", trans_b=text[1] == "T")
    is_legal = np.ones(_NUM_DRAWS, dtype=bool)
    for rule in RULES:
        if rule.kind in ("template", "device"):
            is_legal &= rule.holds(columns, _LIMITS, gemm)
    return np.stack([codes[name] for name in NAMES], axis=1)[is_legal]


def _work(pool: np.ndarray) -> np.ndarray:
    """What an instance costs to emulate, roughly: its tile and its threads."""
    bm, bn, wm, wn, slice_k = (
        np.array(VALUES[name])[pool[:, NAMES.index(name)]] for name in ("bm", "bn", "wm", "wn", "slice_k")
    )
    return bm * bn + 32 * (bm // wm) * (bn // wn) * slice_k * 16


def covering_instances(seed: int = 1) -> list[Instance]:
    """The list: every value of every parameter, all pairs of `PAIRED`, all of `GROUPS`."""
    random = np.random.default_rng(seed)
    geometries = _geometries()
    pool = np.concatenate([_draw(random, geometries, layout) for layout in range(len(LAYOUTS))])
    weight = (2048 + _work(pool)) ** -0.5
    groups = [(NAMES.index(name),) for name in NAMES]
    groups += [tuple(map(NAMES.index, names)) for names in (*itertools.combinations(PAIRED, 2), *GROUPS)]
    keys = np.stack([_key(pool, group) for group in groups], axis=1)
    unseen = [np.isin(np.arange(keys[:, g].max() + 1), keys[:, g]) for g in range(len(groups))]
    chosen = []
    while any(flags.any() for flags in unseen):
        gain = sum(flags[keys[:, g]].astype(int) for g, flags in enumerate(unseen))
        best = int(np.argmax(gain * weight))
        chosen.append(_instance_of(pool[best]))
        for g, flags in enumerate(unseen):
            flags[keys[best, g]] = False
    return chosen


def _key(pool: np.ndarray, group: tuple[int, ...]) -> np.ndarray:
    """One number per row for its values at the columns of a group."""
    key = pool[:, group[0]]
    for column in group[1:]:
        key = key * len(VALUES[NAMES[column]]) + pool[:, column]
    return key


def _instance_of(codes: np.ndarray) -> Instance:
    values = {name: VALUES[name][code] for name, code in zip(NAMES, codes, strict=True)}
    layout, is_wide = str(values.pop("layout")), bool(values.pop("is_wide"))
    return instance(layout, is_wide=is_wide, **values)
