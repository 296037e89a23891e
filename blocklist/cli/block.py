"""block, extend and unblock."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial, reduce
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

import typer

from blocklist.cli import messages, options
from blocklist.cli.environment import connect, default_duration, print_context, service_now, service_now_for_change
from blocklist.cli.messages import ChangeOutput, ChangeReport, confirm, confirm_many, outcome_unknown
from blocklist.cli.options import blocked_nodes, known_nodes
from blocklist.model.claims import claim_of, default_owner
from blocklist.model.errors import AmbiguousNodeError, BlocklistError, ConflictError, NotFoundError
from blocklist.model.names import NameSet, several_message
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


def unblock(
    node: options.BlockedNodes = None,
    selector: options.Selector = None,
    wait: options.Wait = None,
    wait_for: options.WaitFor = None,
    dry_run: options.DryRun = False,
    all_owners: options.AllOwners = False,
    yes: options.Yes = False,
    output: options.ChangeFormat = ChangeOutput.TEXT,
) -> None:
    """Unblock nodes before their end, one after the other. Blocks by other owners stay, without --all-owners."""
    by = options.waited_for(wait, wait_for)
    with ChangeReport("unblock", output, dry_run=dry_run) as report, connect() as client:
        report.names = node_ids = blocked_nodes(client, node, selector)
        # Without authentication everybody is one owner.
        own = client.identity().name
        only_own = own is not None and not all_owners
        if dry_run:
            show = partial(_dry_run_unblock, client, report, own, only_own)
            _exit_if_not_all(for_each(report, node_ids, show))
            return
        print_context(client)
        confirm_many(client, report, "Unblock", yes=yes)
        if own is not None and all_owners:
            _name_other_owners(client, report, own, node_ids, ask=not yes)
        with report.sending():
            _unblock(client, report, node_ids, _WaitOptions(wait, by), only_own)


def _name_other_owners(
    client: BlocklistClient, report: ChangeReport, own: str, node_ids: Sequence[str], *, ask: bool
) -> None:
    """Name the others than `own`, the caller, who block one of the nodes. Raises Exit with code 1 if the answer is no.

    Without `ask` there is no question.
    """
    claims_on = {node_id: _claims(client, node_id) for node_id in node_ids}
    others = {node: claims for node, claims in claims_on.items() if any(claim.owner != own for claim in claims)}
    if not others:
        return
    now = service_now(client)
    report.note(*(f"{name} is blocked by {messages.claims_message(claims, now)}" for name, claims in others.items()))
    if ask:
        confirm("Remove the claims of all owners?", report.note)


def _claims(client: BlocklistClient, node_id: str) -> list[Claim]:
    try:
        return client.claims(node_id)
    except (NotFoundError, AmbiguousNodeError):
        return []  # The request to unblock it says so.


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
    if progress is not None:
        node_ids = report.names[:_MAX_NODES_FOR_REASONS]
        reasons: _Reasons = ({}, {}) if progress.complete else _reasons(client, node_ids, by)
        _report_no_longer_blocked(client, report, result, progress)
        _report_progress(report, progress, by, reasons)


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
        others = [claim for claim in _claims(client, node.id) if claim.owner != me]
    if others:
        text = f"{text} by you; it stays blocked by {messages.claims_message(others, now)}"
    report.node(name, "replaced", text, node, claims=[messages.claim_json(claim) for claim in others])


def _report_progress(report: ChangeReport, progress: AppliedCount, by: AppliedBy, reasons: _Reasons) -> None:
    """Which listeners have applied the change. Raises Exit with code 1 unless those have that were waited for."""
    report.applied(progress, by, *reasons)
    if not by.is_met(progress.applied, progress.total):
        raise typer.Exit(1)


def _reasons(client: BlocklistClient, node_ids: Sequence[str], by: AppliedBy) -> _Reasons:
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
        _report_dry_run(report, names, result.response, now)


def _dry_run_unblock(
    client: BlocklistClient, report: ChangeReport, own: str | None, only_own: bool, node_id: str
) -> None:
    """The effect, and each claim that would go."""
    with _naming_other_owners(client, node_id, only_own):
        result = client.dry_run_unblock(node_id, only_own=only_own)
    now = service_now(client)
    claims = _claims(client, node_id)
    going = {claim.owner for claim in claims if not only_own or claim.owner == own}
    listed = [{**messages.claim_json(claim), "removed": claim.owner in going} for claim in claims]
    if only_own and result.nodes[0].status != 200:
        node = result.nodes[0].node.value()
        report.node(node_id, "stays-blocked", f"{node.id} would stay blocked", node, claims=listed)
    else:
        _report_dry_run(report, [node_id], result, now, claims=listed)
    if own is None and len(claims) == 1:
        return
    for claim in claims:
        verb = "removed" if claim.owner in going else "stays"
        report.say(f"  {verb}: {messages.claim_message(claim, now)}")


class _NotOwnError(BlocklistError):
    """The caller has no claim on a node that others block."""


@contextmanager
def _naming_other_owners(client: BlocklistClient, node_id: str, only_own: bool) -> Iterator[None]:
    """Turn a NotFoundError about the caller's claim into a _NotOwnError that names who blocks the node."""
    try:
        yield
    except NotFoundError:
        if not only_own or not (claims := _claims(client, node_id)):
            raise
        others = messages.claims_message(claims, service_now(client))
        raise _NotOwnError(
            f"{node_id} stays blocked: you have no claim on it; it is blocked by {others}. --all-owners frees it."
        ) from None


