"""ListenerSession: keeps a listener registered with the service."""

from __future__ import annotations

import logging
import random
import threading
import time
from typing import Final

from blocklist.client.client import BlocklistClient
from blocklist.client.credentials import BearerAuth
from blocklist.model.backoff import Backoff
from blocklist.model.errors import BlocklistError, InvalidError, UnavailableError
from blocklist.model.listener import HEARTBEAT_SECONDS, FencedError, Registration
from blocklist.model.report import EMPTY_REPORT, Report

log = logging.getLogger(__name__)

_ACKED: Final = "acked"
_NODES: Final = "nodes"
NODES_SECONDS: Final = 300.0
"""Interval at which all nodes are sent again, although the service has them: another replica may have older ones."""


class ListenerSession:
    """Registers a listener and sends heartbeats until `close`.

    Changed values are sent at once, and all values at each interval, as a restarted service has lost them; but nodes,
    of which there may be thousands, only if it has lost them, and every NODES_SECONDS. Errors raise
    nothing: an outage is logged once, is visible in `last_error`, and is retried with jittered backoff. If the
    registration is lost, the session registers again and sends all values. It stops for good only when another session
    takes over: `fenced`.

    THREADING: one daemon thread sends requests. `report`, `close` and the properties may be used from any thread.
    Memory is bounded: a new value replaces the previous one.
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
        """Starts at once. `interval` is in seconds, between two heartbeats without changes.

        `url` and `token` are as in BlocklistClient, `timeout` is in seconds for each request. Raises InvalidError for
        an invalid URL or a malformed token.
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
        self._report = EMPTY_REPORT
        self._acked: tuple[int, str | None] | None = None
        self._unsent: set[str] = set()
        self._full_report_due = self._nodes_due = 0.0
        self._wake, self._closing = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="blocklist-listener-session", daemon=True)
        self._thread.start()

    @property
    def registered(self) -> bool:
        """Whether the session is registered, according to the last response."""
        return self._registered

    @property
    def fenced(self) -> bool:
        """Whether another session has taken over. This session has then stopped for good."""
        return self._fenced

    @property
    def last_error(self) -> str | None:
        """The error of the current outage; None if there is none."""
        return self._last_error

    def report(self, report: Report = EMPTY_REPORT, *, acked: int | None = None, history: str | None = None) -> None:
        """Send this in the next heartbeat, which is sent at once if anything has changed; return immediately.

        `acked` is the revision up to which the listener has applied the list of `history`. The latest values win;
        changes in quick succession share a heartbeat.
        """
        with self._lock:
            changed = report.changed_from(self._report)
            self._report = report.over(self._report)
            if acked is not None and (acked, history) != self._acked:
                self._acked = acked, history
                changed.add(_ACKED)
            self._unsent |= changed
            if changed:
                self._wake.set()

    def close(self) -> None:
        """Deregister, waiting at most for the timeout. May be called repeatedly."""
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
        """Send a heartbeat, then wait for a change or for the next heartbeat to be due."""
        if not self._registered:
            self._client.register(self._registration)
            self._registered, self._full_report_due, self._nodes_due = True, 0.0, 0.0
        self._send()
        if self._failures:
            log.info("Listener %s reconnected to %s.", self._registration.id, self._client.url)
        self._failures, self._last_error = 0, None
        # close() sets `_closing` before `_wake`, so this check or the wait notices it.
        if not self._closing.is_set():
            self._wake.wait(max(0.0, self._full_report_due - time.monotonic()))

    def _send(self) -> None:
        now = time.monotonic()
        with self._lock:
            self._wake.clear()
            names = self._due_names(now)
            acked, history = (self._acked if _ACKED in names else None) or (None, None)
            report = self._report.only(names)
            self._unsent = set()
        if now >= self._full_report_due:
            self._full_report_due = now + self._interval
        try:
            reported = self._heartbeat(acked, history, report)
        except BaseException:
            with self._lock:
                self._unsent |= names
            raise
        if _NODES in names:
            self._nodes_due = 0.0 if reported is None else now + NODES_SECONDS
        elif reported is not None and _NODES not in reported:
            self._send_nodes_again()

    def _due_names(self, now: float) -> set[str]:
        """What to send: everything at each interval, in between what has changed."""
        if now < self._full_report_due:
            return self._unsent
        everything = {_ACKED, *self._report.given()}
        return everything if now >= self._nodes_due else (everything - {_NODES}) | self._unsent

    def _send_nodes_again(self) -> None:
        """The service has lost them."""
        with self._lock:
            if self._report.nodes is not None:
                self._unsent.add(_NODES)
                self._wake.set()

    def _heartbeat(self, acked: int | None, history: str | None, report: Report) -> frozenset[str] | None:
        """Send it; the fields that the service has then, None if it does not tell."""
        listener_id, session = self._registration.id, self._registration.session
        try:
            return self._client.send_heartbeat(
                listener_id, session, acked=acked, history=history, report=report
            ).reported
        except InvalidError:
            # A report that is rejected must stop neither the renewal of the lease nor the acknowledgement.
            if report != EMPTY_REPORT:
                self._client.heartbeat(listener_id, session, acked=acked, history=history)
            raise

    def _on_error(self, error: Exception) -> float:
        """Record the error; return the seconds to wait."""
        self._failures += 1
        self._last_error = (str(error) or type(error).__name__)[:200]
        # Whatever was lost, registering recovers it; if nothing was, it is a renewal.
        self._registered = isinstance(error, InvalidError) and self._registered
        self._fenced = isinstance(error, FencedError)
        if self._fenced:
            log.warning("Listener %s stopped: %s", self._registration.id, self._last_error)
            return 0.0
        if self._failures == 1:
            unexpected = not isinstance(error, BlocklistError)
            log.warning(
                "Listener %s cannot send heartbeats (%s); retrying.",
                self._registration.id,
                self._last_error,
                exc_info=unexpected,
            )
        retry_after = error.retry_after if isinstance(error, UnavailableError) else None
        return self._backoff.delay(self._failures, random.random(), retry_after)  # noqa: S311

    def _deregister(self) -> None:
        """Deregister this session: if another one has taken over, that one stays."""
        registration = self._registration
        try:
            self._client.deregister(registration.id, registration.session)
        except BlocklistError as error:
            log.debug("Listener %s could not deregister: %s", registration.id, error)
