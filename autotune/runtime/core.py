"""The core in C (core/), which chooses among a table's kernels and launches them: its structs, and its calls.

The core is a shared library that is built when autotune is installed and a C compiler is there
(core/build.py). Where it is not, `Selector` and `Engine` do the same in Python, and take longer. Copied into
exported tables.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from .. import column_major
from ..errors import DispatchError
from ..gemm import LAYOUTS
from ..kernel.config import threads_along_k
from ..models import cublas_model, residual, splits, time_model
from . import selector, summation, workspace
from .pick import MAX_PLANS, How
from .table import CublasFigures, Kernel, Table

FOLDER = Path(__file__).resolve().parents[1] / "core"
LIBRARY = "libautotune_core.so"
TABLE_VERSION = 1  # of the structs of core/table.h
HOWS: tuple[How, ...] = ("exact", "modelled", "nearest", "default")  # as core/choice.h numbers them
_REDUCTIONS = ("none", "two_pass", "last_block", "last_wave", "cluster")
# autotune_status
OK, NO_KERNEL, BAD_SCALE, NO_DRIVER, UNKNOWN, CUDA, BLAS, INSTEAD = 0, 1, 5, 6, 7, 1 << 16, 1 << 17, 1 << 18
_INT, _DOUBLE, _TEXT, _ADDRESS = ctypes.c_int32, ctypes.c_double, ctypes.c_char_p, ctypes.c_void_p
_WORD = ctypes.c_uint64


class _Struct(ctypes.Structure):
    @classmethod
    def like(cls, source: Any, **others: Any) -> Any:
        """With the fields that `source` has under the same names, and these."""
        names = [name for name, *_ in cls._fields_ if name not in others and hasattr(source, name)]
        return cls(**{name: getattr(source, name) for name in names}, **others)


class _Kernel(_Struct):
    _fields_ = (
        ("id", _TEXT),
        *((name, _INT) for name in (
            "layout", "code", "bm", "bn", "bk", "threads", "smem_bytes", "vec_a", "vec_b", "vec_c",
            "reduction", "split_k", "wave", "group", "is_exact", "is_wide", "packs_a", "packs_b", "overlaps",
            "is_along_m", "registers", "blocks_per_sm", "flush_k", "threads_along_k", "slices", "has_model",
        )),
        *((name, _DOUBLE) for name in (
            "fixed_us", "round_us", "step_us", "memory_efficiency", "relative_error",
        )),
    )  # fmt: skip


class _Residuals(_Struct):
    _fields_ = (("places", _ADDRESS), ("weights", _ADDRESS), ("num_places", _INT), ("num_rows", _INT))


class _Layout(_Struct):
    _fields_ = (
        ("modelled", _ADDRESS), ("num_modelled", _INT), ("default_kernel", _INT), ("missed", _Residuals),
        ("cublas_version", _TEXT), ("cublas", _Residuals), ("cublas_level", _DOUBLE),
        ("cublas_deviation", _DOUBLE),
    )  # fmt: skip


class _Ranked(_Struct):
    _fields_ = (("kernel", _INT), ("time_us", _DOUBLE))


class _Entry(_Struct):
    _fields_ = (
        *((name, _INT) for name in ("m", "n", "k", "layout", "first", "num_ranked")),
        ("cublas_us", _DOUBLE),
    )


class _Constants(_Struct):
    _fields_ = (
        ("caution", _DOUBLE), ("near_ratio", _DOUBLE), ("num_nearest", _INT),
        *((name, _DOUBLE) for name in (
            "max_error", "chain_share", "splits", "shortest_chain", "least_k", "least_k_of_large",
            "large_elements", "narrow_side", "narrow_depth", "narrow_parts", "dot_side", "dot_depth",
            "prologue_steps", "bandwidth_sms", "launch_us", "launch_apart_us", "cluster_us", "last_block_us",
            "fmas_per_l2_float", "residual_length", "margin", "other_version", "cublas_fixed_us",
            "parts_of_last",
        )),
        *((name, ctypes.c_int64) for name in ("kept_bytes", "pieces_bytes")),
        *((name, _INT) for name in (
            "max_pieces", "launches_to_stay", "max_counted", "max_plans", "blas_math_mode",
        )),
        ("blas_bytes", ctypes.c_int64),
        ("split_values", _ADDRESS), ("num_split_values", _INT),
    )  # fmt: skip


class _Table(_Struct):
    _fields_ = (
        ("version", _INT), ("num_sms", _INT), ("fma_tflops", _DOUBLE), ("bandwidth_gbs", _DOUBLE),
        ("constants", _Constants), ("kernels", _ADDRESS), ("layouts", _Layout * len(LAYOUTS)),
        ("entries", _ADDRESS), ("ranked", _ADDRESS), ("num_kernels", _INT), ("num_entries", _INT),
    )  # fmt: skip


class _Choice(_Struct):
    _fields_ = (
        *((name, _INT) for name in ("how", "kernel", "split_k", "entry", "is_cublas")),
        ("expected_us", _DOUBLE), ("cublas_us", _DOUBLE),
    )  # fmt: skip


Triple = ctypes.c_int64 * 3


class Planned(_Struct):
    """autotune_planned of core/plan.h: what a plan is made of."""

    _fields_ = (
        *((name, _INT) for name in ("m", "n", "k", "layout", "kernel", "split_k", "device", "is_cublas")),
        ("ld", Triple), ("num_bytes", _WORD * 3),
        *((name, _WORD) for name in ("context", "sgemm", "reduce", "pack")),
    )  # fmt: skip


class Kind(_Struct):
    """autotune_kind of core/plan.h: how arrays lie in memory."""

    _fields_ = (
        *((name, Triple) for name in ("rows", "columns", "by_row", "by_column")),
        ("devices", _INT * 3), ("low", ctypes.c_uint32 * 3), ("trans_a", _INT), ("trans_b", _INT),
    )  # fmt: skip


def _call(*arguments: Any) -> Any:
    return ctypes.CFUNCTYPE(ctypes.c_int, *arguments)


class DriverCalls(_Struct):
    """autotune_driver of core/driver.h: what is called of CUDA."""

    _fields_ = (
        ("current_context", _call(_ADDRESS)), ("push_context", _call(_WORD)),
        ("pop_context", _call(_ADDRESS)), ("launch", _call(_ADDRESS, _WORD, _ADDRESS, _ADDRESS)),
        ("stream_id", _call(_WORD, _ADDRESS)),
        ("is_capturing", _call(_WORD, _ADDRESS)), ("exchange_capture_mode", _call(_ADDRESS)),
        ("make_pool", _call(_ADDRESS, _ADDRESS)), ("set_pool", _call(_WORD, ctypes.c_int, _ADDRESS)),
        ("allocate", _call(_ADDRESS, ctypes.c_size_t, _WORD, _WORD)), ("free", _call(_WORD, _WORD)),
        ("zero", _call(_WORD, ctypes.c_ubyte, ctypes.c_size_t, _WORD)),
    )  # fmt: skip


class BlasCalls(_Struct):
    """autotune_blas of core/blas.h: what is called of cuBLAS."""

    _fields_ = (
        ("create", _call(_ADDRESS)), ("set_math_mode", _call(_WORD, ctypes.c_int)),
        ("set_pointer_mode", _call(_WORD, ctypes.c_int)), ("set_stream", _call(_WORD, _WORD)),
        ("set_workspace", _call(_WORD, _WORD, ctypes.c_size_t)),
        ("sgemm", _call(
            _WORD, *5 * [ctypes.c_int], _ADDRESS, _WORD, ctypes.c_int, _WORD, ctypes.c_int, _ADDRESS, _WORD,
            ctypes.c_int,
        )),
    )  # fmt: skip


class PythonCalls(_Struct):
    """autotune_python of core/tensors.h: what is called of Python."""

    _fields_ = tuple((name, _ADDRESS) for name in ("save_thread", "restore_thread", "clear_error"))

    @classmethod
    def of_this_process(cls) -> Any:
        names = ("PyEval_SaveThread", "PyEval_RestoreThread", "PyErr_Clear")
        return cls(*(ctypes.cast(getattr(ctypes.pythonapi, name), _ADDRESS).value for name in names))


_STRUCTS = (
    _Kernel, _Residuals, _Layout, _Ranked, _Entry, _Table, _Choice, Planned, Kind, DriverCalls, BlasCalls,
)  # fmt: skip
_RUN = [_ADDRESS, _ADDRESS, _WORD, _WORD, _WORD, _WORD, _DOUBLE, _DOUBLE]
# Of autotune_multiply, which is called with Python's lock held
EXCHANGE_SIGNATURE: list[Any] = [*3 * [_ADDRESS], *3 * [ctypes.py_object], _DOUBLE, _DOUBLE, _INT, _INT]
_SIGNATURES: dict[str, list[Any]] = {
    "autotune_open": [_ADDRESS, _ADDRESS],
    "autotune_close": [_ADDRESS],
    "autotune_choose": [_ADDRESS, *4 * [_INT], Triple, Triple, _TEXT, _ADDRESS],
    "autotune_use_driver": [_ADDRESS, _ADDRESS],
    "autotune_use_blas": [_ADDRESS, _ADDRESS],
    "autotune_make_plan": [_ADDRESS, _ADDRESS, _ADDRESS],
    "autotune_release_plan": [_ADDRESS],
    "autotune_run_plan": _RUN,
    "autotune_launch_plan": [*_RUN, _WORD],
    "autotune_remember": [_ADDRESS, _ADDRESS, _ADDRESS],
    "autotune_forget": [_ADDRESS],
}


class CoreChoice(NamedTuple):
    """What the core chose: numbers of a kernel and of an entry of the table, -1 for none; 0 for times that
    are not known."""

    how: How
    kernel: int
    split_k: int
    entry: int
    is_cublas: bool
    expected_us: float
    cublas_us: float


@cache
def library() -> Any:
    """The library of this folder; None where it was not built, or not for such a machine, or from other
    sources than these."""
    try:
        found = ctypes.CDLL(str(FOLDER / LIBRARY))
        sizes = (ctypes.c_uint32 * len(_STRUCTS)).in_dll(found, "autotune_struct_bytes")
    except (OSError, ValueError):
        return None
    if list(sizes) != [ctypes.sizeof(struct) for struct in _STRUCTS]:
        return None
    for name, types in _SIGNATURES.items():
        getattr(found, name).argtypes = types
    return found


def core_of(table: Table) -> Core | None:
    """The core for a table; None where there is no library."""
    found = library()
    return None if found is None else Core(table, found)


class Core:
    """A handle on the core for one table. Threads may share it. Raises DispatchError where the core does not
    take the table."""

    def __init__(self, table: Table, library: Any) -> None:
        self.library, self._kept = library, _Kept()
        self._at_table = self._kept.of([_table(table, self._kept)])
        handle = ctypes.c_void_p()
        if status := library.autotune_open(self._at_table, ctypes.byref(handle)):
            raise DispatchError(f"the core takes no table of version {TABLE_VERSION} (status {status})")
        self.handle = handle.value

    def __del__(self) -> None:
        if handle := getattr(self, "handle", None):
            self.library.autotune_close(handle)

    def choose(
        self,
        extents: tuple[int, int, int],
        layout: str,
        lds: tuple[int, int, int],
        addresses: tuple[int, int, int],
        cublas_version: str | None,
    ) -> CoreChoice | None:
        """For a product with m and n at least 1; None where even the default kernel is not legal."""
        found, version = _Choice(), cublas_version and cublas_version.encode()
        status = self.library.autotune_choose(
            self.handle, LAYOUTS.index(layout), *extents, Triple(*lds), Triple(*addresses), version,
            ctypes.byref(found),
        )  # fmt: skip
        if status == NO_KERNEL:
            return None
        if status:
            raise DispatchError(f"the core refuses {extents} with leading dimensions {lds}: status {status}")
        return CoreChoice(
            HOWS[found.how], found.kernel, found.split_k, found.entry, bool(found.is_cublas),
            found.expected_us, found.cublas_us,
        )  # fmt: skip


class _Kept:
    """Memory that a table's arrays lie in, as long as the table is open."""

    def __init__(self) -> None:
        self._arrays: list[Any] = []

    def of(self, structs: Sequence[Any]) -> int | None:
        """The address of these, one behind the other; none of none."""
        return self.memory((type(structs[0]) * len(structs))(*structs)) if structs else None

    def memory(self, found: Any) -> int | None:
        """The address of bytes, or of a ctypes array."""
        if isinstance(found, bytes):
            found = ctypes.create_string_buffer(found, len(found)) if found else None
        self._arrays.append(found)
        return None if found is None else ctypes.addressof(found)


