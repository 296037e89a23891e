"""The list, its change log, listeners and tokens in a database: SQLite or PostgreSQL, through SQLAlchemy."""
