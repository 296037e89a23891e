"""Which nodes are blamed, and above all which are not."""

from __future__ import annotations

from dataclasses import replace
from math import comb

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blocklist import BlockAction
from blocklist.detection.apply import Proposal, propose
from blocklist.detection.heuristics import (
    HOUR_MS,
    NodeVerdict,
    Rules,
    Severity,
    binomial_tail,
    extend_for_repeats,
    judge,
)
from blocklist.detection.node_summary import CHARGED_TO_NODE, FailureClass, FailureCounts, NodeSummary
from blocklist.model.changes import Change, ChangeType
from blocklist.model.claims import Claim, merge_claims
from blocklist.model.node import BlockedNode

HOSTS = ["n1", "n2", "n3", "n4", "n5", "n6"]
RULES = Rules()
HEALTHY = [NodeSummary(host=host, tasks=100, applications=7, stages=44, expected=3.0, share=1 / 6) for host in HOSTS]


def among_healthy(**properties: object) -> list[NodeSummary]:
    """Six nodes, of which the first has these properties."""
    return [replace(HEALTHY[0], **properties), *HEALTHY[1:]]  # type: ignore[arg-type]


def slow(
    stages: int = 41, of: int = 44, applications: int = 7, slowdown: float = 2.1, expected: float = 7.3
) -> list[NodeSummary]:
    return among_healthy(
        slow_stages=stages,
        stages=of,
        slow_applications=applications,
        slowdown=slowdown,
        expected=expected,
        slow_last=1000,
    )


def failing(kind: FailureClass, stages: int, applications: int = 2, all_stages: int | None = None) -> list[NodeSummary]:
    """Two tasks in each stage."""
    everywhere = all_stages or stages
    failures = FailureCounts(
        stages=stages,
        tasks=2 * stages,
        applications=applications,
        all_stages=everywhere,
        all_tasks=2 * everywhere,
        last=500,
    )
    return among_healthy(failures={kind: failures})


def blamed_hosts(nodes: list[NodeSummary], rules: Rules = RULES) -> list[str]:
    return [verdict.host for verdict in judge(nodes, rules)[0]]


def test_a_slow_node_is_blocked_with_the_evidence_in_one_sentence() -> None:
    (verdict,), left = judge(slow(slowdown=3.1), RULES)
    assert left == {}
    assert verdict == NodeVerdict(
        host="n1",
        severity=Severity.SEVERE,
        action=BlockAction.MARK_BLOCKED_AND_EVACUATE_TASKS,
        cause="3.1x slower than its peers in 41 of 44 stages of 7 applications",
        last_evidence=1000,
        end=1000 + HOUR_MS,
        p_value=verdict.p_value,
    )
    assert 0 < verdict.p_value < 1e-20


def test_a_node_that_is_twice_as_slow_is_marked_and_not_evacuated() -> None:
    (verdict,), _ = judge(slow(slowdown=2.0), RULES)
    assert (verdict.severity, verdict.action) == (Severity.SLOW, BlockAction.MARK_BLOCKED)


@pytest.mark.parametrize(
    ("why", "nodes"),
    [
        ("all are healthy", HEALTHY),
        ("slow in one application alone", slow(applications=1)),
        ("slow in two stages alone", slow(stages=2, of=2, expected=0.3)),
        ("slow in less than half of the stages", slow(stages=21)),
        ("slow by a little", slow(slowdown=1.4)),
        ("others are as often slow", slow(expected=40.0)),
        ("chance could have done it", slow(stages=3, of=5, expected=0.9)),
        ("two nodes: which one is slow?", slow()[:2]),
        ("user exceptions", failing(FailureClass.USER, 50, 7)),
        ("out of memory", failing(FailureClass.MEMORY, 50, 7)),
        ("one bad application", failing(FailureClass.LOST_EXECUTOR, 50, 1)),
        ("two stages", failing(FailureClass.LOST_EXECUTOR, 2)),
        ("two tasks", failing(FailureClass.DISK_FULL, 1)),
        ("all nodes' disks are full", failing(FailureClass.DISK_FULL, 10, 7, 60)),
        ("three of three on one of six may be chance", failing(FailureClass.LOST_EXECUTOR, 3)),
    ],
)
def test_a_node_is_not_blamed(why: str, nodes: list[NodeSummary]) -> None:
    assert blamed_hosts(nodes) == [], why


