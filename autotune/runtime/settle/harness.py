"""What launches of one call signature run on where a table is used: operands and a workspace of the runtime's
own, on its own stream, with events."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import cache, partial
from typing import Any, Literal

import numpy as np

from ...facts.gemm import FLOAT_BYTES, Triple
from ...files.errors import DispatchError
from ...perf_model.model_figures import Depths
from ..calls.product import Product
from ..choose.chooser import NUM_FIRST, Call
from ..launch.cuda_driver import Driver
from ..launch.devices import OpenGpu
from ..launch.planner import Engine, Plan
from ..table.table import Table

Numbers = Literal["normal", "uniform", "tiny"]  # of mean 0; of 0 ... 1; of mean 0, with subnormal products

MEMORY_SHARE = 0.25  # of the free memory that operands and workspace take at most
L2_TIMES = 2  # as much as L2 holds is overwritten, to clear it
# Numbers that are made, which operands repeat. A prime, so that rows do not: sums of equal terms err
# otherwise.
NUM_RANDOM = (1 << 18) - 5
TINY = np.float32(2.0**-66)  # times a normal number: squared, it is below the least normal one, 2^-126
PIECE_BYTES = 16 << 20  # of C, that are copied at a time
_ALIGNMENT = 256  # bytes: of operands, and of a workspace


class Harness:
    """The resources for launches of one call signature: a stream, operands, a workspace, and events. All are
    released when the stack ends."""

    def __init__(
        self, driver: Driver, problem: Product, kind: Call, l2_bytes: int, stream: int, at_end: ExitStack
    ) -> None:
        self.stream, self.num_launches = stream, 1
        self.sets: list[Triple] = []
        self._driver, self._at_end, self._l2_bytes = driver, at_end, l2_bytes
        self._offsets = kind.addresses
        self._sizes = [
            _aligned(size + offset) for size, offset in zip(problem.num_bytes, kind.addresses, strict=True)
        ]
        self._workspace = ExitStack()
        self._base = self._border = self._l2 = self._free_bytes = 0
        self._events: list[int] = []

    @staticmethod
    def l2_bytes(table: Table) -> int:
        """How much is overwritten to clear L2; 0 if the table's times are warm."""
        return 0 if table.policy == "warm" else L2_TIMES * table.limits.l2_bytes

    def take(self, num_launches: int, plans: Sequence[Plan]) -> None:
        """Take memory for this many launches of each plan, or for fewer if these would take too much of the
        free memory. Raises DispatchError if there is not enough for one."""
        driver, set_bytes = self._driver, sum(self._sizes)
        others = sum(_workspace_bytes(plans)) + self._l2_bytes
        most = int(MEMORY_SHARE * driver.free_bytes())
        num_sets = min(num_launches if self._l2_bytes else 1, (most - others) // set_bytes)
        if num_sets < 1:
            raise DispatchError(
                f"it takes {set_bytes + others >> 20} MiB to time, more than a quarter of what is free"
            )
        self.num_launches = num_sets if self._l2_bytes else num_launches
        self._free_bytes = most - self._l2_bytes - num_sets * set_bytes
        self._base = self._allocate(num_sets * set_bytes, self._at_end)
        self._fill(_random_numbers("normal"), num_sets * set_bytes)
        for start in range(self._base, self._base + num_sets * set_bytes, set_bytes):
            a, b, c = (start + sum(self._sizes[:i]) + self._offsets[i] for i in range(3))
            self.sets.append((a, b, c))
        self.take_workspace(plans)
        if self._l2_bytes:
            self._l2 = self._allocate(self._l2_bytes, self._at_end)
        for _ in range(2 * (NUM_FIRST + 1)):
            self._events.append(driver.make_event())
            self._at_end.callback(driver.free_event, self._events[-1])

    def has_room_for(self, plan: Plan) -> bool:
        """Whether the partial sums of a plan take no more of the free memory than is left of the share."""
        return sum(_workspace_bytes([plan])) <= self._free_bytes

    def take_workspace(self, plans: Sequence[Plan]) -> None:
        """Take memory for the workspaces of these plans, in place of what was taken before."""
        self._workspace.close()
        self._workspace = self._at_end.enter_context(ExitStack())
        scratch_bytes, counter_bytes = _workspace_bytes(plans)
        if scratch_bytes:
            self._border = self._allocate(scratch_bytes + counter_bytes, self._workspace) + scratch_bytes
            if counter_bytes:
                self._driver.zero(self._border, counter_bytes, self.stream)

    def workspace(self, scratch_bytes: int) -> int:
        """For one launch at a time: the boundary between scratch and counters is the same for all."""
        return self._border - scratch_bytes if scratch_bytes else 0

    def fill_first(self, numbers: Numbers) -> None:
        """Put such numbers into the first set of operands."""
        self._fill(_random_numbers(numbers), sum(self._sizes))

    def clear_result(self) -> None:
        """Put zeros into C of the first set of operands."""
        self._driver.zero(self.sets[0][2], self._sizes[2] - self._offsets[2], self.stream)

    def stored(
        self, address: int, at: np.ndarray[Any, Any], numbers: Numbers = "normal"
    ) -> np.ndarray[Any, Any]:
        """The numbers of an operand at an address, at these offsets from it."""
        start = (address - self._base) // FLOAT_BYTES
        found: np.ndarray[Any, Any] = _random_numbers(numbers)[(start + at) % NUM_RANDOM]
        return found

    def digest(self, launch: Launch) -> bytes:
        """Of all bits of C that a launch computes of the first set of operands. Waits for the GPU."""
        self.clear_result()
        launch(self.sets[0])
        found, address = hashlib.blake2b(), self.sets[0][2]
        end = address + self._sizes[2] - self._offsets[2]
        piece = np.empty(min(end - address, PIECE_BYTES), np.uint8)
        for start in range(address, end, PIECE_BYTES):
            part = piece[: end - start]
            self.copy_out(part.ctypes.data, start, part.nbytes)
            found.update(part.data)
        return found.digest()

    def copy_out(self, host: int, address: int, num_bytes: int) -> None:
        """Copies to the host, after the work of the stream. Waits for it."""
        self._driver.copy_out(host, address, num_bytes, self.stream)
        self._driver.synchronize(self.stream)

    def intervals_us(self, actions: Sequence[Callable[[], None]]) -> list[float]:
        """How long each of a few actions takes on the GPU, one after another. Waits for them."""
        driver, pairs = self._driver, list(zip(self._events[::2], self._events[1::2], strict=True))
        for action, (begin, end) in zip(actions, pairs, strict=False):
            if self._l2:
                driver.zero(self._l2, self._l2_bytes, self.stream)
            driver.record(begin, self.stream)
            action()
            driver.record(end, self.stream)
        driver.synchronize(self.stream)
        return [driver.elapsed_us(*pair) for _, pair in zip(actions, pairs, strict=False)]

    def graph(self, enqueue: Callable[[], None]) -> Callable[[], None]:
        """Launches the work that `enqueue` gives to the stream as one graph."""
        made = self._driver.capture(self.stream, enqueue)
        self._at_end.callback(self._driver.free_graph, made)
        return partial(self._driver.launch_graph, made, self.stream)

    def launch_in_loop(self, launch: Launch) -> None:
        """As often as memory was taken for, on all sets of operands."""
        for number in range(self.num_launches):
            launch(self.sets[number % len(self.sets)])

    def _allocate(self, num_bytes: int, at_end: ExitStack) -> int:
        address = self._driver.allocate(num_bytes, self.stream)
        at_end.callback(self._driver.free, address, self.stream)
        return address

    def _fill(self, numbers: np.ndarray[Any, np.dtype[np.float32]], num_bytes: int) -> None:
        """From the first operand on, with these numbers: zeros draw less power, and are multiplied faster."""
        driver, address = self._driver, self._base
        filled = min(num_bytes, numbers.nbytes)
        driver.copy_in(address, numbers.ctypes.data, filled, self.stream)
        while filled < num_bytes:
            more = min(filled, num_bytes - filled)
            driver.copy(address + filled, address, more, self.stream)
            filled += more


@contextmanager
def on_own_stream(
    engine: Engine, problem: Product, kind: Call, gpu: OpenGpu, l2_bytes: int, after: int | None = None
) -> Iterator[Harness]:
    """A harness on a stream of its own, with the GPU's context current, after the work of a stream."""
    driver = engine.driver
    with engine.devices.current(gpu), driver.relaxed(), ExitStack() as at_end:
        if after is not None:
            driver.synchronize(after)
        own = driver.make_stream()
        at_end.callback(driver.free_stream, own)
        at_end.callback(driver.synchronize, own)
        yield Harness(driver, problem, kind, l2_bytes, own, at_end)


def launch_of(engine: Engine, plan: Plan, harness: Harness) -> Launch:
    """Enqueues a plan on operands."""
    scratch_bytes = plan.grid.scratch_bytes
    return lambda operands: engine.launch_all(
        plan, harness.stream, operands, 1.0, 0.0, harness.workspace(scratch_bytes)
    )


def _aligned(num_bytes: int) -> int:
    """This many bytes, rounded up to where what follows may begin."""
    return -(-num_bytes // _ALIGNMENT) * _ALIGNMENT


def _workspace_bytes(plans: Sequence[Plan]) -> tuple[int, int]:
    """Of scratch, and of the counters behind it, for one launch at a time."""
    scratch_bytes = max((plan.grid.scratch_bytes for plan in plans), default=0)
    counter_bytes = max((plan.grid.counter_bytes for plan in plans), default=0)
    return _aligned(scratch_bytes), _aligned(counter_bytes)


@cache
def _random_numbers(numbers: Numbers) -> np.ndarray[Any, np.dtype[np.float32]]:
    generator = np.random.default_rng(0)
    if numbers == "uniform":
        return generator.random(NUM_RANDOM, dtype=np.float32)
    normal = generator.standard_normal(NUM_RANDOM, dtype=np.float32)
    return normal * TINY if numbers == "tiny" else normal


LEAST_ELEMENTS, MOST_ELEMENTS = 16, 64 * 64  # of C: an error is known to 18 % and to 1 % then
MOST_NUMBERS = 1 << 23  # of A and B that are looked up for them, which takes a host 0.2 s
WHOLE_BYTES = 4 << 20  # of C, up to which it is copied to the host at once
MOST_ROWS, ROWS_BYTES = 64, 16 << 20  # of a larger C so many rows, of no more bytes, but at least one

Launch = Callable[[Triple], None]  # enqueues one on operands


class ErrorSample:
    """Some elements of C of one call signature. Overwrites the first set of a harness's operands, which must
    have been taken before, with new numbers."""

    def __init__(self, harness: Harness, problem: Product) -> None:
        self._harness, self._problem = harness, problem
        gemm, (_, _, ldc) = problem.gemm, problem.lds
        self._span = (gemm.m - 1) * ldc + gemm.n  # elements of C, with what lies between its rows
        most_rows = gemm.m
        if not self._is_copied_whole:
            most_rows = min(gemm.m, MOST_ROWS, max(1, ROWS_BYTES // (FLOAT_BYTES * gemm.n)))
        rows, columns = _numbers(most_rows, gemm.n, gemm.k)
        self._rows, self._columns = some(gemm.m, rows), some(gemm.n, columns)
        self._exact: dict[Numbers, np.ndarray[Any, Any]] = {}

    @property
    def _is_copied_whole(self) -> bool:
        return FLOAT_BYTES * self._span <= WHOLE_BYTES

    @property
    def num_elements(self) -> int:
        """Of C; too few for an error to be known if below LEAST_ELEMENTS."""
        return self._rows.size * self._columns.size

    def depths(self, launches: Sequence[Launch]) -> list[Depths]:
        """How deep each launch's sums are, by its errors; waits. Raises DispatchError for no number."""
        of_normal, of_uniform = (self._errors(launches, numbers) for numbers in ("normal", "uniform"))
        if not np.isfinite([*of_normal, *of_uniform]).all():
            raise DispatchError("a result is no number")
        return [Depths.of_errors(*errors) for errors in zip(of_normal, of_uniform, strict=True)]

    def _errors(self, launches: Sequence[Launch], numbers: Numbers) -> list[float]:
        harness = self._harness
        harness.fill_first(numbers)
        if numbers not in self._exact:
            self._exact[numbers] = self._in_float64(numbers)
        exact = self._exact[numbers]
        norm = math.sqrt(float(np.vdot(exact, exact)))
        found = []
        for launch in launches:
            harness.clear_result()
            launch(harness.sets[0])
            apart = self._result() - exact
            found.append(math.sqrt(float(np.vdot(apart, apart))) / norm)
        return found

    def _in_float64(self, numbers: Numbers) -> np.ndarray[Any, Any]:
        """(rows, columns)"""
        part_a, part_b = operand_parts(self._harness, self._problem, self._rows, self._columns, numbers)
        product: np.ndarray[Any, Any] = part_a @ part_b
        return product

    def _result(self) -> np.ndarray[Any, Any]:
        """(rows, columns)"""
        if not self._is_copied_whole:
            return result_rows(self._harness, self._problem, self._rows)[:, self._columns]
        whole = np.empty(self._span, np.float32)
        self._harness.copy_out(whole.ctypes.data, self._harness.sets[0][2], whole.nbytes)
        found: np.ndarray[Any, Any] = whole[self._rows[:, None] * self._problem.lds[2] + self._columns]
        return found


def operand_parts(
    harness: Harness,
    problem: Product,
    rows: np.ndarray[Any, Any],
    columns: np.ndarray[Any, Any],
    numbers: Numbers = "normal",
) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """(rows, k) of op(A), (k, columns) of op(B), in float64: of the first set, filled with such numbers."""
    (a, b, _), (lda, ldb, _), gemm = harness.sets[0], problem.lds, problem.gemm
    along_k, down = np.arange(gemm.k), rows[:, None]
    at_a = along_k * lda + down if gemm.trans_a else down * lda + along_k
    at_b = columns * ldb + along_k[:, None] if gemm.trans_b else along_k[:, None] * ldb + columns
    part_a, part_b = (harness.stored(x, at, numbers).astype(np.float64) for x, at in ((a, at_a), (b, at_b)))
    return part_a, part_b


def result_rows(harness: Harness, problem: Product, rows: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """(rows, n) of C of the first set, copied to the host."""
    c, row_bytes = harness.sets[0][2], FLOAT_BYTES * problem.lds[2]
    found = np.empty((rows.size, problem.gemm.n), np.float32)
    for band, row in zip(found, rows.tolist(), strict=True):
        harness.copy_out(band.ctypes.data, c + row * row_bytes, band.nbytes)
    return found


def _numbers(m: int, n: int, k: int) -> tuple[int, int]:
    """Of rows and columns of C: about as many, unless one side is short; few or 0 if k is very large."""
    most = MOST_NUMBERS // max(k, 1)
    columns = min(n, max(math.isqrt(MOST_ELEMENTS), MOST_ELEMENTS // m))
    rows = min(m, MOST_ELEMENTS // columns, max(most // 2, most - columns))
    return rows, min(columns, most - rows)


def some(extent: int, most: int) -> np.ndarray[Any, Any]:
    """Up to this many indices below an extent, including the first and the last."""
    return np.unique(np.linspace(0, extent - 1, min(extent, most)).round().astype(int))
