"""JWTs of an issuer, and of Kubernetes' ServiceAccounts. Imported only for them: cryptography takes time and memory."""

from __future__ import annotations

import asyncio
import hashlib
import json
import ssl
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol
from urllib.parse import urlsplit

import aiohttp
import jwt
import structlog

from app.auth.authenticator import digest_of
from app.auth.credential import KEY_ID_PREFIX, Credential, CredentialCache, Principal
from app.net.addresses import check_secure_url, is_loopback
from blocklist.model.claims import ROLES_BY_NAME, Grants, Role
from blocklist.model.errors import ForbiddenError, InvalidError, UnauthorizedError
from blocklist.model.node import check_text
from blocklist.model.text import read_text

log = structlog.get_logger(__name__)

# The public keys of an issuer of JWTs, fetched when they are needed.

MIN_FETCH_INTERVAL_SECONDS: Final = 10.0
"""Minimum interval between two fetches, so that JWTs with unknown key ids cannot cause many."""
MAX_AGE_SECONDS: Final = 300.0
"""Older keys are fetched again when one is used: the issuer may have withdrawn a key."""
MAX_UNCONFIRMED_SECONDS: Final = 7200.0
"""Keys that could not be fetched again in this time are not used any more: any of them may be withdrawn."""
TIMEOUT: Final = aiohttp.ClientTimeout(total=5)
MAX_BYTES: Final = 1024 * 1024
NO_HEADERS: Final[Mapping[str, str]] = {}
_KEY_TYPES: Final = {"RSA": ("kty", "n", "e"), "EC": ("kty", "crv", "x", "y")}
"""The members of a key that make it what it is (RFC 7638)."""


class PublicKey(NamedTuple):
    """A public key. `id` is made of the key itself: an issuer may use the name of a withdrawn key again."""

    id: str
    jwk: jwt.PyJWK


Keys = dict[str, PublicKey]
"""Public keys by the issuer's names for them; a key without a name has an empty one."""


class JwksError(Exception):
    """A key, or the keys, are not available. The message is for the sender of the JWT, or for the log."""


class OddAnswerError(JwksError):
    """What answers is no issuer, or another one."""


NETWORK_ERRORS: Final = (OSError, aiohttp.ClientError, TimeoutError, ValueError, RecursionError, JwksError)
"""What `exchange` and those that call it raise."""


def reason_of(error: Exception) -> str:
    """For the log: some errors have no text."""
    return str(error) or type(error).__name__


