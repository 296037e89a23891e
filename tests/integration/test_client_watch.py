"""Watch: what it yields despite outages, invalid data and aborted connections, and how it ends."""

from __future__ import annotations

import gc
import json
import logging
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import count, cycle, islice
from pathlib import Path
from typing import Any, Final

import httpx
import pytest

from blocklist import BlockAction, BlockedNode, BlocklistClient, Change, InvalidError, Snapshot, UnavailableError
from blocklist.client.watch import Watch
from blocklist.model.draft import BlocklistTracker
from blocklist.model.node import Backoff
from blocklist.wire.changes import ChangeBody
from tests.integration.bodies import all_changes, now_ms
from tests.integration.fake_servers import (
    SERVICE_HEADERS,
    Responder,
    event_stream_head,
    fake_server,
    http_response,
    relay,
    respond_and_hang,
    respond_and_reset,
    respond_endlessly,
)
from tests.integration.process import ServiceProcess, free_port, wait_until

MARK: Final = BlockAction.MARK_BLOCKED
IMMEDIATELY: Final = Backoff(initial=0.001, cap=0.01, floor=0.0)
ON_REQUEST: Final = Backoff(initial=0.001, cap=600, floor=0.0)
NEVER: Final = Backoff(initial=600, cap=600, floor=600)
"""Longer than any test."""


def snapshot(revision: int = 7) -> str:
    """An empty snapshot as an event."""
    body = {"revision": revision, "history": "00c0ffee", "nodes": {}}
    return f"id: {revision}-00c0ffee\nevent: snapshot\ndata: {json.dumps(body)}\n\n"


def change(number: int, **fields: object) -> str:
    """A change as an event."""
    node = {"id": "a", "action": "MARK_BLOCKED", "startTimestamp": "1", "endTimestamp": "2", "cause": "disk"}
    body = {"revision": number, "type": "blocked", "at": "1", "createdBy": None, "node": node, **fields}
    return f"id: {number}-00c0ffee\nevent: blocked\ndata: {json.dumps(body)}\n\n"


def logged(client: httpx.Client, since: int = 0) -> list[Change]:
    """The service's change log, as values."""
    return [ChangeBody.parse(body).value() for body in all_changes(client) if body["revision"] > since]


def take_items(watch: Watch, number: int) -> list[Any]:
    return list(islice(watch, number))


@contextmanager
def reading(watch: Watch) -> Iterator[list[Any]]:
    """The items that another thread reads from a watch; on exit, closes it and checks that the thread ends."""
    received: list[Snapshot | Change] = []

    def read() -> None:
        for item in watch:
            received.append(item)  # noqa: PERF402

    thread = threading.Thread(target=read)
    thread.start()
    try:
        yield received
    finally:
        watch.close()
        thread.join(60)
    assert not thread.is_alive(), "close() did not end a waiting next()"


@contextmanager
def writing(client: BlocklistClient, name: str) -> Iterator[None]:
    """Another thread blocks one node after another until the service is unavailable."""

    def write() -> None:
        with suppress(UnavailableError):
            for number in count():
                client.block(f"{name}-{number}", "disk")

    thread = threading.Thread(target=write)
    thread.start()
    yield
    thread.join()


def await_length(received: list[Any], number: int) -> None:
    wait_until(lambda: len(received) >= number)


@pytest.fixture
def blocklist(service: ServiceProcess) -> Iterator[BlocklistClient]:
    with BlocklistClient(service.url, timeout=30) as client:
        yield client


