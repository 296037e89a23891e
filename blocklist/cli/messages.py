"""What became of a change, in sentences."""

from __future__ import annotations

from typing import TYPE_CHECKING

from blocklist.cli.times import format_end
from blocklist.model.node import BlockAction, BlockedNode

if TYPE_CHECKING:
    from blocklist.client.response import AppliedCount


def block_message(node: BlockedNode, now: int, *, verb: str = "blocked", merged: bool = False) -> str:
    """`worker-17 blocked until 2026-11-21 18:00:00 UTC (in 4h)`, and what else there is to say."""
    more = ", evacuating its tasks" if node.action is BlockAction.MARK_BLOCKED_AND_EVACUATE_TASKS else ""
    joined = f", merged: {node.cause}" if merged else ""
    return f"{node.id} {verb} {format_end(node.end, now)}{more}{joined}"


def not_blocked_message(node_id: str) -> str:
    return f"{node_id} not blocked"


def applied_message(progress: AppliedCount) -> str:
    """Who has applied a change."""
    if not progress.total:
        return "Nobody listens."
    if progress.applied == progress.total:
        return f"Applied by {_count_listeners(progress.total)}."
    missing = ", ".join(progress.missing)
    return f"Applied by {progress.applied} of {_count_listeners(progress.total)}, not yet by {missing}."


def _count_listeners(count: int) -> str:
    return "1 listener" if count == 1 else f"{count} listeners"
