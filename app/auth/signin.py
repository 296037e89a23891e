"""People log in at an OpenID Connect issuer: the authorization code flow with PKCE, and later confirmations.

Imported only with BLOCKLIST_OIDC_CLIENT_ID. Sources: OpenID Connect Core 1.0, RFC 7636 (PKCE), RFC 9207 (`iss` in the
response), RFC 7009 (revocation), RFC 9700 (best practices), OpenID Connect RP-Initiated Logout 1.0.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
import secrets
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from hmac import compare_digest
from typing import Any, Final, NamedTuple
from urllib.parse import urlencode, urlsplit

import structlog
from authlib.oauth2.auth import ClientAuth
from authlib.oauth2.rfc6749.parameters import prepare_grant_uri, prepare_token_request
from authlib.oauth2.rfc7636 import create_s256_code_challenge
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from app.auth.credential import Principal
from app.auth.oidc import NETWORK_ERRORS, JwksError, OidcVerifier, discover, exchange, reason_of
from app.auth.sessions import NOT_BEGUN, Attempt
from app.net.addresses import check_secure_url
from blocklist.model.errors import ForbiddenError, UnauthorizedError, UnavailableError

log = structlog.get_logger(__name__)

MAX_DISCOVERY_AGE_SECONDS: Final = 300.0
_NONCE_BYTES: Final = 12
_NOT_THE_PERSON: Final = ("invalid_client", "unauthorized_client", "server_error", "temporarily_unavailable")
"""Errors of RFC 6749 about the service or the issuer. Keycloak sends `unauthorized_client` for a wrong secret."""
_PRINTABLE: Final = re.compile(r"[ -~]{1,200}", re.ASCII)


@dataclass(frozen=True, slots=True)
class IssuerSession:
    """What the issuer gave at a log-in: it renews, and ends, the person's session there."""

    issuer: str
    subject: str
    refresh_token: str | None
    id_token: str

    def sealed(self, cookie: str) -> str:
        """Encrypted with the value of the session's cookie, of which the database has only a digest (AES-GCM)."""
        nonce = secrets.token_bytes(_NONCE_BYTES)
        return urlsafe_b64encode(
            nonce + AESGCM(_key(cookie)).encrypt(nonce, json.dumps(asdict(self)).encode(), None)
        ).decode()

    @classmethod
    def unsealed(cls, text: str, cookie: str) -> IssuerSession:
        """Raises UnauthorizedError."""
        try:
            data = urlsafe_b64decode(text)
            return cls(**json.loads(AESGCM(_key(cookie)).decrypt(data[:_NONCE_BYTES], data[_NONCE_BYTES:], None)))
        except (ValueError, TypeError, InvalidTag):
            raise UnauthorizedError("The session cannot be read: log in again.", given=True) from None


def _key(cookie: str) -> bytes:
    return hashlib.blake2b(cookie.encode(), digest_size=32, person=b"blocklist page").digest()


class SignedIn(NamedTuple):
    """A person who has logged in, or whose log-in the issuer has confirmed."""

    principal: Principal
    at_issuer: IssuerSession


@dataclass(frozen=True, slots=True)
class ClientConfig:
    """The service as a client of an issuer; without a secret it is a public client, which PKCE protects."""

    issuer: str
    client_id: str
    client_secret: str
    scope: str

    @property
    def host(self) -> str:
        return urlsplit(self.issuer).netloc


