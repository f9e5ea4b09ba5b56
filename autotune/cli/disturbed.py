"""What `autotune search` tells of disturbances: how many times may be off, and what was seen beside them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from ..facts.disturbance import DRIFT, NEIGHBOUR, NEIGHBOUR_UNFELT
from ..files.words import counted
from ..store import Final, TrialRecord

_WORDS = {
    DRIFT: "cuBLAS drifted beside them",
    NEIGHBOUR: "another process computed on the GPU",
    NEIGHBOUR_UNFELT: "another process computed on the GPU, unfelt",
    "sw_power_cap": "at the power limit",
}


def facts(trials: Sequence[TrialRecord], final: Final | None) -> dict[str, Any]:
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


def text(shapes: Sequence[Mapping[str, Any]], *, is_recorded: bool) -> str:
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
        seen = (f"{_WORDS.get(mark, mark)} ({count:,})" for mark, count in marks.most_common())
        lines.append(f"Seen while timing (trials): {', '.join(seen)}.")
    finals = {mark for shape in shapes for mark in shape["final_marks"]}
    if finals:
        seen = (_WORDS.get(mark, mark) for mark in sorted(finals))
        lines.append(f"Seen during finals: {', '.join(seen)}.")
    return "\n".join(lines)
