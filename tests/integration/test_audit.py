"""The audit log: what is recorded, how much at most, and that nothing changes it."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import httpx
import pytest
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError
from structlog.testing import capture_logs

from app import audit
from app.audit import MAX_NAMED, MAX_NAMED_OF_ADDRESS, WINDOW_MS, AuditLog
from app.main import unix_millis
from app.settings import SECRETS, Settings, read_settings
from app.store.audit import AuditFilter, Origin
from app.store.database import make_blocking_engine, make_store, migrate
from app.store.tables import KEPT_MS, forget_old
from blocklist.model.claims import Role
from blocklist.model.errors import UnavailableError
from blocklist.wire.audit import AuditKind, Way
from tests.integration.bodies import block
from tests.integration.conftest import StartInProcess
from tests.integration.databases import ON_BOTH, ON_SQLITE, Databases
from tests.integration.in_process import ManualClock, RunningClock
from tests.integration.problems import problem_of
from tests.integration.process import url_of, wait_until
from tests.integration.secured import SecuredInProcess, secured_in_process

DAY: Final = 86_400
FORCE: Final = {"force": "The rack burns; 火"}


@pytest.fixture(scope="module")
def audited(tmp_path_factory: pytest.TempPathFactory, databases: Databases) -> Iterator[SecuredInProcess]:
    folder = tmp_path_factory.mktemp("audited")
    with secured_in_process(folder, databases, max_blocked="1", trusted_proxies="127.0.0.1") as service:
        yield service


def records(client: httpx.Client, **query: Any) -> list[dict[str, Any]]:
    """All that match, page by page."""
    found: list[dict[str, Any]] = []
    after: dict[str, str] = {}
    while True:
        page = client.get("/audit", params={**query, **after}).raise_for_status().json()
        found += page["records"]
        if page["next"] is None:
            return found
        after = {"after": page["next"]}


def recorded(client: httpx.Client, number: int = 1, **query: Any) -> list[dict[str, Any]]:
    """The last ones that match, once there are that many."""
    wait_until(lambda: len(records(client, **query)) >= number)
    return records(client, **query)[-number:]


@ON_BOTH
class TestWhatIsRecorded:
    def test_a_log_in_to_the_page(self, audited: SecuredInProcess) -> None:
        token = audited.make_token(Role.OPERATOR, "paula")
        with audited.client() as page, audited.client(audited.admin) as admin:
            sent = {"X-Request-ID": "log-in-1", "X-Forwarded-For": "192.0.2.7"}
            assert page.post("/login", data={"token": token["token"]}, headers=sent).status_code == 303
            (login,) = recorded(admin, kind="login", principal="paula")
        assert {name: login[name] for name in ("kind", "principal", "way", "address", "requestId")} == {
            "kind": "login",
            "principal": "paula",
            "way": "page",
            "address": "192.0.2.7",
            "requestId": "log-in-1",
        }
        assert login["details"] == {"role": "operator", "credential": token["id"]}

    @ON_SQLITE
    @pytest.mark.parametrize(
        ("made", "state"), [("revoked", "revoked"), ("expired", "expired"), ("other", "valid, wrong secret")]
    )
    @pytest.mark.parametrize("way", ["api", "page", "command"])
    def test_a_failed_log_in_names_the_token_and_what_is_wrong(
        self, audited: SecuredInProcess, made: str, state: str, way: str
    ) -> None:
        name = f"{made}-{way}"
        end = str(audited.clock() + (5_000 if made == "expired" else 3_600_000))
        token = audited.make_token(Role.READER, name, endTimestamp=end)
        sent, address = token["token"], f"192.0.2.{len(name)}"
        with audited.client(audited.admin) as admin:
            if made == "revoked":
                admin.delete(f"/tokens/{token['id']}").raise_for_status()
        if made == "other":
            sent = sent[:-4] + ("AAAA" if not sent.endswith("AAAA") else "BBBB")
        if made == "expired":
            audited.clock.advance(6)
        with audited.client() as client:
            client.headers["X-Forwarded-For"] = address
            if way == "page":
                assert client.post("/login", data={"token": sent}).status_code == 401
            else:
                agent = {"User-Agent": "blocklist-command/9"} if way == "command" else {}
                got = client.get("/blocklist", headers={"Authorization": f"Bearer {sent}", **agent})
                assert got.status_code == 401
        with audited.client(audited.admin) as admin:

            def own() -> list[dict[str, Any]]:
                return [it for it in records(admin, kind="login-failed") if it["details"].get("tokenName") == name]

            wait_until(lambda: bool(own()))
            (failed,) = own()
        assert (failed["principal"], failed["way"], failed["address"]) == (None, way, address)
        assert failed["details"]["token"] == token["id"]
        assert failed["details"]["tokenState"] == state
        assert token["token"][-43:] not in json.dumps(failed)

    @ON_SQLITE
    def test_a_request_without_credentials_is_no_failed_log_in(self, audited: SecuredInProcess) -> None:
        with audited.client() as client, audited.client(audited.admin) as admin:
            sent = {"X-Request-ID": "nobody-1"}
            assert client.get("/blocklist", headers=sent).status_code == 401
            assert client.get("/", headers=sent).status_code == 303
            client.get("/blocklist", headers={"Authorization": "Basic YTpi", "X-Request-ID": "basic-1"})
            wait_until(lambda: any(it["requestId"] == "basic-1" for it in records(admin)))
            assert not any(it["requestId"] == "nobody-1" for it in records(admin))

    def test_each_change_of_a_token(self, audited: SecuredInProcess) -> None:
        with audited.client(audited.admin) as admin:
            made = admin.post(
                "/tokens",
                json={"name": "tina", "role": "operator", "owners": ["tina"]},
                headers={"X-Request-ID": "t-1"},
            ).json()
            # In the same transaction: no waiting.
            (created,) = [it for it in records(admin, kind="token-created") if it["requestId"] == "t-1"]
            for _ in range(2):
                admin.delete(f"/tokens/{made['id']}", headers={"X-Request-ID": "t-2"}).raise_for_status()
            (revoked,) = [it for it in records(admin, kind="token-revoked") if it["requestId"] == "t-2"]
        details = {"token": made["id"], "name": "tina", "role": "operator", "endTimestamp": None, "owners": ["tina"]}
        for record in (created, revoked):
            assert (record["principal"], record["way"], record["address"]) == ("admin", "api", "127.0.0.1")
            assert record["details"] == details

    def test_a_change_that_was_forced(self, audited: SecuredInProcess) -> None:
        with audited.client(audited.admin) as admin:
            for number, name in enumerate(("forced-1", "forced-2"), 1):
                answer = admin.put(
                    f"/blocklist/nodes/{name}", json=block(), params=FORCE, headers={"X-Request-ID": name}
                )
                assert answer.status_code == 201
                forced = recorded(admin, number, kind="forced")[-1]
                assert forced["details"] == {
                    "reason": FORCE["force"],
                    "revision": int(answer.headers["blocklist-revision"]),
                    "change": "blocked",
                    "node": name,
                    "action": "MARK_BLOCKED",
                    "endTimestamp": "9223372036854775807",
                }
                assert (forced["principal"], forced["way"], forced["requestId"]) == ("admin", "api", name)
                assert forced["address"] == "127.0.0.1"
            assert admin.delete("/blocklist/nodes/forced-1").status_code == 200
            refused = admin.put("/blocklist/nodes/forced-2", json=block(), params=FORCE)
            assert refused.status_code == 409
            assert [it["details"]["node"] for it in records(admin, kind="forced")] == ["forced-1", "forced-2"]

    def test_the_settings_at_each_start(self, tmp_path: Path, databases: Databases) -> None:
        secret = "hunter2"
        given = {"notify_url": f"json://user:{secret}@127.0.0.1:9/", "ticket_url": f"https://t/{{id}}?key={secret}"}
        for _ in range(2):
            with secured_in_process(tmp_path, databases, **given) as secured, secured.client(secured.admin) as admin:
                recorded(admin, kind="settings")
        with (
            secured_in_process(tmp_path, databases, log_max_age="400d") as secured,
            secured.client(secured.admin) as admin,
        ):
            first, same, changed = recorded(admin, 3, kind="settings")
            assert secret not in json.dumps(records(admin))
        settings = first["details"]["settings"]
        assert (settings["auth"], settings["notify_url"], settings["port"]) == ("tokens", "set", "8224")
        assert settings["ticket_url"] == "https://t/{id}?REDACTED"
        assert same["details"]["settingsAsIn"] == first["id"]
        assert "settings" not in same["details"]
        assert (changed["details"]["settings"]["log_max_age"], changed["way"]) == ("400d", "service")


def test_no_secret_of_a_setting_is_recorded() -> None:
    environ = {
        "BLOCKLIST_DATABASE_URL": "postgresql://ann:hunter2@db:5432/list?sslpassword=hunter2",
        "BLOCKLIST_NOTIFY_URL": "json://ann:hunter2@127.0.0.1/hook/hunter2",
    }
    values = read_settings(environ).recorded
    assert values["database_url"] == "postgresql://db:5432/list"
    assert "hunter2" not in json.dumps(values)
    assert not any(Settings.model_fields[name].repr for name in SECRETS)
    secret = {"password", "secret", "token", "credential"}
    for name, field in Settings.model_fields.items():
        assert not field.repr or secret.isdisjoint(name.split("_")) or name.endswith(("_file", "_per_token")), name


@pytest.mark.parametrize("role", [role for role in Role if role is not Role.ADMIN])
def test_only_an_admin_may_read_it(audited: SecuredInProcess, role: Role) -> None:
    with audited.client(audited.tokens[role]) as client:
        problem_of(client.get("/audit"), 403)


@ON_BOTH
class TestPages:
    @pytest.fixture
    def filled(self, audited: SecuredInProcess) -> Iterator[httpx.Client]:
        with audited.client(audited.admin) as admin:
            yield admin

    @pytest.mark.parametrize("newest", ["true", "false"])
    def test_they_have_every_record_once_and_in_order(self, filled: httpx.Client, newest: str) -> None:
        ids = [it["id"] for it in records(filled, limit=2, newest=newest)]
        assert len(ids) > 4
        assert ids == sorted(set(ids), reverse=newest == "true")
        assert min(ids) == 1
        assert len(ids) == max(ids) - min(ids) + 1

    def test_a_reader_goes_on_after_the_last_record(self, filled: httpx.Client) -> None:
        last = records(filled)[-1]["id"]
        made = filled.post("/tokens", json={"name": "next", "role": "reader"}).json()
        assert [it["details"]["token"] for it in records(filled, after=last)] == [made["id"]]

    def test_filters_are_combined(self, filled: httpx.Client) -> None:
        made = filled.post("/tokens", json={"name": "revoked-soon", "role": "reader"}).raise_for_status().json()
        filled.delete(f"/tokens/{made['id']}").raise_for_status()
        everything = records(filled)
        both = records(filled, kind=["settings", "token-created"])
        assert {it["kind"] for it in both} == {"settings", "token-created"}
        assert len(both) < len(everything)
        assert {it["principal"] for it in records(filled, principal="admin")} == {"admin"}
        at = both[-1]["at"]
        assert all(it["at"] >= at for it in records(filled, **{"from": at}))
        assert all(it["at"] < at for it in records(filled, until=at))
        assert records(filled, until=at, **{"from": at}) == []

    @ON_SQLITE
    @pytest.mark.parametrize("query", ["kind=nothing", "after=x", "limit=0", "principal=", "from=soon", "since=1"])
    def test_an_invalid_query_is_refused(self, filled: httpx.Client, query: str) -> None:
        problem_of(filled.get(f"/audit?{query}"), 400)


@ON_BOTH
def test_nothing_changes_a_record_and_only_age_removes_it(audited: SecuredInProcess) -> None:
    engine = make_blocking_engine(audited.service.settings.database_url)
    try:
        with pytest.raises(DBAPIError, match="never changed"), engine.begin() as connection:
            connection.execute(text("UPDATE audit SET principal = 'nobody'"))
        with engine.begin() as connection:
            count = connection.execute(text("SELECT count(*) FROM audit")).scalar_one()
            assert count > 0
            connection.execute(text("DELETE FROM audit"))
            assert connection.execute(text("SELECT count(*) FROM audit")).scalar_one() == count
            row = {"at": unix_millis() - KEPT_MS - 60_000, "id": 10**6}
            connection.execute(
                text("INSERT INTO audit (id, at_ms, kind, way, details) VALUES (:id, :at, 'mode', 'api', '{}')"), row
            )
            forget_old(connection, unix_millis())
            assert connection.execute(text("SELECT count(*) FROM audit")).scalar() == count
        if engine.dialect.name == "postgresql":
            with pytest.raises(DBAPIError, match="never changed"), engine.begin() as connection:
                connection.execute(text("TRUNCATE audit"))
    finally:
        engine.dispose()


def test_records_are_removed_after_400_days(start_in_process: StartInProcess) -> None:
    # In the past, as the database compares with its own clock.
    service = start_in_process(clock=ManualClock(1_000_000))
    with service.client() as client:
        service.until(lambda: records(client))
        service.clock.advance(400 * DAY - 60)
        service.until(lambda: service.clock() > KEPT_MS - 30_000, step=1)
        assert records(client)
        service.until(lambda: not records(client), step=5)


@ON_BOTH
def test_a_forced_change_is_recorded_although_the_service_ended_before(
    start_in_process: StartInProcess, databases: Databases, tmp_path: Path
) -> None:
    service = start_in_process(tmp_path, clock=ManualClock(1_000_000), max_blocked="1")
    with service.client() as client:
        client.put("/blocklist/nodes/a", json=block()).raise_for_status()
        client.put("/blocklist/nodes/b", json=block(), params=FORCE).raise_for_status()
        service.until(lambda: records(client, kind="forced"), step=1)
        engine = make_blocking_engine(service.settings.database_url)
        with engine.begin() as connection:
            connection.execute(text("DELETE FROM audit WHERE kind = 'forced'"))
        engine.dispose()
        assert not records(client, kind="forced")
        service.until(lambda: records(client, kind="forced"), step=1)
        service.clock.advance(120)
        (forced,) = records(client, kind="forced")
    assert (forced["details"]["node"], forced["address"]) == ("b", None)


@pytest.mark.databases("postgresql")
def test_replicas_write_one_log(start_in_process: StartInProcess, databases: Databases, tmp_path: Path) -> None:
    clock = RunningClock()
    services = [start_in_process(tmp_path, clock=clock, max_blocked="1") for _ in range(2)]
    clients = [service.client() for service in services]
    for name in "abcdef":
        clients[0].put(f"/blocklist/nodes/{name}", json=block(), params=FORCE).raise_for_status()
        clients[1].delete(f"/blocklist/nodes/{name}")
    wait_until(lambda: len(records(clients[1], kind="forced")) == 6)
    clock.advance(60)
    time.sleep(0.5)
    assert records(clients[0]) == records(clients[1])
    ids = [it["id"] for it in records(clients[1])]
    assert ids == list(range(1, len(ids) + 1))
    assert len(records(clients[1], kind="forced")) == 6
    assert len(records(clients[1], kind="settings")) == 2


def test_a_copy_of_the_file_has_the_records_and_protects_them(
    start_in_process: StartInProcess, databases: Databases, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    service = start_in_process(tmp_path, clock=RunningClock())
    with service.client() as client:
        before = recorded(client)
    folder = tmp_path_factory.mktemp("restored")
    with (
        closing(sqlite3.connect(service.database)) as source,
        closing(sqlite3.connect(folder / "blocklist.db")) as copy,
    ):
        source.backup(copy)
        with pytest.raises(sqlite3.IntegrityError, match="never changed"):
            copy.execute("UPDATE audit SET at_ms = 0")
    restored = start_in_process(folder, clock=RunningClock())
    with restored.client() as client:
        assert records(client)[:1] == before


class TestBounds:
    """The log on a real store."""

    @pytest.fixture
    def file(self, tmp_path: Path) -> Path:
        migrate(url_of(tmp_path / "blocklist.db"))
        return tmp_path / "blocklist.db"

    def run(self, file: Path, scenario: Callable[[AuditLog, ManualClock, list[int]], Any]) -> list[dict[str, Any]]:
        """Run a scenario; the records that it leaves."""
        clock, lost = ManualClock(unix_millis()), list[int]()

        async def run() -> list[dict[str, Any]]:
            store = make_store(url_of(file), "r1", 2.0, clock)
            await store.open()
            try:
                log = AuditLog(store, clock, lost.append)
                await scenario(log, clock, lost)
                page = await log.page(AuditFilter(), after=None, newest=False, limit=1000)
                return [{"kind": it.kind, "address": it.address, **it.details} for it in page.records]
            finally:
                await store.close()

        return asyncio.run(run())

    def test_a_flood_of_failed_log_ins_makes_a_few_records_that_count_all(self, file: Path) -> None:
        async def flood(log: AuditLog, clock: ManualClock, _: list[int]) -> None:
            begin = time.perf_counter()
            for number in range(10_000):
                origin = Origin(way=Way.API, address=f"2001:db8::{number % 5000:x}", request_id=f"r-{number}")
                log.note_repeatable(AuditKind.LOGIN_FAILED, origin, {"reason": "unknown"})
            # On a busy machine; a request with a token takes longer than each of these.
            assert time.perf_counter() - begin < 5
            await log.flush()
            clock.advance(WINDOW_MS / 1000)
            await log.flush()

        made = self.run(file, flood)
        named = MAX_NAMED[AuditKind.LOGIN_FAILED]
        assert len(made) == 2 * named + 1
        assert sum(it.get("count", 1) for it in made) == 10_000
        (others,) = [it for it in made if it.get("others")]
        assert (others["count"], others["address"]) == (10_000 - 2 * named, None)

    def test_a_flood_from_one_address_hides_nobody_else(self, file: Path) -> None:
        async def flood(log: AuditLog, clock: ManualClock, _: list[int]) -> None:
            for number in range(1000):
                origin, details = (
                    Origin(way=Way.API, address="192.0.2.1"),
                    {"reason": "unknown", "token": f"{number:08x}"},
                )
                log.note_repeatable(AuditKind.LOGIN_FAILED, origin, details)
            other = Origin(way=Way.PAGE, address="192.0.2.2")
            log.note_repeatable(AuditKind.LOGIN_FAILED, other, {"reason": "revoked", "token": "aaaaaaaa"})
            await log.flush()
            clock.advance(WINDOW_MS / 1000)
            await log.flush()

        made = self.run(file, flood)
        assert len(made) == MAX_NAMED_OF_ADDRESS[AuditKind.LOGIN_FAILED] + 2
        assert [it["token"] for it in made if it["address"] == "192.0.2.2"] == ["aaaaaaaa"]
        (others,) = [it for it in made if it.get("others")]
        assert (others["address"], others["count"]) == (
            "192.0.2.1",
            1000 - MAX_NAMED_OF_ADDRESS[AuditKind.LOGIN_FAILED],
        )

    def test_equal_events_are_recorded_at_once_and_then_summed(self, file: Path) -> None:
        async def scenario(log: AuditLog, clock: ManualClock, lost: list[int]) -> None:
            ann = Origin(way=Way.PAGE, principal="ann", address="192.0.2.1")
            for _ in range(3):
                log.note_repeatable(AuditKind.LOGIN, ann, {"role": "admin"})
                await log.flush()
                clock.advance(60)
            clock.advance(WINDOW_MS / 1000)
            log.note_repeatable(AuditKind.LOGIN, ann, {"role": "admin"})
            await log.close()
            assert lost == []

        first, summed, again = self.run(file, scenario)
        assert "count" not in first
        assert summed["count"] == 2
        assert "count" not in again

    def test_what_is_noted_while_the_database_is_away_is_written_later(self, file: Path) -> None:
        async def scenario(log: AuditLog, _: ManualClock, lost: list[int]) -> None:
            with closing(sqlite3.connect(file, isolation_level=None)) as other:
                other.execute("BEGIN EXCLUSIVE")
                log.note(AuditKind.MODE, Origin(way=Way.API), {"pattern": "app-*"})
                with pytest.raises(UnavailableError):
                    await log.flush()
            await log.flush()
            await log.flush()
            assert lost == []

        assert self.run(file, scenario) == [{"kind": "mode", "address": None, "pattern": "app-*"}]

    def test_what_does_not_fit_meanwhile_is_counted_and_logged(
        self, file: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(audit, "MAX_WAITING", 3)

        async def scenario(log: AuditLog, _: ManualClock, lost: list[int]) -> None:
            with capture_logs() as lines:
                for number in range(5):
                    log.note(AuditKind.MODE, Origin(way=Way.API), {"number": number})
            assert sum(lost) == 2
            assert [line["details"]["number"] for line in lines] == [3, 4]
            await log.flush()
            await log.flush()

        made = self.run(file, scenario)
        assert [it["kind"] for it in made] == ["mode", "mode", "mode", "lost"]
        assert made[-1]["count"] == 2
