"""Listeners at several replicas: what one of them is told, all know."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import cycle, islice
from typing import Any

import httpx
import pytest

from tests.integration.bodies import all_changes, block, held
from tests.integration.listeners import beat, known, lapse, put, register, report, settled
from tests.integration.problems import problem_of
from tests.integration.process import wait_until
from tests.integration.replicas import Replicas, agree

pytestmark = [pytest.mark.databases("postgresql"), pytest.mark.xdist_group("replicas")]

EXCLUDED = {"kind": "excluded", "reason": "Spark excluded the host."}


def listed(client: httpx.Client, node_id: str) -> list[str] | None:
    """The TaskManagers of a node as the list shows them; None if it is not in it."""
    node = client.get("/blocklist").json().get(node_id)
    return None if node is None else list(node["taskManagers"])


def both_know(one: httpx.Client, other: httpx.Client, listener: str) -> dict[str, Any]:
    """Wait until both say the same of a listener; that."""
    wait_until(lambda: settled(one, listener) == settled(other, listener))
    return settled(one, listener)


class TestSessions:
    """Registrations are kept before they are answered, so they hold everywhere at once."""

    def test_who_registered_at_one_may_say_something_at_the_other_at_once(
        self, one: httpx.Client, other: httpx.Client
    ) -> None:
        for number, (first, second) in enumerate(islice(cycle([(one, other), (other, one)]), 10)):
            register(first, f"jm-{number}")
            assert report(second, f"jm-{number}")["revision"] == held(second)[0]
            assert known(second, f"jm-{number}")["state"] == "live"

    def test_it_is_seen_at_once_at_the_other(self, one: httpx.Client, other: httpx.Client) -> None:
        for number, (first, second) in enumerate(islice(cycle([(one, other), (other, one)]), 10)):
            register(first, f"jm-{number}", minNodes=number)
            assert known(second, f"jm-{number}")["minNodes"] == number

    def test_registering_again_at_the_other_is_a_renewal(self, one: httpx.Client, other: httpx.Client) -> None:
        register(one, "jm")
        revision = put(one, "a")
        report(one, "jm", ackedRevision=revision)
        wait_until(lambda: known(other, "jm")["ackedRevision"] == revision)
        answer = other.put("/listeners/jm", json={"role": "JOB_MASTER", "sessionId": "s1", "leaseSeconds": 100})
        assert (answer.status_code, answer.json()["ackedRevision"]) == (200, revision)
        assert both_know(one, other, "jm")["ackedRevision"] == revision

    def test_a_new_session_at_the_other_fences_the_old_one_at_both(
        self, one: httpx.Client, other: httpx.Client
    ) -> None:
        register(one, "jm", "s1")
        register(other, "jm", "s2")
        problem_of(beat(other, "jm", "s1"), 409)
        wait_until(lambda: beat(one, "jm", "s1").status_code == 409)
        for client in (one, other):
            problem_of(client.put("/listeners/jm", json={"role": "JOB_MASTER", "sessionId": "s1"}), 409)
            report(client, "jm", "s2")
        assert both_know(one, other, "jm")["sessionId"] == "s2"

    def test_what_the_old_session_said_holds_nowhere_any_more(
        self, one: httpx.Client, other: httpx.Client, node_id: str
    ) -> None:
        put(one, node_id)
        register(one, "jm", "s1", minNodes=1)
        report(one, "jm", "s1", taskManagers={"tm": node_id}, refused={node_id: "The last host."}, nodes=[node_id])
        wait_until(lambda: listed(other, node_id) == ["tm"] and known(other, "jm")["usableNodes"] == 0)
        register(other, "jm", "s2")
        assert listed(other, node_id) == []
        wait_until(lambda: known(one, "jm")["sessionId"] == "s2")
        assert listed(one, node_id) == []
        # Whatever is said later is all that there is.
        report(one, "jm", "s2", taskManagers={"tm-2": node_id})
        wait_until(lambda: listed(other, node_id) == ["tm-2"])
        assert known(other, "jm")["usableNodes"] == known(one, "jm")["usableNodes"] == 0

    def test_who_left_at_one_is_gone_at_the_other(self, one: httpx.Client, other: httpx.Client, node_id: str) -> None:
        register(one, "jm")
        put(one, node_id)
        report(one, "jm", taskManagers={"tm": node_id})
        wait_until(lambda: listed(other, node_id) == ["tm"])
        assert other.delete("/listeners/jm").status_code == 204
        problem_of(other.delete("/listeners/jm"), 404)
        wait_until(lambda: one.get("/listeners/jm").status_code == 404)
        assert listed(one, node_id) == listed(other, node_id) == []
        problem_of(beat(one, "jm"), 404)

    def test_who_left_and_came_back_is_another(self, one: httpx.Client, other: httpx.Client, node_id: str) -> None:
        """The same session, also where nobody noticed that it was away."""
        put(one, node_id)
        for first, second in islice(cycle([(one, other), (other, one)]), 6):
            register(first, "jm")
            report(first, "jm", taskManagers={"tm": node_id}, ackedRevision=held(first)[0])
            assert second.delete("/listeners/jm").status_code == 204
            assert "secret" in register(second, "jm")
            wait_until(lambda: listed(one, node_id) == listed(other, node_id) == [])
            assert both_know(one, other, "jm")["ackedRevision"] == 0
            assert second.delete("/listeners/jm").status_code == 204
            wait_until(lambda: one.get("/listeners/jm").status_code == other.get("/listeners/jm").status_code == 404)


class TestLeases:
    """A lease is one, whoever hears the heartbeats."""

    def test_one_that_is_renewed_only_at_the_other_does_not_lapse(self, one: httpx.Client, other: httpx.Client) -> None:
        """As long as another one, of the same age and without heartbeats, takes to lapse twice over."""
        register(one, "alive", leaseSeconds=4)
        for sleeper in ("first", "second"):
            register(one, sleeper, leaseSeconds=4)

            def lapsed(sleeper: str = sleeper) -> bool:
                report(other, "alive")
                assert known(one, "alive")["state"] == known(other, "alive")["state"] == "live"
                return all(known(client, sleeper)["state"] == "lapsed" for client in (one, other))

            wait_until(lapsed)

    def test_a_lapse_is_the_same_everywhere(self, one: httpx.Client, other: httpx.Client, node_id: str) -> None:
        put(one, node_id)
        register(one, "jm", leaseSeconds=1)
        report(one, "jm", taskManagers={"tm": node_id})
        for client in (one, other):
            lapse(client, "jm")
            wait_until(lambda client=client: listed(client, node_id) == [])  # type: ignore[misc]
            problem_of(beat(client, "jm"), 404)
        agree([one, other])

    def test_after_a_lapse_it_begins_anew_everywhere(
        self, one: httpx.Client, other: httpx.Client, node_id: str
    ) -> None:
        """At once, before anybody has written down that it has lapsed."""
        revision = put(one, node_id)
        register(one, "jm", leaseSeconds=1)
        report(one, "jm", taskManagers={"tm": node_id}, ackedRevision=revision)
        wait_until(lambda: listed(other, node_id) == ["tm"])
        wait_until(lambda: known(other, "jm")["state"] == "lapsed")
        again = register(other, "jm", leaseSeconds=100)
        assert again["ackedRevision"] == 0
        wait_until(lambda: listed(one, node_id) == listed(other, node_id) == [])
        assert both_know(one, other, "jm")["ackedRevision"] == 0


class TestReports:
    """What a listener says of itself to one replica."""

    def test_its_task_managers_are_in_everybodys_list(
        self, one: httpx.Client, other: httpx.Client, node_id: str
    ) -> None:
        put(one, node_id)
        register(one, "jm")
        wait_until(lambda: listed(other, node_id) == [])
        for number, client in enumerate(islice(cycle([other, one]), 10)):
            report(client, "jm", taskManagers={f"tm-{number}": node_id})
            assert listed(client, node_id) == [f"tm-{number}"]
        wait_until(lambda: listed(one, node_id) == listed(other, node_id))
        agree([one, other])
        assert listed(other, node_id) == ["tm-9"]

    def test_parts_that_are_said_to_different_replicas_come_together(
        self, one: httpx.Client, other: httpx.Client, node_id: str
    ) -> None:
        """Each says only what is new, without waiting until the others know what was said before."""
        put(one, node_id)
        register(one, "jm")
        path = f"/blocklist/nodes/{node_id}/status"
        for number in range(10):
            task_managers = {f"tm-{number}": node_id, f"tm-{number}b": node_id}
            report(one, "jm", taskManagers=task_managers)
            report(other, "jm", runningTasks=dict.fromkeys(task_managers, number))
            report(one, "jm", refused={node_id: f"Reason {number}."})
            there = [{"id": own, "runningTasks": number} for own in sorted(task_managers)]
            for client in (one, other):
                said = partial(_says, client, path, refused=f"Reason {number}.", taskManagers=there)
                wait_until(said)

    def test_who_has_applied_a_change_is_known_to_all(
        self, one: httpx.Client, other: httpx.Client, node_id: str
    ) -> None:
        register(other, "jm")
        with ThreadPoolExecutor(1) as pool:
            asked = pool.submit(one.put, f"/blocklist/nodes/{node_id}", json=block(), headers={"Prefer": "wait=30"})
            wait_until(lambda: other.get(f"/blocklist/nodes/{node_id}").status_code == 200)
            report(other, "jm", ackedRevision=held(other)[0])
            answer = asked.result(60)
        assert (answer.status_code, answer.headers["blocklist-applied"]) == (201, "1/1")
        for client in (one, other):
            status = client.get(f"/blocklist/nodes/{node_id}/status").json()
            assert (status["applied"], status["of"]) == (1, 1)

    def test_who_has_just_registered_elsewhere_is_waited_for(
        self, one: httpx.Client, other: httpx.Client, node_id: str
    ) -> None:
        for number, (first, second) in enumerate(islice(cycle([(one, other), (other, one)]), 6)):
            register(first, f"jm-{number}")
            path = f"/blocklist/nodes/{node_id}-{number}"
            answer = second.put(path, json=block(), headers={"Prefer": "wait=0"})
            assert answer.headers["blocklist-applied"] == f"0/{number + 1}"

    def test_what_is_acknowledged_may_be_ahead_of_a_replica(
        self, one: httpx.Client, other: httpx.Client, node_id: str
    ) -> None:
        """By chance it is; what nobody has seen yet is refused as by one process."""
        register(one, "jm")
        for number, (first, second) in enumerate(islice(cycle([(one, other), (other, one)]), 20)):
            revision = put(first, node_id, cause=f"{number}")
            assert report(second, "jm", ackedRevision=revision)["revision"] >= revision
        problem_of(beat(one, "jm", ackedRevision=revision + 1000), 400)

    def test_a_minimum_that_was_said_at_one_is_guarded_at_the_other(
        self, one: httpx.Client, other: httpx.Client, node_id: str
    ) -> None:
        mine = [f"{node_id}-{number}" for number in range(3)]
        register(one, "jm", minNodes=2)
        report(one, "jm", nodes=mine)
        wait_until(lambda: known(other, "jm")["usableNodes"] == 3)
        put(other, mine[0])
        problem = problem_of(other.put(f"/blocklist/nodes/{mine[1]}", json=block()), 409)
        assert problem["type"] == "urn:blocklist:problem:limit"

    def test_evidence_from_two_replicas_blocks_a_node_once(
        self, one: httpx.Client, other: httpx.Client, node_id: str
    ) -> None:
        nodes = {f"tm-{number}": f"{node_id}-{number}" for number in range(5)}
        for client, own in ((one, "x"), (other, "y")):
            register(client, own)
            report(client, own, taskManagers={f"{own}:{name}": node for name, node in nodes.items()})
            report(client, own, evidence={nodes["tm-1"]: EXCLUDED})
        wait_until(lambda: one.get(f"/blocklist/nodes/{nodes['tm-1']}").status_code == 200)
        # Both have looked at it by then, more than once.
        for turn in range(3):
            register(one, f"turn-{turn}", leaseSeconds=1)
            lapse(one, f"turn-{turn}")
        log = all_changes(other, node=nodes["tm-1"])
        assert [(change["type"], change["createdBy"]) for change in log] == [("blocked", "evidence")]
        assert agree([one, other], "/evidence")[0] == 200


def test_evidence_that_a_replica_missed_is_not_new_to_it(mortals: Replicas, node_id: str) -> None:
    """It was unblocked by hand meanwhile: what was said before and is said still does not block it again."""
    one, other = mortals.clients
    nodes = {f"tm-{number}": f"{node_id}-{number}" for number in range(5)}
    accused = nodes["tm-1"]

    def say(evidence: dict[str, dict[str, str]]) -> None:
        for own in "xy":
            report(one, own, evidence=evidence)

    for own in "xy":
        register(one, own)
        report(one, own, taskManagers={f"{own}:{name}": node for name, node in nodes.items()})
    agree([one, other], "/evidence")
    mortals.processes[1].pause()
    try:
        say({accused: EXCLUDED})
        wait_until(lambda: one.get(f"/blocklist/nodes/{accused}").status_code == 200)
        assert one.delete(f"/blocklist/nodes/{accused}").status_code == 200
        say({accused: EXCLUDED})
        say({nodes["tm-2"]: {"kind": "slow", "reason": "Slow."}})
    finally:
        mortals.processes[1].resume()
    agree([one, other])
    evidence = json.loads(agree([one, other], "/evidence")[2])["evidence"]
    believed = {(piece["node"], piece["application"]): piece["believed"] for piece in evidence}
    assert believed == {(nodes[name], own): name != "tm-1" for name in ("tm-1", "tm-2") for own in "xy"}
    assert [change["type"] for change in all_changes(other, node=accused)] == ["blocked", "unblocked"]


def _says(client: httpx.Client, path: str, **fields: object) -> bool:
    """Whether the only listener has these fields in the status of a node."""
    [own] = client.get(path).json()["listeners"]
    return {name: own[name] for name in fields} == fields


def test_a_replica_that_starts_later_knows_all_that_was_said(mortals: Replicas, node_id: str) -> None:
    one, other = mortals.clients
    mortals.processes[1].stop()
    revision = put(one, node_id)
    register(one, "jm", leaseSeconds=600, minNodes=1)
    nodes = [node_id, f"{node_id}-free"]
    report(one, "jm", taskManagers={"tm": node_id}, refused={node_id: "Last."}, nodes=nodes, ackedRevision=revision)
    register(one, "gone")
    register(one, "lapsed", leaseSeconds=1)
    lapse(one, "lapsed")
    assert one.delete("/listeners/gone").status_code == 204
    mortals.processes[1].start()
    agree([one, other])
    assert listed(other, node_id) == ["tm"]
    assert settled(one, "jm") == settled(other, "jm")
    assert (known(other, "jm")["usableNodes"], known(other, "lapsed")["state"]) == (1, "lapsed")
    assert other.get(f"/blocklist/nodes/{node_id}/status").json()["listeners"][0]["refused"] == "Last."
    for listener in ("jm", "lapsed"):
        assert other.delete(f"/listeners/{listener}").status_code == 204
