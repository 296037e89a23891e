"""Which worker of pytest-xdist runs which test: two workers are in heavy folders, the others fill the waiting.

A heavy folder starts clusters, JVMs or browsers, which its tests share: one worker runs all of it. The longest come
first. A worker takes its next folder when at most one other worker is in one; otherwise it takes light tests, one at a
time, or all tests of an `xdist_group`. When these are used up, more workers take heavy folders. So no worker waits for
another, and nothing has to be locked.
"""

from __future__ import annotations

from typing import Final

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadGroupScheduling
from xdist.workermanage import WorkerController

HEAVY: Final = (
    "kubernetes",
    "detection",
    "flink",
    "applications",
    "acceptance",
    "yarn",
    "browser",
    "docs",
    "release",
    "chaos",
    "conformance",
    "spark_agent",
    "generated_clients",
)
"""Folders in tests/, those that take longest first."""
AT_ONCE: Final = 2
"""Workers in heavy folders, while there are light tests for the others."""
AT_THE_END: Final = 4
"""Afterwards: a heavy folder waits often. Each may need 2 GB of memory."""


def heavy_folder(nodeid: str) -> str | None:
    """Return the heavy folder of a test; None for a light one."""
    match nodeid.partition("::")[0].split("/"):
        case ["tests", folder, _, *_] if folder in HEAVY:
            return folder
    return None


class HeavyScheduling(LoadGroupScheduling):
    """As `--dist loadgroup`, with a heavy folder as one group."""

    def _split_scope(self, nodeid: str) -> str:
        return heavy_folder(nodeid) or super()._split_scope(nodeid)

    def _assign_work_unit(self, node: WorkerController) -> None:
        """Assign the unit that this worker may take next; without one it ends after its present tests."""
        scope = self._next_scope(node)
        if scope is None:
            node.shutdown()
        else:
            self.workqueue.move_to_end(scope, last=False)
            super()._assign_work_unit(node)

    def mark_test_complete(self, node: WorkerController, item_index: int, duration: float = 0) -> None:
        """Xdist keeps what was completed, and counts it again after each test."""
        super().mark_test_complete(node, item_index, duration)
        units = self.assigned_work[node]
        self.assigned_work[node] = {scope: unit for scope, unit in units.items() if not all(unit.values())}

    def _reschedule(self, node: WorkerController) -> None:
        """Give a worker a second test: it begins one only when it knows the next, or that there is none."""
        super()._reschedule(node)
        if self._pending_of(self.assigned_work[node]) < 2:
            super()._reschedule(node)

    def remove_node(self, node: WorkerController) -> str | None:
        """Return the test during which a worker crashed. It counts as run: it would crash the next worker, too."""
        units = self.assigned_work.pop(node)
        left = [(unit, nodeid) for unit in units.values() for nodeid, completed in unit.items() if not completed]
        if not left:
            return None
        unit, crashed = left[0]
        unit[crashed] = True
        self.workqueue.update({scope: unit for scope, unit in units.items() if not all(unit.values())})
        for other in self.nodes:
            self._reschedule(other)
        return crashed

    def _next_scope(self, node: WorkerController) -> str | None:
        others = sum(self._in_heavy_folder(other) for other in self.nodes if other is not node)
        heavy = next((scope for scope in HEAVY if scope in self.workqueue), None)
        light = next((scope for scope in self.workqueue if scope not in HEAVY), None)
        return heavy if heavy and others < (AT_ONCE if light else AT_THE_END) else light

    def _in_heavy_folder(self, node: WorkerController) -> bool:
        return any(scope in HEAVY and not all(unit.values()) for scope, unit in self.assigned_work[node].items())


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> HeavyScheduling | None:
    """Take the place of `--dist loadgroup`."""
    return HeavyScheduling(config, log) if config.getoption("dist") == "loadgroup" else None
