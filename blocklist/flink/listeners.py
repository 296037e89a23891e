"""One listener of the service: a session, and what it has acknowledged."""

from __future__ import annotations

import logging
import re
import threading
import time
from collections.abc import Callable, Mapping
from typing import Final

from blocklist.client.session import ListenerSession
from blocklist.flink.effects import Acknowledged, Effect, acknowledged, decide
from blocklist.flink.marking import listener_lease
from blocklist.flink.state import ClusterState
from blocklist.model.evidence import Finding
from blocklist.model.listener import MAX_ENTRIES, ListenerRole, Mode, Registration, Report, truncate_reasons
from blocklist.model.node import BlockedNode, is_id, is_node_id

log = logging.getLogger("blocklist.flink")

MAX_NAME: Final = 60
"""Maximum length of a job's name in the id of its listener."""

MAX_ID: Final = 253
"""Maximum length of a listener's id."""

OpenSession = Callable[[Registration], ListenerSession]


class FlinkListener:
    """Reports what is in force, and acknowledges it. THREADING: use it from one thread."""

    def __init__(self, listener_id: str, role: ListenerRole, open_session: OpenSession, lease: int) -> None:
        """Registers. A session is new at each start: a second bridge with the same id takes over from the first.

        `lease` is that of the nodes in Flink, in milliseconds. The listener's own is shorter: if this process ends, the
        service must not count as applied what Flink has forgotten.
        """
        self.id = listener_id
        session, own_lease = str(time.time_ns()), listener_lease(lease)
        registration = Registration(id=listener_id, role=role, session=session, lease=own_lease)
        self._session = open_session(registration)
        self._acknowledged = Acknowledged()
        self._logged: frozenset[str] = frozenset()

    @property
    def fenced(self) -> bool:
        """Whether another session has taken over."""
        return self._session.fenced

    def report(
        self,
        blocked: Mapping[str, BlockedNode],
        revision: int,
        history: str | None,
        effects: Mapping[str, Effect],
        report: Report,
        valid_until: float,
    ) -> None:
        """Report, and acknowledge the revision if what it blocks and frees is in force, or refused.

        From `valid_until`, in monotonic seconds, this is not reported any more: see `marking.listener_lease`.
        """
        decision = decide(blocked, effects, self._acknowledged)
        reasons = [*decision.refused.items(), *decision.pending.items()]
        self._log(frozenset(f"{node_id}: {reason}" for node_id, reason in reasons))
        everything = _not_in_force(decision.refused, decision.pending).over(report)
        everything = Report(mode=Mode.APPLY, would={}).over(everything)
        if decision.acknowledge:
            self._acknowledged = acknowledged(blocked, effects)
            self._session.report(everything, acked=revision, history=history, valid_until=valid_until)
        else:
            self._session.report(everything, valid_until=valid_until)

    @property
    def mode(self) -> Mode:
        """How it is to act now."""
        return self._session.mode

    def rest(
        self, mode: Mode, would: Mapping[str, str], report: Report, acked: int | None, history: str | None
    ) -> None:
        """Report that no block is in force because of the mode, and what would be done."""
        self._acknowledged = Acknowledged()
        idle = Report(mode=mode, would=truncate_reasons(would)).over(_not_in_force({}, {}))
        self._session.report(idle.over(report), acked=acked, history=history)

    def withdraw(self, reason: str) -> None:
        """Report that it is not known whether what was acknowledged is in force. Call it from any thread."""
        self._session.report(_not_in_force({}, dict.fromkeys(self._acknowledged.nodes(), reason)))

    def close(self) -> None:
        self._session.close()

    def _log(self, reasons: frozenset[str]) -> None:
        for line in sorted(reasons - self._logged)[:20]:
            log.warning("%s: %s", self.id, line)
        self._logged = reasons


