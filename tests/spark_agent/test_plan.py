"""The plan of an application: which hosts get no tasks, which stay open, and why."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterable, Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from blocklist.model.driver_table import DriverTable
from blocklist.model.names import same_machine
from blocklist.model.node import PERMANENT, BlockAction, BlockedNode
from tests.length import longer
from tests.spark_agent import model
from tests.spark_agent.decisions import Decisions, JavaPlan, render_blocks
from tests.spark_agent.model import HOLD, JOIN, LONG_AGO, NOTICE, Host, Requirements, Row

NOW = 10_000
REASONS = {
    "required": "a task that failed on other hosts can run nowhere else.",
    "minimum": "and this is the weakest",
    "barrier": "slots at once, more than the other open hosts have.",
    "continuous": "they belong to a continuous query,",
    "tasks": "a barrier stage runs there,",
    "limit": "the limit is 3 evacuations of a task,",
    "soon": "unless others join: the job must keep",
}


def block(node_id: str, action: str = "mark", end: int = PERMANENT, cause: str = "disk") -> tuple[str, int, str, str]:
    return node_id, end, action, cause


def make(
    decisions: Decisions,
    blocks: Iterable[tuple[str, int, str, str]],
    hosts: Iterable[Host],
    needs: Requirements | None = None,
    now: int = NOW,
) -> JavaPlan:
    """The plan for these blocks, the weakest first; each has the keys that the service gives it."""
    assert decisions.read_table(render_blocks(blocks)) is None
    return decisions.plan(hosts, needs or Requirements(), now)


def three(**facts: object) -> list[Host]:
    return [replace(Host(name=f"n{i}"), **facts) for i in (1, 2, 3)]  # type: ignore[arg-type]


def test_a_refusal_has_a_reason(decisions: Decisions) -> None:
    plan = make(decisions, [block("N1.example.com")], [Host(name="n1")])
    assert plan.refused == {
        "N1.example.com": "Host n1 stays open although N1.example.com is blocked (disk): the job must keep a host with"
        " a live executor, and this is the weakest block."
    }
    assert (plan.covered, list(plan.matched)) == ([], ["n1"])


def test_the_minimum_number_of_nodes_stays_open(decisions: Decisions) -> None:
    plan = make(decisions, [block("n1"), block("n2")], three(), Requirements(min_nodes=2))
    assert (plan.covered, set(plan.refused)) == (["n2"], {"n1"})
    assert "the job must keep 2 hosts" in plan.refused["n1"]


def test_a_barrier_stage_that_needs_more_slots_opens_the_host_with_the_weakest_block(decisions: Decisions) -> None:
    blocks = [block("n1"), block("n2", "evacuate")]
    plan = make(decisions, blocks, three(slots=4), Requirements(barrier_slots=8))
    assert plan.covered == ["n2"]
    assert plan.refused == {
        "n1": "Host n1 stays open although n1 is blocked (disk): a barrier stage needs 8 slots at once, more than the"
        " other open hosts have."
    }


def test_before_such_a_host_is_opened_its_block_is_refused(decisions: Decisions) -> None:
    """Before that, it is not known whether the block is in force: others may join."""
    first, second = Host(name="n1", joined=NOW), Host(name="n2", joined=NOW + 4000)
    early, late = NOW + JOIN - NOTICE - 1, NOW + JOIN - NOTICE
    for now, provisional, refused in ((NOW, {"n1"}, set()), (early, {"n1"}, set()), (late, set(), {"n1"})):
        plan = make(decisions, [block("n1")], [first], now=now)
        assert (plan.covered, plan.provisional, set(plan.refused)) == (["n1"], provisional, refused)
    assert plan.refused["n1"] == (
        "Host n1 opens in a moment although n1 is blocked (disk), unless others join: the job must keep a host"
        " with a live executor."
    )
    plan = make(decisions, [block("n1")], [first, second], now=late)
    assert (plan.covered, plan.provisional, plan.refused) == (["n1"], set(), {})


def test_barrier_tasks_are_not_evacuated_and_this_is_reported(decisions: Decisions) -> None:
    plan = make(decisions, [block("n1", "evacuate")], three(runs_barrier_tasks=True))
    assert (plan.covered, plan.evacuated) == (["n1"], {"n1"})
    assert plan.refused == {
        "n1": "Host n1 gets no new tasks, but not all of its tasks are evacuated although n1 is blocked (disk): a"
        " barrier stage runs there, and killing one of its tasks would fail the job."
    }


@pytest.mark.parametrize("cause", ["x" * 200, "😀" * 100], ids=["letters", "two units each"])
def test_a_reason_fits_into_a_report(decisions: Decisions, cause: str) -> None:
    name = "n1." + "x" * 250
    for facts, needs in (
        ({}, Requirements()),
        ({"runs_barrier_tasks": True}, Requirements(keep_hosts=0)),
        ({"reached_evacuation_limit": True}, Requirements(keep_hosts=0)),
        ({"required": True}, Requirements()),
        ({"joined": NOW - JOIN + NOTICE}, Requirements(keep_hosts=3)),
        ({}, Requirements(keep_hosts=0, continuous=True)),
        ({"slots": 99}, Requirements(keep_hosts=0, barrier_slots=99)),
    ):
        plan = make(decisions, [block(name, "evacuate", cause=cause)], [replace(Host(name=name), **facts)], needs)
        (reason,) = plan.refused.values()
        assert len(reason) <= 300
        assert reason.endswith(".")


def test_the_hosts_of_a_node_are_blocked_and_opened_together(decisions: Decisions) -> None:
    """By a name of the node, by its address, which is not ambiguous, or by the name of any of its hosts."""
    names = frozenset({"worker-17", "192.168.0.17"})
    pods = [Host(name=f"10.0.0.{i}", node="worker-17", names=names) for i in (1, 2)]
    other = Host(name="10.0.0.3", node="worker-18", names=frozenset({"worker-18"}))
    for node_id in ("worker-17", "192.168.0.17", "10.0.0.2"):
        plan = make(decisions, [block(node_id)], [*pods, other])
        assert plan.covered == ["10.0.0.1", "10.0.0.2"], node_id
    plan = make(decisions, [block("worker-17"), block("worker-18")], [*pods, other])
    assert (plan.covered, list(plan.refused)) == (["10.0.0.3"], ["worker-17"])
    assert plan.refused["worker-17"].startswith("Host worker-17 stays open although worker-17 is blocked")


class TestCanaryBlocks:
    """One executor of the node still gets tasks."""

    TWO = Host(name="n1", executors=("12", "7", "3"), usable=("12", "7"))
    OTHER = Host(name="n2", executors=("1",), usable=("1",))

    def test_its_host_does_not_count_as_open_because_it_may_be_bad(self, decisions: Decisions) -> None:
        plan = make(decisions, [block("n1", "canary"), block("n2")], [self.TWO, self.OTHER])
        assert (plan.covered, plan.canaries) == (["n1"], {"n1": {"7"}})
        assert plan.refused == {
            "n2": "Host n2 stays open although n2 is blocked (disk): the job must keep a host with a live executor, not"
            " counting canaries, and this is the weakest other block."
        }

    def test_a_canary_stays_the_same_while_spark_would_use_it(self, decisions: Decisions) -> None:
        """Also if one with a lower number is used again."""
        rounds = [
            {"m1": {12: 0, 7: 0, 5: 1}, "m2": {1: 0}},
            {"m1": {3: 0, 7: 0, 12: 0, 4: 1, 5: 1}, "m2": {1: 0, 2: 0}},
            {"m1": {3: 0, 12: 0, 4: 1}, "m2": {2: 0}},
            {"m1": {12: 0, 7: 0, 3: 0, 4: 1, 5: 1}, "m2": {2: 0}},
        ]
        assert decisions.canaries(rounds) == [
            {"m1": {7, 5}, "m2": {1}},
            {"m1": {7, 5}, "m2": {1}},
            {"m1": {3, 4}, "m2": {2}},
            {"m1": {3, 4}, "m2": {2}},
        ]


IDS = ("n0", "N1.a.example", "n2", "10.0.0.0", "10.0.0.1", "node-3", "n4.b.example", "[::4]".strip("[]"))
HOST_NAMES = ("n0", "N0.A.example", "n1", "n2.x", "n2.y", "n3", "10.0.0.1", "n4.b.example", "n5", "[0:0::4]")
JOINED = [NOW - 5 * HOLD, *(NOW - it + more for it in (HOLD, JOIN - NOTICE, JOIN) for more in (0, 1)), NOW, NOW + 50]
"""Just before each of the times at which a host is no longer new, and at it."""
FURTHER = ("10.0.0.0", "10.0.0.1", "10.0.0.2", "NODE-3", "n4", "n4.c.example", "0:0:0::4", "n2")
needs_ = st.builds(
    Requirements,
    keep_hosts=st.integers(0, 4),
    min_nodes=st.integers(0, 4),
    barrier_slots=st.sampled_from([0, 0, 3, 6, 12]),
    continuous=st.sampled_from([False, False, False, True]),
)


def numbered(hosts: list[Host]) -> list[Host]:
    """Executors have different numbers; Spark uses three of four, and every third has another resource profile."""
    found = []
    for index, host in enumerate(hosts):
        ids = tuple(str(8 * int(each) + index) for each in host.executors)
        usable = tuple(each for each in ids if int(each) // 8 % 4)
        profiles = tuple((each, 1) for each in ids if int(each) // 8 % 3 == 0)
        found.append(replace(host, executors=ids, usable=usable, profiles=profiles))
    return found


hosts_ = st.lists(
    st.builds(
        Host,
        name=st.sampled_from(HOST_NAMES),
        node=st.sampled_from(["", "", "m1", "m2"]),
        open=st.sampled_from([True, True, True, False]),
        names=st.one_of(st.none(), st.frozensets(st.sampled_from(FURTHER), max_size=2)),
        joined=st.sampled_from([LONG_AGO, LONG_AGO, *JOINED]),
        required=st.sampled_from([False, False, False, True]),
        slots=st.integers(0, 4),
        runs_barrier_tasks=st.booleans(),
        reached_evacuation_limit=st.booleans(),
        busy=st.booleans(),
        unannounced=st.sampled_from([False, False, True]),
        executors=st.lists(st.integers(0, 30).map(str), max_size=3, unique=True).map(tuple),
    ),
    max_size=8,
    unique_by=lambda host: host.name,
).map(numbered)
blocks_ = st.lists(
    st.builds(
        block,
        st.sampled_from(IDS),
        st.sampled_from(["canary", "mark", "evacuate"]),
        st.sampled_from([NOW - 1, NOW, NOW + 1, NOW + 1500, PERMANENT]),
    ),
    max_size=8,
    unique_by=lambda each: each[0],
)


@settings(max_examples=longer(2000))
@given(blocks_, hosts_, needs_)
def test_the_plan_is_that_of_the_reference_model(
    decisions: Decisions, blocks: list[tuple[str, int, str, str]], hosts: list[Host], needs: Requirements
) -> None:
    plan = make(decisions, blocks, hosts, needs)
    rows = [Row(rank, node_id, end, action) for rank, (node_id, end, action, _) in enumerate(blocks)]
    expected = model.plan(rows, hosts, needs, NOW)
    assert list(plan.matched) == expected.matched
    assert plan.covered == expected.covered
    assert (plan.canaries, plan.closed_executors) == (expected.canaries, expected.closed_executors)
    assert plan.provisional == expected.provisional
    assert plan.announced == expected.announced
    assert plan.held == expected.held
    assert plan.evacuated == expected.evacuated
    assert set(plan.refused) == set(expected.refused)
    assert all(REASONS[why] in plan.refused[node_id] for node_id, why in expected.refused.items())


@settings(max_examples=longer(600))
@given(blocks_, hosts_, needs_)
def test_as_many_nodes_stay_open_as_must(
    decisions: Decisions, blocks: list[tuple[str, int, str, str]], hosts: list[Host], needs: Requirements
) -> None:
    """Hosts that have just joined do not count, and none of them is opened: others may join. Nor do canaries."""
    hosts = [replace(host, unannounced=False) for host in hosts]
    marked = make(decisions, [each for each in blocks if each[2] != "canary"], hosts, needs).matched
    plan = make(decisions, blocks, hosts, needs)
    usable = [host for host in hosts if host.open and (host.name in marked or host.name not in plan.covered)]
    closed = {*plan.covered, *plan.held}
    still_open = [host for host in usable if host.name not in closed]
    open_nodes = {host.machine for host in still_open}
    old_covered = [host for host in usable if host.name in plan.covered and not host.is_new(NOW, JOIN)]
    assert len(open_nodes) >= needs.min_open_hosts or open_nodes.issuperset(host.machine for host in old_covered)
    waiting = {host.machine for host in usable if host.name in closed and host.is_new(NOW, JOIN)}
    assert len(open_nodes | waiting) >= min(needs.min_open_hosts, len({host.machine for host in usable}))
    assert not plan.held & {host.name for host in hosts if not host.is_new(NOW, HOLD)}
    needless = len(open_nodes) > max(needs.min_open_hosts, 0)
    minimum = [reason for reason in plan.refused.values() if REASONS["minimum"] in reason]
    others = [host for host in still_open if host.required] or needs.barrier_slots
    assert not (needless and minimum) or others


@settings(max_examples=longer(600))
@given(blocks_, hosts_, needs_, st.randoms(use_true_random=False), st.integers(0, 6000))
def test_order_ids_without_a_host_and_the_time_until_something_ends_do_not_matter(
    decisions: Decisions,
    blocks: list[tuple[str, int, str, str]],
    hosts: list[Host],
    needs: Requirements,
    shuffling: random.Random,
    later: int,
) -> None:
    """So the host that stays open is always the same one."""
    hosts = [host for host in hosts if host.joined <= NOW]
    plan = make(decisions, blocks, hosts, needs)
    shuffled = shuffling.sample(hosts, len(hosts))
    more = list(blocks)
    for i in range(5):
        more.insert(shuffling.randint(0, len(more)), block(f"other{i}", shuffling.choice(["mark", "evacuate"])))
    if any(now_in_force(each) for each in blocks):
        again = make(decisions, more, shuffled, needs)
        assert replace(again, valid_until=plan.valid_until) == plan
        assert plan == make(decisions, blocks, hosts, needs, now=min(NOW + later, plan.valid_until - 1))


def now_in_force(each: tuple[str, int, str, str]) -> bool:
    return each[1] > NOW


def test_the_cost_does_not_depend_on_the_number_of_ids(
    decisions: Decisions, capsys: pytest.CaptureFixture[str]
) -> None:
    hosts = [Host(name=f"w{i}.example.com", names=frozenset({f"10.1.{i // 250}.{i % 250}"})) for i in range(500)]
    lookups = []
    for count in (10, 5000):
        ids = [f"w{i}.example.com" if i % 2 else f"10.1.{i // 250 % 256}.{i % 250}" for i in range(count)]
        plans = [make(decisions, [block(node_id) for node_id in dict.fromkeys(ids)], hosts) for _ in range(20)]
        lookups.append(plans[-1].lookups)
        with capsys.disabled():
            sys.stdout.write(f"\n{count} ids, 500 hosts: {min(plan.milliseconds for plan in plans):.2f} ms")
    assert lookups == [500 * 3] * 2


def with_canary(node: BlockedNode) -> st.SearchStrategy[BlockedNode]:
    """An evacuation has none."""
    return st.booleans().map(lambda canary: replace(node, canary=canary and node.action is BlockAction.MARK_BLOCKED))


class TestTablesOfTheService:
    """Tables that the service writes."""

    @settings(max_examples=longer(500))
    @given(
        st.lists(
            st.builds(
                BlockedNode,
                id=st.sampled_from([*IDS, "n1", "N1", "n0.a.example", "n2.x", "n4", "...", "10", "a:b"]),
                action=st.sampled_from(BlockAction),
                start=st.integers(0, 3),
                end=st.sampled_from([NOW + 1, NOW + 5, PERMANENT]),
                cause=st.sampled_from(["x", "a\u2028b", "é" * 300]),
            ).flatmap(with_canary),
            max_size=8,
            unique_by=lambda node: node.id,
        ),
        st.sets(st.sampled_from([*HOST_NAMES, "n4", "n1.z", "a:b.c", "10.x"]), max_size=8),
    )
    def test_a_host_is_blocked_exactly_if_an_id_means_the_same_machine(
        self, decisions: Decisions, nodes: list[BlockedNode], names: set[str]
    ) -> None:
        assert decisions.read_table(DriverTable(nodes).text(7)) is None
        hosts = [Host(name=name, executors=(str(i),), usable=(str(i),)) for i, name in enumerate(names)]
        plan = decisions.plan(hosts, Requirements(keep_hosts=0), NOW)
        assert set(plan.covered) == {name for name in names if matching(nodes, name)}
        for name in plan.covered:
            found = matching(nodes, name)
            _, end, evacuates, _ = plan.matched[name]
            assert end == max(node.end for node in found)
            assert evacuates == any(node.action is BlockAction.MARK_BLOCKED_AND_EVACUATE_TASKS for node in found)
            assert (name in plan.canaries) == all(node.canary for node in found)


def matching(nodes: Sequence[BlockedNode], host: str) -> list[BlockedNode]:
    return [node for node in nodes if same_machine(node.id, host)]
