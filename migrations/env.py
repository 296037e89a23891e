"""Alembic's environment: migrations run on the connection that app.store.schema hands in."""

from alembic import context

from app.store.schema import metadata

connection = context.config.attributes["connection"]
# SQLite cannot alter most of a table: batch mode copies it.
context.configure(connection=connection, target_metadata=metadata, render_as_batch=True)
context.run_migrations()
