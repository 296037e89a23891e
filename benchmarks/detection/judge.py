"""The pipeline as `python -m blocklist.detection` runs it, with its defaults, as a judge for the score."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import SparkSession

from blocklist.detection import reading, sources
from blocklist.detection.pipeline import Evidence
from blocklist.detection.verdicts import Rules
from blocklist.detection.verdicts import judge as verdicts


def judge(spark: SparkSession, paths: Sequence[str]) -> set[str]:
    """The hosts that it proposes to block by these event logs."""
    found = sources.find(spark, paths)
    with Evidence.of(reading.read_facts(spark, found.logs)) as evidence:
        proposed, _ = verdicts(evidence.summaries(), Rules())
    return {verdict.host for verdict in proposed}
