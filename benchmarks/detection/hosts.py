"""Six loopback hosts, each with a CPU limit, a small disk and a network address, ready for faults."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, Self

from benchmarks.cpu_shares import CpuShares
from demo.cluster import Cluster

CORES: Final = 1.3  # limit of all hosts together while applications start
SHARE: Final = 0.2  # limit of a healthy host, in cores
DISK: Final = "24m"  # size of a host's local directory
_EXECUTOR: Final = b"CoarseGrainedExecutorBackend"
# Part of the class path of the class archive, so it must be constant; Spark does not need it.
_NO_CONF: Final = "/nonexistent/conf"


class Hosts(Cluster):
    """A cluster whose Workers have one core, a tmpfs as local directory, and a control group. Needs root."""

    def __init__(self, hosts: Sequence[str], *, total: float | None = CORES) -> None:
        super().__init__(hosts, cores=1, memory="600m")
        self._shares = CpuShares(hosts, total)

    def __enter__(self) -> Self:
        self._shares.open()
        return super().__enter__()

    def close(self) -> None:
        """End all started processes, and remove mounts and groups."""
        for host in self.hosts:
            with suppress(OSError):
                self._shares.limit(host, None)
        for name in list(self._processes):
            self._end(name)
        for host in self.hosts:
            _unmount(self.disk(host))
        super().close()
        self._shares.close()

    def disk(self, host: str) -> Path:
        """Return the host's local directory, for shuffle files and spills."""
        return self.folder / f"local-{host}"

    def device(self, host: str) -> Path:
        """What tasks on the host need, such as a GPU."""
        return self.disk(host) / "device"

    def start_worker(self, host: str, *, wait: bool = True) -> None:
        """Start the Worker of a host with its own disk and CPU limit."""
        disk = self.disk(host)
        if not disk.exists():
            disk.mkdir()
            subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={DISK}", "tmpfs", str(disk)], check=True)
            self.device(host).touch()
        self._environment["SPARK_LOCAL_DIRS"] = str(disk)
        super().start_worker(host, wait=False)
        if wait:
            self._await_worker(host)

    def _await_worker(self, host: str) -> None:
        """Wait for the registration, then move the Worker's processes to its group, which their children inherit."""
        super()._await_worker(host)
        for pid in _session(self._processes[host].pid):
            self._shares.join(host, pid)

    def throttle(self, slow: str | None = None, factor: float = 1.0) -> None:
        """Limit each host to its share of CPU, and the slow one to `factor` of that."""
        for host in self.hosts:
            self._shares.limit(host, SHARE * (factor if host == slow else 1.0))

    def unthrottle(self, host: str | None = None) -> None:
        """Remove the limit of the host (None: of all), to start executors."""
        for each in self.hosts if host is None else [host]:
            self._shares.limit(each, None)

    def executors(self, host: str) -> list[int]:
        """Return the process of the host's executor, if there is one."""
        return [pid for pid in self._shares.pids(host) if _EXECUTOR in _command(pid)]

    def kill_executor(self, host: str) -> bool:
        """Kill the host's executor; return False if there was none."""
        found = self.executors(host)
        _signal(found, signal.SIGKILL)
        return bool(found)

    def pause(self, host: str) -> None:
        """Stop all processes of the host."""
        _signal(self._shares.pids(host), signal.SIGSTOP)

    def resume(self, host: str) -> None:
        """Let them continue."""
        _signal(self._shares.pids(host), signal.SIGCONT)

    def clear_disks(self) -> None:
        """Remove the files of dead executors from the local directories."""
        for host in self.hosts:
            for leftover in self.disk(host).iterdir():
                if leftover.is_dir():
                    shutil.rmtree(leftover, ignore_errors=True)

    def _daemon_command(self) -> list[str]:
        command = super()._daemon_command()
        self._environment["SPARK_CONF_DIR"] = _NO_CONF
        return command


def unmount_leftovers() -> None:
    """Remove the mounts that a killed process of ours left."""
    mounts = [line.split()[1] for line in Path("/proc/self/mounts").read_text().splitlines()]
    for folder in (Path(mount) for mount in mounts if re.search(r"/spark-cluster-\w+/local-[\d.]+$", mount)):
        _unmount(folder)
        shutil.rmtree(folder.parent, ignore_errors=True)


def _session(leader: int) -> list[int]:
    """Return the processes of a session; each daemon has its own."""
    pids = [int(folder.name) for folder in Path("/proc").iterdir() if folder.name.isdigit()]
    return [pid for pid in pids if _session_of(pid) == leader]


def _session_of(pid: int) -> int | None:
    with suppress(ProcessLookupError):
        return os.getsid(pid)
    return None


def _signal(pids: Iterable[int], number: int) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


def _command(pid: int) -> bytes:
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    return b""


def _unmount(folder: Path) -> None:
    for _ in range(20):
        if not folder.is_mount():
            return
        if subprocess.run(["umount", str(folder)], capture_output=True, check=False).returncode:
            time.sleep(0.1)  # its processes are still ending
    subprocess.run(["umount", "-l", str(folder)], capture_output=True, check=False)
