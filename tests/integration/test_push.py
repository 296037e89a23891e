"""Pushes: everything after the acknowledged revision in one POST, signed, in order, at least once."""

from __future__ import annotations

import socket
from contextlib import ExitStack
from itertools import pairwise

import httpx
import pytest

from app.listeners import push
from tests.integration.bodies import EVACUATE, current_list, later
from tests.integration.conftest import StartInProcess
from tests.integration.in_process import InProcessService, RunningClock
from tests.integration.listeners import (
    RM,
    current_nodes,
    get_listener,
    heartbeat,
    put,
    register,
    unblock,
    wait_until_lapsed,
    wait_until_pushed,
)
from tests.integration.process import wait_until
from tests.integration.receiver import (
    Push,
    Receiver,
    delays,
    fails,
    http,
    never_responds,
    receiving,
    responds,
)


class TestBodies:
    """The bodies of pushes, and their number."""

    def test_an_empty_list_is_not_pushed_and_then_changes_are(
        self, listener_client: httpx.Client, receiver: Receiver
    ) -> None:
        start = receiver.register(listener_client, "jm")["revision"]
        revision = put(listener_client, "a", endTimestamp=(end := later()))
        wait_until_pushed(listener_client, receiver, revision)
        [push] = receiver.applied
        assert push.body == {
            "listenerId": "jm",
            "sessionId": "s1",
            "fromRevision": start,
            "toRevision": revision,
            "history": listener_client.get("/blocklist").headers["blocklist-history"],
            "snapshot": False,
            "blocked": [current_nodes(listener_client)["a"]],
            "unblocked": [],
        }
        assert push.body["blocked"][0]["endTimestamp"] == end
        assert push.headers["content-type"].split(";")[0] == "application/json"

    def test_each_node_is_pushed_once_in_its_last_state(self, listener_client: httpx.Client) -> None:
        """Changes made while a push is in flight come together in the next one."""
        with receiving(delays) as receiver:
            receiver.register(listener_client, "jm")
            put(listener_client, "first")
            receiver.wait(lambda it: bool(it.requests))
            for node_id in ("a", "b", "c"):
                put(listener_client, node_id)
            put(listener_client, "a", cause="more")
            unblock(listener_client, "b")
            unblock(listener_client, "c")
            last = put(listener_client, "c", action=EVACUATE)
            receiver.release.set()
            wait_until_pushed(listener_client, receiver, last)
            assert receiver.nodes == current_nodes(listener_client)
            [_, push] = receiver.applied
        blocked, unblocked = push.ids
        assert (sorted(blocked), unblocked) == (["a", "c"], ["b"])
        assert push.revisions == (receiver.applied[0].revisions[1], last)

    def test_each_push_starts_at_the_revision_of_the_previous_one(
        self, listener_client: httpx.Client, receiver: Receiver
    ) -> None:
        receiver.register(listener_client, "jm")
        for number in range(20):
            wait_until_pushed(listener_client, receiver, put(listener_client, f"n-{number}"))
        assert len(receiver.applied) == 20
        assert all(one.revisions[1] == next_one.revisions[0] for one, next_one in pairwise(receiver.applied))
        assert receiver.repeated == 0

    def test_path_and_query_of_the_callback_are_kept(self, listener_client: httpx.Client) -> None:
        with receiving() as receiver:
            receiver.url += "/a%20b?token=x%2Fy&z"
            assert receiver.register(listener_client, "jm")["callbackUrl"] == receiver.url
            wait_until_pushed(listener_client, receiver, put(listener_client, "a"))


