"""A whole estate: drivers on three replicas that share a PostgreSQL; one block, a replica that restarts, and all three.

`make bench-estate [DRIVERS=10000]`. A driver does what the agent does: it waits for the next table with
`Prefer: wait=50`, sends a heartbeat every ten seconds and one within a second of a new table, which acknowledges it.
After a failure it tries again as `spark-agent/…/Loop.java` does, and registers again before its next heartbeat, as
`ReportLoop.java` does. Each try goes to any replica that accepts it, as behind a load balancer.
"""

import json
import os
import random
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks import systems
from benchmarks.estate_drivers import Crowd, crowd
from benchmarks.harness import CORES, Server, fetch, in_background, running, scratch, unless_quick
from benchmarks.rows import Row, Target, at_most
from benchmarks.sampling import cpu_seconds, megabytes
from tests.integration.process import free_port
from tests.postgres import PostgresServer

DRIVERS = int(os.environ.get("DRIVERS") or unless_quick(10_000, 600))
"""As many as two cores carry, with replicas, database and drivers on them."""
NODES, BLOCKED = unless_quick(100_000, 2_000), unless_quick(10_000, 200)
REPLICAS = 3
REST = unless_quick(10.0, 2.0)  # seconds
OTHERS_PAUSE = 5.0  # seconds between two changes of somebody else while replicas restart
TIMEOUT = unless_quick(300.0, 40.0)  # seconds
PER_REQUEST = 1_000
OURS = "3 replicas"


@dataclass
class _Replica:
    """A replica that can be stopped and started on its port."""

    folder: Path
    settings: dict[str, str]
    port: int = field(default_factory=free_port)
    server: Server | None = None
    _running: ExitStack = field(default_factory=ExitStack)

    def start(self) -> None:
        """Returns when it is ready."""
        self.folder.mkdir(exist_ok=True)
        environment = {**self.settings, "BLOCKLIST_PORT": str(self.port)}
        log = self.folder / "service.log"
        context = running(systems.SERVICE, port=self.port, ready="/readyz", log=log, env=environment, cores=CORES)
        self.server = self._running.enter_context(context)

    def stop(self) -> None:
        """Returns when it has ended."""
        self.server = None
        self._running.close()


class _Others:
    """Somebody else changes the list meanwhile: the seconds that each change took, retried where it was refused."""

    def __init__(self, replicas: Sequence[_Replica]) -> None:
        self._ports = [replica.port for replica in replicas]
        self.seconds: list[float] = []

    def change(self, done: threading.Event) -> None:
        """A node every few seconds. A replica that does not answer is not counted, but the next one is asked."""
        number = 0
        while not done.is_set():
            number += 1
            for port in random.sample(self._ports, len(self._ports)):
                begun = time.perf_counter()
                if _put(port, f"other-{number}-{time.time_ns()}"):
                    self.seconds.append(time.perf_counter() - begun)
                    break
            done.wait(OTHERS_PAUSE)


def run() -> list[Row]:
    """Return all rows: at rest, a change, and restarts."""
    with scratch() as folder, ExitStack() as stack:
        replicas, database = stack.enter_context(_replicas(folder))
        before = [megabytes(each.server.pid) for each in replicas if each.server]
        drivers = stack.enter_context(crowd(DRIVERS, [each.port for each in replicas]))
        drivers.wait_until(lambda: drivers.waiting == drivers.registered == DRIVERS, TIMEOUT)
        after = [megabytes(each.server.pid) for each in replicas if each.server]
        kilobytes = (sum(after) - sum(before)) * 1000 / DRIVERS
        name = f"{DRIVERS:,} drivers, {NODES:,} nodes, {BLOCKED:,} blocked"
        return [
            _row(f"{name}: memory of the replicas per driver", "kB", kilobytes),
            _row(f"{name}: memory of a replica", "MB", max(after)),
            *_at_rest(name, replicas, database),
            *_change(name, replicas, database, drivers),
            *_restart(f"{name}: a replica restarts", replicas[:1], replicas, drivers),
            *_restart(f"{name}: all restart at once", replicas, replicas, drivers),
        ]


def _row(name: str, unit: str, value: float, *targets: Target) -> Row:
    return Row(name=name, unit=unit, ours=OURS, samples={OURS: [value]}, targets=list(targets))


