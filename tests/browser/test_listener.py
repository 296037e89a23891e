"""The pages of a listener and of a node: live updates, keyboard, screen reader, narrow screens and roles."""

from __future__ import annotations

from itertools import pairwise

import httpx
from playwright.sync_api import Browser, Page, expect

from tests.browser.browsing import monitored, poll
from tests.browser.conftest import SecuredService, log_in
from tests.integration.bodies import EVACUATE
from tests.integration.labels import report_labels
from tests.integration.listeners import heartbeat, put, register, unblock


def open_live(page: Page, path: str) -> None:
    """Open a page and wait until it is connected to the watch."""
    page.goto(path)
    page.get_by_text("Live", exact=True).wait_for()


def test_a_listener_is_live(page: Page, listener_client: httpx.Client) -> None:
    """What it reports appears without a reload, although heartbeats cause no change event."""
    register(listener_client, "etl")
    heartbeat(listener_client, "etl", taskManagers={"etl:1": "n1"}, runningTasks={"etl:1": 4}, refused={})
    page.clock.install()
    open_live(page, "/page/listeners/etl")
    page.evaluate("window.mark = 'not reloaded'")
    row = page.get_by_role("row", name="n1")
    expect(row).to_contain_text("free")
    revision = put(listener_client, "n1", action=EVACUATE)
    expect(row).to_contain_text("not applied yet")
    expect(page.locator("#announcement")).to_have_text("n1 was blocked.")
    heartbeat(listener_client, "etl", ackedRevision=revision)
    poll(page)
    expect(row).to_contain_text("evacuating")
    heartbeat(listener_client, "etl", runningTasks={})
    expect(row.locator("[data-label='Running tasks']")).to_have_text("unknown")
    heartbeat(listener_client, "etl", runningTasks={"etl:1": 0})
    expect(row).to_contain_text("empty")
    listener_client.delete("/listeners/etl").raise_for_status()
    unblock(listener_client, "n1")
    expect(page.get_by_role("alert")).to_have_text("No listener etl is registered.")
    assert page.evaluate("window.mark") == "not reloaded"


def test_a_node_is_live_and_keeps_the_focus(page: Page, listener_client: httpx.Client) -> None:
    report_labels(listener_client, {"n1": {"rack": "r7"}}, "racks")
    register(listener_client, "etl")
    heartbeat(listener_client, "etl", taskManagers={"etl:1": "n1"}, runningTasks={"etl:1": 4})
    open_live(page, "/page/nodes/n1")
    page.evaluate("window.mark = 'not reloaded'")
    expect(page.get_by_text("rack=r7")).to_be_visible()
    job = page.get_by_role("region", name="Jobs that run here").get_by_role("link", name="etl")
    job.focus()
    revision = put(listener_client, "n1", action=EVACUATE, cause="Hot machine")
    expect(page.locator(".facts").get_by_text("Hot machine")).to_be_visible()
    expect(page.get_by_role("link", name="Unblock")).to_be_visible()
    heartbeat(listener_client, "etl", ackedRevision=revision, refused={"n1": "Its last host."})
    expect(page.get_by_role("region", name="Applied by").get_by_text("Its last host.")).to_be_visible()
    expect(job).to_be_focused()
    unblock(listener_client, "n1")
    expect(page.get_by_text("The node is not blocked.")).to_be_visible()
    assert page.evaluate("window.mark") == "not reloaded"
    page.keyboard.press("Enter")
    page.wait_for_url("/page/listeners/etl")


def test_they_are_read_in_order_by_a_screen_reader(page: Page, listener_client: httpx.Client) -> None:
    """Headings go down one level at a time, regions and the chart have names, and each cell has a header."""
    register(listener_client, "etl")
    put(listener_client, "n1", cause="Fan")
    evidence = {"n1": {"kind": "slow", "reason": "Slow."}}
    heartbeat(listener_client, "etl", taskManagers={"etl:1": "n1"}, refused={"n1": "no"}, evidence=evidence)
    for path, regions in (
        ("/page/listeners/etl", {"What it is", "What is in force there", "Where its tasks run"}),
        ("/page/nodes/n1", {"Block", "Machine", "Claims", "Evidence", "Jobs that run here", "Applied by", "History"}),
    ):
        page.goto(path)
        levels = page.evaluate("[...document.querySelectorAll('h1, h2, h3')].map((each) => Number(each.tagName[1]))")
        assert levels[0] == 1
        assert all(after - before <= 1 for before, after in pairwise(levels))
        for region in regions:
            expect(page.get_by_role("region", name=region, exact=True)).to_be_visible()
        headers = page.evaluate(
            """[...document.querySelectorAll("table.cards")].every((table) => [...table.tBodies[0].rows].every(
            (row) => row.cells.length === table.tHead.rows[0].cells.length && row.querySelector("th[scope=row]")))"""
        )
        assert headers, path
    expect(page.get_by_role("img", name="Blocks in the last 30 days")).to_be_visible()


def test_a_reader_sees_both_without_buttons(browser: Browser, secured: SecuredService) -> None:
    evil = "<img src=x onerror=window.hit=1>'\""
    put(secured.admin, "n1", cause=evil)
    register(secured.admin, "etl")
    heartbeat(secured.admin, "etl", taskManagers={"etl:1": "n1"}, refused={"n1": evil})
    with monitored(browser, secured.service.url) as monitor:
        page = monitor.context.new_page()
        log_in(page, secured.tokens["reader"], "/page/listeners/etl")
        expect(page.get_by_text("admin", exact=True)).to_be_visible()
        for path in ("/page/listeners/etl", "/page/nodes/n1"):
            page.goto(path)
            expect(page.locator("main")).to_contain_text(evil)
            assert page.locator("main img, main button, main .button").count() == 0
        assert page.evaluate("window.hit") is None
