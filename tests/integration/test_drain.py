"""`blocklist drain`: it returns 0 only when it is known that nothing runs on the nodes."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from blocklist import BlocklistClient
from blocklist.cli.drain import DrainDisplay, DrainFollower, DrainRules
from blocklist.wire.listeners import NodeStatusBody
from tests.integration.bodies import EVACUATE
from tests.integration.command import Command, interrupt
from tests.integration.conftest import StartInProcess
from tests.integration.in_process import InProcessService, RunningClock
from tests.integration.labels import report_labels
from tests.integration.listeners import RM, heartbeat, put, register, wait_until_lapsed
from tests.integration.process import ServiceProcess, wait_until

DRAIN = ("drain", "n1", "-r", "Kernel", "--timeout")
Follow = Callable[..., tuple[DrainFollower, list[str]]]


@pytest.fixture
def service(start_in_process: StartInProcess) -> InProcessService:
    return start_in_process(clock=RunningClock())


@pytest.fixture
def client(service: InProcessService) -> httpx.Client:
    return service.client()


@pytest.fixture
def drain(binaries: Path, service: InProcessService, monkeypatch: pytest.MonkeyPatch) -> Command:
    monkeypatch.setattr("blocklist.cli.drain._POLL_SECONDS", 0.05)
    return Command(binaries, service.url)


def revision(client: httpx.Client) -> int:
    return int(client.get("/blocklist").headers["blocklist-revision"])


def report(client: httpx.Client, job: str, tasks: int | None, **fields: Any) -> None:
    """A job that has applied all changes and runs this number of tasks on n1; None if it does not report it."""
    running = {} if tasks is None else {f"{job}:1": tasks}
    managers = {f"{job}:1": "n1"}
    heartbeat(client, job, ackedRevision=revision(client), taskManagers=managers, runningTasks=running, **fields)


def wait_until_evacuated(client: httpx.Client, node: str = "n1") -> None:
    def evacuated() -> bool:
        return bool(client.get("/blocklist").json().get(node, {}).get("action") == EVACUATE)

    wait_until(evacuated)


def test_it_follows_each_job_until_nothing_runs_there(drain: Command, client: httpx.Client) -> None:
    register(client, "etl")
    report(client, "etl", 3)
    with drain.running(*DRAIN, "60s") as running:
        assert running.stdout is not None
        assert running.stdout.readline().startswith("n1 blocked until ")
        assert running.stdout.readline() == "n1  etl  has not applied it yet, 3 tasks running\n"
        report(client, "etl", 2)
        assert running.stdout.readline() == "n1  etl  2 tasks running\n"
        report(client, "etl", 0)
        assert running.stdout.readline() == "n1  etl  nothing runs\n"
        assert running.stdout.readline() == "n1  drained\n"
        assert running.stdout.readline().startswith("1 node drained in ")
        assert running.wait(60) == 0


class Lines(DrainDisplay):
    """Keeps the lines."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def print(self, text: str) -> None:
        self.lines.append(text)


@pytest.fixture
def follow(service: InProcessService) -> Iterator[Follow]:
    """Followers of nodes, and the lines that each displays."""
    with BlocklistClient(service.url) as client:

        def follow(*nodes: str, grace: float = 1e9) -> tuple[DrainFollower, list[str]]:
            display = Lines()
            return DrainFollower(client, nodes, {}, display, DrainRules(), grace=grace), display.lines

        yield follow


@pytest.mark.parametrize(("grace", "pending"), [(1e9, set()), (0, {"idle", "racks"})])
def test_a_listener_without_tasks_there_gets_a_line_only_if_it_takes_long(
    follow: Follow, client: httpx.Client, grace: float, pending: set[str]
) -> None:
    register(client, "racks", role=RM)
    for job, tasks in (("etl", 2), ("idle", 0)):
        register(client, job)
        report(client, job, tasks)
    put(client, "n1", action=EVACUATE)
    follower, lines = follow("n1", grace=grace)
    follower.poll()
    waits = "has not applied it yet"
    assert set(lines) == {f"n1  etl  {waits}, 2 tasks running"} | {f"n1  {it}  {waits}" for it in pending}
    lines.clear()
    for listener in ("racks", "etl", "idle"):
        heartbeat(client, listener, ackedRevision=revision(client))
    report(client, "etl", 0)
    follower.poll()
    follower.poll()
    ended = {f"n1  {it}  nothing runs" for it in {"etl"} | pending}
    assert sorted(lines) == sorted(ended | {"n1  drained"})


class SlowClient(BlocklistClient):
    """Reads a status as from a service under load; `read` are the nodes whose status it has read."""

    read: list[str]

    def status(self, node_id: str) -> NodeStatusBody:
        time.sleep(0.2)
        self.read.append(node_id)
        return super().status(node_id)


