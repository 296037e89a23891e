"""A Slurm cluster on loopback: munged, slurmctld and a slurmd for each node, from Debian packages."""

from __future__ import annotations

import secrets
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from tests import debian
from tests.integration.process import environment, free_port, wait_until

PROGRAMS: Final = {
    "munged": "munge",
    "slurmctld": "slurmctld",
    "slurmd": "slurmd",
    "scontrol": "slurm-client",
    "srun": "slurm-client",
    "squeue": "slurm-client",
}
NODES: Final = ("n1", "n2", "n3")
_CONF: Final = """\
ClusterName=test
SlurmctldHost=localhost(127.0.0.1)
SlurmctldPort={port}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.sock
CredType=cred/munge
SlurmUser=root
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmdLogFile={folder}/slurmd-%n.log
SlurmdParameters=config_overrides
SlurmdTimeout=0
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
SelectType=select/cons_tres
ReturnToService=1
{nodes}
PartitionName=all Nodes={names} Default=YES State=UP
"""


class SlurmCluster:
    """Its controller can be stopped and started. `settings` are the environment variables for Slurm's commands."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._programs = debian.require(PROGRAMS)
        self._processes: list[subprocess.Popen[bytes]] = []
        self._controller: subprocess.Popen[bytes] | None = None
        self.scontrol = self._programs["scontrol"]
        self.settings = {"SLURM_CONF": str(folder / "slurm.conf")}
        (folder / "state").mkdir()
        nodes = (f"NodeName={n} NodeHostname=localhost NodeAddr=127.0.0.1 Port={free_port()} CPUs=1" for n in NODES)
        conf = _CONF.format(folder=folder, port=free_port(), nodes="\n".join(nodes), names=",".join(NODES))
        (folder / "slurm.conf").write_text(conf)

    def start(self) -> None:
        self._start_munged()
        self.start_controller()
        for node in NODES:
            self._processes.append(self._start_process("slurmd", "-D", "-N", node))
        wait_until(lambda: all(self.state(node) == "IDLE" for node in NODES))

    def stop(self) -> None:
        self.stop_controller()
        for process in reversed(self._processes):
            _terminate(process)

    def start_controller(self) -> None:
        self._controller = self._start_process("slurmctld", "-D")
        wait_until(lambda: self.run("scontrol", "ping").returncode == 0)

    def stop_controller(self) -> None:
        if self._controller is not None:
            _terminate(self._controller)
            self._controller = None

    def state(self, node: str) -> str:
        """Such as IDLE or IDLE+DRAIN; empty for an unknown node."""
        return self._field(node, "State=").partition(" ")[0]

    def reason(self, node: str) -> str:
        """As Slurm shows it, with user and time; empty for none."""
        return self._field(node, "Reason=")

    def update(self, node: str, *assignments: str) -> None:
        """Update the node as an administrator does."""
        self.run("scontrol", "update", f"nodename={node}", *assignments).check_returncode()

    def run(self, program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = [self._programs[program], *arguments]
        env = environment() | self.settings
        return subprocess.run(command, env=env, capture_output=True, text=True, timeout=300, check=False)

    def start_job(self, node: str, *command: str) -> subprocess.Popen[bytes]:
        """Submit a job for this node; it is queued until the node accepts jobs."""
        job = self._start_process("srun", "--nodelist", node, *command)
        self._processes.append(job)
        return job

    def pending_jobs(self) -> int:
        """The number of queued jobs."""
        return len(self.run("squeue", "--noheader", "--states", "PENDING").stdout.splitlines())

    def _field(self, node: str, name: str) -> str:
        lines = [line.strip() for line in self.run("scontrol", "show", "node", node).stdout.splitlines()]
        found = [line.removeprefix(name) for line in lines if line.startswith(name)]
        return found[0] if found else ""

    def _start_munged(self) -> None:
        key, socket = self._folder / "munge.key", self._folder / "munge.sock"
        key.write_bytes(secrets.token_bytes(128))
        key.chmod(0o600)
        files = {"key-file": key, "socket": socket, "pid-file": Path("munged.pid"), "seed-file": Path("munged.seed")}
        options = [f"--{name}={self._folder / file}" for name, file in files.items()]
        # --force: munged rejects pytest's folder, which other users cannot read.
        self._processes.append(self._start_process("munged", "--foreground", "--force", *options))
        wait_until(socket.exists)

    def _start_process(self, program: str, *arguments: str) -> subprocess.Popen[bytes]:
        with (self._folder / f"{program}.out").open("ab") as out:
            command = [self._programs[program], *arguments]
            return subprocess.Popen(command, env=environment() | self.settings, stdout=out, stderr=out)


@contextmanager
def slurm(folder: Path) -> Iterator[SlurmCluster]:
    cluster = SlurmCluster(folder)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()


def _terminate(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(20)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
