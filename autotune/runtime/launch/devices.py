"""The GPUs of a process: their identities, their contexts, and the kernels of a table loaded on them.

Loading happens once per kernel and GPU, under a lock, also while a stream is being captured.

A table's times hold for more than the GPU model: number of SMs, driver, power limit, a MIG slice. None of it
makes a result wrong, so a table is never refused for it. But another kernel may be the fastest, so the user
is warned, once per process and table, at the first product on such a GPU. Later calls cost nothing.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ...facts.device import Conditions
from ...files.errors import DispatchError, DispatchWarning, is_sticky
from ...kernel.launch import PACK_THREADS, REDUCE_THREADS
from ..table.gpu_models import GpuModel, no_table
from ..table.table import Kernel, Table
from .cuda_driver import CudaFault, Driver, KernelFacts

_SAME_W = 0.5  # power limits closer than this are one
DEFAULT_SMEM = 48 * 1024  # bytes of dynamic shared memory that any kernel may have


class LoadedKernel(NamedTuple):
    """A kernel ready for launches on a GPU. `reduce` is 0 without a second pass, `pack` without packing."""

    sgemm: int
    reduce: int
    pack: int


@dataclass(slots=True)
class OpenGpu:
    """One GPU of this process."""

    device: int
    context: int  # primary
    conditions: Conditions | None  # None: the GPU does not tell
    kernels: dict[str, LoadedKernel] = field(default_factory=dict)


class Gpus:
    """GPUs of this process, each opened at its first use. Threads may share it."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._lock = threading.Lock()
        self._gpus: dict[int, OpenGpu] = {}
        self._upcast: dict[int, int] = {}  # by GPU

    def upcast(self, gpu: OpenGpu, code: bytes) -> int:
        """The kernel that converts an A of BF16 or FP16, by its PTX; loaded at the first request."""
        with self._lock:
            if gpu.device not in self._upcast:
                with self.current(gpu), self._driver.relaxed():
                    library = self._driver.load_library(code + b"\0")
                    kernel = self._driver.get_kernel(library, "upcast")
                    self._driver.make_resident(kernel)
                self._upcast[gpu.device] = kernel
            return self._upcast[gpu.device]

    def gpu(self, device: int) -> OpenGpu:
        """A GPU by its number. Raises DispatchError if it cannot be served."""
        found = self._gpus.get(device)
        if found is None:
            with self._lock:
                found = self._gpus.get(device) or self._adopt(device)
        return found

    @contextmanager
    def current(self, gpu: OpenGpu) -> Iterator[None]:
        """Makes a GPU's context current for this thread, and restores the one before."""
        is_other_context = self._driver.current_context() != gpu.context
        if is_other_context:
            self._driver.push_context(gpu.context)
        try:
            yield
        finally:
            if is_other_context:
                self._driver.pop_context()

    def _adopt(self, device: int) -> OpenGpu:
        context = self._driver.primary_context(device)
        here = None
        with suppress(CudaFault):  # the later calls report what is wrong with the GPU
            here = self._driver.conditions(device)
        self._gpus[device] = OpenGpu(device, context, here)
        return self._gpus[device]


class Devices(Gpus):
    """All GPUs of this process that a table is for, with its kernels. Threads may share it."""

    def __init__(self, table: Table, code: Mapping[str, bytes], driver: Driver) -> None:
        super().__init__(driver)
        self._table = table
        self._code = code
        self._libraries: dict[str, int] = {}  # by SHA-256 of the cubin; not bound to a GPU

    def kernel(self, gpu: OpenGpu, kernel: Kernel) -> LoadedKernel:
        """A kernel on a GPU, loaded at the first request."""
        found = gpu.kernels.get(kernel.id)
        if found is None:
            with self._lock:
                found = gpu.kernels.get(kernel.id)
                if found is None:
                    found = gpu.kernels[kernel.id] = self._load(gpu, kernel)
        return found

    def _mismatch(self, device: int) -> str | None:
        """Why the table is not for this GPU, or None if it is."""
        here = gpu_model_here(self._driver, device)
        is_known = GpuModel.of_table(self._table) in here.accepted
        return None if is_known else no_table([self._table], device, here)

    def _adopt(self, device: int) -> OpenGpu:
        fault = self._mismatch(device)
        if fault is not None:
            raise DispatchError(fault)
        gpu = super()._adopt(device)
        if gpu.conditions is not None:
            warn(self._table, device, gpu.conditions)
        return gpu

    def _load(self, gpu: OpenGpu, kernel: Kernel) -> LoadedKernel:
        spec, driver = kernel.spec, self._driver
        with self.current(gpu), driver.relaxed():
            try:
                library = self._library(kernel.sha256)
                sgemm = driver.get_kernel(library, "sgemm")
                reduce = driver.get_kernel(library, "sgemm_reduce") if spec.has_planes else 0
                pack = driver.get_kernel(library, "sgemm_pack") if spec.packs_a or spec.packs_b else 0
                loaded = {"sgemm": sgemm, "sgemm_reduce": reduce, "sgemm_pack": pack}
                self._check_code(gpu, kernel, loaded)
                if spec.smem_bytes > DEFAULT_SMEM:
                    driver.allow_smem(sgemm, spec.smem_bytes, gpu.device)
                for handle in filter(None, (sgemm, reduce, pack)):
                    driver.make_resident(handle)
            except CudaFault as fault:
                raise self._rejected(kernel, fault) from fault
        return LoadedKernel(sgemm, reduce, pack)

    def _check_code(self, gpu: OpenGpu, kernel: Kernel, loaded: Mapping[str, int]) -> None:
        """Raises DispatchError if the code does not match the table's launch parameters."""
        limits = self._table.limits
        for name, handle in loaded.items():
            if handle:
                facts = self._driver.kernel_facts(handle, gpu.device, has_clusters=limits.has_clusters)
                fault = mismatch(kernel, name, facts, limits.smem_per_block)
                if fault is not None:
                    raise DispatchError(
                        f"kernel {kernel.id} is not what its cubin holds: {name} {fault}; nothing was "
                        "launched: export the table again with `autotune export-table`"
                    )

    def _library(self, sha256: str) -> int:
        if sha256 not in self._libraries:
            self._libraries[sha256] = self._driver.load_library(self._code[sha256])
        return self._libraries[sha256]

    def _rejected(self, kernel: Kernel, fault: CudaFault) -> DispatchError:
        if is_sticky(fault.code):
            return fault
        return DispatchError(
            f"the driver (CUDA {self._driver.version()}) refuses kernel {kernel.id}, compiled by "
            f"{self._table.compiler}: {fault}; update the driver, or export again with an older compiler"
        )


