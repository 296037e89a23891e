"""Which blocks that there were agreed with what applications showed later. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from math import log
from typing import Final

from blocklist.detection.evidence import HostInApplication, by_host
from blocklist.detection.node_summary import CHARGED_TO_NODE
from blocklist.detection.slowness import MIN_EFFECT
from blocklist.model.changes import Change
from blocklist.model.host_matching import same_machine

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
        owners = [claim.owner for claim in change.claims_after]
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
