"""Batches: what a push says, rendered once for all listeners that stand at the same cursor."""

from __future__ import annotations

from dataclasses import dataclass

from app.engine.list_view import ListView
from app.watch.change_feed import ChangeFeed
from blocklist.wire.json import Json, dump_json
from blocklist.wire.listeners import changes_batch, snapshot_batch


@dataclass(frozen=True, kw_only=True, slots=True)
class Batch:
    """From the cursor `since` to `until`. `body` are the fields behind the listener's own, to the closing brace."""

    from_revision: int
    to_revision: int
    empty: bool
    body: bytes


class BatchCache:
    """Belongs to the event loop."""

    def __init__(self, feed: ChangeFeed, view: ListView) -> None:
        self._feed = feed
        self._view = view
        self._changes_cache: tuple[tuple[int, int], Batch] | None = None
        self._snapshot_cache: tuple[int, Batch] | None = None

    async def get(self, acked: int | None, until: int) -> Batch:
        """Everything after `acked` up to `until`; the whole list if that is None, or no longer in the log.

        Raises UnavailableError while the database is needed and away.
        """
        if acked is None:
            return self._snapshot(0)
        if self._changes_cache is not None and self._changes_cache[0] == (acked, until):
            return self._changes_cache[1]
        if acked >= until:
            return _batch(acked, batch_of_no_changes(acked), empty=True)
        changes = await self._feed.changes(acked, until)
        if changes is None:
            return self._snapshot(acked)
        batch = _batch(acked, changes_batch(changes), empty=False)
        self._changes_cache = ((acked, until), batch)
        return batch

    def _snapshot(self, since: int) -> Batch:
        if (
            self._snapshot_cache is None
            or self._snapshot_cache[1].to_revision != self._feed.revision
            or self._snapshot_cache[0] <= self._view.clock()
        ):
            valid_until, snapshot = self._view.snapshot()
            nodes = [snapshot.nodes[node_id] for node_id in sorted(snapshot.nodes)]
            self._snapshot_cache = (valid_until, _batch(since, snapshot_batch(snapshot.revision, nodes), empty=False))
        batch = self._snapshot_cache[1]
        return batch if batch.from_revision == since else _batch_from(batch, since)


def batch_of_no_changes(revision: int) -> Json:
    """A heartbeat: the same with both lists empty."""
    return {"toRevision": revision, "snapshot": False, "blocked": [], "unblocked": []}


def _batch(since: int, fields: Json, *, empty: bool) -> Batch:
    body = dump_json({"fromRevision": since, **fields})[1:]
    return Batch(from_revision=since, to_revision=fields["toRevision"], empty=empty, body=body)


def _batch_from(batch: Batch, since: int) -> Batch:
    rest = batch.body[batch.body.index(b",") :]
    return Batch(
        from_revision=since,
        to_revision=batch.to_revision,
        empty=batch.empty,
        body=b'"fromRevision":%d%b' % (since, rest),
    )
