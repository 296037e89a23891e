"""Several replicas on one database: ownership and reports of listeners, versions; the source of a change."""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("changes", sa.Column("source", sa.String(16)))
    op.add_column("listeners", sa.Column("lease_end_ms", sa.BigInteger))
    op.add_column("listeners", sa.Column("since_ms", sa.BigInteger, nullable=False, server_default="0"))
    op.add_column("listeners", sa.Column("owner", sa.String(16)))
    op.add_column("listeners", sa.Column("version", sa.BigInteger, nullable=False, server_default="0"))
    op.create_table(
        "reports",
        sa.Column("listener", sa.String(253), nullable=False),
        sa.Column("part", sa.String(16), nullable=False),
        sa.Column("at_ms", sa.BigInteger, nullable=False),
        sa.Column("said", sa.Text, nullable=False),
        sa.Column("version", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("listener", "part", name="pk_reports"),
    )
    op.create_table(
        "replicas",
        sa.Column("id", sa.String(16), nullable=False),
        sa.Column("end_ms", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_replicas"),
    )
    versions = op.create_table(
        "versions",
        sa.Column("topic", sa.String(16), nullable=False),
        sa.Column("version", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("topic", name="pk_versions"),
    )
    op.bulk_insert(versions, [{"topic": "listeners", "version": 0}, {"topic": "tokens", "version": 0}])


def downgrade() -> None:
    op.drop_table("versions")
    op.drop_table("replicas")
    op.drop_table("reports")
    with op.batch_alter_table("listeners") as table:
        for column in ("version", "owner", "since_ms", "lease_end_ms"):
            table.drop_column(column)
    with op.batch_alter_table("changes") as table:
        table.drop_column("source")
