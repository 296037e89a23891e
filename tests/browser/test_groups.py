"""The list by cause and owner; all nodes of a group are extended or unblocked at once."""

from __future__ import annotations

import httpx
from playwright.sync_api import Browser, Page, expect

from tests.browser.browsing import monitored
from tests.browser.conftest import SecuredService, log_in
from tests.integration.bodies import EVACUATE, block
from tests.integration.labels import report_labels
from tests.integration.listeners import heartbeat, put, register, unblock
from tests.integration.process import ServiceProcess


def test_a_group_says_where_it_is_who_has_applied_it_and_what_still_runs(
    page: Page, listener_client: httpx.Client
) -> None:
    report_labels(listener_client, {f"n{number}": {"rack": f"r{number % 2}"} for number in range(1, 6)}, "jm-1")
    heartbeat(listener_client, "jm-1", taskManagers={"app:1": "n1"}, runningTasks={"app:1": 3})
    register(listener_client, "jm-2")
    register(listener_client, "jm-3")
    for number in range(1, 6):
        revision = put(listener_client, f"n{number}", cause=f"DiskFull: {number} %", action=EVACUATE)
    revision = put(listener_client, "elsewhere", cause="DiskFull", action=EVACUATE)
    put(listener_client, "n9", cause="Fan")
    heartbeat(listener_client, "jm-1", ackedRevision=revision)
    heartbeat(listener_client, "jm-3", ackedRevision=revision, refused={"n2": "the last one"})
    page.goto("/?group=cause")
    expect(page.get_by_text("7 nodes with 2 causes")).to_be_visible()
    row = page.get_by_role("row", name="DiskFull")
    expect(row).to_contain_text("r1 (3), r0 (2), unknown (1)")
    expect(row.get_by_text("1/3")).to_be_visible()
    expect(row).to_contain_text("not yet: jm-2")
    expect(row).to_contain_text("refused: jm-3")
    expect(row.locator("[data-label='Running tasks']")).to_have_text("3, others unknown")
    heartbeat(listener_client, "jm-2", ackedRevision=revision)
    heartbeat(listener_client, "jm-3", ackedRevision=revision, refused={})
    expect(row.get_by_text("3/3")).to_be_visible()


def test_extend_and_unblock_all(either: Page, listener_client: httpx.Client) -> None:
    page = either
    nodes = {f"n{number}": block(cause="Fan: 3") for number in range(1, 4)}
    assert listener_client.put("/blocklist/nodes", json=nodes).status_code == 200
    put(listener_client, "other", cause="disk")
    page.goto("/?group=cause")
    page.get_by_role("button", name="Extend all 3 nodes of Fan").click()
    page.get_by_label("Another reason").fill("no spare part")
    page.get_by_label("Unchanged: only the action").check()
    page.get_by_role("button", name="Preview").click()
    page.get_by_role("button", name="Extend the blocks of 3 nodes").click()
    page.wait_for_url("/")
    causes = {name: node["cause"] for name, node in listener_client.get("/blocklist").json().items()}
    assert causes == {**dict.fromkeys(nodes, "Fan: 3,no spare part"), "other": "disk"}
    page.goto("/?group=cause")
    page.get_by_role("button", name="Unblock all 3 nodes of Fan").click()
    page.get_by_role("button", name="Unblock 3 nodes").click()
    page.wait_for_url("/")
    assert list(listener_client.get("/blocklist").json()) == ["other"]


def test_what_changed_since_the_page_was_shown_is_left_out_and_named(
    browser: Browser, listener_service: ServiceProcess, listener_client: httpx.Client
) -> None:
    for name in ("n1", "n2", "n3"):
        put(listener_client, name)
    with monitored(browser, listener_service.url, java_script_enabled=False) as monitor:
        page = monitor.context.new_page()
        page.goto("/?group=cause")
        put(listener_client, "n2", action=EVACUATE, allowMerge=True)
        unblock(listener_client, "n3")
        page.get_by_role("button", name="Unblock all 3 nodes").click()
        expect(page.get_by_role("heading", name="Unblock 1 node?")).to_be_visible()
        expect(page.get_by_text("1 node changed since the page was shown and is not selected: n2.")).to_be_visible()
        assert sorted(listener_client.get("/blocklist").json()) == ["n1", "n2"], "nothing is changed yet"


def test_a_reader_sees_groups_without_buttons(browser: Browser, secured: SecuredService) -> None:
    evil = "<img src=x onerror=window.hit=1>'\""
    put(secured.admin, "n1", cause=evil)
    with monitored(browser, secured.service.url) as monitor:
        page = monitor.context.new_page()
        log_in(page, secured.tokens["reader"], "/?group=cause")
        expect(page.get_by_role("row", name="n1")).to_contain_text(evil)
        assert page.locator("main img, main table button").count() == 0
        assert page.evaluate("window.hit") is None
