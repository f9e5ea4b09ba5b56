"""`autotune space --gpu replay:FILE`: a recorded space as what it is, of autotune's kernels or of others."""

from __future__ import annotations

from collections import Counter
from typing import Any

from ..facts.gemm import Gemm
from ..facts.other_problem import read_problem
from ..files.errors import UsageError
from ..files.words import counted
from ..kernel.where import Where
from ..recording.replay import ReplayTarget
from ..target import point_key
from ..target_finder import REPLAY
from . import common, console
from .requests import SpaceRequest


def run(request: SpaceRequest, *, is_json: bool) -> None:
    """Print the problems of a recording, or the one that is asked for: configs, values, times; with `explain`
    what became of the configs that have these values. Raises UsageError."""
    target = ReplayTarget(request.gpu.removeprefix(REPLAY))
    if target.note:
        console.note(target.note)
    where = Where.parse(request.where, request.max_workspace, request.order)
    requested = {read_problem(request.shape)} & set(target.gemms)
    spaces = [_facts(target, gemm, where, request.explain) for gemm in sorted(requested or target.gemms)]
    source = common.source_text(target.environment)
    facts = {"gpu": target.environment.gpu_name, "source": source, "spaces": spaces}
    console.answer(facts, lambda: "\n\n".join(_text(one, source) for one in spaces), is_json=is_json)


def _facts(target: ReplayTarget, gemm: Gemm, where: Where, explain: str | None) -> dict[str, Any]:
    space = target.space(gemm)
    matching = space.where(where, gemm) if where else space
    given = [item.strip() for item in (explain or "").split(",") if item.strip()]
    trials = [
        (point, found)
        for point, found in target.trials(gemm).values()
        if matching.find(point) is not None and {f"{n}={v}" for n, v in point.items()}.issuperset(given)
    ]
    if not trials:
        known = ", ".join(space.names)
        raise UsageError(f"{explain}: no config recorded for {gemm} has these values (parameters: {known})")
    times = [(found.time_us, point) for point, found in trials if found.time_us]
    best_us, best = min(times, key=lambda pair: pair[0]) if times else (None, None)
    optimum_us = min((one.time_us for _, one in target.trials(gemm).values() if one.time_us), default=None)
    return {
        "shape": str(gemm),
        "num_configs": len(trials),
        "failed": Counter(found.outcome.value for _, found in trials if not found.is_ok),
        "best_us": best_us,
        "share_of_optimum": common.share(optimum_us, best_us),
        "best": None if best is None else point_key(best),
        "values": {
            name: [value for value in values if value in {point[name] for point, _ in trials}]
            for name, values in zip(space.names, space.values, strict=True)
        },
    }


def _text(facts: dict[str, Any], source: str) -> str:
    failed = ", ".join(f"{num:,} {outcome}" for outcome, num in facts["failed"].items())
    share = console.ratio_text(facts["share_of_optimum"], "%")
    best = f"best {console.time_text(facts['best_us'])}, {share} of its optimum: {facts['best']}"
    rows = [(name, " ".join(map(str, values))) for name, values in facts["values"].items()]
    return "\n".join(
        [
            f"{facts['shape']}: {counted(facts['num_configs'], 'config')}, {source}",
            *([f"failed: {failed}"] if failed else []),
            best if facts["best"] else "none has a time",
            console.table(("parameter", "values"), rows),
        ]
    )
