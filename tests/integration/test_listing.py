"""GET /blocklist: the whole list, its ETag, and waiting for it to change."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import httpx
import pytest

from tests.integration.bodies import block, current_list, revision_of
from tests.integration.conftest import Start, StartInProcess
from tests.integration.databases import Databases
from tests.integration.in_process import InProcessService, in_process
from tests.integration.problems import problem_of
from tests.integration.process import http_client
from tests.integration.raw_http import request, send_request

IDENTITY = {"accept-encoding": "identity"}


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory, databases: Databases) -> Iterator[InProcessService]:
    """The service of this file. Its time stands still, unless a test advances it."""
    with in_process(**databases.settings(tmp_path_factory.mktemp("service"))) as service:
        yield service


@pytest.fixture(scope="module")
def client(service: InProcessService) -> Iterator[httpx.Client]:
    """A client of its port, with the fast path."""
    with http_client(service.url) as client:
        yield client


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(8) as pool:
        yield pool


def etag_of(client: httpx.Client) -> str:
    return str(client.get("/blocklist", headers=IDENTITY).headers["etag"])


def still_waiting(answer: Future[httpx.Response]) -> bool:
    """Whether there is no response within a tenth of a second."""
    try:
        answer.result(0.1)
    except TimeoutError:
        return True
    return False


def wait_for_change(client: httpx.Client, prefer: str = "wait=30", **headers: str) -> httpx.Response:
    return client.get("/blocklist", headers={"prefer": prefer, "if-none-match": etag_of(client), **IDENTITY, **headers})


def test_a_list_is_empty_at_first_and_then_sorted_by_id(start_in_process: StartInProcess) -> None:
    fresh_client = start_in_process().client()
    answer = fresh_client.get("/blocklist")
    assert (answer.status_code, answer.content) == (200, b"{}\n")
    assert answer.headers["content-type"] == "application/json"
    assert revision_of(answer) == 0
    assert fresh_client.get("/blocklist/changes").json() == {"changes": [], "revision": 0, "next": None}
    ids = ["b", "a", "Z", "a:1", "c.1", "a-1", "a_1", "10", "9", "ab"]
    for node_id in ids:
        fresh_client.put(f"/blocklist/nodes/{node_id}", json=block())
    assert list(fresh_client.get("/blocklist").json()) == sorted(ids)


def test_the_list_carries_its_headers(client: httpx.Client) -> None:
    headers = client.get("/blocklist").headers
    assert headers["cache-control"] == "no-cache"
    assert headers["etag"].strip("W/").startswith('"')
    assert int(headers["blocklist-revision"]) >= 0
    assert len(bytes.fromhex(headers["blocklist-history"])) == 4


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/blocklist", 200),
        ("HEAD", "/blocklist", 200),
        ("POST", "/blocklist", 405),
        ("GET", "/blocklist?minRevision=x", 400),
        ("GET", "/blocklist/nodes/free", 404),
        ("HEAD", "/blocklist/nodes/free", 404),
        ("DELETE", "/blocklist/nodes/free", 404),
        ("PUT", "/blocklist/nodes/free", 400),
        ("PUT", "/blocklist/nodes", 400),
        ("GET", "/blocklist/nodes/a b", 400),
        ("PATCH", "/blocklist/nodes/free", 405),
        ("GET", "/blocklist/node/free", 404),
        ("GET", "/blocklist/changes", 200),
        ("GET", "/blocklist/changes?limit=x", 400),
        ("GET", "/blocklist/watch?since=x", 400),
        ("GET", "/blocklist/no/such/thing", 404),
    ],
)
def test_every_response_has_revision_and_history(client: httpx.Client, method: str, path: str, status: int) -> None:
    expected = client.get("/blocklist").headers
    answer = client.request(method, path)
    assert answer.status_code == status
    assert answer.headers["blocklist-revision"] == expected["blocklist-revision"]
    assert answer.headers["blocklist-history"] == expected["blocklist-history"]


def test_a_matching_if_none_match_is_304(client: httpx.Client, service: InProcessService) -> None:
    answer = send_request(service.port, request("/blocklist", f'If-None-Match: W/"x" , W/{etag_of(client)}'))
    whole = send_request(service.port, request("/blocklist"))
    assert (answer.status, answer.body) == (304, b"")
    for name in ("etag", "blocklist-revision", "blocklist-history", "cache-control"):
        assert answer.header(name) == whole.header(name), name


def test_if_none_match_may_come_in_several_lines(client: httpx.Client, service: InProcessService) -> None:
    lines = ['If-None-Match: "x"', f"If-None-Match: {etag_of(client)}"]
    assert send_request(service.port, request("/blocklist", *lines)).status == 304
    assert send_request(service.port, request("/blocklist", *reversed(lines))).status == 304


def test_the_etag_is_the_bodys(client: httpx.Client, node: str) -> None:
    before = client.get("/blocklist", headers=IDENTITY)
    client.put(node, json=block())
    blocked = client.get("/blocklist", headers=IDENTITY)
    client.delete(node)
    after = client.get("/blocklist", headers=IDENTITY)
    assert before.headers["etag"] != blocked.headers["etag"]
    assert before.content == after.content
    assert before.headers["etag"] == after.headers["etag"], "the same body again"
    assert revision_of(after) == revision_of(before) + 2


def test_head_is_get_without_the_body(client: httpx.Client, service: InProcessService) -> None:
    whole = send_request(service.port, request("/blocklist"))
    head = send_request(service.port, request("/blocklist", method="HEAD"), "HEAD")
    assert head.without_volatile_headers()[:2] == whole.without_volatile_headers()[:2]
    etag = f"If-None-Match: {head.header('etag')}"
    assert send_request(service.port, request("/blocklist", etag, method="HEAD"), "HEAD").status == 304


@pytest.mark.parametrize(
    "path", ["/blocklist/nodes/{0}", "/blocklist/node/{0}", "/blocklist/changes", "/healthz", "/readyz"]
)
def test_head_works_on_the_other_reads(client: httpx.Client, node: str, node_id: str, path: str) -> None:
    client.put(node, json=block())
    whole, head = client.get(path.format(node_id)), client.head(path.format(node_id))
    assert (head.status_code, head.content) == (200, b"")
    for name in ("content-type", "content-length", "blocklist-revision"):
        assert head.headers.get(name) == whole.headers.get(name), name


def test_a_zipped_list_is_the_same_list_and_either_etag_matches(
    start_in_process: StartInProcess,
) -> None:
    fresh = start_in_process()
    fresh.client().put("/blocklist/nodes", json={f"n{n}": block() for n in range(500)})
    plain = send_request(fresh.port, request("/blocklist"))
    zipped = send_request(fresh.port, request("/blocklist", "Accept-Encoding: gzip"))
    if zipped.header("content-encoding") == "gzip":
        assert zipped.header("etag") != plain.header("etag")
        assert "accept-encoding" in (zipped.header("vary") or "").lower()
        assert "accept-encoding" in (plain.header("vary") or "").lower()
        assert gzip.decompress(zipped.body) == plain.body
    for answer in (plain, zipped):
        for lines in (["Accept-Encoding: gzip"], []):
            again = send_request(fresh.port, request("/blocklist", f"If-None-Match: {answer.header('etag')}", *lines))
            assert again.status == 304


class TestWaiting:
    """With `Prefer: wait=N` and a matching `If-None-Match` the answer waits until the body changes."""

    @pytest.mark.parametrize("prefer", ["wait=30", 'foo; bar="a,b" , WAIT=30;x'])
    def test_it_answers_on_a_change(
        self, client: httpx.Client, pool: ThreadPoolExecutor, node: str, prefer: str
    ) -> None:
        waiting = pool.submit(wait_for_change, client, prefer)
        assert still_waiting(waiting)
        made = client.put(node, json=block())
        answer = waiting.result(20)
        assert answer.status_code == 200
        assert answer.headers["preference-applied"].startswith("wait")
        assert revision_of(answer) == revision_of(made)
        assert answer.json() == current_list(client)[1]

    def test_a_merge_that_changes_nothing_wakes_nobody(
        self, service: InProcessService, client: httpx.Client, pool: ThreadPoolExecutor, node: str
    ) -> None:
        client.put(node, json=block())
        waiting = pool.submit(wait_for_change, client, "wait=2")
        assert still_waiting(waiting)
        client.put(node, json=block(allowMerge=True))
        service.until(waiting.done)
        assert waiting.result().status_code == 304

    def test_an_expiry_is_a_change(
        self, service: InProcessService, client: httpx.Client, node: str, node_id: str
    ) -> None:
        end = service.clock.now + 10_000
        client.put(node, json=block(endTimestamp=end)).raise_for_status()
        answer = service.in_time(lambda: wait_for_change(client))
        assert answer.status_code == 200
        assert node_id not in answer.json()
        assert service.clock.now >= end

    def test_it_answers_304_when_the_time_is_over(self, service: InProcessService, client: httpx.Client) -> None:
        began = service.clock.now
        answer = service.in_time(lambda: wait_for_change(client, "wait=1"))
        assert service.clock.now - began >= 1000
        assert (answer.status_code, answer.content) == (304, b"")
        assert answer.headers["preference-applied"].startswith("wait")
        assert answer.headers["etag"] == etag_of(client)

    def test_head_waits_too(self, client: httpx.Client, pool: ThreadPoolExecutor, node: str) -> None:
        headers = {"prefer": "wait=30", "if-none-match": etag_of(client), **IDENTITY}
        waiting = pool.submit(client.head, "/blocklist", headers=headers)
        assert still_waiting(waiting)
        client.put(node, json=block())
        assert (waiting.result(20).status_code, waiting.result().content) == (200, b"")

    @pytest.mark.parametrize("headers", [{}, {"if-none-match": '"other"'}])
    def test_without_a_matching_etag_it_answers_immediately(
        self, client: httpx.Client, headers: dict[str, str]
    ) -> None:
        answer = client.get("/blocklist", headers={"prefer": "wait=60", **headers}, timeout=20)
        assert answer.status_code == 200

    def test_when_the_service_stops_it_answers_304(self, start: Start, pool: ThreadPoolExecutor) -> None:
        service = start()
        with service.client() as client:
            waiting = pool.submit(wait_for_change, client, "wait=60")
            assert still_waiting(waiting)
            service.terminate()
            assert waiting.result(20).status_code == 304
        assert service.exit_code() == 0


class TestMinRevision:
    """`?minRevision=R` waits for revision R for at most 2 s (read-your-writes)."""

    @pytest.mark.parametrize("path", ["/blocklist", "{0}", "/blocklist/changes"])
    def test_the_current_revision_is_answered_immediately(self, client: httpx.Client, node: str, path: str) -> None:
        made = client.put(node, json=block())
        answer = client.get(path.format(node), params={"minRevision": revision_of(made)})
        assert answer.status_code == 200
        assert revision_of(answer) == revision_of(made)

    @pytest.mark.parametrize("path", ["/blocklist", "{0}", "/blocklist/changes"])
    def test_a_future_revision_is_503_with_retry_after(
        self, service: InProcessService, client: httpx.Client, node: str, path: str
    ) -> None:
        ahead, began = {"minRevision": current_list(client)[0] + 1}, service.clock.now
        answer = service.in_time(lambda: client.get(path.format(node), params=ahead))
        assert service.clock.now - began >= 2000
        problem_of(answer, 503)
        assert int(answer.headers["retry-after"]) >= 0

    @pytest.mark.parametrize("path", ["/blocklist", "{0}", "/blocklist/changes?since={1}"])
    def test_it_waits_for_the_next_revision(
        self, client: httpx.Client, pool: ThreadPoolExecutor, node: str, path: str
    ) -> None:
        client.put(node, json=block())
        awaited = current_list(client)[0] + 1
        target = path.format(node, awaited - 1)
        waiting = pool.submit(client.get, f"{target}{'&' if '?' in target else '?'}minRevision={awaited}")
        assert still_waiting(waiting)
        client.put(node, json=block(cause="b", allowMerge=True))
        answer = waiting.result(20)
        assert revision_of(answer) == awaited
        assert "disk,b" in answer.text

    def test_a_matching_etag_is_304_only_at_that_revision(
        self, service: InProcessService, client: httpx.Client, node: str
    ) -> None:
        revision = revision_of(client.put(node, json=block()))
        headers = {"if-none-match": etag_of(client), **IDENTITY}
        for wanted, status in ((revision, 304), (revision + 1, 503)):
            path = f"/blocklist?minRevision={wanted}"
            assert service.in_time(lambda path=path: client.get(path, headers=headers)).status_code == status  # type: ignore[misc]
