"""`autotune trials show` and `trials diff`: all that the database holds of a trial, what two differ in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..facts import stats
from ..facts.device import limits_by_name
from ..facts.frozen import picked
from ..files.errors import UsageError
from ..files.words import counted, short
from ..kernel import templates
from ..kernel.config import PARAMETER
from ..kernel.resources import workspace_of
from ..store import Final, SearchRecord, Store, StudyRef, TrialRecord
from . import common, console
from .requests import DiffRequest, ShowRequest

_STATE = ("sm_clock_mhz", "memory_clock_mhz", "power_w", "temperature_c", "throttle_reasons")
_FIGURES = ("error_over_cublas", "error_ratio", "registers", "spill_bytes", "smem_bytes", "code_hash")
_SECONDS = ("compile_s", "verify_s", "measure_s")
Facts = dict[str, Any]


def show(request: ShowRequest, *, is_json: bool) -> None:
    """Everything about one trial. Raises UsageError if there is none with this id."""
    with common.open_existing(request.db) as store:
        study, trial = _find(store, request.trial)
        facts = _facts(store, study, trial)
    console.answer(facts, lambda: _text(facts), is_json=is_json)


def diff(request: DiffRequest, *, is_json: bool) -> None:
    """What differs between two trials, and which is the faster. Raises UsageError if one is not there."""
    first_id, second_id = request.trial, request.other
    with common.open_existing(request.db) as store:
        found = [_find(store, trial_id) for trial_id in (first_id, second_id)]
        pair = [_facts(store, *each) for each in found]
        facts: Facts = {
            "trials": [first_id, second_id],
            "differences": _differences(*map(_flat, pair)),
            "times": _times(store, found[0], found[1]),
        }
    console.answer(facts, lambda: _differences_text(facts), is_json=is_json)


def _differences_text(facts: Facts) -> str:
    headers = ("what", *(f"trial {trial_id}" for trial_id in facts["trials"]))
    rows = [(name, *map(_cell, values)) for name, values in facts["differences"].items()]
    table = console.table(headers, rows) if rows else "the trials differ in nothing that is stored"
    return f"{table}\n\n{_verdict(facts['times'], *facts['trials'])}"


def _find(store: Store, trial_id: int) -> tuple[StudyRef, TrialRecord]:
    found = store.find_trial(trial_id)
    if found is None:
        store.bad_rows.refuse()
        raise UsageError(
            f"the database holds no trial {trial_id}; `autotune trials history` lists the newest"
        )
    return found


# -------------------------------------------------------------------------------------------- facts


def _facts(store: Store, study: StudyRef, trial: TrialRecord) -> Facts:
    measurement = trial.measurement
    stored = measurement.to_dict()
    return {
        **picked(trial, "id origin key"),
        "shape": str(study.gemm),
        **picked(measurement, "outcome reason is_cut_short"),
        "created_at": common.moment(trial.created_at),
        **_speed(store, study, measurement.time_us),
        "samples": _samples(measurement.samples_us),
        "marks": list(measurement.marks),
        "num_discarded": sum(len(each.samples_us) for each in measurement.discarded),
        **{name: stored[name] for name in (*_FIGURES, *_SECONDS)},
        "workspace_bytes": workspace_of(trial.point, study.gemm, limits_by_name(study.environment.gpu_name)),
        "state": {name: stored["state"][name] for name in _STATE},
        "final": _place(store.final(study), trial.key),
        "num_comparisons": sum(trial.key in comparison.keys for comparison in store.comparisons(study)),
        "config": dict(trial.point),
        "policy": f"{study.policy} {study.policy_version}",
        "searches": [_describe(search) for search in store.searches(study)],
        **picked(study, "source_hash compiler"),
        "environment": study.environment.to_dict(),
    }


def _describe(search: SearchRecord) -> Facts:
    """What a search of the trial's shape was told."""
    created_at = common.moment(search.created_at)
    return {**picked(search, "sampler seed"), "policy": dict(search.policy), "created_at": created_at}


