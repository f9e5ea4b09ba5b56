"""Loaded code: a cubin's kernels, and how one is launched.

Arguments are ctypes values, laid out once; `cuLaunchKernelEx` copies them when it is called (also while a
stream is captured), so a caller may change a value and launch again.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

from ..kernel.launch import launch_config, overlap_attribute
from .driver import check

DEFAULT_SMEM_BYTES = 48 * 1024  # dynamic shared memory that needs no opting in

CValue = Any  # a ctypes scalar: c_int32, c_int64, c_float, c_void_p, ...


def pack(values: Sequence[CValue]) -> ctypes.Array[ctypes.c_void_p]:
    """The array of addresses that `kernelParams` wants. The values must outlive it."""
    return (ctypes.c_void_p * len(values))(*(ctypes.addressof(value) for value in values))


class EntryFunction:
    """One entry function on the current context's device."""

    def __init__(self, driver: Any, handle: Any, device: Any) -> None:
        self._driver = driver
        self._device = device
        self._handle = handle
        # Loads the code now (loading is lazy otherwise), so that no launch is delayed by it.
        self._function = check(driver.cuKernelGetFunction, handle)
        self._overlapping = [overlap_attribute(driver)]

    def allow_smem(self, smem_bytes: int) -> None:
        """Opt in to this much dynamic shared memory per block."""
        if smem_bytes <= DEFAULT_SMEM_BYTES:
            return
        which = self._driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        check(self._driver.cuKernelSetAttribute, which, smem_bytes, self._handle, self._device)

    def launch(
        self,
        stream: Any,
        grid: tuple[int, int],
        block: int,
        arguments: ctypes.Array[ctypes.c_void_p],
        smem_bytes: int = 0,
        *,
        overlaps: bool = False,
    ) -> None:
        """Enqueue a launch of grid (x, y) blocks of `block` threads, arguments as `pack` lays them out.
        `overlaps`: the kernel itself waits for the previous one, and may begin before that has ended."""
        attributes = self._overlapping if overlaps else []
        config = launch_config(self._driver, grid, block, smem_bytes, stream, attributes)
        check(self._driver.cuLaunchKernelEx, config, self._function, ctypes.addressof(arguments), 0)


class Module:
    """A cubin loaded into the current context."""

    def __init__(self, driver: Any, device: Any, code: bytes) -> None:
        self._driver = driver
        self._device = device
        self._library = check(driver.cuLibraryLoadData, code, [], [], 0, [], [], 0)
        self._kernels: dict[str, EntryFunction] = {}

    def kernel(self, name: str) -> EntryFunction:
        """The entry function of that name. Raises CudaError where the cubin has none."""
        if name not in self._kernels:
            handle = check(self._driver.cuLibraryGetKernel, self._library, name.encode())
            self._kernels[name] = EntryFunction(self._driver, handle, self._device)
        return self._kernels[name]

    def unload(self) -> None:
        check(self._driver.cuLibraryUnload, self._library)
