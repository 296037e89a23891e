"""The list: live updates, filters in the URL, escaping."""

from __future__ import annotations

import re

import httpx
from playwright.sync_api import Browser, Page, expect

from tests.browser.browsing import monitored, overflows
from tests.integration.bodies import EVACUATE, block, later
from tests.integration.conftest import Start
from tests.integration.listeners import heartbeat, put, register, unblock
from tests.integration.process import ServiceProcess


def open_live(page: Page, path: str = "/") -> None:
    """Open the list and wait until it is connected to the watch."""
    page.goto(path)
    page.get_by_text("Live", exact=True).wait_for()


def test_it_is_live(page: Page, listener_client: httpx.Client) -> None:
    """Changes by others appear without a reload, and are announced to screen readers."""
    open_live(page)
    page.evaluate("window.mark = 'not reloaded'")
    put(listener_client, "n1", endTimestamp=later(7200))
    cells = page.locator("#node-n1")
    expect(cells).to_contain_text("no new tasks")
    expect(cells).to_contain_text("1 h 59 min left")
    expect(page.locator("#announcement")).to_have_text("n1 was blocked.")
    put(listener_client, "n1", action=EVACUATE, cause="Hot machine")
    expect(cells).to_contain_text("disk · Hot machine".replace(" · ", ""))
    expect(cells).to_contain_text("evacuate")
    owner = {"action": "MARK_BLOCKED", "cause": "Broken DIMM"}
    listener_client.put("/blocklist/nodes/n1/claims/hardware-team", json=owner).raise_for_status()
    expect(cells.locator("[data-label=Owners]")).to_have_text("anonymous, hardware-team")
    page.set_viewport_size({"width": 390, "height": 800})
    expect(cells.get_by_text("hardware-team")).to_be_visible()
    assert overflows(page) == 0
    unblock(listener_client, "n1")
    expect(page.get_by_text("No node is blocked.")).to_be_visible()
    assert page.evaluate("window.mark") == "not reloaded"


def test_acknowledgements_and_task_managers_are_updated(page: Page, listener_client: httpx.Client) -> None:
    """Although neither causes a change event."""
    register(listener_client, "jm-1")
    register(listener_client, "jm-2")
    heartbeat(listener_client, "jm-1", taskManagers={"app:1": "n1"})
    revision = put(listener_client, "n1", action=EVACUATE)
    open_live(page)
    cells = page.locator("#node-n1")
    expect(cells).to_contain_text("1, tasks unknown")
    heartbeat(listener_client, "jm-1", runningTasks={"app:1": 4})
    expect(cells).to_contain_text("1, 4 tasks still running")
    expect(cells).to_contain_text("0/2")
    heartbeat(listener_client, "jm-1", ackedRevision=revision)
    expect(cells).to_contain_text("1/2")
    heartbeat(listener_client, "jm-2", ackedRevision=revision, taskManagers={})
    heartbeat(listener_client, "jm-1", runningTasks={"app:1": 0})
    expect(cells).to_contain_text("2/2")
    expect(cells).not_to_contain_text(re.compile("still running|unknown"))


def test_the_time_left_counts_down(page: Page, listener_client: httpx.Client) -> None:
    put(listener_client, "n1", endTimestamp=later(3000))
    open_live(page)
    cell = page.locator("#node-n1 time[data-left]")
    before = cell.inner_text()
    assert re.fullmatch(r"(49 min 5\d s|50 min) left", before)
    expect(cell).not_to_have_text(before)


def test_the_filter_is_in_the_address(page: Page, listener_client: httpx.Client) -> None:
    """Typing filters the list and changes the URL. Opening that URL shows the same filtered list, with live updates."""
    put(listener_client, "n1", cause="Disk full")
    put(listener_client, "n2", cause="Hot machine")
    put(listener_client, "n3", cause="DISK errors", action=EVACUATE)
    open_live(page)
    page.get_by_label("Node or cause").fill("disk")
    expect(page.locator("tbody tr")).to_have_count(2)
    page.get_by_label("Action").select_option("evacuate")
    expect(page.locator("tbody tr")).to_have_count(1)
    expect(page).to_have_url(re.compile(r"q=disk&action=evacuate"))
    address = page.url
    page.goto("about:blank")
    open_live(page, address)
    expect(page.locator("tbody tr")).to_have_count(1)
    expect(page.get_by_label("Node or cause")).to_have_value("disk")
    put(listener_client, "n4", cause="Disk again", action=EVACUATE)
    put(listener_client, "n5", cause="Disk again")
    expect(page.locator("tbody tr")).to_have_count(2)
    page.go_back()
    page.go_back()
    page.goto("/?q=nothing-like-it")
    expect(page.get_by_text("No blocked node matches the filter.")).to_be_visible()


