"""How far behind a listener is, in time."""

from __future__ import annotations

from app.listeners.entry import ListenerEntry
from app.watch.change_feed import ChangeFeed


def lag_of(entry: ListenerEntry, feed: ChangeFeed, now: int) -> int:
    """Milliseconds since there has been something that the listener has yet to apply."""
    listener = entry.listener
    if not listener.is_behind(feed.revision):
        return 0
    happened = None if listener.acked is None else feed.timestamp_of(listener.acked + 1)
    return max(0, now - (listener.registered_at if happened is None else happened))
