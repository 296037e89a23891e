"""ListView: the list in memory as the bytes that GET /blocklist sends, rendered once for each state of the list."""

from __future__ import annotations

import gzip
import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property, lru_cache
from http import HTTPStatus
from typing import Final

from app.engine.broadcast import Broadcast
from app.engine.task_managers import TaskManagers
from blocklist.model.changes import Change, Snapshot
from blocklist.model.node import PERMANENT, BlockedNode
from blocklist.model.tracker import BlocklistTracker
from blocklist.wire.nodes import Json, dump_list_entry, dump_node, node_body

Headers = list[tuple[bytes, bytes]]
MIN_GZIP: Final = 1024
"""Bytes below which a body is not worth compressing."""


class CachedList:
    """GET /blocklist's answers for one state of the list: identity, gzip and 304, each with its headers."""

    def __init__(self, body: bytes, *, revision: int, history: str, valid_until: int) -> None:
        self.body = body
        self.valid_until = valid_until
        tag = hashlib.sha256(body).hexdigest()[:24].encode()
        self.etags = (b'"%b"' % tag, b'"%b-gzip"' % tag)
        self._revision_headers = [
            (b"cache-control", b"no-cache"),
            (b"vary", b"Accept-Encoding"),
            (b"blocklist-revision", b"%d" % revision),
            (b"blocklist-history", history.encode()),
        ]

    def response_for(self, if_none_match: bytes | None, accept_encoding: bytes | None) -> CachedResponse:
        """The answer to a plain GET with these two request headers (None where absent)."""
        zipped = accepts_gzip(accept_encoding) and len(self.body) >= MIN_GZIP
        if if_none_match is not None and self.matches(if_none_match):
            return self._unchanged_gzip if zipped else self._unchanged
        return self._gzipped if zipped else self._plain

    def matches(self, if_none_match: bytes) -> bool:
        """Whether If-None-Match names this state, in either encoding (RFC 9110, weak comparison)."""
        if if_none_match in self.etags:
            return True
        tags = [tag.strip().removeprefix(b"W/") for tag in if_none_match.split(b",")]
        return b"*" in tags or any(tag in self.etags for tag in tags)

    @cached_property
    def _plain(self) -> CachedResponse:
        return CachedResponse(
            HTTPStatus.OK, _entity_headers(self.body), [(b"etag", self.etags[0]), *self._revision_headers], self.body
        )

    @cached_property
    def _gzipped(self) -> CachedResponse:
        # Level 1 is a third of level 6's time for a tenth more bytes; no time stamp, so that replicas send the same.
        body = gzip.compress(self.body, compresslevel=1, mtime=0)
        entity = [*_entity_headers(body), (b"content-encoding", b"gzip")]
        return CachedResponse(HTTPStatus.OK, entity, [(b"etag", self.etags[1]), *self._revision_headers], body)

    @cached_property
    def _unchanged(self) -> CachedResponse:
        return CachedResponse(HTTPStatus.NOT_MODIFIED, [], [(b"etag", self.etags[0]), *self._revision_headers], b"")

    @cached_property
    def _unchanged_gzip(self) -> CachedResponse:
        return CachedResponse(HTTPStatus.NOT_MODIFIED, [], [(b"etag", self.etags[1]), *self._revision_headers], b"")


class CachedResponse:
    """A ready answer: for ASGI as status, headers and body, for a connection in one piece."""

    def __init__(self, status: HTTPStatus, entity_headers: Headers, revision_headers: Headers, body: bytes) -> None:
        self.status = status
        self.headers = [*entity_headers, *revision_headers]
        self.body = body
        self._serialized = (b"", b"")

    def serialized(self, head: bytes) -> bytes:
        """The answer with its status line and `head`, the server's own header lines; the last one is kept."""
        if self._serialized[0] is not head:
            line = b"HTTP/1.1 %d %b\r\n" % (self.status, self.status.phrase.encode())
            lines = b"".join(b"%b: %b\r\n" % header for header in self.headers)
            self._serialized = (head, b"".join((line, head, lines, b"\r\n", self.body)))
        return self._serialized[1]


