"""The page of a node shows the latest evidence about it: of the detection, and of running applications."""

from __future__ import annotations

import httpx
import pytest
from playwright.sync_api import Browser, Page, expect

from tests.browser.browsing import monitored, overflows
from tests.integration.bodies import MARK, later, now_ms
from tests.integration.listeners import heartbeat, register
from tests.integration.process import ServiceProcess

VERDICT = "2.1x slower than its peers in 9 of 12 stages of 3 applications (95 %: 1.9x to 2.3x)"


def claim(client: httpx.Client, cause: str, node: str = "n8") -> None:
    """The claim of the detection, as `--apply` makes it."""
    body = {"action": MARK, "cause": cause, "endTimestamp": later(60), "lastEvidenceTimestamp": now_ms()}
    client.put(f"/blocklist/nodes/{node}/claims/detection", json=body).raise_for_status()


def test_a_node_shows_the_verdict_of_the_detection_and_what_applications_report(
    page: Page, listener_client: httpx.Client
) -> None:
    claim(listener_client, "an older verdict")
    claim(listener_client, f"<b>{VERDICT}")
    register(listener_client, "etl")
    finding = {"n8": {"kind": "slow", "reason": "three times as slow"}}
    heartbeat(listener_client, "etl", taskManagers={"etl:1": "n8"}, evidence=finding)
    page.goto("/page/nodes/n8")
    evidence = page.get_by_role("region", name="Evidence")
    verdict = evidence.get_by_role("row", name="detection")
    expect(verdict).to_contain_text(f"<b>{VERDICT}")
    expect(verdict).not_to_contain_text("an older verdict")
    expect(verdict.locator("[data-label='In force']")).to_contain_text("until 20")
    expect(verdict.locator("[data-label='Claimed']")).to_contain_text("UTC (")
    expect(evidence.get_by_role("row", name="etl")).to_contain_text("three times as slow")


def test_the_verdict_stays_when_the_node_is_unblocked(page: Page, listener_client: httpx.Client) -> None:
    claim(listener_client, VERDICT, "n9")
    page.goto("/page/nodes/n9")
    evidence = page.get_by_role("region", name="Evidence")
    expect(evidence.get_by_role("row", name="detection")).to_contain_text("until 20")
    listener_client.delete("/blocklist/nodes/n9").raise_for_status()
    expect(evidence.get_by_role("row", name="detection")).to_contain_text("it has ended, or was removed")
    expect(evidence.get_by_role("row", name="detection")).to_contain_text(VERDICT)
    expect(evidence).to_contain_text("No running application reports a problem.")


@pytest.mark.parametrize("width", [390, 1920])
def test_a_verdict_of_maximum_length_is_not_cut(
    browser: Browser, listener_client: httpx.Client, listener_service: ServiceProcess, width: int
) -> None:
    claim(listener_client, "e" * 1024, "n7")
    with monitored(browser, listener_service.url, (width, 900)) as monitor:
        page = monitor.context.new_page()
        page.goto("/page/nodes/n7")
        cause = page.get_by_role("region", name="Evidence").get_by_text("e" * 1024)
        expect(cause).to_be_visible()
        assert overflows(page) <= 0
        assert cause.evaluate("(it) => it.scrollWidth <= it.clientWidth || getComputedStyle(it).display === 'inline'")
        right = cause.evaluate("(it) => Math.max(...[...it.getClientRects()].map((box) => box.right))")
        assert right <= width
