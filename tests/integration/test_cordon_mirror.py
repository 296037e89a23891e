"""CordonMirror with a real service: which cordoned nodes it claims, and what it leaves to others."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from blocklist import BlocklistClient
from blocklist.managers.kubernetes import cordon_mirror
from blocklist.managers.kubernetes.cordon_mirror import CordonMirror
from blocklist.managers.kubernetes.nodes import KubernetesNode, parse_node
from blocklist.managers.plan import NodeNames
from tests.integration.conftest import StartInProcess
from tests.integration.in_process import InProcessService, RunningClock
from tests.integration.listeners import RM, heartbeat, register
from tests.integration.process import wait_until


@pytest.fixture
def fresh(start_in_process: StartInProcess) -> InProcessService:
    """In this process, by the time of day."""
    return start_in_process(clock=RunningClock())


@pytest.fixture
def client(fresh: InProcessService) -> Iterator[BlocklistClient]:
    with BlocklistClient(fresh.url) as client:
        yield client


def node(name: str, version: int = 1, *, cordoned: bool = True, at: float = 0, address: str = "") -> KubernetesNode:
    """A node as the API server has it; `at` is when it was cordoned, in seconds from now."""
    time_of_cordon = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + at))
    written = {"manager": "kubectl", "time": time_of_cordon, "fieldsV1": {"f:spec": {"f:unschedulable": {}}}}
    body = {
        "metadata": {
            "name": name,
            "uid": f"uid-{name}",
            "resourceVersion": str(version),
            "managedFields": [written] if cordoned else [],
        },
        "spec": {"unschedulable": True} if cordoned else {},
        "status": {"addresses": [{"type": "InternalIP", "address": address}] if address else []},
    }
    return parse_node(body, "blocklist/blocked")


def reconcile(mirror: CordonMirror, *nodes: KubernetesNode, history: str | None = None) -> float | None:
    names = NodeNames()
    names.update(each.facts for each in nodes)
    return mirror.reconcile({each.name: each for each in nodes}, names.meant_by, history)


def claimed(client: BlocklistClient) -> list[str]:
    return [claim.node for claim in client.all_claims(owner="kubernetes")]


def test_what_a_limit_refuses_withholds_nothing_from_other_nodes(
    start_in_process: StartInProcess, caplog: pytest.LogCaptureFixture
) -> None:
    with BlocklistClient(start_in_process(clock=RunningClock(), max_blocked="2").url) as client:
        mirror = CordonMirror(client, "c")
        assert reconcile(mirror, node("n2"), node("n3")) is None
        refused = reconcile(mirror, node("n1", 2), node("n2"), node("n3", 2, cordoned=False), node("n4", 2))
        assert claimed(client) == ["n1", "n2"]
        assert refused is not None
        assert refused > 1
        caplog.clear()
        # It is logged once, and only what is true.
        assert reconcile(mirror, node("n1", 2), node("n2"), node("n4", 2)) is not None
        assert caplog.messages == []
        reconcile(mirror, node("n1", 2), node("n2", 3, cordoned=False), node("n4", 2))
        assert claimed(client) == ["n1"]
        assert reconcile(CordonMirror(client, "c"), node("n1", 2), node("n4", 2)) is None
        assert claimed(client) == ["n1", "n4"]


def test_a_node_that_was_unblocked_by_hand_stays_so_until_it_is_cordoned_again(client: BlocklistClient) -> None:
    first = CordonMirror(client, "c")
    reconcile(first, node("n1", at=-60), node("n2", at=-60), node("n3", at=-60))
    client.unblock("n1")
    client.unblock("n3")
    for mirror in (first, CordonMirror(client, "c"), CordonMirror(client, "c")):
        assert reconcile(mirror, node("n1", at=-60), node("n2", at=-60), node("n3", at=60)) is None
    # The last one has been cordoned again since, which a new manager knows from the time.
    assert claimed(client) == ["n2", "n3"]
    reconcile(first, node("n1", 2, at=-50), node("n2", at=-60), node("n3", at=60))
    assert claimed(client) == ["n1", "n2", "n3"], "a manager that has seen it needs no clock"


def test_a_claim_under_another_name_of_the_node_is_its_own(fresh: InProcessService, client: BlocklistClient) -> None:
    with fresh.client() as http:
        register(http, "kubernetes", role=RM)
        heartbeat(http, "kubernetes", nodes=[{"id": "n1", "addresses": ["10.0.0.7"]}])
    wait_until(lambda: len(client.known_nodes().nodes) == 1)
    client.block("10.0.0.7", "Disk")
    for _ in range(2):
        assert reconcile(CordonMirror(client, "c"), node("n1", address="10.0.0.7")) is None
        assert claimed(client) == ["10.0.0.7"]
    reconcile(CordonMirror(client, "c"), node("n1", 2, cordoned=False, address="10.0.0.7"))
    assert claimed(client) == []
    assert list(client.snapshot().nodes) == ["10.0.0.7"]


def test_what_another_process_did_meanwhile_is_found(client: BlocklistClient, monkeypatch: pytest.MonkeyPatch) -> None:
    mirror = CordonMirror(client, "c")
    reconcile(mirror, node("n1"), node("n2", cordoned=False))
    client.put_claim("n2", "kubernetes", "Cordoned in c by kubectl")  # As a manager that was suspended would.
    reconcile(mirror, node("n1"), node("n2", cordoned=False))
    monkeypatch.setattr(cordon_mirror, "READ_SECONDS", -1)
    reconcile(mirror, node("n1"), node("n2", cordoned=False))
    assert claimed(client) == ["n1"]


def test_after_the_service_has_lost_changes_claims_are_made_again(client: BlocklistClient) -> None:
    mirror = CordonMirror(client, "c")
    reconcile(mirror, node("n1"), history="1")
    client.remove_claim("n1", "kubernetes")
    reconcile(mirror, node("n1"), history="1")
    assert claimed(client) == []
    reconcile(mirror, node("n1"), history="2")
    assert claimed(client) == ["n1"]


def test_a_manager_that_may_not_act_changes_nothing_and_a_slow_one_goes_on_later(client: BlocklistClient) -> None:
    waiting = CordonMirror(client, "c", is_active=lambda: False)
    assert reconcile(waiting, node("n1")) is not None
    slow = CordonMirror(client, "c", seconds=0)
    assert reconcile(slow, node("n1")) == 0
    assert claimed(client) == []
