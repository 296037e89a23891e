"""The history of a node as its page shows it: a page of changes, and the last days as a strip. Bounded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from app.page.block_strip import BlockStrip, block_strip
from app.service import Service
from blocklist.model.changes import Change
from blocklist.model.node import BlockedNode

PAGE_SIZE: Final = 50
"""Maximum number of changes on a page."""
MAX_CHANGES: Final = 200
"""Maximum number of changes of which the strip consists, however many there are in the log."""
STRIP_DAYS: Final = 30
_DAY: Final = 86_400_000


@dataclass(frozen=True, kw_only=True, slots=True)
class NodeHistory:
    """A page of changes, the newest first; `older` is where the next page begins, `last` the node's last change.

    `strip` is on the first page only.
    """

    changes: Sequence[Change]
    older: int | None
    last: Change | None
    strip: BlockStrip | None


async def node_history(service: Service, node_id: str, block: BlockedNode | None, before: int | None) -> NodeHistory:
    """The changes of a node under any of its names, before a revision. Raises UnavailableError."""
    store = service.store
    limit = (MAX_CHANGES if before is None else PAGE_SIZE) + 1
    changes = await store.latest_changes(limit, node_id=node_id, before=before)
    last = changes[0] if changes and before is None else await store.last_change(node_id)
    return NodeHistory(
        changes=changes[:PAGE_SIZE],
        older=changes[PAGE_SIZE - 1].revision if len(changes) > PAGE_SIZE else None,
        last=last,
        strip=await _strip(service, changes, block) if before is None else None,
    )


async def _strip(service: Service, changes: Sequence[Change], block: BlockedNode | None) -> BlockStrip | None:
    """The strip of a node with these changes, the newest first; None if it has none."""
    if not changes and block is None:
        return None
    now = service.clock()
    begin = now - STRIP_DAYS * _DAY
    current: Mapping[str, BlockedNode] = {} if block is None else {block.id: block}
    known_since = changes[-1].at if len(changes) > MAX_CHANGES else await _log_begin(service)
    return block_strip(reversed(changes), current, begin, known_since, now)


async def _log_begin(service: Service) -> int:
    """The time from which the change log is complete (Unix ms); 0 if nothing was removed from it."""
    page = await service.store.changes_page(0, 1)
    return page.changes[0].at if page.compacted and page.changes else 0
