"""GET /blocklist/watch: every change after a revision, in order, none twice, none missing."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import httpx
import pytest
from httpx_sse import EventSource

from tests.integration.bodies import all_changes, block, current_list, later, revision_of
from tests.integration.conftest import Start, StartInProcess
from tests.integration.databases import ON_SQLITE
from tests.integration.event_stream import changes, next_events, revisions, watching
from tests.integration.problems import problem_of
from tests.integration.process import ServiceProcess


def history_of(client: httpx.Client) -> str:
    return str(client.get("/blocklist").headers["blocklist-history"])


def test_without_a_cursor_the_stream_starts_with_a_snapshot(client: httpx.Client, node: str, node_id: str) -> None:
    client.put(node, json=block())
    revision, listed = current_list(client)
    with watching(client) as events:
        (snapshot,) = next_events(events, 1)
        freed = client.delete(node)
        (change,) = next_events(events, 1)
    assert snapshot.event == "snapshot"
    assert snapshot.id == f"{revision}-{history_of(client)}"
    body = snapshot.json()
    nodes = body.pop("nodes")
    assert body == {"revision": revision, "history": history_of(client)}
    for name, entry in nodes.items():
        expected = {"id": name, **listed[name]}
        del expected["taskManagers"]
        assert {"id": name, **entry} == expected
    assert set(nodes) == set(listed)
    assert (change.event, revisions([change])) == ("unblocked", [revision_of(freed)])


def test_each_change_is_one_event_with_the_logs_object(client: httpx.Client, node: str, node_id: str) -> None:
    since = current_list(client)[0]
    with watching(client, since=since) as events:
        client.put(node, json=block(endTimestamp=later(1)))
        client.put(node, json=block(cause="b", allowMerge=True, endTimestamp=later(1.5)))
        client.put(node, json=block(cause="b", allowMerge=True))
        client.delete(node)
        client.put(node, json=block(endTimestamp=later(0.5)))
        seen = next_events(events, 6)
    assert [event.event for event in seen] == ["blocked", "merged", "merged", "unblocked", "blocked", "expired"]
    assert changes(seen) == all_changes(client, node=node_id)
    assert revisions(seen) == list(range(since + 1, since + 7))
    assert [event.id for event in seen] == [f"{since + n}-{history_of(client)}" for n in range(1, 7)]
    assert [event.event for event in seen] == [event.json()["type"] for event in seen]


def test_an_expired_event_carries_the_node_as_it_last_was(client: httpx.Client, node: str) -> None:
    since = current_list(client)[0]
    made = client.put(node, json=block(endTimestamp=later(0.3))).json()
    del made["taskManagers"]
    with watching(client, since=since) as events:
        _, expired = changes(next_events(events, 2))
    assert (expired["type"], expired["node"], expired["createdBy"]) == ("expired", made, None)
    end = int(made["endTimestamp"])
    assert end <= int(expired["at"])


class TestCursors:
    @pytest.fixture(autouse=True)
    def _five_changes(self, client: httpx.Client, node: str) -> None:
        for n in range(5):
            client.put(node, json=block(cause=f"c{n}", allowMerge=True)).raise_for_status()

    @pytest.mark.parametrize("form", ["{revision}", "{revision}-{history}"])
    @pytest.mark.parametrize("back", [0, 1, 4])
    def test_since_a_revision_only_later_changes_are_sent(
        self, client: httpx.Client, node: str, form: str, back: int
    ) -> None:
        revision = current_list(client)[0]
        since = form.format(revision=revision - back, history=history_of(client))
        with watching(client, since=since) as events:
            client.put(node, json=block(cause="x", allowMerge=True))
            client.delete(node)
            last = current_list(client)[0]
            assert revisions(next_events(events, last - revision + back)) == list(range(revision - back + 1, last + 1))

    def test_since_0_is_from_the_first_change(self, client: httpx.Client) -> None:
        log = all_changes(client)
        with watching(client, since=0) as events:
            assert changes(next_events(events, len(log))) == log

    def test_last_event_id_resumes(self, client: httpx.Client) -> None:
        revision = current_list(client)[0]
        with watching(client, last_event_id=f"{revision - 2}-{history_of(client)}") as events:
            assert revisions(next_events(events, 2)) == [revision - 1, revision]

    def test_the_header_wins_over_the_parameter(self, client: httpx.Client) -> None:
        revision = current_list(client)[0]
        header = f"{revision - 1}-{history_of(client)}"
        for since in ("0", f"{revision}-00000000", "rubbish"):
            with watching(client, since=since, last_event_id=header) as events:
                assert revisions(next_events(events, 1)) == [revision]

    @pytest.mark.parametrize(
        "other", ["{revision}-{other}", "0-{other}", "999999-{other}", "999999-{history}", "999999"]
    )
    @pytest.mark.parametrize("by_header", [True, False])
    def test_a_cursor_of_another_history_or_ahead_of_this_one_gets_a_snapshot(
        self, client: httpx.Client, other: str, *, by_header: bool
    ) -> None:
        history = f"{int(history_of(client), 16) ^ 1:08x}"
        cursor = other.format(revision=current_list(client)[0], other=history, history=history_of(client))
        chosen = {"last_event_id": cursor} if by_header else {"since": cursor}
        with watching(client, **chosen) as events:
            (first,) = next_events(events, 1)
        assert (first.event, first.json()["revision"]) == ("snapshot", current_list(client)[0])

    @ON_SQLITE
    @pytest.mark.parametrize(
        "header",
        [
            "rubbish",
            "-1",
            "5-",
            "-{history}",
            "5-xyz",
            "5-{history}0",
            "1.5-{history}",
            "+5-{history}",
            "5_0",
            "9" * 5_000,
        ],
    )
    def test_a_malformed_header_gets_a_snapshot(self, client: httpx.Client, header: str) -> None:
        with watching(client, last_event_id=header.format(history=history_of(client))) as events:
            assert next_events(events, 1)[0].event == "snapshot"

    @ON_SQLITE
    @pytest.mark.parametrize(
        "since",
        [
            "rubbish", "", "-1", "5-", "-{history}", "5-xyz", "5-{history}0", "1.5", "+5", "1e3", "5_0",
            " 5", "٣", "5 -{history}",
            "9" * 5_000, "5-{history}-", "0x5", "\x00",
        ],
    )  # fmt: skip
    def test_a_malformed_since_is_400(self, client: httpx.Client, since: str) -> None:
        params = {"since": since.format(history=history_of(client))}
        problem_of(client.get("/blocklist/watch", params=params), 400)


def test_a_comment_is_sent_at_once(client: httpx.Client) -> None:
    """It tells a client behind a proxy that the connection works, even without changes."""
    with client.stream("GET", "/blocklist/watch", params={"since": current_list(client)[0]}) as answer:
        assert answer.headers["content-type"].split(";")[0] == "text/event-stream"
        assert answer.headers["blocklist-history"] == history_of(client)
        assert next(answer.iter_lines()).startswith(":")


@ON_SQLITE
def test_a_ping_is_sent_every_15_seconds_while_nothing_changes(start_in_process: StartInProcess) -> None:
    """It has a name: browsers hide comments from the page, which could not tell that the service hangs."""
    service = start_in_process()
    begun = service.clock()
    with httpx.stream("GET", f"{service.url}/blocklist/watch?since=0", trust_env=False, timeout=30) as answer:
        events = (it for it in EventSource(answer).iter_sse() if it.data)
        for _ in range(2):
            event = service.in_time(lambda: next(events))
            assert (event.event, event.id, event.json()) == ("ping", "", {})
    assert 30_000 <= service.clock() - begun <= 40_000


def test_no_proxy_may_compress_it(client: httpx.Client) -> None:
    """Otherwise an event waits in the proxy's compressor for the next ones."""
    with client.stream("GET", "/blocklist/watch", headers={"Accept-Encoding": "gzip, br, zstd"}) as answer:
        assert "no-transform" in answer.headers["cache-control"]
        assert "content-encoding" not in answer.headers


