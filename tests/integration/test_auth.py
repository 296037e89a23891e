"""Authentication and authorization: the role of each route, and tokens that are expired, revoked or invalid."""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import httpx
import pytest
from fastapi.routing import APIRoute

from app.api.parameters import required_role
from app.main import create_app
from app.settings import Settings
from blocklist import __version__
from blocklist.model.claims import Role
from tests.integration.bodies import PERMANENT, all_changes, block, later
from tests.integration.conftest import Start
from tests.integration.databases import ON_BOTH, ON_SQLITE, Databases
from tests.integration.event_stream import next_events, watching
from tests.integration.in_process import in_process
from tests.integration.problems import problem_of
from tests.integration.process import wait_until
from tests.integration.raw_http import connection_to, read_response, request, send_request
from tests.integration.secured import (
    SecuredInProcess,
    check_valid_until_expiry,
    secured_in_process,
    secured_service,
)

APP: Final = create_app(Settings(database_url="sqlite:///never-opened.db"))
ROUTES: Final = [route for route in APP.routes if isinstance(route, APIRoute)]
ROUTE_METHODS: Final = [
    pytest.param(route, method, id=f"{method} {route.path}")
    for route in ROUTES
    for method in sorted(route.methods or ())
]
WRONG: Final = "blocklist_00000000_" + "A" * 43


@pytest.fixture
def admin(secured: SecuredInProcess) -> Iterator[httpx.Client]:
    with secured.client(secured.admin) as client:
        yield client


def status_of(secured: SecuredInProcess, token: str | None, method: str, path: str) -> int:
    """The status of a response that may be an endless stream."""
    with secured.client(token) as client, client.stream(method, path) as response:
        return response.status_code


class TestRoutes:
    def test_every_route_is_an_api_route(self) -> None:
        assert [route for route in APP.routes if not isinstance(route, APIRoute)] == []

    def test_every_route_declares_its_role_and_few_are_open_to_all(self) -> None:
        assert {route.path for route in ROUTES if required_role(route) is None} <= {
            "/healthz",
            "/readyz",
            "/login",
            "/login/callback",
            "/login/{number}",
            "/issuers",
            "/docs",
            "/openapi.json",
            "/spark/blocklist-spark.jar",
            "/static/{name:path}",
        }

    @pytest.mark.parametrize(("route", "method"), ROUTE_METHODS)
    def test_only_credentials_with_the_role_have_access(
        self, secured: SecuredInProcess, route: APIRoute, method: str
    ) -> None:
        path = re.sub(r"\{.*?\}", "x", route.path)
        access = required_role(route)
        if access is None:
            # A login without a token gets 401, and so does one that comes back from an issuer without having begun.
            assert status_of(secured, None, method, path) != 403
            is_refused = (method, path) in {("POST", "/login"), ("GET", "/login/callback")}
            assert (status_of(secured, None, method, path) == 401) == is_refused
            return
        # The page redirects to its login.
        nobody = (401, 303) if route.path in ("/", "/logout") or route.path.startswith("/page") else (401,)
        assert status_of(secured, None, method, path) in nobody
        assert status_of(secured, WRONG, method, path) in nobody
        for role, token in secured.tokens.items():
            if not role.allows(access):
                assert status_of(secured, token, method, path) == 403
        assert status_of(secured, secured.tokens[access], method, path) not in (401, 403)

    def test_the_api_document_declares_it(self) -> None:
        document = APP.openapi()
        assert document["components"]["securitySchemes"]["bearer"]["scheme"] == "bearer"
        for route in ROUTES:
            for method in route.methods or ():
                if route.include_in_schema:
                    operation = document["paths"][route.path_format][method.lower()]
                    access = required_role(route)
                    assert operation.get("security") == (None if access is None else [{"bearer": []}])
                    assert ({"401", "403"} <= operation["responses"].keys()) == (access is not None)


