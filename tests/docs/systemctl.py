"""A `systemctl` for machines without systemd: runs the commands of the unit in docs/systemd.

`python -m tests.docs.systemctl FOLDER start|stop|restart … blocklist`, where the folder holds the unit.
"""

from __future__ import annotations

import os
import select
import shlex
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import IO

SECONDS = 60


class Unit:
    """The service as its unit describes it."""

    def __init__(self, folder: Path) -> None:
        lines = (folder / "blocklist.service").read_text().splitlines()
        self._directives = [line.partition("=")[::2] for line in lines if "=" in line and not line.startswith("#")]
        self._pid, self._journal, self._ready = folder / "pid", folder / "journal", folder / "ready"

    def start(self) -> None:
        """Start the service; return when it is ready."""
        self._ready.unlink(missing_ok=True)
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as ready, self._journal.open("ab") as journal:
            ready.bind(str(self._ready))
            ready.settimeout(SECONDS)
            for before in self._values("ExecStartPre"):
                assert self._spawn(before, journal).wait(SECONDS) == 0
            (command,) = self._values("ExecStart")
            self._pid.write_text(str(self._spawn(command, journal).pid))
            assert ready.recv(64) == b"READY=1"

    def stop(self) -> None:
        """Stop the service; return when it has exited."""
        if not self._pid.exists():
            return
        with suppress(ProcessLookupError):
            process = os.pidfd_open(int(self._pid.read_text()))
            signal.pidfd_send_signal(process, signal.SIGTERM)
            assert select.select([process], [], [], SECONDS)[0]
            os.close(process)
        self._pid.unlink()

    def _spawn(self, command: str, journal: IO[bytes]) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            shlex.split(command),
            env=self._environment(),
            cwd=self._values("WorkingDirectory")[0],
            stdin=subprocess.DEVNULL,
            stdout=journal,
            stderr=journal,
            start_new_session=True,
        )

    def _environment(self) -> dict[str, str]:
        """Only what the unit sets, not the caller's environment."""
        lines = self._values("Environment")
        for file in self._values("EnvironmentFile"):
            with suppress(FileNotFoundError):
                lines += Path(file.removeprefix("-")).read_text().splitlines()
        return {
            "PATH": os.environ["PATH"],
            "NOTIFY_SOCKET": str(self._ready),
            **{name: value for name, _, value in (line.partition("=") for line in lines) if name},
        }

    def _values(self, name: str) -> list[str]:
        return [value for directive, value in self._directives if directive == name]


def main() -> None:
    """Run a verb; those that concern only systemd itself do nothing."""
    unit, (verb, *rest) = Unit(Path(sys.argv[1])), sys.argv[2:]
    if verb in ("stop", "restart"):
        unit.stop()
    if verb in ("start", "restart") or "--now" in rest:
        unit.start()


if __name__ == "__main__":
    main()
