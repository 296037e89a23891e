"""The pipeline from facts to node summaries: Spark computes, the driver collects what is judged."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from types import TracebackType
from typing import Any, Final, Self

from pyspark.sql import Column, DataFrame, Row
from pyspark.sql import functions as F  # noqa: N812 - the usual name

from blocklist.detection import host_comparison, task_table
from blocklist.detection.host_comparison import (
    STAGE,
    TIME_BY_METRIC,
    charged_failures,
    charged_tasks,
    with_network_time,
)
from blocklist.detection.log_file import log_of
from blocklist.detection.node_summary import (
    CHARGED_TO_NODE,
    NO_FAILURES,
    ApplicationFailures,
    Comparison,
    FailureClass,
    Failures,
    HostInApplication,
    Metric,
    NodeSummary,
    TaskTime,
    join_evidence,
    tally,
)
from blocklist.detection.reader import broken_lines, problems
from blocklist.detection.schemas import FACTS, TASK_TIMES, Omission, conform

# Logs of applications on Kubernetes name pods by their IP addresses: which node each pod ran on.
#
# A log says so where executors have the attribute NODE_NAME (`SPARK_EXECUTOR_ATTRIBUTE_NODE_NAME` in their
# environment); the inventory does for pods that use their node's network. A pod whose node is unknown is left out:
# its address may have belonged to pods on other nodes before.

KnownNodes = Callable[[], Mapping[str, str]]
"""Returns the node of each address in the inventory."""
KUBERNETES_APP_ID: Final = "^spark-[0-9a-f]{32}$"
"""App IDs that only Spark on Kubernetes makes."""
_NODE_NAMES: Final = "Set SPARK_EXECUTOR_ATTRIBUTE_NODE_NAME in the executors' pod template to include them."


@dataclass(frozen=True, kw_only=True, slots=True)
class PodNodes:
    """The node by application and address, and the number of each application's pods on unknown nodes."""

    of_address: Mapping[tuple[str, str], str]
    unknown: Mapping[str, int]


def on_nodes(facts: DataFrame, known_nodes: KnownNodes) -> tuple[DataFrame, Sequence[Omission]]:
    """FACTS -> FACTS whose hosts are nodes, and a problem for each application of which pods are left out."""
    apps = _on_kubernetes(facts)
    if not apps:
        return facts, ()
    of_these = facts.where(F.col("app").isin(apps))
    named_nodes = of_these.where((F.col("kind") == "executor") & F.col("detail").isNotNull())
    executors = named_nodes.select("app", "host", "detail").distinct().collect()
    used = of_these.where(F.col("kind").isin("task", "excluded")).select("app", "host").distinct().collect()
    found = pod_nodes((row.asDict() for row in executors), [row.asDict() for row in used], known_nodes)
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
    return conform(named.where(~left_out), FACTS), pod_problems(found.unknown)


def _on_kubernetes(facts: DataFrame) -> list[str]:
    """The applications on Kubernetes, by their configuration; by the App ID if the log has lost that line."""
    stated = (F.col("kind") == "environment") & ~F.col("detail").startswith("*")  # Spark may redact it
    by_master = F.when(stated, F.col("detail").startswith("k8s://"))
    by_id = F.when(F.col("kind") == "application", F.col("app_id").rlike(KUBERNETES_APP_ID))
    apps = facts.where(F.col("kind").isin("environment", "application")).groupBy("app")
    found = apps.agg(F.coalesce(F.max(by_master), F.max(by_id)).alias("is_pod")).where("is_pod")
    return [row["app"] for row in found.collect()]


def pod_nodes(
    executors: Iterable[Mapping[str, Any]], used: Iterable[Mapping[str, Any]], known_nodes: KnownNodes
) -> PodNodes:
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
    return PodNodes(of_address=of_address, unknown=unknown)


def pod_problems(unknown: Mapping[str, int]) -> list[Omission]:
    """Return a problem for each application of which pods are left out."""
    return [
        Omission(
            subject=f"pods of {app}",
            sentence=f"Pods of application {app} on unknown nodes are left out: {count}. {_NODE_NAMES}",
        )
        for app, count in sorted(unknown.items())
        if count
    ]


