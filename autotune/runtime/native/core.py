"""The core in C (core/): its library; a table in it, which chooses among its kernels and launches them; and
errors of what it answers.

The library is built when autotune is installed (core/build.py) and tells what its headers declare,
functions, structs and numbers: nothing of them is written again here.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from itertools import takewhile
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np

from ...facts.cublas_calls import PEDANTIC_MATH, WORKSPACE_BYTES, describe_status
from ...facts.gemm import TYPED_LAYOUTS
from ...files.errors import DispatchError, warn_served
from ...files.folder_files import library_path
from ...kernel.config import PARAMETER
from ...kernel.launch import ACTIVATIONS, BIASES, Epilogue
from ...kernel.scaled_config import AnyConfig
from ...kernel.tensor_config import LEAST_RESULTS
from ...perf_model import model_figures as model
from ..calls.product import MAX_PLANS, many_launches, no_scale
from ..launch.cuda_driver import CudaFault, error_name
from ..table.table import NUM_EXTENTS, CublasFigures, Kernel, Table
from .processes import forked

if TYPE_CHECKING:
    from ..choose.chooser import Call


FOLDER = Path(__file__).parents[2] / "core"  # links are left in it: folder_files.py knows it by this name
LIBRARY = "libautotune_core.so"
VERSION = 27  # AUTOTUNE_TABLE_VERSION of core/table.h
_MOST = 1 << 12  # declarations


class Struct(ctypes.Structure):
    @classmethod
    def like(cls, source: Any, **others: Any) -> Any:
        """With the fields that `source` has under the same names, and these."""
        names = [name for name, *_ in cls._fields_ if name not in others and hasattr(source, name)]
        return cls(**{name: getattr(source, name) for name in names}, **others)


class Declarations:
    """What headers declare, as core/build.py writes it: `numbers` of enums and types of `structs`, by their
    names without the prefix, and of `functions` what they return and take. Raises ValueError for other
    text."""

    def __init__(self, lines: Iterable[str]) -> None:
        self.numbers, self.structs = SimpleNamespace(), SimpleNamespace()
        self.functions: dict[str, tuple[Any, list[Any]]] = {}
        for line in lines:
            what, name, *rest = line.split()
            if what == "number":
                setattr(self.numbers, name, int(rest[0]))
            elif what == "struct":
                pairs = (one.split(":") for one in rest)
                fields = [(field, self._type(kind)) for field, kind in pairs]
                setattr(self.structs, name, type(f"autotune_{name}", (Struct,), {"_fields_": fields}))
            elif what == "function":
                self.functions[name] = self._type(rest[0]), [self._type(one) for one in rest[1:]]
            else:
                raise ValueError(f"{line[:60]!r} declares nothing")

    def _type(self, text: str) -> Any:
        if text.endswith(")"):
            returned, _, taken = text[:-1].partition("(")
            return ctypes.CFUNCTYPE(self._type(returned), *map(self._type, filter(None, taken.split(","))))
        if text == "None":
            return None
        name, _, size = text.partition("*")
        kind = getattr(ctypes, name, None) or getattr(self.structs, name)
        return kind * int(size) if size else kind


class CoreLibrary:
    """Functions by their names, beside `structs` and `numbers` of its declarations."""

    def __init__(self, path: str) -> None:
        library = ctypes.CDLL(path)
        texts = (ctypes.c_char_p * _MOST).in_dll(library, "autotune_declared")
        declared = Declarations(text.decode() for text in takewhile(bool, texts))
        self.structs: Any = declared.structs
        self.numbers: Any = declared.numbers
        for name, (returned, taken) in declared.functions.items():
            if function := getattr(library, name, None):  # an export as C has more
                function.restype, function.argtypes = returned, taken
                setattr(self, name, function)

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"the core has no {name}")


@cache
def library() -> CoreLibrary | None:
    """The library of this folder; None if it was not built, or for another machine, or from other sources."""
    try:
        found = CoreLibrary(library_path(FOLDER / LIBRARY))
    except (OSError, ValueError):  # the last: it does not tell its declarations
        return None
    return found if found.numbers.TABLE_VERSION == VERSION else None


def loaded() -> CoreLibrary:
    """The same. Raises DispatchError where there is none."""
    found = library()
    if found is None:
        raise DispatchError(
            f"products need the core in C, and {FOLDER / LIBRARY} is missing, or was built for another "
            "machine or from other sources: install autotune again where there is a C compiler, which "
            "`pip install ziglang` brings, and export the table again"
        )
    return found


_TRIPLE = ctypes.c_int64 * 3


def core_of(table: Table | None) -> Core:
    """The core for a table, or for cuBLAS alone. Raises DispatchError where there is no library."""
    return Core(table, loaded())


class Core:
    """A handle on the core for one table, or for cuBLAS alone. Threads may share it. Raises DispatchError if
    the core refuses the table."""

    def __init__(self, table: Table | None, library: CoreLibrary) -> None:
        self.library, self._kept = library, TableArrays()
        of = library.structs
        made = table_struct(of, table, self._kept)
        self._at_table = self._kept.of([made])
        handle = ctypes.c_void_p()
        if status := library.autotune_open(self._at_table, ctypes.byref(handle)):
            raise DispatchError(f"the core takes no table of version {VERSION} (status {status})")
        self.handle, self.upcast_code = handle.value, library.autotune_upcast_code()

    def __del__(self, is_ending: Callable[[], bool] = sys.is_finalizing) -> None:  # the module may end first
        handle = getattr(self, "handle", None)
        if handle and not is_ending():  # threads may be in the middle of a call
            self.library.autotune_close(handle)

    def choose(
        self, call: Call, cublas_version: str | None, allowed: tuple[float, float] | None = None
    ) -> Any | None:
        """The autotune_choice (core/choice.h) for a product with m and n at least 1; None where even the
        default kernel is not legal. `allowed`: as of `rank`."""
        found, version = self.library.structs.choice(), cublas_version and cublas_version.encode()
        status = self.library.autotune_choose(
            self.handle, *_extents(call), self._batch(call), *_memory(call), version, call.adds_bias,
            call.has_epilogue, self._depths(allowed), ctypes.byref(found),
        )  # fmt: skip
        return found if self._is_there(status, call) else None

    def rank(self, call: Call, num: int, allowed: tuple[float, float] | None) -> Sequence[Any]:
        """Up to `num` of these for a call, the best first; none where `choose` returns None, and of a batch
        for which none is modelled. `allowed`: depths of sums, where these are known better than by shape."""
        found, many = (self.library.structs.choice * num)(), ctypes.c_int32()
        status = self.library.autotune_rank(
            self.handle, *_extents(call), self._batch(call), *_memory(call), self._depths(allowed), num,
            found, ctypes.byref(many),
        )  # fmt: skip
        return found[: many.value] if self._is_there(status, call) else ()

    @staticmethod
    def _depths(allowed: tuple[float, float] | None) -> Any:
        return allowed and (ctypes.c_double * 2)(*allowed)

    def _batch(self, call: Call) -> Any:
        if not call.gemm.is_batched:
            return None
        return ctypes.byref(self.library.structs.batch(call.batch.products, call.batch[1:]))

    def _is_there(self, status: int, call: Call) -> bool:
        if status not in (self.library.numbers.OK, self.library.numbers.NO_KERNEL):
            text = f"{call.gemm} with leading dimensions {call.lds}"
            raise DispatchError(f"the core refuses {text}: status {status}")
        return bool(status == self.library.numbers.OK)


def _extents(call: Call) -> tuple[int, int, int, int]:
    g = call.gemm
    return TYPED_LAYOUTS.index(g.layout), g.m, g.n, g.k


def _memory(call: Call) -> tuple[Any, Any]:
    return _TRIPLE(*call.lds), _TRIPLE(*call.addresses)


KEPT_BYTES = 512 << 20  # of one GPU: memory for workspaces that is not given back to the driver
PIECES_BYTES = KEPT_BYTES // 2  # of all streams' own: the rest serves the other launches
CAPTURED_BYTES = 4 << 20  # of a captured launch: moving more takes longer than memory nodes (0055)
MAX_PIECES = 32  # streams with a workspace of their own
LAUNCHES_TO_STAY = 8  # after this many launches that need a workspace a stream gets one
MAX_COUNTED = 4096  # streams whose launches are counted
MAX_TALLIES = 1 << 16  # call signatures that are counted separately
_REDUCTIONS = PARAMETER["reduction"].values  # as core/table.h numbers them


def numbered(epilogue: Epilogue) -> dict[str, int]:
    """The numbers of its bias and its activation in core/table.h and core/autotune_sgemm.h."""
    return {"bias": BIASES.index(epilogue.bias), "activation": ACTIVATIONS.index(epilogue.activation)}


class TableArrays:
    """The memory of a table's arrays, as long as the table is open."""

    def __init__(self) -> None:
        self.by_address: dict[int, Any] = {}  # arrays of structs, or of NumPy

    def of(self, structs: Sequence[Any]) -> int | None:
        """The address of these values, one after the other; None if there are none."""
        if not structs:
            return None
        made = (type(structs[0]) * len(structs))(*structs)
        return self._keep(made, ctypes.addressof(made))

    def numbers(self, found: np.ndarray[Any, Any]) -> int | None:
        """The address of a NumPy array; None for an empty one."""
        return self._keep(found, found.ctypes.data) if found.size else None

    def _keep(self, array: Any, address: int) -> int:
        self.by_address[address] = array
        return address


