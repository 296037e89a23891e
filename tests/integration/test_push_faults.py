"""Faults during pushes, some with processes: every listener ends with the service's list, in order, nothing skipped."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from itertools import chain, count, repeat
from typing import Any, Final

import httpx

from tests.integration.bodies import EVACUATE, MARK, all_changes, block
from tests.integration.fake_servers import tcp_server
from tests.integration.in_process import InProcessService
from tests.integration.listeners import RM, current_nodes, put
from tests.integration.process import ServiceProcess, Until, free_port, wait_until
from tests.integration.receiver import Receiver, fails, loses_response, receiving
from tests.integration.receiver_process import receiver_process

ALL: Final = 2**62


@dataclass
class TruncatingProxy:
    """Its address, and the number of accepted connections."""

    address: str = ""
    accepted: int = 0


@contextmanager
def truncating_proxy(port: int, cuts: Iterable[tuple[int, int]]) -> Iterator[TruncatingProxy]:
    """A proxy to a port: `cuts` are the maximum number of bytes to the server and back, for each connection.

    Connections after those of `cuts` are left alone.
    """
    each, turn = chain(cuts, repeat((ALL, ALL))), threading.Lock()
    cutter = TruncatingProxy()

    def serve(client: socket.socket) -> None:
        with turn:
            there, back = next(each)
            cutter.accepted += 1
        with socket.create_connection(("127.0.0.1", port)) as server:
            _forward(client, server, there, back)

    # A daemon: connections that are not cut stay open.
    with tcp_server(serve, daemon=True) as url:
        cutter.address = url.removeprefix("http://")
        yield cutter


def _forward(client: socket.socket, server: socket.socket, there: int, back: int) -> None:
    answering = threading.Thread(target=_copy, args=(server, client, back))
    answering.start()
    _copy(client, server, there)
    answering.join()


def _copy(source: socket.socket, target: socket.socket, limit: int) -> None:
    """Copy up to the limit, then close both."""
    with suppress(OSError):
        while limit and (data := source.recv(min(65536, limit))):
            target.sendall(data)
            limit -= len(data)
    for side in (source, target):
        with suppress(OSError):
            side.shutdown(socket.SHUT_RDWR)


NODES = 20


def change(service: ServiceProcess | InProcessService, stop: threading.Event) -> None:
    """Block, merge and unblock a few nodes repeatedly; wait during outages."""
    with service.client() as client:
        for number in count():
            if stop.is_set():
                return
            path = f"/blocklist/nodes/n-{number * 7 % NODES}"
            try:
                if number % 3:
                    action = EVACUATE if number % 5 == 0 else MARK
                    client.put(path, json=block(action=action, cause=f"c-{number % 4}", allowMerge=True))
                else:
                    client.delete(path)
            except httpx.TransportError:
                stop.wait(0.02)
            stop.wait(0.002)


@contextmanager
def changing(service: ServiceProcess | InProcessService) -> Iterator[None]:
    """Make changes until the end of the block."""
    stop = threading.Event()
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(change, service, stop)
        try:
            yield
        finally:
            stop.set()
        running.result(60)


def states(log: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The list at each revision from 0, computed from the change log."""
    nodes: dict[str, Any] = {}
    after = [nodes]
    for entry in log:
        nodes = {node_id: node for node_id, node in nodes.items() if node_id != entry["node"]["id"]}
        if entry["type"] in {"blocked", "merged"}:
            nodes[entry["node"]["id"]] = entry["node"]
        after.append(nodes)
    return after


def check(client: httpx.Client, receivers: list[Receiver], until: Until = wait_until) -> None:
    """After one more change all receivers have the service's list, and had the log's list after each push."""
    last = put(client, "last")
    for receiver in receivers:
        receiver.wait(lambda it: it.has(last), until)
        assert receiver.nodes == current_nodes(client)
    after = states(all_changes(client))
    for receiver in receivers:
        nodes: dict[str, Any] = {}
        for push in receiver.applied:
            freed = {node["id"] for node in push.body["unblocked"]}
            kept = {} if push.body["snapshot"] else {key: node for key, node in nodes.items() if key not in freed}
            nodes = kept | {node["id"]: node for node in push.body["blocked"]}
            assert nodes == after[push.revisions[1]], f"after the push from {push.revisions[0]} to {push.revisions[1]}"


def wait_for_pushes(receivers: list[Receiver], number: int, until: Until = wait_until) -> None:
    """Wait until each has applied `number` more pushes."""
    goals = [len(receiver.applied) + number for receiver in receivers]
    until(lambda: all(len(it.applied) >= goal for it, goal in zip(receivers, goals, strict=True)))


