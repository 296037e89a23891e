"""The bridge's connection to Flink when something fails."""

from __future__ import annotations

import gc
import os
import socket
import time
from contextlib import suppress
from pathlib import Path

import pytest
from py4j.java_gateway import GatewayParameters, GatewayProperty, JavaObject  # type: ignore[import-untyped]

from blocklist.flink.connection import JobMasters
from blocklist.flink.jvm import ChildJvm, LazyGatewayClient
from blocklist.flink.marking import NodeLease
from blocklist.flink.state import FlinkError, FlinkJob, JobKind
from tests.unit.flink_fakes import FakeRpc, connection_to


def _blocks() -> list[NodeLease]:
    return [NodeLease("n1", "disk", time.time_ns() // 1_000_000 + 30_000)]


def test_after_any_error_flink_is_notified_of_the_whole_list_again() -> None:
    rpc = FakeRpc()
    connection = connection_to(rpc)
    connection.exchange(_blocks)
    rpc.error = ValueError("not JSON")
    with pytest.raises(ValueError, match="not JSON"):
        connection.exchange(_blocks)
    rpc.error = None
    connection.exchange(_blocks)
    assert [[it.node for it in nodes] for nodes in rpc.notified] == [["n1"], ["n1"]]
    assert connection.generation == 2


def test_a_connection_that_fails_to_close_is_not_used_any_more() -> None:
    first, second = FakeRpc(), FakeRpc()
    connection = connection_to(first, second)
    connection.exchange(_blocks)
    first.close_error = OSError("broken pipe")
    with pytest.raises(OSError, match="broken pipe"):
        connection.close()
    connection.exchange(_blocks)
    assert len(second.notified) == 1


def test_a_jvm_that_fails_to_close_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = FakeRpc(), FakeRpc()
    connection = connection_to(first, second)
    connection.exchange(_blocks)
    first.close_error = OSError("broken pipe")
    monkeypatch.setattr(first, "alive", lambda: False)
    connection.exchange(_blocks)
    assert len(second.notified) == 1


def test_a_checkpoint_whose_jvm_cannot_be_replaced_has_failed() -> None:
    assert connection_to().checkpoint_result("future") == "There is no further JVM"


def test_a_job_that_cannot_be_read_does_not_hold_back_the_others() -> None:
    rpc = FakeRpc()
    rpc.jobs_found = {
        "bad": KeyError("taskVertices"),
        "good": FlinkJob(id="good", name="count", state="RUNNING", kind=JobKind.STREAMING),
    }
    state = connection_to(rpc).exchange(_blocks)
    assert list(state.jobs) == ["good"]
    assert state.unreachable == {"bad": "What its JobMaster reports cannot be read."}


def rpc_without_answers(monkeypatch: pytest.MonkeyPatch) -> tuple[FakeRpc, list[float]]:
    """Calls that fail, and their timeouts. Each look at the clock takes a second."""
    rpc, timeouts = FakeRpc(), list[float]()

    def get(sentence: str, future: object, seconds: float = 0.0) -> None:
        timeouts.append(seconds)
        raise FlinkError("timeout")

    now = iter(range(100))
    monkeypatch.setattr("blocklist.flink.connection.time.monotonic", lambda: float(next(now)))
    monkeypatch.setattr(rpc, "get", get)
    return rpc, timeouts


def test_the_search_for_job_masters_has_one_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    rpc, timeouts = rpc_without_answers(monkeypatch)
    monkeypatch.setattr(rpc, "with_ha", False)
    monkeypatch.setattr(rpc, "connect_job_master", lambda leader: leader, raising=False)
    found = JobMasters(rpc).update(["job"], rpc.resource_manager_leader())  # type: ignore[arg-type]
    assert found == {"job": "Its JobMaster was not found."}
    assert timeouts[:10] == [4, 3, 2, 1, 0, 0, 0, 0, 0, 0]


def test_job_masters_that_do_not_answer_share_one_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    """Right after a failover each job's leader may still be the former one; leases must be renewed meanwhile."""
    rpc, timeouts = rpc_without_answers(monkeypatch)
    found = JobMasters(rpc).update(["a", "b", "c"], rpc.resource_manager_leader())  # type: ignore[arg-type]
    assert found == dict.fromkeys("abc", "timeout.")
    assert timeouts == [4, 3, 2]


def test_garbage_is_released_in_the_thread_that_asks_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python collects it in any thread, and a JVM that hangs would hold up that thread."""
    client = LazyGatewayClient(gateway_parameters=GatewayParameters())
    client.gateway_property = GatewayProperty(auto_field=False, pool=None)
    sent: list[str] = []
    monkeypatch.setattr(client, "send_command", sent.append)
    made = JavaObject("o7", client)
    del made
    gc.collect(0)
    assert sent == []
    client.release_objects()
    client.release_objects()
    assert [command.splitlines()[2] for command in sent] == ["o7"]


def test_a_jvm_that_cannot_be_reached_is_killed(tmp_path: Path) -> None:
    java, pid = tmp_path / "java", tmp_path / "pid"
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    # Py4J expects the port and the secret on the standard output.
    java.write_text(f"#!/bin/sh\necho $$ > {pid}\necho {port}\necho secret\nexec sleep 600\n")
    java.chmod(0o755)
    with pytest.raises(FlinkError, match="started, but cannot be reached"):
        ChildJvm(tmp_path, java, tmp_path)
    assert not _exists(int(pid.read_text()))


def _exists(pid: int) -> bool:
    with suppress(ProcessLookupError):
        os.kill(pid, 0)
        return True
    return False
