"""A long report does not stop others: it is applied in the turns of the event loop."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from app.listeners.reports import NODES_PER_TURN, InventoryUpdater
from blocklist.model.inventory import Inventory
from blocklist.model.reported_node import NodeSource, SourceKind

YARN = NodeSource(SourceKind.MANAGER, "yarn")
NAMES = [f"n{number}" for number in range(3 * NODES_PER_TURN)]


async def lengths_in_each_turn(inventory: Inventory, updater: InventoryUpdater, expected: int) -> list[int]:
    """The number of nodes as another task sees it in each turn, until it is as expected."""
    running, seen = asyncio.create_task(updater.run()), [len(inventory)]
    while seen[-1] != expected:
        await asyncio.sleep(0)
        seen.append(len(inventory))
    running.cancel()
    with suppress(asyncio.CancelledError):
        await running
    return seen


def test_others_run_while_a_long_report_is_applied() -> None:
    async def run() -> tuple[list[int], list[int]]:
        inventory = Inventory()
        updater = InventoryUpdater(inventory, len)
        updater.set_nodes(YARN, NAMES)
        growing = await lengths_in_each_turn(inventory, updater, len(NAMES))
        updater.remove_source(YARN)
        return growing, await lengths_in_each_turn(inventory, updater, 0)

    growing, shrinking = asyncio.run(run())
    assert set(growing) == {NODES_PER_TURN, 2 * NODES_PER_TURN, 3 * NODES_PER_TURN}
    assert set(shrinking) == {2 * NODES_PER_TURN, NODES_PER_TURN, 0}
