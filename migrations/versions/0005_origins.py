"""The list: last change of each node. The log: the list on which it begins, and an index by author."""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

_COLUMNS = "id, action, start_ms, end_ms, cause, created_by, revision"
_FIRST = "SELECT min(revision) FROM changes AS other WHERE other.node_id = changes.node_id"


def upgrade() -> None:
    op.add_column("blocked_nodes", sa.Column("created_by", sa.String(253)))
    op.add_column("blocked_nodes", sa.Column("revision", sa.BigInteger, nullable=False, server_default="0"))
    # 0 stays for nodes whose last change is no longer in the log.
    op.execute(
        "UPDATE blocked_nodes SET created_by = changes.created_by, revision = changes.revision FROM changes"
        " WHERE changes.revision = (SELECT max(revision) FROM changes WHERE node_id = blocked_nodes.id)"
    )
    op.create_table(
        "log_base",
        sa.Column("id", sa.String(253), nullable=False),
        sa.Column("action", sa.String(40), nullable=False),
        sa.Column("start_ms", sa.BigInteger, nullable=False),
        sa.Column("end_ms", sa.BigInteger, nullable=False),
        sa.Column("cause", sa.Text, nullable=False),
        sa.Column("created_by", sa.String(253)),
        sa.Column("revision", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_log_base"),
        sqlite_with_rowid=False,
    )
    _fill_base()
    op.create_index(
        "ix_changes_created_by_revision",
        "changes",
        ["created_by", "revision"],
        sqlite_where=sa.text("created_by IS NOT NULL"),
        postgresql_where=sa.text("created_by IS NOT NULL"),
    )


def _fill_base() -> None:
    """For a log that was compacted: the nodes blocked when it begins, as far as they can be derived."""
    op.execute(
        f"INSERT INTO log_base ({_COLUMNS}) SELECT {_COLUMNS} FROM blocked_nodes"  # noqa: S608 - constants only
        " WHERE NOT EXISTS (SELECT 1 FROM changes WHERE node_id = blocked_nodes.id)"
    )
    # A node whose first change is not `blocked` was blocked before. Before a merge its block differed; that is lost.
    op.execute(
        f"INSERT INTO log_base ({_COLUMNS}) SELECT node_id, action, start_ms, end_ms, cause, NULL, 0 FROM changes"  # noqa: S608
        f" WHERE type <> 'blocked' AND revision = ({_FIRST})"
    )


def downgrade() -> None:
    op.drop_index("ix_changes_created_by_revision", "changes")
    op.drop_table("log_base")
    with op.batch_alter_table("blocked_nodes") as table:
        table.drop_column("revision")
        table.drop_column("created_by")
