"""Log lines of changes are written by a thread, and never block the service."""

from __future__ import annotations

import json
import os
import sys
from contextlib import suppress

import pytest
from structlog.testing import capture_logs

import app.logs
from app.logs import ChangeLogWriter
from blocklist.model.changes import Change, ChangeType, Source
from blocklist.model.node import PERMANENT, BlockAction, BlockedNode


def change(revision: int, cause: str = "disk", at: int = 1_700_000_000_123) -> Change:
    node = BlockedNode(id="a", action=BlockAction.MARK_BLOCKED, start=0, end=PERMANENT, cause=cause)
    return Change(
        revision=revision, type=ChangeType.BLOCKED, at=at, node=node, source=Source.REQUEST,
        created_by="ann", forced="the boss", request_id="r-1",
    )  # fmt: skip


def test_a_line_has_all_fields_of_a_change(capsys: pytest.CaptureFixture[str]) -> None:
    lines = ChangeLogWriter("json", lambda _: None)
    lines.write([change(7, '"é\u2028')])
    lines.close()
    assert json.loads(capsys.readouterr().err) == {
        "kind": "blocked", "node": "a", "by": "ann", "revision": 7, "cause": '"é\u2028', "source": "request",
        "forced": "the boss", "request_id": "r-1", "event": "change", "level": "info",
        "timestamp": "2023-11-14T22:13:20.123000Z",
    }  # fmt: skip


def test_lines_that_are_not_read_are_dropped_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    lost: list[int] = []
    reading, writing = os.pipe()
    stream = os.fdopen(writing, "w")
    # Not in a fixture: pytest replaces stderr after fixtures.
    monkeypatch.setattr(sys, "stderr", stream)
    lines = ChangeLogWriter("json", lost.append, max_queued=1000)
    for first in range(0, 5000, 100):
        lines.write([change(revision, "x" * 1000) for revision in range(first, first + 100)])
    assert 3000 < sum(lost) < 5000
    # Nor does a closed pipe block it.
    os.close(reading)
    lines.close()
    with suppress(BrokenPipeError):
        stream.close()


def test_a_clock_beyond_the_year_9999_does_not_stop_the_log(capsys: pytest.CaptureFixture[str]) -> None:
    lines = ChangeLogWriter("json", lambda _: None)
    lines.write([change(7, at=PERMANENT - 1), change(8)])
    lines.close()
    assert [json.loads(line)["revision"] for line in capsys.readouterr().err.splitlines()] == [7, 8]


def test_a_line_that_cannot_be_formatted_does_not_stop_the_log(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    formatted = app.logs._json_line

    def fail_at_8(change: Change) -> str:
        assert change.revision != 8
        return formatted(change)

    monkeypatch.setattr(app.logs, "_json_line", fail_at_8)
    lines = ChangeLogWriter("json", lambda _: None)
    with capture_logs() as logs:
        lines.write([change(7), change(8), change(9)])
        lines.write([change(10)])
        lines.close()
    assert [json.loads(line)["revision"] for line in capsys.readouterr().err.splitlines()] == [7, 9, 10]
    assert [entry["part"] for entry in logs] == ["log line of revision 8"]
