"""JWTs of an OpenID Connect issuer, and what is no such JWT."""

from __future__ import annotations

import base64
import hmac
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from blocklist.model.roles import Access
from tests.integration.bodies import all_changes, block
from tests.integration.databases import Databases
from tests.integration.guarded import Guarded, good_until_its_end, guarding
from tests.integration.issuer import AUDIENCE, Issuer, issuing, rsa_key
from tests.integration.problems import problem_of
from tests.integration.process import wait_until


@pytest.fixture(scope="module")
def issuer() -> Iterator[Issuer]:
    with issuing() as issuer:
        yield issuer


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory, databases: Databases, issuer: Issuer) -> Iterator[Guarded]:
    settings = {"oidc_issuer": issuer.url, "oidc_audience": AUDIENCE}
    with guarding(tmp_path_factory.mktemp("oidc"), databases, **settings) as guarded:
        yield guarded


def get(guarded: Guarded, token: str) -> httpx.Response:
    with guarded.client(token) as client:
        return client.get("/blocklist")


def test_its_claims_say_who_and_what_one_is(guarded: Guarded, issuer: Issuer) -> None:
    with guarded.client(issuer.sign()) as client:
        for number in range(3):
            client.put(f"/blocklist/nodes/jwt-{number}", json=block()).raise_for_status()
        assert {change["createdBy"] for change in all_changes(client)} == {"ann"}
        problem_of(client.get("/tokens"), 403)
    with guarded.client(issuer.sign(preferred_username=None, roles="reader admin", nbf=int(time.time()))) as client:
        client.put("/blocklist/nodes/jwt-sub", json=block()).raise_for_status()
        assert all_changes(client, node="jwt-sub")[0]["createdBy"] == "u-17"
        assert client.get("/tokens").status_code == 200


def test_its_tokens_and_ours_live_together(guarded: Guarded, issuer: Issuer) -> None:
    assert get(guarded, guarded.admin).status_code == 200
    assert get(guarded, guarded.tokens[Access.READER]).status_code == 200


def unsigned(issuer: Issuer) -> str:
    head, body = (_encoded(json.dumps(part).encode()) for part in _parts(issuer, "none"))
    return f"{head.decode()}.{body.decode()}."


def _parts(issuer: Issuer, algorithm: str) -> tuple[dict[str, object], dict[str, object]]:
    claims = jwt.decode(issuer.sign(roles=["admin"]), options={"verify_signature": False})
    return {"alg": algorithm, "typ": "JWT", "kid": "one"}, claims


def signed_with_the_public_key(issuer: Issuer) -> str:
    """The oldest trick: the key that everybody has, as the secret of a HMAC."""
    public = issuer.keys["one"].public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    signing = b".".join(_encoded(json.dumps(part).encode()) for part in _parts(issuer, "HS256"))
    return (signing + b"." + _encoded(hmac.digest(public, signing, "sha256"))).decode()


def _encoded(raw: bytes) -> bytes:
    return base64.urlsafe_b64encode(raw).rstrip(b"=")


BAD: dict[str, Callable[[Issuer], str]] = {
    "ended": lambda issuer: issuer.sign(exp=int(time.time()) - 31),
    "without end": lambda issuer: issuer.sign(exp=None),
    "not yet valid": lambda issuer: issuer.sign(nbf=int(time.time()) + 60),
    "of another issuer": lambda issuer: issuer.sign(iss="http://127.0.0.1:1"),
    "without issuer": lambda issuer: issuer.sign(iss=None),
    "for another audience": lambda issuer: issuer.sign(aud="elsewhere"),
    "for others": lambda issuer: issuer.sign(aud=["a", "b"]),
    "without audience": lambda issuer: issuer.sign(aud=None),
    "of another key": lambda issuer: issuer.sign(key=rsa_key()),
    "another algorithm": lambda issuer: issuer.sign(algorithm="RS512"),
    "a padding that we do not take": lambda issuer: issuer.sign(algorithm="PS256"),
    "another kind of key": lambda issuer: issuer.sign(key=ec.generate_private_key(ec.SECP256R1()), algorithm="ES256"),
    "an unknown key": lambda issuer: issuer.sign(kid="other", key=rsa_key()),
    "unsigned": unsigned,
    "cut": lambda issuer: issuer.sign()[:-10],
    "altered": lambda issuer: _altered(issuer.sign()),
    "nobody's": lambda issuer: issuer.sign(preferred_username=None, sub=None),
    "an empty name": lambda issuer: issuer.sign(preferred_username="", sub=""),
    "a long name": lambda issuer: issuer.sign(preferred_username="x" * 254, sub="x" * 254),
    "a name that breaks lines": lambda issuer: issuer.sign(preferred_username="a\nb", sub="a\x1b[31m"),
    "dots": lambda _: "..",
    "rubbish": lambda _: "a.b.c",
    "too long": lambda issuer: issuer.sign(more="x" * 8_000),
}