def _report_dry_run(report: ChangeReport, names: Sequence[str], result: DryRunBody, now: int, **more: object) -> None:
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


@dataclass(frozen=True, slots=True)
class _WaitOptions:
    """The values of --wait, in seconds, and of --wait-for."""

    seconds: int | None
    by: AppliedBy


def _unblock(
    client: BlocklistClient, report: ChangeReport, node_ids: Sequence[str], wait: _WaitOptions, only_own: bool
) -> None:
    outcome, progress = unblock_all(client, report, node_ids, wait, only_own)
    if progress is not None:
        # The response to an unblocking is about the last node only.
        reasons = _reasons(client, [*outcome.done, *outcome.not_blocked], wait.by)
        for node_id in progress.superseded:
            # Its unblocking is not in force.
            report.reversed(node_id, messages.blocked_again_message(node_id))
        if progress.superseded:
            raise typer.Exit(1)
        _report_progress(report, progress.with_refused(reasons[0]), wait.by, reasons)
    _exit_if_not_all(outcome)


def _exit_if_not_all(outcome: UnblockOutcome) -> None:
    """Raises Exit with code 1 if a name means several nodes, or the caller has no claim on a node."""
    if outcome.ambiguous or outcome.not_own:
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
    claims = _claims(client, current.id)
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
        _report_dry_run(report, [names[node_id] for node_id in later], effect, now)
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


_POLL_SECONDS: Final = 0.2
_MAX_COMPARED: Final = 10_000
_MAX_SUGGESTIONS: Final = 5
_SIMILARITY: Final = 0.8


@dataclass(slots=True)
class UnblockOutcome:
    """The nodes by what happened to each; the reason was printed."""

    done: list[str] = field(default_factory=list)
    not_blocked: list[str] = field(default_factory=list)
    ambiguous: list[str] = field(default_factory=list)
    not_own: list[str] = field(default_factory=list)


def for_each(report: ChangeReport, node_ids: Sequence[str], action: Callable[[str], None]) -> UnblockOutcome:
    """Call `action` for each node. A name that is not blocked, or means several nodes, is reported and skipped.

    Any other error is raised, and lists the remaining nodes; also if the output cannot be written.
    """
    outcome = UnblockOutcome()
    for place, node_id in enumerate(node_ids):
        try:
            _for_one(report, node_id, action, outcome)
        except SystemExit:
            report.note(*_not_unblocked(node_ids[place + 1 :]))
            raise
        except BlocklistError as error:
            if place:
                report.note(*_not_unblocked(node_ids[place + outcome_unknown(error) :]))
            raise
    return outcome


def _for_one(report: ChangeReport, node_id: str, action: Callable[[str], None], outcome: UnblockOutcome) -> None:
    try:
        action(node_id)
        outcome.done.append(node_id)
    except NotFoundError as error:
        report.node(node_id, "not-blocked", messages.not_blocked_message(node_id))
        report.note(*error.lines[1:])
        outcome.not_blocked.append(node_id)
    except AmbiguousNodeError as error:
        report.ambiguous(node_id, error)
        outcome.ambiguous.append(node_id)
    except _NotOwnError as error:
        report.node(node_id, "not-own", error.detail)
        outcome.not_own.append(node_id)


