"""A day of applications that run all day, as `--follow` stores and analyses it: `python -m benchmarks.detection_day`.

Each has 18 tasks on six of 40 hosts in each ten seconds, and one host is slow. They are given as facts, without Spark
and logs, five minutes at once, as fast as they are taken. After each hour: what one more stage of each application
takes, as a batch of `--follow` has it, and the memory of the process.

What each batch leaves in memory shows with many batches: `--applications 5 --at-once 1` has 360 of them in an hour.
"""

import argparse
import os
import random
import time
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from benchmarks.harness import scratch
from benchmarks.sampling import megabytes
from blocklist.detection.application_store import ApplicationStore
from blocklist.detection.event_parser import arrow_schema
from blocklist.detection.heuristics import judge
from blocklist.detection.slowness import Rules

HOSTS: Final = [f"host-{number:02d}" for number in range(40)]
SLOW: Final = {"host-03": 2.2}
HOSTS_EACH, TASKS = 6, 18
PERIOD: Final = 10_000
"""Milliseconds from one stage of an application to the next."""
HOUR: Final = 360
"""Number of stages of an application in an hour."""


class Applications:
    """Applications that run all day; `take` returns the facts of their next stages, alike every `at_once` of them."""

    def __init__(self, count: int, began: int, at_once: int) -> None:
        self._dice = random.Random(1)
        self._hosts = [self._dice.sample(HOSTS, HOSTS_EACH) for _ in range(count)]
        self._began = began
        self._stage = 0
        stages = (it for stage in range(at_once) for number in range(count) for it in self._one_stage(number, stage))
        self._alike = pa.Table.from_pylist(list(stages), arrow_schema())
        self._starts = pa.Table.from_pylist([self._start(number) for number in range(count)], arrow_schema())

    def take(self, stages: int) -> pa.Table:
        """The facts of some stages of each application, at most `at_once`."""
        table = self._alike.slice(0, stages * len(self._hosts) * (TASKS + 1))
        for name, later in (("stage", 1), ("time", PERIOD), ("launched", PERIOD)):
            moved = pc.add(table[name], self._stage * later)
            table = table.set_column(table.schema.get_field_index(name), name, moved)
        self._stage += stages
        return pa.concat_tables([self._starts, table]) if self._stage == stages else table

    def _start(self, number: int) -> dict[str, Any]:
        return {**_log(number), "kind": "application", "app_id": f"app-{number}", "time": self._began}

    def _one_stage(self, number: int, stage: int) -> list[dict[str, Any]]:
        at = self._began + stage * PERIOD
        same = {**_log(number), "stage": stage, "attempt": 0}
        tasks = (
            self._task(self._hosts[number][place % HOSTS_EACH], place, at + place // HOSTS_EACH * 3100)
            for place in range(TASKS)
        )
        return [{**same, "kind": "stage", "time": at, "tasks": TASKS}, *({**same, **it} for it in tasks)]

    def _task(self, host: str, place: int, launched: int) -> dict[str, Any]:
        run = round(1000 * SLOW.get(host, 1) * self._dice.lognormvariate(0, 0.1))
        who = {"kind": "task", "host": host, "executor": host, "partition": place, "outcome": "Success"}
        times = {"launched": launched, "time": launched + run, "duration": run, "run_ms": run, "deserialize_ms": 3}
        return {**who, **times, "speculative": False, "input_bytes": 1_000_000, "input_records": 1000}


def _log(number: int) -> dict[str, Any]:
    return {"file": f"/logs/app-{number}", "app": f"app-{number}"}


def run(folder: Path, applications: int, hours: int, at_once: int) -> None:
    """Print a line for each hour."""
    store = ApplicationStore(folder / "applications.duckdb", dict, lambda _: "owner")
    own = Applications(applications, round(time.time() * 1000) - hours * 3_600_000 - PERIOD * hours, at_once)
    times = HOUR // at_once
    facts = folder / "batch"
    facts.mkdir()
    print("hour  tasks  one more stage of each (s)  CPU time (s)  RSS (MB)  file (MB)  blocked", flush=True)
    for number in range(hours * (times + 1)):
        is_live = number % (times + 1) == times
        stages = 1 if is_live else at_once
        pq.write_table(own.take(stages), facts / "facts.parquet")
        began, cpu = time.perf_counter(), time.process_time()
        store.add(number, facts)
        store.name_applications()
        found = store.summaries()
        took, cpu = time.perf_counter() - began, time.process_time() - cpu
        if is_live:
            tasks = sum(node.tasks for node in found)
            size = (folder / "applications.duckdb").stat().st_size / 1e6
            blocked = ", ".join(it.host for it in judge(found, Rules()).verdicts)
            hour = number // (times + 1) + 1
            memory = f"{megabytes(os.getpid()):.0f}"
            print(f"{hour}  {tasks:,}  {took:.2f}  {cpu:.2f}  {memory}  {size:.0f}  {blocked}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--applications", type=int, default=200)
    parser.add_argument("--hours", type=int, default=24)
    parser.add_argument("--at-once", type=int, default=30, metavar="STAGES", help="stages of each, in a batch")
    args = parser.parse_args()
    with scratch() as scratch_folder:
        run(scratch_folder, args.applications, args.hours, args.at_once)
