"""Replicas on one database, and the faults that can be injected into them and into the database."""

from __future__ import annotations

import random
import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from tests.chaos.replica import ChaosReplica
from tests.faulty_proxy import FaultyProxy
from tests.integration.process import url_of
from tests.postgres import PostgresServer

_DELAY_SECONDS: Final = 0.1
"""Delay of a slow connection, each way."""
_START_SECONDS: Final = 0.8
"""Until a start is over: so long a start may run before it is killed."""

Fault = Callable[[], AbstractContextManager[None]]
"""A context manager: the fault lasts while it is entered."""


@dataclass(frozen=True)
class FaultTarget:
    """A process or connection that has one fault at a time, with at most `max_interval_seconds` between two."""

    name: str
    max_interval_seconds: float
    faults: Mapping[str, Fault]
    max_fault_seconds: float = 5.0


@dataclass(frozen=True)
class Cluster:
    """Several targets may have faults at the same time."""

    replicas: Sequence[ChaosReplica]
    fault_targets: Sequence[FaultTarget]

    @property
    def urls(self) -> list[str]:
        return [replica.url for replica in self.replicas]


def running_cluster(folder: Path, replicas: int, *, kills: bool = False) -> AbstractContextManager[Cluster]:
    """A number of replicas on PostgreSQL; for 0 one service on SQLite, which with `kills` has no other faults."""
    return _on_postgres(folder, replicas) if replicas else _on_sqlite(folder, kills=kills)


@contextmanager
def _on_sqlite(folder: Path, *, kills: bool) -> Iterator[Cluster]:
    database = folder / "blocklist.db"
    replica = ChaosReplica(folder / "replica-0", url_of(database))
    replica.migrate()
    target = FaultTarget("replica 0", 5, _process_faults(replica))
    if kills:
        target = FaultTarget("replica 0", 2, _kills(replica), max_fault_seconds=0.2)
    with replica:
        yield Cluster([replica], [target])
    with closing(sqlite3.connect(database)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


@contextmanager
def _on_postgres(folder: Path, number: int) -> Iterator[Cluster]:
    with ExitStack() as stack:
        server = stack.enter_context(PostgresServer(durable=True))
        url = server.create("chaos")
        # Each replica connects through its own proxy.
        wires = [stack.enter_context(FaultyProxy(server.port)) for _ in range(number)]
        replicas = [
            ChaosReplica(folder / f"replica-{place}", url.replace(f":{server.port}/", f":{wire.port}/"))
            for place, wire in enumerate(wires)
        ]
        replicas[0].migrate()
        for replica in replicas:
            stack.enter_context(replica)
        victims = [
            FaultTarget(f"replica {place}", 5, _process_faults(replica) | _network_faults(wire))
            for place, (replica, wire) in enumerate(zip(replicas, wires, strict=True))
        ]
        yield Cluster(replicas, [*victims, FaultTarget("database", 15, _database_faults(server))])


def _process_faults(replica: ChaosReplica) -> dict[str, Fault]:
    return _kills(replica) | {
        "stopped": partial(_fault, replica.stop, replica.start_supervised),
        "paused": partial(_fault, replica.pause, replica.resume),
    }


def _kills(replica: ChaosReplica) -> dict[str, Fault]:
    def kill_and_again_in_its_start() -> None:
        replica.kill()
        replica.launch()
        time.sleep(random.uniform(0, _START_SECONDS))
        replica.kill()

    return {
        "killed": partial(_fault, replica.kill, replica.start_supervised),
        "killed in its start": partial(_fault, kill_and_again_in_its_start, replica.start_supervised),
    }


def _network_faults(wire: FaultyProxy) -> dict[str, Fault]:
    return {
        "disconnected": partial(_fault, wire.drop_connections, wire.restore),
        "refused": partial(_fault, wire.refuse_connections, wire.restore),
        "silenced": partial(_fault, wire.blackhole, wire.restore),
        "without answers": partial(_fault, wire.drop_responses, wire.restore),
        "held up": partial(_fault, wire.stall, wire.restore),
        "slow": partial(_fault, partial(wire.delay, _DELAY_SECONDS), wire.restore),
    }


def _database_faults(server: PostgresServer) -> dict[str, Fault]:
    return {
        "killed": partial(_fault, server.kill, server.start),
        "stopped": partial(_fault, server.stop, server.start),
        "frozen": partial(_fault, server.freeze, server.thaw),
    }


@contextmanager
def _fault(begin: Callable[[], object], end: Callable[[], object]) -> Iterator[None]:
    begin()
    try:
        yield
    finally:
        end()
