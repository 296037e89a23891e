"""JWTs of an issuer. Imported only if one is set: the cryptography takes time and memory."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol
from urllib.parse import urlsplit

import aiohttp
import jwt
import structlog

from app.auth.authenticator import digest_of
from app.auth.credential import Credential, CredentialCache, Principal
from app.net.addresses import check_secure_url, is_loopback
from app.net.service_account_roles import ServiceAccountRoles
from blocklist.model.errors import ForbiddenError, InvalidError, UnauthorizedError
from blocklist.model.node import check_text
from blocklist.model.roles import Role
from blocklist.model.text import read_text

log = structlog.get_logger(__name__)

# The public keys of an issuer of JWTs, fetched when they are needed.

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


# Tokens of Kubernetes ServiceAccounts: JWTs of the API server of the cluster in which the service runs.
#
# Source: "Configure Service Accounts for Pods" in the documentation of Kubernetes. The keys are read from the API
# server itself, at /openid/v1/jwks, which works on every cluster: discovery documents name addresses that pods may
# not reach.

FOLDER: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
"""Where Kubernetes mounts the token of a pod's ServiceAccount, and the authority of the API server."""
_SUBJECT: Final = "system:serviceaccount:"


class ServiceAccountError(Exception):
    """The service's own ServiceAccount cannot be used; the message is for the operator."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ServiceAccountRules:
    """The rules of the cluster's API server: the settings give each ServiceAccount its role."""

    issuer: str
    audience: str
    roles: ServiceAccountRoles

    def principal(self, claims: Mapping[str, Any]) -> Principal:
        subject = str(claims.get("sub", ""))
        namespace, _, name = subject.removeprefix(_SUBJECT).partition(":")
        if not subject.startswith(_SUBJECT) or not name:
            raise UnauthorizedError("The JWT is not that of a ServiceAccount.", given=True)
        role = self.roles.role_of(namespace, name)
        if role is None:
            raise ForbiddenError(
                f"The ServiceAccount {namespace}/{name} has no role: an operator can give it one in"
                " BLOCKLIST_SERVICE_ACCOUNT_ROLES."
            )
        return Principal(subject, role, subject)


@dataclass(frozen=True, slots=True)
class OwnAccount:
    """The folder with the token of the service's own ServiceAccount and the authority of the API server.

    Both files are read at each use: they are replaced before they expire.
    """

    folder: Path

    def issuer(self) -> str:
        """The issuer of the cluster's tokens: that of the service's own one. Raises ServiceAccountError."""
        try:
            claims = jwt.decode(self._token(), options={"verify_signature": False})
        except OSError as error:
            raise ServiceAccountError(f"{error.filename} cannot be read: {error.strerror}.") from None
        except (ValueError, jwt.InvalidTokenError):
            claims = {}
        if not isinstance(claims.get("iss"), str):
            raise ServiceAccountError(f"{self.folder / 'token'} is not the token of a ServiceAccount.")
        return str(claims["iss"])

    def read(self) -> tuple[str, ssl.SSLContext]:
        """The token, and TLS with the cluster's authority only. Raises OSError, ValueError."""
        return self._token(), ssl.create_default_context(cafile=str(self.folder / "ca.crt"))

    def _token(self) -> str:
        return read_text(self.folder / "token").strip()


def make_verifier(
    rules: ServiceAccountRules, own: OwnAccount, api_server: str, clock: Callable[[], int]
) -> OidcVerifier:
    """A verifier with the keys of the API server at this URL."""

    async def fetch() -> Keys:
        token, tls = await asyncio.to_thread(own.read)
        return await fetch_keys(f"{api_server}/openid/v1/jwks", token=token, tls=tls)

    return OidcVerifier(rules, fetch, clock)


# JWTs of several issuers.


class IssuerVerifiers:
    """A verifier for each issuer; a JWT is verified by that of the issuer which it names."""

    def __init__(self, verifiers: Mapping[str, OidcVerifier]) -> None:
        self._verifiers = dict(verifiers)

    def cached(self, text: bytes) -> Credential | None:
        """The credential of a JWT that was verified before and is still valid. Records a use."""
        found = (verifier.cached(text) for verifier in self._verifiers.values())
        return next((credential for credential in found if credential is not None), None)

    async def verify(self, text: bytes) -> Credential:
        """The credential of a JWT. Raises UnauthorizedError, or ForbiddenError if it gives no role."""
        verifier = self._verifiers.get(_issuer(text))
        if verifier is None:
            raise UnauthorizedError("The JWT is from another issuer.", given=True)
        return await verifier.verify(text)

    def drop_expired(self) -> None:
        """Remove the credentials that have expired, and close their streams."""
        for verifier in self._verifiers.values():
            verifier.drop_expired()


def _issuer(text: bytes) -> str:
    """The issuer that a JWT names, which proves nothing yet. Raises UnauthorizedError."""
    if len(text) > MAX_JWT_LENGTH:
        raise UnauthorizedError("The JWT is too long.", given=True)
    try:
        return str(jwt.decode(text.decode("latin-1"), options={"verify_signature": False}).get("iss"))
    except (jwt.InvalidTokenError, ValueError, RecursionError):
        raise UnauthorizedError("The JWT is not valid.", given=True) from None
