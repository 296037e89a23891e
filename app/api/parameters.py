"""Path and query parameters that several routes share: documentation and validation."""

from __future__ import annotations

import re
from typing import Annotated, Final

from fastapi import Depends, Path, Query, Request
from pydantic import BeforeValidator, Field

from app.api.authentication import check_after_wait
from app.engine.list_view import ListView
from app.service import Service, service_of
from app.store.queries import PastList
from blocklist.model.errors import InvalidError, UnavailableError
from blocklist.model.node import PERMANENT, check_id, check_node_id
from blocklist.wire.body import ID_SCHEMA

MIN_REVISION_TIMEOUT: Final = 2.0
"""Maximum time that `minRevision` waits for this replica, in seconds."""
_DIGITS = re.compile(r"[0-9]{1,19}", re.ASCII)


def _whole_number(value: object) -> object:
    if isinstance(value, str) and not _DIGITS.fullmatch(value):
        raise ValueError("must be a whole number in decimal digits")
    return value


Revision = Annotated[int, Field(ge=0, le=2**53), BeforeValidator(_whole_number)]
Limit = Annotated[int, Field(ge=1, le=1000), BeforeValidator(_whole_number)]
Timestamp = Annotated[int, Field(ge=0, le=PERMANENT), BeforeValidator(_whole_number)]
"""Unix milliseconds."""


async def _node_id(
    node_id: Annotated[
        str,
        Path(
            description="1 to 253 characters of `A-Z a-z 0-9 . _ : -`, but not `.` or `..`. It means the same"
            " machine in any case, as short or full name, and as address in any spelling: the answer has an address in"
            " its shortest form, without brackets, zone and port.",
            examples=["worker-17"],
            json_schema_extra=dict(ID_SCHEMA),
        ),
    ],
) -> str:
    return check_node_id(node_id)


NodeId = Annotated[str, Depends(_node_id)]
"""A node id from the path, validated. Raises InvalidError."""


async def _resource_id(
    id: Annotated[  # noqa: A002 - the name in the path
        str,
        Path(
            description="The id; same characters as a node id.",
            examples=["app-20261121101500-0001"],
            json_schema_extra=dict(ID_SCHEMA),
        ),
    ],
) -> str:
    return check_id(id)


ResourceId = Annotated[str, Depends(_resource_id)]
"""The id of a listener, TaskManager or token from the path, validated. Raises InvalidError."""


async def _wait_for_revision(
    request: Request,
    min_revision: Annotated[
        Revision | None,
        Query(
            alias="minRevision",
            description="Wait up to 2 s until this replica has this revision, otherwise 503.",
        ),
    ] = None,
) -> None:
    if min_revision is not None:
        await require_revision(service_of(request).view, min_revision)
        check_after_wait(request)


async def require_revision(view: ListView, revision: int) -> None:
    """Wait until this replica has a revision. Raises UnavailableError on timeout."""
    if not await view.wait_for_revision(revision, MIN_REVISION_TIMEOUT):
        raise UnavailableError(
            f"This replica is at revision {view.tracker.revision} and does not have {revision} yet.", retry_after=1
        )


MinRevision = Depends(_wait_for_revision)
"""Waits for `?minRevision=`. Raises UnavailableError on timeout, UnauthorizedError if the credential has ended."""


class AllowedParameters:
    """A dependency of routes that change something: allows only these query parameters, each at most once.

    `repeatable` may be given several times.
    Other routes ignore unknown parameters, but here a misspelt `?dryrun=true` would make a real change.
    Raises InvalidError.
    """

    def __init__(self, *names: str, repeatable: str | None = None) -> None:
        self._names = names
        self._repeatable = repeatable

    async def __call__(self, request: Request) -> None:
        names = [name for name, _ in request.query_params.multi_items() if name != self._repeatable]
        rejected = [name for name in names if name not in self._names or names.count(name) > 1]
        if rejected:
            allowed = ", ".join(self._names) + (
                f"; any number of times: {self._repeatable}" if self._repeatable else ""
            )
            raise InvalidError(
                f"Unknown or repeated query parameter {rejected[0][:100]!a}; allowed, at most once each: {allowed}."
                " Nothing was changed."
            )


# `?at=`: the list at a time in the past.


async def list_at(service: Service, timestamp: int) -> PastList:
    """The list at `?at=` (Unix ms). Raises InvalidError, CompactedError, UnavailableError."""
    if timestamp > (now := service.clock()):
        raise InvalidError(f"at: {timestamp} is in the future; the current time is {now}.")
    return await service.store.list_at(timestamp)