def _not_unblocked(node_ids: Sequence[str]) -> list[str]:
    return [f"Not unblocked: {', '.join(node_ids)}."] if node_ids else []


def unblock_all(
    client: BlocklistClient, report: ChangeReport, node_ids: Sequence[str], wait: _WaitOptions, only_own: bool
) -> tuple[UnblockOutcome, AppliedCount | None]:
    """Unblock the nodes; if it is to wait, how many listeners have applied the last change of every node.

    That is None if none of the nodes has a change.
    """
    deadline = time.monotonic() + (wait.seconds or 0)
    progress: AppliedCount | None = None
    still_blocked: set[str] = set()
    if wait.seconds is not None:
        # Only the last request waits, for itself and those before it. It must be for a node that is blocked.
        blocked = NameSet(client.snapshot().nodes)
        node_ids = sorted(node_ids, key=lambda node_id: any(blocked.matching(node_id)))

    def unblock_one(node_id: str) -> None:
        nonlocal progress
        with _naming_other_owners(client, node_id, only_own):
            own_wait = wait.seconds if node_id == node_ids[-1] else None
            result = client.unblock_node(node_id, only_own=only_own, wait=own_wait, applied_by=wait.by)
        progress = result.applied
        if result.blocked:
            still_blocked.add(node_id)
            claims = _claims(client, result.id)
            text = f"{result.id} stays blocked: {messages.claims_message(claims, service_now(client))}"
            report.node(node_id, "stays-blocked", text, claims=list(map(messages.claim_json, claims)))
        else:
            report.node(node_id, "unblocked", f"{result.id} unblocked")

    outcome = for_each(report, node_ids, unblock_one)
    _suggest(client, report, outcome.not_blocked, node_ids)
    if wait.seconds is None:
        return outcome, None
    # The change of a node that is no longer blocked may be pending too, and if the last request failed, every change.
    pending = outcome.not_blocked if progress is not None else [*outcome.done, *outcome.not_blocked]
    polled = _poll_until_applied(client, pending, deadline, still_blocked, wait.by)
    counts = [*([] if progress is None else [progress]), *polled]
    return outcome, reduce(lambda one, other: one.and_also(other), counts) if counts else None


def _suggest(
    client: BlocklistClient, report: ChangeReport, not_blocked: Sequence[str], node_ids: Sequence[str]
) -> None:
    """Print the blocked node that was probably meant by a name that is not blocked."""
    if not not_blocked:
        return
    from difflib import get_close_matches  # noqa: PLC0415 - rarely needed

    with suppress(BlocklistError):  # What was done is reported already; this is only help.
        blocked = sorted(set(client.snapshot().nodes).difference(node_ids))[:_MAX_COMPARED]
        for name in not_blocked[:_MAX_SUGGESTIONS]:
            for meant in get_close_matches(name, blocked, n=1, cutoff=_SIMILARITY):
                report.note(f"{name}: did you mean {meant}?")


def _poll_until_applied(
    client: BlocklistClient,
    node_ids: Iterable[str],
    deadline: float,
    still_blocked: Collection[str],
    by: AppliedBy,
) -> list[AppliedCount]:
    """How many listeners have applied the last change of each node that has one, once all have or at the deadline.

    Nodes that other owners keep blocked are not blocked again.
    """
    counts = [_poll_node(client, it, deadline, by, may_be_blocked=it in still_blocked) for it in node_ids]
    return [count for count in counts if count is not None]


def _poll_node(
    client: BlocklistClient, node_id: str, deadline: float, by: AppliedBy, *, may_be_blocked: bool
) -> AppliedCount | None:
    from blocklist.client.answers import AppliedCount  # noqa: PLC0415 - not for --version and --help

    while True:
        try:
            status = client.status(node_id)
        except NotFoundError:
            # It was never blocked, so there is nothing to apply.
            return None
        count = AppliedCount.of_status(status, by)
        if status.blocked and not may_be_blocked:
            return replace(count, applied=0, superseded=(status.id,))
        remaining = deadline - time.monotonic()
        if not count.total or by.is_met(count.applied, count.total) or remaining <= 0:
            return count
        time.sleep(min(_POLL_SECONDS, remaining))
