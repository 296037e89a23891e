"""A manager in a process of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Final

from tests.integration.in_process import InProcessService
from tests.integration.process import ROOT, LoggedProcess, ServiceProcess, environment

_SOON: Final = """\
import runpy

from blocklist.managers import applications

applications.START_SECONDS = applications.INTERVAL_SECONDS = 0.5
runpy.run_module("blocklist.managers", run_name="__main__", alter_sys=True)
"""


class ManagerProcess(LoggedProcess):
    """`python -m blocklist.managers KIND`, with the kind as `--id`; `more` are environment variables."""

    program = ("-m", "blocklist.managers")

    def __init__(self, folder: Path, url: str, kind: str, *options: str, **more: str) -> None:
        command = [sys.executable, *self.program, kind, "--url", url, "--id", kind, *options]
        super().__init__(folder / f"{kind}.log", command, **more)


class SoonReportingManager(ManagerProcess):
    """It reports applications as soon as they run, and that they have ended."""

    program = ("-c", _SOON)


def run_module(module: str, *arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
    """Run `python -m MODULE` until it ends, for at most 60 s."""
    command = [sys.executable, "-m", module, *arguments]
    env = environment() | more
    return subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=300, check=False)


def acked_revision(service: ServiceProcess | InProcessService, listener: str) -> int:
    """The revision that the listener has acknowledged; -1 if it is unknown or has lapsed."""
    with service.client() as http:
        answer = http.get(f"/listeners/{listener}")
    body = answer.json()
    return int(body["ackedRevision"]) if answer.status_code == 200 and body["state"] == "live" else -1


def refused_reason(service: ServiceProcess, node: str) -> str | None:
    """The reason why the only listener has refused this block; None if it has not."""
    return _at_listener(service, node)["refused"]


def is_not_here(service: ServiceProcess, node: str) -> bool:
    """Whether the only listener says that the node is none of its own."""
    return bool(_at_listener(service, node)["notHere"])


def pending_reason(service: ServiceProcess, node: str) -> str:
    """Why the last change of this node is not in force yet at the only listener; empty if it is, or is refused."""
    return _at_listener(service, node)["pendingReason"] or ""


def _at_listener(service: ServiceProcess, node: str) -> dict[str, str | None]:
    with service.client() as http:
        (listener,) = http.get(f"/blocklist/nodes/{node}/status").json()["listeners"]
    found: dict[str, str | None] = listener
    return found
