"""A machine with an installed service for an operator, and with listeners that register at it."""

from __future__ import annotations

import os
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from blocklist.model.node import expand_nodes
from tests.docs import page_listeners
from tests.docs.shell import Shell
from tests.integration.command import install
from tests.integration.process import ROOT, environment, free_port, wait_until

UNIT: Final = ROOT / "docs" / "systemd" / "blocklist.service"


class OperatorHost:
    """The folders and programs of a machine on which the service is installed as its unit describes.

    `substitutions` maps a text on the page, such as an address or a folder, to the one used here.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.url = f"http://127.0.0.1:{free_port()}"
        self.substitutions = {
            "http://127.0.0.1:8224": self.url,
            "/opt/blocklist": str(folder / "opt"),
            "/var/lib/blocklist": str(folder / "lib"),
            "/var/cache/blocklist": environment()["PYTHONPYCACHEPREFIX"],
            "/var/backups": str(folder / "backups"),
            "/etc/blocklist.env": str(folder / "blocklist.env"),
            "/home/anna": str(folder / "home"),
        }
        for name in ("lib", "backups", "home", "programs", "opt"):
            (folder / name).mkdir(parents=True)
        install(folder / "opt")
        # A real manager would report its nodes; the one of the pages has none.
        (folder / "nodes.csv").write_text("\n".join(["id", *page_listeners.NODES, *expand_nodes(["idle-[001-150]"])]))
        (folder / "blocklist.env").write_text(
            f"BLOCKLIST_PORT={self.url.rpartition(':')[2]}\nBLOCKLIST_NODES_FILE={folder / 'nodes.csv'}\n"
        )
        (folder / "blocklist.service").write_text(self._substituted(UNIT.read_text()))
        self._program("sudo", 'if [ "$1" = -u ]; then shift 2; fi\nexec "$@"')
        systemctl = f'exec "{sys.executable}" -P -m tests.docs.systemctl "{folder}" "$@"'
        self._program("systemctl", f'export PYTHONPATH="{ROOT}"\n{systemctl}')

    def shell(self) -> Shell:
        env = environment(url=self.url)
        path = [self.folder / "programs", self.folder / "opt" / "bin", env["PATH"]]
        env |= {"HOME": str(self.folder / "home"), "PATH": os.pathsep.join(map(str, path))}
        return Shell(self.folder, self.substitutions, env, cwd=self.folder / "home")

    def token(self, name: str) -> str:
        return (self.folder / "home" / f"{name}.token").read_text().strip()

    def journal(self) -> str:
        return (self.folder / "journal").read_text()

    def _substituted(self, text: str) -> str:
        for page, actual in self.substitutions.items():
            text = text.replace(page, actual)
        return text

    def _program(self, name: str, script: str) -> None:
        program = self.folder / "programs" / name
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o755)


class PageListeners:
    """A job and a manager, registered while a page runs."""

    def __init__(self, host: OperatorHost, stack: ExitStack) -> None:
        self._host, self._stack = host, stack

    def start(self) -> None:
        url, self._token = self._host.url, self._host.token("spark")
        self._job = self._stack.enter_context(page_listeners.Job(url, self._token))
        self._stack.enter_context(page_listeners.start_manager(self._host.folder, url, self._host.token("yarn")))
        wait_until(lambda: page_listeners.all_registered(url, self._token))

    def end_tasks(self) -> None:
        self._job.end_tasks()
        wait_until(lambda: not page_listeners.running_tasks(self._host.url, self._token, "r12n03"))
