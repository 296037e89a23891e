"""A class data archive for the JVMs of Spark in tests: they start with half the CPU time. One for each installation.

Java uses an archive only if the class path begins with the one with which it was made, file by file.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import subprocess
import sys
import tempfile
import warnings
from functools import cache
from pathlib import Path
from typing import Final

from demo.cluster import spark_home
from demo.java_home import java_home

_APPLICATION: Final = """\
from pyspark.sql import SparkSession

spark = SparkSession.builder.getOrCreate()
for _ in range(3):
    spark.range(0, 100_000, 1, 8).selectExpr("sum(id)").collect()
spark.sparkContext.parallelize(range(100), 4).map(str).count()
spark.stop()
"""


@cache
def archive_option(home: Path | None = None, *, first: Path | None = None) -> str:
    """The Java option for JVMs with the jars of the Spark at `home`, this Python's by default; made if missing.

    `first` is a jar before Spark's in the class path. Empty, with a warning, if there can be no archive.
    """
    home = home or spark_home()
    # Beside this Python's packages, so that it goes with them.
    archive = Path(sys.prefix) / f"spark-classes-{installation_digest(home, first)}.jsa"
    with archive.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # Another worker may be making it, too.
        if not archive.exists() and (why := _make(archive, home, first)):
            warnings.warn(f"Spark starts slowly, as there is no class archive: {why}", stacklevel=2)
            return ""
    return f"-XX:SharedArchiveFile={archive}"


def installation_digest(home: Path, first: Path | None = None) -> str:
    """The state of a Spark's jars, of one more jar, and of Java."""
    files = [*([first] if first else []), java_home() / "release", *sorted((home / "jars").glob("*.jar"))]
    states = [(str(file), file.stat().st_size, file.stat().st_mtime_ns) for file in files if file.exists()]
    return hashlib.sha256(repr(states).encode()).hexdigest()[:12]


def _make(archive: Path, home: Path, first: Path | None) -> str | None:
    """Make it; why that failed, None if it did not."""
    unfinished = archive.with_suffix(".new")
    with tempfile.TemporaryDirectory(prefix="blocklist-archive-") as folder:
        script = Path(folder) / "application.py"
        script.write_text(_APPLICATION)
        java = f"-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:ArchiveClassesAtExit={unfinished}"
        conf = {
            "spark.driver.extraJavaOptions": java,
            "spark.ui.enabled": "false",
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            **({"spark.driver.extraClassPath": str(first)} if first else {}),
        }
        words = [word for name, value in conf.items() for word in ("--conf", f"{name}={value}")]
        python = {"PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable}
        # A folder with files in the class path would keep Java from making the archive.
        own = {"JAVA_HOME": str(java_home()), "SPARK_HOME": str(home), "SPARK_CONF_DIR": f"{folder}/none", **python}
        try:
            done = subprocess.run(
                [home / "bin" / "spark-submit", "--master", "local[2]", *words, script],
                env={**os.environ, **own},
                cwd=folder,
                capture_output=True,
                text=True,
                timeout=900,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            return str(error)
    if done.returncode or not unfinished.exists():
        return f"spark-submit ended with {done.returncode}:\n{done.stdout[-2000:]}{done.stderr[-2000:]}"
    unfinished.replace(archive)
    return None
