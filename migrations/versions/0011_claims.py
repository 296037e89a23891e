"""Claims: several owners of one block. A block without claims is one of the author of its last change."""

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("changes", sa.Column("claims", sa.Text))
    op.add_column("changes", sa.Column("subtype", sa.String(16)))
    op.add_column("blocked_nodes", sa.Column("claims", sa.Text))
    op.add_column("log_base", sa.Column("claims", sa.Text))
    op.add_column("tokens", sa.Column("owners", sa.Text))


def downgrade() -> None:
    for table, columns in {
        "changes": ("claims", "subtype"),
        "blocked_nodes": ("claims",),
        "log_base": ("claims",),
        "tokens": ("owners",),
    }.items():
        with op.batch_alter_table(table) as altered:
            for column in columns:
                altered.drop_column(column)
