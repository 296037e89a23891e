"""BatchCache: the body of a push, rendered once for all listeners at the same cursor."""

from __future__ import annotations

from dataclasses import dataclass, replace

from app.engine.list_view import ListView
from app.watch.change_feed import ChangeFeed
from blocklist.wire.json import Json, dump_json
from blocklist.wire.pushes import changes_batch, empty_batch, snapshot_batch


@dataclass(frozen=True, kw_only=True, slots=True)
class Batch:
    """`body` is the JSON after the listener's own fields, to the closing brace; `empty` is a push without changes.

    Its revisions belong to `history`.
    """

    from_revision: int
    to_revision: int
    history: str
    empty: bool
    body: bytes


class BatchCache:
    """Keeps the last batch of changes and the last snapshot. Belongs to the event loop."""

    def __init__(self, feed: ChangeFeed, view: ListView) -> None:
        self._feed = feed
        self._view = view
        self._changes_cache: tuple[tuple[str, int, int], Batch] | None = None
        self._snapshot_cache: tuple[int, Batch] | None = None

    async def get(self, acked: int | None, until: int) -> Batch:
        """All changes after `acked` up to `until`; the whole list if `acked` is None or no longer in the log.

        Raises UnavailableError if the changes are only in the database, and that is unavailable.
        """
        if acked is None:
            return self._snapshot(0)
        history = self._feed.history
        if self._changes_cache is not None and self._changes_cache[0] == (history, acked, until):
            return self._changes_cache[1]
        if acked >= until:
            return _batch(acked, empty_batch(acked, history), empty=True)
        changes = await self._feed.changes(acked, until)
        if changes is None or history != self._feed.history:
            return self._snapshot(acked)
        batch = _batch(acked, changes_batch(changes, history), empty=False)
        self._changes_cache = ((history, acked, until), batch)
        return batch

    def _snapshot(self, from_revision: int) -> Batch:
        if self._snapshot_cache is not None:
            valid_until, batch = self._snapshot_cache
            current = (batch.history, batch.to_revision) == (self._feed.history, self._feed.revision)
            if current and self._view.clock() < valid_until:
                return _from_revision(batch, from_revision)
        valid_until, snapshot = self._view.snapshot()
        batch = _batch(from_revision, snapshot_batch(snapshot), empty=False)
        self._snapshot_cache = (valid_until, batch)
        return batch


def _batch(from_revision: int, fields: Json, *, empty: bool) -> Batch:
    # `fromRevision` is first: `_from_revision` replaces it.
    body = dump_json({"fromRevision": from_revision, **fields})[1:]
    return Batch(
        from_revision=from_revision,
        to_revision=fields["toRevision"],
        history=fields["history"],
        empty=empty,
        body=body,
    )


def _from_revision(batch: Batch, revision: int) -> Batch:
    """The same batch for a listener with another cursor."""
    if batch.from_revision == revision:
        return batch
    rest = batch.body[batch.body.index(b",") :]
    return replace(batch, from_revision=revision, body=b'"fromRevision":%d%b' % (revision, rest))
