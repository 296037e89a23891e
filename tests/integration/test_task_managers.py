"""TaskManagers: listeners say where they are, and the list and two endpoints show it."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import httpx
import pytest

from tests.integration.bodies import later
from tests.integration.conftest import Start
from tests.integration.databases import ON_BOTH
from tests.integration.listeners import free, known, lapse, put, register, report, told
from tests.integration.problems import problem_of
from tests.integration.process import wait_until
from tests.integration.receiver import Receiver

pytestmark = ON_BOTH


@pytest.fixture
def jm(desk: httpx.Client) -> str:
    """A listener that watches."""
    register(desk, "jm")
    return "jm"


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as pool:
        yield pool


def listed(client: httpx.Client) -> dict[str, list[str]]:
    """Node id -> its TaskManagers, as GET /blocklist says."""
    return {node_id: node["taskManagers"] for node_id, node in client.get("/blocklist").json().items()}


class TestTheList:
    """GET /blocklist."""

    def test_they_are_sorted_under_their_node(self, desk: httpx.Client, jm: str) -> None:
        put(desk, "a")
        put(desk, "b")
        where = {"tm-2": "a", "tm-10": "a", "app:1": "a", "TM": "a", "tm-3": "b", "tm-4": "c"}
        report(desk, jm, taskManagers=where)
        assert listed(desk) == {"a": ["TM", "app:1", "tm-10", "tm-2"], "b": ["tm-3"]}
        assert desk.get("/blocklist/nodes/a").json()["taskManagers"] == ["TM", "app:1", "tm-10", "tm-2"]
        assert desk.get("/blocklist/node/b").json()["taskManagers"] == ["tm-3"]

    def test_a_node_that_is_blocked_later_has_those_that_were_there(self, desk: httpx.Client, jm: str) -> None:
        report(desk, jm, taskManagers={"tm-1": "a"})
        assert listed(desk) == {}
        put(desk, "a")
        assert listed(desk) == {"a": ["tm-1"]}

    def test_node_ids_are_compared_exactly(self, desk: httpx.Client, jm: str) -> None:
        put(desk, "Node")
        report(desk, jm, taskManagers={"tm-1": "node", "tm-2": "Node."})
        assert listed(desk) == {"Node": []}

    def test_a_given_map_replaces_and_an_absent_one_leaves(self, desk: httpx.Client, jm: str) -> None:
        put(desk, "a")
        report(desk, jm, taskManagers={"tm-1": "a", "tm-2": "a"})
        report(desk, jm)
        assert listed(desk) == {"a": ["tm-1", "tm-2"]}
        report(desk, jm, taskManagers={"tm-2": "a"})
        assert listed(desk) == {"a": ["tm-2"]}
        report(desk, jm, taskManagers={})
        assert listed(desk) == {"a": []}

    def test_the_etag_covers_them(self, desk: httpx.Client, jm: str) -> None:
        put(desk, "a")
        before = desk.get("/blocklist")
        report(desk, jm, taskManagers={"tm-1": "a"})
        after = desk.get("/blocklist", headers={"if-none-match": before.headers["etag"]})
        assert after.status_code == 200
        assert after.headers["etag"] != before.headers["etag"]
        assert after.headers["blocklist-revision"] == before.headers["blocklist-revision"]
        report(desk, jm, taskManagers={"tm-1": "a"})
        assert desk.get("/blocklist", headers={"if-none-match": after.headers["etag"]}).status_code == 304
        report(desk, jm, taskManagers={"tm-1": "elsewhere"})
        assert desk.get("/blocklist").headers["etag"] == before.headers["etag"]

    def test_a_zipped_answer_has_them_too(self, desk: httpx.Client, jm: str) -> None:
        put(desk, "a")
        report(desk, jm, taskManagers={f"tm-{number:04}": "a" for number in range(2_000)})
        for accepted in ("gzip", "identity"):
            answer = desk.get("/blocklist", headers={"accept-encoding": accepted})
            assert len(answer.json()["a"]["taskManagers"]) == 2_000

    @pytest.mark.parametrize("leaving", [False, True])
    def test_a_long_poll_answers_when_they_change(
        self, desk: httpx.Client, jm: str, pool: ThreadPoolExecutor, leaving: bool
    ) -> None:
        put(desk, "a")
        if leaving:
            report(desk, jm, taskManagers={"tm-1": "a"})
        headers = {"if-none-match": desk.get("/blocklist").headers["etag"], "prefer": "wait=25"}
        polled: Future[httpx.Response] = pool.submit(desk.get, "/blocklist", headers=headers)
        if leaving:
            desk.delete(f"/listeners/{jm}")
        else:
            report(desk, jm, taskManagers={"tm-1": "a"})
        answer = polled.result(60)
        assert (answer.status_code, answer.json()["a"]["taskManagers"]) == (200, [] if leaving else ["tm-1"])

    def test_nobodys_watch_is_told_of_them(self, desk: httpx.Client, jm: str, receiver: Receiver) -> None:
        """Nodes in changes and in pushes have no taskManagers, and a TaskManager makes no revision."""
        receiver.register(desk, "pushed")
        first = put(desk, "a")
        report(desk, jm, taskManagers={"tm-1": "a"})
        assert put(desk, "b") == first + 1
        told(desk, receiver, first + 1, "pushed")
        assert all("taskManagers" not in node for node in receiver.nodes.values())

    def test_ten_thousand_are_taken(self, desk: httpx.Client, jm: str) -> None:
        put(desk, "a")
        report(desk, jm, taskManagers={f"tm-{number}": "a" for number in range(10_000)})
        assert len(listed(desk)["a"]) == 10_000


class TestWhoClaims:
    """Where two name one TaskManager the newest heartbeat wins."""

    def test_the_newest_heartbeat_wins(self, desk: httpx.Client, jm: str) -> None:
        register(desk, "other")
        put(desk, "a")
        put(desk, "b")
        report(desk, jm, taskManagers={"tm": "a", "mine": "a"})
        report(desk, "other", taskManagers={"tm": "b"})
        assert listed(desk) == {"a": ["mine"], "b": ["tm"]}
        assert desk.get("/taskmanagers/tm").json()["nodeId"] == "b"
        report(desk, jm, taskManagers={"tm": "a", "mine": "a"})
        assert listed(desk) == {"a": ["mine", "tm"], "b": []}

    def test_two_that_say_the_same_make_one(self, desk: httpx.Client, jm: str) -> None:
        register(desk, "other")
        put(desk, "a")
        for listener in (jm, "other", jm):
            report(desk, listener, taskManagers={"tm": "a"})
        assert listed(desk) == {"a": ["tm"]}

    def test_leaving_takes_away_what_it_claimed(self, desk: httpx.Client, jm: str) -> None:
        register(desk, "other")
        put(desk, "a")
        report(desk, jm, taskManagers={"tm-1": "a"})
        report(desk, "other", taskManagers={"tm-2": "a"})
        desk.delete(f"/listeners/{jm}")
        assert listed(desk) == {"a": ["tm-2"]}
        problem_of(desk.get("/taskmanagers/tm-1"), 404)

    def test_a_new_session_begins_without_any(self, desk: httpx.Client, jm: str) -> None:
        put(desk, "a")
        report(desk, jm, taskManagers={"tm": "a"})
        register(desk, jm, "s2")
        assert listed(desk) == {"a": []}
        problem_of(desk.get("/taskmanagers/tm"), 404)

    def test_a_renewal_keeps_them(self, desk: httpx.Client, jm: str) -> None:
        put(desk, "a")
        report(desk, jm, taskManagers={"tm": "a"})
        register(desk, jm)
        assert listed(desk) == {"a": ["tm"]}

    def test_a_lapse_drops_them(self, desk: httpx.Client) -> None:
        put(desk, "a")
        register(desk, "jm", leaseSeconds=1)
        report(desk, "jm", taskManagers={"tm": "a"})
        etag = desk.get("/blocklist").headers["etag"]
        wait_until(lambda: listed(desk) == {"a": []})
        problem_of(desk.get("/taskmanagers/tm"), 404)
        assert desk.get("/blocklist").headers["etag"] != etag
        lapse(desk, "jm")

    def test_after_a_restart_a_heartbeat_brings_them_back(self, start: Start) -> None:
        service = start()
        with service.client() as client:
            register(client, "jm")
            put(client, "a")
            report(client, "jm", taskManagers={"tm": "a"})
        service.stop()
        service.start()
        with service.client() as client:
            assert listed(client)["a"] in ([], ["tm"])
            report(client, "jm", taskManagers={"tm": "a"})
            assert listed(client) == {"a": ["tm"]}

    def test_a_pushed_one_says_them_in_its_answer(self, desk: httpx.Client, receiver: Receiver) -> None:
        receiver.said = {"taskManagers": {"tm": "a"}, "runningTasks": {"tm": 3}}
        receiver.register(desk, "jm")
        told(desk, receiver, put(desk, "a"))
        wait_until(lambda: listed(desk) == {"a": ["tm"]})
        receiver.said = {"taskManagers": {}}
        wait_until(lambda: listed(desk) == {"a": []})


class TestOne:
    """GET /taskmanagers/{id}."""

    def test_it_is_blocked_exactly_when_its_node_is(self, desk: httpx.Client, jm: str) -> None:
        report(desk, jm, taskManagers={"tm": "a"})
        free_one = {"nodeId": "a", "blocked": False}
        assert desk.get("/taskmanagers/tm").json() == free_one
        put(desk, "a", endTimestamp=later(1.5))
        node = {name: value for name, value in desk.get("/blocklist/nodes/a").json().items() if name != "taskManagers"}
        answer = desk.get("/taskmanagers/tm").json()
        assert {**answer, "blockedNode": {name: answer["blockedNode"][name] for name in node}} == {
            "nodeId": "a",
            "blocked": True,
            "blockedNode": node,
        }
        wait_until(lambda: "a" not in listed(desk))
        assert desk.get("/taskmanagers/tm").json() == free_one
        put(desk, "a")
        assert desk.get("/taskmanagers/tm").json()["blocked"] is True
        free(desk, "a")
        assert desk.get("/taskmanagers/tm").json() == free_one

    def test_an_unknown_one_is_404_never_a_silent_no(self, desk: httpx.Client) -> None:
        problem_of(desk.get("/taskmanagers/nobody"), 404)

    @pytest.mark.parametrize("name", ["a%20b", "a" * 254, "%C3%A4", "a%2Cb"])
    def test_an_id_that_is_none_is_400(self, desk: httpx.Client, name: str) -> None:
        problem_of(desk.get(f"/taskmanagers/{name}"), 400)

    def test_a_spark_executors_id(self, desk: httpx.Client, jm: str) -> None:
        report(desk, jm, taskManagers={"application_1_0001:7": "a"})
        assert desk.get("/taskmanagers/application_1_0001%3A7").json()["nodeId"] == "a"

    def test_a_word_that_is_refused_changes_nothing(self, desk: httpx.Client, jm: str) -> None:
        put(desk, "a")
        report(desk, jm, taskManagers={"tm": "a"})
        register(desk, "fenced", "s1")
        register(desk, "fenced", "s2")
        body = {"sessionId": "s1", "taskManagers": {"tm": "b", "tm-2": "a"}}
        problem_of(desk.post("/listeners/fenced/heartbeat", json=body), 409)
        assert listed(desk) == {"a": ["tm"]}
        assert known(desk, "fenced")["sessionId"] == "s2"
