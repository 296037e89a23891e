"""The list, its change log and the head of both."""

import secrets

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    head = op.create_table(
        "log_head",
        sa.Column("id", sa.Integer, nullable=False),
        sa.Column("history", sa.String(8), nullable=False),
        sa.Column("revision", sa.BigInteger, nullable=False),
        sa.Column("compacted", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_log_head"),
    )
    op.create_table(
        "blocked_nodes",
        sa.Column("id", sa.String(253), nullable=False),
        sa.Column("action", sa.String(40), nullable=False),
        sa.Column("start_ms", sa.BigInteger, nullable=False),
        sa.Column("end_ms", sa.BigInteger, nullable=False),
        sa.Column("cause", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_blocked_nodes"),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "changes",
        sa.Column(
            "revision",
            sa.BigInteger().with_variant(sa.Integer(), "sqlite"),
            nullable=False,
            autoincrement=False,
        ),
        sa.Column("type", sa.String(16), nullable=False),
        sa.Column("at_ms", sa.BigInteger, nullable=False),
        sa.Column("created_by", sa.String(253)),
        sa.Column("node_id", sa.String(253), nullable=False),
        sa.Column("action", sa.String(40), nullable=False),
        sa.Column("start_ms", sa.BigInteger, nullable=False),
        sa.Column("end_ms", sa.BigInteger, nullable=False),
        sa.Column("cause", sa.Text, nullable=False),
        sa.PrimaryKeyConstraint("revision", name="pk_changes"),
    )
    op.create_index("ix_changes_node_id_revision", "changes", ["node_id", "revision"])
    op.bulk_insert(head, [{"id": 1, "history": secrets.token_hex(4), "revision": 0, "compacted": 0}])


def downgrade() -> None:
    op.drop_table("changes")
    op.drop_table("blocked_nodes")
    op.drop_table("log_head")
