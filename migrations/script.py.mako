"""${message}"""

# Only add: on PostgreSQL the version before goes on with the new schema. Make an index on a table that has rows
# concurrently, in an autocommit block. tests/migrations wants rows as the service writes them from now on.

import sqlalchemy as sa
from alembic import op

revision = ${repr(up_revision)}
down_revision = ${repr(down_revision)}
branch_labels = None
depends_on = None


def upgrade() -> None:
    ${upgrades if upgrades else "pass"}


def downgrade() -> None:
    ${downgrades if downgrades else "pass"}
