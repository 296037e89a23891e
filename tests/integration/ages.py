"""The Age header of reads, which says that the database is unavailable and for how long."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import httpx

READS_FROM_MEMORY: Final = {
    "/blocklist": 200,
    "/blocklist?details=true": 200,
    "/blocklist/table": 200,
    "/blocklist/nodes/a": 200,
    "/blocklist/nodes/free": 404,
    "/listeners": 200,
    "/listeners/jm": 200,
    "/taskmanagers/tm": 200,
    "/taskmanagers/none": 404,
    "/evidence": 200,
    "/whoami": 200,
}
"""Their status, where node `a` is blocked and listener `jm` has reported the TaskManager `tm`."""


def assert_ages(client: httpx.Client, reads: Mapping[str, int], *, stale: bool) -> None:
    """Check the status of each read, and that it has an Age header exactly if it is `stale`."""
    for method in ("GET", "HEAD"):
        for path, status in reads.items():
            answer = client.request(method, path)
            assert (answer.status_code, "age" in answer.headers) == (status, stale), (method, path)
            assert int(answer.headers.get("age", 0)) >= 0
