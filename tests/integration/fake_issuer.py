"""A small OpenID Connect issuer: its discovery document, its keys, the JWTs that it signs, and log-ins."""

from __future__ import annotations

import hashlib
import json
import secrets
import ssl
import time
from base64 import urlsafe_b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qsl, urlencode

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
        self._kid = "one"
        self.unavailable = False
        self.nonsense: bytes | None = None
        """What it sends instead of documents."""
        self.required_token: str | None = None
        self.key_requests = 0
        # Log-ins. Whoever comes is this person, with these claims; `approved` answers the device flow.
        self.person: dict[str, Any] = {}
        self.id_token_claims: dict[str, Any] = {}
        self.session_ended = False
        self.refusal: str | None = None
        self.pause = 0.0
        """Seconds between the two halves of the tokens, as in packets of a network."""
        self.gives_refresh_tokens = True
        self.approved = True
        self.revoked: list[str] = []
        self.token_requests: list[dict[str, str]] = []
        self._codes: dict[str, dict[str, str]] = {}
        self.refresh_tokens: set[str] = set()

    def rotate_key(self) -> None:
        """Sign with a new key, and publish no other."""
        self._kid = "two"
        self.keys = {"two": rsa_key()}

    def document(self, path: str, authorization: str | None) -> dict[str, Any] | None:
        if self.unavailable or (self.required_token and authorization != f"Bearer {self.required_token}"):
            return None
        if path == "/.well-known/openid-configuration":
            endpoints = {
                "authorization_endpoint": "/authorize",
                "token_endpoint": "/token",
                "device_authorization_endpoint": "/device",
                "revocation_endpoint": "/revoke",
                "end_session_endpoint": "/logout",
            }
            at = {name: f"{self.url}{path}" for name, path in endpoints.items()}
            return {"issuer": self.advertised_issuer, "jwks_uri": f"{self.url}/keys", **at}
        if path in ("/keys", "/openid/v1/jwks"):
            self.key_requests += 1
            return {"keys": [_public(kid, key) for kid, key in self.keys.items()]}
        return None

    def authorize(self, query: str) -> str:
        """Where the browser is sent back; the person is logged in already."""
        asked = dict(parse_qsl(query))
        code = secrets.token_hex(8)
        self._codes[code] = asked
        answer = {"code": code, "state": asked["state"], "iss": self.url}
        return f"{asked['redirect_uri']}?{urlencode(answer)}"

    def tokens(self, body: str) -> tuple[int, dict[str, Any]]:
        """The answer of the token endpoint: a code is good once, a refresh token is replaced."""
        asked = dict(parse_qsl(body))
        self.token_requests.append(asked)
        if self.refusal is not None:
            return 401, {"error": self.refusal}
        match asked["grant_type"]:
            case "authorization_code":
                begun = self._codes.pop(asked["code"], None)
                digest = hashlib.sha256(asked.get("code_verifier", "").encode()).digest()
                challenge = urlsafe_b64encode(digest).rstrip(b"=").decode()
                if begun is None or challenge != begun["code_challenge"]:
                    return 400, {"error": "invalid_grant", "error_description": "Code not valid"}
                return 200, self._granted(asked, begun["nonce"])
            case "refresh_token":
                if self.session_ended or asked["refresh_token"] not in self.refresh_tokens:
                    return 400, {"error": "invalid_grant", "error_description": "Session not active"}
                self.refresh_tokens.remove(asked["refresh_token"])
                return 200, self._granted(asked, None)
            case _:
                return (200, self._granted(asked, None)) if self.approved else (400, {"error": "authorization_pending"})

    def _granted(self, asked: dict[str, str], nonce: str | None) -> dict[str, Any]:
        client = asked.get("client_id", "page")
        id_token = {"aud": client, "exp": int(time.time()) + 300, **self.person, "nonce": nonce, **self.id_token_claims}
        granted: dict[str, Any] = {
            "access_token": self.sign(**self.person),
            "id_token": self.sign(**id_token),
            "expires_in": 300,
        }
        if self.gives_refresh_tokens:
            granted["refresh_token"] = secrets.token_hex(8)
            self.refresh_tokens.add(granted["refresh_token"])
        return {**granted, "token_type": "Bearer"}

    def device(self) -> dict[str, Any]:
        """The answer of the device authorization endpoint."""
        return {
            "device_code": secrets.token_hex(8),
            "user_code": "ABCD-EFGH",
            "verification_uri": f"{self.url}/activate",
            "verification_uri_complete": f"{self.url}/activate?user_code=ABCD-EFGH",
            "expires_in": 60,
            "interval": 0,
        }

    def sign(self, kid: str = "", key: Key | None = None, algorithm: str = "RS256", **claims: Any) -> str:
        """A JWT of the operator ann for an hour; a claim of None is left out."""
        now, kid = int(time.time()), kid or self._kid
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
            path, _, query = self.path.partition("?")
            if path == "/authorize" and not issuer.unavailable:
                self.reply(303, headers={"Location": issuer.authorize(query)})
                return
            document = issuer.document(self.path, self.headers["Authorization"])
            nonsense = issuer.nonsense
            known = document is not None or nonsense is not None
            self.reply(200 if known else 404, json.dumps(document).encode() if nonsense is None else nonsense)

        def do_POST(self) -> None:
            body = self.body().decode()
            if issuer.unavailable:
                self.reply(503)
            elif self.path == "/token":
                status, tokens = issuer.tokens(body)
                content = json.dumps(tokens).encode()
                half = len(content) // 2 if issuer.pause else 0
                self.reply(status, content[:half], {}, length=len(content))
                time.sleep(issuer.pause)
                self.wfile.write(content[half:])
            elif self.path == "/device":
                self.reply(200, json.dumps(issuer.device()).encode())
            else:
                issuer.revoked.append(dict(parse_qsl(body))["token"])
                self.reply(200)

    context = None
    if certificate is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*certificate)
    with serving(Documents, context) as url:
        issuer = FakeIssuer(url)
        yield issuer
