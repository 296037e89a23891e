"""Where one request ends and the next begins: no request takes bytes, credentials or the connection of another."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import Final

import pytest

from blocklist.model.claims import Role
from tests.integration.bodies import block, current_list, later
from tests.integration.conftest import StartInProcess
from tests.integration.databases import Databases
from tests.integration.listeners import register
from tests.integration.process import ServiceProcess, wait_until
from tests.integration.raw_http import connection_to, exchange, read_response, request, send_request
from tests.integration.secured import secured_in_process

BODY: Final = json.dumps(block(allowMerge=True)).encode()
UPGRADE: Final = (
    "Connection: Upgrade, HTTP2-Settings",
    "Upgrade: h2c",
    "HTTP2-Settings: AAEAAEAAAAIAAAABAAMAAABkAAQBAAAAAAUAAEAA",
)
BAD_CHUNK: Final = b"POST /x HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nZZ\r\n"


def put(node_id: str, *headers: str) -> bytes:
    return request(f"/blocklist/nodes/{node_id}", *headers, method="PUT", body=BODY)


@pytest.fixture(scope="module", params=["true", "false"], ids=["fast path", "ordinary route"])
def service(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, migrated: Path
) -> Iterator[ServiceProcess]:
    process = ServiceProcess(tmp_path_factory.mktemp("boundaries"), fast_path=request.param)
    process.database.write_bytes(migrated.read_bytes())
    with process:
        yield process


def test_a_malformed_request_behind_a_put_does_not_stop_the_writer(service: ServiceProcess) -> None:
    """The connection closes while the PUT is committed; other changes are not affected."""
    for number in range(30):
        with connection_to(service.port) as attacker, connection_to(service.port) as other:
            attacker.sendall(put(f"attacker-{number}") + BAD_CHUNK)
            other.sendall(put(f"other-{number}"))
            with other.makefile("rb") as stream:
                assert read_response(stream).status == 201
    with service.client() as client:
        client.put("/blocklist/nodes/ending", json=block(endTimestamp=str(later(0.3)))).raise_for_status()
        changes = "/blocklist/changes?since=0&limit=1000"
        wait_until(lambda: any(change["type"] == "expired" for change in client.get(changes).json()["changes"]))
        assert client.get("/readyz").status_code == 200


@pytest.mark.parametrize("upgrade", [UPGRADE, ("Connection: keep-alive, Upgrade", "Upgrade: websocket")])
def test_an_upgrade_is_ignored_and_the_connection_stays_http_1_1(
    service: ServiceProcess, upgrade: tuple[str, ...]
) -> None:
    """RFC 9110, section 7.8."""
    payload = put("upgrading", *upgrade) + request("/blocklist/nodes/upgrading", *upgrade) + request("/blocklist")
    blocked, shown, listed = exchange(service.port, payload, methods=["PUT", "GET", "GET"])
    assert blocked.status in (201, 202)
    assert shown.json()["id"] == "upgrading"
    assert "upgrading" in listed.json()


def test_an_upgrade_in_pieces_is_ignored_too(service: ServiceProcess) -> None:
    with connection_to(service.port) as connection, connection.makefile("rb") as stream:
        for byte in put("pieces", *UPGRADE):
            connection.sendall(bytes([byte]))
        assert read_response(stream).json()["id"] == "pieces"
        connection.sendall(request("/healthz"))
        assert read_response(stream).status == 200


def test_an_upgrade_keeps_a_close(service: ServiceProcess) -> None:
    with connection_to(service.port) as connection, connection.makefile("rb") as stream:
        connection.sendall(request("/healthz", "Connection: close, Upgrade", "Upgrade: h2c"))
        assert read_response(stream).header("connection") == "close"
        assert stream.read() == b""


def test_connect_is_refused(service: ServiceProcess) -> None:
    with connection_to(service.port) as connection, connection.makefile("rb") as stream:
        connection.sendall(b"CONNECT test:80 HTTP/1.1\r\nHost: localhost\r\n\r\n" + request("/healthz"))
        assert read_response(stream).status == 405
        assert stream.read() == b""


def test_bytes_of_a_body_are_never_known_as_a_request(service: ServiceProcess) -> None:
    """A segment whose first half ended a body is two requests on another connection."""
    half = request("/blocklist/nodes/half", method="DELETE")
    segment = half + request("/blocklist")
    with connection_to(service.port) as connection, connection.makefile("rb") as stream:
        # Answered before its body is there.
        connection.sendall(b"POST /nowhere HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(half))
        assert read_response(stream).status == 404
        connection.sendall(segment)
        assert read_response(stream).status == 200
    assert send_request(service.port, put("half")).status == 201
    with connection_to(service.port) as connection, connection.makefile("rb") as stream:
        connection.sendall(request("/healthz"))
        assert read_response(stream).status == 200
        connection.sendall(segment)
        assert [read_response(stream).status for _ in range(2)] == [200, 200]
    with service.client() as client:
        assert "half" not in current_list(client)[1]


def test_an_operators_credential_is_not_lent_to_the_next_request(tmp_path: Path, databases: Databases) -> None:
    """The operator's PUT comes in two pieces, and somebody's whole PUT behind the second one."""
    with secured_in_process(tmp_path, databases) as secured:
        bearer = f"Authorization: Bearer {secured.tokens[Role.OPERATOR]}"
        whole, stranger = put("operator", bearer), put("stranger")
        with connection_to(secured.service.port) as connection, connection.makefile("rb") as stream:
            cut = whole.index(b"\r\n") + 4
            connection.sendall(whole[:cut])
            send_request(secured.service.port, request("/healthz"))  # answered, so the first piece has been read
            connection.sendall(whole[cut:] + stranger)
            assert [read_response(stream).status for _ in range(2)] == [201, 401]
            for _ in range(3):
                connection.sendall(stranger)
                assert read_response(stream).status == 401


JAVA_CLIENT: Final = """
import java.net.URI;
import java.net.http.*;
import java.net.http.HttpRequest.BodyPublishers;
import java.net.http.HttpResponse.BodyHandlers;

