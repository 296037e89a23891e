"""BlocklistAgent: keeps the tasks of a running Spark application off blocked hosts."""

from __future__ import annotations

import atexit
import logging
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Final, Self
from weakref import WeakKeyDictionary

from pyspark import SparkContext
from pyspark.sql import SparkSession

from blocklist.client.client import BlocklistClient
from blocklist.client.credentials import resolve_auth
from blocklist.client.watch_thread import WatchThread
from blocklist.spark.dns_cache import DnsCache
from blocklist.spark.driver_bridge import DriverBridge, DriverError, DriverGoneError
from blocklist.spark.reconciler import AppliedState, Reconciler
from blocklist.spark.reporter import Reporter

log = logging.getLogger("blocklist.spark")

START_TIMEOUT: Final = 10.0
"""Maximum number of seconds that `start` waits for the first list to be applied."""
POLL_INTERVAL: Final = 0.2
"""Seconds between two checks for added or removed hosts; a change of the list wakes the agent at once."""

_agents: WeakKeyDictionary[SparkContext, BlocklistAgent] = WeakKeyDictionary()
"""The running agents, one per application."""


@dataclass(frozen=True, kw_only=True, slots=True)
class AgentStatus:
    """The state of an agent.

    `blocked` maps each blocked host, by Spark's name, to the matching node id. `refused` maps each node id whose block
    is not carried out to the reason. `revision` is that of the last applied list, None before the first one.
    `registered` is True while the service accepts the agent's heartbeats. `last_error` is None unless the agent cannot
    do its work now.
    """

    running: bool
    connected: bool
    revision: int | None = None
    blocked: Mapping[str, str] = field(default_factory=dict)
    refused: Mapping[str, str] = field(default_factory=dict)
    last_error: str | None = None
    registered: bool = False


