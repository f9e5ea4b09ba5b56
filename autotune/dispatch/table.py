"""The exported table: what kernels there are, for whom, and how they did on the tuned shapes.

A folder holds `table.json`, `cubins/<sha256>.cubin` and a little Python. The reader trusts nothing: a
newer schema, a missing field, a wrong type, a reference to nowhere, one changed byte in the table or
in a cubin is a DispatchError. Copied into exported tables: standard library only.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ..device import DeviceLimits, Environment
from ..errors import DispatchError, UsageError
from ..gemm import LAYOUTS, Gemm
from ..launch import LaunchSpec
from . import strict

FORMAT = "autotune dispatch table"
SCHEMA_VERSION = 3  # 1: no kernel packs its operands; 2: none overlaps what runs before it
_LATER = {1: ("packs_a", "packs_b"), 2: ("overlaps",)}  # flags of a spec that came with the schema after
TABLE_FILE = "table.json"
CUBIN_FOLDER = "cubins"
REDUCTIONS = ("none", "two_pass", "last_block", "last_wave", "cluster")
CLUSTER_SIZES = (2, 4, 8)
VECTORS = (1, 2, 4)
_SHA256 = re.compile(r"[0-9a-f]{64}")
_BLANK = "0" * 64  # stands for the table's checksum while that is computed
_AGAIN = "export the table again with `autotune export-table`"


@dataclass(frozen=True)
class ModelFigures:
    """What the time model knows of one kernel (see model.py). Fitted when the table was exported."""

    fixed_us: float  # what any launch costs
    round_us: float  # per k-step of a round of resident blocks, however few
    step_us: float  # per k-step of each block that an SM works through
    memory_efficiency: float  # share of the bandwidth limit that it reaches
    num_samples: int  # measured times behind the fit; 0: those of relatives alone, or figures of thumb
    relative_error: float  # deviation of a modelled time, as far as is known; 0 without a fit


@dataclass(frozen=True)
class Kernel:
    """One launchable kernel. Kernels that differ in `split_k` only share a cubin, but for clusters."""

    id: str
    config: dict[str, int | str]
    spec: LaunchSpec
    sha256: str  # of the cubin
    registers: int  # per thread
    blocks_per_sm: int  # resident at a time
    model: ModelFigures | None

    @property
    def cubin_file(self) -> str:
        return f"{CUBIN_FOLDER}/{self.sha256}.cubin"

    @property
    def layout(self) -> str:
        variant = self.spec.variant
        return ("T" if variant.trans_a else "N") + ("T" if variant.trans_b else "N")


@dataclass(frozen=True)
class RankedKernel:
    """How a kernel did on a tuned shape. `is_tied`: it cannot be told apart from the best."""

    kernel: str
    time_us: float
    is_tied: bool


@dataclass(frozen=True)
class Entry:
    """One tuned shape and its kernels, best first. `cublas_us` is None where cuBLAS was absent."""

    gemm: Gemm
    cublas_us: float | None
    ranked: tuple[RankedKernel, ...]


@dataclass(frozen=True)
class Table:
    """All that `table.json` holds. `defaults` maps each layout to a kernel that serves any call."""

    made_by: str
    created_at: str  # ISO, UTC
    source_hash: str  # of the kernel's source text
    compiler: str
    policy: str  # cold or warm caches while timing
    policy_version: int
    environment: Environment
    limits: DeviceLimits
    kernels: tuple[Kernel, ...]
    defaults: dict[str, str]
    entries: tuple[Entry, ...]

    @property
    def is_recorded(self) -> bool:
        """Whether the times come from a recording, not from the GPU of this machine."""
        return self.environment.is_recorded

    @property
    def recorded_on(self) -> str:
        return self.environment.recorded_on


# ------------------------------------------------------------------------------------------------
# Writing


def render(table: Table) -> str:
    """The text of `table.json`, with a checksum over all of it."""
    head = {"format": FORMAT, "schema_version": SCHEMA_VERSION, "checksum": _BLANK}
    text = json.dumps(head | asdict(table), indent=1, ensure_ascii=False, allow_nan=False) + "\n"
    return text.replace(_BLANK, _digest(text), 1)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


# ------------------------------------------------------------------------------------------------
# Reading


def load(folder: Path) -> Table:
    """Read and check `table.json` of an exported folder. Raises DispatchError."""
    path = folder / TABLE_FILE
    try:
        raw = path.read_bytes()
    except FileNotFoundError:
        raise DispatchError(f"no {TABLE_FILE} in {folder}; pass a folder made by export-table") from None
    except OSError as error:
        raise DispatchError(f"{path} cannot be read ({error}); check its permissions") from error
    try:
        return parse(raw.decode("utf-8"), str(path))
    except UnicodeDecodeError as error:
        raise DispatchError(f"{path} is damaged: not UTF-8 text; {_AGAIN}") from error


def parse(text: str, where: str = TABLE_FILE) -> Table:
    """A table from its text. `where` is for messages. Raises DispatchError."""
    try:
        data = strict.parse(text)
        _check_head(data, where)
        if _digest(text.replace(data["checksum"], _BLANK, 1)) != data["checksum"]:
            raise strict.Misfit("its checksum does not match its content")
        body = {name: value for name, value in data.items() if name not in _HEAD}
        _upgrade(body, data["schema_version"])
        table: Table = strict.read(Table, body, "table")
        _check_meaning(table)
    except (strict.Misfit, UsageError) as error:
        raise DispatchError(f"{where} is damaged: {error}; {_AGAIN}") from error
    return table


_HEAD = ("format", "schema_version", "checksum")


def _check_head(data: Any, where: str) -> None:
    if type(data) is not dict or data.get("format") != FORMAT:
        raise DispatchError(f"{where} is not a dispatch table; pass a folder made by export-table")
    version = data.get("schema_version")
    if type(version) is int and version > SCHEMA_VERSION:
        raise DispatchError(
            f"{where} has schema {version}, newer than {SCHEMA_VERSION}, which this code reads; "
            "use the autotune that wrote it, or the Python module inside the folder"
        )
    if type(version) is not int or version < 1:
        raise strict.Misfit(f"schema_version is {version!r}")
    checksum = data.get("checksum")
    if type(checksum) is not str or not _SHA256.fullmatch(checksum):
        raise strict.Misfit("it has no checksum")


def _upgrade(body: dict[str, Any], version: int) -> None:
    """Says of an older schema's kernels what went without saying. What is no kernel is left to be refused."""
    unsaid = {name: False for schema, names in _LATER.items() if schema >= version for name in names}
    kernels = body.get("kernels")
    for kernel in kernels if type(kernels) is list else ():
        spec = kernel.get("spec") if type(kernel) is dict else None
        if type(spec) is dict:
            kernel["spec"] = unsaid | spec


