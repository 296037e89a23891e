"""The applications that run in a cluster: the service shows those that have no agent, so that they obey no block."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import islice
from typing import Any, Final, Protocol, runtime_checkable

from blocklist.managers.plan import ManagerError
from blocklist.model.listener import MAX_APPLICATION_LENGTH, MAX_APPLICATIONS, MAX_REASON_LENGTH, Report
from blocklist.model.node import is_id
from blocklist.model.text import escape_unprintable

log = logging.getLogger("blocklist.managers")

INTERVAL_SECONDS: Final = 15.0
"""Interval at which the applications are read."""
START_SECONDS: Final = 30.0
"""An application that has run for less is not reported: its agent may not have registered yet."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Application:
    """One that runs; `id` is that of its SparkContext, `seconds` for how long it has run, None if that is unknown."""

    id: str
    name: str
    user: str
    seconds: float | None

    @property
    def description(self) -> str:
        text = f"{self.name} ({self.user})" if self.user else self.name
        return escape_unprintable(text)[:MAX_APPLICATION_LENGTH]


@runtime_checkable
class KnowsApplications(Protocol):
    """A manager whose cluster knows the applications that run there."""

    def applications(self) -> Sequence[Application]:
        """All that run. Raises ManagerError. Called in a thread of its own."""


def report_of(applications: Sequence[Application]) -> Report:
    """The applications as the service takes them: the first ones in order of their ids, if there are too many."""
    found = {
        it.id: it.description
        for it in sorted(applications, key=lambda it: it.id)
        # No listener can have another id.
        if is_id(it.id) and (it.seconds is None or it.seconds >= START_SECONDS)
    }
    too_many = f"More than {MAX_APPLICATIONS} applications run: no more are reported."
    return Report(
        applications=dict(islice(found.items(), MAX_APPLICATIONS)),
        applications_unknown=too_many if len(found) > MAX_APPLICATIONS else "",
    )


class ApplicationThread:
    """Reads the applications at an interval and reports them, until `close`. Slow or failing, it delays no block."""

    def __init__(self, read: Callable[[], Sequence[Application]], report: Callable[[Report], object]) -> None:
        self._read = read
        self._report = report
        self._failure = ""
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="blocklist-applications", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End soon; does not wait for an answer that is under way."""
        self._closing.set()

    def _run(self) -> None:
        while not self._closing.is_set():
            report = self.read_once()
            if not self._closing.is_set():
                self._report(report)
            self._closing.wait(INTERVAL_SECONDS)

    def read_once(self) -> Report:
        """What runs now; without any application, and why, if that cannot be read."""
        failure = ""
        try:
            return report_of(self._read())
        except ManagerError as error:
            failure = str(error)
        except Exception as error:
            log.exception("The applications cannot be read.")
            failure = f"The applications cannot be read: {error!r}."
        finally:
            if failure and failure != self._failure:
                log.warning("Which applications run is not known: %s", failure)
            self._failure = failure
        # What was reported before may have ended.
        return Report(applications={}, applications_unknown=escape_unprintable(failure)[:MAX_REASON_LENGTH])


# What cluster managers answer. Pure.


def as_items(value: object) -> list[dict[str, Any]]:
    """The objects of a list. Raises ManagerError for anything else."""
    if not isinstance(value, list) or not all(isinstance(it, dict) for it in value):
        raise ManagerError("The applications cannot be read: the answer is not a list of objects.")
    return value


def parse_yarn(body: object) -> list[Application]:
    """The answer to GET /ws/v1/cluster/apps. Raises ManagerError."""
    if not isinstance(body, dict) or "apps" not in body:
        raise ManagerError("The applications cannot be read: the answer of the ResourceManager has no apps.")
    found = as_items(as_object(body["apps"]).get("app", []))
    return [
        Application(
            id=str(it.get("id", "")), name=str(it.get("name", "")), user=str(it.get("user", "")), seconds=_seconds(it)
        )
        for it in found
    ]


def _seconds(application: dict[str, Any]) -> float | None:
    elapsed = application.get("elapsedTime")
    return elapsed / 1000 if isinstance(elapsed, int | float) else None


def parse_driver_pod(pod: dict[str, Any], now: float) -> Application:
    """A pod of a driver that Spark made in cluster mode; `now` is in Unix seconds."""
    metadata, status = as_object(pod.get("metadata")), as_object(pod.get("status"))
    labels = as_object(metadata.get("labels"))
    where = f"{metadata.get('namespace', '')}/{metadata.get('name', '')}"
    name = labels.get("spark-app-name")
    return Application(
        id=str(labels.get("spark-app-selector", "")),
        name=f"{name}, pod {where}" if name else f"pod {where}",
        user="",
        seconds=_seconds_since(status.get("startTime"), now),
    )


def _seconds_since(timestamp: object, now: float) -> float | None:
    try:
        return now - datetime.fromisoformat(str(timestamp)).timestamp()
    except ValueError:
        return None


def as_object(value: object) -> dict[str, Any]:
    """The fields of an object; none for anything else."""
    return value if isinstance(value, dict) else {}