class TestSessionsAndLeases:
    """Sessions, leaving, expiry, heartbeats."""

    def test_a_response_of_the_old_session_does_not_acknowledge_for_the_new(
        self, listener_client: httpx.Client
    ) -> None:
        with receiving(delays) as old, receiving(session="s2") as new:
            old.register(listener_client, "jm")
            first = put(listener_client, "a")
            old.wait(lambda it: bool(it.requests))
            new.register(listener_client, "jm")
            old.release.set()
            wait_until_pushed(listener_client, new, first)
            assert new.applied[0].body["snapshot"]
            wait_until_pushed(listener_client, new, put(listener_client, "b"))
            assert new.nodes == current_nodes(listener_client)

    def test_a_listener_that_does_not_respond_expires_and_gets_no_pushes(self, timed: InProcessService) -> None:
        with receiving(fails(10**9)) as receiver, receiving() as other, timed.client() as listener_client:
            receiver.register(listener_client, "jm", leaseSeconds=60)
            other.register(listener_client, "other", leaseSeconds=3600)
            put(listener_client, "a")
            receiver.wait(lambda it: bool(it.requests))
            timed.clock.advance(60)
            wait_until_lapsed(listener_client, "jm")
            wait_until(lambda: get_listener(listener_client, "jm")["lastError"] is not None)
            wait_until_pushed(listener_client, other, put(listener_client, "b"), "other")
            received = len(receiver.requests)
            wait_until_pushed(listener_client, other, put(listener_client, "c"), "other")
            known = len(other.heartbeats())
            other.wait(lambda it: len(it.heartbeats()) > known, timed.until)
            assert len(receiver.requests) == received

    def test_responses_renew_the_lease(self, timed: InProcessService, receiver: Receiver) -> None:
        """Empty pushes keep a listener that responds live, long after one that does not has expired."""
        with timed.client() as client, receiving(never_responds) as dead:
            receiver.register(client, "jm", leaseSeconds=60)
            dead.register(client, "dead", leaseSeconds=60)
            for _ in range(2):
                end = int(get_listener(client, "jm")["leaseEnd"])
                timed.clock.advance(40)
                wait_until(lambda end=end: int(get_listener(client, "jm")["leaseEnd"]) >= end + 40_000)  # type: ignore[misc]
            assert get_listener(client, "jm")["state"] == "live"
            assert get_listener(client, "dead")["state"] == "lapsed"

    def test_an_up_to_date_listener_gets_empty_pushes(self, timed: InProcessService, receiver: Receiver) -> None:
        listener_client = timed.client()
        receiver.register(listener_client, "jm")
        revision = put(listener_client, "a")
        wait_until_pushed(listener_client, receiver, revision)
        receiver.wait(lambda it: len(it.heartbeats()) >= 2, timed.until)
        body = receiver.heartbeats()[-1].body
        assert body == {
            "listenerId": "jm",
            "sessionId": "s1",
            "fromRevision": revision,
            "toRevision": revision,
            "history": listener_client.get("/blocklist").headers["blocklist-history"],
            "snapshot": False,
            "blocked": [],
            "unblocked": [],
        }
        assert len(receiver.applied) == 1

    def test_a_listener_with_a_callback_may_send_heartbeats(self, listener_client: httpx.Client) -> None:
        with receiving(fails(10**9)) as receiver:
            receiver.register(listener_client, "jm")
            revision = put(listener_client, "a")
            heartbeat(listener_client, "jm", ackedRevision=revision)
            assert get_listener(listener_client, "jm")["ackedRevision"] == revision

    def test_a_listener_without_a_callback_gets_no_pushes(self, timed: InProcessService, receiver: Receiver) -> None:
        """A renewal without a callback ends the pushes."""
        listener_client = timed.client()
        receiver.register(listener_client, "jm")
        wait_until_pushed(listener_client, receiver, put(listener_client, "a"))
        assert register(listener_client, "jm")["callbackUrl"] is None
        with receiving() as other:
            other.register(listener_client, "other")
            received = len(receiver.requests)
            wait_until_pushed(listener_client, other, put(listener_client, "b"), "other")
            other.wait(lambda it: bool(it.heartbeats()), timed.until)
        assert len(receiver.requests) == received


