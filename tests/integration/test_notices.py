"""Notices (BLOCKLIST_NOTIFY_URL): real targets receive each once, and no target delays or breaks anything."""

from __future__ import annotations

import email
import email.policy
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final

import httpx
import pytest

from app.notices import observer
from app.secret_files import CHECK_SECONDS
from tests.integration.bodies import EVACUATE, block, later
from tests.integration.conftest import Start, StartInProcess, StartReplicas
from tests.integration.databases import Databases
from tests.integration.in_process import RunningClock, in_process
from tests.integration.listeners import RM, heartbeat, put, register, unblock
from tests.integration.notice_receivers import NoticeReceiver, receiving_mail, receiving_notices
from tests.integration.process import environment, free_port, run_app, url_of, wait_until
from tests.integration.replicas import QUICK_LEASE
from tests.integration.test_metrics import value

QUICK: Final = {"app.notices.observer.WINDOW_SECONDS": 0.2, "app.notices.observer.MAX_PER_MINUTE": 1000}
OBSERVE_SECONDS: Final = ("app.listeners.drift.OBSERVE_SECONDS", "app.notices.notifier.OBSERVE_SECONDS")
SECRET: Final = "T0PSECRET"
Begin = Callable[..., tuple[httpx.Client, Callable[..., None]]]


@pytest.fixture
def target() -> Iterator[NoticeReceiver]:
    with receiving_notices() as receiver:
        yield receiver


@pytest.fixture
def clock() -> RunningClock:
    return RunningClock()


@pytest.fixture
def begin(start_in_process: StartInProcess, target: NoticeReceiver, clock: RunningClock) -> Begin:
    """Starts a service; its client, and what advances its clock until exactly these notices were received."""

    def begin(**settings: str) -> tuple[httpx.Client, Callable[..., None]]:
        service = start_in_process(clock=clock, notify_url=target.url, **settings)
        return service.client(), partial(target.wait_for, until=service.until)

    return begin


def sent(client: httpx.Client, result: str) -> float:
    return value(client, "blocklist_notices_total", result=result)


def test_the_urls_of_a_file_are_renewed(
    target: NoticeReceiver, clock: RunningClock, start_in_process: StartInProcess, tmp_path: Path
) -> None:
    file = tmp_path / "urls"
    file.write_text(f"{target.url}\n")
    service = start_in_process(clock=clock, notify_url_file=str(file))
    put(service.client(), "n1")
    target.wait_for("blocklist: n1 blocked", until=service.until)
    with receiving_notices() as first, receiving_notices() as second:
        file.write_text(f"{first.url},{second.url}\n")
        clock.advance(2 * CHECK_SECONDS)
        service.until(lambda: service.app.state.service._notices._targets[1:])
        put(service.client(), "n2")
        for renewed in (first, second):
            renewed.wait_for("blocklist: n2 blocked", until=service.until)
        file.write_text("nonsense")
        clock.advance(2 * CHECK_SECONDS)
        put(service.client(), "n3")
        first.wait_for("blocklist: n2 blocked", "blocklist: n3 blocked", until=service.until)
    target.wait_for("blocklist: n1 blocked", until=service.until)


def test_blocks_are_grouped_and_their_ends_are_notified(
    begin: Begin, target: NoticeReceiver, clock: RunningClock
) -> None:
    client, expect = begin()
    client.put("/blocklist/nodes", json={"a": block(), "b": block(endTimestamp=later(600))})
    put(client, "a", cause="disk")  # a merge without news
    expect("blocklist: 2 nodes blocked")
    unblock(client, "a")
    clock.advance(600)
    expect("blocklist: 2 nodes blocked", "blocklist: a free again (unblocked)", "blocklist: b free again (expired)")
    wait_until(lambda: sent(client, "sent") == 3)
    assert target.notices[0][1].splitlines()[:2] == ["Nodes: a, b", "Cause: disk"]


