"""Takes the pictures of docs/pages.md: `python docs/tools/screenshots.py DATABASE TABLE [FOLDER]`.

DATABASE is one that a search has left, TABLE a folder exported from it: docs/pictures shows a replay
of the recorded suite. Needs what `make browser-test` installs.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from chromium import Screen, Window, missing, window

EXPLORED = "#view=8&step=2"  # a rung of the ladder with copies under way
MOST_BYTES = 150_000  # of a picture: they stay in the repository for good
FOLDER = Path(__file__).parents[1] / "pictures"


@dataclass(frozen=True)
class Picture:
    """A page at an address on a screen, or one element of it."""

    name: str
    address: str
    screen: Screen
    element: str = ""  # its id


def pictures(shape: int, trial: int) -> list[Picture]:
    """Those of the docs, of one shape and a trial of it."""
    return [
        Picture("searches", "#/", Screen(1180, 1000, "light")),
        Picture("shape", f"#/shape/{shape}", Screen(1180, 1080, "light")),
        Picture("parallel", f"#/shape/{shape}", Screen(680, 800, "light"), "parallel"),
        Picture("importance", f"#/shape/{shape}", Screen(1180, 900, "light"), "importance-card"),
        Picture("trial", f"#/shape/{shape}/trial/{trial}", Screen(1180, 820, "dark")),
        Picture("table", "#/table", Screen(1180, 860, "light")),
        Picture("phone", f"#/shape/{shape}", Screen(400, 1000, "dark")),
    ]


def take(opened: Window, picture: Picture, report: Path, folder: Path) -> None:
    """Raises SystemExit where the picture is too large."""
    opened.show(picture.screen)
    opened.open(f"{report.as_uri()}{picture.address}")
    opened.run("window.autotune?.redrawCharts?.({all: true})")
    path = folder / f"{picture.name}.png"
    opened.picture(path, picture.element)
    size = path.stat().st_size
    print(f"{path}: {size / 1000:.0f} KB")
    if size > MOST_BYTES:
        raise SystemExit(f"{path} is larger than {MOST_BYTES / 1000:.0f} KB: show less on {picture.screen}")


def a_trial(opened: Window, report: Path) -> tuple[int, int]:
    """The first shape, and the second of its finalists."""
    opened.open(report.as_uri())
    shape = opened.run("return autotune.overview.studies[0].id")
    opened.open(f"{report.as_uri()}#/shape/{shape}")
    return shape, opened.run("return autotune.studyOf(autotune.place.id).document.finalists[1].trial")


def main() -> None:
    if why := missing():
        raise SystemExit(why)
    database, table = sys.argv[1:3]
    folder = Path(sys.argv[3]) if len(sys.argv) > 3 else FOLDER
    folder.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as beside, window() as opened:
        report = Path(beside) / "report.html"
        command = ["report", "--db", database, "--table", table, "--out", str(report)]
        subprocess.run([sys.executable, "-m", "autotune", *command], check=True)
        shape, trial = a_trial(opened, report)
        for picture in pictures(shape, trial):
            take(opened, picture, report, folder)
        tiles = Path(beside) / "tiles.html"
        subprocess.run([sys.executable, "-m", "autotune", "explain", "--out", str(tiles)], check=True)
        take(opened, Picture("tiles", EXPLORED, Screen(1180, 1180, "light")), tiles, folder)


if __name__ == "__main__":
    main()
