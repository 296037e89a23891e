"""Processes of this machine, as the kernel lists them."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from pathlib import Path


def signal_family(pid: int, number: signal.Signals) -> list[int]:
    """Send it to a process and those that it began; all of them.

    It stands still meanwhile: it begins no more of them, and as long as it lives one can tell which are its own.
    """
    if number != signal.SIGCONT:
        os.kill(pid, signal.SIGSTOP)
    family = [pid, *(child for child, (_, parent) in _processes().items() if parent == pid)]
    for member in family:
        with suppress(ProcessLookupError):
            os.kill(member, number)
    return family


def any_alive(pids: list[int]) -> bool:
    """Whether one of them is there yet, and not only because nobody has asked for its exit code."""
    processes = _processes()
    return any(processes[pid][0] != "Z" for pid in pids if pid in processes)


def _processes() -> dict[int, tuple[str, int]]:
    """State and parent of each."""
    found = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # It has ended meanwhile.
            state, parent = stat.read_text().rpartition(")")[2].split()[:2]
            found[int(stat.parent.name)] = state, int(parent)
    return found
