"""Containers on a real YARN: how long after the response to a PUT the last one starts on the node.

Single containers are started all the time. The starts are in the log of the ResourceManager, with the time of day.
"""

import re
import threading
import time
from datetime import UTC, datetime
from pathlib import Path

from benchmarks.harness import unless_quick
from benchmarks.rows import Row
from blocklist import BlocklistClient
from tests.integration.manager_process import ManagerProcess
from tests.integration.process import wait_until
from tests.yarn.cluster import YarnCluster

OURS = "manager"
BLOCKS = unless_quick(7, 2)
OBSERVE_SECONDS = 2.0
_STARTED = re.compile(r"^([\d:.]{12}) INFO AMLauncher: Done launching container .* NodeId: ([^:]+):", re.MULTILINE)


def rows(yarn: YarnCluster, client: BlocklistClient, url: str, folder: Path) -> list[Row]:
    """Measure on the first node; `url` is the service's, to which `client` belongs."""
    host = yarn.nodes[0]
    options = ("--resource-manager", yarn.url, "--every", "1", "--user", "root")
    last, acknowledged = [], []
    with ManagerProcess(folder, url, "yarn", *options):
        wait_until(lambda: bool(client.listeners()))
        for _ in range(BLOCKS):
            began = len(_starts(yarn, host))
            end = threading.Event()
            submitting = threading.Thread(target=_submit_all_the_time, args=(yarn, end))
            submitting.start()
            wait_until(lambda: len(_starts(yarn, host)) > began)  # noqa: B023
            client.block(host, "benchmark")
            answered = _now()
            wait_until(lambda: all(it.applied for it in client.status(host).listeners))
            acknowledged.append(_now() - answered)
            time.sleep(OBSERVE_SECONDS)
            end.set()
            submitting.join()
            last.append(max(1.0, _starts(yarn, host)[-1] - answered))
            client.unblock(host)
            wait_until(lambda: not any(yarn.rest().containers().values()))
    name = "Containers on YARN: last start on the node, after the response"
    return [
        Row(name=name, unit="ms", ours=OURS, samples={OURS: last}),
        Row(
            name="Containers on YARN: acknowledged, after the response",
            unit="ms",
            ours=OURS,
            samples={OURS: acknowledged},
        ),
    ]


def _submit_all_the_time(yarn: YarnCluster, end: threading.Event) -> None:
    while not end.wait(0.05):
        yarn.rest().submit("sleep 1", megabytes=128)


def _starts(yarn: YarnCluster, host: str) -> list[float]:
    """The times at which containers were started on the host, in Unix ms."""
    log = (yarn.folder / "rm1.log").read_text(errors="replace")
    return [_today(at) for at, node in _STARTED.findall(log) if node == host]


def _today(at: str) -> float:
    time_of_day = datetime.strptime(at, "%H:%M:%S.%f").time()  # noqa: DTZ007
    return datetime.combine(datetime.now().astimezone().date(), time_of_day).astimezone().timestamp() * 1000


def _now() -> float:
    return datetime.now(UTC).timestamp() * 1000
