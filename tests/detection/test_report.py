"""The HTML report is one file that loads nothing else."""

from __future__ import annotations

import json
import re

import pytest
from playwright.sync_api import Browser, expect

from tests.browser.browsing import monitored
from tests.detection.command import DryRun

pytestmark = pytest.mark.xdist_group("detection")


def test_the_report_has_evidence_and_problems_and_loads_nothing(proposed: DryRun) -> None:
    page = proposed.report.read_text()
    assert json.loads(proposed.lines.read_text())["cause"] in page
    assert page.count('<rect class="cell"') > 100
    assert "notes.txt is not an event log" in page
    assert not re.search(r"(src|href)=", page), "it needs nothing else"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_plots_are_visible_in_both_colour_schemes(browser: Browser, proposed: DryRun, scheme: str) -> None:
    with monitored(browser, proposed.report.as_uri(), color_scheme=scheme) as own:
        page = own.context.new_page()
        page.goto(proposed.report.as_uri())
        expect(page.get_by_role("cell", name="n3", exact=True).first).to_be_visible()
        plot = page.get_by_role("img", name="Slowdown of each host in each stage")
        expect(plot).to_be_visible()
        assert plot.locator("rect.cell").count() > 100
        dark = page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(23, 25, 28)"
        assert dark == (scheme == "dark")
