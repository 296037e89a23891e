"""Flink is notified of blocked nodes with leases. Pure.

Flink forgets a block only at its end, and of two ends the later one counts. So Flink receives each block with a lease,
which is renewed while the node is on the list; a node is freed by not renewing it.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from blocklist.model.names import normalize_address
from blocklist.model.node import BlockedNode

MAX_LEASE: Final = 30_000
"""Milliseconds for which a node is blocked in Flink: without the bridge it is free after them."""
MIN_LEASE: Final = 10_000
"""Milliseconds: renewals come late when the machine is busy, and the service knows leases of whole seconds."""
_MAX_CAUSE: Final = 200


def listener_lease(lease: int) -> int:
    """The lease of the bridge's listeners at the service, for that of the nodes in Flink; both in milliseconds.

    An acknowledgement must not outlive what it states. When a round begins, five sixths of each lease in Flink are left
    at least. What was observed in it is reported for a quarter of a lease (`report_validity`); a heartbeat may arrive
    late by the listener's lease, and then renews it once more. A quarter and twice 7/24 are these five sixths.
    """
    return lease * 7 // 24


def report_validity(lease: int) -> float:
    """Seconds from the begin of a round, for which what was observed in it may be reported. See `listener_lease`."""
    return lease / 4000


class NodeLease(NamedTuple):
    """A block as Flink receives it: its end is in Unix milliseconds."""

    node: str
    cause: str
    end: int


class Clocks(NamedTuple):
    """By how many milliseconds the clocks of the service and of the JobManager are ahead of this machine's."""

    service: int = 0
    leader: int = 0


def node_leases(
    blocked: Mapping[str, BlockedNode],
    matches: Mapping[str, Collection[str]],
    now: int,
    lease: int = MAX_LEASE,
    clocks: Clocks = Clocks(),  # noqa: B008 - it is a constant
) -> list[NodeLease]:
    """Each blocked node under its id on the list, and under the ids that Flink uses for it.

    `now` is in Unix milliseconds, `lease` in milliseconds. The ends of blocks are by the service's clock, those of the
    leases by the JobManager's. Flink receives the id on the list even if no TaskManager has
    it yet: one that registers later is blocked at once.
    """
    found: dict[str, NodeLease] = {}
    for node_id, node in blocked.items():
        end = min(node.end - clocks.service, now + lease) + clocks.leader
        for name in {it for known in (node_id, *matches.get(node_id, ())) for it in _spellings(known)}:
            before = found.get(name)
            if before is None or before.end < end:
                found[name] = NodeLease(name, node.cause[:_MAX_CAUSE], end)
    return list(found.values())


def _spellings(name: str) -> set[str]:
    """How Flink may write a name: in lower case, and an IPv6 address in brackets."""
    address = normalize_address(name)
    if address is None:
        return {name, name.lower()}
    return {name, f"[{address}]"} if ":" in address else {name, address}


def is_due(blocks: Iterable[NodeLease], notified: Mapping[str, int], now: int, lease: int = MAX_LEASE) -> bool:
    """Whether Flink must be notified: a node is new to it, or its lease can be longer and a sixth of it has passed.

    `notified` maps the nodes to the ends that Flink was notified, in Unix milliseconds.
    """
    threshold = now + lease - lease // 6
    return any((end := notified.get(block.node, 0)) < block.end and end < threshold for block in blocks)


# Blocked nodes as Java serializes them. Pure.
#
# To make thousands of objects in the JVM, one by one, takes seconds, in which no lease is renewed: so they pass as
# one array of bytes. See the Java Object Serialization Specification, chapter 6.

_CLASS: Final = "org.apache.flink.runtime.blocklist.BlockedNode"
_HEADER: Final = b"\xac\xed\x00\x05"
_OBJECT, _CLASS_DESC, _REFERENCE, _STRING = b"\x73", b"\x72", b"\x71", b"\x74"
_END, _NULL, _BLOCK = b"\x78", b"\x70", b"\x77"
_ARRAY_LIST_VERSION: Final = 0x7881D21D99C7619D
_BLOCKED_NODE_HANDLE: Final = 0x7E0002
"""The third thing in the stream that can be referred to, after the class of the list and the list."""


def serialize_nodes(blocks: Sequence[NodeLease]) -> bytes:
    """An ArrayList of Flink's BlockedNode."""
    size = struct.pack(">i", len(blocks))
    fields = b"\x03\x00\x01I" + _text("size")
    parts = [_HEADER, _OBJECT, _class("java.util.ArrayList", _ARRAY_LIST_VERSION, fields), size, _BLOCK, b"\x04", size]
    described = False
    for block in blocks:
        kind = _REFERENCE + struct.pack(">i", _BLOCKED_NODE_HANDLE) if described else _blocked_node_class()
        end = struct.pack(">q", block.end)
        parts += [_OBJECT, kind, end, _STRING, _text(block.cause), _STRING, _text(block.node)]
        described = True
    return b"".join([*parts, _END])


def _blocked_node_class() -> bytes:
    string = _STRING + _text("Ljava/lang/String;")
    # Primitive fields come first, each kind in the order of names.
    fields = b"\x02\x00\x03J" + _text("endTimestamp") + b"L" + _text("cause") + string + b"L" + _text("nodeId") + string
    return _class(_CLASS, 1, fields)


def _class(name: str, version: int, fields: bytes) -> bytes:
    return _CLASS_DESC + _text(name) + struct.pack(">q", version) + fields + _END + _NULL


def _text(text: str) -> bytes:
    """Modified UTF-8: pairs of surrogates one by one, and two bytes for NUL."""
    if not text.isascii() or "\0" in text:
        units = text.encode("utf-16-be", "surrogatepass")
        chars = (chr(unit) for (unit,) in struct.iter_unpack(">H", units))
        encoded = b"".join(it.encode("utf-8", "surrogatepass") if it != "\0" else b"\xc0\x80" for it in chars)
    else:
        encoded = text.encode("ascii")
    return struct.pack(">H", len(encoded)) + encoded


# By how much the JobManager's clock is ahead of this machine's. Pure.
#
# Flink ends a block by the JobManager's clock: if that is ahead, a lease is shorter than it was meant to be, and a
# node may be free in Flink while the service shows its block as applied. The JobManager notes when it received each
# TaskManager's last heartbeat: its clock shows at least that time.

MIN_AHEAD: Final = 500
"""Milliseconds; less is no difference that matters, and each would notify Flink again."""
WARN_AHEAD: Final = 5_000
"""Milliseconds from which the operator should know."""
WINDOW: Final = 60.0
"""Seconds for which an observation counts: a clock may be set, and TaskManagers send a heartbeat every 10 s."""


class LeaderClock:
    """Memory: the observations of one window, and of these only those that no later one exceeds."""

    def __init__(self) -> None:
        self._observed: deque[tuple[float, int]] = deque()

    def observe(self, heartbeats: Iterable[int], now: int, monotonic: float) -> None:
        """`heartbeats` are in Unix milliseconds of the JobManager's clock, `now` in those of this machine's, read
        afterwards.
        """
        while self._observed and self._observed[0][0] < monotonic - WINDOW:
            self._observed.popleft()
        ahead = max(heartbeats, default=0) - now
        while self._observed and self._observed[-1][1] <= ahead:
            self._observed.pop()
        self._observed.append((monotonic, ahead))

    def ahead(self) -> int:
        """Milliseconds, at most by a round too few; 0 while the clock is not known to be ahead."""
        found = self._observed[0][1] if self._observed else 0
        return found if found >= MIN_AHEAD else 0
