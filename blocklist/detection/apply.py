"""Verdicts -> blocks at the service. Twice is once: the same logs lead to the same block, which changes nothing."""

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
"""Milliseconds for which an earlier block makes the next one longer."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Proposal:
    """A verdict in the light of the service's history. `why_not` says why it is not to be applied."""

    verdict: NodeVerdict
    earlier_blocks: int = 0
    skip_reason: str | None = None


def propose(verdict: NodeVerdict, history: Sequence[Change], rules: Rules, *, now: int) -> Proposal:
    """Make the block longer for each that came before the evidence, and see whether it is still wanted. Pure."""
    since = verdict.last_evidence - HISTORY_MS
    earlier = sum(
        change.type is ChangeType.BLOCKED and since <= change.at <= verdict.last_evidence for change in history
    )
    verdict = extend_for_repeats(verdict, rules, earlier)
    return Proposal(verdict=verdict, earlier_blocks=earlier, skip_reason=_skip_reason(verdict, history, now))


def _skip_reason(verdict: NodeVerdict, history: Sequence[Change], now: int) -> str | None:
    if verdict.end <= now:
        return "the evidence is older than the block would be long"
    last = history[-1] if history else None
    if last is None:
        return None
    if last.type is ChangeType.UNBLOCKED and last.at > verdict.last_evidence:
        return "it was freed by hand since then"
    if not last.type.frees and merge(last.node, _block(verdict, last.node.start)) == last.node:
        return "it is blocked for this already"
    return None


def _block(verdict: NodeVerdict, start: int) -> BlockedNode:
    return BlockedNode(id=node_id(verdict), action=verdict.action, start=start, end=verdict.end, cause=verdict.cause)


def node_id(verdict: NodeVerdict) -> str:
    """The id to block: Spark puts IPv6 addresses in brackets. Raises InvalidError for a host that can be none."""
    return check_node_id(normalize_address(verdict.host) or verdict.host)


def propose_with_history(
    client: BlocklistClient, verdicts: Sequence[NodeVerdict], rules: Rules, *, now: int
) -> list[Proposal]:
    """What is to be done about each verdict. Raises BlocklistError."""
    proposals = []
    for verdict in verdicts:
        try:
            proposals.append(propose(verdict, client.history(node_id(verdict)), rules, now=now))
        except InvalidError as error:
            proposals.append(Proposal(verdict=verdict, skip_reason=str(error)))
    return proposals


def apply(client: BlocklistClient, proposals: Sequence[Proposal]) -> None:
    """Block what is to be blocked. Raises BlocklistError; what was done until then stands, and again is harmless."""
    for proposal in proposals:
        if proposal.skip_reason is None:
            verdict = proposal.verdict
            client.block(node_id(verdict), verdict.cause, action=verdict.action, end=verdict.end, allow_merge=True)
