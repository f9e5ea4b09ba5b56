"""The tile explorer in a browser: on a screen and a phone, light and dark, by mouse and by keyboard."""

from __future__ import annotations

import base64
import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from cli.runner import run

sys.path.append(str(Path(__file__).resolve().parents[2] / "docs/tools"))

from chromium import Screen, Window, window

# What they look at is made once
pytestmark = [pytest.mark.xdist_group("tiles that are seen"), pytest.mark.stress]

DESKTOP, PHONE = (1300, 900), (400, 800)
SCREENS = [Screen(*size, theme) for size in (DESKTOP, PHONE) for theme in ("light", "dark")]
ILLEGAL = "wn=96"


@pytest.fixture(scope="module")
def tab() -> Iterator[Window]:
    with window() as opened:
        yield opened


@pytest.fixture(scope="module")
def explorer(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The address of a page with a config that cannot be, the ladder and winners."""
    out = tmp_path_factory.mktemp("explorer") / "tiles.html"
    run("explain", "--config", ILLEGAL, "--out", out)
    return out.as_uri()


def text(tab: Window, selector: str) -> str:
    return str(tab.run("return document.querySelector(arguments[0]).textContent", selector))


def views(tab: Window) -> list[dict]:
    return json.loads(tab.run("return document.getElementById('data').textContent"))["views"]


def press(tab: Window, selector: str, *keys: str) -> None:
    from selenium.webdriver.common.by import By

    tab.driver.find_element(By.CSS_SELECTOR, selector).send_keys(*keys)


@pytest.mark.every(2)
@pytest.mark.parametrize("screen", SCREENS, ids=lambda s: f"{s.width}-{s.theme}")
def test_every_kernel_is_drawn_without_complaint(tab: Window, explorer: str, screen: Screen) -> None:
    tab.show(screen)
    tab.open(explorer)
    for number, _ in enumerate(views(tab)):
        if number:
            tab.run("document.getElementById('after').click()")
        assert tab.run("return document.documentElement.scrollWidth <= window.innerWidth"), number
    assert tab.run("return document.getElementById('after').disabled")
    assert tab.complaints() == []
    assert tab.foreign_requests(explorer) == []
    assert tab.faults_of_access() == []


@pytest.mark.every(2)
@pytest.mark.parametrize("screen", SCREENS, ids=lambda s: f"{s.width}-{s.theme}")
def test_a_rung_is_readable_to_all(tab: Window, explorer: str, screen: Screen) -> None:
    """axe looks at what is shown: a rung with stages, banks that conflict, the form for another config."""
    tab.show(screen)
    tab.open(f"{explorer}#view=5&group=1&step=3")
    tab.run("document.querySelector('details').open = true")
    assert tab.faults_of_access() == []


def test_what_is_shown_is_what_the_model_says(tab: Window, explorer: str) -> None:
    tab.show(SCREENS[0])
    tab.open(f"{explorer}#view=5&group=1&lane=9&warp=2&step=2")
    own = views(tab)[5]
    group = own["accesses"][1]
    assert f"{group['wavefronts'][0]} wavefronts" in text(tab, "#accesses .told")
    assert f"{group['conflicts'][0]} are bank conflicts" in text(tab, "#accesses .told")
    assert text(tab, "#timeline ol") == "".join(own["timeline"]["sentences"][2])
    warp = own["tile"]["warps"][2]
    assert f"rows {warp['m'] + own['tile']['rows'][9][0]}" in text(tab, "#tile .told")
    cells = tab.run("return document.querySelectorAll('#accesses .cell').length")
    assert cells == len({at for at in group["at"][0] if at >= 0})
    drawn = tab.run("return document.querySelectorAll('#counts > .scroll tbody tr').length")
    assert drawn == len(own["counts"]["rows"])


def test_a_config_that_cannot_be_is_told_with_its_rules(tab: Window, explorer: str) -> None:
    tab.open(explorer)
    assert "whole warp tiles fill the block" in text(tab, "#broken")
    assert not tab.run("return document.getElementById('grid').checkVisibility()")
    tab.run("document.getElementById('after').click()")
    assert not tab.run("return document.getElementById('broken').checkVisibility()")


def test_the_mouse_finds_lanes_and_blocks(tab: Window, explorer: str) -> None:
    from selenium.webdriver.common.action_chains import ActionChains
    from selenium.webdriver.common.by import By

    tab.show(SCREENS[0])
    tab.open(f"{explorer}#view=5&group=1")
    cell = tab.driver.find_elements(By.CSS_SELECTOR, "#accesses .cell")[13]
    lane = tab.run("return arguments[0].querySelector('title').textContent", cell)
    ActionChains(tab.driver).move_to_element(cell).perform()
    assert text(tab, "#accesses .lanes-told").startswith(f"L{lane[1:]}:")
    sheet = tab.driver.find_element(By.CSS_SELECTOR, "#grid .c-sheet")
    tab.run("arguments[0].scrollIntoView({block: 'center'})", sheet)
    ActionChains(tab.driver).move_to_element(sheet).click().perform()
    grid = views(tab)[5]["grid"]
    block = int(tab.run("return document.querySelector('#grid .block').value"))
    assert abs(grid["row"][block] - grid["tiles_m"] / 2) <= 1
    assert abs(grid["column"][block] - grid["tiles_n"] / 2) <= 1


def test_the_keyboard_goes_everywhere(tab: Window, explorer: str) -> None:
    from selenium.webdriver.common.keys import Keys

    tab.show(SCREENS[0])
    tab.open(f"{explorer}#view=5")
    press(tab, "body", "n")
    assert text(tab, "#view option:checked") == views(tab)[6]["name"]
    press(tab, "body", "p", "p")
    assert text(tab, "#view option:checked") == views(tab)[4]["name"]
    press(tab, "#timeline .step", Keys.ARROW_RIGHT)
    assert text(tab, "#timeline th.now") == "0"
    press(tab, "#grid .wave", Keys.ARROW_RIGHT)
    assert text(tab, "#grid .told").startswith("Wave 2 of")
    press(tab, "#tile .lane", Keys.ARROW_RIGHT)
    assert text(tab, "#tile .told").startswith("Lane 1 of warp 0")
    press(tab, "#tile input.warp", Keys.ARROW_UP)
    assert text(tab, "#accesses .which").startswith("warp 1, access 0")
    assert tab.run("return document.querySelector('#tile input.warp').max") == str(
        len(views(tab)[4]["tile"]["warps"]) - 1
    )
    press(tab, "#accesses .groups input", Keys.ARROW_DOWN)
    assert "group=1" in tab.run("return location.hash")


def test_waves_and_steps_play_by_themselves(tab: Window, explorer: str) -> None:
    tab.open(f"{explorer}#view=5")
    for section, shown in (("grid", "#grid .wave"), ("timeline", "#timeline .step")):
        tab.run(f"document.querySelector('#{section} .play').click()")
        tab.wait(f"return Number(document.querySelector('{shown}').value) > 1")
        tab.run(f"document.querySelector('#{section} .play').click()")
        assert text(tab, f"#{section} .play") == "Play"


def test_the_form_writes_a_command_that_runs(tab: Window, explorer: str, tmp_path: Path) -> None:
    import shlex

    tab.open(f"{explorer}#view=6")
    command = shlex.split(text(tab, "#parameters .command"))
    assert command[:2] == ["autotune", "explain"]
    done = run(*command[1:], cwd=tmp_path)
    assert "cannot be" not in done.stderr


def test_ncu_is_requested_for_what_is_counted(tab: Window, explorer: str) -> None:
    tab.open(f"{explorer}#view=6")
    own = views(tab)[6]
    command = text(tab, "#counts .ncu .command")
    assert all(metric["name"] in command for metric in own["ncu"])
    assert command.startswith("ncu ") and f"autotune time --shape {own['shape']} " in command
    assert tab.run("return document.querySelectorAll('#counts .ncu tbody tr').length") == len(own["ncu"])
    tab.open(f"{explorer}#view=1")
    assert not tab.run("return document.querySelector('#counts .ncu').checkVisibility()"), "no config runs it"


def test_drawings_are_saved_as_png_and_the_theme_changes(tab: Window, explorer: str) -> None:
    tab.show(SCREENS[0])
    tab.open(f"{explorer}#view=5")
    tab.run("HTMLAnchorElement.prototype.click = function () { window.saved = [this.download, this.href]; }")
    for section in ("grid", "tile", "accesses", "resources"):
        tab.run(f"window.saved = null; document.querySelector('#{section} .png').click()")
        name, url = tab.wait("return window.saved")
        assert name == f"{section}.png"
        assert base64.b64decode(url.partition("base64,")[2]).startswith(b"\x89PNG")
    paper = "return getComputedStyle(document.body).backgroundColor"
    before = tab.run(paper)
    press(tab, "#theme", " ")
    assert tab.run(paper) != before and text(tab, "#theme") == "Light"
    press(tab, "#theme", " ")  # it is remembered


def test_it_prints(tab: Window, explorer: str) -> None:
    tab.open(f"{explorer}#view=5")
    assert base64.b64decode(tab.pdf()).startswith(b"%PDF")
