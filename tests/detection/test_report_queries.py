"""The numbers behind the report's pictures come from the tasks that a verdict rests on."""

from __future__ import annotations

from dataclasses import replace

import pytest

from blocklist.detection import report
from blocklist.detection.analysis import Analysis
from blocklist.detection.heuristics import NodeVerdict, judge
from blocklist.detection.node_summary import FailureClass, Metric
from blocklist.detection.report_plots import BINS, MAX_STAGES
from blocklist.detection.slowness import Rules
from tests.detection.analysing import analyse
from tests.detection.test_host_comparison import APPS, failed, half_speed, in_scenario, slow_server, stages, task

SCENARIOS = {"slow": half_speed, "server": slow_server}


@pytest.fixture(scope="module")
def analysis(tmp_path_factory: pytest.TempPathFactory) -> Analysis:
    """A slow host and a slow server, each with peers of its own; failures of the slow host and of a peer."""
    facts = [in_scenario(name, fact) for name, change in SCENARIOS.items() for fact in stages(change)]
    full = {"error": "java.io.IOException", "message": "No space left on device"}
    for app in APPS:
        for host, partitions in (("n3", (1, 2)), ("n4", (3,))):
            facts += [in_scenario("slow", failed(app, 2, host, partition=it, **full)) for it in partitions]
    return analyse(tmp_path_factory.mktemp("report"), facts)


@pytest.fixture(scope="module")
def verdicts(analysis: Analysis) -> dict[str, NodeVerdict]:
    return {it.host: it for it in judge(analysis.summaries(), Rules(min_span_ms=0, max_share=1)).verdicts}


def suspect(verdict: NodeVerdict, since: int = 0) -> report.BlamedNode:
    return report.BlamedNode(verdict=verdict, status="", history=None, since=since)


def test_a_slow_host_has_its_tasks_and_those_of_its_peers(analysis: Analysis, verdicts: dict[str, NodeVerdict]) -> None:
    found = report.slow_stages(analysis, [suspect(verdicts["slow: n3"])])
    stages = found["slow: n3", Metric.COMPUTE]
    assert len(stages.shown) == MAX_STAGES
    assert stages.total == 15
    assert 14 <= stages.slow <= 15
    assert stages.shown == sorted(stages.shown, key=lambda it: (it.last, it.app))
    for stage in stages.shown:
        assert (stage.own.tasks, stage.own.hosts, stage.peers.tasks, stage.peers.hosts) == (6, 1, 30, 5)
        assert stage.own.median == pytest.approx(2.0, rel=0.3)
        assert stage.peers.median == pytest.approx(1.0, rel=0.2)
        assert stage.slowdown == pytest.approx(stage.own.median / stage.peers.median, rel=0.25)
        assert list(stage.own.quantiles) == sorted(stage.own.quantiles)
        assert len(set(stage.own.quantiles)) == 6, "each of its tasks"


def test_hosts_of_other_kinds_and_old_evidence_are_left_out(
    analysis: Analysis, verdicts: dict[str, NodeVerdict]
) -> None:
    """As they are in the verdict."""
    verdict = verdicts["slow: n3"]
    strangers = frozenset({"slow: n1", "slow: n2"})
    slow = tuple(replace(it, strangers=strangers) for it in verdict.findings if it.subject is Metric.COMPUTE)
    since = task("app-1", 3, "n3")["launched"]
    own = report.slow_stages(analysis, [suspect(replace(verdict, findings=slow), since)])
    stages = own["slow: n3", Metric.COMPUTE]
    assert {it.stage for it in stages.shown} == {3, 4, 5}
    assert stages.total == 9
    assert {it.peers.hosts for it in stages.shown} == {3}


def test_a_slow_server_waits_less_than_its_peers(analysis: Analysis, verdicts: dict[str, NodeVerdict]) -> None:
    verdict = verdicts["server: n3"]
    found = report.slow_server_stages(analysis, [suspect(verdict)])
    assert report.failed_stages(analysis, [suspect(verdict)]) == {}, "no task fails"
    stages = found["server: n3", FailureClass.SLOW_SERVER]
    assert (len(stages.shown), stages.total) == (MAX_STAGES, 15)
    for stage in stages.shown:
        assert stage.own.median == pytest.approx(0.02)
        assert 0.4 <= stage.peers.quantiles[0] <= stage.peers.median <= stage.peers.quantiles[-1] <= 0.8
        assert stage.slowdown == pytest.approx(stage.peers.median / 0.02)


def test_failures_are_counted_against_all_tasks_and_the_worst_peer(
    analysis: Analysis, verdicts: dict[str, NodeVerdict]
) -> None:
    verdict = verdicts["slow: n3"]
    found = report.failed_stages(analysis, [suspect(verdict)])
    stages = found["slow: n3", FailureClass.DISK_FULL]
    assert [(it.app, it.stage) for it in stages.shown] == [(f"slow: {app}", 2) for app in APPS]
    for it in stages.shown:
        assert (it.own, it.own_tasks, it.others, it.peer_max, it.peer_tasks, it.peer_hosts) == (2, 8, 1, 1, 31, 5)
    at = task("app-1", 2, "n3", 7)["time"]
    (only,) = report.failures_over_time(analysis, [suspect(verdict)], {verdict.host: (at - BINS, at + 1)})[verdict.host]
    assert (only.own, only.others, only.peer_max) == (6, 3, 3)


def test_applications_have_their_time_and_hosts_what_they_show(analysis: Analysis) -> None:
    totals = report.application_totals(analysis, ["slow: app-1"])
    # 6 tasks of the warm-up, 180 others and 3 that failed, of one second each.
    assert {name: it["time_ms"] for name, it in totals.items()} == {"slow: app-1": 189_000}
    runs = report.runs_on(analysis, ["slow: n3"])
    assert {(it.app, it.host) for it in runs["slow: n3"]} == {(f"slow: {app}", "slow: n3") for app in APPS}
    assert report.log_totals(analysis)["applications"] == 2 * len(APPS)
