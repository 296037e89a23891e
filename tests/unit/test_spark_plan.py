"""Which hosts of a Spark application the plan blocks, which stay open, and the reasons."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from blocklist.model.node import PERMANENT, BlockAction, BlockedNode
from blocklist.spark.plan import ClusterState, ExclusionPlan, make_plan

MARK, EVACUATE = BlockAction.MARK_BLOCKED, BlockAction.MARK_BLOCKED_AND_EVACUATE_TASKS


def block(
    node_id: str, action: BlockAction = MARK, *, start: int = 10, end: int = PERMANENT, cause: str = "disk"
) -> BlockedNode:
    return BlockedNode(id=node_id, action=action, start=start, end=end, cause=cause)


def cluster(*hosts: str, excluded: tuple[str, ...] = (), blocked: Mapping[str, int] | None = None) -> ClusterState:
    return ClusterState(epoch=1, open=frozenset(hosts), excluded=frozenset(excluded), blocked=blocked or {})


def hosts_of(plan: ExclusionPlan) -> list[str]:
    return [block.host for block in plan.blocks]


def test_an_empty_list_is_an_empty_plan() -> None:
    assert make_plan([], cluster("n1", "n2"), now=20) == ExclusionPlan()


def test_a_blocked_host_is_blocked_until_its_end_and_the_plan_says_why() -> None:
    plan = make_plan([block("n1", end=99)], cluster("n1", "n2"), now=20)
    assert [(b.host, b.node.end, b.reason) for b in plan.blocks] == [
        ("n1", 99, "Host n1 is blocked as n1 until 99 (disk).")
    ]
    assert plan.evacuate == frozenset()
    assert plan.blocked_as == {"n1": "n1"}


def test_the_reason_of_a_permanent_block() -> None:
    (only,) = make_plan([block("n1")], cluster("n1", "n2"), now=20).blocks
    assert only.reason == "Host n1 is blocked as n1 permanently (disk)."


def test_only_the_stronger_action_evacuates() -> None:
    plan = make_plan([block("n1", EVACUATE), block("n2")], cluster("n1", "n2", "n3"), now=20)
    assert plan.evacuate == {"n1"}


@pytest.mark.parametrize(("now", "blocked"), [(98, ["n1"]), (99, []), (100, [])])
def test_at_its_end_a_block_is_over(now: int, blocked: list[str]) -> None:
    plan = make_plan([block("n1", end=99)], cluster("n1", "n2"), now=now)
    assert hosts_of(plan) == blocked
    assert set(plan.names) == ({"n1", "n1."} if blocked else set())


@pytest.mark.parametrize(
    ("node_id", "host"),
    [
        ("n7", "n7"),
        ("N7", "n7"),
        ("n7", "N7"),
        ("n7", "n7.example.com"),
        ("N7", "n7.Example.com"),
        ("n7.example.com", "n7"),
        ("n7.example.com", "N7.EXAMPLE.COM"),
        ("10.0.0.7", "10.0.0.7"),
        ("10.0.0.7", "n7.example.com"),
        ("n7.example.com", "10.0.0.7"),
        ("alias-of-7", "n7.example.com"),
        ("0:0::1", "[::1]"),
        ("10", "10"),
    ],
)
def test_an_id_matches_a_host_in_any_case_short_or_full_or_by_address(node_id: str, host: str) -> None:
    known = {"n7.example.com": frozenset({"10.0.0.7"}), "alias-of-7": frozenset({"10.0.0.7"})}
    plan = make_plan([block(node_id)], cluster(host, "other"), now=20, addresses=known)
    assert plan.blocked_as == {host: node_id}


@pytest.mark.parametrize(
    ("node_id", "host"),
    [
        ("n7", "n70"),
        ("n7", "m.n7"),
        ("n7.example.com", "n7.example.org"),
        ("10", "10.0.0.7"),
        ("10.0.0.7", "10.0.0.8"),
        ("example.com", "n7.example.com"),
    ],
)
def test_an_id_does_not_match_other_hosts(node_id: str, host: str) -> None:
    assert make_plan([block(node_id)], cluster(host, "other"), now=20).blocks == ()


def test_a_short_id_matches_every_host_whose_name_it_begins() -> None:
    plan = make_plan([block("n7")], cluster("n7.a.example", "n7.b.example", "n8"), now=20)
    assert set(hosts_of(plan)) == {"n7.a.example", "n7.b.example"}


def test_an_address_shared_by_several_hosts_is_ignored() -> None:
    """A name server that resolves every name to its search page must not block the cluster."""
    known = dict.fromkeys(("n1", "n2", "gone"), frozenset({"203.0.113.1"}))
    assert make_plan([block("gone")], cluster("n1", "n2", "n3"), now=20, addresses=known).blocks == ()


def test_several_ids_of_one_host_are_merged() -> None:
    nodes = [block("n1", end=99, cause="a"), block("n1.example.com", EVACUATE, start=5, end=50, cause="b")]
    (only,) = make_plan(nodes, cluster("n1", "n2"), now=20).blocks
    assert (only.evacuate, only.node.start, only.node.end) == (True, 5, 99)
    assert only.node.id == "n1.example.com"
    assert set(only.node.cause.split(",")) == {"a", "b"}


def test_future_hosts_are_matched_by_their_possible_names() -> None:
    known = {"n7.example.com": frozenset({"10.0.0.7"}), "alias": frozenset({"10.0.0.7"})}
    full = make_plan([block("N7.example.com")], cluster("n1"), now=20, addresses=known)
    assert set(full.names) == {"n7.example.com", "n7", "10.0.0.7", "alias"}
    short = make_plan([block("n8")], cluster("n1"), now=20)
    assert set(short.names) == {"n8", "n8."}
    assert set(make_plan([block("10")], cluster("n1"), now=20).names) == {"10"}
    assert set(make_plan([block("0:0::1")], cluster("n1"), now=20).names) == {"0:0::1", "::1", "[::1]"}


def test_a_future_name_of_several_ids_is_merged() -> None:
    plan = make_plan([block("n1", end=99), block("n1.example.com", EVACUATE, end=50)], cluster("n2"), now=20)
    assert (plan.names["n1"].action, plan.names["n1"].end) == (EVACUATE, 99)


@pytest.mark.parametrize(
    ("nodes", "left_open"),
    [
        ([block("n1", EVACUATE), block("n2"), block("n3", EVACUATE)], "n2"),
        ([block("n1", start=12), block("n2", start=11), block("n3", start=13)], "n2"),
        ([block("n1", start=12), block("n2", EVACUATE, start=1), block("n3", start=13)], "n1"),
        ([block("n1"), block("n2"), block("n3")], "n1"),
    ],
    ids=["the weakest action", "then the oldest block", "action before age", "then by name"],
)
def test_the_last_host_stays_open(nodes: list[BlockedNode], left_open: str) -> None:
    plan = make_plan(nodes, cluster("n1", "n2", "n3"), now=20)
    assert set(plan.refused) == {left_open}
    assert sorted([*hosts_of(plan), left_open]) == ["n1", "n2", "n3"]


def test_a_refusal_has_a_reason() -> None:
    plan = make_plan([block("N1.example.com")], cluster("n1"), now=20)
    assert plan.refused == {
        "N1.example.com": "Host n1 stays open although N1.example.com is blocked (disk): the job must keep a host with"
        " a live executor, and this is the weakest block."
    }


def test_keep_hosts_is_the_minimum_of_open_hosts() -> None:
    nodes = [block("n1", EVACUATE), block("n2"), block("n3", EVACUATE)]
    plan = make_plan(nodes, cluster("n1", "n2", "n3", "n4"), now=20, keep_hosts=3)
    assert hosts_of(plan) == ["n3"]
    assert set(plan.refused) == {"n1", "n2"}


def test_below_keep_hosts_none_is_blocked() -> None:
    assert make_plan([block("n1"), block("n2")], cluster("n1", "n2"), now=20, keep_hosts=5).blocks == ()


def test_the_weakest_block_comes_first() -> None:
    nodes = [block("n1", EVACUATE, start=1), block("n2", start=12), block("n3", start=11)]
    assert hosts_of(make_plan(nodes, cluster("n1", "n2", "n3", "n4"), now=20)) == ["n3", "n2", "n1"]


def test_a_host_that_spark_excludes_does_not_count_as_open() -> None:
    plan = make_plan([block("n1")], cluster("n1", excluded=("n2", "n3")), now=20)
    assert plan.blocks == ()
    assert set(plan.refused) == {"n1"}


def test_a_host_that_spark_excludes_is_blocked_too() -> None:
    """Spark's own exclusion may end before the block does."""
    plan = make_plan([block("n1")], cluster("n2", excluded=("n1",)), now=20)
    assert hosts_of(plan) == ["n1"]


