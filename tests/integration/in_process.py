"""The service in the test's process, with a manual clock."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

from fastapi.testclient import TestClient

from app.main import create_app
from app.settings import Settings


class ManualClock:
    """Unix milliseconds that the test advances."""

    def __init__(self, now: int = 1_000_000) -> None:
        self.now = now

    def __call__(self) -> int:
        return self.now


@contextmanager
def running_service(database_url: str, clock: ManualClock) -> Iterator[TestClient]:
    """A client of the service on a migrated database; the service stops on leaving."""
    settings = Settings(database_url=database_url, database_timeout=timedelta(seconds=30))
    with TestClient(create_app(settings, clock=clock), base_url="http://localhost") as client:
        yield client