class TestYields:
    def test_the_list_comes_first_and_then_each_change(
        self, blocklist: BlocklistClient, client: httpx.Client, node_id: str
    ) -> None:
        with blocklist.watch() as watch:
            (first,) = take_items(watch, 1)
            assert first == blocklist.snapshot()
            blocklist.block(node_id, "disk")
            blocklist.block(node_id, "memory", allow_merge=True)
            blocklist.unblock(node_id)
            blocklist.block(node_id, "disk", end=now_ms() + 300)
            changes = take_items(watch, 5)
        assert [it.type.value for it in changes] == ["blocked", "merged", "unblocked", "blocked", "expired"]
        assert changes == logged(client, since=first.revision)

    @pytest.mark.parametrize("cursor", ["{revision}", "{revision}-{history}", "0"])
    def test_the_changes_since_a_revision(
        self, blocklist: BlocklistClient, client: httpx.Client, node_id: str, cursor: str
    ) -> None:
        before = blocklist.snapshot()
        blocklist.block(node_id, "disk")
        blocklist.unblock(node_id)
        since = cursor.format(revision=before.revision, history=before.history)
        expected = logged(client, since=int(since.partition("-")[0]))
        with blocklist.watch(since) as text, blocklist.watch(since=int(since.partition("-")[0])) as number:
            assert take_items(text, len(expected)) == take_items(number, len(expected)) == expected

    def test_another_history_starts_from_a_snapshot(self, blocklist: BlocklistClient) -> None:
        with blocklist.watch("1-00000000") as watch:
            assert isinstance(next(watch), Snapshot)

    @pytest.mark.parametrize("since", [-1, "", "x", "7-", "7-XYZ", "7\n", "\ud800", "٣", "9" * 17, 2**60])
    def test_an_invalid_cursor_is_rejected_at_once(self, blocklist: BlocklistClient, since: str | int) -> None:
        with pytest.raises(InvalidError, match="since"):
            blocklist.watch(since)

    @pytest.mark.parametrize("cause", ["line\u2028para\u2029", "🐢 ünïcode", "data: x", "\ufeff", "\xa0 "])
    def test_every_cause_is_received_unchanged(self, blocklist: BlocklistClient, node_id: str, cause: str) -> None:
        with blocklist.watch(since=blocklist.snapshot().revision) as watch:
            blocked = blocklist.block(node_id, cause)
            assert next(watch).node == blocked  # type: ignore[union-attr]

    def test_unknown_events_of_a_newer_service_are_ignored(self) -> None:
        newer = "event: quarantined\ndata: no JSON\n\ndata: x\n\n: comment\n\n" + change(8, colour="red")
        with fake_server(respond_and_hang(event_stream_head(snapshot() + newer))) as there, Watch(there.url) as watch:
            assert [it.revision for it in take_items(watch, 2)] == [7, 8]

    def test_a_change_of_a_type_of_a_newer_service_leaves_the_node_as_it_is_in_it(self) -> None:
        newer = change(8, type="quarantined").replace("event: blocked", "event: quarantined")
        with fake_server(respond_and_hang(event_stream_head(snapshot() + newer))) as there, Watch(there.url) as watch:
            first, second = take_items(watch, 2)
        assert isinstance(first, Snapshot)
        assert isinstance(second, Change)
        tracker = BlocklistTracker(first)
        tracker.apply(second)
        assert tracker.get("a") == second.node