class TestResourceManagersFirst:
    """FLIP-224: a JobMaster gets a revision once every live ResourceManager has applied it, or after a limit."""

    @pytest.fixture
    def unlimited(self, start_in_process: StartInProcess, monkeypatch: pytest.MonkeyPatch) -> InProcessService:
        """A service that waits for ResourceManagers longer than any test runs."""
        monkeypatch.setattr(push, "MAX_WAIT_SECONDS", 600.0)
        return start_in_process(clock=RunningClock())

    @pytest.fixture
    def unlimited_barrier(self, unlimited: InProcessService) -> httpx.Client:
        return unlimited.client()

    def test_a_jobmaster_gets_a_revision_after_every_resourcemanager(self, unlimited_barrier: httpx.Client) -> None:
        with ExitStack() as stack:
            held_rm = stack.enter_context(receiving(delays))
            quick_rm, jm = (stack.enter_context(receiving()) for _ in range(2))
            held_rm.register(unlimited_barrier, "rm-1", role=RM)
            quick_rm.register(unlimited_barrier, "rm-2", role=RM)
            jm.register(unlimited_barrier, "jm")
            revision = put(unlimited_barrier, "a")
            wait_until_pushed(unlimited_barrier, quick_rm, revision, "rm-2")
            held_rm.wait(lambda it: bool(it.requests))
            assert jm.requests == []
            held_rm.release.set()
            wait_until_pushed(unlimited_barrier, jm, revision)
            assert held_rm.has(revision)

    def test_a_resourcemanager_that_watches_counts_once_it_acknowledges(self, unlimited_barrier: httpx.Client) -> None:
        with receiving() as jm:
            register(unlimited_barrier, "rm", role=RM)
            jm.register(unlimited_barrier, "jm")
            first = put(unlimited_barrier, "a")
            second = put(unlimited_barrier, "b")
            assert get_listener(unlimited_barrier, "jm")["lagRevisions"] == 2
            heartbeat(unlimited_barrier, "rm", ackedRevision=first)
            wait_until_pushed(unlimited_barrier, jm, first)
            assert (jm.revision, sorted(jm.nodes)) == (first, ["a"])
            heartbeat(unlimited_barrier, "rm", ackedRevision=second)
            wait_until_pushed(unlimited_barrier, jm, second)

    def test_a_resourcemanager_that_expired_or_left_does_not_count(
        self, unlimited: InProcessService, unlimited_barrier: httpx.Client
    ) -> None:
        with receiving() as jm:
            register(unlimited_barrier, "lapses", role=RM, leaseSeconds=60)
            register(unlimited_barrier, "leaves", role=RM, leaseSeconds=600)
            jm.register(unlimited_barrier, "jm", leaseSeconds=600)
            revision = put(unlimited_barrier, "a")
            unlimited.clock.advance(60)
            wait_until_lapsed(unlimited_barrier, "lapses")
            assert jm.requests == []
            unlimited_barrier.delete("/listeners/leaves")
            wait_until_pushed(unlimited_barrier, jm, revision)

    def test_the_wait_has_a_limit(self, timed: InProcessService, receiver: Receiver) -> None:
        listener_client = timed.client()
        register(listener_client, "silent", role=RM)
        with receiving(never_responds) as stuck:
            stuck.register(listener_client, "stuck", role=RM)
            receiver.register(listener_client, "jm")
            revision = put(listener_client, "a")
            stuck.wait(lambda it: bool(it.requests))
            assert receiver.requests == []
            timed.clock.advance(1)
            wait_until_pushed(listener_client, receiver, revision)
            assert get_listener(listener_client, "silent")["ackedRevision"] < revision
            assert get_listener(listener_client, "stuck")["ackedRevision"] < revision

    def test_without_a_resourcemanager_there_is_no_wait(
        self, unlimited_barrier: httpx.Client, receiver: Receiver
    ) -> None:
        receiver.register(unlimited_barrier, "jm")
        wait_until_pushed(unlimited_barrier, receiver, put(unlimited_barrier, "a"))


