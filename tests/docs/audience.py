"""Those who listen while a page plays: a job, which speaks as its agent does, and a manager as it is."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Final, Self

import httpx

from blocklist.client.client import BlocklistClient
from blocklist.client.listener_session import Membership
from blocklist.model.changes import Change, Snapshot
from blocklist.model.listener import Registration, Role
from blocklist.model.node import BlockAction, BlockedNode
from tests.integration.manager_process import ManagerProcess
from tests.integration.process import NO_TLS

JOB: Final = "app-20261120220114-0042"
MANAGER: Final = "yarn-rm1"
EXECUTORS: Final = {f"{JOB}:1": "worker-17", f"{JOB}:2": "r12n03"}
TASKS: Final = {f"{JOB}:1": 2, f"{JOB}:2": 3}


class Job:
    """Applies each change as soon as it comes, and says so; on a node that is evacuated none of its tasks runs."""

    def __init__(self, url: str, token: str) -> None:
        self._tasks = dict(TASKS)
        self._membership = Membership(url, Registration(id=JOB, role=Role.JOB_MASTER, session="1"), token=token)
        with BlocklistClient(url, token=token) as client:
            self._watch = client.watch()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._watch.close()
        self._thread.join()
        self._membership.close()

    def end_tasks(self) -> None:
        """All that runs ends."""
        self._tasks = dict.fromkeys(TASKS, 0)
        self._membership.say(running_tasks=dict(self._tasks))

    def _run(self) -> None:
        for item in self._watch:
            for node in _nodes(item):
                if node.action is BlockAction.MARK_BLOCKED_AND_EVACUATE_TASKS:
                    self._tasks.update(dict.fromkeys((own for own, at in EXECUTORS.items() if at == node.id), 0))
            self._membership.say(acked=item.revision, task_managers=EXECUTORS, running_tasks=dict(self._tasks))


def manager(folder: Path, url: str, token: str) -> ManagerProcess:
    """A manager whose cluster takes what it is told."""
    options = ("--id", MANAGER, "--state", str(folder / "state.json"), "--", "true")
    return ManagerProcess(folder, url, "exec", *options, BLOCKLIST_TOKEN=token)


def tasks_left(url: str, token: str, node_id: str) -> int:
    """How many tasks run on the node, as far as the service knows."""
    with BlocklistClient(url, token=token) as client:
        managers = [own for listener in client.status(node_id).listeners for own in listener.task_managers]
    return sum(own.running_tasks or 0 for own in managers)


def listening(url: str, token: str) -> bool:
    """Whether both are registered, and the job has said where its executors are."""
    headers = {"Authorization": f"Bearer {token}"}
    with httpx.Client(base_url=url, headers=headers, trust_env=False, verify=NO_TLS) as client:
        both = len(client.get("/listeners").json()["listeners"]) == 2
        return both and client.get(f"/taskmanagers/{JOB}:2").status_code == 200


def _nodes(item: Snapshot | Change) -> list[BlockedNode]:
    return list(item.nodes.values()) if isinstance(item, Snapshot) else [item.node]