def _not_in_force(refused: Mapping[str, str], pending: Mapping[str, str]) -> Report:
    parts = ({node: why for node, why in part.items() if is_node_id(node)} for part in (refused, pending))
    return Report(refused=truncate_reasons(next(parts)), pending=truncate_reasons(next(parts)))


def job_listener_id(name: str, job_id: str, manager_id: str) -> str:
    """The id of a job's listener: its name, as far as an id may have it, and its id.

    In application mode with high availability jobs of several clusters may have the id 0: then that of the cluster's
    listener.
    """
    if not job_id.strip("0"):
        job_id = manager_id[: MAX_ID - MAX_NAME - 1]
    readable = re.sub("[^A-Za-z0-9_-]+", "-", name, flags=re.ASCII).strip("-")[:MAX_NAME].strip("-")
    return f"{readable}-{job_id}" if readable else job_id


def job_report(
    running: Mapping[str, int], node_of: Callable[[str], str], evidence: Mapping[str, Finding] | None
) -> Report:
    """The TaskManagers on which tasks of a job run."""
    usable = [it for it in sorted(running) if is_id(it) and is_node_id(node_of(it))][:MAX_ENTRIES]
    return Report(
        task_managers={it: node_of(it) for it in usable},
        running_tasks={it: running[it] for it in usable},
        evidence=evidence,
    )


# The listeners of the running jobs.

JOB_GRACE: Final = 60.0
"""Seconds for which a job stays a listener that a new leader does not know yet."""
UNKNOWN_GRACE: Final = 10.0
"""Seconds that a job may take to start: until then it has no tasks that are not known."""


class JobListeners:
    """A listener for each job whose JobMaster has answered, until the job ends. THREADING: use it from one thread.

    If another process takes over one of them, it stays here as `fenced`: to take it over again would go on for ever.
    """

    def __init__(self, manager_id: str, open_session: OpenSession, lease: int) -> None:
        """`manager_id` is the ResourceManager's listener; `lease` is that of the nodes in Flink, in milliseconds."""
        self._manager_id = manager_id
        self._open_session = open_session
        self._lease = lease
        self._listeners: dict[str, FlinkListener] = {}
        self._seen: dict[str, float] = {}
        self._unknown: dict[str, float] = {}

    def items(self) -> Mapping[str, FlinkListener]:
        """Job id to listener."""
        return dict(self._listeners)

    def update(self, state: ClusterState) -> None:
        """Open those of new jobs; close those of jobs that have ended, or are not reported any more."""
        now = time.monotonic()
        for job_id, job in state.jobs.items():
            if job_id not in self._listeners:
                name = job_listener_id(job.name, job_id, self._manager_id)
                self._listeners[job_id] = FlinkListener(name, ListenerRole.JOB_MASTER, self._open_session, self._lease)
        for job_id in state.jobs.keys() | state.unreachable.keys():
            self._seen[job_id] = now
        for job_id, listener in self.items().items():
            missing = now - self._seen.get(job_id, now) > JOB_GRACE
            if job_id in state.ended or missing:
                del self._listeners[job_id]
                close_aside(listener)
        self._seen = {job_id: at for job_id, at in self._seen.items() if now - at <= JOB_GRACE}
        unknown = state.unreachable.keys() - self._listeners.keys()
        self._unknown = {job_id: self._unknown.get(job_id, now) for job_id in unknown}

    def unknown_jobs(self) -> list[str]:
        """Jobs without a listener whose JobMasters have not answered for UNKNOWN_GRACE: nothing reports their tasks."""
        now = time.monotonic()
        return sorted(job_id for job_id, since in self._unknown.items() if now - since > UNKNOWN_GRACE)


def close_aside(listener: FlinkListener) -> threading.Thread:
    """Close it in a thread of its own: a service that does not answer must not hold back the rounds."""
    thread = threading.Thread(target=listener.close, name=f"blocklist-close-{listener.id}", daemon=True)
    thread.start()
    return thread
