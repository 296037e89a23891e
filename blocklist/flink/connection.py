"""The connection to a cluster: tells Flink which nodes are blocked, and reads back what it makes of that.

After any error it connects again at the next exchange; if the JVM has ended, or nothing has worked for a minute, in a
new JVM.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

from blocklist.flink.marking import MAX_LEASE, WARN_AHEAD, LeaderClock, NodeLease, is_due
from blocklist.flink.rpc import TIMEOUT, FlinkRpc, Leader, RestRequest, no_check
from blocklist.flink.state import ClusterState, FlinkError, FlinkJob, FlinkTaskManager, LeaderChangedError

log = logging.getLogger("blocklist.flink")

# Gateways to the JobMasters of the running jobs.
#
# With high availability each job's leader is looked up. Without it no service knows their addresses, which are
# numbered; but RPC accepts wildcards in the last part of an address, so that a search along the digits finds all of
# them.

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


RESTART_AFTER: Final = 60.0
"""Seconds without a successful exchange after which the JVM is replaced."""


CHECK_HIGH_AVAILABILITY: Final = (
    "Check that a JobManager runs, and that --conf-dir has its configuration, with its high-availability settings"
)


def _now() -> int:
    return time.time_ns() // 1_000_000


class _LeasesToSend:
    """The leases that Flink is to have now. They are made into Flink's objects once, and only if they are sent."""

    def __init__(self, rpc: FlinkRpc, blocks: Sequence[NodeLease], now: int) -> None:
        self.blocks = blocks
        self.now = now
        self._rpc = rpc
        self._nodes: Any = None
        self.ends: Mapping[str, int] = {block.node: block.end for block in blocks}

    def nodes(self) -> Any:
        if self._nodes is None:
            self._nodes = self._rpc.blocked_nodes(self.blocks)
        return self._nodes


