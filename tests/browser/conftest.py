"""The fixtures of the integration tests, and a Chromium.

One browser for all tests of a folder: while it is open, its event loop occupies the thread, so that no other loop can
run there.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass

import httpx
import pytest
from playwright.sync_api import Browser, Page, expect

from tests.browser.browsing import MonitoredContext, chromium, monitored
from tests.integration.conftest import (
    databases,
    fresh,
    fresh_client,
    listener_client,
    listener_service,
    migrated,
    start,
)
from tests.integration.databases import Databases
from tests.integration.process import ServiceProcess

expect.set_options(timeout=30_000)  # the machine may be busy

__all__ = ["databases", "fresh", "fresh_client", "listener_client", "listener_service", "migrated", "start"]


@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    with chromium() as browser:
        yield browser


@pytest.fixture
def window(browser: Browser, listener_service: ServiceProcess) -> Iterator[MonitoredContext]:
    """A wide browser window on the service of `listener_client`."""
    with monitored(browser, listener_service.url) as monitor:
        yield monitor


@pytest.fixture
def page(window: MonitoredContext) -> Page:
    return window.context.new_page()


@pytest.fixture(params=[True, False], ids=["with scripts", "without scripts"])
def either(request: pytest.FixtureRequest, browser: Browser, listener_service: ServiceProcess) -> Iterator[Page]:
    """A page with JavaScript, and one without."""
    with monitored(browser, listener_service.url, java_script_enabled=request.param) as monitor:
        monitor.expected |= {"400", "409"}
        yield monitor.context.new_page()


@dataclass
class SecuredService:
    """A service that requires tokens, with one token for each role."""

    service: ServiceProcess
    admin: httpx.Client
    tokens: dict[str, str]


@pytest.fixture(scope="package")
def secured_service(tmp_path_factory: pytest.TempPathFactory, databases: Databases) -> Iterator[SecuredService]:
    folder = tmp_path_factory.mktemp("secured")
    file = folder / "admin.token"
    settings = {**databases.settings(folder), "admin_token_file": str(file), "max_blocked": "3"}
    with ExitStack() as stack:
        service = stack.enter_context(ServiceProcess(folder, **settings, auth="tokens"))
        admin = stack.enter_context(service.client())
        admin.headers["Authorization"] = f"Bearer {file.read_text().strip()}"
        tokens = {}
        for role in ("reader", "operator", "admin"):
            made = admin.post("/tokens", json={"name": f"the-{role}", "role": role})
            assert made.status_code == 201, made.text
            tokens[role] = made.json()["token"]
        yield SecuredService(service, admin, tokens)


@pytest.fixture
def secured(secured_service: SecuredService) -> Iterator[SecuredService]:
    """A separate service with tokens of `reader`, `operator` and `admin`, without listeners or blocked nodes."""
    yield secured_service
    admin = secured_service.admin
    for listener in admin.get("/listeners").json()["listeners"]:
        admin.delete(f"/listeners/{listener['id']}").raise_for_status()
    for node in admin.get("/blocklist").json():
        admin.delete(f"/blocklist/nodes/{node}").raise_for_status()


def log_in(page: Page, token: str, path: str = "/") -> None:
    """Log in and open `path`."""
    page.goto(path)
    page.get_by_label("Token").fill(token)
    page.get_by_role("button", name="Log in").click()
    page.wait_for_url(path)
