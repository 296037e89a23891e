"""Names are resolved in the background: a slow name server delays nobody."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from blocklist.spark.dns_cache import DnsCache, resolve_addresses


class NameServer:
    """Knows some names; answers only while `may_answer` is set."""

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
def changed() -> threading.Semaphore:
    return threading.Semaphore(0)


@pytest.fixture
def cache(server: NameServer, changed: threading.Semaphore) -> Iterator[DnsCache]:
    cache = DnsCache(changed.release, server)
    yield cache
    server.may_answer.set()
    cache.close()


def test_names_are_resolved(cache: DnsCache, changed: threading.Semaphore) -> None:
    cache.set_names(["N1", "unknown", "10.0.0.9"])
    assert changed.acquire(timeout=10)
    assert cache.addresses == {"n1": {"10.0.0.1"}}


def test_each_name_is_resolved_once_and_addresses_never(
    cache: DnsCache, server: NameServer, changed: threading.Semaphore
) -> None:
    cache.set_names(["n1", "unknown", "10.0.0.9"])
    assert changed.acquire(timeout=10)
    server.names["n2"] = frozenset({"10.0.0.2"})
    cache.set_names(["n1", "unknown", "n2"])
    assert changed.acquire(timeout=10)
    assert sorted(server.asked) == ["n1", "n2", "unknown"]


def test_set_names_does_not_wait_for_the_name_server(
    cache: DnsCache, server: NameServer, changed: threading.Semaphore
) -> None:
    server.may_answer.clear()
    cache.set_names(["n1"])
    assert cache.addresses == {}
    server.may_answer.set()
    assert changed.acquire(timeout=10)
    assert cache.addresses == {"n1": {"10.0.0.1"}}


def test_removed_names_are_dropped(cache: DnsCache, server: NameServer, changed: threading.Semaphore) -> None:
    server.names["n2"] = frozenset({"10.0.0.2"})
    cache.set_names(["n1"])
    assert changed.acquire(timeout=10)
    cache.set_names(["n2"])
    assert changed.acquire(timeout=10)
    assert cache.addresses == {"n2": {"10.0.0.2"}}


def test_a_name_that_cannot_be_resolved_has_no_addresses() -> None:
    assert resolve_addresses("no-such-host.invalid") == frozenset()
    assert resolve_addresses("a." * 200) == frozenset()
    assert "127.0.0.1" in resolve_addresses("localhost")
