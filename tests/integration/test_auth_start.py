"""The service does not start if its settings would give access to everyone by mistake, or to no one."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.integration.databases import Databases
from tests.integration.process import ServiceProcess, free_port, run_app
from tests.integration.secured import secured_service
from tests.integration.test_start import assert_refused, settings_for


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "blocklist.example", "0"])
def test_without_authentication_it_listens_on_loopback_only(migrated: Path, host: str) -> None:
    assert_refused(
        run_app(env=settings_for(migrated, host=host)), "BLOCKLIST_AUTH=tokens", "BLOCKLIST_ADMIN_TOKEN_FILE", host
    )


def test_it_does_not_start_without_a_valid_token(migrated: Path) -> None:
    assert_refused(run_app(env=settings_for(migrated, auth="tokens")), "no valid token", "BLOCKLIST_ADMIN_TOKEN_FILE")


def test_it_starts_with_any_token_that_is_not_revoked(tmp_path: Path, databases: Databases) -> None:
    with secured_service(tmp_path, databases) as secured:
        ids = [token.split("_")[1] for token in secured.tokens.values()]
    process = ServiceProcess(tmp_path, auth="tokens")
    with process:
        pass
    with secured_service(tmp_path, databases) as secured, secured.client(secured.admin) as client:
        ids += [token.split("_")[1] for token in secured.tokens.values()]
        for token_id in ids:
            client.delete(f"/tokens/{token_id}").raise_for_status()
    assert_refused(run_app(env=settings_for(process.database, auth="tokens")), "no valid token")


def test_the_admin_token_file_is_created_for_its_owner_only_and_logged(tmp_path: Path, databases: Databases) -> None:
    with secured_service(tmp_path, databases) as secured:
        assert secured.admin_file.stat().st_mode & 0o777 == 0o600
        assert str(secured.admin_file) in secured.process.log()
        assert secured.admin not in secured.process.log()


@pytest.mark.parametrize("mode", [0o644, 0o604])
def test_an_admin_token_file_that_all_users_can_read_is_refused(tmp_path: Path, migrated: Path, mode: int) -> None:
    file = tmp_path / "admin.token"
    file.write_text("x" * 43)
    file.chmod(mode)
    done = run_app(env=settings_for(migrated, auth="tokens", admin_token_file=str(file)))
    assert_refused(done, "BLOCKLIST_ADMIN_TOKEN_FILE", "chmod 600")
    assert "x" * 43 not in done.stderr


@pytest.mark.parametrize("text", ["", "short", "two words " * 10])
def test_an_admin_token_file_without_a_token_is_refused(tmp_path: Path, migrated: Path, text: str) -> None:
    file = tmp_path / "admin.token"
    file.write_text(text)
    file.chmod(0o600)
    done = run_app(env=settings_for(migrated, auth="tokens", admin_token_file=str(file)))
    assert_refused(done, "does not contain a token")
    assert not text or text not in done.stderr


def test_an_admin_token_file_that_cannot_be_created_is_reported(tmp_path: Path, migrated: Path) -> None:
    file = tmp_path / "missing" / "admin.token"
    assert_refused(
        run_app(env=settings_for(migrated, auth="tokens", admin_token_file=str(file))), "cannot be created", str(file)
    )


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
def test_an_invalid_setting_is_refused_and_named(migrated: Path, settings: dict[str, str], word: str) -> None:
    assert_refused(run_app(env=settings_for(migrated, **settings)), word)


def test_it_starts_with_an_issuer_that_is_unreachable(tmp_path: Path, migrated: Path) -> None:
    issuer = f"http://127.0.0.1:{free_port()}"
    process = ServiceProcess(tmp_path, auth="tokens", oidc_issuer=issuer, oidc_audience="x")
    shutil.copy(migrated, process.database)
    with process, process.client() as client:
        assert client.get("/blocklist", headers={"Authorization": "Bearer a.b.c"}).status_code == 401
