"""Block, extend and unblock on the page: nothing is changed without a preview."""

from __future__ import annotations

import re

import httpx
import pytest
from playwright.sync_api import Browser, Page, expect

from tests.browser.browsing import MonitoredContext, monitored
from tests.integration.bodies import all_changes, block, later, now_ms
from tests.integration.conftest import Start
from tests.integration.listeners import heartbeat, put, register, unblock


def fill_block_form(page: Page, nodes: str, reason: str, *, evacuate: bool = False) -> None:
    """Fill in the form and open the preview."""
    page.goto("/")
    page.get_by_role("link", name="Block nodes").click()
    page.get_by_label("Nodes").fill(nodes)
    page.get_by_label("Reason").fill(reason)
    if evacuate:
        page.get_by_label("Evacuate").check()
    page.get_by_role("button", name="Preview").click()


def test_block_extend_and_unblock(either: Page, listener_client: httpx.Client) -> None:
    page = either
    register(listener_client, "jm-1")
    heartbeat(
        listener_client, "jm-1", taskManagers={"app:1": "n1", "app:2": "n1"}, runningTasks={"app:1": 3, "app:2": 4}
    )
    fill_block_form(page, "n1, n2\nn1", "Fan broken", evacuate=True)
    expect(page.get_by_role("heading", name="Block 2 nodes?")).to_be_visible()
    expect(page.locator("main")).to_contain_text("2 TaskManagers of 1 listener, with 7 running tasks")
    assert listener_client.get("/blocklist").json() == {}, "nothing is changed yet"
    page.get_by_role("button", name="Edit").click()
    expect(page.get_by_label("Reason")).to_have_value("Fan broken")
    page.get_by_label("Duration from now").fill("3h")
    page.get_by_role("button", name="Preview").click()
    page.get_by_role("button", name="Block and evacuate 2 nodes").click()
    page.wait_for_url("/")
    expect(page.locator("tbody tr")).to_have_count(2)
    listed = listener_client.get("/blocklist").json()
    assert {node["cause"] for node in listed.values()} == {"Fan broken"}
    assert abs(int(listed["n1"]["endTimestamp"]) - now_ms() - 3 * 3_600_000) < 120_000

    page.get_by_role("link", name="Extend n1").click()
    page.get_by_label("Never").check()
    page.get_by_label("Another reason").fill("No spare part")
    page.get_by_role("button", name="Preview").click()
    expect(page.get_by_role("heading", name="Extend the block of n1 without end?")).to_be_visible()
    page.get_by_role("button", name="Extend n1 without end").click()
    page.wait_for_url("/page/nodes/n1")
    expect(page.locator("main")).to_contain_text("permanent")
    node = listener_client.get("/blocklist/nodes/n1").json()
    assert (node["cause"], node["endTimestamp"]) == ("Fan broken,No spare part", "9223372036854775807")

    page.get_by_role("link", name="Unblock").click()
    expect(page.locator("main")).to_contain_text("New tasks may start there immediately.")
    assert "n1" in listener_client.get("/blocklist").json(), "nothing is changed yet"
    page.get_by_role("button", name="Unblock n1").click()
    page.wait_for_url("/page/nodes/n1")
    expect(page.get_by_text("free", exact=True)).to_be_visible()
    assert list(listener_client.get("/blocklist").json()) == ["n2"]
    assert [change["type"] for change in all_changes(listener_client, node="n1")[-3:]] == [
        "blocked",
        "merged",
        "unblocked",
    ]


def test_extending_does_not_change_the_cause(page: Page, listener_client: httpx.Client) -> None:
    for cause in ("a, b ,a", ",", " x", "y" * 1024):
        end = later(3600)
        put(listener_client, "n1", cause=cause, endTimestamp=end)
        page.goto("/page/nodes/n1/extend")
        page.get_by_label("Extend by").fill("10m")
        page.get_by_role("button", name="Preview").click()
        expect(page.get_by_role("heading", name="Extend the block of n1 by 10 min?")).to_be_visible()
        page.get_by_role("button", name="Extend n1 by 10 min").click()
        page.wait_for_url("/page/nodes/n1")
        node = listener_client.get("/blocklist/nodes/n1").json()
        assert node["cause"] == cause
        assert int(node["endTimestamp"]) == int(end) + 600_000
        listener_client.delete("/blocklist/nodes/n1")


def test_a_block_made_since_the_preview_is_merged_only_after_a_new_preview(
    page: Page, window: MonitoredContext, listener_client: httpx.Client
) -> None:
    window.expected.add("409")
    fill_block_form(page, "n1", "Mine")
    put(listener_client, "n1", cause="Theirs")
    page.get_by_role("button", name="Block n1").click()
    expect(page.get_by_role("alert")).to_contain_text("Node n1 is already blocked without end (Theirs)")
    expect(page.locator("main")).to_contain_text("the new block is merged with the existing one")
    assert listener_client.get("/blocklist/nodes/n1").json()["cause"] == "Theirs"
    page.get_by_role("button", name="Block n1").click()
    page.wait_for_url("/page/nodes/n1")
    assert listener_client.get("/blocklist/nodes/n1").json()["cause"] == "Theirs,Mine"


