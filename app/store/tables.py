"""The tables, and values of their rows. migrations/ creates them; a test compares the two."""

from __future__ import annotations

import json
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from functools import cache, lru_cache
from typing import Any, Final, NamedTuple, TypeVar

import structlog
from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    ColumnElement,
    Index,
    Integer,
    MetaData,
    Row,
    String,
    Table,
    Text,
    delete,
    insert,
    or_,
    select,
)
from sqlalchemy.engine import Connection

from blocklist.model.changes import Change, ChangeType, Source
from blocklist.model.claims import Claim, Claims, Repeat, Role, author_claim, is_author_claim, merge_claims
from blocklist.model.errors import InvalidError, UnavailableError
from blocklist.model.evidence import AutomaticBlock, BlockRows, Dismissal, dismissals_of
from blocklist.model.listener import ListenerRole
from blocklist.model.node import BlockAction, BlockedNode
from blocklist.wire.body import dump_json

log = structlog.get_logger(__name__)

metadata = MetaData(naming_convention={"pk": "pk_%(table_name)s", "ix": "ix_%(table_name)s_%(column_0_N_name)s"})

# For SQLite an INTEGER primary key is the row id: no separate index is needed.
_Revision = BigInteger().with_variant(Integer(), "sqlite")

log_head = Table(
    "log_head",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("history", String(8), nullable=False),
    Column("revision", BigInteger, nullable=False),
    Column("compacted", BigInteger, nullable=False),
    Column("timeline", String(8)),
    comment="One row. revision: of the last change; compacted: of the last change that was removed from the log;"
    " timeline: of the PostgreSQL server that wrote the row, null if unknown.",
)


def _list(name: str, comment: str) -> Table:
    return Table(
        name,
        metadata,
        Column("id", String(253), primary_key=True),
        Column("action", String(40), nullable=False),
        Column("start_ms", BigInteger, nullable=False),
        Column("end_ms", BigInteger, nullable=False),
        Column("cause", Text, nullable=False),
        Column("created_by", String(253)),
        Column("revision", BigInteger, nullable=False),
        Column("claims", Text),
        comment=comment,
        sqlite_with_rowid=False,
    )


blocked_nodes = _list(
    "blocked_nodes",
    "The list at log_head.revision. created_by, revision: of the last change; claims: as in changes.",
)
log_base = _list(
    "log_base", "The list at log_head.compacted, on which the change log begins; columns as in blocked_nodes."
)

changes = Table(
    "changes",
    metadata,
    Column("revision", _Revision, primary_key=True, autoincrement=False),
    Column("type", String(16), nullable=False),
    Column("at_ms", BigInteger, nullable=False),
    Column("created_by", String(253)),
    Column("forced", Text),
    Column("source", String(16)),
    Column("node_id", String(253), nullable=False),
    Column("action", String(40), nullable=False),
    Column("start_ms", BigInteger, nullable=False),
    Column("end_ms", BigInteger, nullable=False),
    Column("cause", Text, nullable=False),
    Column("claims", Text),
    comment="The change log. Node columns: the node after the change; forced: the reason for exceeding a limit;"
    " claims: those after the change as JSON, null for one of the author with the fields of the block; of an unblocked"
    " node the dismissed ones.",
)
Index(None, changes.c.node_id, changes.c.revision)
# The migrations set these conditions on PostgreSQL, too: setting them here would load that dialect for SQLite.
Index(None, changes.c.created_by, changes.c.revision, sqlite_where=changes.c.created_by.is_not(None))
Index(None, changes.c.revision, sqlite_where=changes.c.forced.is_not(None))

automatic_blocks = Table(
    "automatic_blocks",
    metadata,
    Column("revision", _Revision, primary_key=True, autoincrement=False),
    Column("node_id", String(253), nullable=False),
    Column("begin_ms", BigInteger, nullable=False),
    Column("end_ms", BigInteger),
    Column("is_claimed", Boolean, nullable=False),
    comment="The last blocks of each node that automatic owners made. revision: of the change that began it; end_ms:"
    " null while it lasts; is_claimed: whether an automatic owner claims the node, or did until the end.",
)

dismissals = Table(
    "dismissals",
    metadata,
    Column("node_id", String(253), primary_key=True),
    Column("owner", String(128), primary_key=True),
    Column("at_ms", BigInteger, nullable=False),
    Column("dismissed_by", String(253)),
    Column("revision", BigInteger, nullable=False),
    comment="Automatic owners that were last overruled when somebody unblocked a node. revision: of that change.",
    sqlite_with_rowid=False,
)

