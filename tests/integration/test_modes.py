"""How listeners act: they apply blocks, only observe, or are off, as they were started or as an admin has set."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest

from blocklist.model.claims import Role
from tests.integration.bodies import block
from tests.integration.command import Command
from tests.integration.in_process import InProcessService
from tests.integration.listeners import JM, RM, get_listener, heartbeat, put, register
from tests.integration.process import ServiceProcess, wait_until
from tests.integration.secured import SecuredInProcess
from tests.integration.test_node_status import of_listener, status


def set_mode(client: httpx.Client, pattern: str, mode: str) -> list[dict[str, Any]]:
    answer = client.put("/listeners/modes", json={"pattern": pattern, "mode": mode})
    assert answer.status_code == 200, answer.text
    modes: list[dict[str, Any]] = answer.json()["modes"]
    return modes


class TestListenersThatDoNotApply:
    """They are shown, and count nowhere."""

    @pytest.mark.parametrize("role", [JM, RM])
    @pytest.mark.parametrize("mode", ["observe", "off"])
    def test_they_count_neither_as_applied_nor_in_of(self, timed: InProcessService, role: str, mode: str) -> None:
        client = timed.client()
        register(client, "watching", role=role, mode=mode)
        register(client, "obeying")
        revision = put(client, "n1")
        would = {"n1": "would close host n1"} if mode == "observe" else {}
        heartbeat(client, "watching", ackedRevision=revision, mode=mode, would=would)
        assert (status(client, "n1")["applied"], status(client, "n1")["of"]) == (0, 1)
        heartbeat(client, "obeying", ackedRevision=revision)
        body = status(client, "n1")
        assert (body["applied"], body["of"]) == (1, 1)
        shown = of_listener(client, "n1", "watching")
        assert (shown["mode"], shown["applied"], shown["appliedAt"], shown["refused"]) == (mode, False, None, None)
        assert shown["would"] == would.get("n1")
        assert get_listener(client, "watching")["mode"] == mode
        page = client.get("/page/nodes/n1").text
        assert ("would close host n1" in page) is (mode == "observe")
        assert ("observing" if mode == "observe" else ">off<") in page

    def test_nobody_waits_for_them_and_the_response_names_them(self, timed: InProcessService) -> None:
        client = timed.client()
        register(client, "watching", mode="observe")
        register(client, "obeying")
        answer = client.put("/blocklist/nodes/n1", json=block(), headers={"Prefer": "wait=1"})
        assert answer.headers["Blocklist-Applied"] == "0/1"
        assert answer.headers["Blocklist-Not-Applied"] == "obeying"
        assert answer.headers["Blocklist-Observing"] == "watching"
        client.delete("/listeners/obeying").raise_for_status()
        answer = client.put("/blocklist/nodes/n2", json=block(), headers={"Prefer": "wait=60"})
        assert (answer.headers["Blocklist-Applied"], answer.headers["Blocklist-Observing"]) == ("0/0", "watching")

    def test_what_was_applied_is_not_any_more_once_it_observes_and_is_again_once_it_applies(
        self, timed: InProcessService
    ) -> None:
        client = timed.client()
        register(client, "job")
        revision = put(client, "n1")
        heartbeat(client, "job", ackedRevision=revision)
        assert (status(client, "n1")["applied"], status(client, "n1")["of"]) == (1, 1)
        heartbeat(client, "job", mode="off")
        assert (status(client, "n1")["applied"], status(client, "n1")["of"]) == (0, 0)
        heartbeat(client, "job", mode="apply")
        assert (status(client, "n1")["applied"], status(client, "n1")["of"]) == (1, 1)

    def test_they_are_never_late(self, timed: InProcessService) -> None:
        client = timed.client()
        register(client, "watching", mode="off", leaseSeconds=3600)
        put(client, "n1")
        timed.clock.advance(600)
        assert "blocklist_listener_lag_seconds 0.0" in client.get("/metrics").text


class TestModesOfPatterns:
    """PUT, GET and DELETE /listeners/modes"""

    def test_the_next_heartbeat_has_the_mode_of_the_most_exact_pattern(self, timed: InProcessService) -> None:
        client = timed.client()
        register(client, "app-1")
        assert heartbeat(client, "app-1")["mode"] == "apply"
        set_mode(client, "*", "observe")
        assert heartbeat(client, "app-1")["mode"] == "observe"
        set_mode(client, "app-*", "off")
        assert heartbeat(client, "app-1")["mode"] == "off"
        modes = set_mode(client, "app-1", "apply")
        assert heartbeat(client, "app-1")["mode"] == "apply"
        assert [(it["pattern"], it["mode"]) for it in modes] == [("*", "observe"), ("app-*", "off"), ("app-1", "apply")]
        assert register(client, "app-12")["wantedMode"] == "off"
        client.delete("/listeners/modes", params={"pattern": "app-*"}).raise_for_status()
        assert heartbeat(client, "app-12")["mode"] == "observe"
        assert client.get("/listeners/modes").json()["modes"] == [it for it in modes if it["pattern"] != "app-*"]

    @pytest.mark.parametrize(
        "body",
        [
            {"pattern": "app-*", "mode": "shadow"},
            {"pattern": "a*b", "mode": "off"},
            {"pattern": "", "mode": "off"},
            {"pattern": "app-*"},
            {"pattern": "app-*", "mode": None},
        ],
    )
    def test_what_is_no_mode_or_no_pattern_is_400(self, timed: InProcessService, body: dict[str, object]) -> None:
        client = timed.client()
        assert client.put("/listeners/modes", json=body).status_code == 400
        assert client.get("/listeners/modes").json() == {"modes": []}

    def test_a_pattern_without_a_mode_cannot_be_removed(self, timed: InProcessService) -> None:
        client = timed.client()
        assert client.delete("/listeners/modes", params={"pattern": "app-*"}).status_code == 404
        assert client.delete("/listeners/modes", params={"pattern": "a*b"}).status_code == 400
        assert client.delete("/listeners/modes").status_code == 400

    def test_the_page_has_a_notice_until_it_ends(self, timed: InProcessService) -> None:
        client = timed.client()
        assert "is off" not in client.get("/").text
        set_mode(client, "app-*", "off")
        for path in ("/", "/page/listeners", "/page/map"):
            page = client.get(path).text
            assert "The blocklist is off for the listeners app-*" in page
            assert "blocklist listeners mode &#39;app-*&#39; apply" in page or "mode 'app-*' apply" in page
        set_mode(client, "app-*", "apply")
        assert "is off" not in client.get("/").text

    def test_they_survive_a_restart(self, fresh: ServiceProcess) -> None:
        with fresh.client() as client:
            modes = set_mode(client, "app-*", "off")
        fresh.stop()
        fresh.start()
        with fresh.client() as client:
            assert client.get("/listeners/modes").json()["modes"] == modes
            register(client, "app-1")
            assert heartbeat(client, "app-1")["mode"] == "off"

    def test_only_an_admin_sets_them_and_the_audit_log_says_who(self, secured: SecuredInProcess) -> None:
        body = {"pattern": "audited-*", "mode": "off"}
        with secured.client(secured.tokens[Role.OPERATOR]) as operator:
            assert operator.put("/listeners/modes", json=body).status_code == 403
            assert operator.delete("/listeners/modes", params={"pattern": "audited-*"}).status_code == 403
        with secured.client(secured.tokens[Role.ADMIN]) as admin:
            [record] = [it for it in set_mode(admin, "audited-*", "off") if it["pattern"] == "audited-*"]
            admin.delete("/listeners/modes", params={"pattern": "audited-*"}).raise_for_status()
            found = admin.get("/audit", params={"kind": "mode"}).json()["records"]
            own = [it for it in found if it["details"]["pattern"] == "audited-*"]
            assert [it["details"]["mode"] for it in own] == ["off", None]
            assert own[1]["details"]["before"] == "off"
            assert {it["principal"] for it in own} == {record["createdBy"]}
            assert record["createdBy"] is not None


@pytest.mark.databases("postgresql")
@pytest.mark.xdist_group("replicas")
def test_a_mode_set_at_one_replica_reaches_listeners_of_the_others(
    client_a: httpx.Client, client_b: httpx.Client
) -> None:
    register(client_b, "moded-1")
    set_mode(client_a, "moded-*", "observe")
    wait_until(lambda: heartbeat(client_b, "moded-1")["mode"] == "observe")
    heartbeat(client_b, "moded-1", mode="observe")
    wait_until(lambda: get_listener(client_a, "moded-1")["mode"] == "observe")
    client_a.delete("/listeners/modes", params={"pattern": "moded-*"}).raise_for_status()


def test_the_command_sets_shows_and_removes_modes(binaries: Path, fresh: ServiceProcess) -> None:
    command = Command(binaries, fresh.url)
    assert command.run("listeners", "mode").stderr.startswith("No mode is set")
    assert "app-*      observe" in command.stdout_of("listeners", "mode", "app-*", "observe")
    with fresh.client() as client:
        register(client, "app-1", mode="observe")
        revision = put(client, "n1")
        heartbeat(client, "app-1", ackedRevision=revision, mode="observe", would={"n1": "would close host n1"})
    listeners = command.run("listeners")
    notice = "NOTICE: the blocklist is only OBSERVED by the listeners app-*: they apply no block."
    assert notice in listeners.stderr
    assert "observe" in listeners.stdout
    shown = command.run("status", "n1")
    assert notice in shown.stderr
    assert "observing" in shown.stdout
    assert "would close host n1" in shown.stdout
    waited = command.run("block", "n2", "-r", "disk", "--wait", "1s")
    assert waited.returncode == 1
    assert waited.stdout.splitlines()[-1].endswith("; observing or off: app-1")
    command.stdout_of("listeners", "mode", "*", "off")
    assert "OFF for all listeners" in command.run("list").stderr
    command.stdout_of("listeners", "mode", "*", "--remove")
    command.stdout_of("listeners", "mode", "app-*", "apply")
    assert "NOTICE" not in command.run("list").stderr
    for wrong in (["x"], ["mode", "app-*"], ["mode", "app-*", "maybe"], ["mode", "app-*", "off", "--remove"]):
        assert command.run("listeners", *wrong).returncode == 2
