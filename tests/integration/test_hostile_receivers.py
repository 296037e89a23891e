"""A slow, dead or hostile listener does not delay others, and costs limited memory."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import httpx
import pytest

from app.listeners.webhook_client import TIMEOUT_SECONDS
from tests.integration.in_process import InProcessService
from tests.integration.listeners import get_listener, put, wait_until_pushed
from tests.integration.process import free_port, wait_until
from tests.integration.receiver import (
    Receiver,
    Responder,
    drips,
    fails,
    floods,
    http,
    never_responds,
    receiving,
    responds,
)

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
CHUNK = b"10000\r\n" + b"x" * 65536 + b"\r\n"
HOSTILE: dict[str, Responder] = {
    "never answers": never_responds,
    "byte by byte": drips(http(204)),
    "a body byte by byte": drips(HEAD + b"Content-Length: 9999\r\n\r\n"),
    "a body without end": floods(HEAD + b'\r\n{"a": "', b"x" * 65536, 64),
    "chunks without end": floods(
        HEAD + b"Transfer-Encoding: chunked\r\n\r\n", b"10000\r\n" + b"x" * 65536 + b"\r\n", 64
    ),
    "a head without end": floods(b"HTTP/1.1 200 OK\r\n", b"X: " + b"x" * 8192 + b"\r\n", 64),
    "a status line without end": floods(b"HTTP/1.1 200 ", b"x" * 65536, 64),
    "interim answers without end": floods(b"", b"HTTP/1.1 102 Processing\r\n\r\n" * 1000, 64),
    "huge": floods(HEAD + b"Content-Length: 1000000000\r\n\r\n", b"x" * 65536, 64),
    "a zipped bomb": responds(http(200, b"\x1f\x8b" + b"\x00" * 1000, "Content-Encoding: gzip")),
    "500": fails(10**9),
    "to itself": responds(http(307, b"", "Location: /hook")),
}


@pytest.fixture
def hostile_receivers(listener_client: httpx.Client) -> Iterator[dict[str, Receiver]]:
    """Three receivers of each kind, and three addresses where nothing listens."""
    with ExitStack() as stack:
        hostile: dict[str, Receiver] = {}
        for kind, answer in HOSTILE.items():
            for number in range(3):
                receiver = stack.enter_context(receiving(answer))
                hostile[f"{kind.replace(' ', '-')}-{number}"] = receiver
        for listener, receiver in hostile.items():
            receiver.register(listener_client, listener, leaseSeconds=600)
        for number in range(3):
            Receiver(url=f"http://127.0.0.1:{free_port()}/").register(
                listener_client, f"dead-{number}", leaseSeconds=600
            )
        yield hostile
        for listener in hostile:
            listener_client.delete(f"/listeners/{listener}")


def test_other_listeners_are_not_delayed(
    listener_client: httpx.Client, receiver: Receiver, hostile_receivers: dict[str, Receiver]
) -> None:
    """Pushed one after the other, each hostile receiver would delay the next by seconds."""
    receiver.register(listener_client, "jm")
    for number in range(5):
        wait_until_pushed(listener_client, receiver, put(listener_client, f"n-{number}"))
    assert [push.ids[0] for push in receiver.applied] == [[f"n-{number}"] for number in range(5)]
    wait_until(lambda: all(it.requests for it in hostile_receivers.values()))
    wait_until_pushed(listener_client, receiver, put(listener_client, "last"))
    assert get_listener(listener_client, "dead-0")["lastError"]


@pytest.mark.parametrize("kind", [kind for kind in HOSTILE if "without end" in kind or kind == "huge"])
def test_an_endless_response_is_aborted(listener_client: httpx.Client, kind: str) -> None:
    """Includes what is in the buffers of the sockets."""
    with receiving(HOSTILE[kind]) as receiver:
        receiver.register(listener_client, "jm")
        put(listener_client, "a")
        receiver.wait(lambda it: len(it.requests) >= 2)
        assert receiver.abandoned < 16, "MiB"


@pytest.mark.parametrize("kind", ["never answers", "a body byte by byte"])
def test_a_push_that_times_out_is_retried(timed: InProcessService, kind: str) -> None:
    client = timed.client()
    with receiving(HOSTILE[kind]) as receiver:
        receiver.register(client, "jm", leaseSeconds=600)
        revision = put(client, "a")
        receiver.wait(lambda it: bool(it.requests))
        timed.clock.advance(TIMEOUT_SECONDS / 2)
        assert receiver.abandoned == 0
        timed.clock.advance(TIMEOUT_SECONDS / 2)
        receiver.wait(lambda it: it.abandoned >= 1)
        wait_until(lambda: get_listener(client, "jm")["lastError"] is not None)
        receiver.wait(lambda it: len(it.requests) >= 2, timed.until)
        assert get_listener(client, "jm")["ackedRevision"] < revision
