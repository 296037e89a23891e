"""Tokens of Kubernetes ServiceAccounts. tests/kubernetes/ has the same with those of a real API server."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from app.auth import oidc
from app.settings import SettingsError, read_settings
from tests.integration.bodies import all_changes, block
from tests.integration.databases import Databases
from tests.integration.fake_issuer import FakeIssuer, rsa_key, running_issuer
from tests.integration.in_process import refusal
from tests.integration.problems import problem_of
from tests.integration.process import wait_until
from tests.integration.secured import SecuredInProcess, secured_in_process
from tests.integration.test_tls import certificate

AUDIENCE = "blocklist"
ROLES = "spark/*=listener,ops/ann=operator"


def sign(api_server: FakeIssuer, subject: str = "system:serviceaccount:ops:ann", **claims: Any) -> str:
    """A token as the API server makes them: without roles or a name of a person."""
    claims = {"aud": [AUDIENCE], "roles": None, "preferred_username": None, **claims}
    return api_server.sign(sub=subject, **claims)


@pytest.fixture(scope="module")
def api_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[FakeIssuer, Path]]:
    """An API server, as far as keys are concerned, and the folder of the service's own ServiceAccount."""
    folder = tmp_path_factory.mktemp("account")
    cert, key = certificate(folder)
    cert.rename(folder / "ca.crt")
    with running_issuer((folder / "ca.crt", key)) as issuer:
        (folder / "token").write_text(sign(issuer, "system:serviceaccount:blocklist:blocklist", aud=[issuer.url]))
        issuer.required_token = (folder / "token").read_text()
        yield issuer, folder


@pytest.fixture(scope="module")
def people() -> Iterator[FakeIssuer]:
    with running_issuer() as issuer:
        yield issuer


