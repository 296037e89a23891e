"""How many tasks run on a node, as far as their listeners report it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self


@dataclass(frozen=True, slots=True)
class TaskCount:
    """The sum over the TaskManagers whose tasks are reported, and the numbers of TaskManagers that are and are not."""

    known: int
    reported: int
    unreported: int

    @classmethod
    def of(cls, running_tasks: Iterable[int | None]) -> Self:
        """The sum of one number for each TaskManager; None if it is not reported."""
        numbers = list(running_tasks)
        known = [number for number in numbers if number is not None]
        return cls(sum(known), len(known), len(numbers) - len(known))

    @property
    def may_run(self) -> bool:
        """Whether a task runs, or may run where none is reported."""
        return bool(self.known or self.unreported)

    def text(self) -> str:
        """`1 running task`, `3 running tasks, others unknown` or `an unknown number of running tasks`."""
        if self.unreported and not self.known:
            return "an unknown number of running tasks"
        tasks = f"{self.known:,} running task{'' if self.known == 1 else 's'}"
        return f"{tasks}, others unknown" if self.unreported else tasks
