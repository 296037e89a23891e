"""The start, settings, health and metrics."""

from __future__ import annotations

import errno
import json
import os
import shutil
import socket
import sqlite3
import sys
from contextlib import closing
from pathlib import Path
from subprocess import DEVNULL, CompletedProcess, Popen

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from app.server import check_address
from app.settings import SettingsError, read_settings
from tests.integration.bodies import block, current_list, later
from tests.integration.conftest import Start
from tests.integration.problems import problem_of
from tests.integration.process import ROOT, ServiceProcess, environment, free_port, run_app, url_of, wait_until


def assert_refused(done: CompletedProcess[str], *words: str) -> None:
    """Assert that it did not start, and gave the reason without a traceback."""
    assert done.returncode != 0
    assert "Traceback" not in done.stderr + done.stdout
    assert done.stderr.strip(), "the message is on stderr"
    assert len(done.stderr.splitlines()) < 10
    for word in words:
        assert word in done.stderr


def settings_for(database: Path, **settings: str) -> dict[str, str]:
    return environment(database_url=url_of(database), port=str(free_port()), **settings)


@pytest.mark.parametrize("stdout", ["/dev/full", "&-"])
def test_it_starts_where_its_first_lines_cannot_be_written(migrated: Path, stdout: str) -> None:
    settings = settings_for(migrated)
    shell = ["sh", "-c", f'exec "$0" -m blocklist.cli serve >{stdout}', sys.executable]
    with Popen(shell, env={**os.environ, **settings}, stderr=DEVNULL, cwd=ROOT) as process:
        try:
            url = f"http://127.0.0.1:{settings['BLOCKLIST_PORT']}/healthz"
            wait_until(lambda: is_healthy(url))
        finally:
            process.terminate()


def is_healthy(url: str) -> bool:
    try:
        return httpx.get(url, trust_env=False).status_code == 200
    except httpx.HTTPError:
        return False


