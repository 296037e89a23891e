"""A share of the processor for each host: control groups of the kernel, version 1 or 2. Wants root.

Six hosts on a small machine would slow each other down, and a slow one would make the others faster. So each gets the
same small share of a core, held by the kernel in periods of 40 ms, whatever the others do; a slow host gets less.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final

_ROOT: Final = Path("/sys/fs/cgroup")
_NAME: Final = "blocklist-detection"
_PERIOD: Final = 40_000  # microseconds
_WEIGHT: Final = 3  # of all hosts together, as so many ordinary processes


class CpuShares:
    """One control group for all hosts, which may use `total` cores (None: all), and one below it for each host."""

    def __init__(self, hosts: Iterable[str], total: float | None) -> None:
        self._v2 = (_ROOT / "cgroup.controllers").exists()
        top = _ROOT if self._v2 else _ROOT / "cpu"
        self._parent = top / _NAME
        self._groups = {host: self._parent / host for host in hosts}
        self._total = total

    def open(self) -> None:
        """Make the groups. Raises OSError where that is not allowed."""
        self._parent.mkdir(exist_ok=True)
        if self._v2:
            (self._parent.parent / "cgroup.subtree_control").write_text("+cpu")
            (self._parent / "cgroup.subtree_control").write_text("+cpu")
        weight = ("cpu.weight", 100) if self._v2 else ("cpu.shares", 1024)
        (self._parent / weight[0]).write_text(str(_WEIGHT * weight[1]))
        for group in self._groups.values():
            group.mkdir(exist_ok=True)
        self._limit(self._parent, self._total)

    def close(self) -> None:
        """Remove the groups; a group can go once its last process has."""
        deadline = time.monotonic() + 10
        for group in (*self._groups.values(), self._parent):
            while group.exists() and time.monotonic() < deadline:
                with suppress(OSError):
                    group.rmdir()
                time.sleep(0.02)

    def join(self, host: str, pid: int) -> None:
        """The process, and all that it starts from now on, is this host's."""
        (self._groups[host] / "cgroup.procs").write_text(str(pid))

    def pids(self, host: str) -> list[int]:
        """The host's processes."""
        return [int(pid) for pid in (self._groups[host] / "cgroup.procs").read_text().split()]

    def limit(self, host: str, cores: float | None) -> None:
        """The host may use so much of a core, or (None) all that all hosts may."""
        self._limit(self._groups[host], cores)

    def _limit(self, group: Path, cores: float | None) -> None:
        quota = None if cores is None else max(1000, round(_PERIOD * cores))
        if self._v2:
            (group / "cpu.max").write_text(f"{'max' if quota is None else quota} {_PERIOD}")
            return
        (group / "cpu.cfs_period_us").write_text(str(_PERIOD))
        (group / "cpu.cfs_quota_us").write_text(str(-1 if quota is None else quota))
