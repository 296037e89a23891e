"""A ListenerSession keeps its listener registered, whatever the service does."""

from __future__ import annotations

import json
import logging
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from blocklist import InvalidError
from blocklist.client.session import ListenerSession
from blocklist.model.listener import ListenerRole, Mode, Registration, Report
from blocklist.model.node import Backoff
from blocklist.wire.body import FENCED_PROBLEM
from tests.integration.fake_servers import (
    SERVICE_HEADERS,
    FakeServer,
    Responder,
    fake_server,
    http_response,
    respond,
    respond_and_hang,
    respond_and_reset,
)
from tests.integration.process import free_port, wait_until

LISTENER = Registration(id="app-1", role=ListenerRole.JOB_MASTER, session="0-1")
LONG_INTERVAL = 3600.0

Said = dict[str, Any]


def ours(status: str, body: object) -> bytes:
    return http_response(json.dumps(body).encode(), status, "Content-Type: application/json", *SERVICE_HEADERS)


def problem(status: str, detail: str, kind: str = "about:blank") -> bytes:
    body = json.dumps({"type": kind, "detail": detail, "errors": [detail]}).encode()
    return http_response(body, status, "Content-Type: application/problem+json", *SERVICE_HEADERS)


UNKNOWN = problem("404 Not Found", "There is no such listener: register again.")
FENCED = problem("409 Conflict", "Listener app-1 is registered with another session.", FENCED_PROBLEM)
TAKEN_OVER = problem("409 Conflict", "Session 0-1 of listener app-1 was taken over by 0-2.", FENCED_PROBLEM)
REFUSED = problem("400 Bad Request", "taskManagers: give at most 10,000.")
USUAL = {
    "PUT": ours("201 Created", {"secret": "whsec_AAAA"}),
    "POST": ours("200 OK", {"revision": 7, "leaseEnd": "1652313600000"}),
    "DELETE": http_response(b"", "204 No Content", *SERVICE_HEADERS),
}


class Registrar:
    """Responds to each method as the service does, after the responses that were prepared for it."""

    def __init__(self) -> None:
        self.prepared: dict[str, list[bytes | Responder]] = {method: [] for method in USUAL}
        self.known = FakeServer(url="")

    def serve(self, connection: socket.socket) -> None:
        method = self.methods()[-1]
        given = self.prepared[method].pop(0) if self.prepared[method] else USUAL[method]
        (respond(given) if isinstance(given, bytes) else given)(connection)

    @property
    def url(self) -> str:
        return self.known.url

    def methods(self) -> list[str]:
        return [request.partition(b" ")[0].decode() for request in self.known.requests]

    def heartbeats(self) -> list[Said]:
        """The heartbeats, without the session, which is the same until refusals cannot be reported."""
        bodies = self.bodies("POST")
        assert {body.pop("sessionId") for body in bodies} <= {"0-1", "0-1.1"}
        return bodies

    def bodies(self, method: str) -> list[Said]:
        return [json.loads(request.partition(b"\r\n\r\n")[2]) for request in self.of(method)]

    def of(self, method: str) -> list[bytes]:
        return [request for request in self.known.requests if request.startswith(method.encode())]


def response_that_has(*fields: str) -> bytes:
    return ours("200 OK", {"revision": 7, "leaseEnd": "1652313600000", "reported": list(fields)})


def test_nodes_are_sent_again_only_when_the_service_has_lost_them(registrar: Registrar) -> None:
    registrar.prepared["POST"] = [
        *[response_that_has("nodes", "refused")] * 3,
        response_that_has(),
        *[response_that_has("nodes", "refused")] * 100,
    ]
    session = joined(registrar, interval=0.05)
    session.report(Report(nodes=["n1"], refused={}))
    wait_until(lambda: len(registrar.heartbeats()) > 8)
    session.close()
    sent = [
        heartbeat.get("nodes") for heartbeat in registrar.heartbeats() if "refused" in heartbeat or "nodes" in heartbeat
    ]
    first = sent.index(["n1"])
    lost = sent.index(["n1"], first + 1)
    assert lost - first <= 4
    assert sent[first + 1 : lost] + sent[lost + 1 :] == [None] * (len(sent) - first - 2)


