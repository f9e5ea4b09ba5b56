"""`autotune trials compare`: two databases, runs or studies of one, or exported folders, shape by shape."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import geometric_mean
from typing import Any

from ..facts import stats
from ..facts.accuracy_class import STRICT
from ..facts.device import Environment
from ..facts.gemm import Gemm
from ..facts.measurement import CachePolicy
from ..files.errors import UsageError
from ..files.words import counted
from ..kernel.templates import accuracy_of
from ..kernel.where import ANY
from ..runtime.table.gpu_models import load_models
from ..store import EVER, Final, Period, Store, StudyRef, shown
from . import common, console
from .facts_table import facts_table
from .requests import CompareRequest

_COLUMNS = {
    "shape": "shape", "first": "first_us", "second": "second_us", "second / first": "ratio",
    "95% interval": "interval", "faster": "faster", "measured on": "measured_on",
}  # fmt: skip


@dataclass(frozen=True)
class Winner:
    """The best that a source knows for a shape on a GPU model, under a policy, of a class of accuracy; a
    table keeps no samples."""

    gpu: str
    driver: str
    policy: str
    accuracy: str
    time_us: float
    samples_us: tuple[float, ...] = ()

    @property
    def kind(self) -> tuple[str, str, str]:
        """What times must agree in to be compared, where both sources have it."""
        return self.gpu, self.policy, self.accuracy


Winners = dict[Gemm, tuple[Winner, ...]]  # of each kind the newest, the newest of all last


def run(request: CompareRequest, *, is_json: bool) -> None:
    """One line per shape that both have, and per GPU model, policy and class of accuracy: the best of each,
    and how many times the first's time the second takes. Raises UsageError where they share no shape,
    StoreError, DispatchError."""
    wanted, first, second = common.read_problems(request.shapes), request.first, request.second
    one, other = (_winners(source, request.max_error) for source in (first, second))
    shared = [gemm for gemm in sorted(one) if gemm in other and (not wanted or gemm in wanted)]
    if not shared:
        raise UsageError(f"{_named(first)} and {_named(second)} share no shape that was timed; name others")
    rows = [_facts(gemm, *both) for gemm in shared for both in _pairs(one[gemm], other[gemm])]
    facts = {
        "first": _named(first),
        "second": _named(second),
        "shapes": rows,
        "geometric_mean": geometric_mean([row["ratio"] for row in rows]),
        "num_first_faster": sum(row["faster"] == "first" for row in rows),
        "num_second_faster": sum(row["faster"] == "second" for row in rows),
        "only_in_first": [str(gemm) for gemm in sorted(one) if gemm not in other],
        "only_in_second": [str(gemm) for gemm in sorted(other) if gemm not in one],
    }
    console.answer(facts, lambda: _text(facts), is_json=is_json)


def _named(source: str) -> str:
    """Without the password of a database."""
    db, mark, study = source.rpartition("#")
    return f"{shown(db)}{mark}{study}" if db else shown(source)


def _pairs(one: Sequence[Winner], other: Sequence[Winner]) -> list[tuple[Winner, Winner]]:
    """Those of a kind, or where there are none the newest."""
    alike = [(first, second) for first in one for second in other if first.kind == second.kind]
    return alike or [(one[-1], other[-1])]


def _winners(source: str, max_error: float | None) -> Winners:
    """Of an exported folder, of a database, of one study of it, `shapes.db#3`, or of one run,
    `shapes.db#run3`: of what was stored for its shapes on its GPU while it ran."""
    if Path(source).is_dir():
        return _by_kind(
            (
                entry.gemm,
                Winner(*_where(table.environment), table.policy, table.accuracy, entry.ranked[0].time_us),
            )
            for _, table in load_models(Path(source))
            for entry in table.entries
            if entry.ranked
        )
    db, _, part = source.rpartition("#")
    kind, number = ("run", part[3:]) if part.startswith("run") else ("study", part)
    is_part = bool(db) and number.isdecimal()
    if db and not is_part and Path(db).is_file() and not Path(source).exists():
        raise UsageError(f"{source}: {part!r} is neither a run nor a study; write {db}#run3 or {db}#3")
    with common.open_existing(db if is_part else source) as store:
        chosen, period = common.studies_of(store, ()), EVER
        if is_part and kind == "run":
            run = next((one for one in store.runs() if one.id == int(number)), None)
            if run is None:
                raise UsageError(f"{shown(db)} holds no run {number} (`autotune runs` lists them)")
            period = Period(run.began_at, run.ended_at or EVER.until)
            chosen = [s for s in chosen if s.study.environment == run.environment]
            if run.shapes:
                chosen = [s for s in chosen if str(s.study.gemm) in run.shapes]
        elif is_part:
            chosen = [s for s in chosen if s.study.id == int(number)]
            if not chosen:
                raise UsageError(f"{shown(db)} holds no study {number} (`trials best --json` lists them)")
        oldest_first = sorted(chosen, key=lambda summary: summary.updated_at)
        finals = store.finals(dict.fromkeys((s.study for s in chosen), ANY), max_error, period)
        found = (
            (s.study.gemm, _winner(store, s.study, finals.get(s.study.id), max_error, period))
            for s in oldest_first
        )
        return _by_kind((gemm, winner) for gemm, winner in found if winner is not None)


def _by_kind(oldest_first: Iterable[tuple[Gemm, Winner]]) -> Winners:
    found: dict[Gemm, dict[tuple[str, str, str], Winner]] = {}
    for gemm, winner in oldest_first:
        kinds = found.setdefault(gemm, {})
        kinds.pop(winner.kind, None)
        kinds[winner.kind] = winner
    return {gemm: tuple(kinds.values()) for gemm, kinds in found.items()}


def _where(environment: Environment) -> tuple[str, str]:
    return environment.gpu_name, environment.driver_version


def _winner(
    store: Store, study: StudyRef, final: Final | None, max_error: float | None, period: Period
) -> Winner | None:
    """Of the final, if there was one, else the fastest trial."""
    where = *_where(study.environment), study.policy, accuracy_of(study.source_hash)
    if final:
        return Winner(*where, final.winner.time_us, final.winner.samples_us)
    best = next((trial.measurement for trial in store.best(study, 1, max_error, period=period)), None)
    return None if best is None or best.time_us is None else Winner(*where, best.time_us, best.samples_us)


def _facts(gemm: Gemm, one: Winner, other: Winner) -> dict[str, Any]:
    samples = one.samples_us, other.samples_us
    interval = stats.ratio_interval(*samples) if min(map(len, samples)) > 1 else None
    faster = None
    if interval is not None:
        faster = "first" if interval[0] > 1 else "second" if interval[1] < 1 else "neither"
    return {
        "shape": str(gemm),
        "first_us": one.time_us,
        "second_us": other.time_us,
        "ratio": other.time_us / one.time_us,
        "interval": interval,
        "faster": faster,
        "measured_on": list(dict.fromkeys(_describe(winner) for winner in (one, other))),
    }


def _describe(winner: Winner) -> str:
    driver = f", driver {winner.driver}" if winner.driver else ""
    policy = "" if winner.policy == CachePolicy.COLD else f", {winner.policy} operands"
    accuracy = "" if winner.accuracy == STRICT else f", accuracy {winner.accuracy}"
    return f"{winner.gpu}{driver}{policy}{accuracy}"


def _text(facts: Mapping[str, Any]) -> str:
    everywhere = list(dict.fromkeys(on for row in facts["shapes"] for on in row["measured_on"]))
    places = (" / ".join(row["measured_on"]) if len(everywhere) > 1 else None for row in facts["shapes"])
    rows = [{**row, "measured_on": place} for row, place in zip(facts["shapes"], places, strict=True)]
    mean = console.ratio_text(facts["geometric_mean"])
    shapes = counted(len({row["shape"] for row in rows}), "shape")
    unknown = sum(row["faster"] is None for row in rows)
    too_few = f"; too few samples to tell on {unknown:,}" if unknown else ""
    lines = [
        f"first: {facts['first']}, second: {facts['second']}, measured on {' / '.join(everywhere)}",
        facts_table(rows, _COLUMNS, ("measured on", "95% interval", "faster")),
        f"{shapes}: the second takes {mean} the time of the first (geometric mean); the first is faster on "
        f"{facts['num_first_faster']:,}, the second on {facts['num_second_faster']:,}{too_few}",
    ]
    for name in ("first", "second"):
        if only := facts[f"only_in_{name}"]:
            lines.append(f"only in the {name}: {counted(len(only), 'shape')}")
    return "\n".join(lines)
