"""JWTs of several issuers."""

from __future__ import annotations

from collections.abc import Mapping

import jwt

from app.auth.credential import Credential
from app.auth.oidc import MAX_JWT_LENGTH, OidcVerifier
from blocklist.model.errors import UnauthorizedError


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
