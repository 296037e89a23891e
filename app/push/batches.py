"""Batches: what a push says, rendered once for all listeners that stand at the same cursor."""

from __future__ import annotations

from dataclasses import dataclass

from app.engine.list_view import ListView
from app.watch.change_feed import ChangeFeed
from blocklist.wire.listeners import batch_of_changes, batch_of_list
from blocklist.wire.nodes import Json, dump_json


@dataclass(frozen=True, kw_only=True, slots=True)
class Batch:
    """From the cursor `since` to `until`. `body` are the fields behind the listener's own, to the closing brace."""

    since: int
    until: int
    empty: bool
    body: bytes


class Batches:
    """Belongs to the event loop."""

    def __init__(self, feed: ChangeFeed, view: ListView) -> None:
        self._feed = feed
        self._view = view
        self._memo: tuple[tuple[int, int], Batch] | None = None
        self._list: tuple[int, Batch] | None = None

    async def get(self, acked: int | None, until: int) -> Batch:
        """Everything after `acked` up to `until`; the whole list if that is None, or no longer in the log.

        Raises UnavailableError while the database is needed and away.
        """
        if acked is None:
            return self._whole(0)
        if self._memo is not None and self._memo[0] == (acked, until):
            return self._memo[1]
        if acked >= until:
            return _batch(acked, batch_of_nothing(acked), empty=True)
        changes = await self._feed.changes(acked, until)
        if changes is None:
            return self._whole(acked)
        batch = _batch(acked, batch_of_changes(changes), empty=False)
        self._memo = ((acked, until), batch)
        return batch

    def _whole(self, since: int) -> Batch:
        if self._list is None or self._list[1].until != self._feed.revision or self._list[0] <= self._view.clock():
            valid_until, snapshot = self._view.snapshot()
            nodes = [snapshot.nodes[node_id] for node_id in sorted(snapshot.nodes)]
            self._list = (valid_until, _batch(since, batch_of_list(snapshot.revision, nodes), empty=False))
        batch = self._list[1]
        return batch if batch.since == since else _batch_from(batch, since)


def batch_of_nothing(revision: int) -> Json:
    """A heartbeat: the same with both lists empty."""
    return {"toRevision": revision, "snapshot": False, "blocked": [], "unblocked": []}


def _batch(since: int, fields: Json, *, empty: bool) -> Batch:
    body = dump_json({"fromRevision": since, **fields})[1:]
    return Batch(since=since, until=fields["toRevision"], empty=empty, body=body)


def _batch_from(batch: Batch, since: int) -> Batch:
    rest = batch.body[batch.body.index(b",") :]
    return Batch(since=since, until=batch.until, empty=batch.empty, body=b'"fromRevision":%d%b' % (since, rest))
