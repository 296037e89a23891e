"""A block as one listener has it."""

from __future__ import annotations

from app.listeners.state import ListenerEntry
from app.page.host_rows import BlockAtListener
from app.service import Service
from blocklist.model.node import BlockedNode


def block_at(service: Service, entry: ListenerEntry, block: BlockedNode) -> BlockAtListener:
    """Whether the listener has applied the last change of a block, or refuses the block."""
    revision = service.last_changes.revision_of(block.id, service.view.tracker.revision)
    return BlockAtListener(block, entry.has_confirmed(revision), entry.refusal_of(block.id))
