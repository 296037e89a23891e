"""GET /blocklist/table: what drivers match their hosts against, below ASGI and by its route."""

from __future__ import annotations

import re
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Final

import httpx
import pytest

from blocklist.model.claims import Role
from blocklist.model.node import PERMANENT
from tests.integration.bodies import all_changes, block, later
from tests.integration.conftest import Start, StartInProcess, StartReplicas
from tests.integration.in_process import InProcessService
from tests.integration.listeners import RM, heartbeat, register
from tests.integration.problems import problem_of
from tests.integration.process import http_client, wait_until
from tests.integration.raw_http import connection_to, read_response, request, send_request
from tests.integration.secured import SecuredInProcess

TABLE: Final = "/blocklist/table"
PLAIN: Final = {"accept-encoding": "identity"}
ETAG: Final = re.compile(r'"([0-9a-f]{8})-(\d+)-[0-9a-f]{16}(-gzip)?"')
EVACUATE: Final = "MARK_BLOCKED_AND_EVACUATE_TASKS"
Table = dict[str, list[str]]


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(8) as pool:
        yield pool


@pytest.fixture(params=["true", "false"], ids=["below ASGI", "by its route"])
def fast_path(request: pytest.FixtureRequest) -> str:
    """The fast path is on, or off."""
    return str(request.param)


@pytest.fixture
def own(fast_path: str, start_in_process: StartInProcess) -> InProcessService:
    """A service with an empty list, with the fast path and without. Its time stands still."""
    return start_in_process(fast_path=fast_path)


@pytest.fixture
def own_client(own: InProcessService) -> Iterator[httpx.Client]:
    """A client of its port: only there the fast path answers."""
    with http_client(own.url) as client:
        yield client


def put(client: httpx.Client, name: str, **fields: object) -> int:
    answer = client.put(f"/blocklist/nodes/{name}", json=block(**fields))
    assert answer.is_success, answer.text
    return int(answer.headers["blocklist-revision"])


def get(client: httpx.Client, **headers: str) -> httpx.Response:
    answer = client.get(TABLE, headers={**PLAIN, **headers})
    assert answer.status_code == 200, answer.text
    return answer


def parse(answer: httpx.Response) -> tuple[int, Table]:
    """The revision, and by key the other fields of each line, in their order."""
    head, *lines = answer.text.removesuffix("\n").split("\n")
    name, version, revision, count = head.split(" ")
    assert (name, version, int(count)) == ("blocklist-table", "1", len(lines))
    assert answer.headers["blocklist-revision"] == revision
    match = ETAG.fullmatch(answer.headers["etag"])
    assert match
    assert match[1] == answer.headers["blocklist-history"]
    assert match[2] == revision
    fields = [line.split("\t") for line in lines]
    return int(revision), {key: rest for key, *rest in fields}


def table_of(client: httpx.Client) -> Table:
    return parse(get(client))[1]


def wait_for_table(client: httpx.Client, etag: str, prefer: str = "wait=30") -> httpx.Response:
    return client.get(TABLE, headers={**PLAIN, "prefer": prefer, "if-none-match": etag})


def begin_waiting(pool: ThreadPoolExecutor, client: httpx.Client) -> Future[httpx.Response]:
    """A request that waits for the table after the current one."""
    waiting = pool.submit(wait_for_table, client, get(client).headers["etag"])
    with pytest.raises(TimeoutError):
        waiting.result(0.1)
    return waiting


def test_an_empty_table_has_its_head_only(own_client: httpx.Client) -> None:
    answer = get(own_client)
    assert answer.text == "blocklist-table 1 0 0\n"
    assert answer.headers["content-type"] == "text/plain; charset=utf-8"
    assert answer.headers["cache-control"] == "no-cache"
    assert parse(answer) == (0, {})


def test_it_has_each_block_under_its_names_the_weakest_first_and_of_these_the_oldest(
    own: InProcessService, own_client: httpx.Client
) -> None:
    put(own_client, "N8.Example.com", action=EVACUATE, cause="no space é")
    end = later(600)
    put(own_client, "n7", cause="disk", endTimestamp=end)
    own.clock.advance(0.001)
    revision = put(own_client, "2001:DB8:0::7", cause="heat")
    answer = get(own_client)
    assert parse(answer)[0] == revision
    assert answer.text.splitlines()[1:] == [
        f"n7\t{end}\tmark\tn7\tdisk",
        f"n7.\t{end}\tmark\tn7\tdisk",
        f"2001:db8::7\t{PERMANENT}\tmark\t2001:db8::7\theat",
        f"n8\t{PERMANENT}\tevacuate\tN8.Example.com\tno space é",
        f"n8.example.com\t{PERMANENT}\tevacuate\tN8.Example.com\tno space é",
    ]