def _speed(store: Store, study: StudyRef, time_us: float | None) -> Facts:
    baseline, limits = store.baseline(study), limits_by_name(study.environment.gpu_name)
    limit_us = templates.limit_us(study.gemm, limits, templates.accuracy_of(study.source_hash))
    speeds = common.speeds(study.gemm, time_us, baseline.time_us if baseline else None, limit_us)
    return {"time_us": time_us, **speeds}


def _place(final: Final | None, key: str) -> Facts | None:
    """A config's place in a final."""
    for entry in final.entries if final else ():
        if entry.key == key:
            return {name: getattr(entry, name) for name in ("rank", "is_tied", "time_us", "joules")}
    return None


def _samples(samples_us: Sequence[float]) -> Facts | None:
    if not samples_us:
        return None
    return {
        "num": len(samples_us),
        "least_us": min(samples_us),
        "median_us": stats.median(samples_us),
        "most_us": max(samples_us),
        "median_interval_us": list(stats.median_interval(samples_us)),
        "samples_us": list(samples_us),
    }


def _flat(facts: Facts) -> Facts:
    """Facts by name, those of groups by `config.bm`; less what is told elsewhere or differs in any case."""
    flat: Facts = {}
    for name, value in facts.items():
        if name in ("id", "key", "samples", "tflops", "speedup", "share_of_limit"):
            continue
        if isinstance(value, Mapping):
            flat.update({f"{name}.{inner}": each for inner, each in value.items()})
        else:
            flat[name] = value
    return flat


def _differences(one: Facts, other: Facts) -> dict[str, list[Any]]:
    names = dict.fromkeys([*one, *other])
    return {name: [one.get(name), other.get(name)] for name in names if one.get(name) != other.get(name)}


# ------------------------------------------------------------------------------ which is the faster


def _times(store: Store, one: tuple[StudyRef, TrialRecord], other: tuple[StudyRef, TrialRecord]) -> Facts:
    """How many times the first's time the second takes, with a 95 % interval. From rounds that held both, if
    there were any; else from the samples of the trials, which were taken at different times."""
    (study, first), (other_study, second) = one, other
    if study.gemm != other_study.gemm:
        return {"how": "not comparable", "num_rounds": 0, "ratio": None, "interval": None}
    rounds = _rounds(store, study, (first.key, second.key)) if study.id == other_study.id else []
    if ratios := [second_us / first_us for first_us, second_us in rounds]:
        timed = {"ratio": stats.median(ratios), "interval": stats.median_interval(ratios)}
        return {"how": "paired", "num_rounds": len(rounds), **timed}
    samples = (first.measurement.samples_us, second.measurement.samples_us)
    interval = stats.ratio_interval(*samples) if all(samples) else None
    ratio = common.share(second.measurement.time_us, first.measurement.time_us)
    return {"how": "apart", "num_rounds": 0, "ratio": ratio, "interval": interval}


def _rounds(store: Store, study: StudyRef, keys: tuple[str, str]) -> list[tuple[float, float]]:
    """Times of both in the same rounds: of the newest final, else of their comparisons."""
    final = store.final(study)
    entries = {entry.key: entry for entry in final.entries} if final else {}
    if all(key in entries and entries[key].samples_us for key in keys) and keys[0] != keys[1]:
        return list(zip(entries[keys[0]].samples_us, entries[keys[1]].samples_us, strict=False))
    pairs: list[tuple[float, float]] = []
    for comparison in store.comparisons(study):
        if set(comparison.keys) == set(keys):
            samples = comparison.samples_us if comparison.keys == keys else comparison.samples_us[::-1]
            pairs += zip(*samples, strict=True)
    return pairs


