"""In dark and light, narrow and wide: everything is readable and nothing overflows."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest
from playwright.sync_api import Browser, expect

from tests.browser.browsing import NARROW, WIDE, monitored, overflows
from tests.integration.bodies import EVACUATE, block, later
from tests.integration.listeners import heartbeat, register
from tests.integration.process import ServiceProcess

LONG = "a" * 253
PAGES = ("/", "/page/block", "/page/history", "/page/listeners", f"/page/listeners/{'l' * 253}", "/page/evidence",
    f"/page/nodes/{LONG}", f"/page/nodes/{LONG}/extend", f"/page/nodes/{LONG}/unblock", "/page/nodes/n1",
    "/page/map", "/page/map?wall", f"/page/map/hosts?group=name%3D{LONG}")  # fmt: skip
CONTRAST = Path(__file__).with_name("contrast.js").read_text()


def create_long_content(listener_client: httpx.Client) -> None:
    """Nodes, listeners and causes of maximum length."""
    register(listener_client, "l" * 253)
    said = {LONG: {"kind": "slow", "reason": "r" * 300}}
    heartbeat(listener_client, "l" * 253, taskManagers={"t" * 253: LONG}, refused={LONG: "no" * 150}, evidence=said)
    listener_client.put(f"/blocklist/nodes/{LONG}", json=block(action=EVACUATE, cause="c" * 1024, endTimestamp=later()))
    listener_client.put("/blocklist/nodes/n1", json=block(cause="Hot machine"))


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", [NARROW, WIDE], ids=["400", "1600"])
def test_every_page_is_readable(
    browser: Browser,
    listener_client: httpx.Client,
    listener_service: ServiceProcess,
    size: tuple[int, int],
    scheme: str,
) -> None:
    """No page is wider than the window, and all text has the contrast required by WCAG 2 AA."""
    create_long_content(listener_client)
    with monitored(browser, listener_service.url, size, color_scheme=scheme) as monitor:
        page = monitor.context.new_page()
        for path in PAGES:
            page.goto(path)
            expect(page.locator("h1")).to_be_visible()
            assert overflows(page) <= 0, path
            assert page.evaluate(CONTRAST) == [], path
        page.goto("/page/block")
        page.get_by_label("Nodes").fill(f"n1 {LONG} {'b' * 253}")
        page.get_by_label("Reason").fill("c" * 1024)
        page.get_by_role("button", name="Preview").click()
        expect(page.get_by_role("heading", name="Block 3 nodes?")).to_be_visible()
        assert overflows(page) <= 0
        assert page.evaluate(CONTRAST) == []
        dark = page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(21, 24, 28)"
        assert dark == (scheme == "dark")


def test_every_control_has_a_name(
    browser: Browser, listener_client: httpx.Client, listener_service: ServiceProcess
) -> None:
    create_long_content(listener_client)
    with monitored(browser, listener_service.url) as monitor:
        page = monitor.context.new_page()
        for path in PAGES:
            page.goto(path)
            unnamed = page.evaluate(
                """[...document.querySelectorAll("input:not([type=hidden]), select, textarea")]
                .filter((field) => !field.labels?.length && !field.ariaLabel).map((field) => field.outerHTML)"""
            )
            assert unnamed == [], path
            empty = (
                "[...document.querySelectorAll('a, button')].filter((element) => !element.textContent.trim()).length"
            )
            assert page.evaluate(empty) == 0
            assert page.locator("h1").count() == 1
            assert page.locator("main").count() == 1
