"""Listeners: their sessions, cursors and secrets."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
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
        sa.PrimaryKeyConstraint("id", name="pk_listeners"),
    )


def downgrade() -> None:
    op.drop_table("listeners")
