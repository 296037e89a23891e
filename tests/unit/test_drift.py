"""Drift: what counts as a difference between the list and a listener's reports, and since when."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from hypothesis import given
from hypothesis import strategies as st

from blocklist.model.listener import (
    Drift,
    DriftKind,
    DriftObserver,
    ReportedState,
    ReportingListener,
    TasksOnBlockedNode,
    UnknownTasks,
)

BOUND: Final = 300_000
LEASE: Final = 50_000
EVACUATED: Final = TasksOnBlockedNode(
    node="n1",
    block_start=0,
    evacuates=True,
    listener="app-1",
    registration=("s", 7),
    lease=LEASE,
    acked=True,
    refused=None,
    running={"tm-1": 2},
)
MARKED: Final = replace(EVACUATED, evacuates=False)
CORDONED: Final = ReportedState(node="n3", kind=DriftKind.UNSCHEDULABLE, listener="slurm", reason="DRAIN (disk)")


def drift(
    observer: DriftObserver, now: int, *tasks: TasksOnBlockedNode, reported: Sequence[ReportedState] = ()
) -> list[Drift]:
    return list(observer.observe(tasks, reported, now).drift)


def test_tasks_may_run_on_an_evacuated_node_for_the_bound_and_then_are_drift() -> None:
    observer = DriftObserver(BOUND)
    assert drift(observer, 1000, EVACUATED) == []
    assert drift(observer, 1000 + BOUND - 1, EVACUATED) == []
    assert drift(observer, 1000 + BOUND, EVACUATED) == [
        Drift(
            node="n1",
            kind=DriftKind.TASKS_RUNNING,
            listener="app-1",
            since=1000,
            reason="2 running tasks; the listener has applied the block",
        )
    ]


def test_the_reason_says_whether_the_listener_applied_or_refused_the_block() -> None:
    observer = DriftObserver(0)
    (pending,) = drift(observer, 1000, replace(EVACUATED, acked=False))
    assert pending.reason == "2 running tasks; the listener has not applied the block"
    (refused,) = drift(observer, 1000, replace(EVACUATED, refused="It is the last host."))
    assert refused.reason == "2 running tasks; the listener refuses the block: It is the last host."


def test_tasks_that_ended_and_began_again_count_from_the_beginning() -> None:
    observer = DriftObserver(BOUND)
    drift(observer, 0, EVACUATED)
    drift(observer, 10_000, replace(EVACUATED, running={"tm-1": 0}))
    drift(observer, 20_000, EVACUATED)
    assert drift(observer, BOUND, EVACUATED) == []
    assert [each.since for each in drift(observer, 20_000 + BOUND, EVACUATED)] == [20_000]


def test_running_tasks_on_a_marked_node_are_no_drift() -> None:
    observer = DriftObserver(0)
    assert drift(observer, 0, MARKED) == []
    assert drift(observer, 10 * BOUND, MARKED) == []


def test_unreported_running_tasks_are_unknown_and_no_drift() -> None:
    observer = DriftObserver(0)
    report = observer.observe([replace(EVACUATED, running={"tm-1": None, "tm-2": 0})], [], 0)
    assert report.drift == []
    assert report.unknown == [UnknownTasks(node="n1", listener="app-1")]
    assert observer.observe([replace(MARKED, running={"tm-1": None})], [], 0).unknown == []


def test_tasks_that_start_after_the_listener_applied_the_block_are_drift() -> None:
    observer = DriftObserver(BOUND)
    drift(observer, 0, MARKED)
    drift(observer, LEASE, MARKED)
    assert drift(observer, LEASE + 1, replace(MARKED, running={"tm-1": 3})) == [
        Drift(
            node="n1",
            kind=DriftKind.TASKS_STARTED,
            listener="app-1",
            since=LEASE + 1,
            reason="tasks started on tm-1 after the listener had applied the block",
        )
    ]


def test_fewer_tasks_and_then_more_have_started() -> None:
    observer = DriftObserver(BOUND)
    drift(observer, 0, MARKED)
    drift(observer, LEASE, MARKED)
    assert drift(observer, LEASE + 1, replace(MARKED, running={"tm-1": 0})) == []
    assert len(drift(observer, LEASE + 2, replace(MARKED, running={"tm-1": 1}))) == 1


def test_a_new_task_manager_that_runs_tasks_has_started_them() -> None:
    observer = DriftObserver(BOUND)
    drift(observer, 0, MARKED)
    drift(observer, LEASE, MARKED)
    assert drift(observer, LEASE + 1, replace(MARKED, running={"tm-1": 2, "tm-2": 0})) == []
    assert len(drift(observer, LEASE + 2, replace(MARKED, running={"tm-1": 2, "tm-2": 1}))) == 1


def test_tasks_may_start_until_the_listener_has_applied_the_block_and_a_lease_has_passed() -> None:
    observer = DriftObserver(BOUND)
    drift(observer, 0, replace(MARKED, acked=False))
    drift(observer, LEASE, replace(MARKED, acked=False, running={"tm-1": 3}))
    drift(observer, LEASE, replace(MARKED, running={"tm-1": 4}))
    drift(observer, 2 * LEASE - 1, replace(MARKED, running={"tm-1": 5}))
    assert drift(observer, 2 * LEASE, replace(MARKED, running={"tm-1": 6})) == []


def test_a_renewed_block_stays_applied_while_its_last_change_is_not() -> None:
    observer = DriftObserver(BOUND)
    drift(observer, 0, MARKED)
    drift(observer, LEASE, MARKED)
    assert len(drift(observer, LEASE + 1, replace(MARKED, acked=False, running={"tm-1": 3}))) == 1


def test_a_new_session_and_a_new_block_begin_anew() -> None:
    for change in ({"registration": ("s", 8)}, {"block_start": 5}):
        observer = DriftObserver(BOUND)
        drift(observer, 0, MARKED)
        drift(observer, LEASE, MARKED)
        after = replace(MARKED, running={"tm-1": 9}, **change)
        assert drift(observer, LEASE + 1, after) == []


def test_an_unreported_number_of_tasks_is_not_zero() -> None:
    observer = DriftObserver(BOUND)
    drift(observer, 0, MARKED)
    drift(observer, LEASE, replace(MARKED, running={"tm-1": None}))
    assert drift(observer, LEASE + 1, MARKED) == []
    assert drift(observer, LEASE + 2, replace(MARKED, running={"tm-1": None})) == []
    assert len(drift(observer, LEASE + 3, replace(MARKED, running={"tm-1": 3}))) == 1


def test_a_begin_is_observed_only_after_the_listener_has_reported_for_a_lease() -> None:
    reporting = {"slurm": ReportingListener(("s", 7), LEASE)}
    for now, expected in ((LEASE - 1, False), (LEASE, True)):
        observer = DriftObserver(BOUND)
        observer.observe([], [], 0, reporting)
        for later in (now, now + 1):  # It stays as it was first observed.
            (found,) = observer.observe([], [CORDONED], later, reporting).drift
            assert (found.since, found.begin_observed) == (now, expected)


def test_after_a_gap_or_in_a_new_session_the_begin_of_drift_is_not_observed() -> None:
    reporting, restarted = ({"slurm": ReportingListener(("s", at), LEASE)} for at in (7, 8))
    for between, at_last in ((reporting, restarted), ({}, reporting)):
        observer = DriftObserver(BOUND)
        observer.observe([], [], 0, reporting)
        observer.observe([], [], LEASE, between)
        (found,) = observer.observe([], [CORDONED], LEASE + 1, at_last).drift
        assert not found.begin_observed


@given(st.lists(st.sets(st.sampled_from(["n1", "n2", "n3"])), min_size=1, max_size=12))
def test_drift_lasts_since_the_first_of_the_observations_without_a_gap(steps: list[set[str]]) -> None:
    observer = DriftObserver(BOUND)
    for now, nodes in enumerate(steps):
        found = drift(observer, now, reported=[replace(CORDONED, node=node) for node in nodes])
        assert [each.node for each in found] == sorted(nodes)
        for each in found:
            assert all(each.node in earlier for earlier in steps[each.since : now + 1])
            assert each.since == 0 or each.node not in steps[each.since - 1]


@given(
    st.lists(st.dictionaries(st.sampled_from(["a", "b"]), st.none() | st.integers(0, 3)), min_size=1, max_size=10),
)
def test_tasks_that_only_end_are_never_taken_for_started(steps: list[dict[str, int | None]]) -> None:
    observer = DriftObserver(BOUND)
    drift(observer, 0, replace(MARKED, running=dict.fromkeys("ab", 3)))
    drift(observer, LEASE, replace(MARKED, running=dict.fromkeys("ab", 3)))
    fewest = dict.fromkeys("ab", 3)
    for step, counts in enumerate(steps):
        fewest |= {name: min(fewest[name], count) for name, count in counts.items() if count is not None}
        running = {name: None if counts.get(name, 0) is None else fewest[name] for name in "ab"}
        assert drift(observer, LEASE + 1 + step, replace(MARKED, running=running)) == []