def test_many_nodes_are_split_into_pages(page: Page, listener_client: httpx.Client) -> None:
    many = {f"many-{number:03}": block() for number in range(250)}
    assert listener_client.put("/blocklist/nodes", json=many).status_code == 200
    open_live(page, "/?sort=node")
    expect(page.get_by_text("1 to 100 of 250")).to_be_visible()
    page.get_by_role("link", name="Next").click()
    expect(page.locator("#node-many-100")).to_be_visible()
    page.get_by_role("link", name="Next").click()
    expect(page.get_by_text("201 to 250 of 250")).to_be_visible()
    page.get_by_role("link", name="Previous").click()
    expect(page.get_by_text("101 to 200 of 250")).to_be_visible()
    unblock(listener_client, "many-000")
    expect(page.get_by_text("101 to 200 of 249")).to_be_visible()


def test_html_in_a_cause_is_text(page: Page, listener_client: httpx.Client) -> None:
    """On every page that shows it, and in announcements."""
    evil = "<img src=x onerror=window.hit=1><script>window.hit=1</script>\"'{{7*7}}"
    open_live(page)
    revision = put(listener_client, "n1", cause=evil)
    expect(page.locator("#node-n1")).to_contain_text(evil)
    register(listener_client, "jm-1")
    heartbeat(
        listener_client,
        "jm-1",
        ackedRevision=revision,
        refused={"n1": "<b>no</b>"},
        evidence={"n1": {"kind": "slow", "reason": "<i>slow</i>"}},
    )
    for path in ("/", "/page/nodes/n1", "/page/nodes/n1/extend", "/page/nodes/n1/unblock", "/page/history"):
        page.goto(path)
        expect(page.locator("main")).to_contain_text(evil)
        assert page.locator("main img, main script, main b, main i").count() == 0
    page.goto("/page/nodes/n1")
    expect(page.locator("main")).to_contain_text("<b>no</b>")
    page.goto("/page/evidence")
    expect(page.locator("main")).to_contain_text("<i>slow</i>")
    page.goto(f"/?q={evil}&by={evil}")
    expect(page.get_by_label("Node or cause")).to_have_value(evil)
    assert page.evaluate("window.hit") is None


def test_a_lost_connection_shows(browser: Browser, start: Start) -> None:
    """After a restart of the service the list is current again."""
    service = start()
    with monitored(browser, service.url) as monitor, service.client() as client:
        monitor.expected |= {"ERR_CONNECTION_REFUSED", "ERR_INCOMPLETE", "ERR_CONNECTION_RESET", "htmx:error"}
        page = monitor.context.new_page()
        open_live(page)
        service.stop()
        expect(page.locator("#live-text")).to_have_text("Connection lost; reconnecting")
        service.start()
        put(client, "n1")
        expect(page.locator("#live-text")).to_have_text("Live")
        expect(page.locator("#node-n1")).to_be_visible()


def test_a_service_that_hangs_shows(browser: Browser, start: Start) -> None:
    """No connection is closed then: only the pings are missing."""
    service = start()
    with monitored(browser, service.url) as monitor:
        page = monitor.context.new_page()
        page.clock.install()
        open_live(page)
        page.clock.fast_forward(39_000)
        expect(page.locator("#live-text")).to_have_text("Live")
        with service.paused():
            page.clock.fast_forward(3_000)
            expect(page.locator("#live-text")).to_have_text("Connection lost; reconnecting")
        expect(page.locator("#live-text")).to_have_text("Live")
        # As after "back", if the browser has kept the page.
        page.evaluate("dispatchEvent(new PageTransitionEvent('pagehide', { persisted: true }))")
        page.evaluate("dispatchEvent(new PageTransitionEvent('pageshow', { persisted: true }))")
        with service.client() as client:
            put(client, "n1")
        expect(page.locator("#live-text")).to_have_text("Live")
        expect(page.locator("#node-n1")).to_be_visible()


def test_the_other_pages(browser: Browser, fresh: ServiceProcess, fresh_client: httpx.Client) -> None:
    """Listeners, evidence, a node, and the charts with their tables."""
    client = fresh_client
    register(client, "jm-1")
    heartbeat(
        client, "jm-1", evidence={"n9": {"kind": "slow", "reason": "Tasks were slow."}}, refused={"n1": "the last"}
    )
    put(client, "n1", cause="Disk: sda")
    put(client, "n1", cause="Hot machine", action=EVACUATE)
    unblock(client, "n1")
    with monitored(browser, fresh.url) as monitor:
        page = monitor.context.new_page()
        page.goto("/page/listeners")
        expect(page.get_by_role("row", name="jm-1")).to_contain_text("3 changes")
        page.goto("/page/evidence")
        expect(page.get_by_role("row", name="n9")).to_contain_text("Tasks were slow.")
        page.goto("/page/nodes/n1")
        assert page.locator(".timeline li strong").all_inner_texts() == ["Unblocked", "Merged", "Blocked"]
        expect(page.get_by_text("0 of 1 listener")).to_be_visible()
        page.goto("/page/history?days=1")
        expect(page.get_by_role("img", name="Blocked nodes over time")).to_be_visible()
        assert page.locator("svg .mark, svg .evacuate").count() >= 1
        page.get_by_text("As a table").last.click()
        expect(page.get_by_role("cell", name="Disk", exact=True)).to_be_visible()
        monitor.expected.add("404")
        page.goto("/page/nodes/never-heard-of")
        expect(page.get_by_text("The change log has no entry for this node: it was never blocked")).to_be_visible()
