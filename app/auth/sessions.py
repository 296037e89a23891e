"""Sessions of the page: a log-in, with a token or at an issuer, is exchanged for a cookie."""

from __future__ import annotations

import secrets
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Final, NamedTuple

import structlog

from app.auth.authenticator import REFRESH_SECONDS, Authenticator, digest_of
from app.auth.credential import Credential, CredentialCache, Principal
from app.store.tokens import StoredSession, TokenStore
from blocklist.model.errors import ForbiddenError, UnauthorizedError, UnavailableError
from blocklist.model.node import PERMANENT

if TYPE_CHECKING:
    from app.auth.signin import SignedIn, SignIn

log = structlog.get_logger(__name__)

COOKIE: Final = "blocklist_session"
LIFETIME_MS: Final = 12 * 3600 * 1000
UNCONFIRMED_LIFETIME_MS: Final = 3600 * 1000
"""Of a log-in whose issuer gives no refresh token: afterwards the person goes through the issuer again."""
CONFIRM_MS: Final = 5 * 60 * 1000
"""Time after which an issuer is asked again: as long as the usual life of its access tokens."""
MAX_PER_PRINCIPAL: Final = 20
"""Maximum number of sessions of one user; a further login ends the oldest."""


# A log-in at an issuer that has begun.

LOGIN_SECONDS: Final = 600
"""Time that a person has for the log-in at the issuer."""
NOT_BEGUN: Final = (
    "This log-in was not begun in this browser, or took too long, or another one was begun in the meantime: log in"
    " again."
)


class Attempt(NamedTuple):
    """A log-in that has begun: what its browser keeps in a cookie. The issuer sees digests of the secret only."""

    issuer: int
    secret: str
    next_path: str

    @classmethod
    def begin(cls, issuer: int, next_path: str) -> Attempt:
        return cls(issuer, secrets.token_urlsafe(48), next_path)

    @classmethod
    def parse(cls, cookie: str) -> Attempt:
        """Raises UnauthorizedError."""
        try:
            issuer, secret, next_path = cookie.split(".")
            return cls(int(issuer), secret, urlsafe_b64decode(next_path).decode())
        except ValueError:
            raise UnauthorizedError(NOT_BEGUN, given=True) from None

    @property
    def cookie(self) -> str:
        return f"{self.issuer}.{self.secret}.{urlsafe_b64encode(self.next_path.encode()).decode()}"

    @property
    def state(self) -> str:
        return self._digest("state")

    @property
    def nonce(self) -> str:
        return self._digest("nonce")

    def _digest(self, use: str) -> str:
        return digest_of(f"{use}:{self.secret}".encode()).hex()


# Sessions.


class Session(Credential):
    """A logged-in user of the page, at the address from which they logged in; at any if that is not known.

    A browser sends the cookie to every port of the host. So the cookie alone must not be enough: each form carries
    `csrf`, a secret of its own that only the pages contain, and the cookie is worth nothing at another address.
    """

    __slots__ = ("address", "confirm_at", "csrf", "signed_in")

    def __init__(self, stored: StoredSession) -> None:
        principal = Principal(stored.name, stored.role, owners=stored.owners)
        super().__init__(principal, expires_at=stored.end, id=stored.credential)
        self.csrf = stored.csrf
        self.address = stored.address
        self.signed_in = stored.sign_in is not None
        self.confirm_at = stored.confirmed_at + CONFIRM_MS if self.signed_in else PERMANENT

    def close(self) -> None:
        """Its token has ended: what still waits with it is refused."""
        self.expires_at = 0
        super().close()


