"""The templates in `kernels/`: which one a config is of, and what is asked of any of them.

    sgemm          FMAs in FP32, on any GPU: Config          accuracy strict
    tensor_sgemm   products of TF32 or BF16 parts, on Hopper's tensor cores: TensorConfig   accuracy fp32
    mma_sgemm      the same products on tensor cores of any GPU since sm_80: MmaConfig   accuracy fp32
    scaled_sgemm   products of FP16 parts of scaled operands, on Hopper: ScaledConfig   accuracy fp32-range
    halves_sgemm   the same on tensor cores of any GPU since sm_75: HalvesConfig   accuracy fp32-range

Their arguments and launches are the same. A point names all parameters of one of them, and no others.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from typing import Any

from ..facts.accuracy_class import FP32, FP32_RANGE, STRICT
from ..facts.device import DeviceLimits
from ..facts.gemm import FP32 as FLOATS
from ..facts.gemm import Gemm
from ..facts.other_problem import A_TYPE_MARK, a_type_of, untyped
from ..files.errors import UsageError
from . import identity, same_code, template
from . import mma_config as mma
from . import scaled_config as scaled
from . import tensor_config as tensor
from .config import Config, Value, values_in
from .launch import Variant
from .mma_config import MmaConfig
from .rules import Rule, broken_rules
from .scaled_config import KINDS, AnyConfig, HalvesConfig, ScaledConfig, kind_of
from .tensor_config import TensorConfig

# In a study's source: the hash of its kernels' text, then the class, if not strict, and A's type, if not FP32
_CLASS_MARK = ":"


# What a search for a class searches
OF_CLASS: dict[str, type[AnyConfig]] = {one.accuracy: one for one in (Config, TensorConfig, ScaledConfig)}
_WITHOUT_WARPGROUPS: dict[str, type[AnyConfig]] = {FP32: MmaConfig, FP32_RANGE: HalvesConfig}


@cache
def searched_for(accuracy: str, limits: DeviceLimits) -> type[AnyConfig]:
    """What a search for a class searches on this GPU model: without warpgroups the kernels that do without
    them."""
    its = OF_CLASS[accuracy]
    return _WITHOUT_WARPGROUPS.get(accuracy, its) if _broken(its, limits) else its


def source_hash(its: type[AnyConfig]) -> str:
    """Of the text of such kernels, or of the oldest with the same code."""
    return same_code.kept_as(template.source_hash(its.main_file))


def read(point: Mapping[str, Any]) -> AnyConfig:
    """The config that a point of any template names; parameters that an older kernel did not have are at
    their defaults. Raises UsageError."""
    return kind_of(point).from_dict(point)


def values_of_class(accuracy: str) -> dict[str, tuple[Value, ...]]:
    """Of the parameters of all kernels of a class, as conditions name them."""
    return {
        name: values for one in KINDS if one.accuracy == accuracy for name, values in one.values().items()
    }


def is_autotune(point: Mapping[str, Any]) -> bool:
    """Whether a point names all parameters of one of the templates."""
    return any(point.keys() == one.parameters.keys() for one in KINDS)


def parse(key: str) -> AnyConfig:
    """The config of a key in the store. Raises UsageError."""
    return read(values_in(key))


def compiled(config: AnyConfig, variant: Variant) -> tuple[str, dict[str, int], str]:
    """The text that is compiled to a config's kernel, its macros, and the identity that its cubin states."""
    if isinstance(config, Config):  # which reads FP32, to which another A has been converted
        variant = replace(variant, a_type=FLOATS)
    name, text = identity.of(source_hash(type(config)), config, variant), template.source(config.main_file)
    return text + identity.declaration(name), template.macros(config, variant), name


# ---- studies: trials of another template, or held against another promise, are those of another kernel


