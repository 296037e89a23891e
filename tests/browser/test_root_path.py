"""The page below a path of a host, behind a real nginx that strips the path and one that keeps it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import httpx
import pytest
from playwright.sync_api import Browser, Page, expect

from blocklist import BlocklistClient
from tests.browser.browsing import monitored, open_map
from tests.integration.bodies import block
from tests.integration.conftest import Start
from tests.integration.listeners import RM, heartbeat, register
from tests.integration.nginx import nginx_below
from tests.integration.process import NO_TLS

ROOT: Final = "/tools/blocklist"


class Tools:
    """The service below its path, with an admin, and a window in which they have logged in."""

    def __init__(self, url: str, admin: httpx.Client, token: str, page: Page) -> None:
        self.url = url
        self.admin = admin
        self.token = token
        self.page = page

    def log_in(self) -> None:
        self.page.get_by_label("Token").fill(self.token)
        self.page.get_by_role("button", name="Log in").click()


@pytest.fixture(params=[True, False], ids=["stripped", "kept"])
def tools(request: pytest.FixtureRequest, start: Start, browser: Browser, tmp_path: Path) -> Iterator[Tools]:
    file = tmp_path / "admin.token"
    own = {"auth": "tokens", "admin_token_file": str(file), "root_path": ROOT, "trusted_proxies": "127.0.0.1/32"}
    service = start(**own, evidence_applications="0")
    with ExitStack() as stack:
        url = stack.enter_context(nginx_below(tmp_path, service, strips=request.param))
        token = file.read_text().strip()
        headers = {"Authorization": f"Bearer {token}"}
        admin = stack.enter_context(httpx.Client(base_url=url, headers=headers, trust_env=False, verify=NO_TLS))
        window = stack.enter_context(monitored(browser, url))
        outside: list[str] = []
        window.context.on("request", lambda asked: None if _is_below(asked.url) else outside.append(asked.url))
        page = window.context.new_page()
        page.goto(f"{url}/page/map")
        tools = Tools(url, admin, token, page)
        tools.log_in()
        page.wait_for_url(f"{url}/page/map")
        yield tools
        assert outside == []


def _is_below(url: str) -> bool:
    return urlsplit(url).path.startswith(f"{ROOT}/") or url.startswith("data:")


def test_a_change_is_shown_live_and_made_with_forms(tools: Tools) -> None:
    page = tools.page
    page.goto(f"{tools.url}/")
    expect(page.locator("#live")).to_have_class("live on")
    with BlocklistClient(tools.url, token=tools.token) as client:
        client.block("w1", "disk")
    expect(page.get_by_role("link", name="w1", exact=True)).to_be_visible()
    page.get_by_role("link", name="Block nodes").click()
    page.get_by_label("Nodes").fill("w2")
    page.get_by_label("Reason").fill("fan")
    page.get_by_role("button", name="Preview").click()
    page.get_by_role("button", name="Block w2").click()
    page.wait_for_url(f"{tools.url}/page/nodes/w2")
    page.goto(f"{tools.url}/")
    page.get_by_role("searchbox").fill("w2")
    expect(page.get_by_role("link", name="w1", exact=True)).to_have_count(0)
    page.get_by_role("link", name="Unblock w2").click()
    page.get_by_role("button", name="Unblock w2").click()
    page.wait_for_url(f"{tools.url}/page/nodes/w2")
    assert list(tools.admin.get("/blocklist").json()) == ["w1"]


def test_the_map_follows_and_its_cells_are_links(tools: Tools) -> None:
    page = tools.page
    register(tools.admin, "rm", role=RM, leaseSeconds=600)
    heartbeat(tools.admin, "rm", nodes=["n1", "n2"])
    open_map(page, f"{tools.url}/page/map", page.locator("a.cell.f"), 2)
    expect(page.locator("#live")).to_have_class("live on")
    tools.admin.put("/blocklist/nodes/n1", json=block()).raise_for_status()
    expect(page.locator("a.cell.p")).to_have_count(1)
    page.locator("a.cell.p").click()
    page.wait_for_url(f"{tools.url}/page/nodes/n1")
    page.go_back()
    tools.admin.delete("/blocklist/nodes/n1").raise_for_status()
    expect(page.locator("a.cell.f")).to_have_count(2)
    page.locator("a.cell.f").first.click()
    page.wait_for_url(f"{tools.url}/page/block?node=n1")


def test_the_api_document_is_tried_out_there(tools: Tools) -> None:
    page = tools.page
    page.goto(f"{tools.url}/docs")
    page.get_by_text("The blocked nodes", exact=True).click()
    page.get_by_role("button", name="Execute").click()
    expect(page.locator(".request-url pre")).to_have_text(f"{tools.url}/blocklist?details=false")
    expect(page.locator(".responses-table.live-responses-table")).to_contain_text("200")
