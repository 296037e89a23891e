"""The map of all hosts: each state in colour and sign, kept up to date cell by cell; the wall display."""

from __future__ import annotations

import httpx
import pytest
from playwright.sync_api import Browser, Locator, Page, expect

from tests.browser.browsing import monitored, open_map, overflows
from tests.browser.conftest import SecuredService, log_in
from tests.integration.bodies import EVACUATE, block
from tests.integration.labels import report_labels
from tests.integration.listeners import heartbeat, put, register, unblock
from tests.integration.process import ServiceProcess, wait_until


def host(rack: int, place: int) -> str:
    """`r03n12`."""
    return f"r{rack:02}n{place:02}"


def report_cluster(client: httpx.Client, racks: int, hosts: int) -> None:
    """A manager reports racks with this number of hosts each."""
    report_labels(
        client,
        {host(rack, place): {"rack": f"r{rack:02}"} for rack in range(1, racks + 1) for place in range(1, hosts + 1)},
        lease=600,
    )


def show_all_states(client: httpx.Client) -> dict[str, str]:
    """A host of the first racks in each state: the word of each of them. The cluster is reported before."""
    register(client, "etl-nightly", leaseSeconds=600)
    put(client, "r01n01", cause="Kernel upgrade")
    for name in ("r01n02", "r01n03", "r01n04", "r02n01"):
        revision = put(client, name, cause="DiskFull: /data is 98 % full", action=EVACUATE)
    running = {"etl:1": "r01n02", "etl:2": "r01n04", "etl:3": "r02n01"}
    heartbeat(
        client,
        "etl-nightly",
        ackedRevision=revision,
        taskManagers=running,
        runningTasks={"etl:1": 3, "etl:3": 1},
        refused={"r02n01": "its last host"},
    )
    # Only the manager has applied the last change.
    revision = put(client, "r02n03", cause="Fan")
    heartbeat(client, "racks", ackedRevision=revision, unschedulable={"r02n02": "DOWN"})
    return {
        "r01n01": "no new tasks",
        "r01n02": "evacuating",
        "r01n03": "evacuated",
        "r01n04": "unknown",
        "r02n01": "refused",
        "r02n02": "not ready",
        "r02n03": "not applied yet",
        "r02n04": "free",
    }


def block_rack(
    client: httpx.Client, rack: int, hosts: int, cause: str = "OPS-412: power feed B lost", **fields: object
) -> None:
    """Block all hosts of a rack."""
    nodes = {host(rack, place): block(cause=cause, **fields) for place in range(1, hosts + 1)}
    client.put("/blocklist/nodes", json=nodes).raise_for_status()


def cell(page: Page, host: str, word: str) -> Locator:
    """The cell of a host in this state."""
    return page.locator(".racks .cell", has_text=f"{host}, {word}")


def test_each_host_has_its_state_and_follows_changes_cell_by_cell(page: Page, listener_client: httpx.Client) -> None:
    report_cluster(listener_client, 3, 6)
    states = show_all_states(listener_client)
    revision = put(listener_client, "r77n1", cause="misspelt")
    page.goto("/page/map")
    expect(page.get_by_text("Live", exact=True)).to_be_visible()
    expect(page.locator(".racks .rack")).to_have_count(4)
    for host, word in states.items():
        expect(cell(page, host, word)).to_have_count(1)
    signs = {
        cell(page, host, word).evaluate("cell => getComputedStyle(cell, '::before').content")
        for host, word in states.items()
    }
    assert len(signs) == len(states), "the colour is not the only difference"
    page.evaluate("window.kept = document.querySelector('.racks .cell')")
    heartbeat(listener_client, "etl-nightly", ackedRevision=revision)
    heartbeat(listener_client, "racks", ackedRevision=revision)
    for host, word in (states | {"r02n03": "no new tasks", "r77n1": "no new tasks"}).items():
        expect(cell(page, host, word)).to_have_count(1)
    block_rack(listener_client, 3, 6)
    expect(page.locator(".legend li", has_text="not applied yet").locator("strong")).to_have_text("6")
    unblock(listener_client, "r01n01")
    expect(cell(page, "r01n01", "free")).to_have_count(1)
    assert page.evaluate("window.kept === document.querySelector('.racks .cell')"), "cells are updated, not replaced"
    # A new host is another layout: all rows are loaded.
    nodes = {f"r0{rack}n0{place}": {"rack": f"r0{rack}"} for rack in (1, 2, 3) for place in range(1, 7)}
    report_labels(listener_client, nodes | {"r04n01": {"rack": "r04"}})
    expect(page.get_by_role("link", name="r04n01, free")).to_have_count(1)


