"""The bodies of /audit."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any

from blocklist.wire.body import Body, Doc, Json, Millis, Page, Rule, between


class AuditKind(StrEnum):
    """What a record is about. `lost`: records were dropped, because the database was away for too long."""

    LOGIN = "login"
    LOGIN_FAILED = "login-failed"
    TOKEN_CREATED = "token-created"  # noqa: S105 - no password
    TOKEN_REVOKED = "token-revoked"  # noqa: S105 - as above
    FORCED = "forced"
    SETTINGS = "settings"
    MODE = "mode"
    LOST = "lost"


class Way(StrEnum):
    """By what something was done: the service itself, the page, the command (as its User-Agent says), or the API."""

    API = "api"
    COMMAND = "command"
    PAGE = "page"
    SERVICE = "service"


def _object(value: object) -> Json:
    if not isinstance(value, dict):
        raise ValueError("give an object")
    return value


@dataclass(kw_only=True)
class AuditRecord(Body):
    """A record of the audit log."""

    id: Annotated[int, between(1, 2**53), Doc("Consecutive: a number that is missing is a record that was removed.")]
    at: Millis
    kind: Annotated[str, Doc("One of the kinds of the query; later versions may add kinds.")]
    principal: Annotated[str | None, Doc("Who did it; null if unknown, as in a failed log-in.")]
    way: Annotated[str, Doc("`api`, `command` (as its User-Agent says), `page`, or `service`: the service itself.")]
    address: Annotated[str | None, Doc("Of the client; null if unknown.")]
    request_id: Annotated[str | None, Doc("As in the log lines of the request; null if unknown.")]
    details: Annotated[dict[str, Any], Rule(_object, {}), Doc("More about it, by kind. Never a secret.")]


@dataclass(kw_only=True)
class AuditPage(Page):
    """A page of the audit log."""

    records: list[AuditRecord]


def audit_body(record: AuditRecord) -> Json:
    """A record in a response."""
    return {
        "id": record.id,
        "at": str(record.at),
        "kind": record.kind,
        "principal": record.principal,
        "way": record.way,
        "address": record.address,
        "requestId": record.request_id,
        "details": record.details,
    }
