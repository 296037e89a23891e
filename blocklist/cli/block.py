"""block and extend."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

import typer

from blocklist.cli import messages, options
from blocklist.cli.environment import connect, default_duration, print_context, service_now, service_now_for_change
from blocklist.cli.messages import ChangeOutput, ChangeReport, confirm_many
from blocklist.cli.options import blocked_nodes, known_nodes
from blocklist.model.claims import claim_of, default_owner
from blocklist.model.errors import (
    AmbiguousNodeError,
    BlocklistError,
    ConflictError,
    NotFoundError,
    UnavailableError,
)
from blocklist.model.names import several_message
from blocklist.model.node import PERMANENT, AppliedBy, BlockAction, BlockedNode, merge

if TYPE_CHECKING:
    from blocklist.client.answers import AppliedCount, BlockNodesResult
    from blocklist.client.client import BlocklistClient
    from blocklist.model.claims import Claim
    from blocklist.wire.nodes import DryRunBody


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
    replace_own: options.Replace = False,
    wait: options.Wait = None,
    wait_for: options.WaitFor = None,
    dry_run: options.DryRun = False,
    force: options.Force = False,
    force_reason: options.ForceReason = None,
    strict: options.Strict = False,
    output: options.ChangeFormat = ChangeOutput.TEXT,
    yes: options.Yes = False,
) -> None:
    """Block nodes: no new tasks start there. If one node is rejected, none is blocked."""
    if merge and replace_own:
        raise typer.BadParameter("give only one of --merge and --replace.")
    action = BlockAction.MARK_BLOCKED_AND_EVACUATE_TASKS if evacuate else BlockAction.MARK_BLOCKED
    forced = options.reason_to_force(force, force_reason, reason)
    by = options.waited_for(wait, wait_for)
    with ChangeReport("block", output, dry_run=dry_run) as report, connect() as client:
        report.names = node_ids = known_nodes(client, node, selector)
        if not dry_run:
            print_context(client)
            confirm_many(client, report, "Block", yes=yes)
        now = service_now_for_change(client, asks=until is None and not forever)
        with report.sending():
            end, tolerance = end_and_tolerance(now, duration, until, forever, partial(default_duration, client))
            spec = BlockSpec(action=action, cause=reason, start=now, end=end, tolerance=tolerance)
            if dry_run:
                check = partial(client.dry_run_block, replace_own=replace_own, force=forced, strict=strict)
                report_dry_run_block(report, ensure_blocked(spec, node_ids, check, _merging(check, merge)), now)
                return
            send = partial(
                client.block_nodes, replace_own=replace_own, force=forced, strict=strict, wait=wait, applied_by=by
            )
            result = ensure_blocked(spec, node_ids, send, _merging(send, merge))
            if replace_own:
                _report_replaced(client, report, result.response, spec)
            report_block(report, result, node_ids, spec.start)
            if wait is not None:
                _report_waited(client, report, spec, result, wait, by)


def claims_on(client: BlocklistClient, node_id: str) -> list[Claim]:
    """The claims on a node; none if it is not blocked, or its name means several nodes."""
    return claims_with_etag(client, node_id)[0]


def claims_with_etag(client: BlocklistClient, node_id: str) -> tuple[list[Claim], str]:
    """The same with their ETag, which is empty without any."""
    try:
        return client.claims_with_etag(node_id)
    except (NotFoundError, AmbiguousNodeError):
        return [], ""  # The request that changes it says so.


def _merging(send: Callable[..., R], merge: bool) -> Callable[[list[BlockedNode]], R] | None:
    return partial(send, allow_merge=True) if merge else None


def _report_waited(
    client: BlocklistClient,
    report: ChangeReport,
    spec: BlockSpec,
    result: EnsureResult[BlockNodesResult],
    wait: int,
    by: AppliedBy,
) -> None:
    progress = None if result.response is None else result.response.applied
    if result.already_blocked:
        # Some nodes need no change, but the wait and its result include them too. Not the others: one that was
        # unblocked during the first wait would be blocked again.
        blocks = [noop_block(spec, node) for node in result.already_blocked.values()]
        unchanged = client.block_nodes(blocks, allow_merge=True, wait=wait, applied_by=by).applied
        progress = unchanged if progress is None or unchanged is None else progress.and_also(unchanged)
    if progress is None:
        raise UnavailableError(
            "The nodes are blocked, but it is not known by whom that is applied: the response has no Blocklist-Applied"
            " header. A server in front of the service has removed it, or Prefer from the request; see `blocklist"
            " status`."
        )
    node_ids = report.names[:_MAX_NODES_FOR_REASONS]
    reasons: _Reasons = ({}, {}) if progress.complete else reasons_of(client, node_ids, by)
    _report_no_longer_blocked(client, report, result, progress)
    report_progress(report, progress, by, reasons)


def _report_no_longer_blocked(
    client: BlocklistClient, report: ChangeReport, result: EnsureResult[BlockNodesResult], progress: AppliedCount
) -> None:
    """Raise Exit with code 1 if nodes were unblocked, or weakened, during the wait: that is applied, too."""
    changed = {} if result.response is None else result.response.nodes
    expected = {node.id for node in (*result.already_blocked.values(), *changed.values())}
    present = client.snapshot().nodes
    reversed_ids = sorted({*progress.superseded, *(expected - present.keys())})
    for node_id in reversed_ids:
        report.reversed(node_id, messages.weakened_message(node_id, present.get(node_id)))
    if reversed_ids:
        raise typer.Exit(1)


def report_block(
    report: ChangeReport, result: EnsureResult[BlockNodesResult], node_ids: Sequence[str], now: int
) -> None:
    """A line for each node that has none yet, and hints about names on stderr."""
    response = result.response
    for node_id in node_ids:
        if node_id in result.already_blocked:
            block = result.already_blocked[node_id]
            report.already_blocked(node_id, block, now)
        elif response is not None and not report.has(node_id):
            block, merged = response.nodes[node_id], node_id in response.merged
            text = messages.block_message(block, now, merged=merged)
            report.node(node_id, "merged" if merged else "blocked", text, block)
    if response is not None:
        report.note(*messages.unknown_messages(response.unknown), *messages.ambiguous_messages(response.ambiguous))
        report.note(*(several_message(*item) for item in response.several.items()))


def _report_replaced(
    client: BlocklistClient, report: ChangeReport, response: BlockNodesResult | None, spec: BlockSpec
) -> None:
    """A line for each node that was blocked before, with the claims of others that were left alone."""
    for node_id in response.nodes if response is not None else ():
        if response is not None and node_id in response.merged:
            _report_own_claim(client, report, node_id, response.nodes[node_id], spec.block_for(node_id), spec.start)


def _report_own_claim(
    client: BlocklistClient, report: ChangeReport, name: str, node: BlockedNode, own: BlockedNode, now: int
) -> None:
    """The caller's claim on the node is now `own`; other owners are asked about if the node is blocked otherwise."""
    text = messages.block_message(replace(own, id=node.id), now, verb="now blocked")
    others: list[Claim] = []
    if (node.end, node.action, node.cause) != (own.end, own.action, own.cause):
        me = default_owner(client.whoami()[0])
        others = [claim for claim in claims_on(client, node.id) if claim.owner != me]
    if others:
        text = f"{text} by you; it stays blocked by {messages.claims_message(others, now)}"
    report.node(name, "replaced", text, node, claims=[messages.claim_json(claim) for claim in others])


