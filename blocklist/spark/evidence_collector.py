"""Evidence against hosts from what Spark itself does with them. Pure; times are passed in, in seconds.

An exclusion by Spark's HealthTracker is evidence while it lasts. A few slow tasks are normal: speculation counts only
when many tasks of a host were speculated in a short time.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from blocklist.model.evidence import Finding, FindingKind
from blocklist.model.listener import MAX_ENTRIES
from blocklist.model.node import is_node_id

SPECULATION_WINDOW: Final = 60.0
"""Seconds for which a speculated task counts."""
FINDING_TTL: Final = 10.0
"""Seconds for which a finding is reported after its latest observation."""
MIN_STAGES: Final = 2
MIN_TASKS: Final = 3
"""A host is slow if tasks of MIN_STAGES stages, or MIN_TASKS tasks, were speculated within SPECULATION_WINDOW."""
MAX_HOSTS: Final = MAX_ENTRIES
"""The service's maximum. A lower one would hide that an application blames all of its hosts."""
_MAX_TASKS: Final = 10_000


class ObservationKind(StrEnum):
    """Spark excluded the host for the application or for a stage, or speculated a task of it on another host."""

    APPLICATION = "application"
    STAGE = "stage"
    SLOW = "slow"


@dataclass(frozen=True, kw_only=True, slots=True)
class Observation:
    """One exclusion or speculation. `stage` is `id.attempt`; `task` is the task's index in the stage."""

    kind: ObservationKind
    host: str
    stage: str = ""
    task: str = ""


class EvidenceCollector:
    """Collects the observations of the last minute. Memory: at most 10,000 speculated tasks."""

    def __init__(self) -> None:
        self._excluded: dict[str, tuple[str, float]] = {}
        self._speculated: dict[Observation, float] = {}

    def update(self, observations: Iterable[Observation], now: float) -> dict[str, Finding]:
        """Add the observations since the last call; return the findings to report now by host, at most MAX_HOSTS."""
        for one in observations:
            if one.kind is ObservationKind.SLOW:
                self._speculated[one] = now
            else:
                self._exclude(one, now)
        self._expire(now)
        found = {**self._slow_hosts(now), **self._excluded_hosts()}
        return {host: found[host] for host in sorted(found)[:MAX_HOSTS] if is_node_id(host)}

    def _exclude(self, seen: Observation, now: float) -> None:
        sentence = "Spark excluded the host for the application."
        if seen.kind is ObservationKind.STAGE:
            # Keep the first sentence while the exclusion lasts: each change of a report triggers a heartbeat.
            sentence, _ = self._excluded.get(seen.host, (f"Spark excluded the host for stage {seen.stage}.", now))
        self._excluded[seen.host] = (sentence, now)

    def _expire(self, now: float) -> None:
        self._excluded = {
            host: sentence for host, sentence in self._excluded.items() if now - sentence[1] < FINDING_TTL
        }
        recent = [(seen, at) for seen, at in self._speculated.items() if now - at < SPECULATION_WINDOW]
        self._speculated = dict(recent[-_MAX_TASKS:])

    def _excluded_hosts(self) -> Mapping[str, Finding]:
        return {
            host: Finding(kind=FindingKind.EXCLUDED, reason=sentence) for host, (sentence, _) in self._excluded.items()
        }

    def _slow_hosts(self, now: float) -> Mapping[str, Finding]:
        fresh = {seen.host for seen, at in self._speculated.items() if now - at < FINDING_TTL}
        found = {}
        for host in fresh:
            tasks = [seen for seen in self._speculated if seen.host == host]
            stages = {seen.stage for seen in tasks}
            if len(stages) >= MIN_STAGES or len(tasks) >= MIN_TASKS:
                found[host] = Finding(kind=FindingKind.SLOW, reason=_sentence(len(tasks), len(stages)))
        return found


def _sentence(tasks: int, stages: int) -> str:
    of = "1 stage" if stages == 1 else f"{stages} stages"
    return f"Spark speculated {tasks} tasks of {of} that ran on the host within a minute."
