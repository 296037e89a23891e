"""Alembic's environment: migrations run on the connection that app.store.migration hands in."""

from alembic import context

from app.store.tables import metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    # SQLite cannot alter most of a table: batch mode copies it.
    render_as_batch=True,
    # Unless there is one around them all, each is its own transaction, which holds up others no longer than it must.
    transaction_per_migration=True,
)
with context.begin_transaction():
    context.run_migrations()
