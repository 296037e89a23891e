"""A callback that raises stops nothing but itself: not the writer, expiry, evidence, compaction or pushes."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import prometheus_client
import pytest
from fastapi.testclient import TestClient
from sqlalchemy import create_engine, text
from structlog.testing import capture_logs
from uvicorn.server import ServerState

from app.auth.credential import AUTH_DISABLED, Credential
from app.engine import background
from app.engine.background import RETRY_MS
from app.engine.list_view import LastChanges, ListView
from app.http.fast_path import FastRequest
from app.listeners.push import Pusher
from app.logs import ChangeLogWriter
from app.main import create_app
from app.metrics import Metrics
from app.notices import observer
from app.notices.notifier import Notifier
from app.notices.observer import NoticeGroups
from app.page.list import grouped_page, list_page, parse_filter
from app.page.shared import SharedValues
from app.service import Service
from app.settings import Settings
from app.store.listeners import ListenerStore
from app.watch import ChangeFeed
from blocklist.model.evidence import EvidenceStore
from tests.integration.bodies import block, current_list, now_ms, revision_of
from tests.integration.in_process import ManualClock
from tests.integration.listeners import get_listener, heartbeat, register
from tests.integration.notice_receivers import receiving_notices
from tests.integration.problems import problem_of
from tests.integration.process import url_of, wait_until
from tests.integration.receiver import Receiver, receiving

EXCLUDED: Final = {"kind": "excluded", "reason": "Spark excluded the host."}


class BrokenError(RuntimeError):
    """What the callbacks of these tests raise."""


@pytest.fixture
def clock() -> ManualClock:
    # The receivers of pushes check the time of their signatures.
    return ManualClock(now_ms())


@pytest.fixture
def database(tmp_path: Path, migrated: Path) -> Path:
    copy = tmp_path / "blocklist.db"
    shutil.copy(migrated, copy)
    return copy


@pytest.fixture
def serve(database: Path, clock: ManualClock) -> Callable[..., Any]:
    """Runs the service in this process."""

    @contextmanager
    def serve(**settings: Any) -> Iterator[TestClient]:
        app = create_app(Settings(database_url=url_of(database), **settings), clock=clock)
        with TestClient(app, base_url="http://localhost") as client:
            yield client

    return serve


@pytest.fixture
def logs() -> Iterator[list[Any]]:
    """The log lines; to write many tracebacks would take seconds."""
    with capture_logs() as logs:
        yield logs


def service_of(client: TestClient) -> Service:
    service: Service = client.app.state.service  # type: ignore[attr-defined]
    return service


def break_method(
    monkeypatch: pytest.MonkeyPatch, owner: type, name: str, *, when: Callable[..., bool] = lambda *_, **__: True
) -> list[int]:
    """Make a method raise for the arguments of which `when` is true; the list has an item for each time it did."""
    original, failures = getattr(owner, name), list[int]()

    def broken(*args: Any, **kwargs: Any) -> Any:
        if when(*args, **kwargs):
            failures.append(len(failures))
            raise BrokenError
        return original(*args, **kwargs)

    monkeypatch.setattr(owner, name, broken)
    return failures


def break_metric(monkeypatch: pytest.MonkeyPatch, kind: type, method: str, name: str) -> list[int]:
    """Make a method of one metric raise."""
    return break_method(monkeypatch, kind, method, when=lambda metric, *_, **__: metric._name == name)


def failed_tasks(logs: list[Any]) -> list[str]:
    return [entry["task"] for entry in logs if "task" in entry]


def blocked(client: TestClient) -> list[str]:
    return list(current_list(client)[1])


class TestWriter:
    @pytest.mark.usefixtures("logs")
    @pytest.mark.parametrize(
        ("owner", "name"),
        [
            (LastChanges, "apply"),
            (ListView, "apply"),
            (ChangeFeed, "publish"),
            (EvidenceStore, "record_unblock"),
            (Metrics, "count_changes"),
            (ChangeLogWriter, "write"),
            (Notifier, "publish"),
        ],
    )
    def test_a_committed_change_is_acknowledged_and_read_whatever_follows_the_list_fails(
        self, serve: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, owner: type, name: str
    ) -> None:
        failures: list[int] = []
        with serve(notify_url="json://127.0.0.1:9") as client:
            failures = break_method(monkeypatch, owner, name, when=lambda *_, **__: len(failures) < 2)
            made = [
                client.put("/blocklist/nodes/a", json=block()),
                client.delete("/blocklist/nodes/a"),
                client.put("/blocklist/nodes/b", json=block()),
                client.put("/blocklist/nodes/c", json=block()),
            ]
            assert [(answer.status_code, revision_of(answer)) for answer in made] == [
                (201, 1), (200, 2), (201, 3), (201, 4),
            ]  # fmt: skip
            assert failures
            assert blocked(client) == ["b", "c"]
            feed = service_of(client).feed
            assert client.portal is not None
            events = client.portal.call(feed.read, 0)
            assert events is not None
            assert [line for line in events[0].decode().splitlines() if line.startswith("id: ")] == [
                f"id: {revision}-{feed.history}" for revision in range(1, 5)
            ]

    def test_a_block_whose_last_change_is_unknown_counts_as_applied_by_nobody(
        self, serve: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with serve() as client:
            register(client, "jm", leaseSeconds=3600)
            client.put("/blocklist/nodes/a", json=block())
            heartbeat(client, "jm", ackedRevision=1)
            failures = break_method(monkeypatch, LastChanges, "apply")
            client.put("/blocklist/nodes/b", json=block(cause="fan"))
            assert failures
            service = service_of(client)
            rows = list_page(service, parse_filter({"sort": "node"})).rows
            assert [(row.node.id, row.applied, row.listeners) for row in rows] == [("a", 1, 1), ("b", 0, 1)]
            assert client.portal is not None
            groups = client.portal.call(grouped_page, service, SharedValues(service.clock), parse_filter({}))
            assert {row.group.nodes[0].id: row.pending for row in groups.rows} == {"a": [], "b": ["jm"]}

    def test_a_refusal_that_cannot_be_counted_is_a_refusal(
        self, serve: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        failures = break_method(monkeypatch, Metrics, "count_refused")
        with serve(max_blocked=1) as client:
            client.put("/blocklist/nodes/a", json=block())
            problem_of(client.put("/blocklist/nodes/b", json=block()), 409)
        assert failures

    def test_a_commit_that_cannot_be_measured_is_acknowledged(
        self, serve: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        failures = break_metric(monkeypatch, prometheus_client.Histogram, "observe", "blocklist_commit_seconds")
        with serve() as client:
            assert client.put("/blocklist/nodes/a", json=block()).status_code == 201
        assert failures

    def test_a_response_that_cannot_be_measured_is_sent(
        self, serve: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        failures = break_method(monkeypatch, Metrics, "observe_request")
        with serve() as client:
            assert client.put("/blocklist/nodes/a", json=block()).status_code == 201
        assert failures


def test_blocks_expire_although_their_lateness_cannot_be_counted(
    serve: Callable[..., Any], clock: ManualClock, monkeypatch: pytest.MonkeyPatch, logs: list[Any]
) -> None:
    failures = break_metric(monkeypatch, prometheus_client.Histogram, "observe", "blocklist_expiry_lateness_seconds")
    with serve() as client:
        for number, node in enumerate("ab", 1):
            client.put(f"/blocklist/nodes/{node}", json=block(endTimestamp=clock.now + 10))
            clock.now += 10
            wait_until(lambda number=number: len(failures) == number)  # type: ignore[misc]
            assert revision_of(client.get("/blocklist")) == 2 * number
    assert {entry.get("part") for entry in logs if entry["log_level"] == "error"} == {"metrics of changes"}


def test_evidence_is_evaluated_although_a_refused_block_cannot_be_counted(
    serve: Callable[..., Any], clock: ManualClock, monkeypatch: pytest.MonkeyPatch, logs: list[Any]
) -> None:
    failures = break_method(monkeypatch, Metrics, "count_refused")
    with serve(max_blocked=1) as client:
        client.put("/blocklist/nodes/a", json=block())
        for name in "xy":
            register(client, name, leaseSeconds=3600)
            heartbeat(client, name, evidence={"w": EXCLUDED})
        wait_until(lambda: bool(failures))
        client.delete("/blocklist/nodes/a")
        clock.now += RETRY_MS
        wait_until(lambda: blocked(client) == ["w"])
    assert failed_tasks(logs) == []


def test_the_log_is_compacted_although_that_cannot_be_counted(
    serve: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, logs: list[Any]
) -> None:
    monkeypatch.setattr(background, "COMPACT_SECONDS", 0.01)
    failures = break_metric(monkeypatch, prometheus_client.Counter, "inc", "blocklist_log_compacted_changes")
    with serve():
        wait_until(lambda: len(failures) > 2)
    assert failed_tasks(logs) == []


class TestPushes:
    def test_a_push_whose_duration_cannot_be_counted_is_delivered_once(
        self, serve: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, receiver: Receiver
    ) -> None:
        break_metric(monkeypatch, prometheus_client.Histogram, "observe", "blocklist_push_seconds")
        with serve() as client:
            receiver.register(client, "jm")
            for node in "abc":
                revision = revision_of(client.put(f"/blocklist/nodes/{node}", json=block()))
                receiver.wait(lambda it, revision=revision: it.has(revision))  # type: ignore[misc]
            wait_until(lambda: client.get("/listeners/jm").json()["ackedRevision"] == 3)
            assert client.get("/listeners/jm").json()["lastError"] is None
        covered = [push.revisions for push in receiver.requests if not push.heartbeat]
        assert covered[0][0] == 0
        assert [first for first, _ in covered[1:]] == [last for _, last in covered[:-1]]

    def test_a_push_task_that_fails_is_restarted_and_its_listener_is_not_the_services_health(
        self, serve: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, receiver: Receiver
    ) -> None:
        monkeypatch.setattr(background, "RESTART_SECONDS", 0.01)
        failures: list[int] = []
        failures = break_method(monkeypatch, Pusher, "_wait", when=lambda *_: len(failures) < 1)
        with serve() as client:
            receiver.register(client, "jm")
            wait_until(lambda: bool(failures))
            revision = revision_of(client.put("/blocklist/nodes/a", json=block()))
            receiver.wait(lambda it: it.has(revision))
            assert client.get("/readyz").status_code == 200
            assert restarts(client, "pushes") == 1

    def test_a_listener_whose_pushes_cannot_start_does_not_stop_the_others(
        self, serve: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, receiver: Receiver
    ) -> None:
        with receiving() as other:
            with serve() as client:
                other.register(client, "a-broken")
                receiver.register(client, "jm")
            break_method(monkeypatch, Pusher, "on_registered", when=lambda _, entry: entry.id == "a-broken")
            with serve() as client:
                revision = revision_of(client.put("/blocklist/nodes/a", json=block()))
                receiver.wait(lambda it: it.has(revision))
                other.register(client, "a-broken", sessionId="s1")

    def test_a_stored_report_that_cannot_be_read_does_not_stop_the_others(
        self, serve: Callable[..., Any], database: Path, receiver: Receiver, logs: list[Any]
    ) -> None:
        with serve() as client:
            receiver.register(client, "jm")
        with create_engine(url_of(database)).begin() as connection:
            connection.execute(text("INSERT INTO reports VALUES ('jm', 'error', 1, 'not JSON', 0)"))
        with serve() as client:
            revision = revision_of(client.put("/blocklist/nodes/a", json=block()))
            receiver.wait(lambda it: it.has(revision))
        assert failed_tasks(logs) == []


class TestNotices:
    def test_a_failed_loop_is_restarted_and_makes_the_service_unready(
        self, serve: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, logs: list[Any]
    ) -> None:
        monkeypatch.setattr(background, "RESTART_SECONDS", 0.01)
        monkeypatch.setattr(observer, "WINDOW_SECONDS", 0.0)
        with receiving_notices() as target, serve(notify_url=target.url) as client:
            failures: list[int] = []
            failures = break_method(monkeypatch, NoticeGroups, "due", when=lambda *_, **__: len(failures) < 1)
            wait_until(lambda: client.get("/readyz").status_code == 503)
            detail = problem_of(client.get("/readyz"), 503)["detail"]
            assert detail.startswith("A background task has failed: notices. ")
            assert client.put("/blocklist/nodes/a", json=block()).status_code == 201
            target.wait_for("blocklist: a blocked")
        assert failed_tasks(logs) == ["notices"]

    def test_the_service_stops_although_the_last_notices_cannot_be_sent(
        self, serve: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        failures = break_method(monkeypatch, Notifier, "close")
        with serve(notify_url="json://127.0.0.1:9") as client:
            acknowledge_one_change(client)
        assert failures
        with serve() as client:
            assert get_listener(client, "jm")["ackedRevision"] == 1


class TestHeartbeats:
    """They are saved half a second later, or when the service stops."""

    def test_those_that_could_not_be_saved_because_of_a_bug_are_saved_later(
        self, serve: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        failures: list[int] = []
        failures = break_method(monkeypatch, ListenerStore, "save_heartbeats", when=lambda *_: len(failures) < 1)
        with serve() as client:
            acknowledge_one_change(client)
            wait_until(lambda: bool(failures))
        with serve() as client:
            assert get_listener(client, "jm")["ackedRevision"] == 1

    def test_they_are_saved_although_pushes_cannot_be_stopped(
        self, serve: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        failures = break_method(monkeypatch, Pusher, "close")
        with serve() as client:
            acknowledge_one_change(client)
        assert failures
        with serve() as client:
            assert get_listener(client, "jm")["ackedRevision"] == 1


def acknowledge_one_change(client: Any) -> None:
    register(client, "jm")
    client.put("/blocklist/nodes/a", json=block())
    heartbeat(client, "jm", ackedRevision=1)


@pytest.mark.usefixtures("logs")
def test_a_stream_that_raises_does_not_delay_the_other_streams(serve: Callable[..., Any]) -> None:
    class Failing:
        def wake(self) -> None:
            raise BrokenError

    class Recording:
        woken = 0

        def wake(self) -> None:
            self.woken += 1

    # In a set: whatever its order is, one that raises is woken before one that does not.
    recording = [Recording() for _ in range(20)]
    with serve() as client:
        streams = service_of(client).feed.streams
        streams.update(Failing() for _ in range(20))
        streams.update(recording)
        client.put("/blocklist/nodes/a", json=block())
        wait_until(lambda: all(stream.woken for stream in recording))


@pytest.mark.usefixtures("logs")
def test_a_driver_whose_response_raises_does_not_delay_the_other_drivers(serve: Callable[..., Any]) -> None:
    def fail(*_: object) -> None:
        raise BrokenError

    answered: list[FastRequest] = []
    with serve() as client:
        state = client.app_state
        etag = client.get("/blocklist/table").headers["etag"].encode()
        for respond in (fail, *[lambda request, _: answered.append(request)] * 3):
            request = FastRequest({b"If-None-Match": etag})
            request.server_state, request.respond = ServerState(), respond
            client.portal.call(state["fast_path"]._begin_wait, request, Credential(AUTH_DISABLED), 60)
        client.put("/blocklist/nodes/a", json=block())
        wait_until(lambda: len(answered) == 3)


class TestReadiness:
    @pytest.fixture(autouse=True)
    def _quick_restart(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(background, "RESTART_SECONDS", 0.01)

    def test_a_failed_task_makes_the_service_unready_until_it_has_run_again(
        self, serve: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, logs: list[Any]
    ) -> None:
        monkeypatch.setattr(background, "RECOVERY_SECONDS", 600.0)
        failures: list[int] = []
        with serve() as client:
            assert client.get("/readyz").status_code == 200
            failures = break_method(monkeypatch, EvidenceStore, "verdicts", when=lambda *_: len(failures) < 2)
            wait_until(lambda: client.get("/readyz").status_code == 503)
            answer = client.get("/readyz")
            assert problem_of(answer, 503)["detail"].startswith("A background task has failed: evidence. ")
            assert int(answer.headers["retry-after"]) > 0
            assert client.get("/healthz").status_code == 200
            assert client.put("/blocklist/nodes/a", json=block()).status_code == 201
            wait_until(lambda: restarts(client, "evidence") == 2)
            monkeypatch.setattr(background, "RECOVERY_SECONDS", 0.0)
            wait_until(lambda: client.get("/readyz").status_code == 200)
        assert failed_tasks(logs) == ["evidence", "evidence"]

    def test_every_background_task_has_a_count_of_restarts(self, serve: Callable[..., Any], tmp_path: Path) -> None:
        (admin_token := tmp_path / "admin.token").write_text("x" * 43)
        admin_token.chmod(0o600)
        with serve(auth="tokens", admin_token_file=str(admin_token)) as client:
            tasks = set(service_of(client).task_health.restarts)
        assert tasks == {
            *("audit", "changes", "compaction", "connections", "database", "drift", "evidence", "expiry", "inventory"),
            *("listeners", "notifications", "replaced machines", "secrets", "sessions", "tables", "tokens"),
        }


def restarts(client: TestClient, task: str) -> float:
    line = next(line for line in client.get("/metrics").text.splitlines() if f'restarts_total{{task="{task}"}}' in line)
    return float(line.rpartition(" ")[2])
