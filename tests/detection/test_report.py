"""The HTML report, in Chromium: it convinces, nothing is cut, and it loads nothing else."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest
from playwright.sync_api import Browser, Locator, Page, expect

from blocklist import BlocklistClient
from tests.browser.browsing import monitored, overflows
from tests.detection.command import DryRun, now
from tests.detection.synthetic_logs import STAGES
from tests.integration.databases import Databases
from tests.integration.process import ROOT, ServiceProcess

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
import json
from typing import Any

from tests.detection.synthetic_logs import event_log

APPLICATIONS: Final = 3
SLOW: Final = "w" * 253
FULL_DISK: Final = "<script>document.title='owned'</script>"
NEAR_MISS: Final = f"n6-{'x' * 250}"
APP_NAME: Final = f"<img src=x onerror=document.title='owned'> {'nightly' * 30}"
_NAMES: Final = {"n3": SLOW, "n5": FULL_DISK, "n6": NEAR_MISS}


def write_report_logs(folder: Path, began: int) -> Path:
    """Write three applications of seven minutes' distance; the near miss is slow in the last one only."""
    folder.mkdir()
    for number in range(APPLICATIONS):
        events = [json.loads(line) for line in event_log(f"app-{number}", began + number * 420_000, slow="n3")]
        for event in events:
            _change(event, is_last=number == APPLICATIONS - 1)
        (folder / f"app-{number}").write_text(
            "".join(json.dumps(event, separators=(",", ":")) + "\n" for event in events)
        )
    (folder / "notes.txt").write_text("Ask Kim about rack 7.\n")
    return folder


def _change(event: dict[str, Any], *, is_last: bool) -> None:
    if "App Name" in event:
        event["App Name"] = APP_NAME
    if event["Event"] != "SparkListenerTaskEnd":
        return
    info, host = event["Task Info"], event["Task Info"]["Host"]
    if host == "n6" and is_last:
        event["Task Metrics"]["Executor Run Time"] *= 2
        info["Finish Time"] = info["Launch Time"] + event["Task Metrics"]["Executor Run Time"]
    if host == "n5" and info["Launch Time"] % 3 == 0:
        del event["Task Metrics"]
        error = {"Class Name": "java.io.IOException", "Description": "No space left on device"}
        event["Task End Reason"] = {"Reason": "ExceptionFailure", **error}
    info["Host"] = _NAMES.get(host, host)


CONTRAST: Final = (ROOT / "tests/browser/contrast.js").read_text()
GEOMETRY: Final = Path(__file__).with_name("geometry.js").read_text()