class JwksCache:
    """The keys by their name. While they cannot be fetched again, they remain in use for MAX_UNCONFIRMED_SECONDS."""

    def __init__(
        self,
        issuer: str,
        fetch: Callable[[], Awaitable[Keys]],
        clock: Callable[[], float],
        on_fetched: Callable[[], None],
    ) -> None:
        """`fetch` raises as `fetch_keys` does; `clock` is monotonic, in seconds."""
        self._issuer = issuer
        self._fetch_keys = fetch
        self._clock = clock
        self._on_fetched = on_fetched
        self._keys: Keys = {}
        self._fetched_at: float | None = None
        self._attempted_at: float | None = None
        self._failure = ""
        self._fetch_lock = asyncio.Lock()
        self._refresh_task: asyncio.Task[None] | None = None

    async def get(self, kid: object) -> PublicKey:
        """The key with this name; without a name, the only key. Raises JwksError."""
        if (key := self._find(kid)) is not None:
            self.refresh_old()
            return key
        await self.fetch()
        if (key := self._find(kid)) is not None:
            return key
        if self._failure:
            raise JwksError(f"The JWT cannot be verified, because its issuer {self._failure}.")
        raise JwksError("The JWT is signed with a key that its issuer does not publish.")

    def has(self, key_id: str) -> bool:
        """Whether the issuer publishes this key, as far as is known."""
        return any(key.id == key_id for key in self._usable().values())

    def refresh_old(self) -> None:
        """Fetch the keys again in the background if they are old; meanwhile they remain in use."""
        if not self._is_recent(self._fetched_at, MAX_AGE_SECONDS) and not self._fetch_lock.locked():
            self._refresh_task = asyncio.create_task(self.fetch())

    async def fetch(self) -> None:
        """Fetch the keys, unless that was tried a moment ago."""
        async with self._fetch_lock:
            if not self._is_recent(self._attempted_at, MIN_FETCH_INTERVAL_SECONDS):
                self._attempted_at = self._clock()
                await self._fetch()

    def _usable(self) -> Keys:
        return self._keys if self._is_recent(self._fetched_at, MAX_UNCONFIRMED_SECONDS) else {}

    def _find(self, kid: object) -> PublicKey | None:
        keys = self._usable()
        if kid is None and len(keys) == 1:
            return next(iter(keys.values()))
        return keys.get(kid) if isinstance(kid, str) else None

    def _is_recent(self, at: float | None, seconds: float) -> bool:
        return at is not None and self._clock() - at < seconds

    async def _fetch(self) -> None:
        try:
            self._keys = await self._fetch_keys()
        except NETWORK_ERRORS as error:
            # Of an issuer that answers oddly it would be wrong to say that it is unreachable.
            odd = isinstance(error, OddAnswerError | ValueError | RecursionError)
            self._failure = (
                "does not answer as one; the log of the service has the reason"
                if odd
                else "is unreachable; try again later"
            )
            log.warning(
                "the keys of an issuer of JWTs could not be fetched", issuer=self._issuer, reason=reason_of(error)
            )
        else:
            self._fetched_at, self._failure = self._clock(), ""
            self._on_fetched()


async def discover(issuer: str) -> dict[str, Any]:
    """The issuer's discovery document. Raises as `fetch_keys` does."""
    discovery = await _get_json(f"{issuer.rstrip('/')}/.well-known/openid-configuration")
    named = discovery.get("issuer")
    if not isinstance(named, str) or named.rstrip("/") != issuer.rstrip("/"):
        raise OddAnswerError(
            f"the discovery document is that of the issuer {str(named)[:300]!a}: if this is the one that is meant, set"
            " BLOCKLIST_OIDC_ISSUER to it"
        )
    return discovery


async def discover_keys(issuer: str) -> Keys:
    """The keys that the issuer's discovery document names. Raises as `fetch_keys` does."""
    return await fetch_keys(str((await discover(issuer)).get("jwks_uri")))


async def fetch_keys(url: str, *, token: str | None = None, tls: ssl.SSLContext | None = None) -> Keys:
    """The usable keys at a URL, which may need a token.

    Raises JwksError, aiohttp.ClientError, TimeoutError, ValueError, RecursionError.
    """
    keys = (await _get_json(url, token, tls)).get("keys")
    if not isinstance(keys, list):
        raise OddAnswerError(f"{url} did not return a list of keys")
    usable: Keys = {}
    for key in keys:
        if isinstance(key, dict) and key.get("kty") in _KEY_TYPES and key.get("use", "sig") == "sig":
            try:
                # A key without an id is found only if it is the only one.
                usable[str(key.get("kid", ""))] = PublicKey(_key_id(key), jwt.PyJWK(key))
            except jwt.PyJWTError:
                continue
    return usable


def _key_id(key: Mapping[str, Any]) -> str:
    members = {name: str(key.get(name)) for name in _KEY_TYPES[key["kty"]]}
    return f"{KEY_ID_PREFIX}{hashlib.sha256(json.dumps(members, sort_keys=True).encode()).hexdigest()[:12]}"


