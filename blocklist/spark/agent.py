"""BlocklistAgent: starts the agent, which is Java, in the driver of a running Spark application."""

from __future__ import annotations

# ruff: noqa: SLF001 - PySpark has no public way into its driver
import logging
import os
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Final, Self
from urllib.parse import urlsplit
from weakref import WeakKeyDictionary

from py4j.protocol import Py4JError, Py4JJavaError  # type: ignore[import-untyped]
from pyspark import SparkContext
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from blocklist.client.credentials import check_no_credentials
from blocklist.model.errors import InvalidError
from blocklist.spark.jar import jar_path

log = logging.getLogger("blocklist.spark")

# Loads the agent's jar into the driver of a running application, through py4j.

_PACKAGE: Final = "blocklist.spark."
_HANDLE: Final = f"{_PACKAGE}AgentHandle"

_lock: Final = threading.Lock()
_constructors: Final[WeakKeyDictionary[Any, Any]] = WeakKeyDictionary()
"""The constructor of AgentHandle in each JVM. py4j caches methods by class name, so each JVM must have one."""


def start_in_driver(context: SparkContext, options: Mapping[str, object]) -> Any:
    """AgentHandle.java: a start of the agent of the application. Raises the errors of py4j and PySpark."""
    gateway: Any = context._gateway
    with _lock:
        constructor = _constructors.get(gateway)
        if constructor is None:
            constructor = _constructors[gateway] = _load(context).loadClass(_HANDLE).getConstructors()[0]
    arguments = gateway.new_array(gateway.jvm.java.lang.Object, 2)
    arguments[0] = context._jsc.sc()
    arguments[1] = "".join(f"{name}\t{_text(value)}\n" for name, value in options.items())
    return constructor.newInstance(arguments)


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _load(context: SparkContext) -> Any:
    """The class loader of the agent that runs, else one that has the jar by configuration, else a new one."""
    gateway: Any = context._gateway
    scheduler = context._jsc.sc().taskScheduler()
    if (running := _running_agent(scheduler)) is not None:
        return running
    configured = gateway.jvm.java.lang.Thread.currentThread().getContextClassLoader()
    try:
        return configured.loadClass(_HANDLE).getClassLoader()
    except Py4JJavaError:
        pass
    urls = gateway.new_array(gateway.jvm.java.net.URL, 1)
    urls[0] = gateway.jvm.java.io.File(str(jar_path())).toURI().toURL()
    return gateway.jvm.java.net.URLClassLoader(urls, scheduler.getClass().getClassLoader())


def _running_agent(scheduler: Any) -> Any:
    """The class loader of the tracker in the scheduler, if it is an agent's; None for another scheduler or tracker."""
    if not str(scheduler.getClass().getName()).startswith("org.apache.spark.scheduler."):
        return None
    tracker = scheduler.healthTrackerOpt()
    if not tracker.isDefined() or not str(tracker.get().getClass().getName()).startswith(_PACKAGE):
        return None
    return tracker.get().getClass().getClassLoader()


DEFAULT_URL: Final = "http://127.0.0.1:8224"
START_TIMEOUT: Final = 10.0
"""Maximum number of seconds that `start` waits for the first list to be in force."""
_DRIVER_ERRORS: Final = (Py4JError, PySparkException, OSError)


@dataclass(frozen=True, kw_only=True, slots=True)
class AgentStatus:
    """The state of an agent.

    `blocked` maps each blocked host, by Spark's name, to the matching node id. `canaries` maps those of them that have
    canaries of their node to these executors, which still get tasks. `refused` maps each node id whose block
    is not carried out to the reason. `revision` is that of the list that is in force, None if none is, or if it is
    not known because the names of a host are not. `registered` is True while the service accepts the agent's
    heartbeats. `mode` is `apply`, or `observe` or `off`, in which nothing is blocked. `last_error` is None unless the
    agent cannot do its work now.
    """

    running: bool
    connected: bool = False
    revision: int | None = None
    blocked: Mapping[str, str] = field(default_factory=dict)
    canaries: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    refused: Mapping[str, str] = field(default_factory=dict)
    last_error: str | None = None
    registered: bool = False
    mode: str = "apply"


