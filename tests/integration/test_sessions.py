"""Sessions of the page: what its cookie allows, and what it does not allow to pages of other sites."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest

from blocklist.model.claims import Role
from tests.integration.bodies import block
from tests.integration.databases import ON_BOTH, Databases
from tests.integration.event_stream import next_events, watching
from tests.integration.problems import problem_of
from tests.integration.secured import SecuredInProcess, secured_in_process
from tests.integration.test_auth import ROUTES

COOKIE = "blocklist_session"


@pytest.fixture
def logged_in(secured: SecuredInProcess) -> Iterator[httpx.Client]:
    """An operator who is logged in, with requests from the page."""
    with secured.client() as client:
        log_in(client, secured.tokens[Role.OPERATOR])
        client.headers["Origin"] = secured.url
        yield client


def log_in(client: httpx.Client, token: str) -> httpx.Response:
    return client.post("/login", data={"token": token})


def csrf_of(client: httpx.Client) -> str:
    """The CSRF value of the session, from a form of the page."""
    found = re.search(r'name="csrf_token"\s+value="([0-9a-f]{64})"', client.get("/page/block").text)
    assert found is not None
    return found[1]


def test_a_token_creates_a_session_whose_cookie_is_http_only_and_same_site(secured: SecuredInProcess) -> None:
    with secured.client() as client:
        response = log_in(client, f"  {secured.tokens[Role.READER]}\n")
        cookie = response.headers["set-cookie"].lower()
        assert response.status_code == 303
        assert f"{COOKIE}=" in cookie
        assert "httponly" in cookie
        assert "samesite=strict" in cookie
        assert secured.tokens[Role.READER] not in str(response.headers) + response.text


class TestHttps:
    """Another host of the domain can set cookies for this one, but none whose name begins with __Host-."""

    @pytest.mark.parametrize(
        ("settings", "headers"),
        [
            ({"public_url": "https://lists.example"}, {}),
            ({"trusted_proxies": "127.0.0.1/32"}, {"X-Forwarded-Proto": "https"}),
        ],
        ids=["setting", "trusted proxy"],
    )
    def test_another_host_of_the_domain_cannot_plant_a_session(
        self, tmp_path: Path, databases: Databases, settings: dict[str, str], headers: dict[str, str]
    ) -> None:
        with secured_in_process(tmp_path, databases, **settings) as secured, secured.client() as client:
            client.headers.update(headers)
            set_cookie = log_in(client, secured.tokens[Role.READER]).headers["set-cookie"]
            assert re.match(f"__Host-{COOKIE}=[^;]+; HttpOnly; Path=/; SameSite=strict; Secure$", set_cookie)
            own = set_cookie.partition(";")[0]
            planted = own.removeprefix("__Host-")
            for cookies, status in ((own, 200), (planted, 401), (f"{own}; {COOKIE}=x", 200)):
                assert client.get("/whoami", headers={"Cookie": cookies}).status_code == status

    def test_behind_a_proxy_that_is_not_trusted_the_origin_says_so(self, secured: SecuredInProcess) -> None:
        with secured.client() as client:
            client.headers.update({"Host": "lists.example", "Origin": "https://lists.example"})
            set_cookie = log_in(client, secured.tokens[Role.OPERATOR]).headers["set-cookie"]
            own = set_cookie.partition(";")[0]
            assert (own.startswith("__Host-"), set_cookie.endswith("; Secure")) == (True, True)
            del client.headers["Origin"]
            assert client.get("/whoami", headers={"Cookie": f"{own}; {COOKIE}=x"}).status_code == 200
            client.headers["Cookie"] = own
            form = {"csrf_token": csrf_of(client)}
            ended = client.post("/logout", data=form, headers={"Origin": "https://lists.example"})
            assert [it.partition("=")[0] for it in sorted(ended.headers.get_list("set-cookie"))] == [
                f"__Host-{COOKIE}",
                COOKIE,
            ]

    def test_below_a_path_other_tools_of_the_host_are_not_sent_the_cookie(
        self, tmp_path: Path, databases: Databases
    ) -> None:
        settings = {"public_url": "https://host.example/tools/b", "root_path": "/tools/b"}
        with secured_in_process(tmp_path, databases, **settings) as secured, secured.client() as client:
            response = client.post("/tools/b/login", data={"token": secured.tokens[Role.READER]})
            assert re.match(
                f"{COOKIE}=[^;]+; HttpOnly; Path=/tools/b; SameSite=strict; Secure$", response.headers["set-cookie"]
            )
            own = response.headers["set-cookie"].partition(";")[0]
            assert client.get("/tools/b/whoami", headers={"Cookie": f"__Host-{COOKIE}=x; {own}"}).status_code == 200


@pytest.mark.parametrize("token", ["", "x", "blocklist_00000000_" + "A" * 43])
def test_an_invalid_token_creates_no_session(secured: SecuredInProcess, token: str) -> None:
    with secured.client() as client:
        response = log_in(client, token)
        assert response.status_code == 401
        assert "set-cookie" not in response.headers
        assert not token or f'value="{token}"' not in response.text


def test_it_reads_with_the_role_of_its_token(logged_in: httpx.Client) -> None:
    assert logged_in.get("/blocklist").status_code == 200
    problem_of(logged_in.get("/tokens"), 403)
    logged_in.headers["Authorization"] = "Bearer rubbish"
    problem_of(logged_in.get("/blocklist"), 401)


def test_it_changes_with_its_csrf_value(secured: SecuredInProcess, logged_in: httpx.Client) -> None:
    csrf = csrf_of(logged_in)
    response = logged_in.put("/blocklist/nodes/by-header", json=block(), headers={"X-CSRF-Token": csrf})
    assert response.status_code == 201
    with secured.client(secured.admin) as admin:
        (change,) = admin.get("/blocklist/changes", params={"node": "by-header"}).json()["changes"]
    assert change["createdBy"] == "some-operator"


CHANGES = [
    (method, re.sub(r"\{.*?\}", "x", route.path))
    for route in ROUTES
    for method in {"PUT", "POST", "PATCH", "DELETE"} & (route.methods or set())
]
CROSS_SITE = [
    {"Origin": "http://elsewhere.example"},
    {"Origin": "null"},
    {"Origin": "HERE", "Host": "elsewhere.example"},
    {"Origin": "HERE", "Sec-Fetch-Site": "cross-site"},
    {"Sec-Fetch-Site": "same-site"},
    {"Sec-Fetch-Site": "none"},
]
FORGED = [
    *({"X-CSRF-Token": "CSRF", **headers} for headers in CROSS_SITE),
    {"X-CSRF-Token": "CSRF"},
    {"Origin": "HERE"},
    {"Origin": "HERE", "X-CSRF-Token": ""},
    {"Origin": "HERE", "X-CSRF-Token": "0" * 64},
    {"Origin": "HERE", "X-CSRF-Token": "OTHER"},
]


@pytest.mark.parametrize("headers", FORGED, ids=str)
def test_without_its_csrf_value_and_origin_it_changes_nothing(
    secured: SecuredInProcess, logged_in: httpx.Client, headers: dict[str, str]
) -> None:
    with secured.client() as other:
        log_in(other, secured.tokens[Role.OPERATOR])
        values = {"CSRF": csrf_of(logged_in), "OTHER": csrf_of(other), "HERE": secured.url}
    given = {name: values.get(value, value) for name, value in headers.items()}
    del logged_in.headers["Origin"]
    for method, path in CHANGES:
        if path != "/login":
            assert logged_in.request(method, path, headers=given).status_code == 403, (method, path)


@pytest.mark.parametrize("headers", CROSS_SITE, ids=str)
@pytest.mark.parametrize("credentials", ["token", "no authentication"])
def test_a_page_of_another_site_changes_nothing_whatever_the_credentials(
    secured: SecuredInProcess, client: httpx.Client, credentials: str, headers: dict[str, str]
) -> None:
    """The header Authorization may be that of a proxy, which adds it after a login of its own."""
    with ExitStack() as stack:
        if credentials == "token":
            client = stack.enter_context(secured.client(secured.admin))
        here = str(client.base_url).rstrip("/")
        given = {name: here if value == "HERE" else value for name, value in headers.items()}
        for method, path in CHANGES:
            # Such a Host is refused before, while authentication is off.
            for kind in ("application/x-www-form-urlencoded", "text/plain", "multipart/form-data; boundary=x"):
                typed = {**given, "Content-Type": kind}
                answer = client.request(method, path, headers=typed, content="action=evacuate")
                assert answer.status_code in (403, 421), (method, path, kind)
        assert client.get("/blocklist", headers={"Sec-Fetch-Site": "cross-site"}).status_code == 200


class TestOtherServersOfTheHost:
    """A browser sends the cookie to every port of the host: what another server there learns must not be enough."""

    def test_its_cookie_is_worth_nothing_at_another_address(self, tmp_path: Path, databases: Databases) -> None:
        with (
            secured_in_process(tmp_path, databases, trusted_proxies="127.0.0.1") as secured,
            secured.client() as client,
        ):
            client.headers["X-Forwarded-For"] = "192.0.2.1"
            log_in(client, secured.tokens[Role.OPERATOR])
            assert client.get("/blocklist").status_code == 200
            elsewhere = {"X-Forwarded-For": "192.0.2.2"}
            problem_of(client.get("/blocklist", headers=elsewhere), 401)
            assert client.get("/page/block", headers=elsewhere).headers["location"].startswith("/login")
            assert client.get("/blocklist").status_code == 200

    def test_behind_a_proxy_that_is_not_trusted_it_belongs_to_no_address(self, secured: SecuredInProcess) -> None:
        with secured.client() as client:
            client.headers["X-Forwarded-For"] = "192.0.2.1"
            log_in(client, secured.tokens[Role.OPERATOR])
            assert client.get("/blocklist", headers={"X-Forwarded-For": "192.0.2.2"}).status_code == 200


def test_a_form_may_have_it_in_a_field(logged_in: httpx.Client) -> None:
    assert logged_in.post("/logout", data={"csrf_token": "0" * 64}).status_code == 403
    assert logged_in.get("/blocklist").status_code == 200
    assert logged_in.post("/logout", data={"csrf_token": csrf_of(logged_in)}).status_code == 303


def test_a_form_with_too_many_fields_is_refused(logged_in: httpx.Client) -> None:
    many = {f"field-{number}": "x" for number in range(150)}
    assert logged_in.post("/logout", data={"csrf_token": csrf_of(logged_in), **many}).status_code == 403
    assert logged_in.get("/blocklist").status_code == 200


@ON_BOTH
def test_after_a_logout_the_cookie_is_invalid(logged_in: httpx.Client) -> None:
    cookie = logged_in.cookies[COOKIE]
    logged_in.post("/logout", data={"csrf_token": csrf_of(logged_in)})
    problem_of(logged_in.get("/blocklist", headers={"Cookie": f"{COOKIE}={cookie}"}), 401)


@ON_BOTH
def test_it_survives_a_restart(tmp_path: Path, databases: Databases) -> None:
    with secured_in_process(tmp_path, databases) as secured, secured.client() as client:
        log_in(client, secured.admin)
        cookie = f"{COOKIE}={client.cookies[COOKIE]}"
    with secured_in_process(tmp_path, databases) as secured, secured.client() as client:
        assert client.get("/tokens", headers={"Cookie": cookie}).status_code == 200


@ON_BOTH
def test_it_ends_with_its_token_and_so_do_its_watches(secured: SecuredInProcess) -> None:
    made = secured.make_token(Role.READER)
    with secured.client() as client, secured.client(secured.admin) as admin:
        log_in(client, made["token"])
        with watching(client) as events:
            next_events(events, 1)
            admin.delete(f"/tokens/{made['id']}").raise_for_status()
            assert [event.event for event in events] in ([], ["bye"])
        problem_of(client.get("/blocklist"), 401)


@pytest.mark.parametrize("cookie", ["x", "", "A" * 43, "\xff", "a%00b"])
def test_an_invalid_cookie_gets_401(secured: SecuredInProcess, cookie: str) -> None:
    with secured.client() as client:
        header = (b"Cookie", f"{COOKIE}={cookie}".encode("latin-1"))
        problem_of(client.get("/blocklist", headers=[header]), 401)


@ON_BOTH
def test_a_user_has_twenty_sessions_and_the_oldest_ends(secured: SecuredInProcess) -> None:
    """Also if the user has several tokens. The sessions of others continue."""
    tokens = [secured.make_token(Role.READER, "many")["token"] for _ in range(2)]
    with ExitStack() as stack:

        def login(token: str) -> httpx.Client:
            client = stack.enter_context(secured.client())
            assert log_in(client, token).status_code == 303
            return client

        other = login(secured.make_token(Role.READER, "other")["token"])
        sessions = [login(tokens[number % 2]) for number in range(20)]
        assert [it.get("/blocklist").status_code for it in (other, *sessions)] == [200] * 21
        with watching(sessions[0]) as events:
            next_events(events, 1)
            sessions.append(login(tokens[0]))
            assert [event.event for event in events] in ([], ["bye"])
        problem_of(sessions[0].get("/blocklist"), 401)
        assert [it.get("/blocklist").status_code for it in (other, *sessions[1:])] == [200] * 21
