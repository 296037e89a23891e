"""Sessions of the page: whose they are, and when they began."""

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("sessions", sa.Column("principal", sa.Text))
    op.add_column("sessions", sa.Column("created_ms", sa.BigInteger, nullable=False, server_default="0"))


def downgrade() -> None:
    with op.batch_alter_table("sessions") as table:
        table.drop_column("principal")
        table.drop_column("created_ms")