def test_a_platform_that_becomes_known_is_registered(registrar: Registrar) -> None:
    session = joined(registrar)
    wait_until(lambda: session.registered)
    session.set_platform("YARN 3.5.0")
    wait_until(lambda: [it.get("platform") for it in registrar.bodies("PUT")][-1:] == ["YARN 3.5.0"])
    session.set_platform("YARN 3.5.0")
    session.report(Report(refused={"n1": "no"}))
    wait_until(lambda: registrar.heartbeats()[-1].get("refused") == {"n1": "no"})
    session.close()
    assert [body.get("platform") for body in registrar.bodies("PUT")] == [None, "YARN 3.5.0"]


def test_it_takes_the_mode_that_the_service_wants_unless_its_own_does_less(registrar: Registrar) -> None:
    answers = {mode: ours("200 OK", {"revision": 7, "leaseEnd": "1", "mode": mode}) for mode in ("observe", "off", "x")}
    registrar.prepared["POST"] = [*[answers["observe"]] * 5, answers["off"], *[answers["x"]] * 100]
    seen: list[Mode] = []
    started = replace(LISTENER, mode=Mode.OBSERVE)
    session = ListenerSession(registrar.url, started, interval=0.05)
    session.on_mode = lambda: seen.append(session.mode)
    session.wait_for_mode(30)
    wait_until(lambda: len(registrar.heartbeats()) > 8)
    session.close()
    assert registrar.bodies("PUT")[0]["mode"] == "observe"
    assert seen == [Mode.OFF, Mode.OBSERVE]


def test_nodes_that_are_not_stored_yet_are_sent_again(registrar: Registrar) -> None:
    """A replica that cannot save them now names them only once it could: killed before, it takes them with it."""
    registrar.prepared["POST"] = [*[response_that_has()] * 10, *[response_that_has("nodes")] * 100]
    session = joined(registrar, interval=0.05)
    session.report(Report(nodes=["n1"]))
    wait_until(lambda: len(registrar.heartbeats()) > 20)
    session.close()
    sent = [heartbeat.get("nodes") for heartbeat in registrar.heartbeats()]
    assert sent[4:11] == [["n1"]] * 7
    assert sent[-3:] == [None] * 3


def test_a_service_that_does_not_tell_what_it_has_gets_everything_at_each_interval(registrar: Registrar) -> None:
    session = joined(registrar, interval=0.05)
    session.report(Report(nodes=["n1"]))
    wait_until(lambda: [heartbeat.get("nodes") for heartbeat in registrar.heartbeats()][-3:] == [["n1"]] * 3)
    session.close()


class Held:
    """A response that waits for `go_on`."""

    def __init__(self, data: bytes) -> None:
        self.asked, self.go_on = threading.Event(), threading.Event()
        self._data = data

    def __call__(self, connection: socket.socket) -> None:
        self.asked.set()
        self.go_on.wait(30)
        connection.sendall(self._data)


@pytest.fixture
def registrar() -> Iterator[Registrar]:
    registrar = Registrar()
    with fake_server(registrar.serve) as registrar.known:
        yield registrar


@pytest.fixture
def listener_session(registrar: Registrar) -> Iterator[ListenerSession]:
    """A session that sends heartbeats only for changes."""
    membership = joined(registrar)
    yield membership
    membership.close()


def joined(registrar: Registrar, interval: float = LONG_INTERVAL, timeout: float = 5.0) -> ListenerSession:
    soon = Backoff(initial=0.02, cap=0.05, floor=0.01)
    return ListenerSession(registrar.url, LISTENER, interval=interval, timeout=timeout, backoff=soon)


def test_it_registers_and_deregisters(registrar: Registrar, listener_session: ListenerSession) -> None:
    wait_until(lambda: registrar.heartbeats() == [{}])
    assert (listener_session.registered, listener_session.fenced, listener_session.last_error) == (True, False, None)
    head, _, body = registrar.of("PUT")[0].partition(b"\r\n\r\n")
    assert head.startswith(b"PUT /listeners/app-1 ")
    assert json.loads(body) == {"role": "JOB_MASTER", "sessionId": "0-1", "leaseSeconds": 50}
    listener_session.close()
    assert not listener_session.registered
    assert registrar.of("DELETE")[0].startswith(b"DELETE /listeners/app-1?sessionId=0-1 ")
    listener_session.close()
    assert len(registrar.of("DELETE")) == 1


