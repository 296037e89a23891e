"""A service, YARN and a manager between them."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from blocklist import BlockAction, BlocklistClient
from tests.integration.manager_process import ManagerProcess
from tests.integration.process import ServiceProcess, wait_until
from tests.yarn.cluster import MEGABYTES, VCORES, YarnCluster
from tests.yarn.rest import ResourceManagerRest

MARK: Final = BlockAction.MARK_BLOCKED
EVACUATE: Final = BlockAction.MARK_BLOCKED_AND_EVACUATE_TASKS
W1: Final = "w1.yarn.test"
W2: Final = "w2.yarn.test"
W3: Final = "w3.yarn.test"
SECONDS: Final = 180
STOP_SECONDS: Final = 30


class Scene:
    """A service, YARN and a manager between them."""

    def __init__(self, folder: Path, service: ServiceProcess, yarn: YarnCluster) -> None:
        self.folder = folder
        self.service = service
        self.yarn = yarn

    @property
    def rest(self) -> ResourceManagerRest:
        return self.yarn.rest()

    def manager(self, *options: str) -> ManagerProcess:
        urls = [word for url in self.yarn.urls for word in ("--resource-manager", url)]
        return ManagerProcess(self.folder, self.service.url, "yarn", *urls, "--every", "1", "--user", "root", *options)

    def stop(self, manager: ManagerProcess) -> None:
        """SIGTERM; whatever the manager is doing, it ends within a time that a service manager waits for."""
        begun = time.monotonic()
        manager.stop()
        assert time.monotonic() - begun < STOP_SECONDS

    def wait(self, condition: Callable[[], object]) -> None:
        wait_until(lambda: bool(condition()), seconds=SECONDS)

    def listener(self, node: str) -> dict[str, Any]:
        """What the status of a node says of the manager; nothing while it is not registered."""
        with self.service.client() as http:
            listeners = http.get(f"/blocklist/nodes/{node}/status").json()["listeners"]
        return listeners[0] if listeners else {"applied": False, "refused": None, "pendingReason": None}

    def block(self, node: str, action: BlockAction = MARK, *, end: int | None = None) -> None:
        with BlocklistClient(self.service.url) as client:
            if end is None:
                client.block(node, "hot", action=action)
            else:
                client.block(node, "hot", action=action, end=end)

    def unblock(self, *nodes: str) -> None:
        with BlocklistClient(self.service.url) as client:
            for node in nodes:
                client.unblock(node)

    def wait_applied(self, node: str) -> None:
        self.wait(lambda: self.listener(node)["applied"])

    def wait_not_here(self, *nodes: str) -> None:
        self.wait(lambda: all(self.listener(node)["notHere"] for node in nodes))

    def wait_pending(self, node: str, words: str) -> None:
        self.wait(lambda: words in (self.listener(node)["pendingReason"] or ""))

    def label(self, host: str) -> str:
        """Of the RUNNING NodeManager; - if there is none."""
        node = self.rest.node(host)
        return (node.get("nodeLabels") or [""])[0] if node["state"] == "RUNNING" else "-"

    def labels(self) -> dict[str, str]:
        return {host: label for host in self.yarn.nodes if (label := self.label(host))}

    def fill(self) -> int:
        """Start containers until each node has some; their number. All of them fit on one node."""
        for number in range(1, 19):
            self.rest.submit(megabytes=128)
            self.wait_containers(number)
            if all(self.rest.containers().values()):
                return number
        raise AssertionError(self.rest.containers())

    def wait_containers(self, number: int) -> None:
        self.wait(lambda: sum(self.rest.containers().values()) == number)

    def check_intact(self) -> None:
        """All nodes run with all their resources."""
        for host in self.yarn.nodes:
            node = self.rest.node(host)
            total = node["totalResource"]
            assert (node["state"], total["memory"], total["vCores"]) == ("RUNNING", MEGABYTES, VCORES), node
