"""The pictures of the detection's report, and its timeline, as coordinates."""

from __future__ import annotations

import re
from collections.abc import Sequence

import pytest

from blocklist.detection.heuristics import NodeVerdict
from blocklist.detection.node_summary import ApplicationFailures, Comparison, FailureClass, HostInApplication, Metric
from blocklist.detection.report_plots import (
    MAX_RUNS,
    SPAN,
    WIDTH,
    BlockHistory,
    FailureBin,
    Spread,
    StageFailures,
    StageTimes,
    bar,
    counts_picture,
    failure_bars,
    span_of,
    timeline,
    times_picture,
    what_it_shows,
)
from blocklist.detection.slowness import Severity
from blocklist.model.changes import Change, ChangeType
from blocklist.model.node import PERMANENT, BlockAction, BlockedNode

MINUTE = 60_000


def spread(*values: float, tasks: int = 41, hosts: int = 1) -> Spread:
    """Forty-one quantiles, the given ones repeated in order."""
    quantiles = [values[index * len(values) // 41] for index in range(41)]
    return Spread(tasks=tasks, hosts=hosts, median=values[len(values) // 2], quantiles=quantiles)


def stage_times(own: Spread, peers: Spread) -> StageTimes:
    return StageTimes(app="app", stage=3, attempt=0, last=0, slowdown=2.0, slow=True, own=own, peers=peers)


def coordinates(path: str) -> list[float]:
    return [float(x) for x in re.findall(r"M([0-9.]+) 0v14", path)]


@pytest.mark.parametrize(("scale", "unit"), [(0.001, "ms"), (1, "s"), (1000, "min")])
def test_times_are_on_one_axis_from_zero_with_a_fitting_unit(scale: float, unit: str) -> None:
    picture = times_picture(stage_times(spread(4 * scale, 5 * scale), spread(2 * scale, 3 * scale)), Metric.COMPUTE)
    assert picture.own.median > picture.peers.median
    assert picture.own.median / picture.peers.median == pytest.approx(5 / 3, rel=0.03)
    assert picture.axis.caption == f"task time without GC and fetch wait, in {unit}"
    assert picture.axis.ticks[0][1] == "0"
    assert 3 <= len(picture.axis.ticks) <= 6
    assert all(0 <= x <= WIDTH for x in (*coordinates(picture.own.path), *coordinates(picture.peers.path)))
    assert (len(coordinates(picture.own.path)), picture.own.beyond) == (2, None)


def test_a_straggler_is_named_and_does_not_squeeze_the_others() -> None:
    peers = Spread(tasks=41, hosts=9, median=1.0, quantiles=[1.0] * 20 + [1.2] * 20 + [500.0])
    picture = times_picture(stage_times(spread(2.0, tasks=1), peers), Metric.COMPUTE)
    assert picture.peers.beyond == "slowest 500 s"
    assert len(coordinates(picture.peers.path)) == 2
    assert picture.own.text == "this host: 1 task, median 2 s"
    assert picture.summary.endswith("9 peers: 41 tasks, median 1 s, 1 s to 500 s.")


def test_times_to_write_are_per_gigabyte() -> None:
    picture = times_picture(stage_times(spread(9.0), spread(3.0)), Metric.DISK)
    assert picture.axis.caption == "time of a task to write shuffle blocks, in s/GB"
    assert picture.own.text.endswith("median 9 s/GB")


@pytest.mark.parametrize("most", [1, 7, 2300])
def test_failures_of_all_stages_have_the_same_axis_of_whole_numbers(most: int) -> None:
    stage = StageFailures(
        app="app", stage=3, attempt=0, last=0, own=1, own_tasks=4, others=2, peer_max=1, peer_tasks=60, peer_hosts=9
    )
    picture = counts_picture(stage, FailureClass.IO_ERROR, most)
    assert picture.own == picture.peers
    assert 0 < picture.own <= WIDTH
    assert all("." not in text for _, text in picture.axis.ticks)
    assert (
        picture.summary
        == "failed tasks on one host. this host: 1 of its 4 tasks; worst of 9 peers: 1, 2 of 60 on all of them."
    )
    assert counts_picture(stage, FailureClass.FETCH, most).own_text == "this host: 1 task"


def test_a_bar_is_cut_at_the_edges_of_the_span_and_never_invisible() -> None:
    span = (1000, 2000)
    cut = bar("blocked", 0, PERMANENT, span, "")
    assert cut is not None
    assert (cut.x, cut.width) == (0, SPAN)
    end = bar("unblocked", 2000, 2000, span, "")
    assert end is not None
    assert end.width > 1
    assert end.x + end.width == SPAN
    assert bar("blocked", 0, 999, span, "") is None
    assert [(it.x, it.height) for it in failure_bars([(0, 4), (1, 0), (59, 8)], 8)] == [(0, 8), (983.3, 16)]


def run(number: int, *, slowdown: float = 1.0, failed: int = 0) -> HostInApplication:
    """An application of one minute, ten minutes after the one before."""
    begin = number * 10 * MINUTE
    compared = Comparison(
        app=f"app-{number}", metric=Metric.COMPUTE, stages=5, slow_stages=4 if slowdown > 1.5 else 0,
        slowdown=slowdown, lost_ms=0, first=begin, last=begin + MINUTE,
    )  # fmt: skip
    failures = ApplicationFailures(
        app=f"app-{number}", failure=FailureClass.FETCH, stages=1, tasks=failed, lost_ms=0, first=begin, last=begin
    )
    return HostInApplication(
        app=f"app-{number}", host="n3", tasks=9, first=begin, last=begin + MINUTE,
        comparisons=[compared] if slowdown else [], failures=[failures] if failed else [],
    )  # fmt: skip


def change(revision: int, kind: ChangeType, at: int) -> Change:
    node = BlockedNode(id="n3", action=BlockAction.MARK_BLOCKED, start=0, end=PERMANENT, cause="Fan")
    return Change(revision=revision, type=kind, at=at, node=node, created_by="anna")


def verdict() -> NodeVerdict:
    return NodeVerdict(
        host="n3", severity=Severity.SLOW, action=BlockAction.MARK_BLOCKED, cause="slow", first_evidence=0,
        last_evidence=0, end=0, p_value=0,
    )  # fmt: skip


def test_an_application_says_what_it_shows() -> None:
    assert what_it_shows(run(1, slowdown=2.1)) == "2.1x slower in 4 of 5 stages"
    assert what_it_shows(run(1, slowdown=2.1, failed=3)).endswith("; fetch failure: 3 tasks in 1 stage")
    assert what_it_shows(run(1)) == "as good as its peers"
    assert what_it_shows(run(1, slowdown=0)) == "not compared: too few tasks or hosts"


def kinds(runs: Sequence[HostInApplication], since: int = 0) -> list[tuple[str, bool]]:
    """The class of the bar of each application, and whether it is said not to count."""
    line = timeline(verdict(), runs, None, [], since, span_of(runs, None))
    return [(row.bar.kind, "does not count" in row.found) for row in line.runs if row.bar]


def test_evidence_from_before_a_manual_unblock_is_shown_as_such() -> None:
    runs = [run(1, slowdown=2.1), run(2), run(3, slowdown=0), run(4, failed=1)]
    assert kinds(runs, since=15 * MINUTE) == [
        ("differed", True),
        ("same", False),
        ("unknown", False),
        ("differed", False),
    ]


def test_blocks_and_manual_unblocks_widen_the_timeline_by_at_most_half() -> None:
    runs = [run(number) for number in range(10, 13)]
    blocked = [change(1, ChangeType.BLOCKED, 0), change(2, ChangeType.UNBLOCKED, 90 * MINUTE)]
    history = BlockHistory.of(blocked)
    span = span_of(runs, history)
    assert span == (100 * MINUTE - 21 * MINUTE // 2, 121 * MINUTE)
    line = timeline(verdict(), runs, history, [FailureBin(column=3, own=2, others=5, peer_max=4)], 0, span)
    assert [it.x for it in line.block_bars] == [0]
    assert len(line.unblock_bars) == 1
    assert [it.created_by for it in history.unblocks] == ["anna"]
    assert (line.own_failed, line.others_failed) == (2, 5)
    assert [it.height for it in (*line.own_failures, *line.peer_failures)] == [8, 16]


def test_only_the_latest_applications_are_shown() -> None:
    runs = [run(number) for number in range(MAX_RUNS + 2)]
    line = timeline(verdict(), runs, None, [], 0, span_of(runs, None))
    assert (len(line.runs), line.earlier, line.runs[0].run.app) == (MAX_RUNS, 2, "app-2")
    assert line.span[0] == 20 * MINUTE
