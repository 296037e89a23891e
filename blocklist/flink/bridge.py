"""The bridge: makes a Flink cluster follow the list, and reports what is in force there.

Each round tells Flink what it has to know, reads what it makes of that, continues the evacuation that is under way, and
reports. There is a round when the list changes, and otherwise each second, so that a new leader gets the list within
two. While the service is unreachable the last list is renewed, and its blocks still end.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from blocklist.client.names import InventoryNames
from blocklist.client.watch import WatchThread
from blocklist.flink.connection import FlinkConnection
from blocklist.flink.effects import (
    IN_FORCE,
    Effect,
    EffectState,
    Observation,
    job_master_effects,
    open_task_managers,
    refused,
    resource_manager_effects,
    slow,
    with_unknown_jobs,
)
from blocklist.flink.evacuator import EvacuationNode, EvacuationRequest, EvacuationTarget, Evacuator
from blocklist.flink.guards import GuardContext, job_evidence, kept_slots
from blocklist.flink.listeners import FlinkListener, JobListeners, OpenSession, close_aside, job_report
from blocklist.flink.marking import MIN_AHEAD, Clocks, NodeLease, node_leases, report_validity
from blocklist.flink.node_names import FlinkNodeIds
from blocklist.flink.rpc import LEADER_INTERVAL, TIMEOUT, RestRequest
from blocklist.flink.state import (
    ClusterState,
    ConfigurationCheck,
    FlinkError,
    FlinkJob,
    LeaderChangedError,
    advice,
    check_configuration,
)
from blocklist.model.listener import ListenerRole, Mode, Report
from blocklist.model.node import Backoff, BlockedNode, is_node_id

log = logging.getLogger("blocklist.flink")

ROUND: Final = 1.0
"""Seconds between two rounds while the list does not change."""
BUSY_ROUND: Final = 0.2
"""Seconds between two rounds while something is expected soon."""
CLOSE_TIMEOUT: Final = 10.0
"""Seconds that deregistering all listeners may take at the end."""
_LEADER_CHANGED: Final = "Another JobManager leads now: it is being notified of the blocked nodes."
_BACKOFF: Final = Backoff(initial=0.5, cap=5.0, floor=0.2)


@dataclass(frozen=True, kw_only=True, slots=True)
class BridgeOptions:
    """`listener_id` is that of the ResourceManager. `grows`: the cluster starts TaskManagers when it needs slots."""

    listener_id: str
    drop_results: bool = False
    grows: bool = False
    report_evidence: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class _List:
    revision: int
    history: str | None
    blocked: Mapping[str, BlockedNode]


class Bridge:
    """Runs in the thread of `run`; `wake` and `stop` may be called from any thread or signal handler."""

    def __init__(
        self,
        connection: FlinkConnection,
        open_session: OpenSession,
        options: BridgeOptions,
        aliases: InventoryNames | None = None,
        service_ahead: Callable[[], int] = lambda: 0,
    ) -> None:
        """`aliases`: what else the service calls the nodes on the list. `service_ahead`: milliseconds by which its
        clock, by which blocks end, is ahead of this machine's.
        """
        self._connection = connection
        self._options = options
        role = ListenerRole.RESOURCE_MANAGER
        self._manager = FlinkListener(options.listener_id, role, open_session, connection.lease)
        self._jobs = JobListeners(options.listener_id, open_session, connection.lease)
        self._names, self._aliases = FlinkNodeIds(), aliases
        self._service_ahead = service_ahead
        self._evacuator = Evacuator(connection, drop_results=options.drop_results)
        self._wake, self._stopping = threading.Event(), threading.Event()
        self._configuration = LeaderConfiguration(connection)
        self._received: dict[str, tuple[BlockedNode, float]] = {}
        self._matches: Mapping[str, set[str]] = {}
        self._owner_of: dict[str, str] = {}
        self._lingering: dict[str, float] = {}
        self._started = self._round_at = time.monotonic()
        self._validity = report_validity(connection.lease)
        self._failures = 0
        self._error = ""
        self._busy = self._leader_changed = False

    def wake(self) -> None:
        """Begin the next round soon."""
        self._wake.set()

    def stop(self) -> None:
        """End `run` after the present round."""
        self._stopping.set()
        self._wake.set()

    def run(self, watch: WatchThread) -> bool:
        """Run until `stop` is called (True) or another process has taken over (False)."""
        threading.Thread(target=self._watch_rounds, name="blocklist-flink-watchdog", daemon=True).start()
        while not (self._stopping.is_set() or self.fenced_listeners()):
            self._wake.clear()
            self._try_round(watch)
            self._wait()
        return self._stopping.is_set()

    def close(self) -> None:
        """Deregister all listeners and end the JVM. In Flink the nodes are free when their leases have ended."""
        deadline = time.monotonic() + CLOSE_TIMEOUT
        closing = [close_aside(listener) for listener in self._listeners()]
        for thread in closing:
            thread.join(max(0.0, deadline - time.monotonic()))
        self._connection.close()

    def fenced_listeners(self) -> list[str]:
        """The listeners that another process has taken over."""
        return [listener.id for listener in self._listeners() if listener.fenced]

    def _wait(self) -> None:
        """Until the next round is due; a new leader is to get the list before it starts tasks."""
        end = time.monotonic() + self._wait_seconds()
        while (left := end - time.monotonic()) > 0 and not self._wake.wait(min(left, LEADER_INTERVAL)):
            if self._connection.leader_changed():
                self._withdraw(_LEADER_CHANGED)
                return

    def _wait_seconds(self) -> float:
        if self._leader_changed:
            return 0.0
        if self._failures:
            return _BACKOFF.delay(self._failures, random.random())  # noqa: S311
        return BUSY_ROUND if self._busy else min(ROUND, self._validity / 3)

    def _listeners(self) -> list[FlinkListener]:
        return [*self._jobs.items().values(), self._manager]

    def _try_round(self, watch: WatchThread) -> None:
        """A round; whatever fails in it, the next one follows."""
        self._leader_changed = False
        try:
            watch.apply_pending()
            if watch.tracker is not None:
                blocked = watch.tracker.blocked(time.time_ns() // 1_000_000 + self._service_ahead())
                self._round(_List(revision=watch.tracker.revision, history=watch.tracker.history, blocked=blocked))
        except FlinkError as error:
            self._on_error(error)
        except LeaderChangedError:
            self._leader_changed = True
            self._withdraw(_LEADER_CHANGED)
        except Exception as error:
            log.exception("Unexpected error; retrying.")
            self._on_error(FlinkError(str(error) or type(error).__name__))

    def _round(self, wanted: _List) -> None:
        begun, mode = time.monotonic(), self._manager.mode
        applied = wanted.blocked if mode is Mode.APPLY else {}
        self._receive(applied)
        state = self._exchange(applied)
        # The leases were renewed when the exchange began, or before.
        self._round_at, self._error = begun, ""
        self._configuration.update()
        if mode is Mode.APPLY:
            self._report(wanted, state, begun + self._validity)
        else:
            self._rest(wanted, state, mode)
        if self._failures:
            log.info("Flink answers again.")
        self._failures = 0

    def _on_error(self, error: FlinkError) -> None:
        self._failures += 1
        if self._failures == 1:
            log.warning("%s. Retrying.", error)
        self._error = f"It is not known what is in force: {error}."
        self._withdraw(self._error)

    def _withdraw(self, reason: str) -> None:
        """Withdraw all acknowledgements. Call it from any thread."""
        for listener in self._listeners():
            try:
                listener.withdraw(reason)
            except Exception:
                log.exception("Listener %s cannot withdraw its acknowledgements.", listener.id)

    def _watch_rounds(self) -> None:
        """Withdraw the acknowledgements when they are not valid any more, with the reason: a call may hang."""
        limit = self._validity
        hangs = f"It is not known what is in force: Flink has not answered for more than {limit:g} s."
        while not self._stopping.wait(limit / 10):
            try:
                if time.monotonic() > self._round_at + limit:
                    self._withdraw(self._error or hangs)
            except Exception:
                log.exception("The acknowledgements cannot be withdrawn; retrying.")

    # What Flink receives, and what is learnt.

    def _exchange(self, blocked: Mapping[str, BlockedNode]) -> ClusterState:
        """Notify and read; once more if that brought further ids of blocked nodes to light, or that the leader's clock
        is ahead.
        """
        evacuates = any(node.evacuates for node in blocked.values())
        for _ in range(2):
            notified, ahead = self._blocks(blocked), self._connection.clock_ahead
            state = self._connection.exchange(lambda: self._blocks(blocked), read_failures=evacuates)
            self._names.update(state)
            self._matches = self._match(blocked)
            known = {it.node for it in self._blocks(blocked)} <= {it.node for it in notified}
            # A lease that Flink received before its clock was known may have ended there.
            if known and self._connection.clock_ahead <= ahead + MIN_AHEAD:
                break
        return state

    def _blocks(self, blocked: Mapping[str, BlockedNode]) -> list[NodeLease]:
        clocks = Clocks(service=self._service_ahead(), leader=self._connection.clock_ahead)
        return node_leases(blocked, self._matches, time.time_ns() // 1_000_000, self._connection.lease, clocks)

    def _receive(self, blocked: Mapping[str, BlockedNode]) -> None:
        """Note when each block was received."""
        now, before = time.monotonic(), self._received
        self._received = {
            node_id: before[node_id] if node_id in before and before[node_id][0] == node else (node, now)
            for node_id, node in blocked.items()
        }
        if self._aliases is not None:
            self._aliases.follow(blocked)
        self._matches = self._match(blocked)

    def _match(self, blocked: Mapping[str, BlockedNode]) -> Mapping[str, set[str]]:
        return self._names.matches(blocked, {it: self._aliases_of(it) or frozenset() for it in blocked})

    # What is reported.

    def _report(self, wanted: _List, state: ClusterState, valid_until: float) -> None:
        observation = self._observe(wanted.blocked, state)
        at_manager = resource_manager_effects(observation)
        at_jobs = {job.id: job_master_effects(job, observation, at_manager) for job in state.jobs.values()}
        self._evacuate(wanted.blocked, observation, at_jobs)
        self._jobs.update(state)
        at_manager = with_unknown_jobs(
            at_manager, self._evacuated(wanted.blocked, observation), self._jobs.unknown_jobs()
        )
        slow_nodes = self._slow_nodes(observation) if self._options.report_evidence else set()
        for job_id, listener in self._jobs.items().items():
            if job_id in at_jobs:
                report = self._job_report(state.jobs[job_id], slow_nodes)
                effects = at_jobs[job_id]
                listener.report(wanted.blocked, wanted.revision, wanted.history, effects, report, valid_until)
            else:
                listener.withdraw(state.unreachable.get(job_id, "Flink does not report this job."))
        report = self._manager_report(state).over(
            Report(not_here=self._not_here(wanted.blocked, observation, at_manager))
        )
        self._manager.report(wanted.blocked, wanted.revision, wanted.history, at_manager, report, valid_until)
        every = [at_manager, *at_jobs.values()]
        soon = any(effect.state in {EffectState.PENDING, EffectState.SLOW} for it in every for effect in it.values())
        if open_task_managers(observation):
            # Flink has forgotten the block, as its lease seemed to have ended.
            self._connection.notify_again()
        self._busy = soon or self._evacuator.busy or bool(state.unreachable)

    def _rest(self, wanted: _List, state: ClusterState, mode: Mode) -> None:
        """Flink gets no block: report that, once those that it has have ended, and what would be done."""
        observation = self._observe({}, state)
        self._evacuate({}, observation, {job_id: {} for job_id in state.jobs})
        self._jobs.update(state)
        if self._lingering:
            self._busy = True
            self._withdraw("Its blocks are ending, as the mode is not apply any more.")
            return
        would = self._would(wanted.blocked, state) if mode is Mode.OBSERVE else {}
        acked = wanted.revision if mode is Mode.OBSERVE else None
        for job_id, listener in self._jobs.items().items():
            if job_id in state.jobs:
                report = self._job_report(state.jobs[job_id], set())
                listener.rest(mode, would, report, acked, wanted.history)
        self._manager.rest(mode, would, self._manager_report(state), acked, wanted.history)
        self._busy = False

    def _would(self, blocked: Mapping[str, BlockedNode], state: ClusterState) -> dict[str, str]:
        """Node id to what would be done there; without nodes that have no TaskManager."""
        matches, found = self._match(blocked), dict[str, str]()
        for node_id, node in blocked.items():
            names = {node_id, *matches.get(node_id, ())}
            number = sum(self._names.node_of(it) in names for it in state.task_managers)
            if number and is_node_id(node_id):
                there = f"{number} TaskManager{'' if number == 1 else 's'}"
                found[node_id] = f"would close {there}{' and evacuate the tasks' if node.evacuates else ''}."
        return found

    def _observe(self, blocked: Mapping[str, BlockedNode], state: ClusterState) -> Observation:
        now = time.monotonic()
        by_node: dict[str, set[str]] = {}
        # A TaskManager may have left the ResourceManager while its tasks still run.
        used = {it for job in state.jobs.values() for it in job.task_managers()}
        for task_manager in state.task_managers.keys() | used:
            by_node.setdefault(self._names.node_of(task_manager), set()).add(task_manager)
        task_managers = {
            node_id: frozenset(it for name in self._names_of(node_id) for it in by_node.get(name, ()))
            for node_id in blocked
        }
        for node_id in blocked:
            for name in self._names_of(node_id):
                self._owner_of[name] = node_id
        check = self._configuration.check
        end_after = self._connection.lease / 1000 + (0 if check is None else check.check_interval)
        return Observation(
            state=state,
            error=None if check is None else check.error,
            enabled=check is not None and check.error is None,
            age={node_id: now - received for node_id, (_, received) in self._received.items()},
            task_managers=task_managers,
            nameless=frozenset(it for it in blocked if self._aliases_of(it) is None),
            lingering=self._update_lingering(state, task_managers, end_after),
            end_after=end_after,
        )

    def _update_lingering(
        self, state: ClusterState, task_managers: Mapping[str, frozenset[str]], end_after: float
    ) -> dict[str, float]:
        """Freed nodes that Flink still reports as blocked, with seconds. What it blocks by itself is not among them."""
        now = time.monotonic()
        closed = self._closed_unlisted(state, task_managers)
        # Those of a former bridge end within this time.
        young = now - self._started < end_after
        ours = {node for node in closed if node in self._owner_of or young}
        self._lingering = {node: self._lingering.get(node, now) for node in ours}
        for node in self._owner_of.keys() - ours - {name for names in self._matches.values() for name in names}:
            if node not in self._received:
                del self._owner_of[node]
        return {self._owner_of.get(node, node): now - since for node, since in self._lingering.items()}

    def _names_of(self, node_id: str) -> set[str]:
        """The ids under which Flink knows a node of the list."""
        return {node_id, *self._matches.get(node_id, ())}

    def _slow_nodes(self, observation: Observation) -> set[str]:
        """Nodes that Flink blocked by itself."""
        return self._closed_unlisted(observation.state, observation.task_managers) - self._lingering.keys()

    def _closed_unlisted(self, state: ClusterState, task_managers: Mapping[str, frozenset[str]]) -> set[str]:
        """Nodes that Flink reports as blocked and no id on the list means. `task_managers`: those of each listed id."""
        listed = {it for found in task_managers.values() for it in found}
        return {self._names.node_of(it.id) for it in state.task_managers.values() if it.blocked and it.id not in listed}

    def _manager_report(self, state: ClusterState) -> Report:
        """All nodes; and the TaskManagers on which no task runs, as the others are reported by their JobMasters."""
        busy = {task_manager for job in state.jobs.values() for task_manager in job.running()}
        idle = {} if state.unreachable else dict.fromkeys(state.task_managers.keys() - busy, 0)
        nodes = {self._names.node_of(it) for it in state.task_managers}
        return job_report(idle, self._names.node_of, None).over(Report(nodes=sorted(filter(is_node_id, nodes))))

    def _not_here(
        self, blocked: Mapping[str, BlockedNode], observation: Observation, effects: Mapping[str, Effect]
    ) -> frozenset[str]:
        """The nodes on which no TaskManager is, or was while this process runs.

        Flink blocks one that appears there anyway. A cluster that starts TaskManagers may use any node.
        """
        if self._options.grows or not observation.state.task_managers:
            return frozenset()
        silent = {it for it in blocked if effects[it] == IN_FORCE and not observation.task_managers[it]}
        return frozenset(silent) - self._names.known_among(silent, {it: self._aliases_of(it) or () for it in silent})

    def _job_report(self, job: FlinkJob, slow_nodes: Collection[str]) -> Report:
        evidence = None
        if self._options.report_evidence:
            now = time.time_ns() // 1_000_000
            evidence = job_evidence(job, slow_nodes, self._names.node_of, now)
        return job_report(job.running(), self._names.node_of, evidence)

    def _aliases_of(self, node_id: str) -> frozenset[str] | None:
        """What else the service calls the node; None if that is not known yet."""
        return frozenset() if self._aliases is None else self._aliases.names_of(node_id)

    # Evacuation.

    def _evacuate(
        self, blocked: Mapping[str, BlockedNode], observation: Observation, at_jobs: dict[str, dict[str, Effect]]
    ) -> None:
        """Continue; then `at_jobs` has what evacuations add to the effects."""
        listed = {
            node_id: EvacuationNode(node.start, observation.task_managers[node_id])
            for node_id, node in blocked.items()
            if node.evacuates
        }
        wanted = [
            EvacuationTarget(job_id, node_id)
            for node_id, node in listed.items()
            for job_id, job in observation.state.jobs.items()
            # A task that left would otherwise come back.
            if at_jobs[job_id][node_id].state in {EffectState.IN_FORCE, EffectState.SLOW} and job.on(node.task_managers)
        ]
        context = GuardContext(
            state=observation.state,
            blocked={it for found in observation.task_managers.values() for it in found},
            configuration=self._configuration.values,
            grows=self._options.grows,
            now=time.time_ns() // 1_000_000,
        )
        self._evacuator.step(
            EvacuationRequest(wanted=wanted, listed=listed, context=context, monotonic=time.monotonic())
        )
        for target in wanted:
            at_jobs[target.job][target.node] = self._evacuator.effect(target)
        self._add_results(blocked, observation, at_jobs)
        self._add_kept_slots(observation, at_jobs)

    def _evacuated(self, blocked: Mapping[str, BlockedNode], observation: Observation) -> set[str]:
        """The nodes that are to be evacuated and have TaskManagers."""
        return {it for it, node in blocked.items() if node.evacuates and observation.task_managers[it]}

    def _add_kept_slots(self, observation: Observation, at_jobs: dict[str, dict[str, Effect]]) -> None:
        """Report the tasks that may start again on a node that the job has not left."""
        for job_id, effects in at_jobs.items():
            for node_id, task_managers in observation.task_managers.items():
                job = observation.state.jobs[job_id]
                slots = kept_slots(job, task_managers, self._configuration.values)
                if slots and effects[node_id].state is EffectState.IN_FORCE:
                    effects[node_id] = refused(
                        f"Tasks that fail may start again on this node, in {slots} slot{'s' if slots > 1 else ''} that"
                        " other tasks of the job keep: they restart separately. Evacuate the node to prevent it."
                    )

    def _add_results(
        self, blocked: Mapping[str, BlockedNode], observation: Observation, at_jobs: dict[str, dict[str, Effect]]
    ) -> None:
        """Report the finished results of batch jobs that an evacuated node still serves."""
        for node_id, node in blocked.items():
            for job_id, job in observation.state.jobs.items():
                results = job.results_on(observation.task_managers[node_id])
                in_force = at_jobs[job_id][node_id].state is EffectState.IN_FORCE
                if results and in_force and node.evacuates:
                    at_jobs[job_id][node_id] = slow(
                        f"No task of the job runs there, but the node still serves the results of {results} finished"
                        f" task{'s' if results > 1 else ''}: keep it until the job has ended, or use --drop-results."
                    )


# The configuration of the running JobManager, as far as it is known.

_RETRY: Final = 5.0
"""Seconds between two attempts to read it."""


class LeaderConfiguration:
    """Read again from each leader: what a former leader ran with says nothing about the present one.

    `values` and `check` are None until the present leader's configuration has been read. THREADING: use it from one
    thread.
    """

    def __init__(self, connection: FlinkConnection) -> None:
        self._connection = connection
        self._generation = -1
        self._next_at = 0.0
        self._request: tuple[RestRequest, float] | None = None
        self.values: Mapping[str, str] | None = None
        self.check: ConfigurationCheck | None = None

    def update(self) -> None:
        """Read it if it is not known. This waits for nothing, as leases must be renewed: see it in a later call."""
        now, generation = time.monotonic(), self._connection.generation
        if generation != self._generation:
            self._generation, self._next_at = generation, 0.0
            self._drop_request()
            self.values = self.check = None
        if self.values is not None or (self._request is None and now < self._next_at):
            return
        try:
            self.values = self._read(now)
        except FlinkError as error:
            log.warning("%s. Until then only blocks that Flink reports itself are acknowledged.", error)
            return
        except Exception:
            log.exception("The cluster's configuration cannot be read; retrying.")
            return
        if self.values is not None:
            self._check(self.values)

    def _read(self, now: float) -> Mapping[str, str] | None:
        asked, self._request = self._request, None
        if asked is None:
            self._next_at = now + _RETRY
            request = self._connection.request_configuration()
            if request is None:
                return None
            asked = request, now + TIMEOUT
        values = self._connection.read_configuration(asked[0], wait=now < asked[1])
        if values is None:
            self._request = asked
        return values

    def _drop_request(self) -> None:
        """Reading it ends it; the answer of a former leader says nothing."""
        if self._request is not None:
            (request, _), self._request = self._request, None
            with suppress(FlinkError):
                self._connection.read_configuration(request, wait=False)

    def _check(self, values: Mapping[str, str]) -> None:
        self.check = check_configuration(values)
        if self.check.error is not None:
            log.error(
                "Flink ignores blocked nodes. Add these lines to the JobManager's configuration, and restart the"
                " JobManager:\n%s",
                advice(),
            )
        for warning in self.check.warnings:
            log.warning("%s", warning)