alerts = Table(
    "alerts",
    metadata,
    Column("owner", String(128), primary_key=True),
    Column("started_ms", BigInteger),
    Column("ended_ms", BigInteger),
    Column("resolved_ms", BigInteger),
    Column("revision", BigInteger, nullable=False),
    Column("seen_ms", BigInteger, nullable=False),
    comment="The last event of each alert. started_ms, ended_ms: its startsAt and endsAt; resolved_ms: when the service"
    " saw that it had ended, null while it fires; revision: of the list when it was last seen to end, 0 if never;"
    " seen_ms: when it was last posted.",
    sqlite_with_rowid=False,
)
Index(None, alerts.c.seen_ms)

listeners = Table(
    "listeners",
    metadata,
    Column("id", String(253), primary_key=True),
    Column("role", String(20), nullable=False),
    Column("session", String(253), nullable=False),
    Column("former", Text, nullable=False),
    Column("callback_url", Text),
    Column("lease_ms", BigInteger, nullable=False),
    Column("acked", BigInteger),
    Column("lapsed_ms", BigInteger),
    Column("secret", String(64), nullable=False),
    Column("old_secret", String(64)),
    Column("old_secret_until_ms", BigInteger),
    Column("min_nodes", BigInteger, nullable=False),
    Column("lease_end_ms", BigInteger),
    Column("since_ms", BigInteger, nullable=False),
    Column("owner", String(16)),
    Column("version", BigInteger, nullable=False),
    Column("principal", Text),
    Column("confirmed", Boolean, nullable=False),
    Column("cluster", String(63)),
    Column("product", Text),
    Column("product_version", Text),
    Column("platform", Text),
    Column("mode", String(16), nullable=False),
    comment="former: replaced sessions, a JSON array; acked: null before the first list; lapsed_ms: null while live;"
    " since_ms: start of the registration; principal: who registered it, null if unknown;"
    " confirmed: whether it has sent a heartbeat, or registered, since all replicas were away."
    " For replicas: lease_end_ms; owner: the replica that pushes to it;"
    " version: versions.version when the row was last written.",
)

listener_modes = Table(
    "listener_modes",
    metadata,
    Column("pattern", String(253), primary_key=True),
    Column("mode", String(16), nullable=False),
    Column("created_by", String(253)),
    Column("at_ms", BigInteger, nullable=False),
    comment="The modes that admins have set: the most exact pattern of a listener's id counts.",
)

reports = Table(
    "reports",
    metadata,
    Column("listener", String(253), primary_key=True),
    Column("part", String(32), primary_key=True),
    Column("at_ms", BigInteger, nullable=False),
    Column("said", Text, nullable=False),
    Column("version", BigInteger, nullable=False),
    comment="For replicas: reports of listeners, part by part, as JSON; at_ms, version: of the last report.",
)

tokens = Table(
    "tokens",
    metadata,
    Column("id", String(8), primary_key=True),
    Column("name", String(253), nullable=False),
    Column("role", String(16), nullable=False),
    Column("digest", String(64), nullable=False),
    Column("created_ms", BigInteger, nullable=False),
    Column("created_by", String(253)),
    Column("end_ms", BigInteger, nullable=False),
    Column("revoked_ms", BigInteger),
    Column("used_ms", BigInteger),
    Column("owners", Text),
    Column("listeners", Text),
    comment="digest: SHA-256 of the secret; used_ms: last use, up to five minutes late;"
    " owners: patterns of the owners whose claims it may change, listeners: of the ids under which it may register;"
    " JSON arrays, null for all.",
)

sessions = Table(
    "sessions",
    metadata,
    Column("digest", String(64), primary_key=True),
    Column("csrf", String(64), nullable=False),
    Column("address", String(64), nullable=False),
    Column("name", String(253)),
    Column("role", String(16), nullable=False),
    Column("owners", Text),
    Column("credential", String(16), nullable=False),
    Column("end_ms", BigInteger, nullable=False),
    Column("principal", Text),
    Column("created_ms", BigInteger, nullable=False),
    Column("sign_in", Text),
    Column("confirmed_ms", BigInteger, nullable=False),
    comment="Sessions of the page. digest: SHA-256 of the cookie; csrf: secret of its forms; address: of the client;"
    " credential: id of its token, or of the key of its JWT; principal: whose it is, null if unknown;"
    " owners: as of a token; sign_in: what renews it at its issuer, encrypted with the cookie; confirmed_ms: when the"
    " issuer was last asked.",
)

