"""Reading `GET /blocklist/watch` as a client does."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import count, islice
from typing import Any, Final

import httpx
from httpx_sse import EventSource, ServerSentEvent

from tests.integration.process import NO_TLS

_ends: Final = count(1)


@contextmanager
def watching(
    client: httpx.Client, *, since: str | int | None = None, last_event_id: str | None = None
) -> Iterator[Iterator[ServerSentEvent]]:
    """The events of a watch without its signs of life; the stream is closed on leaving."""
    params = {} if since is None else {"since": str(since)}
    headers = {} if last_event_id is None else {"Last-Event-ID": last_event_id}
    with client.stream("GET", "/blocklist/watch", params=params, headers=headers) as answer:
        assert answer.status_code == 200, answer.read()
        yield (event for event in EventSource(answer).iter_sse() if event.data and event.event != "ping")


def next_events(events: Iterator[ServerSentEvent], number: int) -> list[ServerSentEvent]:
    """The next `number` events; fails with a timeout without them."""
    taken = list(islice(events, number))
    assert len(taken) == number, f"the stream ended after {len(taken)} of {number} events"
    return taken


def revisions(events: list[ServerSentEvent]) -> list[int]:
    return [event.json()["revision"] for event in events]


def changes(events: list[ServerSentEvent]) -> list[Any]:
    """The data of events that are changes."""
    assert all(event.event in {"blocked", "merged", "narrowed", "unblocked", "expired"} for event in events)
    return [event.json() for event in events]


@dataclass
class WatchFollower:
    """A watch that continues at the next URL whenever a stream ends; `ends` has the reason of each end."""

    revision: int
    history: str
    changes: list[Any] = field(default_factory=list)
    ends: list[str] = field(default_factory=list)

    def run(self, urls: Sequence[str], stop: threading.Event) -> None:
        """Watch until `stop` is set; a snapshot fails the test, as it would hide missing changes."""
        for turn in count():
            if stop.is_set():
                return
            with httpx.Client(base_url=urls[turn % len(urls)], timeout=30, trust_env=False, verify=NO_TLS) as client:
                self.ends.append(self._follow(client, stop))
            stop.wait(0.05)

    def _follow(self, client: httpx.Client, stop: threading.Event) -> str:
        try:
            with watching(client, last_event_id=f"{self.revision}-{self.history}") as events:
                for event in events:
                    if event.event == "bye":
                        return "bye"
                    self._take(event)
                    if stop.is_set():
                        return "stopped"
        except httpx.TransportError as error:
            return repr(error)
        return "closed"

    def _take(self, event: ServerSentEvent) -> None:
        assert event.event != "snapshot", f"after {self.revision}: {event.id}"
        self.changes += changes([event])
        (self.revision,) = revisions([event])


@contextmanager
def following(urls: Sequence[str], since: int) -> Iterator[WatchFollower]:
    """Run a follower in a thread; a change at the end wakes it, so that it sees that it is over."""
    history = httpx.get(f"{urls[0]}/blocklist", trust_env=False, verify=NO_TLS).headers["blocklist-history"]
    follower, stop = WatchFollower(since, history), threading.Event()
    thread = threading.Thread(target=follower.run, args=(urls, stop))
    thread.start()
    try:
        yield follower
    finally:
        stop.set()
        with suppress(httpx.TransportError):  # It may be down if something else has failed.
            # Each follower makes a change of its own: a node that is blocked already would be refused.
            httpx.put(f"{urls[0]}/blocklist/nodes/end-{next(_ends)}", json={"action": "MARK_BLOCKED", "cause": "end"})
        thread.join(60)
        assert not thread.is_alive(), "it waits for a change"
