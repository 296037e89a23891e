"""A real standalone Spark cluster on one machine: a Master and Workers, each a process on a loopback host of its own.

Spark's own `local-cluster` puts all executors on one host, so a blocked host would be all of them. Here the Workers
are 127.0.0.2, 127.0.0.3 and so on, which Linux answers on without any set-up. A host may also have a name: then all
JVMs get a hosts file with that name, and know no other names but `localhost` and this machine's.
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
# Ends its whole process group when the daemon ends, and when this process does, even without a word: its stdin closes.
_DIE_WITH_PARENT: Final = '("$@"; kill -9 -$$) </dev/null & cat; kill -9 -$$'
_FAST_START: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xshare:auto"
_DAEMON: Final = "org.apache.spark.deploy.{0}.{1}"


class Cluster:
    """A context manager: on entry the Master is up and all Workers are registered, on exit all that it started is gone.

    `hosts` maps the host as Spark is to name it to its loopback address; a sequence of addresses names them so.
    Each Worker offers `cores` and `memory` (Spark's notation).
    """

    def __init__(
        self,
        hosts: Mapping[str, str] | Sequence[str] = ("127.0.0.2", "127.0.0.3", "127.0.0.4"),
        *,
        cores: int = 2,
        memory: str = "1g",
    ) -> None:
        self.hosts = dict(hosts) if isinstance(hosts, Mapping) else {host: host for host in hosts}
        self.url = ""
        self._cores, self._memory = cores, memory
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> Self:
        self.folder = Path(tempfile.mkdtemp(prefix="spark-cluster-"))
        try:
            self._names = self._hosts_file()
            self._command = self._daemon_command()
            self._start_master()
            for host in self.hosts:
                self.start_worker(host, wait=False)
            for host in self.hosts:
                self._await_worker(host)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End everything that was started, and remove its folder."""
        for name in list(self._processes):
            self._end(name)
        shutil.rmtree(self.folder, ignore_errors=True)

    def start_worker(self, host: str, *, wait: bool = True) -> None:
        """Start the Worker of a host, or start it again after `kill_worker`."""
        folder = self.folder / host
        folder.mkdir(exist_ok=True)
        options = ["--host", host, "--cores", str(self._cores), "--memory", self._memory, "--work-dir", str(folder)]
        self._start(host, "worker", "Worker", self.hosts[host], [*options, "--webui-port", "0", self.url])
        if wait:
            self._await_worker(host)

    def kill_worker(self, host: str) -> None:
        """Let the host die: its Worker and its executors, at once and without a word."""
        self._end(host)

    def conf(self) -> dict[str, str]:
        """What an application needs to run here: small executors, one on each host, and a driver on loopback."""
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
        """Where names are wanted: a hosts file for the JVMs, which then ask nobody else."""
        if all(host == address for host, address in self.hosts.items()):
            return None
        lines = [f"{LOOPBACK} localhost {socket.gethostname()}"]
        lines += [f"{address} {host}" for host, address in self.hosts.items()]
        file = self.folder / "hosts"
        file.write_text("\n".join(lines) + "\n", encoding="utf-8")
        return file

    def _java_options(self) -> str:
        # What a JVM unpacks, it leaves behind when it is killed: so in our folder.
        names = f" -Djdk.net.hosts.file={self._names}" if self._names else ""
        return f"{_FAST_START} -Djava.io.tmpdir={self.folder}{names}"

    def _daemon_command(self) -> list[str]:
        """The command that starts a daemon, but for its class and options: Spark's launcher is asked for it once."""
        self._environment = {
            **os.environ,
            "JAVA_HOME": str(java_home()),
            "SPARK_HOME": str(spark_home()),
            # Spark's own scripts set it; it names build folders that an installed Spark does not have.
            "SPARK_SCALA_VERSION": "2.13",
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_DAEMON_JAVA_OPTS": self._java_options(),
            "SPARK_LOCAL_DIRS": str(self.folder / "local"),
            "SPARK_CONF_DIR": str(self.folder / "conf"),
        }
        java, jars = Path(self._environment["JAVA_HOME"], "bin", "java"), spark_home() / "jars" / "*"
        launcher = [str(java), "-Xmx128m", "-cp", str(jars), "org.apache.spark.launcher.Main"]
        name = _DAEMON.format("worker", "Worker")
        output = subprocess.run([*launcher, name], env=self._environment, capture_output=True, check=True).stdout
        # Arguments end with a zero byte each; a line of its own before the first.
        command = [part.decode().strip() for part in output.split(b"\0")]
        return [part for part in command if part and part != name]

    def _start_master(self) -> None:
        options = ["--host", LOOPBACK, "--port", "0", "--webui-port", "0"]
        self._start("master", "master", "Master", LOOPBACK, options)
        self._await("master", r"Starting Spark master at (spark://\S+)")
        self.url = re.findall(r"Starting Spark master at (spark://\S+)", self._log("master"))[0]

    def _start(self, name: str, package: str, daemon: str, address: str, options: Sequence[str]) -> None:
        with self._log_file(name).open("wb") as log:
            # A session of its own is a process group of its own: what it starts ends with it.
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

    def _await(self, name: str, pattern: str, seconds: float = 90) -> None:
        process = self._processes[name]

        def logged() -> bool:
            if process.poll() is not None:
                raise RuntimeError(f"{name} ended:\n{self._log(name)[-4000:]}")
            return re.search(pattern, self._log(name)) is not None

        wait_until(logged, seconds, f"{name} to log {pattern!r}")

    def _log_file(self, name: str) -> Path:
        return self.folder / f"{name}.log"

    def _log(self, name: str) -> str:
        return self._log_file(name).read_text(encoding="utf-8", errors="replace")


def spark_home() -> Path:
    """The installed PySpark, which is a whole Spark."""
    import pyspark  # noqa: PLC0415 - slow, and not needed to start a cluster

    return Path(pyspark.__file__).parent


def session(cluster: Cluster, **conf: object) -> SparkSession:
    """A SparkSession on the cluster, with an executor registered on each host; `conf` has dots as `__`.

    One at a time in a process, as Spark has it. The caller stops it.
    """
    from pyspark import SparkConf, SparkContext  # noqa: PLC0415 - slow, and not needed to start a cluster
    from pyspark.sql import SparkSession  # noqa: PLC0415

    os.environ["JAVA_HOME"] = str(java_home())
    # No defaults: in a JVM that has run an application before, these are that one's settings.
    settings = SparkConf(loadDefaults=False).setAppName("blocklist").setAll(list(cluster.conf().items()))
    settings.setAll([(key.replace("__", "."), str(value)) for key, value in conf.items()])
    spark = SparkSession(SparkContext(conf=settings))
    wait_until(lambda: executor_hosts(spark) >= set(cluster.hosts), 90, "an executor on each host")
    return spark


def executor_hosts(spark: SparkSession) -> set[str]:
    """The hosts with a registered executor, as Spark names them."""
    infos = spark.sparkContext._jsc.sc().statusTracker().getExecutorInfos()  # noqa: SLF001
    # The first is the driver itself; it is on a host of its own here.
    return {info.host() for info in infos} - {LOOPBACK}


def wait_until(condition: Callable[[], bool], seconds: float, what: str) -> None:
    """Return when the condition holds. Raises TimeoutError after so many seconds."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited {seconds:g} s for {what}")
        time.sleep(0.05)