class TestRefusals:
    def test_without_credentials_401_names_the_scheme(self, secured: SecuredInProcess) -> None:
        with secured.client() as client:
            response = client.get("/blocklist")
        assert "Bearer" in problem_of(response, 401)["detail"]
        assert response.headers["www-authenticate"] == "Bearer"

    @pytest.mark.parametrize("token", [WRONG, "~", "", "a.b.c", "\xff", "x" * 5000])
    def test_an_invalid_token_gets_401(self, secured: SecuredInProcess, token: str) -> None:
        with secured.client() as client:
            response = client.get(
                "/blocklist", headers=[(b"Authorization", f"Bearer {token}".strip().encode("latin-1"))]
            )
        problem_of(response, 401)
        assert response.headers["www-authenticate"] == 'Bearer error="invalid_token"'
        assert not token or token not in response.text

    @pytest.mark.parametrize("header", ["Basic eDp5", "Digest x", "x", "Bearerx", "Negotiate"])
    def test_another_scheme_gets_401(self, secured: SecuredInProcess, header: str) -> None:
        with secured.client() as client:
            problem_of(client.get("/blocklist", headers={"Authorization": header}), 401)

    def test_two_authorization_headers_get_401(self, secured: SecuredInProcess) -> None:
        header = (b"Authorization", f"Bearer {secured.admin}".encode())
        with secured.client() as client:
            problem_of(client.get("/blocklist", headers=[header, header]), 401)

    def test_a_role_that_is_too_weak_gets_403_with_the_required_role(
        self, secured: SecuredInProcess, admin: httpx.Client
    ) -> None:
        with secured.client(secured.tokens[Role.LISTENER]) as client:
            for response in (
                client.put("/blocklist/nodes/weak", json=block()),
                client.put("/blocklist/nodes", json={"weak": block()}),
                client.delete("/blocklist/nodes/weak"),
            ):
                assert "operator" in problem_of(response, 403)["detail"]
        problem_of(admin.get("/blocklist/nodes/weak"), 404)

    def test_401_is_sent_before_the_body_arrives(self, secured: SecuredInProcess) -> None:
        with connection_to(secured.service.port) as connection, connection.makefile("rb") as stream:
            head = request("/blocklist/nodes/x", "Content-Length: 1000", method="PUT")
            connection.sendall(head)
            assert read_response(stream).status == 401


