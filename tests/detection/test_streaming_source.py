"""Each line of a growing log is read once, when it is complete, wherever batches end."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import cast

import pytest
import zstandard
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql.datasource import DataSourceStreamReader

from blocklist.detection.log_discovery import MAX_COMPRESSED_BYTES
from blocklist.detection.log_file import BOMB, DAMAGED, LONG_LINE, MAX_LINE
from blocklist.detection.reader import ByteRanges, EventLogSource, lines
from tests.detection.synthetic_logs import event_log


def listed(folder: Path) -> tuple[DataSourceStreamReader, dict[str, int]]:
    """A reader of this folder, and what it lists, as Spark stores it."""
    reader = EventLogSource({"paths": json.dumps([str(folder)])}).streamReader(None)
    return reader, json.loads(json.dumps(reader.latestOffset()))  # type: ignore[call-arg]


LINES = [b'{"Event":"%d"%s}' % (number, b"x" * (number * 37 % 200)) for number in range(60)]
TEXT = b"".join(line + b"\n" for line in LINES)
WRITERS: dict[str, Callable[[bytes], bytes]] = {
    "app-1": lambda text: text,
    "app-1.zstd": lambda text: b"".join(zstandard.compress(text[at : at + 700]) for at in range(0, len(text), 700)),
    "app-1.gz": gzip.compress,
}


@pytest.mark.parametrize("name", WRITERS)
@given(cuts=st.lists(st.integers(0, 12_000), max_size=6), chunk=st.sampled_from([7, 100, 1 << 20]))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_lines_are_read_once_and_in_order(name: str, cuts: list[int], chunk: int, tmp_path: Path) -> None:
    data = WRITERS[name](TEXT)
    path = tmp_path / name
    path.write_bytes(data)
    places = sorted({0, len(data), *(cut for cut in cuts if cut < len(data))})
    assert [line for begin, end in pairwise(places) for line in lines(str(path), begin, end, chunk)] == LINES


def test_an_incomplete_line_is_left_for_the_next_batch(tmp_path: Path) -> None:
    path = tmp_path / "app-1.inprogress"
    one, two = LINES[:2]
    cut = len(one) + 5
    path.write_bytes((one + b"\n" + two)[:cut])
    name = str(tmp_path / "app-1")
    assert list(lines(name, 0, cut)) == [one]
    path.write_bytes(one + b"\n" + two + b"\n")
    path.rename(name)  # the application has ended
    assert list(lines(name, cut, Path(name).stat().st_size)) == [two]


def test_a_decompression_bomb_is_named_once(tmp_path: Path) -> None:
    path = tmp_path / "app-1.gz"
    path.write_bytes(gzip.compress(LINES[0] + b"\n" + bytes(1 << 28)))
    size = path.stat().st_size
    assert list(lines(str(path), 0, size - 8)) == [LINES[0], BOMB]
    assert list(lines(str(path), size - 8, size)) == []


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("notes.txt", b"Ask Kim about rack 7.\n" * 100, "it does not begin with an event"),
        ("app-1.zstd", b"hello\n" * 100, "it does not begin with an event"),
        ("app-1.zstd", zstandard.compress(b"hello\n" * 100), "it does not begin with an event"),
        ("app-1.lzf", TEXT, "unsupported compression lzf"),
    ],
)
def test_a_file_that_is_no_log_is_named_once(name: str, content: bytes, reason: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    size = len(content)
    assert list(lines(str(path), 0, size)) == [f"(the file is skipped: {reason})".encode()]
    path.write_bytes(content * 2)
    assert list(lines(str(path), size, size * 2)) == []


def test_a_log_that_becomes_too_large_is_named_once(tmp_path: Path) -> None:
    path = tmp_path / "app-1.zstd"
    path.write_bytes(zstandard.compress(TEXT))
    sizes = [path.stat().st_size, MAX_COMPRESSED_BYTES + 1, MAX_COMPRESSED_BYTES + 2]
    with path.open("ab") as file:
        file.truncate(sizes[-1])
    (named,) = lines(str(path), *sizes[:2])
    assert named == b"(the file is skipped: a compressed log of 256 MiB; the maximum is 256 MiB)"
    assert list(lines(str(path), *sizes[1:])) == []


def test_damage_is_named_once(tmp_path: Path) -> None:
    path = tmp_path / "app-1.zstd"
    whole = WRITERS[path.name](TEXT)
    path.write_bytes(whole + b"damage" * 100)
    size = path.stat().st_size
    assert list(lines(str(path), 0, size - 8)) == [*LINES, DAMAGED]
    assert list(lines(str(path), size - 8, size)) == []


@pytest.mark.parametrize("name", ["eventlog_v2_app-1/events_2_app-1", "8877/eventlog"])
def test_a_part_of_a_log_may_begin_anywhere(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.parent.mkdir()
    path.write_bytes(b'"x":1}\n' + TEXT)
    assert list(lines(str(path), 0, len(TEXT) + 7)) == [b'"x":1}', *LINES]


def test_the_first_bytes_of_a_log_are_no_reason_to_skip_it(tmp_path: Path) -> None:
    path = tmp_path / "app-1"
    path.write_bytes(TEXT[:5])
    assert list(lines(str(path), 0, 5)) == []
    path.write_bytes(TEXT)
    assert list(lines(str(path), 5, len(TEXT))) == LINES


def test_a_deleted_log_has_no_lines(tmp_path: Path) -> None:
    assert list(lines(str(tmp_path / "app-1"), 0, 100)) == []


def test_offsets_are_keyed_by_the_final_file_name(tmp_path: Path) -> None:
    for folder in ("eventlog_v2_app-2", "_temporary/0"):
        (tmp_path / folder).mkdir(parents=True)
    files = [
        "app-1.inprogress",
        "eventlog_v2_app-2/events_1_app-2.zstd",
        "eventlog_v2_app-2/appstatus_app-2.inprogress",
    ]
    for file in [*files, ".hidden", "_temporary/0/app-3", "app-1.crc"]:
        (tmp_path / file).write_bytes(b"abc")
    reader, offset = listed(tmp_path)
    assert offset == {f"{tmp_path}/app-1": 3, f"{tmp_path}/eventlog_v2_app-2/events_1_app-2.zstd": 3}
    (task,) = reader.partitions({f"{tmp_path}/app-1": 2}, offset)
    assert isinstance(task, ByteRanges)
    assert [(part.path.rpartition("/")[2], part.start, part.end) for part in task.ranges] == [
        ("app-1", 2, 3),
        ("events_1_app-2.zstd", 0, 3),
    ]


def test_a_log_is_listed_until_all_its_parts_are_quiet(tmp_path: Path) -> None:
    days_ago = time.time() - 3 * 86_400
    for number, rolled in enumerate(("eventlog_v2_app-1", "eventlog_v2_app-2")):
        for part in (1, 2):
            path = tmp_path / rolled / f"events_{part}_{rolled[12:]}"
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(b"abc")
            if part == 1 or number == 0:
                os.utime(path, (days_ago, days_ago))
    folder = tmp_path / "eventlog_v2_app-2"
    assert listed(tmp_path)[1] == {f"{folder}/events_{part}_app-2": 3 for part in (1, 2)}


def test_what_two_hundred_logs_have_that_is_new_is_read_by_a_few_tasks(tmp_path: Path) -> None:
    reader = EventLogSource({"paths": json.dumps([str(tmp_path)])}).streamReader(None)
    before = {f"{tmp_path}/app-{number}": 10**9 for number in range(200)} | {f"{tmp_path}/app-zstd.zstd": 2**27}
    tasks = cast("list[ByteRanges]", reader.partitions(before, {name: size + 50_000 for name, size in before.items()}))
    assert [len(task.ranges) for task in tasks] == [107, 93, 1], "a compressed log is read from its start"


@pytest.mark.parametrize("kind", ["link", "folder", "closed"])
def test_what_cannot_be_read_does_not_take_the_place_of_a_log_in_progress(kind: str, tmp_path: Path) -> None:
    (tmp_path / "app-1.inprogress").write_bytes(TEXT)
    other = tmp_path / "app-1"
    if kind == "link":
        other.symlink_to("/etc/passwd")
    elif kind == "folder":
        other.mkdir()
    else:
        os.mkfifo(other, mode=0)
    assert list(lines(str(other), 0, len(TEXT), root=str(tmp_path))) == LINES


def test_a_line_without_an_end_is_not_read_again_and_again(tmp_path: Path) -> None:
    """Whoever writes one would else slow down the analysis of all: this one has a terabyte."""
    path = tmp_path / "app-1"
    begin = LINES[0] + b"\n"
    path.write_bytes(begin)
    size = 2**40
    with path.open("r+b") as file:
        file.truncate(size)
    assert list(lines(str(path), size - 5, size)) == []
    with path.open("ab") as file:
        file.write(b"\n" + LINES[1] + b"\n")
    assert list(lines(str(path), size, path.stat().st_size)) == [LONG_LINE, LINES[1]]
    size = len(begin) + MAX_LINE
    path.write_bytes(begin)
    with path.open("r+b") as file:
        file.truncate(size)
    with path.open("ab") as file:
        file.write(b"\n")
    assert [len(line) for line in lines(str(path), size, size + 1)] == [MAX_LINE], "the longest one that is read"


def test_a_log_whose_name_is_not_text_is_read(tmp_path: Path) -> None:
    """Else it would end the stream, again after each restart."""
    path = tmp_path / os.fsdecode(b"app-\xff")
    path.write_bytes(b"".join(b"%b\n" % line.encode() for line in event_log("app-1", 1_700_000_000_000)))
    reader, offset = listed(tmp_path)
    (part,) = reader.partitions({}, offset)
    rows = [row for batch in reader.read(part) for row in batch.to_pylist()]  # type: ignore[union-attr]
    assert {row["file"] for row in rows} == {f"{tmp_path}/app-?"}
    assert sum(row["kind"] == "task" for row in rows) == 108


def test_importing_it_does_not_import_the_analysis() -> None:
    """Executors import it."""
    code = "import blocklist.detection.reader, sys; assert 'duckdb' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
