"""Which session of an application reports, as the service decides it: another one may be a successor, or long gone."""

from __future__ import annotations

import json
import queue
import ssl
import subprocess
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import pytest

from blocklist.model.errors import BlocklistError, InvalidError, NotFoundError, UnavailableError
from blocklist.model.listener import FencedError, Listener, ListenerRole, Registration, heartbeat, register
from tests.http_server import Handler, serving
from tests.integration.process import wait_until
from tests.integration.test_tls import certificate

STATUSES: Final[dict[type[BlocklistError], int]] = {
    FencedError: 409,
    NotFoundError: 404,
    InvalidError: 413,
    UnavailableError: 503,
}
TIMEOUT: Final = 120.0
"""Seconds."""


class SessionRules:
    """The listener `app` of a service, by the rules of the service. `requests` are the methods and the statuses.

    A report with more than `max_refusals` is rejected, and so are the next `failing_deletes` deregistrations.
    """

    def __init__(self) -> None:
        self.url = ""
        self.listener: Listener | None = None
        self.refused: dict[str, str] = {}
        self.max_refusals = 10_000
        self.failing_deletes = 0
        self.product: str | None = None
        self.platform: str | None = None
        self.requests: queue.Queue[tuple[str, int]] = queue.Queue()

    @property
    def session(self) -> str | None:
        return None if self.listener is None else self.listener.session

    @property
    def acked(self) -> int | None:
        return None if self.listener is None else self.listener.acked

    def register(self, body: dict[str, Any]) -> None:
        session, cluster = body["sessionId"], body.get("cluster")
        self.product, self.platform = body.get("product", self.product), body.get("platform")
        requested = Registration(id="app", role=ListenerRole.JOB_MASTER, session=session, cluster=cluster)
        self.listener = register(self.listener, requested, now=0, revision=7, empty=False)

    def heartbeat(self, body: dict[str, Any]) -> None:
        refused = body.get("refused", self.refused)
        if len(refused) > self.max_refusals:
            raise InvalidError("refused: too many.")
        self.listener = heartbeat(self.listener, body["sessionId"], body.get("ackedRevision"), now=0, revision=7)
        self.refused = refused

    def deregister(self) -> None:
        if self.failing_deletes:
            self.failing_deletes -= 1
            raise UnavailableError("try again")
        self.listener = None

    def wait_for(self, method: str, status: int) -> list[tuple[str, int]]:
        """Return the requests up to the next one with this response."""
        seen = [self.requests.get(timeout=TIMEOUT)]
        while seen[-1] != (method, status):
            seen.append(self.requests.get(timeout=TIMEOUT))
        return seen


@pytest.fixture
def service() -> Iterator[SessionRules]:
    started = SessionRules()

    class Sessions(Handler):
        def do_PUT(self) -> None:
            self._answer(started.register)

        def do_POST(self) -> None:
            self._answer(started.heartbeat)

        def do_DELETE(self) -> None:
            self._answer(lambda _: started.deregister())

        def _answer(self, act: Callable[[dict[str, Any]], None]) -> None:
            status = 200
            try:
                act(json.loads(self.body() or b"{}"))
            except BlocklistError as error:
                status = STATUSES[type(error)]
            self.reply(status, b"{}")
            started.requests.put((self.command, status))

    with serving(Sessions) as started.url:
        yield started


def command_of_reports(program: str, *options: str, ca: Sequence[str] = ()) -> list[str]:
    java = ["java", "-Xmx64m", "-XX:+UseSerialGC", *options, "-cp", program]
    return [*java, "blocklist.spark.ReportProgram", "new", "yarn-a", *ca]


@pytest.fixture(scope="module")
def program_of_reports(program: str) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(command_of_reports(program), stdin=subprocess.PIPE)
    yield process
    process.kill()
    process.communicate()


@pytest.fixture
def reports(program_of_reports: subprocess.Popen[bytes], service: SessionRules) -> Iterator[subprocess.Popen[bytes]]:
    """The reports of the session `new`."""
    wake(program_of_reports, service.url)
    yield program_of_reports
    wake(program_of_reports, "end")


def wake(reports: subprocess.Popen[bytes], line: str = "") -> None:
    """A URL begins reports, `end` ends them; a number is how many blocks they refuse, other text the platform."""
    assert reports.stdin is not None
    reports.stdin.write(f"{line}\n".encode())
    reports.stdin.flush()


