"""What an answer costs its server: CPU time is steadier than rates where the machine is shared."""

from collections.abc import Mapping
from typing import NamedTuple

from benchmarks.generator import wrk
from benchmarks.harness import Server
from benchmarks.sampling import cpu_seconds


class Cost(NamedTuple):
    """Of one sample: answers a second, and the server's CPU time for each in microseconds."""

    rate: float
    cpu: float


def cost(server: Server, path: str, headers: Mapping[str, str] | None = None) -> Cost:
    """The same GET from 64 connections."""
    before = cpu_seconds(server.pid)
    load = wrk(server.url + path, headers=headers)
    return Cost(rate=load.rate, cpu=(cpu_seconds(server.pid) - before) / load.answers * 1e6)
