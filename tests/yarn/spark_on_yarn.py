"""Spark applications on the tests' YARN, in client and in cluster mode."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Final

from demo.cluster import LOOPBACK
from demo.java_home import java_home
from tests.applications.application import JAR, Application, Installation, Kind, Round, obeying
from tests.yarn.cluster import YarnCluster
from tests.yarn.jars import SPARK_JARS


def spark_conf(cluster: YarnCluster, *, executors: int = 3, python_path: str = "") -> dict[str, str]:
    """One executor for each node: it takes more than half of a node, beside the application master.

    `python_path` is that of the executors. A task finds its host's name in the variable NM_HOST.
    """
    hosts = f"-Djdk.net.hosts.file={cluster.hosts_file}"
    small = f"{hosts} -XX:+UseSerialGC -XX:TieredStopAtLevel=1"
    return {
        "spark.master": "yarn",
        "spark.submit.deployMode": "client",
        # Nothing is uploaded: containers read the jars where they are.
        "spark.yarn.jars": f"local:{SPARK_JARS}/*",
        "spark.yarn.stagingDir": (cluster.folder / "staging").as_uri(),
        "spark.driver.extraJavaOptions": hosts,
        "spark.yarn.am.extraJavaOptions": small,
        "spark.executor.extraJavaOptions": small,
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.yarn.am.memory": "256m",
        "spark.yarn.am.memoryOverhead": "128m",
        "spark.executor.memory": "512m",
        "spark.executor.memoryOverhead": "900m",
        "spark.executor.cores": "1",
        "spark.executor.instances": str(executors),
        "spark.executorEnv.PYTHONPATH": python_path,
        "spark.yarn.containerLauncherMaxThreads": "4",
        "spark.yarn.scheduler.heartbeat.interval-ms": "500",
        "spark.scheduler.minRegisteredResourcesRatio": "1.0",
        "spark.scheduler.maxRegisteredResourcesWaitingTime": "120s",
    }


_EXECUTOR: Final = "YarnCoarseGrainedExecutorBackend"
# What the allocator of containers is told to avoid, in the log of the ApplicationMaster.
_ALLOCATOR_LOGGING: Final = "logger.yarn.name = org.apache.spark.deploy.yarn\nlogger.yarn.level = info\n"

START_SECONDS: Final = 600

CLIENT: Final = Kind(name="yarn-client", command="{submit} --class ScalaRounds {jar} {commands} {results}")
CLUSTER_WITHOUT_JAR: Final = Kind(
    name="yarn-cluster",
    command="{submit} --deploy-mode cluster --class ScalaRounds {jar} {commands} {results}",
    conf={"spark.driver.host": None, "spark.driver.bindAddress": None, "spark.driver.extraClassPath": None},
)
# As docs/yarn-spark.md has it: the jar travels with the application, as its nodes have none.
CLUSTER: Final = replace(
    CLUSTER_WITHOUT_JAR, command=CLUSTER_WITHOUT_JAR.command.replace(" --class", f" --jars {JAR} --class")
)


class SparkOnYarn:
    """The cluster as Spark applications see it."""

    def __init__(self, cluster: YarnCluster) -> None:
        self.folder = cluster.folder
        self.variables = {name: cluster.environment[name] for name in ("HADOOP_CONF_DIR", "YARN_CONF_DIR")}
        self._conf = spark_conf(cluster)

    def conf(self) -> Mapping[str, str]:
        """The settings of an application: an executor on each node."""
        return self._conf | {
            "spark.driver.memory": "512m",
            "spark.yarn.appMasterEnv.JAVA_HOME": str(java_home()),
            "spark.yarn.appMasterEnv.SPARK_LOCAL_IP": LOOPBACK,
            "spark.executorEnv.JAVA_HOME": str(java_home()),
            "spark.executorEnv.SPARK_LOCAL_IP": LOOPBACK,
        }


class YarnApplication(Application):
    """An application on YARN; in cluster mode its driver is in the ApplicationMaster."""

    def __init__(
        self,
        kind: Kind,
        spark: Installation,
        cluster: SparkOnYarn,
        folder: Path,
        url: str,
        settings: Mapping[str, str | None],
    ) -> None:
        # spark.cores.max is the standalone cluster's; one core for each executor shows where tasks run soonest.
        conf = {**obeying(url), "spark.executor.cores": "1", "spark.cores.max": None, **settings, **kind.conf}
        super().__init__(kind, spark, cluster, folder, conf)
        with (folder / "log4j2.properties").open("a") as logging:
            logging.write(_ALLOCATOR_LOGGING)
        self._containers = cluster.folder

    def result(self, seconds: float = START_SECONDS) -> Round:
        """As the base, but the first round waits for containers, which are slow to start on a busy machine."""
        return super().result(seconds)

    def _driver_logs(self) -> Iterable[Path]:
        found = self._containers.glob("*/logs/application_*/container_*_000001/stderr")
        return sorted(file for file in found if file.stat().st_ctime >= self._begun)

    def executors(self, host: str) -> list[int]:
        """The process ids of its executors on a host."""
        found = []
        for process in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                words = (process / "cmdline").read_text(errors="replace").split("\0")
                # Each has a shell around it with the same words.
                if words[0].endswith("java") and any(_EXECUTOR in word for word in words) and host in words:
                    found.append(int(process.name))
        return found

    def lose_executor(self, host: str) -> None:
        """Kill the executor on a host; YARN starts another one."""
        for executor in self.executors(host):
            os.kill(executor, signal.SIGKILL)
