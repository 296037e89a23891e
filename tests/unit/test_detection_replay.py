"""A backtest: what rules would have blocked, saved and cost, and which actual blocks were right."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from blocklist.detection.node_summary import (
    ApplicationFailures,
    FailureClass,
    HostInApplication,
    TaskTime,
    by_host,
    join_evidence,
    summarize,
)
from blocklist.detection.proposals import (
    Agreement,
    actual_blocks,
    compare_with_evidence,
    effect,
    replay,
)
from blocklist.detection.slowness import HOUR_MS, Rules
from blocklist.model.changes import Change, ChangeType
from blocklist.model.claims import Claim, merge_claims
from blocklist.model.node import BlockAction, BlockedNode
from tests.unit.slow_applications import APPLICATION, MINUTE, application, applications


def blocks(evidence: Sequence[HostInApplication], rules: Rules | None = None) -> list[tuple[str, int, float]]:
    """Host, the number of the application after which it would have been blocked, and hours."""
    found = replay(evidence, rules or Rules(), {})
    return [(it.id, it.start // APPLICATION, round((it.end - it.start) / HOUR_MS, 3)) for it in found]


def test_a_host_is_blocked_when_the_second_application_that_it_slows_has_ended() -> None:
    evidence = applications({}, {"n3": 2.2}, {"n3": 2.2}, {}, {})
    assert blocks(evidence) == [("n3", 2, 1.0)]
    assert blocks(list(reversed(evidence))) == [("n3", 2, 1.0)], "in whatever order they were read"


def test_nothing_is_known_of_applications_that_have_not_ended() -> None:
    """The last application begins first, and would have been evidence a day before it ended."""
    late = application(99, {"n3": 2.2}, began=0)
    late = [HostInApplication(app=it.app, host=it.host, tasks=1, first=0, last=200 * APPLICATION) for it in late]
    assert blocks([*applications({}, {"n3": 2.2}), *late]) == []


def test_each_block_doubles_the_next() -> None:
    """While the host is blocked, applications that begin would not have run there: they are no evidence."""
    evidence = applications(*[{"n3": 2.2}] * 40)
    assert [(host, hours) for host, _, hours in blocks(evidence)] == [("n3", 1.0), ("n3", 2.0), ("n3", 4.0)]


def test_an_application_that_runs_on_while_the_host_is_blocked_extends_the_block() -> None:
    evidence = [
        *applications({"n3": 2.2}, {"n3": 2.2}),
        *application(3, {"n3": 2.2}, began=2 * APPLICATION - 5 * MINUTE),
    ]
    ((host, after, hours),) = blocks(evidence)
    assert (host, after) == ("n3", 1)
    assert hours == pytest.approx(1 + 5 / 60, abs=0.001), "from the last evidence"


def test_a_canary_that_is_extended_stays_one() -> None:
    """The rest is as for other blocks: what runs on its executor is not replayed."""
    evidence = [
        *applications({"n3": 2.2}, {"n3": 2.2}),
        *application(3, {"n3": 2.2}, began=2 * APPLICATION - 5 * MINUTE),
    ]
    (block,) = replay(evidence, Rules(canary=True), {})
    (ordinary,) = replay(evidence, Rules(), {})
    assert block == replace(ordinary, canary=True)


def test_other_rules_block_something_else() -> None:
    evidence = applications({"n3": 2.2}, {"n3": 2.2}, {"n3": 2.2})
    assert blocks(evidence, Rules(min_applications=3, block_ms=HOUR_MS // 2)) == [("n3", 2, 0.5)]
    assert blocks(evidence, Rules(min_span_ms=HOUR_MS)) == []


def test_the_limit_on_blocks_counts_at_each_moment() -> None:
    evidence = applications({}, {}, {}, *[{"n3": 2.2, "n5": 2.6}] * 3)
    assert [after for _, after, _ in blocks(evidence)] == [4, 5]
    assert [after for _, after, _ in blocks(evidence, Rules(max_share=0.4))] == [4, 4]


def test_saved_and_cost_are_of_tasks_that_started_while_the_host_would_have_been_blocked() -> None:
    block = BlockedNode(id="n3", start=90_000, end=240_000, action=BlockAction.MARK_BLOCKED, cause="slow")
    times = by_host(
        TaskTime(host=host, minute=minute * MINUTE, lost_ms=1000, healthy_ms=100)
        for host in ("n2", "n3")
        for minute in range(6)
    )
    assert effect(block, times) == (2000, 200), "the minutes 2 and 3"


def test_a_fetch_failure_is_charged_to_a_host_that_ran_no_task_of_the_application() -> None:
    failed = ApplicationFailures(
        app="app-1", failure=FailureClass.FETCH, stages=1, tasks=3, lost_ms=500, first=10, last=20
    )
    found = join_evidence([{"app": "app-1", "host": "n1", "tasks": 7, "first": 1, "last": 30}], {}, {"n2": [failed]})
    assert [(it.host, it.tasks, len(it.failures)) for it in found] == [("n1", 7, 0), ("n2", 0, 1)]
    assert [node.host for node in summarize(found)] == ["n1"], "n2 is no node of these applications"


def change(revision: int, kind: ChangeType, at: int, *owners: str, end: int = 10**12) -> Change:
    node = BlockedNode(id="n3", action=BlockAction.MARK_BLOCKED, start=at, end=end, cause="disk")
    claims = tuple(Claim(owner=owner, author=None, block=node) for owner in owners)
    return Change(revision=revision, type=kind, at=at, node=merge_claims(claims) if claims else node, claims=claims)


def test_a_block_of_the_change_log_agrees_if_the_node_differed_later() -> None:
    evidence = applications({}, {"n3": 2.2}, {"n3": 2.2}, {}, {"n3": 2.2})
    log = [
        change(1, ChangeType.BLOCKED, APPLICATION, "anna"),
        change(2, ChangeType.MERGED, APPLICATION + 1, "anna", "detection"),
        change(3, ChangeType.UNBLOCKED, 3 * APPLICATION),
        change(4, ChangeType.BLOCKED, 3 * APPLICATION, "alertmanager/1", end=4 * APPLICATION),
    ]
    first, second = compare_with_evidence(actual_blocks(log), evidence)
    assert (first.start, first.end, first.owners) == (APPLICATION, 3 * APPLICATION, ["anna", "detection"])
    assert (first.agreement, first.differed, first.applications) == (Agreement.AGREED, 2, 2)
    assert (second.end, second.differed, second.applications) == (4 * APPLICATION, 1, 2)


def test_a_block_is_contradicted_by_healthy_applications_and_unknown_without_any() -> None:
    log = [change(1, ChangeType.BLOCKED, 0, "anna", end=5 * APPLICATION)]
    (block,) = compare_with_evidence(actual_blocks(log), applications({"n4": 2.2}, {}, {}))
    assert (block.agreement, block.differed, block.applications) == (Agreement.CONTRADICTED, 0, 3)
    others = [each for each in applications({}, {}) if each.host != "n3"]
    (block,) = compare_with_evidence(actual_blocks(log), others)
    assert block.agreement is Agreement.UNKNOWN
    late = [change(1, ChangeType.BLOCKED, 99 * APPLICATION, "anna")]
    assert compare_with_evidence(actual_blocks(late), others) == [], "the logs end before it"


def test_a_block_is_of_the_machine_under_any_of_its_names() -> None:
    named = [replace(each, host=f"{each.host}.example.com") for each in applications({}, {"n3": 2.2})]
    (block,) = compare_with_evidence(actual_blocks([change(1, ChangeType.BLOCKED, 0, "anna")]), named)
    assert (block.differed, block.applications) == (1, 2)


@pytest.mark.parametrize("ended", [ChangeType.EXPIRED, ChangeType.UNBLOCKED])
def test_a_block_ends_when_the_node_is_freed(ended: ChangeType) -> None:
    log = [change(1, ChangeType.BLOCKED, 0, "anna"), change(2, ended, 70)]
    assert [(it.start, it.end) for it in actual_blocks(log)] == [(0, 70)]
