"""What is long is done in several turns of the event loop, so that others are served in between."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any

import pytest

from app.api.request_body import MAX_NODE_BODY, parse_in_turns
from app.integrations.alertmanager.rules import AlertOutcome
from app.integrations.alertmanager.wire import ALERTS_PER_TURN, read_alerts


async def turns_of(work: Awaitable[Any]) -> tuple[Any, int]:
    """What the work returns, and how many turns of the event loop another task had meanwhile."""
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    counting = asyncio.create_task(count())
    result = await work
    counting.cancel()
    return result, turns


@pytest.mark.parametrize(("size", "turns"), [(MAX_NODE_BODY, 0), (MAX_NODE_BODY + 1, 1)])
def test_others_have_turns_between_the_steps_of_parsing_a_long_body(size: int, turns: int) -> None:
    length, others = asyncio.run(turns_of(parse_in_turns(b" " * size, len, str)))
    assert (length, others >= turns) == (str(size), True)


def test_many_alerts_are_read_in_several_turns() -> None:
    read, turns = asyncio.run(turns_of(read_alerts([None] * (3 * ALERTS_PER_TURN), "node")))
    assert read == [AlertOutcome.UNREADABLE] * (3 * ALERTS_PER_TURN)
    assert turns >= 2
