"""Replicas on one database, and what can go wrong with each of them and with it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from tests.chaos.replica import Replica
from tests.integration.process import url_of
from tests.postgres import PostgresServer
from tests.proxy import Proxy

_LAG: Final = 0.1
"""Seconds that a slow wire adds, each way."""

Fault = Callable[[], AbstractContextManager[None]]
"""Something is wrong while it is entered, and well again after it."""


@dataclass(frozen=True)
class Victim:
    """To whom one fault at a time may happen, with at most `peace` seconds between two."""

    name: str
    peace: float
    faults: Mapping[str, Fault]


@dataclass(frozen=True)
class Cluster:
    """Faults may happen to several victims at once."""

    replicas: Sequence[Replica]
    victims: Sequence[Victim]

    @property
    def urls(self) -> list[str]:
        return [replica.url for replica in self.replicas]


def cluster_of(folder: Path, replicas: int) -> AbstractContextManager[Cluster]:
    """So many replicas on PostgreSQL; none is the service alone, on SQLite."""
    return _on_postgres(folder, replicas) if replicas else _on_sqlite(folder)


@contextmanager
def _on_sqlite(folder: Path) -> Iterator[Cluster]:
    replica = Replica(folder / "replica-0", url_of(folder / "blocklist.db"))
    replica.migrate()
    with replica:
        yield Cluster([replica], [Victim("replica 0", 5, _of_process(replica))])


@contextmanager
def _on_postgres(folder: Path, number: int) -> Iterator[Cluster]:
    with ExitStack() as stack:
        server = stack.enter_context(PostgresServer(durable=True))
        url = server.create("chaos")
        # Each replica has a wire of its own, which can be cut.
        wires = [stack.enter_context(Proxy(server.port)) for _ in range(number)]
        replicas = [
            Replica(folder / f"replica-{place}", url.replace(f":{server.port}/", f":{wire.port}/"))
            for place, wire in enumerate(wires)
        ]
        replicas[0].migrate()
        for replica in replicas:
            stack.enter_context(replica)
        victims = [
            Victim(f"replica {place}", 5, _of_process(replica) | _of_wire(wire))
            for place, (replica, wire) in enumerate(zip(replicas, wires, strict=True))
        ]
        yield Cluster(replicas, [*victims, Victim("database", 15, _of_database(server))])


def _of_process(replica: Replica) -> dict[str, Fault]:
    return {
        "killed": partial(_between, replica.kill, replica.revive),
        "stopped": partial(_between, replica.stop, replica.revive),
        "paused": partial(_between, replica.pause, replica.resume),
    }


def _of_wire(wire: Proxy) -> dict[str, Fault]:
    return {
        "disconnected": partial(_between, wire.cut, wire.restore),
        "refused": partial(_between, wire.refuse, wire.restore),
        "silenced": partial(_between, wire.silence, wire.restore),
        "without answers": partial(_between, wire.lose_answers, wire.restore),
        "held up": partial(_between, wire.hold, wire.restore),
        "slow": partial(_between, partial(wire.delay, _LAG), wire.restore),
    }


def _of_database(server: PostgresServer) -> dict[str, Fault]:
    return {
        "killed": partial(_between, server.kill, server.start),
        "stopped": partial(_between, server.stop, server.start),
        "frozen": partial(_between, server.freeze, server.thaw),
    }


@contextmanager
def _between(begin: Callable[[], object], end: Callable[[], object]) -> Iterator[None]:
    begin()
    try:
        yield
    finally:
        end()
