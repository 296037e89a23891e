"""A line in the log for each change of the list: written by a thread, as there may be thousands in a second.

structlog would take longer for a line than the service takes for the change. So lines are put together here, in the
same two forms, and written many at a time.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import chain
from json.encoder import encode_basestring_ascii
from queue import SimpleQueue
from threading import Event, Thread
from typing import Final, Literal

from blocklist.model.changes import Change
from blocklist.model.time import to_utc

MAX_QUEUED: Final = 100_000
"""Changes that may wait for somebody to read the log; beyond them lines are lost, and counted: changes go on."""
_BATCH_LINES: Final = 500
"""Lines written at once."""
_GATHER_SECONDS: Final = 0.02
"""How long a line may wait for others."""

LogFormat = Literal["console", "json"]


class ChangeLogWriter:
    """`write` belongs to the event loop, and never waits. `lost` is told how many lines were not written."""

    def __init__(self, log_format: LogFormat, on_lost: Callable[[int], None], max_queued: int = MAX_QUEUED) -> None:
        self._format_line = _json_line if log_format == "json" else _console_line
        self._on_lost = on_lost
        self._max_queued = max_queued
        self._queue: SimpleQueue[Sequence[Change]] = SimpleQueue()
        self._queued = 0
        self._written = 0
        self._closing = Event()
        self._thread = Thread(target=self._run, name="change-lines", daemon=True)
        self._thread.start()

    def write(self, changes: Sequence[Change]) -> None:
        """These changes were committed."""
        if self._queued - self._written > self._max_queued:
            self._on_lost(len(changes))
            return
        self._queued += len(changes)
        self._queue.put(changes)

    def close(self, seconds: float = 2.0) -> None:
        """Write what waits, as far as somebody reads it within this time."""
        self._closing.set()
        self._queue.put(())
        self._thread.join(seconds)

    def _run(self) -> None:
        while not (self._closing.is_set() and self._queue.empty()):
            taken = [self._queue.get()]
            # Each waking of a thread costs the event loop what it needs for a change.
            self._closing.wait(_GATHER_SECONDS)
            taken += [self._queue.get() for _ in range(self._queue.qsize())]
            changes = list(chain.from_iterable(taken))
            for begin in range(0, len(changes), _BATCH_LINES):
                _write_stderr("".join(map(self._format_line, changes[begin : begin + _BATCH_LINES])))
            self._written += len(changes)


def _write_stderr(text: str) -> None:
    try:
        sys.stderr.write(text)
        sys.stderr.flush()
    except (OSError, ValueError):
        # Nobody reads the log any more, or it is closed: that is no reason to stop.
        return


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
    # repr leaves no character as it is that could forge a line, or the looks of one.
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


@lru_cache(maxsize=1)
def _utc(millis: int) -> str:
    # All changes of a transaction have the same moment.
    moment = to_utc(millis)
    # A clock beyond the year 9999 is no reason to lose this line, and all that follow.
    return str(millis) if moment is None else f"{moment:%Y-%m-%dT%H:%M:%S.%fZ}"
