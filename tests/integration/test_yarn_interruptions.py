"""An evacuation that something interrupts, before each of its requests: the next manager loses nothing."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from itertools import count
from typing import Any

import pytest

from blocklist import PERMANENT, BlockAction, BlockedNode
from blocklist.managers.command import Stopping
from blocklist.managers.plan import DesiredState, ManagerError
from blocklist.managers.yarn import manager as yarn_manager
from blocklist.managers.yarn import resource_manager as resource_manager_module
from blocklist.managers.yarn.manager import LabelManager
from blocklist.managers.yarn.node_names import AddressNames
from blocklist.managers.yarn.plan import MarkLabels
from blocklist.managers.yarn.resource_manager import Access, ResourceManager
from tests.yarn.simulated import MEGABYTES, RejectionError, SimulatedYarn, serving


class InterruptedYarn(SimulatedYarn):
    """Has a node w1 with the label gpu. Calls `interrupt` before the request with some number, and all after it."""

    interrupt: Callable[[], None] | None = None

    def begin(self, number: int, only: str) -> None:
        """As it was at first. `only`: count the requests with this method and path, or its beginning."""
        super().__init__(["w1"], containers=2)
        self.labels = {"gpu": True, "ssd": True}
        self.host_labels = {"w1": "gpu"}
        self._left, self._only = number, only

    @property
    def interrupted(self) -> bool:
        return self._left <= 0

    def answer(self, method: str, path: str, body: Any) -> Any:
        if self.interrupt is not None and f"{method} {path}".startswith(self._only):
            self._left -= 1
            if self.interrupted:
                self.interrupt()
        return super().answer(method, path, body)

    def reject(self) -> None:
        """For YARN that is as if the manager was killed."""
        raise RejectionError("The manager was killed.")


def evacuate(url: str, yarn: InterruptedYarn, interrupt: Callable[[], None]) -> bool:
    """Whether it was interrupted."""
    yarn.interrupt = interrupt
    with suppress(ManagerError):
        apply_by_another(url, "w1")
    yarn.interrupt = None
    return yarn.interrupted


def apply_by_another(url: str, *node_ids: str) -> dict[str, str]:
    """By a manager that has just started."""
    stop = Stopping()
    action = BlockAction.MARK_BLOCKED_AND_EVACUATE_TASKS
    nodes = {it: BlockedNode(id=it, action=action, start=1, end=PERMANENT, cause="disk") for it in node_ids}
    resource_manager = ResourceManager([url], Access(), stop, 120)
    try:
        manager = LabelManager(resource_manager, MarkLabels(), stop, AddressNames(stop), min_nodes=0)
        plan = manager.plan(DesiredState(revision=1, nodes=nodes))
        found = plan.not_in_force | manager.apply(plan)
        return {**found.refused, **found.pending}
    finally:
        resource_manager.close()


@pytest.fixture
def yarn(monkeypatch: pytest.MonkeyPatch) -> InterruptedYarn:
    monkeypatch.setattr(yarn_manager, "_KILL_SECONDS", 0.0)
    monkeypatch.setattr(yarn_manager, "_POLL_SECONDS", 0.0)
    monkeypatch.setattr(resource_manager_module, "_POLL_SECONDS", 0.0)
    return InterruptedYarn(["w1"])


@pytest.mark.parametrize("still_blocked", [True, False])
def test_a_manager_that_is_killed_loses_nothing(yarn: InterruptedYarn, *, still_blocked: bool) -> None:
    with serving(yarn) as url:
        for number in count(1):
            yarn.begin(number, "POST")
            interrupted = evacuate(url, yarn, yarn.reject)
            assert apply_by_another(url, *(["w1"] if still_blocked else [])) == {}, number
            assert yarn.memory == {"w1": MEGABYTES}, number
            assert yarn.effective() == {"w1": "blocklist--gpu" if still_blocked else "gpu"}, number
            assert not (still_blocked and yarn.containers["w1"]), number
            if not interrupted:
                break


@pytest.mark.parametrize(("label", "megabytes"), [("ssd", MEGABYTES), ("gpu", 4096)])
def test_what_an_administrator_sets_is_kept(yarn: InterruptedYarn, label: str, megabytes: int) -> None:
    """Before the manager reads the nodes: YARN cannot compare and set."""

    def set_one() -> None:
        if label != "gpu":
            yarn.host_labels, yarn.node_labels = {"w1": label}, {}
        else:
            yarn.memory["w1"] = megabytes
        yarn.interrupt = None

    with serving(yarn) as url:
        for number in count(1):
            yarn.begin(number, "GET /nodes")
            if not evacuate(url, yarn, set_one):
                break
            assert apply_by_another(url, "w1") == {}, number
            assert (yarn.effective(), yarn.containers["w1"]) == ({"w1": f"blocklist--{label}"}, 0), number
            assert apply_by_another(url) == {}, number
            assert (yarn.effective(), yarn.memory) == ({"w1": label}, {"w1": megabytes}), number
