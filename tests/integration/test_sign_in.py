"""People log in on the page at an OpenID Connect issuer."""

from __future__ import annotations

import fcntl
import json
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest

from app.auth.sessions import CONFIRM_MS, LIFETIME_MS, Attempt
from app.store.tokens import TokenStore
from blocklist.cli import login
from blocklist.client.transport import http_client
from blocklist.model.errors import UnavailableError
from tests.integration.bodies import block
from tests.integration.command import Command
from tests.integration.databases import Databases
from tests.integration.fake_issuer import AUDIENCE, FakeIssuer, running_issuer
from tests.integration.process import wait_until
from tests.integration.secured import SecuredInProcess, secured_in_process

CLIENT = "page"
ROLES = "sre=operator,platform=admin,alerts=operator:alertmanager/*"
PERSON = {"roles": ["sre"], "preferred_username": "ann"}


@pytest.fixture
def issuer() -> Iterator[FakeIssuer]:
    with running_issuer() as issuer:
        issuer.person = dict(PERSON)
        yield issuer


@pytest.fixture
def secured(tmp_path: Path, databases: Databases, issuer: FakeIssuer) -> Iterator[SecuredInProcess]:
    with secured_in_process(tmp_path, databases, **settings(issuer)) as secured:
        yield secured


def settings(issuer: FakeIssuer, **more: str) -> dict[str, str]:
    own = {"oidc_issuer": issuer.url, "oidc_audience": AUDIENCE, "oidc_client_id": CLIENT, "oidc_roles": ROLES}
    return {**own, "oidc_command_client_id": "command", **more}


def go_to_issuer(client: httpx.Client, next_path: str = "/") -> str:
    """Begin a log-in; where the issuer sends the browser back."""
    # A connection that was idle while the clock was advanced is being closed.
    client.headers["Connection"] = "close"
    leaving = client.get("/login/0", params={"next": next_path})
    assert leaving.status_code == 303
    return httpx.get(leaving.headers["location"]).headers["location"]


def log_in(client: httpx.Client, next_path: str = "/") -> httpx.Response:
    return client.get(go_to_issuer(client, next_path))


def status_of(client: httpx.Client) -> int:
    return client.get("/blocklist").status_code


def csrf_of(client: httpx.Client) -> str:
    found = re.search(r'name="csrf_token"\s+value="([0-9a-f]{64})"', client.get("/page/block").text)
    assert found is not None
    return found[1]


def put(client: httpx.Client, node: str, url: str) -> httpx.Response:
    headers = {"X-CSRF-Token": csrf_of(client), "Origin": url}
    return client.put(f"/blocklist/nodes/{node}", json=block(), headers=headers)


def logins(admin: httpx.Client) -> list[dict[str, Any]]:
    records: list[dict[str, Any]] = admin.get("/audit", params={"kind": "login"}).raise_for_status().json()["records"]
    return records


def test_a_person_logs_in_with_a_role_of_their_group(secured: SecuredInProcess, issuer: FakeIssuer) -> None:
    with secured.client() as client:
        assert f"Log in at {urlsplit(issuer.url).netloc}" in client.get("/login").text
        response = log_in(client, "/page/history?node=w1")
        assert response.status_code == 200
        assert '<meta http-equiv="refresh" content="0;url=/page/history?node=w1">' in response.text
        cookies = response.headers.get_list("set-cookie")
        session, begun = (next(it for it in cookies if it.startswith(name)) for name in ("blocklist_s", "blocklist_l"))
        assert "httponly" in session.lower()
        assert "samesite=strict" in session.lower()
        assert "max-age=0" in begun.lower()
        assert put(client, "w1", secured.url).status_code == 201
    with secured.client(secured.admin) as admin:
        assert admin.get("/blocklist/changes").json()["changes"][0]["createdBy"] == "ann"
        # It is written a moment later.
        wait_until(lambda: [it["principal"] for it in logins(admin) if it["way"] == "page"] == ["ann"])


