"""Throughput of reading event logs on two cores, and memory, compared with DuckDB reading the same fields."""

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks import event_logs
from benchmarks.harness import CORES, ROOT, scratch
from benchmarks.rows import Row, Target
from benchmarks.sampling import cpu_seconds
from demo.java_home import java_home

SMALL, LARGE = 1_000_000_000, 10_000_000_000  # bytes
ROUNDS = 4  # the first one in a new JVM
HEAP = "2g"
_DUCKDB = """
CREATE OR REPLACE TEMP TABLE facts AS
SELECT "Stage ID", "Stage Attempt ID", unnest("Task End Reason"), unnest("Task Info"), unnest("Task Metrics")
FROM read_ndjson('{files}', columns = {{
    'Event': 'VARCHAR', 'Stage ID': 'BIGINT', 'Stage Attempt ID': 'BIGINT',
    'Task End Reason': 'STRUCT("Reason" VARCHAR, "Class Name" VARCHAR, "Description" VARCHAR, "Message" VARCHAR,
        "Full Stack Trace" VARCHAR, "Loss Reason" VARCHAR, "Kill Reason" VARCHAR, "Exit Caused By App" BOOLEAN,
        "Block Manager Address" STRUCT("Host" VARCHAR))',
    'Task Info': 'STRUCT("Launch Time" BIGINT, "Executor ID" VARCHAR, "Host" VARCHAR, "Locality" VARCHAR,
        "Speculative" BOOLEAN, "Finish Time" BIGINT)',
    'Task Metrics': 'STRUCT("Executor Deserialize Time" BIGINT, "Executor Run Time" BIGINT, "Executor CPU Time" BIGINT,
        "JVM GC Time" BIGINT, "Disk Bytes Spilled" BIGINT,
        "Shuffle Read Metrics" STRUCT("Fetch Wait Time" BIGINT, "Remote Bytes Read" BIGINT, "Local Bytes Read" BIGINT,
            "Total Records Read" BIGINT),
        "Input Metrics" STRUCT("Bytes Read" BIGINT, "Records Read" BIGINT))'
}}) WHERE "Event" = 'SparkListenerTaskEnd'
"""


def run() -> list[Row]:
    """Measure MB/s (10**6 bytes) and peak memory; 10 GB only if the disk has room."""
    with scratch() as folder:
        small = event_logs.make(folder / "small", SMALL)
        ours, peer = _measure("spark", folder / "small"), _measure("duckdb", folder / "small")
        rows = [
            _row("1 GB of plain logs", small, {"facts": ours["wall"][1:], "DuckDB": peer["wall"][1:]}, target=150),
            _row("1 GB, first job of a JVM", small, {"facts": ours["wall"][:1], "DuckDB": peer["wall"][:1]}),
            _row("1 GB, by CPU time", small, {"facts": ours["cpu"][1:], "DuckDB": peer["cpu"][1:]}, unit="MB/CPU s"),
        ]
        memory = {"1 GB": [ours["peak"]]}
        if shutil.disk_usage(folder).free > 1.5 * LARGE:
            large = event_logs.make(folder / "large", LARGE)
            ours, peer = _measure("spark", folder / "large", 1), _measure("duckdb", folder / "large", 1)
            rows.append(_row("10 GB of plain logs", large, {"facts": ours["wall"], "DuckDB": peer["wall"]}))
            memory["10 GB"] = [ours["peak"]]
    return [*rows, Row(name=f"Peak memory, {HEAP} of heap", unit="MB", ours="1 GB", samples=memory)]


def _row(
    name: str, size: int, seconds: dict[str, list[float]], *, target: float | None = None, unit: str = "MB/s"
) -> Row:
    samples = {contender: [size / 1e6 / elapsed for elapsed in times] for contender, times in seconds.items()}
    targets = [Target(peer=None, factor=target)] if target else []
    return Row(name=name, unit=unit, ours="facts", samples=samples, targets=targets)


def _measure(contender: str, folder: Path, rounds: int = ROUNDS) -> dict[str, Any]:
    """Measure in a separate process on both cores, without the pinning of harness.prepare."""
    cores = ",".join(map(str, CORES[:2]))
    command = ["taskset", "-c", cores, sys.executable, "-m", "benchmarks.detection_speed", contender, str(folder)]
    done = subprocess.run([*command, str(rounds)], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
    measured: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return measured


def _spark(folder: Path, rounds: int) -> dict[str, Any]:
    os.environ.update(JAVA_HOME=str(java_home()), PYSPARK_PYTHON=sys.executable)
    from pyspark.sql import SparkSession  # noqa: PLC0415 - only the process that measures needs it

    from blocklist.detection import log_discovery, reader  # noqa: PLC0415

    conf: dict[str, bool | float | int | str | None] = {
        "spark.driver.memory": HEAP,
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "ERROR",
    }
    spark = SparkSession.builder.master("local[2]").config(map=conf).getOrCreate()
    jvm: Any = spark.sparkContext._jvm  # noqa: SLF001
    pid = jvm.java.lang.ProcessHandle.current().pid()

    def job() -> None:
        found = log_discovery.discover(spark, [str(folder)])
        reader.read_facts(spark, found.logs).write.format("noop").mode("overwrite").save()

    return _sample(job, pid, rounds)


def _duckdb(folder: Path, rounds: int) -> dict[str, Any]:
    import duckdb  # noqa: PLC0415 - only the process that measures needs it

    database = duckdb.connect()
    database.execute("SET threads = 2")
    query = _DUCKDB.format(files=f"{folder}/*")
    return _sample(lambda: database.execute(query), os.getpid(), rounds)


def _sample(job: Callable[[], object], pid: int, rounds: int) -> dict[str, Any]:
    """Return the seconds and CPU seconds of each round, and the peak memory."""
    wall, cpu = [], []
    for _ in range(rounds):
        started, used = time.perf_counter(), cpu_seconds(pid)
        job()
        wall.append(time.perf_counter() - started)
        cpu.append(cpu_seconds(pid) - used)
    return {"wall": wall, "cpu": cpu, "peak": _peak(pid)}


def _peak(pid: int) -> float:
    """Return the peak memory of the process in MB."""
    status = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in status if line.startswith("VmHWM:")) / 1000


if __name__ == "__main__":
    measure = {"spark": _spark, "duckdb": _duckdb}[sys.argv[1]]
    print(json.dumps(measure(Path(sys.argv[2]), int(sys.argv[3]))))
