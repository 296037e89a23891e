"""Notifier: turns changes and reports into notices, and hands them to the targets.

It never delays a change: what it keeps in memory is bounded, and each target sends in a thread of its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from enum import StrEnum
from queue import Full, Queue
from threading import Thread
from time import monotonic
from typing import Final

import structlog

from app.logs import isolated
from app.net.urls import SendText
from app.notices.observer import (
    Event,
    ListenerObserver,
    Notice,
    NoticeGroups,
    NoticeKind,
    Subject,
    TrackedNodes,
)
from blocklist.model.changes import Change
from blocklist.model.node import to_utc

log = structlog.get_logger(__name__)

# Target: sends notices to one URL, in a thread of its own: nothing else waits for it.

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
        self._left_out = 0
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
            self._left_out += 1 + notice.left_out
            return False
        self._left_out = 0
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
    more = notice.count - len(notice.nodes)
    lines = [f"Nodes: {', '.join(notice.nodes)}" + (f" and {more:,} more" if more > 0 else "")]
    if notice.clusters:
        lines.append(f"{'Cluster' if len(notice.clusters) == 1 else 'Clusters'}: {', '.join(notice.clusters)}")
    if subject.cause:
        lines.append(f"{_CAUSE.get(subject.kind, 'Cause')}: {_cut(subject.cause)}")
    lines += [f"Reason: {_cut(reason)}" for reason in notice.reasons]
    if subject.by:
        lines.append(f"{_BY.get(subject.kind, 'By')}: {_cut(subject.by)}")
    if (at := to_utc(notice.at)) is not None:
        lines.append(f"At: {at:%Y-%m-%d %H:%M:%S} UTC")
    return lines


def _subject_nodes(notice: Notice) -> str:
    return notice.nodes[0] if notice.count == 1 else f"{notice.count:,} nodes"


def _left_out(number: int) -> str:
    notices = "1 notice" if number == 1 else f"{number:,} notices"
    return f"Left out before this notice: {notices}. See the history."


def _cut(text: str) -> str:
    return text if len(text) <= MAX_LENGTH else f"{text[: MAX_LENGTH - 1]}…"


TICK_SECONDS: Final = 0.2
"""Interval at which groups are closed and timeouts are noticed."""
OBSERVE_SECONDS: Final = 5.0
"""Interval at which what listeners report is compared with what was noticed."""
CLOSE_SECONDS: Final = 2.0
"""Time in which the last notices are sent when the service stops."""


class Notifier:
    """Belongs to the event loop.

    With several replicas, the one that committed a change sends the notice of it. All know what listeners report: of
    that, the one for which `is_first` is true sends notices; it is None while that is uncertain. `on_left_out` is
    called with a number of notices that are not sent.
    """

    def __init__(
        self,
        targets: Sequence[Target],
        groups: NoticeGroups,
        nodes: TrackedNodes,
        observer: ListenerObserver,
        *,
        replicated: bool,
        is_first: Callable[[], bool | None],
        on_left_out: Callable[[int], None],
    ) -> None:
        self._targets = targets
        self._groups = groups
        self._nodes = nodes
        self._observer = observer
        self._replicated = replicated
        self._is_first = is_first
        self._on_left_out = on_left_out

    def publish(self, changes: Sequence[Change], *, from_log: bool) -> None:
        """These changes were committed; `from_log`: read from the database, so with replicas by another one."""
        events = self._nodes.apply(changes)
        if not (from_log and self._replicated):
            self._add(events)

    def use(self, targets: Sequence[Target]) -> None:
        """Send to these from now on; the former ones send what they have."""
        for target in self._targets:
            target.close()
        self._targets = targets
        for target in targets:
            target.start()

    def reset(self) -> None:
        """The list was read again."""
        self._nodes.clear()

    async def run(self) -> None:
        """Send notices; never returns. May be called again after an exception."""
        for target in self._targets:
            target.start()
        time = asyncio.get_running_loop().time
        next_observation = time() + OBSERVE_SECONDS
        while True:
            await asyncio.sleep(TICK_SECONDS)
            if time() >= next_observation:
                next_observation = time() + OBSERVE_SECONDS
                await self._observe()
            self._send_due()
            for target in self._targets:
                target.check_timeout()

    async def close(self) -> None:
        """Send what is left, within CLOSE_SECONDS."""
        self._send_due(all_groups=True)
        for target in self._targets:
            target.close()
        deadline = monotonic() + CLOSE_SECONDS
        for target in self._targets:
            await asyncio.to_thread(target.join, max(0.0, deadline - monotonic()))

    async def _observe(self) -> None:
        is_first = self._is_first()
        if is_first is None:
            return
        # Also where another replica sends them: if this one takes over, what it has observed before is not news.
        events = await self._observer.observe()
        if is_first:
            self._add(events)

    def _add(self, events: Sequence[Event]) -> None:
        now = asyncio.get_running_loop().time()
        for event in events:
            self._groups.add(event, now)

    def _send_due(self, *, all_groups: bool = False) -> None:
        notices, left_out = self._groups.due(asyncio.get_running_loop().time(), all_groups=all_groups)
        for notice in notices:
            left_out += sum(not target.put(notice) for target in self._targets)
        if left_out:
            self._on_left_out(left_out)
