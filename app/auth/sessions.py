"""Sessions of the page: a login exchanges a token for a cookie."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from app.auth.authenticator import REFRESH_SECONDS, Authenticator, digest_of
from app.auth.credential import Credential, CredentialCache, Principal
from app.store.tokens import StoredSession, TokenStore
from blocklist.model.errors import UnavailableError

COOKIE: Final = "blocklist_session"
LIFETIME_MS: Final = 12 * 3600 * 1000
MAX_PER_PRINCIPAL: Final = 20
"""Maximum number of sessions of one user; a further login ends the oldest."""


class Session(Credential):
    """A logged-in user of the page, at the address from which they logged in; at any if that is not known.

    A browser sends the cookie to every port of the host. So the cookie alone must not be enough: each form carries
    `csrf`, a secret of its own that only the pages contain, and the cookie is worth nothing at another address.
    """

    __slots__ = ("address", "csrf")

    def __init__(self, stored: StoredSession) -> None:
        principal = Principal(stored.name, stored.role, owners=stored.owners)
        super().__init__(principal, expires_at=stored.end, id=stored.credential)
        self.csrf = stored.csrf
        self.address = stored.address

    def close(self) -> None:
        """Its token has ended: what still waits with it is refused."""
        self.expires_at = 0
        super().close()


class Sessions:
    """Creates, finds and ends sessions. Belongs to the event loop.

    A session lasts LIFETIME_MS, no longer than its token or JWT. It ends at once when its token is revoked, or the key
    of its JWT withdrawn. A user has at most MAX_PER_PRINCIPAL: the oldest ends, here at once and at other replicas with
    their next refresh. Only the SHA-256 of its cookie is stored. The latest are cached; the others are read from the
    database.
    """

    def __init__(self, auth: Authenticator, store: TokenStore, clock: Callable[[], int]) -> None:
        self._auth = auth
        self._store = store
        self._clock = clock
        self._cached = CredentialCache[str, Session]()

    async def create(self, text: str, address: str) -> tuple[str, Session]:
        """Create a session with a token or JWT for a client at this address; returns the value of the cookie too.

        Raises UnauthorizedError, ForbiddenError for a JWT without a role, UnavailableError.
        """
        issued_by = await self._auth.authenticate_token(text.strip().encode(errors="replace"))
        now = self._clock()
        cookie = secrets.token_urlsafe(32)
        stored = StoredSession(
            digest=_digest(cookie),
            csrf=secrets.token_hex(32),
            address=address,
            name=issued_by.principal.name,
            role=issued_by.principal.role,
            owners=issued_by.principal.owners,
            credential=issued_by.id,
            end=min(now + LIFETIME_MS, issued_by.expires_at),
            principal=issued_by.principal.id,
            created_at=now,
        )
        for digest in await self._store.add_session(stored, MAX_PER_PRINCIPAL):
            self._drop(digest)
        return cookie, self._cache(stored)

    async def find(self, cookie: str, address: str) -> Session | None:
        """The session of a cookie that a client at this address sends; None if there is none, or it has ended.

        Raises UnavailableError.
        """
        digest = _digest(cookie)
        session = self._cached.get(digest)
        if session is None:
            stored = await self._store.get_session(digest)
            # What its token may do is not known without the token: another replica may have created it just now.
            if stored is None or not await self._auth.find_live(stored.credential):
                return None
            session = self._cache(stored)
        return session if session.address in ("", address) and self._is_valid(session) else None

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
        for digest, session in list(self._cached.items()):
            if not self._is_valid(session):
                self._drop(digest)
        if self._cached:
            for digest in self._cached.keys() - await self._store.existing_sessions(self._cached.keys()):
                self._drop(digest)

    def _drop(self, digest: str) -> None:
        """A session has ended: forget it, and close its streams."""
        if (credential := self._cached.pop(digest, None)) is not None:
            credential.invalidate()

    def _cache(self, stored: StoredSession) -> Session:
        token, session = self._auth.credential_by_id(stored.credential), Session(stored)
        self._cached.add(stored.digest, session)
        if token is not None:
            token.streams.add(session)
        return session

    def _is_valid(self, session: Session) -> bool:
        return session.is_valid(self._clock()) and self._auth.is_live(session.id)


def _digest(cookie: str) -> str:
    return digest_of(cookie.encode()).hex()