def test_it_goes_through_the_code_flow_with_pkce(secured: SecuredInProcess, issuer: FakeIssuer) -> None:
    with secured.client() as client:
        leaving = client.get("/login/0")
        asked = {name: values[0] for name, values in parse_qs(urlsplit(leaving.headers["location"]).query).items()}
        client.get(httpx.get(leaving.headers["location"]).headers["location"])
    assert asked["response_type"] == "code"
    assert asked["code_challenge_method"] == "S256"
    assert asked["redirect_uri"] == f"{secured.url}/login/callback"
    assert {"openid", "profile"} <= set(asked["scope"].split())
    (redeemed,) = issuer.token_requests
    # The secret of the browser's cookie is none of what the issuer was sent before.
    assert redeemed["code_verifier"] not in str(asked)


@pytest.mark.parametrize(
    ("next_path", "page"),
    [("/page/map", "/page/map"), ("/tools/blocklist/page/map", "/page/map"), ("/tools/blocklist", "/")],
    ids=["local", "as it is shown", "the path itself"],
)
def test_below_a_path_the_browser_comes_back_there(
    tmp_path: Path, databases: Databases, issuer: FakeIssuer, next_path: str, page: str
) -> None:
    with (
        secured_in_process(tmp_path, databases, root_path="/tools/blocklist", **settings(issuer)) as secured,
        secured.client() as client,
    ):
        leaving = client.get("/tools/blocklist/login/0", params={"next": next_path})
        back = httpx.get(leaving.headers["location"]).headers["location"]
        assert back.startswith(f"{secured.url}/tools/blocklist/login/callback?")
        shown = client.get(back)
        assert f'content="0;url=/tools/blocklist{page}"' in shown.text
        assert f'href="/tools/blocklist{page}">Go on' in shown.text
        assert {cookie.path for cookie in client.cookies.jar} == {"/tools/blocklist"}
        assert client.get("/tools/blocklist/page/map").status_code == 200


def test_an_empty_file_leaves_the_secret_of_the_client(
    tmp_path: Path, databases: Databases, issuer: FakeIssuer
) -> None:
    file = tmp_path / "secret"
    file.write_text("one\n")
    with secured_in_process(tmp_path, databases, oidc_client_secret_file=str(file), **settings(issuer)) as secured:
        (provider,) = secured.service.app.state.service.sessions.sign_in.providers
        assert provider.config.client_secret == "one"
        file.write_text("two\n")
        secured.service.until(lambda: provider.config.client_secret == "two")
        file.write_text("")
        secured.clock.advance(60)
        assert provider.config.client_secret == "two"


@pytest.mark.parametrize("claims", [{"roles": ["others"]}, {"roles": None}, {"preferred_username": "evidence"}])
def test_without_a_role_nobody_is_logged_in(
    secured: SecuredInProcess, issuer: FakeIssuer, claims: dict[str, Any]
) -> None:
    issuer.person |= claims
    with secured.client() as client:
        response = log_in(client)
        assert response.status_code == 403
        assert "blocklist_session" not in client.cookies
        assert status_of(client) == 401


def test_groups_may_be_in_the_access_token_only(secured: SecuredInProcess, issuer: FakeIssuer) -> None:
    issuer.id_token_claims = {"roles": None}
    with secured.client() as client:
        assert log_in(client).status_code == 200
        assert status_of(client) == 200


def test_tokens_may_come_in_pieces(secured: SecuredInProcess, issuer: FakeIssuer) -> None:
    issuer.pause = 0.1
    with secured.client() as client:
        assert log_in(client).status_code == 200


def test_owners_of_a_group_restrict_the_session(secured: SecuredInProcess, issuer: FakeIssuer) -> None:
    issuer.person["roles"] = ["alerts"]
    with secured.client() as client:
        log_in(client)
        assert client.get("/whoami").json()["owners"] == ["alertmanager/*"]


