"""Clients that change the list continuously during faults, and a check of their acknowledged changes."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Final

import httpx

from tests.integration.bodies import block, revision_of
from tests.integration.process import ServiceProcess, wait_until

_RETRY_SECONDS: Final = 0.05
"""Pause after a change that failed."""


@dataclass
class Writer:
    """Blocks nodes, unblocks every third, and records acknowledged changes by revision."""

    name: str
    acknowledged: dict[int, tuple[str, str]] = field(default_factory=dict)

    def run(self, service: ServiceProcess, stop: threading.Event) -> None:
        """Run until `stop` is set; failed changes are not retried."""
        number = 0
        with service.client() as client:
            while not stop.is_set():
                number += 1
                node_id = f"{self.name}-{number}"
                if self._request(client, "PUT", node_id, "blocked", stop) and number % 3 == 0:
                    self._request(client, "DELETE", node_id, "unblocked", stop)

    def _request(self, client: httpx.Client, method: str, node_id: str, kind: str, stop: threading.Event) -> bool:
        with suppress(httpx.TransportError):
            answer = client.request(method, f"/blocklist/nodes/{node_id}", json=block() if method == "PUT" else None)
            if answer.is_success:
                revision = revision_of(answer)
                assert revision not in self.acknowledged
                self.acknowledged[revision] = (kind, node_id)
                return True
            assert answer.status_code == 503, answer.text
            assert int(answer.headers["retry-after"]) >= 0
        stop.wait(_RETRY_SECONDS)
        return False


@dataclass(frozen=True)
class Writers:
    """Several writers."""

    writers: Sequence[Writer]

    @property
    def acknowledged(self) -> dict[int, tuple[str, str]]:
        """Revision -> (type of the change, node id)."""
        return {revision: made for writer in self.writers for revision, made in dict(writer.acknowledged).items()}

    def wait_for_more(self, number: int = 100) -> None:
        """Wait until `number` more changes are acknowledged."""
        goal = len(self.acknowledged) + number
        wait_until(lambda: len(self.acknowledged) >= goal)

    def assert_all_in_log(self, log: Sequence[Any]) -> None:
        """The log must have no gap, and every acknowledged change at its revision."""
        assert [change["revision"] for change in log] == list(range(1, len(log) + 1))
        logged = {change["revision"]: (change["type"], change["node"]["id"]) for change in log}
        lost = {revision: made for revision, made in self.acknowledged.items() if logged.get(revision) != made}
        assert lost == {}


@contextmanager
def writing(*services: ServiceProcess, number: int = 4) -> Iterator[Writers]:
    """Run `number` writers, distributed over the services; raise the exception of any that fails."""
    writers, stop = Writers([Writer(f"w{n}") for n in range(number)]), threading.Event()
    with ThreadPoolExecutor(number) as pool:
        working = [pool.submit(w.run, services[n % len(services)], stop) for n, w in enumerate(writers.writers)]
        try:
            yield writers
        finally:
            stop.set()
        for done in working:
            done.result(60)
