"""Authenticator: who a request comes from, by its Authorization header."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Final, Protocol

import structlog

from app.auth import admin_token_file
from app.auth.credential import Credential
from app.auth.principal import Principal
from app.auth.tokens import TOKEN, KnownToken, LastAdminError, bearer, digest_of, make_token
from app.engine.broadcast import Bell
from app.store.tokens import StoredToken, TokenStore
from blocklist.model.errors import NotFoundError, UnauthorizedError, UnavailableError
from blocklist.model.roles import Access, NewToken, Token

log = structlog.get_logger(__name__)

LOOK_SECONDS: Final = 5.0
"""How often the tokens are read again: another replica may have made or revoked some."""
AGAIN_SECONDS: Final = 0.1
"""The time between two looks for tokens that nobody knows here."""
SAVE_SECONDS: Final = 60.0
"""How often it is written down when tokens were used."""
_NOT_GOOD: Final = "The token is not valid: it is unknown, revoked, or has ended."


class Issuer(Protocol):
    """Who signs JWTs."""

    def known(self, text: bytes) -> Credential | None:
        """The credential of a JWT that was found good before, and still is."""

    async def verify(self, text: bytes) -> Credential:
        """The credential of a JWT. Raises UnauthorizedError, or ForbiddenError if it gives no role."""

    def drop_ended(self) -> None:
        """Forget the credentials that have ended, and cut their streams."""


class Authenticator:
    """Keeps all valid tokens in memory, so that nobody waits for the database to be known.

    Belongs to the event loop. A token that is revoked here ends at once; one that another replica revoked when that
    is heard of, or, as when the file was changed, within LOOK_SECONDS. While the database is away those that are known
    stay so. What grows: one entry for each valid token; ended ones go at the next look.
    """

    def __init__(
        self,
        store: TokenStore,
        clock: Callable[[], int],
        *,
        enabled: bool,
        admin: Path | None = None,
        issuer: Issuer | None = None,
    ) -> None:
        self.enabled = enabled
        self.issuer = issuer
        self._store = store
        self._clock = clock
        self._admin_path = admin if enabled else None
        self._admin: KnownToken | None = None
        self._known: dict[bytes, KnownToken] = {}
        self._saved: dict[str, int] = {}
        self._changing = asyncio.Lock()
        self._asking = asyncio.Lock()
        self._asked = -AGAIN_SECONDS
        self._behind = False
        self.turn = Bell()

    def known(self, header: bytes) -> Credential | None:
        """Whose Authorization header this is, as far as that is known without asking anybody; it was used."""
        text = bearer(header)
        return None if text is None else self._find(text)

    async def verify(self, header: bytes) -> Credential:
        """Whose Authorization header this is. Raises UnauthorizedError, or ForbiddenError for a JWT without a role."""
        text = bearer(header)
        if text is None:
            raise UnauthorizedError("Send credentials as `Authorization: Bearer` and a token.")
        return await self.verify_text(text)

    async def verify_text(self, text: bytes) -> Credential:
        """Whose token or JWT this is; raises as `verify` does."""
        if (found := self._find(text)) is not None:
            return found
        if self.issuer is not None and text.count(b".") == 2:
            return await self.issuer.verify(text)
        if self._store.shared and TOKEN.fullmatch(text) is not None:
            await self._ask()
            if (found := self._find(text)) is not None:
                return found
        raise UnauthorizedError(_NOT_GOOD, given=True)

    async def _ask(self) -> None:
        """Another replica may have made a token a moment ago. All who come meanwhile share one look, now and then."""
        loop = asyncio.get_running_loop()
        came = loop.time()
        async with self._asking:
            if self._asked < came:
                await asyncio.sleep(self._asked + AGAIN_SECONDS - loop.time())
                self._asked = loop.time()
                await self.load()

    def look(self) -> None:
        """Another replica has made or revoked a token."""
        self._behind = True
        self.turn.ring()

    def credential(self, credential_id: str) -> Credential | None:
        """The credential of this id, if it is good."""
        known = self._known.get(credential_id.encode())
        if known is None and self._admin is not None and self._admin.credential.id == credential_id:
            known = self._admin
        return known.credential if known is not None and known.credential.good(self._clock()) else None

    async def load(self) -> None:
        """Read the tokens, and the admin's file. Raises UnavailableError, AdminFileError."""
        async with self._changing:
            self._keep(await self._store.tokens())
            if self._admin_path is not None:
                self._keep_admin(await asyncio.to_thread(admin_token_file.read, self._admin_path))

    async def run(self) -> None:
        """Look again and again, for ever."""
        loop = asyncio.get_running_loop()
        saved = loop.time()
        while True:
            if not self._behind:
                await self.turn.wait(LOOK_SECONDS)
            self._behind = False
            try:
                await self._look()
                if loop.time() - saved >= SAVE_SECONDS:
                    saved = loop.time()
                    await self.save_used()
            except UnavailableError:
                continue

    async def save_used(self) -> None:
        """Write down when tokens were used last. Raises UnavailableError."""
        used = {it.id: it.used for it, _ in self._known.values() if it.used > self._saved.get(it.id, 0)}
        if used:
            await self._store.save_used(used)
            self._saved = {**{own: at for own, at in self._saved.items() if own.encode() in self._known}, **used}

    async def tokens(self) -> list[Token]:
        """All tokens that there ever were, the oldest first. Raises UnavailableError."""
        return [self._used(stored.token) for stored in await self._store.tokens()]

    async def create(self, name: str, access: Access, end: int, created_by: str | None) -> NewToken:
        """A new token, valid at once. Raises UnavailableError."""
        made = make_token()
        token = Token(id=made.id, name=name, access=access, created_at=self._clock(), created_by=created_by, end=end)
        stored = StoredToken(token=token, digest=made.digest)
        async with self._changing:
            await self._store.add(stored)
            self._known[made.id.encode()] = KnownToken.of(stored)
        log.info("token made", id=token.id, name=name, role=access.value, by=created_by)
        return NewToken(token=token, text=made.text)

    async def revoke(self, token_id: str, by: str | None) -> None:
        """From now on the token is not valid. Raises NotFoundError, LastAdminError, UnavailableError."""
        async with self._changing:
            now = self._clock()
            tokens = {stored.token.id: stored.token for stored in await self._store.tokens()}
            if token_id not in tokens:
                raise NotFoundError(f"There is no token {token_id}.")
            self._check_not_last(tokens.pop(token_id), [token for token in tokens.values() if token.valid(now)])
            await self._store.revoke(token_id, now)
            if (known := self._known.pop(token_id.encode(), None)) is not None:
                known.credential.end()
        log.info("token revoked", id=token_id, by=by)

    def _check_not_last(self, token: Token, others: list[Token]) -> None:
        last = token.access is Access.ADMIN and all(other.access is not Access.ADMIN for other in others)
        if last and self.enabled and self._admin is None and token.valid(self._clock()):
            raise LastAdminError(
                "This is the last valid token of an admin: make another one first, or set BLOCKLIST_ADMIN_TOKEN_FILE."
            )

    def _find(self, text: bytes) -> Credential | None:
        now = self._clock()
        if (match := TOKEN.fullmatch(text)) is not None:
            known = self._known.get(match[1])
            if known is not None and known.is_of(match[2]):
                return known.credential if known.credential.admits(now) else None
        elif self.issuer is not None and (credential := self.issuer.known(text)) is not None:
            return credential
        if self._admin is not None and self._admin.is_of(text):
            return self._admin.credential
        return None

    async def _look(self) -> None:
        try:
            await self.load()
        except admin_token_file.AdminFileError as error:
            # The one that was read before stays: the file may be about to be replaced.
            log.warning("the admin token file was not read again", reason=str(error))
        if self.issuer is not None:
            self.issuer.drop_ended()

    def _keep(self, stored: list[StoredToken]) -> None:
        now = self._clock()
        valid = {it.token.id.encode(): it for it in stored if it.token.valid(now)}
        for token_id in self._known.keys() - valid.keys():
            self._known.pop(token_id).credential.end()
        for token_id in valid.keys() - self._known.keys():
            self._known[token_id] = KnownToken.of(valid[token_id])

    def _keep_admin(self, text: bytes) -> None:
        if self._admin is not None:
            if self._admin.is_of(text):
                return
            self._admin.credential.end()
            log.info("the admin token file holds another token now")
        digest = digest_of(text)
        # Another token in the file is another credential: sessions that began with the old one end with it.
        principal = Principal(admin_token_file.NAME, Access.ADMIN)
        self._admin = KnownToken(Credential(principal, id=f"file-{digest.hex()[:8]}"), digest)

    def _used(self, token: Token) -> Token:
        known = self._known.get(token.id.encode())
        used = max(known.credential.used if known is not None else 0, token.last_used_at or 0)
        return replace(token, last_used_at=used or None)
