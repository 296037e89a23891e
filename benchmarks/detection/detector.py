"""The pipeline with the defaults of `python -m blocklist.detection --minutes 0`, as a detector for the score."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from pyspark.sql import SparkSession

from blocklist.detection import log_discovery, reader
from blocklist.detection.analysis import analysed
from blocklist.detection.heuristics import judge as verdicts
from blocklist.detection.slowness import Rules

RULES: Final = Rules(min_span_ms=0)
"""The three applications of a run last two minutes in all."""


def detect(spark: SparkSession, paths: Sequence[str]) -> set[str]:
    """Return the hosts that the pipeline proposes to block."""
    found = log_discovery.discover(spark, paths)
    with analysed(reader.read_facts(spark, found.logs)) as evidence:
        judged = verdicts(evidence.summaries(), RULES)
    return {verdict.host for verdict in judged.verdicts}
