"""Runs of several applications on one cluster, simulated task by task; all random choices come from the seed."""

from __future__ import annotations

import heapq
import random
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from benchmarks.detection_quality.conditions import Conditions, Moment, TaskFailure
from benchmarks.detection_quality.faults import FAULTS
from benchmarks.detection_quality.irregularities import IRREGULARITIES
from benchmarks.detection_quality.model import (
    GC_SHARE,
    HOST_SD,
    PLACEMENT_SD,
    WAIT_SHARE,
    WRITE_SHARE,
    StageModel,
    draw_size,
    draw_stage,
    draw_work,
)

APPLICATIONS: Final = 5
"""Applications of a run after its fault has begun."""
START: Final = 1_789_948_800_000
"""Unix ms at which each run starts: midnight UTC."""
MAX_ATTEMPTS: Final = 4
"""Failures of one task that end its application, or with exclusion, that make it avoid the hosts where it failed."""


class SimulatedTask(NamedTuple):
    """An attempt of a task; times in ms, sizes in bytes. `failure`: None if it succeeded."""

    application: int
    stage: int
    partition: int
    host: int
    executor: str
    launched: int
    ended: int
    local: bool
    run: int
    gc: int
    wait: int
    write: int
    read: int
    remote: int
    written: int
    shuffled: bool
    failure: TaskFailure | None


@dataclass(frozen=True, kw_only=True, slots=True)
class SyntheticRun:
    """The tasks of each application, in order, with the hosts that are at fault from application `past` on."""

    kind: str
    seed: int
    hosts: int
    conditions: Conditions
    applications: Sequence[Sequence[SimulatedTask]]

    @property
    def name(self) -> str:
        """A name that no other run has."""
        return f"{sorted([*FAULTS, *IRREGULARITIES]).index(self.kind)}-{self.seed}"


def draw_run(kind: str, seed: int) -> SyntheticRun:
    """Simulate a run of this kind."""
    dice = random.Random(f"{kind}/{seed}")
    hosts = dice.choice((8, 10, 12))
    conditions = (FAULTS | IRREGULARITIES)[kind](dice, hosts)
    cluster = _Cluster(hosts, 2, conditions, dice)
    count = conditions.past + APPLICATIONS
    return SyntheticRun(
        kind=kind,
        seed=seed,
        hosts=hosts,
        conditions=conditions,
        applications=[cluster.application(number) for number in range(count)],
    )


class _Cluster:
    """Hosts with task slots, and a clock that each application moves on."""

    def __init__(self, hosts: int, slots: int, conditions: Conditions, dice: random.Random) -> None:
        self._slots = [(host, slot) for host in range(hosts) for slot in range(slots)]
        self._conditions = conditions
        self._dice = dice
        self._bias = [dice.lognormvariate(0, HOST_SD) for _ in range(hosts)]
        self._now = float(START)

    def application(self, number: int) -> list[SimulatedTask]:
        """Run the application of this number, some time after the one before."""
        self._now += self._dice.expovariate(1 / self._conditions.gap_ms)
        application = _Application(number, self._conditions, self._bias, self._dice)
        stages = [self._stage(first=not place) for place in range(self._dice.randint(4, 6))]
        joined = application.join(self._now, self._slots, stages)
        tasks: list[SimulatedTask] = []
        for place, stage in enumerate(stages):
            ran, self._now, joined = application.run(place, stage, self._now, joined)
            tasks += ran
            if application.ended:
                break
        return tasks

    def _stage(self, *, first: bool) -> StageModel:
        return self._conditions.stage(draw_stage(self._dice, len(self._slots), first=first), self._dice)


