"""The play in three acts: one host is blocked, another evacuated, both are freed, and the job goes on meanwhile."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from blocklist import BlockAction, BlocklistClient
from blocklist.spark import BlocklistAgent
from demo.job import TASK, Job
from demo.screen import OPEN, Scene, Screen

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MARK, EVACUATE = BlockAction.MARK_BLOCKED, BlockAction.MARK_BLOCKED_AND_EVACUATE_TASKS
FREE: Final = "free again"
CAUSE: Final = "Hot machine"
# With all hosts, less one, less two, and all again: fractions of the job's tasks, each good for some fifteen seconds.
FIRST, SECOND, THIRD = 0.2, 0.42, 0.55
_WORDS: Final = {MARK: "blocked", EVACUATE: "evacuated"}
_USED: Final = 0.6
"""So much of the slots' time a job of this kind makes use of, blocks and Spark's own work taken off."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Step:
    """A request that changed the list: what it asked for, and when it was sent and answered in Unix milliseconds."""

    host: str
    what: str
    sent: float
    answered: float


class Play:
    """One performance; `perform` it once."""

    def __init__(self, screen: Screen, client: BlocklistClient, agent: BlocklistAgent, job: Job) -> None:
        self._screen, self._client, self._agent, self._job = screen, client, agent, job
        self._actions: dict[str, BlockAction] = {}
        self._steps: list[Step] = []

    def perform(self) -> list[Step]:
        """Returns when the job is done."""
        _, second, third = self._job.hosts
        self._watch_until(FIRST)
        self._screen.say(f"\n{second} gets no new tasks from now on; those that run there may finish.")
        self._block(second, MARK)
        self._watch_until(SECOND)
        self._screen.say(f"\n{third} is evacuated: its tasks are stopped and start again elsewhere.")
        self._block(third, EVACUATE)
        self._watch_until(THIRD)
        self._screen.say("\nBoth hosts are well again.")
        self._free(second)
        self._free(third)
        self._watch_until(1)
        self._screen.show(self._scene())
        return self._steps

    def _block(self, host: str, action: BlockAction) -> None:
        body = f'{{"action": "{action.name}", "cause": "{CAUSE}"}}'
        self._actions[host] = action
        self._do(host, action.name, f"-X PUT {self._url(host)} -d '{body}'", self._put)

    def _put(self, host: str) -> None:
        self._client.block(host, CAUSE, action=self._actions[host])

    def _free(self, host: str) -> None:
        self._do(host, FREE, f"-X DELETE {self._url(host)}", self._client.unblock)

    def _do(self, host: str, what: str, curl: str, request: Callable[[str], None]) -> None:
        self._screen.say(f"  $ curl {curl}")
        sent = _now()
        request(host)
        self._steps.append(Step(host=host, what=what, sent=sent, answered=_now()))

    def _url(self, host: str) -> str:
        return f"{self._client.url}/blocklist/nodes/{host}"

    def _watch_until(self, part: float) -> None:
        """Show the job until so much of it is done, or it has ended."""
        while self._job.is_alive() and self._job.done() < part * self._job.count:
            self._screen.show(self._scene())
            self._job.join(0.2)

    def _scene(self) -> Scene:
        blocked = self._agent.status().blocked
        state = {host: _WORDS[self._actions[host]] if host in blocked else OPEN for host in self._job.hosts}
        return Scene(done=self._job.done(), total=self._job.count, running=self._job.running(), state=state)


def play(
    screen: Screen, spark: SparkSession, url: str, hosts: Sequence[str], *, seconds: float, slots: int
) -> list[Step]:
    """A job of about so many seconds on `hosts`, three of `slots` tasks each. Raises what the job raised."""
    count = max(60, round(seconds * slots * len(hosts) * _USED / TASK))
    agent = BlocklistAgent.start(spark, url)
    with BlocklistClient(url) as client, screen:
        job = Job(spark, hosts, count)
        steps = Play(screen, client, agent, job).perform()
    job.check()
    agent.stop()
    return steps


def _now() -> float:
    """Unix milliseconds."""
    return time.time() * 1000