def table_struct(of: Any, table: Table | None, kept: TableArrays) -> Any:
    """autotune_table of a table; of none where cuBLAS alone serves. `of`: the structs of the library."""
    if table is None:
        return of.table(version=VERSION, constants=_constants(of, kept))
    at = {kernel.id: number for number, kernel in enumerate(table.kernels)}
    plain = table.plain_ids()
    batched = {config: at[kernel.id] for config, kernel in table.for_batches().items()}
    codes = {sha256: number for number, sha256 in enumerate({k.sha256: None for k in table.kernels})}
    ranked = [of.ranked(at[r.kernel], r.time_us) for entry in table.entries for r in entry.ranked]
    first, entries = 0, []
    for entry in table.entries:
        own = {
            "layout": TYPED_LAYOUTS.index(entry.gemm.layout),
            "first": first,
            "num_ranked": len(entry.ranked),
        }
        shared = 1 if entry.gemm.shares_a else 2 if entry.gemm.shares_b else 0
        own |= {"products": entry.gemm.batch, "shared": shared}
        cublas_us = (entry.cublas_us or 0.0, entry.adding_us or 0.0)
        entries.append(of.entry.like(entry.gemm, **own, cublas_us=cublas_us))
        first += len(entry.ranked)
    return of.table(
        version=VERSION,
        num_sms=table.limits.num_sms,
        fma_tflops=table.limits.fma_tflops,
        bandwidth_gbs=table.limits.bandwidth_gbs,
        constants=_constants(of, kept),
        gpu_name=table.environment.gpu_name.encode(),
        capability_major=table.environment.compute_capability[0],
        capability_minor=table.environment.compute_capability[1],
        smem_per_block=table.limits.smem_per_block,
        kernels=kept.of(
            [
                _kernel(
                    of,
                    k,
                    code=codes[k.sha256],
                    plain=at[plain.get(k.id, k.id)],
                    batched=batched.get((k.layout, k.config), -1),
                )
                for k in table.kernels
            ]
        ),
        layouts=tuple(_layout(of, table, layout, at, kept) for layout in TYPED_LAYOUTS),
        entries=kept.of(entries),
        ranked=kept.of(ranked),
        num_kernels=len(table.kernels),
        num_entries=len(entries),
        num_codes=len(codes),
        order=table.order and table.order.encode(),
    )