def _table(table: Table, kept: _Kept) -> Any:
    at = {kernel.id: number for number, kernel in enumerate(table.kernels)}
    codes = {sha256: number for number, sha256 in enumerate({k.sha256: None for k in table.kernels})}
    ranked = [_Ranked(at[r.kernel], r.time_us) for entry in table.entries for r in entry.ranked]
    first, entries = 0, []
    for entry in table.entries:
        own = {"layout": LAYOUTS.index(entry.gemm.layout), "first": first, "num_ranked": len(entry.ranked)}
        entries.append(_Entry.like(entry.gemm, **own, cublas_us=entry.cublas_us or 0.0))
        first += len(entry.ranked)
    return _Table(
        version=TABLE_VERSION,
        num_sms=table.limits.num_sms,
        fma_tflops=table.limits.fma_tflops,
        bandwidth_gbs=table.limits.bandwidth_gbs,
        constants=_constants(kept),
        kernels=kept.of([_kernel(kernel, codes[kernel.sha256]) for kernel in table.kernels]),
        layouts=(_Layout * len(LAYOUTS))(*(_layout(table, layout, at, kept) for layout in LAYOUTS)),
        entries=kept.of(entries),
        ranked=kept.of(ranked),
        num_kernels=len(table.kernels),
        num_entries=len(entries),
    )


