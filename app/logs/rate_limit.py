"""RateLimit: a bound on the log lines that callers without credentials can cause."""

from __future__ import annotations

import atexit
import logging
import threading
from collections import Counter
from typing import Final

import structlog

log = structlog.get_logger(__name__)

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
