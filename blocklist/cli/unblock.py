"""unblock: the caller's claims, or those of all owners, who are named first."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial, reduce
from typing import TYPE_CHECKING, Any, Final

import typer

from blocklist.cli import messages, options
from blocklist.cli.block import claims_on, claims_with_etag, reasons_of, report_dry_run, report_progress
from blocklist.cli.environment import connect, print_context, service_now
from blocklist.cli.messages import ChangeOutput, ChangeReport, confirm, confirm_many, outcome_unknown
from blocklist.cli.options import blocked_nodes
from blocklist.model.claims import merge_claims
from blocklist.model.errors import AmbiguousNodeError, BlocklistError, NotFoundError, PreconditionFailedError
from blocklist.model.names import NameSet
from blocklist.model.node import AppliedBy

if TYPE_CHECKING:
    from blocklist.client.answers import AppliedCount, UnblockResult
    from blocklist.client.client import BlocklistClient
    from blocklist.model.claims import Claim


_MAX_NAMED_AGAIN: Final = 5
_NO_CLAIMS: Final = '"none"'
"""An ETag that no node has."""
_POLL_SECONDS: Final = 0.2
_MAX_COMPARED: Final = 10_000
_MAX_SUGGESTIONS: Final = 5
_SIMILARITY: Final = 0.8


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
        named = None if own is None or not all_owners else _NamedOwners(client, report, own, ask=not yes)
        if named is not None:
            named.name(node_ids)
        with report.sending():
            _unblock(client, report, node_ids, _Removal(wait, by, only_own, named))


class _NamedOwners:
    """Names the owners of nodes before their claims are removed, and again if others have come meanwhile."""

    def __init__(self, client: BlocklistClient, report: ChangeReport, own: str, *, ask: bool) -> None:
        """`own` is the caller. Without `ask` there is no question."""
        self._client = client
        self._report = report
        self._own = own
        self._ask = ask
        self._etags: dict[str, str] = {}

    def name(self, node_ids: Sequence[str]) -> None:
        """Name the others who block one of the nodes. Raises Exit with code 1 if the answer is no."""
        others: dict[str, list[Claim]] = {}
        for node_id in node_ids:
            claims, etag = claims_with_etag(self._client, node_id)
            self._etags[node_id] = etag or _NO_CLAIMS
            if any(claim.owner != self._own for claim in claims):
                others[node_id] = claims
        if not others:
            return
        now = service_now(self._client)
        self._report.note(*(f"{it} is blocked by {messages.claims_message(others[it], now)}" for it in others))
        if self._ask:
            confirm("Remove the claims of all owners?", self._report.note)

    def unblock(self, node_id: str, **how: Any) -> UnblockResult:
        """Unblock the node if nobody has a claim on it who was not named."""
        for _ in range(_MAX_NAMED_AGAIN):
            with suppress(PreconditionFailedError):
                return self._client.unblock_node(node_id, if_match=self._etags[node_id], **how)
            if not self._client.claims(node_id):
                # A free node that has dismissals.
                raise NotFoundError(f"Node {node_id} is not blocked.")
            self.name([node_id])
        return self._client.unblock_node(node_id, if_match=self._etags[node_id], **how)


def _dry_run_unblock(
    client: BlocklistClient, report: ChangeReport, own: str | None, only_own: bool, node_id: str
) -> None:
    """The effect, and each claim that would go."""
    with _naming_other_owners(client, node_id, only_own):
        result = client.dry_run_unblock(node_id, only_own=only_own)
    now = service_now(client)
    claims = claims_on(client, node_id)
    going = {claim.owner for claim in claims if not only_own or claim.owner == own}
    listed = [{**messages.claim_json(claim), "removed": claim.owner in going} for claim in claims]
    if only_own and result.nodes[0].status != 200:
        node = result.nodes[0].node.value()
        report.node(node_id, "stays-blocked", f"{node.id} would stay blocked", node, claims=listed)
    else:
        report_dry_run(report, [node_id], result, now, claims=listed)
    if own is None and len(claims) == 1:
        return
    for claim in claims:
        verb = "removed" if claim.owner in going else "stays"
        report.say(f"  {verb}: {messages.claim_message(claim, now)}")


class _NotOwnError(BlocklistError):
    """The caller has no claim on a node that others block, with these claims."""

    def __init__(self, claims: Sequence[Claim], detail: str) -> None:
        super().__init__(detail)
        self.claims = claims


@contextmanager
def _naming_other_owners(client: BlocklistClient, node_id: str, only_own: bool) -> Iterator[None]:
    """Turn a NotFoundError about the caller's claim into a _NotOwnError that names who blocks the node."""
    try:
        yield
    except NotFoundError:
        if not only_own or not (claims := claims_on(client, node_id)):
            raise
        others = messages.claims_message(claims, service_now(client))
        raise _NotOwnError(
            claims,
            f"{node_id} stays blocked: you have no claim on it; it is blocked by {others}. --all-owners frees it.",
        ) from None


@dataclass(frozen=True, slots=True)
class _Removal:
    """How `unblock` removes claims: the values of --wait, in seconds, and of --wait-for; whether only the caller's.

    With `named` those of all owners, who are named first.
    """

    seconds: int | None
    by: AppliedBy
    only_own: bool
    named: _NamedOwners | None


def _unblock(client: BlocklistClient, report: ChangeReport, node_ids: Sequence[str], wait: _Removal) -> None:
    outcome, progress = unblock_all(client, report, node_ids, wait)
    if progress is not None:
        # The response to an unblocking is about the last node only.
        reasons = reasons_of(client, [*outcome.done, *outcome.not_blocked], wait.by)
        for node_id in progress.superseded:
            # Its unblocking is not in force.
            report.reversed(node_id, f"{node_id} is blocked again; blocklist history {node_id} shows why")
        if progress.superseded:
            raise typer.Exit(1)
        report_progress(report, progress.with_refused(reasons[0]), wait.by, reasons)
    _exit_if_not_all(outcome)


def _exit_if_not_all(outcome: UnblockOutcome) -> None:
    """Raises Exit with code 1 if a name means several nodes, or the caller has no claim on a node."""
    if outcome.ambiguous or outcome.not_own:
        raise typer.Exit(1)


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
        _report_others(report, node_id, "not-own", error.detail, error.claims)
        outcome.not_own.append(node_id)


def _report_others(report: ChangeReport, name: str, result: str, text: str, claims: Sequence[Claim]) -> None:
    """A node that these claims keep blocked."""
    report.node(name, result, text, merge_claims(claims), claims=list(map(messages.claim_json, claims)))


def _not_unblocked(node_ids: Sequence[str]) -> list[str]:
    return [f"Not unblocked: {', '.join(node_ids)}."] if node_ids else []


def unblock_all(
    client: BlocklistClient, report: ChangeReport, node_ids: Sequence[str], wait: _Removal
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
        with _naming_other_owners(client, node_id, wait.only_own):
            own_wait = wait.seconds if node_id == node_ids[-1] else None
            remove = client.unblock_node if wait.named is None else wait.named.unblock
            result = remove(node_id, only_own=wait.only_own, wait=own_wait, applied_by=wait.by)
        progress = result.applied
        # They may have gone meanwhile.
        if result.blocked and (claims := claims_on(client, result.id)):
            still_blocked.add(node_id)
            text = f"{result.id} stays blocked: {messages.claims_message(claims, service_now(client))}"
            _report_others(report, node_id, "stays-blocked", text, claims)
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