def test_a_matching_etag_is_304_without_a_body(own_client: httpx.Client) -> None:
    put(own_client, "n7")
    whole = get(own_client)
    answer = own_client.get(TABLE, headers={**PLAIN, "if-none-match": f'"x", {whole.headers["etag"]}'})
    assert (answer.status_code, answer.content) == (304, b"")
    for name in ("etag", "blocklist-revision", "blocklist-history", "vary"):
        assert answer.headers[name] == whole.headers[name]


def test_a_thousand_ids_are_compressed_if_the_client_accepts_it(own_client: httpx.Client) -> None:
    names = [f"host-{number}.example.com" for number in range(1000)]
    own_client.put("/blocklist/nodes", json={name: block() for name in names}).raise_for_status()
    plain = get(own_client)
    zipped = get(own_client, **{"accept-encoding": "gzip"})
    assert set(parse(plain)[1]) == {*names, *(name.partition(".")[0] for name in names)}
    assert zipped.headers["content-encoding"] == "gzip"
    assert zipped.headers["etag"] != plain.headers["etag"]
    assert zipped.text == plain.text
    assert int(zipped.headers["content-length"]) < len(plain.content) / 5
    for tag in (plain.headers["etag"], zipped.headers["etag"]):
        assert own_client.get(TABLE, headers={"if-none-match": tag}).status_code == 304


def test_a_small_table_is_not_compressed(own_client: httpx.Client) -> None:
    put(own_client, "n7")
    assert "content-encoding" not in get(own_client, **{"accept-encoding": "gzip"}).headers


class TestWaiting:
    def test_a_change_answers_all_waiting_requests(self, own_client: httpx.Client, pool: ThreadPoolExecutor) -> None:
        etag = get(own_client).headers["etag"]
        waiting = [pool.submit(wait_for_table, own_client, etag) for _ in range(7)]
        with pytest.raises(TimeoutError):
            waiting[0].result(0.1)
        revision = put(own_client, "n7")
        for answer in (each.result(20) for each in waiting):
            assert parse(answer)[0] == revision
            assert "n7." in parse(answer)[1]
            assert answer.headers["preference-applied"] == "wait=30"

    def test_it_is_304_when_the_time_is_over(self, own: InProcessService, own_client: httpx.Client) -> None:
        etag = get(own_client).headers["etag"]
        for seconds in (0, 1):
            began = own.clock.now
            answer = own.in_time(partial(wait_for_table, own_client, etag, f"wait={seconds}"))
            assert own.clock.now - began >= seconds * 1000
            assert (answer.status_code, answer.content) == (304, b"")
            assert answer.headers["preference-applied"] == f"wait={seconds}"
            assert answer.headers["etag"] == etag

    def test_without_a_matching_etag_it_does_not_wait(self, own_client: httpx.Client) -> None:
        for headers in ({}, {"if-none-match": '"x"'}):
            answer = get(own_client, prefer="wait=60", **headers)
            assert "preference-applied" not in answer.headers

    def test_a_connection_serves_one_wait_after_another(self, own: InProcessService, own_client: httpx.Client) -> None:
        with connection_to(own.port) as connection, connection.makefile("rb") as stream:
            etag = get(own_client).headers["etag"]
            for number in range(5):
                connection.sendall(request(TABLE, f"If-None-Match: {etag}", "Prefer: wait=30"))
                revision = put(own_client, f"n{number}")
                answer = read_response(stream)
                assert (answer.status, answer.header("blocklist-revision")) == (200, str(revision))
                etag = answer.header("etag") or ""

    def test_a_request_behind_one_that_waits_is_answered_after_it(
        self, own: InProcessService, own_client: httpx.Client
    ) -> None:
        etag = get(own_client).headers["etag"]
        first = request(TABLE, f"If-None-Match: {etag}", "Prefer: wait=1")
        with connection_to(own.port) as connection, connection.makefile("rb") as stream:
            connection.sendall(first + request("/blocklist") + first)
            answers = own.in_time(lambda: [read_response(stream).status for _ in range(3)])
            assert answers == [304, 200, 304]

    def test_clients_that_disconnect_free_their_places(self, start_in_process: StartInProcess) -> None:
        service = start_in_process(max_waits_per_client="2")
        with http_client(service.url) as client:
            etag = get(client).headers["etag"]
            waiting = request(TABLE, f"If-None-Match: {etag}", "Prefer: wait=60")

            def is_rejected() -> bool:
                answer = wait_for_table(client, etag, "wait=0")
                return answer.status_code == 503

            with connection_to(service.port) as one, connection_to(service.port) as two:
                for connection in (one, two):
                    connection.sendall(waiting)
                wait_until(is_rejected)
                assert int(problem_of(wait_for_table(client, etag), 503)["status"]) == 503
            wait_until(lambda: not is_rejected())

    def test_the_service_stops_at_once(self, start: Start, fast_path: str, pool: ThreadPoolExecutor) -> None:
        service = start(fast_path=fast_path)
        with service.client() as client:
            waiting = begin_waiting(pool, client)
            service.terminate()
            assert waiting.result(20).status_code == 304
        assert service.exit_code() == 0

    def test_a_token_that_is_revoked_gets_no_further_table(
        self, secured: SecuredInProcess, pool: ThreadPoolExecutor
    ) -> None:
        made = secured.make_token(Role.READER)
        with secured.client(made["token"]) as reader, secured.client(secured.admin) as admin:
            waiting = begin_waiting(pool, reader)
            admin.delete(f"/tokens/{made['id']}").raise_for_status()
            put(admin, "after-revocation")
            with pytest.raises(httpx.RemoteProtocolError):
                waiting.result(20)
            assert reader.get(TABLE).status_code == 401


