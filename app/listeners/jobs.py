"""The jobs that run: what managers report, beside the listeners, which tells those that do not obey the list."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from app.listeners.state import ListenerDirectory, ListenerEntry
from blocklist.model.listener import ListenerRole, Mode
from blocklist.wire.listeners import AgentState


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """An application. `mode` is None without a live agent; `reported_by` are the managers that say it runs."""

    id: str
    agent: AgentState
    mode: Mode | None
    description: str | None
    cluster: str | None
    reported_by: Sequence[str]

    @property
    def obeys(self) -> bool:
        return self.mode is Mode.APPLY


@dataclass(frozen=True, kw_only=True, slots=True)
class JobSource:
    """A manager that reports which applications run. `unknown` is why these may not be all; None if they are."""

    id: str
    cluster: str | None
    applications: int
    unknown: str | None


class Jobs:
    """The live JobMasters, and what managers say runs. A manager that has lapsed says nothing any more.

    Without `sources` nobody knows of jobs without an agent. Only the lists build a Job for each: listeners may be many.
    """

    def __init__(self, directory: ListenerDirectory) -> None:
        self.sources: list[JobSource] = []
        self._directory = directory
        self._live = {entry.id: entry for entry in directory.live()}
        self._reporters = defaultdict[str, list[ListenerEntry]](list)
        self._descriptions: dict[str, str] = {}
        managers = (entry for entry in directory.entries if entry.report.applications is not None)
        for entry in sorted(managers, key=lambda it: it.id):
            self._add(entry, entry.report.applications or {}, is_live=entry.id in self._live)
        reported = self._reporters.keys()
        self._without_agent = reported - self._live.keys()
        job_masters = {it for it, entry in self._live.items() if entry.listener.role is ListenerRole.JOB_MASTER}
        self._with_agent = job_masters | (reported & self._live.keys())

    def _add(self, entry: ListenerEntry, applications: Mapping[str, str], *, is_live: bool) -> None:
        unknown = (entry.report.applications_unknown or None) if is_live else "It has stopped reporting."
        source = JobSource(
            id=entry.id,
            cluster=entry.listener.cluster,
            applications=len(applications) if is_live else 0,
            unknown=unknown,
        )
        self.sources.append(source)
        for job_id, description in applications.items() if is_live else ():
            self._reporters[job_id].append(entry)
            self._descriptions.setdefault(job_id, description)

    @property
    def total(self) -> int:
        return len(self._without_agent) + len(self._with_agent)

    @property
    def total_without_agent(self) -> int | None:
        """Number of jobs that run without a live agent, as far as known; None if no manager knows now."""
        if not any(source.unknown is None or source.applications for source in self.sources):
            return None
        return len(self._without_agent)

    def without_agent(self) -> list[Job]:
        """The jobs that run without a live agent, those that never had one first."""
        jobs = map(self._job, self._without_agent)
        return sorted(jobs, key=lambda job: (job.agent == "lapsed", job.id))

    def all(self) -> list[Job]:
        """All jobs, those that do not obey first."""
        jobs = map(self._job, self._with_agent)
        return self.without_agent() + sorted(jobs, key=lambda job: (job.obeys, job.id))

    def _job(self, job_id: str) -> Job:
        entry, known = self._live.get(job_id), self._directory.get(job_id)
        cluster = None if entry is None else self._directory.cluster_of(entry)
        reporters = self._reporters.get(job_id, ())
        return Job(
            id=job_id,
            agent="live" if entry is not None else "none" if known is None else "lapsed",
            mode=None if entry is None else entry.mode,
            description=self._descriptions.get(job_id) or None,
            cluster=cluster or next((it.listener.cluster for it in reporters), None),
            reported_by=[it.id for it in reporters],
        )
