"""Tokens: how they are written, made and told from one another. Pure but for chance."""

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

TOKEN: Final = re.compile(rb"blocklist_([0-9a-f]{8})_([A-Za-z0-9_-]{43})")
"""A token of ours: its public id, and its secret, 32 bytes of chance."""


class LastAdminError(BlocklistError):
    """The last credential of an admin may not be revoked; nothing was changed."""


class MadeToken(NamedTuple):
    """A new token: its id, its text, which is shown once, and what is stored of it."""

    id: str
    text: str
    digest: str


def make_token() -> MadeToken:
    """A token that nobody had before."""
    token_id, secret = secrets.token_hex(4), secrets.token_urlsafe(32)
    return MadeToken(token_id, f"blocklist_{token_id}_{secret}", digest_of(secret.encode()).hex())


def digest_of(secret: bytes) -> bytes:
    """What is stored instead of a secret. One round is enough: 256 bits of chance cannot be guessed."""
    return hashlib.sha256(secret).digest()


class KnownToken(NamedTuple):
    """A token as it is kept in memory: the credential that it is, and how to recognize it."""

    credential: Credential
    digest: bytes

    @classmethod
    def of(cls, stored: StoredToken) -> KnownToken:
        token = stored.token
        principal = Principal(token.name, token.access)
        return cls(Credential(principal, until=token.end, id=token.id), bytes.fromhex(stored.digest))

    def is_of(self, secret: bytes) -> bool:
        """Whether this is its secret, in constant time."""
        return compare_digest(digest_of(secret), self.digest)


def bearer(header: bytes) -> bytes | None:
    """The token in an Authorization header; None for another scheme."""
    scheme, _, text = header.partition(b" ")
    return text.strip(b" ") if scheme.lower() == b"bearer" else None
