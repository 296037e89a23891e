"""Authenticator: the credential of a request, from its Authorization header."""

from __future__ import annotations

import asyncio
import hashlib
import os
import re
import secrets
import stat
from collections.abc import Callable
from dataclasses import replace
from hmac import compare_digest
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import structlog

from app.auth.credential import KEY_ID_PREFIX, Credential, Principal
from app.engine.list_view import Broadcast
from app.store.audit import Origin
from app.store.tokens import StoredToken, TokenStore
from blocklist.model.claims import NewToken, Role, Token
from blocklist.model.errors import BlocklistError, NotFoundError, UnauthorizedError, UnavailableError
from blocklist.model.text import read_text

if TYPE_CHECKING:
    from app.auth.oidc import JwtVerifiers

log = structlog.get_logger(__name__)

REFRESH_SECONDS: Final = 5.0
"""Interval at which the tokens are read again: another replica may have created or revoked some."""
RETRY_SECONDS: Final = 0.5
"""Time until they are read again if that failed."""
MIN_RELOAD_INTERVAL_SECONDS: Final = 0.1
"""Minimum time between two reads for tokens that are not known here."""
SAVE_INTERVAL_SECONDS: Final = 300.0
"""Interval at which the times of last use are saved."""
_NOT_VALID: Final = (
    "The token is not valid: it is unknown, revoked or expired. An admin creates another one: blocklist token create."
)


