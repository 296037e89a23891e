"""The nodes of a YARN cluster with their racks, from the ResourceManager's REST API."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final

import httpx

from blocklist.client.transport import TRANSPORT_ERRORS, AbortableSocket
from blocklist.model.node_facts import NodeFacts, make_label_value

log = logging.getLogger("blocklist.managers")

_PATH: Final = "/ws/v1/cluster/nodes"
_TIMEOUT: Final = 10.0
"""Seconds for a whole response: the exclude file must not wait long for what is only a description."""
_MAX_BYTES: Final = 64 * 1024 * 1024
"""About 60,000 nodes."""


class YarnNodes:
    """`url` is that of the ResourceManager, such as http://rm:8088; a standby redirects to the active one.

    `timeout` is in seconds, for a whole response.
    """

    def __init__(self, url: str, timeout: float = _TIMEOUT) -> None:
        self._url = url.rstrip("/") + _PATH
        self._timeout = timeout
        self._last: Sequence[NodeFacts] | None = None
        self._failed = False

    def read(self) -> Sequence[NodeFacts] | None:
        """All nodes, whatever their state; those that were read last while they cannot be read, None before."""
        try:
            self._last = parse_nodes(json.loads(self._get()))
            self._failed = False
        except (*TRANSPORT_ERRORS, ValueError, RecursionError) as error:
            if not self._failed:
                log.warning(
                    "Cannot read the nodes from %s (%s); the nodes that were read before stay.", self._url, error
                )
            self._failed = True
        return self._last

    def _get(self) -> bytes:
        with (
            _aborted_after(self._timeout) as connection,
            httpx.Client(timeout=self._timeout, follow_redirects=True) as client,
            client.stream("GET", self._url, extensions={"trace": connection.trace}) as response,
        ):
            body = bytearray()
            for part in response.raise_for_status().iter_bytes():
                body += part
                if len(body) > _MAX_BYTES:
                    raise ValueError(f"the response is larger than {_MAX_BYTES >> 20} MiB")
            return bytes(body)


@contextmanager
def _aborted_after(seconds: float) -> Iterator[AbortableSocket]:
    """A connection that ends after `seconds` in all with TimeoutError; httpx limits only the time of each read."""
    connection = AbortableSocket()
    timer = threading.Timer(seconds, connection.abort)
    timer.start()
    try:
        yield connection
    except TRANSPORT_ERRORS as error:
        if connection.aborted.is_set():
            raise TimeoutError(f"no complete response within {seconds:g} s") from error
        raise
    finally:
        timer.cancel()


def parse_nodes(body: object) -> list[NodeFacts]:
    """The nodes in the response, with the label `rack`. Raises ValueError for an unexpected one."""
    return [_node(fields) for fields in _entries(body)]


def _entries(body: object) -> Iterator[Mapping[str, object]]:
    if not isinstance(body, dict) or "nodes" not in body:
        raise ValueError("the response is not a list of nodes")
    # Without any node, `nodes` is null or empty.
    entries = (body["nodes"] or {}).get("node", []) if isinstance(body["nodes"] or {}, dict) else None
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise ValueError("the response is not a list of nodes")
    yield from entries


def _node(fields: Mapping[str, object]) -> NodeFacts:
    name, rack = fields.get("nodeHostName"), fields.get("rack")
    if not isinstance(name, str):
        raise ValueError("a node has no nodeHostName")
    labels = [("rack", make_label_value(rack))] if isinstance(rack, str) and make_label_value(rack) else []
    return NodeFacts(id=name, labels=labels)
