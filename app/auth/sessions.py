"""Sessions of the page: a login exchanges a token for a cookie."""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from app.auth.authenticator import REFRESH_SECONDS, Authenticator, digest_of
from app.auth.credential import Credential, CredentialCache, Principal
from app.store.tokens import StoredSession, TokenStore
from blocklist.model.errors import UnavailableError

COOKIE: Final = "blocklist_session"
LIFETIME_MS: Final = 12 * 3600 * 1000
MAX_PER_PRINCIPAL: Final = 20
"""Maximum number of sessions of one user; a further login ends the oldest."""


@dataclass(frozen=True, slots=True)
class Session:
    """A logged-in user of the page. `csrf` is a secret that each form carries, so that other sites cannot forge one."""

    principal: Principal
    csrf: str
    credential: Credential


class Sessions:
    """Creates, finds and ends sessions. Belongs to the event loop.

    A session lasts LIFETIME_MS, no longer than its token or JWT, and ends at once when its token is revoked. A user has
    at most MAX_PER_PRINCIPAL: the oldest ends, here at once and at other replicas with their next refresh. Only the
    SHA-256 of its cookie is stored. The latest are cached; the others are read from the database.
    """

    def __init__(self, auth: Authenticator, store: TokenStore, clock: Callable[[], int]) -> None:
        self._auth = auth
        self._store = store
        self._clock = clock
        self._cached = CredentialCache[str]()

    async def create(self, text: str) -> tuple[str, Session]:
        """Create a session with this token or JWT; returns the value of the cookie, and the session.

        Raises UnauthorizedError, ForbiddenError for a JWT without a role, UnavailableError.
        """
        issued_by = await self._auth.authenticate_token(text.strip().encode(errors="replace"))
        now = self._clock()
        cookie = secrets.token_urlsafe(32)
        stored = StoredSession(
            digest=_digest(cookie),
            name=issued_by.principal.name,
            role=issued_by.principal.role,
            credential=issued_by.id or None,
            end=min(now + LIFETIME_MS, issued_by.expires_at),
            principal=issued_by.principal.id,
            created_at=now,
        )
        for digest in await self._store.add_session(stored, MAX_PER_PRINCIPAL):
            self._drop(digest)
        return cookie, _session(cookie, self._cache(stored))

    async def find(self, cookie: str) -> Session | None:
        """The session of a cookie; None if there is none or it has ended. Raises UnavailableError."""
        digest = _digest(cookie)
        credential = self._cached.get(digest)
        if credential is None:
            stored = await self._store.get_session(digest)
            if stored is None:
                return None
            credential = self._cache(stored)
        return _session(cookie, credential) if self._is_valid(credential) else None

    async def end(self, cookie: str) -> None:
        """End the session of a cookie. Raises UnavailableError."""
        digest = _digest(cookie)
        await self._store.remove_session(digest)
        self._drop(digest)

    async def run(self) -> None:
        """For ever, drop sessions that have ended, here or on another replica."""
        while True:
            await self._auth.tokens_changed.wait(REFRESH_SECONDS)
            with suppress(UnavailableError):  # After an outage everything is read again.
                await self.refresh()

    async def refresh(self) -> None:
        """Drop the sessions that have ended. Raises UnavailableError."""
        cached = dict(self._cached)
        existing = await self._store.existing_sessions(cached.keys()) if cached else set()
        for digest, credential in cached.items():
            if digest not in existing or not self._is_valid(credential):
                self._drop(digest)

    def _drop(self, digest: str) -> None:
        """A session has ended: forget it, and close its streams."""
        if (credential := self._cached.pop(digest, None)) is not None:
            credential.invalidate()

    def _cache(self, stored: StoredSession) -> Credential:
        token = self._auth.credential_by_id(stored.credential or "")
        owners = None if token is None else token.principal.owners
        principal = Principal(stored.name, stored.role, owners=owners)
        credential = Credential(principal, expires_at=stored.end, id=stored.credential or "")
        self._cached.add(stored.digest, credential)
        if token is not None:
            token.streams.add(credential)
        return credential

    def _is_valid(self, credential: Credential) -> bool:
        if not credential.is_valid(self._clock()):
            return False
        return not credential.id or self._auth.credential_by_id(credential.id) is not None


def _digest(cookie: str) -> str:
    return digest_of(cookie.encode()).hex()


def _session(cookie: str, credential: Credential) -> Session:
    csrf = hmac.digest(cookie.encode(), b"blocklist csrf", "sha256").hex()
    return Session(credential.principal, csrf, credential)