def test_only_the_block_that_the_preview_showed_is_unblocked(
    page: Page, window: MonitoredContext, listener_client: httpx.Client
) -> None:
    window.expected.add("409")
    put(listener_client, "n1", cause="Fan broken")
    page.goto("/page/nodes/n1/unblock")
    unblock(listener_client, "n1")
    put(listener_client, "n1", cause="Fire")
    page.get_by_role("button", name="Unblock n1").click()
    expect(page.get_by_role("alert")).to_contain_text("Someone has changed this since the preview was shown.")
    expect(page.locator("main")).to_contain_text("Fire")
    assert listener_client.get("/blocklist/nodes/n1").json()["cause"] == "Fire"
    page.get_by_role("button", name="Unblock n1").click()
    page.wait_for_url("/page/nodes/n1")
    assert listener_client.get("/blocklist").json() == {}


def test_a_claim_made_since_the_preview_is_not_removed_with_the_block_that_it_leaves_as_it_was(
    page: Page, window: MonitoredContext, listener_client: httpx.Client
) -> None:
    window.expected.add("409")
    put(listener_client, "n1", cause="Fan broken")
    page.goto("/page/nodes/n1/unblock")
    before = listener_client.get("/blocklist/nodes/n1").json()
    claim = {"action": "MARK_BLOCKED", "cause": "Fan broken", "endTimestamp": later(60)}
    listener_client.put("/blocklist/nodes/n1/claims/hardware-team", json=claim).raise_for_status()
    assert listener_client.get("/blocklist/nodes/n1").json() == before
    page.get_by_role("button", name="Unblock n1").click()
    expect(page.get_by_role("alert")).to_contain_text("Someone has changed this since the preview was shown.")
    assert listener_client.get("/blocklist/nodes/n1").json() == before


def test_a_preview_reached_with_the_back_button_is_not_confirmed_for_another_block(
    page: Page, window: MonitoredContext, listener_client: httpx.Client
) -> None:
    window.expected.add("409")
    put(listener_client, "n1", cause="Fan broken")
    preview = page.goto("/page/nodes/n1/unblock")
    assert preview is not None
    assert preview.headers["cache-control"] == "no-store"
    page.get_by_role("button", name="Unblock n1").click()
    page.wait_for_url("/page/nodes/n1")
    put(listener_client, "n1", cause="Fire")
    page.go_back()
    # Not stored: the browser asks for it again, and shows the present block.
    expect(page.locator("main")).to_contain_text("Fire")
    unblock(listener_client, "n1")
    put(listener_client, "n1", cause="Flood")
    page.get_by_role("button", name="Unblock n1").click()
    expect(page.get_by_role("alert")).to_contain_text("Someone has changed this since the preview was shown.")
    assert listener_client.get("/blocklist/nodes/n1").json()["cause"] == "Flood"


@pytest.mark.parametrize("path", ["/page/nodes/n1/extend", "/page/block"])
def test_only_the_block_that_the_preview_showed_is_merged(
    page: Page, window: MonitoredContext, listener_client: httpx.Client, path: str
) -> None:
    window.expected.add("409")
    put(listener_client, "n1", cause="Fan broken", endTimestamp=later(3600))
    page.goto(path)
    if path == "/page/block":
        page.get_by_label("Nodes").fill("n1")
    page.locator("[name=cause]").fill("Mine")
    page.get_by_role("button", name="Preview").click()
    unblock(listener_client, "n1")
    put(listener_client, "n1", cause="Fire", endTimestamp=later(60))
    page.locator("button.primary").click()
    expect(page.get_by_role("alert")).to_contain_text("Someone has changed this since the preview was shown.")
    assert listener_client.get("/blocklist/nodes/n1").json()["cause"] == "Fire"
    page.locator("button.primary").click()
    page.wait_for_url("/page/nodes/n1")
    assert listener_client.get("/blocklist/nodes/n1").json()["cause"] == "Fire,Mine"


