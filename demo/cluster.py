"""A real standalone Spark cluster on one machine: a Master, and Workers on loopback addresses of their own.

Spark's `local-cluster` runs all executors on one host, so a blocked host would be all of them. Here the Workers use
127.0.0.2, 127.0.0.3 and so on, which need no set-up on Linux. A host may have a name: all JVMs then get a hosts file
that has only these names, `localhost` and the name of this machine.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self

from demo.java_home import java_home

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOOPBACK: Final = "127.0.0.1"
# Ends its whole process group when the daemon ends, and when this process dies, which closes its stdin.
_DIE_WITH_PARENT: Final = '("$@"; kill -9 -$$) </dev/null & cat; kill -9 -$$'
_FAST_START: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xshare:auto"
_DAEMON: Final = "org.apache.spark.deploy.{0}.{1}"


class Cluster:
    """A context manager: on entry all Workers are registered, on exit all started processes are ended.

    `hosts` maps Spark's names of the hosts to loopback addresses; a sequence of addresses names the hosts by address.
    Each Worker offers `cores` and `memory` (Spark's notation). `home` is the Spark to use instead of this Python's;
    `java_options` are further options of all JVMs, driver and executors included.
    """

    def __init__(
        self,
        hosts: Mapping[str, str] | Sequence[str] = ("127.0.0.2", "127.0.0.3", "127.0.0.4"),
        *,
        cores: int = 2,
        memory: str = "1g",
        home: Path | None = None,
        java_options: str = "",
    ) -> None:
        self.hosts = dict(hosts) if isinstance(hosts, Mapping) else {host: host for host in hosts}
        self.url = ""
        self.web_url = ""
        self._cores, self._memory, self._home = cores, memory, home
        self._further_options = java_options
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> Self:
        self.folder = Path(tempfile.mkdtemp(prefix="spark-cluster-"))
        try:
            self._names = self._hosts_file()
            self._command = self._daemon_command()
            self._start_master()
            self.start_workers(*self.hosts)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End all started processes and remove the folder."""
        for name in list(self._processes):
            self._end(name)
        shutil.rmtree(self.folder, ignore_errors=True)

    def start_worker(self, host: str, *, wait: bool = True) -> None:
        """Start the Worker of a host, also after `kill_worker`."""
        folder = self.folder / host
        folder.mkdir(exist_ok=True)
        options = ["--host", host, "--cores", str(self._cores), "--memory", self._memory, "--work-dir", str(folder)]
        self._start(host, "worker", "Worker", self.hosts[host], [*options, "--webui-port", "0", self.url])
        if wait:
            self._await_worker(host)

    def start_workers(self, *hosts: str) -> None:
        """Start the Workers of these hosts at the same time."""
        for host in hosts:
            self.start_worker(host, wait=False)
        for host in hosts:
            self._await_worker(host)

    def kill_worker(self, host: str) -> None:
        """Kill the host's Worker and executors with SIGKILL."""
        self._end(host)

    def conf(self) -> dict[str, str]:
        """Return the conf of an application on this cluster: one small executor per host, and a driver on loopback."""
        java = self._java_options()
        return {
            "spark.master": self.url,
            "spark.driver.host": LOOPBACK,
            "spark.driver.bindAddress": LOOPBACK,
            "spark.driver.memory": "512m",
            "spark.driver.extraJavaOptions": java,
            "spark.executor.memory": "512m",
            "spark.executor.cores": str(self._cores),
            "spark.executor.extraJavaOptions": java,
            "spark.pyspark.python": sys.executable,
            "spark.local.dir": str(self.folder / "driver"),
            "spark.sql.warehouse.dir": str(self.folder / "warehouse"),
            "spark.ui.enabled": "false",
            "spark.ui.showConsoleProgress": "false",
            "spark.log.level": "ERROR",
        }

    def _hosts_file(self) -> Path | None:
        """Write a hosts file for the JVMs if hosts have names; the JVMs then use no name server."""
        if all(host == address for host, address in self.hosts.items()):
            return None
        lines = [f"{LOOPBACK} localhost {socket.gethostname()}"]
        lines += [f"{address} {host}" for host, address in self.hosts.items()]
        file = self.folder / "hosts"
        file.write_text("\n".join(lines) + "\n", encoding="utf-8")
        return file

    def _java_options(self) -> str:
        # A killed JVM leaves its temporary files behind, so they are in our folder.
        names = f" -Djdk.net.hosts.file={self._names}" if self._names else ""
        return f"{_FAST_START} -Djava.io.tmpdir={self.folder}{names} {self._further_options}".rstrip()

    def _daemon_command(self) -> list[str]:
        """Return the start command of a daemon, without class and options, from Spark's launcher."""
        home = self._home or spark_home()
        self._environment = {
            **os.environ,
            "JAVA_HOME": str(java_home()),
            "SPARK_HOME": str(home),
            # Set as by Spark's scripts; it refers to build folders that an installed Spark does not have.
            "SPARK_SCALA_VERSION": "2.13",
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_DAEMON_JAVA_OPTS": self._java_options(),
            "SPARK_LOCAL_DIRS": str(self.folder / "local"),
            "SPARK_CONF_DIR": str(self.folder / "conf"),
        }
        java, jars = Path(self._environment["JAVA_HOME"], "bin", "java"), home / "jars" / "*"
        launcher = [str(java), "-Xmx128m", "-cp", str(jars), "org.apache.spark.launcher.Main"]
        name = _DAEMON.format("worker", "Worker")
        output = subprocess.run([*launcher, name], env=self._environment, capture_output=True, check=True).stdout
        # Each argument ends with a zero byte; an empty line comes first.
        command = [part.decode().strip() for part in output.split(b"\0")]
        return [part for part in command if part and part != name]

    def _start_master(self) -> None:
        options = ["--host", LOOPBACK, "--port", "0", "--webui-port", "0"]
        self._start("master", "master", "Master", LOOPBACK, options)
        self.url = self._await("master", r"Starting Spark master at (spark://\S+)")[1]
        port = self._await("master", r"Successfully started service 'MasterUI' on port (\d+)")[1]
        self.web_url = f"http://{LOOPBACK}:{port}"

    def _start(self, name: str, package: str, daemon: str, address: str, options: Sequence[str]) -> None:
        with self._log_file(name).open("wb") as log:
            # A new session is a new process group, so its children end with it.
            self._processes[name] = subprocess.Popen(
                ["sh", "-c", _DIE_WITH_PARENT, "sh", *self._command, _DAEMON.format(package, daemon), *options],
                env={**self._environment, "SPARK_LOCAL_IP": address},
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def _end(self, name: str) -> None:
        process = self._processes.pop(name)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()

    def _await_worker(self, host: str) -> None:
        self._await(host, r"Successfully registered with master")

    def _await(self, name: str, pattern: str, seconds: float = 90) -> re.Match[str]:
        process = self._processes[name]

        def logged() -> re.Match[str] | None:
            if process.poll() is not None:
                raise RuntimeError(f"{name} ended:\n{self._log(name)[-4000:]}")
            return re.search(pattern, self._log(name))

        wait_until(lambda: logged() is not None, seconds, f"{name} to log {pattern!r}")
        found = logged()
        assert found is not None
        return found

    def _log_file(self, name: str) -> Path:
        return self.folder / f"{name}.log"

    def _log(self, name: str) -> str:
        return self._log_file(name).read_text(encoding="utf-8", errors="replace")


def spark_home() -> Path:
    """Return the folder of the installed PySpark, which contains all of Spark."""
    import pyspark  # noqa: PLC0415 - slow, and not needed to start a cluster

    return Path(pyspark.__file__).parent


def session(cluster: Cluster, **conf: object) -> SparkSession:
    """Start a SparkSession and wait for an executor on each host; keys of `conf` have `__` for dots.

    Spark allows one session per process. The caller must stop it.
    """
    from pyspark import SparkConf, SparkContext  # noqa: PLC0415 - slow, and not needed to start a cluster
    from pyspark.sql import SparkSession  # noqa: PLC0415

    os.environ["JAVA_HOME"] = str(java_home())
    # No defaults: in a JVM that ran another application, they are that application's settings.
    settings = SparkConf(loadDefaults=False).setAppName("blocklist").setAll(list(cluster.conf().items()))
    settings.setAll([(key.replace("__", "."), str(value)) for key, value in conf.items()])
    spark = SparkSession(SparkContext(conf=settings))
    wait_until(lambda: executor_hosts(spark) >= set(cluster.hosts), 90, "an executor on each host")
    return spark


def executor_hosts(spark: SparkSession) -> set[str]:
    """Return the hosts with a registered executor, by Spark's names."""
    infos = spark.sparkContext._jsc.sc().statusTracker().getExecutorInfos()  # noqa: SLF001
    # The driver is in the list too, on a host of its own.
    return {info.host() for info in infos} - {LOOPBACK}


def wait_until(condition: Callable[[], bool], seconds: float, what: str) -> None:
    """Wait until the condition holds. Raises TimeoutError after `seconds`."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited {seconds:g} s for {what}")
        time.sleep(0.05)
