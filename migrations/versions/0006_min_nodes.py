"""Listeners: minimum number of usable nodes."""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("listeners", sa.Column("min_nodes", sa.BigInteger, nullable=False, server_default="0"))


def downgrade() -> None:
    with op.batch_alter_table("listeners") as table:
        table.drop_column("min_nodes")