@pytest.mark.parametrize("kind", CHARGED_TO_NODE)
def test_failures_that_concentrate_on_one_node_are_charged_to_it(kind: FailureClass) -> None:
    (verdict,), _ = judge(failing(kind, 6, 2, 7), RULES)
    assert verdict.host == "n1"
    disk = kind in {FailureClass.DISK_FULL, FailureClass.IO_ERROR}
    many, few = ("12 tasks", 2) if disk else ("6 stages", 1)
    assert verdict.cause == f"{kind} in {many} of 2 applications and in {few} on all other nodes together"
    assert "," not in verdict.cause, "a merge would part it"
    assert (verdict.action is BlockAction.MARK_BLOCKED_AND_EVACUATE_TASKS) is disk


def test_few_tasks_with_a_full_disk_are_enough_where_spark_avoids_the_host_then() -> None:
    assert blamed_hosts(failing(FailureClass.DISK_FULL, 3, 3)) == ["n1"]


def test_a_node_that_runs_most_tasks_is_expected_to_have_most_failures() -> None:
    nodes = failing(FailureClass.LOST_EXECUTOR, 6, 3, 7)
    assert blamed_hosts(nodes) == ["n1"]
    assert blamed_hosts([replace(nodes[0], share=0.8), *nodes[1:]]) == []


def test_at_most_a_share_of_the_nodes_is_blocked_most_severe_first() -> None:
    some, worse, worst = slow(slowdown=2.0)[0], slow(slowdown=2.2, stages=44)[0], failing(FailureClass.DISK_FULL, 20)[0]
    nodes = [some, replace(worse, host="n2"), replace(worst, host="n3"), *HEALTHY[3:]]
    assert blamed_hosts(nodes) == ["n3"], "one of six, though a tenth would be none"
    assert blamed_hosts(nodes, Rules(max_share=0.34)) == ["n3", "n2"]
    _, left = judge(nodes, RULES)
    assert left["n1"].startswith("Node n1 is not blocked (2.0x slower than its peers")
    assert left["n1"].endswith("one run blocks at most 1 of 6 nodes.")


@given(st.integers(1, 60), st.integers(0, 60), st.floats(0.001, 0.999))
def test_the_binomial_tail_is_the_sum_of_its_terms(trials: int, hits: int, chance: float) -> None:
    exact = sum(
        comb(trials, count) * chance**count * (1 - chance) ** (trials - count) for count in range(hits, trials + 1)
    )
    assert binomial_tail(hits, trials, chance) == pytest.approx(min(1, exact), rel=1e-6, abs=1e-300)


VERDICT = judge(slow(), RULES)[0][0]


def change(at: int, kind: ChangeType = ChangeType.BLOCKED, node: BlockedNode | None = None) -> Change:
    block = node or BlockedNode(id="n1", action=BlockAction.MARK_BLOCKED, start=at, end=at + 10, cause="disk")
    return Change(revision=1, type=kind, at=at, node=block)


def test_each_earlier_block_doubles_the_next() -> None:
    freed = change(600, ChangeType.EXPIRED)
    history = [change(100), change(200, ChangeType.MERGED), change(300, ChangeType.UNBLOCKED), change(500), freed]
    proposal = propose(VERDICT, history, RULES, now=2000)
    assert (proposal.earlier_blocks, proposal.skip_reason) == (2, None)
    assert proposal.verdict.end == VERDICT.last_evidence + 4 * HOUR_MS
    assert extend_for_repeats(VERDICT, RULES, 1000).end == VERDICT.last_evidence + RULES.max_block_ms


def test_a_block_after_the_evidence_does_not_count() -> None:
    """It may be the block that this evidence caused."""
    assert propose(VERDICT, [change(2000), change(2100, ChangeType.EXPIRED)], RULES, now=3000).earlier_blocks == 0


