"""What the bridge asks the service about nodes on the list."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from blocklist.flink.node_names import InventoryNames
from blocklist.model.errors import NotFoundError, UnavailableError
from blocklist.wire.listeners import KnownNodeBody
from tests.integration.process import wait_until


class Service:
    """Knows one node under several names; `error` is raised instead of any answer."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.error: Exception | None = None

    def look_up(self, node_id: str) -> KnownNodeBody:
        self.asked.append(node_id)
        if self.error is not None:
            raise self.error
        if node_id != "worker-7":
            raise NotFoundError("Nobody reports it.")
        return KnownNodeBody(
            id="worker-7",
            names=["node7.rack12"],
            addresses=["10.0.0.7"],
            labels={},
            conflicts={},
            clusters=[],
            cluster_conflict=False,
            reported_by=[],
            task_managers=[],
            running_tasks=None,
            unreported_tasks=0,
            blocked=False,
            blocks=[],
            last_seen=None,
        )


@pytest.fixture
def service() -> Service:
    return Service()


@pytest.fixture
def updated() -> threading.Event:
    return threading.Event()


@pytest.fixture
def names(service: Service, updated: threading.Event) -> Iterator[InventoryNames]:
    opened = InventoryNames(service.look_up, updated.set)
    yield opened
    opened.close()


def test_each_node_on_the_list_is_looked_up_once(
    service: Service, names: InventoryNames, updated: threading.Event
) -> None:
    assert names.names_of("worker-7") is None
    names.follow({"worker-7", "worker-8"})
    assert updated.wait(60)
    wait_until(lambda: names.names_of("worker-8") == frozenset())
    assert names.names_of("worker-7") == frozenset({"node7.rack12", "10.0.0.7"})
    names.follow({"worker-7", "worker-8"})
    names.follow({"worker-7"})
    wait_until(lambda: names.names_of("worker-8") is None)
    assert sorted(service.asked) == ["worker-7", "worker-8"]


def test_without_an_answer_it_is_not_known_and_asked_again(
    service: Service, names: InventoryNames, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("blocklist.flink.node_names._RETRY", 0.01)
    for error in (UnavailableError("no answer"), ValueError("garbage")):
        service.asked, service.error = [], error
        names.follow({"worker-7"})
        wait_until(lambda: len(service.asked) > 2)
        assert names.names_of("worker-7") is None
        names.follow(())
    service.error = None
    names.follow({"worker-7"})
    wait_until(lambda: names.names_of("worker-7") is not None)
