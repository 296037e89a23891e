"""The loop that keeps a cluster manager in line with the list and acknowledges applied revisions."""

from __future__ import annotations

import argparse
import logging
import platform
import random
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Generic

from blocklist import __version__
from blocklist.client.client import BlocklistClient
from blocklist.client.names import InventoryNames
from blocklist.client.session import ListenerSession
from blocklist.client.watch import WatchThread
from blocklist.managers.applications import ApplicationThread, KnowsApplications
from blocklist.managers.command import Stopping
from blocklist.managers.plan import (
    DEFAULT_INTERVAL,
    DesiredState,
    Manager,
    ManagerError,
    ManagerPlan,
    NotInForce,
    OtherNames,
    P,
    PlanStep,
    Stoppable,
    TransientError,
    withheld_message,
)
from blocklist.model.listener import (
    MAX_ENTRIES,
    ListenerRole,
    Mode,
    Registration,
    Report,
    Software,
    default_cluster,
    truncate_reasons,
)
from blocklist.model.node import PERMANENT, Backoff, check_id, is_node_id
from blocklist.model.reported_node import NodeFacts, ReportedNode, node_ids, report_nodes
from blocklist.spark.submit_conf import EXCLUDE_NODES, blocked_names, exclude_nodes
from blocklist.wire.body import dump_json
from blocklist.wire.listeners import report_fields

log = logging.getLogger("blocklist.managers")

