"""Verdicts and the history of the node at the service -> proposals of claims, and releases of claims. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from math import log
from typing import Final

from blocklist.detection.heuristics import Judgement, NodeVerdict, Rules, extend_for_repeats, judge
from blocklist.detection.node_summary import CHARGED_TO_NODE, Metric, NodeSummary
from blocklist.detection.slowness import MIN_EFFECT
from blocklist.model.changes import Change, ChangeType
from blocklist.model.claims import DETECTION_OWNER, Claim, Claims, automatic_claims, claim_of
from blocklist.model.errors import InvalidError
from blocklist.model.host_matching import normalize_address
from blocklist.model.node import BlockedNode, check_node_id

UNBLOCKED: Final = "the node was unblocked by hand since then"
ALREADY_BLOCKED: Final = "the node is already blocked for this"
_ENDED: Final = "the block would already have ended"
_NOT_SUFFICIENT: Final = "the node was unblocked by hand, and the evidence since then is not sufficient"
HISTORY_MS: Final = 30 * 24 * 3_600_000
"""Earlier blocks within this time before the evidence lengthen the next one."""

History = Callable[[str], Sequence[Change]]
"""Returns the changes of a host, the oldest first. Raises InvalidError for a host that cannot be a node."""
Summaries = Callable[[Mapping[str, int]], Sequence[NodeSummary]]
"""Returns the summaries; evidence of a host before the given time (Unix ms) does not count."""
MachineKinds = Callable[[Sequence[str]], Mapping[str, str]]
"""Returns the kind of machine of each host that has one."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Proposal:
    """A verdict with the node's history at the service. `skip_reason`: why it is not applied, None if it is.

    `unblocked_at`: when the node was last unblocked by hand, or its claim removed (Unix ms); 0: never.
    """

    verdict: NodeVerdict
    earlier_blocks: int = 0
    unblocked_at: int = 0
    skip_reason: str | None = None

    @property
    def stale(self) -> bool:
        """Whether its evidence blocks nothing any more."""
        return self.skip_reason not in {None, ALREADY_BLOCKED}


@dataclass(frozen=True, kw_only=True, slots=True)
class JudgedNodes:
    """The summaries as they were judged, the judgement, and a proposal for each verdict."""

    summaries: Sequence[NodeSummary]
    judgement: Judgement
    proposals: Sequence[Proposal]


def judge_with_history(
    summaries: Summaries, rules: Rules, kinds: MachineKinds, history: History, *, now: int
) -> JudgedNodes:
    """Judge all nodes. What was seen of a node before somebody unblocked it by hand does not count.

    A verdict that rests on such evidence is a proposal that is not applied.
    """
    known = cache(history)
    proposal = cache(lambda verdict: _propose(verdict, known, rules, now))
    ignored: dict[str, int] = {}
    outdated: dict[str, Proposal] = {}
    while True:
        nodes = summaries(ignored)
        judged = judge(nodes, rules, lambda verdict: proposal(verdict).stale, kinds([node.host for node in nodes]))
        suspects = [*judged.verdicts, *judged.left_open_verdicts]
        found = {it.host: it for it in suspects if _rests_on_old_evidence(it, known, ignored)}
        if not found:
            break
        ignored |= {host: unblocked_at(known(host)) for host in found}
        outdated |= {host: _outdated(proposal(verdict)) for host, verdict in found.items()}
    blamed = {verdict.host for verdict in suspects}
    kept = [it for host, it in outdated.items() if host not in blamed]
    return JudgedNodes(
        summaries=nodes,
        judgement=judged,
        proposals=[*(proposal(verdict) for verdict in judged.verdicts), *kept],
    )


def _rests_on_old_evidence(verdict: NodeVerdict, history: History, ignored: Mapping[str, int]) -> bool:
    try:
        until = unblocked_at(history(verdict.host))
    except InvalidError:
        return False
    return until > ignored.get(verdict.host, 0) and verdict.first_evidence < until


def _outdated(proposal: Proposal) -> Proposal:
    return replace(proposal, skip_reason=proposal.skip_reason if proposal.stale else _NOT_SUFFICIENT)


def _propose(verdict: NodeVerdict, history: History, rules: Rules, now: int) -> Proposal:
    try:
        return propose(verdict, history(verdict.host), rules, now=now)
    except InvalidError as error:
        return Proposal(verdict=verdict, skip_reason=str(error))


