"""A ResourceManager's answers about any number of nodes, for what needs size and not a YARN: it runs no containers.

Its answers have the fields of a real one (Hadoop 3.5); labels and resources behave as they do there.
"""

from __future__ import annotations

import json
import ssl
import threading
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from tests import http_server
from tests.http_server import Handler

MEGABYTES: Final = 8192
VCORES: Final = 8


class RejectionError(Exception):
    """A request that the ResourceManager rejects, with this message."""


class SimulatedYarn:
    """`hosts` have one NodeManager each, with `containers`; not a thread changes them while another reads.

    `node_labels` are those of NodeManagers, by host, where they are not that of the host; `states` where they are not
    RUNNING.
    """

    def __init__(self, hosts: Iterable[str], containers: int = 0) -> None:
        self.labels: dict[str, bool] = {}
        self.host_labels: dict[str, str] = {}
        self.node_labels: dict[str, str] = {}
        self.states: dict[str, str] = {}
        self.containers = dict.fromkeys(hosts, containers)
        self.memory = dict.fromkeys(self.containers, MEGABYTES)
        self.requests: Counter[str] = Counter()
        self._lock = threading.Lock()

    def marked(self) -> set[str]:
        """The hosts with a label of the manager."""
        with self._lock:
            return {host for host, label in self.host_labels.items() if label.startswith("blocklist")}

    def answer(self, method: str, path: str, body: Any) -> Any:
        """The answer to a request; None for an empty one."""
        with self._lock:
            self.requests[f"{method} {path}"] += 1
            if method == "GET":
                return self._read(path)
            if path == "/add-node-labels":
                self.labels |= {it["name"]: it["exclusivity"] == "true" for it in body["nodeLabelInfo"]}
            elif path == "/replace-node-to-labels":
                for entry in self.sort(body["nodeToLabels"]):
                    self._set_label(entry["nodeId"], "".join(entry["labels"]))
            else:
                host = path.removeprefix("/nodes/").removesuffix("/resource").rpartition(":")[0]
                self.memory[host] = body["resource"]["memory"]
                self.containers[host] = self.containers[host] if self.memory[host] else 0
            return None

    def sort(self, entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """The order in which the entries of a request take effect: the host first."""
        return sorted(entries, key=lambda entry: str(entry["nodeId"]))

    def effective(self) -> dict[str, str]:
        """The label of each NodeManager that has one, by host."""
        return {host: label for host, label in (self.host_labels | self.node_labels).items() if label}

    def _set_label(self, target: str, label: str) -> None:
        host, _, port = target.rpartition(":")
        if port == "0":
            self.host_labels[host] = label
            self.node_labels.pop(host, None)
        else:
            self.node_labels[host] = label

    def _read(self, path: str) -> Any:
        match path:
            case "/info":
                return {"clusterInfo": {"haState": "ACTIVE", "state": "STARTED", "startedOn": 1}}
            case "/scheduler":
                return {"scheduler": {"schedulerInfo": {"type": "capacityScheduler"}}}
            case "/metrics":
                return {"clusterMetrics": {"rmEventQueueSize": 0, "schedulerEventQueueSize": 0}}
            case "/apps":
                return {"apps": None}
            case "/nodes":
                return {"nodes": {"node": [self._node(host) for host in self.memory]}}
            case "/get-node-labels":
                return {"nodeLabelInfo": [{"name": name, "exclusivity": it} for name, it in self.labels.items()]}
        labels = {host: label for host, label in self.host_labels.items() if label}
        entries = [{"key": f"{host}:0", "value": {"nodeLabelInfo": [{"name": it}]}} for host, it in labels.items()]
        return {"nodeToLabels": {"entry": entries}}

    def _node(self, host: str) -> dict[str, Any]:
        label = self.effective().get(host)
        resources = [
            {"name": "memory-mb", "units": "Mi", "value": self.memory[host], "resourceType": "COUNTABLE"},
            {"name": "vcores", "units": "", "value": VCORES if self.memory[host] else 0, "resourceType": "COUNTABLE"},
        ]
        total = {
            "memory": self.memory[host],
            "vCores": VCORES if self.memory[host] else 0,
            "resourceInformations": {"resourceInformation": resources},
        }
        return {
            "id": f"{host}:8041",
            "nodeHostName": host,
            "nodeHTTPAddress": f"{host}:8042",
            "rack": "/default-rack",
            "state": self.states.get(host, "RUNNING"),
            "healthReport": "",
            "version": "3.5.0",
            "numContainers": self.containers[host],
            "totalResource": total,
            "usedResource": total,
            "availableResource": total,
            **({"nodeLabels": [label]} if label else {}),
        }


@contextmanager
def serving(yarn: SimulatedYarn, tls: ssl.SSLContext | None = None) -> Iterator[str]:
    """Serve it on loopback; its URL."""

    class Requests(Handler):
        protocol_version = "HTTP/1.1"
        wbufsize = -1  # One packet: a second one would wait for the acknowledgement of the first, 40 ms.

        def do_GET(self) -> None:
            self._answer(None)

        def do_POST(self) -> None:
            self._answer(json.loads(self.body() or b"null"))

        def _answer(self, body: Any) -> None:
            path = self.path.partition("?")[0].removeprefix("/ws/v1/cluster")
            status = 200
            try:
                answer = yarn.answer(self.command, path, body)
            except RejectionError as error:
                status, answer = 400, {"RemoteException": {"message": str(error)}}
            data = b"" if answer is None else json.dumps(answer).encode()
            self.reply(status, data, {"Content-Type": "application/json"})

    with http_server.serving(Requests, tls) as url:
        yield url