class Sessions:
    """Creates, finds and ends sessions. Belongs to the event loop.

    A session lasts LIFETIME_MS, no longer than its token or JWT. It ends at once when its token is revoked, or the key
    of its JWT withdrawn. One of a log-in at an issuer is confirmed there every CONFIRM_MS while it is used: it ends
    with the session there, and its role follows the groups there. While the issuer cannot be reached it goes on. What
    the issuer has said counts at once, and is stored when the database can be written. Only the browser's cookie
    decrypts what a confirmation needs. Without a refresh token it lasts UNCONFIRMED_LIFETIME_MS.

    A user has at most MAX_PER_PRINCIPAL: the oldest ends, here at once and at other replicas with their next refresh.
    Only the SHA-256 of its cookie is stored. The latest are cached; the others are read from the database.
    """

    def __init__(
        self, auth: Authenticator, store: TokenStore, clock: Callable[[], int], sign_in: SignIn | None = None
    ) -> None:
        self.sign_in = sign_in
        self._auth = auth
        self._store = store
        self._clock = clock
        self._cached = CredentialCache[str, Session]()
        self._unsaved: dict[str, StoredSession | None] = {}
        """What is not stored yet, as the database was away: what an issuer has said of sessions; None: it has ended."""

    async def create(self, text: str, address: str) -> tuple[str, Session]:
        """Create a session with a token or JWT for a client at this address; returns the value of the cookie too.

        Raises UnauthorizedError, ForbiddenError for a JWT without a role, UnavailableError.
        """
        issued_by = await self._auth.authenticate_token(text.strip().encode(errors="replace"))
        end = min(self._clock() + LIFETIME_MS, issued_by.expires_at)
        cookie = secrets.token_urlsafe(32)
        return cookie, await self._add(cookie, address, issued_by.principal, end, credential=issued_by.id)

    async def create_signed_in(self, person: SignedIn, address: str) -> tuple[str, Session]:
        """The same for somebody who has logged in at an issuer. Raises UnavailableError."""
        cookie = secrets.token_urlsafe(32)
        lifetime = UNCONFIRMED_LIFETIME_MS if person.at_issuer.refresh_token is None else LIFETIME_MS
        end, sign_in = self._clock() + lifetime, person.at_issuer.sealed(cookie)
        return cookie, await self._add(cookie, address, person.principal, end, sign_in=sign_in)

    async def _add(
        self,
        cookie: str,
        address: str,
        principal: Principal,
        end: int,
        *,
        credential: str = "",
        sign_in: str | None = None,
    ) -> Session:
        now = self._clock()
        stored = StoredSession(
            digest=_digest(cookie),
            csrf=secrets.token_hex(32),
            address=address,
            name=principal.name,
            role=principal.role,
            owners=principal.owners,
            credential=credential,
            end=end,
            principal=principal.id,
            created_at=now,
            sign_in=sign_in,
            confirmed_at=now,
        )
        for digest in await self._store.add_session(stored, MAX_PER_PRINCIPAL):
            self._drop(digest)
        return self._cache(stored)

    async def find(self, cookie: str, address: str) -> Session | None:
        """The session of a cookie that a client at this address sends; None if there is none, or it has ended.

        Raises UnavailableError.
        """
        digest = _digest(cookie)
        if self._has_ended(digest):
            return None
        session = self._cached.get(digest)
        if session is None:
            stored = self._unsaved.get(digest) or await self._store.get_session(digest)
            # What its token may do is not known without the token: another replica may have created it just now.
            if stored is None or not (stored.sign_in or await self._auth.find_live(stored.credential)):
                return None
            session = self._cache(stored)
        if session.address not in ("", address) or not self._is_valid(session):
            return None
        return await self._confirmed(cookie, session) if self._clock() >= session.confirm_at else session

    async def _confirmed(self, cookie: str, session: Session) -> Session | None:
        """The session as its issuer says now; as it was while the issuer or the database cannot be asked."""
        digest, now = _digest(cookie), self._clock()
        # Further requests do not wait for this one.
        session.confirm_at = now + CONFIRM_MS
        try:
            await self._save(digest)
            stored = await self._store.claim_confirmation(digest, now - CONFIRM_MS, now)
            if stored is None:
                # Another replica has just asked, or the session has ended.
                self._drop(digest)
                stored = await self._store.get_session(digest)
                return None if stored is None else self._cache(stored)
            person = await self._renewed(stored, cookie)
        except (UnauthorizedError, ForbiddenError) as error:
            log.info("session ended by its issuer", name=session.principal.name, reason=error.detail)
            with suppress(UnavailableError):
                await self.end(cookie)
            return None
        except UnavailableError:
            return None if self._has_ended(digest) else session
        if self._has_ended(digest):
            return None
        changed = replace(
            stored,
            name=person.principal.name,
            role=person.principal.role,
            owners=person.principal.owners,
            sign_in=person.at_issuer.sealed(cookie),
        )
        self._unsaved[digest] = changed
        with suppress(UnavailableError):
            await self._save(digest)
        if (changed.name, changed.role, changed.owners) == (stored.name, stored.role, stored.owners):
            return session
        self._drop(digest)
        return self._cache(changed)

    async def _renewed(self, stored: StoredSession, cookie: str) -> SignedIn:
        if self.sign_in is None or stored.sign_in is None:
            raise UnauthorizedError("Nobody logs in at an issuer any more.")
        return await self.sign_in.renew(stored.sign_in, cookie)

    async def end_signed_in(self, cookie: str, return_to: str) -> str | None:
        """End the session, and that at its issuer; where the browser logs out there. Raises UnavailableError."""
        try:
            stored = await self._store.get_session(_digest(cookie))
        finally:
            await self.end(cookie)
        if self.sign_in is None or stored is None or stored.sign_in is None:
            return None
        return await self.sign_in.end(stored.sign_in, cookie, return_to)

    async def end(self, cookie: str) -> None:
        """End the session of a cookie. Raises UnavailableError."""
        digest = _digest(cookie)
        # First here: without the database it cannot be removed there.
        self._unsaved[digest] = None
        self._drop(digest)
        await self._save(digest)

    def _has_ended(self, digest: str) -> bool:
        return digest in self._unsaved and self._unsaved[digest] is None

    async def _save(self, digest: str) -> None:
        """Store what is not stored yet of a session. Raises UnavailableError; `run` tries again."""
        if digest not in self._unsaved:
            return
        if (changed := self._unsaved[digest]) is None:
            await self._store.remove_session(digest)
        else:
            await self._store.confirm_session(changed)
        # It may have ended meanwhile.
        if digest in self._unsaved and self._unsaved[digest] is changed:
            del self._unsaved[digest]

    async def run(self) -> None:
        """For ever, drop sessions that have ended, here or on another replica."""
        while True:
            await self._auth.tokens_changed.wait(REFRESH_SECONDS)
            with suppress(UnavailableError):  # After an outage everything is read again.
                await self.refresh()

    async def refresh(self) -> None:
        """Drop the sessions that have ended. Raises UnavailableError."""
        for digest in list(self._unsaved):
            await self._save(digest)
        for digest, session in list(self._cached.items()):
            # A browser that only reads a stream connects again, and is confirmed then.
            if not self._is_valid(session) or self._clock() >= session.confirm_at + CONFIRM_MS:
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
        return session.is_valid(self._clock()) and (session.signed_in or self._auth.is_live(session.id))


def _digest(cookie: str) -> str:
    return digest_of(cookie.encode()).hex()
