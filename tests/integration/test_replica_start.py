"""A replica that starts beside another one: what happens meanwhile is in its first response, and does not stop it."""

from __future__ import annotations

from pathlib import Path

import psycopg
import pytest

from app.listeners.replication import ListenerWriter
from tests.integration.bodies import block, current_list
from tests.integration.databases import Databases
from tests.integration.in_process import RunningClock, in_process

pytestmark = pytest.mark.databases("postgresql")


def test_a_block_made_while_a_replica_starts_is_in_its_first_response(
    databases: Databases, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings, load = databases.settings(tmp_path), ListenerWriter.load
    with in_process(RunningClock(), **settings) as first:

        async def load_after_a_block(writer: ListenerWriter) -> None:
            await load(writer)
            assert first.client().put("/blocklist/nodes/n1", json=block()).status_code == 201

        monkeypatch.setattr(ListenerWriter, "load", load_after_a_block)
        with in_process(RunningClock(), **settings) as second:
            assert list(current_list(second.client())[1]) == ["n1"]


def test_a_replica_starts_while_another_one_holds_the_lock_of_the_listeners(
    databases: Databases, tmp_path: Path
) -> None:
    """A live replica that hangs in a transaction does that for seconds. The reads of a start need no lock."""
    settings = {**databases.settings(tmp_path), "database_timeout": "2s"}
    url = settings["database_url"].replace("postgresql+psycopg", "postgresql")
    with in_process(RunningClock(), **settings), psycopg.connect(url) as session:
        session.execute("SELECT * FROM versions WHERE topic = 'listeners' FOR UPDATE")
        with in_process(RunningClock(), **settings) as second:
            assert second.client().get("/readyz").status_code == 200
        session.rollback()