class Provider:
    """One issuer at which people log in."""

    def __init__(self, config: ClientConfig, verifier: OidcVerifier) -> None:
        self.config = config
        self._verifier = verifier
        self._discovered: Mapping[str, Any] = {}
        self._discovered_at = 0.0

    async def authorization_url(self, attempt: Attempt, redirect_uri: str) -> str:
        """Where the browser goes. Raises UnavailableError."""
        url: str = prepare_grant_uri(
            await self._endpoint("authorization_endpoint"),
            self.config.client_id,
            "code",
            redirect_uri,
            self.config.scope,
            attempt.state,
            nonce=attempt.nonce,
            code_challenge=create_s256_code_challenge(attempt.secret),
            code_challenge_method="S256",
        )
        return url

    async def redeem(self, attempt: Attempt, answer: Mapping[str, str], redirect_uri: str) -> SignedIn:
        """The person of the issuer's answer, which the browser brings.

        Raises UnauthorizedError, ForbiddenError without a role, UnavailableError.
        """
        if not compare_digest(answer.get("state", "").encode(), attempt.state.encode()):
            raise UnauthorizedError(NOT_BEGUN, given=True)
        if "iss" in answer and answer["iss"].rstrip("/") != self.config.issuer.rstrip("/"):
            raise UnauthorizedError("The answer is that of another issuer: log in again.", given=True)
        if "code" not in answer:
            raise _refused(answer)
        tokens = await self._request_tokens(
            "authorization_code", code=answer["code"], redirect_uri=redirect_uri, code_verifier=attempt.secret
        )
        return await self._signed_in(tokens, None, attempt.nonce)

    async def renew(self, session: IssuerSession) -> SignedIn:
        """Ask whether the person is still logged in, and for the present groups. Raises as `redeem` does."""
        tokens = await self._request_tokens("refresh_token", refresh_token=session.refresh_token)
        return await self._signed_in(tokens, session, None)

    async def end(self, session: IssuerSession, return_to: str) -> str | None:
        """End the session at the issuer: revoke its refresh token; where the browser logs out there, if anywhere."""
        try:
            discovered = await self._discover()
            if session.refresh_token is not None and isinstance(url := discovered.get("revocation_endpoint"), str):
                body = urlencode({"token": session.refresh_token, "token_type_hint": "refresh_token"})
                await self._post(url, body)
        except NETWORK_ERRORS as error:
            log.warning("an issuer could not be told of a log-out", issuer=self.config.issuer, reason=reason_of(error))
            return None
        if not isinstance(url := discovered.get("end_session_endpoint"), str):
            return None
        fields = {
            "id_token_hint": session.id_token,
            "client_id": self.config.client_id,
            "post_logout_redirect_uri": return_to,
        }
        return f"{url}{'&' if '?' in url else '?'}{urlencode(fields)}"

    async def _signed_in(self, tokens: Mapping[str, Any], former: IssuerSession | None, nonce: str | None) -> SignedIn:
        """Without an id token in the answer to a renewal, the access token says who it is (Core 1.0, 12.2)."""
        given = tokens.get("id_token")
        id_token = given if isinstance(given, str) else None if former is None else former.id_token
        if id_token is None:
            raise UnauthorizedError("The issuer sent no ID token: the scope needs openid.", given=True)
        access = str(tokens.get("access_token", ""))
        claims = await self._verifier.claims((given if isinstance(given, str) else access).encode(errors="replace"))
        if isinstance(given, str):
            self._check_id_token(claims, nonce)
        subject = claims.get("sub")
        if not isinstance(subject, str) or (former is not None and subject != former.subject):
            raise UnauthorizedError("The issuer's ID token is that of somebody else: log in again.", given=True)
        refresh = tokens.get("refresh_token")
        refresh = refresh if isinstance(refresh, str) else None if former is None else former.refresh_token
        at_issuer = IssuerSession(self.config.issuer, subject, refresh, id_token)
        return SignedIn(await self._principal(claims, access), at_issuer)

    def _check_id_token(self, claims: Mapping[str, Any], nonce: str | None) -> None:
        audiences = claims["aud"] if isinstance(claims["aud"], list) else [claims["aud"]]
        if self.config.client_id not in audiences or claims.get("azp", self.config.client_id) != self.config.client_id:
            raise UnauthorizedError("The issuer's ID token is for another client.", given=True)
        if nonce is not None and not compare_digest(str(claims.get("nonce", "")).encode(), nonce.encode()):
            raise UnauthorizedError(NOT_BEGUN, given=True)

    async def _principal(self, claims: Mapping[str, Any], access: str) -> Principal:
        """The groups may be in the access token only, as those of Keycloak's realms."""
        try:
            return self._verifier.rules.principal(claims)
        except ForbiddenError:
            try:
                others = await self._verifier.claims(access.encode(errors="replace"))
            except UnauthorizedError:
                others = {}
            if others.get("sub") != claims["sub"]:
                raise
            return self._verifier.rules.principal({**others, **{k: v for k, v in claims.items() if k not in others}})

    async def _request_tokens(self, grant_type: str, **fields: str | None) -> Mapping[str, Any]:
        """Raises UnauthorizedError if the issuer refuses, UnavailableError."""
        url = await self._endpoint("token_endpoint")
        try:
            status, answer = await self._post(url, prepare_token_request(grant_type, **fields))
        except NETWORK_ERRORS as error:
            raise self._away(error) from None
        if status == 200 and isinstance(answer, dict):
            return answer
        if status in (400, 401, 403) and isinstance(answer, dict) and "error" in answer:
            if answer["error"] in _NOT_THE_PERSON:
                # Sessions go on: after a change of the secret at the issuer nobody is logged out.
                raise self._away(JwksError(f"{url} refuses the service: {_words(answer)}"))
            raise _refused(answer)
        raise self._away(JwksError(f"{url} returned status {status}"))

    async def _post(self, url: str, body: str) -> tuple[int, object]:
        """Status and JSON; None for another body."""
        headers = {"Content-Type": "application/x-www-form-urlencoded", "Accept": "application/json"}
        method = "client_secret_basic" if self.config.client_secret else "none"
        client = ClientAuth(self.config.client_id, self.config.client_secret, method)
        url, headers, form = client.prepare("POST", url, headers, body)
        status, content = await exchange(url, headers=headers, form=form)
        try:
            return status, json.loads(content)
        except (ValueError, RecursionError):
            return status, None

    async def _endpoint(self, name: str) -> str:
        """Raises UnavailableError."""
        try:
            url = (await self._discover()).get(name)
            if not isinstance(url, str):
                raise JwksError(f"its discovery document names no {name}")
        except NETWORK_ERRORS as error:
            raise self._away(error) from None
        return check_secure_url(url)

    async def _discover(self) -> Mapping[str, Any]:
        now = asyncio.get_running_loop().time()
        if not self._discovered or now - self._discovered_at > MAX_DISCOVERY_AGE_SECONDS:
            self._discovered, self._discovered_at = await discover(self.config.issuer), now
        return self._discovered

    def _away(self, error: Exception) -> UnavailableError:
        log.warning("an issuer cannot be used for log-ins", issuer=self.config.issuer, reason=reason_of(error))
        return UnavailableError(
            f"The issuer {self.config.host} cannot be reached, or does not answer as one: try again later, or log in"
            " with a token. The log of the service has the reason."
        )


