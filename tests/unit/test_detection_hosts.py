"""Which hosts count for the share that may be blocked: any log may name any host."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from blocklist.detection.session import ConfirmedHosts


class FakeClient:
    """An inventory of twenty nodes, each with an address."""

    def known_nodes(self) -> Any:
        nodes = [
            SimpleNamespace(id=f"n{number}.example.com", names=(f"slurm-{number}",), addresses=(f"2001:db8::{number}",))
            for number in range(20)
        ]
        return SimpleNamespace(nodes=nodes)


def confirmed(*hosts: str, owners: Mapping[str, int] | None = None) -> int:
    client: Any = FakeClient()
    return ConfirmedHosts(client, lambda: owners or {})(hosts)


def test_invented_hosts_do_not_count() -> None:
    real = [f"n{number}.example.com" for number in range(20)]
    assert confirmed(*real, *(f"invented-{number}" for number in range(400))) == 20


@pytest.mark.parametrize(
    "names",
    [
        ("n1", "N1", "n1.example.com", "N1.EXAMPLE.COM."),
        ("n1", "slurm-1", "2001:db8::1", "[2001:DB8:0::1]"),
    ],
)
def test_a_machine_counts_once_under_all_its_names(names: tuple[str, ...]) -> None:
    assert confirmed(*names) == 1


def test_a_host_that_the_inventory_lacks_counts_if_logs_of_two_owners_name_it() -> None:
    assert confirmed("n1", "x", "y", "z", owners={"x": 2, "y": 1}) == 2
    assert confirmed("x", "X", "x.example.org", owners={"x": 2, "X": 2, "x.example.org": 2}) == 1