def claimed(at: int, kind: ChangeType, **blocks: BlockedNode) -> Change:
    """A change after which these owners have these claims."""
    claims = tuple(Claim(owner=owner, author="token", block=block) for owner, block in blocks.items())
    return Change(revision=1, type=kind, at=at, node=merge_claims(claims), claims=claims, created_by="token")


OWN = BlockedNode(id="n1", action=VERDICT.action, start=1500, end=VERDICT.end, cause=VERDICT.cause)
LATER = replace(OWN, cause="disk", end=OWN.end + 1)
ALREADY, BY_HAND = "the node is already blocked for this", "the node was unblocked by hand since then"


def test_the_same_evidence_is_applied_once() -> None:
    made = [claimed(1500, ChangeType.BLOCKED, detection=OWN)]
    assert propose(VERDICT, made, RULES, now=2000).skip_reason == ALREADY
    made.append(claimed(1600, ChangeType.MERGED, detection=OWN, anna=LATER))
    assert propose(VERDICT, made, RULES, now=2000).skip_reason == ALREADY


def test_a_claim_is_extended_but_becomes_neither_shorter_nor_weaker() -> None:
    shorter = propose(
        VERDICT, [claimed(1500, ChangeType.BLOCKED, detection=replace(OWN, end=OWN.end - 1))], RULES, now=2000
    )
    assert (shorter.skip_reason, shorter.verdict.end) == (None, VERDICT.end)
    strong = replace(LATER, action=BlockAction.MARK_BLOCKED_AND_EVACUATE_TASKS)
    again = propose(VERDICT, [claimed(1500, ChangeType.BLOCKED, detection=strong)], RULES, now=2000)
    assert (again.skip_reason, again.verdict.end, again.verdict.action) == (None, strong.end, strong.action)


def test_a_block_of_another_owner_does_not_replace_the_claim() -> None:
    """It may be withdrawn while the node is still slow."""
    made = [claimed(1500, ChangeType.BLOCKED, anna=replace(LATER, cause=VERDICT.cause))]
    assert propose(VERDICT, made, RULES, now=2000).skip_reason is None


ALERT = {"alertmanager/1": LATER}
DISMISSED = (Claim(owner="alertmanager/1", author="token", block=LATER),)


@pytest.mark.parametrize(
    ("changes", "why_not"),
    [
        ([claimed(1500, ChangeType.BLOCKED, **ALERT), change(1600, ChangeType.UNBLOCKED)], None),
        (
            [
                claimed(1500, ChangeType.BLOCKED, **ALERT),
                replace(change(1600, ChangeType.UNBLOCKED), dismissed=DISMISSED),
            ],
            BY_HAND,
        ),
        (
            [
                claimed(1500, ChangeType.BLOCKED, detection=OWN, anna=LATER),
                claimed(1600, ChangeType.NARROWED, anna=LATER),
            ],
            BY_HAND,
        ),
        (
            [
                claimed(1500, ChangeType.BLOCKED, detection=replace(OWN, end=1600), anna=LATER),
                claimed(1600, ChangeType.NARROWED, anna=LATER),
            ],
            None,
        ),
        ([claimed(1500, ChangeType.BLOCKED, detection=OWN), change(1600, ChangeType.UNBLOCKED), change(1700)], BY_HAND),
    ],
    ids=["the alert resolved", "an alert was dismissed", "the claim was removed", "it expired", "blocked again"],
)
def test_what_overrules_the_evidence(changes: list[Change], why_not: str | None) -> None:
    assert propose(VERDICT, changes, RULES, now=2000).skip_reason == why_not


@pytest.mark.parametrize(
    ("history", "now", "why_not"),
    [
        ([], VERDICT.end - 1, None),
        ([], VERDICT.end, "the block would already have ended"),
        ([change(1500), change(1600, ChangeType.UNBLOCKED)], 2000, BY_HAND),
        ([change(500), change(600, ChangeType.UNBLOCKED)], 2000, None),
        ([change(1500), change(1600, ChangeType.EXPIRED)], 2000, None),
    ],
)
def test_later_changes_of_the_node_prevent_a_block(history: list[Change], now: int, why_not: str | None) -> None:
    proposal: Proposal = propose(VERDICT, history, RULES, now=now)
    assert proposal.skip_reason == why_not
