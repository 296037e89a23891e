"""Sessions of the page: a cookie in the place of a token, once that was pasted."""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from app.auth.authenticator import REFRESH_SECONDS, Authenticator
from app.auth.credential import Credential
from app.auth.principal import Principal
from app.auth.tokens import digest_of
from app.store.tokens import StoredSession, TokenStore
from blocklist.model.errors import UnavailableError

COOKIE: Final = "blocklist_session"
LIFETIME_MS: Final = 12 * 3600 * 1000
"""Milliseconds after which one has to log in again."""
MAX_CACHED: Final = 1000
"""Sessions kept in memory; the others are found in the database."""


@dataclass(frozen=True, slots=True)
class Session:
    """Somebody at the page; `csrf` is what a form of theirs carries, so that no other site's form is taken for one."""

    principal: Principal
    csrf: str
    credential: Credential


class Sessions:
    """Begins, finds and ends sessions. Belongs to the event loop.

    A session lasts LIFETIME_MS, no longer than what it began with, and ends at once when that is revoked. Only the
    SHA-256 of its cookie is kept.
    """

    def __init__(self, auth: Authenticator, store: TokenStore, clock: Callable[[], int]) -> None:
        self._auth = auth
        self._store = store
        self._clock = clock
        self._cached: dict[str, Credential] = {}

    async def create(self, text: str) -> tuple[str, Session]:
        """A session for who has this token or JWT: the cookie's value, and the session.

        Raises UnauthorizedError, ForbiddenError for a JWT without a role, UnavailableError.
        """
        root = await self._auth.authenticate_token(text.strip().encode(errors="replace"))
        now = self._clock()
        cookie = secrets.token_urlsafe(32)
        stored = StoredSession(
            digest=_digest(cookie),
            name=root.principal.name,
            access=root.principal.role,
            credential=root.id or None,
            end=min(now + LIFETIME_MS, root.expires_at),
        )
        await self._store.add_session(stored, now)
        return cookie, _session(cookie, self._cache(stored))

    async def find(self, cookie: str) -> Session | None:
        """The session of a cookie, None if there is none (any more). Raises UnavailableError."""
        digest = _digest(cookie)
        credential = self._cached.get(digest)
        if credential is None:
            stored = await self._store.get_session(digest)
            if stored is None:
                return None
            credential = self._cache(stored)
        return _session(cookie, credential) if self._is_valid(credential) else None

    async def end(self, cookie: str) -> None:
        """The session is over. Raises UnavailableError."""
        digest = _digest(cookie)
        await self._store.remove_session(digest)
        if (credential := self._cached.pop(digest, None)) is not None:
            credential.invalidate()

    async def run(self) -> None:
        """Drop what has ended, here or at another replica, for ever."""
        while True:
            await self._auth.tokens_changed.wait(REFRESH_SECONDS)
            try:
                await self._drop_invalid()
            except UnavailableError:
                continue

    async def _drop_invalid(self) -> None:
        looked = dict(self._cached)
        present = await self._store.existing_sessions(looked.keys()) if looked else set()
        for digest, credential in looked.items():
            if digest not in present or not self._is_valid(credential):
                self._cached.pop(digest, None)
                credential.invalidate()

    def _cache(self, stored: StoredSession) -> Credential:
        if len(self._cached) >= MAX_CACHED:
            # What is no longer looked after holds no stream open.
            self._cached.pop(next(iter(self._cached))).close()
        principal = Principal(stored.name, stored.access)
        credential = Credential(principal, expires_at=stored.end, id=stored.credential or "")
        self._cached[stored.digest] = credential
        if (root := self._auth.credential_by_id(credential.id)) is not None:
            root.streams.add(credential)
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
