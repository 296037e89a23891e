"""BatchCache: the body of a push, rendered once for all listeners at the same cursor."""

from __future__ import annotations

from dataclasses import dataclass, replace

from app.engine.list_view import ListView
from app.watch.change_feed import ChangeFeed
from blocklist.wire.json import Json, dump_json
from blocklist.wire.pushes import changes_batch, snapshot_batch


@dataclass(frozen=True, kw_only=True, slots=True)
class Batch:
    """`body` is the JSON after the listener's own fields, to the closing brace; `empty` is a push without changes."""

    from_revision: int
    to_revision: int
    empty: bool
    body: bytes


class BatchCache:
    """Keeps the last batch of changes and the last snapshot. Belongs to the event loop."""

    def __init__(self, feed: ChangeFeed, view: ListView) -> None:
        self._feed = feed
        self._view = view
        self._changes_cache: tuple[tuple[int, int], Batch] | None = None
        self._snapshot_cache: tuple[int, Batch] | None = None

    async def get(self, acked: int | None, until: int) -> Batch:
        """All changes after `acked` up to `until`; the whole list if `acked` is None or no longer in the log.

        Raises UnavailableError if the changes are only in the database, and that is unavailable.
        """
        if acked is None:
            return self._snapshot(0)
        if self._changes_cache is not None and self._changes_cache[0] == (acked, until):
            return self._changes_cache[1]
        if acked >= until:
            return _batch(acked, _no_changes(acked), empty=True)
        changes = await self._feed.changes(acked, until)
        if changes is None:
            return self._snapshot(acked)
        batch = _batch(acked, changes_batch(changes), empty=False)
        self._changes_cache = ((acked, until), batch)
        return batch

    def _snapshot(self, from_revision: int) -> Batch:
        if self._snapshot_cache is not None:
            valid_until, batch = self._snapshot_cache
            if batch.to_revision == self._feed.revision and self._view.clock() < valid_until:
                return _from_revision(batch, from_revision)
        valid_until, snapshot = self._view.snapshot()
        nodes = [snapshot.nodes[node_id] for node_id in sorted(snapshot.nodes)]
        batch = _batch(from_revision, snapshot_batch(snapshot.revision, nodes), empty=False)
        self._snapshot_cache = (valid_until, batch)
        return batch


def _no_changes(revision: int) -> Json:
    return {"toRevision": revision, "snapshot": False, "blocked": [], "unblocked": []}


def _batch(from_revision: int, fields: Json, *, empty: bool) -> Batch:
    body = dump_json({"fromRevision": from_revision, **fields})[1:]
    return Batch(from_revision=from_revision, to_revision=fields["toRevision"], empty=empty, body=body)


def _from_revision(batch: Batch, revision: int) -> Batch:
    """The same batch for a listener with another cursor."""
    if batch.from_revision == revision:
        return batch
    rest = batch.body[batch.body.index(b",") :]
    return replace(batch, from_revision=revision, body=b'"fromRevision":%d%b' % (revision, rest))