FileOwner = Callable[[str], str | None]
"""Returns the owner of a file; None or an empty text if that is not known."""
IgnoredUntil = Mapping[str, int]
"""Hosts of which earlier evidence does not count: until when, in Unix ms."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Analysis:
    """The results as DataFrames (schemas.FACTS, HOST_STAGES, HOST_APPLICATIONS, FAILURES, NODES), cached until the
    context exits. `left_out`: the lines, logs and pods that were.
    """

    facts: DataFrame
    read: DataFrame
    host_stages: DataFrame
    host_applications: DataFrame
    failures: DataFrame
    nodes: DataFrame
    left_out: Sequence[Omission]

    @classmethod
    def of(
        cls,
        read: DataFrame,
        known_nodes: KnownNodes = dict,
        *,
        are_named: bool = False,
        owner_of: FileOwner = lambda _: None,
    ) -> Self:
        """Analyse facts as they were read; they are cached, so that the logs are read once.

        `are_named`: the rows of a table name their applications; those of event logs are found by file. `owner_of`: of
        logs of several owners none is the log of an application.
        """
        read = read.persist()
        facts, copies = (read, ()) if are_named else assign_applications(read, owner_of)
        facts, pods = on_nodes(facts, known_nodes)
        host_stages = host_comparison.host_stages(facts).persist()
        failures = charged_failures(facts).persist()
        return cls(
            facts=facts,
            read=read,
            host_stages=host_stages,
            host_applications=host_comparison.host_applications(host_stages),
            failures=failures,
            nodes=host_comparison.nodes(facts, host_stages),
            left_out=(*problems(broken_lines(read)), *copies, *pods),
        )

    @property
    def problems(self) -> list[str]:
        return [it.sentence for it in self.left_out]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for frame in (self.failures, self.host_stages, self.read):
            frame.unpersist()

    def write(self, folder: str) -> None:
        """Write `nodes`, `host_stages`, `failures` and `tasks` as Parquet below the folder; replaces what is there."""
        frames = {
            "nodes": self.nodes,
            "host_stages": self.host_stages,
            "failures": self.failures,
            "tasks": task_table.tasks(self.facts),
        }
        for name, frame in frames.items():
            frame.write.mode("overwrite").parquet(f"{folder.rstrip('/')}/{name}")

    def summaries(self, ignored_until: IgnoredUntil | None = None) -> list[NodeSummary]:
        """Return one summary per node, sorted by host."""
        ignored = ignored_until or {}
        failed = tally(_failures(self.failures.where(_counts(F.col("last"), ignored))))
        host_applications = self.host_applications
        if ignored:
            counting = self.host_stages.where(_counts(F.col("first"), ignored))
            host_applications = host_comparison.host_applications(counting)
        compared = _comparisons(host_applications)
        return [
            _summary(row, failed.get(row["host"], NO_FAILURES), compared.get(row["host"], ()))
            for row in self.nodes.orderBy("host").collect()
        ]

    def evidence(self, hosts: Collection[str] | None = None) -> list[HostInApplication]:
        """Return what each application shows about each host, or about these ones."""
        wanted = F.col("host").isNotNull() if hosts is None else F.col("host").isin(list(hosts))
        compared = _comparisons(host_comparison.all_host_applications(self.host_stages.where(wanted)))
        failed = _failures(self.failures.where(wanted))
        tasks = self.facts.where((F.col("kind") == "task") & wanted).groupBy("app", "host")
        counted = tasks.agg(
            F.count("*").alias("tasks"), F.min("launched").alias("first"), F.max("time").alias("last")
        ).collect()
        return join_evidence((row.asDict() for row in counted), compared, failed)

    def log_owners(self, owner_of: FileOwner) -> dict[str, str]:
        """Return the owner of each application's log, as far as it is known. Parts of several owners have none."""
        found: defaultdict[str, set[str | None]] = defaultdict(set)
        for row in self.facts.where(F.col("file").isNotNull()).select("app", "file").distinct().collect():
            found[row["app"]].add(owner_of(row["file"]) or None)
        return {app: owner for app, (owner, *others) in found.items() if owner is not None and not others}

    def owners(self, owner_of: FileOwner) -> dict[str, int]:
        """Return the number of file owners whose logs name each host."""
        tasks = self.facts.where(F.col("kind") == "task").select("file", "host").distinct()
        files = [row["file"] for row in tasks.select("file").distinct().collect()]
        owned = [(file, owner) for file in files if (owner := owner_of(file))]
        if len({owner for _, owner in owned}) < 2:
            return {}
        owners = F.broadcast(self.facts.sparkSession.createDataFrame(owned, "file string, owner string"))
        counted = tasks.join(owners, "file").groupBy("host").agg(F.countDistinct("owner").alias("owners"))
        return {row["host"]: row["owners"] for row in counted.collect()}

    def task_times(self) -> list[TaskTime]:
        """Return where task time went, by host and minute."""
        return [TaskTime(**row.asDict()) for row in task_times(self.facts, self.host_stages).collect()]


def _counts(time: Column, ignored: IgnoredUntil) -> Column:
    """Whether evidence of this time counts."""
    outdated = ((F.col("host") == host) & (time < until) for host, until in ignored.items())
    return reduce(lambda counts, old: counts & ~old, outdated, F.lit(True))


