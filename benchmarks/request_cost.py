"""CPU time per request, which varies less than rates on a shared machine."""

from collections.abc import Mapping
from typing import NamedTuple

from benchmarks.generator import wrk
from benchmarks.harness import Server
from benchmarks.sampling import cpu_seconds


class Cost(NamedTuple):
    """One sample: requests per second, and µs of the server's CPU time for each."""

    rate: float
    cpu: float


def cost(server: Server, path: str, headers: Mapping[str, str] | None = None) -> Cost:
    """Measure the same GET from 64 connections."""
    before = cpu_seconds(server.pid)
    load = wrk(server.url + path, headers=headers)
    return Cost(rate=load.rate, cpu=(cpu_seconds(server.pid) - before) / load.responses * 1e6)