class TestForged:
    """Answers that no log-in of this browser has led to."""

    def test_with_https_another_host_of_the_domain_cannot_plant_a_log_in(
        self, tmp_path: Path, databases: Databases, issuer: FakeIssuer
    ) -> None:
        own = settings(issuer, public_url="https://lists.example/tools", root_path="/tools")
        with secured_in_process(tmp_path, databases, **own) as secured, secured.client() as client:
            cookie = client.get("/login/0").headers["set-cookie"]
            assert re.match(
                "__Host-blocklist_login=[^;]+; HttpOnly; Max-Age=600; Path=/; SameSite=lax; Secure$", cookie
            )
            planted = cookie.partition(";")[0].removeprefix("__Host-")
            state = Attempt.parse(planted.partition("=")[2].strip('"')).state
            answer = f"/login/callback?code=1&state={state}"
            assert "not begun in this browser" in client.get(answer, headers={"Cookie": planted}).text

    def test_a_stolen_answer_is_worth_nothing_in_another_browser(self, secured: SecuredInProcess) -> None:
        with secured.client() as victim, secured.client() as thief, secured.client() as other:
            answer = go_to_issuer(victim)
            go_to_issuer(thief)
            for client in (thief, other):
                response = client.get(answer)
                assert response.status_code == 401
                assert "not begun in this browser" in response.text
                assert status_of(client) == 401

    def test_a_code_is_good_once(self, secured: SecuredInProcess) -> None:
        with secured.client() as client, secured.client() as again:
            answer = go_to_issuer(client)
            again.cookies = httpx.Cookies(client.cookies)
            assert client.get(answer).status_code == 200
            assert "invalid_grant: Code not valid" in again.get(answer).text
            assert status_of(again) == 401

    @pytest.mark.parametrize(
        "claims",
        [{"nonce": "other"}, {"nonce": None}, {"aud": "other"}, {"azp": "other"}, {"iss": "http://127.0.0.1:1"}],
    )
    def test_an_id_token_of_another_log_in_or_client_is_refused(
        self, secured: SecuredInProcess, issuer: FakeIssuer, claims: dict[str, Any]
    ) -> None:
        issuer.id_token_claims = claims
        with secured.client() as client:
            assert log_in(client).status_code == 401
            assert status_of(client) == 401

    def test_the_answer_of_another_issuer_is_refused(self, secured: SecuredInProcess, issuer: FakeIssuer) -> None:
        with secured.client() as client:
            response = client.get(re.sub(r"iss=[^&]*", "iss=https%3A%2F%2Felsewhere.example", go_to_issuer(client)))
            assert "another issuer" in response.text

    @pytest.mark.parametrize("query", ["", "?state=x", "?code=1&state=", "?error=access_denied&state=x"])
    def test_an_odd_answer_is_an_error_page(self, secured: SecuredInProcess, query: str) -> None:
        with secured.client() as client:
            go_to_issuer(client)
            assert client.get(f"/login/callback{query}").status_code == 401
            client.cookies.set("blocklist_login", "x.y")
            assert client.get(f"/login/callback{query}").status_code == 401

    def test_the_words_of_the_issuer_are_shown_as_text(self, secured: SecuredInProcess) -> None:
        with secured.client() as client:
            state = parse_qs(urlsplit(go_to_issuer(client)).query)["state"][0]
            refused = {"state": state, "error": "access_denied", "error_description": "<b>No</b>"}
            text = client.get("/login/callback", params=refused).text
            assert "access_denied: &lt;b&gt;No" in text
        # Whoever has begun a log-in can write them: they are no part of the audit log.
        with secured.client(secured.admin) as admin:

            def reasons() -> list[str]:
                records = admin.get("/audit", params={"kind": "login-failed"}).json()["records"]
                return [it["details"]["reason"] for it in records]

            wait_until(lambda: reasons() == ["The browser came back from the issuer without a code."])

    @pytest.mark.parametrize("path", ["//evil.example", "https://evil.example", "/\\evil.example"])
    def test_it_leads_to_this_service_only(self, secured: SecuredInProcess, path: str) -> None:
        with secured.client() as client:
            assert 'content="0;url=/">' in log_in(client, path).text


