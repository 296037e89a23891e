"""block, extend and unblock."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial, reduce
from typing import TYPE_CHECKING, Final, Generic, TypeVar

import typer

from blocklist.cli import messages, options
from blocklist.cli.environment import connect, default_duration, print_context, service_now, service_now_for_change
from blocklist.cli.messages import confirm, outcome_unknown, report_unknown_outcome
from blocklist.cli.options import blocked_nodes, known_nodes
from blocklist.cli.output import print_message, print_stderr
from blocklist.model.errors import AmbiguousNodeError, BlocklistError, ConflictError, NotFoundError
from blocklist.model.names import NameSet, several_message
from blocklist.model.node import PERMANENT, BlockAction, BlockedNode, merge

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
    wait: options.Wait = None,
    dry_run: options.DryRun = False,
    force: options.Force = False,
    force_reason: options.ForceReason = None,
    strict: options.Strict = False,
) -> None:
    """Block nodes: no new tasks start there. If one node is rejected, none is blocked."""
    action = BlockAction.MARK_BLOCKED_AND_EVACUATE_TASKS if evacuate else BlockAction.MARK_BLOCKED
    forced = options.reason_to_force(force, force_reason, reason)
    with connect() as client:
        node_ids = known_nodes(client, node, selector)
        if not dry_run:
            print_context(client)
        now = service_now_for_change(client, asks=until is None and not forever)
        with report_unknown_outcome(dry_run):
            end, tolerance = end_and_tolerance(now, duration, until, forever, partial(default_duration, client))
            spec = BlockSpec(action=action, cause=reason, start=now, end=end, tolerance=tolerance)
            if dry_run:
                check = partial(client.dry_run_block, force=forced, strict=strict)
                print_dry_run_block(ensure_blocked(spec, node_ids, check, _merging(check, merge)), now)
            else:
                send = partial(client.block_nodes, force=forced, strict=strict, wait=wait)
                result = ensure_blocked(spec, node_ids, send, _merging(send, merge))
                _report_block(client, spec, result, node_ids, wait)


def unblock(
    node: options.BlockedNodes = None,
    selector: options.Selector = None,
    wait: options.Wait = None,
    dry_run: options.DryRun = False,
    all_owners: options.AllOwners = False,
    yes: options.Yes = False,
) -> None:
    """Unblock nodes before their end, one after the other. Blocks by other owners stay, without --all-owners."""
    with connect() as client:
        node_ids = blocked_nodes(client, node, selector)
        # Without authentication everybody is one owner.
        own = client.whoami()[0]
        only_own = own is not None and not all_owners
        if dry_run:
            show = partial(_dry_run_unblock, client, own, only_own)
            _exit_if_not_all(for_each(node_ids, show))
            return
        print_context(client)
        if own is not None and all_owners and not yes:
            _confirm_all_owners(client, own, node_ids)
        with report_unknown_outcome(dry_run):
            _unblock(client, node_ids, wait, only_own)


def _confirm_all_owners(client: BlocklistClient, own: str, node_ids: Sequence[str]) -> None:
    """Ask if others than `own`, the caller, block one of the nodes. Raises Exit with code 1 without the answer yes."""
    claims_on = {node_id: _claims(client, node_id) for node_id in node_ids}
    others = {node: claims for node, claims in claims_on.items() if any(claim.owner != own for claim in claims)}
    if not others:
        return
    now = service_now(client)
    for node_id, claims in others.items():
        print_stderr(f"{node_id} is blocked by {messages.claims_message(claims, now)}")
    confirm("Remove the claims of all owners?")


def _claims(client: BlocklistClient, node_id: str) -> list[Claim]:
    try:
        return client.claims(node_id)
    except (NotFoundError, AmbiguousNodeError):
        return []  # The request to unblock it says so.


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
    """Raise Exit with code 1 if nodes were unblocked, or weakened, during the wait: that is applied, too."""
    changed = {} if result.response is None else result.response.nodes
    expected = {node.id for node in (*result.already_blocked.values(), *changed.values())}
    present = client.snapshot().nodes
    reversed_ids = sorted({*progress.superseded, *(expected - present.keys())})
    for node_id in reversed_ids:
        print_message(messages.weakened_message(node_id, present.get(node_id)))
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
        print_stderr(*(several_message(*item) for item in response.several.items()))


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


def _dry_run_unblock(client: BlocklistClient, own: str | None, only_own: bool, node_id: str) -> None:
    """Print the effect, and each claim that would go."""
    with _naming_other_owners(client, node_id, only_own):
        result = client.dry_run_unblock(node_id, only_own=only_own)
    now = service_now(client)
    if only_own and result.nodes[0].status != 200:
        print_message(f"{result.nodes[0].node.id} would stay blocked")
    else:
        _print_dry_run(result, now)
    claims = _claims(client, node_id)
    if own is None and len(claims) == 1:
        return
    for claim in claims:
        goes = not only_own or claim.owner == own
        print_message(f"  {'removed' if goes else 'stays'}: {messages.claim_message(claim, now)}")


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


def _print_dry_run(result: DryRunBody, now: int) -> None:
    """Print the effect. Raises Exit with code 1 if a limit would reject the change."""
    for message in messages.dry_run_messages(result, now):
        print_message(message)
    unknown = [entry for entry in result.nodes if entry.known is False]
    ambiguous = {entry.node.id: entry.ambiguous for entry in unknown if entry.ambiguous}
    print_stderr(
        *messages.unknown_messages({it.node.id: it.did_you_mean for it in unknown if not it.ambiguous}),
        *messages.ambiguous_messages(ambiguous),
        *(several_message(entry.node.id, entry.means) for entry in result.nodes if entry.means),
    )
    if result.refused is not None:
        print_stderr(f"It would be rejected: {result.refused}")
        raise typer.Exit(1)


def _unblock(client: BlocklistClient, node_ids: Sequence[str], wait: int | None, only_own: bool) -> None:
    outcome, progress = unblock_all(client, node_ids, wait, only_own)
    if progress is not None:
        # The response to an unblocking is about the last node only.
        reasons = _reasons(client, [*outcome.done, *outcome.not_blocked])
        _report_blocked_again(progress)
        _report_progress(progress.with_refused(reasons[0]), reasons)
    _exit_if_not_all(outcome)


def _report_blocked_again(progress: AppliedCount) -> None:
    """Raise Exit with code 1 if nodes were blocked during the wait: their unblocking is not in force."""
    for node_id in progress.superseded:
        print_message(messages.blocked_again_message(node_id))
    if progress.superseded:
        raise typer.Exit(1)


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
    force: options.Force = False,
    force_reason: options.ForceReason = None,
) -> None:
    """Extend blocks: they end a DURATION from now, or at a time, but never earlier than before.

    Exit code 1 if a node is not blocked; the others are extended.
    """
    forced = options.reason_to_force(force, force_reason)
    with connect() as client:
        node_ids = blocked_nodes(client, node, selector)
        print_context(client)
        now = service_now_for_change(client, asks=until is None and not forever)
        with report_unknown_outcome(dry_run=False):
            end, _ = end_and_tolerance(now, duration, until, forever, partial(default_duration, client))
            found = {node_id: _current(client, node_id) for node_id in node_ids}
            blocks = {node_id: block for node_id, block in found.items() if block is not None}
            _extend(client, blocks, end, now, forced)
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


def for_each(node_ids: Sequence[str], action: Callable[[str], None]) -> UnblockOutcome:
    """Call `action` for each node. A name that is not blocked, or means several nodes, is reported and skipped.

    Any other error is raised, and lists the remaining nodes; also if the output cannot be written.
    """
    outcome = UnblockOutcome()
    for place, node_id in enumerate(node_ids):
        try:
            _for_one(node_id, action, outcome)
        except SystemExit:
            print_stderr(*_not_unblocked(node_ids[place + 1 :]))
            raise
        except BlocklistError as error:
            if place:
                print_stderr(*_not_unblocked(node_ids[place + outcome_unknown(error) :]))
            raise
    return outcome


def _for_one(node_id: str, action: Callable[[str], None], outcome: UnblockOutcome) -> None:
    try:
        action(node_id)
        outcome.done.append(node_id)
    except NotFoundError as error:
        print_message(messages.not_blocked_message(node_id))
        print_stderr(*error.lines[1:])
        outcome.not_blocked.append(node_id)
    except AmbiguousNodeError as error:
        print_stderr(*messages.error_lines(error))
        outcome.ambiguous.append(node_id)
    except _NotOwnError as error:
        print_message(error.detail)
        outcome.not_own.append(node_id)


def _not_unblocked(node_ids: Sequence[str]) -> list[str]:
    return [f"Not unblocked: {', '.join(node_ids)}."] if node_ids else []


def unblock_all(
    client: BlocklistClient, node_ids: Sequence[str], wait: int | None, only_own: bool
) -> tuple[UnblockOutcome, AppliedCount | None]:
    """Unblock the nodes; with `wait` (seconds), how many listeners have applied the last change of every node.

    That is None if none of the nodes has a change.
    """
    deadline = time.monotonic() + (wait or 0)
    progress: AppliedCount | None = None
    still_blocked: set[str] = set()
    if wait is not None:
        # Only the last request waits, for itself and those before it. It must be for a node that is blocked.
        blocked = NameSet(client.snapshot().nodes)
        node_ids = sorted(node_ids, key=lambda node_id: any(blocked.matching(node_id)))

    def unblock_one(node_id: str) -> None:
        nonlocal progress
        with _naming_other_owners(client, node_id, only_own):
            own_wait = wait if node_id == node_ids[-1] else None
            result = client.unblock_node(node_id, only_own=only_own, wait=own_wait)
        progress = result.applied
        if result.blocked:
            still_blocked.add(node_id)
            others = messages.claims_message(_claims(client, result.id), service_now(client))
            print_message(f"{result.id} stays blocked: {others}")
        else:
            print_message(f"{result.id} unblocked")

    outcome = for_each(node_ids, unblock_one)
    _suggest(client, outcome.not_blocked, node_ids)
    if wait is None:
        return outcome, None
    # The change of a node that is no longer blocked may be pending too, and if the last request failed, every change.
    pending = outcome.not_blocked if progress is not None else [*outcome.done, *outcome.not_blocked]
    polled = _poll_until_applied(client, pending, deadline, still_blocked)
    counts = [*([] if progress is None else [progress]), *polled]
    return outcome, reduce(lambda one, other: one.and_also(other), counts) if counts else None


def _suggest(client: BlocklistClient, not_blocked: Sequence[str], node_ids: Sequence[str]) -> None:
    """Print the blocked node that was probably meant by a name that is not blocked."""
    if not not_blocked:
        return
    from difflib import get_close_matches  # noqa: PLC0415 - rarely needed

    with suppress(BlocklistError):  # What was done is reported already; this is only help.
        blocked = sorted(set(client.snapshot().nodes).difference(node_ids))[:_MAX_COMPARED]
        for name in not_blocked[:_MAX_SUGGESTIONS]:
            for meant in get_close_matches(name, blocked, n=1, cutoff=_SIMILARITY):
                print_stderr(f"{name}: did you mean {meant}?")


def _poll_until_applied(
    client: BlocklistClient, node_ids: Iterable[str], deadline: float, still_blocked: Collection[str]
) -> list[AppliedCount]:
    """How many listeners have applied the last change of each node that has one, once all have or at the deadline.

    Nodes that other owners keep blocked are not blocked again.
    """
    counts = (_poll_node(client, node_id, deadline, may_be_blocked=node_id in still_blocked) for node_id in node_ids)
    return [count for count in counts if count is not None]


def _poll_node(client: BlocklistClient, node_id: str, deadline: float, *, may_be_blocked: bool) -> AppliedCount | None:
    from blocklist.client.answers import AppliedCount  # noqa: PLC0415 - not for --version and --help

    while True:
        try:
            status = client.status(node_id)
        except NotFoundError:
            # It was never blocked, so there is nothing to apply.
            return None
        count = AppliedCount.of_status(status)
        if status.blocked and not may_be_blocked:
            return replace(count, applied=0, superseded=(status.id,))
        remaining = deadline - time.monotonic()
        if count.applied == count.total or remaining <= 0:
            return count
        time.sleep(min(_POLL_SECONDS, remaining))
