"""The structs of the core's headers (core/*.h) in ctypes. Copied into exported tables.

Fields have the same names as there; a library whose structs have other sizes is not used (core.py).
"""

from __future__ import annotations

import ctypes
from typing import Any

from ..facts.gemm import LAYOUTS, Batch, Gemm

INT, DOUBLE, TEXT, ADDRESS = ctypes.c_int32, ctypes.c_double, ctypes.c_char_p, ctypes.c_void_p
WORD = ctypes.c_uint64


class Struct(ctypes.Structure):
    @classmethod
    def like(cls, source: Any, **others: Any) -> Any:
        """With the fields that `source` has under the same names, and these."""
        names = [name for name, *_ in cls._fields_ if name not in others and hasattr(source, name)]
        return cls(**{name: getattr(source, name) for name in names}, **others)


class CKernel(Struct):
    _fields_ = (
        ("id", TEXT),
        *((name, INT) for name in (
            "layout", "code", "bm", "bn", "bk", "threads", "smem_bytes", "vec_a", "vec_b", "vec_c",
            "reduction", "split_k", "wave", "group", "is_exact", "is_wide", "packs_a", "packs_b", "overlaps",
            "is_along_m", "is_batched", "plain", "bias", "activation", "registers", "blocks_per_sm",
            "flush_k", "threads_along_k", "slices",
        )),
        *((name, DOUBLE) for name in (
            "fixed_us", "round_us", "step_us", "memory_efficiency", "relative_error",
        )),
        ("max_workspace", ctypes.c_int64),
    )  # fmt: skip


class CResiduals(Struct):
    _fields_ = (("places", ADDRESS), ("weights", ADDRESS), ("num_places", INT), ("num_coordinates", INT))


def shared_of(gemm: Gemm) -> int:
    """The number in core/table.h for the operands that the products of a batch share."""
    return 1 if gemm.shares_a else 2 if gemm.shares_b else 0


class CLayout(Struct):
    _fields_ = (
        ("modelled", ADDRESS), ("num_modelled", INT), ("default_kernel", INT), ("missed", CResiduals),
        ("cublas_version", TEXT), ("cublas", CResiduals), ("cublas_level", DOUBLE),
        ("cublas_deviation", DOUBLE), ("cublas_tile_apart", DOUBLE),
    )  # fmt: skip


class CRanked(Struct):
    _fields_ = (("kernel", INT), ("time_us", DOUBLE))


class CEntry(Struct):
    _fields_ = (
        *(
            (name, INT)
            for name in (
                "m",
                "n",
                "k",
                "layout",
                "products",
                "shared",
                "first",
                "num_ranked",
            )
        ),
        ("cublas_us", DOUBLE),
    )


class CConstants(Struct):
    _fields_ = (
        *((name, DOUBLE) for name in (
            "error_zero_mean", "error_positive", "level_zero_mean", "level_positive", "chain_share", "splits",
            "shortest_chain", "least_k", "least_k_of_large", "large_elements", "narrow_side", "narrow_depth",
            "narrow_parts", "narrow_adding", "few_rows", "parts_of_few_rows", "dot_rows", "dot_elements",
            "dot_threads", "dot_added", "dot_depth", "dot_positive",
            "prologue_steps", "bandwidth_sms", "launch_us", "launch_apart_us", "cluster_us", "last_block_us",
            "last_block_float_us", "fmas_per_l2_float", "line_floats", "residual_length", "margin",
            "other_version", "cublas_fixed_us", "vector_apart", "cublas_tile", "parts_of_last",
        )),
        *((name, ctypes.c_int64) for name in ("kept_bytes", "pieces_bytes", "captured_bytes")),
        *((name, INT) for name in (
            "max_pieces", "launches_to_stay", "max_counted", "max_plans", "max_tallies", "blas_math_mode",
        )),
        ("blas_bytes", ctypes.c_int64),
        ("split_values", ADDRESS), ("num_split_values", INT),
    )  # fmt: skip


class CTable(Struct):
    _fields_ = (
        ("version", INT), ("num_sms", INT), ("fma_tflops", DOUBLE), ("bandwidth_gbs", DOUBLE),
        ("constants", CConstants), ("gpu_name", TEXT), ("capability_major", INT), ("capability_minor", INT),
        ("smem_per_block", ctypes.c_int64), ("kernels", ADDRESS), ("layouts", CLayout * len(LAYOUTS)),
        ("entries", ADDRESS), ("ranked", ADDRESS), ("codes", ADDRESS), ("num_kernels", INT),
        ("num_entries", INT), ("num_codes", INT),
    )  # fmt: skip


class CChoice(Struct):
    _fields_ = (
        *((name, INT) for name in (
            "how", "kernel", "split_k", "entry", "is_cublas", "is_looped", "num_legal", "is_for_accuracy",
        )),
        *((name, DOUBLE) for name in ("expected_us", "cublas_us", "margin", "excess")),
    )  # fmt: skip


CTriple = ctypes.c_int64 * 3


class CBatch(Struct):
    """autotune_batch of core/table.h: how many products there are, and how far apart their matrices lie."""

    _fields_ = (("products", ctypes.c_int64), ("stride", CTriple))

    @classmethod
    def of(cls, batch: Batch) -> Any:
        return cls(batch.products, CTriple(*batch[1:]))


class Planned(Struct):
    """autotune_planned of core/plan.h: what a plan is made of."""

    _fields_ = (
        *((name, INT) for name in (
            "m", "n", "k", "layout", "kernel", "split_k", "device", "is_cublas", "is_left_alone", "is_looped",
            "bias", "activation",
        )),
        ("batch", CBatch), ("ld", CTriple), ("num_bytes", WORD * 3),
        *((name, WORD) for name in ("context", "sgemm", "reduce", "pack")), ("low", ctypes.c_uint32 * 3),
    )  # fmt: skip


