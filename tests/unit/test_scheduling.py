"""Which worker gets which tests, with workers that only note what they are sent."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from xdist.workermanage import WorkerController

from tests.scheduling import AT_ONCE, AT_THE_END, HEAVY, HeavyScheduling, heavy_folder


class FakeWorker:
    """A worker that runs the next test when `run` is called. As xdist's, it keeps the last one that it knows of."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.gateway = SimpleNamespace(id=name)
        self.queue: list[int] = []
        self.shutting_down = False

    def send_runtest_some(self, indices: list[int]) -> None:
        self.queue += indices

    def shutdown(self) -> None:
        self.shutting_down = True

    @property
    def can_run(self) -> bool:
        return len(self.queue) > (not self.shutting_down)


class Run:
    """A run of so many tests in each of these files."""

    def __init__(self, files: dict[str, int], workers: int = 4) -> None:
        self.tests = [
            f"tests/{file.replace('@mine', '')}::test_{number}{'@mine' * file.endswith('@mine')}"
            for file, count in files.items()
            for number in range(count)
        ]
        self.scheduling = HeavyScheduling(cast("Any", _Config(workers)))
        self.workers: list[FakeWorker] = []
        self.ran: dict[str, list[str]] = defaultdict(list)
        for number in range(workers):
            self.add(f"gw{number}")
        self.scheduling.schedule()

    def add(self, name: str) -> None:
        worker = FakeWorker(name)
        self.workers.append(worker)
        self.scheduling.add_node(_node(worker))
        self.scheduling.add_node_collection(_node(worker), self.tests)

    def step(self, worker: FakeWorker) -> None:
        """Run one test."""
        index = worker.queue.pop(0)
        self.ran[worker.name].append(self.tests[index])
        self.scheduling.mark_test_complete(_node(worker), index)

    def in_heavy(self) -> list[str]:
        """The heavy folders from which workers run a test now."""
        first = [heavy_folder(self.tests[worker.queue[0]]) for worker in self.workers if worker.can_run]
        return [folder for folder in first if folder]

    def were_in_heavy(self) -> list[bool]:
        """Whether each worker has run tests of heavy folders."""
        return [any(map(heavy_folder, self.ran[worker.name])) for worker in self.workers]

    def to_the_end(self) -> None:
        while ready := [worker for worker in self.workers if worker.can_run]:
            for worker in ready:
                light = any(scope not in HEAVY for scope in self.scheduling.workqueue)
                assert len(self.in_heavy()) <= (AT_ONCE if light else AT_THE_END)
                self.step(worker)
        assert self.scheduling.tests_finished


class _Config:
    """As much of pytest's as xdist asks."""

    def __init__(self, workers: int) -> None:
        self.option = SimpleNamespace(tx=[f"{workers}*popen"], loadscopereorder=True)

    def getvalue(self, name: str) -> object:
        return getattr(self.option, name)


def _node(worker: FakeWorker) -> WorkerController:
    return cast("WorkerController", worker)


LIGHT = {"unit/test_a.py": 40, "integration/test_b.py": 40}


def test_each_heavy_folder_has_tests() -> None:
    tests = Path(__file__).parents[1]
    assert all(list((tests / folder).rglob("test_*.py")) for folder in HEAVY)


def test_two_workers_are_in_heavy_folders_and_the_others_never() -> None:
    run = Run(LIGHT | {f"{folder}/test_a.py": 5 for folder in HEAVY})
    assert sorted(run.in_heavy()) == sorted(HEAVY[:AT_ONCE]), "the longest first"
    run.to_the_end()
    assert sorted(test for tests in run.ran.values() for test in tests) == sorted(run.tests)
    assert run.were_in_heavy() == [True, True, False, False]


def test_a_heavy_folder_stays_on_one_worker_whatever_its_files_and_groups() -> None:
    run = Run(LIGHT | {"yarn/test_a.py": 9, "yarn/test_b.py@mine": 9, "yarn/more/test_c.py": 9, "flink/test_a.py": 9})
    run.to_the_end()
    for folder in ("yarn", "flink"):
        assert len([name for name, tests in run.ran.items() if folder in map(heavy_folder, tests)]) == 1


def test_after_the_heavy_folders_all_workers_run_light_tests() -> None:
    run = Run(LIGHT | {"yarn/test_a.py": 1, "flink/test_a.py": 1})
    run.to_the_end()
    assert [len(run.ran[worker.name]) > 10 for worker in run.workers] == [True] * 4


@pytest.mark.parametrize("light", [0, 8])
def test_without_light_tests_four_workers_run_all(light: int) -> None:
    run = Run({"unit/test_a.py": light} | {f"{folder}/test_a.py": 3 for folder in HEAVY})
    run.to_the_end()
    assert sum(map(len, run.ran.values())) == light + 3 * len(HEAVY)
    assert sum(run.were_in_heavy()) == AT_THE_END
    assert [worker.shutting_down for worker in run.workers] == [True] * 4


def test_fewer_workers_run_all() -> None:
    for workers in (1, 2):
        run = Run(LIGHT | {f"{folder}/test_a.py": 3 for folder in HEAVY}, workers)
        run.to_the_end()
        assert sum(map(len, run.ran.values())) == len(run.tests)


def test_the_test_of_a_crash_is_not_run_again_and_the_rest_of_its_folder_is_run_elsewhere() -> None:
    run = Run(LIGHT | {f"{folder}/test_a.py": 5 for folder in HEAVY[:3]})
    for worker in run.workers * 3:
        run.step(worker)
    crashed, *_ = run.workers
    expected = run.tests[crashed.queue[0]]
    run.workers.remove(crashed)
    assert run.scheduling.remove_node(_node(crashed)) == expected
    run.add("gw4")
    run.scheduling.schedule()
    run.to_the_end()
    assert sorted([expected, *(test for tests in run.ran.values() for test in tests)]) == sorted(run.tests)


def test_a_crash_at_the_end_of_the_run() -> None:
    run = Run({"yarn/test_a.py": 1}, 1)
    (worker,) = run.workers
    assert run.scheduling.remove_node(_node(worker)) == "tests/yarn/test_a.py::test_0"
    assert run.scheduling.tests_finished
