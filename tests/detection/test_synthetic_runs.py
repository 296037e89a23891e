"""The facts of the benchmark are those of event logs, and the model of task times is what it says."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.detection_quality.event_log import write_event_logs
from benchmarks.detection_quality.facts import host_name
from benchmarks.detection_quality.outcomes import OURS, evaluate, run_evidence, summaries
from benchmarks.detection_quality.runs import MAX_ATTEMPTS, draw_run
from blocklist.detection.heuristics import judge
from blocklist.detection.node_summary import NodeSummary, summarize
from blocklist.detection.slowness import Rules
from tests.detection.analysing import analyse, parsed


def without_names(node: NodeSummary) -> list[object]:
    """Its failures; the applications have other names."""
    return [
        replace(counts, by_application=[replace(it, app="") for it in counts.by_application])
        for _, counts in sorted(node.failures.items())
    ]


@pytest.mark.parametrize(
    "kind", ["disk writes slowly", "bad memory: tasks fail there", "no GPU, and applications end by it"]
)
def test_the_facts_of_a_run_show_what_its_event_logs_do(tmp_path: Path, kind: str) -> None:
    run = draw_run(kind, 1)
    count = len(run.applications)
    logs = {str(path): path.read_text().splitlines() for path in write_event_logs(run, tmp_path / "logs")}
    analysis = analyse(tmp_path, parsed(logs))
    found = analysis.summaries()
    again = summarize(analysis.evidence())
    # Application by application, as a backtest has it.
    assert [(it.host, it.tasks, it.failures) for it in again] == [(it.host, it.tasks, it.failures) for it in found]
    for node, other in zip(again, found, strict=True):
        assert sorted(node.comparisons, key=str) == sorted(other.comparisons, key=str)
    (evidence,) = run_evidence([run])
    direct = summaries(evidence, count)
    assert [node.host for node in found] == [node.host for node in direct]
    for node, other in zip(found, direct, strict=True):
        assert without_names(node) == without_names(other)
        pairs = zip(*(sorted(it.comparisons, key=lambda it: (it.metric, it.last)) for it in (node, other)), strict=True)
        for one, two in pairs:
            assert (one.metric, one.stages, one.slow_stages) == (two.metric, two.stages, two.slow_stages)
            assert one.slowdown == pytest.approx(two.slowdown)
            assert (one.first, one.last) == (two.first, two.last)
    faulty = {host_name(run, host) for host in run.conditions.faulty}
    for nodes in (found, direct):
        assert {verdict.host for verdict in judge(nodes, Rules()).verdicts} == faulty


def test_a_host_that_ends_applications_is_named_after_the_second_one() -> None:
    """In ten of ten clusters; a bug of the application that ends it, or a bad partition, blames nobody in 20 jobs."""
    hosts = [draw_run("no GPU, and applications end by it", seed) for seed in range(10)]
    kinds = ("a bug that ends applications", "bad partitions that end applications")
    bugs = [draw_run(kind, seed) for kind in kinds for seed in range(10)]
    ours = [evaluate(evidence)[OURS] for evidence in run_evidence([*hosts, *bugs])]
    assert [it.found_after(2) for it in ours[:10]] == [True] * 10
    assert [it.false_blames for it in ours] == [0] * 30
    failures = [Counter((it.stage, it.partition) for it in run.applications[0] if it.failure) for run in hosts + bugs]
    ended = [max(counts.values()) == MAX_ATTEMPTS for counts in failures]
    assert ended[10:] == [True] * 20
    assert sum(ended[:10]) >= 8, "the others were saved by chance: another host took the task"
