"""Listeners: who registered them."""

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("listeners", sa.Column("principal", sa.Text))


def downgrade() -> None:
    with op.batch_alter_table("listeners") as table:
        table.drop_column("principal")
