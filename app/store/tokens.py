"""TokenStore: tokens and sessions in the database. Secrets are stored only as SHA-256."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeVar

from sqlalchemy import bindparam, delete, insert, or_, select, update
from sqlalchemy.engine import Connection, Row

from app.store import audit
from app.store.audit import AuditEvent, Origin
from app.store.queries import Topic
from app.store.tables import read_rows, readable_rows, sessions, tokens
from blocklist.model.claims import Role, Token, check_id_pattern, check_owner_pattern
from blocklist.model.node import PERMANENT
from blocklist.wire.audit import AuditKind

if TYPE_CHECKING:
    from app.store.store import Store

T = TypeVar("T")
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


class TokenStore:
    """Every method raises UnavailableError if the database cannot be used."""

    def __init__(self, store: Store) -> None:
        self._store = store

    @property
    def shared(self) -> bool:
        """Whether other replicas create and revoke tokens, too."""
        return self._store.replicated

    async def _write(self, query: Callable[[Connection], T]) -> T:
        """Run a query in a transaction that other replicas are notified of."""
        return await self._store.write(query, Topic.TOKENS)

    async def tokens(self) -> list[StoredToken]:
        """All tokens, also revoked and expired ones, the oldest first."""
        return await self._store.read(load)

    async def add(self, stored: StoredToken, origin: Origin) -> None:
        """Store a token, and record who created it."""
        await self._write(lambda connection: _add(connection, stored, origin))

    async def revoke(self, token: Token, now: int, origin: Origin) -> None:
        """Revoke a token, remove its sessions, and record who revoked it.

        A token that is revoked already keeps its time of revocation.
        """
        await self._write(lambda connection: _revoke(connection, token, now, origin))

    async def save_used(self, used: Mapping[str, int]) -> None:
        """Store the time of the last use by token id (Unix ms)."""
        await self._write(lambda connection: _save_used(connection, used))

    async def get_session(self, digest: str) -> StoredSession | None:
        """The session of a cookie; None if there is none."""
        return await self._store.read(lambda connection: _get_session(connection, digest))

    async def existing_sessions(self, digests: Collection[str]) -> set[str]:
        """Those of these sessions that still exist."""
        query = select(sessions.c.digest).where(sessions.c.digest.in_(digests))
        return await self._store.read(lambda connection: set(connection.execute(query).scalars()))

    async def add_session(self, session: StoredSession, limit: int) -> set[str]:
        """Store a session, and remove the oldest ones of its principal beyond `limit`; the digests of those.

        Also removes the sessions that have ended.
        """
        return await self._write(lambda connection: _add_session(connection, session, limit))

    async def claim_confirmation(self, digest: str, before: int, now: int) -> StoredSession | None:
        """The session if nobody has asked its issuer since `before`; from then on somebody has, at `now` (Unix ms)."""
        return await self._write(lambda connection: _claim_confirmation(connection, digest, before, now))

    async def confirm_session(self, session: StoredSession) -> None:
        """Store what the issuer has said of a session."""
        await self._write(lambda connection: _confirm_session(connection, session))

    async def remove_session(self, digest: str) -> None:
        await self._write(lambda connection: connection.execute(delete(sessions).where(sessions.c.digest == digest)))


def load(connection: Connection) -> list[StoredToken]:
    """All tokens that can be read: those of other rows are not valid."""
    return list(readable_rows(tokens, connection.execute(_ALL_TOKENS), _stored_token))


def check(connection: Connection) -> None:
    """Raises UnreadableRowError if there is a token that cannot be read."""
    read_rows(tokens, connection.execute(_ALL_TOKENS), _stored_token)


def valid_token_exists(connection: Connection, now: int) -> bool:
    """Whether there is a token that is valid now."""
    query = select(tokens.c.id).where(tokens.c.revoked_ms.is_(None), tokens.c.end_ms > now).limit(1)
    return connection.execute(query).first() is not None


def _add(connection: Connection, stored: StoredToken, origin: Origin) -> None:
    connection.execute(insert(tokens).values(_row(stored)))
    _record(connection, AuditKind.TOKEN_CREATED, stored.token, stored.token.created_at, origin)


def _revoke(connection: Connection, token: Token, now: int, origin: Origin) -> None:
    unrevoked = tokens.c.id == token.id, tokens.c.revoked_ms.is_(None)
    if connection.execute(update(tokens).where(*unrevoked).values(revoked_ms=now)).rowcount:
        _record(connection, AuditKind.TOKEN_REVOKED, token, now, origin)
    connection.execute(delete(sessions).where(sessions.c.credential == token.id))


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


def _save_used(connection: Connection, used: Mapping[str, int]) -> None:
    # Never set it back: other replicas write, too.
    later = or_(tokens.c.used_ms.is_(None), tokens.c.used_ms < bindparam("at"))
    statement = update(tokens).where(tokens.c.id == bindparam("token_id"), later).values(used_ms=bindparam("at"))
    connection.execute(statement, [{"token_id": token_id, "at": at} for token_id, at in used.items()])


def _add_session(connection: Connection, session: StoredSession, limit: int) -> set[str]:
    connection.execute(delete(sessions).where(sessions.c.end_ms <= session.created_at))
    removed = set() if session.principal is None else _remove_oldest(connection, session.principal, limit - 1)
    row = {
        "digest": session.digest,
        "csrf": session.csrf,
        "address": session.address,
        "name": session.name,
        "role": session.role.value,
        "owners": _dumped(session.owners),
        "credential": session.credential,
        "end_ms": session.end,
        "principal": session.principal,
        "created_ms": session.created_at,
        "sign_in": session.sign_in,
        "confirmed_ms": session.confirmed_at,
    }
    connection.execute(insert(sessions).values(row))
    return removed


def _claim_confirmation(connection: Connection, digest: str, before: int, now: int) -> StoredSession | None:
    due = sessions.c.digest == digest, sessions.c.sign_in.is_not(None), sessions.c.confirmed_ms <= before
    if not connection.execute(update(sessions).where(*due).values(confirmed_ms=now)).rowcount:
        return None
    return _get_session(connection, digest)


def _confirm_session(connection: Connection, session: StoredSession) -> None:
    values = {
        "name": session.name,
        "role": session.role.value,
        "owners": _dumped(session.owners),
        "sign_in": session.sign_in,
    }
    connection.execute(update(sessions).where(sessions.c.digest == session.digest).values(values))


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