def _require(is_right: bool, fault: str) -> None:
    if not is_right:
        raise strict.Misfit(fault)


def _check_meaning(table: Table) -> None:
    """What types cannot say: references lead somewhere, sizes are sizes, defaults serve anything."""
    kernels = {kernel.id: kernel for kernel in table.kernels}
    _require(len(kernels) == len(table.kernels), "two kernels share an id")
    _require(len({entry.gemm for entry in table.entries}) == len(table.entries), "a shape stands twice")
    _require(table.environment.compute_capability == table.limits.compute_capability,
             "environment and limits are of different GPUs")  # fmt: skip
    _require(table.limits.num_sms > 0 and table.limits.fma_tflops > 0 and table.limits.bandwidth_gbs > 0,
             "the limits of the GPU are not positive")  # fmt: skip
    for kernel in table.kernels:
        _check_kernel(kernel)
        _require(not kernel.spec.overlaps or table.limits.has_dependent_launch,
                 f"kernel {kernel.id!r} overlaps others, which its GPU cannot")  # fmt: skip
    _check_defaults(table, kernels)
    for entry in table.entries:
        _check_entry(entry, kernels)


def _check_defaults(table: Table, kernels: dict[str, Kernel]) -> None:
    _require(sorted(table.defaults) == sorted(LAYOUTS), "not every layout has a default kernel")
    for layout, name in table.defaults.items():
        _require(name in kernels, f"the default {name!r} is no kernel of the table")
        _require(kernels[name].layout == layout, f"the default {name!r} is not of layout {layout}")
        _require(is_universal(kernels[name].spec), f"the default {name!r} does not serve every call")
        is_modelled = any(k.model is not None for k in table.kernels if k.layout == layout)
        _require(kernels[name].model is not None or not is_modelled,
                 f"the default {name!r} has no model to compete with the others of {layout}")  # fmt: skip


