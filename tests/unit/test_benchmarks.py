"""How the benchmarks count and present results."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from benchmarks import report
from benchmarks.groups import GROUPS, LONG
from benchmarks.profile import count_samples, page
from benchmarks.rows import Row, Target, at_least, at_most, ratios, target_met
from benchmarks.sampling import cpu_seconds
from benchmarks.tables import table

OURS, THEIRS = "blocklist", "nginx"


def row(ours: list[float], theirs: list[float], *targets: Target) -> Row:
    samples = {OURS: ours, THEIRS: theirs}
    return Row(name="reads", unit="requests/s", ours=OURS, samples=samples, targets=list(targets))


def test_ratios_compare_samples_of_the_same_round() -> None:
    """A slow machine slows both contenders in a round."""
    assert ratios(row([10, 1, 10], [20, 2, 20]), THEIRS) == [0.5, 0.5, 0.5]


def test_a_median_of_zero_has_no_ratio() -> None:
    assert ratios(row([1, 2], [0, 0]), THEIRS) == []
    assert "| nginx | 0 | 0 | 0 |  |  |" in table([row([1, 2], [0, 0])])


def test_a_running_process_that_a_thread_has_started_is_no_noise() -> None:
    """Such as a browser, whose processes would otherwise make every sample a disturbed one."""
    started = cpu_seconds(os.getpid())
    work = "import sys, time\nwhile time.process_time() < 0.3: pass\nprint('done', flush=True)\nsys.stdin.read()"
    with ThreadPoolExecutor() as pool:
        process = pool.submit(
            subprocess.Popen, [sys.executable, "-c", work], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        ).result()
        with process:
            assert process.stdout is not None
            assert process.stdout.readline() == b"done\n"
            assert cpu_seconds(os.getpid()) - started >= 0.25


@pytest.mark.parametrize(
    ("target", "met"),
    [
        (at_least(0.5, THEIRS), True),
        (at_least(0.51, THEIRS), False),
        (at_most(0.5, THEIRS), True),
        (at_most(0.49, THEIRS), False),
        (at_least(10), True),
        (at_most(9), False),
    ],
)
def test_a_target_is_met_by_the_median(target: Target, *, met: bool) -> None:
    assert target_met(row([10, 1, 90], [20, 2, 180]), target) is met


def test_the_table_has_a_line_for_each_contender() -> None:
    assert table([row([1000, 900, 1100], [2000, 1800, 2750], at_least(0.9, THEIRS))]).splitlines()[2:] == [
        "| **reads**, requests/s | blocklist | 1,000 | 900 | 1,100 |  |  |",
        "|  | nginx | 2,000 | 1,800 | 2,750 | 0.50 (0.40 to 0.50) | ≥ 0.9: **missed** |",
    ]


def test_the_page_shows_all_saved_groups(tmp_path: Path) -> None:
    report.save(tmp_path, "reads", [row([10], [20], at_least(0.9, THEIRS))])
    disturbed = row([10], [5])
    disturbed.noise = {OURS: [0.5], THEIRS: [0.1]}
    report.save(tmp_path, "sizes", [disturbed])
    page = (tmp_path / "README.md").read_text()
    assert "| [reads](#reads) | 0 | 1 |" in page
    assert "![GET /blocklist from 64 connections" in page
    assert "Other processes used 0.30 CPUs (median), 0.50 (maximum)." in page
    assert {path.name for path in tmp_path.iterdir()} == {
        "README.md", "reads.json", "reads.svg", "sizes.json", "sizes.svg",
    }  # fmt: skip


@pytest.mark.parametrize("name", [*GROUPS, *LONG])
def test_each_group_has_a_run_function(name: str) -> None:
    assert callable(importlib.import_module(f"benchmarks.{name.replace('-', '_')}").run)


STACKS = """\
<module> (runpy.py:1);Runner.run (asyncio/runners.py:118) 10
<module> (runpy.py:1);Runner.run (asyncio/runners.py:118);FastPutProtocol._write (app/fast_put.py:153) 60
<module> (runpy.py:1);raw_decode (json/decoder.py:353) 15
<module> (runpy.py:1);loads (json/__init__.py:346) 13
<module> (runpy.py:1);<lambda> (<string>:1) 2"""


def test_a_sample_counts_for_the_innermost_frame() -> None:
    profile = count_samples(STACKS.splitlines(), cpu=72.4)
    assert profile.files == {"app/fast_put.py": 60, "json": 28, "uvloop": 10, "generated (named tuples)": 2}
    written = page({"PUT": profile})
    assert "| app/fast_put.py | 60 |\n| json | 28 |\n| uvloop | 10 |\n| others | 2 |\n| µs of CPU | 72 |" in written
    assert "- 60 %: `app/fast_put.py`, line 153, in `FastPutProtocol._write`\n- 15 %: `json/decoder.py`" in written
