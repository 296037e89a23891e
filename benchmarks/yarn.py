"""The YARN manager: 1,000 nodes of which it blocks 100, on the answers of a simulated ResourceManager.

Then single containers, and a Spark job with the agent, on a real YARN of three nodes.
"""

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

from benchmarks import systems, yarn_containers, yarn_spark
from benchmarks.harness import Server, fetch, scratch, unless_quick
from benchmarks.rows import Row
from benchmarks.sampling import cpu_seconds, megabytes
from blocklist import BlocklistClient
from tests.integration.process import ROOT
from tests.yarn.cluster import YarnCluster
from tests.yarn.jars import yarn_classpath
from tests.yarn.simulated import SimulatedYarn, serving

NODES = unless_quick(1000, 100)
BLOCKED = NODES // 10
ROUNDS = unless_quick(7, 2)
OURS = "manager"
HOSTS = [f"w{number:04}.yarn.test" for number in range(NODES)]
IDLE_SECONDS = unless_quick(30, 5)


def run() -> list[Row]:
    """From the PUT of all blocks to the last label, and to the last container that ends; the cost at rest."""
    yarn = SimulatedYarn(HOSTS, containers=2)
    with scratch() as folder, ExitStack() as stack:
        service = stack.enter_context(systems.service(folder))
        url = stack.enter_context(serving(yarn))
        command = [sys.executable, "-m", "blocklist.managers", "yarn", "--url", service.url, "--resource-manager", url]
        manager = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.DEVNULL)
        try:
            _wait(lambda: yarn.requests["GET /nodes"] > 1)
            found = list(_rows(service, yarn, manager.pid))
        finally:
            manager.terminate()
            manager.wait(60)
        return [*found, *_real_rows(service, folder)]


def _real_rows(service: Server, folder: Path) -> list[Row]:
    with YarnCluster(_made(folder / "yarn"), yarn_classpath()) as yarn, BlocklistClient(service.url) as client:
        containers = yarn_containers.rows(yarn, client, service.url, folder)
        return [*containers, *yarn_spark.rows(yarn, client, service.url, _made(folder / "spark"))]


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder


def _rows(service: Server, yarn: SimulatedYarn, pid: int) -> Iterator[Row]:
    marked, evacuated, cpu = [], [], []
    for _ in range(ROUNDS):
        spent = cpu_seconds(pid)
        marked.append(_block(service, yarn, "MARK_BLOCKED"))
        _unblock(service, yarn)
        evacuated.append(_block(service, yarn, "MARK_BLOCKED_AND_EVACUATE_TASKS"))
        _unblock(service, yarn)
        cpu.append(cpu_seconds(pid) - spent)
        yarn.containers |= dict.fromkeys(HOSTS, 2)
    title = f"{BLOCKED} of {NODES:,} nodes"
    yield Row(name=f"{title}: PUT to the last label", unit="ms", ours=OURS, samples={OURS: marked})
    yield Row(name=f"{title}: PUT to the last container ended", unit="ms", ours=OURS, samples={OURS: evacuated})
    yield Row(name=f"{title}: CPU of both and their ends", unit="s", ours=OURS, samples={OURS: cpu})
    spent = cpu_seconds(pid)
    time.sleep(IDLE_SECONDS)
    share = (cpu_seconds(pid) - spent) / IDLE_SECONDS * 100
    yield Row(name=f"{NODES:,} nodes at rest: CPU", unit="% of a core", ours=OURS, samples={OURS: [share]})
    yield Row(name=f"{NODES:,} nodes: resident memory", unit="MB", ours=OURS, samples={OURS: [megabytes(pid)]})


def _block(service: Server, yarn: SimulatedYarn, action: str) -> float:
    """Milliseconds until all are marked, or have no containers."""
    hosts = HOSTS[:BLOCKED]
    body = json.dumps({host: {"action": action, "cause": "hot"} for host in hosts})
    begun = time.monotonic()
    status, *_ = fetch(service.port, "/blocklist/nodes", method="PUT", body=body)
    assert status < 300, status
    if action == "MARK_BLOCKED":
        _wait(lambda: len(yarn.marked()) == BLOCKED)
    else:
        _wait(lambda: not any(yarn.containers[host] for host in hosts))
    return (time.monotonic() - begun) * 1000


def _unblock(service: Server, yarn: SimulatedYarn) -> None:
    for host in HOSTS[:BLOCKED]:
        fetch(service.port, f"/blocklist/nodes/{host}", method="DELETE")
    _wait(lambda: not yarn.marked() and all(yarn.memory.values()))


def _wait(condition: Callable[[], bool]) -> None:
    """Finer than `wait_until`, as the time is measured."""
    deadline = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < deadline, "not within 120 s"
        time.sleep(0.005)