def test_a_host_that_a_stuck_task_requires_stays_open() -> None:
    nodes = [block("n1", EVACUATE), block("n2")]
    plan = make_plan(nodes, cluster("n1", "n2", "n3"), now=20, required=frozenset({"n1"}))
    assert hosts_of(plan) == ["n2"]
    assert plan.refused["n1"].endswith("a task that failed on other hosts can run nowhere else.")


def test_hosts_of_an_earlier_plan_are_freed_with_a_reason() -> None:
    state = cluster("n1", "n2", "n3", blocked={"n1": 99, "n2": 99, "n9": 99})
    plan = make_plan([block("n2"), block("n3", EVACUATE)], state, now=20, keep_hosts=2)
    assert plan.freed == {
        "n1": "Host n1 is no longer blocked.",
        "n2": plan.refused["n2"],
        "n9": "Host n9 no longer has an executor.",
    }


HOSTS = [f"n{i}" for i in range(6)]
nodes_ = st.lists(
    st.builds(
        block,
        st.sampled_from(["N0", "n1.example.com", *HOSTS]),
        st.sampled_from(BlockAction),
        start=st.integers(0, 20),
        end=st.integers(15, 40),
    ),
    max_size=8,
    unique_by=lambda node: node.id,
)
clusters_ = st.builds(
    lambda open_, excluded: cluster(*open_ - excluded, excluded=tuple(excluded)),
    st.sets(st.sampled_from(HOSTS)),
    st.sets(st.sampled_from(HOSTS)),
)