class TestResumes:
    def test_after_sigkill_and_after_a_clean_stop(self, fresh: ServiceProcess, fresh_client: httpx.Client) -> None:
        """No duplicates and no gaps during continuous writes."""
        with (
            BlocklistClient(fresh.url, timeout=30) as client,
            reading(Watch(fresh.url, "0", backoff=IMMEDIATELY)) as received,
        ):
            for end, number in ((fresh.kill, 30), (fresh.stop, 100)):
                with writing(client, f"until-{number}"):
                    await_length(received, number)
                    end()
                fresh.start()
            client.block("last", "disk")
            log = logged(fresh_client)
            await_length(received, len(log))
            assert received == log
        assert [it.revision for it in received] == list(range(1, len(log) + 1))

    def test_wherever_the_connection_is_cut(
        self, service: ServiceProcess, blocklist: BlocklistClient, node_id: str
    ) -> None:
        """In the head, within an event, between events: each time the watch resumes where it was."""
        since = blocklist.snapshot().revision
        nodes = [BlockedNode(id=f"{node_id}-{n}", action=MARK, start=0, end=2**60, cause="ü" * n) for n in range(1, 99)]
        blocklist.block_many(nodes)
        with (
            relay(service.url, limits=cycle(range(150, 2500, 77))) as way,
            Watch(way.url, str(since), backoff=IMMEDIATELY) as watch,
        ):
            received = take_items(watch, len(nodes))
        assert len(way.requests) > 10
        assert [it.revision for it in received] == list(range(since + 1, since + 99))
        assert [it.node.cause for it in received] == [it.cause for it in nodes]

    @pytest.mark.parametrize(
        "said",
        [
            pytest.param(http_response(b"<h1>Log in</h1>", "200 OK", "Content-Type: text/html"), id="page"),
            pytest.param(
                http_response(b"<h1>Log in</h1>", "200 OK", "Content-Type: text/html", *SERVICE_HEADERS),
                id="not a stream",
            ),
            pytest.param(event_stream_head(snapshot(9), "X-Stream: of somebody else"), id="stream of another server"),
            pytest.param(http_response(b"", "302 Found", "Location: /login"), id="redirect"),
            pytest.param(http_response(b"", "302 Found", "Location: http://["), id="redirect to nowhere"),
            pytest.param(http_response(b"", "400 Bad Request", *SERVICE_HEADERS), id="400"),
            pytest.param(http_response(b"", "502 Bad Gateway"), id="502"),
            pytest.param(b"", id="closed without a response"),
            pytest.param(b"HTTP/1.1 200 O", id="cut in the head"),
            pytest.param(event_stream_head(), id="ended at once"),
            pytest.param(event_stream_head(change(8)[:-2]), id="ended before the end of an event"),
            pytest.param(respond_and_reset(event_stream_head("id: 8")), id="reset"),
            pytest.param(b"\x00\xff\x17 no HTTP at all\r\n\r\n", id="noise"),
            pytest.param(respond_endlessly(b"HTTP/1.1 200 OK\r\nX: ", b"x" * 65536), id="a head without end"),
            pytest.param(event_stream_head("", "Content-Encoding: gzip", *SERVICE_HEADERS), id="not gzip"),
            pytest.param(event_stream_head("event: blocked\ndata: no JSON\n\n"), id="no JSON"),
            pytest.param(event_stream_head("event: blocked\ndata: [7]\n\n"), id="no object"),
            pytest.param(event_stream_head(f"event: blocked\ndata: {'[' * 100_000}\n\n"), id="deep"),
            pytest.param(event_stream_head(change(8, type=5)), id="a type that is no name"),
            pytest.param(event_stream_head(change(8, revision=2**60)), id="a revision out of range"),
            pytest.param(event_stream_head(change(8, revision="8")), id="a revision that is no number"),
            pytest.param(event_stream_head(change(8, node=None)), id="no node"),
            pytest.param(event_stream_head(snapshot().replace("{}", '{"a": 7}')), id="snapshot of no nodes"),
            pytest.param(event_stream_head(change(8).partition("\n")[2]), id="no id"),
            pytest.param(
                event_stream_head(change(8).replace("id: 8-00c0ffee", "id: ü\ud7ff")), id="an id that no header carries"
            ),
            pytest.param(event_stream_head(change(8).replace("id: 8-", "id: 9-")), id="the id of another revision"),
            pytest.param(event_stream_head(f"retry: {'9' * 4000}\n\n"), id="a retry out of range"),
            pytest.param(event_stream_head("retry: -5\n\n"), id="a negative retry"),
        ],
    )
    def test_after_an_invalid_response(self, said: Responder | bytes) -> None:
        with (
            fake_server(said, respond_and_hang(event_stream_head(change(8)))) as there,
            Watch(there.url, "7-00c0ffee", backoff=IMMEDIATELY) as watch,
        ):
            assert take_items(watch, 1)[0].revision == 8
            assert len(there.requests) == 2
            assert all(b"\r\nLast-Event-ID: 7-00c0ffee\r\n" in request for request in there.requests)

    def test_the_character_set_is_always_utf_8(self) -> None:
        said = event_stream_head(change(8).replace("disk", "ü")).replace(
            b"event-stream", b"event-stream; charset=base64"
        )
        with fake_server(respond_and_hang(said)) as there, Watch(there.url, backoff=NEVER) as watch:
            assert take_items(watch, 1)[0].node.cause == "ü"

    def test_an_idle_stream_times_out(self) -> None:
        with fake_server(
            respond_and_hang(event_stream_head()), respond_and_hang(event_stream_head(change(8)))
        ) as there:
            with Watch(there.url, "7", idle_timeout=0.2, backoff=IMMEDIATELY) as watch:
                assert take_items(watch, 1)[0].revision == 8
            assert len(there.requests) > 1

    @pytest.mark.parametrize(
        "said",
        [
            event_stream_head('retry: 300\nevent: bye\ndata: {"revision": 7}\n\n'),
            event_stream_head(
                'retry: 300\nevent: bye\ndata: {"revision": 7}\n\n', "Content-Length: 9999", *SERVICE_HEADERS
            ),
            http_response(b"", "503 Service Unavailable", "Retry-After: 1"),
        ],
        ids=["bye", "bye and a broken line", "503"],
    )
    def test_it_does_not_reconnect_before_the_requested_time(self, said: Responder | bytes) -> None:
        with (
            fake_server(said, respond_and_hang(event_stream_head(snapshot()))) as there,
            Watch(there.url, backoff=ON_REQUEST) as watch,
        ):
            take_items(watch, 1)
        assert there.request_times[1] - there.request_times[0] >= 0.3


