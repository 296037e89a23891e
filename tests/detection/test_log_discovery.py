"""All forms in which Spark leaves event logs are found; anything else is reported as a problem."""

from __future__ import annotations

import errno
import os
import socket
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from blocklist.detection.log_discovery import MAX_COMPRESSED_BYTES, DiscoveredLogs, discover
from blocklist.detection.reader import read_facts
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


def test_any_name_is_read(spark: SparkSession, tmp_path: Path) -> None:
    """Also what is no path to Hadoop, as a colon in it, and what is no text. Such a path cannot be given itself."""
    given = [b"app 1%20[x]", b"app:2", b"app-\x1b[31m\n", b"app-\xff", b"folder-\xff/app-3"]
    for name in (*given, b".hidden-\xff"):
        path = tmp_path / os.fsdecode(name)
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(START)
    bad = str(tmp_path / os.fsdecode(b"app-\xff"))
    found = discover(spark, [str(tmp_path), bad])
    assert sorted(log.path.removeprefix(f"file:{tmp_path}/") for log in found.logs) == sorted(map(os.fsdecode, given))
    assert found.problems == (f"{tmp_path}/app-? is skipped: its name is not UTF-8.",)
    assert found.failed == [bad]
    facts = read_facts(spark, found.logs)
    assert facts.where("kind = 'log'").count() == len(given)


def test_links_and_what_is_no_file_are_named_and_hide_nothing(spark: SparkSession, tmp_path: Path) -> None:
    """A link would be read with the rights of the one who runs this; a pipe would wait for ever."""
    secret, logs = tmp_path / "secret", tmp_path / "logs"
    (logs / "sub").mkdir(parents=True)
    secret.write_bytes(START)
    for name in ("app-1", "sub/app-2"):
        (logs / name).write_bytes(START)
    for name in ("link", "sub/link-1", "sub/link-2"):
        (logs / name).symlink_to(secret)
    (logs / "folder").symlink_to(tmp_path)
    (logs / "loop").symlink_to("loop")
    os.mkfifo(logs / "pipe")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(logs / "socket"))
        found = discover(spark, [str(logs)])
    assert names(found) == ["app-1", "app-2"]
    links = [f"file:{logs}/{name} is skipped: it is a link." for name in ("folder", "link", "loop")]
    others = [f"file:{logs}/{name} is skipped: it is not a regular file." for name in ("pipe", "socket")]
    below = [f"file:{logs}/sub/{name} is skipped: it is a link." for name in ("link-1", "link-2")]
    assert sorted(found.problems) == sorted([*links, *others, *below])
    assert not found.failed


def test_a_path_that_is_given_may_be_a_link(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "app-1").write_bytes(START)
    (tmp_path / "folder").symlink_to("logs")
    (tmp_path / "file").symlink_to("logs/app-1")
    for given in ("folder", "file"):
        found = discover(spark, [str(tmp_path / given)])
        assert len(found.logs) == 1
        assert not found.problems
        assert read_facts(spark, found.logs).where("kind = 'log'").count() == 1


def test_what_becomes_a_link_after_it_was_found_is_not_read(spark: SparkSession, tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    for name in ("a/app-1", "b/app-2"):
        (logs / name).parent.mkdir(parents=True)
        (logs / name).write_bytes(START)
    found = discover(spark, [str(logs)])
    (logs / "a").rename(tmp_path / "moved")
    (logs / "a").symlink_to(tmp_path / "moved")
    (logs / "b/app-2").rename(tmp_path / "secret")
    (logs / "b/app-2").symlink_to(tmp_path / "secret")
    facts = read_facts(spark, found.logs).collect()
    assert {fact.kind for fact in facts} == {"broken"}
    assert len(facts) == 2
    assert any("it is a link" in fact.detail for fact in facts)


def test_an_error_stays_in_its_folder(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Root may list every folder: an error takes the place of a missing permission."""
    for name in ("closed/app-1", "open/app-2"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_bytes(START)
    opened = os.open

    def refuse(path: str, *args: Any, **kwargs: Any) -> int:
        if path == "closed":
            raise PermissionError(errno.EACCES, "Permission denied")
        return opened(path, *args, **kwargs)

    monkeypatch.setattr("os.open", refuse)
    found = discover(spark, [str(tmp_path), str(tmp_path / "missing")])
    assert names(found) == ["app-2"]
    assert found.problems[0] == f"{tmp_path}/closed cannot be read: Permission denied."
    assert found.failed == [str(tmp_path / "missing")]


@pytest.mark.parametrize(
    ("parts", "missing"),
    [
        (("events_1_app-1", "events_3_app-1"), "part 2"),
        (("events_2_app-1", "events_3_app-1"), "part 1"),
        (("events_3_app-1.compact", "events_4_app-1", "events_7_app-1"), "parts 5, 6"),
        (("events_1_app-1", "events_99999999999_app-1"), "parts 2, 3, 4, 5, 6, 7, 8, 9, 10, 11 and more"),
    ],
)
def test_missing_parts_of_a_rolled_log_are_named(
    spark: SparkSession, tmp_path: Path, parts: tuple[str, ...], missing: str
) -> None:
    make_rolled(tmp_path / "eventlog_v2_app-1", *parts)
    found = discover(spark, [str(tmp_path)])
    assert names(found) == sorted(parts)
    assert found.problems == (f"file:{tmp_path}/eventlog_v2_app-1 has no {missing}: what was in it is unknown.",)


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
