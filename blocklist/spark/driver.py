"""Loads the agent's jar into the driver of a running application, through py4j."""

from __future__ import annotations

# ruff: noqa: SLF001 - PySpark has no public way into its driver
import threading
from collections.abc import Mapping
from typing import Any, Final, Protocol, cast
from weakref import WeakKeyDictionary

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark import SparkContext

from blocklist.spark.jar import jar_path

_PACKAGE: Final = "blocklist.spark."
_HANDLE: Final = f"{_PACKAGE}AgentHandle"

_lock: Final = threading.Lock()
_constructors: Final[WeakKeyDictionary[Any, Any]] = WeakKeyDictionary()
"""The constructor of AgentHandle in each JVM. py4j caches methods by class name, so each JVM must have one."""


class AgentHandle(Protocol):
    """One start of the agent, as AgentHandle.java offers it."""

    def status(self) -> str: ...
    def release(self) -> None: ...


def start_in_driver(context: SparkContext, options: Mapping[str, object]) -> AgentHandle:
    """Start the agent of the application, or join it. Raises the errors of py4j and PySpark."""
    gateway: Any = context._gateway
    with _lock:
        constructor = _constructors.get(gateway)
        if constructor is None:
            constructor = _constructors[gateway] = _load(context).loadClass(_HANDLE).getConstructors()[0]
    arguments = gateway.new_array(gateway.jvm.java.lang.Object, 2)
    arguments[0] = context._jsc.sc()
    arguments[1] = "".join(f"{name}\t{_text(value)}\n" for name, value in options.items())
    return cast("AgentHandle", constructor.newInstance(arguments))


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