def test_what_the_agent_finds_out_about_its_platform_is_registered(
    service: SessionRules, reports: subprocess.Popen[bytes]
) -> None:
    service.wait_for("POST", 200)
    session = service.session
    wake(reports, "Spark 9")
    service.wait_for("PUT", 200)
    assert (service.platform, service.session) == ("Spark 9", session)


def test_a_session_reports_again_after_a_restore_brought_back_the_one_before(
    service: SessionRules, reports: subprocess.Popen[bytes]
) -> None:
    service.register({"sessionId": "old"})
    before = service.listener
    service.wait_for("POST", 200)
    service.listener = before  # from a backup
    wake(reports, "1")
    service.wait_for("POST", 409)
    assert service.wait_for("POST", 200)[0] == ("PUT", 200)
    assert service.session == "new"
    assert reports.poll() is None


def test_a_session_that_was_taken_over_reports_again_when_its_successor_has_left(
    service: SessionRules, reports: subprocess.Popen[bytes]
) -> None:
    """It never displaces its successor, also not one that the service forgets for a while."""
    service.wait_for("POST", 200)
    assert service.listener is not None
    assert (service.listener.cluster, service.product) == ("yarn-a", "blocklist-spark")
    service.register({"sessionId": "newer"})
    wake(reports, "1")
    service.wait_for("PUT", 409)
    wake(reports)
    assert service.wait_for("POST", 409) == [("POST", 409)]
    assert service.session == "newer"
    service.listener = None  # deregistered
    wake(reports)
    assert service.wait_for("PUT", 200) == [("POST", 404), ("PUT", 200)]
    service.register({"sessionId": "newer"})
    wake(reports, "2")
    service.wait_for("PUT", 409)
    assert service.session == "newer"


def test_refusals_that_are_cut_off_do_not_count_as_applied(
    service: SessionRules, reports: subprocess.Popen[bytes]
) -> None:
    """The service takes no acknowledgement back: a new session begins, which has none."""
    wake(reports, "5")
    wait_until(lambda: (service.acked, len(service.refused)) == (7, 5), seconds=TIMEOUT)
    wake(reports, "1001")
    wait_until(lambda: (service.session, service.acked, len(service.refused)) == ("new.1", None, 1000), seconds=TIMEOUT)
    wake(reports, "1000")
    wait_until(lambda: service.acked == 7, seconds=TIMEOUT)
    assert (service.session, len(service.refused)) == ("new.1", 1000)


def test_refusals_that_the_service_rejects_do_not_count_as_applied(
    service: SessionRules, reports: subprocess.Popen[bytes]
) -> None:
    service.max_refusals = 5
    wake(reports, "5")
    wait_until(lambda: (service.acked, len(service.refused)) == (7, 5), seconds=TIMEOUT)
    wake(reports, "6")
    wait_until(lambda: (service.session, service.acked) == ("new.1", None), seconds=TIMEOUT)
    service.wait_for("POST", 413)
    assert service.wait_for("POST", 200)[-1] == ("POST", 200)
    assert service.acked is None


def test_an_application_whose_deregistration_fails_tries_again(
    service: SessionRules, reports: subprocess.Popen[bytes]
) -> None:
    service.wait_for("POST", 200)
    service.failing_deletes = 2
    wake(reports, "end")
    assert [service.wait_for("DELETE", status)[-1] for status in (503, 503, 200)]
    assert service.listener is None


@pytest.mark.parametrize("authority", ["", "another"])
def test_an_authority_that_is_not_trusted_is_said_where_people_search(
    program: str, authority: str, tmp_path: Path
) -> None:
    """Spark's own layout has only the last part of a logger's name, so a search for `blocklist` must find that."""
    ca = [str(certificate(tmp_path, authority)[0])] if authority else []
    advice = f"{ca[0]} is not of its authority" if ca else "of your own, give the file of it as spark.blocklist.caFile"
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*certificate(tmp_path))
    layout = "-Dlog4j2.configurationFile=org/apache/spark/log4j2-defaults.properties"
    command = command_of_reports(program, layout, ca=ca)
    with (
        serving(Handler, context) as url,
        subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE) as process,
    ):
        wake(process, url)
        assert process.stderr is not None
        line = next(line for line in process.stderr if b" WARN " in line).decode()
        process.kill()
    assert f" WARN blocklist: The agent cannot send heartbeats and tries again: the certificate of {url} is not" in line
    assert advice in line