def test_many_watchers_see_the_same_changes_in_the_same_order(client: httpx.Client, node_id: str) -> None:
    since = current_list(client)[0]

    def write(writer: int) -> None:
        for n in range(20):
            client.put(f"/blocklist/nodes/{node_id}-{writer}", json=block(cause=f"c{n}", allowMerge=True))

    with ExitStack() as stack, ThreadPoolExecutor(4) as pool:
        streams = [stack.enter_context(watching(client, since=since)) for _ in range(20)]
        list(pool.map(write, range(4)))
        late = [stack.enter_context(watching(client, since=since + back)) for back in (0, 40)]
        log = [change for change in all_changes(client) if change["revision"] > since]
        assert [change["revision"] for change in log] == list(range(since + 1, since + 81))
        for stream in (*streams, late[0]):
            assert changes(next_events(stream, 80)) == log
        assert changes(next_events(late[1], 40)) == log[40:]


def test_a_thousand_changes_in_one_transaction_are_sent_at_once(client: httpx.Client, node_id: str) -> None:
    """More than fit in one chunk; the rest does not wait for the next change."""
    since = current_list(client)[0]
    with watching(client, since=since) as events:
        several = {f"{node_id}-{number}": block(cause="x" * 500) for number in range(1000)}
        assert client.put("/blocklist/nodes", json=several).status_code == 200
        assert revisions(next_events(events, 1000)) == list(range(since + 1, since + 1001))