class TestSettings:
    @pytest.mark.parametrize(
        ("command", "name"),
        [((), "PROT"), (("serve",), "URLS"), (("migrate",), "DATABASE")],
    )
    def test_an_unknown_name_stops_the_start_and_is_reported(
        self, migrated: Path, command: tuple[str, ...], name: str
    ) -> None:
        assert_refused(run_app(*command, env={**settings_for(migrated), f"BLOCKLIST_{name}": "1"}), f"BLOCKLIST_{name}")

    def test_an_invalid_value_stops_the_start(self, migrated: Path) -> None:
        assert_refused(run_app(env={**settings_for(migrated), "BLOCKLIST_PORT": "x"}), "BLOCKLIST_PORT")

    @pytest.mark.parametrize(
        ("name", "value"),
        [
            ("log_format", "xml"),
            ("log_max_changes", "999"),
            ("log_max_age", "59m"),
            ("database_url", "nonsense"),
            ("default_duration", "soon"),
            ("max_blocked_per", "rack=two"),
        ],
    )
    def test_an_invalid_value_is_reported_with_its_name(self, name: str, value: str) -> None:
        with pytest.raises(SettingsError, match=f"BLOCKLIST_{name.upper()}"):
            read_settings({f"BLOCKLIST_{name.upper()}": value})

    def test_a_password_is_not_repeated(self, migrated: Path) -> None:
        done = run_app(env={**settings_for(migrated), "BLOCKLIST_DATABASE_URL": "oracle://scott:hunter2@x/y"})
        assert_refused(done)
        assert "hunter2" not in done.stderr + done.stdout

    def test_settings_of_clients_are_ignored_and_durations_have_units(self, start: Start) -> None:
        own = {"url": "http://elsewhere.example", "token": "x", "token_file": "/nowhere", "timeout": "5"}
        service = start(**own, default_duration="4h", log_max_age="2h")
        assert httpx.get(f"{service.url}/healthz").status_code == 200

    @pytest.mark.parametrize("command", ["check-settings", "openapi"])
    @pytest.mark.parametrize("url", ["sqlite:////nowhere/blocklist.db", "postgresql://anna@127.0.0.1:1/blocklist"])
    def test_some_commands_need_no_database(self, command: str, url: str) -> None:
        done = run_app(command, env=environment(database_url=url), forked=url.startswith("sqlite"))
        assert (done.returncode, done.stderr) == (0, "")

    def test_an_unknown_command_is_refused(self, migrated: Path) -> None:
        assert_refused(run_app("sevre", env=settings_for(migrated), forked=False), "sevre")

    def test_a_port_in_use_stops_the_start(self, database_url: str) -> None:
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = str(taken.getsockname()[1])
            done = run_app(env=environment(database_url=database_url, port=port))
        assert_refused(done, f"BLOCKLIST_PORT: port {port} of 127.0.0.1 is in use")
        assert done.returncode == 2

    def test_an_address_of_another_machine_stops_the_start(self, database_url: str, tmp_path: Path) -> None:
        access = {"auth": "tokens", "admin_token_file": str(tmp_path / "other.token")}
        done = run_app(env=environment(database_url=database_url, port=str(free_port()), host="192.0.2.1", **access))
        assert_refused(done, "BLOCKLIST_HOST: the service cannot listen on 192.0.2.1")
        assert done.returncode == 2

    @pytest.mark.parametrize("host", ["::", "::1", "2001:db8::1"])
    @pytest.mark.parametrize("number", [errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL])
    def test_a_machine_without_ipv6_is_told_what_to_set(
        self, host: str, number: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def refuse(*_: object) -> socket.socket:
            raise OSError(number, os.strerror(number))

        monkeypatch.setattr(socket, "socket", refuse)
        with pytest.raises(SettingsError, match=rf"BLOCKLIST_HOST: .* on {host}, .* set BLOCKLIST_HOST=0\.0\.0\.0, or"):
            check_address(host, 8224)

    @pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="this machine has no IPv6")
    @pytest.mark.parametrize("host", ["::", "0:0:0:0:0:0:0:0"])
    def test_the_unspecified_address_of_ipv6_listens_on_ipv4_too(
        self, tmp_path: Path, migrated: Path, host: str
    ) -> None:
        access = {"auth": "tokens", "admin_token_file": str(tmp_path / "admin.token"), "trusted_proxies": "127.0.0.0/8"}
        shutil.copy(migrated, tmp_path / "blocklist.db")
        with ServiceProcess(tmp_path, host=host, **access) as service:
            token = (tmp_path / "admin.token").read_text().strip()
            headers = {"authorization": f"Bearer {token}", "x-forwarded-user": "ada"}
            for number, address in enumerate(("127.0.0.1", "[::1]")):
                url = f"http://{address}:{service.port}/blocklist/nodes/n{number}"
                assert httpx.put(url, json=block(), headers=headers, trust_env=False).status_code == 201
            listed = httpx.get(f"{service.url}/blocklist?details=true", headers=headers, trust_env=False).json()
            # Only the first came from a trusted proxy.
            assert [listed[name]["createdBy"] == "ada" for name in ("n0", "n1")] == [True, False]


class TestDatabase:
    @pytest.mark.parametrize("exists", [False, True])
    def test_a_new_sqlite_database_is_created_by_the_start(self, tmp_path: Path, exists: bool) -> None:
        if exists:
            (tmp_path / "blocklist.db").touch()
        with ServiceProcess(tmp_path) as service, service.client() as client:
            assert current_list(client) == (0, {})

    @pytest.mark.parametrize("command", [(), ("migrate",)])
    def test_the_database_of_another_program_is_not_changed(self, tmp_path: Path, command: tuple[str, ...]) -> None:
        database = tmp_path / "other.db"
        with closing(sqlite3.connect(database)) as other:
            other.execute("CREATE TABLE customers (id INTEGER PRIMARY KEY, name TEXT)")
            other.commit()
        before = database.read_bytes()
        assert_refused(run_app(*command, env=settings_for(database)))
        assert database.read_bytes() == before

    @pytest.mark.parametrize("command", [("serve",), ("migrate",)])
    def test_a_file_that_is_not_a_database_is_not_changed(self, tmp_path: Path, command: tuple[str, ...]) -> None:
        database = tmp_path / "notes.txt"
        database.write_text("not a database\n" * 1000)
        assert_refused(run_app(*command, env=settings_for(database)), "notes.txt")
        assert database.read_text() == "not a database\n" * 1000

    @pytest.mark.parametrize("command", [(), ("migrate",)])
    def test_a_newer_schema_is_refused(self, tmp_path: Path, migrated: Path, command: tuple[str, ...]) -> None:
        database = tmp_path / "newer.db"
        database.write_bytes(migrated.read_bytes())
        with closing(sqlite3.connect(database)) as newer:
            newer.execute("UPDATE alembic_version SET version_num = 'from_the_future'")
            newer.commit()
        assert_refused(run_app(*command, env=settings_for(database)), "newer")

    def test_a_missing_folder_is_reported(self, tmp_path: Path) -> None:
        assert_refused(run_app("migrate", env=settings_for(tmp_path / "missing" / "blocklist.db")), "missing")

    def test_migrating_again_changes_nothing(self, fresh: ServiceProcess) -> None:
        with fresh.client() as client:
            client.put("/blocklist/nodes/a", json=block())
            before, history = current_list(client), client.get("/blocklist").headers["blocklist-history"]
            fresh.stop()
            assert run_app("migrate", env=fresh.environment()).returncode == 0
            fresh.start()
            assert (current_list(client), client.get("/blocklist").headers["blocklist-history"]) == (before, history)

    def test_two_databases_have_two_histories(self, tmp_path: Path, client: httpx.Client) -> None:
        other = ServiceProcess(tmp_path)
        assert run_app("migrate", env=other.environment()).returncode == 0
        with other:
            history = httpx.get(f"{other.url}/blocklist").headers["blocklist-history"]
        assert history != client.get("/blocklist").headers["blocklist-history"]


