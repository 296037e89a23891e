"""A manager in a process of its own."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from typing import Self

from tests.integration.process import ROOT, ServiceProcess, environment


class ManagerProcess:
    """`python -m blocklist.managers KIND`, with the kind as `--id`; `more` are environment variables."""

    def __init__(self, folder: Path, url: str, kind: str, *options: str, **more: str) -> None:
        self._command = [sys.executable, "-m", "blocklist.managers", kind, "--url", url, "--id", kind, *options]
        self._environment = environment() | more
        self._log = folder / f"{kind}.log"
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        if self._running().poll() is None:
            assert self.stop() == 0, self.log()
        assert "Traceback" not in self.log(), self.log()

    def start(self) -> Self:
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command, cwd=ROOT, env=self._environment, stdout=subprocess.DEVNULL, stderr=log
            )
        return self

    @property
    def pid(self) -> int:
        """The id of the current process."""
        return self._running().pid

    def stop(self) -> int:
        self._running().send_signal(signal.SIGTERM)
        return self.exit_code()

    def kill(self) -> None:
        self._running().kill()
        self.exit_code()

    def exit_code(self) -> int:
        """Wait until the process ends; after 60 s it is killed and the test fails."""
        try:
            return self._running().wait(60)
        except subprocess.TimeoutExpired:
            self._running().kill()
            raise

    def log(self) -> str:
        return self._log.read_text(errors="replace")

    def _running(self) -> subprocess.Popen[bytes]:
        assert self._process is not None
        return self._process


def run_module(module: str, *arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
    """Run `python -m MODULE` until it ends, for at most 60 s."""
    command = [sys.executable, "-m", module, *arguments]
    env = environment() | more
    return subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=60, check=False)


def acked_revision(service: ServiceProcess, listener: str) -> int:
    """The revision that the listener has acknowledged; -1 if it is unknown or has lapsed."""
    with service.client() as http:
        answer = http.get(f"/listeners/{listener}")
    body = answer.json()
    return int(body["ackedRevision"]) if answer.status_code == 200 and body["state"] == "live" else -1


def refused_reason(service: ServiceProcess, node: str) -> str | None:
    """The reason why the only listener has refused this block; None if it has not."""
    with service.client() as http:
        (listener,) = http.get(f"/blocklist/nodes/{node}/status").json()["listeners"]
    return listener["refused"]  # type: ignore[no-any-return]
