"""CPU limits by control groups, version 1 or 2. Needs root.

Six hosts on a small machine would slow each other down, and a slow host would speed the others up. So the kernel limits
each to the same small share of a core; a slow host gets less. Replicas of the service are compared in the same way.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final

_ROOT: Final = Path("/sys/fs/cgroup")
_NAME: Final = "blocklist-benchmark"
_WEIGHT: Final = 3  # of all groups together, in ordinary processes


class CpuShares:
    """A control group that limits all hosts to `total` cores (None: unlimited), with a child group per host.

    A host may use its share within each `period` (ms); then it stops until the next one.
    """

    def __init__(self, hosts: Iterable[str], total: float | None, *, period: int = 40) -> None:
        self._v2 = (_ROOT / "cgroup.controllers").exists()
        top = _ROOT if self._v2 else _ROOT / "cpu"
        self._parent = top / _NAME
        self._groups = {host: self._parent / host for host in hosts}
        self._total = total
        self._period = period * 1000

    def open(self) -> None:
        """Create the groups. Raises OSError if that is not permitted."""
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
        """Remove the groups; each can be removed once its last process has ended."""
        deadline = time.monotonic() + 10
        for group in (*self._groups.values(), self._parent):
            while group.exists() and time.monotonic() < deadline:
                with suppress(OSError):
                    group.rmdir()
                time.sleep(0.02)

    def join(self, host: str, pid: int) -> None:
        """Move the process, and its future children, to this host's group."""
        (self._groups[host] / "cgroup.procs").write_text(str(pid))

    def pids(self, host: str) -> list[int]:
        """Return the host's processes."""
        return [int(pid) for pid in (self._groups[host] / "cgroup.procs").read_text().split()]

    def limit(self, host: str, cores: float | None) -> None:
        """Limit the host to this part of a core (None: unlimited)."""
        self._limit(self._groups[host], cores)

    def _limit(self, group: Path, cores: float | None) -> None:
        quota = None if cores is None else max(1000, round(self._period * cores))
        if self._v2:
            (group / "cpu.max").write_text(f"{'max' if quota is None else quota} {self._period}")
            return
        (group / "cpu.cfs_period_us").write_text(str(self._period))
        (group / "cpu.cfs_quota_us").write_text(str(-1 if quota is None else quota))
