"""The real service of a roll-out, with simulated drivers: modes and blocks change in it, and it dies, all the time."""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import httpx

from benchmarks.estate_drivers import crowd
from tests.applications.conftest import EVACUATE, HOSTS, MARK
from tests.integration.process import ServiceProcess, migrated_service

DRIVERS: Final = 50
_PATTERNS: Final = ("app-20*", "app-20*", "app-1*", "app-3*", "app-4", "app-41")
"""The first one matches all applications of Spark, as their ids begin with a year; all match simulated drivers."""
_PAUSE: Final = 0.2  # seconds
_MODES_BETWEEN_RESTARTS: Final = 40


class RollOut:
    """Switches modes, blocks and frees hosts, and kills and restarts the service.

    `counted` are the changes that the service has acknowledged, and the restarts.
    """

    def __init__(self, service: ServiceProcess, seed: int) -> None:
        self.service = service
        self.counted: Counter[str] = Counter()
        self._chance = random.Random(seed)

    def run(self, ended: threading.Event) -> None:
        """Change something every few tenths of a second."""
        with self.service.client() as client:
            while not ended.wait(_PAUSE):
                self._switch_mode(client)
                self._change_host(client)
                if self.counted["mode switches"] % _MODES_BETWEEN_RESTARTS == 0:
                    self.service.kill()
                    self.service.start()
                    self.counted["restarts"] += 1

    def _switch_mode(self, client: httpx.Client) -> None:
        pattern, mode = self._chance.choice(_PATTERNS), self._chance.choice(["apply", "observe", "off"])
        client.put("/listeners/modes", json={"pattern": pattern, "mode": mode}).raise_for_status()
        self.counted["mode switches"] += 1

    def _change_host(self, client: httpx.Client) -> None:
        host, action = self._chance.choice(HOSTS), self._chance.choice([MARK, EVACUATE, None])
        if action:
            body = {"action": action.name, "cause": "roll-out", "allowMerge": True}
            client.put(f"/blocklist/nodes/{host}", json=body).raise_for_status()
        elif client.delete(f"/blocklist/nodes/{host}").status_code == 404:
            return
        self.counted["changes of hosts"] += 1


@contextmanager
def roll_out(folder: Path, seed: int) -> Iterator[RollOut]:
    """A service, DRIVERS simulated drivers that are registered at it, and the changes. No driver may be refused."""
    with migrated_service(folder) as service, crowd(DRIVERS, [service.port]) as drivers:
        drivers.wait_until(lambda: drivers.registered == drivers.waiting == DRIVERS, timeout=60)
        found, ended = RollOut(service, seed), threading.Event()
        thread = threading.Thread(target=found.run, args=(ended,))
        thread.start()
        try:
            yield found
            assert thread.is_alive(), "the service refused a change"
        finally:
            ended.set()
            thread.join()
        drivers.wait_until(lambda: drivers.registered == drivers.waiting == DRIVERS, timeout=60)
        assert not drivers.failed
