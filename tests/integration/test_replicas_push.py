"""Pushes by several replicas: each listener is told by one of them, and by another when that one is gone."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import httpx
import pytest

from tests.integration.listeners import RM, free, known, plain, put, settled, told
from tests.integration.process import ServiceProcess, wait_until
from tests.integration.receiver import Receiver, holds, receiving
from tests.integration.replicas import Replicas, agree
from tests.integration.test_push_faults import changing, check, moved
from tests.postgres import PostgresServer, name_of

pytestmark = [pytest.mark.databases("postgresql"), pytest.mark.xdist_group("replicas")]


@pytest.fixture
def owner(mortals: Replicas) -> Iterator[httpx.Client]:
    """The replica where listeners register, and which pushes to them therefore. After the test nobody listens."""
    client = mortals.clients[0]
    yield client
    for listener in client.get("/listeners").json()["listeners"]:
        client.delete(f"/listeners/{listener['id']}")


@pytest.fixture
def heir(mortals: Replicas) -> httpx.Client:
    """The other one."""
    return mortals.clients[1]


def message_ids(receivers: list[Receiver]) -> list[str]:
    return [push.headers["webhook-id"] for receiver in receivers for push in receiver.requests if not push.heartbeat]


def owners(postgres: PostgresServer, process: ServiceProcess) -> set[str | None]:
    """The replicas that push to listeners, as the database has it."""
    database = name_of(process.environment()["BLOCKLIST_DATABASE_URL"])
    return {owner for (owner,) in postgres.execute("SELECT owner FROM listeners", database)}


class TestOneOfThem:
    """While all live."""

    def test_each_change_is_pushed_once(self, one: httpx.Client, other: httpx.Client) -> None:
        with ExitStack() as stack:
            receivers = [stack.enter_context(receiving()) for _ in range(4)]
            clients = (one, other)
            for number, receiver in enumerate(receivers):
                receiver.register(clients[number % 2], f"l-{number}")
            for number in range(20):
                revision = put(clients[number // 2 % 2], f"pushed-{number}")
                for receiver in receivers:
                    receiver.wait(lambda it: it.has(revision))  # noqa: B023 - it waits here
            ids = message_ids(receivers)
            assert len(ids) == len(set(ids))
            assert [(receiver.repeated, receiver.strangers) for receiver in receivers] == [(0, 0)] * 4
            for number, receiver in enumerate(receivers):
                assert receiver.nodes == plain(one) == plain(other)
                wait_until(lambda own=f"l-{number}": settled(one, own) == settled(other, own))  # type: ignore[misc]

    def test_both_push(self, one: httpx.Client, other: httpx.Client) -> None:
        """Who registers at a replica is pushed to by that one."""
        with receiving() as first, receiving() as second:
            first.register(one, "first")
            second.register(other, "second")
            before = [_sent(one), _sent(other)]
            for receiver in (first, second):
                receiver.wait(lambda it: len(it.heartbeats()) >= 2)
            assert [_sent(one) > before[0], _sent(other) > before[1]] == [True, True]

    def test_a_new_session_at_the_other_is_told_by_who_told_the_old_one(
        self, one: httpx.Client, other: httpx.Client, receiver: Receiver
    ) -> None:
        receiver.register(one, "jm")
        revision = put(one, "session-1")
        told(one, receiver, revision)
        with receiving(session="s2") as later:
            later.secrets += receiver.secrets
            later.register(other, "jm")
            told(other, later, put(other, "session-2"))
            assert later.applied[0].body["snapshot"]
            assert later.nodes == plain(one)
            wait_until(lambda: known(one, "jm")["sessionId"] == "s2")
            before = len(receiver.requests)
            later.wait(lambda it: len(it.heartbeats()) >= 2)
            assert len(receiver.requests) == before

    def test_a_secret_that_was_changed_at_the_other_signs(
        self, one: httpx.Client, other: httpx.Client, receiver: Receiver
    ) -> None:
        receiver.register(one, "jm")
        answer = other.post("/listeners/jm/secret", json={"sessionId": "s1"})
        receiver.secrets.append(answer.json()["secret"])
        receiver.wait(lambda it: bool(it.requests) and it.requests[-1].signatures == (True, True))

    def test_who_left_at_the_other_hears_no_more(
        self, one: httpx.Client, other: httpx.Client, receiver: Receiver
    ) -> None:
        with receiving() as stays:
            receiver.register(one, "jm")
            stays.register(one, "stays")
            told(one, receiver, put(one, "left-1"))
            assert other.delete("/listeners/jm").status_code == 204
            wait_until(lambda: one.get("/listeners/jm").status_code == 404)
            before = len(receiver.requests)
            told(one, stays, put(other, "left-2"), "stays")
            stays.wait(lambda it: len(it.heartbeats()) >= 2)
            assert len(receiver.requests) == before

    def test_what_it_says_in_its_answers_is_known_to_all(
        self, one: httpx.Client, other: httpx.Client, receiver: Receiver, node_id: str
    ) -> None:
        receiver.said = {"taskManagers": {"pushed-tm": node_id}}
        receiver.register(one, "jm")
        put(other, node_id)
        wait_until(lambda: other.get(f"/blocklist/nodes/{node_id}").json()["taskManagers"] == ["pushed-tm"])
        agree([one, other])


class TestResourceManagersFirst:
    def test_also_where_another_replica_tells_them(self, owner: httpx.Client, heir: httpx.Client) -> None:
        with receiving(holds) as rm, receiving() as jm:
            rm.register(owner, "rm", role=RM)
            jm.register(heir, "jm")
            assert known(heir, "rm")["role"] == RM
            revision = put(heir, "managers-first")
            rm.wait(lambda it: bool(it.requests))
            assert known(heir, "jm")["ackedRevision"] < revision
            assert [push for push in jm.requests if not push.heartbeat and push.revisions[1] >= revision] == []
            rm.held.set()
            told(heir, jm, revision)
            assert rm.has(revision)
            took = [next(push for push in it.applied if push.revisions[1] >= revision) for it in (rm, jm)]
            assert took[0].at < took[1].at


class TestAnotherTakesOver:
    """Receivers check that nothing is skipped; `check` that what they knew after each push was the list."""

    def test_one_that_is_killed(self, mortals: Replicas, owner: httpx.Client, heir: httpx.Client) -> None:
        with ExitStack() as stack:
            receivers = [stack.enter_context(receiving()) for _ in range(6)]
            for number, receiver in enumerate(receivers):
                receiver.register(owner, f"l-{number}")
            with changing(mortals.processes[1]):
                moved(receivers, 3)
                mortals.processes[0].kill()
                moved(receivers, 3)
                mortals.processes[0].start()
                moved(receivers, 3)
            check(heir, receivers)
            assert not [push for receiver in receivers for push in receiver.applied[1:] if push.body["snapshot"]]

    def test_one_that_stops_hands_over_at_once(
        self, mortals: Replicas, owner: httpx.Client, heir: httpx.Client, postgres: PostgresServer
    ) -> None:
        """It leaves nobody behind whose end the others would have to wait for."""
        with receiving() as receiver:
            receiver.register(owner, "jm")
            (before,) = owners(postgres, mortals.processes[0])
            with changing(mortals.processes[1]):
                moved([receiver], 3)
                mortals.processes[0].stop()
                assert before not in owners(postgres, mortals.processes[0])
                moved([receiver], 3)
            check(heir, [receiver])
            mortals.processes[0].start()

    def test_one_that_stands_still_and_goes_on_later_pushes_nothing_of_its_own(
        self, mortals: Replicas, owner: httpx.Client, heir: httpx.Client
    ) -> None:
        with ExitStack() as stack:
            receivers = [stack.enter_context(receiving()) for _ in range(3)]
            for number, receiver in enumerate(receivers):
                receiver.register(owner, f"l-{number}")
            first = put(owner, "still-1")
            for number, receiver in enumerate(receivers):
                told(owner, receiver, first, f"l-{number}")
            mortals.processes[0].pause()
            last = max(put(heir, f"still-{number}") for number in range(2, 6))
            for number, receiver in enumerate(receivers):
                told(heir, receiver, last, f"l-{number}")
            told_before = [len(receiver.requests) for receiver in receivers]
            mortals.processes[0].resume()
            owner.get("/blocklist", params={"minRevision": last}).raise_for_status()
            for receiver in receivers:
                seen = len(receiver.heartbeats())
                receiver.wait(lambda it, seen=seen: len(it.heartbeats()) >= seen + 3)  # type: ignore[misc]
            later = free(owner, "still-1")
            for number, receiver in enumerate(receivers):
                told(heir, receiver, later, f"l-{number}")
                after = receiver.requests[told_before[number] :]
                assert [push.revisions for push in after if push.revisions[0] < last] == []
                assert receiver.repeated == 0
            ids = message_ids(receivers)
            assert len(ids) == len(set(ids))

    def test_after_all_were_stopped_who_was_live_has_a_whole_lease(
        self, mortals: Replicas, owner: httpx.Client, heir: httpx.Client, receiver: Receiver, postgres: PostgresServer
    ) -> None:
        receiver.said = {"taskManagers": {"tm": "all-stopped"}}
        receiver.register(owner, "jm")
        told(owner, receiver, put(owner, "all-stopped"))
        for process in mortals.processes:
            process.stop()
        database = name_of(mortals.processes[0].environment()["BLOCKLIST_DATABASE_URL"])
        postgres.execute("UPDATE listeners SET lease_end_ms = lease_end_ms - 3600000", database)
        for process in mortals.processes:
            process.launch()
        for process in mortals.processes:
            process.wait_ready()
        for client in (heir, owner):
            assert known(client, "jm")["state"] == "live"
            assert client.get("/blocklist").json()["all-stopped"]["taskManagers"] == ["tm"]
        told(heir, receiver, put(heir, "all-started"))
        assert not any(push.body["snapshot"] for push in receiver.applied[1:])


def _sent(client: httpx.Client) -> float:
    """Pushes and heartbeats that a replica sent with success."""
    line = 'blocklist_pushes_total{outcome="taken"} '
    return next(
        float(found.removeprefix(line)) for found in client.get("/metrics").text.splitlines() if found.startswith(line)
    )
