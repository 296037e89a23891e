"""The nodes of a listener on its page: what happens there, and in which order they are shown."""

from __future__ import annotations

import pytest

from app.listeners.reports import TasksOnHost, tasks_by_host, total_tasks
from app.page.node import BlockAtListener, HostState, count_states, host_rows, host_state
from app.page.shared import MAX_ROWS, Excerpt
from blocklist.model.node import PERMANENT, BlockAction, BlockedNode, TaskCount

MARK, EVACUATE = BlockAction.MARK_BLOCKED, BlockAction.MARK_BLOCKED_AND_EVACUATE_TASKS


def block(
    action: BlockAction = EVACUATE, *, applied: bool = True, refused: str | None = None, node: str = "n1"
) -> BlockAtListener:
    return BlockAtListener(BlockedNode(id=node, action=action, start=0, end=PERMANENT, cause="x"), applied, refused)


def host(node: str, *tasks: int | None) -> TasksOnHost:
    return TasksOnHost(node=node, task_managers=len(tasks), tasks=TaskCount.of(tasks))


@pytest.mark.parametrize(
    ("at", "tasks", "state"),
    [
        (None, [3], HostState.FREE),
        (None, [None], HostState.FREE),
        (block(), [3], HostState.EVACUATING),
        (block(), [3, None], HostState.EVACUATING),
        (block(), [0, None], HostState.UNKNOWN),
        (block(), [None], HostState.UNKNOWN),
        (block(), [0, 0], HostState.EMPTY),
        (block(MARK), [3], HostState.LEFT_ALONE),
        (block(MARK), [0], HostState.EMPTY),
        (block(MARK), [None], HostState.UNKNOWN),
        (block(applied=False), [3], HostState.PENDING),
        (block(refused="its last host"), [3], HostState.REFUSED),
        (block(refused="its last host", applied=False), [3], HostState.REFUSED),
    ],
)
def test_what_happens_on_a_node(at: BlockAtListener | None, tasks: list[int | None], state: HostState) -> None:
    assert host_state(at, TaskCount.of(tasks), reports=True) is state


@pytest.mark.parametrize("at", [block(), block(MARK), block(refused="no"), block(applied=False)])
def test_what_happens_on_a_blocked_node_of_a_silent_listener_is_unknown(at: BlockAtListener) -> None:
    assert host_state(at, TaskCount.of([0]), reports=False) is HostState.UNKNOWN


def test_what_needs_attention_comes_first_and_then_what_runs_most() -> None:
    blocks = {"b": block(MARK), "c": block(), "d": block(), "e": block(refused="no"), "f": block()}
    hosts = [host("a", 9), host("z", 1), host("b", 1), host("c", 1), host("d", 2), host("e", 0), host("f", None)]
    rows = host_rows(hosts, blocks.get, reports=True)
    assert [row.name for row in rows] == ["e", "d", "c", "f", "b", "a", "z"]
    assert count_states(rows) == [
        (HostState.REFUSED, 1),
        (HostState.EVACUATING, 2),
        (HostState.UNKNOWN, 1),
        (HostState.LEFT_ALONE, 1),
    ]


@pytest.mark.parametrize(
    ("at", "tasks", "settled"),
    [
        (None, [3], True),
        (block(MARK), [3], True),
        (block(MARK), [None], True),
        (block(), [0], True),
        (block(), [3], False),
        (block(), [None], False),
        (block(applied=False), [0], False),
        (block(refused="no"), [3], True),
    ],
)
def test_a_node_is_settled_when_nothing_is_expected_to_change(
    at: BlockAtListener | None, tasks: list[int | None], settled: bool
) -> None:
    (row,) = host_rows([host("n", *tasks)], lambda _: at, reports=True)
    assert row.settled is settled


def test_tasks_that_are_not_reported_are_unknown_and_not_zero() -> None:
    hosts = tasks_by_host({"a": "n1", "b": "n1", "c": "n2"}, {"a": 3})
    assert hosts == [host("n1", 3, None), host("n2", None)]
    assert total_tasks(hosts) == TaskCount(known=3, reported=1, unreported=2)


def test_an_excerpt_says_how_many_rows_it_leaves_out() -> None:
    assert Excerpt.of(range(MAX_ROWS)).more == 0
    long = Excerpt.of(range(MAX_ROWS + 7))
    assert (list(long.rows), long.more) == (list(range(MAX_ROWS)), 7)
