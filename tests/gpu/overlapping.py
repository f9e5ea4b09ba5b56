"""Calls that hang together, on a GPU: scripts of products and of other kernels that write their operands.

A script is a list of steps on a few buffers. Every product writes what a later step reads, overwrites what
an earlier one read, and uses the workspace of the one before: who runs too early spoils what is left at last.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from autotune.facts.gemm import Gemm
from autotune.gpu.driver import check, open_driver
from autotune.runtime.dispatcher import Dispatcher
from autotune.runtime.launch.cuda_driver import Driver

NUM_BUFFERS = 6
FLOATS = 512 * 512  # of a buffer

# Slow, on few blocks: it leaves room for whoever comes too early. It lets the next kernel begin at once, as
# other libraries' kernels may, and writes late. What it writes is at most 1.
WRITER = r"""
extern "C" __global__ void sgemm(float* data, int count, float by) {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;");
#endif
    for (long long begin = clock64(); clock64() - begin < 20000;) {}
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x)
        data[i] = 0.5f * data[i] / (1 + fabsf(data[i])) + by * (i % 7 - 3);
}
"""
WRITER_BLOCKS, WRITER_THREADS = 8, 256


@dataclass(frozen=True)
class ProductStep:
    """out = alpha * a * b + beta * out, each the beginning of a buffer."""

    gemm: Gemm
    a: int
    b: int
    out: int
    alpha: float
    beta: float


@dataclass(frozen=True)
class Write:
    """A kernel that is not ours changes all of a buffer."""

    buffer: int
    by: float


Script = Sequence[ProductStep | Write]


def script(gemms: Sequence[Gemm], seed: int, length: int) -> Script:
    """A random script, the same for the same seed. Now and then alpha is zero, or an operand is written right
    before its product or right after it."""
    random_ = random.Random(seed)
    steps: list[ProductStep | Write] = []
    latest = 0  # what was written last is read next
    while len(steps) < length:
        gemm = random_.choice(gemms)
        others = random_.sample([i for i in range(NUM_BUFFERS) if i != latest], 2)
        a, b = random_.choice(((latest, others[0]), (others[0], latest)))
        alpha = random_.choice((1.0, 1.0, 1.0, 0.0)) / max(gemm.k, 1) ** 0.5
        if random_.random() < 0.3:
            steps.append(Write(a, random_.random() / 6))
        steps.append(ProductStep(gemm, a, b, others[1], alpha, random_.choice((0.0, 0.5))))
        if random_.random() < 0.3:
            steps.append(Write(random_.choice((a, b)), random_.random() / 6))
        latest = others[1]
    return steps


class _Matrix:
    """The beginning of a buffer as an array of its own."""

    def __init__(self, address: int, rows: int, columns: int) -> None:
        data = (address if rows * columns else 0, False)
        self.__cuda_array_interface__ = {
            "shape": (rows, columns), "typestr": "<f4", "version": 3, "strides": None, "data": data,
        }  # fmt: skip


class Lane:
    """Buffers and a stream of their own."""

    def __init__(self, dispatcher: Dispatcher, driver: Driver, writer: int, stream: int) -> None:
        self._dispatcher, self._driver, self._writer, self.stream = dispatcher, driver, writer, stream
        self._start = np.random.default_rng(1).standard_normal((NUM_BUFFERS, FLOATS), dtype=np.float32)
        self._base = driver.allocate(self._start.nbytes, stream)

    def close(self) -> None:
        self._driver.free(self._base, self.stream)
        self._driver.synchronize(self.stream)

    def reset(self) -> None:
        """Puts all buffers back to what they were first."""
        self._driver.copy_in(self._base, self._start.ctypes.data, self._start.nbytes, self.stream)
        self._driver.synchronize(self.stream)

    def bits(self) -> np.ndarray:
        """What the buffers hold once the stream is done, as integers: NaN equals itself."""
        found = np.empty_like(self._start)
        self._driver.copy_out(found.ctypes.data, self._base, found.nbytes, self.stream)
        self._driver.synchronize(self.stream)
        return found.view(np.uint32)

    def enqueue(self, step: ProductStep | Write) -> None:
        if isinstance(step, ProductStep):
            g = step.gemm
            a, b = self._matrix(step.a, g.m, g.k), self._matrix(step.b, g.k, g.n)
            out = self._matrix(step.out, g.m, g.n)
            self._dispatcher.sgemm(a, b, out, alpha=step.alpha, beta=step.beta, stream=self.stream)
            return
        values = np.array([self._at(step.buffer), FLOATS, 0], np.int64)
        values[2:].view(np.float32)[0] = step.by
        pointers = values.ctypes.data + 8 * np.arange(3)
        grid, block = (WRITER_BLOCKS, 1, 1), (WRITER_THREADS, 1, 1)
        check(
            open_driver().cuLaunchKernel,
            *(self._writer, *grid, *block, 0, self.stream, int(pointers.ctypes.data), 0),
        )

    def run(self, steps: Script, *, is_waiting: bool) -> np.ndarray:
        """The buffers behind a script; `is_waiting`: for the end of each step before the next."""
        self.reset()
        for step in steps:
            self.enqueue(step)
            if is_waiting:
                self._driver.synchronize(self.stream)
        return self.bits()

    def _at(self, buffer: int) -> int:
        return self._base + 4 * FLOATS * buffer

    def _matrix(self, buffer: int, rows: int, columns: int) -> _Matrix:
        return _Matrix(self._at(buffer), rows, columns)


@contextmanager
def lanes(dispatcher: Dispatcher, writer_code: bytes, count: int = 1) -> Iterator[list[Lane]]:
    """Lanes on streams of their own, with the primary context of GPU 0 current."""
    driver, cuda = Driver(), open_driver()
    driver.push_context(driver.primary_context(0))
    try:
        writer = driver.get_kernel(driver.load_library(writer_code), "sgemm")
        streams = [int(check(cuda.cuStreamCreate, 1)) for _ in range(count)]
        made = [Lane(dispatcher, driver, writer, stream) for stream in streams]
        yield made
        for lane in made:
            lane.close()
            check(cuda.cuStreamDestroy, lane.stream)
    finally:
        driver.pop_context()


@contextmanager
def captured(lane: Lane, steps: Script) -> Iterator[Any]:
    """A script as a graph: yields a function that replays it on fresh buffers and returns them."""
    cuda: Any = open_driver()
    check(cuda.cuStreamBeginCapture, lane.stream, cuda.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED)
    try:
        for step in steps:
            lane.enqueue(step)
    finally:
        graph = check(cuda.cuStreamEndCapture, lane.stream)
    executable = check(cuda.cuGraphInstantiate, graph, 0)

    def replay() -> np.ndarray:
        lane.reset()
        check(cuda.cuGraphLaunch, executable, lane.stream)
        return lane.bits()

    yield replay
    check(cuda.cuGraphExecDestroy, executable)
    check(cuda.cuGraphDestroy, graph)