def test_changes_are_sent_at_once_and_only_changes(registrar: Registrar, listener_session: ListenerSession) -> None:
    wait_until(lambda: len(registrar.heartbeats()) == 1)
    listener_session.report(Report(task_managers={"app-1:0": "n1"}, running_tasks={"app-1:0": 2}, refused={}), acked=3)
    wait_until(lambda: len(registrar.heartbeats()) == 2)
    listener_session.report(Report(task_managers={"app-1:0": "n1"}, refused={}), acked=4)
    wait_until(lambda: len(registrar.heartbeats()) == 3)
    first = {"ackedRevision": 3, "taskManagers": {"app-1:0": "n1"}, "runningTasks": {"app-1:0": 2}, "refused": {}}
    assert registrar.heartbeats()[1:] == [first, {"ackedRevision": 4}]


def test_an_unchanged_report_sends_no_heartbeat(registrar: Registrar, listener_session: ListenerSession) -> None:
    wait_until(lambda: len(registrar.heartbeats()) == 1)
    listener_session.report(Report(refused={}), acked=3)
    wait_until(lambda: len(registrar.heartbeats()) == 2)
    listener_session.report(Report(refused={}), acked=3)
    listener_session.report(acked=4)
    wait_until(lambda: len(registrar.heartbeats()) == 3)
    assert registrar.heartbeats()[1:] == [{"ackedRevision": 3, "refused": {}}, {"ackedRevision": 4}]


def test_reports_during_a_heartbeat_are_sent_together_and_the_latest_wins(
    registrar: Registrar, listener_session: ListenerSession
) -> None:
    wait_until(lambda: len(registrar.heartbeats()) == 1)
    slow = Held(USUAL["POST"])
    registrar.prepared["POST"] = [slow]
    listener_session.report(acked=1)
    assert slow.asked.wait(30)
    for revision in range(2, 100):
        listener_session.report(Report(running_tasks={"app-1:0": revision}), acked=revision)
    slow.go_on.set()
    wait_until(lambda: len(registrar.heartbeats()) == 3)
    assert registrar.heartbeats()[1:] == [{"ackedRevision": 1}, {"ackedRevision": 99, "runningTasks": {"app-1:0": 99}}]


def test_at_each_interval_it_sends_the_full_report(registrar: Registrar) -> None:
    """A service that was restarted has lost the maps, and does not say so."""
    membership = joined(registrar, interval=0.05)
    membership.report(Report(task_managers={"app-1:0": "n1"}, running_tasks={}, refused={}), acked=3)
    everything = {"ackedRevision": 3, "taskManagers": {"app-1:0": "n1"}, "runningTasks": {}, "refused": {}}
    wait_until(lambda: registrar.heartbeats().count(everything) > 3)
    membership.close()


def test_when_unknown_it_registers_again_and_sends_the_full_report(
    registrar: Registrar, listener_session: ListenerSession
) -> None:
    listener_session.report(Report(task_managers={"app-1:0": "n1"}), acked=3)
    wait_until(lambda: {"ackedRevision": 3, "taskManagers": {"app-1:0": "n1"}} in registrar.heartbeats())
    registrar.prepared["POST"] = [UNKNOWN]
    listener_session.report(acked=4)
    wait_until(lambda: len(registrar.of("PUT")) == 2)
    wait_until(lambda: registrar.heartbeats()[-1] == {"ackedRevision": 4, "taskManagers": {"app-1:0": "n1"}})
    wait_until(lambda: listener_session.registered and listener_session.last_error is None)


def test_when_taken_over_it_stops_for_good(
    registrar: Registrar, listener_session: ListenerSession, caplog: pytest.LogCaptureFixture
) -> None:
    wait_until(lambda: len(registrar.heartbeats()) == 1)
    registrar.prepared["POST"] = [FENCED]
    registrar.prepared["PUT"] = [TAKEN_OVER]
    listener_session.report(acked=3)
    wait_until(lambda: listener_session.fenced)
    assert not listener_session.registered
    listener_session.report(acked=4)
    listener_session.close()
    assert registrar.methods() == ["PUT", "POST", "POST", "PUT"]
    assert listener_session.last_error == "Session 0-1 of listener app-1 was taken over by 0-2."
    [message] = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    assert message == (
        "Listener app-1 reports no more: another process has registered this id and taken over (Session 0-1 of listener"
        " app-1 was taken over by 0-2.) Stop one of the two, or give each an id of its own."
    )


