"""Evidence: applications report problems with nodes, and the service blocks a node if enough of them agree."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import httpx
import httpx2
import pytest

from app.engine.background import RELOADED_CHANGES, RESTART_GRACE_MS
from blocklist.client.session import ListenerSession
from blocklist.model.evidence import BLOCK_MS, MAX_PER_PRINCIPAL, TTL_MS, Finding, FindingKind
from blocklist.model.listener import ListenerRole, Registration, Report
from tests.integration.bodies import all_changes, block, current_list, later, now_ms
from tests.integration.conftest import Start, StartInProcess
from tests.integration.databases import ON_BOTH, ON_SQLITE
from tests.integration.in_process import InProcessService, ManualClock, running_service
from tests.integration.listeners import (
    JM,
    RM,
    get_listener,
    heartbeat,
    post_heartbeat,
    put,
    register,
    registration_body,
    unblock,
    wait_until_lapsed,
    without_lag,
)
from tests.integration.problems import problem_of
from tests.integration.process import ServiceProcess, wait_until
from tests.integration.receiver import Receiver

pytestmark = ON_SQLITE

Body = dict[str, Any]
WHERE = {"tm-1": "a", "tm-2": "b", "tm-3": "c", "tm-4": "d", "tm-5": "e"}
EXCLUDED = {"kind": "excluded", "reason": "Spark excluded the host."}
FAILING = {"kind": "failing", "reason": "4 tasks failed on the host within a minute that succeed on other hosts."}
SLOW = {"kind": "slow", "reason": "Spark speculated 3 tasks, of 1 stage."}
CAUSE = "2 applications say so: x (Spark excluded the host); y (Spark excluded the host)"


def application(client: httpx.Client, name: str, session: str = "s1", **fields: object) -> str:
    """A JobMaster with TaskManagers on five nodes."""
    register(client, name, session, **fields)
    heartbeat(client, name, session, taskManagers={f"{name}:{executor}": node for executor, node in WHERE.items()})
    return name


def report_evidence(client: httpx.Client, name: str, *nodes: str, session: str = "s1") -> None:
    heartbeat(client, name, session, evidence=dict.fromkeys(nodes, EXCLUDED))


def evidence(client: httpx.Client | httpx2.Client) -> list[Body]:
    answer = client.get("/evidence")
    assert answer.status_code == 200, answer.text
    found: list[Body] = answer.json()["evidence"]
    return found


def summary(client: httpx.Client | httpx2.Client) -> list[tuple[str, str, bool]]:
    return [(entry["node"], entry["application"], entry["believed"]) for entry in evidence(client)]


def blocked(client: httpx.Client, node: str) -> Body:
    """The node, as soon as it is blocked."""
    wait_until(lambda: client.get(f"/blocklist/nodes/{node}").status_code == 200)
    body: Body = client.get(f"/blocklist/nodes/{node}").json()
    return body


def wait_until_evaluated(client: httpx.Client) -> None:
    """Return when all earlier reports have been evaluated: the service has blocked another node since."""
    for name in ("probe-1", "probe-2"):
        application(client, name)
        report_evidence(client, name, "probe")
    blocked(client, "probe")
    for name in ("probe-1", "probe-2"):
        client.delete(f"/listeners/{name}")
    unblock(client, "probe")


def metric(client: httpx.Client, line: str) -> float:
    lines = [found for found in client.get("/metrics").text.splitlines() if found.startswith(f"{line} ")]
    assert len(lines) == 1, line
    return float(lines[0].split()[-1])


class TestReporting:
    """The map `evidence` of a heartbeat, and GET /evidence."""

    def test_without_evidence(self, listener_client: httpx.Client) -> None:
        answer = listener_client.get("/evidence")
        assert (answer.status_code, answer.json()) == (200, {"evidence": []})
        assert answer.headers["content-type"] == "application/json"
        assert answer.headers["blocklist-revision"] == listener_client.get("/blocklist").headers["blocklist-revision"]
        assert (listener_client.head("/evidence").status_code, listener_client.head("/evidence").content) == (200, b"")

    def test_it_is_listed_by_node_and_application(self, listener_client: httpx.Client) -> None:
        application(listener_client, "y")
        application(listener_client, "x")
        before = now_ms()
        heartbeat(listener_client, "y", evidence={"b": EXCLUDED, "a": SLOW})
        heartbeat(listener_client, "x", evidence={"c": FAILING})
        assert summary(listener_client) == [("a", "y", True), ("b", "y", True), ("c", "x", True)]
        assert [entry["kind"] for entry in evidence(listener_client)] == ["slow", "excluded", "failing"]
        entry = evidence(listener_client)[0]
        assert before <= int(entry["firstSeen"]) == int(entry["lastSeen"]) <= now_ms()
        assert entry == {
            "node": "a",
            "application": "y",
            **SLOW,
            "firstSeen": entry["firstSeen"],
            "lastSeen": entry["lastSeen"],
            "believed": True,
            "doubt": None,
        }

    def test_the_application_needs_no_task_manager_on_the_node(self, listener_client: httpx.Client) -> None:
        register(listener_client, "x")
        report_evidence(listener_client, "x", "gone")
        assert summary(listener_client) == [("gone", "x", True)]

    def test_only_a_job_master_may_report_it(self, listener_client: httpx.Client) -> None:
        register(listener_client, "rm", role=RM)
        before = without_lag(listener_client, "rm")
        problem = problem_of(
            post_heartbeat(listener_client, "rm", evidence={"a": EXCLUDED}, taskManagers={"tm-9": "a"}), 400
        )
        assert problem["detail"] == "evidence: only a JOB_MASTER runs tasks that could give any."
        problem_of(post_heartbeat(listener_client, "rm", evidence={}), 400)
        assert (evidence(listener_client), without_lag(listener_client, "rm")) == ([], before)
        assert listener_client.get("/taskmanagers/tm-9").status_code == 404

    def test_it_is_removed_when_the_listener_becomes_a_resource_manager(self, listener_client: httpx.Client) -> None:
        application(listener_client, "x")
        report_evidence(listener_client, "x", "a")
        register(listener_client, "x", role=RM)
        assert evidence(listener_client) == []

    def test_the_answer_to_a_push_may_carry_it(self, listener_client: httpx.Client, receiver: Receiver) -> None:
        receiver.report = {"evidence": {"a": EXCLUDED}}
        receiver.register(listener_client, "x")
        put(listener_client, "b")
        wait_until(lambda: summary(listener_client) == [("a", "x", True)])

    def test_evidence_in_a_resource_manager_s_response_is_ignored(
        self, listener_client: httpx.Client, receiver: Receiver
    ) -> None:
        receiver.report = {"evidence": {"a": EXCLUDED}, "taskManagers": {"tm-9": "b"}}
        receiver.register(listener_client, "rm", role=RM)
        revision = put(listener_client, "b")
        wait_until(lambda: get_listener(listener_client, "rm")["ackedRevision"] == revision)
        assert listener_client.get("/taskmanagers/tm-9").status_code == 200
        assert evidence(listener_client) == []


@pytest.mark.parametrize("method", ["PUT", "POST", "DELETE", "PATCH"])
def test_evidence_is_only_read(listener_client: httpx.Client, method: str) -> None:
    problem_of(listener_client.request(method, "/evidence"), 405)


def test_10_000_entries_are_accepted_and_the_last_2_000_are_kept(listener_client: httpx.Client) -> None:
    register(listener_client, "x")
    heartbeat(listener_client, "x", evidence={f"n-{number}": EXCLUDED for number in range(10_000)})
    found = evidence(listener_client)
    assert (len(found), {entry["believed"] for entry in found}) == (MAX_PER_PRINCIPAL, {True})


class TestRemoval:
    """It is removed when its listener is deregistered, lapses or is fenced."""

    def test_a_deregistered_listener_s_evidence_is_removed(self, listener_client: httpx.Client) -> None:
        application(listener_client, "x")
        application(listener_client, "y")
        report_evidence(listener_client, "x", "a")
        report_evidence(listener_client, "y", "b")
        listener_client.delete("/listeners/x")
        assert summary(listener_client) == [("b", "y", True)]

    def test_a_lapsed_listener_s_evidence_is_removed(self, timed: InProcessService) -> None:
        client = timed.client()
        application(client, "x", leaseSeconds=1)
        report_evidence(client, "x", "a")
        wait_until_lapsed(client, "x", until=timed.until)
        timed.until(lambda: evidence(client) == [])

    def test_a_new_session_has_none(self, listener_client: httpx.Client) -> None:
        application(listener_client, "x")
        report_evidence(listener_client, "x", "a")
        assert listener_client.put("/listeners/x", json=registration_body("s2")).status_code == 200
        assert evidence(listener_client) == []
        problem_of(post_heartbeat(listener_client, "x", evidence={"a": EXCLUDED}), 409)
        assert evidence(listener_client) == []

    def test_a_renewal_keeps_it(self, listener_client: httpx.Client) -> None:
        application(listener_client, "x")
        report_evidence(listener_client, "x", "a")
        register(listener_client, "x")
        assert summary(listener_client) == [("a", "x", True)]


class TestBlocking:
    """A node is blocked if enough applications agree."""

    def test_two_applications_block_a_node_for_an_hour(self, listener_client: httpx.Client) -> None:
        for name in "xy":
            application(listener_client, name)
        made = metric(listener_client, "blocklist_evidence_blocks_total")
        report_evidence(listener_client, "x", "a", "b")
        wait_until_evaluated(listener_client)
        assert list(current_list(listener_client)[1]) == []
        report_evidence(listener_client, "y", "a")
        node = blocked(listener_client, "a")
        (_, last, _) = evidence(listener_client)
        assert (node["action"], node["cause"]) == ("MARK_BLOCKED", CAUSE)
        assert int(node["endTimestamp"]) == int(last["lastSeen"]) + BLOCK_MS
        assert int(node["startTimestamp"]) >= int(last["lastSeen"])
        # One for the node that was looked for, one for this one.
        assert metric(listener_client, "blocklist_evidence_blocks_total") == made + 2
        assert metric(listener_client, 'blocklist_evidence{believed="true",kind="excluded"}') == 3
        assert metric(listener_client, 'blocklist_evidence{believed="false",kind="slow"}') == 0

    def test_an_existing_block_is_merged(self, listener_client: httpx.Client) -> None:
        end = later(7200)
        put(listener_client, "a", action="MARK_BLOCKED_AND_EVACUATE_TASKS", cause="Hot", endTimestamp=end)
        for name in "xy":
            application(listener_client, name)
            report_evidence(listener_client, name, "a")
        wait_until(lambda: blocked(listener_client, "a")["cause"] == f"Hot,{CAUSE}")
        node = blocked(listener_client, "a")
        assert (node["action"], node["endTimestamp"]) == ("MARK_BLOCKED_AND_EVACUATE_TASKS", end)

    def test_after_an_unblock_only_new_evidence_blocks_again(self, listener_client: httpx.Client) -> None:
        for name in "vwxy":
            application(listener_client, name)
        for name in "xy":
            report_evidence(listener_client, name, "a")
        blocked(listener_client, "a")
        unblock(listener_client, "a")
        for name in "xy":
            report_evidence(listener_client, name, "a")
        wait_until_evaluated(listener_client)
        assert (list(current_list(listener_client)[1]), summary(listener_client)) == (
            [],
            [("a", "x", False), ("a", "y", False)],
        )
        assert evidence(listener_client)[0]["doubt"] == "The node was unblocked manually after this was first reported."
        for name in "vw":
            report_evidence(listener_client, name, "a")
        assert blocked(listener_client, "a")["cause"] == CAUSE.replace("x (", "v (").replace("y (", "w (")


def test_the_number_is_a_setting(start_in_process: StartInProcess) -> None:
    service = start_in_process(evidence_applications="1")
    with service.client() as client:
        application(client, "x")
        report_evidence(client, "x", "a")
        service.until(lambda: current_list(client)[1])
        assert current_list(client)[1]["a"]["cause"] == "1 application says so: x (Spark excluded the host)"


def test_0_applications_disable_blocking(start_in_process: StartInProcess) -> None:
    service = start_in_process(evidence_applications="0")
    with service.client() as client:
        for name in "xyz":
            application(client, name)
            report_evidence(client, name, "a")
        register(client, "late", leaseSeconds=5)
        # The lease is looked at as often as the evidence.
        service.until(lambda: get_listener(client, "late")["state"] == "lapsed")
        assert (current_list(client)[1], len(evidence(client))) == ({}, 3)


@ON_BOTH
@pytest.mark.parametrize("blocked_again", [False, True], ids=["free", "blocked again"])
def test_after_a_restart_old_evidence_does_not_undo_an_unblock(fresh: ServiceProcess, *, blocked_again: bool) -> None:
    with fresh.client() as client:
        for name in "xy":
            application(client, name)
            report_evidence(client, name, "a")
        blocked(client, "a")
        unblock(client, "a")
        if blocked_again:
            put(client, "a")
        fresh.kill()
        fresh.start()
        for name in "xy":
            report_evidence(client, name, "a")
        assert summary(client) == [("a", "x", False), ("a", "y", False)]
        wait_until_evaluated(client)
        assert client.get("/claims?owner=evidence").json()["claims"] == []


@ON_BOTH
def test_after_a_restart_dismissed_evidence_blocks_nothing_however_many_changes_followed(fresh: ServiceProcess) -> None:
    with fresh.client() as client:
        for name in "xy":
            application(client, name)
            report_evidence(client, name, "a")
        blocked(client, "a")
        unblock(client, "a")
        others = {f"n{number}": block() for number in range(RELOADED_CHANGES)}
        client.put("/blocklist/nodes", json=others).raise_for_status()
        fresh.kill()
        fresh.start()
        for name in "xy":
            report_evidence(client, name, "a")
        assert summary(client) == [("a", "x", False), ("a", "y", False)]


class TestTime:
    """On a manual clock."""

    @pytest.fixture
    def clock(self) -> ManualClock:
        return ManualClock()

    @pytest.fixture
    def client(self, database_url: str, clock: ManualClock) -> Iterator[httpx2.Client]:
        with running_service(database_url, clock) as client:
            self.register(client)
            yield client

    def register(self, client: httpx2.Client) -> None:
        for name in "xy":
            body = {"role": JM, "sessionId": "s1", "leaseSeconds": 3600}
            assert client.put(f"/listeners/{name}", json=body).status_code in {200, 201}

    @pytest.fixture
    def block_a(self, client: httpx2.Client, clock: ManualClock) -> Callable[[int], None]:
        """Both applications report the node, which is blocked alone, for this time from now on."""

        def block_a(duration: int) -> None:
            for name in "xy":
                heartbeat_body = {"sessionId": "s1", "evidence": {"a": EXCLUDED}}
                assert client.post(f"/listeners/{name}/heartbeat", json=heartbeat_body).status_code == 200
            ends = {"a": str(clock.now + duration)}
            wait_until(lambda: {name: it["endTimestamp"] for name, it in current_list(client)[1].items()} == ends)

        return block_a

    def test_the_block_is_renewed_by_reports_and_expires_an_hour_after_the_last(
        self, client: httpx2.Client, clock: ManualClock, block_a: Callable[[int], None]
    ) -> None:
        block_a(BLOCK_MS)
        for _ in range(2):
            clock.now += BLOCK_MS // 2
            block_a(BLOCK_MS)
        assert current_list(client)[1]["a"]["cause"] == CAUSE
        clock.now += BLOCK_MS - 1
        assert (list(current_list(client)[1]), evidence(client)) == (["a"], [])
        clock.now += 1
        assert list(current_list(client)[1]) == []
        wait_until(lambda: [entry["type"] for entry in all_changes(client)][-1] == "expired")
        assert [entry["type"] for entry in all_changes(client)] == ["blocked", "merged", "merged", "expired"]

    def test_the_next_block_is_twice_as_long_unless_a_person_has_ended_the_last(
        self, client: httpx2.Client, clock: ManualClock, block_a: Callable[[int], None]
    ) -> None:
        block_a(BLOCK_MS)
        clock.now += BLOCK_MS
        # Their leases have expired, too.
        self.register(client)
        block_a(2 * BLOCK_MS)
        assert client.delete("/blocklist/nodes/a").status_code == 200
        assert [it["believed"] for it in evidence(client)] == [False, False]
        clock.now += TTL_MS
        block_a(2 * BLOCK_MS)


@ON_BOTH
def test_after_the_grace_period_of_a_restart_evidence_counts_as_new(database_url: str) -> None:
    clock = ManualClock()
    with running_service(database_url, clock) as client:
        body = {"action": "MARK_BLOCKED", "cause": "test"}
        assert client.put("/blocklist/nodes/a", json=body).status_code == 201
        assert client.delete("/blocklist/nodes/a").status_code == 200
    began = clock.now
    with running_service(database_url, clock) as client:
        for name, passed in (("early", RESTART_GRACE_MS), ("late", RESTART_GRACE_MS + 1)):
            clock.now = began + passed
            assert client.put(f"/listeners/{name}", json={"role": JM, "sessionId": "s1"}).status_code == 201
            heartbeat_body = {"sessionId": "s1", "evidence": {"a": EXCLUDED}}
            assert client.post(f"/listeners/{name}/heartbeat", json=heartbeat_body).status_code == 200
        assert summary(client) == [("a", "early", False), ("a", "late", True)]


def test_a_listener_session_of_the_client_repeats_the_report(
    listener_client: httpx.Client, listener_service: ServiceProcess
) -> None:
    registration = Registration(id="x", role=ListenerRole.JOB_MASTER, session="s1")
    membership = ListenerSession(listener_service.url, registration, interval=0.1)
    try:
        finding = Finding(kind=FindingKind.EXCLUDED, reason=EXCLUDED["reason"])
        membership.report(Report(evidence={"a": finding}))
        wait_until(lambda: summary(listener_client) == [("a", "x", True)])
        first = evidence(listener_client)[0]
        assert (first["kind"], first["reason"]) == tuple(EXCLUDED.values())
        wait_until(lambda: int(evidence(listener_client)[0]["lastSeen"]) > int(first["lastSeen"]))
    finally:
        membership.close()
    assert evidence(listener_client) == []


class TestNamesInTheInventory:
    """Names and addresses that only the inventory knows are one machine for evidence as well."""

    @pytest.fixture
    def inventory_client(self, start: Start) -> Iterator[httpx.Client]:
        """A service whose inventory gets names from a manager."""
        with start().client() as client:
            register(client, "yarn", role=RM)
            yield client

    def test_a_name_and_an_address_of_one_machine_count_together_once_that_is_known(
        self, inventory_client: httpx.Client
    ) -> None:
        client = inventory_client
        for name, node in (("x", "10.0.0.7"), ("y", "worker-7.rack2")):
            application(client, name)
            report_evidence(client, name, node)
        wait_until_evaluated(client)
        assert current_list(client)[1] == {}
        described = {"id": "n7", "names": ["worker-7.rack2"], "addresses": ["10.0.0.7"]}
        heartbeat(client, "yarn", nodes=[described])
        assert blocked(client, "n7")["cause"] == CAUSE
