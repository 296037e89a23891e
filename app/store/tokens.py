"""TokenStore: tokens and sessions in the database. Secrets are stored only as SHA-256."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import bindparam, delete, insert, or_, select, update
from sqlalchemy.engine import Connection, Row

from app.store import audit
from app.store.audit import AuditEvent, Origin
from app.store.queries import StorePart, Topic, reading, writing
from app.store.tables import read_rows, readable_rows, sessions, tokens
from blocklist.model.claims import Role, Token, check_id_pattern, check_owner_pattern
from blocklist.model.node import PERMANENT
from blocklist.wire.audit import AuditKind

_ALL_TOKENS: Final = select(tokens).order_by(tokens.c.created_ms, tokens.c.id)


@dataclass(frozen=True, kw_only=True, slots=True)
class StoredToken:
    """A token, and the SHA-256 of its secret in hex."""

    token: Token
    digest: str


@dataclass(frozen=True, kw_only=True, slots=True)
class StoredSession:
    """A session of the page. `digest` is the SHA-256 of its cookie in hex; times are in Unix ms.

    `csrf` is the secret of its forms, `address` that of the client. The session ends with `credential`, the id of its
    token, or of the key of its JWT. `owners` restrict it as they do its token. `principal` is whose session it is; None
    if unknown.
    """

    digest: str
    csrf: str
    address: str
    name: str | None
    role: Role
    owners: tuple[str, ...] | None
    credential: str
    end: int
    principal: str | None
    created_at: int
    sign_in: str | None = None
    """What renews the session at its issuer, encrypted; None for one that a token began."""
    confirmed_at: int = 0
    """When a replica last asked the issuer."""


class TokenStore(StorePart):
    """Every method raises UnavailableError if the database cannot be used."""

    @property
    def shared(self) -> bool:
        """Whether other replicas create and revoke tokens, too."""
        return self.store.replicated

    @reading
    def tokens(self, connection: Connection) -> list[StoredToken]:
        """All tokens that can be read, also revoked and expired ones, the oldest first; others are not valid."""
        return list(readable_rows(tokens, connection.execute(_ALL_TOKENS), _stored_token))

    @writing(Topic.TOKENS)
    def add(self, connection: Connection, stored: StoredToken, origin: Origin) -> None:
        """Store a token, and record who created it."""
        connection.execute(insert(tokens).values(_row(stored)))
        _record(connection, AuditKind.TOKEN_CREATED, stored.token, stored.token.created_at, origin)

    @writing(Topic.TOKENS)
    def revoke(self, connection: Connection, token: Token, now: int, origin: Origin) -> None:
        """Revoke a token, remove its sessions, and record who revoked it.

        A token that is revoked already keeps its time of revocation.
        """
        unrevoked = tokens.c.id == token.id, tokens.c.revoked_ms.is_(None)
        if connection.execute(update(tokens).where(*unrevoked).values(revoked_ms=now)).rowcount:
            _record(connection, AuditKind.TOKEN_REVOKED, token, now, origin)
        connection.execute(delete(sessions).where(sessions.c.credential == token.id))

    @writing(Topic.TOKENS)
    def save_used(self, connection: Connection, used: Mapping[str, int]) -> None:
        """Store the time of the last use by token id (Unix ms)."""
        # Never set it back: other replicas write, too.
        later = or_(tokens.c.used_ms.is_(None), tokens.c.used_ms < bindparam("at"))
        statement = update(tokens).where(tokens.c.id == bindparam("token_id"), later).values(used_ms=bindparam("at"))
        connection.execute(statement, [{"token_id": token_id, "at": at} for token_id, at in used.items()])

    @reading
    def get_session(self, connection: Connection, digest: str) -> StoredSession | None:
        return _get_session(connection, digest)

    @reading
    def existing_sessions(self, connection: Connection, digests: Collection[str]) -> set[str]:
        """Those of these sessions that still exist."""
        query = select(sessions.c.digest).where(sessions.c.digest.in_(digests))
        return set(connection.execute(query).scalars())

    @writing(Topic.TOKENS)
    def add_session(self, connection: Connection, session: StoredSession, limit: int) -> set[str]:
        """Store a session, and remove the oldest ones of its principal beyond `limit`; the digests of those.

        Also removes the sessions that have ended.
        """
        connection.execute(delete(sessions).where(sessions.c.end_ms <= session.created_at))
        removed = set() if session.principal is None else _remove_oldest(connection, session.principal, limit - 1)
        row = {
            "digest": session.digest,
            "csrf": session.csrf,
            "address": session.address,
            "credential": session.credential,
            "end_ms": session.end,
            "principal": session.principal,
            "created_ms": session.created_at,
            "confirmed_ms": session.confirmed_at,
            **_confirmed(session),
        }
        connection.execute(insert(sessions).values(row))
        return removed

    @writing(Topic.TOKENS)
    def claim_confirmation(self, connection: Connection, digest: str, before: int, now: int) -> StoredSession | None:
        """The session if nobody has asked its issuer since `before`; from then on somebody has, at `now` (Unix ms)."""
        due = sessions.c.digest == digest, sessions.c.sign_in.is_not(None), sessions.c.confirmed_ms <= before
        if not connection.execute(update(sessions).where(*due).values(confirmed_ms=now)).rowcount:
            return None
        return _get_session(connection, digest)

    @writing(Topic.TOKENS)
    def confirm_session(self, connection: Connection, session: StoredSession) -> None:
        """Store what the issuer has said of a session."""
        connection.execute(update(sessions).where(sessions.c.digest == session.digest).values(_confirmed(session)))

    @writing(Topic.TOKENS)
    def remove_session(self, connection: Connection, digest: str) -> None:
        connection.execute(delete(sessions).where(sessions.c.digest == digest))


def _confirmed(session: StoredSession) -> dict[str, object]:
    """The columns that the issuer of a session decides about."""
    return {
        "name": session.name,
        "role": session.role.value,
        "owners": _dumped(session.owners),
        "sign_in": session.sign_in,
    }


def check(connection: Connection) -> None:
    """Raises UnreadableRowError if there is a token that cannot be read."""
    read_rows(tokens, connection.execute(_ALL_TOKENS), _stored_token)


def valid_token_exists(connection: Connection, now: int) -> bool:
    query = select(tokens.c.id).where(tokens.c.revoked_ms.is_(None), tokens.c.end_ms > now).limit(1)
    return connection.execute(query).first() is not None


def _record(connection: Connection, kind: AuditKind, token: Token, now: int, origin: Origin) -> None:
    details = {
        "token": token.id,
        "name": token.name,
        "role": token.role.value,
        "endTimestamp": None if token.end == PERMANENT else str(token.end),
        **({} if token.owners is None else {"owners": list(token.owners)}),
        **({} if token.listeners is None else {"listeners": list(token.listeners)}),
    }
    audit.add(connection, [AuditEvent(at=now, kind=kind, origin=origin, details=details)])


def _remove_oldest(connection: Connection, principal: str, keep: int) -> set[str]:
    """Remove all but the `keep` latest sessions of a principal; the digests of the removed ones."""
    own = sessions.c.principal == principal
    latest = select(sessions.c.digest).where(own).order_by(sessions.c.created_ms.desc(), sessions.c.digest).limit(keep)
    kept = connection.execute(latest).scalars().all()
    removed = delete(sessions).where(own, sessions.c.digest.not_in(kept)).returning(sessions.c.digest)
    return set(connection.execute(removed).scalars())


def _get_session(connection: Connection, digest: str) -> StoredSession | None:
    """A session that cannot be read has ended: the user logs in again."""
    rows = connection.execute(select(sessions).where(sessions.c.digest == digest))
    return next(readable_rows(sessions, rows, _session), None)


def _session(row: Row[Any]) -> StoredSession:
    return StoredSession(
        digest=row.digest,
        csrf=row.csrf,
        address=row.address,
        name=row.name,
        role=Role(row.role),
        owners=_patterns(row.owners, check_owner_pattern),
        credential=row.credential,
        end=row.end_ms,
        principal=row.principal,
        created_at=row.created_ms,
        sign_in=row.sign_in,
        confirmed_at=row.confirmed_ms,
    )


def _row(stored: StoredToken) -> dict[str, object]:
    token = stored.token
    return {
        "id": token.id,
        "name": token.name,
        "role": token.role.value,
        "digest": stored.digest,
        "created_ms": token.created_at,
        "created_by": token.created_by,
        "end_ms": token.end,
        "revoked_ms": token.revoked_at,
        "used_ms": token.last_used_at,
        "owners": _dumped(token.owners),
        "listeners": _dumped(token.listeners),
    }


def _stored_token(row: Row[Any]) -> StoredToken:
    return StoredToken(token=_token(row), digest=row.digest)


def _token(row: Row[Any]) -> Token:
    return Token(
        id=row.id,
        name=row.name,
        role=Role(row.role),
        created_at=row.created_ms,
        created_by=row.created_by,
        end=row.end_ms,
        revoked_at=row.revoked_ms,
        last_used_at=row.used_ms,
        owners=_patterns(row.owners, check_owner_pattern),
        listeners=_patterns(row.listeners, check_id_pattern),
    )


def _dumped(patterns: tuple[str, ...] | None) -> str | None:
    return None if patterns is None else json.dumps(patterns)


def _patterns(text: str | None, check: Callable[[str], str]) -> tuple[str, ...] | None:
    if text is None:
        return None
    patterns = json.loads(text)
    if not isinstance(patterns, list) or not patterns:
        raise ValueError("what a token is restricted to is not an array")
    return tuple(map(check, patterns))
