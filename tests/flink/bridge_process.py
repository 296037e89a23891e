"""The bridge in a process of its own."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

import httpx

from tests.flink.cluster import FlinkCluster
from tests.integration.process import ROOT, environment, wait_until

LEASE = 10
"""Seconds: the shortest that the bridge allows, so that the tests see nodes become free soon."""


class BridgeProcess:
    """`python -m blocklist.flink` for a cluster; `id` is that of the ResourceManager's listener."""

    def __init__(
        self, folder: Path, url: str, cluster: FlinkCluster, *options: str, listener_id: str = "flink"
    ) -> None:
        self.id = listener_id
        self.folder = folder
        command = [sys.executable, "-m", "blocklist.flink", "--url", url, "--id", listener_id, "--lease", str(LEASE)]
        folders = ["--conf-dir", str(cluster.conf_dir), "--lib", str(cluster.lib), "--java", str(cluster.java)]
        self._command = [*command, *folders, *options]
        self._log = folder / f"bridge-{listener_id}.log"
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        if self._process is not None and self._process.poll() is None:
            assert self.stop() == 0, self.log()
        assert "Traceback" not in self.log(), self.log()

    def start(self) -> Self:
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command, cwd=ROOT, env=environment(), stdout=subprocess.DEVNULL, stderr=log
            )
        return self

    def stop(self) -> int:
        """Stop it; its exit code."""
        return self._end(signal.SIGTERM)

    def kill(self) -> None:
        """Kill it with SIGKILL."""
        self._end(signal.SIGKILL)

    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def child(self) -> int:
        """The process id of its JVM."""
        assert self._process is not None
        (child,) = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children").read_text().split()
        return int(child)

    def log(self) -> str:
        return self._log.read_text(errors="replace")

    def _end(self, number: signal.Signals) -> int:
        assert self._process is not None
        self._process.send_signal(number)
        try:
            return self._process.wait(60)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(60)
            raise


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

    def wait_applied(self, node: str, *listeners: str) -> None:
        """Wait until these listeners have applied the node's last change."""
        self.wait(lambda: all(self.applied(node, it) for it in listeners))

    def wait_refused(self, node: str, listener: str, text: str) -> None:
        """Wait until the listener refuses the change with a reason that contains the text."""
        self.wait(lambda: text in self.refused(node, listener))

    def wait(self, condition: Callable[[], bool]) -> None:
        wait_until(condition, seconds=150)