public class Put {
    public static void main(String[] arguments) throws Exception {
        HttpClient client = HttpClient.newHttpClient();
        for (String id : new String[] {"java-1", "java-2"}) {
            URI node = URI.create(arguments[0] + "/blocklist/nodes/" + id);
            HttpRequest put = HttpRequest.newBuilder(node).PUT(BodyPublishers.ofString(arguments[1])).build();
            System.out.println(client.send(put, BodyHandlers.ofString()).statusCode());
        }
    }
}
"""


def test_javas_default_client_can_put(service: ServiceProcess, tmp_path: Path) -> None:
    java = shutil.which("java")
    assert java is not None, "this test needs a JDK: it runs a Java source file"
    source = tmp_path / "Put.java"
    source.write_text(JAVA_CLIENT)
    command = [java, str(source), f"http://127.0.0.1:{service.port}", BODY.decode()]
    run = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert run.stdout.split() == ["201", "201"], run.stderr


class TestHost:
    """RFC 9112, section 3.2: an HTTP/1.1 request has one Host, and no request has several."""

    @pytest.mark.parametrize(
        "target",
        [b"GET /blocklist", b"PUT /blocklist/nodes/hostless", b"GET /healthz", b"DELETE /blocklist/nodes/hostless"],
    )
    @pytest.mark.parametrize("hosts", [b"", b"Host: localhost\r\nhost: localhost\r\n"], ids=["none", "two"])
    def test_a_request_without_a_single_host_gets_400(
        self, service: ServiceProcess, target: bytes, hosts: bytes
    ) -> None:
        payload = b"%b HTTP/1.1\r\n%bContent-Length: %d\r\n\r\n%b" % (target, hosts, len(BODY), BODY)
        with connection_to(service.port) as connection, connection.makefile("rb") as stream:
            connection.sendall(payload + request("/healthz"))
            refused = read_response(stream)
            assert (refused.status, refused.header("connection")) == (400, "close")
            assert "Host" in refused.json()["detail"]
            assert stream.read() == b""
        with service.client() as client:
            assert "hostless" not in current_list(client)[1]

    def test_a_single_host_is_required_of_an_upgrade_too(self, service: ServiceProcess) -> None:
        lines = "\r\n".join(("PUT /blocklist/nodes/hostless HTTP/1.1", *UPGRADE, f"Content-Length: {len(BODY)}"))
        assert send_request(service.port, lines.encode() + b"\r\n\r\n" + BODY).status == 400

    def test_http_1_0_needs_no_host(self, service: ServiceProcess) -> None:
        assert send_request(service.port, b"GET /healthz HTTP/1.0\r\n\r\n").status == 200

    @pytest.mark.parametrize(("path", "accept"), [("watch", "*/*"), ("changes", "application/x-ndjson")])
    def test_http_1_0_gets_a_body_without_chunks_that_ends_with_the_connection(
        self, start_in_process: StartInProcess, path: str, accept: str
    ) -> None:
        service = start_in_process()
        with service.client() as client, connection_to(service.port) as connection:
            client.put("/blocklist/nodes/n1", json=block()).raise_for_status()
            headers = "Connection: keep-alive", f"Accept: {accept}"
            connection.sendall(request(f"/blocklist/{path}", *headers, version="HTTP/1.0"))
            with connection.makefile("rb") as stream:
                head = b"".join(iter(stream.readline, b"\r\n")).lower()
                assert (b"transfer-encoding" in head, b"connection: close" in head) == (False, True)
                if path == "changes":
                    assert [json.loads(line)["node"]["id"] for line in stream] == ["n1"]
                    return
                lines = [next(stream) for _ in range(6)]
                client.put("/blocklist/nodes/n2", json=block()).raise_for_status()
                lines += [next(stream) for _ in range(4)]
                kinds = {line.partition(b":")[0].strip() for line in lines}
                assert kinds == {b"", b"id", b"event", b"data"}, lines

    def test_two_hosts_are_refused_with_http_1_0_too(self, service: ServiceProcess) -> None:
        assert send_request(service.port, b"GET /healthz HTTP/1.0\r\nHost: a\r\nHost: a\r\n\r\n").status == 400

    def test_an_earlier_request_gets_its_response(self, service: ServiceProcess) -> None:
        with connection_to(service.port) as connection, connection.makefile("rb") as stream:
            connection.sendall(put("with-host") + b"GET /blocklist HTTP/1.1\r\n\r\n")
            assert read_response(stream).status == 201
            assert b"200" not in stream.read()[:15]


class TestNothingMoreIsSent:
    """A client that shuts down its sending side is taken for one that is gone: its connection is closed."""

    @pytest.mark.parametrize("headers", [(), ("X-Request-ID: shut-down",)])
    def test_a_change_gets_its_whole_response_or_none(self, service: ServiceProcess, headers: tuple[str, ...]) -> None:
        with service.client() as client:
            for number in range(20):
                received = shut_down(service.port, put(f"shut-down-{number}", *headers))
                assert received == b"" or read_response(BytesIO(received)).status in (201, 202)
            assert client.put("/blocklist/nodes/after", json=block(allowMerge=True)).status_code in (201, 202)

    def test_a_wait_for_listeners_ends(self, start_in_process: StartInProcess) -> None:
        service = start_in_process()
        register(service.client(), "silent")
        assert shut_down(service.port, put("n1", "Prefer: wait=600")) == b""

    @pytest.mark.parametrize("headers", [(), ("X-Request-ID: shut-down",)])
    def test_a_watch_ends(self, service: ServiceProcess, headers: tuple[str, ...]) -> None:
        received = shut_down(service.port, request("/blocklist/watch", *headers))
        assert received.count(b"\r\n0\r\n") == 0, "a stream that is cut must not look complete"
        with service.client() as client:
            wait_until(lambda: "blocklist_watches 0.0" in client.get("/metrics").text)
        assert "without completing" not in service.log()


def shut_down(port: int, payload: bytes) -> bytes:
    """Send the payload and nothing more; what is received until the connection is closed."""
    with connection_to(port) as connection, connection.makefile("rb") as stream:
        connection.sendall(payload)
        connection.shutdown(socket.SHUT_WR)
        return stream.read()


@pytest.mark.parametrize(
    ("version", "coding", "status"),
    [
        ("1.1", "gzip, chunked", 501),
        ("1.1", "gzip,\tchunked", 501),
        ("1.0", "chunked", 400),
        ("1.1", "Chunked", 201),
    ],
)
def test_a_body_in_another_transfer_coding_is_refused(
    service: ServiceProcess, version: str, coding: str, status: int
) -> None:
    """RFC 9112, section 6.1. It would be read as if it were plain."""
    with service.client() as client:
        client.delete("/blocklist/nodes/coded")
    head = f"PUT /blocklist/nodes/coded HTTP/{version}\r\nHost: localhost\r\nTransfer-Encoding: {coding}\r\n\r\n"
    payload = head.encode() + b"%x\r\n%b\r\n0\r\n\r\n" % (len(BODY), BODY)
    (answer,) = exchange(service.port, payload, methods=["PUT"])
    assert answer.status == status
