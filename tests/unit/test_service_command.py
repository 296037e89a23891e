"""The commands of the service: what check-settings finds, and where --data keeps the database."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from app.cli import main
from app.settings import SettingsError, read_settings

PREFIX = "BLOCKLIST_"


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str, **settings: str) -> int:
    for name, value in settings.items():
        monkeypatch.setenv(PREFIX + name.upper(), value)
    return main(list(arguments))


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"host": "0.0.0.0"}, "BLOCKLIST_HOST: without authentication"),
        ({"auth": "tokens"}, "BLOCKLIST_AUTH: there is no valid token"),
        ({"auth": "tokens", "admin_token_file": "/nowhere/admin"}, "BLOCKLIST_ADMIN_TOKEN_FILE: create the folder"),
        ({"auth": "tokens", "oidc_issuer": "https://login.example"}, "BLOCKLIST_OIDC_AUDIENCE: set the audience"),
        ({"auth": "tokens", "service_account_audience": "blocklist"}, "BLOCKLIST_SERVICE_ACCOUNT_ROLES, or neither"),
        (
            {"auth": "tokens", "service_account_audience": "a", "service_account_roles": "a/b=reader"},
            "BLOCKLIST_SERVICE_ACCOUNT_AUDIENCE: ",
        ),
        ({"telemetry": "otlp"}, "OTEL_EXPORTER_OTLP_ENDPOINT"),
        ({"nodes_file": "/nowhere/nodes.csv"}, "BLOCKLIST_NODES_FILE: /nowhere/nodes.csv: No such file"),
        ({"tls_cert": "/nowhere/cert.pem"}, "BLOCKLIST_TLS_KEY"),
        ({"host": "192.0.2.1"}, "BLOCKLIST_HOST: the service cannot listen on 192.0.2.1"),
        ({"host": "blocklist.invalid"}, "BLOCKLIST_HOST: the service cannot listen on blocklist.invalid"),
        ({"host": "a..b"}, "this is not a host name"),
    ],
)
def test_what_the_start_refuses_is_found_before(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], settings: dict[str, str], words: str
) -> None:
    monkeypatch.delenv("OTEL_EXPORTER_OTLP_ENDPOINT", raising=False)
    assert run(monkeypatch, "check-settings", database_url="sqlite:////nowhere/blocklist.db", **settings) == 2
    assert words in capsys.readouterr().err


def test_telemetry_without_its_packages_is_found(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("app.telemetry._is_installed", lambda _: False)
    assert run(monkeypatch, "check-settings", telemetry="otlp") == 2
    assert "blocklist[telemetry]" in capsys.readouterr().err


def test_valid_settings_change_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    token = str(tmp_path / "admin.token")
    database = f"sqlite:///{tmp_path}/blocklist.db"
    assert run(monkeypatch, "check-settings", auth="tokens", admin_token_file=token, database_url=database) == 0
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("host", "other"), [("127.0.0.1", "127.0.0.1"), ("::", "0.0.0.0")])
def test_a_port_in_use_is_valid_as_the_service_may_be_running(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, host: str, other: str
) -> None:
    token, database = str(tmp_path / "admin.token"), f"sqlite:///{tmp_path}/blocklist.db"
    monkeypatch.setenv("BLOCKLIST_ADMIN_TOKEN_FILE", token)
    with socket.create_server((other, 0)) as taken:
        port = str(taken.getsockname()[1])
        assert run(monkeypatch, "check-settings", auth="tokens", database_url=database, host=host, port=port) == 0


def test_a_faulty_nodes_file_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "nodes.csv").write_text("id,names\nw 1,\n")
    assert run(monkeypatch, "check-settings", nodes_file=str(tmp_path / "nodes.csv")) == 2
    found = capsys.readouterr().err
    assert "line 2" in found
    assert not found.endswith("..\n")


def test_data_names_the_folder_of_the_database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BLOCKLIST_DATABASE_URL", "")
    assert run(monkeypatch, "migrate", "--data", str(tmp_path / "new" / "data")) == 0
    assert (tmp_path / "new" / "data" / "blocklist.db").exists()


def test_an_empty_folder_is_a_usage_error(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SystemExit) as end:
        run(monkeypatch, "migrate", "--data", "")
    assert end.value.code == 2


def test_data_and_a_database_contradict_each_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ("migrate", "--data", str(tmp_path / "data"))
    assert run(monkeypatch, *arguments, database_url="sqlite:///other.db") == 2
    assert "give one of them" in capsys.readouterr().err


def test_all_wrong_settings_are_named_at_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    wrong = {"databse_url": "x", "port": "x", "max_blocked_share": "20", "heartbeat": "soon"}
    assert run(monkeypatch, "check-settings", **wrong) == 2
    named = [line.removeprefix("blocklist: ").split()[0].rstrip(":") for line in capsys.readouterr().err.splitlines()]
    assert sorted(named) == [f"BLOCKLIST_{name.upper()}" for name in sorted(wrong)]
    for name in wrong:
        monkeypatch.delenv(PREFIX + name.upper())
    checked = {"host": "0.0.0.0", "nodes_file": "/nowhere/nodes.csv", "tls_cert": "/nowhere/cert.pem"}
    assert run(monkeypatch, "check-settings", database_url=f"sqlite:///{tmp_path}/x.db", **checked) == 2
    said = capsys.readouterr().err
    assert all(name in said for name in ("BLOCKLIST_HOST", "BLOCKLIST_NODES_FILE", "BLOCKLIST_TLS_KEY"))


@pytest.mark.parametrize(
    "settings", [{"host": "0.0.0.0"}, {"auth": "tokens"}, {"tls_cert": "/nowhere/cert.pem"}, {"port": "x"}]
)
def test_settings_that_are_refused_leave_no_database(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: dict[str, str]
) -> None:
    monkeypatch.setenv("BLOCKLIST_DATABASE_URL", "")
    assert run(monkeypatch, "serve", "--data", str(tmp_path / "data"), **settings) == 2
    assert not (tmp_path / "data" / "blocklist.db").exists()


@pytest.mark.parametrize("command", ["serve", "migrate", "new-history", "check-settings"])
def test_a_deleted_folder_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert run(monkeypatch, command, "--data", "data") == 2
    assert "The current folder was deleted" in capsys.readouterr().err


@pytest.mark.parametrize(("mode", "warned"), [(0o777, True), (0o770, False), (0o1777, False)])
def test_a_folder_that_anybody_may_write_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], mode: int, warned: bool
) -> None:
    monkeypatch.setenv("BLOCKLIST_DATABASE_URL", "")
    data = tmp_path / "data"
    data.mkdir()
    data.chmod(mode)
    assert run(monkeypatch, "migrate", "--data", str(data)) == 0
    assert (f"chmod o-w {data}" in capsys.readouterr().err) is warned


def test_values_may_be_written_as_elsewhere() -> None:
    read = read_settings({PREFIX + "HOST": "[::1]", PREFIX + "MAX_BLOCKED_SHARE": "20%"})
    assert (read.host, read.max_blocked_share) == ("::1", 0.2)
    for wrong in ("0%", "120%", "x%", "20"):
        with pytest.raises(SettingsError, match="MAX_BLOCKED_SHARE"):
            read_settings({PREFIX + "MAX_BLOCKED_SHARE": wrong})
