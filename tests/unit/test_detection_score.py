"""How the detection benchmark scores: found after how many applications, and false positives."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from benchmarks.detection import baselines, outcomes, scenarios, tables
from benchmarks.detection.outcomes import LabelledRun, Outcome
from benchmarks.harness import QUICK


def outcome(faulty: str | None, *blamed: set[str]) -> Outcome:
    """An outcome: the hosts blamed after one, two, … applications of a run."""
    case = LabelledRun(name="01-half", seed=1, scenario="half" if faulty else "uniform", faulty=faulty, logs=())
    return Outcome(run=case, blamed=tuple(frozenset(hosts) for hosts in blamed))


def log(folder: Path, times: dict[str, list[int]]) -> Path:
    """An event log with tasks of these times (ms) on each host."""
    file = folder / "app-1"
    spans = [{"Host": host, "Launch Time": 0, "Finish Time": ms} for host, all_ms in times.items() for ms in all_ms]
    ended = {"Event": "SparkListenerTaskEnd", "Task End Reason": {"Reason": "Success"}}
    events = [{**ended, "Task Info": span} for span in spans]
    file.write_text("".join(json.dumps(event, separators=(",", ":")) + "\n" for event in events), encoding="utf-8")
    return file


@pytest.mark.parametrize(
    ("runs", "found", "wrong"),
    [
        (outcome("a", set(), {"a"}, {"a"}), 2, set()),
        (outcome("a", {"b"}, set(), {"a"}), 3, {"b"}),
        (outcome("a", set(), set(), set()), None, set()),
        (outcome(None, set(), {"b"}, set()), None, {"b"}),
    ],
)
def test_a_host_that_was_blamed_once_stays_blamed(runs: Outcome, found: int | None, wrong: set[str]) -> None:
    assert runs.found_after == found
    assert runs.false_positives == wrong


def test_precision_counts_hosts_and_recall_faulty_runs() -> None:
    runs = [outcome("a", {"a", "b"}), outcome("a", set()), outcome(None, {"c"}), outcome(None, set())]
    assert outcomes.precision(runs) == pytest.approx(1 / 3)
    assert outcomes.recall(runs) == pytest.approx(1 / 2)


def test_without_blamed_hosts_there_is_no_precision() -> None:
    assert outcomes.precision([outcome(None, set())]) is None
    assert outcomes.recall([outcome(None, set())]) is None


def test_the_table_has_a_line_for_each_contender_and_scenario() -> None:
    table = tables.table({"one": [outcome("a", {"a"}), outcome(None, {"b"})]})
    assert "| one | 50% | 100% | 1, 1, 1 of 1 | 1 of 1 | 0 of 1 |" in table
    assert "| half | 1 | 1 found (after 1.0) |" in table
    assert "| uniform | 1 | 1 wrong |" in table


def test_the_z_score_excludes_the_host_itself(tmp_path: Path) -> None:
    """With the host included, six hosts could never be three deviations away."""
    usual = {f"h{number}": [100 + number, 98 + number] for number in range(5)}
    assert baselines.z_score_outliers([log(tmp_path, {**usual, "slow": [150, 170]})]) == {"slow"}
    assert baselines.z_score_outliers([log(tmp_path, {**usual, "slow": [103, 104]})]) == set()


def test_runs_are_reproducible() -> None:
    runs = scenarios.runs()
    assert runs == scenarios.runs()
    kinds = Counter(run.scenario for run in runs)
    assert kinds == dict.fromkeys((*scenarios.FAULTY, *scenarios.HEALTHY), 3)
    assert all((run.faulty is None) == (run.scenario in scenarios.HEALTHY) for run in runs)
    assert all(len(run.applications) == 3 for run in runs)


def test_stages_have_eight_tasks_for_each_host() -> None:
    """But for the runs that are about few tasks."""
    applications = [it for run in scenarios.runs() if run.scenario != "few" for it in run.applications]
    assert min(len(it.files) for it in applications) >= 8 * len(scenarios.HOSTS)
    assert min(it.reducers for it in applications) >= 8 * len(scenarios.HOSTS)


def test_a_quick_run_has_faults_and_healthy_hosts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(QUICK, "1")
    assert [run.faulty is None for run in scenarios.runs()] == [False, True] * 3 + [False]
