"""What event logs, or tables of tasks, show as a whole: Spark has read them into facts, DuckDB compares the hosts."""

from __future__ import annotations

import glob
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import DataFrame

from blocklist.detection import application_store, reader, task_table
from blocklist.detection.application_store import IGNORED, ApplicationStore
from blocklist.detection.applications import FileOwner, IgnoredUntil, KnownNodes
from blocklist.detection.node_summary import (
    CHARGED_TO_NODE,
    HostInApplication,
    NodeSummary,
    TaskTime,
    join_evidence,
)
from blocklist.detection.schemas import FAILURES, HOST_STAGES, NODES, typed

_KEEP: Final = """
INSERT INTO kept_facts FROM facts;
INSERT INTO kept_stages FROM host_stages;
INSERT INTO kept_failed SELECT app, host, launched, duration, failure FROM charged_tasks WHERE host IS NOT NULL;
"""
_KEPT: Final = """
CREATE TABLE kept_facts AS FROM facts;
CREATE TABLE kept_stages AS FROM host_stages;
CREATE TABLE kept_failed AS SELECT app, host, launched, duration, failure FROM charged_tasks;
"""
_ALL: Final = """
CREATE TEMP VIEW all_facts AS
SELECT kept_facts.* REPLACE (named.app AS app) FROM kept_facts JOIN named ON id = kept_facts.app;
CREATE TEMP VIEW all_stages AS
SELECT kept_stages.* REPLACE (named.app AS app) FROM kept_stages JOIN named ON id = kept_stages.app;
CREATE TEMP VIEW all_failures AS FROM charged JOIN named USING (id);

CREATE TEMP TABLE host_totals AS
WITH ran AS (
    SELECT host, count(*) AS tasks, count(DISTINCT app) AS applications,
        sum(gc_ms) / nullif(sum(run_ms), 0) AS gc_share,
        sum(fetch_wait_ms) / nullif(sum(run_ms), 0) AS fetch_wait_share,
        sum(coalesce(shuffle_bytes, 0)) / nullif(sum(coalesce(input_bytes, 0) + coalesce(shuffle_bytes, 0)), 0)
            AS shuffle_share
    FROM all_facts WHERE kind = 'task' GROUP BY host
), excluded AS (  -- Spark 3 logs each exclusion under two names
    SELECT host, count(*) AS exclusions
    FROM (SELECT DISTINCT host, time, app, stage, attempt FROM all_facts WHERE kind = 'excluded') GROUP BY host
), compared AS (
    SELECT host, count(*) AS stages, count_if(slow) AS slow_stages, sum(slow_hosts / hosts) AS expected,
        median(slowdown) AS slowdown, max(last) FILTER (slow) AS slow_last
    FROM all_stages WHERE metric = 'compute' GROUP BY host
), slow AS (
    SELECT host, count(*) AS slow_applications FROM (
        SELECT host FROM all_stages WHERE metric = 'compute' GROUP BY host, app HAVING count_if(slow) >= count(*) / 2
    ) GROUP BY host
)
SELECT * REPLACE (
        coalesce(exclusions, 0) AS exclusions, coalesce(stages, 0) AS stages, coalesce(slow_stages, 0) AS slow_stages,
        coalesce(slow_applications, 0) AS slow_applications, coalesce(expected, 0) AS expected
    ), tasks / sum(tasks) OVER () AS share
FROM ran LEFT JOIN excluded USING (host) LEFT JOIN compared USING (host) LEFT JOIN slow USING (host);
"""
_TASK_TIMES: Final = """
-- A task that succeeded in a stage in which its host was slow has lost what its peers would not have needed; the rest
-- of it counts as neither. A task that failed by the fault of its host has lost all its time. All other tasks that
-- succeeded are healthy time.
WITH excess AS (  -- the share of the time by a metric that peers would not have needed
    SELECT app, stage, attempt, host,
        max(1 - 1 / slowdown) FILTER (metric = 'compute') AS compute,
        max(1 - 1 / slowdown) FILTER (metric = 'network') AS network,
        max(1 - 1 / slowdown) FILTER (metric = 'disk') AS disk,
        max(1 - 1 / slowdown) FILTER (metric = 'start') AS start
    FROM kept_stages WHERE slow GROUP BY ALL
), ran AS (
    SELECT kept_facts.app, host, launched, run_ms, greatest(compute * run_ms, network * fetch_wait_ms, disk * write_ms,
        start * (deserialize_ms + coalesce(fetch_wait_ms, 0))) AS lost
    FROM kept_facts LEFT JOIN excess USING (app, stage, attempt, host)
    WHERE kind = 'task' AND outcome = 'Success' AND run_ms IS NOT NULL
), spent AS (
    SELECT app, host, launched, coalesce(lost, 0) AS lost, CASE WHEN lost IS NULL THEN run_ms ELSE 0 END AS healthy
    FROM ran
    UNION ALL
    SELECT app, host, launched, coalesce(duration, 0), 0 FROM kept_failed WHERE list_contains($charged, failure)
)
SELECT host, launched // 60000 * 60000 AS minute, trunc(sum(lost))::BIGINT AS lost_ms,
    sum(healthy)::BIGINT AS healthy_ms
FROM spent SEMI JOIN named ON id = spent.app GROUP BY ALL
"""
_HOST_STAGES: Final = """
WITH partitions AS (
    SELECT app, stage, attempt, host, metric, list({'partition': partition, 'slowdown': slowdown}) AS by_partition
    FROM task_slowdowns GROUP BY ALL
), stages AS (
    SELECT * REPLACE (coalesce(by_partition, []) AS by_partition)
    FROM host_stages LEFT JOIN partitions USING (app, stage, attempt, host, metric)
)
SELECT stages.* REPLACE (named.app AS app) FROM stages JOIN named ON id = stages.app
"""