def test_errors_are_shown_and_no_input_is_lost(either: Page, listener_client: httpx.Client) -> None:
    page = either
    page.goto("/page/block")
    page.get_by_label("Nodes").fill("good bad/one")
    page.get_by_label("Reason").fill("x")
    page.get_by_label("Duration from now").fill("soon")
    page.get_by_role("button", name="Preview").click()
    expect(page.get_by_role("alert")).to_contain_text("'bad/one' is not a node id")
    expect(page.get_by_role("alert")).to_contain_text("'soon' is not a duration: give one such as")
    expect(page.get_by_label("Nodes")).to_have_value("good bad/one")
    expect(page.get_by_label("Duration from now")).to_have_value("soon")
    page.get_by_label("Until", exact=True).check()
    page.get_by_label("End in UTC").fill("2020-01-01T00:00")
    page.get_by_role("button", name="Preview").click()
    expect(page.get_by_role("alert")).to_contain_text("The end is in the past")
    assert listener_client.get("/blocklist").json() == {}


def test_what_is_typed_as_the_end_is_the_end(page: Page) -> None:
    page.goto("/page/block")
    page.get_by_label("End in UTC").fill("2030-01-01T00:00")
    expect(page.get_by_label("Until", exact=True)).to_be_checked()
    page.get_by_label("Duration from now").fill("2h")
    expect(page.get_by_label("For", exact=True)).to_be_checked()
    expect(page.get_by_label("End in UTC")).to_have_value("")
    page.get_by_label("End in UTC").fill("2030-01-01T00:00")
    page.get_by_label("Never").check()
    expect(page.get_by_label("End in UTC")).to_have_value("")


def test_a_cause_does_not_change_the_order_of_the_text_around_it(page: Page, listener_client: httpx.Client) -> None:
    put(listener_client, "n1", cause="\u202eelbatcerid,other")
    page.goto("/page/nodes/n1")
    order = "document.querySelectorAll('.facts .cause')"
    expect(page.locator(".facts .cause")).to_have_count(2)
    assert page.evaluate(f"[...{order}].map(each => getComputedStyle(each).unicodeBidi)") == ["isolate", "isolate"]
    assert page.evaluate(f"{order}[0].getBoundingClientRect().left < {order}[1].getBoundingClientRect().left")


def test_an_admin_may_override_a_limit(browser: Browser, start: Start) -> None:
    """Without authentication everyone is an admin. The reason is recorded in the change log."""
    service = start(max_blocked="2")
    with monitored(browser, service.url) as monitor, service.client() as client:
        client.put("/blocklist/nodes/n1", json=block())
        page = monitor.context.new_page()
        fill_block_form(page, "n2 n3", "Rack 7")
        expect(page.get_by_role("alert")).to_contain_text("This would block 3 nodes; at most 2 may be blocked at once")
        expect(page.get_by_role("button", name=re.compile("Block"))).to_have_count(0)
        page.get_by_label("Reason for overriding the limit").fill("It burns")
        page.get_by_role("button", name="Override the limit").click()
        page.wait_for_url("/")
        assert list(client.get("/blocklist").json()) == ["n1", "n2", "n3"]
        assert [change.get("forced") for change in all_changes(client)] == [None, "It burns", "It burns"]
        page.goto("/page/nodes/n2")
        expect(page.locator(".timeline")).to_contain_text("Limit overridden: It burns")


def test_the_preview_warns_about_a_minimum(page: Page, listener_client: httpx.Client) -> None:
    register(listener_client, "jm-1", minNodes=2)
    heartbeat(listener_client, "jm-1", nodes=["n1", "n2"])
    fill_block_form(page, "n1", "Rack 7")
    expect(page.locator("main")).to_contain_text("Listener jm-1 would have 1 usable node left; it needs 2.")


def test_by_keyboard_alone(page: Page, listener_client: httpx.Client) -> None:
    """Block and unblock with the keyboard; the focus is visible."""
    page.goto("/")
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Skip to content")).to_be_focused()
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Block nodes")).to_be_focused()
    assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    page.keyboard.press("Enter")
    page.wait_for_url("/page/block")
    expect(page.locator("[name=nodes]")).to_be_focused()
    page.keyboard.type("n1")
    page.keyboard.press("Tab")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Tab")
    page.keyboard.type("Fan broken")
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="Block n1?")).to_be_visible()
    _tab_to(page, "Block and evacuate n1")
    page.keyboard.press("Enter")
    page.wait_for_url("/page/nodes/n1")
    assert listener_client.get("/blocklist/nodes/n1").json()["action"] == "MARK_BLOCKED_AND_EVACUATE_TASKS"
    _tab_to(page, "Unblock")
    page.keyboard.press("Enter")
    page.wait_for_url("/page/nodes/n1/unblock")
    _tab_to(page, "Unblock n1")
    page.keyboard.press("Enter")
    page.wait_for_url("/page/nodes/n1")
    assert listener_client.get("/blocklist").json() == {}


def _tab_to(page: Page, name: str) -> None:
    for _ in range(40):
        if page.evaluate("document.activeElement.innerText") == name:
            return
        page.keyboard.press("Tab")
    raise AssertionError(f"{name} cannot be reached with the Tab key")
