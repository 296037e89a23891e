"""Alembic's environment: migrations run on the connection that app.store.database provides."""

from alembic import context

from app.store.tables import metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    # SQLite supports few ALTER statements: batch mode copies the table.
    render_as_batch=True,
    # Short transactions, so that locks are held briefly. No effect inside an outer transaction.
    transaction_per_migration=True,
)
with context.begin_transaction():
    context.run_migrations()
