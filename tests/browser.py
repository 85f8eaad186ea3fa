"""A page in Debian's Chromium, by what people find on it: words, labels, keys."""

import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import resources
from pathlib import Path
from typing import Any, TypeVar, cast

from selenium.common.exceptions import ElementClickInterceptedException, StaleElementReferenceException
from selenium.webdriver import Chrome, ChromeOptions, ChromeService
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webelement import WebElement

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
PATIENCE = 20.0  # seconds for what a page should show at once
OPTIONS = """
    headless=new no-sandbox disable-gpu disable-quic no-first-run disable-background-networking disable-component-update
    disable-sync disable-dev-shm-usage hide-scrollbars lang=en use-fake-device-for-media-stream
    use-fake-ui-for-media-stream
"""
T = TypeVar("T")


@contextmanager
def serving(place: Path, *options: str) -> Iterator[Callable[[], str]]:
    """Serve a place, and yield what waits for its address."""
    command = [sys.executable, "-m", "edbl", "serve", str(place), "--port", "0", *options]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"}
    ) as process:

        def address() -> str:
            assert process.stdout is not None
            told = process.stdout.readline()
            found = re.search(r"http://\S+(?=/;)", told)
            assert found, told
            return found[0]

        try:
            yield address
        finally:
            process.terminate()
            process.communicate(timeout=30)


@contextmanager
def chromium(profile: Path) -> Iterator[Chrome]:
    options = ChromeOptions()
    options.binary_location = str(CHROMIUM)
    for option in [*OPTIONS.split(), f"user-data-dir={profile}"]:
        options.add_argument(f"--{option}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = Chrome(options, ChromeService(str(DRIVER)))
    try:
        driver.execute_cdp_cmd("Emulation.setEmulatedMedia", media(dark=False))
        yield driver
    finally:
        driver.quit()


def media(dark: bool) -> dict[str, Any]:
    """Return a colour scheme, and that nothing should move."""
    wanted = {"prefers-color-scheme": "dark" if dark else "light", "prefers-reduced-motion": "reduce"}
    return {"features": [{"name": name, "value": value} for name, value in wanted.items()]}


class Page:
    """The page of a server, as somebody uses it."""

    def __init__(self, driver: Chrome, url: str) -> None:
        self.driver, self.url = driver, url

    def open(self, address: str = "") -> None:
        self.driver.get("about:blank")
        self.driver.get(f"{self.url}/{address}")

    def look(self, width: int, dark: bool, height: int = 0) -> None:
        """Show it in a window of this width, in one of two colours."""
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", media(dark))
        phone = width < 600
        size = {"width": width, "height": height or (844 if phone else 800), "deviceScaleFactor": 1, "mobile": phone}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)

    def all(self, selector: str, within: WebElement | None = None) -> list[WebElement]:
        return (within or self.driver).find_elements(By.CSS_SELECTOR, selector)

    def texts(self, selector: str) -> list[str]:
        return [element.text for element in self.all(selector) if element.is_displayed()]

    def until(self, what: Callable[[], T]) -> T:
        """Wait for something to be there or to be so, and return it."""
        end = time.monotonic() + PATIENCE
        while True:
            try:
                found = what()
            except (StaleElementReferenceException, ElementClickInterceptedException, IndexError):
                found = None
            if found:
                return found
            if time.monotonic() > end:
                raise AssertionError(f"this did not come:\n{self.driver.find_element(By.TAG_NAME, 'body').text}")
            time.sleep(0.03)

    def says(self, text: str, selector: str = "body") -> None:
        """Wait until some text is to be seen."""
        self.until(lambda: any(text in one for one in self.texts(selector)))

    def button(self, text: str, within: WebElement | None = None) -> WebElement:
        """Wait for a button, a link, the head of what can be opened, or a choice, by its whole text or its label."""
        same = f"normalize-space()={quoted(text)} or @aria-label={quoted(text)}"
        kinds = [f".//*[self::button or self::a or self::summary][{same}]", f".//label[{same}]"]

        def found() -> WebElement | None:
            every = [one for kind in kinds for one in (within or self.driver).find_elements(By.XPATH, kind)]
            return next((one for one in every if one.is_displayed()), None)

        return cast(WebElement, self.until(found))

    def click(self, text: str, within: WebElement | None = None) -> None:

        def done() -> bool:  # again, where it was drawn anew meanwhile
            self.button(text, within).click()
            return True

        self.until(done)

    def give(self, photos: Sequence[Path]) -> None:
        """Choose photos, and wait until the first batch holds them and is read."""
        before = len(self.all(".batch"))
        self.all("#files")[0].send_keys("\n".join(str(path) for path in photos))
        self.until(lambda: len(self.all(".batch")) > before)
        self.until(lambda: not self.all(".batch:first-child .waiting") and not self.all(".batch:first-child progress"))

    def focused(self) -> WebElement:
        return self.driver.switch_to.active_element

    def press(self, *keys: str) -> None:
        self.focused().send_keys(*keys)

    def tab_to(self, text: str, kind: str = "") -> WebElement:
        """Press the tabulator until something of this text or label, or that begins with this line, has the focus."""
        for _ in range(80):
            element = self.focused()
            told = [element.text.partition("\n")[0], element.get_attribute("aria-label")]
            if text in told and kind in ("", element.tag_name):
                return element
            self.press(Keys.TAB)
        raise AssertionError(f"the tabulator does not lead to {text!r}")

    def violations(self) -> list[str]:
        """Return what axe finds wrong."""
        if not self.driver.execute_script("return 'axe' in window"):
            script = resources.files("axe_core_python").joinpath("axe.min.js").read_text("utf-8")
            self.driver.execute_script(script)
        told = self.driver.execute_async_script("axe.run().then(arguments[arguments.length - 1])")
        return [f"{one['id']}: {[node['html'] for node in one['nodes']]}" for one in told["violations"]]

    def complaints(self) -> list[str]:
        """Return what the browser's log has against the page, since it was asked last."""
        kinds = ("security", "javascript", "console-api", "violation", "worker", "deprecation")
        entries = cast(list[dict[str, Any]], self.driver.get_log("browser"))  # type: ignore[no-untyped-call]
        told = [one for one in entries if one["source"] in kinds or "Content Security" in one["message"]]
        return [json.dumps(one) for one in told]


def quoted(text: str) -> str:
    """Return a text as XPath writes it."""
    return f'"{text}"' if '"' not in text else f"'{text}'"
