"""Documents that stand alone: the API's, and the report of the detection; nobody else is asked for anything."""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from tests.browser.browsing import overflows, watched
from tests.detection.test_command import run
from tests.detection.written import event_log
from tests.integration.bodies import now_ms
from tests.integration.process import ServiceProcess

pytestmark = pytest.mark.xdist_group("browser")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_api_document(browser: Browser, listened: ServiceProcess, scheme: str) -> None:
    """Without a network, and one can try a request out."""
    with watched(browser, listened.url, color_scheme=scheme) as own:
        page = own.context.new_page()
        page.goto("/docs")
        page.get_by_text("The blocked nodes", exact=True).click()
        page.get_by_role("button", name="Execute").click()
        expect(page.locator(".responses-table.live-responses-table")).to_contain_text("200")
        assert overflows(page) <= 0


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report on three applications on six hosts, of which n3 is slow."""
    folder = tmp_path_factory.mktemp("report")
    (folder / "logs").mkdir()
    for number in range(3):
        lines = event_log(f"app-{number}", now_ms() - 600_000 + number * 100_000, slow="n3")
        (folder / "logs" / f"app-{number}").write_text("".join(lines))
    done = run("--event-logs", str(folder / "logs"), "--html", str(folder / "report.html"))
    assert done.returncode == 0, done.stderr
    return folder / "report.html"


@pytest.mark.timeout(400)
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_report_of_the_detection(browser: Browser, report: Path, scheme: str) -> None:
    """One file, opened from the disk: its plots are there."""
    with watched(browser, report.as_uri(), color_scheme=scheme) as own:
        page = own.context.new_page()
        page.goto(report.as_uri())
        expect(page.get_by_role("cell", name="n3", exact=True).first).to_be_visible()
        plot = page.get_by_role("img", name="Slowdown of each host in each stage")
        expect(plot).to_be_visible()
        assert plot.locator("rect.cell").count() > 100
        dark = page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(23, 25, 28)"
        assert dark == (scheme == "dark")
