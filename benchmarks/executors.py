"""A driver of 2 GB with 2,000 executors on as many hosts, of which half are blocked; with and without the agent."""

import json
import os
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

from benchmarks import systems
from benchmarks.harness import CORES, Server, fetch, scratch, unless_quick
from benchmarks.rows import Row, Samples, at_most
from benchmarks.sampling import idle_cpu, megabytes
from demo.cluster import spark_home
from demo.java_home import java_home
from tests.applications.application import JAR, PLUGIN

EXECUTORS = unless_quick(2_000, 200)
ROUNDS = unless_quick(5, 1)
IDLE_SECONDS = unless_quick(10.0, 2.0)
TIMEOUT = 120.0  # seconds
OURS, WITHOUT = "with the agent", "without"
_OPENS = ("java.lang", "java.lang.invoke", "java.net", "java.nio", "java.util", "java.util.concurrent", "sun.nio.ch")
_CONF = {
    "spark.master": "local[1]",
    "spark.app.name": "executors",
    "spark.ui.enabled": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
}


class Driver:
    """A ManyExecutors."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        """It may still be starting."""
        self.process = process

    def ask(self, command: str) -> int:
        """Return the number that it answers."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{command}\n")
        self.process.stdin.flush()
        return int(self.process.stdout.readline())

    def seconds_until_closed(self, count: int, begun: float) -> float:
        """Seconds since `begun` (`perf_counter`) until so many hosts get no task. Raises TimeoutError."""
        while (closed := self.ask("closed")) != count:
            if time.perf_counter() - begun > TIMEOUT:
                raise TimeoutError(f"{closed} of {count} hosts are closed")
        return time.perf_counter() - begun


def run() -> list[Row]:
    """Return all rows; the processes may use all cores."""
    os.sched_setaffinity(0, CORES)
    with scratch() as folder, ExitStack() as stack:
        server = stack.enter_context(systems.service(folder / "service"))
        classes = _compile(folder)
        agent = {"spark.plugins.defaultList": PLUGIN, "spark.blocklist.url": f"http://127.0.0.1:{server.port}"}
        ours = stack.enter_context(_driver(classes, agent))
        drivers = {OURS: ours, WITHOUT: stack.enter_context(_driver(classes, {}))}
        seconds = [_seconds(server, ours)]
        for _ in range(ROUNDS - 1):
            _free(server, ours)
            seconds.append(_seconds(server, ours))
        heap: Samples = {name: [driver.ask("heap") for _ in range(ROUNDS)] for name, driver in drivers.items()}
        rounds: Samples = {name: [driver.ask("round") for _ in range(ROUNDS)] for name, driver in drivers.items()}
        pids = {name: driver.process.pid for name, driver in drivers.items()}
        idle = idle_cpu(pids, rounds=ROUNDS, seconds=IDLE_SECONDS)
        resident: Samples = {name: [megabytes(pid)] for name, pid in pids.items()}
    title = f"{EXECUTORS:,} executors"
    blocked = f"{EXECUTORS // 2:,} blocked at once"
    return [
        Row(name=f"{title}, {blocked}: until they get no task", unit="s", ours=OURS, samples={OURS: seconds}),
        Row(name=f"{title}, half blocked: CPU at rest in {IDLE_SECONDS:g} s", unit="s", ours=OURS, samples=idle),
        Row(name=f"{title}, half blocked: heap", unit="MB", ours=OURS, samples=heap, targets=[at_most(1.5, WITHOUT)]),
        Row(name=f"{title}, half blocked: resident memory", unit="MB", ours=OURS, samples=resident),
        Row(name=f"{title}, half blocked: added to a round of offers", unit="µs", ours=OURS, samples=rounds),
    ]


def _seconds(server: Server, driver: Driver) -> float:
    """Block half of the hosts, which are free; the seconds until they get no task. They stay blocked."""
    names = [f"host-{number}" for number in range(EXECUTORS // 2)]
    body = json.dumps({name: {"action": "MARK_BLOCKED", "cause": "Disk errors"} for name in names})
    begun = time.perf_counter()
    status, _, answer = fetch(server.port, "/blocklist/nodes", method="PUT", body=body)
    if status != 200:
        raise RuntimeError(f"{answer[:200]!r}")
    return driver.seconds_until_closed(len(names), begun)


def _free(server: Server, driver: Driver) -> None:
    for number in range(EXECUTORS // 2):
        fetch(server.port, f"/blocklist/nodes/host-{number}", method="DELETE")
    driver.seconds_until_closed(0, time.perf_counter())


def _compile(folder: Path) -> str:
    """Return the class path."""
    path = f"{JAR}:{spark_home()}/jars/*"
    source = Path(__file__).with_name("ManyExecutors.java")
    classes = folder / "classes"
    subprocess.run(["javac", "-nowarn", "-cp", path, "-d", str(classes), str(source)], check=True)
    return f"{classes}:{path}"


@contextmanager
def _driver(classes: str, conf: Mapping[str, str]) -> Iterator[Driver]:
    java = [str(java_home() / "bin" / "java"), "-Xmx2g", "-XX:+UseG1GC", "-cp", classes]
    java += [f"--add-opens=java.base/{name}=ALL-UNNAMED" for name in _OPENS]
    java += [f"-D{name}={value}" for name, value in {**_CONF, **conf}.items()]
    command = [*java, "ManyExecutors", str(EXECUTORS)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        try:
            driver = Driver(process)
            driver.ask("closed")
            yield driver
        finally:
            process.kill()
