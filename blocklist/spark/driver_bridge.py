"""The one place that reaches into Spark's driver: a plan on one side, Spark's HealthTracker on the other.

HealthTracker may be touched only under the lock of Spark's task scheduler, which Python cannot hold. So the work is
done by a small Java class, BlocklistBridge, compiled in the driver by the Janino that Spark ships for its own
generated code. Its header says how it does it.
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
    """Spark's driver is not what this module knows: another scheduler, or a version whose insides have changed."""


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
    """The blocklist's place in one application. May be used by one thread at a time.

    Methods raise DriverGoneError when the application has ended, DriverError when Spark's own code failed.
    """

    def __init__(self, context: SparkContext) -> None:
        """Take the place, or take over the one that an agent before left behind. Until a plan it changes nothing."""
        self._context = context
        with _translating_errors():
            self._bridge = _find_installed(context) or _create_bridge(context)
            self._bridge.install()

    def epoch(self) -> int:
        """Cheap: a number that grows when hosts come or go, or when a block ended or was lifted in the driver."""
        with _translating_errors():
            epoch = self._bridge.epoch()
        if epoch == _ENDED:
            raise DriverGoneError("The application has ended.")
        return epoch

    def cluster_state(self) -> ClusterState:
        """What the application has now."""
        with _translating_errors():
            return _parse_state(self._bridge.state())

    def application(self) -> tuple[str, str | None]:
        """Its id, and which attempt it is where the cluster manager counts them."""
        with _translating_errors():
            own = self._context._jsc.sc()
            attempt = own.applicationAttemptId()
            return str(own.applicationId()), str(attempt.get()) if attempt.isDefined() else None

    def executor_changes(self) -> int:
        """Cheap: a number that grows when executors come or go, as `epoch` has seen it last."""
        with _translating_errors():
            return self._bridge.moves()

    def executors(self) -> list[Executor]:
        """Those alive now."""
        with _translating_errors():
            lines = [line.split("\t") for line in self._bridge.executors().splitlines()]
        return [Executor(id=own, host=host, running=int(running)) for own, host, running in lines]

    def apply(self, plan: ExclusionPlan, epoch: int, *, keep_hosts: int) -> dict[str, int] | None:
        """Put the plan in place in one step; returns host -> number of tasks told to stop.

        None, with nothing done, when the application is not any more at the epoch that the plan was made for.
        """
        with _translating_errors():
            verdict, *lines = self._bridge.apply(epoch, keep_hosts, encode_plan(plan)).splitlines()
            return None if verdict == "stale" else {host: int(count) for host, count in map(_split, lines)}

    def start_observing(self) -> None:
        """From now on remember what Spark finds out about hosts by itself, until `detach`."""
        with _translating_errors():
            self._bridge.witness()

    def observed(self) -> list[Observation]:
        """What Spark excludes by itself now, and what it excluded or speculated since this was asked last."""
        with _translating_errors():
            lines = [line.split("\t") for line in self._bridge.seen().splitlines()]
        return [
            Observation(kind=ObservationKind(sort), host=host, stage=stage, task=task)
            for sort, host, stage, task in lines
        ]

    def detach(self) -> None:
        """Lift all blocks and leave the driver as it was; what Spark excluded by itself stands."""
        with _translating_errors():
            self._bridge.uninstall()


def encode_plan(plan: ExclusionPlan) -> str:
    """The plan as the bridge reads it: one text, as each value would be a round trip of its own."""
    hosts = ((block_strength(block), "host", block.host, block.node) for block in plan.blocks)
    names = (((node.action, node.start, name), "name", name, node) for name, node in plan.names.items())
    # Hosts to come stand between the others by strength, so that they are given up in their turn.
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
    """Turn py4j's errors into this module's."""
    try:
        yield
    except (Py4JJavaError, PySparkException) as error:
        raise DriverError(f"Spark's driver failed: {error}") from error
    except (Py4JError, OSError) as error:
        raise DriverGoneError(f"Spark's driver is out of reach: {error}") from error


def _find_installed(context: SparkContext) -> _JavaBridge | None:
    """The bridge that is in place already, when this very source made it; one of another version is taken out."""
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
    """Compile the bridge, once in each JVM: 0.2 to 0.8 s."""
    if (known := _constructors.get(_gateway(context))) is not None:
        return known
    # py4j knows methods by the class's name, so no name may come twice in one JVM.
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
        raise DriverError(f"Spark's task scheduler is {name}, which cannot be told of blocked hosts.")
    return scheduler


def _gateway(context: SparkContext) -> Any:
    return context._gateway


def _source_digest() -> str:
    return hashlib.sha256(_source().encode()).hexdigest()[:8]


@cache
def _source() -> str:
    return files("blocklist.spark").joinpath(f"{_CLASS}.java").read_text(encoding="utf-8")
