"""Each line of a log is read once, whatever the ranges and the sizes of reads."""

from __future__ import annotations

import gzip
import io
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blocklist.detection.log_file import DAMAGED, LONG_LINE, MAX_LINE, LogFile, decoded_lines, decoder_for, plain_lines
from blocklist.detection.reader import (
    MAX_TASK_BYTES,
    MIN_TASK_BYTES,
    TASKS_PER_CORE,
    Split,
    lines,
    pack,
    split_lines,
)


def read(text: bytes, start: int, end: int | None, block: int) -> list[bytes]:
    return [line for lines in plain_lines(io.BytesIO(text), start, end, block=block) for line in lines]


@given(
    text=st.lists(st.sampled_from([b"\n", b"a", b"bc", b"defghijklmno"]), max_size=40).map(b"".join),
    cuts=st.lists(st.integers(1, 200), max_size=5),
    block=st.integers(1, 50),
)
def test_ranges_read_each_line_once(text: bytes, cuts: list[int], block: int) -> None:
    ends = sorted({cut for cut in cuts if cut < len(text)})
    ranges = list(pairwise([0, *ends, len(text)])) or [(0, len(text))]
    found = [
        line for start, end in ranges for line in read(text, start, None if end == len(text) else end, block) if line
    ]
    assert found == [line for line in text.split(b"\n") if line]


FIRST = b'{"Event":"first"}'


def test_only_a_long_line_is_skipped(tmp_path: Path) -> None:
    text = FIRST + b"\n" + bytes(MAX_LINE + 10) + b"\nlast\n"
    assert read(text, 0, None, 16 * 1024 * 1024) == [FIRST, LONG_LINE, b"last"]
    assert read(text, 0, 1000, 16 * 1024 * 1024) == [FIRST, LONG_LINE]
    assert read(text, 1000, len(text), 16 * 1024 * 1024) == [b"last"]
    assert read(text[:-6], 0, None, 16 * 1024 * 1024) == [FIRST, LONG_LINE]
    path = tmp_path / "app-1"
    path.write_bytes(text)
    assert list(lines(str(path), 0, len(text))) == [FIRST, LONG_LINE, b"last"]


def test_a_long_line_is_not_copied_for_each_piece() -> None:
    """Joining what was read so far takes quadratic time: minutes here."""
    lines = plain_lines(io.BytesIO(bytes(MAX_LINE // 2)), 0, None, block=256)
    assert [len(line) for some in lines for line in some] == [MAX_LINE // 2]


@pytest.mark.parametrize("is_open", [False, True])
def test_the_last_line_of_a_log_in_progress_is_read_when_it_has_its_end(is_open: bool) -> None:
    expected = [b"one"] if is_open else [b"one", b"tw"]
    plain = plain_lines(io.BytesIO(b"one\ntw"), 0, None, is_open=is_open)
    assert [line for lines in plain for line in lines] == expected
    packed = gzip.compress(b"one\ntw")
    decoder = decoder_for("app-1.gz")
    assert decoder is not None
    assert [line for lines in decoded_lines([packed], decoder, is_open=is_open) for line in lines] == expected


@pytest.mark.parametrize("is_open", [False, True])
def test_a_truncated_log_is_damaged_unless_it_is_still_being_written(is_open: bool) -> None:
    decoder = decoder_for("app-1.gz")
    assert decoder is not None
    found = decoded_lines([gzip.compress(b"one\n")[:-4]], decoder, is_open=is_open)
    assert [line for lines in found for line in lines] == ([b"one"] if is_open else [b"one", DAMAGED])


def test_a_file_that_cannot_be_read_is_reported_and_a_missing_one_is_not(tmp_path: Path) -> None:
    """A folder takes the place of a file without permission, which root could read."""
    unreadable = LogFile(path=f"file:{tmp_path}", size=1, in_progress=False)
    ((line,),) = split_lines(Split(log=unreadable))
    assert line == b"(the file cannot be read: it is a folder)"
    assert list(lines(str(tmp_path), 0, 1)) == [line]
    missing = LogFile(path=f"file:{tmp_path}/app-1", size=1, in_progress=False)
    assert list(split_lines(Split(log=missing))) == []


def log(size: int, name: str = "app-1") -> LogFile:
    return LogFile(path=f"file:/logs/{name}", size=size, in_progress=False)


def test_a_large_plain_log_is_split_and_the_last_range_is_open() -> None:
    tasks = pack([log(2 * MIN_TASK_BYTES + 1)], cores=2)
    splits = sorted((split for task in tasks for split in task), key=lambda it: it.start)
    assert [(split.start, split.end) for split in splits] == [
        (0, MIN_TASK_BYTES),
        (MIN_TASK_BYTES, 2 * MIN_TASK_BYTES),
        (2 * MIN_TASK_BYTES, None),
    ]
    assert sum(split.cost for split in splits) < 2.1 * MIN_TASK_BYTES


@pytest.mark.parametrize(
    ("total", "expected"),
    [
        (MIN_TASK_BYTES, MIN_TASK_BYTES),
        (2 * TASKS_PER_CORE * 2 * MIN_TASK_BYTES, 2 * MIN_TASK_BYTES),
        (2 * TASKS_PER_CORE * 9 * MAX_TASK_BYTES, MAX_TASK_BYTES),
    ],
)
def test_each_core_gets_several_tasks_of_limited_size(total: int, expected: int) -> None:
    assert len(pack([log(total)], cores=2)) == total // expected


def test_a_compressed_log_is_one_range() -> None:
    ((split,),) = pack([log(2 * MAX_TASK_BYTES + 1, "app-1.zstd")], cores=2)
    assert (split.start, split.end) == (0, None)


def test_small_logs_share_a_task() -> None:
    tasks = pack([log(1000, f"app-{number}") for number in range(1000)], cores=2)
    assert 5 < len(tasks) < 20
    assert sum(map(len, tasks)) == 1000