def propose(verdict: NodeVerdict, history: Sequence[Change], rules: Rules, *, now: int) -> Proposal:
    """Extend the block for each earlier block, and decide whether to apply it.

    An existing claim of detection becomes neither weaker nor shorter: it may rest on more logs.
    """
    own = own_claim(history)
    earlier = _earlier_blocks(verdict, history, is_blocked=own is not None)
    verdict = extend_for_repeats(verdict, rules, earlier)
    if own is not None:
        block = own.block
        verdict = replace(
            verdict,
            action=max(verdict.action, block.action),
            end=max(verdict.end, block.end),
            canary=verdict.canary and block.canary,
        )
    unblocked = unblocked_at(history)
    skip_reason = _skip_reason(verdict, own, unblocked, now)
    return Proposal(verdict=verdict, earlier_blocks=earlier, unblocked_at=unblocked, skip_reason=skip_reason)


def _earlier_blocks(verdict: NodeVerdict, history: Sequence[Change], *, is_blocked: bool) -> int:
    """The number of blocks before the evidence; without the one that the verdict only extends."""
    since = verdict.last_evidence - HISTORY_MS
    blocks = [change.at for change in history if change.type is ChangeType.BLOCKED]
    return sum(since <= at <= verdict.last_evidence for at in (blocks[:-1] if is_blocked else blocks))


def _skip_reason(verdict: NodeVerdict, own: Claim | None, unblocked: int, now: int) -> str | None:
    if verdict.end <= now:
        return _ENDED
    if unblocked > verdict.last_evidence:
        return UNBLOCKED
    if own is not None and own.block == _block(verdict, own.block):
        return ALREADY_BLOCKED
    return None


def _block(verdict: NodeVerdict, block: BlockedNode) -> BlockedNode:
    """The claimed block as the verdict has it."""
    return replace(block, action=verdict.action, end=verdict.end, cause=verdict.cause, canary=verdict.canary)


def own_claim(history: Sequence[Change]) -> Claim | None:
    """The claim of detection after these changes."""
    return claim_of(history[-1].claims_after, DETECTION_OWNER) if history else None


def unblocked_at(history: Sequence[Change]) -> int:
    """When the node was last unblocked by hand, or the claim of detection removed; 0: never."""
    return max((change.at for change in manual_unblocks(history)), default=0)


def manual_unblocks(history: Sequence[Change]) -> Iterator[Change]:
    """The changes with which somebody unblocked the node, or removed the claim of detection."""
    before: Claims = ()
    for change in history:
        after = change.claims_after
        if _overrules(change, before, after):
            yield change
        before = after


def _overrules(change: Change, before: Claims, after: Claims) -> bool:
    """Whether a person unblocked the node, or the claim of detection was removed. An alert that resolves is neither.

    Unblocking a node dismisses automatic claims: if there were some and none is dismissed, the last one was removed.
    """
    own = claim_of(before, DETECTION_OWNER)
    removed = own is not None and not own.block.ended(change.at) and claim_of(after, DETECTION_OWNER) is None
    by_hand = change.dismissed is not None or not automatic_claims(before)
    return removed or (change.type is ChangeType.UNBLOCKED and by_hand)


def node_id(host: str) -> str:
    """Return the id to block: Spark writes IPv6 addresses in brackets. Raises InvalidError for an invalid host."""
    return check_node_id(normalize_address(host) or host)


# Which claims of detection are removed before they end: those on nodes that have recovered. Pure.


@dataclass(frozen=True, kw_only=True, slots=True)
class Release:
    """A node whose claim may be removed, with the latest applications, in which it was as good as its peers."""

    host: str
    applications: Sequence[str]

    @property
    def reason(self) -> str:
        return (
            f"as good as its peers in its latest {len(self.applications)} applications: {', '.join(self.applications)}"
        )


def release(node: NodeSummary, rules: Rules) -> Release | None:
    """The release of a node; None if it was not compared in enough applications, or is not clean.

    `node` has only evidence from after the claim was last changed: of applications that still used the node. As many
    applications, stages and minutes are needed as for a verdict. In the latest of them the node must not be slower than
    its peers by any time, and no failure may be charged to it.
    """
    latest = node.comparisons_by(Metric.COMPUTE)[-rules.min_applications :]
    apps = [it.app for it in latest]
    enough = len(apps) == rules.min_applications and sum(it.stages for it in latest) >= rules.min_stages
    if not enough or latest[-1].last - min(it.first for it in latest) < rules.min_span_ms:
        return None
    slow = any(it.app in apps and log(it.slowdown) >= MIN_EFFECT for it in node.comparisons)
    charged = (node.failures[kind] for kind in CHARGED_TO_NODE if kind in node.failures)
    failed = any(it.last >= min(own.first for own in latest) for failures in charged for it in failures.by_application)
    return None if slow or failed else Release(host=node.host, applications=apps)


def claimed_at(history: Sequence[Change]) -> int | None:
    """When the claim of detection got its present form (Unix ms); None if there is no such claim."""
    found = own_claim(history)
    if found is None:
        return None
    at = history[-1].at
    for change in reversed(history):
        if own_claim([change]) != found:
            break
        at = change.at
    return at