def test_the_timeout_ends_a_drain_in_the_middle_of_a_rack(service: InProcessService, client: httpx.Client) -> None:
    rack = [f"n{number}" for number in range(1, 41)]
    for node in rack:
        put(client, node, action=EVACUATE)
    display = Lines()
    with SlowClient(service.url) as slow:
        slow.read = []
        left = DrainFollower(slow, rack, {}, display, DrainRules()).run(1000)
    assert left == rack
    assert len(slow.read) <= 5
    assert "  n40  unknown: not read yet" in display.lines


def test_a_listener_is_not_said_to_have_ended_when_nobody_knows_the_node(drain: Command, client: httpx.Client) -> None:
    report_labels(client)
    register(client, "etl")
    with drain.running("drain", "nowhere", "--timeout", "120s") as running:
        assert running.stdout is not None
        next(line for line in running.stdout if "etl" in line)
        for listener in ("etl", "racks"):
            heartbeat(client, listener, ackedRevision=revision(client), taskManagers={})
        output, _ = running.communicate(timeout=120)
    assert running.returncode == 1
    assert "the node is not known" in output
    assert "has ended" not in output


def test_a_refusal_is_named_with_its_reason_without_waiting_for_the_timeout(
    drain: Command, client: httpx.Client
) -> None:
    register(client, "etl")
    with drain.beside(*DRAIN, "120s") as ended:
        wait_until_evacuated(client)
        report(client, "etl", 4, refused={"n1": "its last host"})
        done = ended.result()
    assert done.returncode == 1
    assert "Timeout" not in done.stdout
    assert done.stdout.splitlines()[-3:] == [
        "0 of 1 node drained. Still held:",
        "  n1  etl: refuses: its last host, 4 tasks running",
        "1 node stays blocked; to end that: blocklist unblock n1",
    ]


def test_the_other_nodes_are_drained_although_one_job_refuses(follow: Follow, client: httpx.Client) -> None:
    for job in ("etl", "app"):
        register(client, job)
    for node in ("n1", "n2"):
        put(client, node, action=EVACUATE)
    heartbeat(client, "app", ackedRevision=2, taskManagers={"app:1": "n2"}, runningTasks={"app:1": 1})
    report(client, "etl", 4, refused={"n1": "its last host"})
    follower, lines = follow("n1", "n2")
    follower.poll()
    assert "n2  app  1 task running" in lines
    heartbeat(client, "app", runningTasks={"app:1": 0})
    assert follower.run(120_000) == ["n1"]
    assert "n2  drained" in lines
    assert lines[-3:-1] == ["1 of 2 nodes drained. Still held:", "  n1  etl: refuses: its last host, 4 tasks running"]


def test_a_manager_of_another_cluster_holds_nothing(follow: Follow, client: httpx.Client) -> None:
    for manager in ("k8s", "yarn"):
        register(client, manager, role=RM)
    heartbeat(client, "yarn", nodes=["n1"])
    put(client, "n1", action=EVACUATE)
    follower, lines = follow("n1", grace=0)
    follower.poll()
    heartbeat(client, "k8s", ackedRevision=1, taskManagers={}, runningTasks={}, notHere=["n1"])
    heartbeat(client, "yarn", ackedRevision=1)
    follower.poll()
    assert {"n1  k8s  not here", "n1  yarn  nothing runs"} <= {*lines}
    assert "n1  drained" not in lines, "what Kubernetes reports says nothing about a node of YARN"
    heartbeat(client, "yarn", taskManagers={}, runningTasks={})
    assert follower.run(120_000) == []
    assert lines[-2] == "n1  drained"


def test_a_node_that_no_cluster_has_is_not_drained(drain: Command, client: httpx.Client) -> None:
    register(client, "k8s", role=RM)
    register(client, "etl")
    with drain.beside(*DRAIN, "120s") as ended:
        wait_until_evacuated(client)
        acked: dict[str, Any] = {"ackedRevision": revision(client), "taskManagers": {}, "runningTasks": {}}
        heartbeat(client, "etl", **acked)
        heartbeat(client, "k8s", **acked, notHere=["n1"])
        done = ended.result()
    assert done.returncode == 1
    assert "  n1  no cluster has this node, so what runs there is unknown\n" in done.stdout
    assert "drained in" not in done.stdout
    done = drain.run("block", "n1", "-r", "Kernel", "-d", "1h", "--wait", "5s")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "Applied by 1 listener."
    client.delete("/listeners/etl")
    done = drain.run("block", "n1", "-r", "Kernel", "-d", "1h", "--wait", "5s")
    nowhere = "Nothing has applied it: no cluster has the node (not here: k8s)."
    assert (done.returncode, done.stdout.splitlines()[-1]) == (1, nowhere)
    said = drain.run("status", "n1").stderr
    assert "n1 blocked; no live listener has the node (revision" in said
    assert "No cluster has this node." in said


