"""Verdicts and the history of the node at the service -> proposals of claims, and releases of claims. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from enum import StrEnum
from functools import cache, partial
from math import log
from typing import Final

from blocklist.detection.events import MAX_TIME
from blocklist.detection.heuristics import Judgement, NodeVerdict, extend_for_repeats, judge
from blocklist.detection.node_summary import (
    CHARGED_TO_NODE,
    Comparison,
    HostInApplication,
    Metric,
    NodeSummary,
    TaskTime,
    by_host,
    summarize,
)
from blocklist.detection.slowness import HOUR_MS, MIN_EFFECT, HurtApplication, Rules
from blocklist.model.changes import Change, ChangeType
from blocklist.model.claims import DETECTION_OWNER, Claim, Claims, automatic_claims, claim_of
from blocklist.model.errors import InvalidError
from blocklist.model.names import same_machine
from blocklist.model.node import BlockedNode, check_node_id
from blocklist.model.text import json_text

UNBLOCKED: Final = "the node was unblocked by hand since then"
ALREADY_BLOCKED: Final = "the node is already blocked for this"
_ONE_OWNER: Final = "all its evidence is in logs of one file owner; --trust-logs lets it count"
_ENDED: Final = "the block would already have ended"
_NOT_SUFFICIENT: Final = "the node was unblocked by hand, and the evidence since then is not sufficient"
HISTORY_MS: Final = 30 * 24 * 3_600_000
"""Earlier blocks within this time before the evidence lengthen the next one."""

History = Callable[[str], Sequence[Change]]
"""Returns the changes of a host, the oldest first. Raises InvalidError for a host that cannot be a node."""
Summaries = Callable[[Mapping[str, int]], Sequence[NodeSummary]]
"""Returns the summaries; evidence of a host before the given time (Unix ms) does not count."""
LogOwners = Callable[[], Mapping[str, str]]
"""Returns the owner of each application's log, as far as it is known."""
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
    summaries: Summaries,
    rules: Rules,
    kinds: MachineKinds,
    history: History,
    *,
    now: int,
    confirmed: Callable[[Sequence[str]], int] | None = None,
    log_owners: LogOwners | None = None,
) -> JudgedNodes:
    """Judge all nodes. What was seen of a node before somebody unblocked it by hand does not count.

    A verdict that rests on such evidence is a proposal that is not applied, and so is one of which all evidence is in
    logs of one of the `log_owners`; None: logs are trusted. `confirmed` counts the hosts that count for `max_share`,
    see `judge`.
    """
    known = cache(history)
    proposal = cache(lambda verdict: _attested(_propose(verdict, known, rules, now), log_owners))
    ignored: dict[str, int] = {}
    outdated: dict[str, Proposal] = {}
    while True:
        nodes = summaries(ignored)
        hosts = [node.host for node in nodes]
        count = None if confirmed is None else confirmed(hosts)
        judged = judge(nodes, rules, lambda verdict: proposal(verdict).stale, kinds(hosts), count)
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


def _attested(proposal: Proposal, log_owners: LogOwners | None) -> Proposal:
    hurt = (it.app for it in proposal.verdict.hurt)
    if proposal.stale or have_two_owners(hurt, log_owners):
        return proposal
    return replace(proposal, skip_reason=_ONE_OWNER)


def have_two_owners(applications: Iterable[str], log_owners: LogOwners | None) -> bool:
    """Whether the logs are of two known owners, or are trusted: all logs of one owner are the word of one party."""
    if log_owners is None:
        return True
    owners = log_owners()
    return len({owners[app] for app in applications if app in owners}) > 1


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
    return claim_of(history[-1].claims, DETECTION_OWNER) if history else None


def unblocked_at(history: Sequence[Change]) -> int:
    """When the node was last unblocked by hand, or the claim of detection removed; 0: never."""
    return max((change.at for change in manual_unblocks(history)), default=0)


def manual_unblocks(history: Sequence[Change]) -> Iterator[Change]:
    """The changes with which somebody unblocked the node, or removed the claim of detection."""
    before: Claims = ()
    for change in history:
        after = change.claims
        if _overrules(change, before, after):
            yield change
        before = after


