"""The bridge in a process of its own."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx

from tests.flink.cluster import FlinkCluster
from tests.integration.process import LoggedProcess, wait_until

LEASE = 10
"""Seconds: the shortest that the bridge allows, so that the tests see nodes become free soon."""


class BridgeProcess(LoggedProcess):
    """`python -m blocklist.flink` for a cluster; `id` is that of the ResourceManager's listener."""

    def __init__(
        self, folder: Path, url: str, cluster: FlinkCluster, *options: str, listener_id: str = "flink"
    ) -> None:
        self.id = listener_id
        self.folder = folder
        command = [sys.executable, "-m", "blocklist.flink", "--url", url, "--id", listener_id, "--lease", str(LEASE)]
        folders = ["--conf-dir", str(cluster.conf_dir), "--lib", str(cluster.lib), "--java", str(cluster.java)]
        super().__init__(folder / f"bridge-{listener_id}.log", [*command, *folders, *options])

    def child(self) -> int:
        """The process id of its JVM."""
        (child,) = Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()
        return int(child)


class ServiceView:
    """What the service knows about Flink's listeners."""

    def __init__(self, http: httpx.Client) -> None:
        self.http = http

    def listeners(self) -> dict[str, dict[str, Any]]:
        """The live listeners, by id."""
        found = self.http.get("/listeners").json()["listeners"]
        return {it["id"]: it for it in found if it["state"] == "live"}

    def of_job(self, job_id: str) -> str:
        """The id of a job's listener; waits for it."""
        self.wait(lambda: any(it.endswith(job_id) for it in self.listeners()))
        return next(it for it in self.listeners() if it.endswith(job_id))

    def status(self, node: str) -> dict[str, dict[str, Any]]:
        """How each listener has applied the last change of a node."""
        answer = self.http.get(f"/blocklist/nodes/{node}/status")
        assert answer.status_code == 200, answer.text
        return {it["id"]: it for it in answer.json()["listeners"]}

    def applied(self, node: str, listener: str) -> bool:
        return bool(self.status(node).get(listener, {}).get("applied"))

    def refused(self, node: str, listener: str) -> str:
        """The reason; empty if it is not refused."""
        return str(self.status(node).get(listener, {}).get("refused") or "")

    def pending(self, node: str, listener: str) -> str:
        """Why the change is not in force yet; empty if it is, or is refused."""
        return str(self.status(node).get(listener, {}).get("pendingReason") or "")

    def wait_applied(self, node: str, *listeners: str) -> None:
        """Wait until these listeners have applied the node's last change."""
        self.wait(lambda: all(self.applied(node, it) for it in listeners))

    def wait_refused(self, node: str, listener: str, text: str) -> None:
        """Wait until the listener refuses the change with a reason that contains the text."""
        self.wait(lambda: text in self.refused(node, listener))

    def wait(self, condition: Callable[[], bool]) -> None:
        wait_until(condition, seconds=150)