class SignIn:
    """All issuers at which people log in, in the order of the setting."""

    def __init__(self, providers: Sequence[Provider]) -> None:
        self.providers = providers

    def use_secrets(self, secrets: Sequence[str]) -> None:
        """The secrets of the client have changed: one for each provider."""
        for provider, secret in zip(self.providers, secrets, strict=True):
            provider.config = replace(provider.config, client_secret=secret)

    def provider(self, number: int) -> Provider:
        """Raises UnauthorizedError."""
        if not 0 <= number < len(self.providers):
            raise UnauthorizedError(NOT_BEGUN, given=True)
        return self.providers[number]

    async def renew(self, sealed: str, cookie: str) -> SignedIn:
        """Raises UnauthorizedError and ForbiddenError if the session at the issuer has ended, UnavailableError."""
        session = IssuerSession.unsealed(sealed, cookie)
        if session.refresh_token is None:
            raise UnauthorizedError("The session cannot be confirmed: log in again.", given=True)
        return await self._provider_of(session).renew(session)

    async def end(self, sealed: str, cookie: str, return_to: str) -> str | None:
        """As Provider.end; None for a session that cannot be read."""
        try:
            session = IssuerSession.unsealed(sealed, cookie)
            return await self._provider_of(session).end(session, return_to)
        except UnauthorizedError:
            return None

    def _provider_of(self, session: IssuerSession) -> Provider:
        """Found by its URL: the order of the setting may have changed. Raises UnauthorizedError."""
        for provider in self.providers:
            if provider.config.issuer == session.issuer:
                return provider
        raise UnauthorizedError("Nobody logs in at that issuer any more: log in again.", given=True)


def _refused(answer: Mapping[str, Any]) -> UnauthorizedError:
    return UnauthorizedError(f"The issuer refuses the log-in ({_words(answer)}).", given=True)


def _words(answer: Mapping[str, Any]) -> str:
    """The issuer's own words, if they can be shown."""
    words = [str(answer[name]) for name in ("error", "error_description") if name in answer]
    return ": ".join(word for word in words if _PRINTABLE.fullmatch(word)) or "without a reason"
