"""The GPUs that a table serves: who they are, their contexts, and the kernels loaded on them.

Loading happens once per kernel and GPU, under a lock, also while a stream is being captured. Copied
into exported tables.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import NamedTuple

from ..cuda_errors import is_sticky
from ..errors import DispatchError
from ..kernel.launch import PACK_THREADS, REDUCE_THREADS
from . import conditions
from .conditions import Conditions
from .cuda_driver import CudaFault, Driver, KernelFacts
from .table import Kernel, Table
from .workspace import Workspaces

DEFAULT_SMEM = 48 * 1024  # bytes of dynamic shared memory that any kernel may have


class LoadedKernel(NamedTuple):
    """A kernel ready for launches on one GPU. `reduce` is 0 where there is no second pass, `pack` where
    nothing is packed."""

    sgemm: int
    reduce: int
    pack: int
    threads: int
    smem_bytes: int
    overlaps: bool


@dataclass(slots=True)
class OpenGpu:
    """One GPU of this process."""

    device: int
    context: int  # primary
    workspaces: Workspaces
    conditions: Conditions | None  # None: the GPU does not tell
    kernels: dict[str, LoadedKernel] = field(default_factory=dict)


class Devices:
    """All GPUs of this process that the table is for. Threads may share it."""

    def __init__(self, table: Table, code: Mapping[str, bytes], driver: Driver) -> None:
        self._table = table
        self._code = code
        self._driver = driver
        self._lock = threading.Lock()
        self._gpus: dict[int, OpenGpu] = {}
        self._libraries: dict[str, int] = {}  # by SHA-256 of the cubin; not bound to a GPU

    def gpu(self, device: int) -> OpenGpu:
        """A GPU by its number. Raises DispatchError if the table is not for such a GPU."""
        found = self._gpus.get(device)
        if found is None:
            with self._lock:
                found = self._gpus.get(device) or self._adopt(device)
        return found

    def for_host(self) -> int:
        """The GPU for arrays of the host: the current one if the table is for it, else the first such."""
        current = self._driver.current_device()
        if current is not None and self._mismatch(current) is None:
            return current
        faults = []
        for device in range(self._driver.num_devices()):
            fault = self._mismatch(device)
            if fault is None:
                return device
            faults.append(fault)
        raise DispatchError("; ".join(faults) or "the driver finds no GPU; run `nvidia-smi` to see why")

    @contextmanager
    def current(self, gpu: OpenGpu) -> Iterator[None]:
        """Makes a GPU's context current for this thread, and restores the one before."""
        is_elsewhere = self._driver.current_context() != gpu.context
        if is_elsewhere:
            self._driver.push_context(gpu.context)
        try:
            yield
        finally:
            if is_elsewhere:
                self._driver.pop_context()

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
        expected = self._table.environment
        name, capability = self._driver.device_name(device), self._driver.compute_capability(device)
        same = (conditions.kind_of(expected.gpu_name), expected.compute_capability)
        if (conditions.kind_of(name), capability) == same:
            return None
        return (
            f"this table is for {expected.gpu_name} (sm_{_digits(expected.compute_capability)}), but GPU "
            f"{device} is {name} (sm_{_digits(capability)}): tune on it with "
            f"`autotune search --gpu {device}` and export again"
        )

    def _adopt(self, device: int) -> OpenGpu:
        fault = self._mismatch(device)
        if fault is not None:
            raise DispatchError(fault)
        context = self._driver.primary_context(device)
        here = None
        with suppress(CudaFault):  # what is wrong with the GPU shows in what is asked of it
            here = self._driver.conditions(device)
        self._gpus[device] = OpenGpu(device, context, Workspaces(self._driver, device), here)
        if here is not None:
            conditions.warn(self._table, device, here)
        return self._gpus[device]

    def _load(self, gpu: OpenGpu, kernel: Kernel) -> LoadedKernel:
        spec, driver = kernel.spec, self._driver
        with self.current(gpu), driver.relaxed():
            try:
                library = self._library(kernel.sha256)
                sgemm = driver.get_kernel(library, "sgemm")
                reduce = driver.get_kernel(library, "sgemm_reduce") if spec.reduction == "two_pass" else 0
                pack = driver.get_kernel(library, "sgemm_pack") if spec.packs_a or spec.packs_b else 0
                loaded = {"sgemm": sgemm, "sgemm_reduce": reduce, "sgemm_pack": pack}
                self._check_code(gpu, kernel, loaded)
                if spec.smem_bytes > DEFAULT_SMEM:
                    driver.allow_smem(sgemm, spec.smem_bytes, gpu.device)
                for handle in filter(None, (sgemm, reduce, pack)):
                    driver.make_resident(handle)
            except CudaFault as fault:
                raise self._refused(kernel, fault) from fault
        return LoadedKernel(sgemm, reduce, pack, spec.threads, spec.smem_bytes, spec.overlaps)

    def _check_code(self, gpu: OpenGpu, kernel: Kernel, loaded: Mapping[str, int]) -> None:
        """Raises DispatchError if the code is not what the table launches it as."""
        limits = self._table.limits
        for name, handle in loaded.items():
            if handle:
                facts = self._driver.kernel_facts(handle, gpu.device, has_clusters=limits.has_clusters)
                fault = misfit(kernel, name, facts, limits.smem_per_block)
                if fault is not None:
                    raise DispatchError(
                        f"kernel {kernel.id} is not what its cubin holds: {name} {fault}; nothing was "
                        "launched: export the table again with `autotune export-table`"
                    )

    def _library(self, sha256: str) -> int:
        if sha256 not in self._libraries:
            self._libraries[sha256] = self._driver.load_library(self._code[sha256])
        return self._libraries[sha256]

    def _refused(self, kernel: Kernel, fault: CudaFault) -> DispatchError:
        if is_sticky(fault.code):
            return fault
        return DispatchError(
            f"the driver (CUDA {self._driver.version()}) refuses kernel {kernel.id}, compiled by "
            f"{self._table.compiler}: {fault}; update the driver, or export again with an older compiler"
        )


def misfit(kernel: Kernel, name: str, facts: KernelFacts, smem_per_block: int) -> str | None:
    """Why one of a kernel's functions cannot be launched as the table says, or None if it can.

    Launch bounds are part of the code, so a block has just the threads that it was compiled for. Registers
    are told of `sgemm` alone. A cluster lies along y (launch.Grid).
    """
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


def _digits(capability: tuple[int, int]) -> str:
    return "".join(map(str, capability))