@contextmanager
def _replicas(folder: Path) -> Iterator[tuple[list[_Replica], PostgresServer]]:
    inventory = folder / "nodes.csv"
    lines = (f"worker-{n:06d},,10.{n >> 16}.{n >> 8 & 255}.{n & 255},rack=r{n // 40}\n" for n in range(NODES))
    inventory.write_text("id,names,addresses,labels\n" + "".join(lines))
    with ExitStack() as stack:
        database = stack.enter_context(systems.postgres(cores=CORES))
        settings = {
            systems.DATABASE: database.create("estate"),
            "BLOCKLIST_NODES_FILE": str(inventory),
            "BLOCKLIST_MAX_CONNECTIONS": "18000",
            "BLOCKLIST_MAX_WAITS_PER_CLIENT": str(DRIVERS),
            "BLOCKLIST_MAX_LISTENERS_PER_TOKEN": str(DRIVERS),
        }
        replicas = [_Replica(folder / f"replica-{number}", settings) for number in range(REPLICAS)]
        systems.migrate(settings)
        for replica in replicas:
            replica.start()
            stack.callback(replica.stop)
        _block(replicas[0].port)
        yield replicas, database


def _block(port: int) -> None:
    for first in range(0, BLOCKED, PER_REQUEST):
        numbers = range(first, min(first + PER_REQUEST, BLOCKED))
        nodes = {f"worker-{number:06d}": {"action": "MARK_BLOCKED", "cause": "Disk errors"} for number in numbers}
        status, _, body = fetch(port, "/blocklist/nodes", method="PUT", body=json.dumps(nodes))
        if status != 200:
            raise RuntimeError(f"{body[:200]!r}")


def _put(port: int, node: str) -> int | None:
    """Return the revision; None without an answer, or with 503."""
    body = json.dumps({"action": "MARK_BLOCKED", "cause": "Disk errors"})
    try:
        status, headers, _ = fetch(port, f"/blocklist/nodes/{node}", method="PUT", body=body)
    except OSError:
        return None
    return int(headers["blocklist-revision"]) if status == 201 else None


def _cpu(replicas: Sequence[_Replica]) -> float:
    return sum(cpu_seconds(each.server.pid) for each in replicas if each.server)


def _at_rest(name: str, replicas: Sequence[_Replica], database: PostgresServer) -> list[Row]:
    """For waiting requests and heartbeats of all drivers."""
    before, of_database = _cpu(replicas), cpu_seconds(database.pid)
    time.sleep(REST)
    used, used_by_database = _cpu(replicas) - before, cpu_seconds(database.pid) - of_database
    return [
        _row(f"{name}: CPU at rest", "% of one core", used / REST * 100),
        _row(f"{name}: CPU of PostgreSQL at rest", "% of one core", used_by_database / REST * 100),
    ]


def _change(name: str, replicas: Sequence[_Replica], database: PostgresServer, drivers: Crowd) -> list[Row]:
    cpu, of_database, begun = _cpu(replicas), cpu_seconds(database.pid), time.perf_counter()
    revision = _put(replicas[0].port, "changing")
    assert revision is not None
    received = drivers.seconds_until(lambda: drivers.count_received(revision) == DRIVERS, begun, TIMEOUT)
    acknowledged = drivers.seconds_until(lambda: drivers.count_acknowledged(revision) == DRIVERS, begun, TIMEOUT)
    return [
        _row(f"{name}: one block, until all have it", "s", received, at_most(5)),
        _row(f"{name}: one block, until all have acknowledged it", "s", acknowledged),
        _row(f"{name}: one block, CPU of the replicas", "s", _cpu(replicas) - cpu),
        _row(f"{name}: one block, CPU of PostgreSQL", "s", cpu_seconds(database.pid) - of_database),
    ]


def _restart(name: str, stopped: Sequence[_Replica], all_: Sequence[_Replica], drivers: Crowd) -> list[Row]:
    """Until every driver that lost its connection waits again, and is registered again; and what others noticed."""
    others = _Others(all_)
    failed, cpu = drivers.failed, _cpu([each for each in all_ if each not in stopped])
    with in_background(others.change):
        begun = time.perf_counter()
        _at_once(each.stop for each in stopped)
        _at_once(each.start for each in stopped)
        ready = time.perf_counter() - begun
        served = drivers.seconds_until(lambda: drivers.waiting == DRIVERS, begun, TIMEOUT)
        registered = drivers.seconds_until(lambda: drivers.registered == DRIVERS, begun, TIMEOUT)
    return [
        _row(f"{name}: until it is ready", "s", ready),
        _row(f"{name}: until all drivers are served", "s", served, at_most(30)),
        _row(f"{name}: until all drivers are registered again", "s", registered),
        _row(f"{name}: CPU of the replicas until then", "s", _cpu(all_) - cpu),
        _row(f"{name}: responses that no driver retries", "", drivers.failed - failed, at_most(0)),
        _row(f"{name}: slowest change of others", "s", max(others.seconds, default=0.0), at_most(1)),
    ]


def _at_once(works: Iterable[Callable[[], None]]) -> None:
    threads = [threading.Thread(target=work) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
