"""Byte ranges of event logs, packed into tasks of about the same size."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from blocklist.detection.log_file import LogFile

TASKS_PER_CORE: Final = 4
"""Number of tasks for each core, within the limits below: the fewer, the longer are cores idle at the end."""
MIN_TASK_BYTES: Final = 32 * 1024 * 1024
"""A task takes as long as reading some 10 MB, whatever it reads: most would be lost in smaller ones."""
MAX_TASK_BYTES: Final = 128 * 1024 * 1024
"""A task that fails is repeated from its start."""
_OPEN_COST: Final = 256 * 1024  # bytes that opening a file counts for


@dataclass(frozen=True, kw_only=True, slots=True)
class Split:
    """The lines of a log that begin from byte `start` up to, not including, byte `end` (None: the end of the file)."""

    log: LogFile
    start: int = 0
    end: int | None = None

    @property
    def cost(self) -> int:
        """Number of bytes to read, and something for opening the file."""
        return _OPEN_COST + (self.log.size if self.end is None else self.end) - self.start


def pack(logs: Iterable[LogFile], cores: int) -> list[list[Split]]:
    """Split large plain logs, and put small ones together: one list for each task, large ones first.

    A compressed log can be read only from its start: it is not split.
    """
    logs = list(logs)
    size = _task_bytes(sum(log.size for log in logs), cores)
    packs: list[list[Split]] = []
    room = 0
    for split in sorted((split for log in logs for split in _splits(log, size)), key=lambda split: -split.cost):
        if not packs or split.cost > room:
            packs.append([])
            room = size
        packs[-1].append(split)
        room -= split.cost
    return packs


def _task_bytes(total: int, cores: int) -> int:
    return min(MAX_TASK_BYTES, max(MIN_TASK_BYTES, total // (TASKS_PER_CORE * cores)))


def _splits(log: LogFile, size: int) -> Iterator[Split]:
    """The last range has no end: a log in progress may have grown since it was found."""
    if log.compressed or log.size <= size:
        yield Split(log=log)
        return
    starts: Sequence[int] = range(0, log.size, size)
    for start in starts:
        end = start + size
        yield Split(log=log, start=start, end=end if end < log.size else None)
