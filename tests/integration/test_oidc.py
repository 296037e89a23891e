"""JWTs of an OpenID Connect issuer, valid and invalid."""

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
from httpx_sse import ServerSentEvent
from structlog.testing import capture_logs

from app.auth.oidc import claim_at
from blocklist.model.claims import Role
from tests.integration.bodies import all_changes, block
from tests.integration.databases import Databases
from tests.integration.event_stream import next_events, watching
from tests.integration.fake_issuer import AUDIENCE, FakeIssuer, rsa_key, running_issuer
from tests.integration.problems import problem_of
from tests.integration.process import wait_until
from tests.integration.raw_http import connection_to, read_response, request
from tests.integration.secured import SecuredInProcess, check_valid_until_expiry, secured_in_process
from tests.integration.test_tls import certificate


@pytest.fixture(scope="module")
def issuer() -> Iterator[FakeIssuer]:
    with running_issuer() as issuer:
        yield issuer


@pytest.fixture(scope="module")
def secured(
    tmp_path_factory: pytest.TempPathFactory, databases: Databases, issuer: FakeIssuer
) -> Iterator[SecuredInProcess]:
    settings = {"oidc_issuer": issuer.url, "oidc_audience": AUDIENCE, "trusted_proxies": "127.0.0.1"}
    with secured_in_process(tmp_path_factory.mktemp("oidc"), databases, **settings) as secured:
        yield secured


def get(secured: SecuredInProcess, token: str) -> httpx.Response:
    with secured.client(token) as client:
        return client.get("/blocklist")


def test_its_claims_give_the_name_and_the_role(secured: SecuredInProcess, issuer: FakeIssuer) -> None:
    with secured.client(issuer.sign()) as client:
        for number in range(3):
            client.put(f"/blocklist/nodes/jwt-{number}", json=block()).raise_for_status()
        assert {change["createdBy"] for change in all_changes(client)} == {"ann"}
        problem_of(client.get("/tokens"), 403)
    with secured.client(issuer.sign(preferred_username=None, roles="reader admin", nbf=int(time.time()))) as client:
        client.put("/blocklist/nodes/jwt-sub", json=block()).raise_for_status()
        assert all_changes(client, node="jwt-sub")[0]["createdBy"] == "u-17"
        assert client.get("/tokens").status_code == 200


def test_its_name_goes_before_that_of_a_trusted_proxy(tmp_path: Path, databases: Databases, issuer: FakeIssuer) -> None:
    """A proxy that sends the person's JWT may pass on a name that the browser has made up."""
    settings = {"oidc_issuer": issuer.url, "oidc_audience": AUDIENCE, "trusted_proxies": "127.0.0.1"}
    with (
        secured_in_process(tmp_path, databases, **settings) as secured,
        secured.client(issuer.sign()) as client,
    ):
        client.headers["X-Forwarded-User"] = "mallory"
        client.put("/blocklist/nodes/n1", json=block()).raise_for_status()
        assert all_changes(client)[0]["createdBy"] == "ann"


def test_nobody_who_may_block_has_the_name_of_an_automatic_owner(secured: SecuredInProcess, issuer: FakeIssuer) -> None:
    assert "automatic owner" in problem_of(get(secured, issuer.sign(preferred_username="evidence")), 403)["detail"]
    assert get(secured, issuer.sign(preferred_username="evidence", roles=["manager"])).status_code == 200


def test_a_listener_belongs_to_its_subject_whatever_its_name(secured: SecuredInProcess, issuer: FakeIssuer) -> None:
    """Some issuers let users change their names, which must not make two applications of one."""
    body = {"role": "JOB_MASTER", "sessionId": "s1"}
    bob = issuer.sign(roles="listener", preferred_username="bob")
    with secured.client(issuer.sign(roles="listener")) as ann, secured.client(bob) as renamed:
        assert ann.put("/listeners/job", json=body).status_code == 201
        assert renamed.post("/listeners/job/heartbeat", json={"sessionId": "s1"}).status_code == 200
        with secured.client(issuer.sign(roles="listener", sub="u-18")) as other:
            problem_of(other.post("/listeners/job/heartbeat", json={"sessionId": "s1"}), 404)


def test_tokens_remain_valid_beside_jwts(secured: SecuredInProcess, issuer: FakeIssuer) -> None:
    assert get(secured, secured.admin).status_code == 200
    assert get(secured, secured.tokens[Role.READER]).status_code == 200


