"""Text of files and streams: byte order marks, and locales in which not every character can be written."""

from __future__ import annotations

import codecs
import io
import json
import os
import signal
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

from blocklist.client.credentials import read_token_file
from blocklist.model.text import decode_text, json_text, prepare_streams
from blocklist.wire.body import parse_json

TEXT = 'current = "Köln"\n'
MARKED = [
    pytest.param(codecs.BOM_UTF8 + TEXT.encode(), id="UTF-8"),
    pytest.param(codecs.BOM_UTF16_LE + TEXT.encode("utf-16-le"), id="UTF-16, little endian"),
    pytest.param(codecs.BOM_UTF16_BE + TEXT.encode("utf-16-be"), id="UTF-16, big endian"),
]


@pytest.mark.parametrize("data", [*MARKED, pytest.param(TEXT.encode(), id="without")])
def test_a_byte_order_mark_is_no_part_of_the_text(data: bytes) -> None:
    assert decode_text(data) == TEXT


def test_a_token_file_may_have_a_byte_order_mark(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_bytes(codecs.BOM_UTF8 + b"blocklist_secret\r\n")
    assert read_token_file(file) == "blocklist_secret"


def test_a_body_may_have_a_byte_order_mark() -> None:
    assert parse_json(codecs.BOM_UTF8 + b'{"cause": "disk"}') == {"cause": "disk"}


def stream(encoding: str) -> io.TextIOWrapper:
    return io.TextIOWrapper(io.BytesIO(), encoding=encoding)


def written(out: io.TextIOWrapper) -> bytes:
    out.flush()
    assert isinstance(out.buffer, io.BytesIO)
    return out.buffer.getvalue()


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "cp1252", "utf-8", "UTF8"])
def test_json_is_json_in_every_locale(monkeypatch: pytest.MonkeyPatch, encoding: str) -> None:
    value = {"cause": 'Köln "€" 🔥 \x1b\\'}
    out = stream(encoding)
    monkeypatch.setattr(sys, "stdout", out)
    prepare_streams()
    out.write(json_text(value))
    assert json.loads(written(out)) == value
    assert ("🔥".encode() in written(out)) == encoding.lower().startswith("utf")


@pytest.mark.parametrize("name", ["stdout", "stderr"])
def test_what_the_locale_lacks_is_written_as_an_escape(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    out = stream("ascii")
    monkeypatch.setattr(sys, name, out)
    prepare_streams()
    out.write("Köln €\n")
    assert written(out) == rb"K\xf6ln \u20ac" + b"\n"


def broken(*_: object, **__: object) -> object:
    raise OverflowError("too \x1b large")


PROGRAMS = [
    pytest.param("managers", "blocklist.managers.options.build_parser", "httpx", id="managers"),
    pytest.param("flink", "blocklist.flink.__main__.build_parser", "httpx", id="flink"),
    pytest.param("detection", "blocklist.detection.__main__.parser", "pyspark", id="detection"),
]


@pytest.mark.parametrize(("name", "place", "package"), PROGRAMS)
def test_an_error_that_nothing_has_foreseen_is_one_sentence_and_a_failure(
    name: str, place: str, package: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    program = import_module(f"blocklist.{name}.__main__")
    monkeypatch.setattr(place, broken)
    assert program.main([]) == 1
    (sentence,) = capsys.readouterr().err.splitlines()
    assert "has failed by a fault of its own. Please report it: OverflowError: too \\x1b large at " in sentence, package


@pytest.mark.parametrize(("name", "place", "package"), PROGRAMS)
def test_a_signal_ends_a_program_that_is_still_importing(name: str, place: str, package: str, tmp_path: Path) -> None:
    """With a handler: process 1 of a container ignores others."""
    (tmp_path / f"{package}.py").write_text("import time\nprint('importing', flush=True)\ntime.sleep(60)\n")
    (tmp_path / "flink-dist.jar").touch()
    (tmp_path / "config.yaml").touch()
    options = {"managers": ["kubernetes"], "flink": ["--conf-dir", str(tmp_path), "--lib", str(tmp_path)]}
    command = [sys.executable, "-m", f"blocklist.{name}", *options.get(name, [])]
    env = os.environ | {"PYTHONPATH": str(tmp_path)}
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "importing\n", place
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=30) == 128 + signal.SIGTERM
