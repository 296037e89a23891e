"""A service that is stopped while it starts ends at once; a closed terminal stops it, too."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.integration.process import environment, run_app, url_of
from tests.length import LENGTH

STARTS: Final = 6 * LENGTH
MAX_SECONDS: Final = 120
"""For a loaded machine; without a handler it would not end at all."""
COMMAND: Final = [sys.executable, "-m", "blocklist.cli", "serve"]
ENDED: Final = {0, 128 + signal.SIGTERM, -signal.SIGTERM}
"""A stop as requested, one while there was nothing to stop yet, and one before the program began."""
FIRST_PROCESS: Final = ["unshare", "--pid", "--fork", "--kill-child"]
"""The service is process 1, as in a container, to which signals without a handler are not delivered."""


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    database = tmp_path_factory.mktemp("start") / "blocklist.db"
    settings = environment(database_url=url_of(database), port="0")
    assert run_app("migrate", env=settings).returncode == 0
    return settings


@pytest.fixture(scope="module")
def start_seconds(settings: dict[str, str]) -> float:
    began = time.monotonic()
    with subprocess.Popen(COMMAND, env=settings, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert "listens on" in process.stdout.readline()
        process.terminate()
        assert process.wait(MAX_SECONDS) == 0
    return time.monotonic() - began


def test_a_service_that_starts_is_stopped(settings: dict[str, str], start_seconds: float) -> None:
    """Every second time as process 1, where that is allowed."""
    contained = subprocess.run([*FIRST_PROCESS, "true"], check=False).returncode == 0
    for number in range(STARTS):
        prefix = FIRST_PROCESS if contained and number % 2 else []
        command = [*prefix, *COMMAND]
        with subprocess.Popen(command, env=settings, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
            service = _first_process(process.pid) if prefix else process.pid
            time.sleep(start_seconds * number / STARTS)
            os.kill(service, signal.SIGTERM)
            assert _ended(process) in ENDED, (number, prefix)


@pytest.fixture
def heeded_hangups() -> Iterator[None]:
    """Also if the tests run under nohup: a child ignores what its parent does."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.mark.usefixtures("heeded_hangups")
@pytest.mark.parametrize("ignored", [False, True], ids=["a closed terminal", "nohup"])
def test_a_hangup_stops_the_service_and_is_logged(settings: dict[str, str], ignored: bool) -> None:
    command = ["sh", "-c", 'trap "" HUP; exec "$@"', "sh", *COMMAND] if ignored else COMMAND
    with subprocess.Popen(command, env=settings, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert "listens on" in process.stdout.readline()
        process.send_signal(signal.SIGHUP)
        if ignored:
            time.sleep(0.5)
            process.terminate()
        log = process.communicate(timeout=MAX_SECONDS)[1]
    assert process.returncode == 0
    assert re.search(f"stopping .*{'SIGTERM' if ignored else 'SIGHUP'}", log), log


def _first_process(unshare: int) -> int:
    """The process id of the service, once it handles SIGTERM."""
    children = Path(f"/proc/{unshare}/task/{unshare}/children")
    while True:
        child = children.read_text().strip()
        status = Path(f"/proc/{child}/status").read_text() if child else ""
        caught = int(status.partition("SigCgt:\t")[2].partition("\n")[0] or "0", 16)
        if caught & 1 << signal.SIGTERM - 1:
            return int(child)
        time.sleep(0.001)


def _ended(process: subprocess.Popen[bytes]) -> int:
    try:
        return process.wait(MAX_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        pytest.fail("the service goes on")
