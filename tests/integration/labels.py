"""A manager that reports nodes with labels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import httpx

from tests.integration.listeners import RM, heartbeat, register
from tests.integration.process import wait_until

RACKS: Final = {
    "n1.example.com": {"rack": "r1", "pool": "gpu"},
    "n2": {"rack": "r1"},
    "n3": {"rack": "r2", "pool": "cpu"},
    "n4": {},
}


def report_labels(
    client: httpx.Client,
    nodes: Mapping[str, Mapping[str, str]] = RACKS,
    manager: str = "racks",
    lease: int = 60,
) -> None:
    """A manager registers and reports these nodes with their labels."""
    _report(client, manager, lease, [{"id": node, "labels": labels} for node, labels in nodes.items()])


def report_addresses(client: httpx.Client, addresses: Mapping[str, str], lease: int = 600) -> None:
    """A manager registers and reports nodes with one address each."""
    _report(client, "addresses", lease, [{"id": node, "addresses": [it]} for node, it in addresses.items()])


def _report(client: httpx.Client, manager: str, lease: int, nodes: Sequence[Mapping[str, Any]]) -> None:
    register(client, manager, role=RM, leaseSeconds=lease)
    heartbeat(client, manager, nodes=nodes)
    # A long report is applied in slices.
    wait_until(lambda: client.get("/nodes", params={"limit": 1}).json()["total"] >= len(nodes))
