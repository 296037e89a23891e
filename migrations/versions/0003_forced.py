"""Changes: the reason for exceeding a limit."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("changes", sa.Column("forced", sa.Text))


def downgrade() -> None:
    with op.batch_alter_table("changes") as table:
        table.drop_column("forced")
