"""Whether `--follow` keeps up with 200 running applications: `make bench-detection-follow [MINUTES=1440]`.

Each application has 18 tasks on six of 40 hosts in each ten seconds, and ends after 30 stages, when another one takes
its place. Every 42 seconds six new applications come with a slow host, complete: the time from that moment until the
verdict is written is what following costs. `--minutes 0`, as the evidence comes at once. Three slow hosts are there
before: the first ones may be taken for another kind of machine, until there are more.
"""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from benchmarks.harness import CORES, ROOT, scratch, unless_quick
from benchmarks.rows import Row, at_most
from benchmarks.sampling import megabytes
from demo.java_home import java_home
from tests.detection.synthetic_logs import event_log

MINUTES = "MINUTES"  # environment variable: how long
APPLICATIONS, HOSTS, HOSTS_EACH, STAGES = 200, 40, 6, 30
PERIOD = 10.0  # seconds from one stage of an application to the next
FAULT_PERIOD = 42.0  # seconds from one slow host to the next; no multiple of the time between two batches
HURT = 6  # applications that each slow host comes with
SLOW_BEFORE = 3
_HEAD = 2  # lines of a log before its first stage


class Applications:
    """The logs of all running applications; `step` writes one more stage of one of them."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._hosts = [f"host-{number:02d}" for number in range(HOSTS)]
        self._dice = random.Random(1)
        self._lines: list[Iterator[list[str]]] = [iter(()) for _ in range(APPLICATIONS)]
        self._files: list[Path | None] = [None] * APPLICATIONS
        self.tasks = self.started = 0

    def step(self, number: int) -> None:
        """Write the next stage of an application, or begin the next application in its place."""
        lines = next(self._lines[number], None)
        if lines is None:
            self._end(number)
            self.started += 1
            name = f"app-{self.started:06d}"
            self._files[number] = self._folder / f"{name}.inprogress"
            self._lines[number] = self._stages(name)
            lines = next(self._lines[number])
        file = self._files[number]
        assert file is not None
        with file.open("a") as log:
            log.writelines(lines)
        self.tasks += sum('"SparkListenerTaskEnd"' in line for line in lines)

    def _end(self, number: int) -> None:
        file = self._files[number]
        if file is not None:
            file.rename(file.with_suffix(""))

    def _stages(self, name: str) -> Iterator[list[str]]:
        """The lines of each stage, the first with those of the log's beginning; times are those of the moment."""
        hosts = self._dice.sample(self._hosts, HOSTS_EACH)
        for stage in range(STAGES):
            began = round(time.time() * 1000) - 10_000
            lines = _one_stage(name, stage, began, hosts)
            yield lines if stage == 0 else lines[_HEAD:]

    def hurt(self, number: int) -> str:
        """Write the logs of some applications on a slow host, all at once. Returns its name."""
        host = f"slow-{number:04d}"
        for each in range(HURT):
            name = f"hurt-{number:04d}-{each}"
            hosts = [host, *self._dice.sample([it for it in self._hosts if it != host], HOSTS_EACH - 1)]
            # Hosts that were always slow alike are taken for another kind of machine.
            slow = {host: 2.6 * 1.3 ** (number % 8)}
            lines = event_log(name, round(time.time() * 1000) - 70_000, slow=slow, hosts=hosts)
            (self._folder / f"{name}.new").write_text("".join(lines))
        for new in self._folder.glob("*.new"):
            new.rename(new.with_suffix(""))
        return host


def _one_stage(name: str, stage: int, began: int, hosts: list[str]) -> list[str]:
    head, first = [], []
    for place, line in enumerate(event_log(name, began, hosts=hosts)):
        if place < _HEAD:
            head.append(line)
        elif '"Stage ID":0,' in line:
            first.append(line.replace('"Stage ID":0,', f'"Stage ID":{stage},'))
    return [*head, *first]


def run() -> list[Row]:
    """Follow for some minutes; the latencies, the tasks per second, and memory in the first and the last quarter."""
    minutes = float(os.environ.get(MINUTES) or unless_quick(10, 3))
    with scratch() as folder:
        measured = follow(folder, 60 * minutes)
    return rows(measured, minutes)


