"""block and unblock."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar

import typer

from blocklist.cli import messages, options
from blocklist.cli.block_request import BlockSpec, EnsureResult, end_and_tolerance, ensure_blocked, noop_block
from blocklist.cli.environment import connect, default_duration, now_ms
from blocklist.cli.output import print_message, print_stderr
from blocklist.cli.unblocking import UnblockOutcome, for_each, unblock_all
from blocklist.model.errors import BlocklistError
from blocklist.model.node import BlockAction, BlockedNode

if TYPE_CHECKING:
    from blocklist.client.client import BlocklistClient
    from blocklist.client.response import AppliedCount
    from blocklist.client.writes import BlockNodesResult
    from blocklist.wire.dry_run import DryRunBody

R = TypeVar("R")
_MAX_NODES_FOR_REASONS: Final = 20


def block(
    node: options.Nodes,
    reason: options.Reason,
    duration: options.Duration = None,
    until: options.Until = None,
    forever: options.Forever = False,
    evacuate: options.Evacuate = False,
    merge: options.Merge = False,
    wait: options.Wait = None,
    dry_run: options.DryRun = False,
    force: options.Force = None,
    strict: options.Strict = False,
) -> None:
    """Block nodes: no new tasks start there. If one node is rejected, none is blocked."""
    now = now_ms()
    action = BlockAction.MARK_BLOCKED_AND_EVACUATE_TASKS if evacuate else BlockAction.MARK_BLOCKED
    node_ids = options.expand_nodes(node)
    with connect() as client:
        end, tolerance = end_and_tolerance(now, duration, until, forever, partial(default_duration, client))
        spec = BlockSpec(action=action, cause=reason, start=now, end=end, tolerance=tolerance)
        if dry_run:
            check = partial(client.dry_run_block, force=force, strict=strict)
            _print_dry_run_block(ensure_blocked(spec, node_ids, check, _merging(check, merge)), now)
        else:
            send = partial(client.block_nodes, force=force, strict=strict, wait=wait)
            result = ensure_blocked(spec, node_ids, send, _merging(send, merge))
            _report_block(client, result, node_ids, now, wait)


def unblock(node: options.BlockedNodes, wait: options.Wait = None, dry_run: options.DryRun = False) -> None:
    """Unblock nodes before their end, one after the other."""
    node_ids = options.expand_nodes(node)
    with connect() as client:
        if dry_run:
            show = partial(_dry_run_unblock, client)
            _exit_if_ambiguous(for_each(node_ids, show))
        else:
            _unblock(client, node_ids, wait)


def _merging(send: Callable[..., R], merge: bool) -> Callable[[list[BlockedNode]], R] | None:
    return partial(send, allow_merge=True) if merge else None


def _report_block(
    client: BlocklistClient,
    result: EnsureResult[BlockNodesResult],
    node_ids: Sequence[str],
    now: int,
    wait: int | None,
) -> None:
    progress = None if result.response is None else result.response.applied
    if result.already_blocked and wait is not None:
        # Some nodes need no change, but the wait and its result include them too.
        changed = {} if result.response is None else result.response.nodes
        nodes = {node.id: node for node in (*result.already_blocked.values(), *changed.values())}
        blocks = map(noop_block, nodes.values())
        progress = client.block_nodes(blocks, allow_merge=True, wait=wait).applied
    _print_results(result, node_ids, now)
    if progress is not None:
        reasons = _refusals(client, node_ids[:_MAX_NODES_FOR_REASONS]) if progress.refused else {}
        _report_progress(progress, reasons)


def _print_results(result: EnsureResult[BlockNodesResult], node_ids: Sequence[str], now: int) -> None:
    response = result.response
    for node_id in node_ids:
        if node_id in result.already_blocked:
            print_message(messages.block_message(result.already_blocked[node_id], now, verb="already blocked"))
        elif response is not None:
            merged = node_id in response.merged
            print_message(messages.block_message(response.nodes[node_id], now, merged=merged))
    if response is not None:
        print_stderr(*messages.unknown_messages(response.unknown))


def _report_progress(progress: AppliedCount, reasons: Mapping[str, str]) -> None:
    """Print which listeners have applied the change. Raises Exit with code 1 unless all have, or if there are none."""
    print_message(messages.applied_message(progress, reasons))
    if not progress.complete:
        raise typer.Exit(1)


def _refusals(client: BlocklistClient, node_ids: Sequence[str]) -> dict[str, str]:
    """The live listeners that refuse a change of these nodes, with a reason of each."""
    reasons: dict[str, str] = {}
    for node_id in node_ids:
        # The change is made, so an error here must not hide what is known about it.
        with suppress(BlocklistError):
            for listener in client.status(node_id).listeners:
                if listener.refused is not None:
                    reasons.setdefault(listener.id, listener.refused)
    return reasons


def _print_dry_run_block(result: EnsureResult[DryRunBody], now: int) -> None:
    for current in result.already_blocked.values():
        print_message(messages.block_message(current, now, verb="already blocked"))
    if result.response is not None:
        _print_dry_run(result.response, now)


def _dry_run_unblock(client: BlocklistClient, node_id: str) -> None:
    _print_dry_run(client.dry_run_unblock(node_id), now_ms())


def _print_dry_run(result: DryRunBody, now: int) -> None:
    """Print the effect. Raises Exit with code 1 if a limit would reject the change."""
    for message in messages.dry_run_messages(result, now):
        print_message(message)
    unknown = {entry.node.id: entry.did_you_mean for entry in result.nodes if entry.known is False}
    print_stderr(*messages.unknown_messages(unknown))
    if result.refused is not None:
        print_stderr(f"It would be rejected: {result.refused}")
        raise typer.Exit(1)


def _unblock(client: BlocklistClient, node_ids: Sequence[str], wait: int | None) -> None:
    outcome, progress = unblock_all(client, node_ids, wait)
    if progress is not None:
        # The response to an unblocking is about the last node only.
        reasons = _refusals(client, [*outcome.done, *outcome.not_blocked])
        _report_progress(progress.with_refused(reasons), reasons)
    _exit_if_ambiguous(outcome)


def _exit_if_ambiguous(outcome: UnblockOutcome) -> None:
    """Raises Exit with code 1 if a name means several nodes."""
    if outcome.ambiguous:
        raise typer.Exit(1)
