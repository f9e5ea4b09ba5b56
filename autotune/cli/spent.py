"""What `autotune search` tells of its seconds: what the GPU did with them, and what the search itself did."""

from __future__ import annotations

from collections.abc import Mapping

from . import console

_GPU = {
    "problems_s": "preparing problems",
    "verify_s": "verifying",
    "measure_s": "timing",
    "refine_s": "timing the best against each other",
    "gpu_idle_s": "idle",
}
_COORDINATOR = {"prepare_s": "preparing", "ask_s": "asking", "wait_s": "waiting", "final_s": "in finals"}


def text(ledger: Mapping[str, float | None]) -> str:
    """Two lines for `Ledger.to_dict()`."""
    share = console.ratio_text(ledger["gpu_share"], "%")
    compiling, store_s = _seconds(ledger["compile_s"]), _seconds(ledger["store_s"])
    return (
        f"GPU busy {share} of {_seconds(ledger['search_s'])} before the final: {_list(ledger, _GPU)}.\n"
        f"Compiling, added up over processes: {compiling}; storing: {store_s}."
        f" The search: {_list(ledger, _COORDINATOR)}."
    )


def _list(ledger: Mapping[str, float | None], words: Mapping[str, str]) -> str:
    return ", ".join(f"{_seconds(ledger[name])} {word}" for name, word in words.items())


def _seconds(seconds: float | None) -> str:
    return f"{seconds or 0.0:.1f} s"
