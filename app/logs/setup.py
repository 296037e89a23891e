"""Log format: structlog for all log lines, also for those of uvicorn."""

from __future__ import annotations

import atexit
import logging
import re
import sys
import threading
from collections import Counter
from typing import Final, Literal

import structlog

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

LIMITED_LOGGERS: Final = ("uvicorn.error", "asyncio", "app.auth.authenticator", "app.auth.jwks")
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
    """The text without the secrets of its URLs."""
    for pattern, replacement in ((_USER, rf"\1{REDACTED}@"), (_PATH, rf"\1{REDACTED}"), (_QUERY, f"?{REDACTED}")):
        text = pattern.sub(replacement, text)
    return text


def _message(record: logging.LogRecord) -> str:
    error = record.exc_info[0] if record.exc_info else None
    return record.getMessage() if error is None else f"{record.getMessage()} ({error.__name__})"
