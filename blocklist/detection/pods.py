"""Logs of applications on Kubernetes name pods by their IP addresses: which node each pod ran on.

A log says so where executors have the attribute NODE_NAME (`SPARK_EXECUTOR_ATTRIBUTE_NODE_NAME` in their
environment); the inventory does for pods that use their node's network. A pod whose node is unknown is left out: its
address may have belonged to pods on other nodes before.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F  # noqa: N812 - the usual name

from blocklist.detection.omissions import Omission
from blocklist.detection.schemas import FACTS, conform

KnownNodes = Callable[[], Mapping[str, str]]
"""Returns the node of each address in the inventory."""
_APP_ID: Final = "^spark-[0-9a-f]{32}$"
"""App IDs that only Spark on Kubernetes makes."""
_NODE_NAMES: Final = "Set SPARK_EXECUTOR_ATTRIBUTE_NODE_NAME in the executors' pod template to include them."


@dataclass(frozen=True, kw_only=True, slots=True)
class PodNodes:
    """The node by application and address. `problems`: one for each application with pods on unknown nodes."""

    of_address: Mapping[tuple[str, str], str]
    problems: Sequence[Omission]


def on_nodes(facts: DataFrame, known_nodes: KnownNodes) -> tuple[DataFrame, Sequence[Omission]]:
    """FACTS -> FACTS whose hosts are nodes, and a problem for each application of which pods are left out."""
    apps = _on_kubernetes(facts)
    if not apps:
        return facts, ()
    of_these = facts.where(F.col("app").isin(apps))
    executors = of_these.where(F.col("kind") == "executor").select("app", "host", "detail").distinct().collect()
    used = of_these.where(F.col("kind").isin("task", "excluded")).select("app", "host").distinct().collect()
    found = pod_nodes(executors, used, known_nodes)
    spark = facts.sparkSession
    rows = [(app, address, node) for (app, address), node in found.of_address.items()]
    pods = F.broadcast(spark.createDataFrame(rows, "app string, address string, node string"))
    served = pods.select("app", F.col("address").alias("served_by"), F.col("node").alias("server"))
    here = pods.select("app", F.col("address").alias("host"), "node")
    joined = facts.join(here, ["app", "host"], "left").join(served, ["app", "served_by"], "left")
    is_pod = F.col("app").isin(apps)
    named = joined.withColumn("host", F.when(is_pod, F.col("node")).otherwise(F.col("host")))
    named = named.withColumn("served_by", F.when(is_pod, F.col("server")).otherwise(F.col("served_by")))
    left_out = is_pod & F.col("kind").isin("task", "excluded") & F.col("host").isNull()
    return conform(named.where(~left_out), FACTS), found.problems


def _on_kubernetes(facts: DataFrame) -> list[str]:
    """The applications on Kubernetes, by their configuration; by the App ID if the log has lost that line."""
    stated = (F.col("kind") == "environment") & ~F.col("detail").startswith("*")  # Spark may redact it
    by_master = F.when(stated, F.col("detail").startswith("k8s://"))
    by_id = F.when(F.col("kind") == "application", F.col("app_id").rlike(_APP_ID))
    apps = facts.where(F.col("kind").isin("environment", "application")).groupBy("app")
    found = apps.agg(F.coalesce(F.max(by_master), F.max(by_id)).alias("is_pod")).where("is_pod")
    return [row["app"] for row in found.collect()]


def pod_nodes(executors: Iterable[Row], used: Iterable[Row], known_nodes: KnownNodes) -> PodNodes:
    """Find the node of each address that tasks ran at. `executors`: app, host, detail (the node); `used`: app, host."""
    reported: defaultdict[tuple[str, str], set[str]] = defaultdict(set)
    for row in executors:
        reported[row["app"], row["host"]].add(row["detail"])
    of_address = {pod: next(iter(nodes)) for pod, nodes in reported.items() if len(nodes) == 1}
    pods = [(row["app"], row["host"]) for row in used]
    if unreported := [pod for pod in pods if pod not in reported]:
        known = known_nodes()
        of_address |= {(app, host): known[host] for app, host in unreported if host in known}
    unknown: defaultdict[str, int] = defaultdict(int)
    for pod in pods:
        unknown[pod[0]] += pod not in of_address
    problems = [
        Omission(
            subject=f"pods of {app}",
            sentence=f"Pods of application {app} on unknown nodes are left out: {count}. {_NODE_NAMES}",
        )
        for app, count in sorted(unknown.items())
        if count
    ]
    return PodNodes(of_address=of_address, problems=problems)
