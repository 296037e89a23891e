"""Listeners at several replicas: what one replica receives, all know."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import cycle, islice
from typing import Any

import httpx
import pytest

from tests.integration.bodies import all_changes, block, current_list
from tests.integration.listeners import (
    get_listener,
    heartbeat,
    post_heartbeat,
    put,
    register,
    wait_until_lapsed,
    without_lag,
)
from tests.integration.problems import problem_of
from tests.integration.process import wait_until
from tests.integration.replicas import Replicas, wait_until_equal

pytestmark = [pytest.mark.databases("postgresql"), pytest.mark.xdist_group("replicas")]

EXCLUDED = {"kind": "excluded", "reason": "Spark excluded the host."}


def task_managers_of(client: httpx.Client, node_id: str) -> list[str] | None:
    """The TaskManagers of a node in the list; None if it is free."""
    node = client.get("/blocklist").json().get(node_id)
    return None if node is None else list(node["taskManagers"])


def wait_until_same_listener(client_a: httpx.Client, client_b: httpx.Client, listener: str) -> dict[str, Any]:
    """Wait until both replicas return the same for a listener; return it."""
    wait_until(lambda: without_lag(client_a, listener) == without_lag(client_b, listener))
    return without_lag(client_a, listener)


class TestSessions:
    """Registrations are stored before the answer, so they are valid at every replica at once."""

    def test_a_listener_registered_at_one_replica_may_report_to_the_other_at_once(
        self, client_a: httpx.Client, client_b: httpx.Client
    ) -> None:
        for number, (first, second) in enumerate(islice(cycle([(client_a, client_b), (client_b, client_a)]), 10)):
            register(first, f"jm-{number}")
            assert heartbeat(second, f"jm-{number}")["revision"] == current_list(second)[0]
            assert get_listener(second, f"jm-{number}")["state"] == "live"

    def test_a_registration_is_visible_at_the_other_replica_at_once(
        self, client_a: httpx.Client, client_b: httpx.Client
    ) -> None:
        for number, (first, second) in enumerate(islice(cycle([(client_a, client_b), (client_b, client_a)]), 10)):
            register(first, f"jm-{number}", minNodes=number)
            assert get_listener(second, f"jm-{number}")["minNodes"] == number

    def test_registering_again_at_the_other_replica_renews_the_lease(
        self, client_a: httpx.Client, client_b: httpx.Client
    ) -> None:
        register(client_a, "jm")
        revision = put(client_a, "a")
        heartbeat(client_a, "jm", ackedRevision=revision)
        wait_until(lambda: get_listener(client_b, "jm")["ackedRevision"] == revision)
        answer = client_b.put("/listeners/jm", json={"role": "JOB_MASTER", "sessionId": "s1", "leaseSeconds": 100})
        assert (answer.status_code, answer.json()["ackedRevision"]) == (200, revision)
        assert wait_until_same_listener(client_a, client_b, "jm")["ackedRevision"] == revision

    def test_a_new_session_fences_the_old_one_at_both_replicas(
        self, client_a: httpx.Client, client_b: httpx.Client
    ) -> None:
        register(client_a, "jm", "s1")
        register(client_b, "jm", "s2")
        problem_of(post_heartbeat(client_b, "jm", "s1"), 409)
        wait_until(lambda: post_heartbeat(client_a, "jm", "s1").status_code == 409)
        for client in (client_a, client_b):
            problem_of(client.put("/listeners/jm", json={"role": "JOB_MASTER", "sessionId": "s1"}), 409)
            heartbeat(client, "jm", "s2")
        assert wait_until_same_listener(client_a, client_b, "jm")["sessionId"] == "s2"

    def test_a_new_session_discards_the_reports_of_the_old_one_everywhere(
        self, client_a: httpx.Client, client_b: httpx.Client, node_id: str
    ) -> None:
        put(client_a, node_id)
        register(client_a, "jm", "s1", minNodes=1)
        heartbeat(
            client_a, "jm", "s1", taskManagers={"tm": node_id}, refused={node_id: "The last host."}, nodes=[node_id]
        )
        wait_until(
            lambda: task_managers_of(client_b, node_id) == ["tm"] and get_listener(client_b, "jm")["usableNodes"] == 0
        )
        register(client_b, "jm", "s2")
        assert task_managers_of(client_b, node_id) == []
        wait_until(lambda: get_listener(client_a, "jm")["sessionId"] == "s2")
        assert task_managers_of(client_a, node_id) == []
        # Only later reports count.
        heartbeat(client_a, "jm", "s2", taskManagers={"tm-2": node_id})
        wait_until(lambda: task_managers_of(client_b, node_id) == ["tm-2"])
        assert get_listener(client_b, "jm")["usableNodes"] == get_listener(client_a, "jm")["usableNodes"] == 0

    def test_a_listener_removed_at_one_replica_is_removed_at_the_other(
        self, client_a: httpx.Client, client_b: httpx.Client, node_id: str
    ) -> None:
        register(client_a, "jm")
        put(client_a, node_id)
        heartbeat(client_a, "jm", taskManagers={"tm": node_id})
        wait_until(lambda: task_managers_of(client_b, node_id) == ["tm"])
        assert client_b.delete("/listeners/jm").status_code == 204
        problem_of(client_b.delete("/listeners/jm"), 404)
        wait_until(lambda: client_a.get("/listeners/jm").status_code == 404)
        assert task_managers_of(client_a, node_id) == task_managers_of(client_b, node_id) == []
        problem_of(post_heartbeat(client_a, "jm"), 404)

    def test_a_listener_that_left_and_registered_again_starts_anew(
        self, client_a: httpx.Client, client_b: httpx.Client, node_id: str
    ) -> None:
        """The same session, also at a replica that missed the removal."""
        put(client_a, node_id)
        for first, second in islice(cycle([(client_a, client_b), (client_b, client_a)]), 6):
            register(first, "jm")
            heartbeat(first, "jm", taskManagers={"tm": node_id}, ackedRevision=current_list(first)[0])
            assert second.delete("/listeners/jm").status_code == 204
            assert "secret" in register(second, "jm")
            wait_until(lambda: task_managers_of(client_a, node_id) == task_managers_of(client_b, node_id) == [])
            assert wait_until_same_listener(client_a, client_b, "jm")["ackedRevision"] == 0
            assert second.delete("/listeners/jm").status_code == 204
            wait_until(
                lambda: client_a.get("/listeners/jm").status_code == client_b.get("/listeners/jm").status_code == 404
            )


class TestLeases:
    def test_a_lease_renewed_at_one_replica_does_not_expire_at_the_other(
        self, client_a: httpx.Client, client_b: httpx.Client
    ) -> None:
        """Checked for as long as two other leases of the same duration, without heartbeats, take to lapse."""
        register(client_a, "alive", leaseSeconds=4)
        for sleeper in ("first", "second"):
            register(client_a, sleeper, leaseSeconds=4)

            def lapsed(sleeper: str = sleeper) -> bool:
                heartbeat(client_b, "alive")
                assert get_listener(client_a, "alive")["state"] == get_listener(client_b, "alive")["state"] == "live"
                return all(get_listener(client, sleeper)["state"] == "lapsed" for client in (client_a, client_b))

            wait_until(lapsed)

    def test_a_lease_expires_at_all_replicas(
        self, client_a: httpx.Client, client_b: httpx.Client, node_id: str
    ) -> None:
        put(client_a, node_id)
        register(client_a, "jm", leaseSeconds=1)
        heartbeat(client_a, "jm", taskManagers={"tm": node_id})
        for client in (client_a, client_b):
            wait_until_lapsed(client, "jm")
            wait_until(lambda client=client: task_managers_of(client, node_id) == [])  # type: ignore[misc]
            problem_of(post_heartbeat(client, "jm"), 404)
        wait_until_equal([client_a, client_b])

    def test_registering_after_an_expired_lease_starts_anew_everywhere(
        self, client_a: httpx.Client, client_b: httpx.Client, node_id: str
    ) -> None:
        """Also before the lapse is stored."""
        revision = put(client_a, node_id)
        register(client_a, "jm", leaseSeconds=1)
        heartbeat(client_a, "jm", taskManagers={"tm": node_id}, ackedRevision=revision)
        wait_until(lambda: task_managers_of(client_b, node_id) == ["tm"])
        wait_until(lambda: get_listener(client_b, "jm")["state"] == "lapsed")
        again = register(client_b, "jm", leaseSeconds=100)
        assert again["ackedRevision"] == 0
        wait_until(lambda: task_managers_of(client_a, node_id) == task_managers_of(client_b, node_id) == [])
        assert wait_until_same_listener(client_a, client_b, "jm")["ackedRevision"] == 0


class TestReports:
    def test_reported_task_managers_are_in_the_list_of_all_replicas(
        self, client_a: httpx.Client, client_b: httpx.Client, node_id: str
    ) -> None:
        put(client_a, node_id)
        register(client_a, "jm")
        wait_until(lambda: task_managers_of(client_b, node_id) == [])
        for number, client in enumerate(islice(cycle([client_b, client_a]), 10)):
            heartbeat(client, "jm", taskManagers={f"tm-{number}": node_id})
            assert task_managers_of(client, node_id) == [f"tm-{number}"]
        wait_until(lambda: task_managers_of(client_a, node_id) == task_managers_of(client_b, node_id))
        wait_until_equal([client_a, client_b])
        assert task_managers_of(client_b, node_id) == ["tm-9"]

    def test_report_parts_sent_to_different_replicas_are_merged(
        self, client_a: httpx.Client, client_b: httpx.Client, node_id: str
    ) -> None:
        """Each heartbeat has only one part, and does not wait until other replicas know earlier ones."""
        revision = put(client_a, node_id)
        register(client_a, "jm")
        heartbeat(client_a, "jm", ackedRevision=revision)
        path = f"/blocklist/nodes/{node_id}/status"
        for number in range(10):
            task_managers = {f"tm-{number}": node_id, f"tm-{number}b": node_id}
            heartbeat(client_a, "jm", taskManagers=task_managers)
            heartbeat(client_b, "jm", runningTasks=dict.fromkeys(task_managers, number))
            heartbeat(client_a, "jm", refused={node_id: f"Reason {number}."})
            there = [{"id": task_manager, "runningTasks": number} for task_manager in sorted(task_managers)]
            for client in (client_a, client_b):
                contains = partial(_status_contains, client, path, refused=f"Reason {number}.", taskManagers=there)
                wait_until(contains)

    def test_acknowledgements_are_known_to_all_replicas(
        self, client_a: httpx.Client, client_b: httpx.Client, node_id: str
    ) -> None:
        register(client_b, "jm")
        with ThreadPoolExecutor(1) as pool:
            asked = pool.submit(
                client_a.put, f"/blocklist/nodes/{node_id}", json=block(), headers={"Prefer": "wait=30"}
            )
            wait_until(lambda: client_b.get(f"/blocklist/nodes/{node_id}").status_code == 200)
            heartbeat(client_b, "jm", ackedRevision=current_list(client_b)[0])
            answer = asked.result(60)
        assert (answer.status_code, answer.headers["blocklist-applied"]) == (201, "1/1")
        for client in (client_a, client_b):
            status = client.get(f"/blocklist/nodes/{node_id}/status").json()
            assert (status["applied"], status["of"]) == (1, 1)

    def test_a_change_waits_for_listeners_registered_at_other_replicas(
        self, client_a: httpx.Client, client_b: httpx.Client, node_id: str
    ) -> None:
        for number, (first, second) in enumerate(islice(cycle([(client_a, client_b), (client_b, client_a)]), 6)):
            register(first, f"jm-{number}")
            path = f"/blocklist/nodes/{node_id}-{number}"
            answer = second.put(path, json=block(), headers={"Prefer": "wait=0"})
            assert answer.headers["blocklist-applied"] == f"0/{number + 1}"

    def test_a_listener_may_acknowledge_a_revision_its_replica_has_not_seen(
        self, client_a: httpx.Client, client_b: httpx.Client, node_id: str
    ) -> None:
        """A revision that no replica has made is refused, as with one process."""
        register(client_a, "jm")
        for number, (first, second) in enumerate(islice(cycle([(client_a, client_b), (client_b, client_a)]), 20)):
            revision = put(first, node_id, cause=f"{number}")
            assert heartbeat(second, "jm", ackedRevision=revision)["revision"] >= revision
        problem_of(post_heartbeat(client_a, "jm", ackedRevision=revision + 1000), 400)

    def test_a_minimum_reported_to_one_replica_is_enforced_at_the_other(
        self, client_a: httpx.Client, client_b: httpx.Client, node_id: str
    ) -> None:
        mine = [f"{node_id}-{number}" for number in range(3)]
        register(client_a, "jm", minNodes=2)
        heartbeat(client_a, "jm", nodes=mine)
        wait_until(lambda: get_listener(client_b, "jm")["usableNodes"] == 3)
        put(client_b, mine[0])
        problem = problem_of(client_b.put(f"/blocklist/nodes/{mine[1]}", json=block()), 409)
        assert problem["type"] == "urn:blocklist:problem:limit"

    def test_evidence_from_two_replicas_blocks_a_node_once(
        self, client_a: httpx.Client, client_b: httpx.Client, node_id: str
    ) -> None:
        nodes = {f"tm-{number}": f"{node_id}-{number}" for number in range(5)}
        for client, listener in ((client_a, "x"), (client_b, "y")):
            register(client, listener)
            heartbeat(client, listener, taskManagers={f"{listener}:{name}": node for name, node in nodes.items()})
            heartbeat(client, listener, evidence={nodes["tm-1"]: EXCLUDED})
        wait_until(lambda: client_a.get(f"/blocklist/nodes/{nodes['tm-1']}").status_code == 200)
        # By then both replicas have checked the evidence several times.
        for turn in range(2):
            register(client_a, f"turn-{turn}", leaseSeconds=1)
            wait_until_lapsed(client_a, f"turn-{turn}")
        log = all_changes(client_b, node=nodes["tm-1"])
        assert [(change["type"], change["createdBy"]) for change in log] == [("blocked", "evidence")]
        assert wait_until_equal([client_a, client_b], "/evidence")[0] == 200


def test_evidence_missed_by_a_paused_replica_does_not_block_again(restartable_replicas: Replicas, node_id: str) -> None:
    """The node was unblocked manually meanwhile: the old evidence, still reported, does not block it again."""
    one, other = restartable_replicas.clients
    nodes = {f"tm-{number}": f"{node_id}-{number}" for number in range(5)}
    accused = nodes["tm-1"]

    def say(evidence: dict[str, dict[str, str]]) -> None:
        for listener in "xy":
            heartbeat(one, listener, evidence=evidence)

    for listener in "xy":
        register(one, listener)
        heartbeat(one, listener, taskManagers={f"{listener}:{name}": node for name, node in nodes.items()})
    wait_until_equal([one, other], "/evidence")
    with restartable_replicas.processes[1].paused():
        say({accused: EXCLUDED})
        wait_until(lambda: one.get(f"/blocklist/nodes/{accused}").status_code == 200)
        assert one.delete(f"/blocklist/nodes/{accused}").status_code == 200
        say({accused: EXCLUDED})
        say({nodes["tm-2"]: {"kind": "slow", "reason": "Slow."}})
    wait_until_equal([one, other])
    evidence = json.loads(wait_until_equal([one, other], "/evidence")[2])["evidence"]
    # Another test's evidence may still be current.
    own = [piece for piece in evidence if piece["node"] in nodes.values()]
    believed = {(piece["node"], piece["application"]): piece["believed"] for piece in own}
    assert believed == {(nodes[name], listener): name != "tm-1" for name in ("tm-1", "tm-2") for listener in "xy"}
    assert [change["type"] for change in all_changes(other, node=accused)] == ["blocked", "unblocked"]


def _status_contains(client: httpx.Client, path: str, **fields: object) -> bool:
    """Whether the only listener has these fields in the status of a node."""
    [listener] = client.get(path).json()["listeners"]
    return {name: listener[name] for name in fields} == fields


def test_a_restarted_replica_knows_all_reports(restartable_replicas: Replicas, node_id: str) -> None:
    one, other = restartable_replicas.clients
    restartable_replicas.processes[1].stop()
    revision = put(one, node_id)
    register(one, "jm", leaseSeconds=600, minNodes=1)
    nodes = [node_id, f"{node_id}-free"]
    heartbeat(one, "jm", taskManagers={"tm": node_id}, refused={node_id: "Last."}, nodes=nodes, ackedRevision=revision)
    register(one, "gone")
    register(one, "lapsed", leaseSeconds=1)
    wait_until_lapsed(one, "lapsed")
    assert one.delete("/listeners/gone").status_code == 204
    restartable_replicas.processes[1].start()
    wait_until_equal([one, other])
    assert task_managers_of(other, node_id) == ["tm"]
    assert without_lag(one, "jm") == without_lag(other, "jm")
    assert (get_listener(other, "jm")["usableNodes"], get_listener(other, "lapsed")["state"]) == (1, "lapsed")
    assert other.get(f"/blocklist/nodes/{node_id}/status").json()["listeners"][0]["refused"] == "Last."
    for listener in ("jm", "lapsed"):
        assert other.delete(f"/listeners/{listener}").status_code == 204
