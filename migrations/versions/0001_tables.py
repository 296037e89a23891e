"""The tables of version 0.1.0."""

import secrets
from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0001_tables"
down_revision = None
branch_labels = None
depends_on = None

_REVISION = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
_KNOWN_AUTHOR = sa.text("created_by IS NOT NULL")
_FORCED = sa.text("forced IS NOT NULL")
_KEPT_MS = 400 * 86_400_000


def upgrade() -> None:
    _create_list_and_log()
    _create_automatic()
    _create_listeners()
    _create_credentials()
    _create_audit()
    _create_replicas()


def _create_list_and_log() -> None:
    head = op.create_table(
        "log_head",
        sa.Column("id", sa.Integer, nullable=False),
        sa.Column("history", sa.String(8), nullable=False),
        sa.Column("revision", sa.BigInteger, nullable=False),
        sa.Column("compacted", sa.BigInteger, nullable=False),
        sa.Column("timeline", sa.String(8)),
        sa.PrimaryKeyConstraint("id", name="pk_log_head"),
    )
    op.bulk_insert(head, [{"id": 1, "history": secrets.token_hex(4), "revision": 0, "compacted": 0}])
    for table in ("blocked_nodes", "log_base"):
        op.create_table(
            table,
            sa.Column("id", sa.String(253), nullable=False),
            *_block_columns(),
            sa.Column("created_by", sa.String(253)),
            sa.Column("revision", sa.BigInteger, nullable=False),
            sa.Column("claims", sa.Text),
            sa.PrimaryKeyConstraint("id", name=f"pk_{table}"),
            sqlite_with_rowid=False,
        )
    op.create_table(
        "changes",
        sa.Column("revision", _REVISION, nullable=False, autoincrement=False),
        sa.Column("type", sa.String(16), nullable=False),
        sa.Column("at_ms", sa.BigInteger, nullable=False),
        sa.Column("created_by", sa.String(253)),
        sa.Column("forced", sa.Text),
        sa.Column("source", sa.String(16)),
        sa.Column("node_id", sa.String(253), nullable=False),
        *_block_columns(),
        sa.Column("claims", sa.Text),
        sa.PrimaryKeyConstraint("revision", name="pk_changes"),
    )
    op.create_index("ix_changes_node_id_revision", "changes", ["node_id", "revision"])
    columns = ["created_by", "revision"]
    op.create_index(
        "ix_changes_created_by_revision", "changes", columns, sqlite_where=_KNOWN_AUTHOR, postgresql_where=_KNOWN_AUTHOR
    )
    op.create_index("ix_changes_revision", "changes", ["revision"], sqlite_where=_FORCED, postgresql_where=_FORCED)


def _block_columns() -> list[sa.Column[Any]]:
    return [
        sa.Column("action", sa.String(40), nullable=False),
        sa.Column("start_ms", sa.BigInteger, nullable=False),
        sa.Column("end_ms", sa.BigInteger, nullable=False),
        sa.Column("cause", sa.Text, nullable=False),
    ]


