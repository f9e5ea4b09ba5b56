"""What the service's page shows: the queue, workers, what GPU models gained, what is stale. Plain data."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from ..facts.device import Environment
from ..store import Store, Usage
from .wanted import request_document

MOST_REQUESTS = 200
Document = dict[str, Any]


def overview(store: Store, tables: Sequence[Document]) -> Document:
    """All of it; `tables` as `listed_of` has them. Raises StoreError."""
    queue, usage = store.queue(), store.artifacts().usage()
    by_age = sorted(store.runs(), key=lambda run: run.began_at)
    latest = {run.environment.gpu_name: run.environment for run in by_age}  # where a search ran last
    return {
        "counts": {state.value: number for state, number in queue.counts().items()},
        "requests": [request_document(one) for one in queue.requests(most=MOST_REQUESTS)],
        "workers": [asdict(one) for one in queue.workers()],
        "gpus": [_gpu(name, usage) for name in sorted({one.gpu_name for one in usage})],
        "tables": [{**one, "stale": why_stale(one, latest)} for one in tables],
    }


def _gpu(name: str, usage: Sequence[Usage]) -> Document:
    """How calls on a GPU model were served, and what that saved in all."""
    calls, saved_us = Counter[str](), 0.0
    measured = {"pairs": 0, "saved_us": 0.0}
    for one in usage:
        if one.gpu_name != name:
            continue
        if one.how == "measured":
            measured = {"pairs": one.calls, "saved_us": one.saved_us}
        else:
            calls[one.how] += one.calls
            saved_us += one.saved_us
    hits = calls["exact"] + calls["settled"]
    return {
        "name": name, "calls": dict(calls), "hits": hits, "misses": calls.total() - hits,
        "predicted_saved_us": saved_us, "measured": measured,
    }  # fmt: skip


def why_stale(table: Document, latest: dict[str, Environment]) -> str:
    """What has changed on such GPUs since a table was measured; "": nothing that is known."""
    here = latest.get(table["gpu_name"])
    if here is None or not table["is_current"]:
        return ""
    pairs = (
        ("driver", here.driver_version, table["driver"]),
        ("cuBLAS", here.cublas_version, table["cublas"]),
    )
    return "; ".join(f"{what} is {now} now, not {then}" for what, now, then in pairs if now and now != then)
