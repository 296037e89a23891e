"""Rows of contenders with their samples and targets."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

Samples = dict[str, list[float]]
"""The samples of each contender, in the order of the rounds."""


@dataclass(kw_only=True)
class Target:
    """`ours / peer` must be at least (or at most) `factor`; without a peer, the figure itself."""

    peer: str | None
    factor: float
    at_least: bool = True


@dataclass(kw_only=True)
class Row:
    """One comparison; `samples[i]` of all contenders were taken in round i."""

    name: str
    unit: str
    ours: str
    samples: Samples
    targets: list[Target] = field(default_factory=list)
    noise: Samples = field(default_factory=dict)


def at_most(factor: float, peer: str | None = None) -> Target:
    """The figure itself, or its ratio to the peer's, must be at most `factor`."""
    return Target(peer=peer, factor=factor, at_least=False)


def at_least(factor: float, peer: str | None = None) -> Target:
    """The figure itself, or its ratio to the peer's, must be at least `factor`."""
    return Target(peer=peer, factor=factor)


def column(samples: Mapping[str, Sequence[Sequence[float]]], index: int) -> Samples:
    """Return one figure of samples that have several."""
    return {contender: [sample[index] for sample in taken] for contender, taken in samples.items()}


def ratios(row: Row, contender: str) -> list[float]:
    """Return ours by theirs for each round, so that a disturbed round cancels out; empty if theirs is zero."""
    ours, theirs = row.samples[row.ours], row.samples[contender]
    if not median(theirs):
        return []
    if len(ours) != len(theirs) or min(theirs) <= 0:
        return [median(ours) / median(theirs)]
    return [one / other for one, other in zip(ours, theirs, strict=True)]


def target_met(row: Row, target: Target) -> bool:
    """Whether the medians meet the target."""
    figure = median(row.samples[row.ours]) if target.peer is None else median(ratios(row, target.peer))
    return figure >= target.factor if target.at_least else figure <= target.factor