def _altered(token: str) -> str:
    head, body, signature = token.split(".")
    claims = json.loads(base64.urlsafe_b64decode(body + "=="))
    return f"{head}.{_encoded(json.dumps({**claims, 'roles': ['admin']}).encode()).decode()}.{signature}"


@pytest.mark.parametrize("name", BAD)
def test_what_is_not_good_is_401_with_a_sentence(guarded: Guarded, issuer: Issuer, name: str) -> None:
    token = BAD[name](issuer)
    answer = get(guarded, token)
    said = problem_of(answer, 401)
    assert answer.headers["www-authenticate"] == 'Bearer error="invalid_token"'
    assert not [part for part in token.split(".") if len(part) > 5 and part in json.dumps(said)]


def test_a_public_key_is_no_secret(guarded: Guarded, issuer: Issuer) -> None:
    problem_of(get(guarded, signed_with_the_public_key(issuer)), 401)


@pytest.mark.parametrize("roles", [None, [], ["viewer"], "nothing here", {"admin": 1}, 7])
def test_without_one_of_our_roles_it_is_403(guarded: Guarded, issuer: Issuer, roles: object) -> None:
    assert "reader" in problem_of(get(guarded, issuer.sign(roles=roles)), 403)["detail"]


def test_clocks_may_differ_by_half_a_minute(guarded: Guarded, issuer: Issuer) -> None:
    now = int(time.time())
    assert get(guarded, issuer.sign(exp=now - 10)).status_code == 200
    assert get(guarded, issuer.sign(nbf=now + 20)).status_code == 200


def test_it_ends_also_for_requests_known_by_their_bytes(guarded: Guarded, issuer: Issuer) -> None:
    good_until_its_end(guarded, issuer.sign(exp=int(time.time()) - 27))


def test_a_new_key_is_fetched_when_it_is_named_but_not_for_each_stranger(tmp_path: Path, databases: Databases) -> None:
    with issuing() as issuer, guarding(tmp_path, databases, oidc_issuer=issuer.url, oidc_audience=AUDIENCE) as guarded:
        issuer.keys["curve"] = ec.generate_private_key(ec.SECP256R1())
        assert get(guarded, issuer.sign("curve", algorithm="ES256")).status_code == 200
        for number in range(20):
            problem_of(get(guarded, issuer.sign(kid=f"unknown-{number}", key=issuer.keys["one"])), 401)
        assert issuer.asked <= 3


def test_while_the_issuer_is_away_what_is_known_goes_on(tmp_path: Path, databases: Databases) -> None:
    with issuing() as issuer:
        settings = {"oidc_issuer": issuer.url, "oidc_audience": AUDIENCE, "oidc_roles_claim": "realm.roles"}
        with guarding(tmp_path, databases, **settings) as guarded:
            issuer.away = True
            early = issuer.sign(realm={"roles": ["reader"]})
            assert "out of reach" in problem_of(get(guarded, early), 401)["detail"]
            issuer.away = False
            wait_until(lambda: get(guarded, early).status_code == 200)
            issuer.away = True
            assert get(guarded, issuer.sign(realm={"roles": ["admin"]})).status_code == 200
            guarded.process.stop()
            log = guarded.process.log()
    assert "were not fetched" in log
    assert not [part for part in early.split(".") if part in log]


def test_a_discovery_document_of_another_issuer_is_not_believed(tmp_path: Path, databases: Databases) -> None:
    with issuing() as issuer, guarding(tmp_path, databases, oidc_issuer=issuer.url, oidc_audience=AUDIENCE) as guarded:
        issuer.named = "http://127.0.0.1:1"
        problem_of(get(guarded, issuer.sign()), 401)
