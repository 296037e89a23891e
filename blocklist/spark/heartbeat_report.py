"""What an application reports of itself: its executors as TaskManagers, and the blocks it does not carry out. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from blocklist.model.listener import MAX_ENTRIES, truncate_refused
from blocklist.model.node import is_node_id

MAX_EXECUTORS: Final = MAX_ENTRIES
"""What the service takes of one listener; beyond it those on blocked nodes are reported, then the first by id."""
MAX_REFUSED: Final = 1_000


@dataclass(frozen=True, kw_only=True, slots=True)
class Executor:
    """A live executor, on a host as Spark names it, and the number of tasks it runs."""

    id: str
    host: str
    running: int


@dataclass(frozen=True, kw_only=True, slots=True)
class HeartbeatReport:
    """As in BlocklistClient.heartbeat: TaskManager to node id, TaskManager to number of tasks, node id to sentence.

    `nodes` are all that have an executor, sorted.
    """

    task_managers: Mapping[str, str]
    running_tasks: Mapping[str, int]
    refused: Mapping[str, str]
    nodes: tuple[str, ...]


def make_report(
    application: str, executors: Iterable[Executor], node_ids: Mapping[str, str], refused: Mapping[str, str]
) -> HeartbeatReport:
    """Report executors under the blocked id of their host (`known_as`), else under the host's name.

    What the service has no letters for is left out. Running tasks are reported of blocked nodes alone, where somebody
    waits for them to end; or every busy application would have news each second.
    """
    blocked_first = sorted(executors, key=lambda own: (own.host not in node_ids, own.id))
    named = [(f"{application}:{own.id}", node_ids.get(own.host, own.host), own) for own in blocked_first]
    reported = [entry for entry in named if is_node_id(entry[0]) and is_node_id(entry[1])][:MAX_EXECUTORS]
    return HeartbeatReport(
        task_managers={task_manager: node_id for task_manager, node_id, _ in reported},
        running_tasks={task_manager: own.running for task_manager, _, own in reported if own.host in node_ids},
        refused=truncate_refused(refused, MAX_REFUSED),
        nodes=tuple(sorted({node_id for _, node_id, _ in reported})),
    )
