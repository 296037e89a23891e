"""What the bridge says when it cannot start as it was told, and where it listens: Flink's jars, without a cluster."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from blocklist.flink.__main__ import listener_id
from blocklist.flink.connection import FlinkConnection
from blocklist.flink.jvm import ChildJvm, find_java
from blocklist.flink.marking import NodeLease
from blocklist.flink.rpc import FlinkRpc
from blocklist.flink.state import FlinkError
from blocklist.model.errors import InvalidError
from tests.flink.conftest import FindLib
from tests.flink.package import FLINK_1, FLINK_2
from tests.integration.process import free_port

pytestmark = pytest.mark.timeout(300)

Start = Callable[..., FlinkRpc]


@pytest.fixture(scope="module")
def shared_jvm(java: Path, find_lib: FindLib, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ChildJvm]:
    jvm = ChildJvm(find_lib(FLINK_2), java, tmp_path_factory.mktemp("jvm"))
    yield jvm
    jvm.close()


@pytest.fixture
def start(java: Path, shared_jvm: ChildJvm, tmp_path: Path) -> Iterator[Start]:
    """Starts RPC with this configuration, in a JVM of its own if other jars are given; that ends with the test."""
    jvms: list[ChildJvm] = []

    def run(configuration: str, *, lib: Path | None = None, bind_address: str = "127.0.0.1") -> FlinkRpc:
        (tmp_path / "config.yaml").write_text(configuration)
        if lib is None:
            return FlinkRpc(shared_jvm, tmp_path, bind_address)
        jvms.append(ChildJvm(lib, java, tmp_path))
        return FlinkRpc(jvms[-1], tmp_path, bind_address)

    yield run
    for jvm in jvms:
        jvm.close()


def _job_manager_at(port: int) -> str:
    return f"jobmanager.rpc.address: 127.0.0.1\njobmanager.rpc.port: {port}\n"


def test_the_bridge_listens_at_its_bind_address_only(start: Start) -> None:
    rpc = start(_job_manager_at(free_port()), bind_address="127.0.0.5")
    port = int(rpc._service.getPort())
    socket.create_connection(("127.0.0.5", port), timeout=5).close()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port), timeout=5)


@pytest.mark.parametrize("version", [FLINK_1, FLINK_2])
def test_blocked_nodes_arrive_as_flink_s_objects(start: Start, find_lib: FindLib, version: str) -> None:
    rpc = start(_job_manager_at(6123), lib=None if version == FLINK_2 else find_lib(version))
    leases = [
        NodeLease("n1", "disk \U0001f4a5 \0 \u00e9", 2**40),
        NodeLease("n2", "", 5),
        NodeLease("n1", "x" * 200, 7),
    ]
    found = [(it.getNodeId(), it.getCause(), it.getEndTimestamp()) for it in rpc.blocked_nodes(leases)]
    assert found == leases
    assert len(rpc.blocked_nodes([])) == 0


def test_jars_that_are_not_flink_s_are_named(start: Start, tmp_path: Path) -> None:
    with pytest.raises(FlinkError, match="give the folder lib of the cluster's Flink"):
        start(_job_manager_at(6123), lib=tmp_path)


def test_a_configuration_that_cannot_be_read_is_named(start: Start, tmp_path: Path) -> None:
    with pytest.raises(FlinkError, match=f"The configuration in {tmp_path} cannot be read. Correct it"):
        start("a: [\n")


def test_missing_settings_of_tls_are_named(start: Start) -> None:
    with pytest.raises(FlinkError, match=r"security\.ssl\.internal\.keystore, .* is not set"):
        start(f"{_job_manager_at(6123)}security.ssl.internal.enabled: true\n")


def test_a_bind_address_of_another_machine_is_named(start: Start) -> None:
    with pytest.raises(FlinkError, match=r"does not start with --bind-address 192\.0\.2\.1"):
        start(_job_manager_at(6123), bind_address="192.0.2.1")


def test_without_a_jobmanager_it_is_said_what_to_check(start: Start, find_lib: FindLib) -> None:
    connection = FlinkConnection(lambda: start(_job_manager_at(free_port()), lib=find_lib(FLINK_2)))
    with closing(connection), pytest.raises(FlinkError, match="Check that the JobManager runs, and that --conf-dir"):
        connection.exchange(list)


def test_a_java_or_an_id_that_cannot_be_used_is_refused_with_the_option(tmp_path: Path) -> None:
    with pytest.raises(InvalidError, match=r"^--java: .* is not a file"):
        find_java(tmp_path)
    with pytest.raises(InvalidError, match=r"^--id: 'a b' is not a node id"):
        listener_id("a b")