async def exchange(
    url: str, *, headers: Mapping[str, str] = NO_HEADERS, form: str | None = None, tls: ssl.SSLContext | None = None
) -> tuple[int, bytes]:
    """Status and body of an issuer's answer to a GET, or to a POST of this form. Raises as `fetch_keys` does."""
    check_secure_url(url)
    # No proxy for an issuer on this machine: a proxy elsewhere would connect to its own loopback. None for one with its
    # own authority either: it is in this network.
    use_proxy = tls is None and not is_loopback(urlsplit(url).hostname or "")
    method = "GET" if form is None else "POST"
    ssl_setting = True if tls is None else tls
    try:
        async with (
            aiohttp.ClientSession(timeout=TIMEOUT, trust_env=use_proxy, headers=headers) as session,
            session.request(method, url, data=form, allow_redirects=False, ssl=ssl_setting) as response,
        ):
            body = b""
            async for chunk in response.content.iter_any():
                body += chunk
                if len(body) > MAX_BYTES:
                    raise JwksError(f"{url} returned more than {MAX_BYTES} bytes")
            return response.status, body
    except aiohttp.ClientConnectorCertificateError as error:
        if tls is not None:
            raise
        raise JwksError(
            f"{error}. If its authority is your own, add it to those of this machine, or give its file as SSL_CERT_FILE"
        ) from None


async def _get_json(url: str, token: str | None = None, tls: ssl.SSLContext | None = None) -> dict[str, Any]:
    headers = NO_HEADERS if token is None else {"Authorization": f"Bearer {token}"}
    status, body = await exchange(url, headers=headers, tls=tls)
    if status != 200:
        raise JwksError(f"{url} returned status {status}")
    document = json.loads(body)
    if not isinstance(document, dict):
        raise OddAnswerError(f"{url} did not return a JSON object")
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
    jwt.MissingRequiredClaimError: "The JWT lacks one of the claims exp, iss and aud.",
    jwt.InvalidAlgorithmError: f"The JWT must be signed with {' or '.join(ALGORITHMS)}.",
}


class JwtRules(Protocol):
    """The issuer and audience that a JWT must have, and whom it names."""

    @property
    def issuer(self) -> str: ...

    @property
    def audiences(self) -> tuple[str, ...]: ...

    def principal(self, claims: Mapping[str, Any]) -> Principal:
        """The principal of a valid JWT. Raises UnauthorizedError without a name, ForbiddenError without a role."""


@dataclass(frozen=True, kw_only=True, slots=True)
class OidcConfig:
    """The rules of an OpenID Connect issuer: claims of its JWTs have the name, and roles or groups."""

    issuer: str
    audiences: tuple[str, ...]
    """A JWT is for one of these."""
    roles_claim: str = "roles"
    grants: Grants = ROLES_BY_NAME
    name_claim: str = "preferred_username"

    def principal(self, claims: Mapping[str, Any]) -> Principal:
        named = {self.name_claim: claim_at(claims, self.name_claim), "sub": claims.get("sub")}
        name = next((str(name) for name in named.values() if is_name(name)), None)
        if name is None:
            states = " and ".join(f"{claim} is {_what(value)}" for claim, value in named.items())
            raise UnauthorizedError(
                f"The JWT has no name: {states}; needed is a text of 1 to {_MAX_NAME_LENGTH} characters"
                " (BLOCKLIST_OIDC_NAME_CLAIM names the claim).",
                given=True,
            )
        roles = claim_at(claims, self.roles_claim)
        grant = self.grants.of_any(texts_in(roles))
        if grant is None:
            raise ForbiddenError(self._no_role(roles))
        subject = claims.get("sub")
        subject = subject if is_name(subject) else None
        principal = Principal(name, grant.role, subject, owners=grant.owners, listeners=grant.listeners)
        principal.check_name()
        return principal

    def _no_role(self, roles: object) -> str:
        needed = f"at least {Role.READER.value} of the roles {', '.join(Role)} is needed"
        if roles is None:
            return f"The JWT has no claim {self.roles_claim} (BLOCKLIST_OIDC_ROLES_CLAIM): {needed}."
        if isinstance(roles, list | str) and self.grants != ROLES_BY_NAME:
            return f"The JWT's claim {self.roles_claim} has no group to which BLOCKLIST_OIDC_ROLES gives a role."
        if isinstance(roles, list | str):
            return f"The JWT's claim {self.roles_claim} has none of the service's roles: {needed}."
        return f"The JWT's claim {self.roles_claim} is {_what(roles)}, neither a list nor a text: {needed}."


