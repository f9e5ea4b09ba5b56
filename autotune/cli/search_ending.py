"""What `autotune search` tells at its end: what disturbed its times, what it and the GPU did meanwhile."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from ..facts.disturbance import DRIFT, NEIGHBOUR, NEIGHBOUR_UNFELT
from ..files.words import counted
from ..store import Final, TrialRecord
from . import console

_GPU = {
    "problems_s": "preparing problems",
    "verify_s": "verifying",
    "measure_s": "timing",
    "refine_s": "timing the best against each other",
    "gpu_idle_s": "idle",
}
_COORDINATOR = {"prepare_s": "preparing", "ask_s": "asking", "wait_s": "waiting", "final_s": "in finals"}
_MARKS = {
    DRIFT: "cuBLAS drifted beside them",
    NEIGHBOUR: "another process computed on the GPU",
    NEIGHBOUR_UNFELT: "another process computed on the GPU, unfelt",
    "sw_power_cap": "at the power limit",
}


def disturbance_facts(trials: Sequence[TrialRecord], final: Final | None) -> dict[str, Any]:
    """Of one shape. `num_disturbed`: trials whose times may be off, repeats did not help; `num_repeated`:
    trials timed again for a disturbance; `marks`: trials by what was seen while their samples were taken."""
    found = [trial.measurement for trial in trials]
    marks = Counter(mark for measurement in found for mark in measurement.marks)
    return {
        "num_disturbed": sum(measurement.is_disturbed for measurement in found),
        "num_repeated": sum(bool(measurement.discarded) for measurement in found),
        "marks": dict(sorted(marks.items())),
        "final_marks": list(final.marks) if final else [],
    }


def disturbance_text(shapes: Sequence[Mapping[str, Any]], *, is_recorded: bool) -> str:
    """Lines for the facts of all shapes; "" where nothing was seen. A recording cannot cool."""
    num_disturbed = sum(shape["num_disturbed"] for shape in shapes)
    num_repeated = sum(shape["num_repeated"] for shape in shapes)
    marks: Counter[str] = Counter()
    for shape in shapes:
        marks.update(shape["marks"])
    lines = []
    if num_disturbed:
        disturbed = counted(num_disturbed, "trial was", "trials were")
        advice = "Leave the GPU to this search, or let it cool; the final is interleaved and less at risk."
        lines.append(
            f"{disturbed} disturbed, and stayed so when repeated: what was timed may be off. "
            f"{'So they were recorded.' if is_recorded else advice}"
        )
    if num_repeated:
        repeated = counted(num_repeated, "trial was", "trials were")
        lines.append(f"{repeated} timed again because something disturbed them.")
    if marks:
        seen = (f"{_MARKS.get(mark, mark)} ({count:,})" for mark, count in marks.most_common())
        lines.append(f"Seen while timing (trials): {', '.join(seen)}.")
    finals = {mark for shape in shapes for mark in shape["final_marks"]}
    if finals:
        seen = (_MARKS.get(mark, mark) for mark in sorted(finals))
        lines.append(f"Seen during finals: {', '.join(seen)}.")
    return "\n".join(lines)


def ledger_text(ledger: Mapping[str, float | None]) -> str:
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
