"""Reading `GET /blocklist/watch` as a client does."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from typing import Any

import httpx
from httpx_sse import EventSource, ServerSentEvent


@contextmanager
def watching(
    client: httpx.Client, *, since: str | int | None = None, last_event_id: str | None = None
) -> Iterator[Iterator[ServerSentEvent]]:
    """The events of a watch, as they come; the stream is closed on leaving."""
    params = {} if since is None else {"since": str(since)}
    headers = {} if last_event_id is None else {"Last-Event-ID": last_event_id}
    with client.stream("GET", "/blocklist/watch", params=params, headers=headers) as answer:
        assert answer.status_code == 200, answer.read()
        yield EventSource(answer).iter_sse()


def take(events: Iterator[ServerSentEvent], number: int) -> list[ServerSentEvent]:
    """The next events; fails by timeout when they do not come."""
    taken = list(islice(events, number))
    assert len(taken) == number, f"the stream ended after {len(taken)} of {number} events"
    return taken


def revisions(events: list[ServerSentEvent]) -> list[int]:
    return [event.json()["revision"] for event in events]


def changes(events: list[ServerSentEvent]) -> list[Any]:
    """The data of events that are changes."""
    assert all(event.event in {"blocked", "merged", "unblocked", "expired"} for event in events)
    return [event.json() for event in events]
