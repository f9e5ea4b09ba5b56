"""A program's side of a server of tables, in a thread of its own that no call waits for.

    AUTOTUNE_SERVER         its URL: it is told which shapes were called for, how each was served, and what a
                            program measured to gain
    AUTOTUNE_SERVER_TOKEN   a token with the role `request`, where it asks for one
    AUTOTUNE_SERVER_KEY     the public keys, or files of them, of who signs tables: with them, better tables
                            are taken between two calls; nothing else is ever loaded

Calls are counted by the core anyway; the thread reads these counts. A table that was taken is kept in the
cache folder, and serves the next process before the server answers, and without it. A program that asked
torch for determinism takes none, and several ranks only together (`Dispatcher.take_update`).
"""

from __future__ import annotations

import atexit
import logging
import os
import random
import sys
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from ...files.words import number
from ..native.processes import FORK_LOCK, is_one_of_several, torch_distributed

if TYPE_CHECKING:
    from ..dispatcher import Dispatcher
    from ..table.gpu_models import CubinFiles, GpuModel
    from ..table.table import Table

FIRST_S, PERIOD_S, LONGEST_S = 1.0, 10.0, 300.0  # between two exchanges; the last: while the server is gone
EXIT_S = 0.25  # that the end of a program waits at most for the last counts to be sent
PERIOD = "AUTOTUNE_SERVER_SECONDS"  # instead of PERIOD_S
_log = logging.getLogger("autotune")
Offered = tuple[str, "Table", "CubinFiles"]  # with its address


class ProgramClient:
    """For one dispatcher, as long as that is there. But for `take` nothing raises or waits in its threads."""

    def __init__(self, dispatcher: Dispatcher) -> None:
        self._dispatcher, self._process = weakref.ref(dispatcher), os.getpid()
        self._is_ended, self._is_fine, self._last_fault = threading.Event(), False, ""
        self._lock = threading.Lock()
        self._offered: dict[GpuModel, Offered] = {}  # checked, and not taken yet
        self.taken: dict[GpuModel, str] = {}  # addresses
        self._thread = threading.Thread(target=self._run, name="autotune server", daemon=True)
        with suppress(RuntimeError):  # no thread can be had: then nobody is told
            self._thread.start()
            atexit.register(self.end)

    def end(self) -> None:
        """Send what is left, if the server answered a moment ago, and end."""
        self._is_ended.set()
        atexit.unregister(self.end)
        if self._is_fine and os.getpid() == self._process:
            self._thread.join(EXIT_S)

    def _run(self) -> None:
        try:
            with FORK_LOCK:  # a child would wait for an import for ever
                from .table_server import ProgramExchange
            exchange = ProgramExchange(self)
            period_s = number(PERIOD, float(os.environ.get(PERIOD) or PERIOD_S), 0.01, 86_400)
        except Exception as error:  # whatever is amiss with it, the program goes on
            _log.warning("no server is told: %s", error)
            return
        self._do(exchange.restore)
        pause_s = min(FIRST_S, period_s)
        while not self._is_ended.wait(pause_s * random.uniform(0.8, 1.2)):
            if self._dispatcher() is None:
                return
            self._is_fine = self._do(exchange.tell) and self._do(exchange.ask)
            pause_s = period_s if self._is_fine else min(LONGEST_S, 2 * pause_s)
        self._do(exchange.tell)

    def _do(self, what: Callable[[Dispatcher], None]) -> bool:
        """Whether that went well; else the log tells, once until it does."""
        dispatcher = self._dispatcher()
        try:
            if dispatcher is not None:
                what(dispatcher)
            return True
        except Exception as error:
            text = str(error)
            if text != self._last_fault:
                _log.warning("%s; this program goes on without", text)
            self._last_fault = text
            return False

    # ---- tables

    def offer(self, dispatcher: Dispatcher, model: GpuModel, offered: Offered) -> None:
        """A table that was checked: take it, or keep it until all ranks do."""
        with self._lock:
            self._offered[model] = offered
        if not is_one_of_several():
            self._take(dispatcher, self._chosen())

    def take(self, gather: Callable[[str], Sequence[str]] | None) -> bool:
        """See `Dispatcher.take_update`."""
        dispatcher, offered = self._dispatcher(), self._chosen()
        text = ",".join(sorted(f"{model}={one[0]}" for model, one in offered.items()))
        texts = (gather or _gather)(text)
        if dispatcher is None or any(one != text for one in texts):
            return False
        return self._take(dispatcher, offered)

    def _chosen(self) -> dict[GpuModel, Offered]:
        with self._lock:
            return dict(self._offered)

    def _take(self, dispatcher: Dispatcher, offered: Mapping[GpuModel, Offered]) -> bool:
        if not offered or not dispatcher.is_exchangeable or _is_deterministic():
            return False
        dispatcher.exchange({model: (table, code) for model, (_, table, code) in offered.items()})
        with self._lock:
            for model, one in offered.items():
                self.taken[model] = one[0]
                if self._offered.get(model) is one:
                    del self._offered[model]
        return True

    def knows(self, model: GpuModel) -> str | None:
        """The address of the table that was taken or offered last."""
        with self._lock:
            offered = self._offered.get(model)
            return self.taken.get(model) if offered is None else offered[0]


def _is_deterministic() -> bool:
    requested = getattr(sys.modules.get("torch"), "are_deterministic_algorithms_enabled", None)
    return requested is not None and bool(requested())


def _gather(text: str) -> Sequence[str]:
    """Every rank's text. Alone, without torch.distributed, only what a single process says is known."""
    distributed = torch_distributed()
    if distributed is None:
        return [text] if not is_one_of_several() else ["another rank, which nothing here can ask"]
    found: list[Any] = [None] * distributed.get_world_size()
    distributed.all_gather_object(found, text)
    return found
