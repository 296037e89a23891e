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


@pytest.mark.parametrize(
    ("blocks", "left_open"),
    [
        ([block("n1"), block("n2"), block("n3")], "n1"),
        ([block("n3"), block("n2"), block("n1")], "n3"),
        ([block("n1", "evacuate"), block("n3"), block("n2", "evacuate")], "n3"),
    ],
    ids=["the weakest", "by the table, not by name", "a mark before an evacuation"],
)
def test_the_last_host_stays_open(
    decisions: Decisions, blocks: list[tuple[str, int, str, str]], left_open: str
) -> None:
    plan = make(decisions, blocks, three())
    assert set(plan.refused) == {left_open}
    assert {*plan.covered, left_open} == {"n1", "n2", "n3"}


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


def test_nothing_is_opened_for_a_barrier_stage_that_could_not_start_on_all_hosts(decisions: Decisions) -> None:
    plan = make(decisions, [block("n1")], three(slots=4), Requirements(barrier_slots=13))
    assert (plan.covered, plan.refused) == (["n1"], {})


def test_a_new_host_is_held_until_its_names_are_known_and_two_seconds_at_most(decisions: Decisions) -> None:
    old, new = Host(name="n1"), Host(name="n2", names=None, joined=NOW)
    for now, held in ((NOW, {"n2"}), (NOW + HOLD - 1, {"n2"}), (NOW + HOLD, set()), (NOW - 1, set())):
        assert make(decisions, [block("other")], [old, new], now=now).held == held
    assert make(decisions, [block("other")], [old, replace(new, names=frozenset())]).held == set()
    assert make(decisions, [block("other", end=NOW)], [old, new]).held == set()
    assert make(decisions, [], [old, new]).held == set()


def test_the_last_open_host_stays_open_until_it_is_known_whether_the_new_one_does(decisions: Decisions) -> None:
    """Its tasks would be stopped in vain if the new host is blocked, too."""
    old, new = Host(name="n1"), Host(name="n2", names=None, joined=NOW)
    blocks = [block("n1", "evacuate"), block("10.0.0.2", "evacuate")]
    assert make(decisions, blocks, [old, new]).covered == []
    known = replace(new, names=frozenset({"10.0.0.2"}))
    assert make(decisions, blocks, [old, known], now=NOW + HOLD).covered == ["n2"]
    free = replace(new, names=frozenset({"10.0.0.9"}))
    assert make(decisions, blocks, [old, free]).covered == ["n1"]


def test_of_hosts_that_all_have_just_joined_no_blocked_one_is_open(decisions: Decisions) -> None:
    hosts = [Host(name="n1", joined=NOW), *(Host(name=n, names=None, joined=NOW) for n in ("n2", "n3"))]
    plan = make(decisions, [block("n1")], hosts)
    assert (plan.covered, plan.held) == (["n1"], {"n2", "n3"})


def test_a_blocked_host_that_joins_first_is_not_opened_for_five_seconds_because_others_may_join(
    decisions: Decisions,
) -> None:
    first, second = Host(name="n1", joined=NOW), Host(name="n2", joined=NOW + 4000)
    for now, covered in ((NOW, ["n1"]), (NOW + JOIN - 1, ["n1"]), (NOW + JOIN, [])):
        assert make(decisions, [block("n1")], [first], now=now).covered == covered
    assert make(decisions, [block("n1")], [first]).valid_until == NOW + JOIN - NOTICE
    assert make(decisions, [block("n1")], [first], now=NOW + JOIN - NOTICE).valid_until == NOW + JOIN
    assert make(decisions, [block("n1")], [first, second], now=NOW + JOIN).covered == ["n1"]


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


def test_a_host_that_will_take_the_place_of_the_open_one_is_refused_before_it_does(decisions: Decisions) -> None:
    """The open one has the stronger block."""
    old, new = Host(name="n1"), Host(name="n2", joined=NOW)
    blocks = [block("n2"), block("n1", "evacuate")]
    assert make(decisions, blocks, [old, new]).provisional == {"n2"}
    plan = make(decisions, blocks, [old, new], now=NOW + JOIN - NOTICE)
    assert (plan.covered, set(plan.refused)) == (["n2"], {"n1", "n2"})
    plan = make(decisions, blocks, [old, new], now=NOW + JOIN)
    assert (plan.covered, set(plan.refused)) == (["n1"], {"n2"})


