"""The Evictor: what it says of a node is from after it was asked, and it evicts only where it still may."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any, cast

import pytest

from blocklist.managers.kubernetes.api_server import ApiError, ApiServer, Json
from blocklist.managers.kubernetes.eviction import Evictor


class Pods:
    """Where the Evictor reads and evicts: `names` are the pods that run. A list waits for `gate`."""

    def __init__(self, *names: str) -> None:
        self.names = list(names)
        self.evicted: list[str] = []
        self.gate = threading.Event()
        self.gate.set()
        self.asked = threading.Semaphore(0)
        self.conflict = False

    def pages(self, _path: str, **_params: str) -> Iterator[Json]:
        names = list(self.names)
        self.asked.release()
        assert self.gate.wait(60)
        yield {"items": [{"metadata": {"namespace": "x", "name": name, "uid": name}} for name in names]}

    def create(self, _path: str, body: Json) -> Json:
        if self.conflict:
            raise ApiError("conflict", 409)
        self.evicted.append(body["metadata"]["name"])
        return {}


@pytest.fixture
def pods() -> Pods:
    return Pods()


def started(pods: Pods, changed: threading.Event, **options: Any) -> Evictor:
    evictor = Evictor(cast("ApiServer", pods), "", changed.set, **options)
    evictor.start()
    return evictor


def wait_for(changed: threading.Event) -> None:
    assert changed.wait(60)
    changed.clear()


def test_a_node_that_is_evacuated_again_is_not_known_to_be_empty(pods: Pods) -> None:
    changed = threading.Event()
    evictor = started(pods, changed)
    try:
        assert "being evicted" in evictor.evacuate({"n1"})["n1"].why
        wait_for(changed)
        assert evictor.evacuate({"n1"}) == {}
        evictor.evacuate(set())
        pods.names.append("late")
        assert "being evicted" in evictor.evacuate({"n1"})["n1"].why
        wait_for(changed)
        assert "x/late (it is ending)" in evictor.evacuate({"n1"})["n1"].why
    finally:
        evictor.close()


def test_nothing_is_evicted_from_a_node_that_was_freed_meanwhile(pods: Pods) -> None:
    pods.names.append("web")
    pods.gate.clear()
    evictor = started(pods, threading.Event())
    try:
        evictor.evacuate({"n1"})
        assert pods.asked.acquire(timeout=60)
        evictor.stop_others(set())
    finally:
        pods.gate.set()
        evictor.close()
    assert pods.evicted == []


def test_nothing_is_evicted_without_the_right_to_act(pods: Pods) -> None:
    pods.names.append("web")
    changed = threading.Event()
    evictor = started(pods, changed, may_act=lambda: False)
    try:
        evictor.evacuate({"n1"})
        wait_for(changed)
        assert "1 pod remains" in evictor.evacuate({"n1"})["n1"].why
    finally:
        evictor.close()
    assert pods.evicted == []


def test_a_pod_that_took_the_name_of_another_remains(pods: Pods) -> None:
    pods.names.append("web-0")
    pods.conflict = True
    changed = threading.Event()
    evictor = started(pods, changed)
    try:
        evictor.evacuate({"n1"})
        wait_for(changed)
        assert "another pod has its name" in evictor.evacuate({"n1"})["n1"].why
    finally:
        evictor.close()
