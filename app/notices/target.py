"""Target: sends notices to one URL, in a thread of its own: nothing else waits for it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from enum import StrEnum
from queue import Full, Queue
from threading import Thread
from time import monotonic
from typing import Final

import structlog

from app.logs.isolation import isolated
from app.net.notice_urls import SendText
from app.notices.grouping import NOTHING, LeftOut, Notice, NoticeKind, Subject
from blocklist.model.time import to_utc

log = structlog.get_logger(__name__)

MAX_QUEUED: Final = 20
"""Maximum number of notices that wait for a target; further ones are left out, and the next notice says so."""
SEND_SECONDS: Final = 30.0
"""A notice that was not sent within this time has failed. Its thread cannot be stopped, so others wait for it."""


class Result(StrEnum):
    """How sending a notice ended."""

    SENT = "sent"
    FAILED = "failed"
    TIMED_OUT = "timed_out"


class Target:
    """`position` is the place of its URL in the setting. `on_result` is called by any thread, once for each notice.

    Except for the thread, it belongs to the event loop. Nothing of the URL is logged, nor of an exception, which may
    contain the URL.
    """

    def __init__(self, position: int, send: SendText, on_result: Callable[[Result], None]) -> None:
        self._position = position
        self._send_text = send
        self._on_result = on_result
        self._queue: Queue[Notice | None] = Queue(MAX_QUEUED)
        self._left_out = NOTHING
        self._sending_since: float | None = None
        self._timed_out: float | None = None
        self._works = True
        self._thread: Thread | None = None

    def start(self) -> None:
        """Start its thread. It is a daemon: a target that hangs does not delay the end of the process."""
        if self._thread is None:
            self._thread = Thread(target=self._run, name=f"notices-{self._position}", daemon=True)
            self._thread.start()

    def put(self, notice: Notice) -> bool:
        """Queue a notice; False if it is left out, because too many are queued."""
        try:
            self._queue.put_nowait(notice.with_left_out(self._left_out))
        except Full:
            self._left_out += LeftOut(notices=1, events=notice.events)
            return False
        self._left_out = NOTHING
        return True

    def check_timeout(self) -> None:
        """Report that a notice has failed if it has been sent for longer than SEND_SECONDS."""
        since = self._sending_since
        if since is not None and since != self._timed_out and monotonic() - since > SEND_SECONDS:
            self._timed_out = since
            self._report(Result.TIMED_OUT, "no answer in time")

    def close(self) -> None:
        """End the thread once it has sent what is queued; if too much is, it ends with the process."""
        with suppress(Full):
            self._queue.put_nowait(None)

    def join(self, seconds: float) -> None:
        """Wait for the end of the thread, at most this long."""
        if self._thread is not None:
            self._thread.join(seconds)

    def _run(self) -> None:
        while (notice := self._queue.get()) is not None:
            with isolated("a notice"):
                self._send(notice)

    def _send(self, notice: Notice) -> None:
        started_at = self._sending_since = monotonic()
        try:
            sent = self._send_text(notice_title(notice), notice_body(notice))
            error = "refused or unreachable"
        except Exception as raised:
            sent, error = False, type(raised).__name__
        self._sending_since = None
        if self._timed_out != started_at:
            self._report(Result.SENT if sent else Result.FAILED, error)

    def _report(self, result: Result, error: str) -> None:
        with isolated("result of a notice"):
            self._on_result(result)
        works, self._works = self._works, result is Result.SENT
        if works and not self._works:
            log.warning("notices cannot be sent", setting="BLOCKLIST_NOTIFY_URL", url_number=self._position, why=error)
        elif self._works and not works:
            log.info("notices are sent again", setting="BLOCKLIST_NOTIFY_URL", url_number=self._position)


# The text of a notice. Pure.

MAX_LENGTH: Final = 300
"""Maximum length of a cause or reason in a notice."""
_TITLES: Final = {
    NoticeKind.BLOCKED: "blocked",
    NoticeKind.EVACUATED: "evacuated: nothing runs there any more",
    NoticeKind.FREED: "free again",
    NoticeKind.REFUSED: "blocked, but a listener refuses that",
    NoticeKind.DRIFT: "not as the list says",
}
_CAUSE: Final = {NoticeKind.DRIFT: "Difference"}
_BY: Final = {NoticeKind.REFUSED: "Listener", NoticeKind.DRIFT: "Listener"}


def notice_title(notice: Notice) -> str:
    """One line: how many nodes, and what happened to them."""
    if notice.subject is None:
        return "blocklist: notices were left out"
    what = f" ({notice.subject.what})" if notice.subject.what else ""
    return f"blocklist: {_subject_nodes(notice)} {_TITLES[notice.subject.kind]}{what}"


def notice_body(notice: Notice) -> str:
    """The nodes, the cause, the author and the time, a line each; and what was left out before."""
    lines = [] if notice.subject is None else _lines(notice, notice.subject)
    if notice.left_out:
        lines.append(_left_out(notice.left_out))
    return "\n".join(lines)


def _lines(notice: Notice, subject: Subject) -> list[str]:
    more = notice.events - len(notice.nodes)
    lines = [f"Nodes: {', '.join(notice.nodes)}" + (f" and {more:,} more" if more > 0 else "")]
    if subject.cause:
        lines.append(f"{_CAUSE.get(subject.kind, 'Cause')}: {_cut(subject.cause)}")
    lines += [f"Reason: {_cut(reason)}" for reason in notice.reasons]
    if subject.by:
        lines.append(f"{_BY.get(subject.kind, 'By')}: {_cut(subject.by)}")
    if (at := to_utc(notice.at)) is not None:
        lines.append(f"At: {at:%Y-%m-%d %H:%M:%S} UTC")
    return lines


def _subject_nodes(notice: Notice) -> str:
    return notice.nodes[0] if notice.events == 1 else f"{notice.events:,} nodes"


def _left_out(left_out: LeftOut) -> str:
    notices = "1 notice" if left_out.notices == 1 else f"{left_out.notices:,} notices"
    nodes = "1 node" if left_out.events == 1 else f"{left_out.events:,} nodes"
    return f"Left out before this notice: {notices} about {nodes}. See the history."


def _cut(text: str) -> str:
    return text if len(text) <= MAX_LENGTH else f"{text[: MAX_LENGTH - 1]}…"
