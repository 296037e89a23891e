"""`make demo` shows its figures, ends, and leaves nothing behind, even if it is interrupted."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from demo.cluster import wait_until
from demo.service import ROOT

pytestmark = pytest.mark.timeout(300)

Demo = subprocess.Popen[str]


@pytest.fixture
def demo(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Demo]:
    """A short demo with piped output. Afterwards none of its processes or temporary files is left."""
    command = [sys.executable, "-m", "demo", "--seconds", "15", *getattr(request, "param", ())]
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    out, both = subprocess.PIPE, subprocess.STDOUT
    with subprocess.Popen(command, cwd=ROOT, env=environment, stdout=out, stderr=both, text=True) as process:
        try:
            yield process
        finally:
            process.kill()
    assert list(tmp_path.iterdir()) == []
    # PySpark's workers end when they notice that their executor has ended.
    wait_until(lambda: not _processes_of(tmp_path), 90, "all processes to end")


def test_the_demo_shows_its_figures_and_stays_up_with_its_page_until_ctrl_c(demo: Demo) -> None:
    assert demo.stdout is not None
    output = ""
    while "The job has ended" not in output:
        output += (line := demo.stdout.readline())
        assert line, output
    page = re.search(r"The page: (\S+)", output)
    assert page is not None
    assert httpx.get(page[1], trust_env=False).status_code == 200
    demo.send_signal(signal.SIGINT)
    output += demo.communicate()[0]
    assert demo.returncode == 130, output
    assert "Traceback" not in output
    check_figures(output)


@pytest.mark.long
@pytest.mark.parametrize("demo", [("--exit",)], indirect=True)
def test_the_demo_ends_by_itself(demo: Demo) -> None:
    output, _ = demo.communicate()
    assert demo.returncode == 0, output
    check_figures(output)


@pytest.mark.long
def test_ctrl_c_ends_the_demo(demo: Demo) -> None:
    assert demo.stdout is not None
    next(line for line in demo.stdout if "127.0.0.3: 2" in line)
    demo.send_signal(signal.SIGINT)
    output, _ = demo.communicate()
    assert demo.returncode == 130, output
    assert "Traceback" not in output


def check_figures(output: str) -> None:
    since = r"[+-]\d+"
    assert re.search(rf"127\.0\.0\.3 +MARK_BLOCKED +last task started {since}", output)
    assert re.search(rf"MARK_BLOCKED_AND_EVACUATE_TASKS +last task started {since}, last task ended {since}", output)
    assert len(re.findall(rf"freed +first task started {since}", output)) == 2
    assert output.count("$ curl -X PUT http://127.0.0.1:") == 2
    assert "\x1b" not in output
    assert "\r" not in output
    assert "WARN" not in output


def _processes_of(folder: Path) -> list[str]:
    """The processes with this folder in their environment: the demo and all that it has started."""
    return [path.parent.name for path in Path("/proc").glob("[0-9]*/environ") if f"={folder}".encode() in _bytes(path)]


def _bytes(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError:
        return b""
