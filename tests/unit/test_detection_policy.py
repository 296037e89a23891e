"""Old evidence blocks nothing, and a node that has recovered is released."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from blocklist.detection.events import MAX_TIME
from blocklist.detection.follow_mode import ReportedNames, ReportedVerdicts
from blocklist.detection.heuristics import NodeVerdict
from blocklist.detection.node_summary import ApplicationFailures, FailureClass, Metric, NodeSummary, summarize
from blocklist.detection.proposals import (
    JudgedNodes,
    Proposal,
    Summaries,
    claimed_at,
    format_time,
    judge_with_history,
    release,
    too_few_hosts,
)
from blocklist.detection.slowness import HOUR_MS, Rules, Severity
from blocklist.model.changes import Change, ChangeType
from blocklist.model.claims import Claim, merge_claims
from blocklist.model.node import PERMANENT, BlockAction, BlockedNode
from tests.unit.slow_applications import APPLICATION, MINUTE, applications

NOW = 8 * APPLICATION


def change(kind: ChangeType, at: int, *owners: str, cause: str = "slow") -> Change:
    node = BlockedNode(id="n3", action=BlockAction.MARK_BLOCKED, start=1, end=10**12, cause=cause)
    claims = tuple(Claim(owner=owner, author=None, block=node) for owner in owners)
    return Change(revision=1, type=kind, at=at, node=merge_claims(claims) if claims else node, claims=claims)


def summaries(*slow: Mapping[str, float]) -> Summaries:
    evidence = applications(*slow)

    def since(ignored: Mapping[str, int]) -> Sequence[NodeSummary]:
        return [
            replace(node, comparisons=[it for it in node.comparisons if it.first >= ignored.get(node.host, 0)])
            for node in summarize(evidence)
        ]

    return since


def judged(found: Summaries, rules: Rules | None = None, **changes: Sequence[Change]) -> JudgedNodes:
    def history(host: str) -> Sequence[Change]:
        return changes.get(host, ())

    return judge_with_history(found, rules or Rules(), lambda _: {}, history, now=NOW)


def reasons(found: JudgedNodes) -> list[tuple[str, str | None]]:
    return [(it.verdict.host, it.skip_reason) for it in found.proposals]


BY_HAND = "the node was unblocked by hand since then"
NOT_SUFFICIENT = "the node was unblocked by hand, and the evidence since then is not sufficient"


def unblocked(at: int) -> list[Change]:
    return [change(ChangeType.BLOCKED, at - 1, "anna"), change(ChangeType.UNBLOCKED, at)]


@pytest.mark.parametrize(
    ("at", "expected"),
    [
        (7 * APPLICATION, BY_HAND),
        (5 * APPLICATION + MINUTE, NOT_SUFFICIENT),
        (4 * APPLICATION, None),
        (0, None),
    ],
)
def test_what_was_seen_before_the_node_was_unblocked_does_not_count(at: int, expected: str | None) -> None:
    """Of applications 3 to 6, two are enough: those that began before do not count."""
    found = summaries({}, {}, {}, *[{"n3": 2.2}] * 4)
    assert reasons(judged(found, n3=unblocked(at))) == [("n3", expected)]


def test_evidence_from_before_is_not_in_the_cause() -> None:
    found = summaries({}, {}, {}, *[{"n3": 2.2}] * 4)
    (proposal,) = judged(found, n3=unblocked(4 * APPLICATION)).proposals
    assert proposal.verdict.since is not None
    assert proposal.verdict.since.app == "app-004"


def test_evidence_that_does_not_count_takes_no_place_under_the_limit() -> None:
    """One of six nodes may be blocked. n5 is slower, but somebody has unblocked it."""
    found = summaries({}, {}, {}, *[{"n3": 2.2, "n5": 2.9}] * 4)
    assert reasons(judged(found)) == [("n5", None)]
    after = judged(found, n5=unblocked(NOW - 1))
    assert sorted(reasons(after)) == [("n3", None), ("n5", BY_HAND)]
    assert after.judgement.left_open == {}


def test_a_host_that_cannot_be_a_node_takes_no_place_either() -> None:
    from blocklist.detection.proposals import node_id

    found = summaries({}, {}, {}, *[{"n3": 2.2, "n5": 2.9}] * 4)

    def renamed(ignored: Mapping[str, int]) -> Sequence[NodeSummary]:
        return [replace(node, host="rack 5") if node.host == "n5" else node for node in found(ignored)]

    def history(host: str) -> Sequence[Change]:
        node_id(host)
        return ()

    after = judge_with_history(renamed, Rules(), lambda _: {}, history, now=NOW)
    assert [(host, why is None) for host, why in reasons(after)] == [("rack 5", False), ("n3", True)]


def node_after(*slow: Mapping[str, float]) -> NodeSummary:
    """What is known of n3."""
    return next(it for it in summarize(applications(*slow)) if it.host == "n3")


def released(node: NodeSummary, rules: Rules | None = None) -> Sequence[str]:
    found = release(node, rules or Rules())
    return [] if found is None else found.applications


SLOW: Mapping[str, float] = {"n3": 2.2}


@pytest.mark.parametrize(
    ("owners", "applied"),
    [(None, True), (["anna", "ben"], True), (["anna", "anna"], False), (["anna"], False), ([], False)],
)
def test_logs_of_one_owner_block_nothing_unless_they_are_trusted(owners: list[str] | None, applied: bool) -> None:
    """Whose log an application is may be unknown: that is no second owner."""
    known = None if owners is None else {f"app-{6 + number:03d}": owner for number, owner in enumerate(owners)}
    found = summaries({}, {}, {}, {}, {}, {}, {"n3": 3.0}, {"n3": 3.0})
    log_owners = None if known is None else lambda: known
    (proposal,) = judge_with_history(
        found, Rules(), lambda _: {}, lambda _: (), now=NOW, log_owners=log_owners
    ).proposals
    assert (proposal.skip_reason is None) is applied
    assert applied or "--trust-logs" in str(proposal.skip_reason)


def test_a_node_that_was_clean_in_its_latest_applications_is_released() -> None:
    assert released(node_after(SLOW, {}, {})) == ["app-001", "app-002"]
    assert released(node_after({}, {}, SLOW)) == []
    assert released(node_after({}, SLOW, {})) == []
    assert released(node_after({})) == [], "as many applications as for a verdict"
    assert released(node_after({}, {}), Rules(min_applications=3)) == []
    assert released(node_after({}, {}), Rules(min_span_ms=HOUR_MS)) == [], "it may be a quiet moment"
    assert released(replace(node_after({}, {}), comparisons=())) == [], "it ran nothing"


@pytest.mark.parametrize("metric", [Metric.NETWORK, Metric.DISK, Metric.START])
def test_a_node_that_is_slow_by_another_time_is_not_released(metric: Metric) -> None:
    clean, slow = node_after({}, {}), node_after({}, SLOW)
    other = [replace(it, metric=metric) for it in slow.comparisons]
    assert released(replace(clean, comparisons=[*clean.comparisons, *other])) == []
    short = [replace(it, slow_stages=0) for it in other]
    assert released(replace(clean, comparisons=[*clean.comparisons, *short])), "a time that matters in no stage"


def test_a_node_that_failed_in_them_is_not_released() -> None:
    node = node_after({}, {}, {})
    for first, kind, expected in [
        (2 * APPLICATION, FailureClass.DISK_FULL, 0),
        (2 * APPLICATION, FailureClass.USER, 2),
        (0, FailureClass.DISK_FULL, 2),
    ]:
        failed = ApplicationFailures(app="app", failure=kind, stages=1, tasks=1, lost_ms=1, first=first, last=first)
        evidence = [replace(it, failures=[failed]) if it.host == "n3" else it for it in applications({}, {}, {})][:6]
        failures = next(it for it in summarize(evidence) if it.host == "n3").failures
        assert len(released(replace(node, failures=failures))) == expected


def test_evidence_counts_from_when_the_claim_got_its_present_form() -> None:
    history = [
        change(ChangeType.BLOCKED, 10, "detection"),
        change(ChangeType.MERGED, 20, "detection", cause="slower"),
        change(ChangeType.MERGED, 30, "detection", "anna", cause="slower"),
    ]
    assert [claimed_at(history[:number]) for number in range(4)] == [None, 10, 20, 20]
    assert claimed_at([*history, change(ChangeType.NARROWED, 40, "anna")]) is None


def proposal(seen: int, *, unblocked_at: int = 0, skip_reason: str | None = None) -> Proposal:
    verdict = NodeVerdict(
        host="n3",
        severity=Severity.SLOW,
        action=BlockAction.MARK_BLOCKED,
        cause="slow",
        first_evidence=0,
        last_evidence=seen,
        end=seen + HOUR_MS,
        p_value=0,
    )
    return Proposal(verdict=verdict, unblocked_at=unblocked_at, skip_reason=skip_reason)


def test_a_verdict_is_reported_again_after_the_node_was_unblocked_or_released(tmp_path: Path) -> None:
    """Its block would have lasted longer, but it is gone."""
    reported = ReportedVerdicts(tmp_path / "told.json")
    reported.add([proposal(1000).verdict])
    reported = ReportedVerdicts(tmp_path / "told.json")
    assert not reported.is_new(proposal(2000))
    assert not reported.is_new(proposal(2000, unblocked_at=1500, skip_reason=BY_HAND)), "nothing new"
    assert reported.is_new(proposal(2000, unblocked_at=1500))
    reported.forget(["n3", "n4"])
    assert reported.is_new(proposal(2000))
    assert ReportedVerdicts(tmp_path / "told.json").is_new(proposal(2000))


def test_what_was_reported_days_ago_is_forgotten(tmp_path: Path) -> None:
    """A verdict after the end of its block is new anyway."""
    reported = ReportedVerdicts(tmp_path / "told.json")
    for host, seen in (("n1", 1000), ("n2", time.time_ns() // 1_000_000), ("n3", 1000)):
        reported.add([replace(proposal(seen).verdict, host=host)])
    assert json.loads((tmp_path / "told.json").read_text()).keys() == {"n2", "n3"}


def test_a_near_miss_is_reported_when_it_begins(tmp_path: Path) -> None:
    hosts = ReportedNames(tmp_path / "near-misses.json")
    hosts.set(["n3"])
    assert ReportedNames(tmp_path / "near-misses.json").names == {"n3"}
    hosts.set([])
    assert ReportedNames(tmp_path / "near-misses.json").names == set()


def test_a_time_that_no_calendar_has_is_never() -> None:
    """A clock that is wrong, or the end of a permanent claim: neither ends the command."""
    assert [format_time(time) for time in (MAX_TIME - 1, MAX_TIME, PERMANENT)] == [
        "9999-12-31 23:59:59",
        "never",
        "never",
    ]


@pytest.mark.parametrize(("hosts", "number"), [((), 0), (("n1",), 1), (("n2", "n1"), 1), (("n1", "n2", "n3"), 0)])
def test_two_hosts_cannot_be_compared_and_that_is_said(hosts: Sequence[str], number: int) -> None:
    sentences = too_few_hosts([NodeSummary(host=host) for host in hosts])
    assert len(sentences) == number
    assert all(sentence.startswith(f"Only {' and '.join(sorted(hosts))} ran tasks: ") for sentence in sentences)