class BlocklistAgent:
    """One start of the application's agent. Create it with `start`; as a context manager it stops on exit.

    There is one agent per application, in the driver's JVM, however often it is started, by Python or by
    configuration. A start while it runs joins it: of `keep_hosts` and `min_nodes` the higher value counts, of
    `report_evidence` and `report_nodes` whether any start asks for them, and `url` and `token` are those of the first.
    The agent ends, and lifts its blocks, when all starts have been stopped, or with the application.

    The agent is a listener of the service: it acknowledges what is in force and reports executors and refusals.

    It never harms the job. While the service is unreachable the last list stays in force until its blocks end. Errors
    are logged by the driver and retried.
    """

    def __init__(self, handle: Any, error: str | None = None) -> None:
        self._handle = handle
        self._error = error

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
        report_nodes: bool = False,
        pod_affinity: bool = True,
        cluster: str | None = None,
    ) -> Self:
        """Start the agent, or join it, and return once the first list is in force, at the latest after 10 s.

        It returns at once if the service is unreachable; the agent then tries again.

        `url`: the service, by default BLOCKLIST_URL.
        `token`: a listener token, by default BLOCKLIST_TOKEN or the content of BLOCKLIST_TOKEN_FILE.
        `keep_hosts`: minimum number of hosts with a live executor that the agent never blocks.
        `report_evidence`: report hosts on which fails what succeeds elsewhere, or that Spark excludes or finds slow;
        the service blocks a host that several applications report.
        `min_nodes`: the service refuses blocks that leave the application with fewer usable hosts than this.
        `report_nodes`: report the hosts of the executors with their addresses to the service's inventory of nodes.
        `pod_affinity`: on Kubernetes, keep new executors' pods off blocked nodes; of several starts the first decides.
        `cluster`: what the service calls the cluster of the application, by default `spark.blocklist.cluster`;
        without it, the cluster of the nodes where it runs.

        Raises ValueError for an invalid URL, `keep_hosts` below 1 or `min_nodes` below 0, and TypeError for a session
        without a driver in this process (Spark Connect). Failures of Spark or of the service raise nothing; see
        `status`.
        """
        if keep_hosts < 1:
            raise ValueError("keep_hosts must be at least 1: Spark aborts a job that has no host left.")
        if min_nodes < 0:
            raise ValueError("min_nodes must be at least 0 (0: no minimum).")
        context = getattr(spark, "_sc", None)
        if not isinstance(context, SparkContext):
            raise TypeError("The agent must start where the driver runs: a Spark Connect session has no driver here.")
        options = {
            "url": _checked_url(url or os.environ.get("BLOCKLIST_URL") or DEFAULT_URL),
            "caFile": os.environ.get("SSL_CERT_FILE", ""),
            "keepHosts": keep_hosts,
            "minNodes": min_nodes,
            "reportEvidence": report_evidence,
            "reportNodes": report_nodes,
            "podAffinity": pod_affinity,
            "startWait": START_TIMEOUT,
            "cluster": cluster or context.getConf().get("spark.blocklist.cluster", "") or "",
            "mode": context.getConf().get("spark.blocklist.mode", "") or "",
            **_credentials(token),
        }
        try:
            return cls(start_in_driver(context, options))
        except _DRIVER_ERRORS as error:
            log.exception("The agent is not started.")
            return cls(None, str(error) or type(error).__name__)

    def status(self) -> AgentStatus:
        """Return the current state."""
        if self._handle is None:
            return AgentStatus(running=False, last_error=self._error)
        try:
            lines = [line.split("\t") for line in self._handle.status().splitlines()]
        except _DRIVER_ERRORS as error:
            return AgentStatus(running=False, last_error=f"The driver is unreachable: {error}"[:200])
        values = {line[0]: line[1] for line in lines if len(line) == 2}
        return AgentStatus(
            running=values["running"] == "true",
            connected=values.get("connected") == "true",
            revision=int(values["revision"]) if "revision" in values else None,
            blocked=dict(_pairs("blocked", lines)),
            canaries={host: tuple(ids.split()) for host, ids in _pairs("canary", lines)},
            refused=dict(_pairs("refused", lines)),
            last_error=values.get("error"),
            registered=values.get("registered") == "true",
            mode=values.get("mode", "apply"),
        )

    def stop(self) -> None:
        """Undo this start. The last one lifts the blocks and deregisters; Spark's own exclusions stay. Idempotent."""
        if self._handle is not None:
            try:
                self._handle.release()
            except _DRIVER_ERRORS as error:
                log.debug("The driver has ended: %s", error)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


def _pairs(name: str, lines: list[list[str]]) -> Iterator[tuple[str, str]]:
    return ((line[1], line[2]) for line in lines if line[0] == name)


def _checked_url(text: str) -> str:
    """Return it; raise InvalidError unless it is `http(s)://host[:port][/prefix]`."""
    check_no_credentials(text)
    try:
        parts = urlsplit(text)
        _ = parts.port
    except ValueError:
        parts = urlsplit("")
    if parts.scheme not in {"http", "https"} or not parts.hostname or not {"?", "#", "\n", "\t"}.isdisjoint(text):
        raise InvalidError(f"{text[:64]!a} is not the URL of a service: give http://host:port.")
    return text


def _credentials(token: str | None) -> dict[str, str]:
    if text := token or os.environ.get("BLOCKLIST_TOKEN"):
        if not text.isascii() or not text.isprintable():
            raise InvalidError("The token is malformed: use only printable ASCII characters.")
        return {"token": text}
    return {"tokenFile": os.environ.get("BLOCKLIST_TOKEN_FILE", "")}