class CCount(Struct):
    """autotune_count of core/tally.h: a kind of call, and how often it was served."""

    _fields_ = (
        *((name, INT) for name in (
            "m", "n", "k", "layout", "products", "shared", "bias", "activation", "kernel", "split_k",
            "is_cublas",
        )),
        ("alignment", INT * 3), ("ld", CTriple), ("calls", WORD),
    )  # fmt: skip


class Kind(Struct):
    """autotune_kind of core/plan.h: how arrays lie in memory."""

    _fields_ = (
        *((name, CTriple) for name in ("rows", "columns", "by_row", "by_column")), ("batch", CBatch),
        ("devices", INT * 3), ("low", ctypes.c_uint32 * 3), ("trans_a", INT), ("trans_b", INT),
        ("bias", INT), ("activation", INT),
    )  # fmt: skip


def _call(*arguments: Any) -> Any:
    return ctypes.CFUNCTYPE(ctypes.c_int, *arguments)


class DriverCalls(Struct):
    """autotune_driver of core/driver.h: the functions of CUDA that it calls."""

    _fields_ = (
        ("current_context", _call(ADDRESS)), ("push_context", _call(WORD)),
        ("pop_context", _call(ADDRESS)), ("launch", _call(ADDRESS, WORD, ADDRESS, ADDRESS)),
        ("stream_id", _call(WORD, ADDRESS)),
        ("is_capturing", _call(WORD, ADDRESS)), ("exchange_capture_mode", _call(ADDRESS)),
        ("make_pool", _call(ADDRESS, ADDRESS)), ("set_pool", _call(WORD, ctypes.c_int, ADDRESS)),
        ("allocate", _call(ADDRESS, ctypes.c_size_t, WORD, WORD)), ("free", _call(WORD, WORD)),
        ("zero", _call(WORD, ctypes.c_ubyte, ctypes.c_size_t, WORD)),
        ("allocate_now", _call(ADDRESS, ctypes.c_size_t)),
        ("capture_info", _call(WORD, *5 * [ADDRESS])),
        ("make_user_object", _call(ADDRESS, ADDRESS, ADDRESS, ctypes.c_uint, ctypes.c_uint)),
        ("retain_user_object", _call(WORD, WORD, ctypes.c_uint, ctypes.c_uint)),
        ("release_user_object", _call(WORD, ctypes.c_uint)),
    )  # fmt: skip


class BlasCalls(Struct):
    """autotune_blas of core/blas.h: the functions of cuBLAS that it calls."""

    _fields_ = (
        ("create", _call(ADDRESS)), ("set_math_mode", _call(WORD, ctypes.c_int)),
        ("set_pointer_mode", _call(WORD, ctypes.c_int)), ("set_stream", _call(WORD, WORD)),
        ("set_workspace", _call(WORD, WORD, ctypes.c_size_t)),
        ("sgemm", _call(
            WORD, *5 * [ctypes.c_int], ADDRESS, WORD, ctypes.c_int, WORD, ctypes.c_int, ADDRESS, WORD,
            ctypes.c_int,
        )),
        ("sgemm_batched", _call(
            WORD, *5 * [ctypes.c_int], ADDRESS, WORD, ctypes.c_int, ctypes.c_int64, WORD, ctypes.c_int,
            ctypes.c_int64, ADDRESS, WORD, ctypes.c_int, ctypes.c_int64, ctypes.c_int,
        )),
        ("geam", _call(
            WORD, *4 * [ctypes.c_int], ADDRESS, WORD, ctypes.c_int, ADDRESS, WORD, ctypes.c_int, WORD,
            ctypes.c_int,
        )),
    )  # fmt: skip


_OF_PYTHON = {
    "save_thread": "PyEval_SaveThread", "restore_thread": "PyEval_RestoreThread",
    "clear_error": "PyErr_Clear", "error": "PyErr_Occurred", "hold": "Py_IncRef", "release": "Py_DecRef",
    "type_of": "PyObject_Type", "attribute": "PyObject_GetAttr", "call": "PyObject_CallFunctionObjArgs",
    "call_method": "PyObject_CallMethodObjArgs", "build": "Py_BuildValue", "as_double": "PyFloat_AsDouble",
    "as_address": "PyLong_AsVoidPtr",
}  # fmt: skip


class PythonCalls(Struct):
    """autotune_python of core/tensors.h: the functions of Python that it calls, and some objects."""

    _fields_ = tuple((name, ADDRESS) for name in (*_OF_PYTHON, "none", "yes", "no"))

    @classmethod
    def of_this_process(cls) -> Any:
        calls = (ctypes.cast(getattr(ctypes.pythonapi, name), ADDRESS).value for name in _OF_PYTHON.values())
        return cls(*calls, id(None), id(True), id(False))


class Tensors(Struct):
    """autotune_tensors of core/tensors.h: products of the tensors of one library."""

    _fields_ = tuple((name, ADDRESS) for name in (
        "handle", "exchange", "tensor", "is_grad_enabled", "is_neg", "tell", "wrote", "requires_grad",
        "new_empty", "storage_offset",
    ))  # fmt: skip


class Method(Struct):
    """PyMethodDef of Python's stable ABI: how a function in C is called."""

    _fields_ = (("name", TEXT), ("function", ADDRESS), ("flags", ctypes.c_int), ("doc", TEXT))


STRUCTS = (
    CKernel, CResiduals, CLayout, CRanked, CEntry, CTable, CChoice, Planned, Kind, DriverCalls, BlasCalls,
    CCount, CBatch,
)  # fmt: skip
TENSOR_STRUCTS = (PythonCalls, Tensors)