@ON_BOTH
class TestTokens:
    def test_a_token_has_the_requested_properties_and_is_shown_once(
        self, secured: SecuredInProcess, admin: httpx.Client
    ) -> None:
        end = later(3600)
        response = admin.post("/tokens", json={"name": "shown-once", "role": "operator", "endTimestamp": end})
        made = response.json()
        assert response.status_code == 201
        assert response.headers["cache-control"] == "no-store"
        assert re.fullmatch(r"blocklist_[0-9a-f]{8}_[A-Za-z0-9_-]{43}", made["token"])
        assert made["token"].split("_")[1] == made["id"]
        listed = admin.get("/tokens")
        assert made["token"] not in listed.text
        (found,) = [token for token in listed.json()["tokens"] if token["id"] == made["id"]]
        assert found == {
            "id": made["id"],
            "name": "shown-once",
            "role": "operator",
            "createdAt": made["createdAt"],
            "createdBy": "admin",
            "endTimestamp": end,
            "revokedAt": None,
            "lastUsedAt": None,
            "owners": None,
            "listeners": None,
        }
        assert status_of(secured, made["token"], "GET", "/blocklist") == 200
        (found,) = [token for token in admin.get("/tokens").json()["tokens"] if token["id"] == made["id"]]
        assert int(found["lastUsedAt"]) >= int(made["createdAt"])

    def test_without_end_its_end_is_null(self, admin: httpx.Client) -> None:
        for more in ({}, {"endTimestamp": PERMANENT}):
            made = admin.post("/tokens", json={"name": "endless", "role": "reader", **more}).json()
            assert made["endTimestamp"] is None

    @ON_SQLITE
    def test_an_end_that_has_passed_is_refused(self, admin: httpx.Client) -> None:
        body = {"name": "late", "role": "reader", "endTimestamp": "5"}
        assert "is not in the future" in problem_of(admin.post("/tokens", json=body), 400)["detail"]

    @ON_SQLITE
    def test_whoami_returns_name_and_role(self, secured: SecuredInProcess) -> None:
        for role, token in secured.tokens.items():
            with secured.client(token) as client:
                assert client.get("/whoami").json() == {
                    "name": f"some-{role.value}",
                    "role": role.value,
                    "owner": f"some-{role.value}",
                    "owners": None,
                    "version": __version__,
                    "defaultDuration": "4h",
                    "askAbove": 20,
                }

    def test_the_name_is_the_author_of_changes(self, secured: SecuredInProcess, admin: httpx.Client) -> None:
        token = secured.make_token(Role.OPERATOR, "ann")["token"]
        with secured.client(token) as client:
            client.put("/blocklist/nodes/by-ann", json=block()).raise_for_status()
            client.put("/blocklist/nodes", json={"by-ann-too": block()}).raise_for_status()
            client.delete("/blocklist/nodes/by-ann").raise_for_status()
        found = [change["createdBy"] for change in all_changes(admin) if change["node"]["id"].startswith("by-ann")]
        assert found == ["ann"] * 3

    @ON_SQLITE
    def test_a_token_expires_for_cached_requests_too(self, tmp_path: Path, databases: Databases) -> None:
        with secured_in_process(tmp_path, databases) as secured:
            check_valid_until_expiry(secured, secured.make_token(Role.READER, endTimestamp=later(60))["token"], 60)

    def test_a_revoked_token_is_refused_at_the_next_request(
        self, secured: SecuredInProcess, admin: httpx.Client
    ) -> None:
        """Revoked on one connection and used on another, for cached requests of the fast paths as for routes."""
        made = secured.make_token(Role.OPERATOR)
        bearer = f"Authorization: Bearer {made['token']}"
        body = json.dumps(block(allowMerge=True)).encode()
        payloads = [
            request("/blocklist", bearer),
            request("/blocklist/table", bearer),
            request("/blocklist/nodes/revoked", bearer, method="PUT", body=body),
            request("/blocklist/nodes/revoked", bearer),
        ]
        with connection_to(secured.service.port) as connection, connection.makefile("rb") as stream:

            def statuses() -> list[int]:
                found = []
                for payload in payloads:
                    connection.sendall(payload)
                    found.append(read_response(stream).status)
                return found

            assert [statuses() for _ in range(3)] == [[200, 200, 201, 200], *[[200, 200, 202, 200]] * 2]
            assert admin.delete(f"/tokens/{made['id']}").status_code == 204
            assert [statuses() for _ in range(3)] == [[401] * 4] * 3
        (found,) = [token for token in admin.get("/tokens").json()["tokens"] if token["id"] == made["id"]]
        assert found["revokedAt"] is not None

    @ON_SQLITE
    @pytest.mark.parametrize(
        "path", ["/blocklist", "/blocklist?details=true", "/blocklist/table", "/blocklist/table?minRevision=0"]
    )
    def test_a_read_that_waits_gets_nothing_after_its_token_was_revoked(
        self, secured: SecuredInProcess, admin: httpx.Client, path: str
    ) -> None:
        made = secured.make_token(Role.READER)
        bearer = f"Authorization: Bearer {made['token']}"
        with secured.client(made["token"]) as reader:
            etag = reader.get(path).headers["etag"]
        payload = request(path, bearer, f"If-None-Match: {etag}", "Prefer: wait=30")
        with connection_to(secured.service.port) as connection:
            connection.sendall(payload)
            with pytest.raises(TimeoutError):
                receive_within(connection, 0.5)
            assert admin.delete(f"/tokens/{made['id']}").status_code == 204
            admin.put("/blocklist/nodes/after-revocation", json=block()).raise_for_status()
            received = receive_within(connection, 20)
        admin.delete("/blocklist/nodes/after-revocation")
        assert b"after-revocation" not in received
        assert received == b"" or received.startswith(b"HTTP/1.1 401 ")

    @ON_SQLITE
    @pytest.mark.parametrize("path", ["/blocklist/nodes/later/status", "/blocklist/nodes/later", "/claims"])
    def test_a_read_that_waits_for_a_revision_gets_nothing_after_its_token_was_revoked(
        self, secured: SecuredInProcess, admin: httpx.Client, path: str
    ) -> None:
        made = secured.make_token(Role.READER)
        revision = int(admin.get("/blocklist").headers["blocklist-revision"]) + 1
        payload = request(f"{path}?minRevision={revision}", f"Authorization: Bearer {made['token']}")
        with connection_to(secured.service.port) as connection:
            connection.sendall(payload)
            with pytest.raises(TimeoutError):
                receive_within(connection, 0.3)
            assert admin.delete(f"/tokens/{made['id']}").status_code == 204
            admin.put("/blocklist/nodes/later", json=block()).raise_for_status()
            received = receive_within(connection, 20)
        admin.delete("/blocklist/nodes/later")
        # 503 if the change comes too late.
        assert received == b"" or received.startswith((b"HTTP/1.1 401 ", b"HTTP/1.1 503 "))

    def test_revoking_twice_succeeds_and_an_unknown_id_gets_404(
        self, secured: SecuredInProcess, admin: httpx.Client
    ) -> None:
        made = secured.make_token(Role.READER)
        assert [admin.delete(f"/tokens/{made['id']}").status_code for _ in range(2)] == [204, 204]
        problem_of(admin.delete("/tokens/00000000"), 404)
        problem_of(admin.delete("/tokens/a%20b"), 400)

    @ON_SQLITE
    def test_a_watch_ends_when_its_token_is_revoked(self, secured: SecuredInProcess, admin: httpx.Client) -> None:
        made = secured.make_token(Role.READER)
        with secured.client(made["token"]) as client, watching(client) as events:
            assert next_events(events, 1)[0].event == "snapshot"
            admin.put("/blocklist/nodes/watched", json=block()).raise_for_status()
            assert next_events(events, 1)[0].event == "blocked"
            admin.delete(f"/tokens/{made['id']}").raise_for_status()
            admin.delete("/blocklist/nodes/watched").raise_for_status()
            rest = [event.event for event in events]
        assert rest in ([], ["bye"]), "no change after the revocation"


