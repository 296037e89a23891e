"""What `make test` reports of small folders of tests."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
GOOD = "def test_good(): pass\n"
FLAKY = """
from pathlib import Path

def test_flaky(tmp_path_factory):
    seen = Path(__file__).with_suffix(".seen")
    if not seen.exists():
        seen.touch()
        print("what the first run printed")
        assert 1 + 1 == 3
"""
BAD = "def test_bad(): assert not 'bad'\n"


@dataclass(frozen=True)
class Result:
    code: int
    output: str

    @property
    def last(self) -> str:
        """The summary, without its time."""
        return re.sub(r" in [\d.]+s", "", self.output.splitlines()[-1].strip("= "))


def whole_run(folder: Path, *arguments: str, **files: str) -> Result:
    """Run the tests in `files`, which are in tests/unit, with two workers."""
    tests = folder / "tests" / "unit"
    tests.mkdir(parents=True)
    (folder / "pytest.ini").write_text("[pytest]\naddopts = -p xdist --strict-markers\n")
    (folder / "tests" / "conftest.py").write_text("from tests.scheduling import pytest_xdist_make_scheduler\n")
    for name, text in files.items():
        (tests / f"{name}.py").write_text(text)
    command = [sys.executable, "-m", "pytest", "-p", "tests.whole_run", *(arguments or ("-n", "2"))]
    others = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    env = others | {"PYTHONPATH": str(ROOT), "COLUMNS": "80", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    done = subprocess.run(
        [*command, "--dist", "loadgroup", "--rootdir", str(folder), str(tests)],
        cwd=folder,
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )
    return Result(done.returncode, done.stdout + done.stderr)


def test_what_passes_alone_is_flaky_and_the_run_is_green(tmp_path: Path) -> None:
    """Also in a group, with parameters, and if a fixture fails. The durations are printed and kept."""
    slow = "import time\n\ndef test_slow(): time.sleep(0.3)\n"
    grouped = "import pytest\n\npytestmark = pytest.mark.xdist_group('mine')\n" + FLAKY
    parametrized = FLAKY.replace(
        "def test_flaky(", "import pytest\n@pytest.mark.parametrize('a', ['x@y'])\ndef test_flaky(a, "
    )
    fixture = FLAKY.replace("def test_flaky(", "import pytest\n@pytest.fixture\ndef broken(")
    fixture += "\ndef test_it(broken): pass\n"
    result = whole_run(
        tmp_path,
        test_good=GOOD,
        test_slow=slow,
        test_grouped=grouped,
        test_parametrized=parametrized,
        test_fixture=fixture,
    )
    assert (result.code, result.last) == (0, "2 passed, 3 flaky"), result.output
    before, flaky = result.output.split("FLAKY: failed once, and passed alone")
    assert "tests/unit/test_grouped.py::test_flaky\n" in flaky
    assert "tests/unit/test_parametrized.py::test_flaky[x@y]\n" in flaky
    assert "tests/unit/test_fixture.py::test_it\n" in flaky
    assert flaky.count("assert (1 + 1) == 3") == flaky.count("what the first run printed") // 2 == 3
    assert re.search(r"^    0\.3\d  tests/unit/test_slow\.py::test_slow$", before, re.MULTILINE)
    assert re.search(r"^       \d       5  tests/unit$", before, re.MULTILINE)
    kept = (tmp_path / "build" / "durations.txt").read_text().splitlines()
    assert len(kept) == 5
    assert kept == sorted(kept, key=lambda line: -float(line.split()[0]))


def test_what_fails_again_or_is_skipped_when_it_is_repeated_is_red(tmp_path: Path) -> None:
    skipping = FLAKY + "    else:\n        __import__('pytest').skip()\n"
    result = whole_run(tmp_path, test_good=GOOD, test_bad=BAD, test_flaky=FLAKY, test_skipping=skipping)
    assert (result.code, result.last) == (1, "2 failed, 1 passed, 1 flaky"), result.output


def test_more_than_five_failures_are_not_repeated(tmp_path: Path) -> None:
    result = whole_run(tmp_path, **{f"test_{number}": FLAKY for number in range(6)})
    assert (result.code, result.last) == (1, "6 failed"), result.output
    assert "Nothing was repeated: more than 5 tests failed." in result.output


@pytest.mark.parametrize("workers", ["-n2", "-n0"])
def test_a_module_that_cannot_be_collected_is_red(tmp_path: Path, workers: str) -> None:
    result = whole_run(tmp_path, workers, test_flaky=FLAKY, test_wrong="import missing_module\n")
    assert result.code != 0, result.output
    assert "\nrepeated: " not in result.output


def test_a_worker_that_crashes_makes_the_run_red(tmp_path: Path) -> None:
    crash = "import os\n\ndef test_crash(): os._exit(1)\n"
    result = whole_run(tmp_path, test_crash=crash, test_flaky=FLAKY, test_good=GOOD)
    assert (result.code, result.last) == (1, "2 failed, 1 passed"), result.output
    assert "Nothing was repeated: a worker ended: Not properly terminated." in result.output


@pytest.mark.parametrize("arguments", [("-n0", "-x"), ("-n2", "--maxfail=1")])
def test_a_run_that_ended_early_is_red(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    result = whole_run(tmp_path, *arguments, test_a=FLAKY, **{f"test_b{number}": GOOD for number in range(9)})
    assert result.code != 0, result.output
    assert "\nrepeated: " not in result.output


def test_no_tests_is_red(tmp_path: Path) -> None:
    assert whole_run(tmp_path).code == pytest.ExitCode.NO_TESTS_COLLECTED
