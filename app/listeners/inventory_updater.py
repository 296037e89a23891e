"""InventoryUpdater: what sources report, applied to the inventory without stopping others."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Final

from blocklist.model.inventory import Inventory
from blocklist.model.reported_node import NodeSource, ReportedNode

NODES_PER_TURN: Final = 200
"""Number of reported nodes that are applied in one turn of the event loop: some ten milliseconds."""


class InventoryUpdater:
    """Applies a report of a few nodes at once, and the rest of a long one in the next turns of the event loop.

    `on_changed` is called with the names that may mean other machines now, in normal form. Belongs to the event loop.
    """

    def __init__(self, inventory: Inventory, on_changed: Callable[[set[str]], object]) -> None:
        self._inventory = inventory
        self._on_changed = on_changed
        self._staged = asyncio.Event()

    def set_nodes(self, source: NodeSource, nodes: Iterable[str | ReportedNode]) -> None:
        """Replace all nodes that a source reports."""
        self._inventory.stage_nodes(source, nodes)
        self._apply()

    def set_running(self, source: NodeSource, node_ids: Iterable[str]) -> None:
        """Replace the nodes on which a listener runs."""
        self._inventory.stage_running(source, node_ids)
        self._apply()

    def remove_source(self, source: NodeSource) -> bool:
        """Forget a source; whether it was known."""
        removed = self._inventory.stage_removal(source)
        self._apply()
        return removed

    def apply_all(self) -> None:
        """Apply what is left in one turn, before anybody is served."""
        self._on_changed(self._inventory.apply_staged())

    async def run(self) -> None:
        """Apply what is left; never returns."""
        while True:
            await self._staged.wait()
            self._apply()
            await asyncio.sleep(0)

    def _apply(self) -> None:
        self._on_changed(self._inventory.apply_staged(NODES_PER_TURN))
        (self._staged.set if self._inventory.has_staged else self._staged.clear)()