def test_a_free_host_is_blocked_with_a_click_or_the_keyboard(page: Page, listener_client: httpx.Client) -> None:
    report_cluster(listener_client, 2, 4)
    put(listener_client, "r02n01")
    page.goto("/page/map")
    expect(page.get_by_text("Live", exact=True)).to_be_visible()
    # One stop for Tab, arrow keys between hosts.
    assert page.locator(".racks .cell[tabindex='0']").count() == 1
    page.get_by_role("link", name="r01n01, free").focus()
    page.keyboard.press("ArrowRight")
    expect(page.get_by_role("link", name="r01n02, free")).to_be_focused()
    expect(page.locator("#host")).to_have_text("r01n02, free")
    page.keyboard.press("End")
    expect(page.get_by_role("link", name="r02n04, free")).to_be_focused()
    page.keyboard.press("Home")
    page.keyboard.press("Enter")
    page.wait_for_url("**/page/block?node=r01n01")
    expect(page.get_by_role("textbox", name="Nodes")).to_have_value("r01n01")
    page.goto("/page/map")
    page.get_by_role("link", name="r02n01").click()
    page.wait_for_url("**/page/nodes/r02n01")


def test_a_rack_is_a_table_without_scripts(
    browser: Browser, listener_service: ServiceProcess, listener_client: httpx.Client
) -> None:
    report_cluster(listener_client, 2, 4)
    put(listener_client, "r02n01", cause="Fan")
    with monitored(browser, listener_service.url, java_script_enabled=False) as monitor:
        page = monitor.context.new_page()
        page.goto("/page/map")
        page.get_by_role("link", name="Table of rack r02").click()
        expect(page.get_by_role("heading", name="Rack r02", level=1)).to_be_visible()
        # The map may be a second old, and nothing updates a page without scripts.
        wait_until(lambda: bool(page.reload()) and "Fan" in page.content())
        expect(page.get_by_role("rowheader")).to_have_text(["r02n01", "r02n02", "r02n03", "r02n04"])
        expect(page.get_by_role("row", name="r02n01")).to_contain_text("Fan")
        expect(page.get_by_role("row", name="r02n02")).to_contain_text("free")
        page.get_by_role("link", name="Block all").click()
        expect(page.get_by_role("textbox", name="Nodes")).to_have_value("rack=r02")
    assert listener_client.get("/page/map/hosts?group=rack%3Dgone").status_code == 404


