"""Few instances that between them show every value of every parameter, and every pair of some.

Random legal instances are drawn once; then, greedily, the one is taken that shows most of what is not
yet seen for the work it costs to emulate. Seed and rules decide alone: the same list every time. Plain
kernels show the parameters; kernels of batches and epilogues, on tiles that no warp divides, the variants;
kernels whose lanes share out k, which hardly any draw hits, are drawn for themselves.
"""

from __future__ import annotations

import functools
import itertools
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import numpy as np
from kept import kept

from autotune.facts.device import KNOWN
from autotune.facts.gemm import LAYOUTS, Gemm
from autotune.kernel import resources
from autotune.kernel.config import PARAMETER, PARAMETERS, Config
from autotune.kernel.launch import ACTIVATIONS, BIASES, LONG_ACTIVATIONS, PLAIN, PLANES, Epilogue, Variant
from autotune.kernel.rules import RULES, Rule, broken_rules

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
# What kernels may be compiled for besides, and how their sums then come to C.
VARIED: dict[str, tuple[int | str, ...]] = {
    "is_batched": (0, 1),
    "bias": BIASES,
    "activation": ACTIVATIONS,
    "keeps": (0, 1),
    "staging": ("direct", "one round", "several rounds"),  # through shared memory
    "row_groups": ("power of two", "other"),  # ROW_GROUPS of config.cuh
}
VARIED_GROUPS = (
    ("reduction", "is_batched"),
    ("reduction", "activation"),
    ("reduction", "bias"),
    ("reduction", "keeps"),
    ("bias", "keeps"),
    *(("is_batched", name) for name in ("pack_a", "pack_b", "layout", "edges", "is_wide", "raster", "group")),
    ("staging", "row_groups"),
    ("staging", "vec_c"),
    ("staging", "edges"),
)
DOT_GROUPS = (
    *(("layout", name) for name in ("edges", "vec_a", "vec_b")),
    *(
        (name,)
        for name in ("bk", "reduction", "slice_k", "vec_c", "pack_a", "pack_b", "is_wide", "is_batched")
    ),
)
_NARROW = (24, 40, 48, 56, 80, 112)  # block tiles of a width that is no multiple of a warp's
_DEEPEST = 128  # bk
_MOST_DOTS = 128  # elements of C, times the depth of a lane's step: what is quickly emulated
_ALL = VALUES | VARIED
_ALL_NAMES = tuple(_ALL)
_LIMITS = KNOWN["b200"]  # it has all that others have
_NUM_DRAWS = 800_000  # per layout; about one in a hundred is legal


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
        """The variant, and what differs from the default config."""
        default, own = Config().to_dict(), self.config.to_dict()
        changed = [f"{name}={own[name]}" for name in PARAMETER if own[name] != default[name]]
        v = self.variant
        words = (self.layout, "wide" * v.is_wide, "batched" * v.is_batched, str(v.epilogue))
        return ",".join(["-".join(filter(None, words)), *changed])

    def values(self) -> dict[str, int | str]:
        """All that `VALUES` and `VARIED` know of, by name."""
        epilogue = self.variant.epilogue
        return self.config.to_dict() | {
            "layout": self.layout,
            "is_wide": int(self.variant.is_wide),
            "is_batched": int(self.variant.is_batched),
            "bias": epilogue.bias,
            "activation": epilogue.activation,
            "keeps": int(epilogue.keeps),
            "staging": VARIED["staging"][int(_staging(self.config, self._gemm, epilogue.activation))],
            "row_groups": VARIED["row_groups"][int(_row_groups(self.config))],
        }

    @property
    def _gemm(self) -> Gemm:
        return Gemm(4096, 4096, 4096, self.variant.trans_a, self.variant.trans_b)


def instance(
    layout: str,
    *,
    is_wide: bool = False,
    is_batched: bool = False,
    epilogue: Epilogue = PLAIN,
    **parameters: int | str,
) -> Instance:
    """An instance of the default config but for these parameters.

    What they make illegal of the rest is set to its first legal value: a hand-written instance names
    what it is about and no more.
    """
    variant = Variant(layout[0] == "T", layout[1] == "T", is_wide, is_batched, epilogue)
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


