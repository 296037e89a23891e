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


@dataclass(frozen=True, kw_only=True, slots=True)
class Jobs:
    """Those that do not obey come first. Without `sources` nobody knows of jobs without an agent."""

    jobs: Sequence[Job]
    sources: Sequence[JobSource]

    @property
    def without_agent(self) -> int | None:
        """Number of jobs that run without a live agent, as far as known; None if no manager knows now."""
        if not any(source.unknown is None or source.applications for source in self.sources):
            return None
        return sum(job.agent != "live" for job in self.jobs)


def find_jobs(directory: ListenerDirectory) -> Jobs:
    """The live JobMasters, and what managers say runs. A manager that has lapsed says nothing any more."""
    live = {entry.id: entry for entry in directory.live()}
    sources, reporters, descriptions = [], defaultdict[str, list[ListenerEntry]](list), dict[str, str]()
    for entry in directory:
        if (applications := entry.report.applications) is None:
            continue
        is_live = entry.id in live
        sources.append(_source(entry, applications, is_live=is_live))
        for job_id, description in applications.items() if is_live else ():
            reporters[job_id].append(entry)
            descriptions.setdefault(job_id, description)
    with_agent = {it for it, entry in live.items() if entry.listener.role is ListenerRole.JOB_MASTER}
    jobs = [_job(directory, it, live, reporters[it], descriptions.get(it)) for it in {*reporters, *with_agent}]
    order: Mapping[AgentState, int] = {"none": 0, "lapsed": 1, "live": 2}
    return Jobs(jobs=sorted(jobs, key=lambda job: (order[job.agent], job.obeys, job.id)), sources=sources)


def _source(entry: ListenerEntry, applications: Mapping[str, str], *, is_live: bool) -> JobSource:
    unknown = (entry.report.applications_unknown or None) if is_live else "It has stopped reporting."
    return JobSource(
        id=entry.id,
        cluster=entry.listener.cluster,
        applications=len(applications) if is_live else 0,
        unknown=unknown,
    )


def _job(
    directory: ListenerDirectory,
    job_id: str,
    live: Mapping[str, ListenerEntry],
    reporters: Sequence[ListenerEntry],
    description: str | None,
) -> Job:
    entry, known = live.get(job_id), directory.get(job_id)
    cluster = None if entry is None else directory.cluster_of(entry)
    return Job(
        id=job_id,
        agent="live" if entry is not None else "none" if known is None else "lapsed",
        mode=None if entry is None else entry.mode,
        description=description or None,
        cluster=cluster or next((it.listener.cluster for it in reporters), None),
        reported_by=[it.id for it in reporters],
    )
