"""Several replicas on one PostgreSQL database, each in its own process."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import httpx

from tests.integration.process import ServiceProcess, wait_until

QUICK_LEASE: Final = {
    "app.listeners.replication.LEASE_SECONDS": 2.0,
    "app.listeners.replication.MARGIN_SECONDS": 0.5,
    "app.listeners.replication.RENEW_SECONDS": 0.4,
}
"""Constants of replicas: until its lease ends, others take one that was killed for a live one."""


@dataclass(frozen=True)
class Replicas:
    """The replicas, and a client for each."""

    processes: Sequence[ServiceProcess]
    clients: Sequence[httpx.Client]


@contextmanager
def running_replicas(folder: Path, count: int, **settings: Any) -> Iterator[Replicas]:
    """Start `count` replicas with the same settings, including the database."""
    with ExitStack() as stack:
        processes = []
        for place in range(count):
            own = folder / f"replica-{place}"
            own.mkdir()
            processes.append(stack.enter_context(ServiceProcess(own, **settings)))
        yield Replicas(processes, [stack.enter_context(process.client()) for process in processes])


def comparable_response(client: httpx.Client, path: str = "/blocklist") -> tuple[int, dict[str, str], bytes]:
    """A response without the headers that differ between requests."""
    answer = client.get(path, headers={"Accept-Encoding": "identity"})
    own = ("date", "x-request-id")
    return (
        answer.status_code,
        {name: value for name, value in answer.headers.items() if name not in own},
        answer.content,
    )


def wait_until_equal(clients: Sequence[httpx.Client], path: str = "/blocklist") -> Any:
    """Wait until all replicas give the same response; return it."""
    answers: list[tuple[int, dict[str, str], bytes]] = []

    def same() -> bool:
        answers[:] = [comparable_response(client, path) for client in clients]
        return all(answer == answers[0] for answer in answers)

    wait_until(same)
    return answers[0]