@pytest.mark.parametrize("size", [(1280, 800), (1920, 1080)])
def test_a_wall_display_fits_and_shows_changes_as_they_happen(
    browser: Browser, listener_service: ServiceProcess, listener_client: httpx.Client, size: tuple[int, int]
) -> None:
    report_cluster(listener_client, 10, 12)
    with monitored(browser, listener_service.url, size) as monitor:
        page = monitor.context.new_page()
        page.goto("/page/map?wall")
        expect(page.get_by_text("Live", exact=True)).to_be_visible()
        assert page.locator("a, button, input").count() == 0, "no controls"
        # Another cause than that of other tests: changes of one cause within a minute are one line.
        block_rack(listener_client, 7, 12, f"OPS-{size[0]}: power feed B lost")
        timeline = page.get_by_role("complementary", name="Changes")
        expect(timeline).to_contain_text("r07n01, r07n02 and 10 more blocked")
        expect(timeline).to_contain_text("power feed B lost")
        expect(cell(page, "r07n12", "not applied yet")).to_have_count(1)
        assert page.evaluate(
            "[...document.querySelectorAll('.racks .cell')].every(cell => {"
            " const box = cell.getBoundingClientRect(); return box.bottom <= innerHeight && box.right <= innerWidth; })"
        )
        assert page.evaluate("document.documentElement.scrollHeight <= innerHeight")
        assert page.evaluate(
            "() => {"
            " const list = map(), racks = list.querySelector('.racks');"
            " const size = parseInt(list.style.getPropertyValue('--cell'));"
            " list.style.setProperty('--cell', `${size + 1}px`);"
            " return size === 64 || racks.scrollHeight > racks.clientHeight + 1; }"
        ), "larger cells would not fit"


@pytest.mark.parametrize("path", ["/page/map", "/page/map?wall"])
def test_each_rack_is_painted_by_itself(page: Page, listener_client: httpx.Client, path: str) -> None:
    """Otherwise each frame, such as one while the pointer moves, paints all cells: 60 ms for 10,000."""
    report_cluster(listener_client, 2, 4)
    page.goto(path)
    racks = page.locator(".rack")
    assert set(racks.evaluate_all("racks => racks.map(rack => getComputedStyle(rack).contain)")) == {"paint"}
    clips = page.locator(".cell").evaluate_all("cells => cells.map(cell => getComputedStyle(cell).overflow)")
    assert set(clips) == {"visible"}


@pytest.mark.parametrize("path", ["/page/map", "/page/map?wall"])
def test_racks_of_any_length_and_name_are_in_columns(
    browser: Browser, listener_service: ServiceProcess, listener_client: httpx.Client, path: str
) -> None:
    racks = {"r1": 4, "r2": 12, "row-b-cold-aisle": 20, "r10": 1, "r11": 12}
    nodes = {f"{rack}n{place}": {"rack": rack} for rack, hosts in racks.items() for place in range(hosts)}
    report_labels(listener_client, nodes)
    for width in (1280, 1920):
        with monitored(browser, listener_service.url, (width, 900)) as monitor:
            page = monitor.context.new_page()
            open_map(page, path, page.locator(".racks .cell"), len(nodes))
            expect(page.get_by_text("Live", exact=True)).to_be_visible()
            columns = page.evaluate(
                "[...document.querySelectorAll('.rack')].map(rack => ["
                " Math.round(rack.getBoundingClientRect().left),"
                " Math.round(rack.querySelector('.cell').getBoundingClientRect().left)])"
            )
            lefts = {left for left, _ in columns}
            assert len({first for _, first in columns}) == len(lefts), "the first hosts of a column are in a line"
            assert overflows(page) == 0


def test_a_reader_sees_the_map_and_others_do_not(browser: Browser, secured: SecuredService) -> None:
    put(secured.admin, "n1")
    for path in ("/page/map", "/page/map/states", "/page/map/timeline", "/page/map/hosts"):
        assert httpx.get(f"{secured.service.url}{path}", trust_env=False).status_code == 303, path
    with monitored(browser, secured.service.url) as monitor:
        page = monitor.context.new_page()
        log_in(page, secured.tokens["reader"], "/page/map")
        link = page.get_by_role("link", name="n1, no new tasks")
        expect(link).to_have_attribute("href", "/page/nodes/n1")
        # The session has ended: the page goes to the login, and not on with an old map.
        monitor.expected |= {"401", "EventSource"}
        monitor.context.clear_cookies()
        page.evaluate("htmx.trigger(document.getElementById('list'), 'changes')")
        page.wait_for_url("**/login?next=**")