def test_a_host_that_was_closed_is_refused_before_it_is_opened(decisions: Decisions) -> None:
    """It gets no task until its refusal is reported: its block may count as applied."""
    closed = Host(name="n1", unannounced=True)
    plan = make(decisions, [block("n1", "evacuate")], [closed])
    assert (plan.covered, plan.announced, plan.evacuated) == (["n1"], {"n1"}, set())
    assert REASONS["minimum"] in plan.refused["n1"]
    plan = make(decisions, [block("n1", "evacuate")], [replace(closed, unannounced=False)])
    assert (plan.covered, plan.announced, set(plan.refused)) == ([], set(), {"n1"})


def test_the_last_host_stays_open_if_it_runs_tasks_however_new_it_is(decisions: Decisions) -> None:
    """It got them before the block. Spark aborts a job at once if all hosts are excluded and no executor is idle."""
    new = Host(name="n1", joined=NOW, names=None, busy=True)
    plan = make(decisions, [block("n1", "evacuate")], [new])
    assert (plan.covered, set(plan.refused)) == ([], {"n1"})
    assert make(decisions, [block("other")], [new]).held == set()
    idle = Host(name="n2", joined=NOW)
    assert make(decisions, [block("n2"), block("n1")], [new, idle]).covered == ["n2"]


def test_a_host_that_was_there_before_the_agent_is_not_held(decisions: Decisions) -> None:
    assert make(decisions, [block("n9")], three(names=None)).held == set()


def test_barrier_tasks_are_not_evacuated_and_this_is_reported(decisions: Decisions) -> None:
    plan = make(decisions, [block("n1", "evacuate")], three(runs_barrier_tasks=True))
    assert (plan.covered, plan.evacuated) == (["n1"], {"n1"})
    assert plan.refused == {
        "n1": "Host n1 gets no new tasks, but not all of its tasks are evacuated although n1 is blocked (disk): a"
        " barrier stage runs there, and killing one of its tasks would fail the job."
    }


def test_for_a_continuous_query_an_evacuation_is_a_mark_and_this_is_reported(decisions: Decisions) -> None:
    plan = make(decisions, [block("n1", "evacuate"), block("n2")], three(), Requirements(continuous=True))
    assert (plan.covered, plan.evacuated) == (["n2", "n1"], set())
    assert list(plan.refused) == ["n1"]


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


def test_an_address_that_several_hosts_have_is_ambiguous(decisions: Decisions) -> None:
    shared = three(names=frozenset({"203.0.113.1"}))
    assert make(decisions, [block("203.0.113.1")], shared).matched == {}
    assert list(make(decisions, [block("203.0.113.1")], shared[:1]).matched) == ["n1"]


def test_a_further_name_may_belong_to_several_hosts(decisions: Decisions) -> None:
    """As the pods of one Kubernetes node."""
    pods = [Host(name=f"10.0.0.{i}", names=frozenset({"worker-17.example.com"})) for i in (1, 2, 3)]
    plan = make(decisions, [block("worker-17")], [*pods, Host(name="10.0.0.9")])
    assert plan.covered == ["10.0.0.1", "10.0.0.2", "10.0.0.3"]


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


def test_the_minimum_counts_nodes_not_their_hosts(decisions: Decisions) -> None:
    pods = [Host(name=f"10.0.0.{i}", node="worker-17", names=frozenset({"worker-17"})) for i in (1, 2)]
    other = Host(name="10.0.0.3", node="worker-18", names=frozenset({"worker-18"}))
    plan = make(decisions, [block("worker-18")], [*pods, other], Requirements(keep_hosts=2))
    assert (plan.covered, list(plan.refused)) == ([], ["worker-18"])