def receive_within(connection: socket.socket, seconds: float) -> bytes:
    connection.settimeout(seconds)
    return connection.recv(1 << 16)


@ON_BOTH
class TestRestart:
    def test_tokens_and_the_admin_token_file_survive_it(self, tmp_path: Path, databases: Databases) -> None:
        with secured_in_process(tmp_path, databases) as secured:
            token = secured.make_token(Role.READER)["token"]
            revoked = secured.make_token(Role.READER)
            with secured.client(secured.admin) as client:
                client.delete(f"/tokens/{revoked['id']}").raise_for_status()
            admin = secured.admin
        with secured_in_process(tmp_path, databases) as secured:
            assert secured.admin == admin
            assert status_of(secured, token, "GET", "/blocklist") == 200
            assert status_of(secured, revoked["token"], "GET", "/blocklist") == 401
            assert status_of(secured, admin, "GET", "/tokens") == 200

    def test_a_new_token_in_the_admin_token_file_replaces_the_old_one(
        self, tmp_path: Path, databases: Databases
    ) -> None:
        with secured_in_process(tmp_path, databases) as secured:
            secured.admin_file.write_text("a-token-of-an-operator-who-likes-it-so\n")
            secured.clock.advance(5)
            wait_until(lambda: status_of(secured, secured.admin, "GET", "/blocklist") == 401)
            assert status_of(secured, "a-token-of-an-operator-who-likes-it-so", "GET", "/tokens") == 200

    def test_without_a_file_the_last_admin_cannot_be_revoked(self, tmp_path: Path, databases: Databases) -> None:
        with secured_in_process(tmp_path, databases) as secured:
            made = secured.make_token(Role.ADMIN)
            old = secured.tokens[Role.ADMIN].split("_")[1]
        with (
            in_process(**databases.settings(tmp_path), auth="tokens") as service,
            service.client(Authorization=f"Bearer {made['token']}") as client,
        ):
            assert client.delete(f"/tokens/{old}").status_code == 204
            assert "last" in problem_of(client.delete(f"/tokens/{made['id']}"), 409)["detail"]
            assert client.get("/blocklist").status_code == 200


