"""Colours of pages: told apart by people who see all colours and by dichromats, and seen on their background.

Dichromats' views: F. Viénot, H. Brettel, J. Mollon, "Digital video colourmaps for checking the legibility of
displays by dichromats", Color Research and Application 24 (1999), for red and green; for blue G. Machado,
M. Oliveira, L. Fernandes, IEEE TVCG 15 (2009), at severity 1. Contrast: WCAG 2.2.
"""

from __future__ import annotations

import re
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest

from autotune import tiles
from autotune.report import page
from autotune.report.palette import DARK, LIGHT, ROOT, Palette

# Of linear RGB.
VIEWS = {
    "all colours": np.eye(3),
    "without red": np.array([[0.11238, 0.88762, 0.0], [0.11238, 0.88762, 0.0], [0.00401, -0.00401, 1.0]]),
    "without green": np.array([[0.29275, 0.70725, 0.0], [0.29275, 0.70725, 0.0], [-0.02234, 0.02234, 1.0]]),
    "without blue": np.array(
        [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]]
    ),
}
LEAST_APART = 14.0  # CIE76: just noticed is 2.3; marks of a few pixels need several times as much
LEAST_APART_LINES = 25.0  # what times are held against
LEAST_CONTRAST = 3.0  # of marks; text needs 4.5
DOTS = ("model", "bandit", "seed", "reuse", "polish", "random")  # of one picture, each with a symbol, too
LINES = ("ours", "cublas", "limit", "fault")
THEMES = pytest.mark.parametrize("palette", [LIGHT, DARK], ids=["light", "dark"])


def _linear(color: str) -> np.ndarray:
    srgb = np.array([int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)])
    return np.where(srgb <= 0.04045, srgb / 12.92, ((srgb + 0.055) / 1.055) ** 2.4)


def _lab(linear: np.ndarray) -> np.ndarray:
    to_xyz = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
    ratio = to_xyz @ np.clip(linear, 0, 1) / np.array([0.9505, 1.0, 1.089])
    root = np.where(ratio > (6 / 29) ** 3, np.cbrt(ratio), ratio / (3 * (6 / 29) ** 2) + 4 / 29)
    return np.array([116 * root[1] - 16, 500 * (root[0] - root[1]), 200 * (root[1] - root[2])])


def _apart(one: str, other: str, view: np.ndarray) -> float:
    return float(np.linalg.norm(_lab(view @ _linear(one)) - _lab(view @ _linear(other))))


def _contrast(one: str, other: str) -> float:
    luminance = [float(np.array([0.2126, 0.7152, 0.0722]) @ _linear(color)) for color in (one, other)]
    return (max(luminance) + 0.05) / (min(luminance) + 0.05)


@THEMES
@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize(
    "names, least", [(DOTS, LEAST_APART), (LINES, LEAST_APART_LINES)], ids=["dots", "lines"]
)
def test_every_pair_of_series_is_told_apart(
    palette: Palette, view: str, names: tuple[str, ...], least: float
) -> None:
    pairs = combinations(names, 2)
    near = {(a, b): _apart(palette.series[a], palette.series[b], VIEWS[view]) for a, b in pairs}
    assert not {pair: round(far, 1) for pair, far in near.items() if far < least}


@THEMES
def test_marks_and_text_are_seen_on_their_background(palette: Palette) -> None:
    for name, color in palette.series.items():
        assert _contrast(color, palette.card) >= LEAST_CONTRAST, name
    for text in (palette.text, palette.faint, palette.link):
        for background in (palette.page, palette.card):
            assert _contrast(text, background) >= 4.5, (text, background)


@THEMES
def test_every_series_of_a_picture_has_a_colour(palette: Palette) -> None:
    assert set(palette.series) == {*DOTS, *LINES}


def test_a_colour_means_one_thing_on_every_page() -> None:
    """Those of what proposed a trial are found by its group alone, never named for something else."""
    for path in (page.STYLE, *page.SCRIPTS, page.LIVE):
        text = path.read_text(encoding="utf-8")
        named = re.findall(rf"colour\(\"({'|'.join(DOTS)})\"\)|var\(--({'|'.join(DOTS)})\)", text)
        assert not named, path.name


def test_the_tile_explorer_has_no_colours_of_its_own() -> None:
    """But for an order in shades of ours, which rise in lightness (test_tile_pictures)."""
    room = Path(tiles.__file__).parent / "explorer"
    used = {
        c for path in room.iterdir() for c in re.findall(r"#[0-9a-f]{6}\b", path.read_text(encoding="utf-8"))
    }
    order = re.search(
        r"const RAMP = \[(.*?)\]", (room / "elements.js").read_text(encoding="utf-8"), re.DOTALL
    )
    assert order and used == set(re.findall(r"#[0-9a-f]{6}", order[1]))
    assert not re.findall(
        rf"var\(--({'|'.join([*DOTS, 'cublas'])})\)", (room / "page.css").read_text("utf-8")
    )
    for theme in (LIGHT, DARK):
        assert theme.css() in ROOT


def test_colours_that_look_alike_are_found() -> None:
    """The check can fail: colours of an older report, nearly one."""
    assert _apart("#9f7fbf", "#bf7fbf", VIEWS["without red"]) < LEAST_APART