def _kernel(kernel: Kernel, code: int) -> Any:
    spec, config, model = kernel.spec, kernel.config, kernel.model
    figures = {
        name: getattr(model, name)
        for name in ("fixed_us", "round_us", "step_us", "memory_efficiency", "relative_error")
    } if model else {}  # fmt: skip
    return _Kernel.like(
        spec, id=kernel.id.encode(), layout=LAYOUTS.index(kernel.layout), code=code,
        reduction=_REDUCTIONS.index(spec.reduction), is_wide=spec.variant.is_wide,
        registers=kernel.registers, blocks_per_sm=kernel.blocks_per_sm, flush_k=config.flush_k,
        threads_along_k=int(threads_along_k(config)), slices=config.slice_k, has_model=model is not None,
        **figures,
    )  # fmt: skip


def _layout(table: Table, layout: str, at: dict[str, int], kept: _Kept) -> Any:
    rows = sorted((k for k in table.kernels if k.layout == layout and k.model), key=lambda k: k.id)
    places = table.places.get(layout, ())
    zeros = bytes(4 * len(places))
    weights = b"".join(bytes.fromhex(kernel.missed) or zeros for kernel in rows)
    own = _Layout(
        modelled=kept.memory(np.array([at[kernel.id] for kernel in rows], np.int32).tobytes()),
        num_modelled=len(rows),
        default_kernel=at[table.defaults[layout]],
        missed=_residuals(places, weights, len(rows), kept),
    )
    if (known := table.cublas.get(layout)) is not None:
        _add_cublas(own, known, kept)
    return own