@ON_SQLITE
def test_a_watch_that_does_not_read_delays_no_other(fresh_client: httpx.Client) -> None:
    """Its buffers fill up; writers and other watches are not affected."""
    with watching(fresh_client, since=0), watching(fresh_client, since=0) as events:
        for cause in "abcdefgh":
            body = {f"n{n}": block(cause=cause * 1000, allowMerge=True) for n in range(500)}
            fresh_client.put("/blocklist/nodes", json=body).raise_for_status()
        assert revisions(next_events(events, 4000)) == list(range(1, 4001))


def test_a_watch_continues_after_a_restart(fresh: ServiceProcess, fresh_client: httpx.Client) -> None:
    with watching(fresh_client) as events:
        (cursor,) = next_events(events, 1)
        fresh_client.put("/blocklist/nodes/a", json=block())
        cursor, bye = (*next_events(events, 1), None)
        fresh.terminate()
        (bye,) = next_events(events, 1)
        assert list(events) == [], "nothing follows"
    assert bye is not None
    assert (bye.event, bye.json()) == ("bye", {"revision": 1})
    assert bye.retry is not None
    assert fresh.exit_code() == 0
    fresh.start()
    fresh_client.put("/blocklist/nodes/b", json=block())
    with watching(fresh_client, last_event_id=cursor.id) as events:
        (change,) = changes(next_events(events, 1))
    assert (change["revision"], change["node"]["id"]) == (2, "b")


@ON_SQLITE
def test_a_stop_says_bye_to_a_hundred_watchers_and_loses_nothing(start: Start) -> None:
    service = start()
    with service.client() as client, ExitStack() as stack, ThreadPoolExecutor(4) as pool:
        streams = [stack.enter_context(watching(client, since=0)) for _ in range(100)]
        acknowledged = list(
            pool.map(lambda n: revision_of(client.put(f"/blocklist/nodes/n{n}", json=block())), range(50))
        )
        service.terminate()
        assert service.exit_code() == 0
        for stream in streams:
            *seen, bye = list(stream)
            assert (bye.event, bye.json()["revision"], bye.retry is not None) == ("bye", 50, True)
            assert revisions(seen) == sorted(acknowledged) == list(range(1, 51))
    service.start()
    with service.client() as client:
        assert set(current_list(client)[1]) == {f"n{n}" for n in range(50)}


def test_acknowledged_changes_survive_a_stop(start: Start) -> None:
    """Clients write while the service stops: each 201 is stored, under the revision in its response."""
    service = start()

    def write(writer: int) -> dict[int, str]:
        made: dict[int, str] = {}
        with service.client() as client:
            for n in range(100_000):
                try:
                    answer = client.put(f"/blocklist/nodes/w{writer}-{n}", json=block())
                except httpx.TransportError:
                    return made
                if answer.status_code == 503:
                    return made
                assert answer.status_code == 201
                made[revision_of(answer)] = f"w{writer}-{n}"
        return made

    with ThreadPoolExecutor(4) as pool, service.client() as client:
        writing = [pool.submit(write, writer) for writer in range(4)]
        with watching(client, since=0) as events:
            next_events(events, 100)
            service.terminate()
            *rest, bye = list(events)
        assert service.exit_code() == 0
        acknowledged: dict[int, str] = {}
        for done in writing:
            acknowledged |= done.result(60)
    service.start()
    with service.client() as client:
        log = {change["revision"]: change["node"]["id"] for change in all_changes(client)}
    assert list(log) == list(range(1, len(log) + 1))
    assert acknowledged.items() <= log.items()
    assert bye.event == "bye"
    assert revisions(rest) == list(range(101, bye.json()["revision"] + 1))