audit = Table(
    "audit",
    metadata,
    Column("id", _Revision, primary_key=True, autoincrement=False),
    Column("at_ms", BigInteger, nullable=False),
    Column("kind", String(16), nullable=False),
    Column("principal", Text),
    Column("way", String(16), nullable=False),
    Column("address", Text),
    Column("request_id", Text),
    Column("revision", BigInteger),
    Column("details", Text, nullable=False),
    comment="Records beside the change log. Triggers refuse to change one, or to remove one before its time."
    " id: consecutive; principal, address, request_id: null if unknown; revision: of a forced change; details: JSON.",
)
Index(None, audit.c.at_ms)
Index(None, audit.c.kind, audit.c.id)
Index(None, audit.c.revision, unique=True)

replicas = Table(
    "replicas",
    metadata,
    Column("id", String(16), primary_key=True),
    Column("end_ms", BigInteger, nullable=False),
    comment="The replicas that use this database; end_ms: end of their leases, by the clock of the database.",
)

versions = Table(
    "versions",
    metadata,
    Column("topic", String(16), primary_key=True),
    Column("version", BigInteger, nullable=False),
    comment="A version for each topic that replicas share, incremented by each transaction on it; that of audit is the"
    " id of its last record.",
)


LIST_COLUMNS: Final = {it.name: "node_id" if it.name == "id" else it.name for it in blocked_nodes.c}
"""Columns of the list, and those of a change with the same content."""


def frees_node(change_type: ColumnElement[Any]) -> ColumnElement[bool]:
    return or_(*(change_type == kind.value for kind in ChangeType if kind.frees))


def replace_rows(put: Any) -> Any:
    """An INSERT, of any dialect, that replaces the rows with the same keys."""
    columns = put.table.columns.keys()
    key = put.table.primary_key.columns.keys()
    return put.on_conflict_do_update(
        index_elements=key, set_={name: put.excluded[name] for name in columns if name not in key}
    )


# The claims on a node in a column of the database: a JSON array.


def dump_claims(claims: Claims) -> str:
    fields = [
        {
            "owner": claim.owner,
            "author": claim.author,
            "action": claim.block.action.name,
            "start": claim.block.start,
            "end": claim.block.end,
            "cause": claim.block.cause,
            **({"canary": True} if claim.block.canary else {}),
            **({} if claim.repeat is None else {"repeat": asdict(claim.repeat)}),
            **({"continues": True} if claim.continues else {}),
        }
        for claim in claims
    ]
    return dump_json(fields).decode()


def dump_block_claims(claims: Claims, node: BlockedNode, author: str | None) -> str | None:
    """The column of the claims that make this block. Null if the other columns say it all: one claim, of the author."""
    return None if not node.canary and is_author_claim(claims, author, node) else dump_claims(claims)


def load_claims(text: str | None, node: BlockedNode, author: str | None) -> Claims:
    """The claims that make this block.

    Raises ValueError, KeyError or TypeError for what `dump_block_claims` does not write.
    """
    if text is None:
        return author_claim(author, node)
    claims = load_dismissed(text, node.id)
    if merge_claims(claims).end != node.end:
        raise ValueError("the claims do not make the block")
    return claims


def with_canary(node: BlockedNode, claims: Claims) -> BlockedNode:
    """The node of these claims: it has no column for `canary`."""
    return replace(node, canary=True) if claims and all(claim.block.canary for claim in claims) else node


def load_dismissed(text: str | None, node_id: str) -> Claims:
    """The claims that a change dismissed. As `load_claims`, but they need not make a block."""
    if text is None:
        return ()
    value = json.loads(text)
    if not isinstance(value, list) or not value:
        raise ValueError("there are no claims")
    return tuple(_claim(node_id, **fields) for fields in value)


