"""The commands of docs/, typed as they stand there: what a page shows is what its reader will see."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import pytest

from tests import debian
from tests.docs.console import Page, read
from tests.docs.machine import Audience, Machine
from tests.docs.shell import Shell
from tests.docs.systemctl import Unit
from tests.integration.process import ROOT, ServiceProcess, environment, run_app

DOCS: Final = ROOT / "docs"
MOST_NOT_RUN: Final = 3
"""Blocks of a page that may be left out, each with its reason."""


@pytest.fixture(scope="module", autouse=True)
def programs() -> None:
    debian.require({"curl": "curl", "jq": "jq"})


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    machine = Machine(tmp_path)
    yield machine
    Unit(tmp_path).stop()
    assert "Traceback" not in machine.journal()


def play(page: Page, machine: Machine, shell: Shell) -> None:
    with ExitStack() as stack:
        those = Audience(machine, stack)
        happenings = {
            "a job and a manager listen": those.come,
            "the tasks end": those.end_tasks,
            "an admin goes on": lambda: shell.run("export BLOCKLIST_TOKEN_FILE=~/admin.token"),
        }
        wrong = shell.play(page, happenings)
    assert not wrong, "\n".join(wrong) + machine.journal()


@pytest.mark.timeout(600)
def test_the_guide(machine: Machine) -> None:
    """From its first line to its last, at a service that runs as docs/systemd has it."""
    page = read(DOCS / "guide.md")
    play(page, machine, machine.shell())
    assert len(page.not_run) <= MOST_NOT_RUN


def test_the_command(machine: Machine) -> None:
    shell = machine.shell()
    assert shell.run(SET_UP) == (0, "")
    play(read(DOCS / "command.md"), machine, shell)


SET_UP: Final = """
systemctl start blocklist
cp /var/lib/blocklist/admin.token ~/admin.token
export BLOCKLIST_TOKEN_FILE=~/admin.token
blocklist token create anna --role operator > ~/anna.token 2> /dev/null
blocklist token create spark --role listener > ~/spark.token 2> /dev/null
export BLOCKLIST_TOKEN_FILE=~/anna.token
"""
"""What the guide does first, without a word."""


OTHERS: Final = sorted(path.name for path in DOCS.glob("*.md") if path.stem not in {"guide", "command"})


@pytest.mark.parametrize("name", [name for name in OTHERS if read(DOCS / name).steps])
def test_each_other_page(tmp_path: Path, name: str) -> None:
    """At a service that nobody has set anything for."""
    service = ServiceProcess(tmp_path)
    assert run_app("migrate", env=service.environment()).returncode == 0
    with service:
        shell = Shell(tmp_path, {"http://127.0.0.1:8224": service.url}, environment(), cwd=tmp_path)
        wrong = shell.play(read(DOCS / name), {})
    assert not wrong, "\n".join(wrong)


def test_no_command_is_left_out_by_mistake() -> None:
    """A block that begins with a prompt is one that is run: fenced as `console`, or marked with a reason."""
    for path in [ROOT / "README.md", *DOCS.glob("*.md")]:
        assert "```\n$ " not in path.read_text(encoding="utf-8"), path.name
