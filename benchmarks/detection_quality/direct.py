"""The evidence in synthetic runs, of thousands of applications at once: see evidence.sql."""

from __future__ import annotations

from dataclasses import dataclass

import duckdb
import pandas as pd  # type: ignore[import-untyped]
import pyarrow as pa

from blocklist.detection.host_comparison import compare


@dataclass(frozen=True, kw_only=True, slots=True)
class CollectedEvidence:
    """Tables of evidence.sql, and the number of tasks of each host in each application."""

    host_applications: pd.DataFrame
    failures: pd.DataFrame
    tasks: pd.DataFrame


def collect_evidence(facts: pa.Table) -> CollectedEvidence:
    """Compare the hosts in each stage, and charge the failures."""
    with duckdb.connect() as connection:
        connection.execute("SET threads = 2")
        connection.register("facts", facts)
        connection.execute("CREATE TEMP TABLE ignored (host TEXT, until BIGINT)")
        compare(connection)
        names = ("host_applications", "failures")
        frames = {name: connection.sql(f"FROM {name}").df() for name in names}
        tasks = connection.sql("SELECT app, host, count(*) AS tasks FROM facts GROUP BY ALL").df()
    return CollectedEvidence(**frames, tasks=tasks)
