"""The few calls of the CUDA driver that a dispatcher makes, in plain integers, errors raised.

Handles (contexts, streams, kernels, libraries, addresses) are ints. `Driver` is the runtime's only access to
CUDA: tests replace it by a double.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

from cuda.bindings import driver as cuda

from ...facts.device import Conditions, uuid_text
from ...files.errors import DispatchError, is_sticky

PER_THREAD_STREAM = 2  # CU_STREAM_PER_THREAD
LEGACY_STREAMS = (0, 1)  # NULL and CU_STREAM_LEGACY
_NAME_BYTES = 256
_Attribute = cuda.CUdevice_attribute
_MAJOR = _Attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR
_MINOR = _Attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR
_NUM_SMS = _Attribute.CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT
_OfKernel = cuda.CUfunction_attribute
_MAX_SMEM = _OfKernel.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
_MAX_THREADS = _OfKernel.CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK
_REGISTERS = _OfKernel.CU_FUNC_ATTRIBUTE_NUM_REGS
_STATIC_SMEM = _OfKernel.CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES
_CLUSTER = tuple(
    getattr(_OfKernel, f"CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_{side}") for side in ("WIDTH", "HEIGHT", "DEPTH")
)
_ORDINAL = cuda.CUpointer_attribute.CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL
_RELAXED = cuda.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
_NOT_CAPTURING = cuda.CUstreamCaptureStatus.CU_STREAM_CAPTURE_STATUS_NONE
_NON_BLOCKING = cuda.CUstream_flags.CU_STREAM_NON_BLOCKING
_KERNEL_NODE = cuda.CUgraphNodeType.CU_GRAPH_NODE_TYPE_KERNEL
MOST_NODES = 8  # of a graph that are looked at
_TIMING = cuda.CUevent_flags.CU_EVENT_DEFAULT
_NO_TIMING = cuda.CUevent_flags.CU_EVENT_DISABLE_TIMING


class CudaFault(DispatchError):
    """The driver refused a call. `code` is its CUresult."""

    def __init__(self, what: str, code: int, name: str) -> None:
        advice = (
            "the CUDA context is lost, by this or an earlier operation: start the process again"
            if is_sticky(code)
            else "see the CUDA driver's documentation of this code"
        )
        super().__init__(f"{what}: {name} ({code}); {advice}")
        self.code = code


class KernelFacts(NamedTuple):
    """What a loaded kernel was compiled for, as the driver reports it."""

    max_threads: int  # per block: its launch bounds
    registers: int  # per thread
    static_smem_bytes: int
    cluster: tuple[int, int, int]  # blocks along x, y, z; zeros where it asks for none


class GraphNode(NamedTuple):
    """Of a graph: the name of a kernel, "" of anything else, and its blocks along z."""

    kernel: str
    blocks_z: int


def error_name(code: int) -> str:
    """Of a CUresult."""
    try:
        return str(cuda.CUresult(code).name)
    except ValueError:  # of a driver newer than the bindings
        return "unknown CUDA error"


def _check(what: str, result: tuple[Any, ...]) -> Any:
    """The values behind a CUresult: none, one or several. Raises CudaFault."""
    if result[0]:
        raise CudaFault(what, int(result[0]), error_name(int(result[0])))
    return result[1] if len(result) == 2 else result[1:]


def _node_of(node: Any) -> GraphNode:
    if _check("looking at a node", cuda.cuGraphNodeGetType(node)) != _KERNEL_NODE:
        return GraphNode("", 0)
    launch = _check("looking at a launch", cuda.cuGraphKernelNodeGetParams(node))
    name: bytes = _check(
        "name of a kernel",
        (cuda.cuFuncGetName(launch.func) if int(launch.func) else cuda.cuKernelGetName(launch.kern)),
    )
    return GraphNode(name.decode(errors="replace"), int(launch.gridDimZ))


class Driver:
    """The driver of this process. Raises DispatchError where there is none."""

    core_calls: Any = None  # the core finds its CUDA functions in the driver; a double supplies its own

    def __init__(self) -> None:
        try:
            _check("CUDA cannot be initialised", cuda.cuInit(0))
        except RuntimeError as error:  # libcuda is not there
            raise DispatchError(
                f"no CUDA driver ({error}); install one, or use a machine with a GPU"
            ) from error

    # Devices and contexts

    def num_devices(self) -> int:
        return int(_check("counting GPUs", cuda.cuDeviceGetCount()))

    def device_name(self, device: int) -> str:
        text: bytes = _check(f"name of GPU {device}", cuda.cuDeviceGetName(_NAME_BYTES, device))
        return text.split(b"\0")[0].decode(errors="replace")

    def compute_capability(self, device: int) -> tuple[int, int]:
        what = f"compute capability of GPU {device}"
        major, minor = (_check(what, cuda.cuDeviceGetAttribute(a, device)) for a in (_MAJOR, _MINOR))
        return int(major), int(minor)

    def conditions(self, device: int) -> Conditions:
        """What a GPU runs under, as far as the driver and NVML report it."""
        num_sms = int(_check(f"SMs of GPU {device}", cuda.cuDeviceGetAttribute(_NUM_SMS, device)))
        uuid = uuid_text(bytes(_check(f"UUID of GPU {device}", cuda.cuDeviceGetUuid(device)).bytes))
        return Conditions(self.device_name(device), num_sms, self.version(), *ask_nvml(uuid))

    def version(self) -> str:
        """Newest CUDA that the driver knows: `13.0`."""
        number = int(_check("version of the driver", cuda.cuDriverGetVersion()))
        return f"{number // 1000}.{number % 1000 // 10}"

    def primary_context(self, device: int) -> int:
        return int(_check(f"context of GPU {device}", cuda.cuDevicePrimaryCtxRetain(device)))

    def current_context(self) -> int:
        """The context of this thread, 0 if it has none."""
        error, context = cuda.cuCtxGetCurrent()
        return 0 if error else int(context)

    def push_context(self, context: int) -> None:
        _check("making a context current", cuda.cuCtxPushCurrent(context))

    def pop_context(self) -> None:
        _check("restoring a context", cuda.cuCtxPopCurrent())

    def current_device(self) -> int | None:
        """GPU of this thread's context, None if it has none."""
        error, device = cuda.cuCtxGetDevice()
        return None if error else int(device)

    def pointer_device(self, address: int) -> int:
        """GPU that this device address belongs to."""
        return int(_check("looking up a device address", cuda.cuPointerGetAttribute(_ORDINAL, address)))

    # Kernels

    @contextmanager
    def relaxed(self) -> Iterator[None]:
        """Lets this thread load code and take memory during the capture of a stream by any thread: else the
        driver refuses that, and the other thread's capture fails."""
        mode = _check("capture mode", cuda.cuThreadExchangeStreamCaptureMode(_RELAXED))
        try:
            yield
        finally:
            _check("capture mode", cuda.cuThreadExchangeStreamCaptureMode(mode))

    def load_library(self, code: bytes) -> int:
        return int(_check("loading a cubin", cuda.cuLibraryLoadData(code, [], [], 0, [], [], 0)))

    def get_kernel(self, library: int, name: str) -> int:
        return int(_check(f"looking up {name}", cuda.cuLibraryGetKernel(library, name.encode())))

    def kernel_facts(self, kernel: int, device: int, *, has_clusters: bool) -> KernelFacts:
        """What the kernel was compiled for; without `has_clusters` the GPU has none, and is not asked."""

        def ask(attribute: Any) -> int:
            return int(_check("looking at a kernel", cuda.cuKernelGetAttribute(attribute, kernel, device)))

        x, y, z = map(ask, _CLUSTER) if has_clusters else (0, 0, 0)
        return KernelFacts(ask(_MAX_THREADS), ask(_REGISTERS), ask(_STATIC_SMEM), (x, y, z))

    def allow_smem(self, kernel: int, num_bytes: int, device: int) -> None:
        """Allow a kernel more dynamic shared memory than the usual 48 KB."""
        what = f"{num_bytes} bytes of shared memory"
        _check(what, cuda.cuKernelSetAttribute(_MAX_SMEM, num_bytes, kernel, device))

    def make_resident(self, kernel: int) -> None:
        """Load a kernel into the current context now, not at its first launch."""
        _check("loading a kernel", cuda.cuKernelGetFunction(kernel))

    # Streams and memory

    def stream_device(self, stream: int) -> int:
        return int(_check("device of a stream", cuda.cuStreamGetDevice(stream)))

    def is_capturing(self, stream: int) -> bool:
        status = _check("asking a stream for its capture", cuda.cuStreamIsCapturing(stream))
        return bool(status != _NOT_CAPTURING)

    def order(self, before: int, after: int) -> None:
        """Later work on `after` waits for the work that `before` has so far."""
        event = _check("making an event", cuda.cuEventCreate(_NO_TIMING))
        try:
            _check("recording an event", cuda.cuEventRecord(event, before))
            _check("waiting for an event", cuda.cuStreamWaitEvent(after, event, 0))
        finally:
            _check("freeing an event", cuda.cuEventDestroy(event))

    def allocate(self, num_bytes: int, stream: int) -> int:
        """Memory in the order of a stream."""
        with self.relaxed():
            return int(_check(f"{num_bytes} bytes of device memory", cuda.cuMemAllocAsync(num_bytes, stream)))

    def free(self, address: int, stream: int) -> None:
        with self.relaxed():
            _check("freeing device memory", cuda.cuMemFreeAsync(address, stream))

    def zero(self, address: int, num_bytes: int, stream: int) -> None:
        _check("zeroing device memory", cuda.cuMemsetD8Async(address, 0, num_bytes, stream))

    def copy_in(self, address: int, host: int, num_bytes: int, stream: int) -> None:
        what = "copying to the GPU"
        _check(what, cuda.cuMemcpyHtoDAsync(address, host, num_bytes, stream))

    def copy(self, to: int, source: int, num_bytes: int, stream: int) -> None:
        """From device memory to device memory."""
        _check("copying on the GPU", cuda.cuMemcpyDtoDAsync(to, source, num_bytes, stream))

    def copy_out(self, host: int, address: int, num_bytes: int, stream: int) -> None:
        what = "copying from the GPU"
        _check(what, cuda.cuMemcpyDtoHAsync(host, address, num_bytes, stream))

    def synchronize(self, stream: int) -> None:
        _check("waiting for a stream", cuda.cuStreamSynchronize(stream))

    def free_bytes(self) -> int:
        """Free memory of the GPU whose context is current."""
        return int(_check("asking for free memory", cuda.cuMemGetInfo())[0])

    # Timing

    def make_stream(self) -> int:
        """A stream that neither waits for the legacy default stream nor makes it wait."""
        return int(_check("making a stream", cuda.cuStreamCreate(_NON_BLOCKING)))

    def free_stream(self, stream: int) -> None:
        _check("freeing a stream", cuda.cuStreamDestroy(stream))

    def make_event(self) -> int:
        return int(_check("making an event", cuda.cuEventCreate(_TIMING)))

    def free_event(self, event: int) -> None:
        _check("freeing an event", cuda.cuEventDestroy(event))

    def record(self, event: int, stream: int) -> None:
        _check("recording an event", cuda.cuEventRecord(event, stream))

    def elapsed_us(self, begin: int, end: int) -> float:
        """From one event to another, both of which the GPU has passed."""
        return 1000 * float(_check("reading the time of events", cuda.cuEventElapsedTime(begin, end)))

    @contextmanager
    def _captured(self, stream: int, enqueue: Callable[[], None]) -> Iterator[Any]:
        """The work that `enqueue` gives to a stream, as a graph instead of being run."""
        _check("beginning a capture", cuda.cuStreamBeginCapture(stream, _RELAXED))
        with ExitStack() as at_end:
            try:
                enqueue()
            finally:
                graph = _check("ending a capture", cuda.cuStreamEndCapture(stream))
                at_end.callback(lambda: _check("freeing a graph", cuda.cuGraphDestroy(graph)))
            yield graph

    def capture(self, stream: int, enqueue: Callable[[], None]) -> int:
        """The same, ready to be launched."""
        with self._captured(stream, enqueue) as graph:
            return int(_check("building a graph", cuda.cuGraphInstantiate(graph, 0)))

    def nodes_of(self, stream: int, enqueue: Callable[[], None]) -> list[GraphNode]:
        """What `enqueue` would give to a stream: nothing runs. At most MOST_NODES. Raises CudaFault, also
        where the driver does not tell names of kernels (before CUDA 12.3)."""
        with self._captured(stream, enqueue) as graph:
            nodes, num = _check("looking at a graph", cuda.cuGraphGetNodes(graph, MOST_NODES))
            return [_node_of(node) for node in nodes[:num]]  # the others are NULL

    def launch_graph(self, graph: int, stream: int) -> None:
        _check("launching a graph", cuda.cuGraphLaunch(graph, stream))

    def free_graph(self, graph: int) -> None:
        _check("freeing a graph", cuda.cuGraphExecDestroy(graph))


def ask_nvml(uuid: str) -> tuple[str, float | None]:
    """Version of the driver, and power limit in W of the GPU of this UUID, as far as NVML reports them."""
    try:
        from cuda.bindings import nvml

        nvml.init_v2()
        version = str(nvml.system_get_driver_version())
    except Exception:  # not installed, no permission: its errors have no base in common
        return "", None
    try:
        milliwatts = int(nvml.device_get_enforced_power_limit(nvml.device_get_handle_by_uuid(uuid)))
    except Exception:  # a slice, a virtual GPU
        return version, None
    return version, milliwatts / 1000
