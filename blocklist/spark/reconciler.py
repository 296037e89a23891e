"""Reconcile the driver of one application with the list: plan, apply, repeat until nothing changes meanwhile."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from blocklist.model.node import PERMANENT
from blocklist.model.tracker import BlocklistTracker
from blocklist.spark.dns_cache import DnsCache
from blocklist.spark.driver_bridge import DriverBridge
from blocklist.spark.plan import STUCK_TASK, ClusterState, ExclusionPlan, make_plan

log = logging.getLogger("blocklist.spark")

MIN_OPEN_SECONDS: Final = 10.0
"""Minimum time for which a host that was reopened for a stuck task stays open."""
MAX_ATTEMPTS: Final = 20


@dataclass(frozen=True, kw_only=True, slots=True)
class AppliedState:
    """The state in force in Spark at `revision` of `history`.

    `blocked` maps hosts to node ids and `refused` node ids to reasons. `node_ids` maps hosts to node ids too, including
    hosts that stay open.
    """

    revision: int | None = None
    history: str | None = None
    blocked: Mapping[str, str] = field(default_factory=dict)
    refused: Mapping[str, str] = field(default_factory=dict)
    node_ids: Mapping[str, str] = field(default_factory=dict)


class Reconciler:
    """Used by one thread. `applied` is replaced, never mutated, and may be read from any thread."""

    def __init__(self, bridge: DriverBridge, addresses: DnsCache, keep_hosts: int) -> None:
        self.applied = AppliedState()
        self._bridge = bridge
        self._addresses = addresses
        self._keep_hosts = keep_hosts
        self._applied_plan: ExclusionPlan | None = None
        self._reconciled: object = None
        self._next_end = 0
        self._required_until: dict[str, float] = {}

    def reconcile_if_needed(self, blocklist: BlocklistTracker | None, *, list_changed: bool) -> None:
        """Reconcile if the list, the hosts or their addresses have changed, or a block has ended.

        Does nothing before the first list. Raises what DriverBridge raises; the next call then plans again.
        """
        observed = (self._bridge.epoch(), self._addresses.addresses, self._required())
        if blocklist is not None and (list_changed or observed != self._reconciled or _now() >= self._next_end):
            self._reconciled = None
            # A host that registers meanwhile changes the epoch, and so triggers another run.
            self._reconciled = (self._reconcile(blocklist), *observed[1:])

    def _reconcile(self, blocklist: BlocklistTracker) -> int | None:
        """Plan and apply until the epoch stays the same in between; return it, or None after MAX_ATTEMPTS."""
        for _ in range(MAX_ATTEMPTS):
            cluster = self._bridge.cluster_state()
            plan = self._plan(cluster, blocklist)
            stopped: Mapping[str, int] | None = {}
            if not self._in_sync(plan, cluster):
                stopped = self._bridge.apply(plan, cluster.epoch, keep_hosts=self._keep_hosts)
            if stopped is not None:
                self._record(plan, cluster, stopped, blocklist)
                return cluster.epoch
        return None

    def _plan(self, cluster: ClusterState, blocklist: BlocklistTracker) -> ExclusionPlan:
        until = time.monotonic() + MIN_OPEN_SECONDS
        self._required_until.update({host: until for host, why in cluster.opened.items() if why == STUCK_TASK})
        now = _now()
        nodes = blocklist.blocked(now)
        self._next_end = min((node.end for node in nodes.values()), default=PERMANENT)
        self._addresses.set_names([*nodes, *cluster.open, *cluster.excluded] if nodes else [])
        return make_plan(
            nodes.values(),
            cluster,
            now=now,
            keep_hosts=self._keep_hosts,
            addresses=self._addresses.addresses,
            required=self._required(),
        )

    def _required(self) -> frozenset[str]:
        now = time.monotonic()
        self._required_until = {host: until for host, until in self._required_until.items() if until > now}
        return frozenset(self._required_until)

    def _in_sync(self, plan: ExclusionPlan, cluster: ClusterState) -> bool:
        """Whether the driver already has this plan in force."""
        if self._applied_plan is None or (plan.blocks, plan.names) != (
            self._applied_plan.blocks,
            self._applied_plan.names,
        ):
            return False
        return cluster.blocked == {block.host: block.node.end for block in plan.blocks}

    def _record(
        self, plan: ExclusionPlan, cluster: ClusterState, stopped: Mapping[str, int], blocklist: BlocklistTracker
    ) -> None:
        new = [block.reason for block in plan.blocks if block.host not in cluster.blocked]
        refused = set(plan.refused.values())
        for sentence in (*new, *(reason for reason in plan.freed.values() if reason not in refused)):
            log.info("%s", sentence)
        for host, count in stopped.items():
            log.info("Killed %d tasks on %s; Spark restarts them on other hosts.", count, host)
        for sentence in sorted(refused - set(self.applied.refused.values())):
            log.warning("%s", sentence)
        self._applied_plan = plan
        self.applied = AppliedState(
            revision=blocklist.revision,
            history=blocklist.history,
            blocked=plan.blocked_as,
            refused=plan.refused,
            node_ids=plan.node_ids,
        )


def _now() -> int:
    """Unix milliseconds."""
    return time.time_ns() // 1_000_000
