"""BlocklistAgent: keeps a running Spark application off the blocked hosts."""

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
"""Seconds that `start` waits for the first list to be applied."""
POLL_INTERVAL: Final = 0.2
"""Seconds between two looks whether hosts came or went; news from the service does not wait for them."""

_agents: WeakKeyDictionary[SparkContext, BlocklistAgent] = WeakKeyDictionary()
"""The agents that serve, one for each application."""


@dataclass(frozen=True, kw_only=True, slots=True)
class AgentStatus:
    """How the agent stands.

    `blocked` maps each blocked host, as Spark names it, to the node id that it matched; `refused` each node id that is
    blocked but whose host stays open to the sentence why. `revision` is that of the list last applied, None before the
    first. `registered`: the service knows the application and hears what it has applied. `last_error` is what keeps
    the agent from its work at present, if anything does.
    """

    running: bool
    connected: bool
    revision: int | None = None
    blocked: Mapping[str, str] = field(default_factory=dict)
    refused: Mapping[str, str] = field(default_factory=dict)
    last_error: str | None = None
    registered: bool = False


class BlocklistAgent:
    """The agent of one Spark application, made by `start`. Also a context manager, which stops it at the end.

    It is a listener of the service: it acknowledges what it has applied, and reports executors and refusals.

    It never harms the job: without service the last list stands until its blocks end, and whatever fails here is
    logged and tried again. Blocks end in Spark's driver itself, also when the agent is gone.

    THREADING: one daemon thread plans and applies, and owns all state; a second reads the service, a third asks for
    addresses, a fourth reports to the service. `status` may be read from any.
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
        """Start the agent of this application; returns when the first list is applied, or after 10 s without one.

        `url` is the service's, by default the environment's BLOCKLIST_URL; `token` is a listener's, by default that of
        BLOCKLIST_TOKEN, or in the file BLOCKLIST_TOKEN_FILE. `keep_hosts` is how many hosts with a live
        executor stay open, whatever is blocked. With `report_evidence` the service also hears which hosts Spark itself
        excludes or finds slow, and blocks a host when several applications say so. With `min_nodes` the service refuses
        blocks that would leave the application with fewer usable hosts, of those where it has executors. An agent that
        already serves the application is replaced. Raises ValueError for a URL that is none, a `keep_hosts` below 1 and
        a `min_nodes` below 0, TypeError for a session without a driver in this process (Spark Connect); trouble with
        Spark or the service raises nothing, see `status`.
        """
        if keep_hosts < 1:
            raise ValueError("keep_hosts must be at least 1: a job with no host left is aborted.")
        if min_nodes < 0:
            raise ValueError("min_nodes must be at least 0, which asks for nothing.")
        context = getattr(spark, "_sc", None)
        if not isinstance(context, SparkContext):
            raise TypeError("The agent runs where the driver runs; a Spark Connect session has none in this process.")
        if (previous := _agents.pop(context, None)) is not None:
            previous.stop()
        agent = _agents[context] = cls(context, url, token, keep_hosts, report_evidence, min_nodes)
        agent._start_thread()
        return agent

    def status(self) -> AgentStatus:
        """How it stands at this moment."""
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
        """Stop, lift what the agent put, and leave the service; what Spark excluded by itself stands. Twice is once."""
        self._stop_thread()
        if self._bridge is not None:
            try:
                self._bridge.detach()
            except (DriverGoneError, DriverError) as error:
                log.debug("Nothing to lift: %s", error)
        self._deregister()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _start_thread(self) -> None:
        # Before the interpreter takes its threads away and the gateway closes under the agent's hands.
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
            log.debug("The agent ends with its application: %s", error)
        finally:
            self._first_applied.set()
            self._watch.close()
            self._addresses.close()
            # Who stops the agent lifts the blocks first: a service that does not answer must not keep him from it.
            if not self._stopping.is_set():
                self._deregister()
            atexit.unregister(self._on_exit)

    def _run_once(self) -> None:
        """One turn. An error is logged once, until a turn goes well again; each turn tries again."""
        try:
            self._reconcile()
        except DriverGoneError:
            raise
        except Exception as error:
            if self._last_error is None:
                log.exception("The blocklist is not applied; trying again.")
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
