"""README.md, run as written: `make run`, and the tour on the service that it starts."""

from __future__ import annotations

import re
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest

from tests import debian
from tests.docs.console import parse_page
from tests.docs.output_match import matches
from tests.docs.shell import Shell
from tests.integration.command import install
from tests.integration.process import ROOT, environment, free_port, url_of

README: Final = ROOT / "README.md"
SECONDS: Final = 120


@pytest.fixture
def venv(tmp_path: Path) -> Path:
    """An environment in which `make run` has nothing to install."""
    folder = tmp_path / "venv"
    folder.mkdir()
    install(folder)
    (folder / "service.stamp").touch()
    return folder


@contextmanager
def make_run(folder: Path, venv: Path, port: int) -> Iterator[str]:
    """Run `make run`; yield the two lines that it prints."""
    env = environment(port=str(port), database_url=url_of(folder / "blocklist.db"))
    command = ["make", "--silent", "run", f"VENV={venv}"]
    with (
        (folder / "service.log").open("wb") as log,
        subprocess.Popen(command, cwd=ROOT, env=env, stdout=subprocess.PIPE, stderr=log, text=True) as process,
    ):
        assert process.stdout is not None
        try:
            yield process.stdout.readline() + process.stdout.readline()
        finally:
            process.send_signal(signal.SIGTERM)
            process.communicate(timeout=SECONDS)
    assert "Traceback" not in (folder / "service.log").read_text()


@pytest.mark.timeout(600)
def test_the_readme_shows_real_output(tmp_path: Path, venv: Path) -> None:
    debian.require({"curl": "curl"})
    port, page = free_port(), parse_page(README)
    substitutions = {
        "127.0.0.1:8224": f"127.0.0.1:{port}",
        "$PWD/.venv/bin": str(venv / "bin"),
        "/srv/blocklist/blocklist.db": str(tmp_path / "blocklist.db"),
    }
    env = {**environment(url=f"http://127.0.0.1:{port}"), "CURL_HOME": str(tmp_path)}
    with make_run(tmp_path, venv, port) as banner:
        shell = Shell(tmp_path, substitutions, env, cwd=tmp_path)
        assert matches(_banner(), shell.to_page(banner))
        mismatches = shell.run_page(page, {})
    assert not mismatches, "\n".join(mismatches)
    assert page.skipped == []


def _banner() -> str:
    """The output of `make run` on the page."""
    banner = re.search(r"```\n(blocklist listens on .*?)```", README.read_text(), re.DOTALL)
    assert banner is not None
    return banner[1]