def rows(measured: dict[str, list[float]], minutes: float) -> list[Row]:
    """The figures as rows."""
    ours = "--follow"
    quarter = max(1, len(measured["memory"]) // 4)
    memory = {"first quarter": measured["memory"][:quarter], "last quarter": measured["memory"][-quarter:]}
    title = f"{APPLICATIONS} running applications, {minutes:g} minutes"
    return [
        Row(
            name=f"{title}: from the events in the logs to the verdict",
            unit="s",
            ours=ours,
            samples={ours: measured["latency"]},
            targets=[at_most(60)],
        ),
        Row(name=f"{title}: tasks", unit="1/s", ours=ours, samples={ours: measured["tasks"]}),
        Row(
            name=f"{title}: memory of all its processes",
            unit="MB",
            ours="last quarter",
            samples={"last quarter": memory["last quarter"], "first quarter": memory["first quarter"]},
            targets=[at_most(1.1, "first quarter")],
        ),
    ]


def follow(folder: Path, seconds: float) -> dict[str, list[float]]:
    """Write logs and follow them; samples of `latency` (s), `tasks` (1/s) and `memory` (MB)."""
    logs = folder / "logs"
    logs.mkdir()
    applications = Applications(logs)
    for number in range(APPLICATIONS):
        applications.step(number)
    for number in range(SLOW_BEFORE):
        applications.hurt(number)
    with _command(logs, folder) as (process, lines):
        _until_it_reads(folder / "checkpoint", process)
        return _measure(applications, process, lines, seconds)


def _measure(
    applications: Applications, process: subprocess.Popen[bytes], lines: Path, seconds: float
) -> dict[str, list[float]]:
    began, tasks_before = time.monotonic(), applications.tasks
    at: dict[str, float] = {}
    found: dict[str, float] = {}
    memory: list[float] = []
    steps = 0
    while (now := time.monotonic() - began) < seconds:
        if len(at) < now / FAULT_PERIOD and now < seconds - FAULT_PERIOD:
            at[applications.hurt(SLOW_BEFORE + len(at))] = time.monotonic()
        while steps < now / PERIOD * APPLICATIONS:
            applications.step(steps % APPLICATIONS)
            steps += 1
        for host in _named(lines):
            found.setdefault(host, time.monotonic())
        if len(memory) < now / 5:
            memory.append(_memory(process.pid))
        if process.poll() is not None:
            raise RuntimeError("the command has ended: see its messages above")
        time.sleep(0.2)
    missing = [host for host in at if host not in found]
    if missing:
        print(f"not found within the run: {', '.join(missing)}", file=sys.stderr)
    return {
        "latency": [found[host] - at[host] if host in found else seconds for host in at],
        "tasks": [(applications.tasks - tasks_before) / seconds],
        "memory": memory,
    }


@contextmanager
def _command(logs: Path, folder: Path) -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
    lines = folder / "found.jsonl"
    command = [sys.executable, "-m", "blocklist.detection", "--event-logs", str(logs), "--follow", "--minutes", "0"]
    command += ["--checkpoint", str(folder / "checkpoint"), "--max-share", "1", "--json", str(lines)]
    env = os.environ | {"JAVA_HOME": str(java_home())}
    cores = ",".join(map(str, CORES[:2]))
    process = subprocess.Popen(["taskset", "-c", cores, *command], cwd=ROOT, env=env, stdout=subprocess.DEVNULL)
    try:
        yield process, lines
    finally:
        process.send_signal(signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            process.wait(60)
        process.kill()


def _until_it_reads(checkpoint: Path, process: subprocess.Popen[bytes]) -> None:
    began = time.monotonic()
    while not (checkpoint / "stream" / "commits" / "0").exists():
        if process.poll() is not None or time.monotonic() - began > 300:
            raise RuntimeError("the command has not analysed a batch: see its messages above")
        time.sleep(0.5)


def _named(lines: Path) -> list[str]:
    text = lines.read_text() if lines.exists() else ""
    return [json.loads(line)["node"] for line in text.splitlines(keepends=True) if line.endswith("\n")]


def _memory(root: int) -> float:
    """Resident memory of a process and all below it, in MB; pages that they share count once for each."""
    parents = dict(_parents())
    total = 0.0
    for pid in parents:
        above = pid
        while above not in {root, 0}:
            above = parents.get(above, 0)
        if above == root:
            with suppress(OSError, AssertionError):
                total += megabytes(pid)
    return total


def _parents() -> Iterator[tuple[int, int]]:
    """Each process with the one that started it."""
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            stat = (folder / "stat").read_text()
            yield int(folder.name), int(stat.rpartition(")")[2].split()[1])
