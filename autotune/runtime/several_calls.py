"""Products of torch's tensors by the tables for several kinds of GPU. Copied into exported tables."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .tensor_calls import TensorCalls


class SeveralCalls:
    """Answers calls as `TensorCalls` does. Each table knows only the calls on its own GPUs, so they are asked
    one after another; with one table, `sgemm` is its function itself."""

    def __init__(self) -> None:
        self._all: list[TensorCalls] = []
        self.sgemm: Callable[..., Any] = self._by_any

    def add(self, calls: TensorCalls) -> None:
        self._all = [*self._all, calls]
        self.sgemm = calls.sgemm if len(self._all) == 1 else self._by_any

    def _by_any(self, *arguments: Any) -> Any:
        for calls in self._all:
            found = calls.sgemm(*arguments)
            if found is not None:
                return found
        return None
