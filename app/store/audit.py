"""SQL on the audit log. Its records are added, and removed when they are old; never changed (see migrations/).

Whoever adds records holds the row `audit` of the table `versions` until the end of the transaction. So their ids are
consecutive, and become visible in order: a reader that continues after an id misses none.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from sqlalchemy import ColumnElement, Select, insert, or_, select, update
from sqlalchemy.engine import Connection, Row

from app.store.tables import KEPT_MS, audit, changes, missing_row, readable_rows, tokens, versions
from blocklist.model.changes import Source
from blocklist.wire.audit import AuditKind, AuditRecord, Way
from blocklist.wire.body import dump_json

GRACE_MS: Final = 30_000
"""How long the replica that made a forced change has to record it with the client's address, before any other may."""
MAX_FORCED: Final = 1000
"""Maximum number of forced changes that are recorded in one transaction."""
REPEATED_MS: Final = 30 * 86_400_000
"""Settings are written in full again after this time, although they are the same."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Origin:
    """Who does something, by which way, from which address and with which request; None if unknown."""

    way: Way
    principal: str | None = None
    address: str | None = None
    request_id: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class AuditEvent:
    """What is to be recorded. `at` is in Unix ms; `details` are JSON, without any secret."""

    at: int
    kind: AuditKind
    origin: Origin
    details: Mapping[str, object]
    revision: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class AuditFilter:
    """Selects records by kind and principal, at `begin` <= time < `end` (Unix ms)."""

    kinds: tuple[AuditKind, ...] = ()
    principal: str | None = None
    begin: int | None = None
    end: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class AuditPageRows:
    """Records in order, and the id after which the next page begins; None if there is none."""

    records: Sequence[AuditRecord]
    next: int | None


def add(connection: Connection, events: Sequence[AuditEvent]) -> None:
    if not events:
        return
    version = versions.c.version
    advance = update(versions).where(versions.c.topic == "audit").values(version=version + len(events))
    last = connection.execute(advance.returning(version)).scalar()
    if last is None:
        raise missing_row(versions)
    first = last - len(events) + 1
    connection.execute(insert(audit), [_row(number, event) for number, event in enumerate(events, first)])


def _row(number: int, event: AuditEvent) -> dict[str, object]:
    origin = event.origin
    return {
        "id": number,
        "at_ms": event.at,
        "kind": event.kind.value,
        "principal": origin.principal,
        "way": origin.way.value,
        "address": origin.address,
        "request_id": origin.request_id,
        "revision": event.revision,
        "details": dump_json(event.details).decode(),
    }


def add_all(connection: Connection, events: Sequence[AuditEvent], forced: Mapping[int, Origin], now: int) -> None:
    """Record these events, and the forced changes that nobody has recorded; `forced` are the origins of some."""
    # First the lock: another replica may be recording the same changes.
    connection.execute(update(versions).where(versions.c.topic == "audit").values(version=versions.c.version))
    named = _with_tokens(connection, events, now)
    shortened = [_with_known_settings(connection, event, now) for event in named]
    add(connection, [*shortened, *_forced_events(connection, forced, now)])


def unrecorded(now: int, known: Sequence[int] = ()) -> Select[Any]:
    """The forced changes that have no record, if they are of these revisions, or older than GRACE_MS."""
    recorded = select(audit.c.id).where(audit.c.revision == changes.c.revision)
    due = or_(changes.c.at_ms < now - GRACE_MS, changes.c.revision.in_(known))
    # Records of older ones have been removed.
    conditions = changes.c.forced.is_not(None), changes.c.at_ms >= now - KEPT_MS, due, ~recorded.exists()
    return select(changes).where(*conditions).order_by(changes.c.revision).limit(MAX_FORCED)


def _forced_events(connection: Connection, forced: Mapping[int, Origin], now: int) -> Iterator[AuditEvent]:
    for row in connection.execute(unrecorded(now, list(forced))):
        way = Way.PAGE if row.source == Source.PAGE else Way.API
        yield AuditEvent(
            at=row.at_ms,
            kind=AuditKind.FORCED,
            # Those that the service did not come to record before it ended are known by their authors alone.
            origin=forced.get(row.revision, Origin(way=way, principal=row.created_by)),
            revision=row.revision,
            details={
                "reason": row.forced,
                "revision": row.revision,
                "change": row.type,
                "node": row.node_id,
                "action": row.action,
                "endTimestamp": str(row.end_ms),
            },
        )


def _with_tokens(connection: Connection, events: Sequence[AuditEvent], now: int) -> list[AuditEvent]:
    """The events; a failed log-in with the id of a token has what is known of this token."""
    failed = [event for event in events if event.kind is AuditKind.LOGIN_FAILED and "token" in event.details]
    ids = {str(event.details["token"]) for event in failed}
    query = select(tokens.c.id, tokens.c.name, tokens.c.revoked_ms, tokens.c.end_ms).where(tokens.c.id.in_(ids))
    known = {row.id: _token_details(row, now) for row in connection.execute(query)} if ids else {}
    unknown = {"tokenState": "unknown"}
    return [
        replace(event, details={**event.details, **known.get(str(event.details["token"]), unknown)})
        if event in failed
        else event
        for event in events
    ]


def _token_details(row: Any, now: int) -> dict[str, str]:
    state = "revoked" if row.revoked_ms is not None else "expired" if row.end_ms <= now else "valid, wrong secret"
    return {"tokenName": row.name, "tokenState": state}


def _with_known_settings(connection: Connection, event: AuditEvent, now: int) -> AuditEvent:
    """Settings that are the same as in an earlier record refer to it: a service that starts often fills no disk."""
    if event.kind is not AuditKind.SETTINGS:
        return event
    full = audit.c.kind == AuditKind.SETTINGS.value, audit.c.details.contains('"settings":')
    query = select(audit).where(*full).order_by(audit.c.id.desc()).limit(1)
    earlier = next(readable_rows(audit, connection.execute(query), _record), None)
    if earlier is None or earlier.at < now - REPEATED_MS:
        return event
    details = dict(event.details)
    if earlier.details.get("settings") != details.pop("settings"):
        return event
    return replace(event, details={**details, "settingsAsIn": earlier.id})


def read_page(
    connection: Connection, criteria: AuditFilter, *, after: int | None, newest: bool, limit: int
) -> AuditPageRows:
    """At most `limit` records that match, in order of their ids, after this one; with `newest` in reverse.

    A record that cannot be read is left out: the missing id shows it, and the log of the service has it.
    """
    query = select(audit).where(*_conditions(criteria))
    if after is not None:
        query = query.where(audit.c.id < after if newest else audit.c.id > after)
    ordered = query.order_by(audit.c.id.desc() if newest else audit.c.id)
    rows = connection.execute(ordered.limit(limit + 1)).all()
    following = rows[limit - 1].id if len(rows) > limit else None
    return AuditPageRows(records=list(readable_rows(audit, rows[:limit], _record)), next=following)


def _conditions(criteria: AuditFilter) -> list[ColumnElement[bool]]:
    conditions: list[ColumnElement[bool]] = []
    if criteria.kinds:
        conditions.append(audit.c.kind.in_([kind.value for kind in criteria.kinds]))
    if criteria.principal is not None:
        conditions.append(audit.c.principal == criteria.principal)
    if criteria.begin is not None:
        conditions.append(audit.c.at_ms >= criteria.begin)
    if criteria.end is not None:
        conditions.append(audit.c.at_ms < criteria.end)
    return conditions


def _record(row: Row[Any]) -> AuditRecord:
    details = json.loads(row.details)
    if not isinstance(details, dict):
        raise TypeError("the details are no object")
    return AuditRecord(
        id=row.id,
        at=row.at_ms,
        kind=row.kind,
        principal=row.principal,
        way=row.way,
        address=row.address,
        request_id=row.request_id,
        details=details,
    )