class TestEnds:
    def test_a_block_is_absent_from_its_end_on_and_a_driver_gets_the_change(
        self, own: InProcessService, own_client: httpx.Client, pool: ThreadPoolExecutor
    ) -> None:
        put(own_client, "n7", endTimestamp=later(20))
        put(own_client, "n8")
        waiting = begin_waiting(pool, own_client)
        own.until(waiting.done)
        answer = waiting.result()
        revision, table = parse(answer)
        assert (revision, set(table)) == (3, {"n8", "n8."})
        assert [change["type"] for change in all_changes(own_client)][-1] == "expired"

    def test_the_weaker_block_of_a_machine_remains_when_the_stronger_one_ends(
        self, own: InProcessService, own_client: httpx.Client
    ) -> None:
        put(own_client, "n7", cause="disk")
        own_client.put(
            "/blocklist/nodes/10.0.0.7", json=block(action=EVACUATE, endTimestamp=later(20))
        ).raise_for_status()
        assert set(table_of(own_client)) == {"n7", "n7.", "10.0.0.7"}
        own.until(lambda: set(table_of(own_client)) == {"n7", "n7."})


class TestNames:
    """The inventory's names and addresses are in the table; ambiguous ones are not."""

    def test_a_name_that_is_learned_reaches_a_waiting_driver_at_the_same_revision(
        self, own_client: httpx.Client, pool: ThreadPoolExecutor
    ) -> None:
        revision = put(own_client, "n7", cause="disk")
        waiting = begin_waiting(pool, own_client)
        register(own_client, "slurm", role=RM)
        node = {"id": "n7", "names": ["Worker-7.rack2"], "addresses": ["10.0.0.7", "2001:DB8::7"]}
        heartbeat(own_client, "slurm", nodes=[node])
        answer = waiting.result(20)
        further = {"worker-7.rack2", "worker-7", "10.0.0.7", "2001:db8::7"}
        assert parse(answer)[0] == revision
        assert set(parse(answer)[1]) == {"n7", "n7.", *further}
        assert all(fields == [str(PERMANENT), "mark", "n7", "disk"] for fields in parse(answer)[1].values())
        waiting = begin_waiting(pool, own_client)
        assert own_client.delete("/listeners/slurm").status_code == 204
        assert set(parse(waiting.result(20))[1]) == {"n7", "n7."}

    def test_names_of_nodes_that_are_not_blocked_notify_nobody(
        self, own: InProcessService, own_client: httpx.Client, pool: ThreadPoolExecutor
    ) -> None:
        put(own_client, "n7")
        waiting = begin_waiting(pool, own_client)
        register(own_client, "slurm", role=RM)
        heartbeat(own_client, "slurm", nodes=[{"id": "n8", "names": ["worker-8"]}])
        own.until(waiting.done)
        assert waiting.result().status_code == 304

    def test_a_block_under_any_name_has_the_others(self, start_in_process: StartInProcess, tmp_path: Path) -> None:
        file = tmp_path / "nodes.csv"
        file.write_text("id,names,addresses,labels\nn7,worker-7.rack2,10.0.0.7,\n")
        with http_client(start_in_process(nodes_file=str(file)).url) as client:
            put(client, "::ffff:10.0.0.7", cause="disk")
            put(client, "WORKER-7.rack2", cause="heat", action=EVACUATE, allowMerge=True)
            table = table_of(client)
            assert set(table) == {"n7", "worker-7.rack2", "worker-7", "10.0.0.7"}
            assert {fields[1] for fields in table.values()} == {"evacuate"}

    def test_a_name_or_address_that_several_nodes_claim_is_left_out(
        self, own_client: httpx.Client, pool: ThreadPoolExecutor
    ) -> None:
        put(own_client, "n7")
        register(own_client, "slurm", role=RM)
        shared = {"names": ["gateway"], "addresses": ["10.0.0.99"]}
        heartbeat(own_client, "slurm", nodes=[{"id": "n7", **shared}])
        assert set(table_of(own_client)) == {"n7", "n7.", "gateway", "10.0.0.99"}
        waiting = begin_waiting(pool, own_client)
        heartbeat(own_client, "slurm", nodes=[{"id": "n7", **shared}, {"id": "n8", **shared}])
        assert set(parse(waiting.result(20))[1]) == {"n7", "n7."}

    def test_a_long_report_reaches_drivers_as_a_whole(self, own_client: httpx.Client, pool: ThreadPoolExecutor) -> None:
        """It is applied in many turns; a table in between has no revision that a driver could acknowledge."""
        own_client.put("/blocklist/nodes", json={f"n{n}": block() for n in range(1000)}).raise_for_status()
        waiting = begin_waiting(pool, own_client)
        register(own_client, "slurm", role=RM)
        nodes = [{"id": f"n{n}", "names": [f"worker-{n}"]} for n in range(5000)]
        heartbeat(own_client, "slurm", nodes=nodes)
        revision, table = parse(waiting.result(20))
        assert (revision, len(table)) == (1000, 3000)


