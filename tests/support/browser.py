"""A real browser for the tests of the page: Debian's Chromium, driven by Playwright; without it they are skipped."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import pytest

CHROMIUM = ("chromium", "chromium-browser", "google-chrome")
# Under load a browser's start takes its time; what is awaited is over as soon as it holds.
PATIENCE_MILLISECONDS = 60_000
# Chromium ends whatever is on its way, on loopback too, when the machine gets or loses an interface; other tests make some.
NETWORK_CHANGED = "net::ERR_NETWORK_CHANGED"


def why_no_browser() -> str | None:
    """Why no browser can be started here; None where one can."""
    if not any(map(shutil.which, CHROMIUM)):
        return "no Chromium on this machine: apt-get install --no-install-recommends chromium"
    try:
        import playwright.sync_api  # noqa: F401
    except ImportError:
        return "no playwright: pip install -e '.[dev]'"
    return None


@dataclass
class Seen:
    """What a page has done: what its console said, and the requests that it made."""

    console: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)

    def follow(self, page: Any) -> None:
        page.on("console", lambda message: self.console.append(f"{message.type}: {message.text}"))
        page.on("pageerror", lambda error: self.console.append(f"error: {error}"))
        page.on("request", lambda request: self.requests.append(request.url))

    @property
    def complaints(self) -> list[str]:
        return [line for line in self.console if line.startswith(("error", "warning")) and NETWORK_CHANGED not in line]

    def elsewhere(self, address: str) -> list[str]:
        """The requests to anywhere but the page's own server."""
        return [url for url in self.requests if urlsplit(url).netloc != urlsplit(address).netloc]


def playwright_error() -> type[Exception]:
    """What Playwright raises; it is imported only where there is a browser."""
    from playwright.sync_api import Error

    return Error


def go_to(page: Any, address: str) -> None:
    """Open an address, again where the machine's interfaces changed meanwhile."""
    for _attempt in range(20):
        try:
            page.goto(address)
        except playwright_error() as error:
            if NETWORK_CHANGED not in str(error):
                raise
        else:
            return
    raise AssertionError(f"{address} was interrupted twenty times by changes of this machine's network")


@contextlib.contextmanager
def chromium() -> Iterator[Any]:
    """A headless Chromium; skips the test where there is none."""
    why_not = why_no_browser()
    if why_not is not None:
        pytest.skip(why_not)
    from playwright.sync_api import sync_playwright

    executable = next(filter(None, map(shutil.which, CHROMIUM)))
    with sync_playwright() as playwright:
        # Its own sandbox needs rights that containers do not have; it is shown our own page alone.
        browser = playwright.chromium.launch(executable_path=executable, chromium_sandbox=False)
        try:
            yield browser
        finally:
            browser.close()
