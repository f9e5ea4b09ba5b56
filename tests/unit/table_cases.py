"""Tables, and a driver without a GPU, for the tests of the dispatcher.

The driver's device memory is the host's: its kernels compute with NumPy from the arguments that a launch
passes, and check what a real kernel relies on: alignment, whole tiles, counters that are zero.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import math
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import accumulate, product
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest

from autotune.export import manifest
from autotune.export.package import packed, render, write_folder
from autotune.facts.device import Conditions, DeviceLimits, Environment, known_limits
from autotune.facts.gemm import LAYOUTS, SINGLE, Batch, Gemm
from autotune.kernel import identity, resources
from autotune.kernel.config import Config
from autotune.kernel.launch import (
    PACK_SMEM_BYTES,
    PACK_THREADS,
    PACK_TILE,
    REDUCE_THREADS,
    SCHEDULE_WORDS,
    Epilogue,
    Grid,
    LaunchSpec,
    Variant,
    packed_floats,
    plan,
    rejection,
    schedule,
)
from autotune.kernel.resources import launch_spec
from autotune.kernel.scaled_config import OnTensorCores
from autotune.kernel.summation_order import reference
from autotune.kernel.tensor_config import TensorConfig
from autotune.perf_model.launches import Launches, Shapes, grids
from autotune.perf_model.model_figures import Depths, ModelFigures
from autotune.perf_model.sum_depths import Sums
from autotune.perf_model.time_model import Speeds, TimeModel, modelled_us
from autotune.runtime.launch.cuda_driver import CudaFault, GraphNode, KernelFacts
from autotune.runtime.launch.devices import DEFAULT_SMEM
from autotune.runtime.native import core
from autotune.runtime.settle import choices
from autotune.runtime.table.table import Entry, Kernel, RankedKernel, Table, load

# Who chooses and launches: the core, or Python without it, which must do the same: that is for `make stress`.
LIMITS = known_limits("h200")
ENVIRONMENT = Environment("NVIDIA H200", "GPU-0", (9, 0), "580.1", "13.0", "13.4", "13.1")
FIGURES = ModelFigures(2.5, 0.1, 0.5, 0.8, 3, 0.02)
STICKY_CODE = 700
FIRST_POOL = 7000  # handle of the pool of GPU 0
SOURCE, TENSOR_SOURCE = "5" * 64, "7" * 64


# Legal in every layout, packed or not, with any vectors and any split of k; it needs more than 48 KB.
CONFIG = Config(
    bm=64, bn=64, bk=16, wm=32, wn=32, tm=4, tn=8, stages=8, pad=0, bursts=1, copy_a="register",
    copy_b="register", vec_a=1, vec_b=1, vec_c=1, min_blocks=1,
)  # fmt: skip


def make_spec(layout: str = "NN", **changes: Any) -> LaunchSpec:
    """How CONFIG is launched on an H200, but for some fields. What it is of survives a folder if these are
    only of what a config chooses: `config_of` finds it."""
    gemm = Gemm(1, 1, 1, layout[0] == "T", layout[1] == "T")
    return replace(launch_spec(CONFIG, gemm, LIMITS), **changes)


def config_of(spec: LaunchSpec) -> Config:
    """The relative of CONFIG that is launched like this, if there is one."""
    same = {name: getattr(spec, name) for name in ("bm", "bn", "bk", "vec_a", "vec_b", "vec_c")}
    return replace(
        CONFIG, **same, edges="exact" if spec.is_exact else "predicated", pack_a=int(spec.packs_a),
        pack_b=int(spec.packs_b), reduction=spec.reduction, split_k=spec.split_k, group=spec.group,
        raster="m" if spec.is_along_m else "n", flush_k=spec.chunk,
    )  # fmt: skip


def code_of(kernel: Kernel) -> bytes:
    """Stands for its cubin: like one it says what it is."""
    return marked(kernel.identity, f"code of {kernel.id}")


def marked(name: str, code: str) -> bytes:
    return f"{code} {identity.MARK}{name}\0".encode()


CUBE = Gemm(512, 512, 512)


def with_tensor_kernel(
    table: Table, config: OnTensorCores | None = None, *, time_us: float = 1.0, gemm: Gemm = CUBE
) -> Table:
    """The table with a kernel on tensor cores, as it is exported for its class of accuracy: the fastest on
    this shape."""
    config = config or TensorConfig()
    variant = Variant(gemm.trans_a, gemm.trans_b, is_batched=gemm.is_batched, a_type=gemm.a_type)
    resident = resources.residency(config, table.limits, gemm, 128)
    spec = resources.launch_spec(config, gemm, table.limits)
    kernel = Kernel("tensor", config, variant, "", 1, 1, 128, resident, None, "", spec, TENSOR_SOURCE)
    code = code_of(kernel)
    sizes = {"code_bytes": len(code), "packed_bytes": len(packed(code))}
    kernel = replace(kernel, sha256=hashlib.sha256(code).hexdigest(), **sizes)
    (entry,) = [one for one in table.entries if one.gemm == gemm] or [Entry(gemm, None, ())]
    entry = replace(entry, ranked=(RankedKernel("tensor", time_us, True), *entry.ranked))
    others = tuple(one for one in table.entries if one.gemm != gemm)
    return replace(
        table, kernels=(*table.kernels, kernel), entries=(*others, entry),
        accuracy=kernel.accuracy,
        tensor_source_hash=TENSOR_SOURCE,
    )  # fmt: skip


def make_kernel(kernel_id: str, spec: LaunchSpec, model: ModelFigures | None = FIGURES) -> Kernel:
    config = config_of(spec)
    kernel = Kernel(kernel_id, config, spec.variant, "", 1, 1, 128, 3, model, "", spec, SOURCE)
    code = code_of(kernel)
    sizes = {"code_bytes": len(code), "packed_bytes": len(packed(code))}
    return replace(kernel, sha256=hashlib.sha256(code).hexdigest(), **sizes)


def with_epilogues(table: Table, *epilogues: Epilogue) -> Table:
    """The table with each kernel once more for each epilogue, as an export has it."""
    added = []
    for kernel, one in product(table.kernels, epilogues):
        spec = launch_spec(
            kernel.config, kernel.example, LIMITS, is_wide=kernel.variant.is_wide, epilogue=one
        )
        changed = replace(kernel.spec, variant=spec.variant, smem_bytes=spec.smem_bytes)
        added.append(make_kernel(f"{kernel.id}-{one}", changed, None))
    return replace(table, kernels=(*table.kernels, *added), epilogues=epilogues)


def expected_us(kernel: Kernel, gemm: Gemm, limits: DeviceLimits) -> float:
    """What the model says of a kernel, in its own number of splits."""
    assert kernel.model is not None
    launches, shape = Launches.of([kernel.spec], [kernel.blocks_per_sm]), Shapes.of(gemm)
    todo = TimeModel(launches, limits).work(shape, grids(launches, shape))
    return float(modelled_us(Speeds.of([kernel.model]), todo)[0])


def depth(config: Config, gemm: Gemm) -> float:
    """How deep one kernel sums products of zero mean."""
    return float(depths(config, gemm).zero_mean)


def depths(config: Config, gemm: Gemm) -> Depths:
    """How deep one kernel sums the products of one shape."""
    found = Sums.of([config]).depths(config.split_k, gemm)
    return Depths(*(float(depth[0]) for depth in found))


def make_table(*kernels: Kernel, entries: tuple[Entry, ...] = (), **changes: Any) -> Table:
    """A table of these kernels and, for each layout, a default `default-nn`, ... that is slow."""
    slow = replace(FIGURES, step_us=5.0)
    wide = {x: Variant(x[0] == "T", x[1] == "T", is_wide=True) for x in LAYOUTS}
    defaults = [make_kernel(f"default-{x.lower()}", make_spec(variant=wide[x]), slow) for x in LAYOUTS]
    table = Table(
        made_by="autotune test", created_at="2026-11-21T00:00:00+00:00", source_hash=SOURCE,
        compiler="nvrtc 13.4", policy="cold", policy_version=1, environment=ENVIRONMENT, limits=LIMITS,
        power_limit_w=700.0, kernels=(*kernels, *defaults), places={}, levels={},
        defaults={x: f"default-{x.lower()}" for x in LAYOUTS}, entries=entries, cublas={}, cublas_adding={},
        cublas_batched={},
    )  # fmt: skip
    return replace(table, **changes)


def rank(gemm: Gemm, *kernel_ids: str) -> Entry:
    ranked = tuple(RankedKernel(name, 10.0 + i, True) for i, name in enumerate(kernel_ids))
    return Entry(gemm, 13.0, ranked)


def write_table(table: Table, folder: Path) -> Path:
    return write_folder(table, {kernel.sha256: code_of(kernel) for kernel in table.kernels}, folder)


def write_older(table: Table, version: int, folder: Path) -> Path:
    """A folder whose table says that it is of an earlier schema."""
    write_table(table, folder)
    (folder / "table.json").write_text(older_text(load(folder), version), encoding="utf-8")
    list_anew(folder)
    return folder


def list_anew(folder: Path) -> None:
    """Its manifest, of the files that it holds now."""
    paths = (path for path in folder.rglob("*") if path.is_file() and path.name != "manifest.json")
    files = {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}
    (folder / "manifest.json").write_bytes(manifest.render(files))


def slices(folder: Path) -> dict[str, slice]:
    """Where the packed cubins are in the file of a table, by their SHA-256."""
    sizes = {kernel.sha256: kernel.packed_bytes for kernel in load(folder).kernels}
    ends = accumulate(sizes.values())
    return {name: slice(end - sizes[name], end) for name, end in zip(sizes, ends, strict=True)}


def put_packed(folder: Path, sha256: str, content: bytes) -> None:
    """Put other bytes in the place of a packed cubin, with a table that tells their number."""
    path, at = folder / "cubins.gz", slices(folder)[sha256]
    whole = path.read_bytes()
    path.write_bytes(whole[: at.start] + content + whole[at.stop :])
    tree = json.loads((folder / "table.json").read_text(encoding="utf-8"))
    for kernel in tree["kernels"]:
        if kernel["sha256"] == sha256:
            kernel["packed_bytes"] = len(content)
    (folder / "table.json").write_text(sign(tree), encoding="utf-8")


def older_text(table: Table, version: int) -> str:
    """The text of a table that says that it is of an earlier schema."""
    tree = json.loads(render(table)) | {"schema_version": version}
    if version < 21:
        del tree["scaled_kernels"], tree["halves_kernels"]
    if version < 17:
        del tree["mma_kernels"]
    for record in tree["tensor_kernels"]:
        if version < 14:
            del record["config"]["scheme"]
    types = [record["variant"] for record in (*tree["kernels"], *tree["tensor_kernels"])]
    types += [entry["gemm"] for entry in tree["entries"]]
    for one in types if version < 15 else ():
        del one["a_type"]
    if version < 18:
        del tree["cublas_adding"]
        for entry in tree["entries"]:
            del entry["adding_us"]
    if version < 19:
        del tree["levels"]
    if version < 20:
        del tree["cublas_batched"]
    return sign(tree)


def sign(tree: dict[str, Any], instead: Mapping[str, str] = MappingProxyType({})) -> str:
    """The text of a changed table with a checksum that fits: only its meaning can be wrong. `instead` has
    pieces of the text that are replaced by what no tree can hold."""
    text = json.dumps(tree | {"checksum": "0" * 64}, indent=1) + "\n"
    for piece, other in instead.items():
        text = text.replace(piece, other, 1)
    return text.replace("0" * 64, hashlib.sha256(text.encode()).hexdigest(), 1)


@dataclass(frozen=True)
class Launch:
    """One launch, as the driver saw it."""

    kernel_id: str
    name: str
    grid: tuple[int, int]
    stream: int
    context: int
    overlaps: bool


def matrix_at(address: int, rows: int, columns: int, ld: int) -> np.ndarray[Any, Any]:
    """The matrix at a (host) address."""
    if not (rows and columns):
        return np.zeros((rows, columns), np.float32)
    count = (rows - 1) * ld + columns
    flat = np.ctypeslib.as_array(ctypes.cast(address, ctypes.POINTER(ctypes.c_float)), (count,))
    return np.lib.stride_tricks.as_strided(flat, (rows, columns), (4 * ld, 4))


def short_at(address: int, rows: int, columns: int, ld: int, a_type: str) -> np.ndarray[Any, Any]:
    """What a matrix of elements of two bytes holds, as floats."""
    if not (rows and columns):
        return np.zeros((rows, columns), np.float32)
    count = (rows - 1) * ld + columns
    flat = np.ctypeslib.as_array(ctypes.cast(address, ctypes.POINTER(ctypes.c_uint16)), (count,))
    bits = np.lib.stride_tricks.as_strided(flat, (rows, columns), (2 * ld, 2))
    if a_type == "bf16":
        return (bits.astype(np.uint32) << 16).view(np.float32)
    return bits.view(np.float16).astype(np.float32)


_I, _F, _Q = ctypes.c_int32, ctypes.c_float, ctypes.c_int64
_EPILOGUE = 5 * _Q


class _BatchArgument(ctypes.Structure):
    _fields_ = (("a", _Q), ("b", _Q), ("c", _Q), ("products", _I))

    @property
    def value(self) -> Batch:
        return Batch(self.products, self.a, self.b, self.c)


_SCHEDULE = ctypes.c_uint32 * SCHEDULE_WORDS
_PACK = (_I, _I, _Q, _Q, _I, _Q, _I, _I, _Q)
_SGEMM = (_I, _I, _I, _F, _Q, _Q, _Q, _Q, _F, _Q, _Q, _Q, _I, _SCHEDULE, _BatchArgument, _EPILOGUE)
_UPCAST = (_Q, _Q, _Q, _Q, _I, _I, _I)
_REDUCE = (_I, _I, _F, _F, _Q, _Q, _Q, _I, _I, _I, _I, _I, _Q, _EPILOGUE)


def _arguments(address: int, types: tuple[Any, ...]) -> list[Any]:
    """Copies: what is passed may be used for something else as soon as the call returns."""
    pointers = ctypes.cast(address, ctypes.POINTER(ctypes.c_void_p))
    copies = [
        t.from_buffer_copy(ctypes.string_at(pointers[i], ctypes.sizeof(t))) for i, t in enumerate(types)
    ]
    return [getattr(copy, "value", copy) for copy in copies]


def activated(x: np.ndarray[Any, Any], activation: str | None) -> np.ndarray[Any, Any]:
    """In float64."""
    if activation == "relu":
        return np.where(x < 0, 0.0, x)
    if activation == "gelu":
        return 0.5 * x * (1 + np.vectorize(math.erf, otypes=[float])(x / math.sqrt(2)))
    if activation == "gelu_tanh":
        return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
    return x


def _store(
    c: np.ndarray[Any, Any],
    product: np.ndarray[Any, Any],
    alpha: float,
    beta: float,
    epilogue: Epilogue,
    words: Any,
) -> None:
    """As a kernel that is compiled with an epilogue: what it reads of that is there, and nothing else."""
    bias, *others = words
    assert not any(others) and epilogue.bias in ("none", "columns") and not epilogue.keeps
    assert bool(bias) == (epilogue.bias == "columns") and bias % 4 == 0
    found = alpha * product + (beta * c if beta else 0)
    if bias:
        found = found + matrix_at(bias, 1, c.shape[1], c.shape[1])
    c[...] = activated(found, epilogue.activation)


class _LaunchConfig(ctypes.Structure):
    """CUlaunchConfig."""

    _fields_ = (
        *((name, ctypes.c_uint32) for name in ("x", "y", "z", "threads", "threads_y", "threads_z")),
        ("smem_bytes", ctypes.c_uint32), ("stream", ctypes.c_uint64), ("attributes", ctypes.c_void_p),
        ("num_attributes", ctypes.c_uint32),
    )  # fmt: skip


def calls_of(driver: FakeDriver) -> Any:
    """What the core calls instead of the driver of CUDA. What fails there fails with a CUresult here."""

    def put(address: int, value: int) -> None:
        ctypes.c_uint64.from_address(address).value = value

    def launch(at_config: int, kernel: int, arguments: int, _: int) -> None:
        config = _LaunchConfig.from_address(at_config)
        assert (config.z, config.threads_y, config.threads_z) == (1, 1, 1)
        assert bool(config.attributes) == bool(config.num_attributes)
        grid, overlaps = (config.x, config.y), config.num_attributes == 1
        driver.launch(kernel, grid, config.threads, config.smem_bytes, config.stream, arguments, overlaps)

    def exchange(at_mode: int) -> None:
        """The mode of a thread is how deep it is in `relaxed`: 0 (global) without."""
        mode = ctypes.c_int.from_address(at_mode)
        before, driver.loading_depth = driver.loading_depth, int(mode.value == 2)
        mode.value = 2 if before else 0

    def is_capturing(stream: int, at_status: int) -> None:
        ctypes.c_int.from_address(at_status).value = int(driver.is_capturing(stream))

    def make_pool(at_pool: int, at_properties: int) -> None:
        allocation, _, kind, device = (ctypes.c_int32 * 4).from_address(at_properties)
        assert (allocation, kind) == (1, 1)
        put(at_pool, FIRST_POOL + device)

    def set_pool(pool: int, attribute: int, at_value: int) -> None:
        assert attribute == 4
        driver.make_pool(pool - FIRST_POOL, ctypes.c_uint64.from_address(at_value).value)

    def capture_info(stream: int, at_status: int, at_id: int, at_graph: int, *nodes: int) -> None:
        assert not any(nodes)
        ctypes.c_int.from_address(at_status).value = int(driver.is_capturing(stream))
        put(at_id, driver.graph)
        put(at_graph, driver.graph)

    def make_user_object(at: int, of: int, at_end: int, references: int, flags: int) -> None:
        assert (references, flags) == (1, 1)
        put(at, driver.make_user_object(partial(ctypes.CFUNCTYPE(None, ctypes.c_void_p)(at_end), of)))

    def retain(graph: int, made: int, references: int, flags: int) -> None:
        assert (references, flags) == (1, 1)
        driver.retain(graph, made)

    def elapsed(at: int, first: int, last: int) -> None:
        ctypes.c_float.from_address(at).value = driver.elapsed_us(first, last) / 1e3

    actions: dict[str, Callable[..., None]] = {
        "current_context": lambda at: put(at, driver.current_context()),
        "push_context": driver.push_context,
        "pop_context": lambda _: driver.pop_context(),
        "launch": launch,
        "stream_id": lambda stream, at: put(at, driver.stream_id(stream)),
        "is_capturing": is_capturing,
        "exchange_capture_mode": exchange,
        "make_pool": make_pool,
        "set_pool": set_pool,
        "allocate": lambda at, size, pool, stream: put(at, driver.allocate(size, stream, pool)),
        "free": driver.free,
        "zero": lambda address, value, size, stream: driver.zero(address, size, stream),
        "allocate_now": lambda at, size: put(at, driver.allocate_now(size)),
        "capture_info": capture_info,
        "make_user_object": make_user_object,
        "retain_user_object": retain,
        "release_user_object": lambda made, _: driver.end(made),
        "make_event": lambda at, flags: put(at, driver.make_event()),
        "free_event": lambda event: driver.free_event(event),
        "record_event": lambda event, stream: driver.record_on(event, stream),
        "query_event": lambda event: driver.query_event(event),
        "elapsed": elapsed,
        "query_stream": lambda stream: driver.query_stream(stream),
    }
    struct = core.loaded().structs.driver
    kinds = dict(struct._fields_)
    return struct(**{name: kinds[name](_guarded(action)) for name, action in actions.items()})


unexpected: list[BaseException] = []  # what the core was told as an error, which it may not pass on


def _guarded(action: Callable[..., None]) -> Callable[..., int]:
    def call(*arguments: int | None) -> int:
        try:
            action(*(argument or 0 for argument in arguments))
        except CudaFault as fault:
            return fault.code
        except BaseException as fault:
            traceback.print_exc()
            unexpected.append(fault)
            return 999
        return 0

    return call


def isolated(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A cache of this test alone, whose folder of choices is returned. No option for settling is set."""
    monkeypatch.setenv("AUTOTUNE_CACHE", str(tmp_path / "cache"))
    for name in ("AUTOTUNE_SETTLE", "AUTOTUNE_CHOICES"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path / "cache" / choices.FOLDER


def inexact(product: np.ndarray[Any, Any], error: float) -> np.ndarray[Any, Any]:
    """With errors of this size, relative to all of it (Frobenius)."""
    if not error:
        return product
    noise = np.random.default_rng(product.size).standard_normal(product.shape)
    return np.asarray(product + noise * error * np.sqrt(np.mean(product * product)))


@dataclass
class FakeDriver:
    """Stands in for dispatch.driver.Driver. GPU i has context 100 + i; 0 means none."""

    table: Table
    names: tuple[str, ...] = ("NVIDIA H200", "NVIDIA H200", "NVIDIA T4")
    capturing: frozenset[int] = frozenset()
    streams: dict[int, int] = field(default_factory=dict)  # handle -> GPU, 0 if not listed
    places: dict[int, int] = field(default_factory=dict)  # address -> GPU, 0 if not listed
    refused_code: int = 0  # error that loading a cubin meets
    launch_error: int = 0
    external: dict[str, Any] = field(default_factory=dict)  # conditions that are not the table's
    code_facts: dict[str, Any] = field(default_factory=dict)  # of each function, that are not the table's
    kernel_us: dict[str, float] = field(default_factory=dict)  # of a launch, 100 if not listed
    loading_us: dict[str, float] = field(default_factory=dict)  # what the first launch takes besides
    num_free_bytes: int = 1 << 36
    result_error: float = 0.0  # added to every element of every product
    errors: dict[str, float] = field(default_factory=dict)  # relative ones, as large as rounding's, by kernel
    summed: str = ""  # the order of sums, bit by bit; "": in float64
    nodes: list[GraphNode] = field(default_factory=list)  # that cuBLAS gives to a captured stream
    graph: int = 1  # that all captured streams are captured into
    rejections: frozenset[str] = frozenset()  # calls for what a graph keeps that fail
    launches: list[Launch] = field(default_factory=list)
    workspaces: list[int] = field(default_factory=list)  # of these, without those that pack or reduce
    log: list[tuple[Any, ...]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._contexts = threading.local()
        self.memory: dict[int, np.ndarray[Any, Any]] = {}
        self._kernels: dict[int, tuple[Kernel, str]] = {}
        self._codes: dict[int, bytes] = {}
        self.clock_us, self.upcasts = 0.0, set[int]()
        self.handles: dict[int, Any] = {}  # streams, events and graphs of the runtime's own
        self._context_of: dict[int, int] = {}  # of events
        self._captured: dict[int, list[Callable[[], None]]] = {}  # by stream
        self.allowed_smem: dict[tuple[int, int], int] = {}
        self._user_objects: dict[int, Callable[[], None]] = {}
        self._held: dict[int, list[int]] = {}  # user objects of each graph

    def of(self, name: str) -> list[tuple[Any, ...]]:
        return [entry for entry in self.log if entry[0] == name]

    @property
    def loading_depth(self) -> int:
        """How often this thread has begun to load or to take memory."""
        return int(getattr(self._contexts, "loading_depth", 0))

    @loading_depth.setter
    def loading_depth(self, depth: int) -> None:
        self._contexts.loading_depth = depth

    @property
    def core_calls(self) -> Any:
        """The same for the core."""
        if not hasattr(self, "_core_calls"):
            self._core_calls = calls_of(self)
        return self._core_calls

    # Devices and contexts

    def num_devices(self) -> int:
        return len(self.names)

    def device_name(self, device: int) -> str:
        return self.names[device]

    def compute_capability(self, device: int) -> tuple[int, int]:
        return (7, 5) if "T4" in self.names[device] else (9, 0)

    def version(self) -> str:
        return "12.4"

    def conditions(self, device: int) -> Conditions:
        message = Conditions(self.names[device], LIMITS.num_sms, "13.0", ENVIRONMENT.driver_version, 700.0)
        return message._replace(**self.external)

    def primary_context(self, device: int) -> int:
        return 100 + device

    @property
    def context_stack(self) -> list[int]:
        if not hasattr(self._contexts, "stack"):
            self._contexts.stack = []
        return self._contexts.stack

    def current_context(self) -> int:
        return self.context_stack[-1] if self.context_stack else 0

    def push_context(self, context: int) -> None:
        if not 0 <= context - 100 < len(self.names):
            raise CudaFault("making a context current", 201, "CUDA_ERROR_INVALID_CONTEXT")
        self.context_stack.append(context)

    def pop_context(self) -> None:
        if not self.context_stack:
            raise CudaFault("restoring a context", 201, "CUDA_ERROR_INVALID_CONTEXT")
        self.context_stack.pop()

    def current_device(self) -> int | None:
        return self.current_context() - 100 if self.context_stack else None

    def pointer_device(self, address: int) -> int:
        return self.places.get(address, 0)

    # Kernels

    @contextmanager
    def relaxed(self) -> Iterator[None]:
        self.loading_depth += 1
        try:
            yield
        finally:
            self.loading_depth -= 1

    def load_library(self, code: bytes) -> int:
        assert self.loading_depth
        self.log.append(("load", code))
        if self.refused_code:
            raise CudaFault("loading a cubin", self.refused_code, "REFUSED")
        self._codes[len(self._codes) + 1] = code
        return len(self._codes)

    def get_kernel(self, library: int, name: str) -> int:
        if name == "upcast":
            assert self._codes[library].startswith(b".version") and self._codes[library].endswith(b"}\n\0")
            self.upcasts.add(10 * library + 5)
            return 10 * library + 5
        sha256 = hashlib.sha256(self._codes[library]).hexdigest()
        kernel = next(k for k in self.table.kernels if k.sha256 == sha256)
        handle = 10 * library + ("sgemm", "sgemm_reduce", "sgemm_pack").index(name)
        self._kernels[handle] = (kernel, name)
        return handle

    def kernel_facts(self, kernel: int, device: int, *, has_clusters: bool) -> KernelFacts:
        assert self.loading_depth and has_clusters
        record, name = self._kernels[kernel]
        spec = record.spec
        threads = {"sgemm": spec.threads, "sgemm_reduce": REDUCE_THREADS, "sgemm_pack": PACK_THREADS}[name]
        is_cluster = name == "sgemm" and spec.reduction == "cluster"
        cluster = (1, spec.split_k, 1) if is_cluster else (0, 0, 0)
        return KernelFacts(threads, record.registers, 0, cluster)._replace(**self.code_facts.get(name, {}))

    def allow_smem(self, kernel: int, num_bytes: int, device: int) -> None:
        self.allowed_smem[kernel, device] = num_bytes

    def make_resident(self, kernel: int) -> None:
        assert self.loading_depth and self.current_context()

    def launch(self, kernel: int, grid: tuple[int, int], threads: int, smem_bytes: int, stream: int,
               arguments: int, overlaps: bool) -> None:  # fmt: skip
        if self.launch_error:
            raise CudaFault("launching a kernel", self.launch_error, "FAILED")
        device = self.current_context() - 100
        assert device >= 0, "launched without a context"
        record, name = self._kernels.get(kernel, (None, "upcast"))
        if record is None:
            assert kernel in self.upcasts and (threads, smem_bytes, overlaps) == (256, 0, False)
            play = partial(self._upcast, grid, *_arguments(arguments, _UPCAST))
        elif name == "sgemm":
            assert (threads, smem_bytes) == (record.spec.threads, record.spec.smem_bytes)
            assert self.allowed_smem.get((kernel, device), DEFAULT_SMEM) >= smem_bytes
            # Kernels that differ in split_k only share this code (not clusters): a launch says which it is.
            assert record.spec.reduction != "cluster" or record.spec.split_k == grid[1]
            error = self.errors.get(record.id, 0.0)
            play = partial(self._sgemm, record.spec, error, grid, _arguments(arguments, _SGEMM))
        elif name == "sgemm_pack":
            assert (threads, smem_bytes) == (PACK_THREADS, PACK_SMEM_BYTES)
            play = partial(self._pack, record.spec.pack_depth, grid, *_arguments(arguments, _PACK))
        else:
            added = record.spec.variant.epilogue
            play = partial(self._reduce, added, grid, *_arguments(arguments, _REDUCE))
        launch = Launch(record.id if record else "", name, grid, stream, self.current_context(), overlaps)
        self._enqueue(stream, partial(self._run, launch, play))

    def _enqueue(self, stream: int, play: Callable[[], object]) -> None:
        """Now, or each time that the graph which the stream is captured into runs."""
        if stream in self._captured:
            self._captured[stream].append(play)
        else:
            play()

    def _run(self, launch: Launch, play: Callable[[], None]) -> None:
        self.launches.append(launch)
        self.clock_us += self.kernel_us.get(launch.kernel_id, 100.0 if launch.kernel_id else 0.0)
        self.clock_us += self.loading_us.pop(launch.kernel_id, 0.0)
        play()

    def _sgemm(self, spec: LaunchSpec, error: float, grid: tuple[int, int], arguments: list[Any]) -> None:
        m, n, k, alpha, a, lda, b, ldb, beta, c, ldc, workspace, splits, *rest = arguments
        walk, batch, epilogue = rest
        assert spec.variant.is_batched == (batch.products > 1)
        assert batch.products > 1 or batch == SINGLE
        spec = spec if spec.chunk else replace(spec, split_k=splits)
        read = (a, b, c) if alpha and k else (0, 0, c)
        assert rejection(spec, m, n, k, (lda, ldb, ldc), read, batch) is None
        planned = plan(spec, m, n, k, batch)
        assert grid == planned.size
        assert tuple(walk) == schedule(spec, planned)
        assert (workspace == 0) == (planned.scratch_bytes == 0)
        self.workspaces.append(workspace)
        packed = {pack.is_a: pack for pack in planned.packs}
        assert True not in packed or (lda, a % 16) == (packed[True].padded, 0)
        assert False not in packed or (ldb, b % 16) == (packed[False].padded, 0)
        if planned.sum_bytes:
            matrix_at(workspace, 1, planned.sum_bytes // 4, planned.sum_bytes // 4)[...] = np.nan
        if planned.counter_bytes:
            num = planned.counter_bytes // 4
            counters = matrix_at(workspace + planned.sum_bytes, 1, num, num)
            assert not counters.view(np.uint32).any(), "counters are not zero"
        for i in range(batch.products):
            at_a, at_b, at_c = (at + 4 * i * stride for at, stride in zip((a, b, c), batch[1:], strict=True))
            product = np.full((m, n), self.result_error)
            if alpha:  # else neither A nor B is read
                at = a + 2 * i * batch.stride_a if spec.variant.a_type != "fp32" else at_a, at_b
                product += self._multiplied(spec, packed, (m, n, k), at, (lda, ldb), error)
            if spec.has_planes:
                self._put_sums(planned, workspace, i, product)
            else:
                _store(matrix_at(at_c, m, n, ldc), product, alpha, beta, spec.variant.epilogue, epilogue)

    def _multiplied(
        self, spec: LaunchSpec, packed: Any, extents: Any, at: Any, lds: Any, error: float
    ) -> np.ndarray[Any, Any]:
        (m, n, k), (at_a, at_b), (lda, ldb) = extents, at, lds
        turns_a, a_type = spec.variant.trans_a or True in packed, spec.variant.a_type
        stored = (k, m) if turns_a else (m, k)
        short = a_type != "fp32"
        of_a = short_at(at_a, *stored, lda, a_type) if short else matrix_at(at_a, *stored, lda)
        of_a = of_a.T if turns_a else of_a
        turns_b = spec.variant.trans_b and False not in packed
        of_b = matrix_at(at_b, n, k, ldb).T if turns_b else matrix_at(at_b, k, n, ldb)
        exact = of_a.astype(np.float64) @ of_b.astype(np.float64)
        return reference(of_a, of_b, self.summed) if self.summed else inexact(exact, error)

    @staticmethod
    def _put_sums(planned: Grid, workspace: int, number: int, product: np.ndarray[Any, Any]) -> None:
        """The planes of one product lie behind those of all before it."""
        (m, n), plane = product.shape, planned.padded_m * planned.padded_n
        at = workspace + 4 * number * planned.split_k * plane
        planes = matrix_at(at, planned.split_k * planned.padded_m, planned.padded_n, planned.padded_n)
        planes[...] = np.nan
        for z in range(planned.split_k):
            planes[z * planned.padded_m : z * planned.padded_m + m, :n] = product / planned.split_k

    def _upcast(self, grid: tuple[int, int], at: int, to: int, ld: int, stride: int, rows: int, columns: int,
                is_half: int) -> None:  # fmt: skip
        chunks = -(-columns // 1024)
        products, rest = divmod(grid[0], chunks * rows)
        assert not rest and grid[1] == 1 and bool(stride) == (products > 1)
        self._check_place(to, 4 * rows * columns * products)
        for i in range(products):
            found = short_at(at + 2 * i * stride, rows, columns, ld, "fp16" if is_half else "bf16")
            matrix_at(to + 4 * i * rows * columns, rows, columns, columns)[...] = found

    def _pack(self, depth: int, grid: tuple[int, int], extent: int, k: int, operand: int, ld: int,
              is_k_major: int, to: int, padded: int, blocks: int, stride: int) -> None:  # fmt: skip
        assert blocks == -(-padded // PACK_TILE) * -(-k // PACK_TILE) and grid[0] % blocks == 0 < grid[0]
        products = grid[0] // blocks
        assert bool(stride) == (products > 1)
        floats = packed_floats(depth, k, padded)  # scaled tiles have no scales here
        self._check_place(to, 4 * floats * products)
        for i in range(products):
            packed, at = matrix_at(to + 4 * i * floats, k, padded, padded), operand + 4 * i * stride
            packed[:, extent:] = 0
            packed[:, :extent] = (
                matrix_at(at, extent, k, ld).T if is_k_major else matrix_at(at, k, extent, ld)
            )

    def _reduce(self, added: Epilogue, grid: tuple[int, int], m: int, n: int, alpha: float, beta: float,
                c: int, ldc: int, workspace: int, splits: int, padded_m: int, padded_n: int, group_bits: int,
                blocks: int, stride: int, epilogue: Any) -> None:  # fmt: skip
        assert group_bits in range(5, 9)
        assert blocks == -(-m * n // (1 << group_bits)) and grid[0] % blocks == 0
        for i in range(grid[0] // blocks):
            at = workspace + 4 * i * splits * padded_m * padded_n
            planes = matrix_at(at, splits * padded_m, padded_n, padded_n).reshape(splits, padded_m, padded_n)
            sums = planes[:, :m, :n].sum(axis=0, dtype=np.float64)
            _store(matrix_at(c + 4 * i * stride, m, n, ldc), sums, alpha, beta, added, epilogue)

    # Streams and memory

    def stream_device(self, stream: int) -> int:
        if stream in self.capturing:
            raise CudaFault("device of a stream", 900, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED")
        return self.streams.get(stream, 0)

    def stream_id(self, stream: int) -> int:
        if stream in self.capturing:  # and the capture ends with it (H200, driver 580)
            raise CudaFault("identity of a stream", 900, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED")
        return 1000 + max(stream, 1)

    def is_capturing(self, stream: int) -> bool:
        return stream in self.capturing

    def order(self, before: int, after: int) -> None:
        self.log.append(("order", before, after))

    def make_pool(self, device: int, kept_bytes: int) -> int:
        self.log.append(("make_pool", device, kept_bytes))
        return FIRST_POOL + device

    def allocate(self, num_bytes: int, stream: int, pool: int = 0) -> int:
        space = np.full(num_bytes + 256, 0xFF, np.uint8)  # NaN as floats, not zero as counters
        self._enqueue(stream, partial(space.fill, 0xFF))  # a graph's, each time
        address = -(-space.ctypes.data // 256) * 256
        self.memory[address] = space
        self.log.append(("allocate", address, num_bytes, stream))
        return address

    def allocate_now(self, num_bytes: int) -> int:
        self._may("allocate_now")
        assert self.loading_depth, "a capture would fail"
        address = self.allocate(num_bytes, 0)
        self.log[-1] = ("allocate_now", address, num_bytes)
        return address

    def make_user_object(self, at_end: Callable[[], None]) -> int:
        self._may("make_user_object")
        made = len(self._user_objects) + 1
        self._user_objects[made] = at_end
        return made

    def retain(self, graph: int, made: int) -> None:
        self._may("retain_user_object")
        self._held.setdefault(graph, []).append(made)

    def end(self, made: int) -> None:
        """Of a user object: its last reference is gone."""
        self._user_objects[made]()

    def end_graph(self, graph: int) -> None:
        """Its last executable and copy are destroyed, and have run."""
        for made in self._held.pop(graph, ()):
            self.end(made)

    def _may(self, call: str) -> None:
        if call in self.rejections:
            raise CudaFault(call, 2, "CUDA_ERROR_OUT_OF_MEMORY")

    def free(self, address: int, stream: int) -> None:
        if stream in self._captured:
            self._enqueue(stream, partial(self.memory[address].fill, 0xFF))
        else:
            del self.memory[address]
        self.log.append(("free", address, stream))

    def zero(self, address: int, num_bytes: int, stream: int) -> None:
        self._enqueue(stream, partial(ctypes.memset, address, 0, num_bytes))
        self.log.append(("zero", address, num_bytes, stream))

    def copy_in(self, address: int, host: int, num_bytes: int, stream: int) -> None:
        ctypes.memmove(address, host, num_bytes)
        self.log.append(("copy_in", num_bytes, stream))

    def copy(self, to: int, source: int, num_bytes: int, stream: int) -> None:
        for address in (to, source):
            self._check_place(address, num_bytes)
        ctypes.memmove(to, source, num_bytes)

    def _check_place(self, address: int, num_bytes: int) -> None:
        held = self.memory.copy()  # at once: other threads allocate meanwhile
        places = ((base, base + len(space) - 256) for base, space in held.items())
        assert any(base <= address and address + num_bytes <= end for base, end in places)

    def copy_out(self, host: int, address: int, num_bytes: int, stream: int) -> None:
        ctypes.memmove(host, address, num_bytes)

    def synchronize(self, stream: int) -> None:
        assert stream not in self.capturing, "a wait ends a capture"
        self.log.append(("synchronize", stream))

    def free_bytes(self) -> int:
        assert self.current_context()
        return self.num_free_bytes

    # Timing

    def _make(self, what: Any) -> int:
        self._num_made = getattr(self, "_num_made", 5000) + 1
        self.handles[self._num_made] = what
        return self._num_made

    def make_stream(self) -> int:
        assert self.current_context()
        self.log.append(("make_stream",))
        return self._make("stream")

    def make_event(self) -> int:
        assert self.current_context()
        self._context_of[made := self._make(None)] = self.current_context()  # not recorded yet
        return made

    def free_handle(self, handle: int) -> None:
        del self.handles[handle]

    free_stream = free_event = free_graph = free_handle

    def record(self, event: int, stream: int) -> None:
        assert self.handles[stream] == "stream"
        self.handles[event] = self.clock_us

    def record_on(self, event: int, stream: int) -> None:
        """On a stream of the program's, which is of the current context."""
        if self._context_of[event] != self.current_context():
            raise CudaFault("recording an event", 400, "CUDA_ERROR_INVALID_HANDLE")
        self.handles[event] = self.clock_us

    def query_event(self, event: int) -> None:
        """Raises CudaFault if the GPU has not passed it. An event that was never recorded is passed."""

    def query_stream(self, stream: int) -> None:
        """Raises CudaFault if the GPU works on it."""

    def elapsed_us(self, begin: int, end: int) -> float:
        for event in (begin, end):
            if self.handles[event] is None:
                raise CudaFault("reading events", 400, "CUDA_ERROR_INVALID_HANDLE")
            self.query_event(event)
        return float(self.handles[end] - self.handles[begin])

    def capture(self, stream: int, enqueue: Callable[[], None]) -> int:
        assert self.loading_depth == 1 and self.handles[stream] == "stream"
        captured = self._captured[stream] = []
        try:
            enqueue()
        finally:
            del self._captured[stream]
        return self._make(captured)

    def nodes_of(self, stream: int, enqueue: Callable[[], None]) -> list[GraphNode]:
        """What the cuBLAS of this double would launch: `nodes`."""
        assert self.loading_depth == 1 and self.handles[stream] == "stream"
        enqueue()
        return self.nodes

    def launch_graph(self, graph: int, stream: int) -> None:
        assert self.handles[stream] == "stream"
        for launch in self.handles[graph]:
            launch()


class OnGpu:
    """An array "on a GPU": known by `__cuda_array_interface__` only. `address`: of one without elements."""

    address = 0

    def __init__(
        self, data: np.ndarray[Any, Any], stream: int | None = None, is_read_only: bool = False
    ) -> None:
        self.data = data
        self.stream = stream
        self.is_read_only = is_read_only

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {
            "shape": self.data.shape, "typestr": self.data.dtype.str, "version": 3, "stream": self.stream,
            "data": (self.data.ctypes.data if self.data.size else self.address, self.is_read_only),
            "strides": self.data.strides,
        }  # fmt: skip
