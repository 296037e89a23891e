"""What PySpark needs to run on YarnCluster, in client or cluster mode. Its wheel contains Spark's YARN module."""

from __future__ import annotations

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
