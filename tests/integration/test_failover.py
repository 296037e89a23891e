"""Failover to a standby: services and watchers recover without help."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import httpx
import pytest

from tests.faulty_proxy import FaultyProxy
from tests.integration.background_writers import writing
from tests.integration.bodies import all_changes, block, current_list
from tests.integration.event_stream import changes, next_events, watching
from tests.integration.process import ServiceProcess, environment, free_port, run_app, wait_until
from tests.integration.receiver import Receiver
from tests.integration.test_start import assert_refused
from tests.postgres import PostgresServer

DATABASE: Final = "blocklist"


@dataclass
class PrimaryAndStandby:
    """Two servers; services know both, or use a floating address."""

    primary: PostgresServer
    standby: PostgresServer
    floating_address: FaultyProxy
    folder: Path
    stack: ExitStack = field(default_factory=ExitStack)

    def multi_host_url(self) -> str:
        """A URL with both hosts: libpq selects the primary."""
        alone = self.primary.url(DATABASE)
        return alone.replace(f":{self.primary.port}/", f":{self.primary.port},127.0.0.1:{self.standby.port}/")

    def floating_url(self) -> str:
        """The URL with the floating address."""
        return self.primary.url(DATABASE).replace(f":{self.primary.port}/", f":{self.floating_address.port}/")

    def start_service(self, url: str | None = None) -> ServiceProcess:
        """Start a service, at first on the primary."""
        folder = self.folder / f"service-{free_port()}"
        folder.mkdir()
        return self.stack.enter_context(ServiceProcess(folder, database_url=url or self.multi_host_url()))

    def stop_standby(self) -> None:
        """Stop replication: the standby falls behind."""
        self.standby.stop()

    def fail_over(self) -> None:
        """Kill the primary, and promote the standby."""
        self.primary.kill()
        if not self.standby.running:
            self.standby.start()
        self.standby.promote()
        self.floating_address.target = self.standby.port


@contextmanager
def primary_and_standby(folder: Path) -> Iterator[PrimaryAndStandby]:
    with PostgresServer() as primary:
        done = run_app("migrate", env=environment(database_url=primary.create(DATABASE)))
        assert done.returncode == 0, done.stderr
        with primary.standby() as standby, FaultyProxy(primary.port) as address:
            pair = PrimaryAndStandby(primary, standby, address, folder)
            with pair.stack:
                yield pair


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[PrimaryAndStandby]:
    with primary_and_standby(tmp_path) as pair:
        yield pair


def history_of(client: httpx.Client) -> str:
    return client.get("/blocklist").headers["blocklist-history"]


@pytest.mark.parametrize("url", [PrimaryAndStandby.multi_host_url, PrimaryAndStandby.floating_url])
def test_with_synchronous_replication_nothing_acknowledged_is_lost(
    pair: PrimaryAndStandby, url: Callable[[PrimaryAndStandby], str]
) -> None:
    pair.primary.set_synchronous(True)
    services = [pair.start_service(url(pair)) for _ in range(2)]
    client, other = (pair.stack.enter_context(service.client()) for service in services)
    history = history_of(client)
    with writing(*services) as writers, watching(client, since=0) as events, watching(other, since=0) as others:
        writers.wait_for_more()
        pair.fail_over()
        writers.wait_for_more()
        seen = [list(stream) for stream in (events, others)]
    log = all_changes(client, minRevision=max(writers.acknowledged))
    writers.assert_all_in_log(log)
    for *before, last in seen:
        assert changes(before) == log[: len(before)]
        assert last.event == "bye"
    # No replica can know that none of the others' changes was lost.
    assert history_of(client) == history_of(other) != history


def test_failover_to_a_standby_that_was_behind_starts_a_new_history(
    pair: PrimaryAndStandby, receiver: Receiver
) -> None:
    """Watchers and listeners get the whole list, without the lost changes."""
    service = pair.start_service()
    client = pair.stack.enter_context(service.client())
    receiver.register(client, "driver")
    client.put("/blocklist/nodes/kept", json=block()).raise_for_status()
    receiver.wait(lambda it: it.has(1))
    wait_until(lambda: pair.standby.execute("SELECT revision FROM log_head", DATABASE) == [(1,)])
    pair.stop_standby()
    client.put("/blocklist/nodes", json={"lost": block(), "lost-too": block()}).raise_for_status()
    wait_until(lambda: set(receiver.nodes) == {"kept", "lost", "lost-too"})
    history = history_of(client)
    with watching(client, since=0) as events:
        last = next_events(events, 3)[-1]
        pair.fail_over()
        assert [event.event for event in events] == ["bye"]
    with watching(client, last_event_id=last.id) as events:
        (snapshot,) = next_events(events, 1)
        assert (snapshot.event, list(snapshot.json()["nodes"])) == ("snapshot", ["kept"])
        assert snapshot.json()["history"] == history_of(client) != history
        wait_until(lambda: client.put("/blocklist/nodes/next", json=block(allowMerge=True)).is_success)
        assert next_events(events, 1)[0].json()["node"]["id"] == "next"
    receiver.wait(lambda it: set(it.nodes) == {"kept", "next"})
    assert (receiver.history, receiver.applied[0].body["history"]) == (history_of(client), history)
    assert list(current_list(client)[1]) == ["kept", "next"]
    assert "starting a new history" in service.log()


def test_a_replica_paused_during_a_failover_detects_a_reused_revision(pair: PrimaryAndStandby) -> None:
    # As on a server that does not report its timeline.
    pair.primary.execute("REVOKE EXECUTE ON FUNCTION pg_current_wal_lsn() FROM PUBLIC", DATABASE)
    sleeper = pair.start_service()
    one = pair.stack.enter_context(sleeper.client())
    pair.stop_standby()
    one.put("/blocklist/nodes/lost", json=block()).raise_for_status()
    sleeper.pause()
    pair.fail_over()
    # Another service, which never read the lost change, makes one with the same revision.
    late = pair.stack.enter_context(pair.start_service().client())
    late.put("/blocklist/nodes/other", json=block()).raise_for_status()
    history = history_of(late)
    sleeper.resume()
    wait_until(lambda: list(current_list(one)[1]) == ["other"])
    wait_until(lambda: history_of(one) == history_of(late) != history)


def test_a_lossy_failover_that_no_running_replica_saw_starts_one_new_history(
    pair: PrimaryAndStandby, receiver: Receiver
) -> None:
    """Otherwise other changes would get the revisions of the lost ones."""
    former = pair.start_service()
    client = pair.stack.enter_context(former.client())
    receiver.register(client, "driver")
    client.put("/blocklist/nodes/kept", json=block()).raise_for_status()
    receiver.wait(lambda it: it.has(1))
    wait_until(lambda: pair.standby.execute("SELECT acked FROM listeners", DATABASE) == [(1,)])
    pair.stop_standby()
    client.put("/blocklist/nodes", json={"lost": block(), "lost-too": block()}).raise_for_status()
    receiver.wait(lambda it: it.has(3))
    history = history_of(client)
    with watching(client, since=0) as events:
        last = next_events(events, 3)[-1]
    former.kill()
    pair.fail_over()
    services = [pair.start_service() for _ in range(2)]
    clients = [pair.stack.enter_context(service.client()) for service in services]
    clients[0].put("/blocklist/nodes/next", json=block()).raise_for_status()
    assert history_of(clients[0]) == history_of(clients[1]) != history
    wait_until(lambda: "next" in current_list(clients[1])[1])
    for one in clients:
        with watching(one, last_event_id=last.id) as events:
            (snapshot,) = next_events(events, 1)
        assert (snapshot.event, sorted(snapshot.json()["nodes"])) == ("snapshot", ["kept", "next"])
        assert snapshot.json()["history"] == history_of(one)
    receiver.wait(lambda it: set(it.nodes) == {"kept", "next"})
    assert sum(service.log().count("starting a new history") for service in services) == 1


def test_a_standby_is_rejected_at_start(pair: PrimaryAndStandby) -> None:
    done = run_app(env=environment(database_url=pair.standby.url(DATABASE), port=str(free_port())))
    assert_refused(done, "standby")
    assert done.returncode == 2


def test_changes_time_out_while_the_synchronous_standby_is_frozen(pair: PrimaryAndStandby) -> None:
    pair.primary.set_synchronous(True)
    service = pair.start_service()
    client = pair.stack.enter_context(service.client())
    client.put("/blocklist/nodes/a", json=block()).raise_for_status()
    pair.standby.freeze()
    for number in range(10):
        answer = client.put(f"/blocklist/nodes/b{number}", json=block())
        assert answer.status_code == 503, answer.text
        assert list(current_list(client)[1]) == ["a"]
    pair.standby.thaw()
    wait_until(lambda: client.put("/blocklist/nodes/c", json=block(allowMerge=True)).is_success)
    log = all_changes(client)
    assert [change["revision"] for change in log] == list(range(1, len(log) + 1))
