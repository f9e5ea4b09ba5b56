"""Puts numbers and pictures into one HTML file that needs nothing beside it: no network, no server."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from html import escape
from statistics import geometric_mean
from typing import Any

from ..kernel.config import Value
from . import charts
from .importance import MIN_TRIALS, Importance
from .labels import labels
from .numbers import PAUSE_S, StudyNumbers

Describe = Callable[[Mapping[str, Value]], str]  # a config in a few words

MAX_FAILURES = 20
MAX_LISTED = 6  # parameters whose values are listed
REASON_CHARS = 300

_STYLE = """
body { font: 15px/1.45 system-ui, sans-serif; color: #222;
       max-width: 1180px; margin: 2em auto; padding: 0 1em; }
table { border-collapse: collapse; margin: .6em 0 1.2em; font-size: 14px; }
th, td { padding: .2em .7em; border-bottom: 1px solid #ddd; text-align: left; vertical-align: top; }
td.r, th.r { text-align: right; font-variant-numeric: tabular-nums; }
td.r { white-space: nowrap; }
code { font-size: 12px; overflow-wrap: anywhere; }
.recorded { background: #fff3cd; border: 1px solid #e0c860; padding: .4em .8em; }
.hint { color: #666; font-size: 13px; max-width: 60em; }
h2 { border-top: 2px solid #222; padding-top: .6em; margin-top: 2em; }
"""


def render(studies: Sequence[StudyNumbers], source: str, written_at: str, describe: Describe) -> str:
    """The whole page. `source` names the database; `describe` writes a config short.

    Raises EnvironmentProblem where plotly is missing.
    """
    groups: dict[str, list[StudyNumbers]] = {}
    for study in studies:
        groups.setdefault(_measured_on(study), []).append(study)
    overview = "".join(_overview(name, group, i, describe) for i, (name, group) in enumerate(groups.items()))
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>autotune report</title>'
        f"<style>{_STYLE}</style><script>{charts.script()}</script></head><body>"
        f"<h1>autotune report</h1><p>{escape(source)}, written {escape(written_at)}</p>{overview}"
        f"{''.join(_study(study, describe) for study in studies)}</body></html>\n"
    )


def _measured_on(study: StudyNumbers) -> str:
    environment = study.study.environment
    return (
        f"{environment.gpu_name}, driver {environment.driver_version or 'unknown'}, "
        f"{study.study.compiler or 'compiler unknown'}, {study.study.policy} operands"
        + (f", recorded {environment.recorded_on}" if environment.is_recorded else "")
    )


def _recorded_note(study: StudyNumbers) -> str:
    environment = study.study.environment
    if not environment.is_recorded:
        return ""
    return (
        f'<p class="recorded">Recorded on {escape(environment.gpu_name)}, {escape(environment.recorded_on)}: '
        "these times come from a file, not from a GPU of this machine.</p>"
    )


# ------------------------------------------------------------------------------------------------
# All shapes


def _overview(name: str, studies: Sequence[StudyNumbers], number: int, describe: Describe) -> str:
    rows = [
        (
            f'<a href="#study-{s.study.id}">{escape(str(s.study.gemm))}</a>',
            _number(s.best_us, 2),
            _number(s.tflops, 1),
            _number(s.cublas_us, 2),
            _ratio(s.speedup),
            _ratio(s.best_error),
            _percent(s.share_of_limit),
            _percent(s.cublas_share_of_limit),
            f"{s.num_trials:,}",
            f"{s.num_failed:,}",
            str(len(s.final.tied)) if s.final else "-",
            escape(describe(s.best_point)) if s.best_point else "-",
        )
        for s in studies
    ]
    headers = (
        "shape", "best (us)", "TFLOP/s", "cuBLAS (us)", "vs cuBLAS", "error", "of limit", "cuBLAS's",
        "trials", "failed", "tied", "config",
    )  # fmt: skip
    return (
        f"<h2>{escape(name)}</h2>{_recorded_note(studies[0])}"
        + charts.against_limit(studies, f"limit-{number}")
        + _in_the_mean(studies)
        + _table(headers, rows, right=range(1, 11))
        + _hint(
            "vs cuBLAS: how many times as fast. Error: that of C against float64 (Frobenius norm) over that "
            "of cuBLAS's C. The limit is the roofline: the larger of 2mnk over the FMA rate and "
            "4(mk + kn + mn) bytes over the bandwidth. Best: of the final, timed interleaved with cuBLAS, "
            "where there was one; else of the trials."
        )
    )


def _in_the_mean(studies: Sequence[StudyNumbers]) -> str:
    """One sentence over all studies that were compared with cuBLAS; "" for fewer than two."""
    compared = [(s.speedup, str(s.study.gemm)) for s in studies if s.speedup is not None]
    if len(compared) < 2:
        return ""
    mean = geometric_mean(speedup for speedup, _ in compared)
    least, where = min(compared)
    return (
        f"<p>In the geometric mean over {len(compared)} studies {_ratio(mean)} as fast as cuBLAS; "
        f"least {_ratio(least)}, on {escape(where)}.</p>"
    )


# ------------------------------------------------------------------------------------------------
# One study


def _study(study: StudyNumbers, describe: Describe) -> str:
    number = study.study.id
    parts = [
        f'<h2 id="study-{number}">{escape(str(study.study.gemm))}</h2>',
        f"<p>{escape(_measured_on(study))};",
        f" kernel source <code>{escape(study.study.source_hash[:12])}</code></p>",
        _recorded_note(study),
        "<h3>History</h3>",
        charts.history(study, f"history-{number}") if study.timed else "<p>No trial was timed.</p>",
        _thinned_hint(study),
        "<h3>Importance of parameters</h3>",
        _importance(study),
        "<h3>What failed and why</h3>",
        _failures(study),
        "<h3>Where the time went</h3>",
        _ledger(study),
        "<h3>Final and tied set</h3>",
        _final(study, describe),
    ]
    return "".join(parts)


def _thinned_hint(study: StudyNumbers) -> str:
    texts = []
    if len(study.timed) > charts.MAX_DOTS:
        texts.append(f"{charts.MAX_DOTS:,} of {len(study.timed):,} timed trials are drawn, evenly spread.")
    if not study.study.environment.is_recorded:
        texts.append(f"Pauses of more than {PAUSE_S:.0f} s between trials are left out of the time.")
    return _hint(" ".join(texts)) if texts else ""


def _importance(study: StudyNumbers) -> str:
    if not study.importance:
        return f"<p>Told from {MIN_TRIALS} timed trials on; this study has {len(study.timed)}.</p>"
    fastest_us = min(trial.time_us for trial in study.timed)
    rows = [
        (escape(parameter.name), _percent(parameter.share), escape(_by_value(parameter, fastest_us)))
        for parameter in study.importance[:MAX_LISTED]
    ]
    headers = ("parameter", "explains", "speed of the best trial with each value (trials)")
    return (
        charts.importance(study, f"importance-{study.study.id}")
        + _table(headers, rows, right=(1,))
        + _hint(
            "Share of the variance of log time that lies between a parameter's values, less what chance "
            "would explain (epsilon squared), over the timed trials. A search tries good regions more often, "
            "and what two parameters do only together is in neither share: a description, not a law."
        )
    )


def _by_value(parameter: Importance, fastest_us: float) -> str:
    """`2: 98.1 % (40), 3: 100.0 % (210)`"""
    cells = (f"{v.value}: {100 * fastest_us / v.best_us:.1f} % ({v.num_trials})" for v in parameter.values)
    return ", ".join(cells)


def _failures(study: StudyNumbers) -> str:
    if not study.failures:
        return "<p>No trial failed.</p>"
    rows = [
        (
            escape(group.outcome),
            f"{group.count:,}",
            escape(_shortened(group.reason)),
            _key(group.key),
        )
        for group in study.failures[:MAX_FAILURES]
    ]
    left_out = len(study.failures) - len(rows)
    more = f"<p>{left_out} rarer reasons are left out.</p>" if left_out else ""
    headers = ("outcome", "trials", "reason (of the newest)", "config (the newest)")
    return _table(headers, rows, right=(1,)) + more


def _ledger(study: StudyNumbers) -> str:
    ledger = study.ledger
    rows = [
        ("compiling, added up over threads", _number(ledger.compile_s, 1)),
        ("verifying on the GPU", _number(ledger.verify_s, 1)),
        ("timing on the GPU", _number(ledger.measure_s, 1)),
        ("all, one after another" if study.study.environment.is_recorded
         else "on the clock, other shapes of the same search included", _number(ledger.elapsed_s, 1)),
    ]  # fmt: skip
    text = (
        f"{ledger.num_compiled:,} of {study.num_trials:,} trials compiled their kernel, the others shared "
        f"one or took it from the cache; timing of {study.num_cut_short:,} stopped early, as clearly slower."
    )
    if not study.study.environment.is_recorded and ledger.gpu_share is not None:
        text += (
            f" The GPU verified and timed this shape for {_percent(ledger.gpu_share)} of the clock's time."
        )
    return _table(("what", "seconds"), rows, right=(1,)) + f"<p>{text}</p>"


def _final(study: StudyNumbers, describe: Describe) -> str:
    if study.final is None:
        return "<p>There was no final yet: the best is the fastest trial.</p>"
    winner_us, entries = study.final.winner.time_us, study.final.entries
    rows = [
        (
            str(entry.rank),
            "yes" if entry.is_tied else "",
            _number(entry.time_us, 3),
            _ratio(entry.time_us / winner_us),
            escape(label),
            _key(entry.key),
        )
        for entry, label in zip(entries, labels([entry.point for entry in entries], describe), strict=True)
    ]
    headers = ("rank", "tied", "time (us)", "of the winner's", "config", "in full")
    hint = "Tied: interleaved timing cannot tell it from the winner. Times are medians over the rounds."
    return _table(headers, rows, right=(0, 2, 3)) + _hint(hint)


# ------------------------------------------------------------------------------------------------
# Text


def _table(headers: Sequence[str], rows: Iterable[Sequence[str]], *, right: Sequence[int] = ()) -> str:
    """Cells are HTML; headers are text."""

    def line(cells: Sequence[str], tag: str) -> str:
        return "".join(
            f"<{tag}{' class=r' if at in right else ''}>{cell}</{tag}>" for at, cell in enumerate(cells)
        )

    body = "".join(f"<tr>{line(row, 'td')}</tr>" for row in rows)
    return f"<table><tr>{line([escape(h) for h in headers], 'th')}</tr>{body}</table>"


def _key(key: str) -> str:
    """A config in full; lines end behind a comma."""
    return f"<code>{escape(key).replace(',', ',<wbr>')}</code>"


def _hint(text: str) -> str:
    return f'<p class="hint">{escape(text)}</p>'


def _shortened(text: str) -> str:
    return text if len(text) <= REASON_CHARS else f"{text[: REASON_CHARS - 3]}..."


def _number(value: Any, digits: int) -> str:
    return "-" if value is None else f"{value:,.{digits}f}"


def _ratio(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}x"


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.1f} %"
