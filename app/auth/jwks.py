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

from app.net.addresses import check_url, is_loopback

log = structlog.get_logger(__name__)

REST_SECONDS: Final = 10.0
"""The issuer is asked at most so often, whatever keys strangers name."""
FRESH_SECONDS: Final = 3600.0
"""Older keys are fetched again when one is asked for: an issuer withdraws keys, too."""
TIMEOUT: Final = aiohttp.ClientTimeout(total=5)
MAX_BYTES: Final = 1024 * 1024
_USABLE: Final = ("RSA", "EC")


class KeysError(Exception):
    """There is no key; the message is for who sent the JWT."""


class IssuerKeys:
    """Keys by their id. Those that were fetched go on while the issuer is away."""

    def __init__(self, issuer: str, clock: Callable[[], float]) -> None:
        """`clock` is in seconds, and never goes back."""
        self._issuer = issuer
        self._clock = clock
        self._keys: dict[str, jwt.PyJWK] = {}
        self._fetched: float | None = None
        self._tried: float | None = None
        self._away = False
        self._fetching = asyncio.Lock()
        self._renewing: asyncio.Task[None] | None = None

    async def find(self, kid: object) -> jwt.PyJWK:
        """The key of this id; without an id the only one. Raises KeysError."""
        if (key := self._find(kid)) is not None:
            if not self._recent(self._fetched, FRESH_SECONDS) and not self._fetching.locked():
                # Nobody waits for it: what is known goes on.
                self._renewing = asyncio.create_task(self._fetch_unless_just_now())
            return key
        await self._fetch_unless_just_now()
        if (key := self._find(kid)) is not None:
            return key
        if self._away:
            raise KeysError("The issuer of the JWT is out of reach, so it cannot be verified; try again.")
        raise KeysError("The JWT is signed with a key that its issuer does not have.")

    def _find(self, kid: object) -> jwt.PyJWK | None:
        if kid is None and len(self._keys) == 1:
            return next(iter(self._keys.values()))
        return self._keys.get(kid) if isinstance(kid, str) else None

    def _recent(self, at: float | None, seconds: float) -> bool:
        return at is not None and self._clock() - at < seconds

    async def _fetch_unless_just_now(self) -> None:
        async with self._fetching:
            if not self._recent(self._tried, REST_SECONDS):
                self._tried = self._clock()
                await self._fetch()

    async def _fetch(self) -> None:
        try:
            self._keys = await _fetch(self._issuer)
        except (aiohttp.ClientError, TimeoutError, ValueError, RecursionError, KeysError) as error:
            self._away = True
            log.warning("the keys of the OIDC issuer were not fetched", reason=str(error) or type(error).__name__)
        else:
            self._fetched, self._away = self._clock(), False


async def _fetch(issuer: str) -> dict[str, jwt.PyJWK]:
    about = await _get(f"{issuer.rstrip('/')}/.well-known/openid-configuration")
    if about.get("issuer") != issuer:
        raise KeysError("its discovery document is of another issuer")
    keys = (await _get(str(about.get("jwks_uri")))).get("keys")
    found: dict[str, jwt.PyJWK] = {}
    for key in keys if isinstance(keys, list) else ():
        if isinstance(key, dict) and key.get("kty") in _USABLE and key.get("use", "sig") == "sig":
            try:
                # A key without an id can only be the only one.
                found[str(key.get("kid", ""))] = jwt.PyJWK(key)
            except jwt.PyJWTError:
                continue
    return found


async def _get(url: str) -> dict[str, Any]:
    check_url(url)
    # A proxy elsewhere would look for an issuer on this machine at home.
    through = not is_loopback(urlsplit(url).hostname or "")
    async with (
        aiohttp.ClientSession(timeout=TIMEOUT, trust_env=through) as session,
        session.get(url, allow_redirects=False) as answer,
    ):
        if answer.status != 200:
            raise KeysError(f"{url} answered {answer.status}")
        body = b""
        async for piece in answer.content.iter_any():
            body += piece
            if len(body) > MAX_BYTES:
                raise KeysError(f"{url} answered more than {MAX_BYTES} bytes")
    found = json.loads(body)
    if not isinstance(found, dict):
        raise KeysError(f"{url} answered no JSON object")
    return found
