"""What a GPU offers a block (DeviceLimits), and what a time was measured on (Environment): plain data.

Its user may accept a GPU as another one, nearly identical and of the same compute capability, such as an H200
NVL as an H200: AUTOTUNE_LIKE names the other. Its tables serve here, its trials are lent to searches. No
result depends on it, only times do. The core in C reads the variable, too. Copied into exported tables.
"""

from __future__ import annotations

import os
from dataclasses import asdict
from typing import Annotated, Any, NamedTuple

from ..files.errors import UsageError
from ..files.strict import Within, hint
from .frozen import frozen

Bytes = Annotated[int, Within(0, 1 << 40)]
Capability = tuple[Annotated[int, Within(0, 999)], Annotated[int, Within(0, 999)]]


@frozen()
class DeviceLimits:
    """What one GPU model can run and how fast at most. `fma_tflops` and `bandwidth_gbs` are the roofline: for
    the H200 measured on the card, for the others from the vendor's data sheet (boost clock)."""

    name: str
    compute_capability: Capability
    num_sms: Annotated[int, Within(1, 1 << 16)]
    smem_per_block: Bytes  # after opting in
    smem_per_sm: Bytes
    smem_reserved: Bytes  # that the driver uses of each block
    threads_per_sm: Annotated[int, Within(1, 1 << 16)]
    blocks_per_sm: Annotated[int, Within(1, 1 << 12)]
    l2_bytes: Bytes
    fma_tflops: Annotated[float, Within(1e-3, 1e9)]
    bandwidth_gbs: Annotated[float, Within(1e-3, 1e9)]
    regs_per_sm: Annotated[int, Within(1, 1 << 24)] = 65536

    @property
    def arch(self) -> str:
        """Name for NVRTC: `sm_90`."""
        return "sm_{}{}".format(*self.compute_capability)

    @property
    def has_async_copy(self) -> bool:
        """cp.async exists from sm_80 on."""
        return self.compute_capability >= (8, 0)

    @property
    def has_clusters(self) -> bool:
        """Thread-block clusters exist from sm_90 on."""
        return self.compute_capability >= (9, 0)

    @property
    def has_packed_fma(self) -> bool:
        """An instruction does two FMAs in compute capability 10.x; later ones take it apart (ptxas 13.5)."""
        return self.compute_capability[0] == 10

    @property
    def has_dependent_launch(self) -> bool:
        """Kernels can wait for the kernel before, and so begin before it has ended, from sm_90 on."""
        return self.compute_capability >= (9, 0)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> DeviceLimits:
        return cls(**{**data, "compute_capability": tuple(data["compute_capability"])})


_KIB = 1024
_MIB = 1024 * 1024

KNOWN: dict[str, DeviceLimits] = {
    "quadro-rtx-5000": DeviceLimits("Quadro RTX 5000", (7, 5), 48, 64 * _KIB, 64 * _KIB, 0, 1024, 16,
                                    4 * _MIB, 11.2, 448.0),
    "rtx-2080-ti": DeviceLimits("NVIDIA GeForce RTX 2080 Ti", (7, 5), 68, 64 * _KIB, 64 * _KIB, 0, 1024, 16,
                                5632 * _KIB, 13.4, 616.0),
    "a100": DeviceLimits("NVIDIA A100-SXM4-80GB", (8, 0), 108, 163 * _KIB, 164 * _KIB, _KIB, 2048, 32,
                         40 * _MIB, 19.5, 2039.0),
    "rtx-3090": DeviceLimits("NVIDIA GeForce RTX 3090", (8, 6), 82, 99 * _KIB, 100 * _KIB, _KIB, 1536, 16,
                             6 * _MIB, 35.6, 936.0),
    "rtx-4090": DeviceLimits("NVIDIA GeForce RTX 4090", (8, 9), 128, 99 * _KIB, 100 * _KIB, _KIB, 1536, 24,
                             72 * _MIB, 82.6, 1008.0),
    "h200": DeviceLimits("NVIDIA H200", (9, 0), 132, 227 * _KIB, 228 * _KIB, _KIB, 2048, 32,
                         60 * _MIB, 65.3, 4290.0),
    "h100": DeviceLimits("NVIDIA H100 80GB HBM3", (9, 0), 132, 227 * _KIB, 228 * _KIB, _KIB, 2048, 32,
                         50 * _MIB, 66.9, 3352.0),
    "b200": DeviceLimits("NVIDIA B200", (10, 0), 148, 227 * _KIB, 228 * _KIB, _KIB, 2048, 32,
                         253 * _MIB // 2, 75.0, 7672.0),
    "rtx-5090": DeviceLimits("NVIDIA GeForce RTX 5090", (12, 0), 170, 99 * _KIB, 100 * _KIB, _KIB, 1536, 24,
                             96 * _MIB, 104.8, 1792.0),
}  # fmt: skip


def known_limits(name: str) -> DeviceLimits:
    """Limits of a GPU by its short name (`h200`, `rtx-4090`, ...) or its full name."""
    for short, limits in KNOWN.items():
        if name.lower() in (short, limits.name.lower()):
            return limits
    raise UsageError(f"no limits known for GPU {name!r} ({hint(name.lower(), tuple(KNOWN))})")


def limits_by_name(name: str) -> DeviceLimits | None:
    """As `known_limits`; None for a GPU that is not known."""
    try:
        return known_limits(name)
    except UsageError:
        return None


@frozen()
class Environment:
    """What a time was measured on. Trials can be compared only within one environment."""

    gpu_name: str
    gpu_uuid: str
    compute_capability: Capability
    driver_version: str
    cuda_version: str
    nvrtc_version: str
    cublas_version: str  # "" where cuBLAS is absent
    recorded_on: str = ""  # ISO date when a recording stands in for the GPU, else ""

    @property
    def is_recorded(self) -> bool:
        return bool(self.recorded_on)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Environment:
        return cls(**{**data, "compute_capability": tuple(data["compute_capability"])})


def uuid_text(raw: bytes) -> str:
    """A GPU's UUID of 16 bytes as NVIDIA's tools write it: `GPU-6c92155f-e46a-cf5d-ba81-d325b372e566`."""
    text = raw.hex()
    return "-".join(("GPU", text[:8], text[8:12], text[12:16], text[16:20], text[20:]))


LIKE = "AUTOTUNE_LIKE"


def names_for(gpu_name: str) -> tuple[str, ...]:
    """The names that count for a GPU: its own, then the one that it is accepted as."""
    return tuple(dict.fromkeys((gpu_name, os.environ.get(LIKE) or gpu_name)))


def describe_alias(gpu_name: str) -> str:
    """That a GPU is accepted as another, in words; "" if it is not."""
    other = names_for(gpu_name)[-1]
    return "" if other == gpu_name else f"{gpu_name} is accepted as {other} ({LIKE})"


class Conditions(NamedTuple):
    """What a GPU runs under. Values that it does not report are empty or None."""

    gpu_name: str
    num_sms: int
    cuda_version: str  # newest that the driver knows: `13.0`
    driver_version: str = ""  # `580.95.05`
    power_limit_w: float | None = None


def without_slice(gpu_name: str) -> str:
    """The name of the GPU, given its own name or that of a MIG slice of it: "A MIG 1g.5gb" is one of "A"."""
    return gpu_name.partition(" MIG ")[0]
