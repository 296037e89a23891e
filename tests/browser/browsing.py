"""Opens the page in Debian's Chromium; console errors and requests to other hosts fail a test.

Its form without windows has the same engine, and needs a third of the CPU time.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import urlsplit

from playwright.sync_api import (
    Browser,
    BrowserContext,
    ConsoleMessage,
    Locator,
    Page,
    Request,
    Response,
    sync_playwright,
)

from tests import debian
from tests.integration.process import wait_until

WIDE: Final = (1600, 1000)
NARROW: Final = (400, 800)
_ALONE: Final = "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"
"""Only this machine can be resolved."""


@contextmanager
def chromium(program: str = "chromium-headless-shell") -> Iterator[Browser]:
    """The system's Chromium, installed if possible; `chromium` is the one that people use."""
    path = debian.require({program: program})[program]
    with sync_playwright() as playwright:
        # Tests may run as root in a container, where the sandbox does not work.
        browser = playwright.chromium.launch(
            executable_path=path, args=["--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu", _ALONE]
        )
        try:
            yield browser
        finally:
            browser.close()


@dataclass
class MonitoredContext:
    """A browser context that collects console messages, failed responses and requests to other hosts in `errors`."""

    context: BrowserContext
    errors: list[str] = field(default_factory=list)
    expected: set[str] = field(default_factory=set)
    """Parts of errors that a test provokes."""

    def unexpected(self) -> list[str]:
        return [error for error in self.errors if not any(part in error for part in self.expected)]

    def _console(self, message: ConsoleMessage) -> None:
        if message.type in {"error", "warning"}:
            self.errors.append(f"{message.type}: {message.text}")

    def _request(self, request: Request) -> None:
        if urlsplit(request.url).hostname not in {"127.0.0.1", None} and not request.url.startswith(("data:", "file:")):
            self.errors.append(f"request to another host: {request.url}")

    def _response(self, response: Response) -> None:
        if response.status >= 400:
            self.errors.append(f"{response.status}: {response.request.method} {urlsplit(response.url).path}")

    def _page(self, page: Page) -> None:
        page.on("pageerror", lambda error: self.errors.append(f"exception: {error}"))

    def install(self) -> None:
        self.context.on("console", self._console)
        self.context.on("request", self._request)
        self.context.on("response", self._response)
        self.context.on("page", self._page)


@contextmanager
def monitored(browser: Browser, url: str, size: tuple[int, int] = WIDE, **options: Any) -> Iterator[MonitoredContext]:
    """A context on the service at `url`; leaving it fails if there was an unexpected error."""
    context = browser.new_context(base_url=url, viewport={"width": size[0], "height": size[1]}, **options)
    context.set_default_timeout(60_000)
    monitor = MonitoredContext(context)
    monitor.install()
    try:
        yield monitor
        assert monitor.unexpected() == []
    finally:
        context.close()


def poll(page: Page) -> None:
    """What the page looks at every 15 s is due now. Its clock was installed before it was opened."""
    page.clock.fast_forward(15_000)


def open_map(page: Page, url: str, cells: Locator, count: int) -> None:
    """Open it until it has so many cells: the map may be a second old, and the page looks again every 15 s."""
    wait_until(lambda: bool(page.goto(url)) and cells.count() == count)


def overflows(page: Page) -> int:
    """The number of pixels by which the page is wider than the window."""
    width: int = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
    return width