def _add_cublas(layout: Any, known: CublasFigures, kept: _Kept) -> None:
    places = np.frombuffer(bytes.fromhex(known.places), "<u4").reshape(-1, 3)
    layout.cublas_version = known.version.encode()
    layout.cublas = _residuals(places, bytes.fromhex(known.weights), 1, kept)
    layout.cublas_level, layout.cublas_deviation = known.level, known.deviation


def _residuals(places: Any, weights: bytes, num_rows: int, kept: _Kept) -> Any:
    """`places` (shapes, 3) of extents. `weights`: little endian, as the processors are that CUDA runs on."""
    logs = residual.place(*np.array(places).T) if len(places) else np.zeros((0, 3))
    return _Residuals(kept.memory(logs.tobytes()), kept.memory(weights), len(places), num_rows)


def _constants(kept: _Kept) -> Any:
    return _Constants(
        caution=selector.CAUTION, near_ratio=selector.NEAR, num_nearest=selector.NUM_NEAREST,
        max_error=summation.MAX_ERROR, chain_share=summation.CHAIN_SHARE, splits=summation.SPLITS,
        shortest_chain=summation.SHORTEST_CHAIN, least_k=summation.LEAST_K,
        least_k_of_large=summation.LEAST_K_OF_LARGE, large_elements=summation.LARGE,
        narrow_side=summation.NARROW, narrow_depth=summation.NARROW_DEPTH,
        narrow_parts=summation.NARROW_PARTS, dot_side=summation.DOT_SIDE, dot_depth=summation.DOT_DEPTH,
        prologue_steps=time_model.PROLOGUE_STEPS, bandwidth_sms=time_model.BANDWIDTH_SMS,
        launch_us=time_model.LAUNCH_US, launch_apart_us=time_model.LAUNCH_APART_US,
        cluster_us=time_model.CLUSTER_US, last_block_us=time_model.LAST_BLOCK_US,
        fmas_per_l2_float=time_model.FMAS_PER_L2_FLOAT, residual_length=residual.LENGTH,
        margin=cublas_model.MARGIN, other_version=cublas_model.OTHER_VERSION,
        cublas_fixed_us=cublas_model.FIXED_US, parts_of_last=splits.PARTS_OF_LAST,
        kept_bytes=workspace.KEPT_BYTES, pieces_bytes=workspace.PIECES_BYTES,
        max_pieces=workspace.MAX_PIECES, launches_to_stay=workspace.LAUNCHES_TO_STAY,
        max_counted=workspace.MAX_COUNTED, max_plans=MAX_PLANS,
        blas_math_mode=column_major.PEDANTIC_MATH, blas_bytes=column_major.WORKSPACE_BYTES,
        split_values=kept.memory(splits.VALUES.tobytes()), num_split_values=len(splits.VALUES),
    )  # fmt: skip