def _comparisons(frame: DataFrame) -> dict[str, list[Comparison]]:
    found: defaultdict[str, list[Comparison]] = defaultdict(list)
    for row in frame.orderBy("last", "app", "metric").collect():
        values = row.asDict()
        metric = Metric(values.pop("metric"))
        found[values.pop("host")].append(Comparison(metric=metric, **values))
    return found


def _summary(row: Row, failures: Failures, comparisons: Sequence[Comparison]) -> NodeSummary:
    return NodeSummary(
        host=row["host"],
        tasks=row["tasks"],
        applications=row["applications"],
        stages=row["stages"],
        slow_stages=row["slow_stages"],
        slow_applications=row["slow_applications"],
        expected=row["expected"],
        slowdown=row["slowdown"] or 1.0,
        slow_last=row["slow_last"] or 0,
        share=row["share"],
        failures=failures,
        exclusions=row["exclusions"],
        comparisons=comparisons,
    )


def _failures(frame: DataFrame) -> dict[str, list[ApplicationFailures]]:
    counted = frame.groupBy("app", "host", "failure").agg(
        F.countDistinct("stage", "attempt").alias("stages"),
        F.sum("tasks").alias("tasks"),
        F.sum("lost_ms").alias("lost_ms"),
        F.min("last").alias("first"),
        F.max("last").alias("last"),
        F.flatten(F.collect_list("partitions")).alias("partitions"),
    )
    found: defaultdict[str, list[ApplicationFailures]] = defaultdict(list)
    for row in counted.collect():
        values = row.asDict()
        failure = FailureClass(values.pop("failure"))
        partitions = frozenset(values.pop("partitions"))
        found[values.pop("host")].append(ApplicationFailures(failure=failure, partitions=partitions, **values))
    return found


# Which application each file of an event log belongs to: by its App ID and attempt, wherever the file lies.
#
# All parts of one log belong to one application. Logs of one application that began at the same time are copies: the
# one with most facts counts. Two applications with the same id began at different times.
#
# Whoever can read a log can copy it and add lines. So of copies of several owners only those of the owner count whose
# log was there first; where that is not known, none does.


@dataclass(frozen=True, kw_only=True, slots=True)
class FileFacts:
    """What is known of a file: its application's name by its path, by the log itself, when it began (Unix ms).

    `facts`: number of events that were read, without broken lines. `owners`: of its files. `seen`: when its application
    was first known, in batches.
    """

    file: str
    name: str
    app_id: str | None
    began: int | None
    facts: int
    owners: frozenset[str | None] = frozenset()
    seen: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Applications:
    """The application of each file; None for one that is left out. `problems`: one for each log that is."""

    of_file: Mapping[str, str | None]
    problems: Sequence[Omission]


def assign_applications(facts: DataFrame, owner_of: FileOwner = lambda _: None) -> tuple[DataFrame, Sequence[Omission]]:
    """FACTS -> FACTS with the application of each row, without copies, and a problem for each copy.

    Reads the facts once: persist them before.
    """
    files = facts.groupBy("file").agg(
        F.max("app").alias("name"),
        F.max("app_id").alias("app_id"),
        F.min(F.when(F.col("kind") == "application", F.col("time"))).alias("began"),
        F.count(F.when(F.col("kind") != "broken", 1)).alias("facts"),
    )
    rows = files.where(F.col("file").isNotNull()).collect()
    found = applications(FileFacts(**row.asDict(), owners=frozenset({owner_of(row["file"]) or None})) for row in rows)
    if not found.of_file:
        return facts, found.problems
    named = facts.sparkSession.createDataFrame(list(found.of_file.items()), "file string, named string")
    joined = facts.join(F.broadcast(named), "file", "left")
    kept = joined.where(F.col("file").isNull() | F.col("named").isNotNull())
    return conform(kept.withColumn("app", F.coalesce("named", "app")), FACTS), found.problems


