"""The pytest plugin of `make test` (`-p tests.whole_run`): it measures all tests, and repeats those that failed.

At most five tests that failed are repeated once, each alone in a process of its own. If all of them pass, the run is
green, and they are listed under FLAKY with their first output. After a crash of a worker, an error in collection, or a
run that did not reach all its tests, nothing is repeated.

The 30 slowest tests and the seconds of each folder are printed at the end; build/durations.txt has those of all tests.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import pytest

REPEATED: Final = 5
SLOWEST: Final = 30


class WholeRun:
    """What all workers reported. Ids of tests are without the names of their groups."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._seconds: dict[str, float] = defaultdict(float)
        self._failed: dict[str, list[pytest.TestReport]] = defaultdict(list)
        self._spoilt: list[str] = []
        """Why a repetition cannot make the run green."""
        self._flaky: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        test = test_id(report.nodeid)
        self._seconds[test] += report.duration
        if report.failed:
            self._failed[test].append(report)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self._spoilt.append(f"{report.nodeid} was not collected")

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: object, error: object) -> None:
        if error:
            self._spoilt.append(f"a worker ended: {error}")

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """After the workers have ended, and before the summary is printed."""
        build = self._root / "build"
        build.mkdir(exist_ok=True)
        (build / "durations.txt").write_text("".join(f"{line}\n" for line in slowest(self._seconds)))
        if len(self._seconds) != session.testscollected:
            self._spoilt.append(f"{len(self._seconds)} of {session.testscollected} tests ran")
        if len(self._failed) > REPEATED:
            self._spoilt.append(f"more than {REPEATED} tests failed")
        if session.exitstatus != pytest.ExitCode.TESTS_FAILED or self._spoilt:
            return
        self._flaky = [test for test in self._failed if passes_alone(test, self._root)]
        if self._flaky and len(self._flaky) == len(self._failed):
            session.exitstatus = pytest.ExitCode.OK
        terminal = session.config.pluginmanager.get_plugin("terminalreporter")
        assert isinstance(terminal, pytest.TerminalReporter)
        self._count_as_flaky(terminal.stats)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        terminalreporter.section("seconds")
        lines = [*slowest(self._seconds)[:SLOWEST], "", *by_folder(self._seconds)]
        terminalreporter.write("".join(f"{line}\n" for line in lines))
        if self._flaky:
            terminalreporter.section("FLAKY: failed once, and passed alone")
        for test in self._flaky:
            terminalreporter.write(f"{test}\n{''.join(map(output, self._failed[test]))}\n")
        if self._failed and self._spoilt:
            terminalreporter.write_line(f"Nothing was repeated: {'; '.join(self._spoilt)}.")

    def _count_as_flaky(self, stats: dict[str, list[pytest.TestReport]]) -> None:
        """In the last line, and so that their output is not printed twice."""
        for kind in ("failed", "error"):
            reports = stats.pop(kind, [])
            if still := [report for report in reports if test_id(report.nodeid) not in self._flaky]:
                stats[kind] = still
        if self._flaky:
            stats["flaky"] = [self._failed[test][0] for test in self._flaky]


def test_id(nodeid: str) -> str:
    """Return the id by which pytest finds a test: with `--dist loadgroup`, `@` and the name of its group follow."""
    return nodeid.rpartition("@")[0] if nodeid.rfind("@") > nodeid.rfind("]") else nodeid


def output(report: pytest.TestReport) -> str:
    sections = (f"--- {name} ---\n{text}\n" for name, text in report.sections)
    return f"{report.longreprtext}\n{''.join(sections)}"


def slowest(seconds: Mapping[str, float]) -> list[str]:
    """A line for each test, with its set-up and its clean-up."""
    return [f"{seconds[test]:8.2f}  {test}" for test in sorted(seconds, key=lambda test: -seconds[test])]


def by_folder(seconds: Mapping[str, float]) -> list[str]:
    folders: dict[str, list[float]] = defaultdict(list)
    for test, taken in seconds.items():
        folders["/".join(Path(test.partition("::")[0]).parts[:-1][:2])].append(taken)
    rows = sorted(folders.items(), key=lambda row: -sum(row[1]))
    return [f"{'seconds':>8}  {'tests':>6}", *(f"{sum(taken):8.0f}  {len(taken):6}  {name}" for name, taken in rows)]


def passes_alone(test: str, root: Path) -> bool:
    """Whether a test passes, and is not skipped, in a process of its own without workers."""
    print(f"\nrepeated: {test}", flush=True)  # noqa: T201
    command = [sys.executable, "-m", "pytest", "-n0", "--rootdir", str(root), test]
    again = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    if again.returncode == pytest.ExitCode.OK and re.search(r"^=+ 1 passed\b", again.stdout, re.MULTILINE):
        return True
    print(again.stdout, again.stderr, sep="\n", flush=True)  # noqa: T201
    return False


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """In the process that distributes the tests, not in its workers."""
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(WholeRun(config.rootpath))
