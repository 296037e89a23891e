"""The public keys of an OpenID Connect issuer, fetched when they are needed."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any, Final
from urllib.parse import urlsplit

import aiohttp
import jwt
import structlog

from app.net.addresses import check_secure_url, is_loopback

log = structlog.get_logger(__name__)

MIN_FETCH_INTERVAL_SECONDS: Final = 10.0
"""The issuer is asked at most so often, whatever keys strangers name."""
MAX_AGE_SECONDS: Final = 3600.0
"""Older keys are fetched again when one is asked for: an issuer withdraws keys, too."""
TIMEOUT: Final = aiohttp.ClientTimeout(total=5)
MAX_BYTES: Final = 1024 * 1024
_KEY_TYPES: Final = ("RSA", "EC")


class JwksError(Exception):
    """There is no key; the message is for who sent the JWT."""


class JwksCache:
    """Keys by their id. Those that were fetched go on while the issuer is away."""

    def __init__(self, issuer: str, clock: Callable[[], float]) -> None:
        """`clock` is in seconds, and never goes back."""
        self._issuer = issuer
        self._clock = clock
        self._keys: dict[str, jwt.PyJWK] = {}
        self._fetched_at: float | None = None
        self._attempted_at: float | None = None
        self._unreachable = False
        self._fetch_lock = asyncio.Lock()
        self._refresh_task: asyncio.Task[None] | None = None

    async def get(self, kid: object) -> jwt.PyJWK:
        """The key of this id; without an id the only one. Raises KeysError."""
        if (key := self._find(kid)) is not None:
            if not self._is_recent(self._fetched_at, MAX_AGE_SECONDS) and not self._fetch_lock.locked():
                # Nobody waits for it: what is known goes on.
                self._refresh_task = asyncio.create_task(self._fetch_rate_limited())
            return key
        await self._fetch_rate_limited()
        if (key := self._find(kid)) is not None:
            return key
        if self._unreachable:
            raise JwksError("The issuer of the JWT is out of reach, so it cannot be verified; try again.")
        raise JwksError("The JWT is signed with a key that its issuer does not have.")

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
            self._keys = await _fetch(self._issuer)
        except (aiohttp.ClientError, TimeoutError, ValueError, RecursionError, JwksError) as error:
            self._unreachable = True
            log.warning("the keys of the OIDC issuer were not fetched", reason=str(error) or type(error).__name__)
        else:
            self._fetched_at, self._unreachable = self._clock(), False


async def _fetch(issuer: str) -> dict[str, jwt.PyJWK]:
    about = await _get_json(f"{issuer.rstrip('/')}/.well-known/openid-configuration")
    if about.get("issuer") != issuer:
        raise JwksError("its discovery document is of another issuer")
    keys = (await _get_json(str(about.get("jwks_uri")))).get("keys")
    found: dict[str, jwt.PyJWK] = {}
    for key in keys if isinstance(keys, list) else ():
        if isinstance(key, dict) and key.get("kty") in _KEY_TYPES and key.get("use", "sig") == "sig":
            try:
                # A key without an id can only be the only one.
                found[str(key.get("kid", ""))] = jwt.PyJWK(key)
            except jwt.PyJWTError:
                continue
    return found


async def _get_json(url: str) -> dict[str, Any]:
    check_secure_url(url)
    # A proxy elsewhere would look for an issuer on this machine at home.
    through = not is_loopback(urlsplit(url).hostname or "")
    async with (
        aiohttp.ClientSession(timeout=TIMEOUT, trust_env=through) as session,
        session.get(url, allow_redirects=False) as answer,
    ):
        if answer.status != 200:
            raise JwksError(f"{url} answered {answer.status}")
        body = b""
        async for piece in answer.content.iter_any():
            body += piece
            if len(body) > MAX_BYTES:
                raise JwksError(f"{url} answered more than {MAX_BYTES} bytes")
    found = json.loads(body)
    if not isinstance(found, dict):
        raise JwksError(f"{url} answered no JSON object")
    return found