class TestFailures:
    """Retries skip nothing and keep the order."""

    @pytest.mark.parametrize("status", [400, 401, 404, 410, 429, 500, 503])
    def test_only_2xx_acknowledges(self, timed: InProcessService, status: int) -> None:
        with receiving(fails(3, status)) as receiver, timed.client() as client:
            receiver.register(client, "jm", leaseSeconds=600)
            first = put(client, "a")
            wait_until(lambda: get_listener(client, "jm")["lastError"] is not None)
            assert get_listener(client, "jm")["ackedRevision"] < first
            wait_until_pushed(client, receiver, put(client, "b"), until=timed.until)
            assert receiver.nodes == current_nodes(client)
            wait_until(lambda: get_listener(client, "jm")["lastError"] is None)

    @pytest.mark.parametrize("status", [200, 201, 202, 204, 299])
    def test_any_2xx_acknowledges(self, listener_client: httpx.Client, status: int) -> None:
        with receiving(responds(http(status))) as receiver:
            receiver.register(listener_client, "jm")
            revision = put(listener_client, "a")
            wait_until(lambda: get_listener(listener_client, "jm")["ackedRevision"] == revision)
            assert [push.revisions[1] for push in receiver.requests if not push.heartbeat] == [revision]

    @pytest.mark.parametrize(
        "raw",
        [b"", b"\r\n\r\n", b"SSH-2.0-OpenSSH_9.2\r\n", b"HTTP/1.1 200", b"HTTP/1.1 abc\r\n\r\n", b"\x00" * 4096],
        ids=ascii,
    )
    def test_an_invalid_response_does_not_acknowledge(self, listener_client: httpx.Client, raw: bytes) -> None:
        def answer(_receiver: Receiver, _push: Push, connection: socket.socket) -> None:
            connection.sendall(raw)
            connection.shutdown(socket.SHUT_RDWR)

        with receiving(answer) as receiver:
            receiver.register(listener_client, "jm")
            revision = put(listener_client, "a")
            receiver.wait(lambda it: len(it.requests) >= 2)
            wait_until(lambda: get_listener(listener_client, "jm")["lastError"] is not None)
            assert get_listener(listener_client, "jm")["ackedRevision"] < revision

    @pytest.mark.parametrize(
        "body",
        [
            b"",
            b"OK",
            b"{",
            b"null",
            b"[]",
            b'"x"',
            b"{}",
            b'{"taskManagers": []}',
            b'{"taskManagers": {"tm bad": "a"}}',
            b'{"taskManagers": {"tm": "\xff"}}',
            b'{"taskManagers": null, "other": 1}',
            b'{"newMachines": {"a": 1}, "replaced": {"a": "forged"}}',
            b'{"taskManagers": {%s}}' % b",".join(b'"tm-%d": "a"' % number for number in range(10_001)),
            b"[" * 100_000,
        ],
        ids=lambda body: ascii(body[:40]),
    )
    def test_a_2xx_with_an_invalid_body_acknowledges_and_its_report_is_ignored(
        self, listener_client: httpx.Client, body: bytes
    ) -> None:
        with receiving(responds(http(200, body, "Content-Type: application/json"))) as receiver:
            receiver.register(listener_client, "jm")
            revision = put(listener_client, "a")
            wait_until(lambda: get_listener(listener_client, "jm")["ackedRevision"] == revision)
            assert current_list(listener_client)[1]["a"]["taskManagers"] == []

    def test_a_callback_that_closes_each_connection_gets_all_pushes(
        self, listener_client: httpx.Client, receiver: Receiver
    ) -> None:
        """The service opens a new connection for each push."""

        def closes(receiver: Receiver, push: Push, connection: socket.socket) -> None:
            receiver.receive(push)
            connection.sendall(http(204, b"", "Connection: close"))
            connection.shutdown(socket.SHUT_RDWR)

        receiver.responder = closes
        receiver.register(listener_client, "jm")
        for number in range(5):
            wait_until_pushed(listener_client, receiver, put(listener_client, f"n-{number}"))
        assert receiver.nodes == current_nodes(listener_client)
