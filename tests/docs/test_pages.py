"""The commands of docs/, run as written: their output is what the page shows."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import pytest

from tests import debian
from tests.docs.console import Page, parse_page
from tests.docs.operator_host import OperatorHost, PageListeners
from tests.docs.shell import Shell
from tests.docs.systemctl import Unit
from tests.integration.process import ROOT, environment, migrated_service

DOCS: Final = ROOT / "docs"
MAX_SKIPPED: Final = 3
"""Blocks of a page that may be skipped, each with its reason."""


@pytest.fixture(scope="module", autouse=True)
def required_programs() -> None:
    debian.require({"curl": "curl", "jq": "jq"})


@pytest.fixture
def host(tmp_path: Path) -> Iterator[OperatorHost]:
    host = OperatorHost(tmp_path)
    yield host
    Unit(tmp_path).stop()
    assert "Traceback" not in host.journal()


def run_page(page: Page, host: OperatorHost, shell: Shell) -> None:
    with ExitStack() as stack:
        listeners = PageListeners(host, stack)
        events = {
            "a job and a manager listen": listeners.start,
            "the tasks end": listeners.end_tasks,
            "an admin goes on": lambda: shell.run("export BLOCKLIST_TOKEN_FILE=~/admin.token"),
        }
        mismatches = shell.run_page(page, events)
    assert not mismatches, "\n".join(mismatches) + host.journal()


@pytest.mark.timeout(600)
def test_the_guide_shows_real_output(host: OperatorHost) -> None:
    """All of it, on a service that runs as the unit in docs/systemd."""
    page = parse_page(DOCS / "guide.md")
    run_page(page, host, host.shell())
    assert len(page.skipped) <= MAX_SKIPPED


@pytest.mark.parametrize("name", ["command.md", "audit.md"])
def test_a_page_with_tokens_shows_real_output(host: OperatorHost, name: str) -> None:
    shell = host.shell()
    assert shell.run(SET_UP) == (0, "")
    run_page(parse_page(DOCS / name), host, shell)


SET_UP: Final = """
systemctl start blocklist
cp /var/lib/blocklist/admin.token ~/admin.token
export BLOCKLIST_TOKEN_FILE=~/admin.token
blocklist token create anna --role operator > ~/anna.token 2> /dev/null
blocklist token create spark --role listener > ~/spark.token 2> /dev/null
blocklist token create yarn --role manager > ~/yarn.token 2> /dev/null
export BLOCKLIST_TOKEN_FILE=~/anna.token
"""
"""The guide's set-up, without output."""


OTHER_PAGES: Final = sorted(path.name for path in DOCS.glob("*.md") if path.stem not in {"guide", "command", "audit"})


@pytest.mark.parametrize("name", [name for name in OTHER_PAGES if parse_page(DOCS / name).steps])
def test_each_other_page_shows_real_output(tmp_path: Path, name: str) -> None:
    """On a service with default settings."""
    with migrated_service(tmp_path) as service:
        env = environment(url=service.url)
        env["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{env['PATH']}"
        shell = Shell(tmp_path, {"http://127.0.0.1:8224": service.url}, env, cwd=tmp_path)
        mismatches = shell.run_page(parse_page(DOCS / name), {})
    assert not mismatches, "\n".join(mismatches)


def test_no_command_is_skipped_by_mistake() -> None:
    """A block that begins with a prompt is fenced as `console`, so that it runs or has a reason not to."""
    for path in [ROOT / "README.md", *DOCS.rglob("*.md")]:
        assert "```\n$ " not in path.read_text(encoding="utf-8"), path.name