class Analysis(ApplicationStore):
    """All applications at once: `all_facts`, `all_stages` and `all_failures` are tables with their names."""

    memory = "2GB"

    def __init__(
        self,
        folder: Path,
        known_nodes: KnownNodes = dict,
        owner_of: FileOwner = lambda _: None,
        *,
        are_named: bool = False,
        are_logs_trusted: bool = False,
    ) -> None:
        """Analyse the facts in a folder, which are Parquet files; the database is put beside them.

        `are_named`: the rows of a table name their applications; those of event logs are found by file.
        """
        path = folder / "analysis.duckdb"
        super().__init__(path, cache(known_nodes), owner_of, are_logs_trusted=are_logs_trusted)
        self._folder = folder
        self._are_named = are_named
        self._since = -(2**63)
        self._compute(())
        self._db.execute(_KEPT)
        with self._transaction():
            app_id = " REPLACE (app AS app_id)" if are_named else ""
            facts = self._db.read_parquet(f"{glob.escape(str(folder))}/*.parquet")
            facts.project(f"*{app_id}").create_view("batch", replace=True)
            self._insert(0, time.time_ns() // 1_000_000)
        while self.analyse_more():
            pass
        self.problems = [it.sentence for it in self.name_applications()]
        """A sentence for each line, log and pod that is left out."""
        self._db.execute(_ALL)

    def close(self) -> None:
        self._db.close()

    def _log(self, file: str, app: str) -> str:
        return app if self._are_named else super()._log(file, app)

    def _after_analysis(self, logs: Sequence[Mapping[str, Any]]) -> None:  # noqa: ARG002 - nothing is deleted
        """Keep what the report and a backtest need."""
        self._db.execute(_KEEP)

    def compare_again(self, apps: Collection[str] | None = None) -> Iterator[None]:
        """Make the tables of evidence.sql again for these applications, or all, as many at once as fit in memory."""
        self.table("ignored", IGNORED, ())
        self.table("asked", {"app": pa.string()}, [(app,) for app in apps or ()])
        portions = self.rows(
            """
            SELECT list(id) AS ids FROM (
                SELECT id, sum(kept) OVER (ORDER BY id) // $facts AS portion FROM logs JOIN named USING (id)
                WHERE $all OR app IN (FROM asked)
            ) GROUP BY portion ORDER BY portion
            """,
            facts=application_store.FACTS_AT_ONCE,
            all=apps is None,
        )
        for ids in [row["ids"] for row in portions] or [[]]:
            self._compute(ids)
            yield

    def summaries(self, ignored_until: IgnoredUntil | None = None) -> list[NodeSummary]:
        """Return one summary per node, sorted by host, with its counts of stages."""
        rows = self.rows(
            "SELECT host, stages, slow_stages, slow_applications, expected, exclusions,"
            " coalesce(slowdown, 1) AS slowdown, coalesce(slow_last, 0) AS slow_last FROM host_totals"
        )
        totals = {row.pop("host"): row for row in rows}
        return [replace(node, **totals[node.host]) for node in super().summaries(ignored_until)]

    def evidence(self, hosts: Collection[str] | None = None) -> list[HostInApplication]:
        """Return what each application shows about each host, or about these ones."""
        self.table("ignored", IGNORED, ())
        ran = self.rows("SELECT app, host, tasks, first, last FROM counted JOIN named USING (id)")
        found = join_evidence(ran, self._comparisons(latest=2**31), self._failures())
        return [it for it in found if hosts is None or it.host in hosts]

    def task_times(self) -> list[TaskTime]:
        """Return where task time went, by host and minute: lost to the faults of a host, or as its peers'."""
        return [TaskTime(**row) for row in self.rows(_TASK_TIMES, charged=[it.value for it in CHARGED_TO_NODE])]

    def write(self) -> Path:
        """Write `nodes`, `host_stages`, `failures` and `tasks`, each as a folder of Parquet files; return where."""
        folder = self._folder / "parquet"
        self._write("FROM host_totals", typed(NODES), folder / "nodes")
        self._write("FROM all_failures", typed(FAILURES), folder / "failures")
        self._write("FROM all_facts WHERE kind = 'task'", task_table.columns_of_tasks(), folder / "tasks")
        for number, _ in enumerate(self.compare_again()):
            self._write(_HOST_STAGES, typed(HOST_STAGES), folder / "host_stages", number)
        return folder

    def _write(self, query: str, columns: str, folder: Path, number: int = 0) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._db.sql(query).project(columns).write_parquet(str(folder / f"{number}.parquet"))


@contextmanager
def analysed(
    facts: DataFrame, known_nodes: KnownNodes = dict, owner_of: FileOwner = lambda _: None, **options: bool
) -> Iterator[Analysis]:
    """Analyse facts as Spark reads them. The files of the analysis are removed at the end."""
    with TemporaryDirectory(prefix="blocklist-detection-") as name:
        reader.save(facts, Path(name))
        with closing(Analysis(Path(name), known_nodes, owner_of, **options)) as analysis:
            yield analysis
