"""The API document loads nothing from other hosts."""

from __future__ import annotations

import pytest
from playwright.sync_api import Browser, expect

from tests.browser.browsing import monitored, overflows
from tests.integration.process import ServiceProcess


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_api_document(browser: Browser, listener_service: ServiceProcess, scheme: str) -> None:
    """It works without a network, and can send requests."""
    with monitored(browser, listener_service.url, color_scheme=scheme) as monitor:
        page = monitor.context.new_page()
        page.goto("/docs")
        page.get_by_text("The blocked nodes", exact=True).click()
        page.get_by_role("button", name="Execute").click()
        expect(page.locator(".responses-table.live-responses-table")).to_contain_text("200")
        assert overflows(page) <= 0