class ListView:
    """The list as of the tracker, which the handler moves on; belongs to the event loop.

    Each node is rendered once, when it changes; a body joins them when somebody reads. Ended nodes are left out from
    the moment of their end, whether or not their `expired` change exists yet: a rendering is valid until the earliest
    end in it. `age()` says for how many seconds the database has been away, None while it is there.
    """

    def __init__(self, tracker: BlocklistTracker, clock: Callable[[], int], age: Callable[[], int | None]) -> None:
        self.tracker = tracker
        self.task_managers = TaskManagers()
        self.clock = clock
        self.age = age
        self.changed = Broadcast()
        self.closed = False
        self.fast_reads = 0
        self.route_reads = 0
        self._cached: CachedList | None = None
        self._fragments: dict[str, bytes] = {}
        self._stale = {node.id for node in tracker}

    def apply(self, changes: Sequence[Change]) -> None:
        """The tracker has moved on by these changes."""
        self._stale.update(change.node.id for change in changes)
        self._cached = None
        self.changed.notify_all()

    def reset(self) -> None:
        """The tracker has begun anew."""
        self._stale = {*self._fragments, *(node.id for node in self.tracker)}
        self._cached = None
        self.changed.notify_all()

    def task_managers_moved(self, nodes: Iterable[str]) -> None:
        """TaskManagers came to these nodes, or left them."""
        shown = {node_id for node_id in nodes if self.tracker.get(node_id) is not None}
        if shown:
            self._stale |= shown
            self._cached = None
            self.changed.notify_all()

    def node_body(self, node: BlockedNode) -> Json:
        """A node as an answer shows it, with the TaskManagers that are on it."""
        return node_body(node, self.task_managers.on_node(node.id))

    def node_json(self, node: BlockedNode) -> bytes:
        """The same as JSON."""
        return dump_node(node, self.task_managers.on_node(node.id))

    def list_unless_stale(self) -> CachedList | None:
        """The rendering that is valid at this moment; None if it needs an Age.

        It is made here and now if need be: a change would else send all who ask at that moment to the route.
        """
        return None if self.age() is not None else self.current_list()

    def _valid_cached(self) -> CachedList | None:
        rendering = self._cached
        return rendering if rendering is not None and self.clock() < rendering.valid_until else None

    def current_list(self) -> CachedList:
        """The rendering that is valid at this moment."""
        self._cached = self._valid_cached() or self._render(self.clock())
        return self._cached

    def get(self, node_id: str) -> BlockedNode | None:
        """The node if it is blocked at this moment."""
        node = self.tracker.get(node_id)
        return None if node is None or node.ended(self.clock()) else node

    def snapshot(self) -> tuple[int, Snapshot]:
        """The whole list, and the moment until which it is valid while nothing changes."""
        nodes = self.tracker.blocked(self.clock())
        snapshot = Snapshot(revision=self.tracker.revision, history=self.tracker.history, nodes=nodes)
        return _earliest_end(nodes), snapshot

    async def wait_for_revision(self, revision: int, seconds: float) -> bool:
        """Wait until the list is at `revision` or later, at most so long, or until the service stops; whether it is."""
        await self.changed.wait_for(lambda: self.tracker.revision >= revision or self.closed, seconds)
        return self.tracker.revision >= revision

    @property
    def is_current(self) -> bool:
        """Whether it follows the database at this moment."""
        return not self.closed and self.age() is None

    def close(self) -> None:
        """The service stops: nobody waits for anything any more."""
        self.closed = True
        self.changed.notify_all()

    def fragments(self) -> tuple[int, list[tuple[str, bytes]]]:
        """The nodes blocked at this moment by id, each rendered as in the list; and until when, as in `snapshot`."""
        self._refresh()
        visible = self.tracker.blocked(self.clock())
        return _earliest_end(visible), [(node_id, self._fragments[node_id]) for node_id in sorted(visible)]

    def _render(self, now: int) -> CachedList:
        self._refresh()
        visible = self.tracker.blocked(now)
        fragments = self._fragments
        body = _json_object([fragments[node_id] for node_id in sorted(visible)])
        until = self.tracker.next_end()
        if until <= now:
            until = _earliest_end(visible)
        return CachedList(body, revision=self.tracker.revision, history=self.tracker.history, valid_until=until)

    def _refresh(self) -> None:
        for node_id in self._stale:
            node = self.tracker.get(node_id)
            if node is None:
                self._fragments.pop(node_id, None)
            else:
                self._fragments[node_id] = dump_list_entry(node, self.task_managers.on_node(node_id))
        self._stale.clear()


def _json_object(members: list[bytes]) -> bytes:
    """A JSON object, in one copy of its members: a long list takes longer to copy than to do all else."""
    if not members:
        return b"{}"
    members[0] = b"{" + members[0]
    members[-1] += b"}"
    return b",".join(members)


def _earliest_end(nodes: Mapping[str, BlockedNode]) -> int:
    return min((node.end for node in nodes.values()), default=PERMANENT)


def _entity_headers(body: bytes) -> Headers:
    return [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]


@lru_cache(maxsize=64)
def accepts_gzip(accept_encoding: bytes | None) -> bool:
    """Whether an Accept-Encoding header asks for gzip (RFC 9110; a weight of zero refuses it)."""
    for item in (accept_encoding or b"").lower().split(b","):
        name, _, weight = item.partition(b";")
        if name.strip() in (b"gzip", b"x-gzip"):
            return weight.replace(b" ", b"") not in (b"q=0", b"q=0.0", b"q=0.00", b"q=0.000")
    return False
