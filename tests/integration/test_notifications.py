"""Notifications of other replicas: neither a callback that raises nor an unknown topic ends them."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from functools import partial

import pytest

from app.main import unix_millis
from app.store.postgresql import CHANNEL, Notifications, connect_async
from app.store.queries import Topic
from app.store.store import ClockOffset, OnRemoteChange

pytestmark = pytest.mark.databases("postgresql")


def fail() -> None:
    raise RuntimeError("a bug")


async def receiving(
    url: str, callbacks: dict[Topic, OnRemoteChange], payloads: list[str], until: asyncio.Event
) -> None:
    """Send these notifications while others are received, until the event is set."""
    connect = partial(connect_async, url)
    notifications = Notifications(
        connect, lambda error, _: pytest.fail(repr(error)), lambda: None, ClockOffset(unix_millis), "this", 10
    )
    listening = asyncio.create_task(notifications.listen(callbacks))
    sender = await connect()
    try:
        async with asyncio.timeout(30):
            while not until.is_set():
                for payload in payloads:
                    await sender.execute("SELECT pg_notify(%s, %s)", (CHANNEL, payload))
                await asyncio.sleep(0.05)
    finally:
        assert not listening.done()
        listening.cancel()
        with suppress(asyncio.CancelledError):
            await listening
        await sender.close()


def test_a_callback_that_raises_does_not_stop_the_others(database_url: str) -> None:
    async def scenario() -> None:
        tokens = asyncio.Event()
        callbacks = {Topic.CHANGES: fail, Topic.LISTENERS: fail, Topic.TOKENS: tokens.set}
        await receiving(database_url, callbacks, [], tokens)

    asyncio.run(scenario())


def test_a_topic_of_a_later_version_is_ignored(database_url: str) -> None:
    async def scenario() -> None:
        listeners = asyncio.Event()
        counted = 0

        def count() -> None:
            nonlocal counted
            counted += 1
            if counted > 2:  # the first is that of the first poll
                listeners.set()

        callbacks = {Topic.CHANGES: lambda: None, Topic.LISTENERS: count, Topic.TOKENS: lambda: None}
        await receiving(database_url, callbacks, ["weather another", "listeners another"], listeners)

    asyncio.run(scenario())
