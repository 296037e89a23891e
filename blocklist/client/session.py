"""ListenerSession: keeps a listener registered with the service."""

from __future__ import annotations

import logging
import math
import random
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from blocklist.client.client import BlocklistClient
from blocklist.client.transport import BearerAuth, ServiceClock
from blocklist.client.watch import Watch
from blocklist.model.errors import BlocklistError, InvalidError, UnavailableError
from blocklist.model.listener import EMPTY_REPORT, HEARTBEAT_SECONDS, FencedError, Mode, Registration, Report
from blocklist.model.node import Backoff

if TYPE_CHECKING:
    from blocklist.wire.listeners import KnownNodeBody

log = logging.getLogger(__name__)

_ACKED: Final = "acked"
_NODES: Final = "nodes"
_REASONS: Final = frozenset({"refused", "pending", "not_here"})
_NOT_IN_FORCE: Final = _REASONS | {"mode"}
"""Parts of a report: without them, what is not in force would count as applied."""
NODES_SECONDS: Final = 300.0
"""Interval at which all nodes are sent again, although the service has them: another replica may have older ones."""


class ListenerSession:
    """Registers a listener and sends heartbeats until `close`.

    Changed values are sent at once, and all values at each interval, as a restarted service has lost them; but nodes,
    of which there may be thousands, only if it has lost them, and every NODES_SECONDS. Errors raise
    nothing: an outage is logged once, is visible in `last_error`, and is retried with jittered backoff. If the
    registration is lost, the session registers again and sends all values; so it does if another session is
    registered, which a restored service may have brought back. It stops for good only if it may not register, because
    another session has taken over: `fenced`. Otherwise two processes with one id would displace each other for ever.
    What is reported with `valid_until` is not sent after that time, and neither is the lease renewed: then the service
    does not count as applied what was true before this process was suspended.

    Refusals and pending blocks that the service rejects, because they are too many or too large, must not count as
    applied: without them nothing is acknowledged, and a new session begins if something was, as that has acknowledged
    nothing.

    `mode` is how the listener is to act now: as it was started, or as the service wants, whichever does less. `on_mode`
    is called in the session's thread when it has changed.

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
        self.mode = registration.mode
        self._mode_known = threading.Event()
        self.on_mode: Callable[[], None] = lambda: None
        self._registered_as: Registration | None = None
        self._first_session = registration.session
        self._withdrawals = 0
        self._acknowledged = False
        self._interval = interval
        self._timeout = timeout
        self._backoff = backoff or Backoff()
        self._failures = 0
        self._registered = self._fenced = False
        self._last_error: str | None = None
        self._lock = threading.Lock()
        self._report = EMPTY_REPORT
        self._acked: tuple[int, str | None] | None = None
        self._valid_until = math.inf
        self._unsent: set[str] = set()
        self._full_report_due = self._nodes_due = 0.0
        self._wake, self._closing = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="blocklist-listener-session", daemon=True)
        self._thread.start()

    @property
    def clock(self) -> ServiceClock:
        """The service's clock: each heartbeat sets it, and each watch of `open_watch` before its first item."""
        return self._client.clock

    def open_watch(self) -> Watch:
        """A watch of the same service. It is not closed with the session."""
        return self._client.watch()

    def known_node(self, node_id: str) -> KnownNodeBody:
        """As the client's."""
        return self._client.known_node(node_id)

    @property
    def registered(self) -> bool:
        """Whether the session is registered, according to the last response."""
        return self._registered

    @property
    def observes_only(self) -> bool:
        """Whether it was started in the mode observe, so that it never changes anything."""
        return self._registration.mode is Mode.OBSERVE

    @property
    def fenced(self) -> bool:
        """Whether another session has taken over. This session has then stopped for good: `last_error` says why."""
        return self._fenced

    @property
    def last_error(self) -> str | None:
        """The error of the current outage; None if there is none."""
        return self._last_error

    def report(
        self,
        report: Report = EMPTY_REPORT,
        *,
        acked: int | None = None,
        history: str | None = None,
        valid_until: float = math.inf,
    ) -> None:
        """Send this in the next heartbeat, which is sent at once if anything has changed; return immediately.

        `acked` is the revision up to which the listener has applied the list of `history`. The latest values win;
        changes in quick succession share a heartbeat. From `valid_until`, in seconds of `time.monotonic`, until the
        next report nothing is sent.
        """
        with self._lock:
            if self._is_outdated():
                self._wake.set()
            self._valid_until = valid_until
            changed = report.changed_from(self._report)
            self._report = report.over(self._report)
            if acked is not None and (acked, history) != self._acked:
                self._acked = acked, history
                changed.add(_ACKED)
            self._unsent |= changed
            if changed:
                self._wake.set()

    def set_platform(self, platform: str) -> None:
        """Register what it runs on, if that was not known before, or is another now."""
        with self._lock:
            software = self._registration.software._replace(platform=platform)
            if software != self._registration.software:
                self._registration = replace(self._registration, software=software)
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
        if self._wait_for_report():
            return
        registration = self._registration
        if not self._registered or registration is not self._registered_as:
            self._client.register(registration)
            self._registered_as = registration
            self._registered, self._full_report_due, self._nodes_due = True, 0.0, 0.0
        self._send()
        if self._failures:
            log.info("Listener %s reconnected to %s.", self._registration.id, self._client.url)
        self._failures, self._last_error = 0, None
        # close() sets `_closing` before `_wake`, so this check or the wait notices it.
        if not self._closing.is_set():
            self._wake.wait(max(0.0, self._full_report_due - time.monotonic()))

    def _is_outdated(self) -> bool:
        """Whether the last report may not be true any more. Call it with the lock."""
        return time.monotonic() >= self._valid_until

    def _wait_for_report(self) -> bool:
        """Whether the last report was outdated; then it has waited for another one, for an interval at most."""
        with self._lock:
            outdated = self._is_outdated()
            if outdated:
                self._wake.clear()
        if outdated and not self._closing.is_set():
            self._wake.wait(self._interval)
        return outdated

    def _send(self) -> None:
        now = time.monotonic()
        with self._lock:
            # Registering may have taken long.
            if self._is_outdated():
                return
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
            self._nodes_due = now + NODES_SECONDS if _NODES in (reported or ()) else 0.0
        elif reported is not None and _NODES not in reported:
            self._send_nodes_again()
        if reported is not None and any(self._report.only(_NOT_IN_FORCE - {*reported, *names}).given().values()):
            # The service has lost it, as it was restarted: what is not in force must not count as applied there.
            self._full_report_due = 0.0

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
        try:
            return self._send_heartbeat(acked, history, report)
        except InvalidError:
            # A report that is rejected must stop neither the renewal of the lease nor the acknowledgement.
            if report != EMPTY_REPORT:
                self._send_without_report(acked, history, report.only(_NOT_IN_FORCE))
            raise

    def _send_heartbeat(self, acked: int | None, history: str | None, report: Report) -> frozenset[str] | None:
        listener_id, session = self._registration.id, self._registration.session
        before = self._acknowledged
        self._acknowledged |= acked is not None  # Also if the response is lost.
        try:
            result = self._client.send_heartbeat(listener_id, session, acked=acked, history=history, report=report)
        except InvalidError:
            self._acknowledged = before
            raise
        self._set_mode(result.mode)
        return result.reported

    def _set_mode(self, wanted: str) -> None:
        """Take what the service wants, unless this listener was started with a mode that does less."""
        known = {mode.value: mode for mode in Mode}
        before, self.mode = self.mode, known.get(wanted, Mode.APPLY).weaker(self._registration.mode)
        self._mode_known.set()
        if self.mode is not before:
            log.warning("Listener %s: the mode is %s now.", self._registration.id, self.mode.value)
            self.on_mode()

    def wait_for_mode(self, seconds: float) -> None:
        """Until the service has said which mode it wants, or cannot be reached, or at most this long."""
        self._mode_known.wait(seconds)

    def _send_without_report(self, acked: int | None, history: str | None, not_in_force: Report) -> None:
        """Renew the lease and acknowledge, only with what must not count as applied."""
        if not any(not_in_force.only(_REASONS).given().values()):
            self._send_heartbeat(acked, history, not_in_force)
            return
        for revision in (acked, None):
            with suppress(InvalidError):
                self._send_heartbeat(revision, history, not_in_force)
                return
        if self._acknowledged:
            self._withdraw()
        else:
            self._send_heartbeat(None, None, EMPTY_REPORT)

    def _withdraw(self) -> None:
        """Begin a new session, which has acknowledged nothing, and takes over from this one."""
        self._withdrawals += 1
        session = f"{self._first_session}.{self._withdrawals}"
        self._registration = replace(self._registration, session=session)
        self._registered = self._acknowledged = False

    def _on_error(self, error: Exception) -> float:
        """Record the error; return the seconds to wait."""
        self._mode_known.set()
        self._failures += 1
        self._last_error = (str(error) or type(error).__name__)[:200]
        # 409 to a heartbeat: another session is registered, by a successor, or by the backup of a restored service.
        # Only a session that was taken over may not register.
        self._fenced = isinstance(error, FencedError) and not self._registered
        # Whatever was lost, registering recovers it; if nothing was, it is a renewal.
        self._registered = isinstance(error, InvalidError) and self._registered
        if self._fenced:
            log.error(
                "Listener %s reports no more: another process has registered this id and taken over (%s) Stop one of"
                " the two, or give each an id of its own.",
                self._registration.id,
                self._last_error,
            )
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
