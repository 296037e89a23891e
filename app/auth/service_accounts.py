"""Tokens of Kubernetes ServiceAccounts: JWTs of the API server of the cluster in which the service runs.

Source: "Configure Service Accounts for Pods" in the documentation of Kubernetes. The keys are read from the API server
itself, at /openid/v1/jwks, which works on every cluster: discovery documents name addresses that pods may not reach.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import jwt

from app.auth.jwks import Keys, fetch_keys
from app.auth.oidc import OidcVerifier
from app.auth.principal import Principal
from app.net.service_account_roles import ServiceAccountRoles
from blocklist.model.errors import ForbiddenError, UnauthorizedError

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
        return (self.folder / "token").read_text(encoding="ascii").strip()


def make_verifier(
    rules: ServiceAccountRules, own: OwnAccount, api_server: str, clock: Callable[[], int]
) -> OidcVerifier:
    """A verifier with the keys of the API server at this URL."""

    async def fetch() -> Keys:
        token, tls = await asyncio.to_thread(own.read)
        return await fetch_keys(f"{api_server}/openid/v1/jwks", token=token, tls=tls)

    return OidcVerifier(rules, fetch, clock)
