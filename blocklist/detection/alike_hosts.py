"""Hosts that are slower by design: groups by labels, or by the gap between two kinds of machines. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import log
from statistics import median
from typing import Final

Effects = Mapping[str, Mapping[str, float]]
"""The logarithm of the slowdown by host and application; the applications of a host are in the order of time."""
MIN_GAP: Final = log(1.15)
"""Minimum logarithm of the ratio between two kinds of machines."""
MIN_ALIKE: Final = 2
"""Minimum number of hosts of a kind: a single slow host is a fault unless a label says otherwise."""


def slower_by_design(effects: Effects, min_applications: int) -> frozenset[str]:
    """Return the hosts that are slower than the others, all by the same factor, and always were. Empty: no such kind.

    Two clusters in one dimension: the widest gap between the hosts' medians divides them, if the slower ones lie within
    half of that gap (single linkage). Faults rarely begin with the logs and rarely are alike.
    """
    usual = {host: median(own.values()) for host, own in effects.items() if len(own) >= min_applications}
    ordered = sorted(usual, key=lambda host: (usual[host], host))
    splits = range(MIN_ALIKE, len(ordered) - MIN_ALIKE + 1)
    if not splits:
        return frozenset()
    values = [usual[host] for host in ordered]
    split = max(splits, key=lambda place: values[place] - values[place - 1])
    gap, spread = values[split] - values[split - 1], values[-1] - values[split]
    if gap < MIN_GAP or spread > gap / 2:
        return frozenset()
    slower, middle = ordered[split:], values[split] - gap / 2
    lasting = all(_always(list(effects[host].values()), middle) for host in slower)
    return frozenset(slower) if lasting else frozenset()


def _always(values: Sequence[float], least: float) -> bool:
    """Whether a host was slow from the first two applications on, and in three quarters of all."""
    slow = [value > least for value in values]
    return any(slow[:2]) and sum(slow) >= 0.75 * len(slow)
