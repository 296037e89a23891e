"""All forms in which Spark leaves event logs are found; anything else is reported as a problem."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from blocklist.detection.log_discovery import MAX_COMPRESSED_BYTES, DiscoveredLogs, discover
from tests.detection.make_logs import LOGS

VERSIONS = sorted(path.name for path in LOGS.iterdir())
START = b'{"Event":"SparkListenerLogStart","Spark Version":"4.3.0"}\n'


def names(found: DiscoveredLogs) -> list[str]:
    return [log.name for log in found.logs]


@pytest.mark.parametrize("version", VERSIONS)
def test_all_forms_of_logs_of_each_version_are_found(spark: SparkSession, version: str) -> None:
    found = discover(spark, [str(LOGS / version)])
    assert not found.problems
    kept = [path.name for path in LOGS.joinpath(version).rglob("*") if path.is_file()]
    assert sorted(names(found)) == sorted(name for name in kept if not name.startswith("appstatus_"))
    assert sum(log.compressed for log in found.logs) >= 2
    assert [log.in_progress for log in found.logs] == [log.name.endswith(".inprogress") for log in found.logs]


def test_a_log_that_is_given_twice_is_found_once(spark: SparkSession, tmp_path: Path) -> None:
    log = tmp_path / "app-1"
    log.write_bytes(START)
    found = discover(spark, [str(log), tmp_path.as_uri()])
    assert names(found) == ["app-1"]
    assert not found.problems


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("notes.txt", b"hello\n", "is not an event log: it does not begin with an event."),
        ("app-1.zstd", b"hello\n", "is not an event log: it does not begin with an event."),
        ("app-1.snappy", START, "is not an event log: it does not begin with an event."),
        ("app-1.lzf.inprogress", START, "is skipped: unsupported compression lzf."),
        ("app-1", b"", "is empty."),
    ],
)
def test_other_files_are_problems(
    spark: SparkSession, tmp_path: Path, name: str, content: bytes, sentence: str
) -> None:
    (tmp_path / name).write_bytes(content)
    (tmp_path / "app-2").write_bytes(START)
    found = discover(spark, [str(tmp_path)])
    assert names(found) == ["app-2"]
    assert found.problems == (f"file:{tmp_path / name} {sentence}",)


def test_an_unreadable_path_is_a_problem(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "app-2").write_bytes(START)
    paths = [f"{tmp_path}/missing", "nothing://host/logs", f"{tmp_path}/empty", str(tmp_path / "app-2")]
    found = discover(spark, paths)
    assert names(found) == ["app-2"]
    missing, unknown, empty = found.problems
    assert missing.startswith(f"{tmp_path}/missing cannot be read: ")
    assert unknown.startswith("nothing://host/logs cannot be read: No FileSystem for scheme")
    assert empty == f"{tmp_path}/empty contains no event log."


def test_a_name_that_is_no_path_to_hadoop_costs_the_other_logs_nothing(spark: SparkSession, tmp_path: Path) -> None:
    for name in ("app 1%20[x]", "app:2"):
        (tmp_path / name).write_bytes(START)
    found = discover(spark, [str(tmp_path)])
    assert names(found) == ["app 1%20[x]"]
    (problem,) = found.problems
    assert problem.startswith(f"file:{tmp_path}/app:2 cannot be read: ")
    assert "Relative path in absolute URI" in problem


def test_names_that_are_not_text_are_problems(spark: SparkSession, tmp_path: Path) -> None:
    for name in (b"app-\xff", b".hidden-\xff", b"app-2", b"folder-\xff/app-3"):
        path = tmp_path / os.fsdecode(name)
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(START)
    given = str(tmp_path / os.fsdecode(b"app-\xff"))
    found = discover(spark, [str(tmp_path), given])
    assert "app-2" in names(found)
    assert found.problems == tuple(
        f"{prefix}{tmp_path}/{name} is skipped: its name is not UTF-8."
        for prefix, name in (("file:", "app-?"), ("file:", "folder-?"), ("", "app-?"))
    )


def test_a_compressed_log_that_is_too_large_is_a_problem(spark: SparkSession, tmp_path: Path) -> None:
    with (tmp_path / "app-1.zstd").open("wb") as file:
        file.truncate(MAX_COMPRESSED_BYTES + 1)
    found = discover(spark, [str(tmp_path)])
    assert found.problems == (
        f"file:{tmp_path}/app-1.zstd is skipped: a compressed log of 256 MiB; the maximum is 256 MiB.",
    )


def test_hidden_files_and_empty_logs_in_progress_are_skipped(spark: SparkSession, tmp_path: Path) -> None:
    for name in (".app-1.crc", "_SUCCESS", ".hidden", "app-1.inprogress"):
        (tmp_path / name).touch()
    (tmp_path / "app-2").write_bytes(START)
    found = discover(spark, [str(tmp_path)])
    assert names(found) == ["app-2"]
    assert not found.problems


def make_rolled(folder: Path, *names: str) -> None:
    folder.mkdir()
    for number, name in enumerate(names):
        (folder / name).write_bytes(START if number == 0 else b'{"Event":"SparkListenerTaskStart"}\n')


def test_only_the_last_part_of_a_rolled_log_is_in_progress(spark: SparkSession, tmp_path: Path) -> None:
    make_rolled(tmp_path / "eventlog_v2_app-1", *(f"events_{number}_app-1" for number in (1, 2, 10)))
    (tmp_path / "eventlog_v2_app-1" / "appstatus_app-1.inprogress").touch()
    found = discover(spark, [str(tmp_path)])
    assert {log.name for log in found.logs if log.in_progress} == {"events_10_app-1"}
    assert len(found.logs) == 3


def test_a_compacted_part_replaces_earlier_parts(spark: SparkSession, tmp_path: Path) -> None:
    parts = ("events_2_app-1.compact", "events_1_app-1", "events_2_app-1", "events_3_app-1")
    make_rolled(tmp_path / "eventlog_v2_app-1", *parts)
    assert names(discover(spark, [str(tmp_path)])) == ["events_2_app-1.compact", "events_3_app-1"]


def test_a_compacted_part_that_is_still_being_written_replaces_nothing(spark: SparkSession, tmp_path: Path) -> None:
    make_rolled(tmp_path / "eventlog_v2_app-1", "events_1_app-1", "events_2_app-1", "events_2_app-1.compact.inprogress")
    assert names(discover(spark, [str(tmp_path)])) == ["events_1_app-1", "events_2_app-1"]


def test_a_rolled_log_of_which_no_part_begins_with_an_event_is_one_problem(spark: SparkSession, tmp_path: Path) -> None:
    make_rolled(tmp_path / "eventlog_v2_app-1", "events_1_app-1", "events_2_app-1")
    for part in (tmp_path / "eventlog_v2_app-1").glob("events_*"):
        part.write_bytes(b"hello\n")
    found = discover(spark, [str(tmp_path)])
    assert found.problems == (
        f"file:{tmp_path}/eventlog_v2_app-1 is not an event log: it does not begin with an event.",
    )
