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
from app.auth.tokens import TOKEN_PATTERN, CachedToken, LastAdminError, bearer_token, digest_of, generate_token
from app.engine.broadcast import Broadcast
from app.store.tokens import StoredToken, TokenStore
from blocklist.model.errors import NotFoundError, UnauthorizedError, UnavailableError
from blocklist.model.roles import NewToken, Role, Token

log = structlog.get_logger(__name__)

REFRESH_SECONDS: Final = 5.0
"""How often the tokens are read again: another replica may have made or revoked some."""
MIN_RELOAD_INTERVAL_SECONDS: Final = 0.1
"""The time between two looks for tokens that nobody knows here."""
SAVE_INTERVAL_SECONDS: Final = 60.0
"""How often it is written down when tokens were used."""
_NOT_VALID: Final = "The token is not valid: it is unknown, revoked, or has ended."


class JwtVerifier(Protocol):
    """Who signs JWTs."""

    def cached(self, text: bytes) -> Credential | None:
        """The credential of a JWT that was found good before, and still is."""

    async def verify(self, text: bytes) -> Credential:
        """The credential of a JWT. Raises UnauthorizedError, or ForbiddenError if it gives no role."""

    def drop_expired(self) -> None:
        """Forget the credentials that have ended, and cut their streams."""


