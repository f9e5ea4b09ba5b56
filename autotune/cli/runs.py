"""`autotune runs`: who searched what, on which host and GPU, since when, with which command and versions."""

from __future__ import annotations

from typing import Any

from ..facts.frozen import picked
from ..files.words import counted
from ..store import RunRecord
from . import common, console
from .requests import RunsRequest

_SHOWN_SHAPES = 3


def run(request: RunsRequest, *, is_json: bool) -> None:
    """The newest runs, oldest of them first; of these shapes, or of all."""
    wanted = {str(problem) for problem in common.read_problems(request.shapes)}
    with common.open_existing(request.db) as store:
        found = [one for one in store.runs() if not wanted or wanted & set(one.shapes)]
        if not found:
            store.bad_rows.refuse()
    facts = [_facts(one) for one in found[-request.limit :]]
    nothing = "no run is stored; databases keep them since autotune tells who searched"
    result = {"num_runs": len(found), "runs": facts}
    console.answer(result, lambda: "\n\n".join(map(_text, facts)) or nothing, is_json=is_json)


def _facts(one: RunRecord) -> dict[str, Any]:
    return {
        **picked(one, "id state login host command num_trials"),
        "began_at": common.moment(one.began_at),
        "ended_at": common.moment(one.ended_at),
        "shapes": list(one.shapes),
        "environment": one.environment.to_dict(),
        "versions": dict(one.versions),
    }


def _text(facts: dict[str, Any]) -> str:
    environment, shapes = facts["environment"], facts["shapes"]
    more = f" and {len(shapes) - _SHOWN_SHAPES:,} more" if len(shapes) > _SHOWN_SHAPES else ""
    driver = environment["driver_version"]
    where = (
        f"recorded on {environment['gpu_name']}" if environment["recorded_on"] else environment["gpu_name"]
    )
    trials = "" if facts["num_trials"] is None else f", {counted(facts['num_trials'], 'trial')}"
    return "\n".join(
        console.one_line(line)
        for line in (
            f"run {facts['id']}: {facts['login'] or 'somebody'} on {facts['host']}, {facts['began_at']}, "
            f"{facts['state']}{' ' + facts['ended_at'] if facts['ended_at'] else ''}{trials}",
            f"  {facts['command']}",
            f"  {where}{f', driver {driver}' if driver else ''}; "
            f"{', '.join(shapes[:_SHOWN_SHAPES]) or 'shapes drawn at random'}{more}",
            f"  {', '.join(f'{name} {version}' for name, version in facts['versions'].items())}",
        )
    )
