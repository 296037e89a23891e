"""What the bridge asks the service about nodes on the list."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from blocklist.client.names import InventoryNames
from blocklist.model.errors import NotFoundError, UnavailableError
from blocklist.wire.listeners import KnownNodeBody, NodeReporterBody
from tests.integration.process import wait_until


class Service:
    """Knows one node under several names; `error` is raised instead of any answer."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.error: Exception | None = None
        self.names = ["node7.rack12"]
        self.conflicts: dict[str, list[str]] = {}
        self.managers = ["yarn"]

    def look_up(self, node_id: str) -> KnownNodeBody:
        self.asked.append(node_id)
        if self.error is not None:
            raise self.error
        if node_id != "worker-7":
            raise NotFoundError("Nobody reports it.")
        return KnownNodeBody(
            id="worker-7",
            names=self.names,
            addresses=["10.0.0.7"],
            labels={},
            conflicts=self.conflicts,
            clusters=[],
            cluster_conflict=False,
            reported_by=[NodeReporterBody(id=it, kind="RESOURCE_MANAGER", last_seen=None) for it in self.managers],
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
    monkeypatch.setattr("blocklist.client.names._RETRY", 0.01)
    for error in (UnavailableError("no answer"), ValueError("garbage")):
        service.asked, service.error = [], error
        names.follow({"worker-7"})
        wait_until(lambda: len(service.asked) > 2)
        assert names.names_of("worker-7") is None
        names.follow(())
    service.error = None
    names.follow({"worker-7"})
    wait_until(lambda: names.names_of("worker-7") is not None)


def test_what_other_nodes_have_as_well_is_no_name_of_it(service: Service, names: InventoryNames) -> None:
    service.conflicts = {"10.0.0.7": ["worker-8"]}
    names.follow({"worker-7"})
    names.wait(60)
    assert names.known() == {"worker-7": {"node7.rack12"}}


@pytest.mark.parametrize("restarting", ["a manager", "the service", "the service, and a manager reports first"])
def test_names_stay_while_a_manager_or_the_service_restarts_and_are_corrected_at_once(
    service: Service, names: InventoryNames, restarting: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("blocklist.client.names.REFRESH", 0.01)
    service.managers = ["kubernetes", "yarn"]
    names.follow({"worker-7"})
    names.wait(60)
    before = names.names_of("worker-7")
    assert before == frozenset({"node7.rack12", "10.0.0.7"})

    service.names, service.managers = ["u7"], [] if restarting == "a manager" else ["yarn"]
    if restarting == "the service":
        service.error = NotFoundError("Nobody reports it.")
    asked = len(service.asked)
    wait_until(lambda: len(service.asked) > asked + 2)
    assert before <= (names.names_of("worker-7") or set())

    service.error, service.managers = None, ["kubernetes", "yarn"]
    wait_until(lambda: names.names_of("worker-7") == frozenset({"u7", "10.0.0.7"}))

    service.managers = []
    monkeypatch.setattr("blocklist.client.names.KEPT", 0.0)
    service.names = []
    wait_until(lambda: names.names_of("worker-7") == frozenset({"10.0.0.7"}))
