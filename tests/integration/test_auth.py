"""Who may do what: each route, each role; and a token that ends, is revoked, or was never any."""

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

from app.api.authorization import required_role
from app.main import create_app
from app.settings import Settings
from blocklist.model.roles import Role
from tests.integration.bodies import PERMANENT, all_changes, block, later
from tests.integration.conftest import Start
from tests.integration.databases import ON_BOTH, Databases
from tests.integration.event_stream import next_events, watching
from tests.integration.problems import problem_of
from tests.integration.process import wait_until
from tests.integration.raw_http import connection_to, read_response, request
from tests.integration.secured import SecuredService, good_until_its_end, secured_service

APP: Final = create_app(Settings(database_url="sqlite:///never-opened.db"))
ROUTES: Final = [route for route in APP.routes if isinstance(route, APIRoute)]
ROUTE_METHODS: Final = [
    pytest.param(route, method, id=f"{method} {route.path}")
    for route in ROUTES
    for method in sorted(route.methods or ())
]
WRONG: Final = "blocklist_00000000_" + "A" * 43


@pytest.fixture
def admin(secured: SecuredService) -> Iterator[httpx.Client]:
    with secured.client(secured.admin) as client:
        yield client


def status_of(secured: SecuredService, token: str | None, method: str, path: str) -> int:
    """The status of an answer that may have no end."""
    with secured.client(token) as client, client.stream(method, path) as answer:
        return answer.status_code


class TestRoutes:
    def test_there_are_no_other_routes_but_the_api_document(self) -> None:
        others = [route for route in APP.routes if not isinstance(route, APIRoute)]
        assert [getattr(route, "path", None) for route in others] == ["/openapi.json"]

    @pytest.mark.parametrize("route", [pytest.param(route, id=route.path) for route in ROUTES])
    def test_every_route_says_which_role_it_needs(self, route: APIRoute) -> None:
        required_role(route)

    def test_what_is_open_to_all(self) -> None:
        assert {route.path for route in ROUTES if required_role(route) is None} <= {
            "/healthz",
            "/readyz",
            "/login",
            "/docs",
            "/static/{name:path}",
        }

    @pytest.mark.parametrize(("route", "method"), ROUTE_METHODS)
    def test_it_opens_to_those_who_have_the_role_and_to_nobody_else(
        self, secured: SecuredService, route: APIRoute, method: str
    ) -> None:
        path = re.sub(r"\{.*?\}", "x", route.path)
        access = required_role(route)
        if access is None:
            # Who logs in with nothing is told that it is no token.
            assert status_of(secured, None, method, path) != 403
            assert (status_of(secured, None, method, path) == 401) == ((method, path) == ("POST", "/login"))
            return
        # The page sends people to where they log in.
        nobody = (401, 303) if route.path in ("/", "/logout") or route.path.startswith("/page") else (401,)
        assert status_of(secured, None, method, path) in nobody
        assert status_of(secured, WRONG, method, path) in nobody
        for role, token in secured.tokens.items():
            if not role.allows(access):
                assert status_of(secured, token, method, path) == 403
        assert status_of(secured, secured.tokens[access], method, path) not in (401, 403)

    def test_the_document_says_so(self) -> None:
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
    def test_without_credentials_it_is_401_and_says_how(self, secured: SecuredService) -> None:
        with secured.client() as client:
            answer = client.get("/blocklist")
        assert "Bearer" in problem_of(answer, 401)["detail"]
        assert answer.headers["www-authenticate"] == "Bearer"

    @pytest.mark.parametrize("token", [WRONG, "x", "", "a.b.c", "\xff", "x" * 5000])
    def test_a_token_that_is_none_is_401_and_invalid(self, secured: SecuredService, token: str) -> None:
        with secured.client() as client:
            answer = client.get("/blocklist", headers=[(b"Authorization", f"Bearer {token}".strip().encode("latin-1"))])
        problem_of(answer, 401)
        assert answer.headers["www-authenticate"] == 'Bearer error="invalid_token"'
        assert not token or token not in answer.text

    @pytest.mark.parametrize("header", ["Basic eDp5", "Digest x", "x", "Bearerx", "Negotiate"])
    def test_another_scheme_is_401(self, secured: SecuredService, header: str) -> None:
        with secured.client() as client:
            problem_of(client.get("/blocklist", headers={"Authorization": header}), 401)

    def test_two_headers_are_401_though_both_are_good(self, secured: SecuredService) -> None:
        header = (b"Authorization", f"Bearer {secured.admin}".encode())
        with secured.client() as client:
            problem_of(client.get("/blocklist", headers=[header, header]), 401)

    def test_too_weak_a_role_is_403_which_names_the_one_that_is_needed_and_changes_nothing(
        self, secured: SecuredService, admin: httpx.Client
    ) -> None:
        with secured.client(secured.tokens[Role.LISTENER]) as client:
            for answer in (
                client.put("/blocklist/nodes/weak", json=block()),
                client.put("/blocklist/nodes", json={"weak": block()}),
                client.delete("/blocklist/nodes/weak"),
            ):
                assert "operator" in problem_of(answer, 403)["detail"]
        problem_of(admin.get("/blocklist/nodes/weak"), 404)

    def test_a_body_is_not_waited_for(self, secured: SecuredService) -> None:
        with connection_to(secured.process.port) as connection, connection.makefile("rb") as stream:
            head = request("/blocklist/nodes/x", "Content-Length: 1000", method="PUT")
            connection.sendall(head)
            assert read_response(stream).status == 401


