"""The header: the share of the cluster that is blocked. And links in causes."""

from __future__ import annotations

import time

import httpx
from playwright.sync_api import Browser, Page, expect

from tests.browser.browsing import monitored
from tests.browser.conftest import SecuredService, log_in
from tests.browser.test_list import open_live
from tests.integration.conftest import Start
from tests.integration.listeners import heartbeat, put, register
from tests.integration.process import wait_until


def test_the_share_counts_machines_and_is_live(page: Page, listener_client: httpx.Client) -> None:
    """One machine under two names counts once, and one that no listener reports not at all, as for the limit."""
    open_live(page)
    expect(page.locator("#share")).to_have_text("0 nodes blocked")
    register(listener_client, "jm-1")
    register(listener_client, "jm-2")
    heartbeat(listener_client, "jm-1", nodes=[f"n{number}" for number in range(1, 41)])
    heartbeat(listener_client, "jm-2", nodes=["n1.example.com", "n2.example.com"])
    # A report is no change of the list, which the page would show at once.
    wait_until(lambda: bool(page.reload()) and page.locator("#share").inner_text() == "0 of 40 nodes blocked (0.0 %)")
    page.get_by_text("Live", exact=True).wait_for()
    put(listener_client, "n1.example.com")
    put(listener_client, "elsewhere")
    expect(page.locator("#share")).to_have_text("1 of 40 nodes blocked (2.5 %)")
    page.goto("/page/history")
    expect(page.get_by_text("1 of 40 nodes blocked (2.5 %)")).to_be_visible()


def test_a_storm_of_changes_loads_the_share_once_in_a_second(page: Page, listener_client: httpx.Client) -> None:
    open_live(page)
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url) if "/page/share" in request.url else None)
    started = time.monotonic()
    for number in range(1, 61):
        put(listener_client, f"storm-{number}")
    expect(page.locator("#share")).to_have_text("60 nodes blocked")
    assert len(asked) <= time.monotonic() - started + 2


def test_the_share_is_shown_only_after_the_login(browser: Browser, secured: SecuredService) -> None:
    with monitored(browser, secured.service.url) as monitor:
        monitor.expected |= {"401"}
        page = monitor.context.new_page()
        page.goto("/login")
        assert page.locator("#share").count() == 0
        page.goto("/docs")
        assert page.locator("#share").count() == 0
        assert page.goto("/page/share") is not None
        assert page.url.endswith("/login?next=/page/share")
        log_in(page, secured.tokens["reader"])
        expect(page.locator("#share")).to_have_text("0 nodes blocked")


def test_urls_and_ticket_ids_in_causes_are_links(browser: Browser, start: Start) -> None:
    service = start(ticket_url="https://tickets.example.com/browse/{id}")
    cause = "OPS-12: disk, https://wiki.example.com/disk?a=1&b=2., javascript:alert(1)"
    with monitored(browser, service.url) as monitor, service.client() as client:
        put(client, "n1", cause=cause)
        page = monitor.context.new_page()
        for path in ("/", "/page/nodes/n1", "/page/nodes/n1/extend", "/page/nodes/n1/unblock"):
            page.goto(path)
            links = page.locator("main .cause a")
            expect(links.first).to_be_visible()
            assert {link.get_attribute("href") for link in links.all()} == {
                "https://tickets.example.com/browse/OPS-12",
                "https://wiki.example.com/disk?a=1&b=2",
            }
            assert {link.get_attribute("rel") for link in links.all()} == {"noreferrer"}
