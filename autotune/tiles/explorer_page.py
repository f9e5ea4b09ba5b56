"""The explorer as one HTML file that needs nothing beside it: pictures as JSON, and the script that draws
them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from ..facts.device import DeviceLimits
from ..report.palette import ROOT
from .kernel_picture import Subject, pictures
from .warp_access import SECTOR

_FOLDER = Path(__file__).parent / "explorer"
_THEME = "../../report/static/theme"  # that of every page
# One script, in this order.
_SCRIPTS = (_THEME, "elements", "blocks", "tile", "steps", "lanes", "tables", "page")


def page(selected: Sequence[Subject], limits: DeviceLimits, gpu: str, footer: str) -> str:
    """The whole page, the first subject shown first. `gpu` is how the command line names the GPU. Raises
    UsageError where a subject's problem is empty."""
    data = {
        "views": pictures(selected, limits),
        "gpu": gpu,
        "foot": footer,
        "sector": SECTOR,
    }
    whole = _read("page.html")
    for place, content in (
        ("/*STYLE*/", f"{ROOT}\n{_read('page.css')}"),
        ("/*SCRIPT*/", "\n".join(_read(f"{name}.js") for name in _SCRIPTS)),
        ("/*DATA*/", _as_json(data)),
    ):
        whole = whole.replace(place, content)
    return whole


def _read(name: str) -> str:
    return (_FOLDER / name).read_text(encoding="utf-8")


def _as_json(data: object) -> str:
    """JSON that may stand within a script element: nothing in it ends the element."""
    return json.dumps(data, separators=(",", ":")).replace("<", "\\u003c")
