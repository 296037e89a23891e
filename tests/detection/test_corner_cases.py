"""Whatever numbers a log has, the analysis ends, and the other applications keep their verdicts."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from blocklist.detection.heuristics import Rules, judge
from blocklist.detection.log_discovery import discover
from blocklist.detection.pipeline import Analysis
from blocklist.detection.reader import read_facts
from tests.detection.corner_logs import CORNERS, corner_log
from tests.detection.synthetic_logs import event_log

BEGAN = 1_700_000_000_000


def blamed(spark: SparkSession, folder: Path) -> list[str]:
    with Analysis.of(read_facts(spark, discover(spark, [str(folder)]).logs)) as analysis:
        analysis.failures.collect()
        analysis.host_stages.collect()
        verdicts = judge(analysis.summaries(), Rules(min_span_ms=0)).verdicts
    return [verdict.host for verdict in verdicts]


@pytest.mark.long
@pytest.mark.parametrize("corner", CORNERS)
def test_an_application_of_strange_numbers_is_analysed(spark: SparkSession, tmp_path: Path, corner: str) -> None:
    (tmp_path / "app-1").write_text(corner_log("app-1", BEGAN, corner))
    assert blamed(spark, tmp_path) == []


def test_strange_applications_do_not_cost_the_others_their_verdicts(spark: SparkSession, tmp_path: Path) -> None:
    for number in range(3):
        (tmp_path / f"app-{number}").write_text("".join(event_log(f"app-{number}", BEGAN, slow="n3")))
    for corner in CORNERS:
        (tmp_path / corner).write_text(corner_log(corner, BEGAN, corner))
    assert blamed(spark, tmp_path) == ["n3"]
