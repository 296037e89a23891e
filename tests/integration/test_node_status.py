"""Which listeners have applied a node's last change; and changes with `Prefer: wait`."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import httpx
import pytest

from tests.integration.bodies import EVACUATE, block, current_list, later, now_ms, revision_of
from tests.integration.conftest import Start
from tests.integration.in_process import InProcessService
from tests.integration.listeners import (
    JM,
    RM,
    get_listener,
    heartbeat,
    post_heartbeat,
    put,
    register,
    unblock,
    wait_until_lapsed,
    wait_until_pushed,
)
from tests.integration.problems import problem_of
from tests.integration.process import wait_until
from tests.integration.receiver import Receiver, fails, receiving
from tests.integration.test_page_tasks import cells

Change = Callable[[httpx.Client, str, str], httpx.Response]


def status(client: httpx.Client, node_id: str) -> dict[str, Any]:
    answer = client.get(f"/blocklist/nodes/{node_id}/status")
    assert answer.status_code == 200, answer.text
    body: dict[str, Any] = answer.json()
    return body


def of_listener(client: httpx.Client, node_id: str, listener: str) -> dict[str, Any]:
    [found] = [it for it in status(client, node_id)["listeners"] if it["id"] == listener]
    return dict(found)


class TestStatus:
    """GET /blocklist/nodes/{id}/status"""

    def test_without_listeners(self, listener_client: httpx.Client) -> None:
        before = now_ms()
        revision = put(listener_client, "a")
        body = status(listener_client, "a")
        assert before <= int(body.pop("at")) <= now_ms()
        no_repeat = {"automaticBlocks": 0, "repeat": None}
        applied = {"applied": 0, "of": 0, "state": "unknown", "listeners": []}
        assert body == {"id": "a", "blocked": True, "revision": revision, **applied, **no_repeat}

    def test_a_refusal_of_an_earlier_change_is_not_one_of_the_last_change(self, listener_client: httpx.Client) -> None:
        register(listener_client, "a")
        revision = put(listener_client, "n")
        heartbeat(listener_client, "a", ackedRevision=revision, refused={"n": "its last host"})
        assert of_listener(listener_client, "n", "a")["refused"] == "its last host"
        revision = unblock(listener_client, "n")
        after = of_listener(listener_client, "n", "a")
        assert (after["applied"], after["refused"]) == (False, None)
        heartbeat(listener_client, "a", ackedRevision=revision, refused={"n": "the manager is down"})
        assert of_listener(listener_client, "n", "a")["refused"] == "the manager is down"

    def test_what_a_listener_reports_before_it_acknowledges_a_block_is_why_it_is_pending(
        self, listener_client: httpx.Client
    ) -> None:
        register(listener_client, "a")
        revision = put(listener_client, "n")
        heartbeat(listener_client, "a", refused={"n": "the manager is down"})
        pending = of_listener(listener_client, "n", "a")
        assert (pending["applied"], pending["refused"]) == (False, None)
        assert pending["pendingReason"] == "the manager is down"
        heartbeat(listener_client, "a", ackedRevision=revision)
        refused = of_listener(listener_client, "n", "a")
        assert (refused["refused"], refused["pendingReason"]) == ("the manager is down", None)
        unblock(listener_client, "n")
        assert of_listener(listener_client, "n", "a")["pendingReason"] is None, "a reason not to block is none to free"

    def test_a_listener_without_the_node_does_not_count_until_it_has_it(self, listener_client: httpx.Client) -> None:
        register(listener_client, "job", role="JOB_MASTER")
        register(listener_client, "rm", role=RM, cluster="k8s-a")
        revision = put(listener_client, "n")
        heartbeat(listener_client, "job", ackedRevision=revision)
        heartbeat(listener_client, "rm", notHere=["N", "other"])
        body = status(listener_client, "n")
        assert (body["applied"], body["of"]) == (1, 2), "it has not acknowledged this block"
        heartbeat(listener_client, "rm", ackedRevision=revision)
        body = status(listener_client, "n")
        assert (body["applied"], body["of"]) == (1, 1)
        found = of_listener(listener_client, "n", "rm")
        not_applied = {"applied": False, "appliedAt": None, "refused": None, "pendingReason": None}
        assert {name: found[name] for name in ("notHere", *not_applied)} == {"notHere": True, **not_applied}
        again = block(allowMerge=True)
        waited = listener_client.put("/blocklist/nodes/n", json=again, headers={"Prefer": "wait=5"})
        assert waited.headers["Blocklist-Applied"] == "1/1"
        assert waited.headers["Blocklist-Not-Here"] == "rm"
        assert cells(listener_client.get("/").text, "Applied")[0] == "1/1"
        assert cells(listener_client.get("/?group=cause").text, "Applied")[0] == "1/1"
        page = listener_client.get("/page/nodes/n").text
        assert "1 of 1 listener<" in page
        assert "not here" in page
        assert "k8s-a" in page
        assert "k8s-a" in listener_client.get("/page/listeners").text
        assert "2 blocks" in listener_client.get("/page/listeners/rm").text

        heartbeat(listener_client, "rm", notHere=[], pending={"n": "the taint is not set yet"})
        found = of_listener(listener_client, "n", "rm")
        assert (found["notHere"], found["applied"]) == (False, False)
        assert found["pendingReason"] == "the taint is not set yet"
        body = status(listener_client, "n")
        assert (body["applied"], body["of"], body["state"]) == (1, 2, "pending")
        assert cells(listener_client.get("/").text, "Applied")[0] == "1/2"
        before = now_ms()
        heartbeat(listener_client, "rm", pending={})
        found = of_listener(listener_client, "n", "rm")
        assert (found["notHere"], found["applied"]) == (False, True)
        assert before <= int(found["appliedAt"]), "not when it had acknowledged the list without this node"

    def test_a_node_that_no_cluster_has_and_nobody_knows_is_not_here(self, listener_client: httpx.Client) -> None:
        for manager in ("k8s", "yarn"):
            register(listener_client, manager, role=RM)
        revision = put(listener_client, "n", action=EVACUATE)
        acked: dict[str, Any] = {"ackedRevision": revision, "taskManagers": {}, "runningTasks": {}}
        heartbeat(listener_client, "k8s", **acked, notHere=["n"])
        heartbeat(listener_client, "yarn", **acked)
        assert (status(listener_client, "n")["state"], status(listener_client, "n")["of"]) == ("empty", 1)
        heartbeat(listener_client, "yarn", notHere=["n"])
        body = status(listener_client, "n")
        assert (body["applied"], body["of"], body["state"]) == (0, 0, "not-here")
        assert listener_client.get("/page/map/states").json()["counts"]["u"] >= 1
        assert "No cluster has the node." in listener_client.get("/").text
        register(listener_client, "job")
        heartbeat(listener_client, "job", ackedRevision=revision, taskManagers={"tm": "n"}, runningTasks={"tm": 0})
        assert status(listener_client, "n")["state"] == "empty", "a job knows the node"

    def test_a_block_that_waits_says_that_no_cluster_has_the_node(self, listener_client: httpx.Client) -> None:
        register(listener_client, "k8s", role=RM)
        asked = partial(listener_client.put, "/blocklist/nodes", json={"n": block()}, headers={"Prefer": "wait=20"})
        with ThreadPoolExecutor(1) as pool:
            answer = pool.submit(asked)
            wait_until(lambda: "n" in listener_client.get("/blocklist").json())
            revision = current_list(listener_client)[0]
            heartbeat(listener_client, "k8s", ackedRevision=revision, notHere=["n"])
            assert answer.result().headers["Blocklist-Applied"] == "0/0"
        assert answer.result().json()["n"]["known"] is False

    def test_what_a_manager_of_another_cluster_reports_says_nothing_of_what_runs(
        self, listener_client: httpx.Client
    ) -> None:
        register(listener_client, "k8s", role=RM)
        register(listener_client, "slurm", role=RM)
        revision = put(listener_client, "n", action=EVACUATE)
        heartbeat(listener_client, "k8s", ackedRevision=revision, taskManagers={}, runningTasks={}, notHere=["n"])
        heartbeat(listener_client, "slurm", ackedRevision=revision)
        assert status(listener_client, "n")["state"] == "unknown"

    @pytest.mark.parametrize(("running", "state"), [({"tm": 3}, "unknown"), ({"tm": 0}, "empty"), ({}, "empty")])
    def test_tasks_at_a_place_that_is_not_reported_may_be_anywhere(
        self, listener_client: httpx.Client, running: dict[str, int], state: str
    ) -> None:
        register(listener_client, "job")
        revision = put(listener_client, "n", action=EVACUATE)
        heartbeat(listener_client, "job", ackedRevision=revision, taskManagers={}, runningTasks=running)
        assert status(listener_client, "n")["state"] == state
        assert of_listener(listener_client, "n", "job")["reportsTaskManagers"] is (state == "empty")
        page = listener_client.get("/page/listeners/job").text
        assert ("Where all its tasks run" in page) is (state == "unknown")
        heartbeat(listener_client, "job", taskManagers={"tm": "m"})
        assert status(listener_client, "n")["state"] == "empty"

    @pytest.mark.parametrize("field", ["refused", "pending"])
    def test_what_a_listener_has_to_do_is_not_hidden(self, listener_client: httpx.Client, field: str) -> None:
        register(listener_client, "rm", role=RM)
        work: dict[str, Any] = {field: {"n": "why"}}
        heartbeat(listener_client, "rm", ackedRevision=put(listener_client, "n"), notHere=["n"], **work)
        body = status(listener_client, "n")
        assert (body["applied"], body["of"], body["state"]) == (0, 1, field)

    @pytest.mark.parametrize(
        ("field", "value"),
        [
            ("notHere", ["n"]),
            ("newMachines", {"n": 1}),
            *((field, {"n": "forged"}) for field in ("replaced", "schedulable", "unschedulable")),
        ],
    )
    def test_only_a_resource_manager_knows_all_nodes_of_its_cluster(
        self, listener_client: httpx.Client, field: str, value: object
    ) -> None:
        register(listener_client, "job")
        report: dict[str, Any] = {field: value}
        problem = problem_of(post_heartbeat(listener_client, "job", **report), 400)
        assert problem["detail"] == f"{field}: only a RESOURCE_MANAGER knows all nodes of its cluster."

    def test_what_is_pending_after_the_acknowledgement_is_in_force_once_it_is_not_reported_any_more(
        self, listener_client: httpx.Client
    ) -> None:
        register(listener_client, "a")
        heartbeat(listener_client, "a", ackedRevision=put(listener_client, "n"), pending={"n": "a pod is ending"})
        found = of_listener(listener_client, "n", "a")
        assert (found["applied"], found["refused"], found["pendingReason"]) == (False, None, "a pod is ending")
        assert status(listener_client, "n")["applied"] == 0
        assert cells(listener_client.get("/").text, "Applied")[0] == "0/1"
        before = now_ms()
        heartbeat(listener_client, "a", pending={})
        found = of_listener(listener_client, "n", "a")
        assert (found["applied"], found["pendingReason"]) == (True, None)
        assert before <= int(found["appliedAt"])
        revision = unblock(listener_client, "n")
        heartbeat(listener_client, "a", ackedRevision=revision, pending={"n": "its taint cannot be removed"})
        found = of_listener(listener_client, "n", "a")
        assert (found["applied"], found["pendingReason"]) == (False, "its taint cannot be removed")

    def test_a_manager_that_registers_on_an_empty_list_has_freed_nothing_until_it_says_so(
        self, listener_client: httpx.Client
    ) -> None:
        put(listener_client, "n")
        unblock(listener_client, "n")
        register(listener_client, "manager", role=RM)
        assert not of_listener(listener_client, "n", "manager")["applied"]
        put(listener_client, "m")
        answer = listener_client.delete("/blocklist/nodes/m", headers={"Prefer": "wait=1"})
        assert answer.headers["blocklist-applied"] == "0/1"
        assert answer.headers["blocklist-not-applied"] == "manager"
        heartbeat(listener_client, "manager", ackedRevision=revision_of(answer))
        assert of_listener(listener_client, "m", "manager")["applied"]

    def test_which_listeners_have_applied_it_and_when(self, listener_client: httpx.Client) -> None:
        for name, role in (("b", RM), ("a", "JOB_MASTER"), ("C", "JOB_MASTER")):
            register(listener_client, name, role=role)
        revision = put(listener_client, "n")
        waiting: dict[str, Any] = {
            "cluster": None,
            "applied": False,
            "notHere": False,
            "mode": "apply",
            "would": None,
            "appliedAt": None,
            "lateMs": None,
            "refused": None,
            "pendingReason": None,
            "taskManagers": [],
            "reportsTaskManagers": False,
        }
        assert status(listener_client, "n")["listeners"] == [
            {"id": "C", "role": "JOB_MASTER", **waiting},
            {"id": "a", "role": "JOB_MASTER", **waiting},
            {"id": "b", "role": RM, **waiting},
        ]
        heartbeat(listener_client, "a", ackedRevision=revision)
        body = status(listener_client, "n")
        assert (body["applied"], body["of"]) == (1, 3)
        applied = of_listener(listener_client, "n", "a")
        assert applied["applied"] is True
        assert int(body["at"]) <= int(applied["appliedAt"]) <= now_ms()
        assert applied["lateMs"] == int(applied["appliedAt"]) - int(body["at"])
        assert of_listener(listener_client, "n", "b") == {"id": "b", "role": RM, **waiting}

    def test_after_a_restart_what_was_acknowledged_counts_from_the_next_heartbeat(self, start: Start) -> None:
        """On the list and the map too. What it refused is lost, and it may have ended meanwhile."""
        service = start()
        with service.client() as client:
            register(client, "a")
            revision = put(client, "n")
            heartbeat(client, "a", ackedRevision=revision, refused={"n": "its last host"})
        service.stop()
        service.start()

        def shown(client: httpx.Client) -> tuple[str, dict[str, int]]:
            counts = client.get("/page/map/states").json()["counts"]
            return cells(client.get("/").text, "Applied")[0], {code: count for code, count in counts.items() if count}

        with service.client() as client:
            progress = of_listener(client, "n", "a")
            assert (progress["applied"], progress["refused"]) == (False, None)
            answer = client.get("/blocklist/nodes/n/status").json()
            assert (answer["applied"], answer["of"]) == (0, 1)
            assert shown(client) == ("0/1", {"p": 1})
            heartbeat(client, "a", refused={})
            progress = of_listener(client, "n", "a")
            assert (progress["applied"], progress["appliedAt"]) == (True, None)
            wait_until(lambda: shown(client) == ("1/1", {"m": 1}))

    def test_the_time_of_applying_does_not_change(self, listener_client: httpx.Client) -> None:
        register(listener_client, "jm")
        first = put(listener_client, "a")
        heartbeat(listener_client, "jm", ackedRevision=first)
        before = of_listener(listener_client, "a", "jm")
        heartbeat(listener_client, "jm", ackedRevision=first)
        heartbeat(listener_client, "jm", ackedRevision=put(listener_client, "b"))
        assert of_listener(listener_client, "a", "jm")["applied"] is before["applied"] is True

    def test_a_merge_must_be_applied_unless_it_changes_nothing(self, listener_client: httpx.Client) -> None:
        register(listener_client, "jm")
        heartbeat(listener_client, "jm", ackedRevision=put(listener_client, "a"))
        put(listener_client, "a")
        assert status(listener_client, "a")["applied"] == 1
        revision = put(listener_client, "a", cause="more")
        body = status(listener_client, "a")
        assert (body["revision"], body["applied"], body["of"]) == (revision, 0, 1)

    def test_applying_an_unblock_is_reported_too(self, listener_client: httpx.Client) -> None:
        register(listener_client, "jm")
        put(listener_client, "a")
        revision = unblock(listener_client, "a")
        body = status(listener_client, "a")
        assert (body["blocked"], body["revision"], body["applied"]) == (False, revision, 0)
        heartbeat(listener_client, "jm", ackedRevision=revision)
        assert status(listener_client, "a")["applied"] == 1

    def test_an_expired_node_is_not_blocked(self, timed: InProcessService) -> None:
        client = timed.client()
        revision = put(client, "a", endTimestamp=later())
        timed.clock.advance(3601)
        timed.until(lambda: status(client, "a")["revision"] == revision + 1)
        assert status(client, "a")["blocked"] is False

    @pytest.mark.parametrize(("node_id", "code"), [("never-blocked", 404), ("a%20b", 400), ("a" * 254, 400)])
    def test_a_node_without_an_entry_in_the_log(self, listener_client: httpx.Client, node_id: str, code: int) -> None:
        register(listener_client, "jm")
        heartbeat(listener_client, "jm", taskManagers={"tm": "never-blocked"})
        problem_of(listener_client.get(f"/blocklist/nodes/{node_id}/status"), code)

    def test_only_live_listeners_count(self, timed: InProcessService) -> None:
        client = timed.client()
        register(client, "jm", leaseSeconds=3600)
        register(client, "sleeper", leaseSeconds=1)
        revision = put(client, "a")
        wait_until_lapsed(client, "sleeper", until=timed.until)
        heartbeat(client, "jm", ackedRevision=revision)
        body = status(client, "a")
        assert (body["applied"], body["of"], [it["id"] for it in body["listeners"]]) == (1, 1, ["jm"])

    def test_the_reason_of_a_refusal(self, listener_client: httpx.Client) -> None:
        register(listener_client, "jm")
        revision = put(listener_client, "a")
        why = "It is the last live host of the application — “a”."
        heartbeat(listener_client, "jm", ackedRevision=revision, refused={"a": why, "b": "Another one."})
        assert of_listener(listener_client, "a", "jm")["refused"] == why
        heartbeat(listener_client, "jm")
        assert of_listener(listener_client, "a", "jm")["refused"] == why
        heartbeat(listener_client, "jm", refused={})
        assert of_listener(listener_client, "a", "jm")["refused"] is None

    def test_task_managers_on_the_node_and_their_running_tasks(self, listener_client: httpx.Client) -> None:
        register(listener_client, "jm")
        register(listener_client, "other")
        put(listener_client, "a")
        heartbeat(
            listener_client, "jm", taskManagers={"t2": "a", "t1": "a", "t3": "b"}, runningTasks={"t1": 4, "t3": 1}
        )
        heartbeat(listener_client, "other", taskManagers={"t4": "a"}, runningTasks={"t4": 0})
        assert of_listener(listener_client, "a", "jm")["taskManagers"] == [
            {"id": "t1", "runningTasks": 4},
            {"id": "t2", "runningTasks": None},
        ]
        assert of_listener(listener_client, "a", "other")["taskManagers"] == [{"id": "t4", "runningTasks": 0}]
        heartbeat(listener_client, "jm", runningTasks={"t2": 1})
        assert of_listener(listener_client, "a", "jm")["taskManagers"] == [
            {"id": "t1", "runningTasks": None},
            {"id": "t2", "runningTasks": 1},
        ]

    def test_a_pushed_listener_reports_in_its_responses(
        self, listener_client: httpx.Client, receiver: Receiver
    ) -> None:
        receiver.report = {"taskManagers": {"tm": "a"}, "runningTasks": {"tm": 2}, "refused": {"a": "Last live host."}}
        receiver.register(listener_client, "jm")
        wait_until_pushed(listener_client, receiver, put(listener_client, "a"))
        wait_until(lambda: of_listener(listener_client, "a", "jm")["refused"] is not None)
        progress = of_listener(listener_client, "a", "jm")
        assert (progress["applied"], progress["appliedAt"], progress["refused"]) == (False, None, "Last live host.")
        assert progress["taskManagers"] == [{"id": "tm", "runningTasks": 2}]


def put_one(client: httpx.Client, node_id: str, prefer: str) -> httpx.Response:
    return client.put(f"/blocklist/nodes/{node_id}", json=block(allowMerge=True), headers={"prefer": prefer})


def put_several(client: httpx.Client, node_id: str, prefer: str) -> httpx.Response:
    body = {node_id: block(allowMerge=True), f"{node_id}-2": block(allowMerge=True)}
    return client.put("/blocklist/nodes", json=body, headers={"prefer": prefer})


def free_one(client: httpx.Client, node_id: str, prefer: str) -> httpx.Response:
    put(client, node_id)
    return client.delete(f"/blocklist/nodes/{node_id}", headers={"prefer": prefer})


CHANGES = [pytest.param(change, id=change.__name__) for change in (put_one, put_several, free_one)]


class TestWaiting:
    """PUT and DELETE with `Prefer: wait=N`"""

    @pytest.mark.parametrize("change", CHANGES)
    def test_it_answers_when_every_live_listener_has_applied_it(
        self, listener_client: httpx.Client, receiver: Receiver, change: Change
    ) -> None:
        with receiving() as manager:
            receiver.register(listener_client, "jm")
            manager.register(listener_client, "rm", role=RM)
            answer = change(listener_client, "a", "wait=25")
            assert answer.is_success
            assert answer.headers["preference-applied"] == "wait=25"
            assert answer.headers["blocklist-applied"] == "2/2"
            assert "blocklist-not-applied" not in answer.headers
            assert receiver.has(revision_of(answer))
            assert manager.has(revision_of(answer))
            assert status(listener_client, "a")["applied"] == 2

    @pytest.mark.parametrize("change", CHANGES)
    def test_after_n_seconds_the_response_names_the_missing_listeners(
        self, timed: InProcessService, change: Change
    ) -> None:
        client = timed.client()
        for name in ("jm", "silent-2", "silent-1"):
            register(client, name, leaseSeconds=3600)
        last = 1 if change is put_one else 2
        with ThreadPoolExecutor() as pool:
            waiting = pool.submit(change, client, "a", "wait=2")
            wait_until(lambda: revision_of(client.get("/blocklist")) == last)
            heartbeat(client, "jm", ackedRevision=last)
            timed.until(waiting.done)
        answer = waiting.result()
        assert answer.is_success
        assert answer.headers["preference-applied"] == "wait=2"
        assert answer.headers["blocklist-applied"] == "1/3"
        assert answer.headers["blocklist-not-applied"] == "silent-1, silent-2"

    def test_the_response_is_otherwise_unchanged(self, listener_client: httpx.Client) -> None:
        created = put_one(listener_client, "a", "wait=5")
        assert (created.status_code, created.json()["id"]) == (201, "a")
        assert put_one(listener_client, "a", "wait=5").status_code == 202
        several = put_several(listener_client, "a", "wait=5")
        assert {name: node["status"] for name, node in several.json().items()} == {"a": 202, "a-2": 201}
        freed = listener_client.delete("/blocklist/nodes/a", headers={"prefer": "wait=5"})
        assert (freed.status_code, freed.content) == (200, b"")

    @pytest.mark.parametrize("change", [put_one, put_several])
    def test_a_refusal_ends_the_wait_and_is_not_counted_as_applied(
        self, listener_client: httpx.Client, receiver: Receiver, change: Change
    ) -> None:
        receiver.report = {"refused": {"a": "Last live host."}}
        with receiving() as other:
            receiver.register(listener_client, "etl")
            other.register(listener_client, "jm")
            answer = change(listener_client, "a", "wait=25")
        assert answer.headers["blocklist-applied"] == "1/2"
        assert answer.headers["blocklist-refused"] == "etl"
        assert "blocklist-not-applied" not in answer.headers
        assert status(listener_client, "a")["applied"] == 1

    @pytest.mark.parametrize(
        ("by", "applied", "pending"), [("75%", "3/4", "gc"), ("managers", "2/2", None), ("MANAGERS", "3/4", "gc")]
    )
    @pytest.mark.parametrize("change", CHANGES)
    def test_a_share_or_the_managers_are_enough(
        self, timed: InProcessService, change: Change, by: str, applied: str, pending: str | None
    ) -> None:
        """With hundreds of jobs, one is always in garbage collection. An unknown preference is ignored."""
        client = timed.client()
        roles = {"jm": JM, "gc": JM, "rm": RM, "rm-2": RM}
        for name, role in roles.items():
            register(client, name, role=role, leaseSeconds=3600)
        with ThreadPoolExecutor() as pool:
            waiting = pool.submit(change, client, "a", f"wait=30, applied-by={by}")
            done = 1 if change is put_one else 2
            wait_until(lambda: revision_of(client.get("/blocklist")) == done)
            for name in roles.keys() - {"gc"}:
                heartbeat(client, name, ackedRevision=done)
            if by == "MANAGERS":
                timed.until(waiting.done)
            answer = waiting.result()
        expected = "wait=30" if by == "MANAGERS" else f"wait=30, applied-by={by}"
        assert answer.headers["preference-applied"] == expected
        assert answer.headers["blocklist-applied"] == applied
        assert answer.headers.get("blocklist-not-applied") == pending

    def test_a_share_that_cannot_be_reached_ends_the_wait(
        self, listener_client: httpx.Client, receiver: Receiver
    ) -> None:
        receiver.report = {"refused": {"a": "Last live host."}}
        receiver.register(listener_client, "etl")
        register(listener_client, "silent", leaseSeconds=3600)
        answer = put_one(listener_client, "a", "wait=60, applied-by=90%")
        assert answer.headers["blocklist-applied"] == "0/2"

    def test_a_refusal_of_another_node_does_not_count(self, listener_client: httpx.Client, receiver: Receiver) -> None:
        receiver.report = {"refused": {"b": "Last live host."}}
        receiver.register(listener_client, "etl")
        answer = put_one(listener_client, "a", "wait=25")
        assert answer.headers["blocklist-applied"] == "1/1"
        assert "blocklist-refused" not in answer.headers

    @pytest.mark.parametrize("change", CHANGES)
    @pytest.mark.parametrize("reversals", [1, 2], ids=["reversed", "reversed and made again"])
    def test_a_change_that_was_reversed_meanwhile_is_not_applied(
        self, listener_client: httpx.Client, change: Change, reversals: int
    ) -> None:
        register(listener_client, "jm")
        revision = put(listener_client, "other")
        done = revision + (2 if change in (put_several, free_one) else 1)
        with ThreadPoolExecutor() as pool:
            waiting = pool.submit(change, listener_client, "a", "wait=25")
            wait_until(lambda: revision_of(listener_client.get("/blocklist")) >= done)
            for _ in range(reversals):
                blocked = "a" in listener_client.get("/blocklist").json()
                revision = unblock(listener_client, "a") if blocked else put(listener_client, "a")
            heartbeat(listener_client, "jm", ackedRevision=revision)
            answer = waiting.result()
        assert answer.is_success
        assert answer.headers["blocklist-applied"] == "0/1"
        assert answer.headers["blocklist-superseded"] == "a"

    def test_the_page_does_not_count_a_refusal_as_applied(
        self, listener_client: httpx.Client, receiver: Receiver
    ) -> None:
        receiver.report = {"refused": {"a": "Last live host."}}
        receiver.register(listener_client, "etl")
        put_several(listener_client, "a", "wait=25")
        html = listener_client.get("/page/list").text
        assert html.count("0/1</strong>") == html.count("1/1</td>") == 1
        node = listener_client.get("/page/nodes/a").text
        assert '<span class="pill bad">refused</span>' in node
        assert '<span class="pill good">applied</span>' not in node

    def test_without_listeners_it_answers_immediately(self, listener_client: httpx.Client) -> None:
        answer = put_one(listener_client, "a", "wait=25")
        assert (answer.status_code, answer.headers["blocklist-applied"]) == (201, "0/0")

    @pytest.mark.parametrize("prefer", ["wait", "wait=", "wait=x", "wait=-1", "wait=1.5", "respond-async", ""])
    def test_an_invalid_preference_is_ignored(self, listener_client: httpx.Client, prefer: str) -> None:
        register(listener_client, "silent")
        answer = put_one(listener_client, "a", prefer)
        assert answer.status_code == 201
        assert not {"preference-applied", "blocklist-applied", "blocklist-not-applied"} & set(answer.headers)

    def test_without_the_preference_it_does_not_wait(self, listener_client: httpx.Client) -> None:
        register(listener_client, "silent")
        answer = listener_client.put("/blocklist/nodes/a", json=block())
        assert answer.status_code == 201
        assert "blocklist-applied" not in answer.headers

    def test_a_heartbeat_of_a_watching_listener_ends_the_wait(self, listener_client: httpx.Client) -> None:
        register(listener_client, "jm")
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(put_one, listener_client, "a", "wait=25")
            wait_until(lambda: get_listener(listener_client, "jm")["lagRevisions"] == 1)
            assert not waiting.done()
            heartbeat(listener_client, "jm", ackedRevision=get_listener(listener_client, "jm")["revision"])
            assert waiting.result(60).headers["blocklist-applied"] == "1/1"

    @pytest.mark.parametrize("leaves", [True, False])
    def test_it_does_not_wait_for_removed_or_lapsed_listeners(
        self, listener_client: httpx.Client, leaves: bool
    ) -> None:
        register(listener_client, "jm", leaseSeconds=3600 if leaves else 1)
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(put_one, listener_client, "a", "wait=25")
            wait_until(lambda: "a" in listener_client.get("/blocklist").json())
            if leaves:
                listener_client.delete("/listeners/jm")
            assert waiting.result(60).headers["blocklist-applied"] == "0/0"

    def test_a_rejected_request_does_not_wait(self, listener_client: httpx.Client) -> None:
        register(listener_client, "silent")
        put(listener_client, "a")
        wait = {"prefer": "wait=60"}
        problem_of(listener_client.put("/blocklist/nodes/a", json=block(), headers=wait), 409)
        problem_of(listener_client.put("/blocklist/nodes/a", json={}, headers=wait), 400)
        problem_of(listener_client.delete("/blocklist/nodes/b", headers=wait), 404)

    def test_at_most_20_listeners_are_named(self, timed: InProcessService) -> None:
        client = timed.client()
        names = sorted(f"silent-{number}" for number in range(25))
        for name in names:
            register(client, name, leaseSeconds=3600)
        answer = timed.in_time(lambda: put_one(client, "a", "wait=1"))
        assert answer.headers["blocklist-applied"] == "0/25"
        *named, more = answer.headers["blocklist-not-applied"].split(", ")
        assert (len(named), more) == (20, "and 5 more")
        assert set(named) <= set(names)

    def test_a_failing_listener_is_named(self, listener_client: httpx.Client, receiver: Receiver) -> None:
        with receiving(fails(10**9)) as broken:
            broken.register(listener_client, "broken")
            receiver.register(listener_client, "jm")
            answer = put_one(listener_client, "a", "wait=2")
        assert answer.headers["blocklist-applied"] == "1/2"
        assert answer.headers["blocklist-not-applied"] == "broken"
