"""Several nodes at once: check boxes, a confirmation with their number, all or none."""

from __future__ import annotations

import httpx
from playwright.sync_api import Browser, Page, expect

from tests.browser.browsing import monitored
from tests.browser.conftest import SecuredService, log_in
from tests.browser.test_list import open_live
from tests.integration.bodies import EVACUATE, MARK, block, later
from tests.integration.conftest import Start
from tests.integration.listeners import put, unblock
from tests.integration.process import ServiceProcess


def put_many(client: httpx.Client, count: int, **fields: object) -> None:
    nodes = {f"n{number:03}": block(**fields) for number in range(1, count + 1)}
    assert client.put("/blocklist/nodes", json=nodes).status_code == 200


def check(page: Page, *names: str) -> None:
    for name in names:
        page.get_by_label(f"Select {name}").check()


def test_extend_evacuate_and_unblock(either: Page, listener_client: httpx.Client) -> None:
    page = either
    put_many(listener_client, 4, endTimestamp=later(3600))
    page.goto("/?sort=node")
    check(page, "n001", "n003")
    page.get_by_role("button", name="Extend…").click()
    page.get_by_label("Extend by").fill("1h")
    page.get_by_label("Another reason").fill("OPS-7")
    page.get_by_role("button", name="Preview").click()
    expect(page.get_by_role("heading", name="Extend the blocks of 2 nodes?")).to_be_visible()
    before = listener_client.get("/blocklist").json()
    assert {node["cause"] for node in before.values()} == {"disk"}, "nothing is changed yet"
    page.get_by_role("button", name="Extend the blocks of 2 nodes").click()
    page.wait_for_url("/")
    listed = listener_client.get("/blocklist").json()
    assert {name: node["cause"] for name, node in listed.items() if "OPS-7" in node["cause"]} == {
        "n001": "disk,OPS-7",
        "n003": "disk,OPS-7",
    }
    assert int(listed["n001"]["endTimestamp"]) == int(before["n001"]["endTimestamp"]) + 3_600_000

    check(page, "n002", "n004")
    page.get_by_role("button", name="Evacuate…").click()
    page.get_by_role("button", name="Preview").click()
    page.get_by_role("button", name="Evacuate 2 nodes").click()
    page.wait_for_url("/")
    listed = listener_client.get("/blocklist").json()
    assert [listed[name]["action"] for name in sorted(listed)] == [MARK, EVACUATE, MARK, EVACUATE]

    check(page, "n001", "n002", "n004")
    page.get_by_role("button", name="Unblock…").click()
    expect(page.get_by_role("heading", name="Unblock 3 nodes?")).to_be_visible()
    page.get_by_role("button", name="Unblock 3 nodes").click()
    page.wait_for_url("/")
    assert list(listener_client.get("/blocklist").json()) == ["n003"]


def test_nothing_is_selected(either: Page, listener_client: httpx.Client) -> None:
    put(listener_client, "n1")
    either.goto("/")
    either.get_by_role("button", name="Unblock…").click()
    expect(either.get_by_text("No node is selected")).to_be_visible()


def test_nodes_that_changed_since_the_preview_are_named(either: Page, listener_client: httpx.Client) -> None:
    """Nothing is changed; the new preview has the nodes that are still blocked."""
    put_many(listener_client, 3)
    either.goto("/")
    check(either, "n001", "n002", "n003")
    either.get_by_role("button", name="Unblock…").click()
    put(listener_client, "n002", cause="Hot machine", allowMerge=True)
    unblock(listener_client, "n003")
    either.get_by_role("button", name="Unblock 3 nodes").click()
    expect(either.get_by_text("Changed since the preview was shown: n002, n003.")).to_be_visible()
    expect(either.get_by_text("1 selected node is not blocked any more: n003.")).to_be_visible()
    assert sorted(listener_client.get("/blocklist").json()) == ["n001", "n002"]
    either.get_by_role("button", name="Unblock 2 nodes").click()
    either.wait_for_url("/")
    assert listener_client.get("/blocklist").json() == {}


def test_all_that_match_the_filter(either: Page, listener_client: httpx.Client) -> None:
    """On all pages of it."""
    put_many(listener_client, 120)
    put(listener_client, "other", cause="Fan")
    either.goto("/?q=disk")
    either.get_by_label("All 120 that match").check()
    either.get_by_role("button", name="Unblock…").click()
    expect(either.get_by_role("heading", name="Unblock 120 nodes?")).to_be_visible()
    either.get_by_role("button", name="Unblock 120 nodes").click()
    either.wait_for_url("/")
    assert list(listener_client.get("/blocklist").json()) == ["other"]


