"""What applications show: their logs are stored as facts on disk, and analysed some at a time, by DuckDB.

Memory has at most MEMORY of them. `--follow` adds what is new, batch by batch; analysis.Analysis has all logs at once.

While following, an application is analysed when its log grows. It is forgotten as a whole, when its last event leaves
the window; of one that runs longer, single events are, but not where its executors run. A batch takes no longer because
an application has run for long: of each, the latest stages are analysed, KEPT_TASKS or more, and at most FACTS_AT_ONCE
in a batch; the other applications wait. Of earlier stages the failures and the numbers of tasks are kept.
"""

from __future__ import annotations

import glob
import math
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final
from zlib import crc32

import duckdb
import pyarrow as pa

from blocklist.detection.applications import (
    KUBERNETES_APP_ID,
    FileFacts,
    FileOwner,
    IgnoredUntil,
    KnownNodes,
    applications,
    pod_nodes,
    pod_problems,
)
from blocklist.detection.host_comparison import EVIDENCE, compare
from blocklist.detection.log_file import COMPACT, log_of
from blocklist.detection.node_summary import (
    MAX_APPLICATIONS,
    NO_FAILURES,
    ApplicationFailures,
    Comparison,
    FailureClass,
    Metric,
    NodeSummary,
    tally,
)
from blocklist.detection.reader import QUIET_SECONDS, problems
from blocklist.detection.schemas import COLUMNS, Omission
from blocklist.detection.slowness import MIN_EFFECT
from blocklist.model.errors import BlocklistError

WINDOW_MS: Final = 24 * 3_600_000
"""Length of the window that is analysed, up to now."""
FORGET_AFTER: Final = 50
"""Number of batches after which events that have left the window are deleted, and logs that are quiet.

The database is opened again then: DuckDB keeps a kilobyte of each temporary table until it is closed, 1.3 GB in a day.
"""
MEMORY: Final = "512MB"
"""Maximum memory of the database; it keeps what does not fit on disk."""
FACTS_AT_ONCE: Final = 200_000
"""Number of facts of some applications that are analysed at once; those of one are never divided."""
KEPT_TASKS: Final = 5000
"""Minimum number of facts about stages of an application that are analysed: from twice as many on, the others go."""
KEPT_STAGES: Final = 20
"""Minimum number of stages of an application that are analysed, however large they are."""

_COLUMNS: Final = ", ".join(f"{name} {kind}" for name, kind in COLUMNS.items() if name not in {"file", "app"})
_TABLES: Final = f"""
CREATE TABLE IF NOT EXISTS batches (number BIGINT);
CREATE TABLE IF NOT EXISTS logs (
    id BIGINT, log TEXT, file TEXT, name TEXT, app_id TEXT, began BIGINT, facts BIGINT, last BIGINT, seen BIGINT,
    compacted BOOLEAN, unknown_pods BIGINT, identified BIGINT, kept BIGINT, waiting BIGINT
);
CREATE TABLE IF NOT EXISTS files (file TEXT, app TEXT, id BIGINT, owner TEXT, lines BIGINT, note TEXT);
CREATE TABLE IF NOT EXISTS stored (id BIGINT, {_COLUMNS});
CREATE TABLE IF NOT EXISTS counted (id BIGINT, host TEXT, tasks BIGINT, first BIGINT, last BIGINT, ended BOOLEAN);
CREATE TABLE IF NOT EXISTS compared (
    id BIGINT, host TEXT, metric TEXT, stages BIGINT, slow_stages BIGINT, slowdown DOUBLE, lost_ms BIGINT, first BIGINT,
    last BIGINT, earliest BIGINT, latest BIGINT
);
CREATE TABLE IF NOT EXISTS charged (
    id BIGINT, stage BIGINT, attempt BIGINT, host TEXT, failure TEXT, tasks BIGINT, lost_ms BIGINT, last BIGINT,
    partitions BIGINT[], message TEXT, ended BOOLEAN
);
CREATE TEMP TABLE ignored (host TEXT, until BIGINT);
"""
_FORGET: Final = "".join(
    "DELETE FROM {table} WHERE id IN (FROM gone);".replace("{table}", table)
    for table in ("stored", "counted", "compared", "charged", "files", "logs")
)