def _claim(
    node_id: str,
    *,
    owner: str,
    author: str | None,
    action: str,
    cause: str,
    canary: bool = False,
    repeat: dict[str, Any] | None = None,
    continues: bool = False,
    **times: Any,
) -> Claim:
    if not isinstance(owner, str) or not isinstance(author, str | None):
        raise TypeError("an owner or author is not text")
    if not isinstance(canary, bool) or not isinstance(continues, bool):
        raise TypeError("canary or continues is not a boolean")
    start, end = times["start"], times["end"]
    block = BlockedNode(id=node_id, action=BlockAction[action], start=start, end=end, cause=cause, canary=canary)
    why = None if repeat is None else Repeat(**repeat)
    return Claim(owner=owner, author=author, block=block, repeat=why, continues=continues)


# Reads rows into values. SQLite stores any value in any column, and an operator may edit a row by hand.

T = TypeVar("T")

_CHOICES: Final[Mapping[Column[Any], Container[object]]] = {
    blocked_nodes.c.action: BlockAction.__members__,
    log_base.c.action: BlockAction.__members__,
    changes.c.action: BlockAction.__members__,
    changes.c.type: set(ChangeType),
    changes.c.source: set(Source),
    listeners.c.role: set(ListenerRole),
    tokens.c.role: set(Role),
    sessions.c.role: set(Role),
}


class UnreadableRowError(UnavailableError):
    """A row has a value that cannot be read. The message names table, row and column, and says what to do."""


def read_row(table: Table, row: Row[Any], make: Callable[[Row[Any]], T]) -> T:
    """What `make` makes of a row with the columns of `table`. Raises UnreadableRowError."""
    if not all(map(isinstance, row, _types(table))):
        raise UnreadableRowError(_describe(table, row))
    try:
        return make(row)
    except (KeyError, ValueError, TypeError) as error:
        raise UnreadableRowError(_describe(table, row, error)) from error


def read_rows(table: Table, rows: Iterable[Row[Any]], make: Callable[[Row[Any]], T]) -> list[T]:
    """The same for rows. Raises UnreadableRowError at the first that cannot be read."""
    return [read_row(table, row, make) for row in rows]


def readable_rows(table: Table, rows: Iterable[Row[Any]], make: Callable[[Row[Any]], T]) -> Iterator[T]:
    """The same for those rows that can be read; each of the others is logged once."""
    for row in rows:
        try:
            yield read_row(table, row, make)
        except UnreadableRowError as error:
            log_once(error.detail)


@lru_cache(1000)
def log_once(detail: str) -> None:
    """Log a row that is skipped, not each time that it is read."""
    log.error("a row of the database is skipped", reason=detail)


def missing_row(table: Table) -> UnreadableRowError:
    """The error for a table that has lost its row."""
    return UnreadableRowError(f"The table {table.name} of the database lacks a row: restore a backup.")


@cache
def _types(table: Table) -> tuple[tuple[type, ...], ...]:
    return tuple(_types_of(column) for column in table.c)


def _types_of(column: Column[Any]) -> tuple[type, ...]:
    kind = column.type.python_type
    return (kind, type(None)) if column.nullable else (kind,)


def _describe(table: Table, row: Row[Any], error: Exception | None = None) -> str:
    values = dict(zip(table.c.keys(), row, strict=True))
    key = ", ".join(f"{column.name} {values[column.name]!r}" for column in table.primary_key)
    wrong = next((column for column in table.c if not _is_valid(column, values[column.name])), None)
    where = f" in column {wrong.name}" if wrong is not None else ""
    why = f" ({error.detail.rstrip('.')})" if isinstance(error, InvalidError) and wrong is None else ""
    return (
        f"The table {table.name} of the database has a row ({key}) with an invalid value{where}{why}: correct the"
        " value, or delete the row, or restore a backup."
    )


def _is_valid(column: Column[Any], value: object) -> bool:
    choices = _CHOICES.get(column)
    return isinstance(value, _types_of(column)) and (value is None or choices is None or value in choices)


# SQL on what automatic owners have done: their blocks, dismissals, and the events of alerts.

MAX_LOADED: Final = 50_000
"""Maximum number of blocks, and of dismissals, that are read at the start: the newest."""
KEPT_MS: Final = 400 * 86_400_000
"""How long rows are kept: longer than any sensible BLOCKLIST_REPEAT_WINDOW. A trigger has it for the audit log, too."""
MAX_ALERTS: Final = 100_000
"""Maximum number of alerts that are remembered; beyond it, those posted longest ago are forgotten."""
_ROWS_AT_ONCE: Final = 1000
"""Rows in one statement: both databases bound the number of its parameters."""