class Authenticator:
    """Keeps all valid tokens in memory, so that nobody waits for the database to be known.

    Belongs to the event loop. A token that is revoked here ends at once; one that another replica revoked when that
    is heard of, or, as when the file was changed, within REFRESH_SECONDS. While the database is away those that are
    known stay so. What grows: one entry for each valid token; ended ones go at the next look.
    """

    def __init__(
        self,
        store: TokenStore,
        clock: Callable[[], int],
        *,
        enabled: bool,
        admin_token_path: Path | None = None,
        jwt_verifier: JwtVerifier | None = None,
    ) -> None:
        self.enabled = enabled
        self.jwt_verifier = jwt_verifier
        self._store = store
        self._clock = clock
        self._admin_token_path = admin_token_path if enabled else None
        self._admin_token: CachedToken | None = None
        self._tokens: dict[bytes, CachedToken] = {}
        self._saved_uses: dict[str, int] = {}
        self._lock = asyncio.Lock()
        self._reload_lock = asyncio.Lock()
        self._reloaded_at = -MIN_RELOAD_INTERVAL_SECONDS
        self._remote_change = False
        self.tokens_changed = Broadcast()

    def authenticate_cached(self, header: bytes) -> Credential | None:
        """Whose Authorization header this is, as far as that is known without asking anybody; it was used."""
        text = bearer_token(header)
        return None if text is None else self._find_credential(text)

    async def authenticate(self, header: bytes) -> Credential:
        """Whose Authorization header this is. Raises UnauthorizedError, or ForbiddenError for a JWT without a role."""
        text = bearer_token(header)
        if text is None:
            raise UnauthorizedError("Send credentials as `Authorization: Bearer` and a token.")
        return await self.authenticate_token(text)

    async def authenticate_token(self, text: bytes) -> Credential:
        """Whose token or JWT this is; raises as `verify` does."""
        if (found := self._find_credential(text)) is not None:
            return found
        if self.jwt_verifier is not None and text.count(b".") == 2:
            return await self.jwt_verifier.verify(text)
        if self._store.shared and TOKEN_PATTERN.fullmatch(text) is not None:
            await self._reload_shared()
            if (found := self._find_credential(text)) is not None:
                return found
        raise UnauthorizedError(_NOT_VALID, given=True)

    async def _reload_shared(self) -> None:
        """Another replica may have made a token a moment ago. All who come meanwhile share one look, now and then."""
        loop = asyncio.get_running_loop()
        came = loop.time()
        async with self._reload_lock:
            if self._reloaded_at < came:
                await asyncio.sleep(self._reloaded_at + MIN_RELOAD_INTERVAL_SECONDS - loop.time())
                self._reloaded_at = loop.time()
                await self.load()

    def notify_remote_change(self) -> None:
        """Another replica has made or revoked a token."""
        self._remote_change = True
        self.tokens_changed.notify_all()

    def credential_by_id(self, credential_id: str) -> Credential | None:
        """The credential of this id, if it is good."""
        known = self._tokens.get(credential_id.encode())
        if known is None and self._admin_token is not None and self._admin_token.credential.id == credential_id:
            known = self._admin_token
        return known.credential if known is not None and known.credential.is_valid(self._clock()) else None

    async def load(self) -> None:
        """Read the tokens, and the admin's file. Raises UnavailableError, AdminTokenFileError."""
        async with self._lock:
            self._apply_tokens(await self._store.tokens())
            if self._admin_token_path is not None:
                self._apply_admin_token(await asyncio.to_thread(admin_token_file.read, self._admin_token_path))

    async def run(self) -> None:
        """Look again and again, for ever."""
        loop = asyncio.get_running_loop()
        saved = loop.time()
        while True:
            if not self._remote_change:
                await self.tokens_changed.wait(REFRESH_SECONDS)
            self._remote_change = False
            try:
                await self._refresh()
                if loop.time() - saved >= SAVE_INTERVAL_SECONDS:
                    saved = loop.time()
                    await self.save_used()
            except UnavailableError:
                continue

    async def save_used(self) -> None:
        """Write down when tokens were used last. Raises UnavailableError."""
        used = {
            it.id: it.last_used_at
            for it, _ in self._tokens.values()
            if it.last_used_at > self._saved_uses.get(it.id, 0)
        }
        if used:
            await self._store.save_used(used)
            self._saved_uses = {
                **{own: at for own, at in self._saved_uses.items() if own.encode() in self._tokens},
                **used,
            }

    async def tokens(self) -> list[Token]:
        """All tokens that there ever were, the oldest first. Raises UnavailableError."""
        return [self._with_last_use(stored.token) for stored in await self._store.tokens()]

    async def create(self, name: str, role: Role, end: int, created_by: str | None) -> NewToken:
        """A new token, valid at once. Raises UnavailableError."""
        made = generate_token()
        token = Token(id=made.id, name=name, role=role, created_at=self._clock(), created_by=created_by, end=end)
        stored = StoredToken(token=token, digest=made.digest)
        async with self._lock:
            await self._store.add(stored)
            self._tokens[made.id.encode()] = CachedToken.from_stored(stored)
        log.info("token made", id=token.id, name=name, role=role.value, by=created_by)
        return NewToken(token=token, text=made.text)

    async def revoke(self, token_id: str, by: str | None) -> None:
        """From now on the token is not valid. Raises NotFoundError, LastAdminError, UnavailableError."""
        async with self._lock:
            now = self._clock()
            tokens = {stored.token.id: stored.token for stored in await self._store.tokens()}
            if token_id not in tokens:
                raise NotFoundError(f"There is no token {token_id}.")
            self._check_not_last(tokens.pop(token_id), [token for token in tokens.values() if token.is_valid(now)])
            await self._store.revoke(token_id, now)
            if (known := self._tokens.pop(token_id.encode(), None)) is not None:
                known.credential.invalidate()
        log.info("token revoked", id=token_id, by=by)

    def _check_not_last(self, token: Token, others: list[Token]) -> None:
        last = token.role is Role.ADMIN and all(other.role is not Role.ADMIN for other in others)
        if last and self.enabled and self._admin_token is None and token.is_valid(self._clock()):
            raise LastAdminError(
                "This is the last valid token of an admin: make another one first, or set BLOCKLIST_ADMIN_TOKEN_FILE."
            )

    def _find_credential(self, text: bytes) -> Credential | None:
        now = self._clock()
        if (match := TOKEN_PATTERN.fullmatch(text)) is not None:
            known = self._tokens.get(match[1])
            if known is not None and known.matches(match[2]):
                return known.credential if known.credential.use(now) else None
        elif self.jwt_verifier is not None and (credential := self.jwt_verifier.cached(text)) is not None:
            return credential
        if self._admin_token is not None and self._admin_token.matches(text):
            return self._admin_token.credential
        return None

    async def _refresh(self) -> None:
        try:
            await self.load()
        except admin_token_file.AdminTokenFileError as error:
            # The one that was read before stays: the file may be about to be replaced.
            log.warning("the admin token file was not read again", reason=str(error))
        if self.jwt_verifier is not None:
            self.jwt_verifier.drop_expired()

    def _apply_tokens(self, stored: list[StoredToken]) -> None:
        now = self._clock()
        valid = {it.token.id.encode(): it for it in stored if it.token.is_valid(now)}
        for token_id in self._tokens.keys() - valid.keys():
            self._tokens.pop(token_id).credential.invalidate()
        for token_id in valid.keys() - self._tokens.keys():
            self._tokens[token_id] = CachedToken.from_stored(valid[token_id])

    def _apply_admin_token(self, text: bytes) -> None:
        if self._admin_token is not None:
            if self._admin_token.matches(text):
                return
            self._admin_token.credential.invalidate()
            log.info("the admin token file holds another token now")
        digest = digest_of(text)
        # Another token in the file is another credential: sessions that began with the old one end with it.
        principal = Principal(admin_token_file.ADMIN_NAME, Role.ADMIN)
        self._admin_token = CachedToken(Credential(principal, id=f"file-{digest.hex()[:8]}"), digest)

    def _with_last_use(self, token: Token) -> Token:
        known = self._tokens.get(token.id.encode())
        used = max(known.credential.last_used_at if known is not None else 0, token.last_used_at or 0)
        return replace(token, last_used_at=used or None)
