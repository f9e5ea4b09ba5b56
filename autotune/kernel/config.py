"""One instance of the template in `kernels/`: a frozen record, and what its parameters mean.

A parameter has one name everywhere: `BM` in CUDA, `bm` here, in the database and in JSON.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any, ClassVar, NamedTuple, Self

from ..facts.accuracy_class import STRICT
from ..facts.frozen import frozen
from ..files.errors import UsageError
from ..files.strict import hint
from ..files.words import plain, shown

Value = int | float | str  # floats: of others' kernels alone
_PLAIN = frozenset({int, str})
_REMEMBERED = 1 << 14  # configs
WARP = 32  # threads
PACKED_ORDERS = ("packed_row_snake", "packed_col_snake")


class KernelConfig:
    """What instances of all templates have; their fields are parameters."""

    parameters: ClassVar[dict[str, Parameter]]
    rules: ClassVar[tuple[Any, ...]]  # of rules.py, that they must obey
    main_file: ClassVar[str]  # in `kernels/`
    accuracy: ClassVar[str] = STRICT  # the class of its kernels
    arch: ClassVar[str | None] = None  # what compiles it for a GPU, instead of the GPU's own

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Read a full or partial mapping; missing parameters keep their defaults."""
        return cls(**checked(data, cls.parameters))

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read `bm=64,bn=128,copy_a=async`, or a JSON object; what is missing has its default."""
        return cls.from_dict(values_in(text))

    @classmethod
    def values(cls) -> dict[str, tuple[Value, ...]]:
        """Of parameters, as conditions name them."""
        return {name: one.values for name, one in cls.parameters.items()}

    def to_dict(self) -> dict[str, Any]:
        return dict(vars(self))  # in the order of the fields; dataclasses.asdict would take ten times as long

    @property
    def key(self) -> str:
        """The config as `parse` reads it, every parameter named: its identity in the store."""
        return ",".join(f"{name}={value}" for name, value in vars(self).items())

    def __str__(self) -> str:
        return self.key


@frozen()
class Config(KernelConfig):
    """One instance of the template and how it is launched. Tiles count elements."""

    main_file = "sgemm.cu"
    bm: int = 64
    bn: int = 128
    bk: int = 16
    wm: int = 32
    wn: int = 64
    tm: int = 8
    tn: int = 8
    slice_k: int = 1
    flush_k: int = 0
    bursts: int = 4
    stages: int = 3
    pad: int = 4
    copy_a: str = "async"
    copy_b: str = "async"
    pack_a: int = 0
    pack_b: int = 0
    vec_a: int = 1
    vec_b: int = 4
    vec_c: int = 4
    order: str = "row_snake"
    frag_buffers: int = 1
    unroll_k: int = 16
    min_blocks: int = 4
    edges: str = "predicated"
    raster: str = "n"
    group: int = 1
    reduction: str = "none"
    split_k: int = 1

    def __post_init__(self) -> None:
        if not _PLAIN.issuperset(map(type, vars(self).values())):
            for name, value in self.to_dict().items():
                object.__setattr__(self, name, plain(value))

    @property
    def key(self) -> str:
        return ",".join(f"{name}={getattr(self, name)}" for name in PARAMETER)

    @property
    def kernel(self) -> Config:
        """The config without the parameters of the launch: equal for configs that share a cubin. Those are
        the order of blocks over C, and the number of splits unless they are a cluster."""
        return _kernel(self)

    @property
    def in_any_splits(self) -> Config:
        """Equal for configs that differ only in their number of splits, if that is an argument."""
        return _in_any_splits(self)


@lru_cache(_REMEMBERED)
def _kernel(config: Config) -> Config:
    given = {"none": 1, "chunks": 1, "cluster": config.split_k}
    return replace(config, raster="n", group=1, split_k=given.get(config.reduction, 2))


@lru_cache(_REMEMBERED)
def _in_any_splits(config: Config) -> Config:
    return replace(config, split_k=config.kernel.split_k)


def lanes_k(c: Any) -> Any:
    """Lanes of a warp that divide k, of a Config or columns of configs: 1, or all where the warp tile is a
    single thread tile (kernels/dot_products.cuh)."""
    return 1 + (WARP - 1) * ((c.wm == c.tm) & (c.wn == c.tn))


def threads_along_k(c: Any) -> Any:
    """Threads of a block, in slices and lanes, that divide the k of a sum; of a Config or columns."""
    return c.slice_k * lanes_k(c)


def values_in(text: str) -> Mapping[str, Any]:
    """What `bm=64,bn=128` names, or the same as a JSON object. Raises UsageError."""
    if text.lstrip().startswith("{"):
        try:
            found: Mapping[str, Any] = json.loads(text)
            return found
        except ValueError as error:
            raise UsageError(f"config {text!r} is no JSON: {error}; write bm=64,bn=128") from error
    pairs = [_pair(item) for item in text.split(",") if item.strip()]
    if None in pairs:
        raise UsageError(f"config {text!r}: write name=value pairs, as in bm=64,bn=128")
    values = dict(filter(None, pairs))
    if len(values) < len(pairs):
        raise UsageError(f"config {text!r}: name each parameter once")
    return values


@lru_cache(_REMEMBERED)
def _pair(item: str) -> tuple[str, int | str] | None:
    """Name and value of `bm=64`; None where it has not both. Those of most configs are alike."""
    name, equals, text = item.strip().partition("=")
    if not (equals and name):
        return None
    text = text.strip()
    return name.strip(), int(text) if re.fullmatch("[0-9]{1,9}", text) else text


def checked(data: Mapping[str, Any], parameters: Mapping[str, Parameter]) -> dict[str, Any]:
    """Values of parameters, as Python's own. Raises UsageError for an unknown name or value."""
    is_plain = _PLAIN.issuperset(map(type, data.values()))
    data = dict(data) if is_plain else {name: plain(value) for name, value in data.items()}
    if unknown := sorted(data.keys() - parameters.keys()):
        raise UsageError(f"unknown parameter {shown(unknown[0])} ({hint(str(unknown[0]), parameters)})")
    for name, value in data.items():
        if type(value) not in _PLAIN or value not in parameters[name].values:
            raise UsageError(f"{name} = {value!r}: expected {parameters[name].describe()}")
    return data


