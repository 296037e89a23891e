"""Pushes: everything after the acknowledged revision in one POST, signed, in order, at least once."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import pairwise

import httpx
import pytest

from tests.integration.bodies import EVACUATE, PERMANENT, held, later
from tests.integration.conftest import Start
from tests.integration.listeners import RM, beat, free, known, lapse, plain, put, register, report, told
from tests.integration.problems import problem_of
from tests.integration.process import wait_until
from tests.integration.receiver import Push, Receiver, fails, forgets, holds, http, never, receiving, says


class TestWhatIsSaid:
    """The bodies, and in how many calls."""

    def test_nothing_on_an_empty_list_and_then_what_changed(self, desk: httpx.Client, receiver: Receiver) -> None:
        start = receiver.register(desk, "jm")["revision"]
        revision = put(desk, "a", endTimestamp=(end := later()))
        told(desk, receiver, revision)
        [push] = receiver.applied
        assert push.body == {
            "listenerId": "jm",
            "sessionId": "s1",
            "fromRevision": start,
            "toRevision": revision,
            "snapshot": False,
            "blocked": [plain(desk)["a"]],
            "unblocked": [],
        }
        assert push.body["blocked"][0]["endTimestamp"] == end
        assert push.headers["content-type"].split(";")[0] == "application/json"

    def test_a_late_one_gets_the_whole_list_merged_in_one_call(self, desk: httpx.Client, receiver: Receiver) -> None:
        put(desk, "b", cause="x")
        put(desk, "b", cause="y", action=EVACUATE)
        put(desk, "c")
        free(desk, "c")
        revision = put(desk, "a")
        receiver.register(desk, "jm")
        told(desk, receiver, revision)
        [push] = receiver.applied
        assert (push.body["snapshot"], push.revisions, push.ids[1]) == (True, (0, revision), [])
        assert receiver.nodes == plain(desk)
        assert (receiver.nodes["b"]["cause"], receiver.nodes["b"]["action"]) == ("x,y", EVACUATE)

    def test_one_batch_is_one_call(self, desk: httpx.Client, receiver: Receiver) -> None:
        receiver.register(desk, "jm")
        many = {f"n-{number}": {"action": "MARK_BLOCKED", "cause": "disk"} for number in range(100)}
        revision = int(desk.put("/blocklist/nodes", json=many).headers["blocklist-revision"])
        told(desk, receiver, revision)
        assert [sorted(push.ids[0]) for push in receiver.applied] == [sorted(many)]

    def test_a_merge_tells_the_merged_record_alone(self, desk: httpx.Client, receiver: Receiver) -> None:
        receiver.register(desk, "jm")
        told(desk, receiver, put(desk, "a", cause="x", endTimestamp=later()))
        told(desk, receiver, put(desk, "a", cause="y", action=EVACUATE))
        [node] = receiver.applied[-1].body["blocked"]
        assert (node["cause"], node["action"], node["endTimestamp"]) == ("x,y", EVACUATE, PERMANENT)

    def test_a_merge_that_changes_nothing_tells_nobody(self, desk: httpx.Client, receiver: Receiver) -> None:
        receiver.register(desk, "jm")
        first = put(desk, "a")
        told(desk, receiver, first)
        assert [put(desk, "a"), put(desk, "a")] == [first, first]
        told(desk, receiver, put(desk, "b"))
        assert [push.ids[0] for push in receiver.applied] == [["a"], ["b"]]
        assert not [push for push in receiver.requests if push.heartbeat and push.revisions[0] != push.revisions[1]]

    def test_what_was_freed_is_said_and_how(self, desk: httpx.Client, receiver: Receiver) -> None:
        receiver.register(desk, "jm")
        put(desk, "a", endTimestamp=later(1.5))
        told(desk, receiver, put(desk, "b"))
        told(desk, receiver, free(desk, "b"))
        receiver.wait(lambda it: "a" not in it.nodes)
        freed = [node for push in receiver.applied for node in push.body["unblocked"]]
        assert sorted(freed, key=lambda node: node["id"]) == [
            {"id": "a", "type": "expired"},
            {"id": "b", "type": "unblocked"},
        ]

    def test_each_node_comes_once_in_its_last_state(self, desk: httpx.Client) -> None:
        """What happens while a push is on its way comes in the next one, in one call."""
        with receiving(holds) as receiver:
            receiver.register(desk, "jm")
            put(desk, "first")
            receiver.wait(lambda it: bool(it.requests))
            for node_id in ("a", "b", "c"):
                put(desk, node_id)
            put(desk, "a", cause="more")
            free(desk, "b")
            free(desk, "c")
            last = put(desk, "c", action=EVACUATE)
            receiver.held.set()
            told(desk, receiver, last)
            assert receiver.nodes == plain(desk)
            [_, push] = receiver.applied
        blocked, unblocked = push.ids
        assert (sorted(blocked), unblocked) == (["a", "c"], ["b"])
        assert push.revisions == (receiver.applied[0].revisions[1], last)

    def test_each_change_is_one_request_that_begins_where_the_last_one_ended(
        self, desk: httpx.Client, receiver: Receiver
    ) -> None:
        receiver.register(desk, "jm")
        for number in range(20):
            told(desk, receiver, put(desk, f"n-{number}"))
        assert len(receiver.applied) == 20
        assert all(one.revisions[1] == next_one.revisions[0] for one, next_one in pairwise(receiver.applied))
        assert receiver.repeated == 0

    def test_a_path_and_query_of_the_callback_stay_as_they_are(self, desk: httpx.Client) -> None:
        with receiving() as receiver:
            receiver.url += "/a%20b?token=x%2Fy&z"
            assert receiver.register(desk, "jm")["callbackUrl"] == receiver.url
            told(desk, receiver, put(desk, "a"))


class TestWhoIsTold:
    """Sessions, leaving, lapse."""

    def test_who_left_hears_no_more(self, desk: httpx.Client, receiver: Receiver) -> None:
        with receiving() as other:
            receiver.register(desk, "jm")
            other.register(desk, "other")
            told(desk, receiver, put(desk, "a"))
            assert desk.delete("/listeners/jm").status_code == 204
            heard = len(receiver.requests)
            told(desk, other, put(desk, "b"), "other")
            other.wait(lambda it: len(it.heartbeats()) >= 2)
        assert len(receiver.requests) == heard

    def test_a_new_session_gets_what_was_before_and_the_old_one_nothing_more(
        self, desk: httpx.Client, receiver: Receiver
    ) -> None:
        receiver.register(desk, "rm", role=RM)
        told(desk, receiver, put(desk, "a"), "rm")
        with receiving(session="s2") as leader:
            leader.register(desk, "rm", role=RM)
            heard = len(receiver.requests)
            told(desk, leader, put(desk, "b"), "rm")
            leader.wait(lambda it: bool(it.heartbeats()))
            assert leader.nodes == plain(desk)
            assert leader.applied[0].body["snapshot"]
        assert (len(receiver.requests), sorted(receiver.nodes)) == (heard, ["a"])

    def test_a_word_of_the_old_session_acknowledges_nothing_for_the_new(self, desk: httpx.Client) -> None:
        with receiving(holds) as old, receiving(session="s2") as new:
            old.register(desk, "jm")
            first = put(desk, "a")
            old.wait(lambda it: bool(it.requests))
            new.register(desk, "jm")
            old.held.set()
            told(desk, new, first)
            assert new.applied[0].body["snapshot"]
            told(desk, new, put(desk, "b"))
            assert new.nodes == plain(desk)

    def test_one_that_does_not_answer_lapses_and_is_told_nothing_more(self, desk: httpx.Client) -> None:
        with receiving(fails(10**9)) as receiver, receiving() as other:
            receiver.register(desk, "jm", leaseSeconds=1)
            other.register(desk, "other")
            put(desk, "a")
            lapse(desk, "jm")
            assert known(desk, "jm")["lastError"]
            receiver.wait(lambda _: True)
            told(desk, other, put(desk, "b"), "other")
            heard = len(receiver.requests)
            told(desk, other, put(desk, "c"), "other")
            other.wait(lambda it: bool(it.heartbeats()))
            assert len(receiver.requests) == heard

    def test_answers_renew_the_lease(self, start: Start, receiver: Receiver) -> None:
        """Heartbeats keep one that answers, far beyond the lease of one that does not."""
        with start(heartbeat="200ms").client() as client, receiving(never) as dead:
            receiver.register(client, "jm", leaseSeconds=2)
            dead.register(client, "dead", leaseSeconds=2)
            lapse(client, "dead")
            end = int(known(client, "jm")["leaseEnd"])
            wait_until(lambda: int(known(client, "jm")["leaseEnd"]) > end + 2_000)
            assert known(client, "jm")["state"] == "live"

    def test_a_quiet_one_is_asked_for_a_sign_of_life(self, desk: httpx.Client, receiver: Receiver) -> None:
        receiver.register(desk, "jm")
        revision = put(desk, "a")
        told(desk, receiver, revision)
        receiver.wait(lambda it: len(it.heartbeats()) >= 2)
        body = receiver.heartbeats()[-1].body
        assert body == {
            "listenerId": "jm",
            "sessionId": "s1",
            "fromRevision": revision,
            "toRevision": revision,
            "snapshot": False,
            "blocked": [],
            "unblocked": [],
        }
        assert len(receiver.applied) == 1

    def test_one_that_may_be_pushed_may_send_heartbeats_too(self, desk: httpx.Client) -> None:
        with receiving(fails(10**9)) as receiver:
            receiver.register(desk, "jm")
            revision = put(desk, "a")
            report(desk, "jm", ackedRevision=revision)
            assert known(desk, "jm")["ackedRevision"] == revision

    def test_one_that_watches_is_never_pushed_to(self, desk: httpx.Client, receiver: Receiver) -> None:
        """A renewal without a callback ends the pushes."""
        receiver.register(desk, "jm")
        told(desk, receiver, put(desk, "a"))
        assert register(desk, "jm")["callbackUrl"] is None
        with receiving() as other:
            other.register(desk, "other")
            heard = len(receiver.requests)
            told(desk, other, put(desk, "b"), "other")
            other.wait(lambda it: bool(it.heartbeats()))
        assert len(receiver.requests) == heard


class TestResourceManagersFirst:
    """FLIP-224: a JobMaster is told of a revision when every live ResourceManager has it, or after a bounded wait."""

    @pytest.fixture
    def patient(self, start: Start) -> Iterator[httpx.Client]:
        """A service that waits for ResourceManagers for longer than any test runs."""
        with start(managers_first="10m").client() as client:
            yield client

    def test_a_jobmaster_is_told_after_every_resourcemanager(self, patient: httpx.Client) -> None:
        with ExitStack() as stack:
            held_rm = stack.enter_context(receiving(holds))
            quick_rm, jm = (stack.enter_context(receiving()) for _ in range(2))
            held_rm.register(patient, "rm-1", role=RM)
            quick_rm.register(patient, "rm-2", role=RM)
            jm.register(patient, "jm")
            revision = put(patient, "a")
            told(patient, quick_rm, revision, "rm-2")
            held_rm.wait(lambda it: bool(it.requests))
            assert jm.requests == []
            held_rm.held.set()
            told(patient, jm, revision)
            assert held_rm.has(revision)

    def test_one_that_watches_is_waited_for_until_it_acknowledges(self, patient: httpx.Client) -> None:
        with receiving() as jm:
            register(patient, "rm", role=RM)
            jm.register(patient, "jm")
            first = put(patient, "a")
            second = put(patient, "b")
            assert known(patient, "jm")["lagRevisions"] == 2
            report(patient, "rm", ackedRevision=first)
            told(patient, jm, first)
            assert (jm.revision, sorted(jm.nodes)) == (first, ["a"])
            report(patient, "rm", ackedRevision=second)
            told(patient, jm, second)

    def test_one_that_is_no_more_is_not_waited_for(self, patient: httpx.Client) -> None:
        with receiving() as jm:
            register(patient, "lapses", role=RM, leaseSeconds=1)
            register(patient, "leaves", role=RM)
            jm.register(patient, "jm")
            revision = put(patient, "a")
            lapse(patient, "lapses")
            assert jm.requests == []
            patient.delete("/listeners/leaves")
            told(patient, jm, revision)

    def test_the_wait_is_bounded(self, desk: httpx.Client, receiver: Receiver) -> None:
        register(desk, "silent", role=RM)
        with receiving(never) as stuck:
            stuck.register(desk, "stuck", role=RM)
            receiver.register(desk, "jm")
            revision = put(desk, "a")
            told(desk, receiver, revision)
            assert known(desk, "silent")["ackedRevision"] < revision
            assert known(desk, "stuck")["ackedRevision"] < revision

    def test_without_a_resourcemanager_nobody_waits(self, patient: httpx.Client, receiver: Receiver) -> None:
        receiver.register(patient, "jm")
        told(patient, receiver, put(patient, "a"))


class TestFailures:
    """Retries: nothing is skipped, and the order stays."""

    @pytest.mark.parametrize("status", [400, 401, 404, 410, 429, 500, 503])
    def test_anything_but_2xx_is_no_acknowledgement(self, desk: httpx.Client, status: int) -> None:
        with receiving(fails(3, status)) as receiver:
            receiver.register(desk, "jm")
            revision = put(desk, "a")
            wait_until(lambda: known(desk, "jm")["lastError"] is not None or receiver.has(revision))
            told(desk, receiver, put(desk, "b"))
            assert receiver.nodes == plain(desk)
            wait_until(lambda: known(desk, "jm")["lastError"] is None)

    @pytest.mark.parametrize("status", [200, 201, 202, 204, 299])
    def test_any_2xx_acknowledges(self, desk: httpx.Client, status: int) -> None:
        with receiving(says(http(status))) as receiver:
            receiver.register(desk, "jm")
            revision = put(desk, "a")
            wait_until(lambda: known(desk, "jm")["ackedRevision"] == revision)
            assert [push.revisions[1] for push in receiver.requests if not push.heartbeat] == [revision]

    @pytest.mark.parametrize(
        "raw",
        [b"", b"\r\n\r\n", b"SSH-2.0-OpenSSH_9.2\r\n", b"HTTP/1.1 200", b"HTTP/1.1 abc\r\n\r\n", b"\x00" * 4096],
        ids=ascii,
    )
    def test_what_is_no_http_is_no_acknowledgement(self, desk: httpx.Client, raw: bytes) -> None:
        def answer(_receiver: Receiver, _push: Push, connection: socket.socket) -> None:
            connection.sendall(raw)
            connection.shutdown(socket.SHUT_RDWR)

        with receiving(answer) as receiver:
            receiver.register(desk, "jm")
            revision = put(desk, "a")
            receiver.wait(lambda it: len(it.requests) >= 2)
            wait_until(lambda: known(desk, "jm")["lastError"] is not None)
            assert known(desk, "jm")["ackedRevision"] < revision

    def test_an_answer_that_was_lost_is_said_again(self, desk: httpx.Client) -> None:
        with receiving(forgets(2)) as receiver:
            receiver.register(desk, "jm")
            put(desk, "a")
            receiver.wait(lambda it: bool(it.applied))
            told(desk, receiver, put(desk, "b"))
            assert receiver.nodes == plain(desk)
            assert len(receiver.requests) > len(receiver.applied)

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
            b'{"taskManagers": {%s}}' % b",".join(b'"tm-%d": "a"' % number for number in range(10_001)),
            b"[" * 100_000,
        ],
        ids=lambda body: ascii(body[:40]),
    )
    def test_a_2xx_with_anything_in_it_acknowledges_and_nothing_bad_is_taken(
        self, desk: httpx.Client, body: bytes
    ) -> None:
        with receiving(says(http(200, body, "Content-Type: application/json"))) as receiver:
            receiver.register(desk, "jm")
            revision = put(desk, "a")
            wait_until(lambda: known(desk, "jm")["ackedRevision"] == revision)
            assert held(desk)[1]["a"]["taskManagers"] == []

    def test_nobody_who_left_a_connection_open_is_forgotten(self, desk: httpx.Client, receiver: Receiver) -> None:
        """A callback that closes each connection after its answer is told like any other."""

        def closes(receiver: Receiver, push: Push, connection: socket.socket) -> None:
            receiver.take(push)
            connection.sendall(http(204, b"", "Connection: close"))
            connection.shutdown(socket.SHUT_RDWR)

        receiver.answer = closes
        receiver.register(desk, "jm")
        for number in range(5):
            told(desk, receiver, put(desk, f"n-{number}"))
        assert receiver.nodes == plain(desk)

    def test_a_heartbeat_for_nobody_is_404_while_others_are_told(self, desk: httpx.Client, receiver: Receiver) -> None:
        receiver.register(desk, "jm")
        problem_of(beat(desk, "nobody"), 404)
        told(desk, receiver, put(desk, "a"))