class TestCanaryBlocks:
    """One executor of the node still gets tasks."""

    TWO = Host(name="n1", executors=("12", "7", "3"), usable=("12", "7"))
    OTHER = Host(name="n2", executors=("1",), usable=("1",))

    def test_the_executor_with_the_lowest_number_that_spark_would_use_stays_open(self, decisions: Decisions) -> None:
        plan = make(decisions, [block("n1", "canary")], [self.TWO, self.OTHER])
        assert (plan.covered, plan.canaries, plan.closed_executors) == (["n1"], {"n1": {"7"}}, {"12", "3"})
        assert (plan.evacuated, plan.refused) == (set(), {})

    def test_of_the_hosts_of_a_node_one_has_the_canary(self, decisions: Decisions) -> None:
        """As the pods of one Kubernetes node."""
        first, second = (replace(host, node="m1", names=frozenset({"m1"})) for host in (self.TWO, self.OTHER))
        plan = make(decisions, [block("m1", "canary")], [first, second, Host(name="n3")])
        assert (plan.canaries, plan.closed_executors) == ({"n2": {"1"}}, {"3", "7", "12"})

    def test_of_each_resource_profile_one_stays_open(self, decisions: Decisions) -> None:
        """Otherwise a stage of another profile would wait, if all hosts have canaries."""
        first = replace(self.TWO, profiles=(("12", 1), ("3", 2)))
        plan = make(decisions, [block("n1", "canary")], [first, self.OTHER])
        assert (plan.canaries, plan.closed_executors) == ({"n1": {"7", "12"}}, {"3"})
        first, second = (replace(host, node="m1", names=frozenset({"m1"})) for host in (first, self.OTHER))
        plan = make(decisions, [block("m1", "canary")], [first, second])
        assert (plan.canaries, plan.closed_executors) == ({"n1": {"12"}, "n2": {"1"}}, {"3", "7"})

    @pytest.mark.parametrize("action", ["mark", "evacuate"])
    @pytest.mark.parametrize("stronger_first", [False, True])
    def test_a_stronger_block_of_the_same_host_closes_it(
        self, decisions: Decisions, action: str, stronger_first: bool
    ) -> None:
        """Until it ends."""
        host = replace(self.TWO, names=frozenset({"10.0.0.1"}))
        blocks = [block("n1", "canary"), block("10.0.0.1", action, end=NOW + 500)]
        plan = make(decisions, reversed(blocks) if stronger_first else blocks, [host, self.OTHER])
        assert (plan.covered, plan.canaries, plan.closed_executors) == (["n1"], {}, set())
        assert (plan.evacuated == {"n1"}, plan.valid_until) == (action == "evacuate", NOW + 500)
        plan = make(decisions, blocks, [host, self.OTHER], now=NOW + 500)
        assert plan.canaries == {"n1": {"7"}}

    def test_it_is_not_refused_for_the_last_host(self, decisions: Decisions) -> None:
        """The job goes on in the canaries."""
        blocks = [block("n1", "canary"), block("n2", "canary")]
        plan = make(decisions, blocks, [self.TWO, self.OTHER])
        assert (plan.canaries, plan.refused) == ({"n1": {"7"}, "n2": {"1"}}, {})

    def test_its_host_does_not_count_as_open_because_it_may_be_bad(self, decisions: Decisions) -> None:
        plan = make(decisions, [block("n1", "canary"), block("n2")], [self.TWO, self.OTHER])
        assert (plan.covered, plan.canaries) == (["n1"], {"n1": {"7"}})
        assert plan.refused == {
            "n2": "Host n2 stays open although n2 is blocked (disk): the job must keep a host with a live executor, not"
            " counting canaries, and this is the weakest other block."
        }

    def test_a_barrier_stage_has_the_slots_of_the_canary(self, decisions: Decisions) -> None:
        hosts = [replace(self.TWO, slots=6), replace(self.OTHER, slots=2)]
        plan = make(decisions, [block("n1", "canary")], hosts, Requirements(barrier_slots=4))
        assert (plan.canaries, plan.refused) == ({"n1": {"7"}}, {})
        plan = make(decisions, [block("n1", "canary")], hosts, Requirements(barrier_slots=5))
        assert (plan.covered, plan.closed_executors) == ([], set())
        assert plan.refused["n1"].endswith(REASONS["barrier"])

    def test_a_task_that_can_run_nowhere_else_opens_the_host(self, decisions: Decisions) -> None:
        plan = make(decisions, [block("n1", "canary")], [replace(self.TWO, required=True), self.OTHER])
        assert (plan.covered, plan.closed_executors) == ([], set())
        assert plan.refused["n1"].endswith(REASONS["required"])

    def test_a_new_host_is_held_as_its_address_may_have_a_stronger_block(self, decisions: Decisions) -> None:
        new = replace(self.TWO, joined=NOW, names=None)
        plan = make(decisions, [block("n1", "canary")], [new, self.OTHER])
        assert (plan.held, plan.canaries) == ({"n1"}, {"n1": {"7"}})

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
        joined=st.sampled_from([LONG_AGO, LONG_AGO, NOW - 5 * HOLD, NOW - 3000, NOW - 100, NOW, NOW + 50]),
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