def source_of(accuracy: str, a_type: str = FLOATS, limits: DeviceLimits | None = None) -> str:
    """What studies keep as the source of the kernels that a search for a class and a type of A searches, on a
    GPU model (None: one with warpgroups)."""
    its = searched_for(accuracy, limits) if limits else OF_CLASS[accuracy]
    return _source_of(its, accuracy, a_type)


def _source_of(its: type[AnyConfig], accuracy: str, a_type: str) -> str:
    own = template.source_hash(its.main_file)
    own += "" if accuracy == STRICT else f"{_CLASS_MARK}{accuracy}"
    return own if a_type == FLOATS else f"{own}{A_TYPE_MARK}{a_type}"


def accuracy_of(study_source: str) -> str:
    """The class of the kernels of such a study."""
    mark = untyped(study_source).rpartition(_CLASS_MARK)[2]
    return mark if mark in OF_CLASS else STRICT


def is_alike(study_source: str, other: str) -> bool:
    """Whether studies are of one class and type of A."""
    return (accuracy_of(study_source), a_type_of(study_source)) == (accuracy_of(other), a_type_of(other))


def is_current(study_source: str) -> bool:
    """Whether such kernels are compiled here from text with the same code."""
    accuracy, a_type = accuracy_of(study_source), a_type_of(study_source)
    own = (_source_of(one, accuracy, a_type) for one in KINDS if one.accuracy == accuracy)
    return any(same_code.is_same(study_source, one) for one in own)


def tflops(accuracy: str, limits: DeviceLimits, a_type: str = FLOATS) -> float:
    """The most that a GPU computes within a class; of multiplications and additions of the product, in
    TFLOP/s."""
    of_class = {STRICT: 1.0, FP32: tensor.OVER_FMA[a_type], FP32_RANGE: scaled.OVER_FMA}
    its = searched_for(accuracy, limits)
    if its is MmaConfig:
        return limits.fma_tflops * max(1.0, mma.OVER_FMA.get(limits.compute_capability, 1.0))
    if its is HalvesConfig:
        rate = scaled.HALVES_OVER_FMA.get(limits.compute_capability, scaled.HALVES_OVER_FMA_OF_OTHERS)
        return limits.fma_tflops * rate
    return limits.fma_tflops * of_class[accuracy]


def limit_us(gemm: Gemm, limits: DeviceLimits | None, accuracy: str) -> float | None:
    """The least us of a product within a class; None where nothing bounds it, or the GPU is unknown."""
    if limits is None:
        return None
    return gemm.limit_us(tflops(accuracy, limits, gemm.a_type), limits.bandwidth_gbs) or None


def has_kernels(accuracy: str, limits: DeviceLimits) -> bool:
    """Whether this GPU runs kernels of a class beyond those of narrower ones."""
    return accuracy == STRICT or not _broken(searched_for(accuracy, limits), limits)


def _broken(its: type[AnyConfig], limits: DeviceLimits) -> tuple[Rule, ...]:
    """Why the GPU runs none of its kernels."""
    return broken_rules(its(), limits, _ANY, ("device",))


def need_search_space(accuracy: str, limits: DeviceLimits, a_type: str = FLOATS) -> None:
    """Raises UsageError where this GPU runs no kernel of a class beyond the strict ones, or none that reads
    such an A."""
    broken = () if accuracy == STRICT else _broken(searched_for(accuracy, limits), limits)
    if broken:
        serving = " or ".join(one for one in OF_CLASS if has_kernels(one, limits))
        raise UsageError(
            f"{limits.name} runs no kernel of accuracy {accuracy} but strict ones: {broken[0].sentence}; "
            f"search for accuracy {serving}, which serves there"
        )
    if a_type != FLOATS and searched_for(accuracy, limits) in (MmaConfig, HalvesConfig):
        raise UsageError(
            f"{limits.name} runs no kernel that reads an A of {a_type}: a call converts it before; search "
            "the shape in FP32"
        )


_ANY = Gemm(4096, 4096, 4096)
