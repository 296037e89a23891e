"""A block as one listener has it."""

from __future__ import annotations

from app.components import Components
from app.listeners.entry import ListenerEntry
from app.page.host_rows import BlockAtListener
from blocklist.model.node import BlockedNode


def block_at(components: Components, entry: ListenerEntry, block: BlockedNode) -> BlockAtListener:
    """Whether the listener has applied the last change of a block, or refuses the block."""
    revision = components.engine.last_changes.revision_of(block.id, components.engine.view.tracker.revision)
    return BlockAtListener(block, entry.has_confirmed(revision), entry.refusal_of(block.id))