def test_beyond_the_limit_notices_are_left_out_and_counted(
    begin: Begin, target: NoticeReceiver, clock: RunningClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(observer, "MAX_PER_MINUTE", 1)
    client, expect = begin()
    put(client, "a", cause="disk")
    expect("blocklist: a blocked")
    put(client, "b", cause="fan")
    clock.advance(observer.WINDOW_SECONDS)
    wait_until(lambda: value(client, "blocklist_notices_left_out_total") == 1)
    assert len(target.notices) == 1


def test_evacuated_means_that_all_live_listeners_report_that_nothing_runs(begin: Begin) -> None:
    client, expect = begin()
    for name in ("app-1", "app-2"):
        register(client, name, leaseSeconds=3600)
    tasks: dict[str, Any] = {"taskManagers": {"t1": "a"}}
    heartbeat(client, "app-1", **tasks, runningTasks={"t1": 2})
    client.put("/blocklist/nodes", json={node: block(action=EVACUATE) for node in "ab"})
    heartbeat(client, "app-1", ackedRevision=2)
    begun = "blocklist: 2 nodes blocked (with evacuation)"
    expect(begun)
    heartbeat(client, "app-2", ackedRevision=2, taskManagers={})
    expect(begun, "blocklist: b evacuated: nothing runs there any more")
    heartbeat(client, "app-1", **tasks, runningTasks={"t1": 0})
    expect(begun, *(f"blocklist: {node} evacuated: nothing runs there any more" for node in "ab"))


@pytest.mark.parametrize("why", ["a job has lapsed", "a job reports no TaskManagers", "no job is registered"])
def test_what_is_not_known_to_be_empty_is_not_notified_as_evacuated(
    begin: Begin, clock: RunningClock, target: NoticeReceiver, why: str
) -> None:
    client, expect = begin()
    register(client, "yarn", role=RM, leaseSeconds=3600)
    if why != "no job is registered":
        register(client, "app", leaseSeconds=3600)
        heartbeat(client, "app", taskManagers={})
        register(client, "silent", leaseSeconds=60)
    if why == "a job has lapsed":
        heartbeat(client, "silent", taskManagers={"t1": "a"}, runningTasks={"t1": 7})
    revision = put(client, "a", action=EVACUATE)
    for name in ("yarn", "app", "silent")[: 1 if why == "no job is registered" else 3]:
        heartbeat(client, name, ackedRevision=revision)
    begun = "blocklist: a blocked (with evacuation)"
    expect(begun)
    clock.advance(61 if why == "a job has lapsed" else 1)
    put(client, "b")  # what comes later is notified
    expect(begun, "blocklist: b blocked")
    assert client.get("/blocklist/nodes/a/status").json()["state"] == "unknown"
    if why != "no job is registered":
        client.delete("/listeners/silent").raise_for_status()
        heartbeat(client, "yarn", ackedRevision=revision + 1)
        heartbeat(client, "app", ackedRevision=revision + 1)
        expect(begun, "blocklist: b blocked", "blocklist: a evacuated: nothing runs there any more")
        assert client.get("/blocklist/nodes/a/status").json()["state"] == "empty"


def test_a_node_that_no_cluster_has_is_not_notified_as_evacuated(begin: Begin, clock: RunningClock) -> None:
    client, expect = begin()
    register(client, "yarn", role=RM, leaseSeconds=3600)
    register(client, "app", leaseSeconds=3600)
    acked: dict[str, Any] = {"ackedRevision": put(client, "a", action=EVACUATE)}
    heartbeat(client, "yarn", **acked, notHere=["a"])
    heartbeat(client, "app", **acked, taskManagers={})
    notified = ["blocklist: a blocked (with evacuation)"]
    expect(*notified)
    clock.advance(6)
    put(client, "b")
    expect(*notified, "blocklist: b blocked")
    heartbeat(client, "yarn", notHere=[])
    expect(*notified, "blocklist: b blocked", "blocklist: a evacuated: nothing runs there any more")


def test_a_refusal_names_the_listener_and_its_reason_once(begin: Begin, target: NoticeReceiver) -> None:
    client, expect = begin()
    register(client, "app-1", leaseSeconds=3600)
    revision = put(client, "a", cause="disk")
    notified = ["blocklist: a blocked", "blocklist: a blocked, but a listener refuses that"]
    heartbeat(client, "app-1", ackedRevision=revision, refused={"a": "It is the last host."})
    expect(*notified)
    heartbeat(client, "app-1", ackedRevision=revision, refused={"a": "It is still the last host.", "c": "new"})
    put(client, "c", cause="fan")
    heartbeat(client, "app-1", ackedRevision=revision + 1)
    expect(*notified, "blocklist: c blocked", "blocklist: c blocked, but a listener refuses that")
    assert "Reason: It is the last host.\nListener: app-1\n" in target.notices[1][1]


def test_new_drift_is_notified_once(begin: Begin, target: NoticeReceiver) -> None:
    client, expect = begin()
    register(client, "slurm", role=RM, leaseSeconds=3600)
    heartbeat(client, "slurm", unschedulable={"n1": "DRAIN (new disk)", "n2": "DOWN"})
    expect("blocklist: 2 nodes not as the list says")
    heartbeat(client, "slurm", unschedulable={"n1": "DRAIN (new disk)", "n2": "DOWN", "n3": "DOWN"})
    expect("blocklist: 2 nodes not as the list says", "blocklist: n3 not as the list says")
    assert "Difference: unschedulable\nReason: DRAIN (new disk)\nReason: DOWN\nListener: slurm" in target.notices[0][1]


def test_after_a_restart_nothing_old_is_notified(
    tmp_path: Path,
    databases: Databases,
    target: NoticeReceiver,
    clock: RunningClock,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(observer, "WINDOW_SECONDS", 60.0)
    settings = {**databases.settings(tmp_path), "notify_url": target.url}
    with in_process(clock, **settings) as service:
        client = service.client()
        register(client, "slurm", role=RM, leaseSeconds=3600)
        put(client, "a", action=EVACUATE)
        target.wait_for("blocklist: a blocked (with evacuation)", until=service.until)
        put(client, "b")
    # The last notice is sent although the service stops at once.
    before = ["blocklist: a blocked (with evacuation)", "blocklist: b blocked"]
    target.wait_for(*before)
    with in_process(clock, **settings) as service:
        client = service.client()
        report: dict[str, Any] = {"refused": {"b": "last host"}, "unschedulable": {"c": "DOWN"}, "taskManagers": {}}
        register(client, "slurm", role=RM, leaseSeconds=3600)
        heartbeat(client, "slurm", ackedRevision=2, **report)
        service.until(lambda: value(client, "blocklist_drift_nodes") == 1)
        put(client, "new", action=EVACUATE)
        heartbeat(client, "slurm", ackedRevision=3, **report)
        expected = ["blocklist: new blocked (with evacuation)", "blocklist: new evacuated: nothing runs there any more"]
        target.wait_for(*before, *expected, until=service.until)


def test_mail_is_sent(start_in_process: StartInProcess) -> None:
    with receiving_mail() as (port, messages):
        url = f"mailto://127.0.0.1:{port}?from=blocklist@example.com&to=oncall@example.com&mode=insecure"
        service = start_in_process(clock=RunningClock(), notify_url=url)
        put(service.client(), "a", cause="disk")
        service.until(lambda: bool(messages))
    message = email.message_from_string(messages[0], policy=email.policy.default)
    assert message["subject"] == "blocklist: a blocked"
    assert message["to"] == "oncall@example.com"
    text = message.get_body(("plain", "html"))
    assert text is not None
    assert "Cause: disk" in text.get_content()


class TestFaultyTargets:
    def test_one_that_hangs_or_refuses_delays_neither_changes_nor_others_nor_the_stop(
        self, start: Start, target: NoticeReceiver
    ) -> None:
        with receiving_notices() as hanging:
            hanging.release.clear()
            # Its timeout is longer than this test.
            urls = f"{hanging.url}/{SECRET}?rto=600,json://127.0.0.1:{free_port()}/{SECRET},{target.url}/{SECRET}"
            service = start(notify_url=urls, constants=QUICK)
            with service.client() as client:
                wait_until(lambda: put(client, "a") > 0 and hanging.requests == 1)
                titles: list[str] = []
                for number in range(3):
                    assert client.put(f"/blocklist/nodes/b{number}", json=block(cause=str(number))).status_code == 201
                    titles.append(f"blocklist: b{number} blocked")
                    target.wait_for("blocklist: a blocked", *titles)
                wait_until(lambda: sent(client, "failed") == 4 and sent(client, "sent") == 4)
                assert client.get("/readyz").status_code == 200
                shown = client.get("/metrics").text + client.get("/readyz").text + client.get("/openapi.json").text
            began = time.monotonic()
            service.stop()
            # Less than the 600 s of the target: the exact time is the machine's.
            assert time.monotonic() - began < 60
        assert SECRET not in shown + service.log()
        assert "notices cannot be sent" in service.log()

    def test_one_with_a_broken_answer_puts_no_secret_into_the_log(self, start: Start, target: NoticeReceiver) -> None:
        target.status, target.reason = 500, f"no\r\nbroken header {SECRET}\r\nx"
        service = start(notify_url=f"{target.url}/{SECRET}?+x={SECRET}", constants=QUICK)
        with service.client() as client:
            put(client, "a")
            wait_until(lambda: sent(client, "failed") == 1)
        service.stop()
        assert SECRET not in service.log()


@pytest.mark.databases("postgresql")
class TestReplicas:
    def test_a_change_and_an_observation_are_notified_once(
        self, start_in_process: StartInProcess, tmp_path: Path, target: NoticeReceiver, clock: RunningClock
    ) -> None:
        services = [start_in_process(tmp_path, clock=clock, notify_url=target.url) for _ in range(2)]
        one, other = (service.client() for service in services)
        expected: list[str] = []

        def expect(title: str) -> None:
            expected.append(f"blocklist: {title}")
            target.wait_for(*expected, until=services[0].until)

        register(one, "slurm", role=RM, leaseSeconds=3600)
        register(one, "app", leaseSeconds=3600)
        for number, client in enumerate((one, other, one, other)):
            put(client, f"n{number}", cause=str(number))
            expect(f"n{number} blocked")
        heartbeat(other, "slurm", unschedulable={"x": "DOWN"})
        expect("x not as the list says")
        revision = put(other, "e", action=EVACUATE, cause="e")
        expect("e blocked (with evacuation)")
        heartbeat(one, "slurm", ackedRevision=revision)
        heartbeat(other, "app", ackedRevision=revision, taskManagers={})
        expect("e evacuated: nothing runs there any more")

    @pytest.mark.parametrize("killed", [0, pytest.param(1, marks=pytest.mark.long)])
    def test_the_other_replica_goes_on_when_one_is_killed(
        self, start_replicas: StartReplicas, target: NoticeReceiver, killed: int
    ) -> None:
        quick = QUICK | QUICK_LEASE | dict.fromkeys(OBSERVE_SECONDS, 0.5)
        replicas = start_replicas(notify_url=target.url, constants=quick)
        client = replicas.clients[1 - killed]
        register(client, "slurm", role=RM, leaseSeconds=600)
        heartbeat(client, "slurm", unschedulable={"x": "DOWN"})
        target.wait_for("blocklist: x not as the list says")
        replicas.processes[killed].kill()
        states = {"x": "DOWN"}

        def notified() -> bool:
            """A node more each time: what is observed before the takeover is not notified."""
            states[f"y{len(states)}"] = "DOWN"
            heartbeat(client, "slurm", unschedulable=states)
            return any("Nodes: y" in body for _, body in target.notices)

        wait_until(notified)
        assert sum("Nodes: x" in body for _, body in target.notices) == 1


class TestStart:
    def test_a_wrong_url_is_reported_by_its_position(self, database_url: str) -> None:
        urls = f"json://127.0.0.1/ok,slack://{SECRET}"
        done = run_app(env=environment(notify_url=urls, database_url=database_url, port="0"))
        assert done.returncode == 2
        assert "BLOCKLIST_NOTIFY_URL: URL 2 is not one that apprise accepts" in done.stderr
        assert SECRET not in done.stderr + done.stdout
        assert "Traceback" not in done.stderr

    def test_without_the_setting_apprise_is_not_imported(self, migrated: Path, tmp_path: Path) -> None:
        (tmp_path / "sitecustomize.py").write_text(
            "import sys\n"
            "class Away:\n"
            "    def find_spec(self, name, path=None, target=None):\n"
            "        if name in {'apprise', 'requests'}:\n"
            "            raise ModuleNotFoundError(name=name)\n"
            "sys.meta_path.insert(0, Away())\n"
        )
        hidden = {"PYTHONPATH": str(tmp_path)}
        done = run_app("openapi", env=environment(database_url=url_of(migrated)) | hidden, forked=False)
        assert done.returncode == 0, done.stderr
        env = environment(database_url=url_of(migrated), port="0", notify_url=f"json://127.0.0.1/{SECRET}") | hidden
        done = run_app(env=env, forked=False)
        assert done.returncode == 2
        assert "BLOCKLIST_NOTIFY_URL: this needs one more package: pip install apprise" in done.stderr
        assert SECRET not in done.stderr
