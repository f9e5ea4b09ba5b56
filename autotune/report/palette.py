"""Colours of pages, light and dark, that people who see colours otherwise can tell apart.

Series follow M. Okabe and K. Ito, "Color Universal Design" (2008): eight colours chosen for that; lighter or
darker here where a background asks for it. A test holds every pair of them apart as dichromats see them, and
every one against its background."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields


@dataclass(frozen=True)
class Palette:
    """CSS colours by what they mean. `series` are told apart by colour; each has a symbol of its own, too."""

    page: str
    card: str
    line: str
    text: str
    faint: str  # text that matters less
    link: str
    series: Mapping[str, str]

    def css(self) -> str:
        """Each colour as a CSS property of its name."""
        own = {field.name: getattr(self, field.name) for field in fields(self) if field.name != "series"}
        return " ".join(f"--{name}: {color};" for name, color in {**own, **self.series}.items())


# A colour means one thing on every page. `ours`, `cublas` and `limit` are what times are held against,
# `fault` is what failed or was disturbed, the others are groups of what proposed a trial, by the names that
# `search/propose/origins.py` has for them. All else is grey as `faint` text, or in shades of these.
LIGHT = Palette(
    page="#f6f7f9",
    card="#ffffff",
    line="#d5d9e0",
    text="#1b1f27",
    faint="#596273",
    link="#005ea2",
    series={
        "ours": "#0072b2", "cublas": "#c04a00", "limit": "#1b1f27", "fault": "#8a1fd6", "model": "#3399d6",
        "bandit": "#9a3f7d", "seed": "#c77f00", "reuse": "#007a55", "polish": "#7a6a00", "random": "#8a909b",
    },
)  # fmt: skip
DARK = Palette(
    page="#14171c",
    card="#1c2027",
    line="#363c47",
    text="#e8eaee",
    faint="#a3acba",
    link="#7cc4f2",
    series={
        "ours": "#56b4e9", "cublas": "#f07f3c", "limit": "#e8eaee", "fault": "#9955ff", "model": "#4a8ff0",
        "bandit": "#c055a8", "seed": "#e07a1e", "reuse": "#17d08a", "polish": "#f5d033", "random": "#b4bdc9",
    },
)  # fmt: skip
# The head of every page's style; `theme.js` sets the theme.
ROOT = f"""\
:root {{ color-scheme: light; {LIGHT.css()} }}
@media screen {{ :root[data-theme="dark"] {{ color-scheme: dark; {DARK.css()} }} }}"""