class TestHistories:
    def test_a_restart_keeps_the_etag(self, start: Start, fast_path: str) -> None:
        service = start(fast_path=fast_path)
        with service.client() as client:
            put(client, "n7")
            etag = get(client).headers["etag"]
            service.stop()
            service.start()
            assert get(client).headers["etag"] == etag
            assert wait_for_table(client, etag, "wait=0").status_code == 304

    def test_a_table_of_another_history_is_replaced(self, own: InProcessService, own_client: httpx.Client) -> None:
        """Also if its revision is higher."""
        put(own_client, "n7")
        etag = get(own_client).headers["etag"]
        other = f'"{"0" * 8}-99-{etag[-17:]}'
        answer = get(own_client, prefer="wait=30", **{"if-none-match": other})
        assert parse(answer)[0] == 1

    def test_a_replica_that_is_behind_does_not_send_an_older_table(
        self, own: InProcessService, own_client: httpx.Client
    ) -> None:
        """The driver keeps what it has."""
        put(own_client, "n7")
        answer = get(own_client)
        ahead = f'"{answer.headers["blocklist-history"]}-2-{"0" * 16}"'
        for prefer in ("wait=30", ""):
            problem = problem_of(own.in_time(partial(wait_for_table, own_client, ahead, prefer)), 503)
            assert "does not have 2 yet" in problem["detail"]
        own_client.delete("/blocklist/nodes/n7").raise_for_status()
        assert parse(get(own_client, **{"if-none-match": ahead})) == (2, {})


