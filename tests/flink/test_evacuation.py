"""Evacuation on a real cluster, and its guards."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from blocklist import BlockAction, BlocklistClient
from tests.flink.bridge_process import BridgeProcess, ServiceView
from tests.flink.cluster import NODES, FlinkCluster
from tests.integration.process import wait_until


def check_output(folder: Path, numbers: int) -> None:
    """Fail if one of the numbers below this one is missing or repeated, or if the counts of a key have a gap."""
    assert _written(folder) == list(range(numbers))


def check_unfinished_output(folder: Path, starts: Sequence[int]) -> None:
    """Fail as `check_output` does, of a job that was stopped while it read upwards from each of these numbers."""
    seen = _written(folder)
    assert [number for number, before in zip(seen, [-2, *seen], strict=False) if number != before + 1] == list(starts)


def _written(folder: Path) -> list[int]:
    seen: list[int] = []
    counts: dict[str, list[int]] = defaultdict(list)
    for file in folder.rglob("*"):
        # Files that begin with a dot were never committed.
        if file.is_file() and not file.name.startswith("."):
            for line in file.read_text().splitlines():
                key, count, number = line.split(",")
                seen.append(int(number))
                counts[key].append(int(count))
    assert all(sorted(found) == list(range(1, len(found) + 1)) for found in counts.values())
    return sorted(seen)


pytestmark = pytest.mark.timeout(900)

ONE, TWO, THREE = NODES
ENDLESS = 10**12
EVACUATE = BlockAction.MARK_BLOCKED_AND_EVACUATE_TASKS
CHECKPOINTS = "execution.checkpointing.interval=1 s"
FIXED_DELAY = ("restart-strategy.type=fixed-delay", "restart-strategy.fixed-delay.delay=100 ms")


def test_each_record_counts_exactly_once_after_three_evacuations(
    cluster: FlinkCluster,
    client: BlocklistClient,
    view: ServiceView,
    bridge: BridgeProcess,
    submit: Callable[..., str],
    tmp_path: Path,
) -> None:
    job_id = submit("STREAMING", ENDLESS, 4000, CHECKPOINTS)
    job = view.of_job(job_id)
    wait_until(lambda: _checkpoints(cluster, job_id) > 0, seconds=150)
    for node in NODES:
        client.block(node, "bad disk", action=EVACUATE)
        view.wait_applied(node, bridge.id, job)
        assert not view.status(node)[job]["taskManagers"]
        wait_until(lambda: _all_run(cluster, job_id), seconds=150)
        client.unblock(node)
        view.wait_applied(node, bridge.id, job)
    # Its nodes changed at least twice: it ran on two of three.
    assert _restarts(cluster, job_id) >= 2
    cluster.finish(job_id)
    check_unfinished_output(tmp_path / "out", range(0, ENDLESS, ENDLESS // 4))


def test_a_batch_job_keeps_its_finished_results_and_the_status_reports_them(
    cluster: FlinkCluster,
    client: BlocklistClient,
    view: ServiceView,
    bridge: BridgeProcess,
    submit: Callable[..., str],
    tmp_path: Path,
) -> None:
    job_id = submit("BATCH", 4_000, 0, *FIXED_DELAY, "restart-strategy.fixed-delay.attempts=50", second=10_000)
    job = view.of_job(job_id)
    wait_until(lambda: _second_stage(cluster, job_id), seconds=200)
    node = next(NODES[int(where[-1]) - 1] for state, where in cluster.tasks(job_id) if state == "RUNNING")
    client.block(node, "bad disk", action=EVACUATE)
    view.wait(lambda: "still serves the results of" in view.pending(node, job) or view.applied(node, job))
    assert not view.status(node)[job]["taskManagers"]
    wait_until(lambda: cluster.state(job_id) == "FINISHED", seconds=300)
    # The first stage ran once.
    assert _attempts(cluster, job_id)[0] == 0
    check_output(tmp_path / "out", 4_000)


def test_evacuations_that_would_harm_a_job_are_refused(
    cluster: FlinkCluster,
    client: BlocklistClient,
    view: ServiceView,
    bridge: BridgeProcess,
    submit: Callable[..., str],
) -> None:
    without = submit("STREAMING", ENDLESS, 500, parallelism=2)
    one_left = submit(
        "STREAMING", ENDLESS, 500, CHECKPOINTS, *FIXED_DELAY, "restart-strategy.fixed-delay.attempts=1", parallelism=2
    )
    first, second = view.of_job(without), view.of_job(one_left)
    wait_until(lambda: _all_run(cluster, without) and _all_run(cluster, one_left), seconds=150)
    for node in NODES:
        client.block(node, "bad disk", action=EVACUATE)
    for node in NODES:
        view.wait(lambda node=node: _settled(view, node, first) and _settled(view, node, second))  # type: ignore[misc]
        view.wait_applied(node, bridge.id)
    for job_id, listener, reason in (
        (without, first, "the job has no checkpoints"),
        (one_left, second, "1 restart attempt left"),
    ):
        used = {NODES[int(where[-1]) - 1] for _, where in cluster.tasks(job_id)}
        for node in used:
            view.wait_refused(node, listener, reason)
        assert cluster.state(job_id) == "RUNNING"
        assert _restarts(cluster, job_id) == 0
    cluster.cancel(without)
    cluster.cancel(one_left)
    # All TaskManagers are blocked: a new job waits, and starts once the nodes are free.
    waiting = submit("STREAMING", ENDLESS, 500, CHECKPOINTS)
    listener = view.of_job(waiting)
    assert all(state not in {"RUNNING", "INITIALIZING"} for state, _ in cluster.tasks(waiting))
    client.unblock(ONE)
    client.unblock(TWO)
    wait_until(lambda: _all_run(cluster, waiting), seconds=150)
    assert "tm-3" not in {where for _, where in cluster.tasks(waiting)}
    # It needs all slots of both nodes: it cannot leave one of them.
    client.block(ONE, "bad disk", action=EVACUATE)
    view.wait_refused(ONE, listener, "2 slots would have to move, and the nodes that are not blocked have 0 free")
    assert _restarts(cluster, waiting) == 0


def _settled(view: ServiceView, node: str, listener: str) -> bool:
    return view.applied(node, listener) or bool(view.refused(node, listener))


def _all_run(cluster: FlinkCluster, job: str) -> bool:
    tasks = cluster.tasks(job)
    return cluster.state(job) == "RUNNING" and bool(tasks) and all(state == "RUNNING" for state, _ in tasks)


def _second_stage(cluster: FlinkCluster, job: str) -> bool:
    states = [state for state, _ in cluster.tasks(job)]
    return "FINISHED" in states and "RUNNING" in states


def _checkpoints(cluster: FlinkCluster, job: str) -> int:
    return int(cluster.get(f"/jobs/{job}/checkpoints").get("counts", {}).get("completed", 0))


def _restarts(cluster: FlinkCluster, job: str) -> int:
    return max(_attempts(cluster, job))


def _attempts(cluster: FlinkCluster, job: str) -> list[int]:
    """The highest attempt of the tasks of each stage."""
    found = []
    for vertex in cluster.get(f"/jobs/{job}")["vertices"]:
        tasks = cluster.get(f"/jobs/{job}/vertices/{vertex['id']}")["subtasks"]
        found.append(max(int(task["attempt"]) for task in tasks))
    return found
