"""Chromium without a screen, as tests of pages and their screenshots drive it."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
DRIVER = "chromedriver"
# CI runs as root in a container: neither Chromium's sandbox nor much shared memory is to be had there.
FLAGS = ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu", "--hide-scrollbars")
# SHA-256 of the rules that pages are held to: axe-core 4.12.1
AXE = "84494fec757e4710dc751c8d7a636e457f4532f08f85c86dc9070133fbff53bc"
OWN = ("data:", "blob:", "about:", "devtools:", "chrome:")  # addresses that lead nowhere else


@dataclass(frozen=True)
class Screen:
    """Width and height in CSS pixels, `light` or `dark`."""

    width: int
    height: int
    theme: str

    @property
    def is_phone(self) -> bool:
        return self.width < 640


def missing() -> str:
    """What has to be installed before pages can be seen, or "" if all is there."""
    if importlib.util.find_spec("selenium") is None or _axe() is None:
        return "selenium and axe are missing: make browser-test installs them"
    if not any(map(shutil.which, BROWSERS)) or not shutil.which(DRIVER):
        return "Chromium or its driver is missing: apt install chromium chromium-driver"
    return ""


def _axe() -> Path | None:
    """axe-core as one script. The package around it drives another browser, and is not loaded."""
    spec = importlib.util.find_spec("axe_playwright_python")
    folders = list(spec.submodule_search_locations or []) if spec else []
    return Path(folders[0]) / "axe.min.js" if folders else None


class Window:
    """One window of the browser."""

    def __init__(self, driver: Any) -> None:
        self.driver = driver

    def show(self, screen: Screen) -> None:
        """Be such a screen from here on."""
        self._command(
            "Emulation.setDeviceMetricsOverride",
            width=screen.width, height=screen.height, deviceScaleFactor=1, mobile=screen.is_phone,
        )  # fmt: skip
        feature = {"name": "prefers-color-scheme", "value": screen.theme}
        self._command("Emulation.setEmulatedMedia", features=[feature])

    def _command(self, name: str, **given: Any) -> Any:
        return self.driver.execute_cdp_cmd(name, given)

    def open(self, address: str) -> None:
        """Go to a page anew, and wait until it is drawn. What was said and asked before is forgotten."""
        self.driver.get("about:blank")
        for kind in ("browser", "performance"):
            self.driver.get_log(kind)
        self.driver.get(address)
        self.wait("return document.body.dataset.ready !== undefined")

    def run(self, script: str, *arguments: Any) -> Any:
        return self.driver.execute_script(script, *arguments)

    def wait(self, script: str, seconds: float = 20.0) -> Any:
        """What a script returns once that is true. Raises TimeoutException with the script."""
        from selenium.webdriver.support.ui import WebDriverWait

        waiting = WebDriverWait(self.driver, seconds, 0.05)
        return waiting.until(lambda driver: driver.execute_script(script), script)

    def complaints(self) -> list[str]:
        """What the console said since it was last asked."""
        return [entry["message"] for entry in self.driver.get_log("browser") if entry["level"] != "INFO"]

    def foreign_requests(self, own: str) -> list[str]:
        """Addresses asked for since this was last asked, but for those that begin with `own`."""
        messages = [json.loads(entry["message"])["message"] for entry in self.driver.get_log("performance")]
        sent = [m["params"]["request"]["url"] for m in messages if m["method"] == "Network.requestWillBeSent"]
        return [url for url in sent if not url.startswith((own, *OWN))]

    def faults_of_access(self) -> list[str]:
        """What axe finds serious or critical, with the first element of each."""
        path = _axe()
        assert path is not None
        script = path.read_bytes()
        assert hashlib.sha256(script).hexdigest() == AXE, f"{path} is another axe: pin it"
        self.run(script.decode())
        ask = "axe.run({resultTypes: ['violations']}).then((found) => arguments[0](found.violations))"
        found = self.driver.execute_async_script(ask)
        return [
            f"{fault['id']} ({fault['impact']}): {fault['help']}: {fault['nodes'][0]['html'][:200]}"
            for fault in found
            if fault["impact"] in ("serious", "critical")
        ]

    def pdf(self) -> str:
        """The print of the page, in Base64."""
        return str(self._command("Page.printToPDF")["data"])

    def picture(self, path: Path, element: str = "") -> None:
        """Of all that the screen shows, or of the element of this id."""
        if element:
            self.driver.find_element("id", element).screenshot(str(path))
        else:
            self.driver.save_screenshot(str(path))


@contextmanager
def window() -> Iterator[Window]:
    """A browser; raises nothing that `missing` does not foretell."""
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = next(path for path in map(shutil.which, BROWSERS) if path)
    for flag in FLAGS:
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(shutil.which(DRIVER)))
    try:
        yield Window(driver)
    finally:
        driver.quit()
