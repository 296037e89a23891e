"""A share of a core for a process, as a pod with a CPU limit has: the kernel's bandwidth control, in a cgroup."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

PERIOD: Final = 10_000
"""Microseconds in which a process may use its share. With Kubernetes' 100 ms a replica would stop for most of them."""


class NoQuotaError(Exception):
    """No cgroup can be made."""


@contextmanager
def cpu_quota(pid: int, share: float) -> Iterator[None]:
    """Allow a process, and those that it starts, `share` of a core. Raises NoQuotaError; needs root."""
    group = _parent() / f"blocklist-bench-{pid}"
    quota = int(PERIOD * share)
    try:
        group.mkdir()
        if (group / "cpu.max").exists():
            (group / "cpu.max").write_text(f"{quota} {PERIOD}")
        else:
            (group / "cpu.cfs_period_us").write_text(str(PERIOD))
            (group / "cpu.cfs_quota_us").write_text(str(quota))
        (group / "cgroup.procs").write_text(str(pid))
    except OSError as error:
        raise NoQuotaError(
            f"{group}: {os.strerror(error.errno or 0)}; CPU limits need root and the cgroup `cpu`"
        ) from None
    try:
        yield
    finally:
        (group.parent / "cgroup.procs").write_text(str(pid))
        group.rmdir()


def _parent() -> Path:
    """Where the kernel limits CPU time: the root of version 2 of cgroups, or of version 1's `cpu`."""
    mounts = [line.split() for line in Path("/proc/mounts").read_text().splitlines()]
    for _, folder, kind, options, *_ in mounts:
        if kind == "cgroup" and "cpu" in options.split(","):
            return Path(folder)
    for _, folder, kind, *_ in mounts:
        if kind == "cgroup2":
            (Path(folder) / "cgroup.subtree_control").write_text("+cpu")
            return Path(folder)
    raise NoQuotaError("no cgroups are mounted")
