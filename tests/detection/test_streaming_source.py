"""Each line of a growing log is read once, when it is complete, wherever batches end."""

from __future__ import annotations

import gzip
import subprocess
import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest
import zstandard
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from blocklist.detection import streaming_source
from blocklist.detection.decoders import BOMB
from blocklist.detection.streaming_source import lines

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
    path.write_bytes(b"one\ntw")
    name = str(tmp_path / "app-1")
    assert list(lines(name, 0, 6)) == [b"one"]
    path.write_bytes(b"one\ntwo\n")
    path.rename(name)  # the application has ended
    assert list(lines(name, 6, 8)) == [b"two"]


def test_a_decompression_bomb_is_named_once(tmp_path: Path) -> None:
    path = tmp_path / "app-1.gz"
    path.write_bytes(gzip.compress(b"first\n" + bytes(1 << 28)))
    size = path.stat().st_size
    assert list(lines(str(path), 0, size - 8)) == [b"first", BOMB.encode()]
    assert list(lines(str(path), size - 8, size)) == []


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
    reader = streaming_source.EventLogSource({"paths": f'["{tmp_path}"]'}).streamReader(None)
    offset = reader.latestOffset()  # type: ignore[call-arg]
    assert offset == {f"{tmp_path}/app-1": 3, f"{tmp_path}/eventlog_v2_app-2/events_1_app-2.zstd": 3}
    parts = reader.partitions({f"{tmp_path}/app-1": 2}, offset)
    assert [(part.path.rpartition("/")[2], part.start, part.end) for part in parts] == [  # type: ignore[attr-defined]
        ("app-1", 2, 3),
        ("events_1_app-2.zstd", 0, 3),
    ]


def test_importing_it_does_not_import_the_pipeline() -> None:
    """Executors import it."""
    code = "import blocklist.detection.streaming_source, sys; assert 'blocklist.detection.pipeline' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