def test_a_node_blocked_after_the_list_was_shown_is_not_selected(
    browser: Browser, listener_service: ServiceProcess, listener_client: httpx.Client
) -> None:
    """With scripts the list would have shown it."""
    put_many(listener_client, 120)
    with monitored(browser, listener_service.url, java_script_enabled=False) as monitor:
        page = monitor.context.new_page()
        page.goto("/?q=disk")
        page.get_by_label("All 120 that match").check()
        put(listener_client, "n121")
        page.get_by_role("button", name="Unblock…").click()
        expect(page.get_by_role("heading", name="Unblock 120 nodes?")).to_be_visible()
        expect(page.get_by_text("1 node changed since the page was shown and is not selected: n121.")).to_be_visible()


def test_shift_selects_a_range_and_an_update_keeps_it(page: Page, listener_client: httpx.Client) -> None:
    put_many(listener_client, 6)
    open_live(page, "/?sort=node")
    page.get_by_label("Select n002").click()
    page.get_by_label("Select n005").click(modifiers=["Shift"])
    expect(page.locator("#chosen")).to_have_text("4 selected")
    put(listener_client, "n000")
    unblock(listener_client, "n003")
    expect(page.locator("#node-n000")).to_be_visible()
    expect(page.locator("#chosen")).to_have_text("3 selected")
    assert page.locator("#list input[name=node]:checked").evaluate_all("all => all.map(box => box.value)") == [
        "n002",
        "n004",
        "n005",
    ]
    page.get_by_label("Select all nodes on this page").check()
    expect(page.locator("#chosen")).to_have_text("6 selected")
    page.get_by_label("Select n004").focus()
    page.keyboard.press("Space")
    expect(page.locator("#chosen")).to_have_text("5 selected")


def test_a_limit_refuses_all_and_is_named(browser: Browser, start: Start) -> None:
    service = start(longest_block_operator="2h", longest_block_admin="2h")
    with monitored(browser, service.url) as monitor, service.client() as client:
        put_many(client, 2, endTimestamp=later(3600))
        page = monitor.context.new_page()
        page.goto("/")
        check(page, "n001", "n002")
        page.get_by_role("button", name="Extend…").click()
        page.get_by_label("Extend by").fill("5h")
        page.get_by_role("button", name="Preview").click()
        expect(page.get_by_role("alert")).to_contain_text("An admin may block for at most 2h")


def test_more_than_the_service_changes_at_once_are_refused(page: Page, listener_client: httpx.Client) -> None:
    for thousand in range(2):
        nodes = {f"m{thousand}{number:03}": block() for number in range(600)}
        assert listener_client.put("/blocklist/nodes", json=nodes).status_code == 200
    page.context.set_default_timeout(60_000)
    page.goto("/")
    answer = page.request.post("/page/selection", form={"all": "yes", "revision": "9999", "do": "unblock"})
    assert answer.status == 400
    assert "1,200 nodes are selected; at most 1,000" in answer.text()


def test_readers_select_nothing_and_forms_need_their_token(browser: Browser, secured: SecuredService) -> None:
    put(secured.admin, "n1")
    with monitored(browser, secured.service.url) as monitor:
        page = monitor.context.new_page()
        log_in(page, secured.tokens["reader"])
        expect(page.locator("#node-n1")).to_be_visible()
        assert page.locator("input[type=checkbox], #selection").count() == 0
        monitor.expected |= {"403"}
        assert page.request.post("/page/selection", form={"node": "n1", "do": "unblock"}).status == 403
    with monitored(browser, secured.service.url) as monitor:
        page = monitor.context.new_page()
        log_in(page, secured.tokens["operator"])
        check(page, "n1")
        page.get_by_role("button", name="Unblock…").click()
        expect(page.get_by_text("You have no claim on these nodes.")).to_be_visible()
        page.get_by_role("button", name="For all owners…").click()
        expect(page.get_by_role("heading", name="Unblock 1 node?")).to_be_visible()
        expect(page.locator("[data-label=Owners]")).to_have_text("admin")
        monitor.expected |= {"403"}
        for path in ("/page/selection", "/page/selection/unblock", "/page/selection/extend"):
            assert page.request.post(path, form={"node": "n1", "nodes": "n1", "do": "unblock"}).status == 403
        page.get_by_role("button", name="Unblock 1 node").click()
        page.wait_for_url("/")
        expect(page.get_by_text("No node is blocked.")).to_be_visible()
