"""People log in at a real Keycloak: on the page in Chromium, and with the command. Maven downloads it once, 165 MB."""

from __future__ import annotations

import fcntl
import json
import os
import re
import subprocess
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import httpx
import pytest
from playwright.sync_api import Browser, Page, expect

from app.auth.sessions import CONFIRM_MS
from tests import debian
from tests.integration.command import Command, install
from tests.integration.databases import Databases
from tests.integration.process import free_port, wait_until
from tests.integration.secured import SecuredInProcess, secured_in_process

pytestmark = [
    pytest.mark.long,
    pytest.mark.timeout(900),
    # Connections that Chromium keeps are closed after the service's loop.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

VERSION: Final = "26.5.6"
_CACHE: Final = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "blocklist" / "keycloak"
_ADMIN: Final = ("admin", "secret")
_GROUPS: Final = {
    "name": "groups",
    "protocol": "openid-connect",
    "protocolMapper": "oidc-group-membership-mapper",
    "config": {"claim.name": "groups", "full.path": "false", "id.token.claim": "true"},
}


def _installed(folder: Path) -> Path:
    """A Keycloak in this folder."""
    maven = debian.require({"mvn": "maven"})["mvn"]
    _CACHE.mkdir(parents=True, exist_ok=True)
    archive = _CACHE / f"keycloak-quarkus-dist-{VERSION}.zip"
    with (_CACHE / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not archive.exists():
            plugin = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy"
            artifact = f"-Dartifact=org.keycloak:keycloak-quarkus-dist:{VERSION}:zip"
            command = [maven, "-B", "-q", plugin, artifact, f"-DoutputDirectory={_CACHE}"]
            subprocess.run(command, check=True, timeout=600)
    with zipfile.ZipFile(archive) as packed:
        packed.extractall(folder)
    return folder / f"keycloak-{VERSION}"


@dataclass(frozen=True)
class Keycloak:
    """A realm with the person anna, of the group sre."""

    url: str

    @property
    def issuer(self) -> str:
        return f"{self.url}/realms/data"

    @contextmanager
    def admin(self) -> Iterator[httpx.Client]:
        """A client of the API of its admin for the realm."""
        form = {"grant_type": "password", "client_id": "admin-cli", "username": _ADMIN[0], "password": _ADMIN[1]}
        with httpx.Client(trust_env=False, timeout=60) as client:
            tokens = client.post(f"{self.url}/realms/master/protocol/openid-connect/token", data=form)
            client.headers["Authorization"] = f"Bearer {tokens.raise_for_status().json()['access_token']}"
            client.base_url = httpx.URL(f"{self.url}/admin/realms/data/")
            yield client

    def change_anna(self, **fields: Any) -> None:
        with self.admin() as admin:
            (anna,) = admin.get("users", params={"username": "anna"}).json()
            admin.put(f"users/{anna['id']}", json={**anna, **fields}).raise_for_status()

    def move_anna(self, group: str) -> None:
        """Make this her only group."""
        with self.admin() as admin:
            (anna,) = admin.get("users", params={"username": "anna"}).json()
            for former in admin.get(f"users/{anna['id']}/groups").json():
                admin.delete(f"users/{anna['id']}/groups/{former['id']}").raise_for_status()
            (found,) = (it for it in admin.get("groups").json() if it["name"] == group)
            admin.put(f"users/{anna['id']}/groups/{found['id']}").raise_for_status()


def _realm() -> dict[str, Any]:
    anna = {
        "username": "anna",
        "enabled": True,
        "firstName": "Anna",
        "lastName": "Smith",
        "email": "anna@example.org",
        "emailVerified": True,
        "credentials": [{"type": "password", "value": "secret"}],
        "groups": ["/sre"],
    }
    page = {
        "clientId": "blocklist",
        "secret": "of-the-page",
        "standardFlowEnabled": True,
        "redirectUris": ["*"],
        "attributes": {"pkce.code.challenge.method": "S256", "post.logout.redirect.uris": "+"},
        "protocolMappers": [_GROUPS],
    }
    command = {
        "clientId": "blocklist-command",
        "publicClient": True,
        "standardFlowEnabled": False,
        "attributes": {"oauth2.device.authorization.grant.enabled": "true"},
        "protocolMappers": [_GROUPS],
    }
    # As usual there: an access token ends after minutes, long before the session.
    return {
        "realm": "data",
        "enabled": True,
        "accessTokenLifespan": 300,
        "groups": [{"name": "sre"}, {"name": "platform"}, {"name": "others"}],
        "users": [anna],
        "clients": [page, command],
    }


@pytest.fixture(scope="module")
def keycloak(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Keycloak]:
    folder = tmp_path_factory.mktemp("keycloak")
    home, port = _installed(folder), free_port()
    (home / "data" / "import").mkdir(parents=True)
    (home / "data" / "import" / "data-realm.json").write_text(json.dumps(_realm()))
    variables = {"KC_BOOTSTRAP_ADMIN_USERNAME": _ADMIN[0], "KC_BOOTSTRAP_ADMIN_PASSWORD": _ADMIN[1]}
    options = ["start-dev", "--import-realm", "--http-host=127.0.0.1", f"--http-port={port}"]
    script = f"{home}/bin/kc.sh"
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            ["sh", script, *options], env={**os.environ, **variables}, stdout=log, stderr=log, start_new_session=True
        )
        found = Keycloak(f"http://127.0.0.1:{port}")

        def answers() -> bool:
            assert process.poll() is None, (folder / "log").read_text()[-3000:]
            try:
                return httpx.get(f"{found.issuer}/.well-known/openid-configuration", trust_env=False).is_success
            except httpx.HTTPError:
                return False

        try:
            wait_until(answers, seconds=300)
            yield found
        finally:
            os.killpg(process.pid, 15)
            process.wait(60)


@pytest.fixture
def secured(tmp_path: Path, databases: Databases, keycloak: Keycloak) -> Iterator[SecuredInProcess]:
    own = {
        "oidc_issuer": keycloak.issuer,
        "oidc_client_id": "blocklist",
        "oidc_client_secret": "of-the-page",
        "oidc_command_client_id": "blocklist-command",
        "oidc_roles_claim": "groups",
        "oidc_roles": "sre=operator,platform=admin",
    }
    keycloak.change_anna(enabled=True)
    keycloak.move_anna("sre")
    with secured_in_process(tmp_path, databases, **own) as secured:
        yield secured


@pytest.fixture
def page(browser: Browser, secured: SecuredInProcess) -> Iterator[Page]:
    context = browser.new_context(base_url=secured.url)
    yield context.new_page()
    context.close()


def _type_password(page: Page) -> None:
    page.locator("#username").fill("anna")
    page.locator("#password").fill("secret")
    page.locator("#kc-login").click()


def _log_in(page: Page, path: str = "/") -> None:
    page.goto(path)
    page.get_by_role("link", name=re.compile("Log in at")).click()
    _type_password(page)
    expect(page.get_by_role("button", name="Log out")).to_be_visible()


def _ask_again(secured: SecuredInProcess) -> None:
    secured.clock.advance(CONFIRM_MS / 1000 + 1)


def test_a_person_logs_in_and_out(page: Page, secured: SecuredInProcess) -> None:
    _log_in(page, "/page/history")
    expect(page).to_have_url(f"{secured.url}/page/history")
    expect(page.locator("header")).to_contain_text("anna (operator)")
    page.goto("/page/block")
    page.get_by_role("button", name="Log out").click()
    # By Keycloak's own log-out, without a question, back to the form; and it asks for the password again.
    expect(page).to_have_url(f"{secured.url}/login")
    page.goto("/")
    page.get_by_role("link", name=re.compile("Log in at")).click()
    expect(page.locator("#password")).to_be_visible()


def test_the_session_follows_the_groups_and_the_account(
    page: Page, secured: SecuredInProcess, keycloak: Keycloak
) -> None:
    _log_in(page)
    keycloak.move_anna("platform")
    _ask_again(secured)
    page.goto("/")
    expect(page.locator("header")).to_contain_text("anna (admin)")
    keycloak.change_anna(enabled=False)
    _ask_again(secured)
    page.goto("/")
    expect(page).to_have_url(re.compile("/login"))


def test_without_a_role_the_page_says_why(page: Page, secured: SecuredInProcess, keycloak: Keycloak) -> None:
    keycloak.move_anna("others")
    page.goto("/")
    page.get_by_role("link", name=re.compile("Log in at")).click()
    _type_password(page)
    expect(page.locator("#error")).to_contain_text("no group to which BLOCKLIST_OIDC_ROLES gives a role")


def test_the_command_logs_in_by_a_browser(page: Page, secured: SecuredInProcess, tmp_path: Path) -> None:
    (tmp_path / "command").mkdir()
    command = Command(install(tmp_path / "command"), secured.url)
    command.env["XDG_CONFIG_HOME"] = str(tmp_path / "config")
    with command.running("login") as process:
        assert process.stderr is not None
        text = process.stderr.readline() + process.stderr.readline()
        found = re.search(r"http://\S+", text)
        assert found is not None, text
        page.goto(found[0])
        _type_password(page)
        page.locator("#kc-login").click()
        expect(page.get_by_text("Device Login Successful")).to_be_visible()
        output, _ = process.communicate(timeout=300)
    assert output == f"Logged in to {secured.url} as anna, operator.\n"
    command.stdout_of("block", "w1", "-r", "disk")
    assert "anna" in command.stdout_of("whoami")
    file = tmp_path / "config" / "blocklist" / "logins.json"
    logins = json.loads(file.read_text())
    for entry in logins.values():
        entry["end"] = 0
    file.write_text(json.dumps(logins))
    command.stdout_of("list")
    assert "Logged out of" in command.stdout_of("logout")