class Parameter(NamedTuple):
    """One knob: `values` are those a search may pick, in their natural order."""

    name: str
    values: tuple[Value, ...]
    description: str
    unit: str = ""

    def describe(self) -> str:
        return f"{self.description}, one of {', '.join(map(str, self.values))}"


_EXTENTS = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 256)
_TILES = (*_EXTENTS[:7], 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 256)
_SPLITS = (
    1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 18, 20, 22, 24, 28, 32, 36, 40, 44, 48, 56, 64, 72, 80, 96, 112,
    128, 160, 192, 256,
)  # fmt: skip
PARAMETERS: tuple[Parameter, ...] = (
    Parameter("tm", (1, 2, 4, 6, 8, 12, 16), "rows of C per thread (TM)", "elements"),
    Parameter("tn", (1, 2, 4, 6, 8, 12, 16), "columns of C per thread (TN)", "elements"),
    Parameter("wm", _EXTENTS,
              "rows of C per warp; with wn, of one thread where lanes share out k", "elements"),
    Parameter("wn", _EXTENTS, "columns of C per warp", "elements"),
    Parameter("bm", _TILES, "rows of C per block (BM)", "elements"),
    Parameter("bn", _TILES, "columns of C per block (BN)", "elements"),
    Parameter("bk", (4, 8, 16, 32, 64, 128),
              "depth of k per pipeline stage (BK), or per lane that shares it", "elements"),
    Parameter("slice_k", (1, 2, 4, 8), "warp groups of a block that share out bk", "groups"),
    Parameter("unroll_k", (4, 8, 16, 32, 64), "k steps unrolled in the inner loop", "steps"),
    Parameter("frag_buffers", (1, 2), "register buffers per operand fragment", "buffers"),
    Parameter("edges", ("exact", "predicated"), "whether tiles may hang over the edge of C"),
    Parameter("pack_a", (0, 1), "whether A is copied by k, then m, before the product"),
    Parameter("pack_b", (0, 1), "whether B is copied by k, then n, before the product"),
    Parameter("vec_a", (1, 2, 4), "elements of A per copy from global memory", "elements"),
    Parameter("vec_b", (1, 2, 4), "elements of B per copy from global memory", "elements"),
    Parameter("vec_c", (1, 2, 4), "elements of C per access to global memory", "elements"),
    Parameter("copy_a", ("register", "async"), "path of A to shared memory (async: cp.async)"),
    Parameter("copy_b", ("register", "async"), "path of B to shared memory (async: cp.async)"),
    Parameter("stages", (1, 2, 3, 4, 5, 6, 8), "tiles of A and B held in shared memory", "tiles"),
    Parameter("bursts", (1, 2, 4, 8), "parts in which a tile's copies start, spread over its k", "parts"),
    Parameter("flush_k", (0, 256, 512, 1024, 2048),
              "k after which sums move on to sums in shared memory, or the next split begins; 0 never",
              "steps"),
    Parameter("pad", (0, 1, 2, 4, 8), "floats after each shared row of a K-major operand", "elements"),
    Parameter("min_blocks", (1, 2, 3, 4, 5, 6, 8), "blocks per SM that registers must allow", "blocks"),
    Parameter("order", ("row", "row_snake", "col_snake", "zigzag", "pair_snake", *PACKED_ORDERS),
              "order of the unrolled FMAs over the thread tile; packed: two of them in an instruction"),
    Parameter("raster", ("m", "n"), "direction in which blocks walk over C"),
    Parameter("group", (1, 2, 4, 8, 16), "tiles walked across before the next step along", "tiles"),
    Parameter("reduction", ("none", "two_pass", "last_block", "last_wave", "cluster", "chunks"),
              "how partial sums of split-K are added; last_wave splits only tiles that fill no whole wave, "
              "cluster adds through distributed shared memory, chunks are splits of flush_k"),
    Parameter("split_k", _SPLITS, "blocks that share out k", "blocks"),
)  # fmt: skip
PARAMETER = Config.parameters = {p.name: p for p in PARAMETERS}


def brief(point: Mapping[str, Any] | None) -> str:
    """A config in one short word for tables: `64x128x16 8x8 s3 async ...`; others' points whole."""
    if point is None:
        return "-"
    try:
        c = Config.from_dict(dict(point))
        is_whole = set(point) == set(PARAMETER)
    except UsageError:  # of another kernel, or of another version of this one
        is_whole = False
    if not is_whole:
        return ",".join(f"{name}={value}" for name, value in point.items())
    split = f" split_k={c.split_k}" if c.split_k > 1 else ""
    slices = f" slice_k={c.slice_k}" if c.slice_k > 1 else ""
    flush = f" flush_k={c.flush_k}" if c.flush_k else ""
    how = "lanes along k" if lanes_k(c) > 1 else f"stages={c.stages} {c.order}"
    packed = "".join(f" {name}" for name in ("pack_a", "pack_b") if getattr(c, name))
    return f"{c.bm}x{c.bn}x{c.bk} {c.tm}x{c.tn} {how}{slices}{flush}{split}{packed}"
