"""One small Spark session for all tests of the pipeline: a process can have only one application at a time.

Includes the fixtures of the integration tests: real services on their own databases.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from demo.java_home import java_home
from tests.browser.conftest import browser
from tests.class_archive import archive_option
from tests.detection.command import Command, DryRun, dry_run
from tests.integration.conftest import databases, fresh, migrated, start
from tests.integration.process import ROOT

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["browser", "databases", "fresh", "migrated", "start"]


@pytest.fixture(scope="package")
def proposed(tmp_path_factory: pytest.TempPathFactory) -> DryRun:
    """A dry run over three applications on six hosts, of which n3 is slow."""
    return dry_run(tmp_path_factory.mktemp("proposed"))


@pytest.fixture(scope="package")
def spark() -> Iterator[SparkSession]:
    from pyspark.sql import SparkSession

    from blocklist.detection.session import JAVA_OPTIONS

    os.environ["JAVA_HOME"] = str(java_home())
    os.environ["PYSPARK_PYTHON"] = sys.executable  # else the workers are whatever `python3` is
    conf: dict[str, bool | float | int | str | None] = {
        "spark.ui.enabled": "false",
        "spark.driver.extraJavaOptions": f"{JAVA_OPTIONS} -XX:+UseSerialGC {archive_option()}",
        # The JVM may be there already, begun by others somewhere else.
        "spark.executorEnv.PYTHONPATH": str(ROOT),
        "spark.log.level": "ERROR",
        "spark.sql.session.timeZone": "UTC",
    }
    spark = SparkSession.builder.master("local[2]").config(map=conf).getOrCreate()
    yield spark
    spark.stop()


@pytest.fixture
def run_command(spark: SparkSession, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """The command in this process: its exit code, output and errors."""
    from blocklist.detection.__main__ import main

    monkeypatch.setenv("PYTHONPATH", str(ROOT))  # the command adds to it

    def call(*arguments: str) -> tuple[int, str, str]:
        code = main(list(arguments))
        return code, *capsys.readouterr()

    return call
