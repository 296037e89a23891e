"""Proposals -> claims at the service. Idempotent: the same logs lead to the same claim."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

from blocklist.client.client import BlocklistClient
from blocklist.detection.heuristics import Rules
from blocklist.detection.proposals import (
    UNBLOCKED,
    History,
    JudgedNodes,
    Proposal,
    Release,
    Summaries,
    claimed_at,
    node_id,
    release,
)
from blocklist.model.claims import DETECTION_OWNER
from blocklist.model.errors import DismissedError, NotFoundError
from blocklist.model.host_matching import normalize_address, same_machine
from blocklist.model.node import is_node_id


def history_of(client: BlocklistClient | None) -> History:
    """Return what the service knows about a host; nothing without a service. It raises BlocklistError."""
    return lambda host: client.history(node_id(host)) if client is not None else ()


def apply(client: BlocklistClient, proposals: Sequence[Proposal]) -> list[Proposal]:
    """Claim the proposed nodes; return the proposals, those that were dismissed meanwhile with that as `skip_reason`.

    Raises BlocklistError; claims made before stay, and a retry is harmless.
    """
    return [it if it.skip_reason is not None else _apply_one(client, it) for it in proposals]


def _apply_one(client: BlocklistClient, proposal: Proposal) -> Proposal:
    verdict = proposal.verdict
    try:
        client.put_claim(
            node_id(verdict.host),
            DETECTION_OWNER,
            verdict.cause,
            action=verdict.action,
            end=verdict.end,
            canary=verdict.canary,
            last_evidence=verdict.last_evidence,
        )
    except DismissedError:
        return replace(proposal, skip_reason=UNBLOCKED)
    return proposal


def find_releases(
    client: BlocklistClient, judged: JudgedNodes, summaries: Summaries, history: History, rules: Rules
) -> list[Release]:
    """Return the nodes whose claims are removed early. Raises BlocklistError.

    A node that this run claims again keeps its claim.
    """
    claimed = {it.verdict.host for it in judged.proposals if it.skip_reason is None}
    hosts = [node.host for node in judged.summaries if node.host not in claimed]
    hosts = [host for host in hosts if is_node_id(normalize_address(host) or host)]
    nodes = [claim.node for claim in client.all_claims(owner=DETECTION_OWNER)]
    held = [host for host in hosts if any(same_machine(node, host) for node in nodes)]
    since = {host: at for host in held if (at := claimed_at(history(host))) is not None}
    if not since:
        return []
    recent = [node for node in summaries(since) if node.host in since]
    return [found for node in recent if (found := release(node, rules)) is not None]


def remove_claims(client: BlocklistClient, releases: Sequence[Release]) -> None:
    """Remove the claims of detection. Raises BlocklistError; a claim that has ended meanwhile is no error."""
    for it in releases:
        with suppress(NotFoundError):
            client.remove_claim(node_id(it.host), DETECTION_OWNER)