def _geometries(lanes: int = 32) -> np.ndarray:
    """Value codes of (tm, tn, wm, wn, bm, bn) that tile one another, with so many lanes along m and n; shape
    (rows, 6)."""
    names = ("tm", "tn", "wm", "wn", "bm", "bn")
    warps = [
        (i, j, p, q)
        for (i, tm), (j, tn), (p, wm), (q, wn) in itertools.product(
            *(list(enumerate(VALUES[name])) for name in names[:4])
        )
        if wm % tm == 0 and wn % tn == 0 and (wm // tm) * (wn // tn) == lanes
    ]
    rows = [
        (*warp, r, s)
        for warp in warps
        for (r, bm), (s, bn) in itertools.product(enumerate(VALUES["bm"]), enumerate(VALUES["bn"]))
        if bm % VALUES["wm"][warp[2]] == 0 and bn % VALUES["wn"][warp[3]] == 0
    ]
    return np.array(rows)


def _draw(
    random: np.random.Generator,
    geometries: np.ndarray,
    layout: int,
    fixed: dict[str, tuple[int | str, ...]] | None = None,
) -> np.ndarray:
    """Codes of legal instances of one layout, of the given values of some parameters; shape (rows, NAMES)."""
    codes = {name: random.integers(len(VALUES[name]), size=_NUM_DRAWS) for name in NAMES}
    rows = geometries[random.integers(len(geometries), size=_NUM_DRAWS)]
    codes |= dict(zip(("tm", "tn", "wm", "wn", "bm", "bn"), rows.T, strict=True))
    codes["layout"] = np.full(_NUM_DRAWS, layout)
    for name, values in (fixed or {}).items():
        codes[name] = random.choice([VALUES[name].index(value) for value in values], _NUM_DRAWS)
    are_given = ~np.isin(codes["reduction"], [VALUES["reduction"].index(name) for name in ("none", "chunks")])
    codes["split_k"] = np.where(are_given, np.maximum(codes["split_k"], 1), 0)
    text = LAYOUTS[layout]
    gemm = Gemm(4096, 4096, 4096, trans_a=text[0] == "T", trans_b=text[1] == "T")
    legal = np.arange(_NUM_DRAWS)  # each rule looks at what those before it left: soon that is little
    for rule in (rule for rule in RULES if rule.kind in ("template", "device")):
        columns = {name: np.array(VALUES[name])[codes[name][legal]] for name in rule.needs}
        legal = legal[np.broadcast_to(rule.holds(SimpleNamespace(**columns), _LIMITS, gemm), legal.shape)]
    return np.stack([codes[name][legal] for name in NAMES], axis=1)


def _work(pool: np.ndarray) -> np.ndarray:
    """What an instance costs to emulate, roughly: its tile and its threads."""
    bm, bn, wm, wn, slice_k = (
        np.array(VALUES[name])[pool[:, NAMES.index(name)]] for name in ("bm", "bn", "wm", "wn", "slice_k")
    )
    return bm * bn + 32 * (bm // wm) * (bn // wn) * slice_k * 16


def _row_groups(c: Any) -> Any:
    """Rank among the values of `row_groups`."""
    groups = c.bm // c.tm
    return (groups & (groups - 1)) != 0


def _staging(c: Any, gemm: Gemm, activation: Any) -> Any:
    """Rank among the values of `staging`, as kernels/config.cuh has it."""
    is_short = (c.vec_c < resources.chunk_n(c)) | np.isin(activation, LONG_ACTIVATIONS)
    has_rows = (c.reduction == "cluster") | (~np.isin(c.reduction, PLANES) & is_short)
    row = resources.staged_bytes(c)
    room = np.maximum(resources.main_smem_bytes(c, gemm), row)
    at_once = np.max([d * ((c.tm % d == 0) & (d * row <= room)) for d in range(1, 17)], axis=0)
    return has_rows * (1 + (at_once < c.tm))


@functools.cache
def _pool(seed: int) -> np.ndarray:
    """Codes of legal instances of all layouts; shape (rows, NAMES). Only lanes that share out k go deep."""
    random = np.random.default_rng(seed)
    geometries, fixed = _geometries(), {"bk": tuple(bk for bk in VALUES["bk"] if bk != _DEEPEST)}
    return np.concatenate([_draw(random, geometries, layout, fixed) for layout in range(len(LAYOUTS))])


def covering_instances(seed: int = 1) -> list[Instance]:
    """The list: every value of every parameter, all pairs of `PAIRED`, all of `GROUPS`."""
    groups = [*((name,) for name in NAMES), *itertools.combinations(PAIRED, 2), *GROUPS]
    return _covering(_pool(seed), groups)


def covering_dots(seed: int = 1) -> list[Instance]:
    """Kernels whose lanes share out k, some of them for batches: all of `DOT_GROUPS`."""
    random, geometries = np.random.default_rng(seed), _geometries(lanes=1)
    fixed = {
        "stages": (1,), "flush_k": (0,), "copy_a": ("register",), "copy_b": ("register",),
        "frag_buffers": (1,), "bursts": (1,), "bk": (4, 8, 32, _DEEPEST),
    }  # fmt: skip
    drawn = [_draw(random, geometries, layout, fixed) for layout in range(len(LAYOUTS))]
    pool = np.concatenate(drawn)
    bm, bn, bk = (np.array(VALUES[name])[pool[:, NAMES.index(name)]] for name in ("bm", "bn", "bk"))
    pool = pool[bm * bn * bk <= _MOST_DOTS]
    is_batched = random.integers(2, size=len(pool))
    plain = np.zeros((len(pool), len(VARIED) - 1), dtype=np.int64)
    return _covering(np.column_stack([pool, is_batched, plain]), list(DOT_GROUPS))


@kept
def covering_variants() -> list[Instance]:
    """Kernels of batches and epilogues: every value of `VARIED`, all of `VARIED_GROUPS`."""
    random, pool = np.random.default_rng(1), _pool(1)
    bn, flush_k, reduction = (
        np.array(VALUES[name])[pool[:, NAMES.index(name)]] for name in ("bn", "flush_k", "reduction")
    )
    pool = pool[np.isin(bn, _NARROW) & ((flush_k == 0) | (reduction == "chunks"))]
    variants = [random.integers(len(VARIED[name]), size=len(pool)) for name in list(VARIED)[:4]]
    c = SimpleNamespace(**{p.name: np.array(p.values)[pool[:, NAMES.index(p.name)]] for p in PARAMETERS})
    staging = np.empty(len(pool), int)
    for code, layout in enumerate(LAYOUTS):
        gemm = Gemm(4096, 4096, 4096, layout[0] == "T", layout[1] == "T")
        rows = _staging(c, gemm, np.array(ACTIVATIONS)[variants[2]])
        staging = np.where(pool[:, NAMES.index("layout")] == code, rows, staging)
    pool = np.column_stack([pool, *variants, staging, _row_groups(c)])
    is_plain = np.all([column == 0 for column in variants], axis=0)
    return _covering(pool[~is_plain], [*((name,) for name in VARIED), *VARIED_GROUPS, ("staging", "bn")])


@kept
def all_instances() -> list[Instance]:
    """What the template is run with, here and under compute-sanitizer."""
    return [*TYPICAL, *covering_instances(), *covering_variants(), *covering_dots()]


@functools.cache
def with_each_value() -> frozenset[int]:
    """Numbers of instances that between them have every value of all that `VALUES` and `VARIED` know of, but
    for the sides of blocks, which follow from their warps' and their number, and splits, known at launch."""
    follow = ("bm", "bn", "split_k")
    valued = [each.values().items() for each in all_instances()]
    shown = [frozenset(one for one in values if one[0] not in follow) for values in valued]
    unseen, numbers = frozenset[tuple[str, int | str]]().union(*shown), set[int]()
    while unseen:
        best = max(range(len(shown)), key=lambda number: len(shown[number] & unseen))
        numbers.add(best)
        unseen -= shown[best]
    return frozenset(numbers)


def _covering(pool: np.ndarray, names: list[tuple[str, ...]]) -> list[Instance]:
    """Instances of the pool that between them show all that it has of these names together."""
    weight = (2048 + _work(pool)) ** -0.5
    groups = [tuple(map(_ALL_NAMES.index, group)) for group in names]
    keys = np.stack([_key(pool, group) for group in groups], axis=1)
    unseen = [np.isin(np.arange(keys[:, g].max() + 1), keys[:, g]) for g in range(len(groups))]
    chosen = []
    gain = np.full(len(pool), len(groups))  # how many groups of a row's values are yet unseen
    while any(flags.any() for flags in unseen):
        best = int(np.argmax(gain * weight))
        chosen.append(_instance_of(pool[best]))
        for g, flags in enumerate(unseen):
            if flags[keys[best, g]]:
                flags[keys[best, g]] = False
                gain -= keys[:, g] == keys[best, g]
    return chosen


def _key(pool: np.ndarray, group: tuple[int, ...]) -> np.ndarray:
    """One number per row for its values at the columns of a group."""
    key = pool[:, group[0]]
    for column in group[1:]:
        key = key * len(_ALL[_ALL_NAMES[column]]) + pool[:, column]
    return key


def _instance_of(codes: np.ndarray) -> Instance:
    """Of codes of `NAMES`, and of `VARIED` where they follow."""
    values = {name: _ALL[name][code] for name, code in zip(_ALL_NAMES, codes, strict=False)}
    layout, is_wide = str(values["layout"]), bool(values["is_wide"])
    bias, activation = str(values.get("bias", "none")), str(values.get("activation", "none"))
    return instance(
        layout,
        is_wide=is_wide,
        is_batched=bool(values.get("is_batched")),
        epilogue=Epilogue(bias, activation, bool(values.get("keeps"))),
        **{name: values[name] for name in PARAMETER},
    )
