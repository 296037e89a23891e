"""Verdicts -> blocks at the service. Twice is once: the same logs lead to the same block, which changes nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from blocklist.client.client import BlocklistClient
from blocklist.detection.heuristics import Rules, Verdict, longer
from blocklist.model.changes import Change, ChangeType
from blocklist.model.errors import InvalidError
from blocklist.model.host_matching import as_address
from blocklist.model.node import BlockedNode, check_node_id, merge

REMEMBERED: Final = 30 * 24 * 3_600_000
"""Milliseconds for which an earlier block makes the next one longer."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Proposal:
    """A verdict in the light of the service's history. `why_not` says why it is not to be applied."""

    verdict: Verdict
    earlier: int = 0
    why_not: str | None = None


def propose(verdict: Verdict, history: Sequence[Change], rules: Rules, *, now: int) -> Proposal:
    """Make the block longer for each that came before the evidence, and see whether it is still wanted. Pure."""
    since = verdict.seen - REMEMBERED
    earlier = sum(change.type is ChangeType.BLOCKED and since <= change.at <= verdict.seen for change in history)
    verdict = longer(verdict, rules, earlier)
    return Proposal(verdict=verdict, earlier=earlier, why_not=_why_not(verdict, history, now))


def _why_not(verdict: Verdict, history: Sequence[Change], now: int) -> str | None:
    if verdict.end <= now:
        return "the evidence is older than the block would be long"
    last = history[-1] if history else None
    if last is None:
        return None
    if last.type is ChangeType.UNBLOCKED and last.at > verdict.seen:
        return "it was freed by hand since then"
    if not last.type.frees and merge(last.node, _block(verdict, last.node.start)) == last.node:
        return "it is blocked for this already"
    return None


def _block(verdict: Verdict, start: int) -> BlockedNode:
    return BlockedNode(id=node_id(verdict), action=verdict.action, start=start, end=verdict.end, cause=verdict.cause)


def node_id(verdict: Verdict) -> str:
    """The id to block: Spark puts IPv6 addresses in brackets. Raises InvalidError for a host that can be none."""
    return check_node_id(as_address(verdict.host) or verdict.host)


def with_history(client: BlocklistClient, verdicts: Sequence[Verdict], rules: Rules, *, now: int) -> list[Proposal]:
    """What is to be done about each verdict. Raises BlocklistError."""
    proposals = []
    for verdict in verdicts:
        try:
            proposals.append(propose(verdict, client.history(node_id(verdict)), rules, now=now))
        except InvalidError as error:
            proposals.append(Proposal(verdict=verdict, why_not=str(error)))
    return proposals


def apply(client: BlocklistClient, proposals: Sequence[Proposal]) -> None:
    """Block what is to be blocked. Raises BlocklistError; what was done until then stands, and again is harmless."""
    for proposal in proposals:
        if proposal.why_not is None:
            own = proposal.verdict
            client.block(node_id(own), own.cause, action=own.action, end=own.end, allow_merge=True)
