"""Gateways to the JobMasters of the running jobs.

With high availability each job's leader is looked up. Without it no service knows their addresses, which are numbered;
but RPC accepts wildcards in the last part of an address, so that a search along the digits finds all of them.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

from blocklist.flink.rpc import TIMEOUT, FlinkRpc, Leader
from blocklist.flink.state import FlinkError

_PREFIX: Final = "jobmanager_"
_NO_TOKEN: Final = "00000000-0000-0000-0000-000000000000"  # noqa: S105 - the fencing token without high availability
_MAX_DIGITS: Final = 12


@dataclass(slots=True)
class JobMaster:
    """A gateway, and the leases that this JobMaster has acknowledged: node to the end of its lease."""

    leader: Leader
    gateway: Any
    notified: Mapping[str, int] = field(default_factory=dict)


class JobMasters:
    """THREADING: use it from one thread."""

    def __init__(self, rpc: FlinkRpc) -> None:
        self._rpc = rpc
        self._known: dict[str, JobMaster] = {}

    def update(self, jobs: Iterable[str], resource_manager: Leader) -> dict[str, str]:
        """Connect to the JobMasters of these jobs and forget all others; job id to the reason where that failed."""
        wanted = set(jobs)
        for job_id in self._known.keys() - wanted:
            self.drop(job_id)
            self._rpc.forget_job(job_id)
        if self._rpc.with_ha:
            return self._follow_leaders(wanted)
        if missing := wanted - self._known.keys():
            self._search(missing, resource_manager)
        return dict.fromkeys(wanted - self._known.keys(), "Its JobMaster was not found.")

    def items(self) -> Mapping[str, JobMaster]:
        """Job id to JobMaster."""
        return dict(self._known)

    def gateway(self, job_id: str) -> Any:
        """Raises FlinkError if there is none."""
        found = self._known.get(job_id)
        if found is None:
            raise FlinkError("The JobMaster is not reachable")
        return found.gateway

    def drop(self, job_id: str) -> None:
        """Connect again the next time."""
        self._known.pop(job_id, None)

    def _follow_leaders(self, wanted: Iterable[str]) -> dict[str, str]:
        failed, connecting, deadline = {}, {}, time.monotonic() + TIMEOUT
        for job_id in wanted:
            try:
                leader, known = self._rpc.job_master_leader(job_id), self._known.get(job_id)
                if leader is None:
                    failed[job_id] = "Its JobMaster has no leader."
                    self.drop(job_id)
                elif known is None or known.leader != leader:
                    self.drop(job_id)
                    connecting[job_id] = leader, self._rpc.connect_job_master(leader)
            except FlinkError as error:
                failed[job_id] = f"{error}."
        for job_id, (leader, future) in connecting.items():
            try:
                self._known[job_id] = JobMaster(leader, self._get(future, deadline))
            except FlinkError as error:
                failed[job_id] = f"{error}."
        return failed

    def _get(self, future: Any, deadline: float) -> Any:
        # All of them within one timeout: meanwhile no lease is renewed.
        return self._rpc.get("The JobMaster cannot be reached", future, max(0.0, deadline - time.monotonic()))

    def _search(self, missing: Iterable[str], resource_manager: Leader) -> None:
        base = f"{resource_manager.address.rpartition('/')[0]}/{_PREFIX}"
        connected = {known.leader.address for known in self._known.values()}
        deadline = time.monotonic() + TIMEOUT
        leaders = [Leader(it, _NO_TOKEN) for it in self._addresses(base, deadline) if it not in connected]
        connecting = [(leader, self._rpc.connect_job_master(leader)) for leader in leaders]
        asked = []
        for leader, future in connecting:
            with suppress(FlinkError):
                gateway = self._get(future, deadline)
                asked.append((leader, gateway, self._rpc.request_job(gateway)))
        for leader, gateway, answer in asked:
            with suppress(FlinkError):
                job_id = self._rpc.job_id_of(answer, deadline)
                if job_id in missing:
                    self._known[job_id] = JobMaster(leader, gateway)

    def _addresses(self, base: str, deadline: float) -> list[str]:
        found, prefixes = [], [""]
        for _ in range(_MAX_DIGITS):
            names = [f"{prefix}{digit}" for prefix in prefixes for digit in range(10)]
            prefixes = self._answering(base, names, "*", deadline)
            found += [f"{base}{name}" for name in self._answering(base, prefixes, "", deadline)]
            if not prefixes:
                break
        return found

    def _answering(self, base: str, names: list[str], wildcard: str, deadline: float) -> list[str]:
        connecting = [self._rpc.connect_job_master(Leader(f"{base}{name}{wildcard}", _NO_TOKEN)) for name in names]
        return [name for name, future in zip(names, connecting, strict=True) if _succeeds(self._rpc, future, deadline)]


def _succeeds(rpc: FlinkRpc, future: Any, deadline: float) -> bool:
    try:
        rpc.get("No JobMaster has this name", future, max(0.0, deadline - time.monotonic()))
    except FlinkError:
        return False
    return True