def applications(files: Iterable[FileFacts]) -> Applications:
    logs: defaultdict[str, list[FileFacts]] = defaultdict(list)
    for each in sorted(files, key=lambda file: file.file):
        logs[log_of(each.file)].append(each)
    names = Counter(parts[0].name for parts in logs.values())
    same: defaultdict[tuple[str, int | None], list[str]] = defaultdict(list)
    anonymous: list[str] = []
    for log, parts in logs.items():
        if identity := _identity(parts):
            same[identity].append(log)
        else:
            anonymous.append(log)
    problems: list[Omission] = []
    began: defaultdict[str, set[int | None]] = defaultdict(set)
    for app_id, at in same:
        began[app_id].add(at)
    of_identity = {(it, at): it if len(began[it]) == 1 else f"{it} ({at})" for it, at in same}
    # Without an App ID, files in different folders may have the same name, or that of an application.
    names.update(of_identity.values())
    of_file: dict[str, str | None] = {}
    for log in anonymous:
        name = logs[log][0].name
        of_file |= {part.file: name if names[name] == 1 else log for part in logs[log]}
    for (app_id, at), copies in same.items():
        name = of_identity[app_id, at]
        of_file |= {part.file: None for log in copies for part in logs[log]}
        own = _of_first_owner({log: logs[log] for log in copies})
        if not own:
            problems.append(_unknown(sorted(copies), name))
            continue
        kept = min(own, key=lambda log: (-sum(part.facts for part in logs[log]), log))
        of_file |= {part.file: name for part in logs[kept]}
        problems += [_copy(log, kept, app_id) for log in sorted(copies) if log != kept]
    return Applications(of_file=of_file, problems=problems)


def _of_first_owner(copies: Mapping[str, Sequence[FileFacts]]) -> Collection[str]:
    """Those of the owner whose log of the application was there first; none if several owners had one by then."""
    if len(copies) == 1:
        return copies
    first = min(parts[0].seen for parts in copies.values())
    owners = {log: frozenset[str | None]().union(*(part.owners for part in parts)) for log, parts in copies.items()}
    were_first = frozenset[str | None]().union(*(owners[log] for log in copies if copies[log][0].seen == first))
    return [log for log in copies if owners[log] == were_first] if len(were_first) <= 1 else ()


def _copy(log: str, kept: str, app_id: str) -> Omission:
    return Omission(
        subject=f"copy {log}", sentence=f"{log} is skipped: a copy of {kept}, the log of application {app_id}."
    )


def _unknown(copies: Sequence[str], name: str) -> Omission:
    logs = f"{copies[0]} and {copies[1]}" + (f" and {len(copies) - 2} more" if len(copies) > 2 else "")
    return Omission(
        subject=f"owner of {name}",
        sentence=f"Application {name} is left out: its logs have several owners, and the original is unknown: {logs}.",
    )


def _identity(parts: Sequence[FileFacts]) -> tuple[str, int | None] | None:
    """App ID with its attempt, and the start, as one part of the log has them."""
    return next(((part.app_id, part.began) for part in parts if part.app_id is not None), None)


# Where task time went: lost to the faults of a host, or spent as its peers would have: FACTS -> TASK_TIMES.

MINUTE_MS: Final = 60_000


def task_times(facts: DataFrame, compared: DataFrame) -> DataFrame:
    """FACTS and HOST_STAGES -> TASK_TIMES.

    A task that succeeded in a stage in which its host was slow has lost what its peers would not have needed; the rest
    of it counts as neither. A task that failed by the fault of its host has lost all its time. All other tasks that
    succeeded are healthy time.
    """
    succeeded = facts.where((F.col("kind") == "task") & (F.col("outcome") == "Success") & F.col("run_ms").isNotNull())
    excess = compared.where("slow").groupBy(*STAGE, "host").agg(*(_excess(metric) for metric in Metric))
    joined = with_network_time(succeeded).join(excess, [*STAGE, "host"], "left").withColumn("lost", _lost())
    ran = joined.select(
        "host",
        "launched",
        F.coalesce("lost", F.lit(0.0)).alias("lost"),
        F.when(F.col("lost").isNull(), F.col("run_ms")).otherwise(0).alias("healthy"),
    )
    charged = charged_tasks(facts).where(F.col("failure").isin(*(it.value for it in CHARGED_TO_NODE)))
    failed = charged.where(F.col("host").isNotNull()).select(
        "host", "launched", F.coalesce("duration", F.lit(0)).cast("double").alias("lost"), F.lit(0).alias("healthy")
    )
    minute = (F.floor(F.col("launched") / MINUTE_MS) * MINUTE_MS).alias("minute")
    summed = ran.unionAll(failed).groupBy("host", minute)
    return conform(
        summed.agg(
            F.sum("lost").cast("long").alias("lost_ms"), F.sum(F.col("healthy").cast("long")).alias("healthy_ms")
        ),
        TASK_TIMES,
    )


def _excess(metric: Metric) -> Column:
    """The share of the time by this metric that peers would not have needed, in a slow stage; else null."""
    return F.max(F.when(F.col("metric") == metric.value, 1 - 1 / F.col("slowdown"))).alias(f"{metric.value}_excess")


def _lost() -> Column:
    """What a task has lost by the worst metric; null if its host was not slow in the stage."""
    return F.greatest(*(F.col(f"{metric.value}_excess") * F.col(time) for metric, time in TIME_BY_METRIC.items()))
