"""What is left to do: a command that ends early, or finds nothing, says what was not done and what there is."""

from __future__ import annotations

import socket
import subprocess
from pathlib import Path

import httpx

from tests.integration.command import TIMEOUT, Command, interrupt
from tests.integration.labels import report_labels
from tests.integration.listeners import heartbeat, put, register
from tests.integration.process import ServiceProcess, wait_until


def test_a_node_that_no_listener_knows_is_not_drained(
    binaries: Path, fresh: ServiceProcess, fresh_client: httpx.Client
) -> None:
    command = Command(binaries, fresh.url)
    report_labels(fresh_client, {"r12n01": {"rack": "r12"}}, "jm")
    register(fresh_client, "etl", leaseSeconds=600)
    heartbeat(fresh_client, "etl", ackedRevision=0, taskManagers={}, runningTasks={})
    with command.running("drain", "r12n1", "--timeout", "60s") as running:
        wait_until(lambda: "r12n1" in fresh_client.get("/blocklist").json())
        for name in ("etl", "jm"):
            heartbeat(fresh_client, name, ackedRevision=1)
        output, _ = running.communicate(timeout=TIMEOUT)
    assert running.returncode == 1
    assert output.splitlines()[-3:] == [
        "0 of 1 node drained. Still held:",
        "  r12n1  no listener knows this node, so what runs there is unknown; did you mean r12n01?",
        "1 node stays blocked; to end that: blocklist unblock r12n1",
    ]
    # Of a node that was blocked before, it cannot be known whether a job that has ended reported it.
    done = command.run("drain", "r12n1", "--timeout", "60s")
    assert (done.returncode, done.stdout.splitlines()[-1].startswith("1 node drained")) == (0, True)
    assert done.stderr.splitlines()[-1].endswith("did you mean r12n01? If the name is right, nothing runs there.")


def test_an_empty_selection_says_how_many_are_blocked(command: Command, node_id: str) -> None:
    command.stdout_of("block", node_id, "-r", "disk")
    done = command.run("list", "--owner", f"{node_id}-nobody")
    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr.startswith("No blocked node matches; ")
    assert done.stderr.endswith(" blocked in all.\n")


def test_a_misspelt_label_unblocks_nothing_and_has_no_hint_for_another_command(
    binaries: Path, fresh: ServiceProcess, fresh_client: httpx.Client
) -> None:
    report_labels(fresh_client, {"n1": {"rack": "r21"}})
    put(fresh_client, "n1")
    done = Command(binaries, fresh.url).run("unblock", "-l", "rak=r21")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "Error: No node has the label rak; did you mean rack?\nNothing was changed.\n"


def test_an_output_that_fails_does_not_hide_what_is_left(command: Command, node_id: str) -> None:
    nodes = [f"{node_id}-{place}" for place in "abc"]
    command.stdout_of("block", *nodes, "-r", "disk")
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            ["blocklist", "unblock", *nodes],
            env=command.env,
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=TIMEOUT,
            check=False,
        )
    assert done.returncode == 3
    assert f"Not unblocked: {nodes[1]}, {nodes[2]}.\n" in done.stderr
    assert [command.run("is-blocked", node).returncode for node in nodes] == [1, 0, 0]


def test_ctrl_c_while_a_token_is_created_says_that_it_may_exist(binaries: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        command = Command(binaries, f"http://127.0.0.1:{server.getsockname()[1]}")
        with command.running("token", "create", "anna", "--role", "reader") as running:
            connection, _ = server.accept()
            with connection:
                connection.recv(1)
                code, stderr = interrupt(running)
    assert code == 130
    assert "A token of anna may have been created, and nobody has its text" in stderr


def test_a_refused_drain_says_that_the_node_stays_blocked(
    binaries: Path, fresh: ServiceProcess, fresh_client: httpx.Client
) -> None:
    register(fresh_client, "etl")
    with Command(binaries, fresh.url).running("drain", "n1", "--timeout", "60s") as running:
        assert running.stdout is not None
        running.stdout.readline()
        revision = int(fresh_client.get("/blocklist").headers["blocklist-revision"])
        heartbeat(fresh_client, "etl", ackedRevision=revision, taskManagers={"etl:1": "n1"}, refused={"n1": "last"})
        output, _ = running.communicate(timeout=TIMEOUT)
    assert running.returncode == 1
    assert output.splitlines()[-1] == "1 node stays blocked; to end that: blocklist unblock n1"
