"""The pictures of a report, as pieces of HTML that plotly.js brings to life. Plotly is loaded when they are
asked for: it is an extra that only this page needs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ..errors import EnvironmentProblem
from ..requirements import PLOTLY, pip_install
from .numbers import StudyNumbers, Timed

MAX_DOTS = 3000  # trials drawn per study; the best so far is always drawn whole
MAX_PARAMETERS = 12
_OURS, _CUBLAS, _LIMIT, _BEST = "#2a7f4f", "#b5651d", "#444444", "#c0392b"
_BARS = "#7f9fbf"
# Of trials by where they came from, the same in every study; what other samplers propose is grey.
_ORIGINS = {
    "seed": "#4f7faf",
    "random": "#bf9f7f",
    "later-seed": "#4fafaf",
    "model": "#9f7fbf",  # before its candidates were told apart
    "bandit": "#7f5f9f",
    "neighbour": "#9f7fbf",
    "climbed": "#af8fcf",
    "repaired": "#bf9fdf",
    "carried": "#8f7faf",
    "regrouped": "#8f8fbf",
    "factor": "#af9fbf",
    "mixture": "#cfafcf",
    "drawn": "#d7c7e7",
    "reuse": "#7fbf9f",
    "polish": "#bf7fbf",
    "transfer": "#bfbf7f",
}
_OTHER = "#a0a0a0"
MIN_SHAPES = 8  # there is room for so many: a single pair of bars does not fill the picture


def plotly() -> Any:
    """The package `plotly.graph_objects`. Raises EnvironmentProblem where it is not installed."""
    try:
        from plotly import graph_objects
    except ImportError as error:
        raise EnvironmentProblem(
            f"plotly cannot be loaded ({error}); install it with: {pip_install(PLOTLY)}"
        ) from error
    return graph_objects


def script() -> str:
    """plotly.js itself, so that the page needs no network."""
    plotly()
    from plotly.offline import get_plotlyjs

    return str(get_plotlyjs())


def against_limit(studies: Sequence[StudyNumbers], name: str) -> str:
    """Every shape's share of the hardware limit, tuned beside cuBLAS. "" where no limit is known."""
    go = plotly()
    shown = [s for s in studies if s.share_of_limit is not None]
    if not shown:
        return ""
    shapes = _labels(shown)
    figure = go.Figure()
    for label, colour, shares in (
        ("tuned", _OURS, [s.share_of_limit for s in shown]),
        ("cuBLAS", _CUBLAS, [s.cublas_share_of_limit for s in shown]),
    ):
        percent = [None if share is None else 100 * share for share in shares]
        figure.add_bar(name=label, x=shapes, y=percent, marker_color=colour, hovertemplate="%{x}: %{y:.1f} %")
    highest = max(share for s in shown for share in (s.share_of_limit, s.cublas_share_of_limit) if share)
    figure.update_layout(
        barmode="group", yaxis_title="% of the limit", yaxis_range=[0, max(100.0, 103 * highest)]
    )
    figure.update_xaxes(
        tickangle=-40,  # labels end under their bars, the last one inside the picture
        range=[-0.5, max(len(shown), MIN_SHAPES) - 0.5],
    )
    return _html(figure, name, height=400)


def history(study: StudyNumbers, name: str) -> str:
    """Times of trials and the best so far, over trials and over time, with cuBLAS and the limit."""
    plotly()
    from plotly.subplots import make_subplots

    figure = make_subplots(1, 2, shared_yaxes=True, horizontal_spacing=0.03)
    recorded = study.study.environment.is_recorded
    seconds = "recorded seconds of compiling, verifying and timing" if recorded else "seconds on the clock"
    for column, (axis, title) in enumerate((("number", "trials"), ("elapsed_s", seconds)), 1):
        _add_trials(figure, study, axis, column)
        for level_us, label, colour in (
            (study.cublas_us, "cuBLAS", _CUBLAS),
            (study.limit_us, "limit", _LIMIT),
        ):
            if level_us:
                _add_level(figure, level_us, label, colour, getattr(study.timed[-1], axis), column)
        figure.update_xaxes(title_text=title, row=1, col=column)
    values, texts = log_ticks([t.time_us for t in study.timed] + [study.cublas_us, study.limit_us])
    figure.update_yaxes(type="log", tickvals=values, ticktext=texts)
    figure.update_yaxes(title_text="time (us)", row=1, col=1)
    return _html(figure, name, height=380)