class _Application:
    def __init__(self, number: int, conditions: Conditions, bias: Sequence[float], dice: random.Random) -> None:
        self.ended = False
        """Whether a task has failed too often."""
        self._number = number
        self._conditions = conditions
        self._dice = dice
        self._bias = [own * dice.lognormvariate(0, PLACEMENT_SD) for own in bias]
        self._lives = Counter[int]()
        self._ended = Counter[str]()
        self._ahead = conditions.clock(number)

    def join(
        self, now: float, slots: Sequence[tuple[int, int]], stages: Sequence[StageModel]
    ) -> list[tuple[float, int, int]]:
        """When each slot is free for the first time."""
        usual = sum(stage.tasks * stage.usual_ms for stage in stages) / len(slots)
        hosts = {host for host, _ in slots}
        delay = {host: usual * self._conditions.joins(self._number, host, self._dice) for host in hosts}
        return [(now + delay[host] + self._dice.uniform(0, 50), host, slot) for host, slot in slots]

    def run(
        self, place: int, stage: StageModel, now: float, free: list[tuple[float, int, int]]
    ) -> tuple[list[SimulatedTask], float, list[tuple[float, int, int]]]:
        """Run a stage; return its tasks, its end, and when each slot is free."""
        slots = [(max(now, at), host, slot) for at, host, slot in free]
        heapq.heapify(slots)
        pending = deque(range(stage.tasks))
        failed: dict[int, list[int]] = {}
        tasks: list[SimulatedTask] = []
        end = now
        while pending and not self.ended:
            at, host, slot = heapq.heappop(slots)
            partition = pending.popleft()
            task = self._task(place, stage, host, partition, at, failed.get(partition, ()))
            tasks.append(task)
            if task.failure is not None:
                failures = failed.setdefault(partition, [])
                failures.append(host)
                self.ended = self._conditions.ends and len(failures) == MAX_ATTEMPTS
                again = pending.appendleft if self._conditions.ends else pending.append
                again(partition)
            ended = task.ended - self._ahead
            end = max(end, ended)
            heapq.heappush(slots, (ended, host, slot))
        return tasks, end, slots

    def _task(
        self, place: int, stage: StageModel, host: int, partition: int, at: float, failed: Sequence[int]
    ) -> SimulatedTask:
        moment = Moment(self._number, host, at, stage, partition, self._dice)
        may_fail = self._conditions.ends or (len(failed) < MAX_ATTEMPTS - 1 and host not in failed)
        failure = self._conditions.failure(moment) if may_fail else None
        task = self._successful(place, moment)
        self._ended[task.executor] += 1
        if failure is None:
            return task
        self._lives[host] += failure.lost
        ran = self._dice.uniform(500, 1000) if failure.at_once else task.run * self._dice.uniform(0.05, 0.9)
        return task._replace(ended=self._end(moment, ran), failure=failure)

    def _end(self, moment: Moment, ran: float) -> int:
        return round(moment.time + self._ahead + ran + 5)

    def _executor(self, host: int) -> str:
        return f"{host}-{self._lives[host]}"

    def _successful(self, place: int, moment: Moment) -> SimulatedTask:
        stage, dice, executor = moment.stage, self._dice, self._executor(moment.host)
        size = draw_size(stage, dice)
        remote = not stage.shuffled and self._conditions.remote(moment)
        work = draw_work(stage, size, self._ended[executor], dice) * self._bias[moment.host]
        work *= self._conditions.compute(moment) * (stage.remote_factor if remote else 1.0)
        usual = stage.usual_ms * size
        gc = work * dice.expovariate(1 / GC_SHARE)
        wait = usual * dice.expovariate(1 / WAIT_SHARE) * self._conditions.wait(moment) if stage.shuffled else 0.0
        write = usual * dice.gammavariate(4, WRITE_SHARE / 4) * self._conditions.write(moment) if stage.writes else 0.0
        read, run = stage.bytes * size, round(work + gc + wait + write)
        return SimulatedTask(
            application=self._number,
            stage=place,
            partition=moment.partition,
            host=moment.host,
            executor=executor,
            launched=round(moment.time + self._ahead),
            ended=self._end(moment, run),
            local=not remote,
            run=run,
            gc=round(gc),
            wait=round(wait),
            write=round(write),
            read=round(read),
            remote=round(read * 0.9) if stage.shuffled else 0,
            written=round(read) if stage.writes else 0,
            shuffled=stage.shuffled,
            failure=None,
        )


def draw_runs(kinds: Iterable[str], seeds: Sequence[int]) -> Iterator[SyntheticRun]:
    """Simulate runs of each kind with each seed."""
    for kind in kinds:
        for seed in seeds:
            yield draw_run(kind, seed)
