"""The id of a request: from its X-Request-ID or made here, in its log lines, its changes and its answer."""

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
"""Of this process: the numbers of two that share a log do not mix."""
_numbers: Final = count(1)


def client_request_id(headers: Iterable[tuple[bytes, bytes]]) -> bytes | None:
    """The id that a request came with, if it is one and only one, and has nothing in it that could hurt."""
    found = [value for name, value in headers if name == REQUEST_ID_HEADER]
    return found[0] if len(found) == 1 and _VALID.fullmatch(found[0]) else None


def new_request_id() -> bytes:
    """An id for a request that came without."""
    return b"%b-%x" % (_PROCESS_PREFIX.encode(), next(_numbers))


def bind_request_id(request_id: bytes) -> None:
    """All that this task and those it starts log from now on belongs to the request."""
    bind_contextvars(request_id=request_id.decode())


def with_request_id(author: Author) -> Author:
    """The author with the id of the request in which he is asked for, unless he has one."""
    if author.request_id is None and (present := get_contextvars().get("request_id")) is not None:
        return author._replace(request_id=present)
    return author
