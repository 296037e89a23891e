"""JWTs of an OpenID Connect issuer. Loaded only where one is set: the cryptography takes time and memory."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import jwt

from app.auth.credential import Credential
from app.auth.jwks import JwksCache, JwksError
from app.auth.principal import Principal
from app.auth.tokens import digest_of
from blocklist.model.errors import ForbiddenError, InvalidError, UnauthorizedError
from blocklist.model.node import check_text
from blocklist.model.roles import Role

ALGORITHMS: Final = ("RS256", "ES256")
LEEWAY_SECONDS: Final = 30
"""Seconds by which two clocks may differ."""
MAX_CACHED: Final = 1000
"""JWTs that are known until they end; beyond them the oldest is verified again."""
MAX_JWT_LENGTH: Final = 8 * 1024
_MAX_NAME_LENGTH: Final = 253
_SENTENCES: Final[dict[type[Exception], str]] = {
    jwt.ExpiredSignatureError: "The JWT has ended.",
    jwt.ImmatureSignatureError: "The JWT is not valid yet.",
    jwt.InvalidAudienceError: "The JWT is for another audience.",
    jwt.InvalidIssuerError: "The JWT is of another issuer.",
    jwt.InvalidSignatureError: "The signature of the JWT is wrong.",
    jwt.InvalidAlgorithmError: f"The JWT must be signed with {' or '.join(ALGORITHMS)}.",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class OidcConfig:
    """What a JWT must say, and where it says who and what one is."""

    issuer: str
    audience: str
    roles_claim: str = "roles"
    name_claim: str = "preferred_username"


class OidcVerifier:
    """Verifies JWTs of one issuer; those that were found good are known until they end."""

    def __init__(self, config: OidcConfig, clock: Callable[[], int]) -> None:
        self._config = config
        self._clock = clock
        self._keys = JwksCache(config.issuer, time.monotonic)
        self._cached: dict[bytes, Credential] = {}

    def cached(self, text: bytes) -> Credential | None:
        """The credential of a JWT that was found good before, and still is."""
        credential = self._cached.get(digest_of(text))
        return credential if credential is not None and credential.use(self._clock()) else None

    async def verify(self, text: bytes) -> Credential:
        """The credential of a JWT. Raises UnauthorizedError, or ForbiddenError if it gives no role."""
        if (found := self.cached(text)) is not None:
            return found
        if len(text) > MAX_JWT_LENGTH:
            raise UnauthorizedError("The JWT is too long.", given=True)
        token = text.decode("latin-1")
        try:
            key = await self._keys.get(jwt.get_unverified_header(token).get("kid"))
            said = self._decode(token, key)
        except JwksError as error:
            raise UnauthorizedError(str(error), given=True) from None
        except (jwt.InvalidTokenError, jwt.InvalidKeyError) as error:
            # The library's own words may repeat parts of the token.
            raise UnauthorizedError(_SENTENCES.get(type(error), "This is no valid JWT."), given=True) from None
        credential = Credential(self._principal(said), expires_at=(int(said["exp"]) + LEEWAY_SECONDS) * 1000)
        self._cache_credential(digest_of(text), credential)
        return credential

    def drop_expired(self) -> None:
        """Forget the credentials that have ended, and cut their streams."""
        now = self._clock()
        for digest, credential in list(self._cached.items()):
            if not credential.is_valid(now):
                self._cached.pop(digest).close()

    def _decode(self, token: str, key: jwt.PyJWK) -> dict[str, Any]:
        said: dict[str, Any] = jwt.decode(
            token,
            key,
            algorithms=list(ALGORITHMS),
            issuer=self._config.issuer,
            audience=self._config.audience,
            leeway=LEEWAY_SECONDS,
            options={"require": ["exp", "iss", "aud"]},
        )
        return said

    def _cache_credential(self, digest: bytes, credential: Credential) -> None:
        if len(self._cached) >= MAX_CACHED:
            # What is no longer looked after holds no stream open.
            self._cached.pop(next(iter(self._cached))).close()
        self._cached[digest] = credential

    def _principal(self, claims: Mapping[str, Any]) -> Principal:
        name = next((name for name in (claims.get(self._config.name_claim), claims.get("sub")) if _is_name(name)), None)
        if name is None:
            raise UnauthorizedError(
                f"The JWT names nobody: neither {self._config.name_claim} nor sub is 1 to {_MAX_NAME_LENGTH}"
                " characters.",
                given=True,
            )
        access = strongest_role(claim_at(claims, self._config.roles_claim))
        if access is None:
            raise ForbiddenError(
                f"The JWT's claim {self._config.roles_claim} gives none of the roles {', '.join(Role)}:"
                f" at least {Role.READER.value} is needed."
            )
        return Principal(name, access)


def _is_name(name: object) -> bool:
    try:
        return isinstance(name, str) and 1 <= len(check_text(name)) <= _MAX_NAME_LENGTH
    except InvalidError:
        return False


def claim_at(claims: Mapping[str, Any], path: str) -> object:
    """The claim of this name, or at this dotted path (`realm_access.roles`); None if there is none."""
    if path in claims:
        return claims[path]
    found: object = claims
    for part in path.split("."):
        found = found.get(part) if isinstance(found, Mapping) else None
    return found


def strongest_role(roles: object) -> Role | None:
    """The strongest of our roles in a list, or in a string with blanks or commas between; None without any."""
    if isinstance(roles, str):
        roles = roles.replace(",", " ").split()
    if not isinstance(roles, list):
        return None
    return max((access for access in Role if access.value in roles), key=lambda access: access.rank, default=None)
