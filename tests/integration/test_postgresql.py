"""The store in PostgreSQL: commits of several replicas, deadlines, notifications, and a replica that stalls."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from typing import Any, Final

import psycopg
import pytest
from sqlalchemy import Connection, Engine, event, make_url, select, text

from app.main import unix_millis
from app.store import postgresql
from app.store.database import make_store
from app.store.postgresql import CHANNEL, PostgresStore, connect_async, deadline
from app.store.queries import StaleError, Topic, bump, current_version
from app.store.store import OnRemoteChange, Store
from blocklist.model.changes import Change, ChangeType, Snapshot, Source
from blocklist.model.claims import Claim
from blocklist.model.draft import BlocklistTracker, Draft
from blocklist.model.node import PERMANENT, BlockAction, BlockedNode
from tests.integration.conftest import StartInProcess
from tests.integration.listeners import get_listener, heartbeat, put, register

pytestmark = pytest.mark.databases("postgresql", "pgbouncer-transaction")

ODD: Final = (
    '"', "\\", '\\"', "{}", "{a,b}", ",", "NULL", "null", " leading and trailing ", "'; DROP TABLE changes; --",
    "%s %(a)s", "$1", "a\u2028b", "é e\u0301", "\U0001f525", "\\x00", "\\N", '""', "''",
)  # fmt: skip


@pytest.mark.parametrize("locked", [False, True])
@pytest.mark.anyio
async def test_any_text_survives_a_commit(database_url: str, locked: bool) -> None:
    changes = []
    for revision, odd in enumerate(ODD, start=1):
        node = BlockedNode(id=f"n{revision}", action=BlockAction.MARK_BLOCKED, start=-(2**62), end=PERMANENT, cause=odd)
        change = Change(
            revision=revision,
            type=ChangeType.BLOCKED,
            at=revision * 1000,
            node=node,
            claims=(Claim(owner=odd, author=None, block=node),),
            created_by=odd if revision % 2 else None,
            forced=odd if revision % 3 else None,
            source=Source.REQUEST,
        )
        changes.append(change)

    store = make_store(database_url, "here", 5.0, unix_millis)
    history = (await store.open()).snapshot.history
    async with store.locked(0) if locked else nullcontext():
        await store.commit(changes, after=0, history=history)
    assert await store.changes(0) == changes
    await store.close()
    again = make_store(database_url, "there", 5.0, unix_millis)
    assert (await again.open()).snapshot.nodes == {change.node.id: change.node for change in changes}
    await again.close()


async def open_stores(database_url: str, seconds: float, *names: str) -> tuple[str, list[Store]]:
    """The history, and a store for each of these replicas."""
    stores = [make_store(database_url, name, seconds, unix_millis) for name in names]
    histories = [(await store.open()).snapshot.history for store in stores]
    return histories[0], stores


async def close(*stores: Store) -> None:
    for store in stores:
        await store.close()


@pytest.mark.anyio
async def test_a_replica_that_has_locked_the_log_commits_first(database_url: str) -> None:
    history, (own, other) = await open_stores(database_url, 30.0, "own", "other")
    await other.commit(blocks("a", after=0), after=0, history=history)
    async with own.locked(0) as tail:
        assert (tail.revision, [change.node.id for change in tail.changes]) == (1, ["a"])
        overtaking = asyncio.create_task(other.commit(blocks("b", after=1), after=1, history=history))
        await asyncio.sleep(0.2)
        await own.commit(blocks("c", after=1), after=1, history=history)
    with pytest.raises(StaleError):
        await overtaking
    assert [change.node.id for change in await other.changes(0)] == ["a", "c"]
    await own.commit(blocks("d", after=2), after=2, history=history)
    await close(own, other)


@pytest.mark.anyio
async def test_of_replicas_that_start_at_once_one_takes_over(database_url: str) -> None:
    """It gives all listeners a whole lease; the others take these as they are."""
    _, stores = await open_stores(database_url, 30.0, "first", "second", "third")
    taken = await asyncio.gather(*(store.listeners.take_over(30.0, 0) for store in stores))
    assert sorted(taken) == [False, False, True]
    await close(*stores)


@pytest.mark.anyio
async def test_a_lock_is_released_without_a_commit(database_url: str) -> None:
    history, (own, other) = await open_stores(database_url, 30.0, "own", "other")
    async with own.locked(0):
        await own.commit([], after=0, history=history)
    await other.commit(blocks("a", after=0), after=0, history=history)

    async def lose() -> None:
        async with own.locked(0):
            await own.commit(blocks("b", after=0), after=0, history=history)

    with pytest.raises(StaleError):
        await lose()
    await other.commit(blocks("b", after=1), after=1, history=history)
    await close(own, other)


@pytest.mark.anyio
async def test_a_replica_that_stalls_with_the_log_locked_does_not_stop_another(database_url: str) -> None:
    history, (own, other) = await open_stores(database_url, 3.0, "own", "other")

    async def stall() -> None:
        async with own.locked(0):
            await other.commit(blocks("a", after=0), after=0, history=history)
            await own.commit(blocks("b", after=0), after=0, history=history)

    with pytest.raises(StaleError):
        await stall()
    assert [change.node.id for change in await other.changes(0)] == ["a"]
    # The database has not failed: the next commit is not refused.
    await own.commit(blocks("b", after=1), after=1, history=history)
    await close(own, other)


# Behind PgBouncer the driver receives the end of the session as a second result of COMMIT, which proves nothing.
@pytest.mark.databases("postgresql")
@pytest.mark.parametrize("rows", [1, 2], ids=["a row", "several rows, in a pipeline"])
@pytest.mark.anyio
async def test_a_transaction_in_which_the_replica_stalls_is_repeated(
    database_url: str, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgresql, "STALL_SECONDS", 0.5)
    begun = 0

    def stalls_at_first(connection: Connection) -> None:
        nonlocal begun
        begun += 1
        bump(connection, Topic.LISTENERS)
        if begun == 1:
            time.sleep(1)
        connection.execute(text("SELECT :number"), [{"number": number} for number in range(rows)])

    def version(connection: Connection) -> int:
        found: int = connection.execute(select(current_version())).scalar_one()
        return found

    _, [own] = await open_stores(database_url, 30.0, "own")
    before = await own.read(version)
    await own.write(stalls_at_first)
    assert begun >= 2  # More if this process does not run for so long, as others need the machine.
    assert await own.read(version) == before + 1
    await own.close()


def blocks(*node_ids: str, after: int) -> list[Change]:
    """Changes that block these nodes, after a revision."""
    draft = Draft(BlocklistTracker(Snapshot(revision=after, history="00000000")), 1000)
    for node_id in node_ids:
        node = BlockedNode(id=node_id, action=BlockAction.MARK_BLOCKED, start=1000, end=PERMANENT, cause="hot")
        draft.block(node, allow_merge=False)
    return draft.changes


# Deadlines on connections to PostgreSQL.


@pytest.mark.anyio
@pytest.mark.parametrize("seconds", ["30.5", "0"])
async def test_a_connection_takes_the_timeout_in_each_form_of_libpq(database_url: str, seconds: str) -> None:
    url = make_url(database_url).update_query_dict({"connect_timeout": seconds})
    connection = await connect_async(url.render_as_string(hide_password=False))
    await connection.close()


@pytest.mark.anyio
async def test_an_answer_after_the_deadline_is_a_timeout(database_url: str) -> None:
    connection = await connect_async(database_url)
    with pytest.raises(TimeoutError, match=r"no answer within 0\.1 s"), deadline(0.1, connection):
        await connection.execute("SELECT pg_sleep(60)")
    with pytest.raises(psycopg.OperationalError):
        await connection.execute("SELECT 1")
    await connection.close()


@pytest.mark.anyio
async def test_an_answer_received_while_the_process_was_paused_is_used(database_url: str) -> None:
    connection = await connect_async(database_url)
    with deadline(0.1, connection):
        asked = asyncio.create_task(connection.execute("SELECT 1"))
        await asyncio.sleep(0)
        # As if the process was paused, or the machine was busy.
        time.sleep(0.5)  # noqa: ASYNC251
        assert await (await asked).fetchone() == (1,)
    await connection.execute("SELECT 1")
    await connection.close()


# Notifications of other replicas: neither a callback that raises nor an unknown topic ends them.


def fail() -> None:
    raise RuntimeError("a bug")


async def receiving(
    url: str, callbacks: dict[Topic, OnRemoteChange], payloads: list[str], until: asyncio.Event
) -> None:
    """Send these notifications while others are received, until the event is set."""
    store = PostgresStore(lambda: url, "this", 10, unix_millis)
    listening = asyncio.create_task(store.listen(callbacks))
    sender = await connect_async(url)
    try:
        async with asyncio.timeout(30):
            while not until.is_set():
                for payload in payloads:
                    await sender.execute("SELECT pg_notify(%s, %s)", (CHANNEL, payload))
                await asyncio.sleep(0.05)
    finally:
        assert not listening.done()
        assert not store.breaker.is_open
        listening.cancel()
        with suppress(asyncio.CancelledError):
            await listening
        await sender.close()
        await store.close()


@pytest.mark.databases("postgresql")
@pytest.mark.anyio
async def test_a_callback_that_raises_does_not_stop_the_others(database_url: str) -> None:
    tokens = asyncio.Event()
    callbacks = {Topic.CHANGES: fail, Topic.LISTENERS: fail, Topic.TOKENS: tokens.set}
    await receiving(database_url, callbacks, [], tokens)


@pytest.mark.databases("postgresql")
@pytest.mark.anyio
async def test_a_topic_of_a_later_version_is_ignored(database_url: str) -> None:
    listeners = asyncio.Event()
    counted = 0

    def count() -> None:
        nonlocal counted
        counted += 1
        if counted > 2:  # the first is that of the first poll
            listeners.set()

    callbacks = {Topic.CHANGES: lambda: None, Topic.LISTENERS: count, Topic.TOKENS: lambda: None}
    await receiving(database_url, callbacks, ["weather another", "listeners another"], listeners)


# A replica that stalls at any moment, such as a paused container, must not keep locks that others wait for.
#
# PostgreSQL ends a session that is idle in a transaction. In a pipeline, which the driver uses for several statements
# of one call, a session waits for the rest of the pipeline, and is not idle for as long.


@contextmanager
def sent_statements() -> Iterator[list[tuple[str, bool]]]:
    """The statements that all engines of this process send until the end of the block, and whether in a pipeline."""
    sent: list[tuple[str, bool]] = []

    def record(_connection: Any, _cursor: Any, statement: str, _parameters: Any, _context: Any, many: bool) -> None:
        sent.append((statement, many))

    event.listen(Engine, "before_cursor_execute", record)
    try:
        yield sent
    finally:
        event.remove(Engine, "before_cursor_execute", record)


def test_no_statement_is_sent_in_a_pipeline(start_in_process: StartInProcess) -> None:
    with sent_statements() as sent:
        service = start_in_process(heartbeat="1s")
        with service.client() as client:
            names = [f"jm-{number}" for number in range(3)]
            for name in names:
                register(client, name)
            revision = put(client, "n1")
            for name in names:
                heartbeat(
                    client, name, ackedRevision=revision, taskManagers={f"{name}:tm": "n1"}, refused={"n1": "last"}
                )
            saved = "UPDATE listeners SET acked"
            service.until(lambda: any(statement.startswith(saved) for statement, _ in sent))
            service.until(lambda: any(statement.startswith("INSERT INTO reports") for statement, _ in sent))
            assert {get_listener(client, name)["ackedRevision"] for name in names} == {revision}
    assert [statement for statement, many in sent if many] == []
