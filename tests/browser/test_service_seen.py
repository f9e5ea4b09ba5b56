"""The page of a service in a browser: it shows what stands, follows what comes, and names no other origin."""

from __future__ import annotations

from pathlib import Path

import pytest
from chromium import Screen, Window
from cli.test_serve_command import serving

from autotune.facts.gemm import Gemm
from autotune.store import ChannelKey, Store, Usage, Wanted

DESKTOP, PHONE = Screen(1300, 900, "light"), Screen(400, 800, "dark")
TEXT = "return document.querySelector('main').innerText"


@pytest.mark.every(2)
@pytest.mark.parametrize("screen", [DESKTOP, PHONE], ids=["desktop", "phone"])
def test_the_page_shows_the_queue_workers_gpus_and_tables(
    browser: Window, screen: Screen, tmp_path: Path
) -> None:
    name = "NVIDIA H200"
    with Store.open(tmp_path / "a.db") as store, serving("--db", tmp_path / "a.db") as (_, address):
        kept, queue = store.artifacts(), store.queue()
        queue.submit([Wanted(Gemm(64, 96, 128), name, 5.0, 2.0)])
        kept.add_usage([Usage(name, "64", "exact", 1234, 9e6), Usage(name, "96", "modelled", 5, 0.0)])
        facts = {"num_shapes": 7, "gain": 1.25, "verified": "kernels"}
        kept.publish("ab" * 32, ChannelKey(name, (9, 0), "580.1", "13.1"), (b"a", b"b", b"c"), facts, "me")
        browser.show(screen)
        with queue.join("gpu", name) as worker:
            worker.tell("tuning <b>64</b>")
            browser.open(f"{address}/service")
            browser.wait("return document.querySelectorAll('tbody tr').length >= 4")
            message = browser.run(TEXT)
            for text in (
                "64x96x128",
                "tuning <b>64</b>",
                "1,234",
                "9.000 s",
                "abababababab",
                "1.250x",
                "current",
            ):
                assert text in message or screen is PHONE, text
            assert not browser.faults_of_access() and not browser.complaints()
            assert not browser.foreign_requests(address)
        queue.submit([Wanted(Gemm(32, 32, 32), name, 1.0, 1.0)])
        browser.wait("return document.querySelector('main').innerText.includes('32x32x32')")
