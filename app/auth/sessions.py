"""Sessions of the page: a cookie in the place of a token, once that was pasted."""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from app.auth.authenticator import LOOK_SECONDS, Authenticator
from app.auth.credential import Credential
from app.auth.principal import Principal
from app.auth.tokens import digest_of
from app.store.tokens import StoredSession, TokenStore
from blocklist.model.errors import UnavailableError

COOKIE: Final = "blocklist_session"
LASTS: Final = 12 * 3600 * 1000
"""Milliseconds after which one has to log in again."""
MAX_KNOWN: Final = 1000
"""Sessions kept in memory; the others are found in the database."""


@dataclass(frozen=True, slots=True)
class Session:
    """Somebody at the page; `csrf` is what a form of theirs carries, so that no other site's form is taken for one."""

    principal: Principal
    csrf: str
    credential: Credential


class Sessions:
    """Begins, finds and ends sessions. Belongs to the event loop.

    A session lasts LASTS, no longer than what it began with, and ends at once when that is revoked. Only the SHA-256
    of its cookie is kept.
    """

    def __init__(self, auth: Authenticator, store: TokenStore, clock: Callable[[], int]) -> None:
        self._auth = auth
        self._store = store
        self._clock = clock
        self._known: dict[str, Credential] = {}

    async def begin(self, text: str) -> tuple[str, Session]:
        """A session for who has this token or JWT: the cookie's value, and the session.

        Raises UnauthorizedError, ForbiddenError for a JWT without a role, UnavailableError.
        """
        root = await self._auth.verify_text(text.strip().encode(errors="replace"))
        now = self._clock()
        cookie = secrets.token_urlsafe(32)
        stored = StoredSession(
            digest=_digest(cookie),
            name=root.principal.name,
            access=root.principal.access,
            credential=root.id or None,
            end=min(now + LASTS, root.until),
        )
        await self._store.begin(stored, now)
        return cookie, _session(cookie, self._keep(stored))

    async def find(self, cookie: str) -> Session | None:
        """The session of a cookie, None if there is none (any more). Raises UnavailableError."""
        digest = _digest(cookie)
        credential = self._known.get(digest)
        if credential is None:
            stored = await self._store.session(digest)
            if stored is None:
                return None
            credential = self._keep(stored)
        return _session(cookie, credential) if self._good(credential) else None

    async def end(self, cookie: str) -> None:
        """The session is over. Raises UnavailableError."""
        digest = _digest(cookie)
        await self._store.end(digest)
        if (credential := self._known.pop(digest, None)) is not None:
            credential.end()

    async def run(self) -> None:
        """Drop what has ended, here or at another replica, for ever."""
        while True:
            await self._auth.turn.wait(LOOK_SECONDS)
            try:
                await self._look()
            except UnavailableError:
                continue

    async def _look(self) -> None:
        looked = dict(self._known)
        present = await self._store.present(looked.keys()) if looked else set()
        for digest, credential in looked.items():
            if digest not in present or not self._good(credential):
                self._known.pop(digest, None)
                credential.end()

    def _keep(self, stored: StoredSession) -> Credential:
        if len(self._known) >= MAX_KNOWN:
            # What is no longer looked after holds no stream open.
            self._known.pop(next(iter(self._known))).cut()
        principal = Principal(stored.name, stored.access)
        credential = Credential(principal, until=stored.end, id=stored.credential or "")
        self._known[stored.digest] = credential
        if (root := self._auth.credential(credential.id)) is not None:
            root.streams.add(credential)
        return credential

    def _good(self, credential: Credential) -> bool:
        if not credential.good(self._clock()):
            return False
        return not credential.id or self._auth.credential(credential.id) is not None


def _digest(cookie: str) -> str:
    return digest_of(cookie.encode()).hex()


def _session(cookie: str, credential: Credential) -> Session:
    csrf = hmac.digest(cookie.encode(), b"blocklist csrf", "sha256").hex()
    return Session(credential.principal, csrf, credential)
