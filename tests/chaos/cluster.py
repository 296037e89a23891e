"""Replicas on one database, and the faults that can be injected into them and into the database."""

from __future__ import annotations

import random
import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Final

from tests.chaos.actors import ALERT_DURATION_MS, RACKS
from tests.chaos.faults import Fault, FaultTarget
from tests.chaos.replica import ChaosReplica
from tests.faulty_proxy import FaultyProxy
from tests.integration.process import url_of
from tests.postgres import PostgresServer

_DELAY_SECONDS: Final = 0.1
"""Delay of a slow connection, each way."""
_START_SECONDS: Final = 0.8
"""Until a start is over: so long a start may run before it is killed."""


class Faults(StrEnum):
    """Which faults there are. FEW leave the replicas what they know of evidence, which a kill makes them forget."""

    ALL = "all"
    KILLS = "kills"
    FEW = "few"


@dataclass(frozen=True)
class Cluster:
    """Several targets may have faults at the same time."""

    replicas: Sequence[ChaosReplica]
    fault_targets: Sequence[FaultTarget]

    @property
    def urls(self) -> list[str]:
        return [replica.url for replica in self.replicas]


@contextmanager
def running_cluster(folder: Path, replicas: int, faults: Faults = Faults.ALL) -> Iterator[Cluster]:
    """A number of replicas on PostgreSQL; for 0 one service on SQLite, whose file is checked afterwards."""
    nodes_file = folder / "nodes.csv"
    nodes_file.write_text("\n".join(["id,labels", *(f"{it},rack={rack}" for rack in RACKS for it in RACKS[rack])]))
    settings = {
        "nodes_file": str(nodes_file),
        "alertmanager_duration": f"{ALERT_DURATION_MS // 1000}s",
        "evidence_max_share": "1",
        # The reference model has no repeated blocks.
        "repeat_window": "0s",
    }
    with ExitStack() as stack:
        targets = []
        if replicas:
            server = stack.enter_context(PostgresServer(durable=True))
            url = server.create("chaos")
            # Each replica connects through its own proxy.
            wires = [stack.enter_context(FaultyProxy(server.port)) for _ in range(replicas)]
            urls = [url.replace(f":{server.port}/", f":{wire.port}/") for wire in wires]
            if faults is Faults.ALL:
                targets.append(FaultTarget("database", 15, _database_faults(server)))
        else:
            wires, urls = [], [url_of(folder / "blocklist.db")]
            stack.callback(_check_sqlite, folder / "blocklist.db")
        running = [ChaosReplica(folder / f"replica-{place}", url, **settings) for place, url in enumerate(urls)]
        running[0].migrate()
        for place, replica in enumerate(running):
            stack.enter_context(replica)
            targets.append(_target(replica, f"replica {place}", wires[place : place + 1], faults))
        yield Cluster(running, targets)


def _target(replica: ChaosReplica, name: str, wires: Sequence[FaultyProxy], faults: Faults) -> FaultTarget:
    if faults is Faults.KILLS:
        return FaultTarget(name, 2, _kills(replica), max_fault_seconds=0.2)
    if faults is Faults.FEW:
        return FaultTarget(name, 120, _process_faults(replica), max_fault_seconds=3)
    found = _process_faults(replica)
    for wire in wires:
        found |= _network_faults(wire)
    return FaultTarget(name, 5, found)


def _check_sqlite(database: Path) -> None:
    with closing(sqlite3.connect(database)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


def _process_faults(replica: ChaosReplica) -> dict[str, Fault]:
    return _kills(replica) | {
        "stopped": partial(_fault, replica.stop, replica.start_supervised),
        "paused": replica.paused,
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
