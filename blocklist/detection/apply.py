"""Verdicts -> claims at the service. Idempotent: the same logs lead to the same claim."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from blocklist.client.client import BlocklistClient
from blocklist.detection.heuristics import NodeVerdict, Rules, extend_for_repeats
from blocklist.model.changes import Change, ChangeType
from blocklist.model.claims import Claim, Claims, automatic_claims, claim_of, expand
from blocklist.model.errors import DismissedError, InvalidError
from blocklist.model.host_matching import normalize_address
from blocklist.model.node import BlockedNode, check_node_id

DETECTION_OWNER: Final = "detection"
"""The owner of the claims that verdicts lead to."""
_ENDED: Final = "the block would already have ended"
_UNBLOCKED: Final = "the node was unblocked by hand since then"
HISTORY_MS: Final = 30 * 24 * 3_600_000
"""Earlier blocks within this time before the evidence lengthen the next one."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Proposal:
    """A verdict with the node's history at the service. `skip_reason`: why it is not applied, None if it is."""

    verdict: NodeVerdict
    earlier_blocks: int = 0
    skip_reason: str | None = None

    @property
    def stale(self) -> bool:
        """Whether its evidence blocks nothing any more."""
        return self.skip_reason in {_ENDED, _UNBLOCKED}


def propose(verdict: NodeVerdict, history: Sequence[Change], rules: Rules, *, now: int) -> Proposal:
    """Extend the block for each earlier block, and decide whether to apply it. Pure.

    An existing claim of detection becomes neither weaker nor shorter: it may rest on more logs.
    """
    since = verdict.last_evidence - HISTORY_MS
    earlier = sum(
        change.type is ChangeType.BLOCKED and since <= change.at <= verdict.last_evidence for change in history
    )
    verdict = extend_for_repeats(verdict, rules, earlier)
    own = claim_of(_claims_after(history[-1]), DETECTION_OWNER) if history else None
    if own is not None:
        block = own.block
        verdict = replace(verdict, action=max(verdict.action, block.action), end=max(verdict.end, block.end))
    return Proposal(verdict=verdict, earlier_blocks=earlier, skip_reason=_skip_reason(verdict, own, history, now))


def _skip_reason(verdict: NodeVerdict, own: Claim | None, history: Sequence[Change], now: int) -> str | None:
    if verdict.end <= now:
        return _ENDED
    before: Claims = ()
    for change in history:
        after = _claims_after(change)
        if change.at > verdict.last_evidence and _overrules(change, before, after):
            return _UNBLOCKED
        before = after
    if own is not None and own.block == _block(verdict, own.block):
        return "the node is already blocked for this"
    return None


def _block(verdict: NodeVerdict, block: BlockedNode) -> BlockedNode:
    """The claimed block as the verdict has it."""
    return replace(block, action=verdict.action, end=verdict.end, cause=verdict.cause)


def _overrules(change: Change, before: Claims, after: Claims) -> bool:
    """Whether a person unblocked the node, or removed the claim of detection. An alert that resolves overrules nothing.

    Unblocking a node dismisses automatic claims: if there were some and none is dismissed, the last one was removed.
    """
    own = claim_of(before, DETECTION_OWNER)
    removed = own is not None and not own.block.ended(change.at) and claim_of(after, DETECTION_OWNER) is None
    by_hand = change.dismissed is not None or not automatic_claims(before)
    return removed or (change.type is ChangeType.UNBLOCKED and by_hand)


def _claims_after(change: Change) -> Claims:
    return () if change.type.frees else expand(change.claims or change.created_by, change.node)


def node_id(verdict: NodeVerdict) -> str:
    """Return the id to block: Spark writes IPv6 addresses in brackets. Raises InvalidError for an invalid host."""
    return check_node_id(normalize_address(verdict.host) or verdict.host)


def propose_with_history(
    client: BlocklistClient, verdicts: Sequence[NodeVerdict], rules: Rules, *, now: int
) -> list[Proposal]:
    """Return a proposal for each verdict. Raises BlocklistError."""
    proposals = []
    for verdict in verdicts:
        try:
            proposals.append(propose(verdict, client.history(node_id(verdict)), rules, now=now))
        except InvalidError as error:
            proposals.append(Proposal(verdict=verdict, skip_reason=str(error)))
    return proposals


def apply(client: BlocklistClient, proposals: Sequence[Proposal]) -> list[Proposal]:
    """Claim the proposed nodes; return the proposals, those that were dismissed meanwhile with that as `skip_reason`.

    Raises BlocklistError; claims made before stay, and a retry is harmless.
    """
    return [it if it.skip_reason is not None else _apply_one(client, it) for it in proposals]


def _apply_one(client: BlocklistClient, proposal: Proposal) -> Proposal:
    verdict = proposal.verdict
    try:
        client.put_claim(
            node_id(verdict),
            DETECTION_OWNER,
            verdict.cause,
            action=verdict.action,
            end=verdict.end,
            last_evidence=verdict.last_evidence,
        )
    except DismissedError:
        return replace(proposal, skip_reason=_UNBLOCKED)
    return proposal
