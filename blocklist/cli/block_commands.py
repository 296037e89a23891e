"""block and unblock."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from blocklist.cli import dry_run as dry_run_output
from blocklist.cli import messages, options
from blocklist.cli.block_request import Come, Wish, as_it_is, fulfil, span
from blocklist.cli.output import note, sentence
from blocklist.cli.service import connect
from blocklist.cli.times import now
from blocklist.model.errors import BlocklistError, NotFoundError
from blocklist.model.node import BlockAction, BlockedNode

if TYPE_CHECKING:
    from blocklist.client.client import BlocklistClient
    from blocklist.client.response import Applied
    from blocklist.client.writes import Ordered
    from blocklist.wire.dry_run import DryRunBody


def block(
    node: options.Nodes,
    reason: options.Reason,
    duration: options.Length = None,
    until: options.Until = None,
    forever: options.Forever = False,
    evacuate: options.Evacuate = False,
    merge: options.Merge = False,
    wait: options.Wait = None,
    dry_run: options.DryRun = False,
    force: options.Force = None,
) -> None:
    """Block nodes: no new task starts there. Where one of them is refused, none is blocked."""
    at = now()
    end, slack = span(at, duration, until, forever)
    action = BlockAction.MARK_BLOCKED_AND_EVACUATE_TASKS if evacuate else BlockAction.MARK_BLOCKED
    wish = Wish(action=action, cause=reason, start=at, end=end, slack=slack)
    nodes = options.chosen(node)
    with connect() as client:
        if dry_run:
            _rehearse(wish, nodes, partial(client.rehearse, allow_merge=merge, force=force))
        else:
            _block(client, wish, nodes, allow_merge=merge, force=force, wait=wait)


def unblock(node: options.BlockedNodes, wait: options.Wait = None, dry_run: options.DryRun = False) -> None:
    """Free nodes before their end, one after the other."""
    nodes = options.chosen(node)
    with connect() as client:
        if dry_run:
            _each(nodes, lambda node_id: dry_run_output.tell(client.rehearse_unblock(node_id), now()))
        else:
            _unblock(client, nodes, wait)


def _block(
    client: BlocklistClient, wish: Wish, nodes: Sequence[str], *, allow_merge: bool, force: str | None, wait: int | None
) -> None:
    send = partial(client.order, allow_merge=allow_merge, force=force, wait=wait)
    come = fulfil(wish, nodes, send)
    by = None if come.answer is None else come.answer.applied
    if come.already and wait is not None:
        # Nothing was to do for these, but whoever waits must know that it is applied.
        by = client.order(map(as_it_is, come.already.values()), allow_merge=True, wait=wait).applied
    _tell(come, nodes, wish.start)
    if by is not None:
        sentence(messages.applied(by))


def _tell(come: Come[Ordered], nodes: Sequence[str], at: int) -> None:
    ordered = come.answer
    for node_id in nodes:
        if node_id in come.already:
            sentence(messages.blocked(come.already[node_id], at, how="already blocked"))
        elif ordered is not None:
            sentence(messages.blocked(ordered.nodes[node_id], at, merged=node_id in ordered.merged))


def _rehearse(wish: Wish, nodes: Sequence[str], send: Callable[[list[BlockedNode]], DryRunBody]) -> None:
    come = fulfil(wish, nodes, send)
    for present in come.already.values():
        sentence(messages.blocked(present, wish.start, how="already blocked"))
    if come.answer is not None:
        dry_run_output.tell(come.answer, wish.start)


def _unblock(client: BlocklistClient, nodes: Sequence[str], wait: int | None) -> None:
    by: Applied | None = None
    if wait is not None:
        # The last request waits, and for all before it: so it has to be one that frees a node.
        blocked = client.snapshot().nodes
        nodes = sorted(nodes, key=blocked.__contains__)

    def free(node_id: str) -> None:
        nonlocal by
        by = client.unblock(node_id, wait=wait if node_id == nodes[-1] else None)
        sentence(f"{node_id} unblocked")

    _each(nodes, free)
    if by is not None:
        sentence(messages.applied(by))


def _each(nodes: Sequence[str], act: Callable[[str], None]) -> None:
    """Act on one node after the other; say which are free already, and at an error which are left."""
    for done, node_id in enumerate(nodes):
        try:
            act(node_id)
        except NotFoundError:
            sentence(messages.free(node_id))
        except BlocklistError:
            if done:
                note(f"Not unblocked: {', '.join(nodes[done:])}.")
            raise
