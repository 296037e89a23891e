"""The listeners of a page: a job that reports as the agent does, and a real manager."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Final, Self

import httpx

from blocklist.client.client import BlocklistClient
from blocklist.client.session import ListenerSession
from blocklist.model.changes import Change, Snapshot
from blocklist.model.listener import ListenerRole, Registration, Report
from blocklist.model.node import BlockAction, BlockedNode, expand_nodes
from tests.integration.manager_process import ManagerProcess
from tests.integration.process import NO_TLS

JOB: Final = "app-20261120220114-0042"
MANAGER: Final = "yarn-rm1"
EXECUTOR_NODES: Final = {f"{JOB}:1": "worker-17", f"{JOB}:2": "r12n03"}
NODES: Final = expand_nodes(["worker-[01-20]", "r07n[01-12]", "r12n[01-12]"])
"""The nodes that the job knows."""
TASKS: Final = {f"{JOB}:1": 2, f"{JOB}:2": 3}


class Job:
    """Applies each change at once and acknowledges it; none of its tasks runs on an evacuated node."""

    def __init__(self, url: str, token: str) -> None:
        self._tasks = dict(TASKS)
        registration = Registration(id=JOB, role=ListenerRole.JOB_MASTER, session="1")
        self._session = ListenerSession(url, registration, token=token)
        with BlocklistClient(url, token=token) as client:
            self._watch = client.watch()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._watch.close()
        self._thread.join()
        self._session.close()

    def end_tasks(self) -> None:
        """End all running tasks."""
        self._tasks = dict.fromkeys(TASKS, 0)
        self._session.report(Report(running_tasks=dict(self._tasks)))

    def _run(self) -> None:
        for item in self._watch:
            for node in _nodes(item):
                if node.action is BlockAction.MARK_BLOCKED_AND_EVACUATE_TASKS:
                    self._end_tasks_on(node.id)
            self._session.report(
                Report(task_managers=EXECUTOR_NODES, running_tasks=dict(self._tasks), nodes=NODES),
                acked=item.revision,
            )

    def _end_tasks_on(self, node_id: str) -> None:
        self._tasks.update({executor: 0 for executor, node in EXECUTOR_NODES.items() if node == node_id})


def start_manager(folder: Path, url: str, token: str) -> ManagerProcess:
    """A manager whose command always succeeds."""
    options = ("--id", MANAGER, "--cluster", "yarn-a", "--state", str(folder / "state.json"), "--", "true")
    return ManagerProcess(folder, url, "exec", *options, BLOCKLIST_TOKEN=token)


def running_tasks(url: str, token: str, node_id: str) -> int:
    """The number of tasks that the service knows to run on the node."""
    with BlocklistClient(url, token=token) as client:
        task_managers = [one for listener in client.status(node_id).listeners for one in listener.task_managers]
    return sum(one.running_tasks or 0 for one in task_managers)


def all_registered(url: str, token: str) -> bool:
    """Whether both are registered and the job has reported its executors."""
    headers = {"Authorization": f"Bearer {token}"}
    with httpx.Client(base_url=url, headers=headers, trust_env=False, verify=NO_TLS) as client:
        both = len(client.get("/listeners").json()["listeners"]) == 2
        return both and client.get(f"/taskmanagers/{JOB}:2").status_code == 200


def _nodes(item: Snapshot | Change) -> list[BlockedNode]:
    return list(item.nodes.values()) if isinstance(item, Snapshot) else [item.node]
