"""A class data archive for executors: six of them start in half the time."""

from __future__ import annotations

from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Final

from benchmarks.detection import jobs
from benchmarks.detection.hosts import Hosts
from benchmarks.detection.scenarios import HOSTS, Application
from demo.cluster import session, wait_until

_SMALL: Final = Application(kind="", files=(50,) * 4, work=1, reducers=4, hot=0.0)


def options(folder: Path) -> str:
    """Return the Java option for the archive in this folder; create the archive if missing."""
    archive = folder / f"executor-{version('pyspark')}.jsa"
    if not archive.exists():
        _make(archive, folder / "archive-input")
    return f"-XX:SharedArchiveFile={archive}"


def _make(archive: Path, data: Path) -> None:
    if not data.exists():
        jobs.write_input(data, _SMALL, 1)
    with Hosts(HOSTS[:1], total=None) as hosts:  # a Worker gives an executor ten seconds to end and write it
        java = f"{hosts.conf()['spark.executor.extraJavaOptions']} -XX:ArchiveClassesAtExit={archive}"
        spark = session(hosts, spark__executor__extraJavaOptions=java)
        jobs.warm_up(spark.sparkContext, data)
        for kind in jobs.KINDS:
            jobs.perform(spark.sparkContext, data, replace(_SMALL, kind=kind))
        spark.stop()
        # Java writes the archive when the executor ends; the Worker must run until then.
        sizes = [-1]

        def complete() -> bool:
            sizes.append(archive.stat().st_size if archive.exists() else -1)
            return sizes[-1] > 0 and len(sizes) > 20 and len(set(sizes[-20:])) == 1

        wait_until(complete, 90, "the class archive")
