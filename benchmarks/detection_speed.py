"""Throughput of reading event logs on two cores, and memory.

Compared with DuckDB reading the same fields, and with Spark reading the lines alone.
"""

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
        found = {name: _measure(name, folder / "small") for name in CONTENDERS}
        rows = [
            _row("1 GB of plain logs", small, {name: it["wall"][1:] for name, it in found.items()}, target=600),
            _row("1 GB, first job of a JVM", small, {name: it["wall"][:1] for name, it in found.items()}),
            _row("1 GB, by CPU time", small, {name: it["cpu"][1:] for name, it in found.items()}, unit="MB/CPU s"),
        ]
        memory = {"1 GB": [found["facts"]["peak"]]}
        if shutil.disk_usage(folder).free > 1.5 * LARGE:
            large = event_logs.make(folder / "large", LARGE)
            more = {name: _measure(name, folder / "large", 1) for name in CONTENDERS}
            rows.append(_row("10 GB of plain logs", large, {name: it["wall"] for name, it in more.items()}))
            added = {name: [it["wall"][0] - found[name]["wall"][0]] for name, it in more.items()}
            rows.append(_row("The 9 GB more than 1 GB: without fixed costs", large - small, added))
            memory["10 GB"] = [more["facts"]["peak"]]
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


def _facts(folder: Path, rounds: int) -> dict[str, Any]:
    spark = _session()
    from blocklist.detection import log_discovery, reader  # noqa: PLC0415 - only the process that measures needs it

    def job() -> None:
        found = log_discovery.discover(spark, [str(folder)])
        reader.read_facts(spark, found.logs).write.format("noop").mode("overwrite").save()

    return _sample(job, _jvm_pid(spark), rounds)


def _text(folder: Path, rounds: int) -> dict[str, Any]:
    """What Spark needs for the lines alone."""
    spark = _session()

    def job() -> None:
        spark.read.text(str(folder)).write.format("noop").mode("overwrite").save()

    return _sample(job, _jvm_pid(spark), rounds)


def _session() -> Any:
    os.environ.update(JAVA_HOME=str(java_home()), PYSPARK_PYTHON=sys.executable)
    from pyspark.sql import SparkSession  # noqa: PLC0415 - only the process that measures needs it

    from blocklist.detection.session import JAVA_OPTIONS  # noqa: PLC0415

    conf: dict[str, bool | float | int | str | None] = {
        "spark.driver.memory": HEAP,
        "spark.driver.defaultJavaOptions": JAVA_OPTIONS,
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "ERROR",
    }
    return SparkSession.builder.master("local[2]").config(map=conf).getOrCreate()


def _jvm_pid(spark: Any) -> int:
    return int(spark.sparkContext._jvm.java.lang.ProcessHandle.current().pid())  # noqa: SLF001


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


CONTENDERS: dict[str, Callable[[Path, int], dict[str, Any]]] = {
    "facts": _facts,
    "DuckDB": _duckdb,
    "spark.read.text": _text,
}

if __name__ == "__main__":
    print(json.dumps(CONTENDERS[sys.argv[1]](Path(sys.argv[2]), int(sys.argv[3]))))