def test_the_service_is_killed_during_a_fan_out(fresh: ServiceProcess) -> None:
    with ExitStack() as stack:
        client = stack.enter_context(fresh.client())
        receivers = [stack.enter_context(receiving()) for _ in range(12)]
        for number, receiver in enumerate(receivers):
            role = RM if number < 2 else "JOB_MASTER"
            receiver.register(client, f"l-{number}", role=role, leaseSeconds=3600)
        with changing(fresh):
            for _ in range(3):
                wait_for_pushes(receivers, 4)
                fresh.kill()
                fresh.start()
        check(client, receivers)
        # A ResourceManager, which acknowledges nothing when it registers, may need the whole list again.
        assert not [push for receiver in receivers[2:] for push in receiver.applied if push.body["snapshot"]]


def test_after_a_restart_pushes_continue_from_the_acknowledged_revision(fresh: ServiceProcess) -> None:
    """Without any request after the restart, the remaining changes are pushed."""
    with receiving(fails(10**9)) as receiver, fresh.client() as client:
        receiver.register(client, "jm", leaseSeconds=3600)
        for number in range(5):
            put(client, f"n-{number}")
        receiver.wait(lambda it: bool(it.requests))
        fresh.kill()
        receiver.responder = fails(0)
        fresh.start()
        receiver.wait(lambda it: it.has(5))
        assert receiver.nodes == current_nodes(client)


def test_a_listener_is_killed_and_returns_with_a_new_session(fresh: ServiceProcess) -> None:
    port = free_port()
    with fresh.client() as client, changing(fresh):
        for session in ("s1", "s2", "s3"):
            with receiver_process(port, session) as receiver:
                body = {"role": "JOB_MASTER", "sessionId": session, "callbackUrl": receiver.url}
                assert client.put("/listeners/jm", json=body).is_success
                first = client.get("/listeners/jm").json()["revision"]
                wait_until(lambda first=first, receiver=receiver: (receiver.knows()["revision"] or 0) > first + 20)  # type: ignore[misc]
                if session != "s1":
                    assert receiver.knows()["snapshots"][0] is True
                assert not any(receiver.knows()["snapshots"][1:])
    with fresh.client() as client, receiver_process(port, "s4") as receiver:
        last = put(client, "last")
        body = {"role": "JOB_MASTER", "sessionId": "s4", "callbackUrl": receiver.url}
        assert client.put("/listeners/jm", json=body).is_success
        wait_until(lambda: receiver.knows()["revision"] == last)
        assert receiver.knows()["nodes"] == current_nodes(client)


def test_connections_are_cut_during_pushes(timed: InProcessService) -> None:
    """During a request, and during the response to a push that was applied."""
    cuts = [(700, ALL), (ALL, 0), (3_000, ALL), (ALL, 10), (50, ALL), (ALL, 200), (5_000, ALL), (1, ALL), (ALL, 30)]
    with receiving() as receiver, timed.client() as client:
        host = receiver.url.split("/")[2]
        with truncating_proxy(int(host.rpartition(":")[2]), cuts) as proxy:
            receiver.url = receiver.url.replace(host, proxy.address)
            receiver.register(client, "jm", leaseSeconds=3600)
            with changing(timed):
                wait_for_pushes([receiver], 30, timed.until)
            check(client, [receiver], timed.until)
            assert proxy.accepted > len(cuts)


def test_responses_are_lost_during_changes(timed: InProcessService) -> None:
    with receiving(loses_response(5)) as receiver, timed.client() as client:
        receiver.register(client, "jm", leaseSeconds=3600)
        with changing(timed):
            wait_for_pushes([receiver], 10, timed.until)
        check(client, [receiver], timed.until)


def test_sessions_of_one_id_take_over_from_each_other(timed: InProcessService) -> None:
    with ExitStack() as stack:
        client = stack.enter_context(timed.client())
        receivers = [stack.enter_context(receiving(session=f"s{number}")) for number in range(5)]
        with changing(timed):
            for receiver in receivers:
                receiver.secrets += receivers[0].secrets
                receiver.register(client, "rm", role=RM, leaseSeconds=3600)
                wait_for_pushes([receiver], 5, timed.until)
        check(client, receivers[-1:])
        former = [len(receiver.requests) for receiver in receivers[:-1]]
        moved_on = put(client, "after")
        receivers[-1].wait(lambda it: it.has(moved_on))
        assert [len(receiver.requests) for receiver in receivers[:-1]] == former
        assert [receiver.wrong_session for receiver in receivers] == [0] * 5
