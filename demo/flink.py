"""`python -m demo.flink`: the service, a Flink cluster of three nodes on this machine, and a job that leaves a node."""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import httpx

from blocklist import BlockAction, BlocklistClient
from demo.java_home import java_home
from demo.service import service
from tests.flink.bridge_process import BridgeProcess, ServiceView
from tests.flink.cluster import NODES, FlinkCluster
from tests.flink.compiling import compile_job
from tests.flink.package import PackageMissingError, flink_lib

TASKS: Final = 8
"""Number of tasks of the job: two stages of four."""
WELCOME: Final = """\
A blocklist service, a Flink cluster of three nodes, all on this machine, and a streaming job with checkpoints. A node
is evacuated, and freed again. Ctrl-C stops and removes everything. The first time, Flink is downloaded (330 MB).
"""


def main(arguments: list[str] | None = None) -> int:
    """Run the demo; the exit code."""
    parser = argparse.ArgumentParser(prog="python -m demo.flink", description="A Flink job that follows the blocklist.")
    parser.parse_args(arguments)
    print(WELCOME)
    try:
        with tempfile.TemporaryDirectory(prefix="blocklist-flink-demo-") as folder:
            _run(Path(folder))
    except PackageMissingError as error:
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


def _run(folder: Path) -> None:
    java, lib = java_home() / "bin" / "java", flink_lib()
    with service(folder) as url, FlinkCluster(java, lib, folder / "flink") as cluster:
        say(f"The service and its page: {url}/")
        cluster.start()
        say(f"The cluster: {cluster.url}/ with TaskManagers on {', '.join(NODES)}.")
        options = ("execution.checkpointing.interval=1 s",)
        jar = compile_job(java, lib, folder / "job")
        job = cluster.submit(jar, "STREAMING", 10**12, 500, 0, 4, f"file://{folder}/out", "demo", *options)
        with BridgeProcess(folder, url, cluster) as bridge, BlocklistClient(url) as client, _http(url) as http:
            view = ServiceView(http)
            listener = view.of_job(job)
            say(f"The bridge runs, and the job is a listener: {listener}.")
            watch(cluster, job, lambda: all_run(cluster, job))
            node = min(used(cluster, job))
            client.block(node, "Bad disk", action=BlockAction.MARK_BLOCKED_AND_EVACUATE_TASKS)
            say(f"$ blocklist block {node} --evacuate --reason 'Bad disk'")
            watch(cluster, job, lambda: view.applied(node, listener) and all_run(cluster, job, without=node))
            say("The job left the node, from a checkpoint: nothing is lost, nothing is counted twice.")
            client.unblock(node)
            say(f"$ blocklist unblock {node}")
            say("Flink forgets the block when its lease has ended.")
            watch(cluster, job, lambda: view.applied(node, bridge.id) and not any(cluster.task_managers().values()))
            say("The node is free again.")


def _http(url: str) -> httpx.Client:
    return httpx.Client(base_url=url, timeout=30, trust_env=False)


def say(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')}  {text}", flush=True)


def used(cluster: FlinkCluster, job: str) -> set[str]:
    """The nodes with tasks of the job."""
    return {NODES[int(where[-1]) - 1] for _, where in cluster.tasks(job) if where.startswith("tm-")}


def all_run(cluster: FlinkCluster, job: str, without: str | None = None) -> bool:
    """Whether all tasks of the job run, none of them on this node."""
    states = [state for state, _ in cluster.tasks(job)]
    return len(states) == TASKS and set(states) == {"RUNNING"} and without not in used(cluster, job)


def watch(cluster: FlinkCluster, job: str, until: Callable[[], bool]) -> None:
    """Show where tasks run, whenever that changes, until the condition is true."""
    shown, begun = "", time.monotonic()
    while not until() and time.monotonic() < begun + 300:
        counts = dict.fromkeys(NODES, 0)
        for state, where in cluster.tasks(job):
            if state == "RUNNING" and where.startswith("tm-"):
                counts[NODES[int(where[-1]) - 1]] += 1
        line = "  ".join(f"{node}: {count} tasks" for node, count in counts.items())
        if line != shown:
            say(f"    {line}")
            shown = line
        time.sleep(0.5)


if __name__ == "__main__":
    sys.exit(main())
