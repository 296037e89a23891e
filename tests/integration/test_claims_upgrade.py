"""Claims, while a former version that knows nothing of them changes the same list."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any, Final

import httpx
import pytest

from tests.alertmanager.posts import alert, post
from tests.integration.bodies import EVACUATE, PERMANENT, all_changes, block, current_list
from tests.integration.conftest import Start
from tests.integration.process import ServiceProcess, wait_until
from tests.postgres import PostgresServer

pytestmark = pytest.mark.databases("postgresql")

FORMER_COMMIT: Final = """
WITH head AS (UPDATE log_head SET revision = {revision} WHERE revision = {revision} - 1 RETURNING revision),
new AS (
    INSERT INTO changes (revision, type, at_ms, created_by, source, node_id, action, start_ms, end_ms, cause)
    SELECT revision, '{type}', 5, {author}, 'request', 'n1', '{action}', 5, {end}, '{cause}' FROM head RETURNING *
),
listed AS (
    INSERT INTO blocked_nodes (id, action, start_ms, end_ms, cause, created_by, revision)
    SELECT node_id, action, start_ms, end_ms, cause, created_by, revision FROM new WHERE type <> 'unblocked'
    ON CONFLICT (id) DO UPDATE SET action = excluded.action, end_ms = excluded.end_ms, cause = excluded.cause,
        start_ms = excluded.start_ms, created_by = excluded.created_by, revision = excluded.revision
),
freed AS (DELETE FROM blocked_nodes WHERE id IN (SELECT node_id FROM new WHERE type = 'unblocked'))
SELECT pg_notify('blocklist', 'changes 0badcafe') FROM head
"""
"""A commit of the version before there were claims."""


class Upgrade:
    """A replica with claims, on a database that a former version changes as well."""

    def __init__(self, start: Start, postgres: PostgresServer) -> None:
        self.process: ServiceProcess = start()
        self.client: httpx.Client
        self._postgres = postgres

    def post(self, *alerts: dict[str, Any]) -> None:
        self.client.post("/integrations/alertmanager", json=post(*alerts)).raise_for_status()

    def former(self, kind: str, cause: str, *, author: str = "'anna'", end: str = PERMANENT) -> None:
        """The former version commits a change of n1, and this one has read it."""
        revision = current_list(self.client)[0] + 1
        name = self.process.environment()["BLOCKLIST_DATABASE_URL"].rpartition("/")[2]
        values = {"revision": revision, "type": kind, "cause": cause, "author": author, "end": end, "action": EVACUATE}
        assert self._postgres.execute(FORMER_COMMIT.format(**values), name) == [("",)]
        wait_until(lambda: current_list(self.client)[0] == revision)

    def restart(self) -> None:
        self.process.stop()
        self.process.start()

    def cause(self) -> str | None:
        node = current_list(self.client)[1].get("n1")
        return None if node is None else str(node["cause"])


@pytest.fixture
def upgrade(start: Start, postgres: PostgresServer) -> Iterator[Upgrade]:
    with ExitStack() as stack:
        upgrade = Upgrade(start, postgres)
        upgrade.client = stack.enter_context(upgrade.process.client())
        yield upgrade


@pytest.mark.parametrize("restarted", [False, True])
class TestFormerVersion:
    """What a replica knows is the same whether it has read the log or, after a restart, the list."""

    def test_after_its_merge_the_node_has_one_claim_of_its_author(self, upgrade: Upgrade, *, restarted: bool) -> None:
        upgrade.client.put("/blocklist/nodes/n1", json=block(cause="Kernel")).raise_for_status()
        upgrade.post(alert("DiskFull"), alert("Hot"))
        upgrade.former("merged", "Kernel,alert DiskFull,alert Hot,more")
        if restarted:
            upgrade.restart()
        upgrade.post(alert("DiskFull", resolved=True))
        assert upgrade.cause() == "Kernel,alert DiskFull,alert Hot,more"
        upgrade.post(alert("New"))
        upgrade.post(alert("New", resolved=True))
        assert [change["type"] for change in all_changes(upgrade.client)][-3:] == ["merged", "merged", "narrowed"]
        assert upgrade.cause() == "Kernel,alert DiskFull,alert Hot,more"

    def test_after_its_merge_a_canary_is_an_ordinary_block(self, upgrade: Upgrade, *, restarted: bool) -> None:
        url = "/blocklist/nodes/n1/claims/detection"
        upgrade.client.put(url, json=block(cause="Slow", canary=True)).raise_for_status()
        assert current_list(upgrade.client)[1]["n1"]["canary"] is True
        upgrade.former("merged", "Slow,more")
        if restarted:
            upgrade.restart()
        assert "canary" not in current_list(upgrade.client)[1]["n1"]
        upgrade.client.put(url, json=block(cause="Slow", canary=True)).raise_for_status()
        assert "canary" not in current_list(upgrade.client)[1]["n1"], "its author has a claim"

    def test_its_delete_removes_all_claims(self, upgrade: Upgrade, *, restarted: bool) -> None:
        upgrade.post(alert("DiskFull"), alert("Hot"))
        upgrade.former("unblocked", "x")
        upgrade.former("blocked", "New")
        if restarted:
            upgrade.restart()
        upgrade.post(alert("Hot", resolved=True))
        assert upgrade.cause() == "New"
        upgrade.former("unblocked", "New")
        assert upgrade.cause() is None

    def test_a_narrowed_change_is_a_merge_for_it(
        self, upgrade: Upgrade, postgres: PostgresServer, *, restarted: bool
    ) -> None:
        upgrade.post(alert("DiskFull"), alert("Hot"))
        if restarted:
            upgrade.restart()
        upgrade.post(alert("Hot", resolved=True))
        (change,) = all_changes(upgrade.client, type="narrowed")
        assert change["node"]["cause"].startswith("alert DiskFull")
        name = upgrade.process.environment()["BLOCKLIST_DATABASE_URL"].rpartition("/")[2]
        assert postgres.execute("SELECT type FROM changes ORDER BY revision", name) == [("blocked",), ("merged",)]
        assert all_changes(upgrade.client, type="merged") == []