@pytest.fixture(scope="module")
def report(spark: SparkSession, databases: Databases, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report of a run that asks a service, where the slow node was blocked and unblocked by hand before."""
    from blocklist.detection.__main__ import main

    folder = tmp_path_factory.mktemp("report")
    page = folder / "report.html"
    with (
        ServiceProcess(folder, **databases.settings(folder)) as service,
        BlocklistClient(service.url) as client,
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setenv("PYTHONPATH", str(ROOT))  # the command adds to it
        client.block(SLOW, "Fan is <b>loud</b>")
        client.unblock(SLOW)
        logs = write_report_logs(folder / "logs", now() + 60_000)
        arguments = ["--event-logs", str(logs), "--url", service.url, "--html", str(page)]
        assert main(arguments) == 0
    return page


@pytest.fixture
def page(browser: Browser, report: Path) -> Iterator[Page]:
    with monitored(browser, report.as_uri()) as own:
        page = own.context.new_page()
        page.goto(report.as_uri())
        yield page


def verdict(page: Page, host: str) -> Locator:
    return page.get_by_role("region", name=host, exact=True)


def medians(picture: Locator) -> list[float]:
    """The medians of the host and of its peers, in seconds, as the description of the picture says."""
    text = picture.locator("desc").text_content()
    return [float(it) for it in re.findall(r"median ([0-9.]+) s", text or "")]


def left_of(line: Locator) -> float:
    left: float = line.evaluate("(it) => it.getBoundingClientRect().left")
    return left


def test_a_slow_host_is_shown_against_its_peers_stage_by_stage(page: Page) -> None:
    own = verdict(page, SLOW)
    effect = own.locator(".effect").inner_text()
    found = re.fullmatch(
        r"2\.[0-9]x slower than its peers in [0-9]+ of ([0-9]+) stages of ([23]) applications \(95 %: .*\)\.", effect
    )
    assert found, effect
    pictures = own.get_by_role("img").filter(has=page.locator(".median"))
    total = int(found[1])
    assert pictures.count() == min(12, total)
    if total > 12:
        expect(own.get_by_text(f"{total - 12} more stages are not shown; the node was slow in")).to_be_visible()
    for picture in pictures.all():
        slow, usual = medians(picture)
        assert slow == pytest.approx(2.2, rel=0.3)
        assert usual == pytest.approx(1.0, rel=0.15)
        assert left_of(picture.locator(".own.median")) > left_of(picture.locator(".peers.median")) + 20
        expect(picture.get_by_text("task time without GC and fetch wait, in s")).to_be_visible()
        expect(picture.get_by_text(re.compile("^5 peers: "))).to_be_visible()


def test_the_verdict_says_since_when_and_what_it_cost(page: Page) -> None:
    own = verdict(page, SLOW)
    expect(own.get_by_text(re.compile("^20.*first in ")).first).to_contain_text(APP_NAME)
    lost = own.get_by_text(re.compile("core-hours of [23] applications$")).inner_text()
    # Of each application 18 tasks lose 1.2 s each; the first ones of executors do not count.
    assert float(lost.split()[0]) == pytest.approx(3 * STAGES * 1.2 * APPLICATIONS / 3600, rel=0.4)
    cost = page.get_by_role("table", name=re.compile("^Core-hours that these nodes"))
    expect(cost.get_by_role("row")).to_have_count(1 + APPLICATIONS)
    expect(cost.get_by_role("row", name="app-1")).to_contain_text(f"{SLOW}: 0.0")
    expect(cost.get_by_role("row", name="app-1")).to_contain_text(f"{FULL_DISK}: 0.0")


def test_the_timeline_has_applications_blocks_and_manual_unblocks(page: Page) -> None:
    line = verdict(page, SLOW).get_by_role("table", name=re.compile("^From 20"))
    for number in range(APPLICATIONS):
        row = line.get_by_role("row", name=f"app-{number}")
        expect(row).to_contain_text("x slower in ")
        assert row.locator("rect.differed").count() == 1
    blocks = line.get_by_role("row", name=re.compile("^Blocks"))
    expect(blocks).to_contain_text("by anonymous: Fan is <b>loud</b>")
    expect(line.get_by_role("row", name=re.compile("^Unblocked by hand 20"))).to_be_visible()
    assert line.locator("rect.blocked").count() == line.locator("rect.unblocked").count() == 1
    expect(line.get_by_role("row", name=re.compile("^Charged to this host 0 tasks"))).to_be_visible()


def test_a_failing_host_is_shown_with_its_failures_against_its_peers(page: Page) -> None:
    own = verdict(page, FULL_DISK)
    expect(own.locator(".effect")).to_have_text(
        re.compile("^Disk full in [0-9]+ tasks of 3 applications and in 0 on all")
    )
    pictures = own.get_by_role("img").filter(has=page.locator("rect.own"))
    assert 3 <= pictures.count() <= 12
    for picture in pictures.all():
        expect(picture.locator("desc")).to_contain_text(
            re.compile("this host: [1-3] of its 3 tasks; worst of 5 peers: 0, 0 of 15")
        )
        assert float(picture.locator("rect.own").get_attribute("width") or 0) > 50
        assert float(picture.locator("rect.peers").get_attribute("width") or 0) == 0
    line = own.get_by_role("table", name=re.compile("^From 20"))
    expect(line.get_by_role("row", name=re.compile("^Charged to this host [1-9]"))).to_contain_text("disk full")
    assert line.locator("rect.failed").count() >= 3
    expect(own.get_by_text(re.compile("^not applied: ")).first).to_be_visible()


def test_near_misses_have_their_condition_and_notes_say_what_was_skipped(page: Page) -> None:
    row = page.get_by_role("table", name=re.compile("^Nodes that look slow")).get_by_role("row", name=NEAR_MISS)
    expect(row).to_contain_text("x slower than its peers in ")
    expect(row.locator("[data-label='Condition']")).not_to_be_empty()
    expect(page.get_by_text(re.compile("notes.txt is not an event log"))).to_be_visible()


def test_healthy_hosts_are_shown_on_demand(page: Page) -> None:
    table = page.get_by_role("table", name=re.compile("^The slowest first"))
    expect(table).to_be_hidden()
    page.locator("summary").focus()
    page.keyboard.press("Enter")
    expect(table).to_be_visible()
    assert sorted(table.get_by_role("rowheader").all_inner_texts()) == ["n1", "n2", "n4"]


def test_names_in_logs_are_text(page: Page) -> None:
    assert page.title() == "Slow and failing nodes"
    assert page.locator("script, img[src]").count() == 0
    expect(page.get_by_role("heading", name=FULL_DISK)).to_be_visible()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1920])
def test_nothing_is_cut(browser: Browser, report: Path, width: int, scheme: str) -> None:
    """Names of 253 characters are whole, no text is outside of its picture or the window, or on top of another one."""
    with monitored(browser, report.as_uri(), (width, 1000), color_scheme=scheme) as own:
        page = own.context.new_page()
        page.goto(report.as_uri())
        page.locator("details").evaluate("(it) => { it.open = true; }")
        assert overflows(page) <= 0
        assert page.evaluate(GEOMETRY) == []
        assert page.evaluate(CONTRAST) == []
        shown = page.locator("main").inner_text()
        assert all(name in shown for name in (SLOW, NEAR_MISS, FULL_DISK, APP_NAME))
        assert "…" not in shown
        dark = page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(21, 24, 28)"
        assert dark == (scheme == "dark")


def test_tables_and_pictures_have_names(page: Page) -> None:
    page.locator("details").evaluate("(it) => { it.open = true; }")
    for table in page.get_by_role("table").all():
        assert table.locator("caption").inner_text()
        assert table.locator("th:not([scope])").count() == 0
    for picture in page.get_by_role("img").all():
        assert picture.locator("title").first.text_content()
        assert picture.locator("desc").text_content()
    ids = page.evaluate("[...document.querySelectorAll('[id]')].map((it) => it.id)")
    assert len(ids) == len(set(ids))
    named = page.locator("[aria-labelledby]").evaluate_all(
        "(all) => all.map((it) => it.getAttribute('aria-labelledby'))"
    )
    assert named
    assert {name for names in named for name in names.split()} <= set(ids)


def test_without_a_service_blocks_are_unknown_and_the_page_loads_nothing(proposed: DryRun) -> None:
    text = proposed.report.read_text()
    assert "unknown: no service was asked" in text
    assert "none before this run" not in text
    assert not re.search(r"""(src|href)=["']?[^"'#]""", text), "it needs nothing else"
