"""The tables. migrations/ creates them; a test compares the two."""

from __future__ import annotations

from typing import Final

from sqlalchemy import BigInteger, Column, Index, Integer, MetaData, String, Table, Text, and_, literal_column

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

blocked_nodes = Table(
    "blocked_nodes",
    metadata,
    Column("id", String(253), primary_key=True),
    Column("action", String(40), nullable=False),
    Column("start_ms", BigInteger, nullable=False),
    Column("end_ms", BigInteger, nullable=False),
    Column("cause", Text, nullable=False),
    Column("created_by", String(253)),
    Column("revision", BigInteger, nullable=False),
    Column("claims", Text),
    comment="The list at log_head.revision. created_by, revision: of the last change; claims: as in changes.",
    sqlite_with_rowid=False,
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
# Not a parameter: the databases use the index only for a query with the same constant.
DISMISSING: Final = and_(changes.c.type == literal_column("'unblocked'"), changes.c.claims.is_not(None))
"""Condition of the changes that dismissed claims."""
Index("ix_changes_dismissals", changes.c.revision, sqlite_where=DISMISSING)

log_base = Table(
    "log_base",
    metadata,
    Column("id", String(253), primary_key=True),
    Column("action", String(40), nullable=False),
    Column("start_ms", BigInteger, nullable=False),
    Column("end_ms", BigInteger, nullable=False),
    Column("cause", Text, nullable=False),
    Column("created_by", String(253)),
    Column("revision", BigInteger, nullable=False),
    Column("claims", Text),
    comment="The list at log_head.compacted, on which the change log begins; columns as in blocked_nodes.",
    sqlite_with_rowid=False,
)

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
    comment="former: replaced sessions, a JSON array; acked: null before the first list; lapsed_ms: null while live;"
    " since_ms: start of the registration; principal: who registered it, null if unknown."
    " For replicas: lease_end_ms; owner: the replica that pushes to it;"
    " version: versions.version when the row was last written.",
)

reports = Table(
    "reports",
    metadata,
    Column("listener", String(253), primary_key=True),
    Column("part", String(16), primary_key=True),
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
    comment="digest: SHA-256 of the secret; used_ms: last use, up to a minute late;"
    " owners: patterns of the owners whose claims it may change, a JSON array, null for all.",
)

sessions = Table(
    "sessions",
    metadata,
    Column("digest", String(64), primary_key=True),
    Column("csrf", String(64), nullable=False),
    Column("address", String(64), nullable=False),
    Column("name", String(253)),
    Column("role", String(16), nullable=False),
    Column("credential", String(16), nullable=False),
    Column("end_ms", BigInteger, nullable=False),
    Column("principal", Text),
    Column("created_ms", BigInteger, nullable=False),
    comment="Sessions of the page. digest: SHA-256 of the cookie; csrf: secret of its forms; address: of the client;"
    " credential: id of its token, or of the key of its JWT; principal: whose it is, null if unknown.",
)

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
    comment="A version for each topic that replicas share, incremented by each transaction on it.",
)
