"""TaskManagers: listeners report their nodes; the list and two endpoints show them."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import httpx
import pytest

from tests.integration.bodies import later
from tests.integration.conftest import Start
from tests.integration.databases import ON_BOTH, ON_SQLITE
from tests.integration.in_process import InProcessService
from tests.integration.listeners import (
    get_listener,
    heartbeat,
    put,
    register,
    unblock,
    wait_until_lapsed,
    wait_until_pushed,
)
from tests.integration.problems import problem_of
from tests.integration.process import wait_until
from tests.integration.receiver import Receiver

pytestmark = ON_SQLITE


@pytest.fixture
def jm(listener_client: httpx.Client) -> str:
    """A listener that watches."""
    register(listener_client, "jm")
    return "jm"


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as pool:
        yield pool


def listed(client: httpx.Client) -> dict[str, list[str]]:
    """Node id to its TaskManagers, as in GET /blocklist."""
    return {node_id: node["taskManagers"] for node_id, node in client.get("/blocklist").json().items()}


def blocked_of(client: httpx.Client, task_manager: str) -> str | None:
    """The id of the block that holds for a TaskManager; None if none does."""
    body = client.get(f"/taskmanagers/{task_manager}").json()
    assert body["blocked"] == ("blockedNode" in body)
    return body["blockedNode"]["id"] if body["blocked"] else None


class TestTheList:
    """GET /blocklist."""

    def test_they_are_sorted_under_their_node(self, listener_client: httpx.Client, jm: str) -> None:
        put(listener_client, "a")
        put(listener_client, "b")
        where = {"tm-2": "a", "tm-10": "a", "app:1": "a", "TM": "a", "tm-3": "b", "tm-4": "c"}
        heartbeat(listener_client, jm, taskManagers=where)
        assert listed(listener_client) == {"a": ["TM", "app:1", "tm-10", "tm-2"], "b": ["tm-3"]}
        assert listener_client.get("/blocklist/nodes/a").json()["taskManagers"] == ["TM", "app:1", "tm-10", "tm-2"]
        assert listener_client.get("/blocklist/node/b").json()["taskManagers"] == ["tm-3"]

    def test_a_node_that_is_blocked_later_shows_its_taskmanagers(self, listener_client: httpx.Client, jm: str) -> None:
        heartbeat(listener_client, jm, taskManagers={"tm-1": "a"})
        assert listed(listener_client) == {}
        put(listener_client, "a")
        assert listed(listener_client) == {"a": ["tm-1"]}

    def test_they_are_on_the_node_under_any_name_that_listeners_use(
        self, listener_client: httpx.Client, jm: str
    ) -> None:
        put(listener_client, "Node")
        heartbeat(listener_client, jm, taskManagers={"tm-1": "node", "tm-2": "Node.example.com", "tm-3": "node2"})
        assert listed(listener_client) == {"Node": ["tm-1", "tm-2"]}
        assert [blocked_of(listener_client, f"tm-{i}") for i in (1, 2, 3)] == ["Node", "Node", None]
        heartbeat(listener_client, jm, taskManagers={"tm-2": "Node.example.com"})
        assert listed(listener_client) == {"Node": ["tm-2"]}
        put(listener_client, "node2.a")
        put(listener_client, "node2.b")
        heartbeat(listener_client, jm, taskManagers={"tm-3": "node2"})
        assert blocked_of(listener_client, "tm-3") == "node2.a"

    def test_a_map_replaces_and_an_absent_one_keeps(self, listener_client: httpx.Client, jm: str) -> None:
        put(listener_client, "a")
        heartbeat(listener_client, jm, taskManagers={"tm-1": "a", "tm-2": "a"})
        heartbeat(listener_client, jm)
        assert listed(listener_client) == {"a": ["tm-1", "tm-2"]}
        heartbeat(listener_client, jm, taskManagers={"tm-2": "a"})
        assert listed(listener_client) == {"a": ["tm-2"]}
        heartbeat(listener_client, jm, taskManagers={})
        assert listed(listener_client) == {"a": []}

    def test_the_etag_covers_them(self, listener_client: httpx.Client, jm: str) -> None:
        put(listener_client, "a")
        before = listener_client.get("/blocklist")
        heartbeat(listener_client, jm, taskManagers={"tm-1": "a"})
        after = listener_client.get("/blocklist", headers={"if-none-match": before.headers["etag"]})
        assert after.status_code == 200
        assert after.headers["etag"] != before.headers["etag"]
        assert after.headers["blocklist-revision"] == before.headers["blocklist-revision"]
        heartbeat(listener_client, jm, taskManagers={"tm-1": "a"})
        assert listener_client.get("/blocklist", headers={"if-none-match": after.headers["etag"]}).status_code == 304
        heartbeat(listener_client, jm, taskManagers={"tm-1": "elsewhere"})
        assert listener_client.get("/blocklist").headers["etag"] == before.headers["etag"]

    def test_a_compressed_response_has_them_too(self, listener_client: httpx.Client, jm: str) -> None:
        put(listener_client, "a")
        heartbeat(listener_client, jm, taskManagers={f"tm-{number:04}": "a" for number in range(2_000)})
        for accepted in ("gzip", "identity"):
            answer = listener_client.get("/blocklist", headers={"accept-encoding": accepted})
            assert len(answer.json()["a"]["taskManagers"]) == 2_000

    @pytest.mark.parametrize("leaving", [False, True])
    def test_a_long_poll_returns_when_they_change(
        self, listener_client: httpx.Client, jm: str, pool: ThreadPoolExecutor, leaving: bool
    ) -> None:
        put(listener_client, "a")
        if leaving:
            heartbeat(listener_client, jm, taskManagers={"tm-1": "a"})
        headers = {"if-none-match": listener_client.get("/blocklist").headers["etag"], "prefer": "wait=25"}
        polled: Future[httpx.Response] = pool.submit(listener_client.get, "/blocklist", headers=headers)
        if leaving:
            listener_client.delete(f"/listeners/{jm}")
        else:
            heartbeat(listener_client, jm, taskManagers={"tm-1": "a"})
        answer = polled.result(60)
        assert (answer.status_code, answer.json()["a"]["taskManagers"]) == (200, [] if leaving else ["tm-1"])

    def test_watches_and_pushes_do_not_contain_them(
        self, listener_client: httpx.Client, jm: str, receiver: Receiver
    ) -> None:
        """Nodes in changes and pushes have no taskManagers, and a report makes no revision."""
        receiver.register(listener_client, "pushed")
        first = put(listener_client, "a")
        heartbeat(listener_client, jm, taskManagers={"tm-1": "a"})
        assert put(listener_client, "b") == first + 1
        wait_until_pushed(listener_client, receiver, first + 1, "pushed")
        assert all("taskManagers" not in node for node in receiver.nodes.values())

    def test_ten_thousand_are_accepted(self, listener_client: httpx.Client, jm: str) -> None:
        put(listener_client, "a")
        heartbeat(listener_client, jm, taskManagers={f"tm-{number}": "a" for number in range(10_000)})
        assert len(listed(listener_client)["a"]) == 10_000


class TestConflicts:
    """Of two listeners that report one TaskManager, the latest heartbeat wins."""

    def test_the_latest_heartbeat_wins(self, listener_client: httpx.Client, jm: str) -> None:
        register(listener_client, "other")
        put(listener_client, "a")
        put(listener_client, "b")
        heartbeat(listener_client, jm, taskManagers={"tm": "a", "mine": "a"})
        heartbeat(listener_client, "other", taskManagers={"tm": "b"})
        assert listed(listener_client) == {"a": ["mine"], "b": ["tm"]}
        assert listener_client.get("/taskmanagers/tm").json()["nodeId"] == "b"
        heartbeat(listener_client, jm, taskManagers={"tm": "a", "mine": "a"})
        assert listed(listener_client) == {"a": ["mine", "tm"], "b": []}

    def test_two_equal_reports_give_one_taskmanager(self, listener_client: httpx.Client, jm: str) -> None:
        register(listener_client, "other")
        put(listener_client, "a")
        for listener in (jm, "other", jm):
            heartbeat(listener_client, listener, taskManagers={"tm": "a"})
        assert listed(listener_client) == {"a": ["tm"]}

    def test_leaving_removes_the_reported_taskmanagers(self, listener_client: httpx.Client, jm: str) -> None:
        register(listener_client, "other")
        put(listener_client, "a")
        heartbeat(listener_client, jm, taskManagers={"tm-1": "a"})
        heartbeat(listener_client, "other", taskManagers={"tm-2": "a"})
        listener_client.delete(f"/listeners/{jm}")
        assert listed(listener_client) == {"a": ["tm-2"]}
        problem_of(listener_client.get("/taskmanagers/tm-1"), 404)

    def test_a_new_session_starts_without_any(self, listener_client: httpx.Client, jm: str) -> None:
        put(listener_client, "a")
        heartbeat(listener_client, jm, taskManagers={"tm": "a"})
        register(listener_client, jm, "s2")
        assert listed(listener_client) == {"a": []}
        problem_of(listener_client.get("/taskmanagers/tm"), 404)

    def test_a_renewal_keeps_them(self, listener_client: httpx.Client, jm: str) -> None:
        put(listener_client, "a")
        heartbeat(listener_client, jm, taskManagers={"tm": "a"})
        register(listener_client, jm)
        assert listed(listener_client) == {"a": ["tm"]}

    def test_an_expiry_removes_them(self, timed: InProcessService) -> None:
        client = timed.client()
        put(client, "a")
        register(client, "jm", leaseSeconds=1)
        heartbeat(client, "jm", taskManagers={"tm": "a"})
        etag = client.get("/blocklist").headers["etag"]
        timed.until(lambda: listed(client) == {"a": []})
        problem_of(client.get("/taskmanagers/tm"), 404)
        assert client.get("/blocklist").headers["etag"] != etag
        wait_until_lapsed(client, "jm", until=timed.until)

    @ON_BOTH
    def test_after_a_restart_a_heartbeat_restores_them(self, start: Start) -> None:
        service = start()
        with service.client() as client:
            register(client, "jm")
            put(client, "a")
            heartbeat(client, "jm", taskManagers={"tm": "a"})
        service.stop()
        service.start()
        with service.client() as client:
            assert listed(client)["a"] in ([], ["tm"])
            heartbeat(client, "jm", taskManagers={"tm": "a"})
            assert listed(client) == {"a": ["tm"]}

    def test_the_response_to_a_push_may_report_them(self, listener_client: httpx.Client, receiver: Receiver) -> None:
        receiver.report = {"taskManagers": {"tm": "a"}, "runningTasks": {"tm": 3}}
        receiver.register(listener_client, "jm")
        wait_until_pushed(listener_client, receiver, put(listener_client, "a"))
        wait_until(lambda: listed(listener_client) == {"a": ["tm"]})
        receiver.report = {"taskManagers": {}}
        wait_until(lambda: listed(listener_client) == {"a": []})


class TestOne:
    """GET /taskmanagers/{id}."""

    def test_it_is_blocked_exactly_when_its_node_is(self, timed: InProcessService) -> None:
        client = timed.client()
        register(client, "jm", leaseSeconds=3600)
        heartbeat(client, "jm", taskManagers={"tm": "a"})
        free_one = {"nodeId": "a", "blocked": False}
        assert client.get("/taskmanagers/tm").json() == free_one
        put(client, "a", endTimestamp=later(60))
        node = {
            name: value for name, value in client.get("/blocklist/nodes/a").json().items() if name != "taskManagers"
        }
        answer = client.get("/taskmanagers/tm").json()
        assert {**answer, "blockedNode": {name: answer["blockedNode"][name] for name in node}} == {
            "nodeId": "a",
            "blocked": True,
            "blockedNode": node,
        }
        timed.clock.advance(60)
        assert listed(client) == {}
        assert client.get("/taskmanagers/tm").json() == free_one
        put(client, "a")
        assert client.get("/taskmanagers/tm").json()["blocked"] is True
        unblock(client, "a")
        assert client.get("/taskmanagers/tm").json() == free_one

    def test_an_unknown_taskmanager_is_404(self, listener_client: httpx.Client) -> None:
        problem_of(listener_client.get("/taskmanagers/nobody"), 404)

    @pytest.mark.parametrize("name", ["a%20b", "a" * 254, "%C3%A4", "a%2Cb"])
    def test_an_invalid_id_is_400(self, listener_client: httpx.Client, name: str) -> None:
        problem_of(listener_client.get(f"/taskmanagers/{name}"), 400)

    def test_a_spark_executors_id(self, listener_client: httpx.Client, jm: str) -> None:
        heartbeat(listener_client, jm, taskManagers={"application_1_0001:7": "a"})
        assert listener_client.get("/taskmanagers/application_1_0001%3A7").json()["nodeId"] == "a"

    def test_a_rejected_heartbeat_changes_nothing(self, listener_client: httpx.Client, jm: str) -> None:
        put(listener_client, "a")
        heartbeat(listener_client, jm, taskManagers={"tm": "a"})
        register(listener_client, "fenced", "s1")
        register(listener_client, "fenced", "s2")
        body = {"sessionId": "s1", "taskManagers": {"tm": "b", "tm-2": "a"}}
        problem_of(listener_client.post("/listeners/fenced/heartbeat", json=body), 409)
        assert listed(listener_client) == {"a": ["tm"]}
        assert get_listener(listener_client, "fenced")["sessionId"] == "s2"
