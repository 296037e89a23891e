"""A small OpenID Connect issuer: its discovery document, its keys, and the JWTs that it signs."""

from __future__ import annotations

import json
import ssl
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, rsa

from tests.http_server import Handler, serving

AUDIENCE: Final = "blocklist"
Key = rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey


def rsa_key() -> rsa.RSAPrivateKey:
    return rsa.generate_private_key(public_exponent=65537, key_size=2048)


class FakeIssuer:
    """What it publishes can be changed; `key_requests` counts the requests for its keys.

    With a `required_token` it answers only requests that send it, as the API server of Kubernetes does.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self.advertised_issuer = url
        self.keys: dict[str, Key] = {"one": rsa_key()}
        self.unavailable = False
        self.required_token: str | None = None
        self.key_requests = 0

    def document(self, path: str, authorization: str | None) -> dict[str, Any] | None:
        if self.unavailable or (self.required_token and authorization != f"Bearer {self.required_token}"):
            return None
        if path == "/.well-known/openid-configuration":
            return {"issuer": self.advertised_issuer, "jwks_uri": f"{self.url}/keys"}
        if path in ("/keys", "/openid/v1/jwks"):
            self.key_requests += 1
            return {"keys": [_public(kid, key) for kid, key in self.keys.items()]}
        return None

    def sign(self, kid: str = "one", key: Key | None = None, algorithm: str = "RS256", **claims: Any) -> str:
        """A JWT of the operator ann for an hour; a claim of None is left out."""
        now = int(time.time())
        all_claims = {
            "iss": self.url,
            "aud": AUDIENCE,
            "sub": "u-17",
            "preferred_username": "ann",
            "exp": now + 3600,
            "roles": ["operator"],
            **claims,
        }
        payload = {name: value for name, value in all_claims.items() if value is not None}
        return jwt.encode(payload, key or self.keys[kid], algorithm, headers={"kid": kid})


def _public(kid: str, key: Key) -> dict[str, Any]:
    if isinstance(key, rsa.RSAPrivateKey):
        found: dict[str, Any] = jwt.algorithms.RSAAlgorithm.to_jwk(key.public_key(), as_dict=True)
    else:
        found = jwt.algorithms.ECAlgorithm.to_jwk(key.public_key(), as_dict=True)
    return {**found, "kid": kid, "use": "sig", "key_ops": ["verify"]}


@contextmanager
def running_issuer(certificate: tuple[Path, Path] | None = None) -> Iterator[FakeIssuer]:
    """Run an issuer on loopback; with a certificate and its key, over TLS."""

    class Documents(Handler):
        def do_GET(self) -> None:
            document = issuer.document(self.path, self.headers["Authorization"])
            self.reply(404 if document is None else 200, json.dumps(document).encode())

    context = None
    if certificate is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*certificate)
    with serving(Documents, context) as url:
        issuer = FakeIssuer(url)
        yield issuer
