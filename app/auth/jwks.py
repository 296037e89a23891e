"""The public keys of an issuer of JWTs, fetched when they are needed."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import Awaitable, Callable
from typing import Any, Final
from urllib.parse import urlsplit

import aiohttp
import jwt
import structlog

from app.net.addresses import check_secure_url, is_loopback

log = structlog.get_logger(__name__)

MIN_FETCH_INTERVAL_SECONDS: Final = 10.0
"""Minimum interval between two fetches, so that JWTs with unknown key ids cannot cause many."""
MAX_AGE_SECONDS: Final = 3600.0
"""Older keys are fetched again when one is used: the issuer may have withdrawn a key."""
TIMEOUT: Final = aiohttp.ClientTimeout(total=5)
MAX_BYTES: Final = 1024 * 1024
_KEY_TYPES: Final = ("RSA", "EC")
Keys = dict[str, jwt.PyJWK]
"""Public keys by their id; a key without an id has an empty one."""


class JwksError(Exception):
    """A key, or the keys, are not available. The message is for the sender of the JWT, or for the log."""


class JwksCache:
    """The keys by their id. Fetched keys remain in use while the issuer is unreachable."""

    def __init__(self, issuer: str, fetch: Callable[[], Awaitable[Keys]], clock: Callable[[], float]) -> None:
        """`fetch` raises as `fetch_keys` does; `clock` is monotonic, in seconds."""
        self._issuer = issuer
        self._fetch_keys = fetch
        self._clock = clock
        self._keys: Keys = {}
        self._fetched_at: float | None = None
        self._attempted_at: float | None = None
        self._unreachable = False
        self._fetch_lock = asyncio.Lock()
        self._refresh_task: asyncio.Task[None] | None = None

    async def get(self, kid: object) -> jwt.PyJWK:
        """The key with this id; without an id, the only key. Raises JwksError."""
        if (key := self._find(kid)) is not None:
            if not self._is_recent(self._fetched_at, MAX_AGE_SECONDS) and not self._fetch_lock.locked():
                # In the background; meanwhile the old keys remain in use.
                self._refresh_task = asyncio.create_task(self._fetch_rate_limited())
            return key
        await self._fetch_rate_limited()
        if (key := self._find(kid)) is not None:
            return key
        if self._unreachable:
            raise JwksError("The JWT cannot be verified, because its issuer is unreachable; try again later.")
        raise JwksError("The JWT is signed with a key that its issuer does not publish.")

    def _find(self, kid: object) -> jwt.PyJWK | None:
        if kid is None and len(self._keys) == 1:
            return next(iter(self._keys.values()))
        return self._keys.get(kid) if isinstance(kid, str) else None

    def _is_recent(self, at: float | None, seconds: float) -> bool:
        return at is not None and self._clock() - at < seconds

    async def _fetch_rate_limited(self) -> None:
        async with self._fetch_lock:
            if not self._is_recent(self._attempted_at, MIN_FETCH_INTERVAL_SECONDS):
                self._attempted_at = self._clock()
                await self._fetch()

    async def _fetch(self) -> None:
        try:
            self._keys = await self._fetch_keys()
        except (OSError, aiohttp.ClientError, TimeoutError, ValueError, RecursionError, JwksError) as error:
            self._unreachable = True
            reason = str(error) or type(error).__name__
            log.warning("the keys of an issuer of JWTs could not be fetched", issuer=self._issuer, reason=reason)
        else:
            self._fetched_at, self._unreachable = self._clock(), False


async def discover_keys(issuer: str) -> Keys:
    """The keys that the issuer's discovery document names. Raises as `fetch_keys` does."""
    discovery = await _get_json(f"{issuer.rstrip('/')}/.well-known/openid-configuration")
    if discovery.get("issuer") != issuer:
        raise JwksError("the discovery document is from another issuer")
    return await fetch_keys(str(discovery.get("jwks_uri")))


async def fetch_keys(url: str, *, token: str | None = None, tls: ssl.SSLContext | None = None) -> Keys:
    """The usable keys at a URL, which may need a token.

    Raises JwksError, aiohttp.ClientError, TimeoutError, ValueError, RecursionError.
    """
    keys = (await _get_json(url, token, tls)).get("keys")
    usable: Keys = {}
    for key in keys if isinstance(keys, list) else ():
        if isinstance(key, dict) and key.get("kty") in _KEY_TYPES and key.get("use", "sig") == "sig":
            try:
                # A key without an id is found only if it is the only one.
                usable[str(key.get("kid", ""))] = jwt.PyJWK(key)
            except jwt.PyJWTError:
                continue
    return usable


async def _get_json(url: str, token: str | None = None, tls: ssl.SSLContext | None = None) -> dict[str, Any]:
    check_secure_url(url)
    # No proxy for an issuer on this machine: a proxy elsewhere would connect to its own loopback. None for one with its
    # own authority either: it is in this network.
    use_proxy = tls is None and not is_loopback(urlsplit(url).hostname or "")
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    async with (
        aiohttp.ClientSession(timeout=TIMEOUT, trust_env=use_proxy, headers=headers) as session,
        session.get(url, allow_redirects=False, ssl=True if tls is None else tls) as response,
    ):
        if response.status != 200:
            raise JwksError(f"{url} returned status {response.status}")
        body = b""
        async for chunk in response.content.iter_any():
            body += chunk
            if len(body) > MAX_BYTES:
                raise JwksError(f"{url} returned more than {MAX_BYTES} bytes")
    document = json.loads(body)
    if not isinstance(document, dict):
        raise JwksError(f"{url} did not return a JSON object")
    return document
