"""The CUDA driver: checked calls, and which GPUs there are. Nothing here creates a context.

`cuInit`, `cuDeviceGet*` and NVML work without one, so the coordinator may call all of this file.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from ..facts.device import KNOWN, DeviceLimits, Environment, limits_by_name, uuid_text
from ..facts.fitted import number
from ..files.errors import AutotuneError, EnvironmentProblem, UsageError, is_sticky
from ..files.words import command, option

MIN_CUDA_VERSION = 13000  # the driver's, as 1000 * major + 10 * minor: older ones refuse NVRTC 13's cubins
MIN_COMPUTE_CAPABILITY = (7, 5)  # NVRTC 13 compiles for nothing older
OUT_OF_MEMORY = 2
LAUNCH_OUT_OF_RESOURCES = 701
_NO_DEVICE = 100


class CudaError(AutotuneError):
    """A driver call failed. `is_sticky`: the context is lost and the process has to end."""

    def __init__(self, code: int, name: str, call: str) -> None:
        super().__init__(f"{name} ({code}) in {call}")
        self.code = code
        self.name = name
        self.call = call

    @property
    def is_sticky(self) -> bool:
        return is_sticky(self.code)


def check(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function of `cuda.bindings.driver`; return its result less the status. Raises CudaError. Several
    results come as a tuple, none as None."""
    status, *results = function(*arguments)
    if int(status) != 0:
        raise CudaError(int(status), status.name, function.__name__)
    return results[0] if len(results) == 1 else tuple(results) or None


@dataclass(frozen=True)
class GpuInfo:
    """One GPU as the driver numbers it (CUDA_VISIBLE_DEVICES applies)."""

    index: int
    name: str
    uuid: str
    compute_capability: tuple[int, int]
    total_bytes: int


def open_driver() -> Any:
    """`cuda.bindings.driver`, initialised. Raises EnvironmentProblem where it cannot be."""
    try:
        from cuda.bindings import driver

        version = check(driver.cuDriverGetVersion)
    except (ImportError, RuntimeError) as error:  # the binding, or libcuda behind it, is not there
        raise EnvironmentProblem(
            f"no NVIDIA driver was found ({error}); install driver 580 or later, {_no_gpu_hint()}"
        ) from error
    if 0 < version < MIN_CUDA_VERSION:
        raise EnvironmentProblem(
            f"the NVIDIA driver supports CUDA {cuda_version_name(version)}, and autotune needs "
            f"{cuda_version_name(MIN_CUDA_VERSION)}; install driver 580 or later"
        )
    try:
        check(driver.cuInit, 0)
    except CudaError as error:
        what = "sees no GPU" if error.code == _NO_DEVICE else "does not start"
        raise EnvironmentProblem(
            f"the NVIDIA driver {what} ({error}); check nvidia-smi, or {_no_gpu_hint()}"
        ) from error
    return driver


def cuda_version_name(version: int) -> str:
    """`13.0` for 13000."""
    return f"{version // 1000}.{version % 1000 // 10}"


