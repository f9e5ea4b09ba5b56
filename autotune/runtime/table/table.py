"""The exported table: its kernels, the GPU they are for, and their times on the tuned shapes.

A folder holds `table.json`, the cubins (gpu_models.py) and a little Python. The reader trusts nothing: a
newer schema, a missing field, a wrong type, a number out of bounds, a config that the kernel's rules forbid,
a dangling reference, one changed byte raises DispatchError. Launch parameters are not stored: they follow
from the config.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields, replace
from operator import attrgetter
from pathlib import Path
from typing import Annotated, Any

from ...facts.accuracy_class import STRICT, held_by
from ...facts.device import DeviceLimits, Environment
from ...facts.frozen import frozen
from ...facts.gemm import FP32 as FP32_TYPE
from ...facts.gemm import MAX_EXTENT, TYPED_LAYOUTS, Gemm, layout_of
from ...files import folder_files, strict
from ...files.errors import DispatchError, UsageError
from ...files.folder_files import MAX_CUBIN_BYTES, MAX_TABLE_BYTES, read_file
from ...files.strict import Within
from ...files.words import counted
from ...kernel import identity
from ...kernel.config import Config
from ...kernel.launch import PLAIN, Epilogue, LaunchSpec, Variant
from ...kernel.mma_config import MmaConfig
from ...kernel.resources import MAX_REGISTERS, ConfigColumns, launch_specs, values_of
from ...kernel.scaled_config import AnyConfig, HalvesConfig, ScaledConfig
from ...kernel.summation_order import most_k
from ...kernel.tensor_config import TF32X3, TensorConfig
from ...perf_model.model_figures import ModelFigures
from . import soundness

FORMAT = "autotune dispatch table"
SCHEMA_VERSION = 21  # soundness.py says how earlier ones differ
NUM_EXTENTS = 3  # m, n and k
TABLE_FILE = "table.json"
CUBIN_FILE = "cubins.gz"
_HINT = "export the table again with `autotune export-table`"

_EXAMPLES = {  # by layout, and whether for batches
    (layout, is_batched): Gemm.of_layout(layout, 1, 1, 1, 2 if is_batched else 1)
    for layout in TYPED_LAYOUTS
    for is_batched in (False, True)
}

TimeUs = Annotated[float, Within(1e-6, 1e12)]
Ratio = Annotated[float, Within(0, 1e12)]
Share = Annotated[float, Within(0, 1)]
Count = Annotated[int, Within(1, 1 << 31)]
Extent = Annotated[int, Within(1, MAX_EXTENT)]
CubinBytes = Annotated[int, Within(1, MAX_CUBIN_BYTES)]


@frozen()
class KernelRecord:
    """A kernel as in `table.json`: no derived value except its residency."""

    id: str
    config: AnyConfig
    variant: Variant
    sha256: str  # of the cubin
    code_bytes: CubinBytes  # of the cubin
    packed_bytes: CubinBytes | None  # of it in the file of all cubins; None: it has not been written
    registers: Annotated[int, Within(1, MAX_REGISTERS)]  # per thread
    blocks_per_sm: Annotated[int, Within(1, 1 << 12)]  # resident at a time
    model: ModelFigures | None
    # the model's error for its launches (perf_model/launch_errors.py): weights as float32, little endian, in
    # hexadecimal digits; "" without
    missed: str

    @property
    def accuracy(self) -> str:
        """Its class."""
        return self.config.accuracy

    @property
    def layout(self) -> str:
        return layout_of(self.variant)

    @property
    def is_plain(self) -> bool:
        """Whether it has no epilogue. Others are never picked: a call that asks for an epilogue is served by
        the variant of the plain kernel that is."""
        return self.variant.epilogue == PLAIN

    @property
    def example(self) -> Gemm:
        """A problem of its layout and kind, for figures that depend on these only."""
        return _EXAMPLES[self.layout, self.variant.is_batched]


KERNEL_LISTS: dict[str, type[AnyConfig]] = {  # in `table.json`, by the template
    "kernels": Config,
    "tensor_kernels": TensorConfig,
    "mma_kernels": MmaConfig,
    "scaled_kernels": ScaledConfig,
    "halves_kernels": HalvesConfig,
}


def _record_of(kind: type[AnyConfig]) -> type[KernelRecord]:
    """The record of a kernel whose config is of this template."""
    declared = {"__annotations__": {"config": kind.__name__}, "__module__": __name__}
    return frozen()(type(f"{kind.__name__}Record", (KernelRecord,), declared))


_RECORDS = {name: _record_of(kind) for name, kind in KERNEL_LISTS.items()}
_RECORDED = attrgetter(*(one.name for one in fields(KernelRecord)))


@frozen()
class Kernel(KernelRecord):
    """One launchable kernel. Kernels that differ in what `Config.kernel` leaves out share a cubin."""

    spec: LaunchSpec
    source_hash: str  # that its cubin names

    @property
    def identity(self) -> str:
        """The name of the kernel that its cubin states, "" if it states none."""
        return identity.of(self.source_hash, self.config, self.variant)


def launchable(
    record: KernelRecord,
    limits: DeviceLimits,
    source_hash: str,
    max_workspace: int | None = None,
    order: str | None = None,
) -> Kernel:
    """A kernel, what it is compiled from and how it is launched on this GPU model, by a table with this limit
    and order."""
    if not isinstance(record.config, Config):
        spec = record.config.launch_spec(record.variant, limits)
        spec = replace(spec, max_workspace=max_workspace)
        made: Callable[..., Kernel] = Kernel
        return made(*_RECORDED(record), spec, source_hash)
    columns = ConfigColumns(values_of([record.config]))
    return all_launchable([record], columns, limits, source_hash, max_workspace, order)[0]


def all_launchable(
    records: Sequence[Any],
    columns: ConfigColumns,
    limits: DeviceLimits,
    source_hash: str,
    max_workspace: int | None = None,
    order: str | None = None,
) -> tuple[Kernel, ...]:
    """The same for many strict ones, whose configs are also given as columns: the only source of a table's
    specs and identities."""
    by_epilogue: dict[Epilogue, list[int]] = {}
    for place, record in enumerate(records):
        by_epilogue.setdefault(record.variant.epilogue, []).append(place)
    specs: dict[int, LaunchSpec] = {}
    for places in by_epilogue.values():
        kinds = [(records[place].config, records[place].variant) for place in places]
        found = launch_specs(kinds, columns.at(places), limits)
        if max_workspace is not None or order is not None:
            found = [
                replace(spec, max_workspace=max_workspace, max_k=most_k(config, order))
                for spec, (config, _) in zip(found, kinds, strict=True)
            ]
        specs.update(zip(places, found, strict=True))
    made: Callable[..., Kernel] = Kernel  # mypy does not count fields that come from a tuple
    return tuple(made(*_RECORDED(record), specs[place], source_hash) for place, record in enumerate(records))


@frozen()
class CublasFigures:
    """What is known of cuBLAS on one layout (perf_model/cublas_model.py): shapes and weights as in
    `Kernel.missed`, m, n and k of the shapes, of batches and their products, as unsigned integers of 32 bits,
    little endian."""

    version: str  # of the cuBLAS that was timed
    places: str
    weights: str
    level: Annotated[float, Within(-20, 20)]
    deviation: Annotated[float, Within(0, 20)]
    tile_apart: Annotated[float, Within(0, 20)]


@frozen()
class RankedKernel:
    """How a kernel did on a tuned shape. `is_tied`: it cannot be told apart from the best of its class."""

    kernel: str
    time_us: TimeUs
    is_tied: bool


@frozen()
class Entry:
    """One tuned shape, or a batch, and its kernels, best first; those of a batch serve batches alone.
    `cublas_us` is None where cuBLAS was absent; `adding_us`, of cuBLAS as torch has it add a vector to each
    row, where it was not timed so."""

    gemm: Gemm
    cublas_us: TimeUs | None
    ranked: tuple[RankedKernel, ...]
    adding_us: TimeUs | None = None


@frozen()
class AgainstCublas:
    """How fast shapes of one group are: geometric means over cuBLAS, and shares of those that are slower
    (below 0.98 times cuBLAS); by the kernels that are picked, and as served, `by_cublas` of them by it."""

    num_shapes: Count
    kernels: Ratio
    kernels_slower: Share
    served: Ratio
    served_slower: Share
    by_cublas: Share


@frozen()
class HeldOut:
    """How shapes are served that were left out when kernels were chosen and modelled, as the exporter found
    it (docs/decisions/0045). Speeds are geometric means; 0 if no chosen kernel serves one of the shapes."""

    group: str  # a kind of shape, a layout, or all
    num_shapes: Count
    portfolio: Ratio  # of the best kernel chosen, over that of the best of all
    pick: Ratio  # of the kernel that the model picks, over that of the best chosen
    first: Ratio  # of the best of the first four that it picks, over the same
    cublas: AgainstCublas | None  # on those whose times of cuBLAS are known


@frozen()
class Table:
    """All that `table.json` holds. `defaults` maps each layout to a kernel that serves any call."""

    made_by: str
    created_at: str  # ISO, UTC
    source_hash: str  # of the kernel's source text, or of the oldest text with the same code
    compiler: str
    policy: str  # cold or warm caches while timing
    policy_version: Annotated[int, Within(0, 1 << 31)]
    environment: Environment
    limits: DeviceLimits
    # of the measured GPU, at the export; None: it was elsewhere, or does not report it
    power_limit_w: Annotated[float, Within(0, 1e6)] | None
    kernels: tuple[Kernel, ...]
    places: dict[
        str, tuple[tuple[Extent, Extent, Extent], ...]
    ]  # m, n, k that kernels of a layout were timed on
    levels: dict[str, str]  # of each of these, as `Kernel.missed` (LaunchErrors.level)
    defaults: dict[str, str]
    cublas: dict[str, CublasFigures]  # by layout; of those where enough is known
    cublas_adding: dict[str, CublasFigures]  # the same, as torch has it add a vector to each row
    cublas_batched: dict[str, CublasFigures]  # the same of strided batches
    entries: tuple[Entry, ...]
    left_out: tuple[HeldOut, ...] = ()  # of no shape where too few were timed
    epilogues: tuple[Epilogue, ...] = ()  # that each plain kernel has a variant with: some have more
    # bytes that a launch may take for packed copies and partial sums; None: WORKSPACE_LIMIT of each
    max_workspace: Annotated[int, Within(0, 1 << 40)] | None = None
    order: str | None = None  # in which all kernels sum (kernel/summation_order.py); None: each in its own
    accuracy: str = STRICT  # the widest class that it serves (facts/accuracy_class.py)
    tensor_source_hash: str = ""  # of the text of its kernels on tensor cores, if it has any

    def __repr__(self) -> str:
        return (
            f"Table({self.environment.gpu_name}: {counted(len(self.entries), 'tuned shape')}, "
            f"{counted(len(self.kernels), 'kernel')}{f' of order {self.order}' if self.order else ''}, "
            f"exported {self.created_at})"
        )

    def for_class(self, accuracy: str) -> Table:
        """As it serves a class: without kernels of wider ones. Raises DispatchError if it is not for it."""
        if accuracy == self.accuracy:
            return self
        if accuracy not in held_by(self.accuracy):
            raise DispatchError(
                f"the table for {self.environment.gpu_name} serves accuracy {self.accuracy}, not {accuracy}; "
                f"run `autotune search --accuracy {accuracy}` and export it with `--accuracy {accuracy}`"
            )
        held = held_by(accuracy)
        kernels = tuple(kernel for kernel in self.kernels if kernel.accuracy in held)
        names = {kernel.id for kernel in kernels}
        entries = (
            replace(entry, ranked=tuple(one for one in entry.ranked if one.kernel in names))
            for entry in self.entries
        )
        return replace(
            self,
            kernels=kernels,
            entries=tuple(entry for entry in entries if entry.ranked),
            accuracy=accuracy,
            tensor_source_hash="",
        )

    def for_batches(self) -> dict[tuple[str, Any], Kernel]:
        """Plain kernels for batches, by layout and config."""
        return {(k.layout, k.config): k for k in self.kernels if k.variant.is_batched and k.is_plain}

    def plain_ids(self) -> dict[str, str]:
        """For each kernel with an epilogue the id of the first one that is the same without."""
        first: dict[Any, str] = {}
        for kernel in self.kernels:
            if kernel.is_plain:
                first.setdefault((kernel.config, kernel.variant), kernel.id)
        return {
            kernel.id: first[kernel.config, replace(kernel.variant, epilogue=PLAIN)]
            for kernel in self.kernels
            if not kernel.is_plain
        }

    @property
    def is_recorded(self) -> bool:
        """Whether the times come from a recording, not from the GPU of this machine."""
        return self.environment.is_recorded

    @property
    def recorded_on(self) -> str:
        return self.environment.recorded_on


def load(folder: Path) -> Table:
    """Read and check `table.json` of an exported folder. Raises DispatchError."""
    path = folder / TABLE_FILE
    try:
        return parse(read_file(path, MAX_TABLE_BYTES, _HINT).decode("utf-8"), str(path))
    except FileNotFoundError:
        raise DispatchError(f"no {TABLE_FILE} in {folder}; pass a folder made by export-table") from None
    except UnicodeDecodeError as error:
        raise DispatchError(f"{path} is damaged: not UTF-8 text; {_HINT}") from error


def parse(text: str, where: str = TABLE_FILE) -> Table:
    """A table from its text. `where` is for messages. Raises DispatchError."""
    try:
        data = strict.parse(text)
        _check_head(data, where)
        folder_files.verify(text, data.get("checksum"))
        body = {name: value for name, value in data.items() if name not in _HEAD}
        return _read(body, data["schema_version"])
    except strict.NewerVersion as error:
        advice = "use the autotune that wrote it, or the Python module inside the folder"
        raise DispatchError(f"{where} has {error}; {advice}") from error
    except (strict.Mismatch, UsageError, UnicodeEncodeError) as error:
        raise DispatchError(f"{where} is damaged: {error}; {_HINT}") from error


_LACKING: dict[str, Any] = {  # what older tables may lack
    "left_out": [],
    "max_workspace": None,
    "order": None,
}
_WITH_CLASSES = 13  # the first schema that knows classes of accuracy
_BEFORE_CLASSES: dict[str, Any] = {"accuracy": STRICT, "tensor_source_hash": "", "tensor_kernels": []}
_WITH_SCHEMES = 14  # the first whose kernels on tensor cores name theirs
_WITH_TYPES = 15  # the first whose kernels and shapes name the type of A
_WITH_SHARES = 16  # the first whose kernels of chunks know of sums that blocks hand over
_WITH_MMA = 17  # the first that may hold kernels on tensor cores without warpgroups
_WITH_BIAS = 18  # the first that tells what cuBLAS takes as it adds a bias
_BY_LAUNCH = 19  # the first whose kernels' errors are by launch: of others none are read
_WITH_BATCHES = 20  # the first that tells what cuBLAS takes for batches
_WITH_RANGE = 21  # the first that may hold kernels on scaled operands
_HEAD = ("format", "schema_version", "checksum")


def _check_head(data: Any, where: str) -> None:
    if type(data) is not dict or data.get("format") != FORMAT:
        raise DispatchError(f"{where} is not a dispatch table; pass a folder made by export-table")
    version = data.get("schema_version")
    strict.check_version(version, SCHEMA_VERSION, "schema")
    if type(version) is not int or version < 1:
        raise strict.Mismatch("its schema_version is no positive number")
    if version < soundness.OLDEST:
        raise DispatchError(
            f"{where} is of schema {version}, and {soundness.OLDEST} is the oldest that this code reads; "
            f"{_HINT}"
        )


def _records(body: dict[str, Any], *lists: str) -> Iterator[dict[str, Any]]:
    """As far as they are any."""
    found = (body.get(one) for one in lists)
    for record in itertools.chain.from_iterable(one for one in found if isinstance(one, list)):
        if isinstance(record, dict):
            yield record


def _name_types(body: dict[str, Any], lists: Sequence[str], name: str) -> None:
    """Have records that are older than types of A name FP32."""
    for record in _records(body, *lists):
        if isinstance(record.get(name), dict):
            record[name].setdefault("a_type", FP32_TYPE)


def _read(body: dict[str, Any], version: int) -> Table:
    """A table from its JSON. Raises Mismatch and UsageError."""
    body = _LACKING | (_BEFORE_CLASSES if version < _WITH_CLASSES else {}) | body
    if version < _WITH_BATCHES:
        body = {"cublas_batched": {}} | body
    if version < _BY_LAUNCH:
        body |= {"places": {}, "levels": {}}
    if version < _WITH_SCHEMES:
        for record in _records(body, "tensor_kernels"):
            if isinstance(record.get("config"), dict):
                record["config"].setdefault("scheme", TF32X3)
    if version < _WITH_TYPES:
        _name_types(body, ("kernels", "tensor_kernels"), "variant")
        _name_types(body, ("entries",), "gemm")
    if version < _WITH_MMA:
        body = {"mma_kernels": []} | body
    if version < _WITH_RANGE:
        body = {"scaled_kernels": [], "halves_kernels": []} | body
    if version < _WITH_BIAS:
        body = {"cublas_adding": {}} | body
        for record in _records(body, "entries"):
            record.setdefault("adding_us", None)
    found = {
        name: strict.read(tuple[kind, ...], body.pop(name, None), f"table.{name}")  # type: ignore[valid-type]
        for name, kind in _RECORDS.items()
    }
    records = found.pop("kernels")
    on_tensor_cores = list(itertools.chain.from_iterable(found.values()))
    table: Table = strict.read(Table, body | {"kernels": []}, "table")
    if version < _BY_LAUNCH:
        records = tuple(replace(one, missed="") for one in records)
    columns = soundness.check_kernels(records, table.limits)
    kernels = all_launchable(
        records, columns, table.limits, table.source_hash, table.max_workspace, table.order
    )
    if version < _WITH_SHARES:
        kernels = tuple(
            replace(one, spec=replace(one.spec, wave=0, num_sms=0)) if one.spec.chunk else one
            for one in kernels
        )
    soundness.check_tensor_kernels(on_tensor_cores, table)
    kernels += tuple(
        launchable(record, table.limits, table.tensor_source_hash, table.max_workspace)
        for record in on_tensor_cores
    )
    table = soundness.without_too_large(replace(table, kernels=kernels), version)
    soundness.check_references(table)
    return table