def _overrules(change: Change, before: Claims, after: Claims) -> bool:
    """Whether a person unblocked the node, or the claim of detection was removed. An alert that resolves is neither.

    Unblocking a node dismisses automatic claims: if there were some and none is dismissed, the last one was removed.
    """
    own = claim_of(before, DETECTION_OWNER)
    removed = own is not None and not own.block.ended(change.at) and claim_of(after, DETECTION_OWNER) is None
    by_hand = bool(change.dismissed) or not automatic_claims(before)
    return removed or (change.type is ChangeType.UNBLOCKED and by_hand)


def node_id(host: str) -> str:
    """Return the id to block: Spark writes IPv6 addresses in brackets. Raises InvalidError for an invalid host."""
    return check_node_id(host)


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
    its peers by any time that matters, and no failure may be charged to it.
    """
    latest = node.comparisons_by(Metric.COMPUTE)[-rules.min_applications :]
    apps = [it.app for it in latest]
    enough = len(apps) == rules.min_applications and sum(it.stages for it in latest) >= rules.min_stages
    if not enough or latest[-1].last - min(it.first for it in latest) < rules.min_span_ms:
        return None
    slow = any(it.app in apps and log(it.slowdown) >= MIN_EFFECT and _matters(it) for it in node.comparisons)
    charged = (node.failures[kind] for kind in CHARGED_TO_NODE if kind in node.failures)
    failed = any(it.last >= min(own.first for own in latest) for failures in charged for it in failures.by_application)
    return None if slow or failed else Release(host=node.host, applications=apps)


def _matters(found: Comparison) -> bool:
    """Whether the time by this metric mattered in a stage: what is short varies, and makes nobody slow."""
    return found.metric is Metric.COMPUTE or found.slow_stages > 0


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


# Which blocks that there were agreed with what applications showed later. Pure.

AFTERWARDS_MS: Final = 24 * 3_600_000
"""Applications that began at most this time after the end of a block can still agree with it."""


class Agreement(StrEnum):
    """What later applications say about a block."""

    AGREED = "agreed"
    """The host was slow, or failed, in at least half of them."""
    CONTRADICTED = "contradicted"
    """It was as good as its peers in most of them."""
    UNKNOWN = "no evidence"
    """None used the host and could be compared."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ActualBlock:
    """A block of the service in [start, end), Unix ms, with the owners of all its claims.

    `differed` of the `applications` that began on the host after `start` agree with it.
    """

    node: str
    start: int
    end: int
    owners: Sequence[str]
    cause: str
    applications: int = 0
    differed: int = 0

    @property
    def agreement(self) -> Agreement:
        if not self.applications:
            return Agreement.UNKNOWN
        return Agreement.AGREED if 2 * self.differed >= self.applications else Agreement.CONTRADICTED


def actual_blocks(changes: Iterable[Change]) -> list[ActualBlock]:
    """Return the blocks of a change log, each until it was removed or would have ended, in order of their start."""
    open_blocks: dict[str, ActualBlock] = {}
    found: list[ActualBlock] = []
    for change in sorted(changes, key=lambda it: it.revision):
        node = change.node
        before = open_blocks.pop(node.id, None)
        if change.type.frees:
            if before is not None:
                found.append(replace(before, end=change.at))
            continue
        owners = [claim.owner for claim in change.claims]
        open_blocks[node.id] = ActualBlock(
            node=node.id,
            start=before.start if before else change.at,
            end=node.end,
            owners=list(dict.fromkeys([*(before.owners if before else ()), *owners])),
            cause=node.cause,
        )
    return sorted([*found, *open_blocks.values()], key=lambda it: (it.start, it.node))


