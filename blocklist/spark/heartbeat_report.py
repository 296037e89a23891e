"""The contents of an application's heartbeat: its executors as TaskManagers, and the blocks it refuses. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from blocklist.model.listener import MAX_ENTRIES, truncate_refused
from blocklist.model.node import is_node_id
from blocklist.model.report import Report

MAX_EXECUTORS: Final = MAX_ENTRIES
"""The service's maximum per listener. Executors on blocked nodes are reported first, then the others by id."""
MAX_REFUSED: Final = 1_000


@dataclass(frozen=True, kw_only=True, slots=True)
class Executor:
    """A live executor, its host as Spark names it, and the number of its running tasks."""

    id: str
    host: str
    running: int


def make_report(
    application: str, executors: Iterable[Executor], node_ids: Mapping[str, str], refused: Mapping[str, str]
) -> Report:
    """Report each executor under the blocked id of its host (`node_ids`), else under the host's name.

    Names that are not valid node ids are omitted. Running tasks are reported for blocked nodes only, where an operator
    waits for them to end; otherwise every busy application would send a new report each second.
    """
    blocked_first = sorted(executors, key=lambda executor: (executor.host not in node_ids, executor.id))
    named = [(f"{application}:{one.id}", node_ids.get(one.host, one.host), one) for one in blocked_first]
    reported = [entry for entry in named if is_node_id(entry[0]) and is_node_id(entry[1])][:MAX_EXECUTORS]
    return Report(
        task_managers={task_manager: node_id for task_manager, node_id, _ in reported},
        running_tasks={task_manager: one.running for task_manager, _, one in reported if one.host in node_ids},
        refused=truncate_refused(refused, MAX_REFUSED),
        nodes=tuple(sorted({node_id for _, node_id, _ in reported})),
    )