@ON_BOTH
class TestTokens:
    def test_a_token_has_what_was_asked_for_and_is_shown_once(
        self, secured: SecuredService, admin: httpx.Client
    ) -> None:
        end = later(3600)
        answer = admin.post("/tokens", json={"name": "shown-once", "role": "operator", "endTimestamp": end})
        made = answer.json()
        assert answer.status_code == 201
        assert answer.headers["cache-control"] == "no-store"
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
        }
        assert status_of(secured, made["token"], "GET", "/blocklist") == 200
        (found,) = [token for token in admin.get("/tokens").json()["tokens"] if token["id"] == made["id"]]
        assert int(found["lastUsedAt"]) >= int(made["createdAt"])

    def test_without_end_it_says_null(self, admin: httpx.Client) -> None:
        for more in ({}, {"endTimestamp": PERMANENT}):
            made = admin.post("/tokens", json={"name": "endless", "role": "reader", **more}).json()
            assert made["endTimestamp"] is None

    @pytest.mark.parametrize(
        "body",
        [
            {},
            {"name": "a"},
            {"role": "reader"},
            {"name": "", "role": "reader"},
            {"name": "a b", "role": "reader"},
            {"name": "a\r\nb", "role": "reader"},
            {"name": "a", "role": "root"},
            {"name": "a", "role": "Reader"},
            {"name": "a", "role": None},
            {"name": "a", "role": "reader", "endTimestamp": "5"},
            {"name": "a", "role": "reader", "endTimestamp": None},
            {"name": "a", "role": "reader", "token": WRONG},
        ],
    )
    def test_what_is_malformed_makes_none(self, admin: httpx.Client, body: dict[str, object]) -> None:
        before = len(admin.get("/tokens").json()["tokens"])
        problem_of(admin.post("/tokens", json=body), 400)
        assert len(admin.get("/tokens").json()["tokens"]) == before

    def test_who_asks_is_told_who_they_are(self, secured: SecuredService) -> None:
        for role, token in secured.tokens.items():
            with secured.client(token) as client:
                assert client.get("/whoami").json() == {"name": f"some-{role.value}", "role": role.value}

    def test_the_name_is_the_author_of_changes(self, secured: SecuredService, admin: httpx.Client) -> None:
        token = secured.make_token(Role.OPERATOR, "ann")["token"]
        with secured.client(token) as client:
            client.put("/blocklist/nodes/by-ann", json=block()).raise_for_status()
            client.put("/blocklist/nodes", json={"by-ann-too": block()}).raise_for_status()
            client.delete("/blocklist/nodes/by-ann").raise_for_status()
        found = [change["createdBy"] for change in all_changes(admin) if change["node"]["id"].startswith("by-ann")]
        assert found == ["ann"] * 3

    def test_a_token_ends_by_itself_also_for_requests_known_by_their_bytes(self, secured: SecuredService) -> None:
        good_until_its_end(secured, secured.make_token(Role.READER, endTimestamp=later(3))["token"])

    def test_a_revoked_token_is_refused_by_the_next_answer(self, secured: SecuredService, admin: httpx.Client) -> None:
        """Revoked on one connection, asked with on another: on the short cuts as on the routes, each known before."""
        made = secured.make_token(Role.OPERATOR)
        bearer = f"Authorization: Bearer {made['token']}"
        body = json.dumps(block(allowMerge=True)).encode()
        payloads = [
            request("/blocklist", bearer),
            request("/blocklist/nodes/revoked", bearer, method="PUT", body=body),
            request("/blocklist/nodes/revoked", bearer),
        ]
        with connection_to(secured.process.port) as connection, connection.makefile("rb") as stream:

            def statuses() -> list[int]:
                found = []
                for payload in payloads:
                    connection.sendall(payload)
                    found.append(read_response(stream).status)
                return found

            assert [statuses() for _ in range(3)] == [[200, 201, 200], [200, 202, 200], [200, 202, 200]]
            assert admin.delete(f"/tokens/{made['id']}").status_code == 204
            assert [statuses() for _ in range(3)] == [[401] * 3] * 3
        (found,) = [token for token in admin.get("/tokens").json()["tokens"] if token["id"] == made["id"]]
        assert found["revokedAt"] is not None

    def test_to_revoke_twice_is_once_and_what_is_unknown_is_404(
        self, secured: SecuredService, admin: httpx.Client
    ) -> None:
        made = secured.make_token(Role.READER)
        assert [admin.delete(f"/tokens/{made['id']}").status_code for _ in range(2)] == [204, 204]
        problem_of(admin.delete("/tokens/00000000"), 404)
        problem_of(admin.delete("/tokens/a%20b"), 400)

    def test_an_open_watch_ends_with_its_token(self, secured: SecuredService, admin: httpx.Client) -> None:
        made = secured.make_token(Role.READER)
        with secured.client(made["token"]) as client, watching(client) as events:
            assert next_events(events, 1)[0].event == "snapshot"
            admin.put("/blocklist/nodes/watched", json=block()).raise_for_status()
            assert next_events(events, 1)[0].event == "blocked"
            admin.delete(f"/tokens/{made['id']}").raise_for_status()
            admin.delete("/blocklist/nodes/watched").raise_for_status()
            rest = [event.event for event in events]
        assert rest in ([], ["bye"]), "nothing that happened afterwards"


