"""An instance of the template for one problem on one device: whether it may run, and how it is launched."""

from __future__ import annotations

from ..facts.device import DeviceLimits
from ..facts.gemm import Gemm
from ..kernel import resources
from ..kernel.compiler import Cubin
from ..kernel.launch import NARROW_LD, LaunchSpec, Variant, plan, too_large
from ..kernel.rules import broken_rules
from ..kernel.scaled_config import AnyConfig
from .protocol import KernelCode

# A few bytes spilled before the main loop hardly cost time; more than this are inside it, and the candidate
# is dropped untimed.
ALLOWED_SPILL_BYTES = 64


def is_wide(gemm: Gemm) -> bool:
    """Whether leading dimensions need the kernel's 64-bit variant."""
    return max(gemm.lda, gemm.ldb, gemm.ldc) >= NARROW_LD


def variant(gemm: Gemm) -> Variant:
    """The properties of a problem that are compiled in."""
    return Variant(gemm.trans_a, gemm.trans_b, is_wide(gemm), gemm.is_batched, a_type=gemm.a_type)


def code(gemm: Gemm, config: AnyConfig, cubin: Cubin, limits: DeviceLimits) -> KernelCode:
    """What the worker is sent."""
    spec = resources.launch_spec(config, gemm, limits, is_wide=is_wide(gemm))
    return KernelCode(cubin.code, cubin.sha256, spec, accuracy=config.accuracy)


def rejection(config: AnyConfig, limits: DeviceLimits, gemm: Gemm) -> str:
    """Why a config does not suit this problem or device, by the rules that it breaks, or ""."""
    if gemm.m == 0 or gemm.n == 0:
        return "C is empty: there is nothing to launch"
    broken = broken_rules(config, limits, gemm)
    return "; ".join(f"{rule.id}: {rule.sentence}" for rule in broken)


def spills(cubin: Cubin) -> str:
    """Why a compiled kernel is not worth a launch, or ""."""
    if cubin.spill_bytes <= ALLOWED_SPILL_BYTES:
        return ""
    return f"{cubin.spill_bytes} bytes spilled to local memory, {ALLOWED_SPILL_BYTES} are allowed"


def mismatch(cubin: Cubin, config: AnyConfig, spec: LaunchSpec, limits: DeviceLimits, gemm: Gemm) -> str:
    """Why the compiled kernel cannot be launched on this device, or ""."""
    smem = spec.smem_bytes + cubin.static_smem_bytes
    if smem > limits.smem_per_block:
        return f"{smem} bytes of shared memory per block, the device has {limits.smem_per_block}"
    if resources.num_resident(config, limits, gemm, cubin.registers) < 1:
        return f"{cubin.registers} registers for {spec.threads} threads: not one block fits an SM"
    return too_large(plan(spec, max(gemm.m, 1), max(gemm.n, 1), gemm.k, gemm.strides))