class BlocklistAgent:
    """The agent of one Spark application. Create it with `start`; as a context manager it stops on exit.

    The agent is a listener of the service: it acknowledges what it has applied and reports executors and refusals.

    It never harms the job. While the service is unreachable the last list stays in force until its blocks end. Errors
    are logged and retried. Blocks end in Spark's driver, even if the agent is dead.

    THREADING: one daemon thread plans, applies and owns all state. Three more watch the list, resolve addresses and
    send heartbeats. `status` may be called from any thread.
    """

    def __init__(
        self,
        context: SparkContext,
        url: str | None,
        token: str | None,
        keep_hosts: int,
        report_evidence: bool,
        min_nodes: int,
    ) -> None:
        self._context = context
        self._keep_hosts = keep_hosts
        self._report_evidence = report_evidence
        self._min_nodes = min_nodes
        self._wake, self._stopping, self._first_applied = threading.Event(), threading.Event(), threading.Event()
        client = BlocklistClient(url, token=token)
        self._token = resolve_auth(token)
        self._url = client.url
        self._watch = WatchThread(client.watch, self._wake.set)
        self._addresses = DnsCache(self._wake.set)
        self._bridge: DriverBridge | None = None
        self._reconciler: Reconciler | None = None
        self._reporter: Reporter | None = None
        self._last_error: str | None = None
        self._thread = threading.Thread(target=self._run, name="blocklist-agent", daemon=True)

    @classmethod
    def start(
        cls,
        spark: SparkSession,
        url: str | None = None,
        *,
        token: str | None = None,
        keep_hosts: int = 1,
        report_evidence: bool = False,
        min_nodes: int = 0,
    ) -> Self:
        """Start the agent and return once the first list is applied, at the latest after 10 s.

        `url`: the service, by default BLOCKLIST_URL.
        `token`: a listener token, by default BLOCKLIST_TOKEN or the content of BLOCKLIST_TOKEN_FILE.
        `keep_hosts`: minimum number of hosts with a live executor that the agent never blocks.
        `report_evidence`: report hosts that Spark itself excludes or finds slow; the service blocks a host that
        several applications report.
        `min_nodes`: the service refuses blocks that leave the application with fewer usable hosts than this.

        An agent that already runs for the application is replaced. Raises ValueError for an invalid URL,
        `keep_hosts` below 1 or `min_nodes` below 0, and TypeError for a session without a driver in this process
        (Spark Connect). Failures of Spark or of the service raise nothing; see `status`.
        """
        if keep_hosts < 1:
            raise ValueError("keep_hosts must be at least 1: Spark aborts a job that has no host left.")
        if min_nodes < 0:
            raise ValueError("min_nodes must be at least 0 (0: no minimum).")
        context = getattr(spark, "_sc", None)
        if not isinstance(context, SparkContext):
            raise TypeError("The agent must start where the driver runs: a Spark Connect session has no driver here.")
        if (previous := _agents.pop(context, None)) is not None:
            previous.stop()
        agent = _agents[context] = cls(context, url, token, keep_hosts, report_evidence, min_nodes)
        agent._start_thread()
        return agent

    def status(self) -> AgentStatus:
        """Return the current state."""
        running = self._thread.is_alive() and not self._stopping.is_set()
        applied = self._reconciler.applied if self._reconciler is not None else AppliedState()
        return AgentStatus(
            running=running,
            connected=running and self._watch.connected,
            revision=applied.revision,
            blocked=applied.blocked if running else {},
            refused=applied.refused if running else {},
            last_error=self._last_error or (self._watch.last_error if running else None),
            registered=running and self._reporter is not None and self._reporter.registered,
        )

    def stop(self) -> None:
        """Stop, lift the agent's blocks and deregister. Spark's own exclusions stay. Idempotent."""
        self._stop_thread()
        if self._bridge is not None:
            try:
                self._bridge.detach()
            except (DriverGoneError, DriverError) as error:
                log.debug("No blocks to lift: %s", error)
        self._deregister()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _start_thread(self) -> None:
        # At exit the agent must stop before the interpreter ends its threads and closes the gateway.
        atexit.register(self._on_exit)
        self._thread.start()
        self._first_applied.wait(START_TIMEOUT)

    def _stop_thread(self) -> None:
        self._stopping.set()
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join(5)

    def _deregister(self) -> None:
        if self._reporter is not None:
            self._reporter.close()

    def _on_exit(self) -> None:
        self._stop_thread()
        self._deregister()

    def _run(self) -> None:
        try:
            while not self._stopping.is_set():
                self._run_once()
                self._wake.wait(POLL_INTERVAL)
                self._wake.clear()
        except DriverGoneError as error:
            log.debug("The agent stops because its application has ended: %s", error)
        finally:
            self._first_applied.set()
            self._watch.close()
            self._addresses.close()
            # `stop` lifts the blocks before it deregisters: an unreachable service must not delay that.
            if not self._stopping.is_set():
                self._deregister()
            atexit.unregister(self._on_exit)

    def _run_once(self) -> None:
        """Reconcile once. An error is logged on its first occurrence only, and retried on each run."""
        try:
            self._reconcile()
        except DriverGoneError:
            raise
        except Exception as error:
            if self._last_error is None:
                log.exception("Cannot apply the blocklist; retrying.")
            self._last_error = str(error) or type(error).__name__
            self._stopping.wait(1)
        else:
            self._last_error = None

    def _reconcile(self) -> None:
        if self._reconciler is None or self._reporter is None:
            self._bridge = DriverBridge(self._context)
            self._reporter = Reporter(
                self._bridge,
                self._url,
                token=self._token,
                evidence=self._report_evidence,
                min_nodes=self._min_nodes,
            )
            self._reconciler = Reconciler(self._bridge, self._addresses, self._keep_hosts)
        list_changed = self._watch.apply_pending()
        self._reconciler.reconcile_if_needed(self._watch.tracker, list_changed=list_changed)
        if self._reconciler.applied.revision is not None:
            self._first_applied.set()
        self._reporter.report_if_changed(self._reconciler.applied)
