"""What rules would have blocked in the past, and what that would have saved and cost. Pure.

The applications are replayed in the order in which they ended. After each one, all that had ended are judged as a run
of the command would have judged them at that moment, and blocked for as long as the service would have.

Saved and cost are hours of tasks that started on a host while it would have been blocked; a task occupies one core.
Saved core-hours are task time above what peers needed, and all time of tasks that failed by the fault of the host. The
cost is healthy core-hours that would have been out of service: time of tasks on which the host was as good as its
peers, or could not be compared. An idle host saves and costs nothing.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from blocklist.detection.evidence import HostInApplication, TaskTime, summarize
from blocklist.detection.heuristics import NodeVerdict, Rules
from blocklist.detection.proposals import MachineKinds, judge_with_history, node_id
from blocklist.model.changes import Change, ChangeType
from blocklist.model.claims import DETECTION_OWNER, Claim
from blocklist.model.node import BlockAction, BlockedNode


@dataclass(frozen=True, kw_only=True, slots=True)
class PastBlock:
    """A block in [start, end), Unix ms, that rules would have led to."""

    host: str
    start: int
    end: int
    action: BlockAction
    cause: str
    canary: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class BlockEffect:
    """Time of the tasks that started on a host while it would have been blocked, in ms."""

    saved_ms: int = 0
    cost_ms: int = 0

    def __add__(self, other: BlockEffect) -> BlockEffect:
        return BlockEffect(saved_ms=self.saved_ms + other.saved_ms, cost_ms=self.cost_ms + other.cost_ms)


Times = Mapping[str, Sequence[TaskTime]]
"""The task times of each host."""


def effect(block: PastBlock, times: Times) -> BlockEffect:
    """What a block would have saved and cost, in the minutes that begin during it."""
    during = [it for it in times.get(block.host, ()) if block.start <= it.minute < block.end]
    return BlockEffect(saved_ms=sum(it.lost_ms for it in during), cost_ms=sum(it.healthy_ms for it in during))


def replay(evidence: Iterable[HostInApplication], rules: Rules, kinds: MachineKinds) -> list[PastBlock]:
    """Return the blocks, in the order in which they begin. An extended block is one, until its last end."""
    past = _Replay(rules, kinds)
    for end, own in applications_by_end(evidence):
        past.add(own, end + 1)
    return past.blocks


def applications_by_end(evidence: Iterable[HostInApplication]) -> list[tuple[int, list[HostInApplication]]]:
    """The end of each application with what it shows, the first to end first."""
    found: defaultdict[str, list[HostInApplication]] = defaultdict(list)
    for each in evidence:
        found[each.app].append(each)
    return sorted(((max(it.last for it in own), own) for own in found.values()), key=lambda it: (it[0], it[1][0].app))


class _Replay:
    """What was known at some time, and the blocks until then."""

    def __init__(self, rules: Rules, kinds: MachineKinds) -> None:
        self._rules = rules
        self._kinds = kinds
        self._known: list[HostInApplication] = []
        self._blocks: defaultdict[str, list[PastBlock]] = defaultdict(list)

    @property
    def blocks(self) -> list[PastBlock]:
        return sorted((it for own in self._blocks.values() for it in own), key=lambda it: (it.start, it.host))

    def add(self, ended: Sequence[HostInApplication], now: int) -> None:
        """Judge when an application has ended. What began on a blocked host would not have run there."""
        self._known += [it for it in ended if not any(own.start <= it.first < own.end for own in self._blocks[it.host])]
        judged = judge_with_history(
            lambda _: summarize(self._known), self._rules, self._kinds, lambda host: self._history(host, now), now=now
        )
        for proposal in judged.proposals:
            if proposal.skip_reason is None:
                self._block(proposal.verdict, now)

    def _block(self, verdict: NodeVerdict, now: int) -> None:
        own = self._blocks[verdict.host]
        block = PastBlock(
            host=verdict.host,
            start=now,
            end=verdict.end,
            action=verdict.action,
            cause=verdict.cause,
            canary=verdict.canary,
        )
        if own and own[-1].end > now:
            own[-1] = replace(block, start=own[-1].start)
        else:
            own.append(block)

    def _history(self, host: str, now: int) -> list[Change]:
        """The changes that the service would have had then. Raises InvalidError."""
        name = node_id(host)
        return [change for block in self._blocks[host] for change in _changes(name, block, now)]


def _changes(name: str, block: PastBlock, now: int) -> Iterable[Change]:
    node = BlockedNode(
        id=name, action=block.action, start=block.start, end=block.end, cause=block.cause, canary=block.canary
    )
    claims = (Claim(owner=DETECTION_OWNER, author=None, block=node),)
    yield Change(revision=1, type=ChangeType.BLOCKED, at=block.start, node=node, claims=claims)
    if block.end <= now:
        yield Change(revision=2, type=ChangeType.EXPIRED, at=block.end, node=node)
