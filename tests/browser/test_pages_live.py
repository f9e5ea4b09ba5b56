"""Pages that follow a search: they change while they are looked at, and keep what their reader does."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from chromium import Screen, Window
from cli.runner import REPOSITORY, run

from .many_trials import RECORDED

pytestmark = pytest.mark.xdist_group("pages that follow a search")  # what they look at is made once

DESKTOP, PHONE = Screen(1300, 900, "light"), Screen(400, 800, "dark")
TRIALS = "return autotune.overview.studies[0].num_trials"
LONGEST_S = 20.0  # that a page takes to follow
TEXT = """document.querySelectorAll("main details").forEach((one) => { one.open = true });
return document.querySelector("main").innerText"""


@pytest.fixture(scope="module")
def followed(table: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, str]]:
    """A database, and the address of a server of its pages."""
    db = tmp_path_factory.mktemp("followed") / "a.db"
    search(db, 40)
    options = ["--db", str(db), "--port", "0", "--table", str(table)]
    command = [sys.executable, "-m", "autotune", "view", *options]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env=os.environ | {"PYTHONPATH": str(REPOSITORY)}
    ) as served:
        assert served.stdout
        address = next(word for word in served.stdout.readline().split() if word.startswith("http"))
        yield db, address
        served.kill()


def search(db: Path, trials: int) -> None:
    run(
        "search",
        "--gpu",
        f"replay:{RECORDED}",
        "--shape",
        "1024",
        "--trials",
        str(trials),
        "--db",
        db,
        "--quiet",
    )


@pytest.mark.stress
@pytest.mark.every(2)
@pytest.mark.parametrize("screen", [DESKTOP, PHONE], ids=["desktop", "phone"])
def test_a_page_follows_a_search(browser: Window, followed: tuple[Path, str], screen: Screen) -> None:
    db, address = followed
    browser.show(screen)
    browser.open(address)
    shape = browser.run("return autotune.overview.studies[0].id")
    browser.open(f"{address}#/shape/{shape}")
    browser.wait("return document.getElementById('following').textContent === 'following a search'")
    before = browser.run(TRIALS)
    browser.run("window.mark = 'the same page'; document.getElementById('failures').open = true")
    browser.run("document.querySelector('#failures summary').focus()")
    search(db, before + 25)
    browser.wait(f"return autotune.studyOf(autotune.place.id).rows.length === {before + 25}")
    numbers = browser.run("return autotune.studyOf(autotune.place.id).rows.map((row) => row.number)")
    assert numbers == list(range(1, before + 26))
    browser.wait(f"return document.querySelector('.tiles').innerText.includes('{before + 25}')")
    kept = "return [window.mark, document.getElementById('failures').open, document.activeElement.tagName]"
    assert browser.run(kept) == ["the same page", True, "SUMMARY"]
    assert browser.complaints() == []
    assert browser.foreign_requests(address) == []
    assert browser.faults_of_access() == []


@pytest.mark.stress
def test_a_shape_that_is_new_comes_to_the_page(browser: Window, followed: tuple[Path, str]) -> None:
    db, address = followed
    browser.show(DESKTOP)
    browser.open(address)
    before = browser.run("return document.querySelectorAll('main tbody tr').length")
    where = ("--gpu", f"replay:{RECORDED}", "--shape", "512x512x16384", "--db", db)
    run("search", *where, "--trials", "30", "--quiet")
    browser.wait(f"return document.querySelectorAll('main tbody tr').length === {before + 1}")
    assert browser.complaints() == []


@pytest.mark.stress
def test_pages_and_the_file_show_the_same(browser: Window, followed: tuple[Path, str], table: Path) -> None:
    """A page shows what the file shows, also where it was opened before the last trials were made."""
    db, address = followed
    report = db.with_name("report.html")
    browser.show(DESKTOP)
    for page in ("shape/1", "", "table"):
        browser.open(f"{address}#/{page}")
        if page == "shape/1":
            search(db, browser.run(TRIALS) + 25)
            run("report", "--db", db, "--table", table, "--out", report)
        message = text_of(browser, f"{report.as_uri()}#/{page}")
        assert len(message) > 400
        until = time.monotonic() + LONGEST_S
        while (followed_so_far := browser.run(TEXT)) != message and time.monotonic() < until:
            time.sleep(0.1)
        assert followed_so_far == message


def text_of(browser: Window, address: str) -> str:
    """What another page says; the one that is open stays open."""
    here = browser.driver.current_window_handle
    browser.driver.switch_to.new_window("tab")
    browser.show(DESKTOP)
    browser.open(address)
    message = str(browser.run(TEXT))
    browser.driver.close()
    browser.driver.switch_to.window(here)
    return message


@pytest.mark.stress
def test_a_page_says_that_it_has_lost_its_server(browser: Window, followed: tuple[Path, str]) -> None:
    db, address = followed
    browser.show(DESKTOP)
    browser.open(address)
    db.rename(db.with_name("moved.db"))
    try:
        browser.wait("return document.getElementById('following').textContent.startsWith('not followed')")
    finally:
        db.with_name("moved.db").rename(db)
    browser.complaints()  # of the answer 503
    browser.wait("return !document.getElementById('following').textContent.startsWith('not followed')")
