"""Request bodies, and the current state of the service."""

from __future__ import annotations

import time
from typing import Any, Final

import httpx
import httpx2

PERMANENT: Final = "9223372036854775807"
MARK: Final = "MARK_BLOCKED"
EVACUATE: Final = "MARK_BLOCKED_AND_EVACUATE_TASKS"


def block(**fields: object) -> dict[str, Any]:
    """A body that blocks a node; fields replace the defaults."""
    return {"action": MARK, "cause": "disk", **fields}


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def later(seconds: float = 3600) -> str:
    """An end in the future, as sent to the service."""
    return str(now_ms() + int(seconds * 1000))


def current_list(client: httpx.Client | httpx2.Client) -> tuple[int, dict[str, Any]]:
    """The current revision and list."""
    answer = client.get("/blocklist")
    return revision_of(answer), answer.json()


def revision_of(answer: httpx.Response | httpx2.Response) -> int:
    return int(answer.headers["blocklist-revision"])


def all_changes(client: httpx.Client | httpx2.Client, **params: str | int) -> list[dict[str, Any]]:
    """The whole change log, page by page."""
    found: list[dict[str, Any]] = []
    asked = {"limit": 1000, **params}
    while True:
        page = client.get("/blocklist/changes", params=asked).raise_for_status().json()
        found += page["changes"]
        if page["next"] is None:
            return found
        asked["after"] = page["next"]