class TestConfirmed:
    """A session lasts as long as the one at the issuer."""

    def test_it_outlives_the_tokens_of_the_issuer(self, secured: SecuredInProcess, issuer: FakeIssuer) -> None:
        with secured.client() as client:
            log_in(client)
            for number in range(1, 4):
                secured.clock.advance(CONFIRM_MS / 1000)
                assert status_of(client) == 200
                assert status_of(client) == 200
                assert len(issuer.token_requests) == 1 + number
            secured.clock.advance(LIFETIME_MS / 1000)
            assert status_of(client) == 401

    def test_it_ends_with_the_session_at_the_issuer(self, secured: SecuredInProcess, issuer: FakeIssuer) -> None:
        with secured.client() as client:
            log_in(client)
            issuer.session_ended = True
            assert status_of(client) == 200
            secured.clock.advance(CONFIRM_MS / 1000)
            assert status_of(client) == 401
            issuer.session_ended = False
            assert status_of(client) == 401

    def test_a_change_of_groups_changes_the_role(self, secured: SecuredInProcess, issuer: FakeIssuer) -> None:
        with secured.client() as client:
            log_in(client)
            issuer.person["roles"] = ["platform"]
            secured.clock.advance(CONFIRM_MS / 1000)
            assert client.get("/tokens").status_code == 200
            issuer.person["roles"] = []
            secured.clock.advance(CONFIRM_MS / 1000)
            assert status_of(client) == 401

    def test_somebody_else_s_tokens_do_not_renew_it(self, secured: SecuredInProcess, issuer: FakeIssuer) -> None:
        with secured.client() as client:
            log_in(client)
            issuer.person["sub"] = "u-18"
            secured.clock.advance(CONFIRM_MS / 1000)
            assert status_of(client) == 401

    def test_it_goes_on_while_the_issuer_is_down(self, secured: SecuredInProcess, issuer: FakeIssuer) -> None:
        with secured.client() as client, secured.client() as other:
            log_in(client)
            issuer.unavailable = True
            secured.clock.advance(CONFIRM_MS / 1000)
            assert status_of(client) == 200
            assert put(client, "w2", secured.url).status_code == 201
            # Nobody logs in meanwhile, but with a token.
            assert other.get("/login/callback").status_code == 401
            issuer.unavailable = False
            answer = go_to_issuer(other)
            issuer.unavailable = True
            assert other.get(answer).status_code == 503
            assert other.post("/login", data={"token": secured.admin}).status_code == 303

    @pytest.fixture
    def away(self, secured: SecuredInProcess, monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
        """The database fails just when the issuer has answered; `undo` brings it back."""

        async def fail(_self: object, _what: object) -> None:
            raise UnavailableError("The database is out of reach.")

        with monkeypatch.context() as patch:
            patch.setattr(TokenStore, "confirm_session", fail)
            patch.setattr(TokenStore, "remove_session", fail)
            yield patch

    @pytest.mark.parametrize("groups", [["sre"], ["platform"]], ids=["same", "stronger"])
    def test_what_renews_it_is_kept_until_the_database_is_back(
        self, secured: SecuredInProcess, issuer: FakeIssuer, away: pytest.MonkeyPatch, groups: list[str]
    ) -> None:
        with secured.client() as client:
            log_in(client)
            issuer.person["roles"] = groups
            secured.clock.advance(CONFIRM_MS / 1000)
            assert (status_of(client), len(issuer.token_requests)) == (200, 2)
            away.undo()
            secured.clock.advance(CONFIRM_MS / 1000)
            assert (status_of(client), len(issuer.token_requests)) == (200, 3)

    def test_a_weaker_role_counts_although_it_cannot_be_stored(
        self, secured: SecuredInProcess, issuer: FakeIssuer, away: pytest.MonkeyPatch
    ) -> None:
        issuer.person["roles"] = ["platform"]
        with secured.client() as client:
            log_in(client)
            issuer.person["roles"] = ["sre"]
            secured.clock.advance(CONFIRM_MS / 1000)
            assert client.get("/tokens").status_code == 403
            away.undo()
            assert client.get("/tokens").status_code == 403

    def test_it_has_ended_although_it_cannot_be_removed(
        self, secured: SecuredInProcess, issuer: FakeIssuer, away: pytest.MonkeyPatch
    ) -> None:
        with secured.client() as client, secured.client() as other:
            log_in(client)
            log_in(other)
            form = {"csrf_token": csrf_of(other)}
            assert other.post("/logout", data=form, headers={"Origin": secured.url}).status_code == 503
            issuer.session_ended = True
            secured.clock.advance(CONFIRM_MS / 1000)
            assert (status_of(client), status_of(other)) == (401, 401)
            away.undo()
            assert (status_of(client), status_of(other)) == (401, 401)
        sessions = secured.service.app.state.service.sessions
        secured.service.until(lambda: sessions._unsaved == {})

    def test_a_rotated_key_ends_no_session(self, secured: SecuredInProcess, issuer: FakeIssuer) -> None:
        with secured.client() as client:
            log_in(client)
            issuer.rotate_key()
            for number in (1, 2):
                secured.clock.advance(CONFIRM_MS / 1000)
                assert status_of(client) == 200
                assert len(issuer.token_requests) == 1 + number

    @pytest.mark.parametrize("error", ["invalid_client", "unauthorized_client", "server_error"])
    def test_it_goes_on_while_the_issuer_refuses_the_service(
        self, secured: SecuredInProcess, issuer: FakeIssuer, error: str
    ) -> None:
        with secured.client() as client:
            log_in(client)
            issuer.refusal = error
            secured.clock.advance(CONFIRM_MS / 1000)
            assert status_of(client) == 200
            assert len(issuer.token_requests) == 2
            issuer.refusal = None
            secured.clock.advance(CONFIRM_MS / 1000)
            assert status_of(client) == 200
            assert len(issuer.token_requests) == 3

    def test_without_a_refresh_token_it_lasts_an_hour(self, secured: SecuredInProcess, issuer: FakeIssuer) -> None:
        issuer.gives_refresh_tokens = False
        with secured.client() as client:
            log_in(client)
            secured.clock.advance(CONFIRM_MS / 1000)
            assert status_of(client) == 401

    def test_a_log_out_ends_the_session_at_the_issuer(self, secured: SecuredInProcess, issuer: FakeIssuer) -> None:
        with secured.client() as client:
            log_in(client)
            form = {"csrf_token": csrf_of(client)}
            response = client.post("/logout", data=form, headers={"Origin": secured.url})
            assert f'content="0;url={issuer.url}/logout?id_token_hint=' in response.text
            assert len(issuer.revoked) == 1
            assert status_of(client) == 401


def test_nothing_of_a_session_is_in_memory_only(tmp_path: Path, databases: Databases, issuer: FakeIssuer) -> None:
    """As another replica, or the same service after a restart, confirms it."""
    with secured_in_process(tmp_path, databases, **settings(issuer)) as secured, secured.client() as client:
        log_in(client)
        cookie = client.cookies["blocklist_session"]
    with secured_in_process(tmp_path, databases, **settings(issuer)) as again, again.client() as client:
        again.clock.advance(CONFIRM_MS / 1000)
        client.cookies.set("blocklist_session", cookie)
        assert status_of(client) == 200
        assert issuer.token_requests[-1]["grant_type"] == "refresh_token"


def test_what_is_stored_of_a_log_in_is_encrypted(secured: SecuredInProcess, issuer: FakeIssuer, tmp_path: Path) -> None:
    with secured.client() as client:
        log_in(client)
        secrets = [
            *issuer.refresh_tokens,
            issuer.token_requests[0]["code_verifier"],
            client.cookies["blocklist_session"],
        ]
        stored = b"".join(path.read_bytes() for path in tmp_path.iterdir() if path.is_file())
        assert not [secret for secret in secrets if secret.encode() in stored]


class TestCommand:
    """`blocklist login`, by the device flow."""

    @pytest.fixture
    def command(self, binaries: Path, secured: SecuredInProcess, tmp_path: Path) -> Command:
        command = Command(binaries, secured.url)
        command.env["XDG_CONFIG_HOME"] = str(tmp_path / "config")
        return command

    @pytest.fixture
    def file(self, tmp_path: Path) -> Path:
        return tmp_path / "config" / "blocklist" / "logins.json"

    def test_it_acts_for_the_person_until_the_log_out(
        self, command: Command, issuer: FakeIssuer, secured: SecuredInProcess, file: Path
    ) -> None:
        done = command.run("login")
        assert (done.returncode, done.stdout) == (0, f"Logged in to {secured.url} as ann, operator.\n")
        assert f"To log in to {secured.url}, open" in done.stderr
        assert f"{issuer.url}/activate?user_code=ABCD-EFGH" in done.stderr
        assert file.stat().st_mode & 0o777 == 0o600
        command.stdout_of("block", "w1", "-r", "disk")
        assert "ann" in command.stdout_of("whoami")
        done = command.run("logout")
        assert done.stdout == f"Logged out of {secured.url}, and of {urlsplit(issuer.url).netloc}.\n"
        assert len(issuer.revoked) == 1
        assert command.run("list").returncode == 1
        assert "Nobody is logged in" in command.run("logout").stderr

    def test_it_waits_until_the_person_has_logged_in(self, command: Command, issuer: FakeIssuer) -> None:
        issuer.approved = False
        soon = threading.Timer(0.3, setattr, (issuer, "approved", True))
        soon.start()
        command.stdout_of("login")
        soon.join()
        assert len(issuer.token_requests) > 1

    def test_an_old_token_is_renewed(self, command: Command, issuer: FakeIssuer, file: Path) -> None:
        command.stdout_of("login")
        _make_old(file)
        command.stdout_of("list")
        assert [it["grant_type"] for it in issuer.token_requests][1:] == ["refresh_token"]
        command.stdout_of("list")
        assert len(issuer.token_requests) == 2

    def test_the_end_of_the_session_at_the_issuer_is_named(
        self, command: Command, issuer: FakeIssuer, file: Path
    ) -> None:
        command.stdout_of("login")
        _make_old(file)
        issuer.session_ended = True
        done = command.run("block", "w1", "-r", "disk")
        assert done.returncode == 2
        assert "has ended (invalid_grant: Session not active): run blocklist login" in done.stderr
        issuer.unavailable = True
        assert "cannot be renewed" in command.run("list").stderr

    @pytest.mark.parametrize("nonsense", [b"", b"{}", b"\xff", b"[" * 100_000], ids=["empty", "none", "bytes", "deep"])
    def test_an_issuer_that_answers_nonsense_is_named(
        self, command: Command, issuer: FakeIssuer, secured: SecuredInProcess, nonsense: bytes
    ) -> None:
        issuer.nonsense = nonsense
        done = command.run("login")
        assert (done.returncode, urlsplit(issuer.url).netloc in done.stderr) == (3, True)
        with secured.client() as client:
            response = client.get("/login/0")
            assert (response.status_code, "does not answer as one" in response.text) == (503, True)

    def test_a_slow_answer_and_a_large_one_have_bounds(
        self, issuer: FakeIssuer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(login, "_TIMEOUT", 0.5)
        with http_client(issuer.url, 10) as http:
            issuer.pause = 3
            with pytest.raises(UnavailableError, match=r"no whole answer in 0\.5 s"):
                login._post(http, f"{issuer.url}/token", {"grant_type": "device"})
            issuer.nonsense = b"{" + b" " * login._MAX_ANSWER + b"}"
            with pytest.raises(UnavailableError, match="more than 1048576 bytes"):
                login._answer(http, "GET", f"{issuer.url}/keys", None)

    def test_a_command_that_waits_for_another_one_says_so(self, command: Command, file: Path) -> None:
        command.stdout_of("login")
        _make_old(file)
        with file.with_suffix(".lock").open() as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            done = command.run("list", BLOCKLIST_TIMEOUT="1s")
        assert (done.returncode, "another command is renewing a log-in" in done.stderr) == (2, True)

    def test_a_token_of_the_environment_goes_first_and_never_to_the_issuer(
        self, command: Command, issuer: FakeIssuer, secured: SecuredInProcess
    ) -> None:
        command.env["BLOCKLIST_TOKEN"] = secured.admin
        assert "BLOCKLIST_TOKEN is set" in command.run("login").stderr
        assert secured.admin not in str(issuer.token_requests)
        assert "admin" in command.stdout_of("whoami")

    def test_a_log_in_is_for_its_service_only(self, command: Command, secured: SecuredInProcess) -> None:
        command.stdout_of("login")
        other = secured.url.replace("127.0.0.1", "localhost")
        assert command.run("list", BLOCKLIST_URL=other).returncode == 1

    @pytest.mark.parametrize("content", ["", "[]", "{"])
    def test_a_damaged_file_is_named(self, command: Command, file: Path, content: str) -> None:
        file.parent.mkdir(parents=True)
        file.write_text(content)
        done = command.run("list")
        assert (done.returncode, str(file) in done.stderr) == (2, True)

    def test_without_a_client_for_it_a_token_is_needed(
        self, binaries: Path, tmp_path: Path, databases: Databases, issuer: FakeIssuer
    ) -> None:
        own = settings(issuer, oidc_command_client_id="")
        (tmp_path / "other").mkdir()
        with secured_in_process(tmp_path / "other", databases, **own) as secured:
            done = Command(binaries, secured.url).run("login", XDG_CONFIG_HOME=str(tmp_path))
        assert (done.returncode, "BLOCKLIST_OIDC_COMMAND_CLIENT_ID" in done.stderr) == (2, True)


def _make_old(file: Path) -> None:
    logins = json.loads(file.read_text())
    for entry in logins.values():
        entry["end"] = 0
    file.write_text(json.dumps(logins))


def test_a_session_stays_with_its_issuer_whatever_the_order_of_the_setting(
    tmp_path: Path, databases: Databases, issuer: FakeIssuer
) -> None:
    with running_issuer() as other:
        first, then = (
            settings(issuer) | {"oidc_issuer": ",".join(urls)}
            for urls in ((issuer.url, other.url), (other.url, issuer.url))
        )
        with secured_in_process(tmp_path, databases, **first) as secured, secured.client() as client:
            log_in(client)
            cookie = client.cookies["blocklist_session"]
        with secured_in_process(tmp_path, databases, **then) as again, again.client() as client:
            again.clock.advance(CONFIRM_MS / 1000)
            client.cookies.set("blocklist_session", cookie)
            assert status_of(client) == 200
        assert issuer.token_requests[-1]["grant_type"] == "refresh_token"
        assert other.token_requests == []
        without = settings(issuer) | {"oidc_issuer": other.url}
        with secured_in_process(tmp_path, databases, **without) as again, again.client() as client:
            again.clock.advance(3 * CONFIRM_MS / 1000)
            client.cookies.set("blocklist_session", cookie)
            assert status_of(client) == 401


def test_several_issuers_are_each_offered(
    tmp_path: Path, databases: Databases, issuer: FakeIssuer, binaries: Path
) -> None:
    with running_issuer() as other:
        other.person = {"roles": ["platform"], "preferred_username": "bob"}
        own = settings(issuer, oidc_client_id=f"{CLIENT},{CLIENT}") | {"oidc_issuer": f"{issuer.url}, {other.url}"}
        with secured_in_process(tmp_path, databases, **own) as secured, secured.client() as client:
            text = client.get("/login").text
            assert f"Log in at {urlsplit(issuer.url).netloc}" in text
            leaving = client.get("/login/1")
            assert leaving.headers["location"].startswith(other.url)
            answer = httpx.get(leaving.headers["location"]).headers["location"]
            assert client.get(answer).status_code == 200
            assert client.get("/whoami").json()["name"] == "bob"
            assert client.get("/login/2").status_code == 401
            command = Command(binaries, secured.url)
            command.env["XDG_CONFIG_HOME"] = str(tmp_path)
            assert "choose one of" in command.run("login").stderr
            assert "as bob, admin" in command.stdout_of("login", "--issuer", other.url)