class TestHealth:
    @pytest.mark.parametrize("path", ["/healthz", "/readyz"])
    def test_a_healthy_service_returns_200(self, client: httpx.Client, path: str) -> None:
        assert client.get(path).status_code == 200

    def test_it_serves_its_api_document(self, client: httpx.Client) -> None:
        paths = client.get("/openapi.json").json()["paths"]
        assert {"/blocklist", "/blocklist/nodes", "/blocklist/watch", "/blocklist/changes", "/healthz"} <= set(paths)

    def test_the_number_of_blocked_nodes_is_a_metric(self, fresh_client: httpx.Client) -> None:
        assert _blocked_nodes(fresh_client) == 0
        fresh_client.put("/blocklist/nodes", json={f"n{n}": block() for n in range(5)})
        fresh_client.put("/blocklist/nodes/n1", json=block(cause="b", allowMerge=True))
        fresh_client.delete("/blocklist/nodes/n2")
        assert _blocked_nodes(fresh_client) == 4
        fresh_client.put("/blocklist/nodes/short", json=block(endTimestamp=later(0.5)))
        wait_until(lambda: "short" not in current_list(fresh_client)[1])
        assert _blocked_nodes(fresh_client) == 4

    def test_metrics_have_the_prometheus_text_format(self, client: httpx.Client) -> None:
        client.get("/blocklist/nodes/free")
        response = client.get("/metrics")
        assert response.headers["content-type"].startswith("text/plain")
        families = {family.name: family for family in text_string_to_metric_families(response.text)}
        assert families["numBlockedNodes"].type == "gauge"
        assert all(family.documentation for family in families.values())

    def test_requested_paths_make_no_new_metrics(self, client: httpx.Client) -> None:
        client.get("/blocklist/nodes/first")
        before = len(client.get("/metrics").text.splitlines())
        for n in range(20):
            client.get(f"/blocklist/nodes/free-{n}")
            client.get(f"/nothing/{n}")
        assert len(client.get("/metrics").text.splitlines()) < before + 40
        assert "free-7" not in client.get("/metrics").text

    def test_an_unknown_path_below_metrics_gets_404(self, client: httpx.Client) -> None:
        problem_of(client.get("/metrics/x"), 404)


class TestLog:
    def test_each_json_line_is_one_object(self, start: Start) -> None:
        service = start(log_format="json")
        with service.client() as client:
            client.put("/blocklist/nodes/a", json=block())
            client.put("/blocklist/nodes/a", content=b"rubbish \x1b[31m\n")
            client.get("/nothing\u2028here")
            client.delete("/blocklist/nodes/a")
        service.stop()
        lines = service.log().splitlines()
        assert lines
        assert all(isinstance(json.loads(line), dict) for line in lines)

    def test_a_path_cannot_forge_a_line(self, start: Start) -> None:
        service = start(log_format="console")
        with service.client() as client:
            client.get("/blocklist/nodes/a%0AFORGED%1b[31m")
        service.stop()
        assert not [line for line in service.log().splitlines() if line.startswith("FORGED")]
        assert "\x1b[31m" not in service.log()


def _blocked_nodes(client: httpx.Client) -> float:
    families = text_string_to_metric_families(client.get("/metrics").text)
    return next(sample.value for family in families for sample in family.samples if sample.name == "numBlockedNodes")