def _what(value: object) -> str:
    """The kind of a claim: its value may be a secret."""
    if value is None:
        return "missing"
    if isinstance(value, bool):
        return "true or false"
    kinds = {dict: "an object", list: "a list", str: "a text", int: "a number", float: "a number"}
    return kinds.get(type(value), "something else")


class JwtCredential(Credential):
    """The credential of a JWT, with the id of its key: valid while the issuer publishes that."""

    __slots__ = ("_keys",)

    def __init__(self, principal: Principal, keys: JwksCache, key_id: str, expires_at: int) -> None:
        super().__init__(principal, expires_at=expires_at, id=key_id)
        self._keys = keys

    def is_valid(self, now: int) -> bool:
        return super().is_valid(now) and self._keys.has(self.id)


class OidcVerifier:
    """Verifies JWTs of one issuer, and caches their credentials until they expire or their key is withdrawn."""

    def __init__(self, rules: JwtRules, fetch_keys: Callable[[], Awaitable[Keys]], clock: Callable[[], int]) -> None:
        self.rules = rules
        self._clock = clock
        self._keys = JwksCache(rules.issuer, fetch_keys, lambda: asyncio.get_running_loop().time(), self.drop_invalid)
        self._cached = CredentialCache[bytes, Credential]()

    def cached(self, text: bytes) -> Credential | None:
        """The credential of a JWT that was verified before and is still valid. Records a use."""
        credential = self._cached.get(digest_of(text))
        return credential if credential is not None and credential.use(self._clock()) else None

    async def verify(self, text: bytes) -> Credential:
        """The credential of a JWT. Raises UnauthorizedError, or ForbiddenError if it gives no role."""
        if (cached := self.cached(text)) is not None:
            return cached
        claims, key = await self._verified(text)
        expires_at = (int(claims["exp"]) + LEEWAY_SECONDS) * 1000
        credential = JwtCredential(self.rules.principal(claims), self._keys, key.id, expires_at)
        self._cached.add(digest_of(text), credential)
        return credential

    async def claims(self, text: bytes) -> dict[str, Any]:
        """The claims of a JWT, whatever role they give. Raises UnauthorizedError."""
        return (await self._verified(text))[0]

    async def _verified(self, text: bytes) -> tuple[dict[str, Any], PublicKey]:
        if len(text) > MAX_JWT_LENGTH:
            raise UnauthorizedError("The JWT is too long.", given=True)
        token = text.decode("latin-1")
        try:
            key = await self._keys.get(jwt.get_unverified_header(token).get("kid"))
            return self._decode(token, key.jwk), key
        except JwksError as error:
            raise UnauthorizedError(str(error), given=True) from None
        except (jwt.InvalidTokenError, jwt.InvalidKeyError) as error:
            # Not the library's own message, which may repeat parts of the token.
            raise UnauthorizedError(_SENTENCES.get(type(error), "The JWT is not valid."), given=True) from None

    def has_key(self, key_id: str) -> bool:
        """Whether the issuer publishes this key, as far as is known; keys that are old are fetched again."""
        if not self._keys.has(key_id):
            return False
        self._keys.refresh_old()
        return True

    async def fetch_key(self, key_id: str) -> bool:
        """The same; the keys are fetched if it is not among them."""
        if not self._keys.has(key_id):
            await self._keys.fetch()
        return self._keys.has(key_id)

    def drop_invalid(self) -> None:
        """Remove the credentials that have expired, and those whose key is withdrawn; close their streams."""
        now = self._clock()
        for digest, credential in list(self._cached.items()):
            if not credential.is_valid(now):
                self._cached.pop(digest).invalidate()
        if self._cached:
            self._keys.refresh_old()

    def _decode(self, token: str, key: jwt.PyJWK) -> dict[str, Any]:
        claims: dict[str, Any] = jwt.decode(
            token,
            key,
            algorithms=list(ALGORITHMS),
            # With and without a final slash: issuers are not of one mind.
            issuer=(self.rules.issuer.rstrip("/"), f"{self.rules.issuer.rstrip('/')}/"),
            audience=self.rules.audiences,
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


def claim_at(claims: object, path: str) -> object:
    """The claim with this name, or at this dotted path (`realm_access.roles`); None if there is none.

    Names on the path may have dots themselves: the longest one that exists leads on.
    """
    if not isinstance(claims, Mapping):
        return None
    if path in claims:
        return claims[path]
    parts = path.split(".")
    for number in range(len(parts) - 1, 0, -1):
        found = claim_at(claims.get(".".join(parts[:number])), ".".join(parts[number:]))
        if found is not None:
            return found
    return None


def texts_in(values: object) -> Collection[str]:
    """The texts in a list, or in a text separated by blanks or commas."""
    if isinstance(values, str):
        return values.replace(",", " ").split()
    return [value for value in values if isinstance(value, str)] if isinstance(values, list) else ()


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
    audiences: tuple[str, ...]
    roles: Grants

    def principal(self, claims: Mapping[str, Any]) -> Principal:
        subject = str(claims.get("sub", ""))
        namespace, _, name = subject.removeprefix(_SUBJECT).partition(":")
        if not subject.startswith(_SUBJECT) or not name:
            raise UnauthorizedError("The JWT is not that of a ServiceAccount.", given=True)
        grant = self.roles.of_account(namespace, name)
        if grant is None:
            raise ForbiddenError(
                f"The ServiceAccount {namespace}/{name} has no role: an operator can give it one in"
                " BLOCKLIST_SERVICE_ACCOUNT_ROLES."
            )
        return Principal(subject, grant.role, subject, owners=grant.owners, listeners=grant.listeners)


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


class JwtVerifiers:
    """A verifier for each issuer, which is named without a final slash; a JWT names the one that verifies it."""

    def __init__(self, verifiers: Mapping[str, OidcVerifier]) -> None:
        self._verifiers = verifiers

    def of_issuer(self, issuer: str) -> OidcVerifier:
        """The verifier of an issuer that the settings name."""
        return self._verifiers[issuer.rstrip("/")]

    def cached(self, text: bytes) -> Credential | None:
        """The credential of a JWT that was verified before and is still valid. Records a use."""
        found = (verifier.cached(text) for verifier in self._verifiers.values())
        return next((credential for credential in found if credential is not None), None)

    async def verify(self, text: bytes) -> Credential:
        """The credential of a JWT. Raises UnauthorizedError, or ForbiddenError if it gives no role."""
        verifier = self._verifiers.get(_issuer(text).rstrip("/"))
        if verifier is None:
            raise UnauthorizedError("The JWT is from another issuer.", given=True)
        return await verifier.verify(text)

    def has_key(self, key_id: str) -> bool:
        """Whether one of the issuers publishes this key, as far as is known."""
        return any(verifier.has_key(key_id) for verifier in self._verifiers.values())

    async def fetch_key(self, key_id: str) -> bool:
        """The same; keys are fetched if it is not among them."""
        return self.has_key(key_id) or any([await it.fetch_key(key_id) for it in self._verifiers.values()])

    def drop_invalid(self) -> None:
        """Remove the credentials that have expired, and those whose key is withdrawn; close their streams."""
        for verifier in self._verifiers.values():
            verifier.drop_invalid()


def _issuer(text: bytes) -> str:
    """The issuer that a JWT names, which proves nothing yet. Raises UnauthorizedError."""
    if len(text) > MAX_JWT_LENGTH:
        raise UnauthorizedError("The JWT is too long.", given=True)
    try:
        return str(jwt.decode(text.decode("latin-1"), options={"verify_signature": False}).get("iss"))
    except (jwt.InvalidTokenError, ValueError, RecursionError):
        raise UnauthorizedError("The JWT is not valid.", given=True) from None
