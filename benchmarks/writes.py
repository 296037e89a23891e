"""Durable PUTs with 1 and 64 writers, compared with fdatasync and with etcd by JSON gateway and gRPC."""

import base64
import json
import os
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from benchmarks import etcd, systems
from benchmarks.generator import SECONDS, Load, h2load, wrk_write
from benchmarks.harness import GENERATOR_CORE, SERVER_CORE, Server, scratch
from benchmarks.rows import Row, Samples, Target, at_least, at_most, column
from benchmarks.sampling import rotate

OURS, DISK, GATEWAY, GRPC = "blocklist", "fdatasync of 4 kB", "etcd, JSON gateway", "etcd, gRPC"
GRPC_ONE = "etcd, gRPC, one connection"
ROUNDS = 7
BODY = json.dumps({"action": "MARK_BLOCKED", "cause": "lost 3 partitions", "endTimestamp": "4102444800000"})
BLOCK = bytes(4096)


def run() -> list[Row]:
    """Return all rows on writes."""
    systems.require("wrk", "etcd", "h2load")
    with scratch() as folder, ExitStack() as stack:
        service = stack.enter_context(systems.service(folder / "service"))
        etcd_server = stack.enter_context(systems.etcd(folder))
        return [_one(folder, service, etcd_server), *_many(folder, service, etcd_server)]


def _one(folder: Path, service: Server, etcd_server: Server) -> Row:
    contenders: dict[str, Callable[[], float]] = {
        OURS: lambda: _ours(service, 1).rate,
        DISK: partial(_fdatasyncs, folder / "block"),
        GATEWAY: lambda: _gateway(etcd_server, 1).rate,
        GRPC: lambda: _grpc(folder, etcd_server, 1).rate,
    }
    samples, noise = rotate(contenders, rounds=ROUNDS)
    return _row("1 writer", samples, noise, [at_least(0.25, DISK)])


def _many(folder: Path, service: Server, etcd_server: Server) -> list[Row]:
    contenders: dict[str, Callable[[], Load]] = {
        OURS: partial(_ours, service, 64),
        GATEWAY: partial(_gateway, etcd_server, 64),
        GRPC: partial(_grpc, folder, etcd_server, 64),
        GRPC_ONE: partial(_grpc, folder, etcd_server, 1, streams=64),
    }
    samples, noise = rotate(contenders, rounds=ROUNDS)
    rate, p99 = (column(samples, figure) for figure in range(2))
    return [
        _row("64 writers", rate, noise, [at_least(1.5, GATEWAY), at_least(1, GRPC)]),
        _row("64 writers, 99th percentile", p99, noise, [at_most(1, GATEWAY)], unit="ms"),
    ]


def _row(name: str, samples: Samples, noise: Samples, targets: list[Target], unit: str = "PUTs/s") -> Row:
    return Row(name=name, unit=unit, ours=OURS, samples=samples, noise=noise, targets=targets)


def _ours(server: Server, connections: int) -> Load:
    """Each PUT adds a node, up to some hundred thousand: the rate does not depend on the size of the list."""
    return wrk_write(f"{server.url}/blocklist/nodes/worker-@", method="PUT", body=BODY, connections=connections)


def _gateway(server: Server, connections: int) -> Load:
    """The key is base64: any twelve letters and digits are nine bytes."""
    body = json.dumps({"key": "@", "value": base64.b64encode(BODY.encode()).decode()})
    return wrk_write(f"{server.url}/v3/kv/put", method="POST", body=body, connections=connections)


def _grpc(folder: Path, server: Server, connections: int, streams: int = 1) -> Load:
    """Always the same key, as h2load has a single body; etcd writes each revision nevertheless."""
    body = folder / "put.grpc"
    body.write_bytes(etcd.grpc(etcd.put_request(b"worker-t00000000001", BODY.encode())))
    return h2load(server.url + etcd.PUT, body, connections=connections, streams=streams)


def _fdatasyncs(path: Path) -> float:
    """Overwrite one allocated block durably, on the server's core: the maximum rate of the disk."""
    os.sched_setaffinity(0, {SERVER_CORE})
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT)
    try:
        os.pwrite(descriptor, BLOCK, 0)
        os.fsync(descriptor)
        began, count = time.perf_counter(), 0
        while (elapsed := time.perf_counter() - began) < SECONDS:
            os.pwrite(descriptor, BLOCK, 0)
            os.fdatasync(descriptor)
            count += 1
        return count / elapsed
    finally:
        os.close(descriptor)
        os.sched_setaffinity(0, {GENERATOR_CORE})