def gpu_model_here(driver: Driver, device: int) -> GpuModel:
    """Of a GPU of this process."""
    return GpuModel.of(driver.device_name(device), driver.compute_capability(device))


def first_served(driver: Driver, fault: Callable[[int], str | None]) -> int:
    """The current GPU if it can be served, else the first that can. Raises DispatchError with all faults."""
    current = driver.current_device()
    if current is not None and fault(current) is None:
        return current
    faults = []
    for device in range(driver.num_devices()):
        text = fault(device)
        if text is None:
            return device
        faults.append(text)
    raise DispatchError("; ".join(faults) or "the driver finds no GPU; run `nvidia-smi` to see why")


def mismatch(kernel: Kernel, name: str, facts: KernelFacts, smem_per_block: int) -> str | None:
    """Why one of a kernel's functions cannot be launched as the table says, or None if it can.

    Launch bounds are part of the code, so a block has exactly the threads that it was compiled for. Registers
    are known only for `sgemm`. A cluster is along y (launch.Grid)."""
    spec = kernel.spec
    is_main = name == "sgemm"
    threads = {"sgemm": spec.threads, "sgemm_reduce": REDUCE_THREADS, "sgemm_pack": PACK_THREADS}[name]
    cluster = (1, spec.split_k, 1) if is_main and spec.reduction == "cluster" else (0, 0, 0)
    if facts.max_threads != threads:
        return f"is compiled for {facts.max_threads} threads per block, the table launches {threads}"
    if is_main and facts.registers != kernel.registers:
        return f"takes {facts.registers} registers per thread, the table says {kernel.registers}"
    if facts.cluster != cluster:
        return f"is compiled for clusters of {_by(facts.cluster)} blocks, the table launches {_by(cluster)}"
    smem_bytes = facts.static_smem_bytes + (spec.smem_bytes if is_main else 0)
    if smem_bytes > smem_per_block:
        return f"takes {smem_bytes} bytes of shared memory per block, the GPU has {smem_per_block}"
    return None


def _by(cluster: tuple[int, int, int]) -> str:
    return "x".join(map(str, cluster)) if any(cluster) else "no"


def differences(table: Table, here: Conditions) -> list[str]:
    """How a GPU differs from the one that a table was measured on, as far as both are known."""
    there = table.environment
    pairs: list[tuple[str, Any, Any]] = [
        ("name", here.gpu_name, there.gpu_name),
        ("number of SMs", here.num_sms, table.limits.num_sms),
    ]
    if here.driver_version and there.driver_version:
        pairs.append(("driver", here.driver_version, there.driver_version))
    elif there.cuda_version:
        pairs.append(("CUDA version of the driver", here.cuda_version, there.cuda_version))
    found = [
        f"its {what} is {current}, not {expected}" for what, current, expected in pairs if current != expected
    ]
    limit_w = table.power_limit_w
    if limit_w and here.power_limit_w and abs(limit_w - here.power_limit_w) > _SAME_W:
        found.append(f"its power limit is {here.power_limit_w:g} W, not {limit_w:g} W")
    return found


_warned: set[tuple[str, str, str]] = set()  # tables of this process
_lock = threading.Lock()


def warn(table: Table, device: int, here: Conditions) -> None:
    """Warn that a GPU differs from the one that the table was measured on: once per process and table."""
    found = differences(table, here)
    identity = (table.created_at, table.source_hash, table.environment.gpu_uuid)
    with _lock:
        if not found or identity in _warned:
            return
        _warned.add(identity)
    warnings.warn(
        f"GPU {device} is not quite the one that this table was measured on ({table.environment.gpu_name}, "
        f"exported {table.created_at}): {'; '.join(found)}. Results are right, but other kernels may be "
        f"faster: run `autotune search --gpu {device}` here and export again",
        DispatchWarning,
        stacklevel=2,
    )
