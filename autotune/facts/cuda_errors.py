"""CUDA errors after which a process can compute nothing more on its GPU: the context is lost ("sticky").

By the CUDA driver API's description of CUresult (docs.nvidia.com/cuda/cuda-driver-api, "Data types used by
CUDA driver"), of CUDA 13. Of the errors that say "this leaves the process in an inconsistent state and any
further CUDA work will return the same error", none is missing: a test compares the list with the bindings.
Copied into exported tables: standard library only.
"""

from __future__ import annotations

_STICKY_DESCRIPTION = "leaves the process in an inconsistent state, by its description"
_HARDWARE = "memory or a link of the GPU failed while a kernel ran: what was computed cannot be trusted"

# CUresult: its name, and why nothing can follow it.
STICKY: dict[int, tuple[str, str]] = {
    214: ("CUDA_ERROR_ECC_UNCORRECTABLE", _HARDWARE),
    220: ("CUDA_ERROR_NVLINK_UNCORRECTABLE", _HARDWARE),
    226: ("CUDA_ERROR_CONTAINED", _STICKY_DESCRIPTION),
    700: ("CUDA_ERROR_ILLEGAL_ADDRESS", _STICKY_DESCRIPTION),
    702: ("CUDA_ERROR_LAUNCH_TIMEOUT", _STICKY_DESCRIPTION),
    709: ("CUDA_ERROR_CONTEXT_IS_DESTROYED", "the context is gone"),
    710: ("CUDA_ERROR_ASSERT", "the context cannot be used anymore, by its description"),
    714: ("CUDA_ERROR_HARDWARE_STACK_ERROR", _STICKY_DESCRIPTION),
    715: ("CUDA_ERROR_ILLEGAL_INSTRUCTION", _STICKY_DESCRIPTION),
    716: ("CUDA_ERROR_MISALIGNED_ADDRESS", _STICKY_DESCRIPTION),
    717: ("CUDA_ERROR_INVALID_ADDRESS_SPACE", _STICKY_DESCRIPTION),
    718: ("CUDA_ERROR_INVALID_PC", _STICKY_DESCRIPTION),
    719: ("CUDA_ERROR_LAUNCH_FAILED", _STICKY_DESCRIPTION),
    # By its description the launch is refused and the context intact. But nothing here launches
    # cooperatively: a process with this error has gone wrong.
    720: ("CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE", "answers a kind of launch that is never made here"),
    721: ("CUDA_ERROR_TENSOR_MEMORY_LEAK", _STICKY_DESCRIPTION),
    810: ("CUDA_ERROR_MPS_CLIENT_TERMINATED", "the server of MPS has ended this client"),
    911: ("CUDA_ERROR_EXTERNAL_DEVICE", _STICKY_DESCRIPTION),
    999: ("CUDA_ERROR_UNKNOWN", "the driver failed in a way that it does not know itself"),
}


def is_sticky(code: int) -> bool:
    """Whether after this CUresult only a new process helps."""
    return code in STICKY