def compare_with_evidence(blocks: Sequence[ActualBlock], evidence: Iterable[HostInApplication]) -> list[ActualBlock]:
    """Return the blocks of which later evidence can be looked for, with what it says.

    An application counts for a block if its first task on the host started after the block began, and before the next
    one of the host or AFTERWARDS_MS after the end. A block that began after the last application is left out.
    """
    known = by_host(evidence)
    latest = max((it.last for own in known.values() for it in own), default=0)
    own = {
        node: [it for host, found in known.items() if same_machine(node, host) for it in found]
        for node in {block.node for block in blocks}
    }
    return [_compared(it, _until(it, blocks), own[it.node]) for it in blocks if it.start <= latest]


def _until(block: ActualBlock, blocks: Sequence[ActualBlock]) -> int:
    following = (it.start for it in blocks if same_machine(it.node, block.node) and it.start > block.start)
    return min([block.end + AFTERWARDS_MS, *following])


def _compared(block: ActualBlock, until: int, evidence: Sequence[HostInApplication]) -> ActualBlock:
    later = [it for it in evidence if block.start <= it.first < until and (it.comparisons or _failed(it))]
    return replace(block, applications=len(later), differed=sum(differed(it) for it in later))


def differed(evidence: HostInApplication) -> bool:
    """Whether the host was slow, or failed, in the application."""
    slow = any(log(it.slowdown) >= MIN_EFFECT and it.slow_stages for it in evidence.comparisons)
    return slow or _failed(evidence)


def _failed(evidence: HostInApplication) -> bool:
    return any(it.failure in CHARGED_TO_NODE for it in evidence.failures)


# Proposals as text: rows for the table and the report, and JSON lines.

_TITLES = {"node": "NODE", "severity": "SEVERITY", "until": "UNTIL (UTC)", "what": "", "cause": "EVIDENCE"}


def proposal_row(proposal: Proposal, *, applied: bool) -> dict[str, str]:
    verdict = proposal.verdict
    if proposal.skip_reason is not None:
        what = f"not applied: {proposal.skip_reason}"
    else:
        what = f"{'blocked' if applied else 'would be blocked'}{' (canary)' if verdict.canary else ''}"
    return {
        "node": verdict.host,
        "severity": verdict.severity.name.lower(),
        "action": verdict.action.name,
        "cause": verdict.cause,
        "until": format_time(verdict.end),
        "chance": f"{verdict.p_value:.0e}",
        "what": what,
    }


def format_time(millis: int) -> str:
    """Format Unix ms in UTC; `never` from the year 10000 on, as for the end of a permanent block."""
    return "never" if millis >= MAX_TIME else f"{datetime.fromtimestamp(millis // 1000, UTC):%Y-%m-%d %H:%M:%S}"


def too_few_hosts(summaries: Sequence[NodeSummary]) -> list[str]:
    """A sentence if no host can be told from its only peer, so that no slow one is found."""
    hosts = sorted(node.host for node in summaries)
    if len(hosts) not in (1, 2):
        return []
    named = " and ".join(hosts)
    compared = "hosts are compared with each other, and of two it is not known which is the slow one"
    return [f"Only {named} ran tasks: {compared}. At least three are needed."]


def table(rows: Sequence[Mapping[str, str]]) -> str:
    if not rows:
        return "No nodes to block.\n"
    return columns(_TITLES, rows)


def columns(titles: Mapping[str, str], rows: Sequence[Mapping[str, str]]) -> str:
    """Return rows under titles, as wide as necessary."""
    lines = [titles, *rows]
    widths = {name: max(len(line[name]) for line in lines) for name in titles}
    return "".join("  ".join(line[name].ljust(widths[name]) for name in titles).rstrip() + "\n" for line in lines)


def json_line(proposal: Proposal, *, applied: bool) -> str:
    """Return one JSON object; times are Unix ms."""
    verdict = proposal.verdict
    body = {
        "node": verdict.host,
        "severity": verdict.severity.name,
        "action": verdict.action.name,
        "cause": verdict.cause,
        **({"canary": True} if verdict.canary else {}),
        "since": verdict.since.first if verdict.since else None,
        "sinceApplication": verdict.since.app if verdict.since else None,
        "coreHoursLost": core_hours(sum(it.lost_ms for it in verdict.hurt)),
        "applications": [_application(it) for it in verdict.hurt],
        "seen": verdict.last_evidence,
        "end": verdict.end,
        "chance": verdict.p_value,
        "earlierBlocks": proposal.earlier_blocks,
        "applied": applied and proposal.skip_reason is None,
        "whyNot": proposal.skip_reason,
    }
    return json_text(body)