def report_progress(report: ChangeReport, progress: AppliedCount, by: AppliedBy, reasons: _Reasons) -> None:
    """Which listeners have applied the change. Raises Exit with code 1 unless those have that were waited for."""
    report.applied(progress, by, *reasons)
    if not by.is_met(progress.applied, progress.total):
        raise typer.Exit(1)


def reasons_of(client: BlocklistClient, node_ids: Sequence[str], by: AppliedBy) -> _Reasons:
    """Of the live listeners that `by` counts."""
    refused: dict[str, str] = {}
    pending: dict[str, str] = {}
    for node_id in node_ids:
        # The change is made, so an error here must not hide what is known about it.
        with suppress(BlocklistError):
            for listener in client.status(node_id).listeners:
                if by.managers and listener.role != "RESOURCE_MANAGER":
                    continue
                if listener.refused is not None:
                    refused.setdefault(listener.id, listener.refused)
                elif listener.pending_reason is not None:
                    pending.setdefault(listener.id, listener.pending_reason)
    return refused, pending


def report_dry_run_block(report: ChangeReport, result: EnsureResult[DryRunBody], now: int) -> None:
    """The effect. Raises Exit with code 1 if a limit would reject the change."""
    for name, current in result.already_blocked.items():
        report.already_blocked(name, current, now)
    if result.response is not None:
        names = [name for name in report.names if name not in result.already_blocked]
        report_dry_run(report, names, result.response, now)