class TestAuthenticationOff:
    """The default, on a loopback address."""

    def test_every_client_is_an_admin_without_a_name(self, client: httpx.Client) -> None:
        assert client.get("/whoami").json() == {
            "name": None,
            "role": "admin",
            "owner": "anonymous",
            "owners": None,
            "version": __version__,
            "defaultDuration": "4h",
            "askAbove": 20,
        }

    def test_no_token_can_be_created(self, start: Start) -> None:
        """It would remain valid after authentication is switched on."""
        service = start()
        with service.client() as client:
            problem = problem_of(client.post("/tokens", json={"name": "first", "role": "admin"}), 403)
            assert "BLOCKLIST_ADMIN_TOKEN_FILE" in problem["detail"]
            assert client.get("/tokens").json() == {"tokens": []}
            client.headers["Authorization"] = "Bearer rubbish"
            assert client.put("/blocklist/nodes/a", json=block()).status_code == 201


@pytest.mark.parametrize("name", ["evidence", "detection", "kubernetes"])
def test_who_blocks_by_his_own_name_has_not_that_of_an_automatic_owner(
    secured: SecuredInProcess, admin: httpx.Client, name: str
) -> None:
    for role in ("operator", "admin"):
        assert "automatic owner" in problem_of(admin.post("/tokens", json={"name": name, "role": role}), 403)["detail"]
    secured.make_token(Role.MANAGER, name)
    secured.make_token(Role.OPERATOR, name, owners=[name])


