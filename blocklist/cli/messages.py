"""What became of a change, in sentences."""

from __future__ import annotations

from typing import TYPE_CHECKING

from blocklist.cli.times import until
from blocklist.model.node import BlockAction, BlockedNode

if TYPE_CHECKING:
    from blocklist.client.response import Applied


def blocked(node: BlockedNode, at: int, *, how: str = "blocked", merged: bool = False) -> str:
    """`worker-17 blocked until 2026-11-21 18:00:00 UTC (in 4h)`, and what else there is to say."""
    more = ", evacuating its tasks" if node.action is BlockAction.MARK_BLOCKED_AND_EVACUATE_TASKS else ""
    joined = f", merged: {node.cause}" if merged else ""
    return f"{node.id} {how} {until(node.end, at)}{more}{joined}"


def free(node_id: str) -> str:
    return f"{node_id} not blocked"


def applied(by: Applied) -> str:
    """Who has applied a change."""
    if not by.of:
        return "Nobody listens."
    if by.done == by.of:
        return f"Applied by {_listeners(by.of)}."
    return f"Applied by {by.done} of {_listeners(by.of)}, not yet by {', '.join(by.missing)}."


def _listeners(count: int) -> str:
    return "1 listener" if count == 1 else f"{count} listeners"