@ON_BOTH
class TestRestart:
    def test_tokens_and_the_admins_file_outlive_it(self, tmp_path: Path, databases: Databases) -> None:
        with secured_service(tmp_path, databases) as secured:
            token = secured.make_token(Role.READER)["token"]
            revoked = secured.make_token(Role.READER)
            with secured.client(secured.admin) as client:
                client.delete(f"/tokens/{revoked['id']}").raise_for_status()
            secured.process.stop()
            secured.process.start()
            assert status_of(secured, token, "GET", "/blocklist") == 200
            assert status_of(secured, revoked["token"], "GET", "/blocklist") == 401
            assert status_of(secured, secured.admin, "GET", "/tokens") == 200

    def test_another_token_in_the_admins_file_replaces_the_old_one(self, tmp_path: Path, databases: Databases) -> None:
        with secured_service(tmp_path, databases) as secured:
            secured.admin_file.write_text("a-token-of-an-operator-who-likes-it-so\n")
            wait_until(lambda: status_of(secured, secured.admin, "GET", "/blocklist") == 401)
            assert status_of(secured, "a-token-of-an-operator-who-likes-it-so", "GET", "/tokens") == 200

    def test_the_last_admin_may_not_be_revoked_without_a_file(self, tmp_path: Path, databases: Databases) -> None:
        with secured_service(tmp_path, databases) as secured:
            made = secured.make_token(Role.ADMIN)
            old = secured.tokens[Role.ADMIN].split("_")[1]
            secured.process.stop()
        process = type(secured.process)(tmp_path, **databases.settings(tmp_path), auth="tokens")
        with (
            process,
            httpx.Client(base_url=process.url, headers={"Authorization": f"Bearer {made['token']}"}) as client,
        ):
            assert client.delete(f"/tokens/{old}").status_code == 204
            assert "last" in problem_of(client.delete(f"/tokens/{made['id']}"), 409)["detail"]
            assert client.get("/blocklist").status_code == 200


