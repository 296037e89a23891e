"""Watches objects of the API server: for the tests, in place of the code under test."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import httpx

Json = dict[str, Any]


_POLL_SECONDS = 2.0


def watch(api: httpx.Client, path: str, stop: threading.Event) -> Iterator[tuple[str, Json]]:
    """All objects as ADDED, then each change with its kind, until `stop`; a broken watch lists again.

    An object may be seen twice, and a deletion during an outage is not seen.
    """
    while not stop.is_set():
        try:
            listed = api.get(path).raise_for_status().json()
            yield from (("ADDED", each) for each in listed["items"])
            version = listed["metadata"]["resourceVersion"]
            while not stop.is_set():
                for kind, changed in _changes(api, path, version):
                    version = changed["metadata"]["resourceVersion"]
                    yield kind, changed
        except (httpx.HTTPError, ValueError):
            stop.wait(0.5)


def _changes(api: httpx.Client, path: str, version: str) -> Iterator[tuple[str, Json]]:
    """The changes until there is none for a short time. Raises ValueError if the version is too old."""
    asked = {"watch": "1", "resourceVersion": version}
    with (
        suppress(httpx.ReadTimeout),
        api.stream("GET", path, params=asked, timeout=httpx.Timeout(10, read=_POLL_SECONDS)) as answer,
    ):
        for line in answer.raise_for_status().iter_lines():
            change = json.loads(line)
            if change["type"] == "ERROR":
                raise ValueError(change["object"])
            yield change["type"], change["object"]