@pytest.fixture(scope="module")
def secured(
    tmp_path_factory: pytest.TempPathFactory,
    databases: Databases,
    api_server: tuple[FakeIssuer, Path],
    people: FakeIssuer,
) -> Iterator[SecuredInProcess]:
    """It accepts JWTs of people as well."""
    issuer, account = api_server
    settings = {
        "service_account_audience": AUDIENCE,
        "service_account_roles": ROLES,
        "oidc_issuer": people.url,
        "oidc_audience": AUDIENCE,
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(oidc, "FOLDER", account)
        patch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
        patch.setenv("KUBERNETES_SERVICE_PORT", issuer.url.rpartition(":")[2])
        with secured_in_process(tmp_path_factory.mktemp("service"), databases, **settings) as secured:
            yield secured


def get(secured: SecuredInProcess, token: str, path: str = "/blocklist") -> httpx.Response:
    with secured.client(token) as client:
        return client.get(path)


def test_the_settings_give_a_service_account_its_role(
    secured: SecuredInProcess, api_server: tuple[FakeIssuer, Path]
) -> None:
    issuer, _ = api_server
    with secured.client(sign(issuer)) as ann:
        ann.put("/blocklist/nodes/account-1", json=block()).raise_for_status()
        assert all_changes(ann, node="account-1")[0]["createdBy"] == "system:serviceaccount:ops:ann"
        problem_of(ann.get("/tokens"), 403)
    with secured.client(sign(issuer, "system:serviceaccount:spark:driver")) as driver:
        body = {"role": "JOB_MASTER", "sessionId": "s1"}
        assert driver.put("/listeners/spark-job", json=body).status_code == 201
        problem_of(driver.put("/blocklist/nodes/account-2", json=block()), 403)


def test_one_without_a_role_is_forbidden_and_named(
    secured: SecuredInProcess, api_server: tuple[FakeIssuer, Path]
) -> None:
    answer = get(secured, sign(api_server[0], "system:serviceaccount:ops:bob"))
    assert "The ServiceAccount ops/bob has no role" in problem_of(answer, 403)["detail"]


def test_its_token_ends_when_the_api_server_withdraws_the_key(
    secured: SecuredInProcess, api_server: tuple[FakeIssuer, Path]
) -> None:
    issuer, _ = api_server
    issuer.keys["old"] = rsa_key()
    secured.clock.advance(11)  # after the last fetch of another test
    token = issuer.sign("old", sub="system:serviceaccount:ops:ann", exp=int(time.time()) + 86_400)

    def status() -> int:
        with secured.client(token) as client:
            return client.get("/blocklist").status_code

    assert status() == 200
    del issuer.keys["old"]
    secured.clock.advance(301)
    wait_until(lambda: status() == 401)


@pytest.mark.parametrize(
    ("claims", "detail"),
    [
        ({"subject": "u-17"}, "The JWT is not that of a ServiceAccount."),
        ({"subject": "system:serviceaccount:ops"}, "The JWT is not that of a ServiceAccount."),
        ({"subject": "system:node:worker-17"}, "The JWT is not that of a ServiceAccount."),
        ({"aud": ["https://kubernetes.default.svc"]}, "The JWT is for another audience."),
        ({"exp": int(time.time()) - 31}, "The JWT has expired."),
        ({"iss": "https://elsewhere.example"}, "The JWT is from another issuer."),
        ({"iss": None}, "The JWT is from another issuer."),
    ],
)
def test_other_jwts_of_the_api_server_are_refused(
    secured: SecuredInProcess, api_server: tuple[FakeIssuer, Path], claims: dict[str, Any], detail: str
) -> None:
    assert problem_of(get(secured, sign(api_server[0], **claims)), 401)["detail"] == detail


@pytest.mark.parametrize("token", ["a.b.c", "..", f"e30.{'W' * 4000}.x", f"{'e' * 9000}.b.c"])
def test_what_is_no_jwt_is_refused(secured: SecuredInProcess, token: str) -> None:
    assert get(secured, token).status_code == 401


def test_the_roles_of_people_come_from_their_own_issuer_only(
    secured: SecuredInProcess, people: FakeIssuer, api_server: tuple[FakeIssuer, Path]
) -> None:
    assert get(secured, people.sign()).status_code == 200
    problem_of(get(secured, people.sign(roles=None, sub="system:serviceaccount:ops:ann")), 403)
    problem_of(get(secured, sign(api_server[0], "system:serviceaccount:ops:bob", roles=["admin"])), 403)
    # Signed by one, in the name of the other.
    problem_of(get(secured, sign(people, iss=api_server[0].url)), 401)
    problem_of(get(secured, api_server[0].sign(iss=people.url)), 401)


class TestStart:
    @pytest.mark.parametrize(
        ("settings", "words"),
        [
            ({"service_account_audience": "a"}, "BLOCKLIST_SERVICE_ACCOUNT_ROLES"),
            ({"service_account_roles": "a/b=reader"}, "BLOCKLIST_SERVICE_ACCOUNT_AUDIENCE"),
            ({"service_account_audience": "a", "service_account_roles": "a=b"}, "NAMESPACE/NAME"),
        ],
    )
    def test_an_incomplete_setting_is_refused(self, database_url: str, settings: dict[str, str], words: str) -> None:
        assert words in refusal(database_url=database_url, auth="tokens", **settings)

    def test_it_needs_a_pod_with_a_service_account(
        self, database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        settings = {"auth": "tokens", "service_account_audience": "a", "service_account_roles": "a/b=reader"}
        settings["database_url"] = database_url
        monkeypatch.setattr(oidc, "FOLDER", tmp_path)
        message = refusal(**settings)
        assert "token cannot be read" in message
        assert "automountServiceAccountToken: true" in message
        (tmp_path / "token").write_text("x.y.z")
        assert "is not the token of a ServiceAccount" in refusal(**settings)
        with running_issuer() as issuer:
            (tmp_path / "token").write_text(sign(issuer))
        for name in ("KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT"):
            monkeypatch.delenv(name, raising=False)
        assert "does not run in a Kubernetes pod" in refusal(**settings)

    @pytest.mark.parametrize("slash", ["", "/"])
    def test_the_issuer_of_people_cannot_be_that_of_the_cluster(
        self, database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, slash: str
    ) -> None:
        """Its rules would replace the roles of ServiceAccounts."""
        monkeypatch.setattr(oidc, "FOLDER", tmp_path)
        monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
        monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "443")
        with running_issuer() as issuer:
            (tmp_path / "token").write_text(sign(issuer))
            settings = {
                "service_account_audience": AUDIENCE,
                "service_account_roles": ROLES,
                "oidc_issuer": issuer.url + slash,
                "oidc_audience": AUDIENCE,
            }
            message = refusal(database_url=database_url, auth="tokens", **settings)
        assert "BLOCKLIST_OIDC_ISSUER" in message
        assert "issuer of this cluster's ServiceAccounts" in message

    @pytest.mark.parametrize("name", ["BLOCKLIST_SERVICE_HOST", "BLOCKLIST_PORT_8224_TCP_ADDR"])
    def test_a_variable_that_kubernetes_sets_for_a_service_is_explained(self, name: str) -> None:
        """BLOCKLIST_PORT is then no number, but these come with it, and are reported first."""
        with pytest.raises(SettingsError, match=f"{name}.*enableServiceLinks: false"):
            read_settings({name: "10.0.0.1", "BLOCKLIST_PORT": "tcp://10.0.0.1:8224"})
