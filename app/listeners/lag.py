"""How far behind a listener is, in time."""

from __future__ import annotations

from app.listeners.member import Member
from app.watch.change_feed import ChangeFeed


def lag_of(member: Member, feed: ChangeFeed, now: int) -> int:
    """Milliseconds since there has been something that the listener has yet to apply."""
    listener = member.listener
    if not listener.behind(feed.revision):
        return 0
    happened = None if listener.acked is None else feed.happened(listener.acked + 1)
    return max(0, now - (listener.since if happened is None else happened))
