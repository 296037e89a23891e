"""The listeners of the running jobs."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from typing import Final

from blocklist.flink.listeners import FlinkListener, OpenSession, job_listener_id
from blocklist.flink.state import ClusterState
from blocklist.model.listener import ListenerRole

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