def _create_automatic() -> None:
    op.create_table(
        "automatic_blocks",
        sa.Column("revision", _REVISION, nullable=False, autoincrement=False),
        sa.Column("node_id", sa.String(253), nullable=False),
        sa.Column("begin_ms", sa.BigInteger, nullable=False),
        sa.Column("end_ms", sa.BigInteger),
        sa.Column("is_claimed", sa.Boolean, nullable=False),
        sa.PrimaryKeyConstraint("revision", name="pk_automatic_blocks"),
    )
    op.create_table(
        "dismissals",
        sa.Column("node_id", sa.String(253), nullable=False),
        sa.Column("owner", sa.String(128), nullable=False),
        sa.Column("at_ms", sa.BigInteger, nullable=False),
        sa.Column("dismissed_by", sa.String(253)),
        sa.Column("revision", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("node_id", "owner", name="pk_dismissals"),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "alerts",
        sa.Column("owner", sa.String(128), nullable=False),
        sa.Column("started_ms", sa.BigInteger),
        sa.Column("ended_ms", sa.BigInteger),
        sa.Column("resolved_ms", sa.BigInteger),
        sa.Column("revision", sa.BigInteger, nullable=False),
        sa.Column("seen_ms", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("owner", name="pk_alerts"),
        sqlite_with_rowid=False,
    )
    op.create_index("ix_alerts_seen_ms", "alerts", ["seen_ms"])


def _create_listeners() -> None:
    op.create_table(
        "listeners",
        sa.Column("id", sa.String(253), nullable=False),
        sa.Column("role", sa.String(20), nullable=False),
        sa.Column("session", sa.String(253), nullable=False),
        sa.Column("former", sa.Text, nullable=False),
        sa.Column("callback_url", sa.Text),
        sa.Column("lease_ms", sa.BigInteger, nullable=False),
        sa.Column("acked", sa.BigInteger),
        sa.Column("lapsed_ms", sa.BigInteger),
        sa.Column("secret", sa.String(64), nullable=False),
        sa.Column("old_secret", sa.String(64)),
        sa.Column("old_secret_until_ms", sa.BigInteger),
        sa.Column("min_nodes", sa.BigInteger, nullable=False),
        sa.Column("lease_end_ms", sa.BigInteger),
        sa.Column("since_ms", sa.BigInteger, nullable=False),
        sa.Column("owner", sa.String(16)),
        sa.Column("version", sa.BigInteger, nullable=False),
        sa.Column("principal", sa.Text),
        sa.Column("confirmed", sa.Boolean, nullable=False),
        sa.Column("cluster", sa.String(63)),
        sa.Column("product", sa.Text),
        sa.Column("product_version", sa.Text),
        sa.Column("platform", sa.Text),
        sa.Column("mode", sa.String(16), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_listeners"),
    )
    op.create_table(
        "listener_modes",
        sa.Column("pattern", sa.String(253), nullable=False),
        sa.Column("mode", sa.String(16), nullable=False),
        sa.Column("created_by", sa.String(253)),
        sa.Column("at_ms", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("pattern", name="pk_listener_modes"),
    )
    op.create_table(
        "reports",
        sa.Column("listener", sa.String(253), nullable=False),
        sa.Column("part", sa.String(32), nullable=False),
        sa.Column("at_ms", sa.BigInteger, nullable=False),
        sa.Column("said", sa.Text, nullable=False),
        sa.Column("version", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("listener", "part", name="pk_reports"),
    )


def _create_credentials() -> None:
    op.create_table(
        "tokens",
        sa.Column("id", sa.String(8), nullable=False),
        sa.Column("name", sa.String(253), nullable=False),
        sa.Column("role", sa.String(16), nullable=False),
        sa.Column("digest", sa.String(64), nullable=False),
        sa.Column("created_ms", sa.BigInteger, nullable=False),
        sa.Column("created_by", sa.String(253)),
        sa.Column("end_ms", sa.BigInteger, nullable=False),
        sa.Column("revoked_ms", sa.BigInteger),
        sa.Column("used_ms", sa.BigInteger),
        sa.Column("owners", sa.Text),
        sa.Column("listeners", sa.Text),
        sa.PrimaryKeyConstraint("id", name="pk_tokens"),
    )
    op.create_table(
        "sessions",
        sa.Column("digest", sa.String(64), nullable=False),
        sa.Column("csrf", sa.String(64), nullable=False),
        sa.Column("address", sa.String(64), nullable=False),
        sa.Column("name", sa.String(253)),
        sa.Column("role", sa.String(16), nullable=False),
        sa.Column("owners", sa.Text),
        sa.Column("credential", sa.String(16), nullable=False),
        sa.Column("end_ms", sa.BigInteger, nullable=False),
        sa.Column("principal", sa.Text),
        sa.Column("created_ms", sa.BigInteger, nullable=False),
        sa.Column("sign_in", sa.Text),
        sa.Column("confirmed_ms", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("digest", name="pk_sessions"),
    )


def _create_audit() -> None:
    op.create_table(
        "audit",
        sa.Column("id", _REVISION, nullable=False, autoincrement=False),
        sa.Column("at_ms", sa.BigInteger, nullable=False),
        sa.Column("kind", sa.String(16), nullable=False),
        sa.Column("principal", sa.Text),
        sa.Column("way", sa.String(16), nullable=False),
        sa.Column("address", sa.Text),
        sa.Column("request_id", sa.Text),
        sa.Column("revision", sa.BigInteger),
        sa.Column("details", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_audit"),
    )
    op.create_index("ix_audit_at_ms", "audit", ["at_ms"])
    op.create_index("ix_audit_kind_id", "audit", ["kind", "id"])
    op.create_index("ix_audit_revision", "audit", ["revision"], unique=True)
    for statement in _SQLITE_GUARD if op.get_bind().dialect.name == "sqlite" else _POSTGRESQL_GUARD:
        op.execute(statement)


# A removal that comes too early is skipped instead of refused: the service removes old records in one transaction with
# old changes, which must not fail if its clock is wrong.
_SQLITE_GUARD = (
    """
    CREATE TRIGGER audit_unchanged BEFORE UPDATE ON audit
    BEGIN SELECT RAISE(ABORT, 'records of the audit log are never changed'); END
    """,
    f"""
    CREATE TRIGGER audit_kept BEFORE DELETE ON audit
    WHEN old.at_ms > CAST(strftime('%s', 'now') AS INTEGER) * 1000 - {_KEPT_MS}
    BEGIN SELECT RAISE(IGNORE); END
    """,
)
_POSTGRESQL_GUARD = (
    f"""
    CREATE FUNCTION audit_guard() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        IF TG_OP = 'DELETE' THEN
            IF old.at_ms > extract(epoch FROM clock_timestamp()) * 1000 - {_KEPT_MS} THEN
                RETURN NULL;
            END IF;
            RETURN old;
        END IF;
        RAISE EXCEPTION 'records of the audit log are never changed';
    END $$
    """,
    "CREATE TRIGGER audit_guard BEFORE UPDATE OR DELETE ON audit FOR EACH ROW EXECUTE FUNCTION audit_guard()",
    "CREATE TRIGGER audit_whole BEFORE TRUNCATE ON audit FOR EACH STATEMENT EXECUTE FUNCTION audit_guard()",
)


def _create_replicas() -> None:
    op.create_table(
        "replicas",
        sa.Column("id", sa.String(16), nullable=False),
        sa.Column("end_ms", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_replicas"),
    )
    versions = op.create_table(
        "versions",
        sa.Column("topic", sa.String(16), nullable=False),
        sa.Column("version", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("topic", name="pk_versions"),
    )
    topics = ("alerts", "audit", "listeners", "modes", "tokens")
    op.bulk_insert(versions, [{"topic": topic, "version": 0} for topic in topics])


def downgrade() -> None:
    for table in (
        "versions",
        "replicas",
        "audit",
        "sessions",
        "tokens",
        "reports",
        "listener_modes",
        "listeners",
        "alerts",
        "dismissals",
        "automatic_blocks",
        "changes",
        "log_base",
        "blocked_nodes",
        "log_head",
    ):
        op.drop_table(table)
    if op.get_bind().dialect.name != "sqlite":
        op.execute("DROP FUNCTION audit_guard")
