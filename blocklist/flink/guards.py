"""Whether the tasks of a job may be made to leave a node, without harm to the job. Pure."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final

from blocklist.flink.acknowledgement import Effect, refused, slow
from blocklist.flink.durations import duration_seconds
from blocklist.flink.state import MAX_FAILURES, ClusterState, FlinkJob

# How often a job may still restart, from the description of its restart strategy and its history. Pure.
#
# Flink does not report how many restarts are left. Each failure is one restart, so the number of failures in the
# job's history and the highest attempt of its tasks are what has been used at least. Flink drops the oldest failures
# of a long history: then it is not known how many have been used.

UNLIMITED: Final = 2**31 - 1
"""Flink's Integer.MAX_VALUE: no limit."""
_HISTORY_SIZE: Final = "web.exception-history-size"
_PREFIX: Final = "restart-strategy"


@dataclass(frozen=True, slots=True)
class RestartsLeft:
    """`number` is None if it is not known. `why` names the strategy, as a part of a sentence."""

    number: int | None
    why: str


@dataclass(frozen=True, slots=True)
class _Used:
    """The restarts that are known to be used; there may be more if the history is `truncated`."""

    number: int
    truncated: bool

    def of(self, limit: int, within: str = "") -> RestartsLeft:
        """What is left of a limit."""
        if self.truncated and limit > self.number:
            return RestartsLeft(
                None, f"at least {self.number} of {limit}{within} are used: {_HISTORY_SIZE} limits what Flink shows"
            )
        return RestartsLeft(max(0, limit - self.number), f"{self.number} of {limit}{within} are used")


def restarts_left(job: FlinkJob, configuration: Mapping[str, str], now: int) -> RestartsLeft:
    """The restarts that the job has left at `now`, in Unix milliseconds.

    `configuration` is the cluster's, which counts where the job has no strategy of its own.
    """
    text = job.restart_strategy.lower()
    if not text or "cluster level default" in text:
        return _of_configuration(job, configuration, now)
    if "deactivated" in text or "disabled" in text or "no restart" in text:
        return RestartsLeft(0, "its restart strategy is none")
    if "failure rate" in text:
        # Its description names a fixed delay as well.
        rate = re.search(r"maximum of ([0-9]+) failures within interval (.+?) and ", text)
        return _of_rate(job, rate[1], rate[2], configuration, now) if rate is not None else _not_understood(text)
    if "fixed delay" in text:
        attempts = re.search(r"#\s*([0-9]+)\s*restart attempts", text)
        return _of_attempts(job, attempts[1], configuration) if attempts is not None else _not_understood(text)
    if "exponential" in text:
        return _of_exponential_delay(job, configuration)
    return _not_understood(text)


def _of_configuration(job: FlinkJob, configuration: Mapping[str, str], now: int) -> RestartsLeft:
    kind = (configuration.get(f"{_PREFIX}.type") or configuration.get(_PREFIX) or "").strip().lower()
    if not kind:
        # Flink's default: no restarts without checkpoints.
        return RestartsLeft(UNLIMITED, "no limit") if job.checkpoints else RestartsLeft(0, "it has no restart strategy")
    if kind in {"none", "off", "disable"}:
        return RestartsLeft(0, "its restart strategy is none")
    if kind in {"fixed-delay", "fixeddelay"}:
        return _of_attempts(job, configuration.get(f"{_PREFIX}.fixed-delay.attempts", "1"), configuration)
    if kind in {"failure-rate", "failurerate"}:
        limit = configuration.get(f"{_PREFIX}.failure-rate.max-failures-per-interval", "1")
        interval = configuration.get(f"{_PREFIX}.failure-rate.failure-rate-interval", "1 min")
        return _of_rate(job, limit, interval, configuration, now)
    if kind in {"exponential-delay", "exponentialdelay"}:
        return _of_exponential_delay(job, configuration)
    return _not_understood(kind)