class TestCanaries:
    """Blocks that leave an executor of each application on the host."""

    def put_canary(self, client: httpx.Client, name: str, **fields: object) -> int:
        body = block(canary=True, **fields)
        answer = client.put(f"/blocklist/nodes/{name}/claims/detection", json=body).raise_for_status()
        return int(answer.headers["blocklist-revision"])

    def actions(self, client: httpx.Client) -> set[str]:
        return {fields[1] for fields in table_of(client).values()}

    def test_they_come_first(self, own_client: httpx.Client) -> None:
        put(own_client, "10.0.0.1")
        revision = self.put_canary(own_client, "10.0.0.2", cause="slow")
        answer = get(own_client)
        assert answer.text.splitlines() == [
            f"blocklist-table 1 {revision} 2",
            f"10.0.0.2\t{PERMANENT}\tcanary\t10.0.0.2\tslow",
            f"10.0.0.1\t{PERMANENT}\tmark\t10.0.0.1\tdisk",
        ]
        assert answer.headers["vary"] == "Accept-Encoding"

    def test_a_wait_ends_when_a_canary_becomes_a_mark(self, own_client: httpx.Client, pool: ThreadPoolExecutor) -> None:
        self.put_canary(own_client, "n7")
        waiting = begin_waiting(pool, own_client)
        revision = put(own_client, "n7", allowMerge=True)
        assert parse(waiting.result(20))[0] == revision
        assert self.actions(own_client) == {"mark"}

    def test_the_inventory_joins_ids_that_are_one_machine(
        self, start_in_process: StartInProcess, tmp_path: Path
    ) -> None:
        file = tmp_path / "nodes.csv"
        file.write_text("id,names,addresses,labels\nn7,,10.0.0.7,\n")
        with http_client(start_in_process(nodes_file=str(file)).url) as client:
            self.put_canary(client, "10.0.0.7")
            assert self.actions(client) == {"canary"}
            put(client, "n7", allowMerge=True)
            assert self.actions(client) == {"mark"}


def test_both_ways_return_the_same_bytes(start_in_process: StartInProcess) -> None:
    fast = start_in_process()
    with http_client(fast.url) as client:
        for number in range(30):
            put(client, f"n{number}")
        client.put("/blocklist/nodes/c1/claims/detection", json=block(canary=True)).raise_for_status()
        etag = get(client).headers["etag"]
    requests = {
        "plain": [],
        "gzip": ["Accept-Encoding: gzip"],
        "not modified": [f"If-None-Match: {etag}"],
        "no wait": [f"If-None-Match: {etag}", "Prefer: wait=0"],
        "a wait": [f"If-None-Match: {etag}", "Prefer: wait=1"],
        "another tag": ['If-None-Match: "x"', "Prefer: wait=1"],
        "all": ["If-None-Match: *", "Accept-Encoding: gzip", "Prefer: wait=0"],
        "any type": ["Accept: */*"],
        "another type, which is not asked about": ["Accept: application/json"],
    }
    for name, lines in requests.items():
        below, by_route = (
            fast.in_time(partial(send_request, fast.port, request(target, *lines))).without_volatile_headers()
            for target in (TABLE, f"{TABLE}?minRevision=0")  # A query makes it not plain.
        )
        assert below == by_route, name
    with http_client(fast.url) as client:
        metrics = client.get("/metrics").text
    [line] = [line for line in metrics.splitlines() if "blocklist_fast_requests_total{" in line and TABLE in line]
    assert float(line.split()[-1]) == len(requests) + 1


def test_a_request_id_is_returned(own: InProcessService) -> None:
    assert send_request(own.port, request(TABLE, "X-Request-Id: abc")).header("x-request-id") == "abc"


def test_head_is_get_without_the_body(own_client: httpx.Client) -> None:
    put(own_client, "n7")
    whole, head = get(own_client), own_client.head(TABLE, headers=PLAIN)
    assert (head.status_code, head.content, head.headers["etag"]) == (200, b"", whole.headers["etag"])


@pytest.mark.databases("postgresql")
@pytest.mark.xdist_group("replicas")
def test_all_replicas_send_the_same_table(start_replicas: StartReplicas, pool: ThreadPoolExecutor) -> None:
    one, two = start_replicas().clients
    waiting = begin_waiting(pool, two)
    revision = put(one, "n7")
    answer = waiting.result(20)
    assert parse(answer)[0] == revision
    assert answer.headers["etag"] == get(one).headers["etag"]
    assert answer.content == get(one).content
    canary = one.put("/blocklist/nodes/n8/claims/detection", json=block(canary=True)).raise_for_status()
    wait_until(lambda: parse(get(two))[0] == int(canary.headers["blocklist-revision"]))
    assert get(two).content == get(one).content
    assert "\tcanary\t" in get(two).text