def unsigned(issuer: FakeIssuer) -> str:
    head, body = (_encoded(json.dumps(part).encode()) for part in _parts(issuer, "none"))
    return f"{head.decode()}.{body.decode()}."


def _parts(issuer: FakeIssuer, algorithm: str) -> tuple[dict[str, object], dict[str, object]]:
    claims = jwt.decode(issuer.sign(roles=["admin"]), options={"verify_signature": False})
    return {"alg": algorithm, "typ": "JWT", "kid": "one"}, claims


def signed_with_the_public_key(issuer: FakeIssuer) -> str:
    """The algorithm confusion attack: the public key as the secret of an HMAC."""
    public = issuer.keys["one"].public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    signing = b".".join(_encoded(json.dumps(part).encode()) for part in _parts(issuer, "HS256"))
    return (signing + b"." + _encoded(hmac.digest(public, signing, "sha256"))).decode()


def _encoded(raw: bytes) -> bytes:
    return base64.urlsafe_b64encode(raw).rstrip(b"=")


BAD_JWTS: dict[str, Callable[[FakeIssuer], str]] = {
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
    "an unsupported padding": lambda issuer: issuer.sign(algorithm="PS256"),
    "another kind of key": lambda issuer: issuer.sign(key=ec.generate_private_key(ec.SECP256R1()), algorithm="ES256"),
    "an unknown key": lambda issuer: issuer.sign(kid="other", key=rsa_key()),
    "unsigned": unsigned,
    "signed with the public key": signed_with_the_public_key,
    "cut": lambda issuer: issuer.sign()[:-10],
    "altered": lambda issuer: _altered(issuer.sign()),
    "without a name": lambda issuer: issuer.sign(preferred_username=None, sub=None),
    "an empty name": lambda issuer: issuer.sign(preferred_username="", sub=""),
    "a blank name": lambda issuer: issuer.sign(preferred_username="  ", sub="\u00a0"),
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


@pytest.mark.parametrize("name", BAD_JWTS)
def test_an_invalid_jwt_gets_401(secured: SecuredInProcess, issuer: FakeIssuer, name: str) -> None:
    token = BAD_JWTS[name](issuer)
    response = get(secured, token)
    problem = problem_of(response, 401)
    assert response.headers["www-authenticate"] == 'Bearer error="invalid_token"'
    assert not [part for part in token.split(".") if len(part) > 5 and part in json.dumps(problem)]


def test_clocks_may_differ_by_30_seconds(secured: SecuredInProcess, issuer: FakeIssuer) -> None:
    now = int(time.time())
    assert get(secured, issuer.sign(exp=now - 10)).status_code == 200
    assert get(secured, issuer.sign(nbf=now + 20)).status_code == 200


def test_it_expires_for_cached_requests_too(tmp_path: Path, databases: Databases, issuer: FakeIssuer) -> None:
    with secured_in_process(tmp_path, databases, oidc_issuer=issuer.url, oidc_audience=AUDIENCE) as secured:
        check_valid_until_expiry(secured, issuer.sign(exp=int(time.time()) - 28))


def test_unknown_key_ids_cause_a_limited_number_of_fetches(tmp_path: Path, databases: Databases) -> None:
    with (
        running_issuer() as issuer,
        secured_in_process(tmp_path, databases, oidc_issuer=issuer.url, oidc_audience=AUDIENCE) as secured,
    ):
        issuer.keys["curve"] = ec.generate_private_key(ec.SECP256R1())
        assert get(secured, issuer.sign("curve", algorithm="ES256")).status_code == 200
        for number in range(20):
            problem_of(get(secured, issuer.sign(kid=f"unknown-{number}", key=issuer.keys["one"])), 401)
        assert issuer.key_requests <= 3


@pytest.fixture
def own(tmp_path: Path, databases: Databases) -> Iterator[tuple[FakeIssuer, SecuredInProcess]]:
    """An issuer and a service of the test's own: the test withdraws keys."""
    with running_issuer() as issuer:
        issuer.keys["two"] = rsa_key()
        with secured_in_process(tmp_path, databases, oidc_issuer=issuer.url, oidc_audience=AUDIENCE) as secured:
            yield issuer, secured


def ends(events: Iterator[ServerSentEvent]) -> bool:
    """Whether a watch ends."""
    return [event.event for event in events] in ([], ["bye"])


def log_in(secured: SecuredInProcess, token: str) -> dict[str, str]:
    """Log in on the page; the header with the cookie."""
    with secured.client() as client:
        assert client.post("/login", data={"token": token}).status_code == 303
        return {"Cookie": f"blocklist_session={client.cookies['blocklist_session']}"}


def status_with(secured: SecuredInProcess, cookie: dict[str, str]) -> int:
    with secured.client() as client:
        return client.get("/blocklist", headers=cookie).status_code


class TestWithdrawnKeys:
    """A credential that was made by a withdrawn key ends, whatever has cached it."""

    LATER = 86_400

    def test_a_jwt_and_its_watch_end_when_the_keys_have_been_fetched_again(
        self, own: tuple[FakeIssuer, SecuredInProcess]
    ) -> None:
        issuer, secured = own
        token = issuer.sign(roles="admin", exp=int(time.time()) + self.LATER)
        with secured.client(token) as client, watching(client) as events:
            next_events(events, 1)
            assert client.post("/tokens", json={"name": "x", "role": "reader"}).status_code == 201
            del issuer.keys["one"]
            secured.clock.advance(11)
            # A JWT with a key that is not known makes the service fetch the keys.
            issuer.keys["three"] = rsa_key()
            assert get(secured, issuer.sign("three")).status_code == 200
            problem_of(client.post("/tokens", json={"name": "x", "role": "reader"}), 401)
            assert get(secured, token).status_code == 401
            assert ends(events)

    def test_it_ends_on_a_connection_that_has_sent_it_before(
        self, own: tuple[FakeIssuer, SecuredInProcess], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Such a connection answers below the routes, also when many other JWTs have come meanwhile."""
        issuer, secured = own
        monkeypatch.setattr("app.auth.credential.MAX_CACHED", 3)
        payload = request("/blocklist", f"Authorization: Bearer {issuer.sign(exp=int(time.time()) + self.LATER)}")
        with connection_to(secured.service.port) as connection, connection.makefile("rb") as stream:

            def status() -> int:
                connection.sendall(payload)
                return read_response(stream).status

            assert [status() for _ in range(3)] == [200] * 3
            for number in range(4):
                assert get(secured, issuer.sign("two", sub=f"u-{number}")).status_code == 200
            del issuer.keys["one"]
            secured.clock.advance(11)
            issuer.keys["three"] = rsa_key()
            assert get(secured, issuer.sign("three")).status_code == 200
            assert status() == 401

    def test_it_ends_within_minutes_if_nobody_asks_for_another_key(
        self, own: tuple[FakeIssuer, SecuredInProcess]
    ) -> None:
        issuer, secured = own
        token = issuer.sign(exp=int(time.time()) + self.LATER)
        with secured.client(token) as client, watching(client) as events:
            next_events(events, 1)
            del issuer.keys["one"]
            secured.clock.advance(301)
            wait_until(lambda: get(secured, token).status_code == 401)
            assert ends(events)

    def test_another_key_of_the_same_name_does_not_revive_it(self, own: tuple[FakeIssuer, SecuredInProcess]) -> None:
        issuer, secured = own
        token = issuer.sign(exp=int(time.time()) + self.LATER)
        assert get(secured, token).status_code == 200
        issuer.keys["one"] = rsa_key()
        secured.clock.advance(301)
        wait_until(lambda: get(secured, token).status_code == 401)
        assert get(secured, issuer.sign()).status_code == 200

    def test_a_session_of_the_page_ends_with_the_key_of_its_jwt(self, own: tuple[FakeIssuer, SecuredInProcess]) -> None:
        issuer, secured = own
        cookies = [log_in(secured, issuer.sign(key, exp=int(time.time()) + self.LATER)) for key in ("one", "two")]
        assert [status_with(secured, it) for it in cookies] == [200, 200]
        del issuer.keys["one"]
        secured.clock.advance(301)
        wait_until(lambda: status_with(secured, cookies[0]) == 401)
        assert status_with(secured, cookies[1]) == 200

    def test_a_session_survives_a_restart_only_with_its_key(self, tmp_path: Path, databases: Databases) -> None:
        with running_issuer() as issuer:
            settings = {"oidc_issuer": issuer.url, "oidc_audience": AUDIENCE}
            issuer.keys["two"] = rsa_key()
            with secured_in_process(tmp_path, databases, **settings) as secured:
                cookies = [log_in(secured, issuer.sign(key)) for key in ("one", "two")]
            del issuer.keys["one"]
            with secured_in_process(tmp_path, databases, **settings) as secured:
                statuses = [status_with(secured, it) for it in cookies]
        assert statuses == [401, 200]

    def test_keys_that_cannot_be_fetched_again_are_not_used_for_ever(
        self, own: tuple[FakeIssuer, SecuredInProcess]
    ) -> None:
        issuer, secured = own
        token = issuer.sign(exp=int(time.time()) + self.LATER)
        with secured.client(token) as client, watching(client) as events:
            next_events(events, 1)
            issuer.unavailable = True
            secured.clock.advance(3600)
            assert get(secured, token).status_code == 200
            secured.clock.advance(3601)
            wait_until(lambda: get(secured, token).status_code == 401)
            assert ends(events)
        issuer.unavailable = False
        secured.clock.advance(11)
        assert get(secured, token).status_code == 200


def test_fetched_keys_remain_in_use_while_the_issuer_is_unreachable(tmp_path: Path, databases: Databases) -> None:
    with running_issuer() as issuer:
        settings = {"oidc_issuer": issuer.url, "oidc_audience": AUDIENCE, "oidc_roles_claim": "realm.roles"}
        later = int(time.time()) + 7200
        with capture_logs() as log, secured_in_process(tmp_path, databases, **settings) as secured:
            issuer.unavailable = True
            early = issuer.sign(realm={"roles": ["reader"]})
            assert "unreachable" in problem_of(get(secured, early), 401)["detail"]
            issuer.unavailable = False
            secured.clock.advance(10)
            assert get(secured, early).status_code == 200
            issuer.unavailable = True
            secured.clock.advance(3601)
            for _ in range(2):  # the first begins to fetch them again
                assert get(secured, issuer.sign(realm={"roles": ["admin"]}, exp=later)).status_code == 200
            wait_until(lambda: len(log) > 1)
    assert "the keys of an issuer of JWTs could not be fetched" in str(log)
    assert not [part for part in early.split(".") if part in str(log)]


class TestUnlikeIssuers:
    """What issuers do differently, and what is said about what is wrong."""

    def test_of_an_authority_that_is_not_trusted_the_log_says_what_to_do(
        self, tmp_path: Path, databases: Databases
    ) -> None:
        with running_issuer(certificate(tmp_path)) as issuer:
            settings = {"oidc_issuer": issuer.url, "oidc_audience": AUDIENCE}
            with capture_logs() as log, secured_in_process(tmp_path, databases, **settings) as secured:
                problem_of(get(secured, issuer.sign()), 401)
        (line,) = [it for it in log if "keys of an issuer" in it["event"]]
        assert "CERTIFICATE_VERIFY_FAILED" in line["reason"]
        assert line["reason"].endswith("or give its file as SSL_CERT_FILE")

    @pytest.mark.parametrize(("configured", "named"), [("", "/"), ("/", ""), ("/", "/")])
    def test_a_final_slash_makes_no_other_issuer(
        self, tmp_path: Path, databases: Databases, configured: str, named: str
    ) -> None:
        with running_issuer() as issuer:
            issuer.advertised_issuer = issuer.url + named
            settings = {"oidc_issuer": issuer.url + configured, "oidc_audience": AUDIENCE}
            with secured_in_process(tmp_path, databases, **settings) as secured:
                assert get(secured, issuer.sign(iss=issuer.url + named)).status_code == 200
                problem_of(get(secured, issuer.sign(iss=f"{issuer.url}/x")), 401)

    def test_an_issuer_that_answers_is_not_called_unreachable(self, tmp_path: Path, databases: Databases) -> None:
        with running_issuer() as issuer:
            issuer.advertised_issuer = "https://elsewhere.example"
            settings = {"oidc_issuer": issuer.url, "oidc_audience": AUDIENCE}
            with capture_logs() as log, secured_in_process(tmp_path, databases, **settings) as secured:
                detail = problem_of(get(secured, issuer.sign()), 401)["detail"]
        assert "unreachable" not in detail
        (line,) = [it for it in log if "keys of an issuer" in it["event"]]
        assert "https://elsewhere.example" in line["reason"]
        assert "BLOCKLIST_OIDC_ISSUER" in line["reason"]

    def test_a_missing_claim_and_a_wrong_one_read_differently(
        self, secured: SecuredInProcess, issuer: FakeIssuer
    ) -> None:
        details = {problem_of(get(secured, issuer.sign(roles=roles)), 403)["detail"] for roles in (None, ["viewer"], 7)}
        assert (len(details), all("reader" in it for it in details)) == (3, True)
        details = {
            problem_of(get(secured, issuer.sign(sub=None, preferred_username=name)), 401)["detail"]
            for name in (None, 7, True)
        }
        assert len(details) == 3
        details = {problem_of(get(secured, issuer.sign(aud=aud)), 401)["detail"] for aud in (None, "elsewhere")}
        assert len(details) == 2


@pytest.mark.parametrize(
    ("claims", "path", "found"),
    [
        ({"roles": 1}, "roles", 1),
        ({"https://example.com/roles": 1}, "https://example.com/roles", 1),
        ({"realm_access": {"roles": 1}}, "realm_access.roles", 1),
        ({"resource_access": {"my.client": {"roles": 1}}}, "resource_access.my.client.roles", 1),
        ({"a.b": {"c.d": 1}}, "a.b.c.d", 1),
        ({"a": {"b": {"c": 2}}, "a.b": {"x": 1}}, "a.b.c", 2),
        ({"a": {"b": 1}, "a.b": 2}, "a.b", 2),
        ({"a": {"b": 1}}, "a", {"b": 1}),
        ({"a": 1}, "a.b", None),
        ({"a": [1]}, "a.0", None),
        ({}, "a.b.c", None),
    ],
)
def test_a_claim_is_found_whether_names_have_dots_or_not(claims: object, path: str, found: object) -> None:
    assert claim_at(claims, path) == found


def test_groups_have_roles_and_owners(tmp_path: Path, databases: Databases, issuer: FakeIssuer) -> None:
    """Also in a session of the page that is made with such a JWT, after a restart."""
    roles = "sre=operator,alerts=operator:alertmanager/*,etl=listener:etl-*"
    settings = {"oidc_issuer": issuer.url, "oidc_audience": AUDIENCE, "oidc_roles_claim": "groups", "oidc_roles": roles}
    for restarted in (False, True):
        with secured_in_process(tmp_path, databases, **settings) as secured:
            with secured.client(issuer.sign(groups=["x", "sre"])) as sre:
                sre.put("/blocklist/nodes/n1", json=block(allowMerge=True)).raise_for_status()
            with secured.client(issuer.sign(groups=["alerts"])) as alerts:
                assert alerts.put("/blocklist/nodes/n1/claims/alertmanager", json=block()).status_code == 403
                claim = alerts.put("/blocklist/nodes/n1/claims/alertmanager%2F8", json=block())
                assert claim.status_code == (200 if restarted else 201)
                assert "your token may change" in problem_of(alerts.delete("/blocklist/nodes/n1"), 403)["detail"]
            with secured.client(issuer.sign(groups=["etl"])) as etl:
                for name, status in {"etl-1": (201, 200), "other": (403, 403)}.items():
                    answer = etl.put(f"/listeners/{name}", json={"role": "JOB_MASTER", "sessionId": "s1"})
                    assert answer.status_code == status[restarted]
            problem = problem_of(get(secured, issuer.sign(groups=["other"], roles="admin")), 403)
            assert problem["detail"].startswith("The JWT's claim groups has no group to which BLOCKLIST_OIDC_ROLES ")
            if not restarted:
                session = log_in(secured, issuer.sign(groups=["alerts"]))
            with secured.client() as browser:
                refused = browser.get("/page/block", headers=session)
                assert (refused.status_code, "alertmanager/*" in refused.text) == (403, True)


def test_the_first_use_of_one_that_may_block_is_in_the_audit_log(secured: SecuredInProcess, issuer: FakeIssuer) -> None:
    name = f"auditee-{time.time_ns()}"
    for roles in ("operator", "listener"):
        token = issuer.sign(preferred_username=name, sub=name, roles=roles)
        for _ in range(3):
            assert get(secured, token).status_code == 200
    with secured.client(issuer.sign(exp=int(time.time()) - 31)) as expired:
        # Another address than that of the other tests: each has a few records of failed log-ins.
        assert expired.get("/blocklist", headers={"X-Forwarded-For": "192.0.2.7"}).status_code == 401
    with secured.client(secured.admin) as admin:

        def recorded(kind: str) -> list[dict[str, object]]:
            found: list[dict[str, object]] = admin.get("/audit", params={"kind": kind}).json()["records"]
            return found

        wait_until(lambda: any(it["principal"] == name for it in recorded("login")))
        wait_until(lambda: any("expired" in str(it["details"]) for it in recorded("login-failed")))
        (login,) = [it for it in recorded("login") if it["principal"] == name]
        assert login["way"] == "api"
        assert isinstance(login["details"], dict)
        assert (login["details"]["role"], login["details"]["subject"]) == ("operator", name)
        assert token not in str(recorded("login-failed"))
