"""Real event logs are read into facts, with each version of Spark."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import Row, SparkSession

from blocklist.detection.analysis import analysed
from blocklist.detection.events import MAX_TIME
from blocklist.detection.log_discovery import discover
from blocklist.detection.reader import read_facts, within
from blocklist.detection.schemas import COLUMNS, FACTS
from tests.detection.analysing import analyse
from tests.detection.make_logs import HOSTS, LOGS

VERSIONS = sorted(path.name for path in LOGS.iterdir())
Read = Callable[[Path], list[Row]]
Recorded = Callable[[str, str], list[Row]]


@pytest.fixture(scope="module")
def read(spark: SparkSession) -> Read:
    """Reads the facts of all logs below a folder; fails if discovery reports a problem."""

    def facts(path: Path) -> list[Row]:
        found = discover(spark, [str(path)])
        assert not found.problems
        return read_facts(spark, found.logs).collect()

    return facts


@pytest.fixture(scope="module")
def recorded(read: Read) -> Recorded:
    """The facts of a version and a story; all are read at once."""
    facts = read(LOGS)
    return lambda version, story: [fact for fact in facts if f"/{version}/{story}/" in fact.file]


def kinds(facts: list[Row]) -> dict[str, int]:
    return {kind: [fact.kind for fact in facts].count(kind) for kind in {fact.kind for fact in facts}}


def tasks(facts: list[Row], outcome: str) -> list[Row]:
    return [fact for fact in facts if (fact.kind, fact.outcome) == ("task", outcome)]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("story", ["plain", "lz4", "rolled"])
def test_all_tasks_of_an_application_are_read(recorded: Recorded, version: str, story: str) -> None:
    facts = recorded(version, story)
    assert kinds(facts) == {"log": 1, "application": 1, "task": 10}
    assert len({fact.app for fact in facts}) == 1
    assert facts[0].app.startswith("app-20")
    assert [fact.detail for fact in facts if fact.kind == "log"] == [version]
    assert [fact.detail for fact in facts if fact.kind == "application"] == ["blocklist"]
    done = tasks(facts, "Success")
    assert {fact.host for fact in done} <= set(HOSTS)
    assert sorted(fact.stage for fact in done) == [0] * 6 + [1] * 4
    for fact in done:
        assert fact.duration == fact.time - fact.launched
        assert 0 < fact.run_ms <= fact.duration
        assert fact.cpu_ms <= fact.run_ms + 100
        assert fact.error is fact.message is fact.served_by is None
    assert sum(fact.shuffle_records for fact in done if fact.stage == 1) > 0


@pytest.mark.parametrize("version", VERSIONS)
def test_failures_and_the_exclusion_of_a_host_are_read(recorded: Recorded, tmp_path: Path, version: str) -> None:
    facts = recorded(version, "excluded")
    failed = tasks(facts, "ExceptionFailure")
    assert {fact.host for fact in failed} == {HOSTS[1]}
    assert {fact.error for fact in failed} == {"org.apache.spark.api.python.PythonException"}
    assert all("No space left on device" in fact.message and len(fact.message) <= 300 for fact in failed)
    excluded = [fact for fact in facts if fact.kind == "excluded"]
    assert {fact.host for fact in excluded} == {HOSTS[1]}
    assert {fact.stage for fact in excluded} == {0, None}  # from the stage, then from the application
    exclusions = {node.host: node.exclusions for node in analyse(tmp_path, [it.asDict() for it in facts]).summaries()}
    assert exclusions[HOSTS[1]] == 2, "each once, though under two names"


@pytest.mark.parametrize("version", VERSIONS)
def test_a_fetch_failure_names_the_serving_host(recorded: Recorded, version: str) -> None:
    failed = tasks(recorded(version, "fetch-failed"), "FetchFailed")
    assert failed
    named = {fact.served_by for fact in failed if "MetadataFetchFailed" not in fact.message}  # which knows no host
    assert named
    assert named <= set(HOSTS)
    assert all("NoSuchFile" in fact.message for fact in failed if fact.served_by)
    assert all(len(fact.message) <= 300 for fact in failed)


@pytest.mark.parametrize("version", VERSIONS)
def test_a_lost_executor_is_read_from_a_log_in_progress(recorded: Recorded, version: str) -> None:
    (failed,) = tasks(recorded(version, "in-progress"), "ExecutorLostFailure")
    assert failed.host == HOSTS[2]
    assert failed.caused_by_app is not None
    assert failed.run_ms is None
    assert failed.message


def test_a_truncated_log_is_read_up_to_its_end(read: Read, spark: SparkSession, tmp_path: Path) -> None:
    (log,) = (LOGS / VERSIONS[-1] / "plain").iterdir()
    text = log.read_bytes()
    whole = {fact[3:] for fact in read(log)}
    for cut in range(100, len(text), 1009):
        (tmp_path / f"app-{cut}").write_bytes(text[:cut])
        (tmp_path / f"app-{cut}.inprogress").write_bytes(text[:cut])
    facts = read(tmp_path)
    assert {fact[3:] for fact in facts if fact.kind != "broken"} <= whole
    broken = [fact.file.rpartition("/")[2] for fact in facts if fact.kind == "broken"]
    assert len(broken) == len(set(broken))
    assert not [name for name in broken if name.endswith(".inprogress")]
    cut_off = {f"app-{cut}" for cut in range(100, len(text), 1009) if text[cut - 1 : cut] != b"\n" and text[cut] != 10}
    assert set(broken) == cut_off


BROKEN = (
    b"hello",
    b"{}",
    b"[]",
    b"\0\0\0\0",
    b'{"Event":"SparkListenerTaskEnd"}',
    b'{"Event":"SparkListenerTaskEnd","Stage ID":1,"Task Info":{"Host":"a","Launch Time":1}}',
    b'{"Event":"SparkListenerTaskEnd","Stage ID":"x","Task End Reason":{},"Task Info":{"Host":"a"}}',
    b'{"Event":"SparkListenerTaskEnd",\xff\xfe}',
    b'{"Event":"org.apache.spark.scheduler.SparkListenerNodeExcluded","time":1}',
    b'{"Event":"SparkListenerTaskEnd","Stage ID":1,{"Event":"SparkListenerTaskEnd"}',
    b'{ "Event": "SparkListenerTaskEnd", "Stage ID": 1 }',
    b'{"Event":"SparkListenerTaskEnd","Stage ID":1,"Task End Reason":{"Reason":"Success"},'
    b'"Task Info":{"Host":"a","Launch Time":1,"Finish Time":%d}}' % MAX_TIME,
    b'{"x": %s1%s}' % (b"[" * 5000, b"]" * 5000),
)


def test_a_broken_line_is_reported_and_its_neighbours_are_read(spark: SparkSession, tmp_path: Path) -> None:
    (log,) = (LOGS / VERSIONS[-1] / "plain").iterdir()
    start, *rest = log.read_bytes().splitlines(keepends=True)
    names = {f"file:{tmp_path}/app-{number}": line for number, line in enumerate(BROKEN)}
    for name, line in names.items():
        Path(name.removeprefix("file:")).write_bytes(b"".join([start, line, b"\n", *rest]))
    facts = read_facts(spark, discover(spark, [str(tmp_path)]).logs)
    rows = facts.collect()
    for name, line in names.items():
        found = kinds([row for row in rows if row.file == name])
        assert found == {"log": 1, "application": 1, "task": 10, "broken": 1}, line
    with analysed(facts) as analysis:
        sentences = [it for it in analysis.problems if "a copy of" not in it]
    assert sorted(sentences) == sorted(f"{name}: 1 broken line was skipped." for name in names)


def _spaced(line: str) -> str:
    return json.dumps(json.loads(line))


def _sorted(line: str) -> str:
    return json.dumps(json.loads(line), sort_keys=True, separators=(",", ":"))


def _with_carriage_return(line: str) -> str:
    return line.rstrip("\n") + "\r"


def test_a_log_that_another_tool_has_written_again_is_read(read: Read, tmp_path: Path) -> None:
    (log,) = (LOGS / VERSIONS[-1] / "plain").iterdir()
    lines = log.read_text().splitlines(keepends=True)
    spellings = (_spaced, _sorted, _with_carriage_return)
    for spelling in spellings:
        (tmp_path / f"app{spelling.__name__}").write_text("".join(spelling(line) + "\n" for line in lines) + "\r\n")
    facts, expected = read(tmp_path), [fact[3:] for fact in read(log)]
    for spelling in spellings:
        assert [fact[3:] for fact in facts if fact.file.endswith(spelling.__name__)] == expected, spelling


def test_a_log_that_spark_has_compressed_with_snappy_is_read(read: Read, spark: SparkSession, tmp_path: Path) -> None:
    (log,) = (LOGS / VERSIONS[-1] / "plain").iterdir()
    jvm: Any = spark.sparkContext._jvm
    codec = jvm.org.apache.spark.io.SnappyCompressionCodec(jvm.org.apache.spark.SparkConf())
    stream = codec.compressedOutputStream(jvm.java.io.FileOutputStream(f"{tmp_path}/app-1.snappy"))
    stream.write(log.read_bytes())
    stream.close()
    assert [fact[3:] for fact in read(tmp_path)] == [fact[3:] for fact in read(log)]


def test_exclusions_by_the_agent_are_ignored(read: Read, tmp_path: Path) -> None:
    name = "org.apache.spark.scheduler.SparkListenerNodeExcluded"
    event = f'{{"Event":"{name}","time":1,"hostId":"%s","executorFailures":%d}}\n'
    start = '{"Event":"SparkListenerLogStart","Spark Version":"4.3.0"}\n'
    (tmp_path / "app-1").write_text(start + event % ("a", 0) + event % ("b", 2))
    assert [fact.host for fact in read(tmp_path) if fact.kind == "excluded"] == ["b"]


def test_each_file_that_is_skipped_is_named_but_only_the_most_broken_logs_are(tmp_path: Path) -> None:
    skip = [(f"notes-{number:02}", "(the file is skipped: no reason)") for number in range(25)]
    broken = [(f"app-{number:02}", "") for number in range(25)]
    facts = [{"kind": "broken", "file": file, "app": file, "detail": detail} for file, detail in [*skip, *broken]]
    sentences = analyse(tmp_path, facts).problems
    assert sentences[:25] == [f"{file} is skipped: no reason." for file, _ in skip]
    assert sentences[25:] == [
        *(f"{file}: 1 broken line was skipped." for file, _ in broken[:20]),
        "5 more files: 5 broken lines were skipped.",
    ]


def test_a_time_range_includes_its_start_and_excludes_its_end(spark: SparkSession) -> None:
    facts = spark.createDataFrame([{"kind": "task", "time": time} for time in (1, 2, 3)] + [{"kind": "log"}], FACTS)
    assert [fact.time for fact in within(facts, 2, 3).collect()] == [2, None]
    assert within(facts, None, None).count() == 4


def test_without_logs_there_are_no_facts(spark: SparkSession) -> None:
    facts = read_facts(spark, [])
    assert facts.dtypes == list(COLUMNS.items())
    assert facts.isEmpty()