def _add_trials(figure: Any, study: StudyNumbers, axis: str, column: int) -> None:
    go = plotly()
    is_first = column == 1  # one legend serves both halves
    dots = thinned(study.timed)
    for origin in dict.fromkeys(t.origin for t in dots):
        colour = _ORIGINS.get(origin, _OTHER)
        of_origin = [trial for trial in dots if trial.origin == origin]
        figure.add_trace(
            go.Scatter(
                x=[getattr(trial, axis) for trial in of_origin], y=[trial.time_us for trial in of_origin],
                mode="markers", marker={"size": 4, "color": colour}, name=origin or "trial",
                legendgroup=f"origin {origin}", showlegend=is_first, hovertemplate="%{y:.2f} us",
            ),
            row=1, col=column,
        )  # fmt: skip
    steps = list(study.best_so_far)
    if steps:
        steps.append(replace(study.timed[-1], time_us=steps[-1].time_us))  # it stands until the end
    figure.add_trace(
        go.Scatter(
            x=[getattr(step, axis) for step in steps], y=[step.time_us for step in steps],
            mode="lines", line={"shape": "hv", "color": _BEST}, name="best so far",
            legendgroup="best", showlegend=is_first, hovertemplate="best %{y:.2f} us",
        ),
        row=1, col=column,
    )  # fmt: skip


def _add_level(figure: Any, level_us: float, label: str, colour: str, end: float, column: int) -> None:
    """A line across, as a trace: plotly's own lines put their text wrongly on logarithmic axes."""
    figure.add_trace(
        plotly().Scatter(
            x=[0, end], y=[level_us, level_us], mode="lines", line={"dash": "dot", "color": colour},
            name=label, legendgroup=label, showlegend=column == 1, hovertemplate=label + " %{y:.2f} us",
        ),
        row=1, col=column,
    )  # fmt: skip


def log_ticks(times_us: Sequence[float | None]) -> tuple[list[float], list[str]]:
    """Marks of a logarithmic axis and their texts: a line for each digit, whole numbers at 1, 2 and 5 of
    each decade; at every digit where all lies within one decade. Plotly's own texts are bare digits."""
    known = [time_us for time_us in times_us if time_us]
    decades = range(math.floor(math.log10(min(known))), math.floor(math.log10(max(known))) + 1)
    marks = [(digit, digit * 10.0**decade) for decade in decades for digit in range(1, 10)]
    shown = (1, 2, 5) if len(decades) > 1 else range(1, 10)
    return [value for _, value in marks], [f"{value:,g}" if digit in shown else "" for digit, value in marks]


def thinned(timed: Sequence[Timed]) -> Sequence[Timed]:
    """At most MAX_DOTS of the trials, evenly spread, the first and the last among them."""
    if len(timed) <= MAX_DOTS:
        return timed
    return [timed[round(i * (len(timed) - 1) / (MAX_DOTS - 1))] for i in range(MAX_DOTS)]


def importance(study: StudyNumbers, name: str) -> str:
    """The most important parameters by the share of the variance of log time that each explains alone."""
    go = plotly()
    shown = study.importance[:MAX_PARAMETERS][::-1]  # plotly draws the first bar at the bottom
    figure = go.Figure(
        go.Bar(
            x=[100 * parameter.share for parameter in shown], y=[parameter.name for parameter in shown],
            orientation="h", marker_color=_BARS, hovertemplate="%{y}: %{x:.1f} %",
        )
    )  # fmt: skip
    figure.update_layout(xaxis_title="% of the variance of log time", xaxis_rangemode="tozero")
    return _html(figure, name, height=90 + 22 * len(shown))


def _labels(studies: Sequence[StudyNumbers]) -> list[str]:
    """Shapes; where one stands twice (two kernel sources, say), with the number of the study."""
    shapes = [str(s.study.gemm) for s in studies]
    return [
        f"{shape} #{s.study.id}" if shapes.count(shape) > 1 else shape
        for shape, s in zip(shapes, studies, strict=True)
    ]


def _html(figure: Any, name: str, *, height: int) -> str:
    """`name` is the id of the element: a page written twice is the same, byte for byte."""
    figure.update_layout(
        template="plotly_white",
        height=height,
        margin={"l": 70, "r": 20, "t": 40, "b": 50},
        legend={"orientation": "h", "y": 1.02, "yanchor": "bottom", "itemsizing": "constant"},
    )
    config = {"displaylogo": False, "responsive": True}
    return str(figure.to_html(full_html=False, include_plotlyjs=False, div_id=name, config=config))