def _attribute(driver: Any, device: Any, name: str) -> int:
    which = getattr(driver.CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_{name}")
    return int(check(driver.cuDeviceGetAttribute, which, device))


def _describe(driver: Any, index: int) -> GpuInfo:
    device = check(driver.cuDeviceGet, index)
    uuid = uuid_text(bytes(check(driver.cuDeviceGetUuid, device).bytes))
    capability = tuple(
        _attribute(driver, device, f"COMPUTE_CAPABILITY_{part}") for part in ("MAJOR", "MINOR")
    )
    return GpuInfo(
        index=index,
        name=check(driver.cuDeviceGetName, 256, device).split(b"\0")[0].decode(),
        uuid=uuid,
        compute_capability=(capability[0], capability[1]),
        total_bytes=int(check(driver.cuDeviceTotalMem, device)),
    )


def list_gpus() -> list[GpuInfo]:
    """All GPUs that this process may use. Raises EnvironmentProblem where there is no driver or GPU."""
    driver = open_driver()
    return [_describe(driver, index) for index in range(check(driver.cuDeviceGetCount))]


def _no_gpu_hint() -> str:
    search = command("search", " --gpu auto")
    return f"use a machine with an NVIDIA GPU, or try {search}: without a GPU it searches a recorded space"


def is_usable(gpu: GpuInfo) -> bool:
    """Whether it is new enough."""
    return gpu.compute_capability >= MIN_COMPUTE_CAPABILITY


def find_gpu(selector: str) -> GpuInfo:
    """The GPU with this index or UUID (or the beginning of one), or the first for `auto`. Raises
    EnvironmentProblem where there is none to choose from or it is too old, UsageError where the selector
    names none."""
    _check_selector(selector)
    gpu = select_gpu(selector, list_gpus())
    if not is_usable(gpu):
        raise EnvironmentProblem(
            f"{gpu.name} has compute capability {'{}.{}'.format(*gpu.compute_capability)}; "
            f"{'{}.{}'.format(*MIN_COMPUTE_CAPABILITY)} or later is needed (Turing, GTX 16 and RTX 20 on)"
        )
    return gpu


def is_selector(selector: str) -> bool:
    """Whether this may name a GPU of some machine: `auto`, an index, a UUID or its beginning."""
    return bool(re.fullmatch(r"auto|\d{1,3}|((gpu|mig)-)?[0-9a-f-]+", selector.lower()))


def _check_selector(selector: str) -> None:
    """Raises UsageError for what names no GPU of any machine."""
    if limits_by_name(selector) is not None:
        fault = "names a GPU model"
    elif is_selector(selector):
        return
    else:
        kind = get_close_matches(selector[:40].lower(), KNOWN, n=1)
        fault = f"names a GPU model ({kind[0]})" if kind else "names no GPU"
    raise UsageError(
        f"{option('gpu')} {selector} {fault}; pass what this machine has (an index, a UUID or auto), or a "
        "recording: replay:FILE"
    )


def select_gpu(selector: str, gpus: list[GpuInfo]) -> GpuInfo:
    """`find_gpu` among given ones."""
    if not gpus:
        raise EnvironmentProblem(f"the NVIDIA driver sees no GPU; {_no_gpu_hint()}")
    if selector == "auto":
        return gpus[0]
    wanted = selector.lower().removeprefix("gpu-")
    if selector.isdecimal() and len(selector) < 4:
        matches = [gpu for gpu in gpus if gpu.index == int(selector)]
    else:
        matches = [gpu for gpu in gpus if wanted and gpu.uuid.lower().removeprefix("gpu-").startswith(wanted)]
    if len(matches) == 1:
        return matches[0]
    present = "; ".join(f"{gpu.index}: {gpu.name} {gpu.uuid}" for gpu in gpus)
    fault = "names several GPUs" if matches else "names no GPU here"
    raise UsageError(f"{option('gpu')} {selector} {fault}; present are {present}")


# ------------------------------------------------------------------------------------------- limits

_LIMITS = {
    "num_sms": "MULTIPROCESSOR_COUNT",
    "smem_per_block": "MAX_SHARED_MEMORY_PER_BLOCK_OPTIN",
    "smem_per_sm": "MAX_SHARED_MEMORY_PER_MULTIPROCESSOR",
    "smem_reserved": "RESERVED_SHARED_MEMORY_PER_BLOCK",
    "threads_per_sm": "MAX_THREADS_PER_MULTIPROCESSOR",
    "blocks_per_sm": "MAX_BLOCKS_PER_MULTIPROCESSOR",
    "regs_per_sm": "MAX_REGISTERS_PER_MULTIPROCESSOR",
    "l2_bytes": "L2_CACHE_SIZE",
}
_ATTRIBUTES = (
    *_LIMITS.values(), "CLOCK_RATE", "MEMORY_CLOCK_RATE", "GLOBAL_MEMORY_BUS_WIDTH",
)  # fmt: skip
_HALF_FP32 = {(7, 5), (8, 0), (8, 7)}  # 64 FP32 cores per SM; the others have 128
ASSUMED_CLOCK_KHZ = number("ASSUMED_CLOCK_KHZ")  # where the driver tells none: only the stated limit suffers


def device_limits(index: int) -> DeviceLimits:
    """What the GPU with this index offers."""
    driver = open_driver()
    gpu = _describe(driver, index)
    device = check(driver.cuDeviceGet, index)
    attributes = {name: _attribute(driver, device, name) for name in _ATTRIBUTES}
    return limits_from_attributes(gpu.name, gpu.compute_capability, attributes)


def limits_from_attributes(
    name: str, compute_capability: tuple[int, int], attributes: Mapping[str, int]
) -> DeviceLimits:
    """Limits from the driver's attributes (bytes, kHz, bits). The roofline is the one in `KNOWN` for a GPU of
    that name and size; for others it is cores times clock (2 flops per core) and bus width times memory clock
    (2 transfers per clock)."""
    num_sms = attributes["MULTIPROCESSOR_COUNT"]
    clock_khz = attributes["CLOCK_RATE"] or ASSUMED_CLOCK_KHZ
    memory_khz = attributes["MEMORY_CLOCK_RATE"] or ASSUMED_CLOCK_KHZ
    cores = 64 if compute_capability in _HALF_FP32 else 128
    fma_tflops = 2.0 * cores * num_sms * clock_khz / 1e9
    bandwidth_gbs = 2.0 * memory_khz * attributes["GLOBAL_MEMORY_BUS_WIDTH"] / 8 / 1e6
    for known in KNOWN.values():
        if (known.name, known.num_sms) == (name, num_sms):
            fma_tflops, bandwidth_gbs = known.fma_tflops, known.bandwidth_gbs
    return DeviceLimits(
        name=name,
        compute_capability=compute_capability,
        fma_tflops=fma_tflops,
        bandwidth_gbs=bandwidth_gbs,
        **{limit: attributes[own] for limit, own in _LIMITS.items()},
    )


def environment(gpu: GpuInfo, *, driver_version: str, nvrtc_version: str, cublas_version: str) -> Environment:
    """Who measures, for the store. The versions come from those who hold the libraries."""
    return Environment(
        gpu_name=gpu.name,
        gpu_uuid=gpu.uuid,
        compute_capability=gpu.compute_capability,
        driver_version=driver_version,
        cuda_version=cuda_version_name(check(open_driver().cuDriverGetVersion)),
        nvrtc_version=nvrtc_version,
        cublas_version=cublas_version,
    )
