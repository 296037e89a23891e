"""The loop that keeps a cluster manager in line with the list, and tells the service how far it is."""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Generic

from blocklist.client.listener_session import Membership
from blocklist.client.watch_thread import Feed
from blocklist.managers.plan import Manager, ManagerError, P, Wanted
from blocklist.model.backoff import Backoff
from blocklist.model.listener import MAX_ENTRIES, fitting
from blocklist.model.node import PERMANENT, is_node_id

log = logging.getLogger("blocklist.managers")

EVERY: Final = 60.0
"""Seconds after which the cluster manager is looked at again, though nothing was heard."""
_BACKOFF: Final = Backoff(first=1.0, cap=60.0, floor=0.5)
_LOOK: Final = 5.0
"""Seconds between two looks whether another session has taken over."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Settled:
    """What a round has done, a sentence for each, what it refused, by id, and all nodes that there are, if known."""

    done: tuple[str, ...]
    refused: Mapping[str, str]
    all_nodes: tuple[str, ...] | None = None


def settle(manager: Manager[P], wanted: Wanted) -> Settled:
    """Plan and apply once. Raises ManagerError; then part of it may be done."""
    plan = manager.plan(wanted)
    refused = {**plan.refused, **manager.apply(plan)}
    return Settled(done=tuple(step.reason for step in plan.steps), refused=refused, all_nodes=plan.all_nodes)


class Reconciler(Generic[P]):
    """Plans and applies whenever the list changes, a block ends, or `every` seconds have passed; in one thread.

    A revision is acknowledged when it is applied, not before. What fails is tried again with jittered back-off. Before
    the first list nothing is done; without service the last one stands, and its blocks end in time all the same.
    """

    def __init__(self, manager: Manager[P], membership: Membership, *, every: float = EVERY) -> None:
        self._manager = manager
        self._membership = membership
        self._every = every
        self._wake, self._stopping = threading.Event(), threading.Event()
        self._failures = 0
        self._due = 0.0
        self._next_end = PERMANENT
        self._told: frozenset[str] = frozenset()

    def wake(self) -> None:
        """There is news; from any thread."""
        self._wake.set()

    def stop(self) -> None:
        """End `run` after what is under way; from any thread or signal handler."""
        self._stopping.set()
        self._wake.set()

    def run(self, feed: Feed) -> bool:
        """Go on until `stop`, or until another session has taken over: whether it was stopped."""
        heard = False
        while not (self._stopping.is_set() or self._membership.fenced):
            self._wake.clear()
            heard |= feed.take()
            if feed.tracker is not None and self._is_due(heard):
                now = _now()
                nodes = feed.tracker.blocked(now)
                self._next_end = min((node.end for node in nodes.values()), default=PERMANENT)
                heard = not self._round(Wanted(revision=feed.tracker.revision, nodes=nodes))
            self._wake.wait(_LOOK if feed.tracker is None else self._pause())
        return self._stopping.is_set()

    def _is_due(self, heard: bool) -> bool:
        moment = time.monotonic()
        if self._failures:
            return moment >= self._due
        return heard or moment >= self._due or _now() >= self._next_end

    def _pause(self) -> float:
        """Seconds until there may be something to do."""
        until_due = self._due - time.monotonic()
        until_end = (self._next_end - _now()) / 1000
        return max(0.0, min(_LOOK, until_due if self._failures else min(until_due, until_end)))

    def _round(self, wanted: Wanted) -> bool:
        """Settle, and say so; whether it went well."""
        try:
            settled = settle(self._manager, wanted)
        except ManagerError as error:
            self._failed(str(error))
            return False
        except Exception as error:
            log.exception("A fault of ours; trying again.")
            self._failed(str(error) or type(error).__name__)
            return False
        self._report(settled)
        self._membership.say(
            acked=wanted.revision, refused=fitting(settled.refused), nodes=_tellable(settled.all_nodes)
        )
        self._failures = 0
        self._due = time.monotonic() + self._every
        return True

    def _failed(self, sentence: str) -> None:
        self._failures += 1
        delay = _BACKOFF.delay(self._failures, random.random())  # noqa: S311
        self._due = time.monotonic() + delay
        log.warning("%s Trying again in %.1f s.", sentence, delay)

    def _report(self, settled: Settled) -> None:
        if self._failures:
            log.info("In line with the list again.")
        for sentence in settled.done:
            log.info("%s", sentence)
        refused = frozenset(settled.refused.values())
        for sentence in sorted(refused - self._told):
            log.warning("%s", sentence)
        self._told = refused


def _tellable(nodes: tuple[str, ...] | None) -> tuple[str, ...] | None:
    """All nodes as a heartbeat may name them; None where they are too many: a part would be taken for the whole."""
    if nodes is None or len(nodes) > MAX_ENTRIES:
        return None
    return tuple(node for node in nodes if is_node_id(node))


def _now() -> int:
    """Unix milliseconds."""
    return time.time_ns() // 1_000_000
