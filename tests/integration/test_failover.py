"""A standby takes over from a PostgreSQL that is gone: nobody has to help the services, nor their watchers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import httpx
import pytest

from tests.integration.bodies import all_changes, block, held
from tests.integration.event_stream import changes, take, watching
from tests.integration.process import ServiceProcess, environment, free_port, run_app, wait_until
from tests.integration.receiver import Receiver
from tests.integration.test_start import refused
from tests.integration.writer import writing
from tests.postgres import PostgresServer
from tests.proxy import Proxy

DATABASE: Final = "blocklist"


@dataclass
class Pair:
    """Two servers; services know both, or go by an address that moves from the one to the other."""

    primary: PostgresServer
    standby: PostgresServer
    address: Proxy
    folder: Path
    stack: ExitStack = field(default_factory=ExitStack)

    def both(self) -> str:
        """The URL that names both; the one that takes writes is meant."""
        alone = self.primary.url(DATABASE)
        return alone.replace(f":{self.primary.port}/", f":{self.primary.port},127.0.0.1:{self.standby.port}/")

    def moving(self) -> str:
        """The URL of the address that moves."""
        return self.primary.url(DATABASE).replace(f":{self.primary.port}/", f":{self.address.port}/")

    def service(self, url: str | None = None) -> ServiceProcess:
        """A replica, in the beginning on the primary."""
        folder = self.folder / f"service-{free_port()}"
        folder.mkdir()
        return self.stack.enter_context(ServiceProcess(folder, database_url=url or self.both()))

    def fall_behind(self) -> None:
        """From now on the standby misses what happens."""
        self.standby.stop()

    def fail_over(self) -> None:
        """The primary dies, and the standby takes its place."""
        self.primary.kill()
        if not self.standby.running:
            self.standby.start()
        self.standby.promote()
        self.address.target = self.standby.port


@contextmanager
def pair_of_servers(folder: Path) -> Iterator[Pair]:
    with PostgresServer() as primary:
        done = run_app("migrate", env=environment(database_url=primary.create(DATABASE)))
        assert done.returncode == 0, done.stderr
        with primary.standby() as standby, Proxy(primary.port) as address:
            pair = Pair(primary, standby, address, folder)
            with pair.stack:
                yield pair


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    with pair_of_servers(tmp_path) as pair:
        yield pair


def history_of(client: httpx.Client) -> str:
    return client.get("/blocklist").headers["blocklist-history"]


@pytest.mark.parametrize("url", [Pair.both, Pair.moving])
def test_with_synchronous_replication_nothing_acknowledged_is_lost(pair: Pair, url: Callable[[Pair], str]) -> None:
    pair.primary.synchronous(True)
    services = [pair.service(url(pair)) for _ in range(2)]
    client, other = (pair.stack.enter_context(service.client()) for service in services)
    history = history_of(client)
    with writing(*services) as writers, watching(client, since=0) as events, watching(other, since=0) as others:
        writers.go_on()
        pair.fail_over()
        writers.go_on()
        revision = held(other)[0]
        seen = [changes(take(stream, revision)) for stream in (events, others)]
    log = all_changes(client, minRevision=max(writers.acknowledged))
    writers.check(log)
    assert seen == [log[:revision], log[:revision]]
    assert (history_of(client), history_of(other)) == (history, history)


def test_a_standby_that_was_behind_begins_a_new_history(pair: Pair, receiver: Receiver) -> None:
    """What was told of the lost changes is told anew: watchers and listeners get the whole list as it is."""
    service = pair.service()
    client = pair.stack.enter_context(service.client())
    client.put("/blocklist/nodes/kept", json=block()).raise_for_status()
    wait_until(lambda: pair.standby.execute("SELECT revision FROM log_head", DATABASE) == [(1,)])
    pair.fall_behind()
    client.put("/blocklist/nodes", json={"lost": block(), "lost-too": block()}).raise_for_status()
    receiver.register(client, "driver")
    wait_until(lambda: set(receiver.nodes) == {"kept", "lost", "lost-too"})
    history = history_of(client)
    with watching(client, since=0) as events:
        last = take(events, 3)[-1]
        pair.fail_over()
        assert [event.event for event in events] == ["bye"]
    with watching(client, last_event_id=last.id) as events:
        (snapshot,) = take(events, 1)
        assert (snapshot.event, list(snapshot.json()["nodes"])) == ("snapshot", ["kept"])
        assert snapshot.json()["history"] == history_of(client) != history
        wait_until(lambda: client.put("/blocklist/nodes/next", json=block(allowMerge=True)).is_success)
        assert take(events, 1)[0].json()["node"]["id"] == "next"
    assert list(held(client)[1]) == ["kept", "next"]
    assert "a new history begins" in service.log()


def test_a_replica_that_slept_meanwhile_sees_that_the_revision_it_knows_is_another(pair: Pair) -> None:
    sleeper = pair.service()
    one = pair.stack.enter_context(sleeper.client())
    pair.fall_behind()
    one.put("/blocklist/nodes/lost", json=block()).raise_for_status()
    sleeper.pause()
    pair.fail_over()
    # Another service, that never saw the lost change, makes one with the same revision.
    late = pair.stack.enter_context(pair.service().client())
    late.put("/blocklist/nodes/other", json=block()).raise_for_status()
    history = history_of(late)
    sleeper.resume()
    wait_until(lambda: list(held(one)[1]) == ["other"])
    wait_until(lambda: history_of(one) == history_of(late) != history)


def test_a_standby_is_not_served(pair: Pair) -> None:
    done = run_app(env=environment(database_url=pair.standby.url(DATABASE), port=str(free_port())))
    refused(done, "standby")
    assert done.returncode == 2


def test_while_the_synchronous_standby_stands_still_changes_wait_in_vain_and_then_go_on(pair: Pair) -> None:
    pair.primary.synchronous(True)
    service = pair.service()
    client = pair.stack.enter_context(service.client())
    client.put("/blocklist/nodes/a", json=block()).raise_for_status()
    pair.standby.freeze()
    for number in range(10):
        answer = client.put(f"/blocklist/nodes/b{number}", json=block())
        assert answer.status_code == 503, answer.text
        assert list(held(client)[1]) == ["a"]
    pair.standby.thaw()
    wait_until(lambda: client.put("/blocklist/nodes/c", json=block(allowMerge=True)).is_success)
    log = all_changes(client)
    assert [change["revision"] for change in log] == list(range(1, len(log) + 1))
