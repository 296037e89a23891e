"""The only module that accesses Spark's internals: it carries a plan out in the driver's HealthTracker.

HealthTracker may be accessed only under the lock of Spark's task scheduler, which Python cannot hold. So a small Java
class does the work: BlocklistBridge, compiled in the driver by Janino, which Spark ships for its generated code. The
header of BlocklistBridge.java explains how it works.
"""

from __future__ import annotations

# ruff: noqa: SLF001 - PySpark has no public way into its driver
import hashlib
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib.resources import files
from typing import Any, Final, Protocol, cast
from weakref import WeakKeyDictionary

from py4j.protocol import Py4JError, Py4JJavaError  # type: ignore[import-untyped]
from pyspark import SparkContext
from pyspark.errors import PySparkException

from blocklist.model.node import BlockedNode
from blocklist.spark.evidence_collector import Observation, ObservationKind
from blocklist.spark.heartbeat_report import Executor
from blocklist.spark.plan import ClusterState, ExclusionPlan, block_strength

__all__ = ["DriverBridge", "DriverError", "DriverGoneError"]

_CLASS: Final = "BlocklistBridge"
_SCHEDULER: Final = "org.apache.spark.scheduler.TaskSchedulerImpl"
_ENDED: Final = -1
_MAX_REASON: Final = 200
_constructors: WeakKeyDictionary[Any, Any] = WeakKeyDictionary()


class DriverGoneError(Exception):
    """The application, or its JVM, has ended."""


class DriverError(Exception):
    """Spark's internals are not as expected: an unknown scheduler or Spark version."""


class _JavaBridge(Protocol):
    def install(self) -> None: ...
    def uninstall(self) -> None: ...
    def epoch(self) -> int: ...
    def state(self) -> str: ...
    def moves(self) -> int: ...
    def executors(self) -> str: ...
    def witness(self) -> None: ...
    def seen(self) -> str: ...
    def apply(self, made_for: int, keep_hosts: int, plan: str) -> str: ...


class DriverBridge:
    """The blocklist in the driver of one application. Not thread-safe.

    All methods raise DriverGoneError if the application has ended and DriverError if Spark's code failed.
    """

    def __init__(self, context: SparkContext) -> None:
        """Install the Java bridge, or take over one that an earlier agent left. It has no effect before a plan."""
        self._context = context
        with _translating_errors():
            self._bridge = _find_installed(context) or _create_bridge(context)
            self._bridge.install()

    def epoch(self) -> int:
        """Cheap. Return a number that grows when the set of hosts changes or the driver ends or lifts a block."""
        with _translating_errors():
            epoch = self._bridge.epoch()
        if epoch == _ENDED:
            raise DriverGoneError("The application has ended.")
        return epoch

    def cluster_state(self) -> ClusterState:
        """Return the current hosts and blocks of the application."""
        with _translating_errors():
            return _parse_state(self._bridge.state())

    def application(self) -> tuple[str, str | None]:
        """Return the application id, and the attempt id if the cluster manager assigns one."""
        with _translating_errors():
            context = self._context._jsc.sc()
            attempt = context.applicationAttemptId()
            return str(context.applicationId()), str(attempt.get()) if attempt.isDefined() else None

    def executor_changes(self) -> int:
        """Cheap. Return a number that grows when executors are added or removed; updated by `epoch`."""
        with _translating_errors():
            return self._bridge.moves()

    def executors(self) -> list[Executor]:
        """Return the live executors."""
        with _translating_errors():
            lines = [line.split("\t") for line in self._bridge.executors().splitlines()]
        return [Executor(id=id_, host=host, running=int(running)) for id_, host, running in lines]

    def apply(self, plan: ExclusionPlan, epoch: int, *, keep_hosts: int) -> dict[str, int] | None:
        """Apply the plan atomically; return the number of killed tasks by host.

        Returns None and changes nothing if the epoch is no longer the one that the plan was made for.
        """
        with _translating_errors():
            verdict, *lines = self._bridge.apply(epoch, keep_hosts, encode_plan(plan)).splitlines()
            return None if verdict == "stale" else {host: int(count) for host, count in map(_split, lines)}

    def start_observing(self) -> None:
        """Record Spark's own exclusions and speculations until `detach`."""
        with _translating_errors():
            self._bridge.witness()

    def observed(self) -> list[Observation]:
        """Return Spark's current exclusions, and its stage exclusions and speculations since the last call."""
        with _translating_errors():
            lines = [line.split("\t") for line in self._bridge.seen().splitlines()]
        return [
            Observation(kind=ObservationKind(sort), host=host, stage=stage, task=task)
            for sort, host, stage, task in lines
        ]

    def detach(self) -> None:
        """Lift all blocks and remove the Java bridge; Spark's own exclusions stay."""
        with _translating_errors():
            self._bridge.uninstall()


