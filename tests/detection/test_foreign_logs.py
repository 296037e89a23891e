"""Logs that others wrote, with Spark 1.2 to 3.1, are read as an independent count over the raw JSON has them."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from pyspark.sql import SparkSession

from blocklist.detection.analysis import Analysis, analysed
from blocklist.detection.log_discovery import discover
from blocklist.detection.reader import read_facts

FOREIGN: Final = Path(__file__).with_name("foreign")
APPLICATIONS: Final = {
    "app-20180109111548-0000": (22, 2, 1),
    "application_1516285256255_0012": (24, 4, 2),
    "application_1553914137147_0018": (6, 0, 3),
    "application_1628109047826_1317105": (5, 1, 4),
    "local-1422981759269": (33, 0, 1),
    "local-1426533911241_1": (8, 0, 1),
    "local-1426533911241_2": (8, 0, 1),  # in a file that is called local-1426633911242
}
"""Tasks, of them failed, and hosts; two more applications have none."""


@pytest.fixture(scope="module")
def analysis(spark: SparkSession) -> Iterator[Analysis]:
    found = discover(spark, [str(FOREIGN)])
    assert found.problems == (f"file:{FOREIGN}/README.md is not an event log: it does not begin with an event.",)
    with analysed(read_facts(spark, found.logs)) as made:
        yield made


def raw(file: Path) -> Iterator[dict[str, Any]]:
    yield from map(json.loads, file.read_text().splitlines())


def test_each_file_has_the_tasks_hosts_and_failures_that_its_json_has(spark: SparkSession) -> None:
    facts = read_facts(spark, discover(spark, [str(FOREIGN)]).logs).collect()
    read = Counter((Path(it.file).name, it.host, it.outcome) for it in facts if it.kind == "task")
    counted = Counter(
        (file.name, event["Task Info"]["Host"], event["Task End Reason"]["Reason"])
        for file in FOREIGN.glob("*[0-9]")
        for event in raw(file)
        if event["Event"] == "SparkListenerTaskEnd"
    )
    assert read == counted


def test_applications_have_their_ids_and_attempts_whatever_their_files_are_called(analysis: Analysis) -> None:
    apps = {it["app"] for it in analysis.rows("FROM named")}
    assert apps - set(APPLICATIONS) == {"local-1430917381535_1", "local-1430917381535_2"}
    tasks = analysis.rows(
        "SELECT app, count(*) AS tasks, count_if(outcome <> 'Success') AS failed, count(DISTINCT host) AS hosts"
        " FROM all_facts WHERE kind = 'task' GROUP BY app"
    )
    found = {it["app"]: (it["tasks"], it["failed"], it["hosts"]) for it in tasks}
    assert found == APPLICATIONS


def test_nothing_is_left_out_and_nobody_is_blamed(analysis: Analysis) -> None:
    assert analysis.problems == []
    nodes = analysis.summaries()
    assert len(nodes) == 11
    assert sum(node.tasks for node in nodes) == sum(tasks for tasks, _, _ in APPLICATIONS.values())
    assert {node.host: node.exclusions for node in nodes if node.exclusions} == {"apiros-2.gce.test.com": 1}
    assert sum(it.tasks for it in analysis.evidence()) == sum(node.tasks for node in nodes)
    assert all(it.healthy_ms >= 0 and it.lost_ms >= 0 for it in analysis.task_times())