@pytest.mark.parametrize("case", ["no job", "silent tasks", "no TaskManagers", "tasks anywhere"])
def test_what_is_unknown_is_not_drained(follow: Follow, client: httpx.Client, case: str) -> None:
    register(client, "manager", role=RM)
    if case != "no job":
        register(client, "etl")
    revision = put(client, "n1", action=EVACUATE)
    heartbeat(client, "manager", ackedRevision=revision)
    if case == "silent tasks":
        report(client, "etl", None)
    elif case == "no TaskManagers":
        heartbeat(client, "etl", ackedRevision=revision)
    elif case == "tasks anywhere":
        heartbeat(client, "etl", ackedRevision=revision, taskManagers={}, runningTasks={"tm": 3})
    follower, lines = follow("n1")
    follower.poll()
    assert follower.run(0) == ["n1"]
    assert any(line.startswith("Timeout after ") for line in lines)
    assert "unknown: " in lines[-2]
    assert "n1  drained" not in lines


def test_a_job_that_stops_reporting_is_not_taken_for_ended(
    drain: Command, service: InProcessService, client: httpx.Client
) -> None:
    register(client, "lost", leaseSeconds=1)
    wait_until_lapsed(client, "lost", until=service.until)
    register(client, "etl")
    put(client, "n1", action=EVACUATE, cause="Kernel")
    report(client, "etl", 0)
    done = drain.run(*DRAIN, "1s")
    assert (done.returncode, done.stdout.splitlines()[-2]) == (1, "  n1  lost: unknown: it has stopped reporting")
    assert "n1  drained" in drain.stdout_of(*DRAIN, "60s", "--ignore-lapsed")


def test_ctrl_c_leaves_the_block_and_says_so(drain: Command, client: httpx.Client) -> None:
    register(client, "etl")
    with drain.running(*DRAIN, "10m") as running:
        assert running.stdout is not None
        next(line for line in running.stdout if "etl" in line)
        code, stderr = interrupt(running)
    assert code == 130
    assert "1 node stays blocked" in stderr
    assert "blocklist unblock" in stderr
    assert "n1" in client.get("/blocklist").json()


def test_a_node_that_somebody_unblocks_is_not_drained(drain: Command, client: httpx.Client) -> None:
    register(client, "etl")
    with drain.beside(*DRAIN, "120s") as ended:
        wait_until_evacuated(client)
        client.delete("/blocklist/nodes/n1")
        done = ended.result()
    assert done.returncode == 1
    assert done.stdout.splitlines()[-1] == "  n1  no longer blocked; blocklist history shows why"


def test_the_other_nodes_are_drained_although_somebody_unblocks_one(follow: Follow, client: httpx.Client) -> None:
    register(client, "etl")
    for node in ("n1", "n2"):
        put(client, node, action=EVACUATE)
    report(client, "etl", 1)
    follower, lines = follow("n1", "n2")
    follower.poll()
    client.delete("/blocklist/nodes/n2")
    follower.poll()
    assert lines[-1].startswith("n2  no longer blocked")
    report(client, "etl", 2)
    follower.poll()
    assert lines[-1] == "n1  etl  2 tasks running"
    report(client, "etl", 0)
    assert follower.run(120_000) == ["n2"]
    assert "n1  drained" in lines
    assert lines[-2:] == ["1 of 2 nodes drained. Still held:", "  n2  no longer blocked; blocklist history shows why"]


def test_an_outage_of_the_service_is_waited_for(
    binaries: Path, fresh: ServiceProcess, fresh_client: httpx.Client
) -> None:
    drain = Command(binaries, fresh.url)
    register(fresh_client, "etl")
    drain.env["BLOCKLIST_TIMEOUT"] = "500ms"
    with drain.running(*DRAIN, "60s") as running:
        assert running.stdout is not None
        assert running.stderr is not None
        next(line for line in running.stdout if "etl" in line)
        with fresh.paused():
            assert "What runs is unknown; trying again." in running.stderr.readline()
        report(fresh_client, "etl", 0)
        output, _ = running.communicate(timeout=300)
    assert (running.returncode, "n1  drained" in output) == (0, True)


def test_a_selector_drains_a_rack_and_a_misspelt_label_nothing(drain: Command, client: httpx.Client) -> None:
    report_labels(client)
    done = drain.run("drain", "-l", "rak=r1")
    assert (done.returncode, "did you mean rack?" in done.stderr) == (1, True)
    done = drain.run("drain", "-l", "rak!=r1")
    assert (done.returncode, "did you mean rack?" in done.stderr) == (1, True)
    assert client.get("/blocklist").json() == {}
    output = drain.stdout_of("drain", "-l", "rack=r1", "--dry-run")
    assert [line.split()[0] for line in output.splitlines()] == ["n1.example.com", "n2"]
    assert client.get("/blocklist").json() == {}


def test_on_a_terminal_the_lines_are_the_same_above_a_bar(drain: Command, client: httpx.Client) -> None:
    register(client, "etl")
    done = threading.Event()

    def apply() -> None:
        wait_until_evacuated(client)
        report(client, "etl", 0)
        done.set()

    thread = threading.Thread(target=apply)
    thread.start()
    output = drain.on_terminal(*DRAIN, "60s")
    thread.join()
    assert done.is_set()
    assert "n1  drained" in output
    assert "1 node drained in " in output
    assert "\x1b[" in output