class FlinkConnection:
    """`generation` is another number after each connection to a leader, which has forgotten what the former one was
    notified.

    THREADING: use it from one thread.
    """

    def __init__(self, start: Callable[[], FlinkRpc], *, with_failures: bool = False, lease: int = MAX_LEASE) -> None:
        """`start` starts a JVM with RPC. `with_failures`: read the failures of all jobs. `lease` is in milliseconds."""
        self.lease = lease
        self._start = start
        self._with_failures = with_failures
        self._rpc: FlinkRpc | None = None
        self._masters: JobMasters | None = None
        self._leader: Leader | None = None
        self._seen: Leader | None = None
        self._resource_manager: Any = None
        self._dispatcher: tuple[Leader, Any] | None = None
        self._notified: Mapping[str, int] = {}
        self._worked_at = 0.0
        self._read_failures = False
        self._clock, self._clock_warned = LeaderClock(), False
        self.generation = 0
        self.clock_ahead = 0
        """Milliseconds by which the JobManager's clock is ahead of this machine's, as far as it is known."""

    def exchange(self, blocks: Callable[[], Sequence[NodeLease]], *, read_failures: bool = False) -> ClusterState:
        """Tell Flink what it does not know or has to be renewed, then read its state. Raises FlinkError,
        LeaderChangedError, or whatever else fails.

        `blocks` makes the list with the present time.
        """
        self._read_failures = read_failures or self._with_failures
        try:
            state = self._exchange(blocks)
        except Exception:
            # Whatever failed, what Flink was notified of is not certain any more.
            self._disconnect()
            raise
        finally:
            if self._rpc is not None:
                self._rpc.check_leader = no_check
        self._worked_at = time.monotonic()
        return state

    def leader_changed(self) -> bool:
        """Whether there is another leader, or another one than none, since the last exchange."""
        try:
            return self._rpc is not None and self._rpc.with_ha and self._rpc.resource_manager_leader() != self._seen
        except FlinkError:
            # The next exchange says what is wrong.
            return False

    def request_configuration(self) -> RestRequest | None:
        """Ask for the configuration of the running JobManager; None while it has no REST API. Raises FlinkError."""
        return None if self._rpc is None else self._rpc.request_configuration()

    def read_configuration(self, request: RestRequest, *, wait: bool) -> dict[str, str] | None:
        """The configuration; None if there is no answer yet and `wait`. Raises FlinkError."""
        if self._rpc is None:
            raise FlinkError("The JVM has ended")
        if wait and not self._rpc.is_done(request.future):
            return None
        return self._rpc.read_configuration(request)

    def notify_again(self) -> None:
        """Flink does not have what it was notified of: the next exchange notifies it of the whole list."""
        self._notified = {}

    def close(self) -> None:
        """End the JVM."""
        # A connection that fails to close must not stay in use.
        rpc, self._rpc = self._rpc, None
        if rpc is not None:
            rpc.child.close()

    # What an evacuation does to a job. Each raises FlinkError.

    def trigger_checkpoint(self, job_id: str, seconds: float) -> Any:
        return self._open_rpc().trigger_checkpoint(self._gateway(job_id), seconds)

    def checkpoint_result(self, future: Any) -> str | None:
        """None while it is under way, an empty text if it is complete, or why it failed."""
        try:
            rpc = self._open_rpc()
            if not rpc.is_done(future):
                return None
            rpc.get("no checkpoint", future)
        except FlinkError as error:
            return str(error)
        return ""

    def fail_slots(self, job_id: str, slots: Mapping[str, str], reason: str) -> None:
        self._open_rpc().fail_slots(self._gateway(job_id), slots, reason)

    def disconnect(self, job_id: str, task_managers: Collection[str], reason: str) -> None:
        self._open_rpc().disconnect(self._gateway(job_id), sorted(task_managers), reason)

    # The exchange.

    def _exchange(self, blocks: Callable[[], Sequence[NodeLease]]) -> ClusterState:
        rpc = self._open_rpc()
        rpc.child.release_objects()
        leader = self._follow_resource_manager(rpc)
        rpc.check_leader = self._check_leader
        wanted = _LeasesToSend(rpc, blocks(), _now() + self.clock_ahead)
        if is_due(wanted.blocks, self._notified, wanted.now, self.lease):
            rpc.get("The ResourceManager does not answer", rpc.notify(self._resource_manager, wanted.nodes()))
            self._notified = wanted.ends
        task_managers = rpc.task_managers(self._resource_manager)
        self._observe_clock(task_managers)
        return self._exchange_with_jobs(rpc, leader, task_managers, wanted)

    def _observe_clock(self, task_managers: Mapping[str, FlinkTaskManager]) -> None:
        self._clock.observe((it.heartbeat_at for it in task_managers.values()), _now(), time.monotonic())
        self.clock_ahead = self._clock.ahead()
        if self.clock_ahead >= WARN_AHEAD and not self._clock_warned:
            log.warning(
                "The JobManager's clock is %.0f s ahead of this machine's. Leases are made longer accordingly; have the"
                " clocks synchronized (NTP).",
                self.clock_ahead / 1000,
            )
        self._clock_warned = self.clock_ahead >= WARN_AHEAD

    def _check_leader(self) -> None:
        if self.leader_changed():
            raise LeaderChangedError

    def _exchange_with_jobs(
        self, rpc: FlinkRpc, leader: Leader, task_managers: Mapping[str, FlinkTaskManager], wanted: _LeasesToSend
    ) -> ClusterState:
        found = rpc.jobs(self._dispatcher_gateway(rpc))
        masters = self._open_masters(rpc)
        failed = masters.update([job_id for job_id, ended in found.items() if not ended], leader)
        known = masters.items()
        failed |= self._notify_jobs(rpc, known, wanted)
        jobs, not_read = self._read(rpc, {job_id: it for job_id, it in known.items() if job_id not in failed})
        failed |= not_read
        for job_id in failed:
            masters.drop(job_id)
        return ClusterState(
            task_managers=task_managers,
            jobs=jobs,
            unreachable=failed,
            ended=frozenset(job_id for job_id, ended in found.items() if ended),
            notified=frozenset(job_id for job_id in jobs if wanted.ends.keys() <= known[job_id].notified.keys()),
        )

    def _notify_jobs(self, rpc: FlinkRpc, masters: Mapping[str, JobMaster], wanted: _LeasesToSend) -> dict[str, str]:
        """Tell all JobMasters at once; those that do not answer within the timeout, with the reason."""
        deadline, failed, answers = time.monotonic() + TIMEOUT, {}, {}
        for job_id, master in masters.items():
            if is_due(wanted.blocks, master.notified, wanted.now, self.lease):
                answers[job_id] = rpc.notify(master.gateway, wanted.nodes())
        for job_id, answer in answers.items():
            try:
                rpc.get("Its JobMaster does not answer", answer, max(0.0, deadline - time.monotonic()))
                masters[job_id].notified = wanted.ends
            except FlinkError as error:
                failed[job_id] = f"{error}."
        return failed

    def _read(self, rpc: FlinkRpc, masters: Mapping[str, JobMaster]) -> tuple[dict[str, FlinkJob], dict[str, str]]:
        deadline = time.monotonic() + TIMEOUT
        asked = {job_id: rpc.request_job(master.gateway) for job_id, master in masters.items()}
        jobs, failed = {}, {}
        for job_id, future in asked.items():
            try:
                jobs[job_id] = rpc.read_job(future, deadline, with_failures=self._read_failures)
            except FlinkError as error:
                failed[job_id] = f"{error}."
            except LeaderChangedError:
                raise
            except Exception:
                # One job that cannot be read must not hold back the others.
                log.exception("Job %s cannot be read; retrying.", job_id)
                failed[job_id] = "What its JobMaster reports cannot be read."
        return jobs, failed

    # Connections.

    def _open_rpc(self) -> FlinkRpc:
        now = time.monotonic()
        if self._rpc is not None and (not self._rpc.child.alive() or now > self._worked_at + RESTART_AFTER):
            log.warning("The JVM is replaced. Its last output: %s", self._rpc.child.last_output() or "none")
            self._close_replaced()
        if self._rpc is None:
            self._disconnect()
            self._masters = None
            self._rpc = self._start()
            self._worked_at = time.monotonic()
        return self._rpc

    def _close_replaced(self) -> None:
        """End a JVM that does not work any more; whether that succeeds does not hold back the next one."""
        try:
            self.close()
        except Exception:
            log.exception("The former JVM did not end properly.")

    def _follow_resource_manager(self, rpc: FlinkRpc) -> Leader:
        leader = self._seen = rpc.resource_manager_leader()
        if leader is None:
            raise FlinkError(f"The cluster has no leading ResourceManager. {CHECK_HIGH_AVAILABILITY}")
        if self._resource_manager is None or leader != self._leader:
            self._disconnect()
            self._resource_manager = rpc.resource_manager(leader)
            self._leader = leader
            self._clock, self.clock_ahead = LeaderClock(), 0
            self.generation += 1
            log.info("Connected to the ResourceManager at %s.", leader.address)
        return leader

    def _dispatcher_gateway(self, rpc: FlinkRpc) -> Any:
        leader = rpc.dispatcher_leader()
        if leader is None:
            raise FlinkError(f"The cluster has no leading Dispatcher. {CHECK_HIGH_AVAILABILITY}")
        if self._dispatcher is None or self._dispatcher[0] != leader:
            self._dispatcher = leader, rpc.dispatcher(leader)
        return self._dispatcher[1]

    def _open_masters(self, rpc: FlinkRpc) -> JobMasters:
        if self._masters is None:
            self._masters = JobMasters(rpc)
        return self._masters

    def _gateway(self, job_id: str) -> Any:
        if self._masters is None:
            raise FlinkError("The JobMaster is not reachable")
        return self._masters.gateway(job_id)

    def _disconnect(self) -> None:
        """Forget the gateways; whoever is connected next receives the whole list."""
        self._resource_manager = self._dispatcher = self._leader = None
        self._notified = {}
