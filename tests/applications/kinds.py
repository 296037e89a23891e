"""The kinds of applications: how each is started, and how it is made to run a round of tasks."""

from __future__ import annotations

from typing import Final

from tests.applications.application import TASKS, Kind

_THRIFT_SERVER: Final = "org.apache.spark.sql.hive.thriftserver.HiveThriftServer2"
_CONNECT_SERVER: Final = "org.apache.spark.sql.connect.service.SparkConnectServer"
_HOST: Final = "reflect('java.lang.System', 'getenv', 'SPARK_LOCAL_IP')"


def _query(slow: str) -> str:
    sleep = f"reflect('java.lang.Thread', 'sleep', if({_HOST} = '{slow}', 600000L, 50L))"
    # A part of the result depends on the sleep, as it would not be computed otherwise.
    task = f"SELECT concat({_HOST}, substr(coalesce({sleep}, ''), 1, 0)) AS host FROM range(0, {TASKS}, 1, {TASKS})"
    hosts = "array_join(array_sort(collect_set(host)), ' ')"
    return f"SELECT concat('ROUND ', cast(count(*) AS string), ' ', {hosts}) AS result FROM ({task});"


def _scala(slow: str) -> str:
    sleep = f'Thread.sleep(if (host == "{slow}") 600000L else 50L)'
    task = f'val host = System.getenv("SPARK_LOCAL_IP"); {sleep}; host'
    hosts = f"val hosts = sc.parallelize(1 to {TASKS}, {TASKS}).map {{ _ => {task} }}.collect()"
    return f'{{ {hosts}; println("ROUND " + hosts.length + " " + hosts.distinct.sorted.mkString(" ")) }}'


JAVA: Final = Kind(name="java", command="{submit} --class Rounds {jar} {commands} {results}")
SCALA: Final = Kind(name="scala", command="{submit} --class ScalaRounds {jar} {commands} {results}")
PYSPARK: Final = Kind(name="pyspark", command="{submit} {sources}/rounds.py {commands} {results}")
SPARK_SQL: Final = Kind(name="spark-sql", command="{bin}/spark-sql {properties} < {commands}", line=_query)
# Not a file for `spark-shell -i`, which Spark 4.0 does not read if the input is a pipe.
SPARK_SHELL: Final = Kind(name="spark-shell", command="{bin}/spark-shell {properties} < {commands}", line=_scala)
THRIFT_SERVER: Final = Kind(
    name="thrift-server",
    server="{submit} --class " + _THRIFT_SERVER + " --hiveconf hive.server2.thrift.port={port}"
    " --hiveconf hive.server2.thrift.bind.host=127.0.0.1 spark-internal",
    command="{bin}/beeline --silent=true -u jdbc:hive2://127.0.0.1:{port}/ -n test < {commands}",
    line=_query,
)
CONNECT_SERVER: Final = Kind(
    name="connect-server",
    server="{submit} --class " + _CONNECT_SERVER
    + " --conf spark.connect.grpc.binding.port={port} spark-internal",
    needs="spark-connect_",
    command="{python} {sources}/remote.py sc://127.0.0.1:{port} {commands} {results}",
    line=_query,
)  # fmt: skip
CLUSTER_MODE: Final = Kind(
    name="deploy-mode-cluster",
    command="{submit} --deploy-mode cluster --driver-cores 1 --class Rounds {jar} {commands} {results}",
    # The driver listens on the address of its Worker.
    conf={"spark.driver.host": None, "spark.driver.bindAddress": None, "spark.local.dir": None},
    on_cluster=True,
)
KINDS: Final = [JAVA, SCALA, PYSPARK, SPARK_SQL, SPARK_SHELL, THRIFT_SERVER, CONNECT_SERVER, CLUSTER_MODE]
