"""The Spark session and the service of a run."""

from __future__ import annotations

import argparse
import os
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Final

from pyspark.sql import SparkSession

from blocklist.client.client import BlocklistClient

JAVA_OPTIONS: Final = "-XX:TieredStopAtLevel=1"
"""For a JVM that this process starts: without the C2 compiler, which takes more CPU time than its code saves."""
_ROOT: Final = Path(__file__).parents[2]


def session() -> SparkSession:
    """Use the session that spark-submit configured, else a local one. Settings of the operator take precedence."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    # Local Python workers import the package from the same place.
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(_ROOT), os.environ.get("PYTHONPATH")]))
    builder = SparkSession.builder.appName("blocklist.detection").config("spark.log.level", "ERROR")
    # Spark puts the operator's `spark.driver.extraJavaOptions` behind these.
    builder = builder.config("spark.driver.defaultJavaOptions", JAVA_OPTIONS)
    spark = builder.config("spark.ui.showConsoleProgress", str(sys.stderr.isatty()).lower()).getOrCreate()
    context = spark.sparkContext
    if context.getConf().get("spark.sql.shuffle.partitions") is None:
        spark.conf.set("spark.sql.shuffle.partitions", str(2 * context.defaultParallelism))
    return spark


def open_client(args: argparse.Namespace) -> BlocklistClient | nullcontext[None]:
    """The service is used only with --apply, --url or BLOCKLIST_URL."""
    needed = getattr(args, "apply", False) or args.url or os.environ.get("BLOCKLIST_URL")
    return BlocklistClient(args.url) if needed else nullcontext()


def known_nodes(client: BlocklistClient | None) -> dict[str, str]:
    """The node of each address in the service's inventory; nothing without a service."""
    nodes = client.known_nodes().nodes if client is not None else []
    return {address: node.id for node in nodes for address in node.addresses}


def warn(sentence: str) -> None:
    """Write a sentence to standard error."""
    sys.stderr.write(f"{sentence}\n")
