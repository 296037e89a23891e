"""README.md, typed from its first line to its last: `make run`, and the tour at the service that it starts."""

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
from tests.docs.console import read
from tests.docs.shell import Shell
from tests.docs.shown import alike
from tests.integration.command import install
from tests.integration.process import ROOT, environment, free_port, url_of

README: Final = ROOT / "README.md"
MOST_NOT_RUN: Final = 2
SECONDS: Final = 60


@pytest.fixture
def venv(tmp_path: Path) -> Path:
    """What `make setup` leaves behind, so that `make run` installs nothing."""
    folder = tmp_path / "venv"
    folder.mkdir()
    install(folder)
    (folder / "service.stamp").touch()
    return folder


@contextmanager
def made_run(folder: Path, venv: Path, port: int) -> Iterator[str]:
    """`make run`, as it is typed; the two lines that it says."""
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
def test_the_readme_says_what_its_reader_will_see(tmp_path: Path, venv: Path) -> None:
    debian.require({"curl": "curl"})
    port, page = free_port(), read(README)
    here = {
        "127.0.0.1:8224": f"127.0.0.1:{port}",
        "$PWD/.venv/bin": str(venv / "bin"),
        "/srv/blocklist/blocklist.db": str(tmp_path / "blocklist.db"),
    }
    env = {**environment(url=f"http://127.0.0.1:{port}"), "CURL_HOME": str(tmp_path)}
    with made_run(tmp_path, venv, port) as said:
        shell = Shell(tmp_path, here, env, cwd=tmp_path)
        assert alike(_banner(), shell.as_on_the_page(said))
        wrong = shell.play(page, {})
    assert not wrong, "\n".join(wrong)
    assert len(page.not_run) <= MOST_NOT_RUN


def _banner() -> str:
    """What the page says that `make run` says."""
    found = re.search(r"```\n(blocklist listens on .*?)```", README.read_text(), re.DOTALL)
    assert found is not None
    return found[1]
