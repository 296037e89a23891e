"""The scenario: one host is blocked, another is evacuated, both are freed, while the job continues."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import httpx

from blocklist import BlockAction
from blocklist.spark import BlocklistAgent
from demo.job import TASK_SECONDS, Job
from demo.screen import OPEN, Scene, Screen

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MARK, EVACUATE = BlockAction.MARK_BLOCKED, BlockAction.MARK_BLOCKED_AND_EVACUATE_TASKS
FREE: Final = "freed"
CAUSE: Final = "Hot machine"
WAIT_SECONDS: Final = 5
"""Maximum time for the job to apply a change."""
# Completed part of the job at which each step happens: about every fifteen seconds.
FIRST, SECOND, THIRD = 0.2, 0.42, 0.55
_STATES: Final = {MARK: "blocked", EVACUATE: "evacuated"}
_UTILIZATION: Final = 0.6
"""Share of the slots' time that the job uses, given the blocks and Spark's overhead."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Step:
    """A request that changed the list; times in Unix ms."""

    host: str
    change: str
    sent_at: float
    committed_at: float


class Scenario:
    """Runs once."""

    def __init__(self, screen: Screen, http: httpx.Client, agent: BlocklistAgent, job: Job) -> None:
        self._screen, self._http, self._agent, self._job = screen, http, agent, job
        self._actions: dict[str, BlockAction] = {}
        self._steps: list[Step] = []

    def run(self) -> list[Step]:
        """Run all steps; returns when the job has ended."""
        _, second, third = self._job.hosts
        self._watch_until(FIRST)
        self._screen.print(f"\n{second} gets no new tasks from now on; its running tasks may finish.")
        self._block(second, MARK)
        self._watch_until(SECOND)
        self._screen.print(f"\n{third} is evacuated: its tasks are stopped and restarted on other hosts.")
        self._block(third, EVACUATE)
        self._watch_until(THIRD)
        self._screen.print("\nBoth hosts are healthy again.")
        self._free(second)
        self._free(third)
        self._watch_until(1)
        self._screen.show(self._scene())
        return self._steps

    def _block(self, host: str, action: BlockAction) -> None:
        self._actions[host] = action
        self._send("PUT", host, action.name, f'{{"action": "{action.name}", "cause": "{CAUSE}"}}')

    def _free(self, host: str) -> None:
        self._send("DELETE", host, FREE)

    def _send(self, method: str, host: str, what: str, body: str = "") -> None:
        """Send the change, wait until the job has applied it, and show who acknowledged it."""
        path = f"/blocklist/nodes/{host}"
        data = f" -d '{body}'" if body else ""
        self._screen.print(f"  $ curl -X {method} {self._http.base_url}{path} -H 'Prefer: wait={WAIT_SECONDS}'{data}")
        sent = time.time() * 1000
        answer = self._http.request(
            method, path, content=body, headers={"Prefer": f"wait={WAIT_SECONDS}"}
        ).raise_for_status()
        status = self._http.get(f"{path}/status").raise_for_status().json()
        self._screen.print(f"    Blocklist-Applied: {answer.headers['Blocklist-Applied']}{_acknowledgements(status)}")
        self._steps.append(Step(host=host, change=what, sent_at=sent, committed_at=int(status["at"])))

    def _watch_until(self, part: float) -> None:
        """Show the job until this part of it is done, or it has ended."""
        while self._job.is_alive() and self._job.done() < part * self._job.count:
            self._screen.show(self._scene())
            self._job.join(0.2)

    def _scene(self) -> Scene:
        blocked = self._agent.status().blocked
        state = {host: _STATES[self._actions[host]] if host in blocked else OPEN for host in self._job.hosts}
        return Scene(done=self._job.done(), total=self._job.count, running=self._job.running(), state=state)


def run_scenario(
    screen: Screen, spark: SparkSession, url: str, hosts: Sequence[str], *, seconds: float, slots: int
) -> list[Step]:
    """Run the scenario with a job of about `seconds` on `hosts`, `slots` tasks each. Raises the job's error."""
    count = max(60, round(seconds * slots * len(hosts) * _UTILIZATION / TASK_SECONDS))
    agent = BlocklistAgent.start(spark, url)
    with httpx.Client(base_url=url, timeout=WAIT_SECONDS + 5) as http, screen:
        job = Job(spark, hosts, count)
        steps = Scenario(screen, http, agent, job).run()
    job.check()
    agent.stop()
    return steps


def _acknowledgements(status: dict[str, Any]) -> str:
    """The listeners that have applied the change, each with its delay."""
    applied = [f"{one['id']} after {one['lateMs']} ms" for one in status["listeners"] if one["appliedAt"] is not None]
    return f", by {', '.join(applied)}" if applied else ""