def test_when_a_restored_service_has_a_session_that_has_ended_it_registers_again(
    registrar: Registrar, listener_session: ListenerSession
) -> None:
    """The service refuses only a session that was taken over."""
    listener_session.report(Report(task_managers={"app-1:0": "n1"}), acked=3)
    everything = {"ackedRevision": 3, "taskManagers": {"app-1:0": "n1"}}
    wait_until(lambda: everything in registrar.heartbeats())
    registrar.prepared["POST"] = [FENCED]
    listener_session.report(acked=4)
    wait_until(lambda: len(registrar.of("PUT")) == 2)
    wait_until(lambda: registrar.heartbeats()[-1] == everything | {"ackedRevision": 4})
    wait_until(lambda: listener_session.registered and listener_session.last_error is None)
    assert not listener_session.fenced


def test_a_session_that_was_taken_over_does_not_start(registrar: Registrar) -> None:
    registrar.prepared["PUT"] = [FENCED]
    membership = joined(registrar)
    wait_until(lambda: membership.fenced)
    membership.close()
    assert registrar.methods() == ["PUT"]


def test_close_after_a_takeover_does_not_end_the_other_registration(
    registrar: Registrar, listener_session: ListenerSession
) -> None:
    wait_until(lambda: len(registrar.heartbeats()) == 1)
    registrar.prepared["DELETE"] = [FENCED]
    listener_session.close()
    assert registrar.methods() == ["PUT", "POST", "DELETE"]


def test_a_rejected_report_stops_neither_renewal_nor_acknowledgement(
    registrar: Registrar, listener_session: ListenerSession, caplog: pytest.LogCaptureFixture
) -> None:
    wait_until(lambda: len(registrar.heartbeats()) == 1)
    slow = Held(REFUSED)
    registrar.prepared["POST"] = [REFUSED, USUAL["POST"], slow, USUAL["POST"]]
    listener_session.report(Report(task_managers={"?": "n1"}), acked=3)
    assert slow.asked.wait(30)
    assert (listener_session.registered, listener_session.last_error) == (True, "taskManagers: give at most 10,000.")
    slow.go_on.set()
    wait_until(lambda: listener_session.last_error is None)
    everything, acknowledged = {"ackedRevision": 3, "taskManagers": {"?": "n1"}}, {"ackedRevision": 3}
    assert registrar.heartbeats()[1:] == [everything, acknowledged, everything, acknowledged, everything]
    assert len(warnings_in(caplog)) == 1


def test_what_is_refused_is_sent_with_the_acknowledgement_also_if_the_rest_is_rejected(
    registrar: Registrar, listener_session: ListenerSession
) -> None:
    wait_until(lambda: len(registrar.heartbeats()) == 1)
    registrar.prepared["POST"] = [REFUSED]
    not_in_force = Report(refused={"n2": "no slots"}, not_here=frozenset({"n4", "n3"}))
    listener_session.report(Report(task_managers={"?": "n1"}).over(not_in_force), acked=3)
    wait_until(lambda: len(registrar.heartbeats()) > 2)
    sent = {"ackedRevision": 3, "refused": {"n2": "no slots"}, "notHere": ["n3", "n4"]}
    assert registrar.heartbeats()[2] == sent


def test_what_may_not_be_true_any_more_is_not_sent_until_the_next_report(registrar: Registrar) -> None:
    session = joined(registrar, interval=0.02)
    wait_until(lambda: len(registrar.heartbeats()) > 0)
    session.report(acked=3, valid_until=time.monotonic() + 0.2)
    wait_until(lambda: {"ackedRevision": 3} in registrar.heartbeats())
    time.sleep(0.5)
    sent = len(registrar.heartbeats())
    # Neither a change nor an interval makes it send what was observed before.
    session.report(acked=4, valid_until=time.monotonic() - 1)
    time.sleep(0.2)
    assert len(registrar.heartbeats()) == sent
    session.report(acked=4, valid_until=time.monotonic() + 60)
    wait_until(lambda: len(registrar.heartbeats()) > sent)
    assert registrar.heartbeats()[sent] == {"ackedRevision": 4}
    session.close()


