"""The page of a job: what it has applied and refused, where its tasks run, and what is not known."""

from __future__ import annotations

import httpx
from playwright.sync_api import Page, expect

from tests.browser.browsing import poll
from tests.integration.bodies import EVACUATE
from tests.integration.listeners import heartbeat, put, register, wait_until_lapsed


def test_a_job_shows_its_state_its_refusals_and_its_hosts(page: Page, listener_client: httpx.Client) -> None:
    register(listener_client, "etl")
    put(listener_client, "n1", cause="Disk", action=EVACUATE)
    revision = put(listener_client, "n2.example.com", cause="Fan")
    managers = {"etl:1": "n1", "etl:2": "n2", "etl:3": "n3"}
    refused = {"n1": "its <last> host"}
    heartbeat(
        listener_client,
        "etl",
        ackedRevision=revision,
        taskManagers=managers,
        runningTasks={"etl:1": 3, "etl:2": 0},
        refused=refused,
    )
    page.clock.install()
    page.goto("/page/listeners")
    page.get_by_role("link", name="etl").click()
    expect(page.get_by_role("heading", name="etl", level=1)).to_be_visible()
    expect(page.get_by_text(f"revision {revision} of {revision}")).to_be_visible()
    expect(page.get_by_text("3 running tasks, others unknown")).to_be_visible()
    expect(page.get_by_role("region", name="What is in force there")).to_contain_text("its <last> host")
    hosts = page.get_by_role("region", name="Where its tasks run")
    expect(hosts.get_by_role("rowheader")).to_have_text(["n1", "n2", "n3"])
    expect(hosts.get_by_role("row", name="n1")).to_contain_text("refused")
    expect(hosts.get_by_role("row", name="n2").get_by_text("Fan")).to_be_visible()
    expect(hosts.get_by_role("row", name="n3").locator("[data-label='Running tasks']")).to_have_text("unknown")
    # It follows changes without a reload.
    heartbeat(listener_client, "etl", runningTasks={"etl:1": 0, "etl:2": 0, "etl:3": 5}, refused={})
    poll(page)
    expect(hosts.get_by_role("row", name="n3").locator("[data-label='Running tasks']")).to_have_text("5")
    expect(page.get_by_text("its <last> host")).to_have_count(0)
    hosts.get_by_role("link", name="n2").click()
    expect(page.get_by_role("heading", name="n2.example.com", level=1)).to_be_visible()


def test_a_job_that_has_stopped_reporting_says_how_old_its_reports_are(
    page: Page, listener_client: httpx.Client
) -> None:
    register(listener_client, "lost", leaseSeconds=1)
    heartbeat(listener_client, "lost", taskManagers={"lost:1": "n1"}, runningTasks={"lost:1": 2})
    wait_until_lapsed(listener_client, "lost")
    page.goto("/page/listeners/lost")
    expect(page.get_by_role("alert")).to_contain_text("It has stopped reporting.")
    expect(page.get_by_role("alert")).to_contain_text("What it runs now is unknown")
    expect(page.get_by_text("Its lease ended")).to_be_visible()
    expect(page.get_by_role("row", name="n1").locator("[data-label='Running tasks']")).to_have_text("2")


def test_a_job_that_ends_leaves_a_page_that_says_so(page: Page, listener_client: httpx.Client) -> None:
    register(listener_client, "short")
    page.goto("/page/listeners/short")
    expect(page.get_by_text("live", exact=True)).to_be_visible()
    listener_client.delete("/listeners/short").raise_for_status()
    put(listener_client, "n1")
    expect(page.get_by_text("No listener short is registered.")).to_be_visible()
    assert listener_client.get("/page/listeners/short").status_code == 404
