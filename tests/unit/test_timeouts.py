"""The sweep of connections: one that cannot be timed out or reset does not keep the others open."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from app.http import connection
from app.http.connection import ConnectionLimits

pytestmark = pytest.mark.anyio


class Connection:
    """As much of a connection as the sweep uses; its transport has a response that is not read."""

    def __init__(self, *, failing: bool) -> None:
        self.loop = asyncio.get_running_loop()
        self.transport = self
        self.failing = failing
        self.timed_out = asyncio.Event()
        self.aborted = asyncio.Event()

    def on_timeout(self, _: object) -> None:
        if self.failing:
            raise RuntimeError("a bug")
        self.timed_out.set()

    def get_write_buffer_size(self) -> int:
        return 1

    def get_extra_info(self, _: str) -> Any:
        if self.failing:
            raise RuntimeError("a bug")
        return self

    def setsockopt(self, *_: object) -> None:
        """Nothing to set."""

    def abort(self) -> None:
        self.aborted.set()


async def test_a_connection_that_cannot_be_closed_does_not_keep_the_others_open(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("HEADER_SECONDS", "BODY_SECONDS", "SWEEP_SECONDS"):
        monkeypatch.setattr(connection, name, 0.001)

    limits = ConnectionLimits(max_connections=10)
    connections = [Connection(failing=True), Connection(failing=False)]
    for each in connections:
        limits.heads.add(each)  # type: ignore[arg-type]
    # A dict has the order in which it was filled, and may stand for a set.
    limits.connections = dict.fromkeys(connections).keys()
    sweep = asyncio.create_task(limits.run())
    async with asyncio.timeout(30):
        await connections[1].timed_out.wait()
        await connections[1].aborted.wait()
    assert not sweep.done()
    sweep.cancel()


async def test_a_response_that_is_read_slowly_is_not_reset_before_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HEADER_SECONDS", "SWEEP_SECONDS"):
        monkeypatch.setattr(connection, name, 0.001)

    limits = ConnectionLimits(max_connections=10)
    slow = Connection(failing=False)
    limits.connections = {slow}
    sweep = asyncio.create_task(limits.run())
    for _ in range(3):
        slow.timed_out.clear()
        limits.heads.add(slow)  # type: ignore[arg-type]
        await slow.timed_out.wait()
    assert not slow.aborted.is_set()
    sweep.cancel()
