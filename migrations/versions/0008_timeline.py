"""PostgreSQL's timeline beside the head of the log."""

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("log_head", sa.Column("timeline", sa.String(8)))


def downgrade() -> None:
    with op.batch_alter_table("log_head") as table:
        table.drop_column("timeline")
