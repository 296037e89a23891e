"""The number that each transaction on listeners has, so that a replica can ask for what is new."""

from __future__ import annotations

from typing import Any

from sqlalchemy import ScalarSelect, select

from app.store.tables import versions


def present_version() -> ScalarSelect[Any]:
    """That of the last one; in a transaction on listeners its own."""
    return select(versions.c.version).where(versions.c.topic == "listeners").scalar_subquery()
