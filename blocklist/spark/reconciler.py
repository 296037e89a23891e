"""Brings the driver of one application in line with the list: plan, apply, and again until both hold still."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from blocklist.model.node import PERMANENT
from blocklist.model.tracker import BlocklistTracker
from blocklist.spark.dns_cache import Addresses
from blocklist.spark.driver_bridge import HealthTracker
from blocklist.spark.plan import STUCK, Cluster, Plan, make_plan

log = logging.getLogger("blocklist.spark")

HOLD: Final = 10.0
"""Seconds that a host opened for a stuck task stays open at least."""
_TRIES: Final = 20


@dataclass(frozen=True, kw_only=True, slots=True)
class Applied:
    """What Spark has been told: the list's revision, host to id, and the sentence for each id that was refused.

    `known_as` is host to id also where the host stays open.
    """

    revision: int | None = None
    blocked: Mapping[str, str] = field(default_factory=dict)
    refused: Mapping[str, str] = field(default_factory=dict)
    known_as: Mapping[str, str] = field(default_factory=dict)


class Steering:
    """Belongs to one thread. `applied` is replaced, never changed, and may be read from any."""

    def __init__(self, tracker: HealthTracker, addresses: Addresses, keep_hosts: int) -> None:
        self.applied = Applied()
        self._tracker = tracker
        self._addresses = addresses
        self._keep_hosts = keep_hosts
        self._in_place: Plan | None = None
        self._settled: object = None
        self._next_end = 0
        self._needed_until: dict[str, float] = {}

    def turn(self, blocklist: BlocklistTracker | None, *, heard: bool) -> None:
        """Look whether anything has moved, the list (`heard`), time, hosts or addresses, and plan if so.

        Nothing is done before the first list. Raises what HealthTracker raises; the next turn then plans anew.
        """
        moment = (self._tracker.epoch(), self._addresses.known, self._needed())
        if blocklist is not None and (heard or moment != self._settled or _now() >= self._next_end):
            self._settled = None
            # A host that comes while this is under way makes another epoch, and another turn.
            self._settled = (self._settle(blocklist), *moment[1:])

    def _settle(self, blocklist: BlocklistTracker) -> int | None:
        """Plan and apply until the application holds still between the two; the epoch of that, None if it did not."""
        for _ in range(_TRIES):
            cluster = self._tracker.cluster()
            plan = self._plan(cluster, blocklist)
            stopped: Mapping[str, int] | None = {}
            if not self._stands(plan, cluster):
                stopped = self._tracker.apply(plan, cluster.epoch, keep_hosts=self._keep_hosts)
            if stopped is not None:
                self._record(plan, cluster, stopped, blocklist.revision)
                return cluster.epoch
        return None

    def _plan(self, cluster: Cluster, blocklist: BlocklistTracker) -> Plan:
        until = time.monotonic() + HOLD
        self._needed_until.update({host: until for host, why in cluster.opened.items() if why == STUCK})
        now = _now()
        nodes = blocklist.blocked(now)
        self._next_end = min((node.end for node in nodes.values()), default=PERMANENT)
        self._addresses.want([*nodes, *cluster.open, *cluster.excluded] if nodes else [])
        return make_plan(
            nodes.values(),
            cluster,
            now=now,
            keep_hosts=self._keep_hosts,
            addresses=self._addresses.known,
            needed=self._needed(),
        )

    def _needed(self) -> frozenset[str]:
        now = time.monotonic()
        self._needed_until = {host: until for host, until in self._needed_until.items() if until > now}
        return frozenset(self._needed_until)

    def _stands(self, plan: Plan, cluster: Cluster) -> bool:
        """Whether the driver holds this very plan already."""
        if self._in_place is None or (plan.blocks, plan.names) != (self._in_place.blocks, self._in_place.names):
            return False
        return cluster.blocked == {block.host: block.node.end for block in plan.blocks}

    def _record(self, plan: Plan, cluster: Cluster, stopped: Mapping[str, int], revision: int) -> None:
        new = [block.reason for block in plan.blocks if block.host not in cluster.blocked]
        refused = set(plan.refused.values())
        for sentence in (*new, *(reason for reason in plan.free.values() if reason not in refused)):
            log.info("%s", sentence)
        for host, count in stopped.items():
            log.info("Told %d tasks on %s to stop; they start again elsewhere.", count, host)
        for sentence in sorted(refused - set(self.applied.refused.values())):
            log.warning("%s", sentence)
        self._in_place = plan
        self.applied = Applied(revision=revision, blocked=plan.matched, refused=plan.refused, known_as=plan.known_as)


def _now() -> int:
    """Unix milliseconds."""
    return time.time_ns() // 1_000_000
