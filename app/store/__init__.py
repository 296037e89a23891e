"""The list and its change log in a database, through SQLAlchemy."""