def is_universal(spec: LaunchSpec) -> bool:
    """Whether a kernel serves any extents, leading dimensions and addresses, without a workspace."""
    vectors = (spec.vec_a, spec.vec_b, spec.vec_c)
    needs_workspace = spec.reduction != "none" or spec.packs_a or spec.packs_b
    return not spec.is_exact and spec.variant.is_wide and vectors == (1, 1, 1) and not needs_workspace


def _check_kernel(kernel: Kernel) -> None:
    spec, where = kernel.spec, f"kernel {kernel.id!r}"
    sizes = (spec.bm, spec.bn, spec.bk, spec.threads, spec.split_k, kernel.registers, kernel.blocks_per_sm)
    _require(min(sizes) >= 1 and spec.smem_bytes >= 0, f"{where} has a size that is not positive")
    _require({spec.vec_a, spec.vec_b, spec.vec_c} <= set(VECTORS), f"{where} has an odd vector width")
    _require(spec.reduction in REDUCTIONS, f"{where} has an unknown reduction")
    _require((spec.split_k > 1) == (spec.reduction != "none"), f"{where} splits k without a reduction")
    is_sized = spec.reduction != "cluster" or spec.split_k in CLUSTER_SIZES
    _require(is_sized, f"{where} has a cluster of {spec.split_k} blocks")
    _require((spec.wave > 0) == (spec.reduction == "last_wave"), f"{where} has a wave without last_wave")
    _require(_SHA256.fullmatch(kernel.sha256) is not None, f"{where} has no SHA-256 of its cubin")
    if kernel.model is not None:
        model = kernel.model
        figures = (model.fixed_us, model.round_us, model.step_us, model.relative_error, model.num_samples)
        _require(min(figures) >= 0, f"{where} has a negative figure in its model")
        _require(0 < model.memory_efficiency <= 1, f"{where} has a memory efficiency outside 0 ... 1")


def _check_entry(entry: Entry, kernels: dict[str, Kernel]) -> None:
    where = f"the entry of {entry.gemm}"
    _require(bool(entry.ranked), f"{where} is empty")
    for ranked in entry.ranked:
        kernel = kernels.get(ranked.kernel)
        if kernel is None:
            raise strict.Misfit(f"{where} names {ranked.kernel!r}, which is no kernel of the table")
        _require(kernel.layout == entry.gemm.layout, f"{where} names a kernel of another layout")
        _require(ranked.time_us > 0, f"{where} holds a time that is not positive")


def load_cubins(folder: Path, table: Table) -> dict[str, bytes]:
    """The code of every cubin of a table by its SHA-256, checked against it. Raises DispatchError."""
    return {sha: load_cubin(folder, sha) for sha in _distinct(k.sha256 for k in table.kernels)}


def _distinct(items: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(items))


def load_cubin(folder: Path, sha256: str) -> bytes:
    """The code of one cubin. Raises DispatchError if it is missing or damaged."""
    path = folder / CUBIN_FOLDER / f"{sha256}.cubin"
    try:
        code = path.read_bytes()
    except OSError as error:
        raise DispatchError(f"{path} cannot be read ({error}); {_AGAIN}") from error
    if hashlib.sha256(code).hexdigest() != sha256:
        raise DispatchError(f"{path} is damaged: its SHA-256 is not {sha256[:12]}...; {_AGAIN}")
    return code
