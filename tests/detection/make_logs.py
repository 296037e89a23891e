"""Makes the event logs in `logs/`: `python -m tests.detection.make_logs 3.5.9 4.0.5 4.3.0`.

Runs small real applications on a real standalone cluster, one per scenario, with each version of Spark. Only the lines
of tasks, exclusions, start and end are kept, unchanged, so that no folder or setting of the machine is in them.
Compressed logs are compressed again by Spark's own codecs.
"""

# ruff: noqa: T201 - a script, which talks by printing
from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from demo.cluster import Cluster, session, spark_home, wait_until
from tests.acceptance.jobs import EXCLUDING
from tests.integration.process import ROOT
from tests.spark_versions import environment

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOGS: Final = Path(__file__).parent / "logs"
HOSTS: Final = ("127.0.0.2", "127.0.0.3", "127.0.0.4")
_KEPT: Final = ("LogStart", "ApplicationStart", "TaskStart", "TaskEnd", "Excluded", "Blacklisted", "ApplicationEnd")
_PARTITIONS: Final = 6
_CODECS: Final = {"zstd": "ZStdCompressionCodec", "lz4": "LZ4CompressionCodec"}


def main(versions: list[str]) -> int:
    """Make the logs of all versions; return the exit code."""
    for version in versions:
        print(f"Spark {version} …", flush=True)
        shutil.rmtree(LOGS / version, ignore_errors=True)
        others = {name: value for name, value in os.environ.items() if name not in {"SPARK_HOME", "PYTHONPATH"}}
        command = [str(environment(version)), "-m", "tests.detection.make_logs", "--here", str(LOGS / version)]
        ended = subprocess.run(command, cwd=ROOT, env=others, check=False).returncode
        if ended != 0:
            return ended
    return 0


def here(target: Path) -> None:
    """Run all scenarios with the Spark of this process."""
    with Cluster(HOSTS, cores=1) as cluster, tempfile.TemporaryDirectory(prefix="blocklist-logs-") as folder:
        stories: dict[str, tuple[Callable[[SparkSession, Cluster], None], dict[str, object]]] = {
            "plain": (_sums, {}),
            "lz4": (_sums, _compressed("lz4")),
            "rolled": (_sums, {**_compressed("zstd"), "spark__eventLog__rolling__enabled": "true"}),
            "excluded": (_failing_host, EXCLUDING),
            "fetch-failed": (_lost_files, {}),
            "in-progress": (_lost_executor, {}),
        }
        for name, (story, settings) in stories.items():
            print(f"  {name}", flush=True)
            logs = Path(folder, name)
            logs.mkdir()
            spark = session(cluster, **{**_log_to(logs), **settings})
            jvm: Any = spark.sparkContext._jvm
            story(spark, cluster)
            if name != "in-progress":  # the log of a driver that is killed stays as it is while it runs
                spark.stop()
            for file in sorted(logs.rglob("*")):
                if file.is_file() and not file.name.startswith("."):
                    _keep(jvm, file, target / name / file.relative_to(logs), cluster.folder)
        spark.stop()


def _log_to(folder: Path) -> dict[str, object]:
    return {
        "spark__eventLog__enabled": "true",
        "spark__eventLog__dir": folder.as_uri(),
        "spark__eventLog__compress": "false",
        "spark__eventLog__rolling__enabled": "false",
        "spark__python__worker__reuse": "true",
    }


def _compressed(codec: str) -> dict[str, object]:
    return {"spark__eventLog__compress": "true", "spark__eventLog__compression__codec": codec}


def _sums(spark: SparkSession, _: Cluster) -> None:
    pairs = spark.sparkContext.range(600, numSlices=_PARTITIONS).map(lambda number: (number % 7, number))
    assert sum(total for _, total in pairs.reduceByKey(lambda a, b: a + b, 4).collect()) == 600 * 599 // 2


def _failing_host(spark: SparkSession, _: Cluster) -> None:
    """Tasks on one host fail because its disk is full."""

    def fail(numbers: Iterable[int]) -> Iterable[int]:
        if os.environ.get("SPARK_LOCAL_IP") == HOSTS[1]:
            raise OSError(28, "No space left on device")
        return numbers

    assert spark.sparkContext.range(60, numSlices=_PARTITIONS).mapPartitions(fail).count() == 60


def _lost_files(spark: SparkSession, cluster: Cluster) -> None:
    """The shuffle files of a stage are deleted before the next stage fetches them."""
    sums = spark.sparkContext.range(60, numSlices=3).map(lambda n: (n % 7, n)).reduceByKey(lambda a, b: a + b, 2)
    assert sums.count() == 7
    for file in cluster.folder.rglob("shuffle_*"):
        file.unlink()
    assert sums.count() == 7


def _lost_executor(spark: SparkSession, cluster: Cluster) -> None:
    """A worker is killed under its task, which Spark runs again elsewhere."""
    started = cluster.folder / "started"

    def wait_to_be_killed(numbers: Iterable[int]) -> Iterable[int]:
        if os.environ["SPARK_LOCAL_IP"] == HOSTS[2]:
            started.touch()
            threading.Event().wait()
        return numbers

    def count() -> int:
        return spark.sparkContext.range(60, numSlices=_PARTITIONS).mapPartitions(wait_to_be_killed).count()

    with ThreadPoolExecutor() as pool:
        job = pool.submit(count)
        wait_until(started.exists, 60, "a task on the last host")
        cluster.kill_worker(HOSTS[2])
        assert job.result() == 60


def _keep(jvm: Any, file: Path, target: Path, cluster: Path) -> None:
    """Write the relevant lines of the log, without paths of this machine."""
    target.parent.mkdir(parents=True, exist_ok=True)
    name = next((codec for ending, codec in _CODECS.items() if file.name.endswith(ending)), None)
    codec = getattr(jvm.org.apache.spark.io, name)(jvm.org.apache.spark.SparkConf()) if name else None
    stream = jvm.java.io.FileInputStream(str(file))
    text = bytes((codec.compressedContinuousInputStream(stream) if codec else stream).readAllBytes())
    lines = [line for line in text.splitlines(keepends=True) if _is_kept(line)]
    kept = b"".join(lines)
    for folder, name_of_it in ((spark_home(), b"/opt/spark"), (cluster, b"/opt/cluster"), (ROOT, b"/opt/blocklist")):
        kept = kept.replace(str(folder).encode(), name_of_it)
    out = jvm.java.io.FileOutputStream(str(target))
    out = codec.compressedOutputStream(out) if codec else out
    out.write(bytearray(kept))
    out.close()


def _is_kept(line: bytes) -> bool:
    event = line[: line.find(b",")]
    return any(name.encode() in event for name in _KEPT)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--here"]:
        here(Path(sys.argv[2]))
    else:
        sys.exit(main(sys.argv[1:] or ["3.5.9", "4.0.5", "4.3.0"]))
