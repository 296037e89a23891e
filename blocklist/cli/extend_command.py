"""extend: give blocks a later end, and leave all else as it is."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import typer

from blocklist.cli import messages, options
from blocklist.cli.block_request import end_and_tolerance
from blocklist.cli.environment import connect, default_duration, print_context, service_now_for_change
from blocklist.cli.node_selection import blocked_nodes
from blocklist.cli.output import print_message, print_stderr
from blocklist.cli.unknown_outcome import report_unknown_outcome
from blocklist.model.errors import AmbiguousNodeError, NotFoundError

if TYPE_CHECKING:
    from blocklist.client.client import BlocklistClient
    from blocklist.model.node import BlockedNode


def extend(
    node: options.BlockedNodes = None,
    selector: options.Selector = None,
    duration: options.Duration = None,
    until: options.Until = None,
    forever: options.Forever = False,
    force: options.Force = None,
) -> None:
    """Extend blocks: they end a DURATION from now, or at a time, but never earlier than before.

    Exit code 1 if a node is not blocked; the others are extended.
    """
    with connect() as client:
        node_ids = blocked_nodes(client, node, selector)
        print_context(client)
        now = service_now_for_change(client, asks=until is None and not forever)
        with report_unknown_outcome(dry_run=False):
            end, _ = end_and_tolerance(now, duration, until, forever, partial(default_duration, client))
            found = {node_id: _current(client, node_id) for node_id in node_ids}
            blocks = {node_id: block for node_id, block in found.items() if block is not None}
            _extend(client, blocks, end, now, force)
    if len(blocks) < len(found):
        raise typer.Exit(1)


def _current(client: BlocklistClient, node_id: str) -> BlockedNode | None:
    try:
        return client.get(node_id)
    except NotFoundError as error:
        print_message(messages.not_blocked_message(node_id))
        print_stderr(*error.lines[1:])
    except AmbiguousNodeError as error:
        print_stderr(*messages.error_lines(error))
    return None


def _extend(client: BlocklistClient, blocks: dict[str, BlockedNode], end: int, now: int, force: str | None) -> None:
    """Merge each block with itself and a later end. Raises Exit with code 1 if one was unblocked meanwhile."""
    later = {block.id: replace(block, end=end) for block in blocks.values() if block.end < end}
    for block in blocks.values():
        if block.id not in later:
            print_message(messages.block_message(block, now, verb="already blocked"))
    if not later:
        return
    result = client.block_nodes(later.values(), allow_merge=True, force=force)
    for block in result.nodes.values():
        print_message(messages.block_message(block, now, verb="extended: blocked"))
    if again := sorted(later.keys() - result.merged):
        # Somebody unblocked it between the two requests.
        print_stderr(f"{', '.join(again)} had just been unblocked, and is blocked again: unblock it if that was meant.")
        raise typer.Exit(1)
