"""The script of docs/managers.md for YARN's exclude file, on a simulated ResourceManager; tests/yarn has a real one."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from tests.yarn.exclude_script import write_script
from tests.yarn.simulated import SimulatedYarn, serving

MARK, EVACUATE = "MARK_BLOCKED", "MARK_BLOCKED_AND_EVACUATE_TASKS"
EMPTY = '<?xml version="1.0"?>\n<hosts>\n</hosts>\n'


class ExcludeScript:
    """`code` is the exit code of its `yarn rmadmin`; `calls` are the arguments of each."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "exclude.xml"
        self.code = 0
        self._path = write_script(folder)
        self._folder = folder
        self._notes = folder / "notes"

    def run(self, yarn: SimulatedYarn, *blocked: tuple[str, ...]) -> subprocess.CompletedProcess[str]:
        command = self._folder / "yarn"
        command.write_text(f'#!/bin/sh\necho "$@" | tee -a {self._notes}\nexit {self.code}\n')
        command.chmod(0o755)
        nodes = [{"id": it[0], "action": it[1], "names": it[2:]} for it in blocked]
        plan = {"revision": 1, "steps": [], "blocked": nodes}
        with serving(yarn) as url:
            return subprocess.run(
                [self._path, url, str(self.file)],
                env={"PATH": f"{self._folder}:{os.environ['PATH']}"},
                input=json.dumps(plan),
                capture_output=True,
                text=True,
                check=False,
            )

    @property
    def calls(self) -> list[str]:
        return self._notes.read_text().splitlines()


@pytest.fixture
def script(tmp_path: Path) -> ExcludeScript:
    return ExcludeScript(tmp_path)


def test_the_file_has_the_names_of_yarn_and_what_yarn_does_not_know_is_not_here(script: ExcludeScript) -> None:
    yarn = SimulatedYarn(["w1.a", "w2.a", "w2.b", "w3.a"])
    done = script.run(yarn, ("W1", MARK), ("u1", EVACUATE, "10.0.0.1", "w1.a"), ("w2", MARK, "w3.a"), ("nosuch", MARK))
    assert (done.returncode, done.stdout) == (0, '{"notHere": ["nosuch"]}\n'), done.stderr
    assert script.file.read_text().splitlines()[2:-1] == [
        "<host><name>w1.a</name><timeout>0</timeout></host>",
        "<host><name>w2.a</name><timeout>-1</timeout></host>",
        "<host><name>w2.b</name><timeout>-1</timeout></host>",
    ]
    assert script.calls == ["rmadmin -refreshNodes -g -server"]


def test_an_excluded_host_stays_in_the_file_while_yarn_does_not_name_it(script: ExcludeScript) -> None:
    """After a restart, until its NodeManager registers."""
    script.run(SimulatedYarn(["w1.a"]), ("w1", MARK))
    written = script.file.read_text()
    done = script.run(SimulatedYarn([]), ("w1", MARK), ("w9", MARK))
    assert json.loads(done.stdout) == {"pending": {"w9": "YARN lists no nodes at all."}}
    assert script.file.read_text() == written
    script.run(SimulatedYarn([]))
    assert script.file.read_text() == EMPTY


def test_a_failure_of_yarn_is_one_of_the_script(script: ExcludeScript) -> None:
    script.code = 1
    assert script.run(SimulatedYarn(["w1.a"]), ("w1", MARK)).returncode != 0
