"""The service does not start if its settings would give access to everyone by mistake, or to no one."""

from __future__ import annotations

from pathlib import Path

import pytest
from structlog.testing import capture_logs

from tests.integration.databases import Databases
from tests.integration.in_process import in_process, refusal
from tests.integration.process import free_port, run_app
from tests.integration.secured import secured_in_process
from tests.integration.test_start import assert_refused, settings_for


def test_the_command_reports_it_and_ends(migrated: Path) -> None:
    assert_refused(
        run_app(env=settings_for(migrated, host="0.0.0.0")), "BLOCKLIST_AUTH=tokens", "BLOCKLIST_ADMIN_TOKEN_FILE"
    )


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "blocklist.example", "0"])
def test_without_authentication_it_listens_on_loopback_only(database_url: str, host: str) -> None:
    message = refusal(database_url=database_url, host=host)
    assert all(word in message for word in ("BLOCKLIST_AUTH=tokens", "BLOCKLIST_ADMIN_TOKEN_FILE", host))


def test_it_does_not_start_without_a_valid_token(database_url: str) -> None:
    message = refusal(database_url=database_url, auth="tokens")
    assert "no valid token" in message
    assert "BLOCKLIST_ADMIN_TOKEN_FILE" in message


def test_it_starts_with_any_token_that_is_not_revoked(tmp_path: Path, databases: Databases) -> None:
    settings = {**databases.settings(tmp_path), "auth": "tokens"}
    with secured_in_process(tmp_path, databases) as secured:
        ids = [token.split("_")[1] for token in secured.tokens.values()]
    with in_process(**settings):
        pass
    with secured_in_process(tmp_path, databases) as secured, secured.client(secured.admin) as client:
        ids += [token.split("_")[1] for token in secured.tokens.values()]
        for token_id in ids:
            client.delete(f"/tokens/{token_id}").raise_for_status()
    assert "no valid token" in refusal(**settings)


def test_the_admin_token_file_is_created_for_its_owner_only_and_logged(tmp_path: Path, databases: Databases) -> None:
    with capture_logs() as log, secured_in_process(tmp_path, databases) as secured:
        assert secured.admin_file.stat().st_mode & 0o777 == 0o600
    assert str(secured.admin_file) in str(log)
    assert secured.admin not in str(log)


def test_an_unusable_admin_token_file_is_refused(tmp_path: Path, database_url: str) -> None:
    file = tmp_path / "admin.token"
    file.write_text("short")
    file.chmod(0o600)
    message = refusal(database_url=database_url, auth="tokens", admin_token_file=str(file))
    assert message.startswith("BLOCKLIST_ADMIN_TOKEN_FILE: ")
    assert "does not contain a token" in message


def test_an_admin_token_file_that_cannot_be_created_is_reported(tmp_path: Path, database_url: str) -> None:
    file = tmp_path / "missing" / "admin.token"
    message = refusal(database_url=database_url, auth="tokens", admin_token_file=str(file))
    assert f"create the folder of {file}" in message


@pytest.mark.parametrize(
    ("settings", "word"),
    [
        ({"auth": "on"}, "BLOCKLIST_AUTH"),
        ({"auth": "tokens", "oidc_issuer": "https://issuer.example"}, "BLOCKLIST_OIDC_AUDIENCE"),
        ({"auth": "tokens", "oidc_issuer": "http://issuer.example", "oidc_audience": "x"}, "BLOCKLIST_OIDC_ISSUER"),
        ({"auth": "tokens", "oidc_issuer": "issuer.example", "oidc_audience": "x"}, "BLOCKLIST_OIDC_ISSUER"),
        ({"trusted_proxies": "10.0.0.1/8"}, "BLOCKLIST_TRUSTED_PROXIES"),
        ({"trusted_proxies": "proxy.example"}, "BLOCKLIST_TRUSTED_PROXIES"),
        ({"admin_token_files": "x"}, "BLOCKLIST_ADMIN_TOKEN_FILE"),
    ],
)
def test_an_invalid_setting_is_refused_and_named(database_url: str, settings: dict[str, str], word: str) -> None:
    assert word in refusal(database_url=database_url, **settings)


def test_it_starts_with_an_issuer_that_is_unreachable(database_url: str) -> None:
    issuer = f"http://127.0.0.1:{free_port()}"
    with in_process(database_url=database_url, auth="tokens", oidc_issuer=issuer, oidc_audience="x") as service:
        assert service.client(Authorization="Bearer a.b.c").get("/blocklist").status_code == 401
