"""What a server tells Prometheus, in its text format."""

from __future__ import annotations

from collections import Counter as Totals
from collections.abc import Iterable

from prometheus_client import (
    CONTENT_TYPE_LATEST,
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    generate_latest,
)

from ..store import Artifacts, Queue

CONTENT_TYPE = CONTENT_TYPE_LATEST
_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)


class Metrics:
    """Of one server."""

    def __init__(self, artifacts: Artifacts, queue: Queue) -> None:
        self._artifacts, self._queue = artifacts, queue
        self._registry = registry = CollectorRegistry()
        labels = ("method", "route")
        self._requested = Counter(
            "autotune_http_requests", "Requests", (*labels, "status"), registry=registry
        )
        self._took = Histogram(
            "autotune_http_seconds", "Time of a request", labels, buckets=_BUCKETS, registry=registry
        )
        self._open = Gauge("autotune_requests", "Requests for shapes", ("state",), registry=registry)
        self._workers = Gauge("autotune_workers", "Workers", ("kind", "gpu", "is_alive"), registry=registry)
        self._tables = Gauge("autotune_tables", "Current tables", ("gpu",), registry=registry)
        self._calls = Gauge("autotune_calls", "Calls of programs", ("gpu", "how"), registry=registry)
        self._saved = Gauge("autotune_saved_seconds", "GPU time saved", ("gpu", "how"), registry=registry)

    def count(self, method: str, route: str, status: int, took_s: float) -> None:
        """One request that was answered. `route` is one of few."""
        self._requested.labels(method, route, status).inc()
        self._took.labels(method, route).observe(took_s)

    def text(self) -> bytes:
        """Raises StoreError."""
        for state, number in self._queue.counts().items():
            self._open.labels(state.value).set(number)
        workers = Totals((one.kind, one.gpu, str(one.is_alive).lower()) for one in self._queue.workers())
        _set(self._workers, workers.items())
        channels = self._artifacts.channels().items()
        _set(self._tables, Totals((key.gpu_name,) for key, one in channels if one.current).items())
        calls, saved_s = Totals[tuple[str, ...]](), Totals[tuple[str, ...]]()
        for one in self._artifacts.usage():
            calls[one.gpu_name, one.how] += one.calls
            saved_s[one.gpu_name, one.how] += one.saved_us / 1e6  # type: ignore[assignment]
        _set(self._calls, calls.items())
        _set(self._saved, saved_s.items())
        return generate_latest(self._registry)


def _set(gauge: Gauge, found: Iterable[tuple[tuple[str, ...], float]]) -> None:
    """These values, and no others."""
    gauge.clear()
    for labels, value in found:
        gauge.labels(*labels).set(value)
