"""JWTs of an issuer. Imported only if one is set: the cryptography takes time and memory."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol

import jwt

from app.auth.credential import Credential, CredentialCache
from app.auth.jwks import JwksCache, JwksError, Keys
from app.auth.principal import Principal
from app.auth.tokens import digest_of
from blocklist.model.errors import ForbiddenError, InvalidError, UnauthorizedError
from blocklist.model.node import check_text
from blocklist.model.roles import Role

ALGORITHMS: Final = ("RS256", "ES256")
LEEWAY_SECONDS: Final = 30
"""Maximum difference of the clocks of the service and the issuer."""
MAX_JWT_LENGTH: Final = 8 * 1024
_MAX_NAME_LENGTH: Final = 253
_SENTENCES: Final[dict[type[Exception], str]] = {
    jwt.ExpiredSignatureError: "The JWT has expired.",
    jwt.ImmatureSignatureError: "The JWT is not valid yet.",
    jwt.InvalidAudienceError: "The JWT is for another audience.",
    jwt.InvalidIssuerError: "The JWT is from another issuer.",
    jwt.InvalidSignatureError: "The signature of the JWT is invalid.",
    jwt.InvalidAlgorithmError: f"The JWT must be signed with {' or '.join(ALGORITHMS)}.",
}


class JwtRules(Protocol):
    """The issuer and audience that a JWT must have, and whom it names."""

    @property
    def issuer(self) -> str: ...

    @property
    def audience(self) -> str: ...

    def principal(self, claims: Mapping[str, Any]) -> Principal:
        """The principal of a valid JWT. Raises UnauthorizedError without a name, ForbiddenError without a role."""


@dataclass(frozen=True, kw_only=True, slots=True)
class OidcConfig:
    """The rules of an OpenID Connect issuer: claims of its JWTs have the roles and the name."""

    issuer: str
    audience: str
    roles_claim: str = "roles"
    name_claim: str = "preferred_username"

    def principal(self, claims: Mapping[str, Any]) -> Principal:
        name = next((name for name in (claims.get(self.name_claim), claims.get("sub")) if is_name(name)), None)
        if name is None:
            raise UnauthorizedError(
                f"The JWT has no name: neither {self.name_claim} nor sub is a text of 1 to {_MAX_NAME_LENGTH}"
                " characters.",
                given=True,
            )
        role = strongest_role(claim_at(claims, self.roles_claim))
        if role is None:
            raise ForbiddenError(
                f"The JWT's claim {self.roles_claim} has none of the roles {', '.join(Role)};"
                f" at least {Role.READER.value} is needed."
            )
        subject = claims.get("sub")
        return Principal(name, role, subject if is_name(subject) else None)


class OidcVerifier:
    """Verifies JWTs of one issuer, and caches their credentials until they expire."""

    def __init__(self, rules: JwtRules, fetch_keys: Callable[[], Awaitable[Keys]], clock: Callable[[], int]) -> None:
        self._rules = rules
        self._clock = clock
        self._keys = JwksCache(rules.issuer, fetch_keys, lambda: asyncio.get_running_loop().time())
        self._cached = CredentialCache[bytes]()

    def cached(self, text: bytes) -> Credential | None:
        """The credential of a JWT that was verified before and is still valid. Records a use."""
        credential = self._cached.get(digest_of(text))
        return credential if credential is not None and credential.use(self._clock()) else None

    async def verify(self, text: bytes) -> Credential:
        """The credential of a JWT. Raises UnauthorizedError, or ForbiddenError if it gives no role."""
        if (cached := self.cached(text)) is not None:
            return cached
        if len(text) > MAX_JWT_LENGTH:
            raise UnauthorizedError("The JWT is too long.", given=True)
        token = text.decode("latin-1")
        try:
            key = await self._keys.get(jwt.get_unverified_header(token).get("kid"))
            claims = self._decode(token, key)
        except JwksError as error:
            raise UnauthorizedError(str(error), given=True) from None
        except (jwt.InvalidTokenError, jwt.InvalidKeyError) as error:
            # Not the library's own message, which may repeat parts of the token.
            raise UnauthorizedError(_SENTENCES.get(type(error), "The JWT is not valid."), given=True) from None
        credential = Credential(self._rules.principal(claims), expires_at=(int(claims["exp"]) + LEEWAY_SECONDS) * 1000)
        self._cached.add(digest_of(text), credential)
        return credential

    def drop_expired(self) -> None:
        """Remove the credentials that have expired, and close their streams."""
        now = self._clock()
        for digest, credential in list(self._cached.items()):
            if not credential.is_valid(now):
                self._cached.pop(digest).close()

    def _decode(self, token: str, key: jwt.PyJWK) -> dict[str, Any]:
        claims: dict[str, Any] = jwt.decode(
            token,
            key,
            algorithms=list(ALGORITHMS),
            issuer=self._rules.issuer,
            audience=self._rules.audience,
            leeway=LEEWAY_SECONDS,
            options={"require": ["exp", "iss", "aud"]},
        )
        return claims


def is_name(name: object) -> bool:
    """Whether a claim can be the name of an author."""
    try:
        return isinstance(name, str) and bool(name.strip()) and len(check_text(name)) <= _MAX_NAME_LENGTH
    except InvalidError:
        return False


def claim_at(claims: Mapping[str, Any], path: str) -> object:
    """The claim with this name, or at this dotted path (`realm_access.roles`); None if there is none."""
    if path in claims:
        return claims[path]
    value: object = claims
    for part in path.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return value


def strongest_role(roles: object) -> Role | None:
    """The strongest role in a list, or in a string separated by blanks or commas; None if there is none."""
    if isinstance(roles, str):
        roles = roles.replace(",", " ").split()
    if not isinstance(roles, list):
        return None
    return max((role for role in Role if role.value in roles), key=lambda role: role.rank, default=None)
