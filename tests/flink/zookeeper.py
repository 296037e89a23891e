"""A ZooKeeper on loopback, from Flink's own jars."""

from __future__ import annotations

import socket
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import Final, Self

from tests.integration.process import free_port, wait_until

_MAIN: Final = "org.apache.flink.shaded.zookeeper3.org.apache.zookeeper.server.ZooKeeperServerMain"


class ZooKeeper:
    """One server, as a context manager; `address` is host and port."""

    def __init__(self, java: Path, lib: Path, folder: Path) -> None:
        self._port = free_port()
        self.address = f"127.0.0.1:{self._port}"
        self._log = folder / "zookeeper.log"
        config = folder / "zoo.cfg"
        lines = (f"clientPort={self._port}", "clientPortAddress=127.0.0.1", f"dataDir={folder}/zookeeper")
        config.write_text("\n".join([*lines, "admin.enableServer=false", ""]))
        memory = ("-Xmx64m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
        self._command = [str(java), *memory, "-cp", f"{lib}/*", _MAIN, str(config)]

    def __enter__(self) -> Self:
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(self._command, stdout=log, stderr=log)
        wait_until(self._answers, seconds=120)
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait(60)

    def settings(self, folder: Path) -> dict[str, str]:
        """What makes a Flink cluster use it; metadata is stored in `folder`."""
        return {
            "high-availability.type": "zookeeper",
            "high-availability.zookeeper.quorum": self.address,
            "high-availability.storageDir": f"file://{folder}",
            "high-availability.cluster-id": "/flink",
            "high-availability.zookeeper.client.session-timeout": "10 s",
        }

    def _answers(self) -> bool:
        assert self._process.poll() is None, self._log.read_text()
        with suppress(OSError), socket.create_connection(("127.0.0.1", self._port), timeout=5):
            return True
        return False
