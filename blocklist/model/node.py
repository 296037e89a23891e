"""BlockedNode and its merge: what it means that a node is blocked. Pure; told the time.

Source: FLIP-224, "BlockedNode" and "Add". Where it is silent the decision is stated here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Final

from blocklist.model.errors import InvalidError

PERMANENT: Final = 2**63 - 1
"""The end of a block without end, in Unix milliseconds (Java's Long.MAX_VALUE)."""

MIN_TIMESTAMP: Final = -(2**63)
MAX_CAUSE_LENGTH: Final = 1024
"""Longest cause of one request, in characters; merging may make a longer one."""
MAX_CAUSES: Final = 32
"""A merged cause keeps at most so many parts."""

_NODE_ID = re.compile(r"[A-Za-z0-9._:-]{1,253}", re.ASCII)
# C0, DEL and C1 controls, and surrogates, which UTF-8 cannot carry.
_UNPRINTABLE = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff]")


class BlockAction(IntEnum):
    """What to do about tasks on the node; ordered, the second is stronger."""

    MARK_BLOCKED = 1
    MARK_BLOCKED_AND_EVACUATE_TASKS = 2

    @property
    def short_name(self) -> str:
        """It in one word, `mark` or `evacuate`."""
        return _SHORT_NAMES[self]


ACTION_BY_NAME: Final[Mapping[str, BlockAction]] = {
    "mark": BlockAction.MARK_BLOCKED,
    "evacuate": BlockAction.MARK_BLOCKED_AND_EVACUATE_TASKS,
}
"""By their words, as the command and the page say them, and the label `blocklist` of alerts."""
_SHORT_NAMES: Final = {action: word for word, action in ACTION_BY_NAME.items()}


@dataclass(unsafe_hash=True, kw_only=True, slots=True)
class BlockedNode:
    """A node on which no new task may start in the half-open interval [start, end), in Unix milliseconds.

    Raises InvalidError at birth for a bad id, an empty cause, control characters, or times out of 64 bits.
    """

    # Frozen by Final, that is by mypy: see Change.
    id: Final[str]
    action: Final[BlockAction]
    start: Final[int]
    end: Final[int]
    cause: Final[str]

    def __post_init__(self) -> None:
        check_node_id(self.id)
        check_text(self.cause)
        if not self.cause:
            raise InvalidError("The cause of a block must not be empty.")
        if not MIN_TIMESTAMP <= self.start <= PERMANENT or not MIN_TIMESTAMP <= self.end <= PERMANENT:
            raise InvalidError("Times are signed 64-bit Unix milliseconds.")

    @property
    def permanent(self) -> bool:
        return self.end == PERMANENT

    def ended(self, now: int) -> bool:
        """Whether the node is free again: from `now == end` on."""
        return now >= self.end


def merge(current: BlockedNode, new: BlockedNode) -> BlockedNode:
    """Join two blocks of one node, field by field (FLIP-224, Merge).

    The stronger action, the later end, the earlier start, the causes of both. Joining field by field, not record by
    record, so that a later but weaker block never cancels an evacuation. Idempotent; commutative but for the order
    of causes and their cap. Returns `present` itself when nothing changes.
    """
    if current.id != new.id:
        raise ValueError(f"cannot merge {new.id} into {current.id}")
    merged = replace(
        current,
        action=max(current.action, new.action),
        start=min(current.start, new.start),
        end=max(current.end, new.end),
        cause=merge_causes(current.cause, new.cause),
    )
    return current if merged == current else merged


def merge_causes(current: str, new: str) -> str:
    """Union of two comma-joined causes as an ordered set.

    The string is the whole state: a cause put back changes nothing, byte for byte. At most MAX_CAUSES parts of the
    new cause count, and at most so many of the union stay. Where old parts must give way, parts that the new cause
    names stay, or putting it twice would not be the same as once.
    """
    added = new.split(",")[-MAX_CAUSES:]
    existing = set(parts := current.split(","))
    if existing.issuperset(added):
        return current
    union = list(dict.fromkeys((*parts, *added)))
    excess = len(union) - MAX_CAUSES
    if excess > 0:
        named = set(added)
        dropped = set([part for part in union if part not in named][:excess])
        union = [part for part in union if part not in dropped]
    return ",".join(union)


def check_node_id(node_id: str) -> str:
    """Return `node_id`; raise InvalidError unless it is 1 to 253 of `A-Z a-z 0-9 . _ : -` and not a dot path."""
    if not is_node_id(node_id):
        raise InvalidError(
            f"{_quoted(node_id)} is not a node id: use 1 to 253 of A-Z a-z 0-9 . _ : - (a host name or an IP address)."
        )
    return node_id


def is_node_id(text: str) -> bool:
    """Whether it can be the id of a node."""
    return _NODE_ID.fullmatch(text) is not None and text not in {".", ".."}


def check_text(text: str) -> str:
    """Return `text`; raise InvalidError if it holds control characters or lone surrogates."""
    if _UNPRINTABLE.search(text):
        raise InvalidError("Control characters and lone surrogates are not allowed.")
    return text


def _quoted(text: str) -> str:
    shown = text if len(text) <= 64 else text[:64] + "…"
    return ascii(shown)
