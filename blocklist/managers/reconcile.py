"""The loop that keeps a cluster manager in line with the list, and tells the service how far it is."""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Generic

from blocklist.client.listener_session import ListenerSession
from blocklist.client.watch_thread import WatchThread
from blocklist.managers.plan import DesiredState, Manager, ManagerError, P
from blocklist.model.backoff import Backoff
from blocklist.model.listener import MAX_ENTRIES, truncate_refused
from blocklist.model.node import PERMANENT, is_node_id

log = logging.getLogger("blocklist.managers")

DEFAULT_INTERVAL: Final = 60.0
"""Seconds after which the cluster manager is looked at again, though nothing was heard."""
_BACKOFF: Final = Backoff(initial=1.0, cap=60.0, floor=0.5)
_POLL_INTERVAL: Final = 5.0
"""Seconds between two looks whether another session has taken over."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ReconcileResult:
    """What a round has done, a sentence for each, what it refused, by id, and all nodes that there are, if known."""

    actions: tuple[str, ...]
    refused: Mapping[str, str]
    all_nodes: tuple[str, ...] | None = None


def reconcile(manager: Manager[P], desired: DesiredState) -> ReconcileResult:
    """Plan and apply once. Raises ManagerError; then part of it may be done."""
    plan = manager.plan(desired)
    refused = {**plan.refused, **manager.apply(plan)}
    return ReconcileResult(actions=tuple(step.reason for step in plan.steps), refused=refused, all_nodes=plan.all_nodes)


class ReconcileLoop(Generic[P]):
    """Plans and applies whenever the list changes, a block ends, or `every` seconds have passed; in one thread.

    A revision is acknowledged when it is applied, not before. What fails is tried again with jittered back-off. Before
    the first list nothing is done; without service the last one stands, and its blocks end in time all the same.
    """

    def __init__(self, manager: Manager[P], membership: ListenerSession, *, interval: float = DEFAULT_INTERVAL) -> None:
        self._manager = manager
        self._membership = membership
        self._interval = interval
        self._wake, self._stopping = threading.Event(), threading.Event()
        self._failures = 0
        self._next_run = 0.0
        self._next_end = PERMANENT
        self._logged_refusals: frozenset[str] = frozenset()

    def wake(self) -> None:
        """There is news; from any thread."""
        self._wake.set()

    def stop(self) -> None:
        """End `run` after what is under way; from any thread or signal handler."""
        self._stopping.set()
        self._wake.set()

    def run(self, feed: WatchThread) -> bool:
        """Go on until `stop`, or until another session has taken over: whether it was stopped."""
        pending = False
        while not (self._stopping.is_set() or self._membership.fenced):
            self._wake.clear()
            pending |= feed.apply_pending()
            if feed.tracker is not None and self._is_due(pending):
                now = _now()
                nodes = feed.tracker.blocked(now)
                self._next_end = min((node.end for node in nodes.values()), default=PERMANENT)
                pending = not self._reconcile_once(DesiredState(revision=feed.tracker.revision, nodes=nodes))
            self._wake.wait(_POLL_INTERVAL if feed.tracker is None else self._wait_seconds())
        return self._stopping.is_set()

    def _is_due(self, pending: bool) -> bool:
        monotonic = time.monotonic()
        if self._failures:
            return monotonic >= self._next_run
        return pending or monotonic >= self._next_run or _now() >= self._next_end

    def _wait_seconds(self) -> float:
        """Seconds until there may be something to do."""
        until_due = self._next_run - time.monotonic()
        until_end = (self._next_end - _now()) / 1000
        return max(0.0, min(_POLL_INTERVAL, until_due if self._failures else min(until_due, until_end)))

    def _reconcile_once(self, desired: DesiredState) -> bool:
        """Settle, and say so; whether it went well."""
        try:
            result = reconcile(self._manager, desired)
        except ManagerError as error:
            self._schedule_retry(str(error))
            return False
        except Exception as error:
            log.exception("A fault of ours; trying again.")
            self._schedule_retry(str(error) or type(error).__name__)
            return False
        self._log_result(result)
        self._membership.report(
            acked=desired.revision, refused=truncate_refused(result.refused), nodes=_reportable_nodes(result.all_nodes)
        )
        self._failures = 0
        self._next_run = time.monotonic() + self._interval
        return True

    def _schedule_retry(self, message: str) -> None:
        self._failures += 1
        delay = _BACKOFF.delay(self._failures, random.random())  # noqa: S311
        self._next_run = time.monotonic() + delay
        log.warning("%s Trying again in %.1f s.", message, delay)

    def _log_result(self, result: ReconcileResult) -> None:
        if self._failures:
            log.info("In line with the list again.")
        for sentence in result.actions:
            log.info("%s", sentence)
        refused = frozenset(result.refused.values())
        for sentence in sorted(refused - self._logged_refusals):
            log.warning("%s", sentence)
        self._logged_refusals = refused


def _reportable_nodes(nodes: tuple[str, ...] | None) -> tuple[str, ...] | None:
    """All nodes as a heartbeat may name them; None where they are too many: a part would be taken for the whole."""
    if nodes is None or len(nodes) > MAX_ENTRIES:
        return None
    return tuple(node for node in nodes if is_node_id(node))


def _now() -> int:
    """Unix milliseconds."""
    return time.time_ns() // 1_000_000