def _application(hurt: HurtApplication) -> dict[str, str | int | float]:
    return {"application": hurt.app, "since": hurt.first, "coreHoursLost": core_hours(hurt.lost_ms)}


def core_hours(millis: float) -> float:
    """Task time as core-hours: a task occupies one core."""
    return round(millis / HOUR_MS, 4)


def release_sentence(release: Release, *, applied: bool) -> str:
    what = "is no longer claimed" if applied else "would no longer be claimed"
    return f"Node {release.host} {what}: {release.reason}."


def release_line(release: Release, *, applied: bool) -> str:
    """Return a release as one JSON object."""
    applications = list(release.applications)
    body = {"node": release.host, "released": True, "cause": release.reason, "cleanApplications": applications}
    return json_text(body | {"applied": applied})


# What rules would have blocked in the past, and what that would have saved and cost. Pure.
#
# The applications are replayed in the order in which they ended. After each one, all that had ended are judged as a
# run of the command would have judged them at that moment, and blocked for as long as the service would have.
#
# Saved and cost are hours of tasks that started on a host while it would have been blocked; a task occupies one core.
# Saved core-hours are task time above what peers needed, and all time of tasks that failed by the fault of the host.
# The cost is healthy core-hours that would have been out of service: time of tasks on which the host was as good as
# its peers, or could not be compared. An idle host saves and costs nothing.


Times = Mapping[str, Sequence[TaskTime]]
"""The task times of each host."""


def effect(block: BlockedNode, times: Times) -> tuple[int, int]:
    """What a block would have saved and cost (ms), in the minutes that begin during it."""
    during = [it for it in times.get(block.id, ()) if block.start <= it.minute < block.end]
    return sum(it.lost_ms for it in during), sum(it.healthy_ms for it in during)


def replay(evidence: Iterable[HostInApplication], rules: Rules, kinds: Mapping[str, str]) -> list[BlockedNode]:
    """Return the blocks, in the order in which they begin. An extended block is one, until its last end."""
    known: list[HostInApplication] = []
    blocks: defaultdict[str, list[BlockedNode]] = defaultdict(list)
    applications: defaultdict[str, list[HostInApplication]] = defaultdict(list)
    for each in evidence:
        applications[each.app].append(each)
    by_end = sorted((max(it.last for it in own), app) for app, own in applications.items())
    for end, app in by_end:
        now, ended = end + 1, applications[app]
        # What began on a blocked host would not have run there.
        known.extend(it for it in ended if not any(own.start <= it.first < own.end for own in blocks[it.host]))
        history = partial(_recorded, blocks, now)
        judged = judge_with_history(lambda _: summarize(known), rules, lambda _: kinds, history, now=now)
        for verdict in (it.verdict for it in judged.proposals if it.skip_reason is None):
            own = blocks[verdict.host]
            start = own.pop().start if own and own[-1].end > now else now
            own.append(
                BlockedNode(
                    id=verdict.host,
                    action=verdict.action,
                    start=start,
                    end=verdict.end,
                    cause=verdict.cause,
                    canary=verdict.canary,
                )
            )
    return sorted((it for own in blocks.values() for it in own), key=lambda it: (it.start, it.id))


def _recorded(blocks: Mapping[str, Sequence[BlockedNode]], now: int, host: str) -> Sequence[Change]:
    """The changes that the service would have had then. Raises InvalidError for a host that cannot be a node."""
    node_id(host)
    found = []
    for block in blocks[host]:
        claims = (Claim(owner=DETECTION_OWNER, author=None, block=block),)
        found.append(Change(revision=1, type=ChangeType.BLOCKED, at=block.start, node=block, claims=claims))
        if block.end <= now:
            found.append(Change(revision=2, type=ChangeType.EXPIRED, at=block.end, node=block))
    return found