class TestState:
    """`connected`, `last_error`, and one log line at the start and the end of an outage."""

    def test_connected_without_events(self, caplog: pytest.LogCaptureFixture) -> None:
        caplog.set_level(logging.INFO, "blocklist.client.watch")
        lost, back = threading.Event(), threading.Event()
        with fake_server(after(lost, b"", first=event_stream_head()), after(back, event_stream_head())) as there:
            watch = Watch(there.url, "7", backoff=IMMEDIATELY)
            assert state(watch) == (False, None)
            with reading(watch) as received:
                wait_until(lambda: watch.connected)
                lost.set()
                wait_until(lambda: not watch.connected)
                assert state(watch) == (False, "the service ended the stream")
                back.set()
                wait_until(lambda: watch.connected)
                assert state(watch) == (True, None)
            assert received == []
        assert state(watch) == (False, None)
        assert lines(caplog) == ["WARNING", "INFO"]

    def test_a_proxy_that_holds_the_stream_back_is_no_connection(self, caplog: pytest.LogCaptureFixture) -> None:
        """Some compress it, and then send only the head until there is enough to compress."""
        caplog.set_level(logging.INFO, "blocklist.client.watch")
        head = event_stream_head().removesuffix(b": watching\n\n")
        with fake_server(
            b"", respond_and_hang(head), respond_and_hang(head), respond_and_hang(event_stream_head())
        ) as there:
            watch = Watch(there.url, "7", backoff=IMMEDIATELY, idle_timeout=0.2)
            with reading(watch):
                await_length(there.requests, 3)
                assert not watch.connected
                assert lines(caplog) == ["WARNING"]
                wait_until(lambda: watch.connected)
        assert lines(caplog) == ["WARNING", "INFO"]
        assert all(b"accept-encoding: identity\r\n" in request.lower() for request in there.requests)

    def test_an_outage_is_one_warning(self, caplog: pytest.LogCaptureFixture) -> None:
        caplog.set_level(logging.INFO, "blocklist.client.watch")
        outage: list[Responder | bytes] = [
            b"",
            http_response(b"", "502 Bad Gateway"),
            b"noise\r\n\r\n",
            http_response(b"{}"),
            respond_and_reset(),
        ]
        with fake_server(
            *outage, event_stream_head(snapshot()), *outage, respond_and_hang(event_stream_head(change(8)))
        ) as there:
            with Watch(there.url, backoff=IMMEDIATELY) as watch:
                take_items(watch, 1)
                assert lines(caplog) == ["WARNING", "INFO"]
                take_items(watch, 1)
                assert lines(caplog) == ["WARNING", "INFO"] * 2
            assert len(there.requests) == 12

    def test_a_stream_with_an_invalid_event_is_no_recovery(self, caplog: pytest.LogCaptureFixture) -> None:
        caplog.set_level(logging.INFO, "blocklist.client.watch")
        with fake_server(event_stream_head("event: blocked\ndata: x\n\n")) as there:
            watch = Watch(there.url, "0", backoff=IMMEDIATELY)
            with reading(watch):
                await_length(there.requests, 4)
                assert not watch.connected
                assert watch.last_error == "invalid blocked event: Expecting value: line 1 column 1 (char 0)"
        assert lines(caplog) == ["WARNING"]

    def test_the_error_is_one_short_line(self) -> None:
        nodes = {str(n): {"id": 7} for n in range(1000)}
        body = {"revision": 7, "history": "00c0ffee", "nodes": nodes}
        with fake_server(event_stream_head(f"event: snapshot\ndata: {json.dumps(body)}\n\n")) as there:
            watch = Watch(there.url, backoff=NEVER)
            with reading(watch):
                wait_until(lambda: watch.last_error is not None)
        assert watch.last_error is not None
        assert watch.last_error.startswith("invalid snapshot event: nodes.0.id: ")
        assert len(watch.last_error) <= 200
        assert "\n" not in watch.last_error


def after(event: threading.Event, then: bytes, *, first: bytes = b"") -> Responder:
    """Sends `first`, then after the event `then`; then waits for the client to disconnect, if `then` is not empty."""

    def serve(connection: socket.socket) -> None:
        connection.sendall(first)
        event.wait()
        if then:
            respond_and_hang(then)(connection)

    return serve