@settings(deadline=None)
@given(nodes_, clusters_, st.integers(1, 4), st.integers(15, 40))
def test_at_least_keep_hosts_stay_open(nodes: list[BlockedNode], state: ClusterState, keep: int, now: int) -> None:
    plan = make_plan(nodes, state, now=now, keep_hosts=keep)
    assert len(state.open - set(hosts_of(plan))) >= min(keep, len(state.open))


@settings(deadline=None)
@given(nodes_, clusters_, st.integers(1, 4), st.integers(15, 40))
def test_a_block_is_refused_only_if_necessary(
    nodes: list[BlockedNode], state: ClusterState, keep: int, now: int
) -> None:
    plan = make_plan(nodes, state, now=now, keep_hosts=keep)
    assert not plan.refused or len(state.open - set(hosts_of(plan))) <= keep


@settings(deadline=None)
@given(nodes_, clusters_, st.integers(1, 4), st.integers(15, 40))
def test_planning_is_idempotent(nodes: list[BlockedNode], state: ClusterState, keep: int, now: int) -> None:
    first = make_plan(nodes, state, now=now, keep_hosts=keep)
    in_place = ClusterState(
        epoch=2,
        open=state.open,
        excluded=state.excluded,
        blocked={block.host: block.node.end for block in first.blocks},
    )
    again = make_plan(reversed(nodes), in_place, now=now, keep_hosts=keep)
    assert again == first
    assert again.freed == {}


@settings(deadline=None)
@given(nodes_, clusters_, st.integers(15, 40))
def test_only_current_blocks_of_live_hosts_are_applied(nodes: list[BlockedNode], state: ClusterState, now: int) -> None:
    """What Spark excluded by itself is no part of a plan: it is neither blocked for it nor freed."""
    plan = make_plan(nodes, state, now=now)
    assert all(now < block.node.end for block in plan.blocks)
    assert set(hosts_of(plan)) <= state.open | state.excluded
    assert plan.freed == {}
    assert not set(plan.refused) & {node.id for node in nodes if node.ended(now)}


def test_each_matching_host_has_a_node_id_even_if_it_stays_open() -> None:
    plan = make_plan([block("N1"), block("n2", start=11)], cluster("n1", "n2"), now=20)
    assert (plan.blocked_as, plan.node_ids) == ({"n2": "n2"}, {"n1": "N1", "n2": "n2"})


def test_a_long_cause_is_truncated_in_a_refusal() -> None:
    (sentence,) = make_plan([block("n1", cause="x" * 1000)], cluster("n1"), now=20).refused.values()
    assert "xxx…): the job must keep a host" in sentence
    assert len(sentence) < 300
