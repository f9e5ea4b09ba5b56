"""Reads what `autotune ladder --json` printed: the steps from a naive kernel to the tuned one."""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any

from ..files import strict
from ..files.errors import UsageError
from ..files.strict import Within
from ..files.user_file import read_file

MOST_BYTES = 4 << 20
_HOW = "name a file that holds what `autotune ladder --json` printed"

Figure = Annotated[float, Within(0, 1e12)]


@dataclass(frozen=True)
class LadderStep:
    """One step; its figures are None where it cannot run, and `reason` says why."""

    name: str
    adds: str
    reason: str
    time_us: Figure | None
    gflops: Figure | None
    share_of_limit: Figure | None
    speedup: Figure | None  # over cuBLAS


@dataclass(frozen=True)
class LadderFacts:
    """A ladder of one shape on one GPU model, lowest step first, cuBLAS last."""

    shape: str
    gpu: str
    num_rounds: Annotated[int, Within(1, 1 << 20)]
    steps: tuple[LadderStep, ...]


def read_ladder(path: Path) -> LadderFacts:
    """Raises UsageError, naming the file, if it holds anything else."""
    try:
        data = json.loads(read_file(path, "ladder", MOST_BYTES))
        if not isinstance(data, dict):
            raise strict.Mismatch("it is no object")
        steps = [_known(LadderStep, step) for step in data["steps"]]
        facts = {**_known(LadderFacts, data), "gpu": data["environment"]["gpu_name"], "steps": steps}
        found: LadderFacts = strict.read(LadderFacts, facts, "ladder")
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        fault = f"the key {error} is missing" if isinstance(error, KeyError) else str(error)
        raise UsageError(f"{path} is no ladder: {fault}; {_HOW}") from error
    return found


def _known(record: type[Any], data: dict[str, Any]) -> dict[str, Any]:
    """What a record has fields for: the file tells more."""
    return {field.name: data[field.name] for field in fields(record) if field.name in data}
