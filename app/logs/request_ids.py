"""The id of a request: from its X-Request-ID or generated, and in its log lines, its changes and its response."""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterable
from itertools import count
from typing import Final

from structlog.contextvars import bind_contextvars, get_contextvars

from blocklist.model.changes import Author

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
    """An id for a request without one."""
    return b"%b-%x" % (_PROCESS_PREFIX.encode(), next(_numbers))


def bind_request_id(request_id: bytes) -> None:
    """Add the id to all that this task, and those that it starts, log from now on."""
    bind_contextvars(request_id=request_id.decode())


def with_request_id(author: Author) -> Author:
    """The author with the id of the current request, unless it has an id already."""
    if author.request_id is None and (current := get_contextvars().get("request_id")) is not None:
        return author._replace(request_id=current)
    return author