class TestNobodyAsked:
    """With authentication off, as it is on a loopback address by default."""

    def test_nobody_knows_who_asks(self, client: httpx.Client) -> None:
        assert client.get("/whoami").json() == {"name": None, "role": "admin"}

    def test_anybody_may_make_the_first_tokens(self, start: Start) -> None:
        service = start()
        with service.client() as client:
            made = client.post("/tokens", json={"name": "first", "role": "admin"}).json()
            assert made["createdBy"] is None
            client.headers["Authorization"] = "Bearer rubbish"
            assert client.put("/blocklist/nodes/a", json=block()).status_code == 201
            assert client.delete(f"/tokens/{made['id']}").status_code == 204

    @pytest.mark.parametrize(
        "headers",
        [{"Origin": "http://elsewhere.example"}, {"Origin": "null"}, {"Sec-Fetch-Site": "cross-site"}],
    )
    def test_a_form_on_another_site_makes_nothing(self, client: httpx.Client, headers: dict[str, str]) -> None:
        body = json.dumps({"name": "stolen", "role": "admin"})
        answer = client.post("/tokens", content=body, headers={**headers, "Content-Type": "text/plain"})
        problem_of(answer, 403)
        assert "stolen" not in client.get("/tokens").text


class TestProxies:
    def test_a_trusted_proxy_names_the_author_and_not_the_role(self, tmp_path: Path, databases: Databases) -> None:
        with secured_service(tmp_path, databases, trusted_proxies="127.0.0.1") as secured:
            token = secured.make_token(Role.OPERATOR, "proxy")["token"]
            with secured.client(token) as client:
                for number, name in enumerate(["ann@example.com", "Zoë", ""]):
                    answer = client.put(
                        f"/blocklist/nodes/n{number}",
                        json=block(),
                        headers=[(b"X-Forwarded-User", name.encode())],
                    )
                    assert answer.status_code == 201
                authors = [change["createdBy"] for change in all_changes(client)]
                assert authors == ["ann@example.com", "Zoë", "proxy"]
                problem_of(client.post("/tokens", headers={"X-Forwarded-User": "admin"}), 403)
                two = [("X-Forwarded-User", "ann"), ("X-Forwarded-User", "bob")]
                problem_of(client.put("/blocklist/nodes/n9", json=block(), headers=two), 400)
                for bad in (b"\xff", b"x" * 254, b"a\xc2\x80b"):
                    problem_of(
                        client.put("/blocklist/nodes/n9", json=block(), headers=[(b"X-Forwarded-User", bad)]), 400
                    )
            with secured.client() as client:
                problem_of(client.get("/blocklist", headers={"X-Forwarded-User": "ann"}), 401)

    def test_anybody_else_does_not(self, secured: SecuredService, admin: httpx.Client) -> None:
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
                    answer = client.request(method, path, content=b"{")
                    assert text not in answer.text.replace(f"/tokens/{text}", "")
        with socket.create_connection(("127.0.0.1", secured.process.port)) as connection:
            connection.sendall(f"GET / HTTP/1.1\r\nAuthorization: Bearer {secured.admin}\r\n broken\r\n\r\n".encode())
            connection.recv(1000)
        secured.process.stop()
        log = secured.process.log()
        assert str(secured.admin_file) in log, "it says where the token is"
        assert not [text for text in texts if text.split("_", 2)[-1] in log]
