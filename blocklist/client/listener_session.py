"""ListenerSession: a listener's registration at the service, kept up as long as it lives."""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Collection, Mapping
from typing import Any, Final

from blocklist.client.client import BlocklistClient
from blocklist.client.credentials import BearerAuth
from blocklist.model.backoff import Backoff
from blocklist.model.errors import BlocklistError, InvalidError, UnavailableError
from blocklist.model.evidence import Finding
from blocklist.model.listener import HEARTBEAT_SECONDS, FencedError, Registration

log = logging.getLogger(__name__)

_ACKED: Final = "acked"


class ListenerSession:
    """Registers a listener, and sends in heartbeats what was given to `report`, until `close`.

    What is new is told at once, all that is known at each interval: a service that was restarted knows it again soon.
    A service that is away, or that refuses, raises nothing here: it is logged once, seen in `last_error`, and tried
    again with jittered back-off. After a lapse, or a service that forgot, it registers again and tells all it knows
    again. Only when another session has taken over it stops for good: `fenced`.

    THREADING: one daemon thread talks to the service. `report`, `close` and the properties may be used from any other.
    What grows: nothing, as the latest value replaces the one before, told or not.
    """

    def __init__(
        self,
        url: str | None,
        registration: Registration,
        *,
        token: str | BearerAuth | None = None,
        interval: float = HEARTBEAT_SECONDS,
        timeout: float = 5.0,
        backoff: Backoff | None = None,
    ) -> None:
        """Begins at once; `interval` is in seconds, between two heartbeats with nothing new.

        `url` and `token` are as in BlocklistClient, `timeout` in seconds for each request. Raises InvalidError for a
        URL that is none, or a token that could be none.
        """
        self._client = BlocklistClient(url, token=token, timeout=timeout)
        self._registration = registration
        self._interval = interval
        self._timeout = timeout
        self._backoff = backoff or Backoff()
        self._failures = 0
        self._registered = self._fenced = False
        self._last_error: str | None = None
        self._lock = threading.Lock()
        self._values: dict[str, Any] = {}
        self._unsent: set[str] = set()
        self._full_report_due = 0.0
        self._wake, self._closing = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="blocklist-membership", daemon=True)
        self._thread.start()

    @property
    def registered(self) -> bool:
        """Whether the service knows this session, as far as heard."""
        return self._registered

    @property
    def fenced(self) -> bool:
        """Whether another session has taken over: this one has ended, and never comes back."""
        return self._fenced

    @property
    def last_error(self) -> str | None:
        """What went wrong last, while it lasts."""
        return self._last_error

    def report(
        self,
        *,
        acked: int | None = None,
        task_managers: Mapping[str, str] | None = None,
        running_tasks: Mapping[str, int] | None = None,
        refused: Mapping[str, str] | None = None,
        evidence: Mapping[str, Finding] | None = None,
        nodes: Collection[str] | None = None,
    ) -> None:
        """Have these told, as in BlocklistClient.heartbeat; returns at once.

        The latest values win, those that come close together travel together, and what was said before makes no
        heartbeat of its own. Maps and nodes are kept: do not change them afterwards.
        """
        fields = {
            _ACKED: acked,
            "task_managers": task_managers,
            "running_tasks": running_tasks,
            "refused": refused,
            "evidence": evidence,
            "nodes": nodes,
        }
        with self._lock:
            new = {name for name, value in fields.items() if value is not None and value != self._values.get(name)}
            self._values.update({name: fields[name] for name in new})
            self._unsent |= new
            if new:
                self._wake.set()

    def close(self) -> None:
        """Leave the service, if that takes no longer than the timeout. Twice is once."""
        self._closing.set()
        self._wake.set()
        self._thread.join(self._timeout)

    def _run(self) -> None:
        try:
            while not (self._closing.is_set() or self._fenced):
                try:
                    self._run_once()
                except Exception as error:
                    self._closing.wait(self._on_error(error))
            if not self._fenced:
                self._deregister()
        finally:
            self._registered = False
            self._client.close()

    def _run_once(self) -> None:
        """Say what is to be said, and wait until there is more or it is time for a sign of life."""
        if not self._registered:
            self._client.register(self._registration)
            self._registered, self._full_report_due = True, 0.0
        self._send()
        if self._failures:
            log.info("Listener %s is in touch with %s again.", self._registration.id, self._client.url)
        self._failures, self._last_error = 0, None
        # Whoever closes says so before he rings, so either is seen.
        if not self._closing.is_set():
            self._wake.wait(max(0.0, self._full_report_due - time.monotonic()))

    def _send(self) -> None:
        now = time.monotonic()
        with self._lock:
            self._wake.clear()
            # All of it each time, now and then: a service that restarted has forgotten, and does not say so.
            fields = {
                name: self._values[name] for name in (self._values if now >= self._full_report_due else self._unsent)
            }
            self._unsent.clear()
        if now >= self._full_report_due:
            self._full_report_due = now + self._interval
        try:
            self._heartbeat(fields)
        except BaseException:
            with self._lock:
                self._unsent |= fields.keys()
            raise

    def _heartbeat(self, fields: Mapping[str, Any]) -> None:
        registration = self._registration
        try:
            self._client.heartbeat(registration.id, registration.session, **fields)
        except InvalidError:
            # A map that is refused keeps neither the lease from being renewed nor the list from being acknowledged.
            if fields.keys() - {_ACKED}:
                self._client.heartbeat(registration.id, registration.session, acked=fields.get(_ACKED))
            raise

    def _on_error(self, error: Exception) -> float:
        """Take note of it; how many seconds to wait."""
        self._failures += 1
        self._last_error = (str(error) or type(error).__name__)[:200]
        # Away or forgotten, the way back is the same: register, which is a renewal where nothing was lost.
        self._registered = isinstance(error, InvalidError) and self._registered
        self._fenced = isinstance(error, FencedError)
        if self._fenced:
            log.warning("Listener %s says no more: %s", self._registration.id, self._last_error)
            return 0.0
        if self._failures == 1:
            unexpected = not isinstance(error, BlocklistError)
            log.warning(
                "Listener %s is out of touch (%s); trying again.",
                self._registration.id,
                self._last_error,
                exc_info=unexpected,
            )
        retry_after = error.retry_after if isinstance(error, UnavailableError) else None
        return self._backoff.delay(self._failures, random.random(), retry_after)  # noqa: S311

    def _deregister(self) -> None:
        """Unless it is somebody else's by now: a DELETE does not say whose session it ends."""
        registration = self._registration
        try:
            self._client.heartbeat(registration.id, registration.session)
            self._client.deregister(registration.id)
        except BlocklistError as error:
            log.debug("Listener %s left without a word: %s", registration.id, error)
