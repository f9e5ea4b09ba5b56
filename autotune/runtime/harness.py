"""What launches of one kind of call run on where a table is used: operands and a workspace of the runtime's
own, on its own stream, with events. Copied into exported tables.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import cache, partial
from typing import Any, Literal

import numpy as np

from ..facts.gemm import FLOAT_BYTES, Triple
from ..files.errors import DispatchError
from .cuda_driver import Driver
from .pick import NUM_FIRST, Call
from .planner import Plan
from .product import Product
from .table import Table

Numbers = Literal["normal", "uniform"]  # of mean 0; of 0 ... 1

MEMORY_SHARE = 0.25  # of the free memory that operands and workspace take at most
L2_TIMES = 2  # as much as L2 holds is overwritten, to clear it
# Numbers that are made, which operands repeat. A prime, so that rows do not: sums of equal terms err
# otherwise.
NUM_RANDOM = (1 << 18) - 5
_ALIGNMENT = 256  # bytes: of operands, and of a workspace


class Harness:
    """The resources for launches of one kind of call: a stream, operands, a workspace, and events. All are
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
        self._base = self._border = self._l2 = self._spare = 0
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
        self._spare = most - self._l2_bytes - num_sets * set_bytes
        self._base = self._allocate(num_sets * set_bytes, self._at_end)
        self._fill(_random_numbers("normal"), num_sets * set_bytes)
        for start in range(self._base, self._base + num_sets * set_bytes, set_bytes):
            a, b, c = (start + sum(self._sizes[:i]) + self._offsets[i] for i in range(3))
            self.sets.append((a, b, c))
        self.take_workspace(plans)
        if self._l2_bytes:
            self._l2 = self._allocate(self._l2_bytes, self._at_end)
        self._events = [self._make_event() for _ in range(2 * (NUM_FIRST + 1))]

    def has_room_for(self, plan: Plan) -> bool:
        """Whether the partial sums of a plan take no more of the free memory than is left of the share."""
        return sum(_workspace_bytes([plan])) <= self._spare

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

    def _allocate(self, num_bytes: int, at_end: ExitStack) -> int:
        address = self._driver.allocate(num_bytes, self.stream)
        at_end.callback(self._driver.free, address, self.stream)
        return address

    def _make_event(self) -> int:
        event = self._driver.make_event()
        self._at_end.callback(self._driver.free_event, event)
        return event

    def _fill(self, numbers: np.ndarray[Any, np.dtype[np.float32]], num_bytes: int) -> None:
        """From the first operand on, with these numbers: zeros draw less power, and are multiplied faster."""
        driver, address = self._driver, self._base
        filled = min(num_bytes, numbers.nbytes)
        driver.copy_in(address, numbers.ctypes.data, filled, self.stream)
        while filled < num_bytes:
            more = min(filled, num_bytes - filled)
            driver.copy(address + filled, address, more, self.stream)
            filled += more


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
    if numbers == "normal":
        return generator.standard_normal(NUM_RANDOM, dtype=np.float32)
    return generator.random(NUM_RANDOM, dtype=np.float32)
