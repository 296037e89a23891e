"""A machine on which an operator works: the service as its unit has it, and those who listen to it."""

from __future__ import annotations

import os
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from tests.docs import audience
from tests.docs.shell import Shell
from tests.integration.command import install
from tests.integration.process import ROOT, environment, free_port, wait_until

UNIT: Final = ROOT / "docs" / "systemd" / "blocklist.service"


class Machine:
    """A machine on which the service is installed: its folders, and the programs that an operator finds there."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.url = f"http://127.0.0.1:{free_port()}"
        self.here = {
            "http://127.0.0.1:8224": self.url,
            "/opt/blocklist": str(folder / "opt"),
            "/var/lib/blocklist": str(folder / "lib"),
            "/var/cache/blocklist": environment()["PYTHONPYCACHEPREFIX"],
            "/var/backups": str(folder / "backups"),
            "/etc/blocklist.env": str(folder / "blocklist.env"),
            "/home/anna": str(folder / "home"),
        }
        for name in ("lib", "backups", "home", "programs", "opt/.venv"):
            (folder / name).mkdir(parents=True)
        for name in ("app", "blocklist", "migrations"):
            (folder / "opt" / name).symlink_to(ROOT / name)
        install(folder / "opt" / ".venv")
        (folder / "blocklist.env").write_text(f"BLOCKLIST_PORT={self.url.rpartition(':')[2]}\n")
        (folder / "blocklist.service").write_text(self._here(UNIT.read_text()))
        self._program("sudo", 'if [ "$1" = -u ]; then shift 2; fi\nexec "$@"')
        systemctl = f'exec "{sys.executable}" -P -m tests.docs.systemctl "{folder}" "$@"'
        self._program("systemctl", f'export PYTHONPATH="{ROOT}"\n{systemctl}')

    def shell(self) -> Shell:
        env = environment(url=self.url)
        path = [self.folder / "programs", self.folder / "opt" / ".venv" / "bin", env["PATH"]]
        env |= {"HOME": str(self.folder / "home"), "PATH": os.pathsep.join(map(str, path))}
        return Shell(self.folder, self.here, env, cwd=self.folder / "home")

    def token(self, name: str) -> str:
        return (self.folder / "home" / f"{name}.token").read_text().strip()

    def journal(self) -> str:
        return (self.folder / "journal").read_text()

    def _here(self, text: str) -> str:
        for page, here in self.here.items():
            text = text.replace(page, here)
        return text

    def _program(self, name: str, script: str) -> None:
        program = self.folder / "programs" / name
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o755)


class Audience:
    """Who listens while the guide is played."""

    def __init__(self, machine: Machine, stack: ExitStack) -> None:
        self._machine, self._stack = machine, stack

    def come(self) -> None:
        url, self._token = self._machine.url, self._machine.token("spark")
        self._job = self._stack.enter_context(audience.Job(url, self._token))
        self._stack.enter_context(audience.manager(self._machine.folder, url, self._token))
        wait_until(lambda: audience.listening(url, self._token))

    def end_tasks(self) -> None:
        self._job.end_tasks()
        wait_until(lambda: not audience.tasks_left(self._machine.url, self._token, "r12n03"))
