"""What `systemctl` does with the unit in docs/systemd, on machines that systemd did not start: the unit's own commands.

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
    """The service as its unit has it."""

    def __init__(self, folder: Path) -> None:
        lines = (folder / "blocklist.service").read_text().splitlines()
        self._said = [line.partition("=")[::2] for line in lines if "=" in line and not line.startswith("#")]
        self._pid, self._journal, self._ready = folder / "pid", folder / "journal", folder / "ready"

    def start(self) -> None:
        """Return when it says that it is ready."""
        self._ready.unlink(missing_ok=True)
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as ready, self._journal.open("ab") as journal:
            ready.bind(str(self._ready))
            ready.settimeout(SECONDS)
            for before in self._all("ExecStartPre"):
                assert self._run(before, journal).wait(SECONDS) == 0
            (command,) = self._all("ExecStart")
            self._pid.write_text(str(self._run(command, journal).pid))
            assert ready.recv(64) == b"READY=1"

    def stop(self) -> None:
        """Return when it has ended."""
        if not self._pid.exists():
            return
        with suppress(ProcessLookupError):
            ended = os.pidfd_open(int(self._pid.read_text()))
            signal.pidfd_send_signal(ended, signal.SIGTERM)
            assert select.select([ended], [], [], SECONDS)[0]
            os.close(ended)
        self._pid.unlink()

    def _run(self, command: str, journal: IO[bytes]) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            shlex.split(command),
            env=self._environment(),
            cwd=self._all("WorkingDirectory")[0],
            stdin=subprocess.DEVNULL,
            stdout=journal,
            stderr=journal,
            start_new_session=True,
        )

    def _environment(self) -> dict[str, str]:
        """Not that of whoever asks: only what the unit says."""
        own = self._all("Environment")
        for file in self._all("EnvironmentFile"):
            with suppress(FileNotFoundError):
                own += Path(file.removeprefix("-")).read_text().splitlines()
        return {
            "PATH": os.environ["PATH"],
            "NOTIFY_SOCKET": str(self._ready),
            **{name: value for name, _, value in (line.partition("=") for line in own) if name},
        }

    def _all(self, name: str) -> list[str]:
        return [value for own, value in self._said if own == name]


def main() -> None:
    """Do what is asked; what only concerns systemd itself is done already."""
    unit, (verb, *rest) = Unit(Path(sys.argv[1])), sys.argv[2:]
    if verb in ("stop", "restart"):
        unit.stop()
    if verb in ("start", "restart") or "--now" in rest:
        unit.start()


if __name__ == "__main__":
    main()
