"""A replica of the service as a process that can be killed, paused and started again."""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path
from typing import Final

import httpx

from tests.integration.process import NO_TLS, ServiceProcess, run_app, wait_until

_TRACEBACK: Final = re.compile(r"^Traceback .*\n(?:[ |].*\n)*(.*)$", re.MULTILINE)


class ChaosReplica(ServiceProcess):
    """A replica with the same port at every start."""

    def __init__(self, folder: Path, database_url: str, **settings: str) -> None:
        folder.mkdir()
        super().__init__(folder, database_url=database_url, **settings)

    def migrate(self) -> None:
        """Create the tables."""
        done = run_app("migrate", env=self.environment())
        assert done.returncode == 0, done.stderr

    def stop(self) -> None:
        """Stop it, unless it is stopped; its log is checked at the end."""
        if self._running().poll() is None:
            self.terminate()
            assert self.exit_code() == 0, self.log()

    def tracebacks(self) -> set[str]:
        """The last line of each traceback in its log: no injected fault may cause one."""
        return set(_TRACEBACK.findall(self.log()))

    def start_supervised(self) -> None:
        """Start it, and restart it if it exits because the database is unavailable, as a supervisor would."""
        self.launch()
        wait_until(self._is_up, seconds=180)

    def _is_up(self) -> bool:
        if self._running().poll() is not None:
            self.launch()
        with suppress(httpx.TransportError):
            return httpx.get(f"{self.url}/healthz", timeout=5, trust_env=False, verify=NO_TLS).status_code == 200
        return False
