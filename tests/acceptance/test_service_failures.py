"""Failures of the service do not affect the job."""

from __future__ import annotations

import socketserver
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

import pytest

from blocklist import BlocklistClient
from blocklist.spark import BlocklistAgent
from blocklist.spark.agent import START_TIMEOUT
from demo.cluster import Cluster, wait_until
from tests.acceptance.conftest import A, B, BlockNode, C, StartAgent, is_blocked
from tests.acceptance.jobs import await_use, used_hosts
from tests.applications.hostile_service import Answer, drip_head, hang, hostile_service
from tests.integration.process import ServiceProcess, free_port

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_without_service_the_last_list_stays_in_force_and_the_agent_reconnects(
    spark: SparkSession,
    cluster: Cluster,
    block: BlockNode,
    service: BlocklistClient,
    service_process: ServiceProcess,
    agent: BlocklistAgent,
) -> None:
    block(B)
    service_process.kill()
    try:
        wait_until(lambda: not agent.status().connected, 90, "the agent to notice")
        assert used_hosts(spark, cluster) == {A, C}
        assert agent.status().blocked == {B: B}
    finally:
        service_process.start()
    service.unblock(B)
    service.block(A, "test")
    wait_until(lambda: agent.status().blocked == {A: A}, 60, "the agent to come back")
    await_use(spark, cluster, B)


HALF_A_TABLE = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n\r\nblocklist-table 1 9 2\nn1\t9999999999999\tmark\tn1\tcut\n"
)


def test_an_invalid_response_changes_nothing(
    spark: SparkSession,
    cluster: Cluster,
    block: BlockNode,
    service: BlocklistClient,
    service_process: ServiceProcess,
    agent: BlocklistAgent,
) -> None:
    block(B)
    service_process.kill()
    try:
        with answering(service_process.port, HALF_A_TABLE) as answered:
            wait_until(lambda: len(answered) > 1, 60, "the agent to ask twice")
            assert used_hosts(spark, cluster) == {A, C}
            status = agent.status()
            assert (status.running, status.connected, status.blocked) == (True, False, {B: B})
            assert status.last_error
    finally:
        service_process.start()
    service.unblock(B)
    wait_until(lambda: not is_blocked(agent, B), 60, "the agent to come back")


def test_a_start_without_service_returns_and_retries(
    spark: SparkSession,
    cluster: Cluster,
    service: BlocklistClient,
    start_agent: StartAgent,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    port = free_port()
    monkeypatch.setenv("BLOCKLIST_URL", f"http://127.0.0.1:{port}")
    agent = start_agent(spark, url=None)
    assert (agent.status().running, agent.status().revision) == (True, None)
    assert len(used_hosts(spark, cluster)) == 3
    service.block(B, "test")
    with forwarding(port, service.url):
        wait_until(lambda: is_blocked(agent, B), 60, "the agent to find the service")
    assert used_hosts(spark, cluster) == {A, C}


@pytest.mark.parametrize(
    "fault", [pytest.param(hang, marks=pytest.mark.long), drip_head], ids=lambda fault: fault.__name__
)
def test_a_start_is_not_held_up(fault: Answer, spark: SparkSession, cluster: Cluster, start_agent: StartAgent) -> None:
    """These responses take 20 s."""
    with hostile_service(0, [fault]) as service:
        begun = time.monotonic()
        agent = start_agent(spark, url=service.url)
        assert time.monotonic() - begun < START_TIMEOUT + 5
        assert agent.status().running
        assert len(used_hosts(spark, cluster)) == 3
        agent.stop()


@contextmanager
def serving(port: int, handler: type[socketserver.BaseRequestHandler]) -> Iterator[None]:
    class Server(socketserver.ThreadingTCPServer):
        allow_reuse_address = True
        daemon_threads = True

    with Server(("127.0.0.1", port), handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield
        finally:
            server.shutdown()
            thread.join()


@contextmanager
def answering(port: int, answer: bytes) -> Iterator[list[bytes]]:
    """Serve the same bytes for all requests; yields the requests so far."""
    requests: list[bytes] = []

    class Answer(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            requests.append(self.request.recv(65536))
            self.request.sendall(answer)

    with serving(port, Answer):
        yield requests


@contextmanager
def forwarding(
    port: int, url: str, *, refuse: bytes | None = None, on_data: Callable[[bytes], None] | None = None
) -> Iterator[None]:
    """Forward another port to the service; a path that begins with `refuse` gets a 404.

    `on_data` is called with what the client sends before it is forwarded; an OSError from it ends the connection.
    """
    import socket

    host, _, its_port = url.removeprefix("http://").partition(":")

    class Forward(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            if refuse is not None and self.request.recv(4096, socket.MSG_PEEK).partition(b" ")[2].startswith(refuse):
                self.request.sendall(b"HTTP/1.1 404 Not Found\r\nConnection: close\r\nContent-Length: 0\r\n\r\n")
                return
            with socket.create_connection((host, int(its_port))) as there:
                threading.Thread(target=self.copy, args=(self.request, there, on_data), daemon=True).start()
                self.copy(there, self.request)

        @staticmethod
        def copy(source: socket.socket, target: socket.socket, on_data: Callable[[bytes], None] | None = None) -> None:
            try:
                while data := source.recv(65536):
                    if on_data is not None:
                        on_data(data)
                    target.sendall(data)
            except OSError:
                with suppress(OSError):
                    target.shutdown(socket.SHUT_RDWR)

    with serving(port, Forward):
        yield
