"""Two operators, and alerts, change what a page has selected: the selection is what it says, and nothing is lost."""

from __future__ import annotations

import httpx
from playwright.sync_api import Page, expect

from tests.browser.browsing import MonitoredContext
from tests.browser.test_list import open_live
from tests.browser.test_selection import check, put_many
from tests.integration.bodies import block
from tests.integration.listeners import put, unblock


def storm(client: httpx.Client, first: int, count: int) -> None:
    """Alerts block so many nodes."""
    nodes = {f"s{number:03}": block(cause="alert Disk") for number in range(first, first + count)}
    assert client.put("/blocklist/nodes", json=nodes).status_code == 200


def test_a_storm_that_moves_selected_nodes_to_another_page_does_not_unselect_them(
    page: Page, listener_client: httpx.Client
) -> None:
    put_many(listener_client, 120)
    open_live(page)
    shown = page.locator("#list input[name=node]").evaluate_all("all => all.map(box => box.value)")
    mine = [shown[0], shown[-1]]
    check(page, *mine)
    storm(listener_client, 0, 60)
    expect(page.locator("#node-s059")).to_be_visible()
    expect(page.locator(f"#node-{shown[-1]}")).to_have_count(0)
    expect(page.locator("#chosen")).to_contain_text("2 selected")
    page.get_by_role("button", name="Unblock…").click()
    expect(page.get_by_role("heading", name="Unblock 2 nodes?")).to_be_visible()
    page.get_by_role("button", name="Unblock 2 nodes").click()
    page.wait_for_url("/")
    assert not {*mine} & listener_client.get("/blocklist").json().keys()


def test_all_stay_selected_when_the_list_is_updated(page: Page, listener_client: httpx.Client) -> None:
    put_many(listener_client, 120)
    open_live(page)
    page.get_by_label("All 120").check()
    storm(listener_client, 0, 3)
    expect(page.get_by_label("All 123")).to_be_checked()
    expect(page.locator("#chosen")).to_have_text("All selected")
    # Another operator unblocks so many that the rest is on one page.
    for name in list(listener_client.get("/blocklist").json())[1:]:
        unblock(listener_client, name)
    expect(page.locator("#list tbody tr")).to_have_count(1)
    expect(page.locator("#chosen")).to_have_text("1 selected")


def test_a_form_that_is_open_keeps_what_was_typed_when_another_operator_unblocks_the_node(
    page: Page, window: MonitoredContext, listener_client: httpx.Client
) -> None:
    window.expected.add("400")
    put(listener_client, "n1", cause="Fan broken")
    page.goto("/page/nodes/n1/extend")
    page.locator("[name=cause]").fill("Spare part ordered, OPS-7")
    unblock(listener_client, "n1")
    page.get_by_role("button", name="Preview").click()
    expect(page.get_by_role("alert")).to_contain_text("Node n1 is not blocked any more. To block it again")
    expect(page.get_by_label("Nodes")).to_have_value("n1")
    expect(page.get_by_label("Reason")).to_have_value("Spare part ordered, OPS-7")
    page.get_by_role("button", name="Preview").click()
    page.get_by_role("button", name="Block n1").click()
    page.wait_for_url("/page/nodes/n1")
    assert listener_client.get("/blocklist/nodes/n1").json()["cause"] == "Spare part ordered, OPS-7"


def test_what_another_operator_has_unblocked_is_said_to_be_free_and_never_blocked_again(
    page: Page, window: MonitoredContext, listener_client: httpx.Client
) -> None:
    window.expected.add("404")
    put_many(listener_client, 3)
    page.goto("/page/nodes/n003/unblock")
    unblock(listener_client, "n003")
    page.get_by_role("button", name="Unblock n003").click()
    expect(page.locator("main")).to_contain_text("Node n003 is not blocked.")
    page.goto("/")
    check(page, "n001", "n002")
    page.get_by_role("button", name="Extend…").click()
    page.get_by_label("Another reason").fill("Mine")
    page.get_by_label("Extend by").fill("1h")
    unblock(listener_client, "n001")
    page.get_by_role("button", name="Preview").click()
    expect(page.locator("main")).to_contain_text("1 selected node is not blocked any more: n001.")
    unblock(listener_client, "n002")
    page.get_by_role("button", name="Extend the blocks of 1 node").click()
    expect(page.locator("main")).to_contain_text("None of the selected nodes is blocked any more.")
    assert listener_client.get("/blocklist").json() == {}
