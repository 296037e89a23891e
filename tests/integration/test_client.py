"""BlocklistClient with the service, and with servers that are not the service."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import repeat
from typing import Any

import pytest

from blocklist import (
    PERMANENT,
    BlockAction,
    BlockedNode,
    BlocklistClient,
    BlocklistError,
    ConflictError,
    InvalidError,
    NotFoundError,
    Snapshot,
    UnavailableError,
)
from blocklist.client import client as client_module
from blocklist.model.errors import CompactedError
from tests.integration.bodies import now_ms
from tests.integration.fake_servers import (
    SERVICE_HEADERS,
    Responder,
    fake_server,
    http_response,
    relay,
    respond_and_hang,
    respond_and_reset,
    respond_endlessly,
)
from tests.integration.process import ServiceProcess, free_port

EVACUATE = BlockAction.MARK_BLOCKED_AND_EVACUATE_TASKS
HOUR = 3_600_000


@pytest.fixture
def blocklist(service: ServiceProcess) -> Iterator[BlocklistClient]:
    with BlocklistClient(service.url, timeout=30) as client:
        yield client


def node(node_id: str, cause: str = "disk", *, end: int = PERMANENT, start: int = 0) -> BlockedNode:
    return BlockedNode(id=node_id, action=BlockAction.MARK_BLOCKED, start=start, end=end, cause=cause)


def test_lists_are_read_page_by_page(blocklist: BlocklistClient, node_id: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module, "_MAX_PAGE", 2)
    ids = sorted(f"{node_id}-{number}" for number in range(5))
    blocklist.block_many(node(each) for each in ids)
    assert [claim.node for claim in blocklist.all_claims() if claim.node in ids] == ids
    log = list(blocklist.changes())
    assert [change.node.id for change in log[-5:]] == ids
    assert list(blocklist.changes(last=5)) == log[-5:]


class TestBlock:
    def test_the_default_is_a_permanent_mark(self, blocklist: BlocklistClient, node_id: str) -> None:
        before = now_ms()
        blocked = blocklist.block(node_id, "disk")
        assert before <= blocked.start <= now_ms()
        assert blocked == node(node_id, start=blocked.start)
        assert blocklist.get(node_id) == blocked

    def test_every_argument_is_sent(self, blocklist: BlocklistClient, node_id: str) -> None:
        end = now_ms() + HOUR
        blocked = blocklist.block(node_id, 'ünïcode \u2028 🐢, "quoted"', action=EVACUATE, end=end)
        assert (blocked.action, blocked.end, blocked.cause) == (EVACUATE, end, 'ünïcode \u2028 🐢, "quoted"')
        assert blocklist.get(node_id) == blocked

    def test_blocking_a_blocked_node_is_a_conflict_with_its_block(
        self, blocklist: BlocklistClient, node_id: str
    ) -> None:
        current = blocklist.block(node_id, "disk")
        with pytest.raises(ConflictError, match=node_id) as error:
            blocklist.block(node_id, "memory")
        assert error.value.blocked == {node_id: current}
        assert blocklist.get(node_id) == current

    def test_allow_merge_merges_the_blocks(self, blocklist: BlocklistClient, node_id: str) -> None:
        current = blocklist.block(node_id, "disk", end=now_ms() + HOUR)
        merged = blocklist.block(node_id, "memory", action=EVACUATE, allow_merge=True)
        assert merged == BlockedNode(
            id=node_id, action=EVACUATE, start=current.start, end=PERMANENT, cause="disk,memory"
        )

    @pytest.mark.parametrize("node_id", ["fe80::1", "10.0.0.1", "...", "_", "A" * 253, "a:b.c-d_e"])
    def test_every_valid_node_id_works(self, blocklist: BlocklistClient, node_id: str) -> None:
        blocked = blocklist.block(node_id, "disk")
        assert blocklist.get(node_id) == blocked
        blocklist.unblock(node_id)

    @pytest.mark.parametrize(
        "bad", ["", ".", "..", "a/b", "a b", "ä", "a?b", "a#b", "%41", "\ud800", "a\r\nb", "a" * 254]
    )
    def test_an_invalid_node_id_is_not_sent(self, blocklist: BlocklistClient, bad: str) -> None:
        calls: list[Callable[[], object]] = [
            lambda: blocklist.block(bad, "disk"),
            lambda: blocklist.get(bad),
            lambda: blocklist.unblock(bad),
        ]
        for call in calls:
            with pytest.raises(InvalidError, match="is not a node id"):
                call()

    @pytest.mark.parametrize("cause", ["", "a\ud800b", "\udfff", "a\nb", "\x00", "\x85", "c" * 1025])
    def test_a_bad_cause_is_invalid(self, blocklist: BlocklistClient, node_id: str, cause: str) -> None:
        with pytest.raises(InvalidError):
            blocklist.block(node_id, cause)
        with pytest.raises(NotFoundError):
            blocklist.get(node_id)

    @pytest.mark.parametrize("end", [0, -1, 1, PERMANENT + 1, -(2**63) - 1, 10**30])
    def test_a_bad_end_is_invalid_and_named(self, blocklist: BlocklistClient, node_id: str, end: int) -> None:
        with pytest.raises(InvalidError) as error:
            blocklist.block(node_id, "disk", end=end)
        assert error.value.lines == (error.value.detail,)
        assert error.value.detail.startswith("endTimestamp: ")


class TestBlockMany:
    def test_all_are_blocked_in_their_order(self, blocklist: BlocklistClient, node_id: str) -> None:
        first = blocklist.snapshot().revision
        end = now_ms() + HOUR
        names = [f"{node_id}-{letter}" for letter in "cab"]
        blocked = blocklist.block_many(node(name, cause=name, end=end) for name in names)
        assert list(blocked) == names
        assert all(blocked[name] == node(name, name, end=end, start=blocked[names[0]].start) for name in names)
        with blocklist.watch(since=first) as watch:
            assert [next(watch).revision for _ in names] == [first + 1, first + 2, first + 3]

    def test_all_or_none_and_every_conflict_is_reported(self, blocklist: BlocklistClient, node_id: str) -> None:
        current = {name: blocklist.block(name, "disk") for name in (f"{node_id}-a", f"{node_id}-c")}
        nodes = [node(f"{node_id}-{letter}", "memory") for letter in "abcd"]
        with pytest.raises(ConflictError) as error:
            blocklist.block_many(nodes)
        assert error.value.blocked == current
        assert len(error.value.lines) == 2
        assert blocklist.snapshot().nodes.keys() & {it.id for it in nodes} == current.keys()

    def test_allow_merge_applies_to_all(self, blocklist: BlocklistClient, node_id: str) -> None:
        current = blocklist.block(f"{node_id}-a", "disk")
        blocked = blocklist.block_many([node(f"{node_id}-{it}", "memory") for it in "ab"], allow_merge=True)
        assert [it.cause for it in blocked.values()] == ["disk,memory", "memory"]
        assert blocked[current.id].start == current.start

    def test_a_line_for_each_fault(self, blocklist: BlocklistClient, node_id: str) -> None:
        nodes = [node(f"{node_id}-a", end=5), node(f"{node_id}-b"), node(f"{node_id}-c", "c" * 1025)]
        with pytest.raises(InvalidError) as error:
            blocklist.block_many(nodes)
        assert [line.partition(":")[0] for line in error.value.lines] == [f"'{node_id}-a'", f"'{node_id}-c'"]

    def test_a_node_given_twice_is_invalid(self, blocklist: BlocklistClient, node_id: str) -> None:
        with pytest.raises(InvalidError, match="more than once"):
            blocklist.block_many([node(node_id), node(node_id, "memory")])

    @pytest.mark.parametrize("number", [0, 1001])
    def test_none_and_too_many_are_invalid(self, blocklist: BlocklistClient, number: int) -> None:
        with pytest.raises(InvalidError, match="1 to 1000"):
            blocklist.block_many(node(f"n{n}") for n in range(number))

    def test_too_large_is_invalid(self, blocklist: BlocklistClient) -> None:
        with pytest.raises(InvalidError, match="larger than"):
            blocklist.block_many(node(f"n{n}", "c" * 1024) for n in range(1000))


class TestRead:
    def test_min_revision_reads_what_was_written(self, blocklist: BlocklistClient, node_id: str) -> None:
        blocklist.block(node_id, "disk")
        revision = blocklist.snapshot().revision
        assert blocklist.snapshot(min_revision=revision).revision >= revision

    def test_a_future_revision_is_unavailable(self, blocklist: BlocklistClient) -> None:
        with pytest.raises(UnavailableError) as error:
            blocklist.snapshot(min_revision=2**53)
        assert error.value.retry_after == 1

    @pytest.mark.parametrize("revision", [-1, 2**53 + 1])
    def test_an_invalid_min_revision_is_rejected(self, blocklist: BlocklistClient, revision: int) -> None:
        with pytest.raises(InvalidError):
            blocklist.snapshot(min_revision=revision)

    def test_a_node_that_is_not_blocked_is_not_found(self, blocklist: BlocklistClient, node_id: str) -> None:
        with pytest.raises(NotFoundError, match=node_id):
            blocklist.get(node_id)
        with pytest.raises(NotFoundError, match=node_id):
            blocklist.unblock(node_id)

    def test_unblock_frees_the_node(self, blocklist: BlocklistClient, node_id: str) -> None:
        blocklist.block(node_id, "disk")
        blocklist.unblock(node_id)
        assert node_id not in blocklist.snapshot().nodes


class TestUrl:
    def test_the_environment_gives_the_url(
        self, service: ServiceProcess, node_id: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("BLOCKLIST_URL", service.url + "/")
        with BlocklistClient(timeout=30) as blocklist:
            assert blocklist.url == service.url
            blocklist.block(node_id, "disk")

    def test_an_argument_wins_and_the_default_is_the_services_own(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("BLOCKLIST_URL", "http://elsewhere:1")
        assert BlocklistClient("http://here:1").url == "http://here:1"
        monkeypatch.delenv("BLOCKLIST_URL")
        assert BlocklistClient().url == "http://127.0.0.1:8224"

    @pytest.mark.parametrize(
        ("host", "prefix", "end"),
        [("127.0.0.1", b"", "/"), ("127.0.0.1", b"/team/a", ""), ("127.0.0.1", b"/team/a", "//"), ("::1", b"", "")],
        ids=["slash at the end", "prefix", "prefix and slashes", "IPv6"],
    )
    def test_every_form_of_the_url_works(
        self, service: ServiceProcess, node_id: str, host: str, prefix: bytes, end: str
    ) -> None:
        with (
            relay(service.url, host=host, prefix=prefix) as way,
            BlocklistClient(way.url + end, timeout=30) as blocklist,
        ):
            blocklist.block(node_id, "disk")
            blocklist.unblock(node_id)
            assert node_id not in blocklist.snapshot().nodes
            with blocklist.watch() as watch:
                assert next(watch).revision >= 2
            assert [
                request.split()[1].partition(b"/nodes")[0] for request in way.requests if b" HTTP/1.1\r\n" in request
            ] == [
                prefix + b"/blocklist",
                prefix + b"/blocklist",
                prefix + b"/blocklist",
                prefix + b"/blocklist/watch",
            ]

    @pytest.mark.parametrize(
        "bad",
        ["host:8224", "ftp://host", "http://", "http://host:port", "http://host/?a=b", "http://host/#a", "http://[::1",
         "/", " ", "http://a\nb", "http://\ud800"],
    )  # fmt: skip
    def test_an_invalid_url_is_rejected_at_once(self, bad: str) -> None:
        with pytest.raises(InvalidError, match="is not the URL of a service"):
            BlocklistClient(bad)

    def test_a_proxy_is_not_used_for_loopback(self, service: ServiceProcess, monkeypatch: pytest.MonkeyPatch) -> None:
        """A proxy would connect to its own loopback."""
        with fake_server(http_response(b"{}", "200 OK", *SERVICE_HEADERS)) as proxy:
            for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
                monkeypatch.setenv(name, proxy.url)
            for url in (service.url, service.url.replace("127.0.0.1", "localhost")):
                with BlocklistClient(url, timeout=30) as blocklist, blocklist.watch() as watch:
                    assert next(watch).revision == blocklist.snapshot().revision
            assert proxy.requests == []

    def test_a_proxy_is_used_for_other_hosts(self, monkeypatch: pytest.MonkeyPatch) -> None:
        with fake_server(http_response(b"{}", "200 OK", *SERVICE_HEADERS)) as proxy:
            monkeypatch.setenv("HTTP_PROXY", proxy.url)
            with BlocklistClient("http://blocklist.test", timeout=30) as blocklist:
                assert blocklist.snapshot().revision == 7
            assert proxy.requests[0].startswith(b"GET http://blocklist.test/blocklist HTTP/1.1\r\n")


def calls(client: BlocklistClient) -> list[Callable[[], object]]:
    """A call of every method that sends a request."""
    return [
        client.snapshot,
        lambda: client.get("a"),
        lambda: client.block("a", "disk"),
        lambda: client.block_many([node("a"), node("b")]),
        lambda: client.unblock("a"),
    ]


def assert_unavailable(client: BlocklistClient, number: int = 5) -> None:
    for call in calls(client)[:number]:
        with pytest.raises(UnavailableError) as error:
            call()
        assert error.value.detail
        assert isinstance(error.value, BlocklistError)


HTML = "Content-Type: text/html"
PAGE = b"<h1>Please log in</h1>"
NODES = b'{"a": {"action": "MARK_BLOCKED", "startTimestamp": "1", "endTimestamp": "2", "cause": "disk"}}'


class TestNotTheService:
    """Whatever responds instead of the service, the error is UnavailableError."""

    def test_nothing_listens(self) -> None:
        with BlocklistClient(f"http://127.0.0.1:{free_port()}") as client:
            assert_unavailable(client)

    @pytest.mark.parametrize("host", ["nowhere.invalid", "a..b", "a" * 64 + ".invalid"])
    def test_an_unknown_host(self, host: str) -> None:
        with BlocklistClient(f"http://{host}") as client:
            assert_unavailable(client, 1)

    @pytest.mark.parametrize(
        "said",
        [
            pytest.param(http_response(PAGE, "200 OK", HTML), id="page"),
            pytest.param(http_response(b"{}"), id="JSON of another server"),
            pytest.param(http_response(b"", "204 No Content"), id="empty"),
            pytest.param(http_response(PAGE, "400 Bad Request", HTML), id="400 of a proxy"),
            pytest.param(http_response(PAGE, "404 Not Found", HTML), id="404 of a proxy"),
            pytest.param(http_response(PAGE, "409 Conflict", HTML), id="409 of a proxy"),
            pytest.param(http_response(PAGE, "413 Content Too Large", HTML), id="413 of a proxy"),
            pytest.param(http_response(PAGE, "500 Oh", HTML), id="500"),
            pytest.param(http_response(b"", "502 Bad Gateway"), id="502"),
            pytest.param(http_response(b"", "503 Service Unavailable", *SERVICE_HEADERS), id="503 without a problem"),
            pytest.param(http_response(b"", "302 Found", "Location: /elsewhere"), id="redirect"),
            pytest.param(
                http_response(b"", "307 Temporary Redirect", "Location: http://[", *SERVICE_HEADERS),
                id="redirect to nowhere",
            ),
            pytest.param(http_response(b"{}", "200 OK", "Content-Encoding: gzip", *SERVICE_HEADERS), id="not gzip"),
            pytest.param(http_response(b"{", "200 OK", *SERVICE_HEADERS, length=100), id="cut in the body"),
            pytest.param(b"HTTP/1.1 200 OK\r\nBlocklist-Rev", id="cut in the head"),
            pytest.param(b"", id="closed without a response"),
            pytest.param(respond_and_reset(), id="reset"),
            pytest.param(
                respond_and_reset(http_response(b"{", "200 OK", *SERVICE_HEADERS, length=100)), id="reset in the body"
            ),
            pytest.param(b"\x00\xff\x17 no HTTP at all\r\n\r\n", id="noise"),
            pytest.param(b"SSH-2.0-OpenSSH_9.2\r\n", id="another protocol"),
            pytest.param(b"HTTP/1.1 101 Switching Protocols\r\n\r\n", id="a switch of the protocol"),
            pytest.param(b"HTTP/1.1 100 Continue\r\n\r\n" * 100, id="nothing but 100"),
            pytest.param(http_response(PAGE, "401 Unauthorized", "WWW-Authenticate: Basic"), id="401 of a proxy"),
            pytest.param(http_response(PAGE, "407 Proxy Authentication Required", HTML), id="407"),
            pytest.param(
                respond_endlessly(http_response(b"", "200 OK", length=2**60), b"x" * 65536), id="a body without end"
            ),
            pytest.param(respond_endlessly(b"HTTP/1.1 200 OK\r\nX: ", b"x" * 65536), id="a head without end"),
        ],
    )
    def test_is_unavailable(self, said: Responder | bytes) -> None:
        with fake_server(said) as there, BlocklistClient(there.url, timeout=30) as client:
            assert_unavailable(client)
            assert len(there.requests) == 5, "a change is sent once; retrying is up to the caller"

    @pytest.mark.parametrize(
        "said",
        [b"", b"HTTP/1.1 200 OK\r\nBlocklist-", http_response(b"{", "200 OK", *SERVICE_HEADERS, length=9)],
        ids=["all", "head", "body"],
    )
    def test_a_missing_response_is_a_timeout(self, said: bytes) -> None:
        with fake_server(respond_and_hang(said)) as there, BlocklistClient(there.url, timeout=0.1) as client:
            assert_unavailable(client)

    @pytest.mark.parametrize(
        "body",
        [
            b"",
            b"no JSON",
            b"\xff",
            b"[]",
            b"7",
            b"null",
            b'"a"',
            b'{"a": 7}',
            b'{"a": null}',
            b'{"a": {}}',
            b"[" * 100_000,
            b'{"a": ' * 100_000,
            b'{"a": %s}' % (b"9" * 5000),
            NODES.replace(b'"a"', b'"a b"'),
            NODES.replace(b"MARK", b"HARK"),
            NODES.replace(b'"1"', b'"later"'),
            NODES.replace(b'"2"', b'"9223372036854775808"'),
            NODES.replace(b'"2"', b"2.0"),
            NODES.replace(b"disk", b""),
            NODES.replace(b"disk", b"\\ud800"),
        ],
        ids=ascii,
    )
    def test_an_invalid_list_or_node_is_unavailable(self, body: bytes) -> None:
        with (
            fake_server(http_response(body, "200 OK", *SERVICE_HEADERS)) as there,
            BlocklistClient(there.url, timeout=30) as client,
        ):
            assert_unavailable(client, 4)

    @pytest.mark.parametrize("revision", ["", "x", "-1", "1.5", "7 7", "٣", "9" * 5000])
    def test_an_invalid_revision_header_is_unavailable(self, revision: str) -> None:
        said = http_response(NODES, "200 OK", f"Blocklist-Revision: {revision}")
        with fake_server(said) as there, BlocklistClient(there.url, timeout=30) as client:
            assert_unavailable(client, 1)


class TestErrors:
    """Error responses of the service, including malformed ones."""

    @pytest.mark.parametrize(
        ("status", "error"),
        [
            ("400 Bad Request", InvalidError),
            # Not said by a service: a proxy, or another server.
            ("404 Not Found", UnavailableError),
            ("409 Conflict", ConflictError),
            ("410 Gone", CompactedError),
            ("413 Content Too Large", InvalidError),
            ("421 Misdirected Request", InvalidError),
            ("500 Oh", UnavailableError),
            ("503 Service Unavailable", UnavailableError),
        ],
    )
    @pytest.mark.parametrize(
        "problem",
        [b"", b"[]", b'{"detail": 7, "errors": 7, "oldest": "x"}', b'{"errors": {"a": 1}}', b"[" * 100_000],
        ids=["empty", "list", "numbers", "object", "deep"],
    )
    def test_the_status_decides_the_error(self, status: str, error: type[BlocklistError], problem: bytes) -> None:
        said = http_response(problem, status, "Content-Type: application/problem+json", *SERVICE_HEADERS)
        with fake_server(said) as there, BlocklistClient(there.url, timeout=30) as client:
            for call in calls(client):
                with pytest.raises(error) as raised:
                    call()
                assert type(raised.value) is error
                assert raised.value.detail
                assert raised.value.lines

    @pytest.mark.parametrize("conflict", [{"blockedNode": 7}, {"blockedNodes": [7]}, {"blockedNodes": {"a": 7}}])
    def test_a_conflict_with_an_invalid_node(self, conflict: dict[str, Any]) -> None:
        said = http_response(
            json.dumps(conflict).encode(), "409 Conflict", "Content-Type: application/problem+json", *SERVICE_HEADERS
        )
        with fake_server(said) as there, BlocklistClient(there.url, timeout=30) as client:
            assert_unavailable(client)

    @pytest.mark.parametrize(("header", "seconds"), [("3", 3.0), ("0", 0.0), ("Wed, 21 Oct 2026 07:28:00 GMT", None)])
    def test_retry_after_is_in_seconds(self, header: str, seconds: float | None) -> None:
        said = http_response(b"", "503 Service Unavailable", f"Retry-After: {header}")
        with fake_server(said) as there, BlocklistClient(there.url) as client:
            with pytest.raises(UnavailableError) as error:
                client.snapshot()
            assert error.value.retry_after == seconds


def test_the_snapshot_is_the_whole_list_before_and_after_a_restart(fresh: ServiceProcess) -> None:
    with BlocklistClient(fresh.url, timeout=30) as client:
        empty = client.snapshot()
        assert (empty.revision, empty.nodes) == (0, {})
        nodes = {name: client.block(name, "disk") for name in ("b", "a")}
        full = Snapshot(revision=2, history=empty.history, nodes=nodes)
        assert client.snapshot() == full
        fresh.kill()
        assert_unavailable(client)
        fresh.start()
        assert client.snapshot() == full


def test_threads_may_share_a_client(blocklist: BlocklistClient, node_id: str) -> None:
    with ThreadPoolExecutor(8) as pool:
        nodes = list(pool.map(blocklist.block, (f"{node_id}-{n}" for n in range(80)), repeat("disk")))
    listed = blocklist.snapshot().nodes
    assert all(listed[it.id] == it for it in nodes)


def test_closing_a_client_keeps_its_watches_open(service: ServiceProcess, node_id: str) -> None:
    with BlocklistClient(service.url, timeout=30) as client:
        watch = client.watch()
    with watch:
        assert next(watch).revision >= 0


def test_the_client_logs_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """Errors are raised; logging them is up to the caller."""
    with caplog.at_level(logging.DEBUG), BlocklistClient(f"http://127.0.0.1:{free_port()}") as client:
        assert_unavailable(client, 1)
    assert [record.name for record in caplog.records if record.name.startswith("blocklist")] == []