def report_dry_run(report: ChangeReport, names: Sequence[str], result: DryRunBody, now: int, **more: object) -> None:
    """The effect on the nodes of these names. Raises Exit with code 1 if a limit would reject the change."""
    for name, entry in zip(names, result.nodes, strict=True):
        report.dry_run(name, entry, now, **more)
    report.shortfalls(result.below_minimum)
    unknown = [entry for entry in result.nodes if entry.known is False]
    ambiguous = {entry.node.id: entry.ambiguous for entry in unknown if entry.ambiguous}
    report.note(
        *messages.unknown_messages({it.node.id: it.did_you_mean for it in unknown if not it.ambiguous}),
        *messages.ambiguous_messages(ambiguous),
        *(several_message(entry.node.id, entry.means) for entry in result.nodes if entry.means),
    )
    if result.refused is not None:
        report.note(f"It would be rejected: {result.refused}")
        raise typer.Exit(1)


def extend(
    node: options.BlockedNodes = None,
    selector: options.Selector = None,
    duration: options.Duration = None,
    until: options.Until = None,
    forever: options.Forever = False,
    replace_own: options.ReplaceEnd = False,
    dry_run: options.DryRun = False,
    force: options.Force = False,
    force_reason: options.ForceReason = None,
    output: options.ChangeFormat = ChangeOutput.TEXT,
    yes: options.Yes = False,
) -> None:
    """Extend blocks: they end a DURATION from now, or at a time; without --replace, never earlier than before.

    Exit code 1 if a node is not blocked; the others are extended.
    """
    forced = options.reason_to_force(force, force_reason)
    with ChangeReport("extend", output, dry_run=dry_run) as report, connect() as client:
        report.names = node_ids = blocked_nodes(client, node, selector)
        if not dry_run:
            print_context(client)
            confirm_many(client, report, "Extend", yes=yes)
        now = service_now_for_change(client, asks=until is None and not forever)
        with report.sending():
            end, _ = end_and_tolerance(now, duration, until, forever, partial(default_duration, client))
            find = partial(_own_block if replace_own else _current, client, report)
            found = {node_id: find(node_id) for node_id in node_ids}
            blocks = {node_id: block for node_id, block in found.items() if block is not None}
            extension = _Extension(end, now, forced, replace_own=replace_own)
            _extend(client, report, blocks, extension, dry_run=dry_run)
            if len(blocks) < len(found):
                raise typer.Exit(1)


def _current(client: BlocklistClient, report: ChangeReport, node_id: str) -> BlockedNode | None:
    try:
        return client.get(node_id)
    except NotFoundError as error:
        report.node(node_id, "not-blocked", messages.not_blocked_message(node_id))
        report.note(*error.lines[1:])
    except AmbiguousNodeError as error:
        report.ambiguous(node_id, error)
    return None


def _own_block(client: BlocklistClient, report: ChangeReport, node_id: str) -> BlockedNode | None:
    """What the caller's own claim on the node says."""
    if (current := _current(client, report, node_id)) is None:
        return None
    claims = claims_on(client, current.id)
    if (own := claim_of(claims, default_owner(client.whoami()[0]))) is None:
        others = messages.claims_message(claims, service_now(client))
        text = f"{current.id} is unchanged: you have no claim on it; it is blocked by {others}"
        report.node(node_id, "not-own", text, current, claims=list(map(messages.claim_json, claims)))
        return None
    return own.block


@dataclass(frozen=True, slots=True)
class _Extension:
    """The requested end of blocks, in Unix milliseconds; with `replace_own` that of the caller's claims alone."""

    end: int
    now: int
    force: str | None
    replace_own: bool

    def changes(self, block: BlockedNode) -> bool:
        """Whether the block, or the caller's claim, does not end so yet."""
        return block.end != self.end if self.replace_own else block.end < self.end


def _extend(
    client: BlocklistClient,
    report: ChangeReport,
    blocks: Mapping[str, BlockedNode],
    extension: _Extension,
    *,
    dry_run: bool,
) -> None:
    """Give the blocks the end. Raises Exit with code 1 if one was unblocked meanwhile."""
    now = extension.now
    # Two names may mean one node.
    names = {block.id: name for name, block in blocks.items() if extension.changes(block)}
    later = {block.id: replace(block, end=extension.end) for block in blocks.values() if block.id in names}
    for name, block in blocks.items():
        if block.id not in later:
            report.already_blocked(name, block, now)
    if not later:
        return
    how: dict[str, Any] = {"allow_merge": True, "replace_own": extension.replace_own, "force": extension.force}
    if dry_run:
        effect = client.dry_run_block(later.values(), **how)
        report_dry_run(report, [names[node_id] for node_id in later], effect, now)
    else:
        result = client.block_nodes(later.values(), **how)
        _report_extended(client, report, result, {names[it]: block for it, block in later.items()}, extension)