MAX_NODES_BYTES: Final = 1_500_000
"""Maximum size of the nodes in a heartbeat, in bytes: beyond it less is reported of each. A heartbeat has 2 MiB."""
_FEWER_LABELS: Final = (4, 0)
_PYTHON: Final = f"Python {platform.python_version()}"
_BACKOFF: Final = Backoff(initial=1.0, cap=60.0, floor=0.5)
_SOON: Final = 1.0
"""Seconds until the next reconciliation after one that changed something."""
_PENDING: Final = 5.0
"""Seconds until the next reconciliation while something is pending."""
_NOT_HERE: Final = 15.0
"""Seconds until the next reconciliation while a blocked node is not here: it may join the cluster."""
_NAMES_SECONDS: Final = 1.0
"""How long a plan waits for the other names of nodes, which the service says."""
_MODE_SECONDS: Final = 2.0
"""How long a start waits until the service has said which mode it wants."""
_POLL_INTERVAL: Final = 5.0
"""Maximum seconds between two checks whether another session has taken over."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ReconcileResult:
    """The plan that was applied, and all that is not in force after it."""

    plan: ManagerPlan
    not_in_force: NotInForce

    @property
    def actions(self) -> tuple[str, ...]:
        """A sentence for each step."""
        return tuple(step.reason for step in self.plan.steps)


def make_plan(manager: Manager[P], desired: DesiredState, names: InventoryNames) -> P:
    """Plan; once more if an id means no node, and the service says soon what else it calls it. Raises ManagerError."""
    since_start = desired.others.since_start
    desired = replace(desired, others=OtherNames(known=names.known(), since_start=since_start))
    plan = manager.plan(desired)
    unmatched = {*plan.unmatched, *plan.not_in_force.not_here}
    names.follow((names.followed & desired.nodes.keys()) | unmatched)
    if desired.others.unknown(unmatched):
        names.wait(_NAMES_SECONDS)
        desired = replace(desired, others=OtherNames(known=names.known(), since_start=since_start))
        plan = manager.plan(desired)
    return replace(plan, not_in_force=desired.others.checked(plan.not_in_force))


def reconcile(
    manager: Manager[P], desired: DesiredState, names: InventoryNames, planned: Callable[[P], None] = lambda _: None
) -> ReconcileResult:
    """Plan and apply once; `planned` is called in between.

    Raises ManagerError; some steps may have been carried out before it.
    """
    plan = make_plan(manager, desired, names)
    planned(plan)
    return ReconcileResult(plan=plan, not_in_force=carry_out(manager, plan))


def carry_out(manager: Manager[P], plan: P) -> NotInForce:
    """Apply the plan; all that is not in force then. Raises ManagerError, also if nodes are withheld."""
    not_in_force = plan.not_in_force | manager.apply(plan)
    if plan.withheld:
        # The list is not in force, but what is known of each block stays true.
        raise ManagerError(withheld_message(plan), known=not_in_force)
    return not_in_force


class ReconcileLoop(Generic[P]):
    """Reconciles when the list changes, when a block ends, and every `interval` seconds, in the thread of `run`.

    A revision is acknowledged after it has been applied. A failure is retried with jittered back-off. Nothing is done
    before the first list is received. While the service is unreachable the last list applies, and its blocks still end:
    by the service's clock, so that a wrong clock of this machine neither ends a block early nor keeps it.
    """

    def __init__(self, manager: Manager[P], session: ListenerSession, *, interval: float = DEFAULT_INTERVAL) -> None:
        self._manager = manager
        self._session = session
        self._interval = interval
        self._wake, self._stopping, self._requested = threading.Event(), threading.Event(), threading.Event()
        self._failures, self._last_failure = 0, ""
        self._steps: Sequence[PlanStep] = ()
        self._repeats = 0
        self._reconciled = False
        self._next_run = 0.0
        self._next_end = PERMANENT
        self._logged_refusals: frozenset[str] = frozenset()
        self._logged_pending: frozenset[str] = frozenset()
        self._reported = NotInForce()
        self._nodes: tuple[Sequence[NodeFacts] | None, Sequence[str | ReportedNode] | None] = (None, None)
        self._names = InventoryNames(session.known_node, self.request)
        self._first_ids: frozenset[str] | None = None
        # None: what a former process may have blocked is not freed yet.
        self._freed_in: Mode | None = None
        session.on_mode = self.request

    def wake(self) -> None:
        """Reconcile soon if the list has changed. Call it from any thread."""
        self._wake.set()

    def request(self) -> None:
        """Reconcile soon, because the cluster has changed. Call it from any thread."""
        self._requested.set()
        self._wake.set()

    def stop(self) -> None:
        """End `run` after the current reconciliation, or earlier if the manager can be stopped.

        Call it from any thread or signal handler.
        """
        self._stopping.set()
        if isinstance(self._manager, Stoppable):
            self._manager.stop()
        self._wake.set()

    def run(self, watch: WatchThread) -> bool:
        """Run until `stop` is called (True) or another session has taken over (False).

        `watch` opens watches of the session: the service's clock is then known before the first list.
        """
        applications = None
        if isinstance(self._manager, KnowsApplications):
            applications = ApplicationThread(self._manager.applications, self._session.report)
        try:
            return self._run(watch)
        finally:
            if applications is not None:
                applications.close()
            self._names.close()

    def _run(self, watch: WatchThread) -> bool:
        pending = False
        self._session.wait_for_mode(_MODE_SECONDS)
        while not (self._stopping.is_set() or self._session.fenced):
            self._wake.clear()
            pending |= watch.apply_pending()
            if watch.tracker is not None and self._is_due(pending):
                nodes = watch.tracker.blocked(self._session.clock.now())
                self._next_end = min((node.end for node in nodes.values()), default=PERMANENT)
                tracker = watch.tracker
                if self._first_ids is None:
                    self._first_ids = frozenset(nodes)
                desired = DesiredState(
                    revision=tracker.revision,
                    history=tracker.history,
                    nodes=nodes,
                    claims=tracker.known_claims(),
                    others=OtherNames(since_start=self._first_ids),
                )
                self._requested.clear()
                pending = not self._reconcile_once(desired)
            self._wake.wait(_POLL_INTERVAL if watch.tracker is None else self._wait_seconds())
        return self._stopping.is_set()

    def _is_due(self, pending: bool) -> bool:
        if self._requested.is_set():
            return True
        scheduled = time.monotonic() >= self._next_run
        if self._failures:
            return scheduled
        return pending or scheduled or self._session.clock.now() >= self._next_end

    def _wait_seconds(self) -> float:
        """Seconds until the next check."""
        until_due = self._next_run - time.monotonic()
        until_end = (self._next_end - self._session.clock.now()) / 1000
        return max(0.0, min(_POLL_INTERVAL, until_due if self._failures else min(until_due, until_end)))

    def _reconcile_once(self, desired: DesiredState) -> bool:
        """Reconcile and report the result; False if it failed."""
        mode = self._session.mode
        try:
            if mode is not Mode.APPLY:
                self._rest(desired, mode)
                return True
            result = reconcile(self._manager, desired, self._names, lambda it: self._withdraw(desired, it))
        except TransientError as error:
            self._schedule_retry(str(error))
            return False
        except ManagerError as error:
            self._on_failure(desired, str(error), error.known)
            return False
        except Exception as error:
            log.exception("Unexpected error; retrying.")
            self._on_failure(desired, str(error) or type(error).__name__)
            return False
        self._log_result(result)
        self._freed_in = None
        if result.plan.platform is not None:
            self._session.set_platform(f"{result.plan.platform}, {_PYTHON}")
        self._session.report(self._report_of(result), acked=desired.revision, history=desired.history)
        self._reported = result.not_in_force
        self._failures, self._last_failure = 0, ""
        # What was changed has an effect on what the next plan shows, such as containers that have ended.
        soon = bool(result.plan.steps) and result.plan.containers is not None
        # What was done without effect must not be done each second, as a busy cluster manager would never recover.
        self._repeats = self._repeats + 1 if soon and result.plan.steps == self._steps else 0
        self._steps = result.plan.steps
        again = max(_SOON, _BACKOFF.delay(self._repeats, random.random())) if self._repeats else _SOON  # noqa: S311
        delay = again if soon else _PENDING if result.not_in_force.pending else self._interval
        if result.not_in_force.not_here:
            delay = min(delay, _NOT_HERE)
        self._next_run = time.monotonic() + min(self._interval, delay)
        return True

    def _rest(self, desired: DesiredState, mode: Mode) -> None:
        """In the mode observe say what would be done; before, free what was blocked. Raises ManagerError.

        A manager that was started to observe changes nothing at all.
        """
        if self._freed_in is not mode and not self._session.observes_only:
            free = self._manager.plan(replace(desired, nodes={}, claims={}))
            for step in free.steps:
                log.info("%s", step.reason)
            if carry_out(self._manager, free):
                raise ManagerError("Not all nodes are free yet.")
        self._freed_in = mode
        plan = make_plan(self._manager, desired, self._names) if mode is Mode.OBSERVE else None
        idle = NotInForce() if plan is None else NotInForce(not_here=plan.not_in_force.not_here)
        report = Report(
            mode=mode,
            would={} if plan is None else truncate_reasons(plan.would()),
            nodes=None if plan is None else self._reportable_nodes(plan.all_nodes),
            schedulable={},
        ).over(_reasons(idle))
        if plan is None:
            self._session.report(report)
        else:
            self._session.report(report, acked=desired.revision, history=desired.history)
        self._reported = idle
        self._failures, self._last_failure = 0, ""
        self._next_run = time.monotonic() + self._interval

    def _withdraw(self, desired: DesiredState, plan: P) -> None:
        """Report at once that nodes are here now that were not: to apply their blocks may take a while."""
        if plan.all_nodes is None:  # Without an inventory the plan does not tell.
            return
        joined = (self._reported.not_here - plan.not_in_force.not_here) & desired.nodes.keys()
        if joined:
            pending = {it: f"Node {it} is here now: its block is being applied." for it in joined}
            self._reported |= NotInForce(pending=pending)
            self._session.report(_reasons(self._reported))

    def _report_of(self, result: ReconcileResult) -> Report:
        plan = result.plan
        return Report(
            mode=Mode.APPLY,
            would={},
            nodes=self._reportable_nodes(plan.all_nodes),
            unschedulable=_reportable(plan.unschedulable),
            schedulable=_reportable(plan.schedulable),
            replaced=_reportable(plan.replaced),
            new_machines=plan.new_machines,
            **_work_of(plan.containers),
        ).over(_reasons(result.not_in_force))

    def _on_failure(self, desired: DesiredState, message: str, known: NotInForce | None = None) -> None:
        """Retry later, and report at once that it is not known meanwhile whether the blocks are in force.

        `known`: what is known of each block anyway.
        """
        if self._stopping.is_set():
            return
        if known is None:
            known = NotInForce(pending=dict.fromkeys(desired.nodes, f"Not known to be in force: {message}"))
        self._reported = known
        self._session.report(_reasons(known))
        self._schedule_retry(message)

    def _reportable_nodes(self, nodes: Sequence[NodeFacts] | None) -> Sequence[str | ReportedNode] | None:
        """Those of the last report while no node has changed: 5,000 take half a second of CPU."""
        if nodes != self._nodes[0]:
            self._nodes = nodes, _reportable_nodes(nodes)
        return self._nodes[1]

    def _schedule_retry(self, message: str) -> None:
        self._failures += 1
        # No longer than without a failure.
        delay = min(self._interval, _BACKOFF.delay(self._failures, random.random()))  # noqa: S311
        self._next_run = time.monotonic() + delay
        # An outage may last for hours: one line for each reason, not for each attempt.
        level = logging.DEBUG if message == self._last_failure else logging.WARNING
        self._last_failure = message
        log.log(level, "%s Retrying in %.1f s.", message, delay)

    def _log_result(self, result: ReconcileResult) -> None:
        if self._failures or not self._reconciled:
            log.info("Reconciled with the list%s.", " again" if self._reconciled else "")
        self._reconciled = True
        for sentence in result.actions:
            log.info("%s", sentence)
        refused = frozenset(result.not_in_force.refused.values())
        for sentence in sorted(refused - self._logged_refusals):
            log.warning("%s", sentence)
        self._logged_refusals = refused
        pending = result.not_in_force.pending
        for node_id in sorted(pending.keys() - self._logged_pending):
            log.info("%s", pending[node_id])
        self._logged_pending = frozenset(pending)


def _reasons(not_in_force: NotInForce) -> Report:
    """What is not in force, as the service takes it."""
    return Report(
        refused=truncate_reasons(not_in_force.refused),
        pending=truncate_reasons(not_in_force.pending),
        not_here=not_in_force.not_here,
    )


def _reportable(states: Mapping[str, str] | None) -> Mapping[str, str] | None:
    """Without what is no node id; None if it is not known."""
    if states is None:
        return None
    return truncate_reasons({node: state for node, state in states.items() if is_node_id(node)})


def _work_of(containers: Mapping[str, tuple[str, int | None]] | None) -> dict[str, Any]:
    """The fields of a report for what runs on blocked nodes; none if it is not known, or there is too much."""
    if containers is None or len(containers) > MAX_ENTRIES:
        return {}
    return {
        "task_managers": {group: node for group, (node, _) in containers.items()},
        "running_tasks": {group: number for group, (_, number) in containers.items() if number is not None},
    }


def _reportable_nodes(nodes: Sequence[NodeFacts] | None) -> Sequence[str | ReportedNode] | None:
    """The nodes for a heartbeat; None if there are too many, as the service would take a part for all nodes.

    If the report is too long, the last labels of each node are left out, then all, at last everything but the ids.
    """
    if nodes is None or len(nodes) > MAX_ENTRIES:
        return None
    for labels in (None, *_FEWER_LABELS):
        reported = report_nodes(nodes if labels is None else (replace(n, labels=n.labels[:labels]) for n in nodes))
        if len(dump_json(report_fields(Report(nodes=reported)))) <= MAX_NODES_BYTES:
            return reported
    return node_ids(reported)


# The process of a manager, as its options say.


def run(args: argparse.Namespace) -> int:
    """The exit code; see `main`. Raises InvalidError, BlocklistError, ManagerError."""
    if args.once or args.dry_run or args.print:
        return _run_once(args)
    return _run_until_stopped(args)


def _run_once(args: argparse.Namespace) -> int:
    """Reconcile once, or print the plan or the Spark configuration, without registering as a listener."""
    with BlocklistClient(args.url) as client:
        snapshot = client.snapshot()
        if args.print:
            names = blocked_names(snapshot.nodes, client.known_nodes().nodes if snapshot.nodes else ())
            return _print(f"{EXCLUDE_NODES}={exclude_nodes(names)}")
        desired = DesiredState(
            revision=snapshot.revision,
            nodes=snapshot.nodes,
            others=OtherNames(since_start=snapshot.nodes.keys()),
        )
        manager: Manager[Any] = args.make(args)
        if isinstance(manager, Stoppable):
            for number in (signal.SIGTERM, signal.SIGINT):
                signal.signal(number, lambda *_: manager.stop())
        others = InventoryNames(client.known_node, lambda: None)
        try:
            if args.dry_run:
                plan = make_plan(manager, desired, others)
                lines = [step.reason for step in plan.steps] or ["No changes."]
                return _print(*lines, *plan.not_in_force.sentences)
            result = reconcile(manager, desired, others)
            return _print(*result.actions, *result.not_in_force.sentences)
        finally:
            others.close()


def _run_until_stopped(args: argparse.Namespace) -> int:
    stopping = Stopping()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopping.set())
    return 0 if (args.run or _run_loop)(args, stopping) else 1


def registration_of(args: argparse.Namespace, listener_id: str) -> Registration:
    """A new session for each start: a second process with this id takes over from the first."""
    return Registration(
        id=listener_id,
        role=ListenerRole.RESOURCE_MANAGER,
        session=str(time.time_ns()),
        min_nodes=args.min_nodes,
        cluster=args.cluster or default_cluster(args.manager, listener_id),
        mode=Mode.OBSERVE if args.observe else Mode.APPLY,
        software=Software(f"blocklist-{args.manager}", __version__, _PYTHON),
    )


def _run_loop(args: argparse.Namespace, stopping: Stopping) -> bool:
    """Run until it is stopped (True), or another process has taken over the listener (False)."""
    manager: Manager[Any] = args.make(args)
    name = check_id(args.id or f"{args.manager}-{socket.gethostname()}")
    session = ListenerSession(args.url, registration_of(args, name))
    loop = ReconcileLoop(manager, session, interval=args.every)
    watch = WatchThread(session.open_watch, loop.wake)
    try:
        with stopping.calls(loop.stop):
            stopped = loop.run(watch)
    finally:
        watch.close()
        session.close()
    if not stopped:
        log.error(
            "Another process has taken over as listener %s; this one stops. Run one manager per cluster;"
            " those of different clusters need different --id.",
            name,
        )
    return stopped


def _print(*lines: str) -> int:
    try:
        sys.stdout.write("".join(f"{line}\n" for line in lines))
        sys.stdout.flush()
    except OSError as error:
        log.error("The output cannot be written: %s. What was applied stays.", error.strerror)  # noqa: TRY400
        return 1
    return 0
