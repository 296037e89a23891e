"""A machine whose clock is wrong: blocks end by the clock of the service, so the command counts by that one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Final

import httpx
import pytest

from tests.integration.bodies import now_ms
from tests.integration.command import TIMEOUT, Command
from tests.integration.listeners import put
from tests.integration.process import ROOT, ServiceProcess

HOUR: Final = 3_600_000
SKEWED: Final = """
import sys, time
clock, offset = time.time_ns, int(sys.argv.pop(1)) * 1_000_000
time.time_ns = lambda: clock() + offset
from blocklist.cli.__main__ import main
sys.exit(main())
"""


def run_skewed(command: Command, offset: int, *arguments: str) -> subprocess.CompletedProcess[str]:
    """The command on a machine whose clock is ahead by `offset` milliseconds."""
    return subprocess.run(
        [sys.executable, "-P", "-c", SKEWED, str(offset), *arguments],
        env=command.env | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
        check=False,
    )


@pytest.mark.parametrize(("offset", "word"), [(-HOUR, "behind"), (HOUR, "ahead of")])
def test_a_duration_counts_by_the_clock_of_the_service(
    binaries: Path, fresh: ServiceProcess, fresh_client: httpx.Client, offset: int, word: str
) -> None:
    command = Command(binaries, fresh.url)
    before = now_ms()
    done = run_skewed(command, offset, "block", "n1", "-r", "disk", "-d", "30m")
    assert (done.returncode, "blocked until" in done.stdout) == (0, True), done.stderr
    assert f" {word} the service's." in done.stderr
    end = int(fresh_client.get("/blocklist/nodes/n1").json()["endTimestamp"])
    assert before + HOUR // 2 - 5_000 <= end <= now_ms() + HOUR // 2 + 5_000
    for line in (["list"], ["claims"]):
        shown = run_skewed(command, offset, *line).stdout.splitlines()[1].split()
        remaining = shown[3] if line == ["claims"] else shown[2]
        assert remaining.startswith(("2", "30m")), remaining
    # 30m in the second of the block, 29m59s after it.
    assert run_skewed(command, offset, "is-blocked", "n1").stdout.partition("(in ")[2].startswith(("2", "30m"))
    assert run_skewed(command, offset, "extend", "n1", "-d", "2h").returncode == 0
    assert int(fresh_client.get("/blocklist/nodes/n1").json()["endTimestamp"]) <= now_ms() + 2 * HOUR + 5_000


def test_a_small_difference_is_none(binaries: Path, fresh: ServiceProcess, fresh_client: httpx.Client) -> None:
    put(fresh_client, "n1")
    done = run_skewed(Command(binaries, fresh.url), 2_000, "block", "n2", "-r", "disk", "-d", "30m")
    assert (done.returncode, done.stderr) == (0, "")
