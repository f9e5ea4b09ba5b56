"""Finds the CUDA source in `kernels/`, joins its files into one text and renders a Config into it."""

from __future__ import annotations

import hashlib
import re
from functools import cache
from pathlib import Path

from ..facts.gemm import A_TYPES, FP32
from ..files.errors import EnvironmentProblem
from .config import PARAMETER, Config
from .launch import ACTIVATIONS, BIASES, Epilogue, Variant
from .scaled_config import AnyConfig, OnTensorCores
from .tensor_config import SCHEMES

ENTRY = "sgemm"
LAUNCHED = ("split_k", "raster", "group")  # parameters that a kernel is given when it is launched
REDUCE_ENTRY = "sgemm_reduce"
PACK_ENTRY = "sgemm_pack"
MAIN_FILE = Config.main_file
_COMMENT = re.compile(r"//[^\n]*")
_INCLUDE = re.compile(r'^#include "([\w.]+)"$', re.MULTILINE)


@cache
def kernel_dir() -> Path:
    """Where the CUDA sources are: inside an installed package, or beside it in a checkout."""
    package = Path(__file__).resolve().parents[1]
    for folder in (package / "kernels", package.parent / "kernels"):
        if (folder / MAIN_FILE).is_file():
            return folder
    raise EnvironmentProblem(f"{MAIN_FILE} is neither in nor beside {package}; reinstall autotune")


@cache
def source(main: str = MAIN_FILE, folder: Path | None = None) -> str:
    """One text: each `#include` of a file in `folder` (None: `kernel_dir()`) is replaced by it, once."""
    folder = folder or kernel_dir()
    included: set[str] = set()

    def expand(name: str) -> str:
        if name in included:
            return ""
        included.add(name)
        text = (folder / name).read_text(encoding="utf-8").replace("#pragma once\n", "")
        return _INCLUDE.sub(lambda m: expand(m[1]) if (folder / m[1]).exists() else m[0], text)

    return expand(main)


@cache
def source_hash(main: str = MAIN_FILE, folder: Path | None = None) -> str:
    """SHA-256 of a main file and what it includes, no other: trials of different kernels never mix, unless
    their code is known to be the same (same_code.py). Comments and layout do not count, so that a kernel may
    be explained better without losing its trials."""
    return hashlib.sha256(" ".join(_COMMENT.sub("", source(main, folder)).split()).encode()).hexdigest()


def macros(config: AnyConfig, variant: Variant) -> dict[str, int]:
    """The macros that turn its template into one instance: `BM` for `bm`; words by their rank. `split_k`,
    `raster` and `group` are launch arguments. Of splits, only whether there is a reduction reaches the
    compiler; but the size of clusters is compiled in. Batches and what an epilogue adds are named only to
    kernels that have them."""
    values: dict[str, int] = {}
    if isinstance(config, OnTensorCores):
        values = {name.upper(): value for name, value in config.to_dict().items() if name not in LAUNCHED}
        values |= {"REDUCTION": int(config.reduction != "none")}
        if config.scheme in SCHEMES:
            values |= {"SCHEME": SCHEMES.index(config.scheme)}
        return values | _variant_macros(variant)
    for name, parameter in PARAMETER.items():
        value = getattr(config, name)
        values[name.upper()] = value if isinstance(value, int) else parameter.values.index(value)
    for name in LAUNCHED:
        del values[name.upper()]
    cluster = config.split_k if config.reduction == "cluster" else 1
    return values | {"CLUSTER": cluster, "WIDE": int(variant.is_wide)} | _variant_macros(variant)


def _variant_macros(variant: Variant) -> dict[str, int]:
    """Of what any kernel may be compiled for: its layouts, batches, what it adds."""
    return {
        "TRANS_A": int(variant.trans_a),
        "TRANS_B": int(variant.trans_b),
        **({"BATCHED": 1} if variant.is_batched else {}),
        **({"A_TYPE": A_TYPES.index(variant.a_type)} if variant.a_type != FP32 else {}),
        **_epilogue_macros(variant.epilogue),
    }


def _epilogue_macros(epilogue: Epilogue) -> dict[str, int]:
    values = {
        "BIAS": BIASES.index(epilogue.bias),
        "ACTIVATION": ACTIVATIONS.index(epilogue.activation),
        "KEEPS": int(epilogue.keeps),
    }
    return {name: value for name, value in values.items() if value}
