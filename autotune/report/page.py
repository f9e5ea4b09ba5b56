"""The pages as HTML: one file that needs nothing beside it, or the frame that a server's pages fill.

Scripts and styles are the same for both. `echarts` draws (vendored/README.md says where it is from)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from ..files.wheel_libraries import JINJA, required
from .palette import ROOT

ROOM = Path(__file__).parent
LIBRARY = ROOM / "vendored/echarts.min.js"
STYLE = ROOM / "static/style.css"
# In the order in which they load: each uses what stands before it.
SCRIPTS = tuple(
    ROOM / "static" / name
    for name in (
        "theme.js", "elements.js", "figures.js", "trials_of.js", "charts.js", "climbs.js", "timeline.js",
        "searches.js", "history.js", "finals.js", "roofline.js", "parallel.js", "choices.js", "ladder.js",
        "shape.js", "one_trial.js", "table.js", "router.js",
    )
)  # fmt: skip

LIVE = ROOM / "static/live.js"  # behind them, where a server follows a search
SERVICE_NEEDS, SERVICE = ("theme.js", "elements.js", "figures.js"), ROOM / "static/service.js"


def jinja() -> Any:
    """The package `jinja2`. Raises EnvironmentProblem where it is not installed."""
    with required("jinja2 cannot be loaded", JINJA):
        import jinja2
    return jinja2


def render(documents: dict[str, Any]) -> str:
    """One HTML file with all documents by name, `overview` and `study/ID`. Raises EnvironmentProblem."""
    scripts = [path.read_text(encoding="utf-8") for path in (LIBRARY, *SCRIPTS)]
    return _frame(documents={name: _json(value) for name, value in documents.items()}, scripts=scripts)


def frame(sources: Sequence[str]) -> str:
    """The page of a server: scripts come from `sources`, documents from /api. Raises EnvironmentProblem."""
    return _frame(documents={}, sources=sources)


def _frame(**parts: Any) -> str:
    template = _templates().get_template("page.html.jinja")
    return str(template.render(colours=ROOT, style=STYLE.read_text(encoding="utf-8"), **parts))


@cache
def _templates() -> Any:
    package = jinja()
    return package.Environment(
        loader=package.FileSystemLoader(ROOM / "templates"), undefined=package.StrictUndefined,
        autoescape=True, trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip


def _json(value: Any) -> str:
    """JSON that may stand in a script element: nothing in it ends one, or begins a comment."""
    text = json.dumps(value, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")
