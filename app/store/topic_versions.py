"""The number that each transaction on a topic has, so that a replica can ask for what is new."""

from __future__ import annotations

from typing import Any

from sqlalchemy import ScalarSelect, select, update
from sqlalchemy.engine import Connection

from app.store.tables import versions


def current_version() -> ScalarSelect[Any]:
    """That of the last one; in a transaction on listeners its own."""
    return select(versions.c.version).where(versions.c.topic == "listeners").scalar_subquery()


def bump(connection: Connection, topic: str) -> None:
    """One more for a topic; whoever else writes on it waits here until this transaction ends."""
    connection.execute(update(versions).where(versions.c.topic == topic).values(version=versions.c.version + 1))