def encode_plan(plan: ExclusionPlan) -> str:
    """Encode the plan for the Java bridge as one text: through py4j each value would be a round trip."""
    hosts = ((block_strength(block), "host", block.host, block.node) for block in plan.blocks)
    names = (((node.action, node.start, name), "name", name, node) for name, node in plan.names.items())
    # Future hosts are sorted among the current ones by strength, so that the weakest block is lifted first.
    return "\n".join(_line(kind, key, node) for _, kind, key, node in sorted([*hosts, *names], key=lambda e: e[:3]))


def _line(kind: str, key: str, node: BlockedNode) -> str:
    reason = f"host is blocked as {node.id}: {node.cause}"[:_MAX_REASON]
    return "\t".join((kind, key, str(node.end), node.action.short_name, reason))


def _parse_state(state: str) -> ClusterState:
    lines = [line.split("\t") for line in state.splitlines()]
    live = [(line[1], line[2]) for line in lines if line[0] == "live"]
    return ClusterState(
        epoch=next(int(line[1]) for line in lines if line[0] == "epoch"),
        open=frozenset(host for host, how in live if how == "open"),
        excluded=frozenset(host for host, how in live if how == "excluded"),
        blocked={line[1]: int(line[2]) for line in lines if line[0] == "blocked"},
        opened={line[1]: line[2] for line in lines if line[0] == "opened"},
    )


def _split(line: str) -> tuple[str, str]:
    host, _, value = line.partition("\t")
    return host, value


@contextmanager
def _translating_errors() -> Iterator[None]:
    """Translate py4j errors to DriverError and DriverGoneError."""
    try:
        yield
    except (Py4JJavaError, PySparkException) as error:
        raise DriverError(f"Spark's driver failed: {error}") from error
    except (Py4JError, OSError) as error:
        raise DriverGoneError(f"Spark's driver is unreachable: {error}") from error


def _find_installed(context: SparkContext) -> _JavaBridge | None:
    """Return the installed bridge if it has the current source; remove one of another version."""
    tracker = _scheduler(context).healthTrackerOpt()
    if not tracker.isDefined():
        return None
    name = str(tracker.get().getClass().getName())
    if name.startswith(f"{_CLASS}_{_source_digest()}_"):
        return cast("_JavaBridge", tracker.get())
    if name.startswith(f"{_CLASS}_"):
        tracker.get().uninstall()
    return None


def _create_bridge(context: SparkContext) -> _JavaBridge:
    constructor = _constructor(context)
    arguments = _gateway(context).new_array(_gateway(context).jvm.java.lang.Object, 1)
    arguments[0] = context._jsc.sc()
    return cast("_JavaBridge", constructor.newInstance(arguments))


def _constructor(context: SparkContext) -> Any:
    """Compile the bridge once per JVM; takes 0.2 to 0.8 s."""
    if (known := _constructors.get(_gateway(context))) is not None:
        return known
    # py4j caches methods by class name, so each compilation needs a new name.
    name = f"{_CLASS}_{_source_digest()}_{uuid.uuid4().hex[:8]}"
    compiler = _gateway(context).jvm.org.codehaus.janino.SimpleCompiler()
    compiler.setParentClassLoader(_scheduler(context).getClass().getClassLoader())
    compiler.cook(_source().replace(_CLASS, name))
    constructor = compiler.getClassLoader().loadClass(name).getConstructors()[0]
    _constructors[_gateway(context)] = constructor
    return constructor


def _scheduler(context: SparkContext) -> Any:
    scheduler = context._jsc.sc().taskScheduler()
    name = str(scheduler.getClass().getName())
    if name != _SCHEDULER:
        raise DriverError(f"Unsupported task scheduler {name}: the agent supports only {_SCHEDULER}.")
    return scheduler


def _gateway(context: SparkContext) -> Any:
    return context._gateway


def _source_digest() -> str:
    return hashlib.sha256(_source().encode()).hexdigest()[:8]


@cache
def _source() -> str:
    return files("blocklist.spark").joinpath(f"{_CLASS}.java").read_text(encoding="utf-8")
