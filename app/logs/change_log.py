"""One log line for each change, written by a thread, as there can be thousands a second.

structlog would need longer for a line than the service needs for the change. So lines are formatted here, exactly as
structlog would, and written in batches.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import lru_cache
from itertools import chain
from json.encoder import encode_basestring_ascii
from queue import SimpleQueue
from threading import Event, Thread
from typing import Final

from app.logs.isolation import isolated
from app.logs.setup import LogFormat
from blocklist.model.changes import Change
from blocklist.model.time import to_utc

MAX_QUEUED: Final = 100_000
"""Maximum number of changes whose lines are queued while stderr is not read; further lines are dropped and counted."""
_BATCH_LINES: Final = 500
_GATHER_SECONDS: Final = 0.02
"""Time that a line waits for others of its batch."""


class ChangeLogWriter:
    """`write` runs on the event loop and never blocks. `on_lost` is called with the number of dropped lines.

    The lines go to what is stderr now: a stream that later takes its place belongs to somebody else.
    """

    def __init__(self, log_format: LogFormat, on_lost: Callable[[int], None], max_queued: int = MAX_QUEUED) -> None:
        self._format_line = _json_line if log_format == "json" else _console_line
        self._on_lost = on_lost
        self._stderr = sys.stderr
        self._max_queued = max_queued
        self._queue: SimpleQueue[Sequence[Change]] = SimpleQueue()
        self._queued = 0
        self._written = 0
        self._closing = Event()
        self._thread = Thread(target=self._run, name="change-log", daemon=True)
        self._thread.start()

    def write(self, changes: Sequence[Change]) -> None:
        """Queue lines for these committed changes."""
        if self._queued - self._written > self._max_queued:
            self._on_lost(len(changes))
            return
        self._queued += len(changes)
        self._queue.put(changes)

    def close(self, seconds: float = 2.0) -> None:
        """Write the queued lines, within this time at most."""
        self._closing.set()
        self._queue.put(())
        self._thread.join(seconds)

    def _run(self) -> None:
        while not (self._closing.is_set() and self._queue.empty()):
            batches = [self._queue.get()]
            # Wait for more: each wake-up of the thread costs the event loop as much as a change.
            self._closing.wait(_GATHER_SECONDS)
            batches += [self._queue.get() for _ in range(self._queue.qsize())]
            changes = list(chain.from_iterable(batches))
            for start in range(0, len(changes), _BATCH_LINES):
                self._write_stderr("".join(map(self._line, changes[start : start + _BATCH_LINES])))
            self._written += len(changes)

    def _line(self, change: Change) -> str:
        """The line of a change; nothing if it cannot be formatted, because all later lines depend on this thread."""
        with isolated(f"log line of revision {change.revision}"):
            return self._format_line(change)
        return ""

    def _write_stderr(self, text: str) -> None:
        # stderr may be closed, or its reader gone: that must not stop the service.
        with suppress(OSError, ValueError):
            self._stderr.write(text)
            self._stderr.flush()


def _json_line(change: Change) -> str:
    forced = "" if change.forced is None else f'"forced": {_json_string(change.forced)}, '
    request = "" if change.request_id is None else f'"request_id": {_json_string(change.request_id)}, '
    return (
        f'{{"kind": "{change.type}", "node": "{change.node.id}", "by": {_json_string(change.created_by)}, '
        f'"revision": {change.revision}, "cause": {_json_string(change.node.cause)}, '
        f'"source": {_json_string(change.source)}, '
        f'{forced}{request}"event": "change", "level": "info", "timestamp": "{_utc(change.at)}"}}\n'
    )


def _console_line(change: Change) -> str:
    # repr escapes every character that could forge a line or change how it is displayed.
    source = None if change.source is None else str(change.source)
    forced = "" if change.forced is None else f" forced={change.forced!r}"
    request = "" if change.request_id is None else f" request_id={change.request_id!r}"
    return (
        f"{_utc(change.at)} [info     ] change                         kind='{change.type}' node='{change.node.id}' "
        f"by={change.created_by!r} revision={change.revision} cause={change.node.cause!r} "
        f"source={source!r}{forced}{request}\n"
    )


def _json_string(value: str | None) -> str:
    return "null" if value is None else encode_basestring_ascii(value)


@lru_cache(maxsize=1)  # all changes of a transaction have the same time
def _utc(millis: int) -> str:
    time = to_utc(millis)
    # A clock beyond the year 9999 must not stop the log.
    return str(millis) if time is None else f"{time:%Y-%m-%dT%H:%M:%S.%fZ}"