_VERSION: Final = crc32(f"{_TABLES}{EVIDENCE}".encode())
"""Version of a checkpoint: a checksum of its tables, of the queries, and of the thresholds in them."""
_READ_AGAIN: Final = "Delete the folder; all logs of the last 48 hours are read again."


@contextmanager
def operational_errors() -> Iterator[None]:
    """The disk is full, say, or another process has the file. Raises BlocklistError."""
    try:
        yield
    except (duckdb.OperationalError, duckdb.FatalException) as error:
        raise BlocklistError(f"The checkpoint cannot be used: {str(error).splitlines()[0]}") from None


class ApplicationStore:
    """The logs of a folder, and what is known of each; `add` takes what is new."""

    memory = MEMORY

    def __init__(
        self, path: Path, known_nodes: KnownNodes, owner_of: FileOwner, *, are_logs_trusted: bool = False
    ) -> None:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._path = path
        self._known_nodes = known_nodes
        self._owner_of = owner_of
        self._are_logs_trusted = are_logs_trusted
        self._since = 0
        self._has_added = False
        with operational_errors():
            self._open()

    def _open(self) -> None:
        self._db = duckdb.connect(str(self._path), config={"memory_limit": self.memory})
        self._check_version()
        self._db.execute(_TABLES)

    def _check_version(self) -> None:
        """Raises BlocklistError for the file of another version: its tables, or what is in them, may differ."""
        tables = self.rows("SELECT table_name FROM duckdb_tables() WHERE NOT temporary")
        if not tables:
            self._db.execute("CREATE TABLE version AS SELECT $version AS number", {"version": _VERSION})
        elif {"table_name": "version"} not in tables or self.rows("FROM version") != [{"number": _VERSION}]:
            raise BlocklistError(
                f"The checkpoint {self._path.parent} was made by another version of blocklist. {_READ_AGAIN}"
            )

    def add(self, number: int, folder: Path) -> bool:
        """Store the FACTS of a batch, Parquet files, and analyse applications: after the start all, then some.

        Returns False if there is nothing to decide on.
        """
        now = time.time_ns() // 1_000_000
        self._since = now - WINDOW_MS
        known = self.rows("SELECT number FROM batches")
        last = known[0]["number"] if known else -1
        if number == last:
            return True  # its decision may not have been reported
        if number != last + 1:
            raise BlocklistError(
                f"Batch {number} follows batch {last}: a part of the checkpoint is missing or from another time."
                f" {_READ_AGAIN}"
            )
        if number % FORGET_AFTER == 0:
            self._db.close()
            self._open()
        with self._transaction():
            self._db.read_parquet(f"{glob.escape(str(folder))}/*.parquet").create_view("batch", replace=True)
            if number % FORGET_AFTER == 0:
                self._forget(quiet_since=now - 1000 * QUIET_SECONDS)
            changed = self._insert(number, now)
            while self._analyse_next() and not self._has_added:
                pass
            self._db.execute("DELETE FROM batches; INSERT INTO batches VALUES ($number)", {"number": number})
        self._has_added = True
        return changed

    def analyse_more(self) -> bool:
        """Analyse some of the applications that wait. Returns False if none does."""
        with self._transaction():
            return self._analyse_next()

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        self._db.begin()
        try:
            yield
        except BaseException:
            self._db.rollback()
            raise
        self._db.commit()

    def rows(self, query: str, **parameters: Any) -> list[dict[str, Any]]:
        found = self._db.execute(query, parameters)
        names = [column[0] for column in found.description]
        return [dict(zip(names, row, strict=True)) for row in found.fetchall()]

    def table(self, name: str, schema: Mapping[str, pa.DataType], rows: Iterable[Sequence[Any]]) -> None:
        """Make a temporary table."""
        columns = list(zip(*rows, strict=True)) or [()] * len(schema)
        arrays = [pa.array(values, kind) for values, kind in zip(columns, schema.values(), strict=True)]
        self._db.register("given", pa.table(arrays, list(schema)))
        self._db.execute(f"CREATE OR REPLACE TEMP TABLE {name} AS FROM given")
        self._db.unregister("given")

    def _log(self, file: str, app: str) -> str:  # noqa: ARG002 - tables have several applications in a file
        """The log that a file belongs to: all of it is of one application."""
        return log_of(file)

    def _insert(self, number: int, now: int) -> bool:
        """Store the facts of the batch: the logs that they are about wait to be analysed. False if there is none."""
        files = self.rows("SELECT DISTINCT file, app FROM batch ORDER BY file, app")
        new = ((row["file"], row["app"], self._log(**row), self._owner_of(row["file"]) or None) for row in files)
        self.table("named_files", dict.fromkeys(("file", "app", "log", "owner"), pa.string()), new)
        # A file of another owner is another file of the same name: what the old one had is not the new owner's word.
        self._db.execute(
            """
            CREATE OR REPLACE TEMP TABLE gone AS SELECT id FROM files JOIN named_files USING (file)
            WHERE named_files.owner IS NOT NULL AND named_files.owner IS DISTINCT FROM files.owner
            """
        )
        self._db.execute(_FORGET)
        self._db.execute(
            """
            CREATE OR REPLACE TEMP TABLE again AS
            SELECT DISTINCT id FROM batch JOIN files USING (file, app) WHERE kind = 'log';
            DELETE FROM counted WHERE ended AND id IN (FROM again);
            DELETE FROM charged WHERE ended AND id IN (FROM again);
            INSERT INTO logs BY NAME
            SELECT (SELECT coalesce(max(id), 0) FROM logs) + row_number() OVER (ORDER BY log) AS id, log,
                min(file) AS file, 0 AS facts, 0 AS kept, false AS compacted, 0 AS unknown_pods
            FROM named_files ANTI JOIN logs USING (log) GROUP BY log;
            INSERT INTO files SELECT file, app, id, named_files.owner, 0, NULL
            FROM named_files ANTI JOIN files USING (file, app) JOIN logs USING (log);
            UPDATE files SET owner = named_files.owner FROM named_files WHERE named_files.file = files.file;
            INSERT INTO stored BY NAME
            SELECT * EXCLUDE (file, app, owner, lines, note) FROM batch JOIN files USING (file, app)
            WHERE kind NOT IN ('broken', 'log');
            UPDATE files SET lines = files.lines + new.lines, note = greatest(files.note, new.note) FROM (
                SELECT file, app, count(*) AS lines, max(detail) AS note FROM batch WHERE kind = 'broken' GROUP BY ALL
            ) AS new WHERE new.file = files.file AND new.app = files.app;
            """
        )
        changed = self.rows(
            """
            UPDATE logs SET name = coalesce(logs.name, new.name), app_id = coalesce(logs.app_id, new.app_id),
                began = least(logs.began, new.began), facts = logs.facts + new.facts,
                kept = logs.kept + new.facts, waiting = coalesce(waiting, $number),
                identified = CASE WHEN coalesce(logs.app_id, new.app_id) IS DISTINCT FROM logs.app_id
                    OR least(logs.began, new.began) IS DISTINCT FROM logs.began THEN $number ELSE identified END,
                last = greatest(logs.last, new.last), seen = $now,
                compacted = logs.compacted OR new.compacted OR logs.id IN (FROM again)
            FROM (
                SELECT id, max(app) AS name, max(app_id) AS app_id, min(time) FILTER (kind = 'application') AS began,
                    count_if(kind <> 'broken') AS facts, max(time) AS last, bool_or(file LIKE $compact) AS compacted
                FROM batch JOIN files USING (file, app) GROUP BY id
            ) AS new WHERE new.id = logs.id RETURNING id
            """,
            number=number,
            now=now,
            compact=f"%{COMPACT}",
        )
        return bool(changed)

    def _analyse_next(self) -> bool:
        """Analyse those that have waited longest, as many as fit in FACTS_AT_ONCE. Returns False if none waits."""
        waiting = self.rows(
            """
            SELECT id, kept FROM logs WHERE waiting IS NOT NULL
            WINDOW queue AS (ORDER BY waiting, id ROWS UNBOUNDED PRECEDING)
            QUALIFY row_number() OVER queue = 1 OR sum(kept) OVER queue <= $facts
            """,
            facts=FACTS_AT_ONCE,
        )
        if waiting:
            self._analyse([row["id"] for row in waiting])
            self._after_analysis(waiting)
            self._db.execute("UPDATE logs SET waiting = NULL WHERE id IN (FROM wanted)")
        return bool(waiting)

    def _analyse(self, ids: Sequence[int]) -> None:
        self.table("ignored", IGNORED, ())
        for log, pods in self._compute(ids).items():
            self._db.execute("UPDATE logs SET unknown_pods = $pods WHERE id = $id", {"pods": pods, "id": log})
        self._db.execute(
            """
            CREATE OR REPLACE TEMP TABLE before AS FROM compared
            WHERE id IN (FROM wanted) AND id IN (SELECT id FROM counted WHERE ended);
            DELETE FROM counted WHERE id IN (FROM wanted) AND NOT ended;
            DELETE FROM compared WHERE id IN (FROM wanted);
            DELETE FROM charged WHERE id IN (FROM wanted) AND NOT ended;
            INSERT INTO counted
            SELECT app, host, count(*), min(launched), max(time), false FROM facts WHERE kind = 'task' GROUP BY ALL;
            INSERT INTO compared BY NAME SELECT * RENAME (app AS id) FROM host_applications;
            INSERT INTO charged BY NAME SELECT * RENAME (app AS id), false AS ended FROM failures;
            """
        )
        # The stages that are kept may take seconds: a host that was slow in those before, too, is so since then.
        self._db.execute(
            """
            UPDATE compared SET first = greatest($since, least(compared.first, before.first)) FROM before
            WHERE before.id = compared.id AND before.host = compared.host AND before.metric = compared.metric
                AND (before.slowdown >= $slow) = (compared.slowdown >= $slow)
            """,
            {"since": self._since, "slow": math.exp(MIN_EFFECT)},
        )

    def _after_analysis(self, logs: Sequence[Mapping[str, Any]]) -> None:
        """Delete the earlier stages of long applications, whose `facts` are there; those that may run on go last."""
        ids = [row["id"] for row in logs if row["kept"] > 2 * KEPT_TASKS]
        if not ids:
            return
        self.table("long", {"id": pa.int64()}, ((it,) for it in ids))
        self._db.execute(
            """
            CREATE OR REPLACE TEMP TABLE earlier AS
            SELECT id, stage, coalesce(attempt, -1) AS attempt FROM (
                SELECT id, stage, attempt, count(*) AS facts, max(time) AS last,
                    count_if(outcome = 'Success') >= max(tasks) AS complete
                FROM stored WHERE id IN (FROM long) AND kind IN ('stage', 'task') GROUP BY id, stage, attempt
            )
            QUALIFY row_number() OVER (PARTITION BY id ORDER BY last DESC, stage, attempt) > $stages
                AND sum(facts) OVER (PARTITION BY id ORDER BY complete, last DESC, stage, attempt
                    ROWS UNBOUNDED PRECEDING) > $tasks
            """,
            {"stages": KEPT_STAGES, "tasks": KEPT_TASKS},
        )
        self._db.execute(
            """
            UPDATE charged SET ended = true FROM earlier WHERE charged.id = earlier.id
                AND charged.stage = earlier.stage AND coalesce(charged.attempt, -1) = earlier.attempt;
            DELETE FROM counted WHERE id IN (FROM long) AND NOT ended;
            INSERT INTO counted
            SELECT app, host, count(*), min(launched), max(time), earlier.id IS NOT NULL FROM facts LEFT JOIN earlier
                ON earlier.id = app AND earlier.stage = facts.stage AND earlier.attempt = coalesce(facts.attempt, -1)
            WHERE kind = 'task' AND app IN (FROM long) GROUP BY app, host, earlier.id IS NOT NULL;
            DELETE FROM stored USING earlier WHERE stored.id = earlier.id AND kind IN ('stage', 'task')
                AND stored.stage = earlier.stage AND coalesce(stored.attempt, -1) = earlier.attempt;
            UPDATE logs SET kept = (SELECT count(*) FROM stored WHERE stored.id = logs.id) WHERE id IN (FROM long);
            """
        )

    def _compute(self, ids: Sequence[int]) -> Mapping[Any, int]:
        """Compare the hosts in these applications. Returns the numbers of pods on unknown nodes."""
        self.table("wanted", {"id": pa.int64()}, ((it,) for it in ids))
        self._db.execute(
            """
            CREATE OR REPLACE TEMP TABLE chosen AS SELECT * RENAME (id AS app) FROM stored
            WHERE id BETWEEN $low AND $high AND id IN (FROM wanted)
                AND (time IS NULL OR kind IN ('application', 'executor') OR time >= $since)
            """,
            {"low": min(ids, default=0), "high": max(ids, default=-1), "since": self._since},
        )
        unknown = self._find_pods()
        # A compacted part repeats facts of the parts that it replaces, which may have been read before; a file that was
        # copied again, or not listed for a while, is read from its start.
        self._db.execute(
            """
            CREATE OR REPLACE TEMP VIEW once AS
            WITH repeated AS (SELECT id AS app FROM logs WHERE compacted)
            FROM chosen ANTI JOIN repeated USING (app)
            UNION ALL SELECT DISTINCT * FROM chosen SEMI JOIN repeated USING (app);
            CREATE OR REPLACE TEMP TABLE facts AS
            SELECT once.* REPLACE (
                CASE WHEN pods.app IS NULL THEN once.host ELSE here.node END AS host,
                CASE WHEN pods.app IS NULL THEN once.served_by ELSE server.node END AS served_by)
            FROM once LEFT JOIN pods ON pods.app = once.app
                LEFT JOIN nodes AS here ON here.app = once.app AND here.address = once.host
                LEFT JOIN nodes AS server ON server.app = once.app AND server.address = once.served_by
            WHERE pods.app IS NULL OR kind NOT IN ('task', 'excluded') OR here.node IS NOT NULL
            """
        )
        compare(self._db)
        return unknown

    def _find_pods(self) -> Mapping[Any, int]:
        """Make `pods`, the applications on Kubernetes, and `nodes`, those of their pods. See applications.pod_nodes."""
        self._db.execute(
            """
            CREATE OR REPLACE TEMP TABLE pods AS SELECT app FROM chosen GROUP BY app HAVING coalesce(
                bool_or(starts_with(detail, 'k8s://')) FILTER (kind = 'environment' AND NOT starts_with(detail, '*')),
                bool_or(regexp_matches(app_id, $by_id)) FILTER (kind = 'application'))
            """,
            {"by_id": KUBERNETES_APP_ID},
        )
        executors = self.rows(
            "SELECT DISTINCT app, host, detail FROM chosen SEMI JOIN pods USING (app)"
            " WHERE kind = 'executor' AND detail IS NOT NULL"
        )
        used = self.rows(
            "SELECT DISTINCT app, host FROM chosen SEMI JOIN pods USING (app) WHERE kind IN ('task', 'excluded')"
        )
        found = pod_nodes(executors, used, self._known_nodes)
        rows = ((app, address, node) for (app, address), node in found.of_address.items())
        self.table("nodes", {"app": pa.int64(), "address": pa.string(), "node": pa.string()}, rows)
        return {row["app"]: found.unknown.get(row["app"], 0) for row in used}

    def _forget(self, quiet_since: int) -> None:
        """Delete events before the window, and quiet logs. What one of these has, if it is read again, is older."""
        query = "CREATE OR REPLACE TEMP TABLE gone AS SELECT id FROM logs WHERE seen < $before"
        self._db.execute(query, {"before": quiet_since})
        self._db.execute(_FORGET)
        since = {"since": self._since}
        self._db.execute("DELETE FROM counted WHERE ended AND last < $since", since)
        self._db.execute("DELETE FROM charged WHERE ended AND last < $since", since)
        # An executor may run on, so the last one at each address stays: it tells the node of its pod.
        self._db.execute(
            """
            DELETE FROM stored WHERE time < $since AND kind NOT IN ('application', 'executor') OR rowid IN (
                SELECT rowid FROM stored WHERE kind = 'executor' AND time < $since
                QUALIFY row_number() OVER (PARTITION BY id, host ORDER BY time DESC) > 1)
            """,
            since,
        )

    # What the decision across applications takes, as Analysis has it.

    def name_applications(self) -> list[Omission]:
        """Find the applications of the logs in the window. Returns what is left out: lines, logs and pods."""
        # Most logs share neither an App ID nor a file's name with another one: they need no comparison.
        self._db.execute(
            "CREATE OR REPLACE TEMP TABLE current AS FROM logs WHERE least(coalesce(last, seen), seen) >= $since",
            {"since": self._since},
        )
        shared = self.rows(
            """
            CREATE OR REPLACE TEMP TABLE shared AS FROM current QUALIFY count(*) OVER (PARTITION BY name) > 1
                OR app_id IS NOT NULL AND count(*) OVER (PARTITION BY app_id) > 1
                OR count(*) OVER (PARTITION BY coalesce(app_id, name)) > 1 OR app_id IS NULL AND name LIKE '% (%)';
            SELECT id, any_value(shared.file) AS file, any_value(name) AS name, any_value(app_id) AS app_id,
                any_value(began) AS began, any_value(facts) AS facts, any_value(coalesce(identified, 0)) AS seen,
                list(DISTINCT coalesce(owner, '')) AS owners
            FROM shared JOIN files USING (id) GROUP BY id
            """
        )
        ids = {row["file"]: row.pop("id") for row in shared}
        if self._are_logs_trusted:
            shared = [{**row, "owners": ()} for row in shared]
        found = applications(FileFacts(**{**row, "owners": frozenset(row["owners"])}) for row in shared)
        apps = ((ids[file], app) for file, app in found.of_file.items() if app is not None)
        self.table("named_shared", {"id": pa.int64(), "app": pa.string()}, apps)
        self._db.execute(
            """
            CREATE OR REPLACE TEMP TABLE named AS FROM named_shared
            UNION ALL SELECT id, coalesce(app_id, name) FROM current ANTI JOIN shared USING (id);
            CREATE OR REPLACE TEMP VIEW owned AS
            SELECT id, min(owner) AS owner FROM files SEMI JOIN named USING (id) GROUP BY id
            HAVING count(owner) = count(*) AND count(DISTINCT owner) = 1;
            """
        )
        pods = self.rows("SELECT app, unknown_pods FROM named JOIN logs USING (id) WHERE unknown_pods > 0")
        broken = self.rows("SELECT file, lines, note FROM files WHERE lines > 0 ORDER BY lines DESC, file")
        return [
            *problems(broken),
            *found.problems,
            *pod_problems({row["app"]: row["unknown_pods"] for row in pods}),
        ]

    def summaries(self, ignored_until: IgnoredUntil | None = None) -> list[NodeSummary]:
        """Return one summary per node, sorted by host: what judge and release take, without counts of stages."""
        self.table("ignored", IGNORED, (ignored_until or {}).items())
        rows = self.rows(
            "SELECT host, sum(tasks)::BIGINT AS tasks, count(DISTINCT id) AS applications"
            " FROM counted SEMI JOIN named USING (id) GROUP BY host ORDER BY host"
        )
        total = sum(row["tasks"] for row in rows)
        failures, comparisons = tally(self._failures()), self._comparisons()
        return [
            NodeSummary(
                **row,
                share=row["tasks"] / total,
                failures=failures.get(row["host"], NO_FAILURES),
                comparisons=comparisons.get(row["host"], ()),
            )
            for row in rows
        ]

    def _comparisons(self, latest: int = MAX_APPLICATIONS) -> Mapping[str, list[Comparison]]:
        """Those of the latest applications of each host; where some stages of one count, it is compared again."""
        partly = self.rows(
            "SELECT DISTINCT id FROM compared SEMI JOIN named USING (id) JOIN ignored USING (host)"
            " WHERE earliest < until AND latest >= until"
        )
        ids = [row["id"] for row in partly]
        self._compute(ids)
        rows = self.rows(
            """
            WITH counting AS (
                SELECT compared.* REPLACE (greatest(first, until) AS first)
                FROM compared LEFT JOIN ignored ON ignored.host = compared.host
                WHERE until IS NULL OR earliest >= until AND id NOT IN (FROM wanted)
                UNION ALL BY NAME SELECT * RENAME (app AS id) FROM host_applications SEMI JOIN ignored USING (host)
            )
            SELECT app, metric, stages, slow_stages, slowdown, lost_ms, first, last, host
            FROM counting JOIN named USING (id)
            QUALIFY row_number() OVER (PARTITION BY host, metric ORDER BY last DESC, app DESC) <= $latest
            ORDER BY last, app, metric
            """,
            latest=latest,
        )
        found: defaultdict[str, list[Comparison]] = defaultdict(list)
        for row in rows:
            found[row.pop("host")].append(Comparison(metric=Metric(row.pop("metric")), **row))
        return found

    def _failures(self) -> Mapping[str, list[ApplicationFailures]]:
        rows = self.rows(
            """
            SELECT app, host, failure, count(DISTINCT (stage, attempt)) FILTER (attempt IS NOT NULL) AS stages,
                sum(tasks)::BIGINT AS tasks, sum(lost_ms)::BIGINT AS lost_ms, min(last) AS first, max(last) AS last,
                flatten(list(partitions)) AS partitions
            FROM charged JOIN named USING (id) ANTI JOIN ignored ON ignored.host = charged.host AND last < until
            GROUP BY app, host, failure
            """
        )
        found: defaultdict[str, list[ApplicationFailures]] = defaultdict(list)
        for row in rows:
            failure, partitions = FailureClass(row.pop("failure")), frozenset(row.pop("partitions"))
            found[row.pop("host")].append(ApplicationFailures(failure=failure, partitions=partitions, **row))
        return found

    def log_owners(self) -> dict[str, str]:
        """Return the owner of each application's log, as far as it is known. Parts of several owners have none."""
        return {row["app"]: row["owner"] for row in self.rows("SELECT app, owner FROM named JOIN owned USING (id)")}

    def owners(self) -> dict[str, int]:
        """Return the number of owners whose logs name each host."""
        query = "SELECT host, count(DISTINCT owner) AS owners FROM counted JOIN owned USING (id) GROUP BY host"
        return {row["host"]: row["owners"] for row in self.rows(query)}


IGNORED: Final = {"host": pa.string(), "until": pa.int64()}
