"""The processes of this machine."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from pathlib import Path


def signal_family(pid: int, number: signal.Signals) -> list[int]:
    """Send a signal to a process and its children; their ids.

    The process is stopped meanwhile, so that it starts no more children and they can still be identified.
    """
    if number != signal.SIGCONT:
        os.kill(pid, signal.SIGSTOP)
    family = [pid, *(child for child, (_, parent) in _processes().items() if parent == pid)]
    for member in family:
        with suppress(ProcessLookupError):
            os.kill(member, number)
    return family


def any_alive(pids: list[int]) -> bool:
    """Whether one of them is alive, zombies excluded."""
    processes = _processes()
    return any(processes[pid][0] != "Z" for pid in pids if pid in processes)


def _processes() -> dict[int, tuple[str, int]]:
    """State and parent of each process."""
    found = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # It has exited.
            state, parent = stat.read_text().rpartition(")")[2].split()[:2]
            found[int(stat.parent.name)] = state, int(parent)
    return found