def _kernel(of: Any, kernel: Kernel, **numbers: int) -> Any:
    spec, model = kernel.spec, kernel.model
    figures = {
        name: getattr(model, name)
        for name in ("fixed_us", "round_us", "step_us", "memory_efficiency", "relative_error")
    } if model else {}  # fmt: skip
    return of.kernel.like(
        spec, id=kernel.id.encode(), layout=TYPED_LAYOUTS.index(kernel.layout),
        reduction=_REDUCTIONS.index(spec.reduction), is_wide=spec.variant.is_wide,
        is_batched=spec.variant.is_batched, registers=kernel.registers,
        blocks_per_sm=kernel.blocks_per_sm, **numbered(spec.variant.epilogue), **_sums(kernel.config),
        max_workspace=-1 if spec.max_workspace is None else spec.max_workspace,
        max_k=-1 if spec.max_k is None else spec.max_k,
        **figures, **numbers,
    )  # fmt: skip


def _sums(config: AnyConfig) -> dict[str, float]:
    """How a thread adds up k, from which the core guesses errors."""
    one = model.summed(config)
    return {
        "flush_k": config.flush_k, "threads_along_k": int(one.threads), "slices": int(one.slices),
        "added_k": int(one.added), "parts_zero_mean": one.parts_zero_mean,
        "parts_positive": one.parts_positive,
    }  # fmt: skip


def _layout(of: Any, table: Table, layout: str, at: dict[str, int], kept: TableArrays) -> Any:
    rows = sorted((k for k in table.kernels if k.layout == layout and k.model), key=lambda k: k.id)
    places = table.places.get(layout, ())
    weights = np.zeros((len(rows), model.NUM_TERMS), np.float32)
    for row, kernel in zip(weights, rows, strict=True):
        if kernel.missed:
            row[:] = np.frombuffer(bytes.fromhex(kernel.missed), "<f4")
    level = np.frombuffer(bytes.fromhex(table.levels.get(layout, "")), "<f4").astype(np.float32)
    cublas = (
        *(_blas_times(of, one.get(layout), kept) for one in (table.cublas, table.cublas_adding)),
        _blas_times(of, table.cublas_batched.get(layout), kept, num_extents=NUM_EXTENTS + 1),
    )
    return of.layout(
        modelled=kept.numbers(np.array([at[kernel.id] for kernel in rows], np.int32)),
        num_modelled=len(rows),
        default_kernel=at[table.defaults[layout]] if layout in table.defaults else -1,
        missed=kept.numbers(weights),
        level=_residuals(of, np.array(places, np.int32), level, kept),
        cublas=cublas,
    )


