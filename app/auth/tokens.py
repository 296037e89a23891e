"""Tokens: their format, generation and comparison. Pure but for random numbers."""

from __future__ import annotations

import hashlib
import re
import secrets
from hmac import compare_digest
from typing import Final, NamedTuple

from app.auth.credential import Credential
from app.auth.principal import Principal
from app.store.tokens import StoredToken
from blocklist.model.errors import BlocklistError

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
    """A random new token."""
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
        principal = Principal(token.name, token.role, owners=token.owners)
        return cls(Credential(principal, expires_at=token.end, id=token.id), bytes.fromhex(stored.digest))

    def matches(self, secret: bytes) -> bool:
        """Compare with a secret, in constant time."""
        return compare_digest(digest_of(secret), self.digest)


def bearer_token(header: bytes) -> bytes | None:
    """The token in an Authorization header; None for another scheme."""
    scheme, _, text = header.partition(b" ")
    return text.strip(b" ") if scheme.lower() == b"bearer" else None
