"""An index of the changes that dismissed claims: the start reads them without scanning the log."""

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None

_DISMISSING = sa.text("type = 'unblocked' AND claims IS NOT NULL")


def upgrade() -> None:
    op.create_index(
        "ix_changes_dismissals", "changes", ["revision"], sqlite_where=_DISMISSING, postgresql_where=_DISMISSING
    )


def downgrade() -> None:
    op.drop_index("ix_changes_dismissals", "changes")
