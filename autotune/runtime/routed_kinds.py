"""The routed engines of all kinds of GPU of a folder, as one. Copied into exported tables."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable

from ..facts.gemm import Batch, Triple
from ..kernel.epilogue_names import BIAS
from ..kernel.launch import Epilogue
from .arrays import Forms
from .routed_engine import AllKinds, Decided, RoutedEngine
from .tensor_calls import SeveralCalls
from .torch_router import Tables


class RoutedKinds:
    """Decides by the table for the GPU that tensors are on. `make` returns the engine for a GPU, the same for
    all of a kind; for a GPU without a table it returns any engine, which leaves its calls alone. `first`: a
    GPU whose engine is made at once. `tables`: of all engines, for the router in C++."""

    def __init__(self, make: Callable[[int], RoutedEngine], first: int) -> None:
        self._make, self._calls, self.tables = make, SeveralCalls(), Tables()
        self._lock = threading.Lock()
        self._engines: dict[int, RoutedEngine] = {}
        self._is_open = self._add(first)

    def tensor_calls(self) -> SeveralCalls | None:
        """What serves torch's tensors on all GPUs; None if this torch does not support it."""
        return self._calls if self._is_open else None

    def decide(
        self,
        devices: Triple,
        forms: Forms,
        addresses: Triple,
        batch: Batch | None = None,
        epilogue: Epilogue | None = None,
    ) -> Decided:
        """What becomes of such calls, from now on."""
        return self._engine_of(max(devices)).decide(devices, forms, addresses, batch, epilogue)

    def has(self, epilogue: Epilogue, device: int) -> bool:
        """Whether the table for a GPU has kernels with it."""
        return self._engine_of(device).has(epilogue)

    def told(self) -> AllKinds:
        """All kinds of call so far."""
        kinds, forgotten, saved_us = list[Decided](), Counter[str](), 0.0
        for engine in dict.fromkeys(self._engines.values()):
            told = engine.told()
            kinds += told.kinds
            forgotten += told.forgotten
            saved_us += told.saved_us
        return AllKinds(kinds, forgotten, saved_us)

    def _engine_of(self, device: int) -> RoutedEngine:
        if device not in self._engines:
            self._add(device)
        return self._engines[device]

    def _add(self, device: int) -> bool:
        with self._lock:
            engine = self._make(device)
            is_new = engine not in self._engines.values()
            calls = engine.tensor_calls(is_below_autograd=True) if is_new else None
            if calls is not None:
                self._calls.add(calls)
                self.tables.add(engine.core, engine.has(BIAS))
            self._engines = {**self._engines, device: engine}
            return calls is not None