def _verdict(times: Facts, first_id: int, second_id: int) -> str:
    ratio, interval = times["ratio"], times["interval"]
    if times["how"] == "not comparable":
        return "They are of different shapes: their times do not compare."
    if ratio is None:
        return "One of them has no time: nothing tells which is the faster."
    takes = f"Trial {second_id} takes {ratio:.4f} times as long as trial {first_id}"
    if times["how"] == "paired":
        source = f"{counted(times['num_rounds'], 'round')} that held both"
    else:
        source = "samples taken at different times: the GPU's drift is in them"
    if interval is None:
        return f"{takes}. There are too few samples to say how surely ({source})."
    low, high = interval
    text = f"{takes} (95 % interval {low:.4f} to {high:.4f}; {source})."
    if low <= 1 <= high:
        return f"{text} That does not tell which is the faster."
    return f"{text} Trial {first_id if low > 1 else second_id} is the faster."


# --------------------------------------------------------------------------------------------- text


def _text(facts: Facts) -> str:
    head = [
        ("trial", facts["id"]),
        ("shape", facts["shape"]),
        ("outcome", facts["outcome"]),
        ("stored (UTC)", facts["created_at"]),
        ("from", facts["origin"]),
        *_time_lines(facts),
        ("error over cuBLAS's", console.ratio_text(facts["error_over_cublas"])),
        *((name, _cell(facts[name])) for name in _FIGURES[1:]),
        ("workspace", console.workspace_text(facts["workspace_bytes"])),
        *((name, _cell(facts[name])) for name in _SECONDS),
        *((name, _cell(value)) for name, value in facts["state"].items()),
        ("marks", _cell(facts["marks"])),
        ("samples taken again", facts["num_discarded"]),
        ("final", _final_text(facts["final"])),
        ("comparisons", facts["num_comparisons"]),
    ]
    made = [
        ("policy", facts["policy"]),
        ("kernel source", facts["source_hash"]),
        ("compiler", facts["compiler"] or "-"),
        *((name, _cell(value)) for name, value in facts["environment"].items()),
    ]
    rows = [
        (name, value, PARAMETER[name].description if name in PARAMETER else "-")
        for name, value in facts["config"].items()
    ]
    parts = [_list(head), console.table(("parameter", "value", "meaning"), rows, right=(1,)), _list(made)]
    if facts["reason"]:
        parts.append(f"reason:\n{facts['reason']}")
    return "\n\n".join(parts)


def _time_lines(facts: Facts) -> list[tuple[str, str]]:
    samples, time_us = facts["samples"], facts["time_us"]
    lines = []
    if time_us is not None:
        parts = [
            console.time_text(time_us),
            *([f"{facts['tflops']:.1f} TFLOP/s"] if facts["tflops"] else []),
            *([f"{console.ratio_text(facts['speedup'])} cuBLAS"] if facts["speedup"] else []),
            *([f"{100 * facts['share_of_limit']:.1f}% of the limit"] if facts["limit_us"] else []),
        ]
        lines.append(("time", ", ".join(parts)))
    if samples:
        low, high = map(console.time_text, samples["median_interval_us"])
        least, most = console.time_text(samples["least_us"]), console.time_text(samples["most_us"])
        cut = ", cut short as clearly slower" if facts["is_cut_short"] else ""
        lines.append(("samples", f"{samples['num']}, {least} to {most}{cut}"))
        lines.append(("median", f"{console.time_text(samples['median_us'])}, 95 % interval {low} to {high}"))
    return lines


def _final_text(final: Facts | None) -> str:
    if final is None:
        return "-"
    joules = "" if final["joules"] is None else f", {final['joules']:.3g} J a launch"
    tied = ", tied with the best" if final["is_tied"] else ""
    return f"rank {final['rank']}, {console.time_text(final['time_us'])}{tied}{joules}"


def _list(pairs: Sequence[tuple[str, object]]) -> str:
    width = max(len(name) for name, _ in pairs)
    return "\n".join(f"{name.ljust(width)}  {value}" for name, value in pairs)


def _cell(value: Any) -> str:
    if value is None or value in ([], (), ""):
        return "-"
    if isinstance(value, float):
        return short(value, 6)
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value))
    return " ".join(str(value).split())
