"""Attacks by a hostile client, application or network. Authorization is in test_auth."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime, timedelta
from typing import Any, Final
from urllib.parse import quote

import httpx
import pytest
from standardwebhooks import Webhook, WebhookVerificationError

from app.main import SECURITY_HEADERS, VERSION_HEADER
from tests.integration.conftest import Start
from tests.integration.listeners import put, registration_body, wait_until_pushed
from tests.integration.problems import problem_of
from tests.integration.process import ServiceProcess
from tests.integration.raw_http import RawResponse, exchange, read_until_closed, request, send_request
from tests.integration.receiver import Push, Receiver, receiving

FORGED: Final = "X-Injected: yes"
TEXTS: Final = [
    f"hot\r\n{FORGED}",
    f"hot\n{FORGED}",
    f"hot\r{FORGED}",
    f"hot\x85{FORGED}",
    f"hot\u2028{FORGED}",
    "hot\x00",
    "hot\x1b[31m",
    "<script>alert(1)</script>",
    "\u202egnp.exe",
    '{"level": "critical"}',
    "data: x\n\nevent: unblocked",
]
HEADERS: Final = [
    "{}: a\rX-Injected: yes",
    "{}: a\\r\\nX-Injected: yes",
    "{}: a%0d%0aX-Injected: yes",
    "{}: wait=1\x85X-Injected: yes",
    "{}: \xe2\x80\xa8X-Injected: yes",
    "{}: wait=1;\tX-Injected: yes",
    "{}: 7-00c0ffee\x0bX-Injected: yes",
    "{}: <script>alert(1)</script>",
    "{}: " + "a" * 5000,
]


class TestSecurityHeaders:
    @pytest.mark.parametrize("fast_path", ["true", "false"])
    def test_they_are_on_every_response(self, start: Start, fast_path: str) -> None:
        service = start(fast_path=fast_path)
        body = b'{"action": "MARK_BLOCKED", "cause": "Hot machine"}'
        responses = [
            *exchange(service.port, request("/blocklist") * 3, methods=["GET"] * 3),
            send_request(service.port, request("/blocklist", "If-None-Match: *")),
            send_request(service.port, request("/blocklist/nodes/a", method="PUT", body=body), "PUT"),
            send_request(service.port, request("/blocklist/nodes/a", method="PUT", body=body), "PUT"),
            send_request(service.port, request("/blocklist/nodes/a", method="DELETE"), "DELETE"),
            send_request(service.port, request("/nothing")),
            send_request(service.port, request("/metrics")),
            send_request(service.port, request("/blocklist", "X: " + "x" * 20_000)),
            send_request(service.port, b"no HTTP\r\n\r\n"),
        ]
        assert [response.status for response in responses] == [200, 200, 200, 304, 201, 409, 200, 404, 200, 431, 400]
        for response in responses:
            for name, value in (*SECURITY_HEADERS, VERSION_HEADER):
                assert [own for key, own in response.headers if key == name] == [value]


class TestInjection:
    """No input becomes a line of a header, a stream or the log."""

    @pytest.mark.parametrize("form", ["json", "console"])
    def test_in_causes(self, start: Start, form: str) -> None:
        service = start(log_format=form)
        taken = []
        with service.client() as client:
            for number, text in enumerate(TEXTS):
                response = client.put(f"/blocklist/nodes/n{number}", json={"action": "MARK_BLOCKED", "cause": text})
                assert "x-injected" not in response.headers
                if re.search(r"[\x00-\x1f\x7f-\x9f]", text):
                    problem_of(response, 400)
                else:
                    assert response.json()["cause"] == text
                    taken.append(text)
            assert len(taken) == 4
            causes = [node["cause"] for node in client.get("/blocklist").json().values()]
            assert sorted(causes) == sorted(taken)
            with client.stream("GET", "/blocklist/watch?since=0") as stream:
                seen = _events(stream, len(taken))
        assert [event["node"]["cause"] for event in seen] == taken
        service.stop()
        _check_log(service, form)

    @pytest.mark.parametrize("path", ["/blocklist/nodes/{}", "/listeners/{}", "/taskmanagers/{}", "/nowhere/{}"])
    def test_in_ids_and_paths(self, client: httpx.Client, service: ServiceProcess, path: str) -> None:
        for text in TEXTS:
            response = client.get(path.format(quote(text, safe="")))
            assert response.status_code in {400, 404}
            assert response.headers["content-type"] == "application/problem+json"
            assert response.headers["x-content-type-options"] == "nosniff"
            assert not re.search(rb"[^\x21-\x7e]", response.json()["instance"].encode())
        _check_log(service, "console")

    @pytest.mark.parametrize("header", HEADERS)
    @pytest.mark.parametrize("name", ["X-Request-ID", "Prefer", "Last-Event-ID", "If-None-Match", "X-Forwarded-User"])
    def test_in_headers(self, service: ServiceProcess, header: str, name: str) -> None:
        line = header.format(name)
        for payload in (
            request("/blocklist", line),
            request("/nothing", line),
            request("/blocklist/nodes/absent", line, method="DELETE"),
            request("/blocklist/nodes/hdr", line, method="PUT", body=b'{"action": "MARK_BLOCKED", "cause": "x"}'),
            request("/blocklist/changes?since=0", line),
        ):
            response = send_request(service.port, payload)
            assert response.status < 500
            _check_head(response)
        _check_log(service, "console")

    @pytest.mark.parametrize("header", HEADERS)
    def test_in_the_head_of_a_watch(self, service: ServiceProcess, header: str) -> None:
        last = request("/blocklist/watch?since=x", header.format("X-Request-ID"), "Connection: close")
        response = read_until_closed(service.port, last)
        assert response.startswith(b"HTTP/1.1 400 ")
        assert b"x-injected" not in response.partition(b"\r\n\r\n")[0].lower()


def _check_head(response: RawResponse) -> None:
    names = [name for name, _ in response.headers]
    assert "x-injected" not in names
    assert len(names) == len(set(names))
    assert not [value for _, value in response.headers if re.search(r"[^\x20-\x7e]", value) or len(value) > 1000]


def _check_log(service: ServiceProcess, form: str) -> None:
    """Assert that the service wrote each line."""
    for line in service.log().splitlines():  # splits at every kind of line break
        if form == "json":
            assert json.loads(line)["level"] in {"info", "warning"}, line
        else:
            assert re.match(r"\d{4}-\d\d-\d\dT[0-9:.]+Z \[(info|warning) ", line), line
            assert "\x1b" not in line


def _events(stream: httpx.Response, count: int) -> list[dict[str, Any]]:
    """The data of `count` changes. Asserts that each event has exactly three lines."""
    seen: list[dict[str, Any]] = []
    lines = stream.iter_raw()
    text = b""
    while len(seen) < count:
        text += next(lines)
        *events, text = text.split(b"\n\n")
        for event in events:
            if not event.startswith(b":"):
                names = [line.partition(b":")[0] for line in event.split(b"\n")]
                assert names == [b"id", b"event", b"data"], event
                seen.append(json.loads(event.rpartition(b"data: ")[2]))
    return seen


class TestForgedRequests:
    """URLs of callbacks; which hosts are allowed is in tests/unit/test_callback_policy.py."""

    def test_what_is_no_plain_host_is_refused(self, client: httpx.Client) -> None:
        for host in (
            "%31%32%37.0.0.1",
            "\u2460\u2461\u2466.0.0.1",
            "203.0.113.1@127.0.0.1",
            "127.0.0.1\\@203.0.113.1",
            "127.0.0.1\t",
            "127.0.0.1%00.203.0.113.1",
            "203.0.113.1.127.0.0.1.",
        ):
            body = registration_body(callbackUrl=f"http://{host}:80/hook")
            problem_of(client.put("/listeners/jm", json=body), 400)
        for url in ("file:///etc/passwd?80", "gopher://203.0.113.1:80/", "//127.0.0.1/", "http:///x"):
            problem_of(client.put("/listeners/jm", json=registration_body(callbackUrl=url)), 400)

    def test_a_path_that_would_split_the_request_is_refused(
        self, listener_client: httpx.Client, receiver: Receiver
    ) -> None:
        for tail in (" HTTP/1.1\r\nX: y", "\r\n\r\nGET /", "\nx", "\x00", "\u2028"):
            problem_of(
                listener_client.put("/listeners/jm", json=registration_body(callbackUrl=receiver.url + tail)), 400
            )


def _altered(value: str) -> str:
    """Change a character in the middle; at the end of base64 it might change nothing."""
    place = len(value) // 2
    return value[:place] + ("A" if value[place] != "A" else "B") + value[place + 1 :]


class TestWebhooks:
    """A receiver that follows docs/listeners.md: it verifies the raw body and remembers the ids."""

    @pytest.fixture
    def push(self, listener_client: httpx.Client, receiver: Receiver) -> Push:
        receiver.register(listener_client, "jm")
        wait_until_pushed(listener_client, receiver, put(listener_client, "a"))
        return receiver.applied[-1]

    def test_an_altered_push_is_refused(self, push: Push, receiver: Receiver) -> None:
        verifier = VerifyingReceiver(receiver.secrets[0])
        half, quarter = push.raw[: len(push.raw) // 2], push.raw.replace(b"MARK_BLOCKED", b"MARK_BLOCKED_AND")
        for raw in (push.raw + b" ", half, quarter, b"{}", b""):
            assert not verifier.accepts(raw, push.headers)
        for name in ("webhook-id", "webhook-timestamp", "webhook-signature"):
            assert not verifier.accepts(push.raw, push.headers | {name: _altered(push.headers[name])})
            assert not verifier.accepts(push.raw, {key: own for key, own in push.headers.items() if key != name})
        assert not VerifyingReceiver("whsec_c29tZWJvZHkgZWxzZSdz").accepts(push.raw, push.headers)
        assert verifier.accepts(push.raw, push.headers)

    def test_a_replayed_push_is_refused(self, push: Push, receiver: Receiver) -> None:
        verifier = VerifyingReceiver(receiver.secrets[0])
        assert [verifier.accepts(push.raw, push.headers) for _ in range(3)] == [True, False, False]

    @pytest.mark.parametrize("minutes", [-6, 6, -60 * 24 * 365])
    def test_an_old_or_future_push_is_refused(self, push: Push, receiver: Receiver, minutes: int) -> None:
        """Even with a valid signature: it may have been recorded."""
        timestamp = datetime.now(UTC) + timedelta(minutes=minutes)
        signature = Webhook(receiver.secrets[0]).sign("msg_1", timestamp, push.raw.decode())
        stamped = {"webhook-id": "msg_1", "webhook-timestamp": str(int(timestamp.timestamp()))}
        assert not VerifyingReceiver(receiver.secrets[0]).accepts(push.raw, stamped | {"webhook-signature": signature})

    def test_a_push_signed_for_another_listener_is_refused(self, listener_client: httpx.Client, push: Push) -> None:
        with receiving() as other:
            other.register(listener_client, "other")
            assert not VerifyingReceiver(other.secrets[0]).accepts(push.raw, push.headers)


class VerifyingReceiver:
    """The checks before a receiver's own code."""

    def __init__(self, secret: str) -> None:
        self._webhook = Webhook(secret)
        self._known: set[str] = set()

    def accepts(self, raw: bytes, headers: dict[str, str]) -> bool:
        try:
            self._webhook.verify(raw, headers)
        except WebhookVerificationError:
            return False
        message = headers["webhook-id"]
        new = message not in self._known
        self._known.add(message)
        return new
