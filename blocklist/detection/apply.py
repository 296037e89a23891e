"""Verdicts -> blocks at the service. Idempotent: the same logs lead to the same block."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from blocklist.client.client import BlocklistClient
from blocklist.detection.heuristics import NodeVerdict, Rules, extend_for_repeats
from blocklist.model.changes import Change, ChangeType
from blocklist.model.errors import InvalidError
from blocklist.model.host_matching import normalize_address
from blocklist.model.node import BlockedNode, check_node_id, merge

HISTORY_MS: Final = 30 * 24 * 3_600_000
"""Earlier blocks within this time before the evidence lengthen the next one."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Proposal:
    """A verdict with the node's history at the service. `skip_reason`: why it is not applied, None if it is."""

    verdict: NodeVerdict
    earlier_blocks: int = 0
    skip_reason: str | None = None


def propose(verdict: NodeVerdict, history: Sequence[Change], rules: Rules, *, now: int) -> Proposal:
    """Extend the block for each earlier block, and decide whether to apply it. Pure."""
    since = verdict.last_evidence - HISTORY_MS
    earlier = sum(
        change.type is ChangeType.BLOCKED and since <= change.at <= verdict.last_evidence for change in history
    )
    verdict = extend_for_repeats(verdict, rules, earlier)
    return Proposal(verdict=verdict, earlier_blocks=earlier, skip_reason=_skip_reason(verdict, history, now))


def _skip_reason(verdict: NodeVerdict, history: Sequence[Change], now: int) -> str | None:
    if verdict.end <= now:
        return "the block would already have ended"
    last = history[-1] if history else None
    if last is None:
        return None
    if last.type is ChangeType.UNBLOCKED and last.at > verdict.last_evidence:
        return "the node was unblocked by hand since then"
    if not last.type.frees and merge(last.node, _block(verdict, last.node.start)) == last.node:
        return "the node is already blocked for this"
    return None


def _block(verdict: NodeVerdict, start: int) -> BlockedNode:
    return BlockedNode(id=node_id(verdict), action=verdict.action, start=start, end=verdict.end, cause=verdict.cause)


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


def apply(client: BlocklistClient, proposals: Sequence[Proposal]) -> None:
    """Block the proposed nodes. Raises BlocklistError; blocks made before stay, and a retry is harmless."""
    for proposal in proposals:
        if proposal.skip_reason is None:
            verdict = proposal.verdict
            client.block(node_id(verdict), verdict.cause, action=verdict.action, end=verdict.end, allow_merge=True)
