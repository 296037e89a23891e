"""Secrets in URLs: libraries that send to a configured URL log it when that fails. Their lines are redacted."""

from __future__ import annotations

import logging
import re
from typing import Final

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
