"""HeartbeatRecorder: applies what a heartbeat or the response to a push reports."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from app.listeners.directory import ListenerDirectory
from app.listeners.entry import ListenerEntry
from app.listeners.quota import ReportsTooLargeError
from app.listeners.report_codec import ERROR
from app.listeners.unsaved_reports import UnsavedReports
from blocklist.model.errors import BlocklistError, InvalidError
from blocklist.model.listener import ListenerRole, heartbeat
from blocklist.model.report import EMPTY_REPORT, Report
from blocklist.model.tracker import BlocklistTracker


class HeartbeatRecorder:
    """Renews the lease and moves the cursor of a listener, and stores its report. Belongs to the event loop."""

    def __init__(
        self,
        directory: ListenerDirectory,
        unsaved: UnsavedReports,
        tracker: BlocklistTracker,
        clock: Callable[[], int],
    ) -> None:
        self._directory = directory
        self._unsaved = unsaved
        self._tracker = tracker
        self._clock = clock

    def record(
        self, listener_id: str, session: str, acked: int | None, report: Report, principal: str | None
    ) -> ListenerEntry:
        """Apply a heartbeat of a principal; None without authentication.

        Raises NotFoundError, FencedError, InvalidError, ReportsTooLargeError; then nothing is changed.
        """
        entry = self._directory.get(listener_id)
        now = self._clock()
        current = None if entry is None else entry.listener
        revision = self._tracker.revision
        lease_time = self._directory.lease_time()
        if entry is not None:
            lease_time = entry.lease_time(lease_time)
        listener = heartbeat(
            current, session, acked, now=now, lease_time=lease_time, revision=revision, principal=principal
        )
        assert entry is not None
        if report.evidence is not None and listener.role is not ListenerRole.JOB_MASTER:
            raise InvalidError("evidence: only a JOB_MASTER runs tasks that could give any.")
        if report != EMPTY_REPORT:
            self._directory.check_size(entry, report)
        moved = listener.acked != entry.listener.acked
        entry.listener = listener
        if moved:
            self._directory.record_ack(entry)
        self._directory.confirm(entry)
        at = entry.next_timestamp(now)
        parts = set() if report == EMPTY_REPORT else self._directory.apply_report(entry, report, at)
        self._unsaved.add(entry, at, acked=moved, parts=parts)
        return entry

    def record_push_response(self, entry: ListenerEntry, acked: int | None, report: Report, error: str | None) -> None:
        """Apply a 2xx response; `error` says what was invalid in it. Does nothing if the entry is no longer current."""
        if self._directory.is_current(entry):
            # The response comes from the address that the principal registered.
            session, principal = entry.listener.session, entry.listener.principal
            with suppress(BlocklistError):
                try:
                    self.record(entry.id, session, acked, report, principal)
                except ReportsTooLargeError as too_large:
                    # The acknowledgement counts: otherwise the push would be repeated at once, for ever.
                    self.record(entry.id, session, acked, EMPTY_REPORT, principal)
                    error = too_large.detail
            self.record_push_error(entry, error)

    def record_push_error(self, entry: ListenerEntry, error: str | None) -> None:
        """Store the outcome of the last push; None is success."""
        if entry.error != error:
            entry.error = error
            self._unsaved.add(entry, entry.next_timestamp(self._clock()), parts=[ERROR])
