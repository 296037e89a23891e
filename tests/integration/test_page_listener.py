"""The page of a listener: what it has applied and refused, where its tasks run, and what is not known."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from fastapi.testclient import TestClient

from app.page.listeners import MAX_UNCACHED, MS_PER_HOST, PAGE_SIZE
from blocklist.model.listener import LEASE_SECONDS
from tests.integration.bodies import EVACUATE, MARK, block
from tests.integration.in_process import ManualClock, running_service
from tests.integration.listeners import RM
from tests.integration.process import wait_until
from tests.integration.test_page_tasks import cells, get, text_of

NOW = 1_795_000_000_000
LEASE_MS = LEASE_SECONDS * 1000


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(NOW)


@pytest.fixture
def client(database_url: str, clock: ManualClock) -> Iterator[TestClient]:
    with running_service(database_url, clock) as client:
        yield client


def register(client: TestClient, listener: str = "etl", **fields: object) -> None:
    body = {"role": "JOB_MASTER", "sessionId": "s-1", **fields}
    client.put(f"/listeners/{listener}", json=body).raise_for_status()


def heartbeat(client: TestClient, listener: str = "etl", **fields: object) -> None:
    client.post(f"/listeners/{listener}/heartbeat", json={"sessionId": "s-1", **fields}).raise_for_status()


def put(client: TestClient, node: str, **fields: object) -> int:
    answer = client.put(f"/blocklist/nodes/{node}", json=block(**fields)).raise_for_status()
    return int(answer.headers["blocklist-revision"])


def facts(html: str) -> dict[str, str]:
    """The facts on the page, by name."""
    found = re.findall(r"<dt>(.*?)</dt><dd>(.*?)</dd>", html, re.DOTALL)
    return {name: text_of(value) for name, value in found}


def hosts(html: str) -> dict[str, tuple[str, str, str]]:
    """For each node of the listener its TaskManagers, running tasks, and what happens there."""
    table = html[html.index('id="hosts"') :].partition("</table>")[0]
    names = [text_of(name) for name in re.findall(r'<th scope="row">(.*?)</th>', table)]
    columns = (cells(table, label) for label in ("TaskManagers", "Running tasks", "What happens"))
    return dict(zip(names, zip(*columns, strict=True), strict=True))


def test_it_shows_host_by_host_what_still_runs(client: TestClient) -> None:
    register(client)
    revision = 0
    for node, action in (
        ("gone", EVACUATE),
        ("busy", EVACUATE),
        ("dark", EVACUATE),
        ("calm", MARK),
        ("last", EVACUATE),
    ):
        revision = put(client, node, action=action)
    names = ("gone", "busy", "busy", "dark", "calm", "last", "free", "free2")
    running = {"0": 0, "1": 3, "4": 2, "5": 4, "6": 1}
    there = {str(place): name for place, name in enumerate(names)}
    refused = {"last": "It is its last host."}
    heartbeat(client, ackedRevision=revision, refused=refused, taskManagers=there, runningTasks=running)
    page = get(client, "/page/listeners/etl")
    assert hosts(page) == {
        "last": ("1", "4", "refused It is its last host."),
        "busy": ("2", "3, others unknown", "evacuating"),
        "dark": ("1", "unknown", "unknown"),
        "calm": ("1", "2", "left alone"),
        "gone": ("1", "0", "empty"),
        "free": ("1", "1", "free"),
        "free2": ("1", "unknown", "free"),
    }
    assert "7 nodes, 8 TaskManagers, 10 running tasks, others unknown;" in text_of(page)
    assert "of the blocked nodes 1 refused, 1 evacuating, 1 unknown, 1 left alone, 1 empty" in text_of(page)
    assert "How many tasks run on 3 of its 8 TaskManagers: it does not report them." in page
    assert 'data-settled="false"' in page
    later = put(client, "free2", action=EVACUATE)
    assert hosts(get(client, "/page/listeners/etl/state"))["free2"] == ("1", "unknown", "not applied yet")
    heartbeat(client, ackedRevision=later, refused={}, runningTasks=dict.fromkeys(map(str, range(8)), 0))
    assert 'data-settled="true"' in get(client, "/page/listeners/etl/state")


def test_it_says_what_the_listener_is_and_how_far_it_is(client: TestClient, clock: ManualClock) -> None:
    put(client, "n1")
    register(client, minNodes=2, leaseSeconds=120)
    clock.now += 4_000
    shown = facts(get(client, "/page/listeners/etl"))
    assert shown["State"] == "live"
    assert shown["Role"].startswith("JobMaster")
    assert shown["Registered"].endswith("UTC (4 s ago)")
    assert shown["Session"] == "s-1"
    assert shown["Lease"] == "2 min, 1 min 56 s left"
    assert (shown["Applied"], shown["Behind"]) == ("nothing yet; the list is at revision 1", "the whole list, for 4 s")
    assert shown["Usable nodes"] == "unknown (needs 2)"
    heartbeat(client, ackedRevision=1, nodes=["n1", "n2", "n3", "n4"])
    put(client, "n2")
    shown = facts(get(client, "/page/listeners/etl"))
    assert (shown["Applied"], shown["Behind"]) == ("revision 1 of 2", "1 change")
    assert shown["Usable nodes"] == "2 (needs 2)"
    register(client, "yarn", role=RM, callbackUrl="http://127.0.0.1:1/blocklist")
    shown = facts(get(client, "/page/listeners/yarn"))
    assert shown["Role"].startswith("ResourceManager")
    assert shown["Delivery"] == "push to http://127.0.0.1:1/blocklist"


def test_what_is_not_reported_is_unknown(client: TestClient) -> None:
    put(client, "n1")
    register(client)
    html = get(client, "/page/listeners/etl")
    assert (facts(html)["Refuses"], facts(html)["Usable nodes"]) == ("unknown", "unknown")
    page = text_of(html)
    for sentence in (
        "Whether any block is in force there: it has not acknowledged the list yet.",
        "Where its tasks run: it has not reported its TaskManagers.",
        "Whether it refuses a block: it has not reported that.",
    ):
        assert sentence in page
    heartbeat(client, ackedRevision=1, taskManagers={"tm": "n1"}, runningTasks={"tm": 0}, refused={})
    assert "What is not known" not in get(client, "/page/listeners/etl")
    assert facts(get(client, "/page/listeners/etl"))["Refuses"] == "no block"
    register(client, "yarn", role=RM)
    assert "Which nodes it has: it has not reported any." in get(client, "/page/listeners/yarn")


def test_what_a_lapsed_listener_reported_is_shown_as_old(client: TestClient, clock: ManualClock) -> None:
    revision = put(client, "n1", action=EVACUATE)
    register(client)
    heartbeat(
        client,
        ackedRevision=revision,
        taskManagers={"a": "n1", "b": "n2"},
        runningTasks={"a": 3},
        refused={"n1": "Its last host."},
    )
    clock.now += LEASE_MS + 60_000
    # Whether or not the end of its lease has been noticed already.
    for noticed in (False, True):
        if noticed:
            wait_until(lambda: client.get("/taskmanagers/a").status_code == 404)
        page = get(client, "/page/listeners/etl")
        assert hosts(page) == {"n1": ("1", "3", "unknown"), "n2": ("1", "unknown", "free")}
        text = text_of(page)
        assert "Its lease ended 1 min ago." in text
        assert "UTC, 1 min 50 s ago." in text
        assert "Where its tasks ran 1 min 50 s ago" in text
        assert "Where its tasks run now, and which blocks are in force there: it has stopped reporting." in text
        shown = facts(page)
        assert shown["State"].startswith("lapsed since")
        assert (shown["Refuses"], shown["Usable nodes"]) == ("1 block", "unknown")
        assert shown["Applied"] == "revision 1 of 1, as far as it reported"
    register(client)
    page = get(client, "/page/listeners/etl")
    assert "It reports no TaskManager" not in page, "it has not reported since it is back"
    assert "Where its tasks run: it has not reported its TaskManagers." in page


def test_after_a_restart_it_is_unknown_what_a_lapsed_listener_reported(database_url: str, clock: ManualClock) -> None:
    with running_service(database_url, clock) as client:
        register(client)
        heartbeat(client, taskManagers={"a": "n1"})
        clock.now += LEASE_MS
        wait_until(lambda: client.get("/taskmanagers/a").status_code == 404)
    with running_service(database_url, clock) as client:
        # The lease is found to have ended a moment after the start.
        unknown = "Unknown: the service has no report of it any more."
        wait_until(lambda: unknown in get(client, "/page/listeners/etl"))
        page = get(client, "/page/listeners/etl")
    assert facts(page)["Refuses"] == "unknown"


def test_nobody_knows_the_listener(client: TestClient) -> None:
    answer = client.get("/page/listeners/nobody")
    assert answer.status_code == 404
    text = text_of(answer.text)
    assert "No listener nobody is registered." in text
    assert "look into its log" in text
    assert '<a href="/page/listeners">' in answer.text
    # An open page shows that its listener has left: htmx would ignore a 404.
    register(client)
    client.delete("/listeners/etl").raise_for_status()
    state = client.get("/page/listeners/etl/state")
    assert (state.status_code, "No listener etl is registered." in state.text) == (200, True)
    assert client.get("/page/listeners/a%20b").status_code == 400


def test_many_nodes_are_split_into_pages(client: TestClient) -> None:
    register(client)
    heartbeat(client, taskManagers={f"tm-{number}": f"n{number:03}" for number in range(2 * PAGE_SIZE + 1)})
    assert next(iter(hosts(get(client, "/page/listeners/etl?page=2")))) == f"n{PAGE_SIZE:03}"
    for too_far in ("3", "99999", "0", "-1", "x"):
        assert len(hosts(get(client, f"/page/listeners/etl?page={too_far}"))) in {1, PAGE_SIZE}
    assert "/state?page=2" in get(client, "/page/listeners/etl?page=2"), "updates stay on the page"


def test_many_nodes_are_not_looked_up_for_each_visitor(client: TestClient, clock: ManualClock) -> None:
    number = MAX_UNCACHED + 1
    register(client)
    heartbeat(client, taskManagers={f"tm-{place}": f"n{place:03}" for place in range(number)})
    assert "of the blocked nodes" not in get(client, "/page/listeners/etl")
    put(client, "n007")
    clock.now += number * MS_PER_HOST - 1
    assert "of the blocked nodes" not in get(client, "/page/listeners/etl")
    clock.now += 1
    page = get(client, "/page/listeners/etl")
    assert "of the blocked nodes 1 not applied yet" in text_of(page)
    assert "as of" not in text_of(page)
    # Another session of the listener does not get the rows of the former one.
    register(client, sessionId="s-2")
    assert "Where its tasks run: it has not reported its TaskManagers." in get(client, "/page/listeners/etl")


def test_other_pages_lead_to_it(client: TestClient) -> None:
    register(client)
    revision = put(client, "n1")
    link = '<a href="/page/listeners/etl">etl</a>'
    evidence = {"n1": {"kind": "slow", "reason": "Slow."}}
    heartbeat(client, taskManagers={"tm": "n1"}, evidence=evidence)
    for path in ("/page/listeners", "/?group=cause", "/page/nodes/n1", "/page/evidence"):
        assert link in get(client, path), path
    heartbeat(client, ackedRevision=revision, refused={"n1": "no"})
    assert link in get(client, "/page/nodes/n1")


def test_what_a_listener_reports_is_escaped(client: TestClient) -> None:
    evil = "<img src=x onerror=window.hit=1>"
    register(client)
    put(client, "n1", cause=evil)
    heartbeat(
        client,
        ackedRevision=1,
        taskManagers={"tm": "n1"},
        refused={"n1": evil},
        evidence={"n1": {"kind": "slow", "reason": evil}},
    )
    page = get(client, "/page/listeners/etl")
    assert evil not in page
    assert text_of(page).count(evil) == 4
