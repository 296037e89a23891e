"""block and unblock."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar

import typer

from blocklist.cli import messages, options
from blocklist.cli.block_request import BlockSpec, EnsureResult, end_and_tolerance, ensure_blocked, noop_block
from blocklist.cli.environment import connect, default_duration, print_context, service_now, service_now_for_change
from blocklist.cli.node_selection import blocked_nodes, known_nodes
from blocklist.cli.output import print_message, print_stderr
from blocklist.cli.unblocking import UnblockOutcome, for_each, unblock_all
from blocklist.cli.unknown_outcome import report_unknown_outcome
from blocklist.model.errors import BlocklistError
from blocklist.model.node import BlockAction, BlockedNode

if TYPE_CHECKING:
    from blocklist.client.client import BlocklistClient
    from blocklist.client.results import AppliedCount, BlockNodesResult
    from blocklist.wire.dry_run import DryRunBody

R = TypeVar("R")
_MAX_NODES_FOR_REASONS: Final = 20
_Reasons = tuple[Mapping[str, str], Mapping[str, str]]
"""Listeners that refuse a change, with a reason of each; pending ones, with what they last reported."""


def block(
    reason: options.Reason,
    node: options.Nodes = None,
    selector: options.Selector = None,
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
    action = BlockAction.MARK_BLOCKED_AND_EVACUATE_TASKS if evacuate else BlockAction.MARK_BLOCKED
    with connect() as client:
        node_ids = known_nodes(client, node, selector)
        if not dry_run:
            print_context(client)
        now = service_now_for_change(client, asks=until is None and not forever)
        with report_unknown_outcome(dry_run):
            end, tolerance = end_and_tolerance(now, duration, until, forever, partial(default_duration, client))
            spec = BlockSpec(action=action, cause=reason, start=now, end=end, tolerance=tolerance)
            if dry_run:
                check = partial(client.dry_run_block, force=force, strict=strict)
                print_dry_run_block(ensure_blocked(spec, node_ids, check, _merging(check, merge)), now)
            else:
                send = partial(client.block_nodes, force=force, strict=strict, wait=wait)
                result = ensure_blocked(spec, node_ids, send, _merging(send, merge))
                _report_block(client, spec, result, node_ids, wait)


def unblock(
    node: options.BlockedNodes = None,
    selector: options.Selector = None,
    wait: options.Wait = None,
    dry_run: options.DryRun = False,
) -> None:
    """Unblock nodes before their end, one after the other."""
    with connect() as client:
        node_ids = blocked_nodes(client, node, selector)
        if dry_run:
            show = partial(_dry_run_unblock, client)
            _exit_if_ambiguous(for_each(node_ids, show))
            return
        print_context(client)
        with report_unknown_outcome(dry_run):
            _unblock(client, node_ids, wait)


def _merging(send: Callable[..., R], merge: bool) -> Callable[[list[BlockedNode]], R] | None:
    return partial(send, allow_merge=True) if merge else None


def _report_block(
    client: BlocklistClient,
    spec: BlockSpec,
    result: EnsureResult[BlockNodesResult],
    node_ids: Sequence[str],
    wait: int | None,
) -> None:
    progress = None if result.response is None else result.response.applied
    if result.already_blocked and wait is not None:
        # Some nodes need no change, but the wait and its result include them too. Not the others: one that was
        # unblocked during the first wait would be blocked again.
        blocks = [noop_block(spec, node) for node in result.already_blocked.values()]
        unchanged = client.block_nodes(blocks, allow_merge=True, wait=wait).applied
        progress = unchanged if progress is None or unchanged is None else progress.and_also(unchanged)
    print_block_results(result, node_ids, spec.start)
    if progress is not None:
        reasons: _Reasons = ({}, {}) if progress.complete else _reasons(client, node_ids[:_MAX_NODES_FOR_REASONS])
        _report_no_longer_blocked(client, result, progress)
        _report_progress(progress, reasons)


def _report_no_longer_blocked(
    client: BlocklistClient, result: EnsureResult[BlockNodesResult], progress: AppliedCount
) -> None:
    """Raise Exit with code 1 if nodes were unblocked, or left a canary, during the wait: that is applied, too."""
    changed = {} if result.response is None else result.response.nodes
    expected = {node.id for node in (*result.already_blocked.values(), *changed.values())}
    present = client.snapshot().nodes
    reversed_ids = sorted({*progress.superseded, *(expected - present.keys())})
    for node_id in reversed_ids:
        is_canary = node_id in present and present[node_id].canary
        message = messages.only_canary_message if is_canary else messages.no_longer_blocked_message
        print_message(message(node_id))
    if reversed_ids:
        raise typer.Exit(1)


def print_block_results(result: EnsureResult[BlockNodesResult], node_ids: Sequence[str], now: int) -> None:
    """Print a line for each node, and hints about names on stderr."""
    response = result.response
    for node_id in node_ids:
        if node_id in result.already_blocked:
            print_message(messages.block_message(result.already_blocked[node_id], now, verb="already blocked"))
        elif response is not None:
            merged = node_id in response.merged
            print_message(messages.block_message(response.nodes[node_id], now, merged=merged))
    if response is not None:
        print_stderr(*messages.unknown_messages(response.unknown), *messages.ambiguous_messages(response.ambiguous))


def _report_progress(progress: AppliedCount, reasons: _Reasons) -> None:
    """Print which listeners have applied the change. Raises Exit with code 1 unless all have, or if there are none."""
    print_message(messages.applied_message(progress, *reasons))
    if not progress.complete:
        raise typer.Exit(1)


def _reasons(client: BlocklistClient, node_ids: Sequence[str]) -> _Reasons:
    """Of the live listeners."""
    refused: dict[str, str] = {}
    pending: dict[str, str] = {}
    for node_id in node_ids:
        # The change is made, so an error here must not hide what is known about it.
        with suppress(BlocklistError):
            for listener in client.status(node_id).listeners:
                if listener.refused is not None:
                    refused.setdefault(listener.id, listener.refused)
                elif listener.pending_reason is not None:
                    pending.setdefault(listener.id, listener.pending_reason)
    return refused, pending


def print_dry_run_block(result: EnsureResult[DryRunBody], now: int) -> None:
    """Print the effect. Raises Exit with code 1 if a limit would reject the change."""
    for current in result.already_blocked.values():
        print_message(messages.block_message(current, now, verb="already blocked"))
    if result.response is not None:
        _print_dry_run(result.response, now)


def _dry_run_unblock(client: BlocklistClient, node_id: str) -> None:
    result = client.dry_run_unblock(node_id)
    _print_dry_run(result, service_now(client))


def _print_dry_run(result: DryRunBody, now: int) -> None:
    """Print the effect. Raises Exit with code 1 if a limit would reject the change."""
    for message in messages.dry_run_messages(result, now):
        print_message(message)
    unknown = [entry for entry in result.nodes if entry.known is False]
    ambiguous = {entry.node.id: entry.ambiguous for entry in unknown if entry.ambiguous}
    print_stderr(
        *messages.unknown_messages({it.node.id: it.did_you_mean for it in unknown if not it.ambiguous}),
        *messages.ambiguous_messages(ambiguous),
    )
    if result.refused is not None:
        print_stderr(f"It would be rejected: {result.refused}")
        raise typer.Exit(1)


def _unblock(client: BlocklistClient, node_ids: Sequence[str], wait: int | None) -> None:
    outcome, progress = unblock_all(client, node_ids, wait)
    if progress is not None:
        # The response to an unblocking is about the last node only.
        reasons = _reasons(client, [*outcome.done, *outcome.not_blocked])
        _report_blocked_again(progress)
        _report_progress(progress.with_refused(reasons[0]), reasons)
    _exit_if_ambiguous(outcome)


def _report_blocked_again(progress: AppliedCount) -> None:
    """Raise Exit with code 1 if nodes were blocked during the wait: their unblocking is not in force."""
    for node_id in progress.superseded:
        print_message(messages.blocked_again_message(node_id))
    if progress.superseded:
        raise typer.Exit(1)


def _exit_if_ambiguous(outcome: UnblockOutcome) -> None:
    """Raises Exit with code 1 if a name means several nodes."""
    if outcome.ambiguous:
        raise typer.Exit(1)