def test_a_rejected_report_is_not_acknowledged_without_its_refusals(
    registrar: Registrar, listener_session: ListenerSession
) -> None:
    wait_until(lambda: len(registrar.heartbeats()) == 1)
    registrar.prepared["POST"] = [REFUSED, REFUSED, slow := Held(USUAL["POST"])]
    listener_session.report(Report(task_managers={"?": "n1"}, refused={"n1": "why"}), acked=3)
    assert slow.asked.wait(30)
    refusals = {"refused": {"n1": "why"}}
    everything = {"ackedRevision": 3, "taskManagers": {"?": "n1"}} | refusals
    assert registrar.heartbeats()[1:] == [everything, {"ackedRevision": 3} | refusals, refusals]
    slow.go_on.set()
    wait_until(lambda: registrar.heartbeats()[-1] == everything)


def test_refusals_that_are_rejected_do_not_count_as_applied(registrar: Registrar) -> None:
    """The service takes no acknowledgement back: a new session begins, which has none."""
    membership = joined(registrar)
    membership.report(Report(refused={}), acked=3)
    wait_until(lambda: any("ackedRevision" in body for body in registrar.heartbeats()))
    registrar.prepared["POST"] = [REFUSED] * 3
    membership.report(Report(refused={"n1": "why"}))
    wait_until(lambda: len(registrar.of("PUT")) == 2)
    assert json.loads(registrar.of("PUT")[1].partition(b"\r\n\r\n")[2])["sessionId"] == "0-1.1"
    wait_until(lambda: membership.registered and membership.last_error is None)
    membership.close()
    assert registrar.of("DELETE")[0].startswith(b"DELETE /listeners/app-1?sessionId=0-1.1 ")


@pytest.mark.parametrize(
    "trouble",
    [
        http_response(b"<h1>Not Found</h1>", "404 Not Found", "Content-Type: text/html"),
        UNKNOWN,
        REFUSED,
        problem("503 Service Unavailable", "The database is away."),
        http_response(b"{}", "200 OK"),
        http_response(b"<h1>Conflict</h1>", "409 Conflict", "Content-Type: text/html"),
        http_response(b"[]", "201 Created", *SERVICE_HEADERS),
        b"\x00\xff\x17 no HTTP at all",
        respond_and_reset(),
        respond_and_hang(),
    ],
    ids=[
        "no such route",
        "404",
        "400",
        "503",
        "stranger",
        "stranger's conflict",
        "no object",
        "noise",
        "reset",
        "silence",
    ],
)
@pytest.mark.parametrize("method", ["PUT", "POST"])
def test_a_failure_is_logged_once_and_retried(
    trouble: bytes | Responder, method: str, registrar: Registrar, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "blocklist.client.session")
    registrar.prepared[method] = [trouble] * 3
    membership = joined(registrar, timeout=0.2)
    membership.report(acked=3)
    wait_until(lambda: len(registrar.of(method)) > 3 and membership.registered and membership.last_error is None)
    membership.close()
    assert {"ackedRevision": 3} in registrar.heartbeats()
    first, last = (record.getMessage() for record in caplog.records)
    assert first.startswith("Listener app-1 cannot send heartbeats (")
    assert last == f"Listener app-1 reconnected to {registrar.url}."


def test_an_unreachable_service_raises_nothing_and_close_returns(caplog: pytest.LogCaptureFixture) -> None:
    membership = ListenerSession(f"http://127.0.0.1:{free_port()}", LISTENER)
    wait_until(lambda: membership.last_error is not None)
    membership.report(acked=3)
    assert not membership.registered
    membership.close()
    assert len(warnings_in(caplog)) == 1


def test_a_service_that_hangs_does_not_delay_close(registrar: Registrar) -> None:
    registrar.prepared["PUT"] = [respond_and_hang()]
    membership = joined(registrar, timeout=0.5)
    wait_until(lambda: registrar.methods() == ["PUT"])
    before = time.monotonic()
    membership.report(acked=3)
    membership.close()
    assert time.monotonic() - before < 30


def test_an_invalid_url_raises_invalid_error() -> None:
    with pytest.raises(InvalidError, match="not the URL"):
        ListenerSession("nowhere", LISTENER)


def warnings_in(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
