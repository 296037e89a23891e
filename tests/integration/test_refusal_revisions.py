"""The revision of a refusal is one at which it was right, however many changes shared its transaction."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from itertools import accumulate, cycle, islice
from typing import Any, Final

import pytest

from tests.integration.bodies import all_changes, block
from tests.integration.conftest import Start, StartReplicas
from tests.integration.databases import ON_BOTH
from tests.integration.process import ServiceProcess
from tests.integration.raw_http import RawResponse, connection_to, read_response, request

CONNECTIONS: Final = 45
ROUNDS: Final = 12
NODES: Final = 4
_BODY: Final = json.dumps(block()).encode()
_KINDS: Final = (("PUT", "/blocklist/nodes/{}"), ("PUT", "/blocklist/node/{}"), ("DELETE", "/blocklist/nodes/{}"))
"""On the fast path, on the ordinary route, and an unblock."""

Refusal = tuple[str, str, int]
"""The method, the node and the revision of a refusal."""


def contended_requests() -> Iterator[tuple[str, str, bytes]]:
    """Method, node and request, such that the kinds and the nodes vary independently."""
    kinds = cycle(_KINDS)
    for number in cycle(range(NODES)):
        method, path = next(kinds)
        node = f"n{number}"
        yield method, node, request(path.format(node), method=method, body=_BODY if method == "PUT" else b"")


def refusals(services: Sequence[ServiceProcess]) -> list[Refusal]:
    """Send requests on many connections at once, several times; return what was refused."""
    found: list[Refusal] = []
    with ExitStack() as stack:
        connections = [
            stack.enter_context(connection_to(services[number % len(services)].port)) for number in range(CONNECTIONS)
        ]
        streams = [stack.enter_context(connection.makefile("rb")) for connection in connections]
        sent = contended_requests()
        for _ in range(ROUNDS):
            these = list(islice(sent, CONNECTIONS))
            for connection, (_, _, payload) in zip(connections, these, strict=True):
                connection.sendall(payload)
            for stream, (method, node, _) in zip(streams, these, strict=True):
                response = read_response(stream, method)
                if response.status not in (200, 201):
                    found.append((method, node, refused_at(response, method)))
    return found


def refused_at(response: RawResponse, method: str) -> int:
    assert response.status == (409 if method == "PUT" else 404), response.body
    return int(response.header("blocklist-revision") or "")


def blocked_by_revision(log: Sequence[dict[str, Any]]) -> list[frozenset[str]]:
    """The blocked nodes at each revision from 0."""

    def apply(blocked: frozenset[str], change: dict[str, Any]) -> frozenset[str]:
        node = {change["node"]["id"]}
        return blocked | node if change["type"] == "blocked" else blocked - node

    none: frozenset[str] = frozenset()
    return list(accumulate(log, apply, initial=none))


def assert_right(found: Sequence[Refusal], log: Sequence[dict[str, Any]]) -> None:
    blocked = blocked_by_revision(log)
    wrong = [refusal for refusal in found if (refusal[1] in blocked[refusal[2]]) != (refusal[0] == "PUT")]
    assert len(found) > ROUNDS * NODES
    assert wrong == [], f"{len(wrong)} of {len(found)} refusals name a revision at which they were wrong"


@ON_BOTH
def test_a_refusal_names_a_revision_at_which_it_was_right(start: Start) -> None:
    service = start()
    found = refusals([service])
    with service.client() as client:
        assert_right(found, all_changes(client))


@pytest.mark.databases("postgresql")
def test_a_refusal_by_one_of_several_replicas_names_a_revision_at_which_it_was_right(
    start_replicas: StartReplicas,
) -> None:
    replicas = start_replicas()
    found = refusals(replicas.processes)
    assert_right(found, all_changes(replicas.clients[0]))
