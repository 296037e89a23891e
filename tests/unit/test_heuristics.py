"""Which nodes are blamed, and above all which are not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import comb, exp, sin

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blocklist import BlockAction
from blocklist.detection.heuristics import binomial_tail, extend_for_repeats, judge
from blocklist.detection.node_summary import (
    CHARGED_TO_NODE,
    COUNTED_BY_PARTITION,
    COUNTED_BY_TASK,
    ApplicationFailures,
    Comparison,
    FailureClass,
    FailureCounts,
    Metric,
    NodeSummary,
    tally,
)
from blocklist.detection.proposals import Proposal, propose
from blocklist.detection.slowness import HOUR_MS, Rules, Severity, robust_deviation
from blocklist.model.changes import Change, ChangeType
from blocklist.model.claims import Claim, merge_claims
from blocklist.model.node import MAX_CAUSE_LENGTH, BlockedNode

HOSTS = ["n1", "n2", "n3", "n4", "n5", "n6"]
RULES = Rules()
HEALTHY = [NodeSummary(host=host, tasks=100, applications=7, stages=44, expected=3.0, share=1 / 6) for host in HOSTS]


def among_healthy(**properties: object) -> list[NodeSummary]:
    """Six nodes, of which the first has these properties."""
    return [replace(HEALTHY[0], **properties), *HEALTHY[1:]]  # type: ignore[arg-type]


def compared(slowdown: float, app: int, host: int = 0, **properties: object) -> Comparison:
    """A host in one of applications that begin every ten minutes; healthy ones differ by a few per cent."""
    began = 600_000 * app
    found = Comparison(
        app=f"app-{app}", metric=Metric.COMPUTE, stages=6, slow_stages=6 if slowdown > 1.3 else 0,
        slowdown=slowdown * exp(0.03 * sin(7 * host + 3 * app)), lost_ms=5000, first=began, last=began + 60_000,
    )  # fmt: skip
    return replace(found, **properties)  # type: ignore[arg-type]


def histories(*slowdowns: Sequence[float], hosts: int = 6, **properties: object) -> list[NodeSummary]:
    """Nodes of which the first ones have these slowdowns in their applications, and the others none."""
    applications = len(slowdowns[0])
    rest = [[1.0] * applications] * (hosts - len(slowdowns))
    return [
        NodeSummary(
            host=f"n{number}",
            tasks=100,
            share=1 / hosts,
            comparisons=[compared(value, app, number, **properties) for app, value in enumerate(own)],
        )
        for number, own in enumerate([*slowdowns, *rest], start=1)
    ]


def slow(slowdown: float = 2.1, applications: int = 7) -> list[NodeSummary]:
    return histories([slowdown] * applications)


def failing(kind: FailureClass, stages: int, applications: int = 2, all_stages: int | None = None) -> list[NodeSummary]:
    """Two tasks in each stage, of partitions of their own."""
    everywhere = all_stages or stages
    failures = FailureCounts(
        stages=stages,
        tasks=2 * stages,
        applications=applications,
        all_stages=everywhere,
        all_tasks=2 * everywhere,
        partitions=2 * stages,
        all_partitions=2 * everywhere,
        first=500,
        last=500 + HOUR_MS,
    )
    return among_healthy(failures={kind: failures})


EARLY_END = "; ends early once 2 applications over 6 minutes find it as good as its peers"


def blamed_hosts(nodes: list[NodeSummary], rules: Rules = RULES) -> list[str]:
    return [verdict.host for verdict in judge(nodes, rules).verdicts]


def test_a_slow_node_is_blocked_with_the_evidence_in_one_sentence() -> None:
    judged = judge(slow(slowdown=3.2), RULES)
    (verdict,) = judged.verdicts
    assert (judged.left_open, judged.near_misses) == ({}, {})
    last = 6 * 600_000 + 60_000
    assert (verdict.host, verdict.severity) == ("n1", Severity.SEVERE)
    assert verdict.action is BlockAction.MARK_BLOCKED_AND_EVACUATE_TASKS
    assert verdict.cause.startswith("3.2x slower than its peers in 42 of 42 stages of 7 applications")
    assert (verdict.last_evidence, verdict.end) == (last, last + HOUR_MS)
    assert 0 < verdict.p_value < 1e-12


def test_a_node_that_is_twice_as_slow_is_marked_and_not_evacuated() -> None:
    (verdict,) = judge(slow(slowdown=2.0), RULES).verdicts
    assert (verdict.severity, verdict.action) == (Severity.SLOW, BlockAction.MARK_BLOCKED)


@pytest.mark.parametrize("metric", Metric)
def test_a_fault_after_a_healthy_past_is_found(metric: Metric) -> None:
    nodes = histories([1.0] * 20 + [2.0, 2.0], metric=metric)
    assert blamed_hosts(nodes) == ["n1"]


def test_hosts_that_are_slower_by_design_are_peers_of_each_other() -> None:
    slower = [1.7] * 5
    judged = judge(histories(slower, slower, slower, hosts=8), RULES)
    assert judged.verdicts == []
    assert judged.near_misses["n2"].endswith("3 hosts are alike (1.7x): slower by design.")
    assert blamed_hosts(histories([1.7] * 5, [3.3] * 5, hosts=8), Rules(max_share=1)) == ["n2", "n1"], "not alike"
    late = [1.0, 1.0, 1.0, 1.7, 1.7]
    assert blamed_hosts(histories(late, late, hosts=8), Rules(max_share=1)) == ["n2", "n1"], "not by design"


def test_a_host_is_compared_with_those_of_its_kind() -> None:
    nodes = histories([1.7] * 5, hosts=8)
    assert blamed_hosts(nodes) == ["n1"]
    assert judge(nodes, RULES, groups={"n1": "small"}).verdicts == []
    small = histories([2.9] * 5, [1.7] * 5, [1.7] * 5, [1.7] * 5, hosts=8)
    found = judge(small, RULES, groups={f"n{number}": "small" for number in range(1, 5)}).verdicts
    assert [verdict.cause[:10] for verdict in found] == ["1.7x slowe"]


def test_a_near_miss_has_its_reason() -> None:
    brief = judge(histories([2.0, 2.0], first=1000, last=2000), RULES)
    assert brief.verdicts == []
    assert brief.near_misses["n1"].endswith("all within 6 minutes: it may have passed.")
    assert blamed_hosts(histories([2.0, 2.0], first=1000, last=2000), Rules(min_span_ms=0)) == ["n1"]
    assert "only 1 of at least 2 applications" in judge(histories([3.0]), RULES).near_misses["n1"]
    one = judge(histories([2.5, 1.25], slow_stages=6), RULES)
    assert one.near_misses["n1"].endswith("most of the evidence is of fewer than 2 applications.")
    assert blamed_hosts(histories([2.5, 1.25, 2.5], slow_stages=6)) == ["n1"]
    few = judge(histories([1.5] * 3, slow_stages=2), RULES)
    assert few.near_misses["n1"].endswith("slow in only 6 of 18 stages.")


@pytest.mark.parametrize(("applications", "blamed"), [(1, True), (2, True), (3, False)])
def test_no_application_counts_for_more_than_its_share_of_those_that_are_needed(
    applications: int, *, blamed: bool
) -> None:
    """In each application another healthy host may be slow, because of what runs beside it."""
    nodes = histories([3.0, 3.0, 1.21], slow_stages=6)
    assert blamed_hosts(nodes, replace(RULES, min_applications=applications)) == (["n1"] if blamed else [])


def test_a_host_that_is_one_and_a_half_times_slower_is_found_by_three_applications() -> None:
    assert blamed_hosts(histories([1.4, 1.5, 1.6])) == ["n1"]
    assert blamed_hosts(histories([1.2] * 5)) == []


def test_one_faulty_peer_does_not_make_the_peers_look_different() -> None:
    peers = [-2.0, -1.0, 0.0, 1.0, 2.0] * 3
    assert robust_deviation(peers) == pytest.approx(2**0.5)
    assert robust_deviation([*peers, 1e9]) < 1.8


def test_a_verdict_says_since_when_and_which_applications_were_hurt() -> None:
    """From the first application on in which the host was slow, though fewer are enough to blame it."""
    (verdict,) = judge(histories([1.0] * 4 + [2.0] * 5, lost_ms=36_000), RULES).verdicts
    assert verdict.since is not None
    assert (verdict.since.app, verdict.since.first) == ("app-4", 4 * 600_000)
    assert [(it.app, it.lost_ms) for it in verdict.hurt] == [(f"app-{number}", 36_000) for number in range(4, 9)]
    assert verdict.cause.endswith(
        " since 1970-01-01 00:40 (app-4); 0.05 core-hours lost (0.01 of app-4 + 0.01 of app-5 + 0.01 of app-6 + 2 more)"
        + EARLY_END
    )
    (strict,) = judge(histories([2.0] * 4), replace(RULES, min_applications=1, min_span_ms=0, canary=True)).verdicts
    assert strict.cause.endswith("; ends early once 1 application finds it as good as its peers")


def failed_in(app: str, failure: FailureClass, first: int, lost_ms: int) -> ApplicationFailures:
    return ApplicationFailures(
        app=app, failure=failure, stages=3, tasks=6, lost_ms=lost_ms, first=first, last=first + HOUR_MS
    )


def test_applications_hurt_by_failures_are_named_once_and_safely() -> None:
    """A log without an App ID is named by its file: a merge would part a cause at a comma, and a cause has a limit."""
    name = "a,b\n" + "x" * 100
    nodes = failing(FailureClass.DISK_FULL, 6)
    kinds = {
        kind: replace(
            nodes[0].failures[FailureClass.DISK_FULL],
            by_application=[failed_in(name, kind, 7, lost), failed_in("app-2", kind, 5, 1)],
        )
        for kind, lost in [(FailureClass.DISK_FULL, 100), (FailureClass.IO_ERROR, 300)]
    }
    (verdict,) = judge([replace(nodes[0], failures=kinds), *nodes[1:]], RULES).verdicts
    assert [(it.app, it.first, it.lost_ms) for it in verdict.hurt] == [("app-2", 5, 1), (name, 7, 300)]
    assert "," not in verdict.cause
    BlockedNode(id="n1", action=verdict.action, start=0, end=1, cause=verdict.cause)


def test_a_cause_is_never_too_long() -> None:
    counts = failing(FailureClass.DISK_FULL, 20)[0].failures[FailureClass.DISK_FULL]
    found = [failed_in("x" * 99 + str(number), FailureClass.DISK_FULL, number, 1) for number in range(9)]
    every = {kind: replace(counts, by_application=found) for kind in CHARGED_TO_NODE}
    (verdict,) = judge(among_healthy(failures=every), RULES).verdicts
    assert len(verdict.cause) == MAX_CAUSE_LENGTH


@pytest.mark.parametrize(
    ("reason", "nodes"),
    [
        ("only 1 of at least 2 applications", failing(FailureClass.LOST_EXECUTOR, 50, 1)),
        ("only 2 of at least 3 stages", failing(FailureClass.LOST_EXECUTOR, 2, 2, 2)),
        ("chance could explain it (p = 5e-03, limit 3e-03)", failing(FailureClass.LOST_EXECUTOR, 3)),
    ],
)
def test_a_near_miss_by_failures_has_its_reason(reason: str, nodes: list[NodeSummary]) -> None:
    if "stages" in reason:
        nodes = [replace(nodes[0], share=0.05), *(NodeSummary(host=f"m{number}", share=0.05) for number in range(19))]
    (sentence,) = judge(nodes, RULES).near_misses.values()
    assert sentence.startswith("Node n1 is not blamed (lost executor in ")
    assert sentence.endswith(f": {reason}.")


def test_failures_that_passed_are_a_near_miss() -> None:
    nodes = failing(FailureClass.FETCH, 20)
    brief = {FailureClass.FETCH: replace(nodes[0].failures[FailureClass.FETCH], first=500, last=600)}
    judged = judge([replace(nodes[0], failures=brief), *nodes[1:]], RULES)
    assert judged.near_misses["n1"].endswith("all within 6 minutes: it may have passed.")


def test_one_failure_is_no_near_miss_however_many_nodes_there_are() -> None:
    hosts = [NodeSummary(host=f"m{number}", tasks=1, share=0.001) for number in range(500)]
    assert judge([*failing(FailureClass.LOST_EXECUTOR, 1, 1), *hosts], RULES).near_misses == {}


@pytest.mark.parametrize(
    ("why", "nodes"),
    [
        ("all are healthy", HEALTHY),
        ("slow in one application alone", histories([1.0, 1.0, 4.0, 1.0, 1.0])),
        ("slow in the latest application alone", histories([1.0, 1.0, 1.0, 4.0])),
        ("slow stages in one application alone", histories([2.5, 1.25])),
        ("slow in two stages alone", histories([2.0, 2.0], stages=1, slow_stages=1)),
        ("slow by a little", slow(slowdown=1.25)),
        ("others are as often slow", histories([2.0] * 3, [1.0, 2.0, 2.0], [2.0, 1.0, 2.0], [2.0, 2.0, 1.0])),
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
    (verdict,) = judge(failing(kind, 6, 2, 7), RULES).verdicts
    assert verdict.host == "n1"
    disk = kind in {FailureClass.DISK_FULL, FailureClass.IO_ERROR}
    many, few = ("12 tasks", 2) if kind in COUNTED_BY_TASK else ("6 stages", 1)
    if kind in COUNTED_BY_PARTITION:
        many, few = "12 partitions", 2
    assert verdict.cause == f"{kind} in {many} of 2 applications and in {few} on all other nodes together{EARLY_END}"
    assert "," not in verdict.cause, "a merge would part it"
    assert (verdict.action is BlockAction.MARK_BLOCKED_AND_EVACUATE_TASKS) is disk


def failed_only_there(*partitions: set[int]) -> list[NodeSummary]:
    """The first host fails these partitions in three stages of each application, and others none."""
    charged = [
        replace(failed_in(f"app-{number}", FailureClass.ONLY_THERE, number, 1), partitions=frozenset(failed))
        for number, failed in enumerate(partitions)
    ]
    return among_healthy(failures=tally({"n1": charged})["n1"])


def test_failures_of_other_classes_count_as_tests_only_if_they_are_enough_to_blame_a_node() -> None:
    nodes = failing(FailureClass.LOST_EXECUTOR, 4)
    assert blamed_hosts(nodes) == ["n1"]
    few = replace(nodes[1], failures=failing(FailureClass.FETCH, 3)[0].failures)
    assert blamed_hosts([nodes[0], few, *nodes[2:]]) == ["n1"]
    many = replace(nodes[1], failures=failing(FailureClass.FETCH, 4)[0].failures)
    found = judge([nodes[0], many, *nodes[2:]], RULES)
    assert found.verdicts == []
    assert found.near_misses["n1"].endswith("chance could explain it (p = 8e-04, limit 7e-04).")


@pytest.mark.parametrize(("kind", "blamed"), [(FailureClass.SLOW_SERVER, ["n1"]), (FailureClass.LOST_EXECUTOR, [])])
def test_a_slow_server_has_many_tasks_because_the_others_wait(kind: FailureClass, blamed: list[str]) -> None:
    nodes = failing(kind, 5)
    assert blamed_hosts([replace(nodes[0], share=0.35), *nodes[1:]]) == blamed


@pytest.mark.parametrize(("applications", "tests"), [(2, 6), (3, 12), (4, 18), (9, 18)])
def test_the_same_applications_are_tested_once(applications: int, tests: int) -> None:
    """The last two, the last three, and all, of six hosts."""
    nodes = histories([1.0] * (applications - 2) + [1.27, 1.27], slow_stages=6)
    assert f", limit {0.005 / tests:.0e})." in judge(nodes, RULES).near_misses["n1"]


def test_a_partition_that_fails_again_and_again_in_one_place_counts_once() -> None:
    """Its data may be bad, and the host the one that holds it."""
    judged = judge(failed_only_there(*[{11}] * 9), RULES)
    assert (judged.verdicts, judged.near_misses) == ([], {})
    assert judge(failed_only_there(*[{11, 12}] * 9), RULES).near_misses == {}, "of two partitions it may be chance"
    (verdict,) = judge(failed_only_there({11, 12, 13}, {11, 14, 15, 16}), RULES).verdicts
    assert verdict.cause.startswith(f"{FailureClass.ONLY_THERE} in 6 partitions of 2 applications and in 0 on all")


def test_partitions_that_fail_with_all_others_on_a_host_count_in_each_application() -> None:
    charged = [
        replace(failed_in(app, FailureClass.ALL_THERE, 1, 1), partitions=frozenset({11, 12})) for app in ("a", "b")
    ]
    counted = tally({"n1": charged})["n1"][FailureClass.ALL_THERE]
    assert (counted.partitions, counted.all_partitions) == (4, 4)
    found = judge(among_healthy(failures={FailureClass.ALL_THERE: counted}, share=0.6), RULES)
    assert [verdict.host for verdict in found.verdicts] == ["n1"], "it has so many tasks because each ends at once"


def test_few_tasks_with_a_full_disk_are_enough_where_spark_avoids_the_host_then() -> None:
    assert blamed_hosts(failing(FailureClass.DISK_FULL, 3, 3)) == ["n1"]


def test_a_node_that_runs_most_tasks_is_expected_to_have_most_failures() -> None:
    nodes = failing(FailureClass.LOST_EXECUTOR, 6, 3, 7)
    assert blamed_hosts(nodes) == ["n1"]
    assert blamed_hosts([replace(nodes[0], share=0.8), *nodes[1:]]) == []


def test_at_most_a_share_of_the_nodes_is_blocked_most_severe_first() -> None:
    some, worse, *others = histories([1.6] * 7, [2.9] * 7)
    worst = failing(FailureClass.DISK_FULL, 20)[0]
    nodes = [some, worse, replace(others[0], failures=worst.failures), *others[1:]]
    assert blamed_hosts(nodes) == ["n3"], "a tenth of six is rounded up"
    assert blamed_hosts(nodes, Rules(max_share=0.33)) == ["n3", "n2"]
    left = judge(nodes, RULES).left_open
    assert left["n1"].startswith("Node n1 is not blocked (1.6x slower than its peers")
    assert left["n1"].endswith("one run blocks at most 1 of 6 nodes.")


@pytest.mark.parametrize(("confirmed", "blamed"), [(None, 2), (6, 2), (3, 1), (0, 1)])
def test_the_share_is_one_of_the_confirmed_nodes(confirmed: int | None, blamed: int) -> None:
    """Forged logs may name any number of hosts."""
    nodes = histories([1.6] * 7, [2.9] * 7)
    judged = judge(nodes, Rules(max_share=0.33), confirmed=confirmed)
    assert len(judged.verdicts) == blamed
    if confirmed == 3:
        assert "at most 1 of 3 nodes that the service's inventory or logs of two" in judged.left_open["n1"]


def test_a_stale_verdict_does_not_take_the_place_of_a_new_one() -> None:
    nodes = histories([2.0] * 3, [4.5] * 3)
    assert blamed_hosts(nodes, Rules(max_share=1)) == ["n2", "n1"]
    old, new = range(-9, -6), range(3)
    applications = [new, old, *([*old, *new] for _ in nodes[2:])]
    values = [2.0, 4.0, 1.0, 1.0, 1.0, 1.0]
    nodes = [
        replace(node, comparisons=[compared(values[number], app, number) for app in applications[number]])
        for number, node in enumerate(nodes)
    ]
    judged = judge(nodes, RULES, lambda verdict: verdict.last_evidence < 0)
    assert [verdict.host for verdict in judged.verdicts] == ["n2", "n1"]
    assert judged.left_open == {}


@given(st.integers(1, 60), st.integers(0, 60), st.floats(0.001, 0.999))
def test_the_binomial_tail_is_the_sum_of_its_terms(trials: int, hits: int, chance: float) -> None:
    exact = sum(
        comb(trials, count) * chance**count * (1 - chance) ** (trials - count) for count in range(hits, trials + 1)
    )
    assert binomial_tail(hits, trials, chance) == pytest.approx(min(1, exact), rel=1e-6, abs=1e-300)


VERDICT = replace(judge(slow(), RULES).verdicts[0], last_evidence=1000, end=1000 + HOUR_MS)


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


CANARIES = Rules(canary=True)


def test_only_a_node_that_is_slow_and_does_not_fail_gets_a_canary() -> None:
    found = {"slow": slow(), "severe": slow(3.5), "failing": failing(FailureClass.LOST_EXECUTOR, 6)}
    verdicts = {name: judge(nodes, CANARIES).verdicts[0] for name, nodes in found.items()}
    assert {name: (it.severity.name, it.canary) for name, it in verdicts.items()} == {
        "slow": ("SLOW", True),
        "severe": ("SEVERE", False),
        "failing": ("FAILING", False),
    }
    assert not judge(slow(), RULES).verdicts[0].canary


@pytest.mark.parametrize(("own", "verdict", "canary"), [(True, True, True), (True, False, False), (False, True, False)])
def test_a_claim_without_a_canary_never_gets_one(*, own: bool, verdict: bool, canary: bool) -> None:
    """And it loses it when the node fails as well."""
    made = [claimed(1500, ChangeType.BLOCKED, detection=replace(OWN, canary=own))]
    proposal = propose(replace(VERDICT, canary=verdict), made, CANARIES, now=2000)
    assert proposal.verdict.canary is canary
    assert proposal.skip_reason == (ALREADY if canary is own else None)


def test_an_evacuation_by_detection_gets_no_canary() -> None:
    strong = replace(OWN, action=BlockAction.MARK_BLOCKED_AND_EVACUATE_TASKS)
    made = [claimed(1500, ChangeType.BLOCKED, detection=strong)]
    verdict = propose(replace(VERDICT, canary=True), made, CANARIES, now=2000).verdict
    assert (verdict.action, verdict.canary) == (strong.action, False)


def test_a_block_of_another_owner_does_not_replace_the_claim() -> None:
    """It may be withdrawn while the node is still slow."""
    made = [claimed(1500, ChangeType.BLOCKED, anna=replace(LATER, cause=VERDICT.cause))]
    assert propose(VERDICT, made, RULES, now=2000).skip_reason is None


def test_the_block_that_is_extended_does_not_lengthen_itself() -> None:
    """An application that ran on while the node was blocked shows it slow again."""
    later = replace(VERDICT, last_evidence=1700)
    history = [change(100), change(200, ChangeType.EXPIRED), claimed(1500, ChangeType.BLOCKED, detection=OWN)]
    assert propose(later, history, RULES, now=2000).verdict.end == 1700 + 2 * HOUR_MS


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