def _of_exponential_delay(job: FlinkJob, configuration: Mapping[str, str]) -> RestartsLeft:
    attempts = configuration.get(f"{_PREFIX}.exponential-delay.attempts-before-reset-backoff", str(UNLIMITED))
    return _of_attempts(job, attempts, configuration)


def _of_attempts(job: FlinkJob, attempts: str, configuration: Mapping[str, str]) -> RestartsLeft:
    limit = _number(attempts)
    if limit is None:
        return _not_understood(f"{attempts} attempts")
    if limit >= UNLIMITED:
        return RestartsLeft(UNLIMITED, "no limit")
    used = max(len(job.failures), max((task.attempt for task in job.tasks), default=0))
    return _Used(used, _truncated(job, configuration)).of(limit)


def _of_rate(job: FlinkJob, failures: str, interval: str, configuration: Mapping[str, str], now: int) -> RestartsLeft:
    limit, seconds = _number(failures), duration_seconds(interval)
    if limit is None or not seconds:
        return _not_understood(f"{failures} failures within {interval}")
    recent = [failure for failure in job.failures if now - failure.at <= seconds * 1000]
    # A failure that is older than the interval shows that all later ones are there.
    truncated = len(recent) == len(job.failures) and _truncated(job, configuration)
    return _Used(len(recent), truncated).of(limit, f" within {seconds:g} s")


def _truncated(job: FlinkJob, configuration: Mapping[str, str]) -> bool:
    """Whether the job may have had more failures than its history shows."""
    size = _number(configuration.get(_HISTORY_SIZE, "16"))
    return size is None or len(job.failures) >= min(size, MAX_FAILURES)


def _number(text: str) -> int | None:
    return int(text) if re.fullmatch("[0-9]{1,10}", text.strip()) else None


def _not_understood(strategy: str) -> RestartsLeft:
    return RestartsLeft(None, f"its restart strategy is not understood: {strategy[:80]}")


_RUNNING: Final = "RUNNING"


@dataclass(frozen=True, kw_only=True, slots=True)
class GuardContext:
    """What the guards consider besides the job.

    `blocked` are the TaskManagers on blocked nodes. `configuration` is the cluster's, None until it has been read. With
    `grows` the cluster starts TaskManagers when it needs slots, so that free ones are not required. `now` is in Unix
    milliseconds.
    """

    state: ClusterState
    blocked: Collection[str]
    configuration: Mapping[str, str] | None
    grows: bool
    now: int


def hindrance(job: FlinkJob, task_managers: Collection[str], context: GuardContext) -> Effect | None:
    """Why the job's tasks on these TaskManagers must not be evacuated now; None if they may be."""
    if job.state != _RUNNING:
        return slow(f"The job is {job.state}: its tasks are evacuated once it runs.")
    if context.configuration is None:
        # The restart strategy, and how many failures Flink remembers.
        return slow("Its tasks are not evacuated yet: the cluster's configuration has not been read yet.")
    slots = {task.allocation for task in job.on(task_managers)} - {None}
    reason = (
        _no_checkpoints(job)
        or _no_restarts(restarts_left(job, context.configuration, context.now), len(slots))
        or _no_slots(len(slots), context)
    )
    return None if reason is None else refused(f"Its tasks are not evacuated: {reason}")


def _no_checkpoints(job: FlinkJob) -> str | None:
    if job.is_batch or job.checkpoints:
        return None
    return "the job has no checkpoints, so it would start again from the beginning."


def _no_restarts(left: RestartsLeft, slots: int) -> str | None:
    if left.number is None:
        return f"it is not known how often the job may restart ({left.why})."
    if left.number > slots:
        return None
    return (
        f"the job has {_count(left.number, 'restart attempt')} left ({left.why}), and leaving {_count(slots, 'slot')}"
        " may use as many: one must remain."
    )


def _no_slots(slots: int, context: GuardContext) -> str | None:
    others = [it for it in context.state.task_managers.values() if it.id not in context.blocked and not it.blocked]
    free = sum(it.free_slots for it in others)
    if context.grows or free >= slots:
        return None
    return f"{_count(slots, 'slot')} would have to move, and the nodes that are not blocked have {free} free."


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