class Authenticator:
    """Has all valid tokens in memory, so that requests need not wait for the database. Belongs to the event loop.

    A token that is revoked here is invalid at once; one that another replica revoked, when its notification arrives or
    within REFRESH_SECONDS, as after a change of the admin token file. While the database is unavailable, the tokens in
    memory remain valid. Memory: one entry for each valid token; expired ones are removed at the next refresh.
    """

    def __init__(
        self,
        store: TokenStore,
        clock: Callable[[], int],
        *,
        enabled: bool,
        admin_token_path: Path | None = None,
        jwt_verifier: JwtVerifiers | None = None,
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
        """The credential of this header, if it is known without a query. Records a use."""
        text = bearer_token(header)
        return None if text is None else self._find_cached(text)

    async def authenticate(self, header: bytes) -> Credential:
        """The credential of this header. Raises UnauthorizedError, or ForbiddenError for a JWT without a role."""
        text = bearer_token(header)
        if text is None:
            raise UnauthorizedError("Send credentials as `Authorization: Bearer` and a token.")
        return await self.authenticate_token(text)

    async def authenticate_token(self, text: bytes) -> Credential:
        """The credential of this token or JWT. Raises as `authenticate` does."""
        if (credential := self._find_cached(text)) is not None:
            return credential
        if self.jwt_verifier is not None and text.count(b".") == 2:
            return await self.jwt_verifier.verify(text)
        if self._store.shared and TOKEN_PATTERN.fullmatch(text) is not None:
            await self._reload_shared()
            if (credential := self._find_cached(text)) is not None:
                return credential
        raise UnauthorizedError(_NOT_VALID, given=True)

    async def _reload_shared(self) -> None:
        """Read the tokens again, as another replica may just have created one. Concurrent calls share one read."""
        loop = asyncio.get_running_loop()
        called_at = loop.time()
        async with self._reload_lock:
            if self._reloaded_at < called_at:
                await asyncio.sleep(self._reloaded_at + MIN_RELOAD_INTERVAL_SECONDS - loop.time())
                self._reloaded_at = loop.time()
                await self.refresh()

    def notify_remote_change(self) -> None:
        """Another replica has created or revoked a token."""
        self._remote_change = True
        self.tokens_changed.notify_all()

    def credential_by_id(self, credential_id: str) -> Credential | None:
        """The credential with this id, if it is valid."""
        token = self._tokens.get(credential_id.encode())
        if token is None and self._admin_token is not None and self._admin_token.credential.id == credential_id:
            token = self._admin_token
        return token.credential if token is not None and token.credential.is_valid(self._clock()) else None

    def is_live(self, credential_id: str) -> bool:
        """Whether the token with this id is valid, or the key with this id is published."""
        if credential_id.startswith(KEY_ID_PREFIX):
            return self.jwt_verifier is not None and self.jwt_verifier.has_key(credential_id)
        return self.credential_by_id(credential_id) is not None

    async def find_live(self, credential_id: str) -> bool:
        """The same; what is not known here is read from the database, or from the issuer. Raises UnavailableError."""
        if credential_id.startswith(KEY_ID_PREFIX):
            return self.jwt_verifier is not None and await self.jwt_verifier.fetch_key(credential_id)
        if not self.is_live(credential_id) and self._store.shared:
            await self._reload_shared()
        return self.is_live(credential_id)

    async def load(self) -> None:
        """Read the tokens and the admin token file. Raises UnavailableError, AdminTokenFileError."""
        async with self._lock:
            self._apply_tokens(await self._store.tokens())
            if self._admin_token_path is not None:
                self._apply_admin_token(await asyncio.to_thread(read_admin_token_file, self._admin_token_path))

    async def refresh(self) -> None:
        """Read the tokens and the admin token file again. Raises UnavailableError."""
        if self.jwt_verifier is not None:
            self.jwt_verifier.drop_invalid()
        try:
            await self.load()
        except AdminTokenFileError as error:
            # The previous token remains valid: the file may just be being replaced.
            log.warning("admin token file cannot be read; the previous token remains valid", reason=str(error))

    async def run(self) -> None:
        """Refresh for ever, at each notification and each interval."""
        loop = asyncio.get_running_loop()
        saved_at = loop.time()
        while True:
            if not self._remote_change:
                await self.tokens_changed.wait(REFRESH_SECONDS)
            self._remote_change = False
            try:
                await self.refresh()
                if loop.time() - saved_at >= SAVE_INTERVAL_SECONDS:
                    saved_at = loop.time()
                    await self.save_used()
            except UnavailableError:
                # The notification is not lost: a token that was revoked must not stay valid until the next interval.
                self._remote_change = True
                await asyncio.sleep(RETRY_SECONDS)

    async def save_used(self) -> None:
        """Save the times of last use. Raises UnavailableError."""
        credentials = [token.credential for token in self._tokens.values()]
        uses = {it.id: it.last_used_at for it in credentials if it.last_used_at > self._saved_uses.get(it.id, 0)}
        if uses:
            await self._store.save_used(uses)
            current = {it: used_at for it, used_at in self._saved_uses.items() if it.encode() in self._tokens}
            self._saved_uses = current | uses

    async def tokens(self) -> list[Token]:
        """All tokens, also expired and revoked ones, the oldest first. Raises UnavailableError."""
        return [self._with_last_use(stored.token) for stored in await self._store.tokens()]

    async def create(
        self,
        name: str,
        role: Role,
        end: int,
        origin: Origin,
        *,
        owners: tuple[str, ...] | None = None,
        listeners: tuple[str, ...] | None = None,
    ) -> NewToken:
        """Create a token, valid at once until `end` (Unix milliseconds). For `owners` and `listeners` see Token.

        `origin` is who creates it.

        Raises UnavailableError.
        """
        new, now = generate_token(), self._clock()
        token = Token(
            id=new.id,
            name=name,
            role=role,
            created_at=now,
            created_by=origin.principal,
            end=end,
            owners=owners,
            listeners=listeners,
        )
        stored = StoredToken(token=token, digest=new.digest)
        async with self._lock:
            await self._store.add(stored, origin)
            self._tokens[new.id.encode()] = CachedToken.from_stored(stored)
        log.info("token created", id=token.id, name=name, role=role.value, by=origin.principal)
        return NewToken(token=token, text=new.text)

    async def revoke(self, token_id: str, origin: Origin) -> None:
        """Make a token invalid from now on; `origin` is who revokes it.

        Raises NotFoundError, LastAdminError, UnavailableError.
        """
        async with self._lock:
            now = self._clock()
            tokens = {stored.token.id: stored.token for stored in await self._store.tokens()}
            if token_id not in tokens:
                raise NotFoundError(f"There is no token {token_id}.")
            revoked = tokens.pop(token_id)
            self._check_not_last(revoked, [token for token in tokens.values() if token.is_valid(now)])
            await self._store.revoke(revoked, now, origin)
            if (cached := self._tokens.pop(token_id.encode(), None)) is not None:
                cached.credential.invalidate()
        log.info("token revoked", id=token_id, by=origin.principal)

    def _check_not_last(self, token: Token, others: list[Token]) -> None:
        last = token.role is Role.ADMIN and all(other.role is not Role.ADMIN for other in others)
        if last and self.enabled and self._admin_token is None and token.is_valid(self._clock()):
            raise LastAdminError(
                "This is the last valid token of an admin: create another one first, or set BLOCKLIST_ADMIN_TOKEN_FILE."
            )

    def _find_cached(self, text: bytes) -> Credential | None:
        now = self._clock()
        if (match := TOKEN_PATTERN.fullmatch(text)) is not None:
            token = self._tokens.get(match[1])
            if token is not None and token.matches(match[2]):
                return token.credential if token.credential.use(now) else None
        elif self.jwt_verifier is not None and (credential := self.jwt_verifier.cached(text)) is not None:
            return credential
        if self._admin_token is not None and self._admin_token.matches(text):
            return self._admin_token.credential
        return None

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
            log.info("admin token file has a new token")
        digest = digest_of(text)
        # A new credential with a new id, so that sessions of the old token end.
        principal = Principal(ADMIN_NAME, Role.ADMIN)
        self._admin_token = CachedToken(Credential(principal, id=f"file-{digest.hex()[:8]}"), digest)

    def _with_last_use(self, token: Token) -> Token:
        cached = self._tokens.get(token.id.encode())
        used_at = max(cached.credential.last_used_at if cached is not None else 0, token.last_used_at or 0)
        return replace(token, last_used_at=used_at or None)


# Tokens: their format, generation and comparison. Pure but for random numbers.

TOKEN_PATTERN: Final = re.compile(rb"blocklist_([0-9a-f]{8})_([A-Za-z0-9_-]{43})")
"""A token: its public id, and its secret of 32 random bytes."""


class LastAdminError(BlocklistError):
    """The last valid token of an admin cannot be revoked; nothing was changed."""


class GeneratedToken(NamedTuple):
    """A new token: its id, its text (shown once), and the digest that is stored."""

    id: str
    text: str
    digest: str


def generate_token() -> GeneratedToken:
    token_id, secret = secrets.token_hex(4), secrets.token_urlsafe(32)
    return GeneratedToken(token_id, f"blocklist_{token_id}_{secret}", digest_of(secret.encode()).hex())


def digest_of(secret: bytes) -> bytes:
    """SHA-256, stored instead of a secret. One round is enough: 256 random bits cannot be guessed."""
    return hashlib.sha256(secret).digest()


class CachedToken(NamedTuple):
    """A token in memory: its credential, and the digest of its secret."""

    credential: Credential
    digest: bytes

    @classmethod
    def from_stored(cls, stored: StoredToken) -> CachedToken:
        token = stored.token
        principal = Principal(token.name, token.role, owners=token.owners, listeners=token.listeners)
        return cls(Credential(principal, expires_at=token.end, id=token.id), bytes.fromhex(stored.digest))

    def matches(self, secret: bytes) -> bool:
        """Compare with a secret, in constant time."""
        return compare_digest(digest_of(secret), self.digest)


def bearer_token(header: bytes) -> bytes | None:
    """The token in an Authorization header; None for another scheme."""
    scheme, _, text = header.partition(b" ")
    return text.strip(b" ") if scheme.lower() == b"bearer" else None


# The admin token file: created at the start if it is missing, so that there is a first token.

ADMIN_NAME: Final = "admin"
"""The author of changes made with this token."""
_TOKEN_PATTERN: Final = re.compile(r"[A-Za-z0-9._~+/=-]{32,1024}", re.ASCII)


class AdminTokenFileError(Exception):
    """The file cannot be used; the message is for the operator."""


def create_admin_token_file(path: Path) -> bool:
    """Create the file, readable by its owner only; False if it exists already. Raises AdminTokenFileError."""
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        return False
    except OSError as error:
        raise AdminTokenFileError(f"The admin token file {path} cannot be created: {error.strerror}.") from None
    with os.fdopen(handle, "w") as file:
        file.write(generate_token().text + "\n")
    return True


def read_admin_token_file(path: Path) -> bytes:
    """The token. Raises AdminTokenFileError if the file cannot be read, is open to all users, or has no token."""
    try:
        mode = path.stat().st_mode
        text = read_text(path).strip()
    except OSError as error:
        raise AdminTokenFileError(f"The admin token file {path} cannot be read: {error.strerror}.") from None
    except ValueError:
        text = ""
    if mode & (stat.S_IROTH | stat.S_IWOTH):
        raise AdminTokenFileError(f"All users may read or write the admin token file {path}: run chmod 600 {path}.")
    if not _TOKEN_PATTERN.fullmatch(text):
        raise AdminTokenFileError(
            f"The admin token file {path} does not contain a token: write one line of at least 32 of"
            " A-Z a-z 0-9 . _ ~ + / = - into it, or remove it and the service creates one."
        )
    return text.encode()