def _report_extended(
    client: BlocklistClient,
    report: ChangeReport,
    result: BlockNodesResult,
    later: Mapping[str, BlockedNode],
    extension: _Extension,
) -> None:
    for name, wanted in later.items():
        block = result.nodes[wanted.id]
        if extension.replace_own:
            _report_own_claim(client, report, name, block, wanted, extension.now)
        else:
            text = messages.block_message(block, extension.now, verb="extended: blocked")
            report.node(name, "extended", text, block)
    if again := sorted({block.id for block in later.values()} - result.merged):
        # Somebody unblocked it between the two requests.
        report.note(f"{', '.join(again)} had just been unblocked, and is blocked again: unblock it if that was meant.")
        raise typer.Exit(1)


_END_TOLERANCE: Final = 60_000
"""Maximum of BlockSpec.tolerance, in milliseconds; for durations under ten minutes it is a tenth of the duration."""


@dataclass(frozen=True, kw_only=True, slots=True)
class BlockSpec:
    """The requested block. An existing block satisfies it if it ends at most `tolerance` milliseconds earlier.

    The tolerance makes a repeated `-d 2h` a no-op.
    """

    action: BlockAction
    cause: str
    start: int
    end: int
    tolerance: int = 0

    def block_for(self, node_id: str) -> BlockedNode:
        return BlockedNode(id=node_id, action=self.action, start=self.start, end=self.end, cause=self.cause)

    def satisfied_by(self, current: BlockedNode) -> bool:
        """Whether merging would not change the current block."""
        end = current.end if current.end < self.end <= current.end + self.tolerance else self.end
        return merge(current, replace(self.block_for(current.id), start=current.start, end=end)) is current


@dataclass(frozen=True, kw_only=True, slots=True)
class EnsureResult(Generic[R]):
    """The response for the nodes that were requested, None if no request was needed, and the blocks of the others."""

    response: R | None
    already_blocked: Mapping[str, BlockedNode]


def end_and_tolerance(
    now: int, duration: int | None, until: int | None, forever: bool, default: Callable[[], int]
) -> tuple[int, int]:
    """The end and the tolerance for these options, in Unix milliseconds; `default` returns the duration without any.

    Raises a usage error for conflicting ones.
    """
    if (duration is not None) + (until is not None) + forever > 1:
        raise typer.BadParameter("give only one of --duration, --until and --forever.")
    if until is not None:
        if until <= now:
            raise typer.BadParameter("--until: that time is in the past.")
        return until, 0
    requested = PERMANENT if forever else default() if duration is None else duration
    return (PERMANENT, 0) if requested == PERMANENT else (now + requested, min(_END_TOLERANCE, requested // 10))


def ensure_blocked(
    spec: BlockSpec,
    node_ids: Sequence[str],
    send: Callable[[list[BlockedNode]], R],
    merge_blocks: Callable[[list[BlockedNode]], R] | None = None,
) -> EnsureResult[R]:
    """Block the nodes; repeat the request without those that already satisfy `spec`.

    If another node has a different block, the request is repeated with `merge_blocks`; without it, raises
    ConflictError, with nothing changed.
    Merging is not tried first: its response does not tell whether it had an effect.
    """
    remaining, already_blocked = list(node_ids), dict[str, BlockedNode]()
    while remaining:
        try:
            response = send([spec.block_for(node_id) for node_id in remaining])
            return EnsureResult(response=response, already_blocked=already_blocked)
        except ConflictError as error:
            satisfied = {node_id: node for node_id, node in error.blocked.items() if spec.satisfied_by(node)}
            if not error.blocked or len(satisfied) < len(error.blocked):
                if merge_blocks is None:
                    raise
                send, merge_blocks = merge_blocks, None
            already_blocked |= satisfied
            remaining = [node_id for node_id in remaining if node_id not in already_blocked]
    return EnsureResult(response=None, already_blocked=already_blocked)


def noop_block(spec: BlockSpec, current: BlockedNode) -> BlockedNode:
    """A block that does not change one that satisfies `spec`: a request with it can wait until that is applied.

    It is what the caller wants, and not more, as it becomes a claim of his if the current block is somebody else's.
    """
    return replace(spec.block_for(current.id), end=min(spec.end, current.end))
