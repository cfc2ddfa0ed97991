"""A headless Chromium that opens pages of the console, and what tests ask it."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from selenium.common.exceptions import (
    ElementClickInterceptedException,
    ElementNotInteractableException,
    StaleElementReferenceException,
)
from selenium.webdriver import Chrome, ChromeOptions
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webelement import WebElement

from tests.waiting import WAIT_SECONDS, wait_until

__all__ = ["Window", "chromium"]

WIDE, NARROW = (1280, 900), (390, 844)
_FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-dev-shm-usage",
    "--disable-gpu",
    "--force-color-profile=srgb",
    "--hide-scrollbars",
    "--force-prefers-reduced-motion",
)
"""Without motion: a button that moves while it is pressed, such as that of a dialog that opens, may not notice it."""


@contextmanager
def chromium() -> Iterator[Chrome]:
    """The browser; where there is none the test is skipped, and fails in CI."""
    programs = [shutil.which(name) for name in ("chromium", "chromium-browser", "google-chrome")]
    program, driver = next(filter(None, programs), None), shutil.which("chromedriver")
    if program is None or driver is None:
        missing = "no browser here: install Debian's packages chromium and chromium-driver"
        assert not os.environ.get("CI"), missing
        pytest.skip(missing)
    options = ChromeOptions()
    options.binary_location = program
    for flag in _FLAGS:
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    browser = Chrome(options=options, service=Service(driver))
    try:
        browser.set_script_timeout(WAIT_SECONDS)
        yield browser
    finally:
        browser.quit()


class Window:
    """The window of a browser on a console.

    Args:
        base: the address of the console.
    """

    def __init__(self, browser: Chrome, base: str) -> None:
        self.browser, self.base = browser, base

    def open(self, path: str, awaited: str) -> None:
        """Opens a page and waits for a text on it."""
        self.browser.get(f"{self.base}{path}")
        self.wait_text(awaited)

    def resize(self, size: tuple[int, int], *, dark: bool = False) -> None:
        """Sets the size of the page, and the colour scheme that the system asks for."""
        width, height = size
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
        scheme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": scheme})
        name = "body--dark" if dark else "body--light"
        wait_until(lambda: "body--" not in self.classes() or name in self.classes(), name)

    def classes(self) -> str:
        """The classes of the body, the theme among them."""
        return str(self.browser.execute_script("return document.body.className"))

    def text(self) -> str:
        """The text that is visible."""
        found: str = self.browser.execute_script("return document.body.innerText")
        return found

    def wait_text(self, *awaited: str) -> None:
        """Waits until all of these can be read; fails at once without a page, or when work of the console failed."""

        def is_well() -> bool:
            is_page = not str(self.browser.execute_script("return document.URL")).startswith("chrome-error:")
            return is_page and not self.browser.find_elements(By.CSS_SELECTOR, ".lf-work.lf-bad")

        def read() -> str:
            return f"{awaited} in: {self.text()}"

        wait_until(lambda: all(one in self.text() for one in awaited), read, running=is_well)

    def button(self, name: str) -> WebElement:
        """A button that can be pressed, by its text or its name for screen readers."""
        path = f"//button[(normalize-space(.)='{name}' or @aria-label='{name}') and not(@disabled)]"

        return self._found(path, lambda: f"button {name} in: {self.text()}", WebElement.is_displayed)

    def press(self, name: str) -> None:
        """Presses a button once it is there and nothing covers it, such as a dialog that is just closed."""
        self._do(lambda: self.button(name).click(), f"a press of {name}")

    def field(self, label: str) -> WebElement:
        """An input by its label."""
        path = f"//label[.//*[normalize-space(.)='{label}']]//*[self::input or self::textarea]"
        return self._found(path, lambda: f"field {label}", lambda one: True)

    def type(self, label: str, text: str) -> None:
        """Replaces the text of an input."""

        def replace() -> None:
            self.field(label).send_keys(Keys.CONTROL, "a")
            self.field(label).send_keys(text)

        self._do(replace, f"text in {label}")

    def _found(self, path: str, awaited: Callable[[], str], is_meant: Callable[[WebElement], bool]) -> WebElement:
        """The last element that is meant, once there is one; the page may replace elements between two looks."""
        found: list[WebElement] = []

        def look() -> bool:
            try:
                found[:] = [one for one in self.browser.find_elements(By.XPATH, path) if is_meant(one)]
            except StaleElementReferenceException:
                return False
            return bool(found)

        wait_until(look, awaited)
        return found[-1]

    def _do(self, act: Callable[[], None], awaited: str) -> None:
        """Acts on an element, again while the page replaces or covers it."""

        def is_done() -> bool:
            try:
                act()
            except (
                StaleElementReferenceException,
                ElementClickInterceptedException,
                ElementNotInteractableException,
            ):
                return False
            return True

        wait_until(is_done, awaited)

    def width(self) -> int:
        """How wide the page is; more than the window is a horizontal scroll."""
        found: int = self.browser.execute_script("return document.documentElement.scrollWidth")
        return found

    def errors(self) -> list[str]:
        """What the browser's console has said of errors since the last question."""
        return [str(one["message"]) for one in self._log("browser") if one["level"] in ("SEVERE", "WARNING")]

    def _log(self, kind: str) -> list[dict[str, object]]:
        found: list[dict[str, object]] = self.browser.get_log(kind)  # type: ignore[no-untyped-call]
        return found

    def foreign_hosts(self) -> set[str]:
        """Hosts other than the console's that pages have asked for anything since the last question."""
        messages = [json.loads(str(entry["message"]))["message"] for entry in self._log("performance")]
        urls = [one["params"]["request"]["url"] for one in messages if one["method"] == "Network.requestWillBeSent"]
        hosts = {urlsplit(url).netloc for url in urls if url.startswith(("http", "ws"))}
        return hosts - {urlsplit(self.base).netloc}

    def picture(self, file: Path) -> None:
        """Saves a picture of the page, down to its end or 1,100 pixels."""
        height = self.browser.execute_script("return Math.min(document.documentElement.scrollHeight, 1100)")
        metrics = {"width": WIDE[0], "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
        self.browser.save_screenshot(str(file))
