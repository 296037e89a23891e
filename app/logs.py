"""Logging: the format of lines, request ids, the change log, callbacks that must not stop their caller."""

from __future__ import annotations

import atexit
import logging
import re
import secrets
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import lru_cache
from itertools import chain, count
from json.encoder import encode_basestring_ascii
from queue import SimpleQueue
from threading import Event, Thread
from types import TracebackType
from typing import Final, Literal

import structlog
from structlog.contextvars import bind_contextvars, get_contextvars

from blocklist.model.changes import Author, Change
from blocklist.model.node import to_utc

log = structlog.get_logger(__name__)

LogFormat = Literal["console", "json"]


def configure_logging(log_format: LogFormat) -> None:
    """Log to stderr, for people or as JSON lines."""
    shared: list[structlog.types.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    formatter = structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=shared,
        processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *_renderers(log_format)],
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(formatter)
    handler.addFilter(SecretUrls())
    logging.basicConfig(handlers=[handler], level=logging.INFO, force=True)
    for verbose in ("alembic", "uvicorn.error"):
        logging.getLogger(verbose).setLevel(logging.WARNING)
    limit_lines()
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )


def _renderers(log_format: LogFormat) -> list[structlog.types.Processor]:
    if log_format == "json":
        return [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
    plain = structlog.dev.plain_traceback
    return [structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty(), exception_formatter=plain)]


# RateLimit: a bound on the log lines that callers without credentials can cause.

LIMITED_LOGGERS: Final = ("uvicorn.error", "asyncio", "app.auth.authenticator", "app.auth.oidc", "app.auth.signin")
"""Whatever a connection sends may cause a line in these. Nothing else is logged before a request is authenticated."""
MAX_LINES: Final = 20
"""Maximum number of lines of one logger and level in an interval."""
INTERVAL_SECONDS: Final = 60.0


class RateLimit(logging.Filter):
    """Passes MAX_LINES of each logger and level per interval; at its end, one line has the number of the others.

    An interval begins with its first line. Lines below a warning always pass: they tell what an admin did, such as
    creating a token. May be used by any thread.
    """

    def __init__(self) -> None:
        super().__init__()
        self._lock = threading.Lock()
        self._seen: Counter[tuple[str, str]] = Counter()

    def filter(self, record: logging.LogRecord) -> bool:
        if record.levelno < logging.WARNING:
            return True
        with self._lock:
            if not self._seen:
                timer = threading.Timer(INTERVAL_SECONDS, self.end_interval)
                timer.daemon = True
                timer.start()
            self._seen[record.name, record.levelname.lower()] += 1
            return self._seen[record.name, record.levelname.lower()] <= MAX_LINES

    def end_interval(self) -> None:
        """Log what was suppressed, and begin the next interval."""
        with self._lock:
            seen, self._seen = self._seen, Counter()
        for (name, level), lines in sorted(seen.items()):
            if lines > MAX_LINES:
                log.warning("log lines suppressed", of=name, of_level=level, lines=lines - MAX_LINES)


def limit_lines() -> None:
    """Limit the lines of LIMITED_LOGGERS; at the exit, log what was suppressed last."""
    limit = RateLimit()
    for name in LIMITED_LOGGERS:
        logging.getLogger(name).addFilter(limit)
    atexit.register(limit.end_interval)


# Secrets in URLs: libraries that send to a configured URL log it when that fails. Their lines are redacted.

REDACTED: Final = "REDACTED"
_DROPPED: Final = ("urllib3.", "requests.")
"""Their lines may contain whatever a server answered; their callers report that a request failed."""
_REDACTED_LOGGERS: Final = ("opentelemetry.",)
_USER: Final = re.compile(r"(://)[^/\s@]+@")
_PATH: Final = re.compile(r"(\burl\b\W{1,2})[^\s)]+")
_QUERY: Final = re.compile(r"\?[^\s'\")]+")


class SecretUrls(logging.Filter):
    """Removes from the lines of HTTP libraries what may be a secret: user and password, path and query of a URL.

    An exception in such a line is reduced to its type, because its text may contain the URL.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether the record is logged; it may be changed."""
        if record.name.startswith(_DROPPED):
            return False
        if record.name.startswith(_REDACTED_LOGGERS):
            record.msg, record.args = redact(_message(record)), ()
            record.exc_info = record.exc_text = None
        return True


def redact(text: str) -> str:
    for pattern, replacement in ((_USER, rf"\1{REDACTED}@"), (_PATH, rf"\1{REDACTED}"), (_QUERY, f"?{REDACTED}")):
        text = pattern.sub(replacement, text)
    return text


def _message(record: logging.LogRecord) -> str:
    error = record.exc_info[0] if record.exc_info else None
    return record.getMessage() if error is None else f"{record.getMessage()} ({error.__name__})"


# isolated: a callback that raises must not stop the loop that calls it.


class isolated:  # noqa: N801 - it is used like contextlib.suppress
    """A context that logs an exception of its body and continues behind it; `part` names the body in the log.

    May be entered again and again. A class, because loops over thousands of callbacks use it. A cancellation and the
    end of the process are not exceptions of the body: they pass.
    """

    __slots__ = ("_part",)

    def __init__(self, part: str) -> None:
        self._part = part

    def __enter__(self) -> None:
        return

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> bool:
        if not isinstance(error, Exception):
            return False
        log.error("a callback failed; its caller continues", part=self._part, exc_info=error)
        return True


# The id of a request: from its X-Request-ID or generated, and in its log lines, its changes and its response.

REQUEST_ID_HEADER: Final = b"x-request-id"
_VALID: Final = re.compile(rb"[A-Za-z0-9._:-]{1,128}")
_PROCESS_PREFIX: Final = secrets.token_hex(4)
"""Distinguishes the ids of processes that share a log."""
_numbers: Final = count(1)


def client_request_id(headers: Iterable[tuple[bytes, bytes]]) -> bytes | None:
    """The id that the client sent, if it is the only one and valid."""
    found = [value for name, value in headers if name == REQUEST_ID_HEADER]
    return found[0] if len(found) == 1 and _VALID.fullmatch(found[0]) else None


def new_request_id() -> bytes:
    return b"%b-%x" % (_PROCESS_PREFIX.encode(), next(_numbers))


def bind_request_id(request_id: bytes) -> None:
    """Add the id to all that this task, and those that it starts, log from now on."""
    bind_contextvars(request_id=request_id.decode())


def with_request_id(author: Author) -> Author:
    """The author with the id of the current request, unless it has an id already."""
    if author.request_id is None and (current := get_contextvars().get("request_id")) is not None:
        return author._replace(request_id=current)
    return author


# One log line for each change, written by a thread, as there can be thousands a second.
#
# structlog would need longer for a line than the service needs for the change. So lines are formatted here, exactly
# as structlog would, and written in batches.

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
