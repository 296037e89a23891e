"""An external shuffle service on each host of a standalone cluster: Spark's own server, bound to the host's address.

Those that Workers start listen on all addresses, so that one machine has room for one only.
"""

from __future__ import annotations

import subprocess
from collections.abc import Collection
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from py4j.java_gateway import GatewayParameters, JavaGateway  # type: ignore[import-untyped]

from demo.java_home import java_home
from tests.integration.process import free_port


class ShuffleServices:
    """All in one JVM, which ends with this process. A service that is started again knows its executors.

    As a context manager it starts the services of these hosts. `conf` are the settings of their applications.
    """

    def __init__(self, home: Path, hosts: Collection[str], log: Path) -> None:
        self._home, self._hosts, self._log = home, hosts, log
        self._port = free_port()
        self._contexts: dict[str, Any] = {}
        self._servers: dict[str, Any] = {}

    def __enter__(self) -> Self:
        command = [str(java_home() / "bin" / "java"), "-Xmx256m", "-XX:+UseSerialGC", "-cp", f"{self._home / 'jars'}/*"]
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [*command, "py4j.GatewayServer", "--die-on-broken-pipe", "0"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
            )
        try:
            assert self._process.stdout is not None
            port = int(self._process.stdout.readline())
            self._gateway = JavaGateway(gateway_parameters=GatewayParameters(port=port, auto_convert=True))
            for host in self._hosts:
                self._contexts[host] = self._context()
                self.start(host)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the JVM."""
        self._process.kill()
        self._process.communicate()

    @property
    def conf(self) -> dict[str, str]:
        return {"spark.shuffle.service.enabled": "true", "spark.shuffle.service.port": str(self._port)}

    def start(self, host: str) -> None:
        """Start the service of a host."""
        self._servers[host] = self._contexts[host].createServer(host, self._port, [])

    def stop(self, host: str) -> None:
        """Stop the service of a host: connections end, and further ones are refused."""
        self._servers.pop(host).close()

    def _context(self) -> Any:
        network = self._gateway.jvm.org.apache.spark.network
        conf = network.util.TransportConf("shuffle", network.util.MapConfigProvider.EMPTY)
        return network.TransportContext(conf, network.shuffle.ExternalBlockHandler(conf, None))
