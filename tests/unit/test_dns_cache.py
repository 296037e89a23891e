"""Addresses of names are asked for aside, and whatever the name server does holds nobody up."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from blocklist.spark.dns_cache import DnsCache, resolve_addresses


class NameServer:
    """Knows some names; may be told to take its time."""

    def __init__(self) -> None:
        self.names = {"n1": frozenset({"10.0.0.1"})}
        self.asked: list[str] = []
        self.may_answer = threading.Event()
        self.may_answer.set()

    def __call__(self, name: str) -> frozenset[str]:
        self.asked.append(name)
        assert self.may_answer.wait(10)
        return self.names.get(name, frozenset())


@pytest.fixture
def server() -> NameServer:
    return NameServer()


@pytest.fixture
def told() -> threading.Semaphore:
    return threading.Semaphore(0)


@pytest.fixture
def addresses(server: NameServer, told: threading.Semaphore) -> Iterator[DnsCache]:
    addresses = DnsCache(told.release, server)
    yield addresses
    server.may_answer.set()
    addresses.close()


def test_what_is_wanted_becomes_known(addresses: DnsCache, told: threading.Semaphore) -> None:
    addresses.set_names(["N1", "unknown", "10.0.0.9"])
    assert told.acquire(timeout=10)
    assert addresses.addresses == {"n1": {"10.0.0.1"}}


def test_each_name_is_asked_for_once_and_addresses_never(
    addresses: DnsCache, server: NameServer, told: threading.Semaphore
) -> None:
    addresses.set_names(["n1", "unknown", "10.0.0.9"])
    assert told.acquire(timeout=10)
    server.names["n2"] = frozenset({"10.0.0.2"})
    addresses.set_names(["n1", "unknown", "n2"])
    assert told.acquire(timeout=10)
    assert sorted(server.asked) == ["n1", "n2", "unknown"]


def test_wanting_waits_for_no_answer(addresses: DnsCache, server: NameServer, told: threading.Semaphore) -> None:
    server.may_answer.clear()
    addresses.set_names(["n1"])
    assert addresses.addresses == {}
    server.may_answer.set()
    assert told.acquire(timeout=10)
    assert addresses.addresses == {"n1": {"10.0.0.1"}}


def test_what_is_wanted_no_more_is_forgotten(
    addresses: DnsCache, server: NameServer, told: threading.Semaphore
) -> None:
    server.names["n2"] = frozenset({"10.0.0.2"})
    addresses.set_names(["n1"])
    assert told.acquire(timeout=10)
    addresses.set_names(["n2"])
    assert told.acquire(timeout=10)
    assert addresses.addresses == {"n2": {"10.0.0.2"}}


def test_a_name_that_nobody_can_resolve_has_no_addresses() -> None:
    assert resolve_addresses("no-such-host.invalid") == frozenset()
    assert resolve_addresses("a." * 200) == frozenset()
    assert "127.0.0.1" in resolve_addresses("localhost")