def state(watch: Watch) -> tuple[bool, str | None]:
    return watch.connected, watch.last_error


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.levelname for record in caplog.records if record.name == "blocklist.client.watch"]


class TestEnds:
    """close() in another thread ends a next() wherever it waits; `reading` checks that."""

    def test_while_nothing_changes(self, service: ServiceProcess) -> None:
        watch = Watch(service.url, idle_timeout=600, backoff=NEVER)
        with reading(watch) as received:
            await_length(received, 1)
        assert list(watch) == []

    @pytest.mark.parametrize(
        "said",
        [
            b"",
            b"HTTP/1.1 200 OK\r\nBlock",
            event_stream_head(),
            event_stream_head("event: blocked\ndata: {"),
            http_response(b"", "200 OK", *SERVICE_HEADERS, length=9),
        ],
        ids=["before a response", "in the head", "before an event", "in an event", "in a page"],
    )
    def test_while_a_server_stalls(self, said: bytes) -> None:
        with (
            fake_server(respond_and_hang(said)) as there,
            reading(Watch(there.url, timeout=600, idle_timeout=600, backoff=NEVER)),
        ):
            await_length(there.requests, 1)

    def test_while_a_proxy_does_not_respond(self, monkeypatch: pytest.MonkeyPatch) -> None:
        with fake_server(respond_and_hang()) as there:
            monkeypatch.setenv("HTTP_PROXY", there.url)
            with reading(Watch("http://blocklist.test", timeout=600, idle_timeout=600, backoff=NEVER)):
                await_length(there.requests, 1)

    def test_while_it_waits_to_reconnect(self) -> None:
        watch = Watch(f"http://127.0.0.1:{free_port()}", backoff=NEVER)
        with reading(watch):
            wait_until(lambda: watch.last_error is not None)

    def test_while_a_server_sends_without_end(self) -> None:
        endless = respond_endlessly(event_stream_head(), b"event: news\ndata: none\n\n" * 1000)
        with fake_server(endless) as there, reading(Watch(there.url, backoff=NEVER)):
            await_length(there.requests, 1)

    def test_before_it_started(self) -> None:
        with fake_server(b"") as there:
            watch = Watch(there.url)
            watch.close()
            watch.close()
            assert list(watch) == []
            assert there.requests == []

    def test_between_two_changes_and_nothing_follows(self) -> None:
        with fake_server(respond_and_hang(event_stream_head(snapshot() + change(8) + change(9)))) as there:
            watch = Watch(there.url)
            assert [it.revision for it in take_items(watch, 2)] == [7, 8]
            watch.close()
            assert (list(watch), watch.connected) == ([], False)

    def test_for_all_threads_that_share_the_watch(self) -> None:
        with fake_server(respond_and_hang(event_stream_head(snapshot() + change(8)))) as there:
            watch = Watch(there.url, idle_timeout=600)
            with reading(watch) as one, reading(watch) as two:
                wait_until(lambda: len(one) + len(two) == 2)


class TestCleanup:
    """A watch closes its sockets. An unclosed one is a ResourceWarning, which is an error here."""

    def test_after_close(self, service: ServiceProcess) -> None:
        before = sockets()
        watch = Watch(service.url)
        next(watch)
        assert sockets() == before + 1
        watch.close()
        assert sockets() == before

    def test_after_close_in_another_thread(self, service: ServiceProcess) -> None:
        before = sockets()
        with reading(Watch(service.url)) as received:
            await_length(received, 1)
        assert sockets() == before

    def test_after_an_outage(self, service: ServiceProcess) -> None:
        before = sockets()
        outage: list[Responder | bytes] = [
            b"",
            event_stream_head(),
            http_response(b"", "502 Bad Gateway"),
            respond_and_reset(),
        ]
        with fake_server(*outage, respond_and_hang(event_stream_head(snapshot()))) as there:
            with Watch(there.url, backoff=IMMEDIATELY) as watch:
                take_items(watch, 1)
            assert len(there.requests) == 5
        assert sockets() == before

    def test_after_a_loop_that_ended_by_break(self, service: ServiceProcess) -> None:
        """Without close(), the garbage collector closes the connection."""
        before = sockets()
        for _ in Watch(service.url):
            break
        gc.collect()
        assert sockets() == before


def sockets() -> int:
    """Number of open sockets of this process."""
    count = 0
    for descriptor in Path("/proc/self/fd").iterdir():
        with suppress(OSError):
            count += str(descriptor.readlink()).startswith("socket:")
    return count