class TestProxies:
    def test_a_trusted_proxy_names_the_author_but_not_the_role(self, tmp_path: Path, databases: Databases) -> None:
        with secured_in_process(tmp_path, databases, trusted_proxies="127.0.0.1") as secured:
            token = secured.make_token(Role.OPERATOR, "proxy")["token"]
            with secured.client(token) as client:
                for number, name in enumerate(["ann@example.com", "Zoë", ""]):
                    response = client.put(
                        f"/blocklist/nodes/n{number}",
                        json=block(),
                        headers=[(b"X-Forwarded-User", name.encode())],
                    )
                    assert response.status_code == 201
                authors = [change["createdBy"] for change in all_changes(client)]
                assert authors == ["ann@example.com", "Zoë", "proxy"]
                problem_of(client.post("/tokens", headers={"X-Forwarded-User": "admin"}), 403)
                taken = problem_of(client.get("/whoami", headers={"X-Forwarded-User": "listener/etl"}), 403)
                assert "automatic owner" in taken["detail"]
                two = [("X-Forwarded-User", "ann"), ("X-Forwarded-User", "bob")]
                problem_of(client.put("/blocklist/nodes/n9", json=block(), headers=two), 400)
                for bad in (b"\xff", b"x" * 254, b"a\xc2\x80b"):
                    problem_of(
                        client.put("/blocklist/nodes/n9", json=block(), headers=[(b"X-Forwarded-User", bad)]), 400
                    )
            with secured.client() as client:
                problem_of(client.get("/blocklist", headers={"X-Forwarded-User": "ann"}), 401)

    @pytest.mark.parametrize("value", ["", " ", " \t  "])
    def test_a_blank_name_is_none_so_that_the_token_is_the_author(
        self, tmp_path: Path, databases: Databases, value: str
    ) -> None:
        with secured_in_process(tmp_path, databases, trusted_proxies="127.0.0.1") as secured:
            token = secured.make_token(Role.OPERATOR, "proxy")["token"]
            headers = [f"Authorization: Bearer {token}", f"X-Forwarded-User:{value}"]
            body = json.dumps(block()).encode()
            put = request("/blocklist/nodes/n1", *headers, "Content-Type: application/json", method="PUT", body=body)
            assert send_request(secured.service.port, put, "PUT").status == 201
            with secured.client(token) as client:
                (change,) = all_changes(client)
                assert change["createdBy"] == "proxy"
                (claim,) = client.get("/blocklist/nodes/n1/claims").json()["claims"]
                assert (claim["owner"], claim["createdBy"]) == ("proxy", "proxy")
            assert "proxy" in send_request(secured.service.port, request("/whoami", *headers)).body.decode()
            # A name beside it may be that of the client: the proxy has added its blank one, and not replaced it.
            both = send_request(secured.service.port, request("/whoami", *headers, "X-Forwarded-User: mallory"))
            assert both.status == 400
            # A name of blanks of other alphabets is no name, and not left out silently.
            other = send_request(
                secured.service.port, request("/whoami", *headers[:1], "X-Forwarded-User: \u00c2\u00a0")
            )
            assert (other.status, "is blank" in other.json()["detail"]) == (400, True)

    def test_without_authentication_a_blank_name_leaves_the_author_unknown(self, start: Start) -> None:
        service = start(trusted_proxies="127.0.0.1")
        with service.client() as client:
            for node, name in (("n1", ""), ("n2", "ann")):
                answer = client.put(f"/blocklist/nodes/{node}", json=block(), headers={"X-Forwarded-User": name})
                assert answer.status_code == 201
            assert [change["createdBy"] for change in all_changes(client)] == [None, "ann"]
            owners = [
                client.get(f"/blocklist/nodes/{node}/claims").json()["claims"][0]["owner"] for node in ("n1", "n2")
            ]
            assert owners == ["anonymous", "ann"]

    def test_any_other_client_does_not(self, secured: SecuredInProcess, admin: httpx.Client) -> None:
        admin.put("/blocklist/nodes/forwarded", json=block(), headers={"X-Forwarded-User": "ann"}).raise_for_status()
        (change,) = [change for change in all_changes(admin) if change["node"]["id"] == "forwarded"]
        assert change["createdBy"] == "admin"


@pytest.mark.parametrize("form", ["console", "json"])
def test_no_token_is_ever_logged(tmp_path: Path, databases: Databases, form: str) -> None:
    with secured_service(tmp_path, databases, log_format=form) as secured:
        texts = [secured.admin, *secured.tokens.values(), WRONG, "rubbish-" * 5]
        for text in texts:
            for method, path in (("GET", "/blocklist"), ("PUT", "/blocklist/nodes/a"), ("GET", f"/tokens/{text}")):
                with secured.client(text) as client:
                    response = client.request(method, path, content=b"{")
                    assert text not in response.text.replace(f"/tokens/{text}", "")
        with socket.create_connection(("127.0.0.1", secured.process.port)) as connection:
            connection.sendall(f"GET / HTTP/1.1\r\nAuthorization: Bearer {secured.admin}\r\n broken\r\n\r\n".encode())
            connection.recv(1000)
        secured.process.stop()
        log = secured.process.log()
        assert str(secured.admin_file) in log, "it says where the token is"
        assert not [text for text in texts if text.split("_", 2)[-1] in log]