def _blas_times(
    of: Any, known: CublasFigures | None, kept: TableArrays, num_extents: int = NUM_EXTENTS
) -> Any:
    if known is None:
        return of.blas_times()
    places = np.frombuffer(bytes.fromhex(known.places), "<u4").astype(np.int32)
    places = places.reshape(-1, num_extents)
    weights = np.frombuffer(bytes.fromhex(known.weights), "<f4").astype(np.float32)
    missed = _residuals(of, np.ascontiguousarray(places[:, :NUM_EXTENTS]), weights, kept)
    products = kept.numbers(np.ascontiguousarray(places[:, NUM_EXTENTS:]))
    return of.blas_times.like(known, version=known.version.encode(), missed=missed, products=products)


def _residuals(of: Any, extents: Any, weights: Any, kept: TableArrays) -> Any:
    """`extents` (shapes, 3) of the shapes; `weights` (rows, shapes)."""
    return of.residuals(kept.numbers(extents), kept.numbers(weights), len(extents))


def _constants(of: Any, kept: TableArrays) -> Any:
    """autotune_constants: of the model and of this module, by their names in capitals, but for a few."""
    known = {name.lower(): value for name, value in (vars(model) | globals()).items() if name.isupper()}
    known |= {name: tuple(known[name]) for name in ("term_centres", "term_scales")}
    pairs = {"error": model.DEFAULT_ERRORS, "promised": model.PROMISED, "level": model.LEVEL}
    for name, pair in pairs.items():
        known |= dict(zip((f"{name}_zero_mean", f"{name}_positive"), pair, strict=True))
    known |= {
        "promised_results": LEAST_RESULTS, "large_elements": model.LARGE, "narrow_side": model.NARROW,
        "residual_length": model.LENGTH, "cublas_tile": model.TILE, "blas_math_mode": PEDANTIC_MATH,
        "blas_bytes": WORKSPACE_BYTES, "split_values": kept.numbers(model.VALUES),
        "num_split_values": len(model.VALUES), "max_plans": MAX_PLANS,
    }  # fmt: skip
    return of.constants(**{name: known[name] for name, _ in of.constants._fields_})


_OF_CALL = 256  # statuses of cuBLAS are below
_BLAS_CALLS = (
    "cublasCreate", "cublasSetMathMode", "cublasSetPointerMode", "cublasSetStream", "cublasSetWorkspace",
    "cublasSgemm", "cublasSgemmStridedBatched", "cublasSgeam",
)  # fmt: skip
_LAUNCH = "launching a kernel, or taking memory for it"
_SWITCH_OFF = "pass cublas=False, or set AUTOTUNE_CUBLAS=0, to do without cuBLAS"


def tell(status: int, alpha: Any, beta: Any, version: str = "", where: str = "this GPU") -> None:
    """Raise the error for a status other than 0; warn, if a kernel served instead of cuBLAS of a version."""
    of = loaded().numbers
    if status > of.INSTEAD:
        fault, blas = _blas_fault(status - of.INSTEAD - of.BLAS), f"cuBLAS {version}".strip()
        warn_served(f"{blas} cannot be used on {where}, kernels serve instead: {fault}")
        return
    if status > of.BLAS:
        raise _blas_fault(status - of.BLAS)
    if status > of.CUDA:
        raise CudaFault(_LAUNCH, status - of.CUDA, error_name(status - of.CUDA))
    if status == of.BAD_SCALE:
        raise no_scale(alpha, beta, "it is too large")
    known = {of.MANY_LAUNCHES: many_launches, of.FORKED: forked, of.RECORDED: recorded_error}
    if status in known:
        raise known[status]()
    texts = {getattr(of, name): text for name, text in _FAULTS.items()}
    raise DispatchError(texts.get(status, f"the core refuses a plan or a launch (status {status})"))


_FAULTS = {
    "NO_DRIVER": "the CUDA driver lacks calls of CUDA 12.0; update the driver",
    "NO_RECORD": "calls cannot be recorded there; name a file in a folder that can be written",
    "NO_BLAS": "cuBLAS gives no handle now; where a graph is captured, make a product on this GPU before "
    "that",
}


def _blas_fault(status: int) -> DispatchError:
    place, code = divmod(status, _OF_CALL)
    return DispatchError(f"{_BLAS_CALLS[place]} failed with {describe_status(code)}; {_SWITCH_OFF}")


def recorded_error() -> DispatchError:
    return DispatchError(
        "calls are recorded into another file already (record_calls or AUTOTUNE_RECORD); record into one"
    )