class CommitRows(NamedTuple):
    """What a commit writes beside the log and the list, as rows in the order of the columns."""

    blocks: Sequence[tuple[object, ...]]
    removed: Sequence[int]
    dismissals: Sequence[tuple[object, ...]]

    def __bool__(self) -> bool:
        return bool(self.blocks or self.removed or self.dismissals)


def commit_rows(changes: Sequence[Change], blocks: BlockRows) -> CommitRows:
    # Of several dismissals of one owner the last one counts: a statement can write a row once.
    dismissed = {
        (change.node.id, it.owner): it for change in changes if change.dismissed for it in dismissals_of(change)
    }
    return CommitRows(
        blocks=[(it.revision, node_id, it.begin, it.end, it.is_claimed) for node_id, it in blocks.put],
        removed=blocks.removed,
        dismissals=[(*key, it.at, it.dismissed_by, it.revision) for key, it in dismissed.items()],
    )


def load_blocks(connection: Connection) -> list[tuple[str, AutomaticBlock]]:
    """The newest blocks by automatic owners with the ids of their nodes, by revision."""

    def read(row: Row[Any]) -> tuple[str, AutomaticBlock]:
        return row.node_id, AutomaticBlock(row.revision, row.begin_ms, row.end_ms, row.is_claimed)

    return list(readable_rows(automatic_blocks, _newest(connection, automatic_blocks), read))


def load_dismissals(connection: Connection) -> list[tuple[str, Dismissal]]:
    """The newest dismissals with the ids of their nodes, by revision."""

    def read(row: Row[Any]) -> tuple[str, Dismissal]:
        return row.node_id, Dismissal(row.owner, row.at_ms, row.dismissed_by, row.revision)

    return list(readable_rows(dismissals, _newest(connection, dismissals), read))


def _newest(connection: Connection, table: Table) -> Sequence[Row[Any]]:
    return connection.execute(select(table).order_by(table.c.revision.desc()).limit(MAX_LOADED)).all()[::-1]


def forget_old(connection: Connection, now: int) -> None:
    """Remove what no longer counts at `now` (Unix ms)."""
    before = now - KEPT_MS
    connection.execute(delete(automatic_blocks).where(automatic_blocks.c.end_ms < before))
    connection.execute(delete(dismissals).where(dismissals.c.at_ms < before))
    connection.execute(delete(alerts).where(alerts.c.seen_ms < before))
    connection.execute(delete(audit).where(audit.c.at_ms < before))
    newest = select(alerts.c.seen_ms).order_by(alerts.c.seen_ms.desc()).offset(MAX_ALERTS).limit(1)
    connection.execute(delete(alerts).where(alerts.c.seen_ms <= newest.scalar_subquery()))


class AlertEvent(NamedTuple):
    """The last event of an alert. `started` and `ended` are its startsAt and endsAt: Unix ms by the sender's clock.

    `resolved_at` is when the service saw that it had ended (Unix ms by its own clock), None while it fires. `revision`
    is that of the list when the alert was last seen to end, 0 if never.
    """

    started: int | None
    ended: int | None = None
    resolved_at: int | None = None
    revision: int = 0


def read_events(connection: Connection, owners: Iterable[str]) -> dict[str, AlertEvent]:
    """The events of the alerts with these owners, by owner."""
    found: dict[str, AlertEvent] = {}
    for part in _parts(owners):
        rows = connection.execute(select(alerts).where(alerts.c.owner.in_(part)))
        found |= readable_rows(alerts, rows, lambda row: (row.owner, _event(row)))
    return found


def _event(row: Row[Any]) -> AlertEvent:
    return AlertEvent(row.started_ms, row.ended_ms, row.resolved_ms, row.revision)


def write_events(connection: Connection, events: Mapping[str, AlertEvent], now: int) -> None:
    """Replace the events of these alerts. For transactions on Topic.ALERTS, which run one after another."""
    for part in _parts(events):
        connection.execute(delete(alerts).where(alerts.c.owner.in_(part)))
        rows = [dict(zip(alerts.c.keys(), (owner, *events[owner], now), strict=True)) for owner in part]
        connection.execute(insert(alerts).values(rows))


def _parts(owners: Iterable[str]) -> Iterator[Sequence[str]]:
    given = list(owners)
    return (given[start : start + _ROWS_AT_ONCE] for start in range(0, len(given), _ROWS_AT_ONCE))
